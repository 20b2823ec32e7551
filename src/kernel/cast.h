/* SPDX-License-Identifier: Apache-2.0
 *
 * What CAST and CAST_T rows write, as the products read it: one block of memory per weight, in the
 * layout of the row's packing, or plain where it has none. A product runs on what a cast row of the
 * same packing wrote. Also the counts of what a cast loses. Owns no data.
 *
 * The plain block: codes [n][k] of the code's type (e4m3 one byte each), then, from a multiple of
 * 64 bytes on, scales: e4m3 f32 [n] (of a tensor n times the same), mx8 e8m0 [n][ceil(k / 32)].
 */
#ifndef NIB_CAST_H
#define NIB_CAST_H

#include "kernel.h"

/* Bytes of the block; `shape` is the weight of nib_cast. UINT64_MAX: they overflow. */
uint64_t nib__cast_bytes(const nib_kernel *row, const nib_weight *shape);

/* The weight of a nib_linear over the block, for a row of the same packing. nib_linear.packed may
 * be the block always: a row without a packing does not look at it. */
void nib__cast_view(nib_weight *out, const nib_kernel *row, const nib_weight *shape,
                    const void *block);

/* What x is multiplied with before it becomes e4m3 or e5m2, of largest code `most` (448, 57344);
 * the scale is its inverse. As torchao's float8 training: most / max(amax, 1e-12) in f64, rounded
 * to f32, then down to a power of two where asked. NaN where amax is not finite. */
float nib__cast_factor(float amax, float most, bool two_power);

/* Values of a matrix, of those that are finite and not 0. */
typedef struct nib_cast_counts {
    uint64_t nonzero;
    uint64_t saturated;   /* rounded to more than the largest code, and so became that */
    uint64_t underflowed; /* became 0 */
} nib_cast_counts;

/* How a matrix is cast. */
typedef struct nib_cast_form {
    nib_code code;     /* F32, BF16, E4M3, E5M2, MX8 */
    bool mx_floor;     /* MX8 */
    bool two_power;    /* E4M3, E5M2 */
    const float *amax; /* E4M3, E5M2: of the tensor; NULL: one scale per sum */
} nib_cast_form;

/* Adds the counts of x [rows][ldx], `width` wide. Blocks and scales run along its rows, or `across`
 * them, along columns. Blocks and sums that are not finite count nothing. */
void nib__cast_count(nib_cast_counts *counts, const float *x, int64_t rows, int64_t width,
                     int64_t ldx, bool across, const nib_cast_form *form);

#endif
