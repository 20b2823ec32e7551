/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of attention's gradients that are compiled per instruction set, and the scratch
 * memory of one worker.
 */
#ifndef NIB_ATTN_DX_ROWS_H
#define NIB_ATTN_DX_ROWS_H

#include "kernel.h"

/* All f32. `padded` is head_dim rounded up to whole lanes, `longest` the most positions that a
 * sequence of the cache may have.
 *
 *   q, dout, dq   [longest][padded]           a head of a document
 *   lse, delta    [longest]                   of the same head; delta = scale * dout.out
 *   k             [NIB_CACHE_BLOCK][padded]   the key block
 *   kt, vt        [head_dim][NIB_CACHE_BLOCK] its keys and values, transposed
 *   v             [NIB_CACHE_BLOCK][head_dim] its values, before they are transposed to vt
 *   dk, dv        [NIB_CACHE_BLOCK][padded]   its gradients so far
 *   p, ds         [NIB_CACHE_BLOCK][NIB_CACHE_BLOCK]   of a block of queries (rows) and the keys
 */
typedef struct nib_attn_dx_scratch {
    float *q, *dout, *dq, *lse, *delta, *k, *kt, *vt, *v, *dk, *dv, *p, *ds;
} nib_attn_dx_scratch;

/* Splits the memory that the rows' `scratch` asks for into its arrays. */
void nib__attn_dx_split_scratch(nib_attn_dx_scratch *s, const nib_attn_dx *a, float *memory);

void nib__attn_dx__ref(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch);
void nib__attn_dx__avx2(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch);
void nib__attn_dx__neon(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch);
void nib__attn_dx__avx512(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch);

#endif
