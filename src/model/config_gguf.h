/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads from the keys of a GGUF file what config.json and generation_config.json hold in a Hugging
 * Face directory.
 */
#ifndef NIB_CONFIG_GGUF_H
#define NIB_CONFIG_GGUF_H

#include "checkpoint.h"
#include "config.h"
#include "generation_config.h"

/* `checkpoint` is a GGUF file. A key that would change the result in an unsupported way is an error
 * that names it; an unknown key is a note. */
nib_status nib__config_gguf(nib_config *out, const nib_checkpoint *checkpoint, nib_arena *arena,
                            nib_ledger *ledger, nib_err *err);
/* Reads general.sampling.* as llama.cpp does. An ignored key adds a line to the ledger. */
nib_status nib__generation_gguf(nib_generation *out, const nib_gguf *gguf, nib_ledger *ledger,
                                nib_err *err);
/* Reports tokenizer keys that are ignored. */
void nib__gguf_report_tokenizer(const nib_gguf *gguf, nib_ledger *ledger);

/* Whether the layers that use RoPE are those that a GGUF of this family implies. */
bool nib__gguf_rope_layers_match(const nib_config *config);
/* Whether a model of a family with chunks has none, and RoPE in all layers. */
bool nib__gguf_lacks_chunks(const nib_config *config);
/* Whether the layers that attend in chunks, and their size, are those that a GGUF implies. */
bool nib__gguf_chunks_match(const nib_config *config);
/* Whether the family's GGUF has a key for this member, an offset in nib_config. */
bool nib__gguf_has_key(const nib_config *config, size_t at);
/* Whether experts are in the layers that a GGUF of this family implies. */
bool nib__gguf_expert_layers_match(const nib_config *config);
/* Whether their weights are renormalized as it implies. */
bool nib__gguf_expert_weights_match(const nib_config *config);

#endif
