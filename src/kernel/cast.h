/* SPDX-License-Identifier: Apache-2.0
 *
 * The output of CAST and CAST_T rows, which matmuls read: one block of memory per weight, in the
 * layout of the row's packing, or plain if it has none. A matmul row reads blocks of cast rows with
 * the same packing. Also counts the values that a cast loses. Owns no data.
 *
 * The plain block: codes [n][k] of the code's type (e4m3 one byte each), then, at the next
 * multiple of 64 bytes, scales: e4m3 f32 [n] (a tensor scale n times), mx8 e8m0 [n][ceil(k / 32)].
 */
#ifndef NIB_CAST_H
#define NIB_CAST_H

#include "kernel.h"

/* Bytes of the block; `shape` is the weight of nib_cast. UINT64_MAX: overflow. */
uint64_t nib__cast_bytes(const nib_kernel *row, const nib_weight *shape);

/* Makes the weight of a nib_linear over the block, for a row of the same packing. nib_linear.packed
 * may always be the block: a row without packing ignores it. */
void nib__cast_view(nib_weight *out, const nib_kernel *row, const nib_weight *shape,
                    const void *block);

/* The factor of x before the cast to e4m3 or e5m2, whose largest value is `most` (448, 57344); the
 * scale is its inverse. As in torchao's float8 training: most / max(amax, 1e-12) in f64, rounded to
 * f32, then if two_power down to a power of two. NaN if amax is not finite. */
float nib__cast_factor(float amax, float most, bool two_power);

/* Counts over the finite nonzero values of a matrix. */
typedef struct nib_cast_counts {
    uint64_t nonzero;
    uint64_t saturated;   /* rounded above the largest code, which they became */
    uint64_t underflowed; /* became 0 */
} nib_cast_counts;

/* How a matrix is cast. */
typedef struct nib_cast_form {
    nib_code code;     /* F32, BF16, E4M3, E5M2, MX8 */
    bool mx_floor;     /* MX8 */
    bool two_power;    /* E4M3, E5M2 */
    const float *amax; /* E4M3, E5M2: of the tensor; NULL: one scale per sum */
} nib_cast_form;

/* Adds the counts of x [rows][ldx], `width` wide. Blocks and scales run along rows or, if `across`,
 * along columns. Blocks and sums that are not finite are not counted. */
void nib__cast_count(nib_cast_counts *counts, const float *x, int64_t rows, int64_t width,
                     int64_t ldx, bool across, const nib_cast_form *form);

#endif
