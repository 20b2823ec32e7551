/* SPDX-License-Identifier: Apache-2.0
 *
 * The files that a Hugging Face directory has beside its config.json and weights, from a GGUF.
 */
#ifndef NIB_HF_FILES_H
#define NIB_HF_FILES_H

#include "model_handle.h"
#include "quantize.h"

/* Fills in job->beside, in the arena: tokenizer.json, tokenizer_config.json, chat_template.jinja
 * and generation_config.json, as far as the GGUF has them. A vocabulary that tokenizer.json cannot
 * hold, or of a kind that is not read, stays in tokenizer.gguf, and the ledger says so. */
nib_status nib__hf_files(nib_quantize_job *job, const nib_model *m, nib_arena *arena,
                         nib_ledger *ledger, nib_err *err);

#endif
