/* SPDX-License-Identifier: Apache-2.0
 *
 * Interleaved rotary embedding: the rows of q and k are stored in pairs, so that elements 2j and
 * 2j + 1 of a head rotate together (Meta's checkpoints, gpt-fast, llama2.c, torchtune, GGUF's
 * llama), whereas Hugging Face rotates j and j + width / 2. Weights are read through
 * nib_weight.rows; biases are copied.
 */
#ifndef NIB_ROTARY_H
#define NIB_ROTARY_H

#include "checkpoint_inside.h"

/* The stored row of our row i, for heads of `width` rows. */
NIB_INLINE int64_t nib__rotary_stored_row(int64_t i, int64_t width)
{
    const int64_t head = i / width, half = i % width / (width / 2), j = i % (width / 2);
    return head * width + 2 * j + half;
}

/* For a file with Meta's names: finds the head width, and whether rows are in pairs, from the text
 * of config.json or params.json. name: its file name. */
nib_status nib__rotary_find(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                            nib_err *err);
/* The same from numbers; impossible values leave the width unknown. */
nib_status nib__rotary_set(nib_checkpoint *cp, int64_t heads, int64_t head, nib_err *err);
/* True if the module's rows are in pairs, or if that is unknown. */
bool nib__rotary_claims(const nib_weight_query *q, const nib_tensor *codes);
/* Sets q->out->rows if the module is q or k of such a file. */
nib_status nib__rotary_weight(const nib_weight_query *q);
/* Likewise sets q->out->bias to a reordered copy. */
nib_status nib__rotary_bias(const nib_weight_query *q, const nib_tensor *bias);

#endif
