/* SPDX-License-Identifier: Apache-2.0
 *
 * Orthogonal matrices, drawn from a seed, and weights that they are merged into: the method
 * rotate. docs/quantization.md says where they go; docs/architecture.md the order of sums.
 */
#ifndef NIB_ROTATION_H
#define NIB_ROTATION_H

#include "memory.h"
#include "pool.h"
#include "scheme.h"

enum { NIB_ROTATION_BASE = 2048 }; /* the largest base */

/* R [size][size] = signs (H x B) / sqrt: H is Sylvester's Hadamard matrix of size / base rows, a
 * power of two; x the Kronecker product. */
typedef struct nib_rotation {
    int64_t size, base;
    const double *signs;  /* [size] 1 or -1 */
    const double *matrix; /* B [base][base]; NULL: base is 1 */
    bool is_hadamard;     /* B has only 1 and -1, by Paley's construction; else it is orthogonal */
    double factor;        /* which makes R orthogonal */
} nib_rotation;

/* The same R for the same size and seed, everywhere. *out is in the arena. NIB_UNSUPPORTED: the
 * size has an odd factor above NIB_ROTATION_BASE. */
nib_status nib__rotation_make(nib_rotation *out, int64_t size, uint64_t seed, nib_arena *arena,
                              nib_err *err);
/* x becomes x R; x: `count` values, in pieces of `size` that each are multiplied; room: [base]. */
void nib__rotation_apply(const nib_rotation *r, double *x, int64_t count, double *room);

/* What a method does to a weight W [n][k] and its bias b before it is coded:
 * rows^T W diag(factors) columns, and rows^T b. */
typedef struct nib_turn {
    const nib_weight *from;             /* floats, with the stored bias */
    const float *factors;               /* [k] NULL: all 1 */
    const nib_rotation *rows, *columns; /* their sizes divide n and k; NULL: identity */
} nib_turn;

/* Fills out [n][k], each value rounded once from f64. */
nib_status nib__turn_weight(float *out, const nib_turn *turn, nib_pool *pool,
                            const nib_allocator *a, nib_err *err);
/* Fills *out with the turned weight over values [n][k]. */
void nib__turn_describe(nib_weight *out, const nib_turn *turn, const float *values);
/* The turned bias [n]; room: [n + base of rows]. */
void nib__turn_bias(float *out, const nib_turn *turn, double *room);
/* What a turned weight reads instead of x [k]: x over the factors, times the columns' rotation. An
 * input whose factor is 0 counts as 0. room: [k + base of columns]. */
void nib__turn_input(float *out, const nib_turn *turn, const float *x, double *room);

#endif
