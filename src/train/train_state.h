/* SPDX-License-Identifier: Apache-2.0
 *
 * One training checkpoint: a directory from which a run goes on bit for bit. It is a model, too:
 * `generate`, `verify` and checkpoint.initial_load take it.
 *   config.json           the model, as Hugging Face names it
 *   model.safetensors     the master weights, f32
 *   moments.safetensors   "m.NAME" and "v.NAME" for every parameter, f32
 *   nibble.json           hashes of all that, the place in the data, the config; written last
 * Which directories there are, and which is read, is train_checkpoint.h's.
 */
#ifndef NIB_TRAIN_STATE_H
#define NIB_TRAIN_STATE_H

#include "trainer.h"

/* The model's config with the tokenizer's ids, and the type that its weights are stored in. */
nib_status nib__state_config(nib_text *out, const nib_trainer *trainer, nib_type type,
                             nib_err *err);

/* Values of all parameters under "PREFIXname". */
typedef struct nib_state_block {
    const char *prefix;
    const float *values; /* [params.total] */
} nib_state_block;

/* A new safetensors file of f32 blocks [count], rounded to f16 or bf16 where that is the type. The
 * hash of every tensor goes into `hashes` as a pair (NULL: none). */
nib_status nib__state_blocks(const char *path, const nib_trainer *trainer,
                             const nib_state_block *blocks, size_t count, nib_type type,
                             nib_jsonw *hashes, nib_err *err);

/* Into a directory that is there and empty. NIB_CHECK_FAILED: a value is not finite, and which; a
 * run must not go on from it. */
nib_status nib__state_write(nib_trainer *trainer, const char *directory, nib_err *err);
/* Everything that nib__state_write wrote, into a trainer of the same model, batches and data.
 * NIB_BAD_INPUT: it is of another one, or bytes have changed. */
nib_status nib__state_read(nib_trainer *trainer, const char *directory, nib_err *err);
/* A line of the log for each setting that is another one than in `saved`: the "config" of a
 * nibble.json (NULL: it has none). train_changes.c */
nib_status nib__state_changes(const nib_trainer *trainer, const char *saved, nib_arena *arena,
                              nib_err *err);

#endif
