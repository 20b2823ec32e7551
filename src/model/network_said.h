/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files of a model say and is not done just so, known once they are read together.
 */
#ifndef NIB_NETWORK_SAID_H
#define NIB_NETWORK_SAID_H

#include "network.h"

/* Ids of config.json and generation_config.json that are no token's. */
void nib__network_say_ids(nib_network *network);
/* What config.json says of tables and codes, against those that are stored. */
void nib__network_say_stored(nib_network *network);
/* The tensor is a table of rotations, and those that run are the same: old checkpoints store it. */
bool nib__network_has_rotation(const nib_network *network, const nib_tensor *tensor);

#endif
