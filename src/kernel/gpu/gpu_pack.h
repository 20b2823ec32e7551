/* SPDX-License-Identifier: Apache-2.0
 *
 * The packed layout "rows" of weights on GPUs, the same for every driver:
 *
 *   codes   [n][ldk], ldk = round_up(k, 64), zeros past k; int4 and fp4: two per byte, low nibble
 *           first; int8, f8 and fp8: one byte each; floats unchanged
 *   scales  [n][groups] in their stored type (f64 becomes f32), at the next multiple of 64 bytes
 *   zeros   [n][groups] likewise, at the next multiple of 64 bytes
 *
 * A scale per row or per tensor counts as one group. Rows of codes begin at multiples of 32 bytes,
 * so eight codes are one aligned load.
 */
#ifndef NIB_GPU_PACK_H
#define NIB_GPU_PACK_H

#include "kernel.h"

typedef struct nib_gpu_layout {
    int64_t ldk;    /* row stride, in codes */
    int64_t groups; /* 0: no scales */
    uint64_t row_bytes, scale_offset, zero_offset;
    uint64_t bytes;                 /* UINT64_MAX if the size overflows */
    nib_type scale_type, zero_type; /* as packed; NONE: absent */
} nib_gpu_layout;

nib_gpu_layout nib__gpu_layout(const nib_weight *w);
extern const nib_packing nib__packing_rows;

#endif
