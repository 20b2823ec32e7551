/* SPDX-License-Identifier: Apache-2.0
 *
 * The distance of two weights, biases or tensors of one shape as a signal-to-quantization-noise
 * ratio in dB, with the second as the signal. Infinity: equal; NaN: one has a NaN or infinity.
 */
#ifndef NIB_SQNR_H
#define NIB_SQNR_H

#include "checkpoint.h"
#include "pool.h"

/* A weight and its checkpoint. */
typedef struct nib_weight_source {
    const nib_checkpoint *checkpoint;
    const nib_weight *weight;
} nib_weight_source;

/* Compares dequantized values. Memory: two rows per thread and two sums per row; pages of the files
 * are released as it goes. */
nib_status nib__weight_distance(double *sqnr_db, const nib_weight_source *a,
                                const nib_weight_source *b, nib_pool *pool,
                                const nib_allocator *allocator, nib_err *err);
/* Compares two biases of the same length in any form. */
nib_status nib__bias_distance(double *sqnr_db, const nib_weight *a, const nib_weight *b,
                              const nib_allocator *allocator, nib_err *err);
/* Compares two float tensors of any types. */
double nib__tensor_distance(const nib_tensor *a, const nib_tensor *b);

#endif
