/* SPDX-License-Identifier: Apache-2.0
 *
 * The architecture of a checkpoint with Meta's names from its params.json, which stands beside it
 * or, in files of llama2.c, inside it: what config.json says of a Hugging Face directory.
 */
#ifndef NIB_CONFIG_META_H
#define NIB_CONFIG_META_H

#include "checkpoint.h"
#include "config.h"

/* checkpoint: one for which nib__checkpoint_params is not NULL. A key that would change the result
 * in a way not built is an error that names it; one not known is a note. */
nib_status nib__config_meta(nib_config *out, const nib_checkpoint *checkpoint, nib_ledger *ledger,
                            nib_err *err);

#endif
