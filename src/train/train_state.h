/* SPDX-License-Identifier: Apache-2.0
 *
 * One training checkpoint: a directory from which a run resumes bit for bit. It is also a model:
 * `generate`, `verify` and checkpoint.initial_load_path take it.
 *   config.json           the model, with Hugging Face's names
 *   model.safetensors     the master weights, f32
 *   moments.safetensors   "m.NAME" and "v.NAME" for every parameter, f32
 *   nibble.json           hashes of these files, the position in the data, the config; written last
 * train_checkpoint.h decides which directories exist and which one is read.
 */
#ifndef NIB_TRAIN_STATE_H
#define NIB_TRAIN_STATE_H

#include "trainer.h"

/* The model's config with the tokenizer's ids, and the storage type of its weights. */
nib_status nib__state_config(nib_text *out, const nib_trainer *trainer, nib_type type,
                             nib_err *err);

/* Values of all parameters, stored as "PREFIXname". */
typedef struct nib_state_block {
    const char *prefix;
    const float *values; /* [params.total] */
} nib_state_block;

/* Writes a safetensors file of `count` blocks, rounded to f16 or bf16 if that is the type. Adds the
 * hash of every tensor to `hashes` as a pair (NULL: none). */
nib_status nib__state_blocks(const char *path, const nib_trainer *trainer,
                             const nib_state_block *blocks, size_t count, nib_type type,
                             nib_jsonw *hashes, nib_err *err);

/* Writes into an existing empty directory. NIB_CHECK_FAILED: a value is not finite; the error names
 * it. A run must not resume from such a state. */
nib_status nib__state_write(nib_trainer *trainer, const char *directory, nib_err *err);
/* Reads what nib__state_write wrote, into a trainer of the same model, batches and data.
 * NIB_BAD_INPUT: it belongs to another one, or bytes have changed. */
nib_status nib__state_read(nib_trainer *trainer, const char *directory, nib_err *err);

#endif
