/* SPDX-License-Identifier: Apache-2.0
 *
 * What the table of attention's gradients takes from the files compiled per instruction set, and
 * the memory of one worker.
 */
#ifndef NIB_ATTN_DX_ROWS_H
#define NIB_ATTN_DX_ROWS_H

#include "kernel.h"

/* All f32, in blocks of NIB_CACHE_BLOCK positions; `padded` = head_dim to whole lanes.
 *
 *   k             [NIB_CACHE_BLOCK][padded]   the key block
 *   kt, vt        [head_dim][NIB_CACHE_BLOCK] keys and values of it, transposed
 *   v             [NIB_CACHE_BLOCK][head_dim] on the way to vt
 *   dk, dv        [NIB_CACHE_BLOCK][padded]   its gradients so far
 *   q, dout, dq   [NIB_CACHE_BLOCK][padded]   the query block
 *   p, ds         [NIB_CACHE_BLOCK][NIB_CACHE_BLOCK]   of the query block (rows) and the key block
 *   lse, delta_block   [NIB_CACHE_BLOCK]      of the query block
 *   delta         [heads of a kv head][m]     scale * dout.out of all queries of the document
 */
typedef struct nib_attn_dx_scratch {
    float *k, *kt, *vt, *v, *dk, *dv, *q, *dout, *dq, *p, *ds, *lse, *delta_block, *delta;
} nib_attn_dx_scratch;

/* Parts the memory that the rows' `scratch` asks for; what may be read before it is written is
 * zero. */
void nib__attn_dx_part(nib_attn_dx_scratch *s, float *memory, int64_t padded);

void nib__attn_dx__ref(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch);
void nib__attn_dx__avx2(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch);
void nib__attn_dx__avx512(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch);

#endif
