/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the architecture of a checkpoint with Meta's names from its params.json, beside the
 * checkpoint or, for files of llama2.c, inside it.
 */
#ifndef NIB_CONFIG_META_H
#define NIB_CONFIG_META_H

#include "checkpoint.h"
#include "config.h"

/* nib__checkpoint_params(checkpoint) must not be NULL. A key that would change the result in an
 * unsupported way is an error that names it; an unknown key is a note. */
nib_status nib__config_meta(nib_config *out, const nib_checkpoint *checkpoint, nib_ledger *ledger,
                            nib_err *err);

#endif
