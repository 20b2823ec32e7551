/* SPDX-License-Identifier: Apache-2.0
 *
 * The architecture of a GGUF file from its keys: what config.json says of a Hugging Face directory.
 */
#ifndef NIB_CONFIG_GGUF_H
#define NIB_CONFIG_GGUF_H

#include "checkpoint.h"
#include "config.h"

/* checkpoint: a GGUF file. A key that would change the result in a way not built is an error that
 * names it; one not known is a note. */
nib_status nib__config_gguf(nib_config *out, const nib_checkpoint *checkpoint, nib_arena *arena,
                            nib_ledger *ledger, nib_err *err);

#endif
