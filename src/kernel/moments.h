/* SPDX-License-Identifier: Apache-2.0
 *
 * Second moments of a layer's inputs, H = X^T X, and their factor, H = R R^T with R upper
 * triangular: what the method gptq needs. Only i <= j of H and R are stored, row by row, [k][k].
 * The method qronos needs X^T Y of two inputs, too, in the same order of sums.
 *
 * H: products of up to NIB_MOMENTS_TOKENS tokens are one chain of fma in f32, tokens ascending;
 * those sums are added to f64 in the order of the text. R: f64, columns from the last to the first;
 * sums over the columns after a panel ascend. So the bits do not depend on threads or instruction
 * sets.
 */
#ifndef NIB_MOMENTS_H
#define NIB_MOMENTS_H

#include "base.h"

enum {
    NIB_MOMENTS_TOKENS = 256,
    NIB_MOMENTS_TILE = 96,
    NIB_MOMENTS_PANEL = 64,
    NIB_MOMENTS_STRIP = 8
};

/* h += x^T x for m <= NIB_MOMENTS_TOKENS tokens, or x^T y, all of it. */
typedef struct nib_moments_add {
    double *h;      /* [k][k] */
    const float *x; /* [m][ld] */
    const float *y; /* [m][ld_y]; NULL: x */
    int64_t k, ld, ld_y, m;
} nib_moments_add;

/* Columns [first, end) of R, when those from `end` on are done. */
typedef struct nib_moments_panel {
    double *h; /* [k][k] H before, R after `end` */
    int64_t k, first, end;
    /* [NIB_MOMENTS_PANEL / NIB_MOMENTS_STRIP][k - end][NIB_MOMENTS_STRIP] R_jl of the panel's rows
     * j, transposed, a strip of rows after the other; zeros past the panel's last row */
    const double *after;
} nib_moments_panel;

typedef struct nib_moments_rows {
    /* tiles [tile0, tile1) of nib__moments_tiles. scratch: NIB_MOMENTS_SCRATCH bytes */
    void (*add)(const nib_moments_add *a, int64_t tile0, int64_t tile1, float *scratch);
    /* Subtracts the products with the columns from `end` on, for rows [row0, row1) */
    void (*subtract)(const nib_moments_panel *a, int64_t row0, int64_t row1);
    /* Solves rows [row0, row1) before `first`, when the panel's own rows are done. */
    void (*solve)(const nib_moments_panel *a, int64_t row0, int64_t row1);
} nib_moments_rows;

#define NIB_MOMENTS_SCRATCH (2 * NIB_MOMENTS_TOKENS * NIB_MOMENTS_TILE * sizeof(float))

/* Number of tiles: of i <= j for x^T x, else of all. */
NIB_INLINE int64_t nib__moments_tiles(int64_t k, bool all)
{
    const int64_t side = nib__ceil_div(k, NIB_MOMENTS_TILE);
    return all ? side * side : side * (side + 1) / 2;
}

extern const nib_moments_rows nib__moments__ref, nib__moments__avx2, nib__moments__avx512,
    nib__moments__neon;
const nib_moments_rows *nib__moments_best(int64_t isa);

#endif
