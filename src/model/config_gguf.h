/* SPDX-License-Identifier: Apache-2.0
 *
 * The architecture of a GGUF file from its keys: what config.json says of a Hugging Face directory.
 */
#ifndef NIB_CONFIG_GGUF_H
#define NIB_CONFIG_GGUF_H

#include "checkpoint.h"
#include "config.h"
#include "generation_config.h"

/* checkpoint: a GGUF file. A key that would change the result in a way not built is an error that
 * names it; one not known is a note. */
nib_status nib__config_gguf(nib_config *out, const nib_checkpoint *checkpoint, nib_arena *arena,
                            nib_ledger *ledger, nib_err *err);
/* general.sampling.*, as llama.cpp takes it. A key that is not followed goes to ledger. */
nib_status nib__generation_gguf(nib_generation *out, const nib_gguf *gguf, nib_ledger *ledger,
                                nib_err *err);
/* Keys of the tokenizer that no part reads go to ledger. */
void nib__gguf_say_tokenizer(const nib_gguf *gguf, nib_ledger *ledger);

/* Do the layers that rotate by positions agree with what a GGUF of the family means? */
bool nib__gguf_skips_rope_as(const nib_config *config);

#endif
