/* SPDX-License-Identifier: Apache-2.0
 *
 * Queries and keys whose rows are stored in pairs: the elements 2j and 2j + 1 of a head are rotated
 * with each other (Meta's checkpoints, those of gpt-fast, llama2.c and torchtune, GGUF's llama),
 * where Hugging Face rotates j and j + width / 2. Weights are read through nib_weight.rows, biases
 * as a copy.
 */
#ifndef NIB_ROTARY_H
#define NIB_ROTARY_H

#include "checkpoint_inside.h"

/* Where row i of ours is stored, for heads of `width` rows. */
NIB_INLINE int64_t nib__rotary_place(int64_t i, int64_t width)
{
    const int64_t head = i / width, half = i % width / (width / 2), j = i % (width / 2);
    return head * width + 2 * j + half;
}

/* Finds the width of a head of a file with Meta's names, and whether rows are in pairs at all, from
 * the text of its config.json or params.json. name: of the text. */
nib_status nib__rotary_find(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                            nib_err *err);
/* The same from numbers; those that cannot be leave it unknown. */
nib_status nib__rotary_set(nib_checkpoint *cp, int64_t heads, int64_t head, nib_err *err);
/* True if the module's rows are in pairs, or nobody knows. */
bool nib__rotary_claims(const nib_weight_query *q, const nib_tensor *codes);
/* Sets q->out->rows, if q's module is a query or key of such a file. */
nib_status nib__rotary_weight(const nib_weight_query *q);
/* Sets q->out->bias to the values in our order, likewise. */
nib_status nib__rotary_bias(const nib_weight_query *q, const nib_tensor *bias);

#endif
