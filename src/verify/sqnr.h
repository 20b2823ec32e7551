/* SPDX-License-Identifier: Apache-2.0
 *
 * How far two stored things of one shape are from each other: the signal-to-noise ratio in dB of
 * the first, taken as the second and noise. Infinity: equal; NaN: a value of one of them is no
 * number.
 */
#ifndef NIB_DISTANCE_H
#define NIB_DISTANCE_H

#include "checkpoint.h"
#include "pool.h"

/* A weight and the checkpoint that it lies in. */
typedef struct nib_held {
    const nib_checkpoint *checkpoint;
    const nib_weight *weight;
} nib_held;

/* Over the dequantized values; a row per thread, a sum per row and the pages of a few rows are the
 * memory it takes. */
nib_status nib__weight_distance(double *sqnr_db, const nib_held *a, const nib_held *b,
                                nib_pool *pool, const nib_allocator *allocator, nib_err *err);
/* Of biases of one length, both there, each in its own form. */
nib_status nib__bias_distance(double *sqnr_db, const nib_weight *a, const nib_weight *b,
                              const nib_allocator *allocator, nib_err *err);
/* Of float tensors, each of its own type. */
double nib__tensor_distance(const nib_tensor *a, const nib_tensor *b);

#endif
