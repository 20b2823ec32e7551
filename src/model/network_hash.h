/* SPDX-License-Identifier: Apache-2.0
 *
 * Which model it is, by its content: for what is kept of a model outside of it.
 */
#ifndef NIB_NETWORK_HASH_H
#define NIB_NETWORK_HASH_H

#include "hash.h"
#include "network.h"

/* Of the weights, by samples from end to end, and of what is computed with them; the same wherever
 * the files are, and however they are sharded. Reads at most 16 KiB of each tensor. */
nib_status nib__network_hash(nib_hash *out, const nib_network *net, nib_err *err);

#endif
