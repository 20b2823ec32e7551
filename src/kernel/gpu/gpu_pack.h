/* SPDX-License-Identifier: Apache-2.0
 *
 * The packed layout "rows" of weights on GPUs, whatever the driver:
 *
 *   codes   [n][ldk], ldk = round_up(k, 64), zeros past k; int4 and fp4 two in a byte, low nibble
 *           first; int8, f8 and fp8 a byte each; floats as they are
 *   scales  [n][groups] in their type, f64 as f32, from a multiple of 64 bytes on
 *   zeros   [n][groups] likewise, from the next multiple on
 *
 * A row or tensor scale is one group. A row of codes begins at a multiple of 32 bytes, so that
 * eight codes are one aligned load.
 */
#ifndef NIB_GPU_PACK_H
#define NIB_GPU_PACK_H

#include "kernel.h"

typedef struct nib_gpu_rows {
    int64_t ldk;                                  /* codes from one row to the next */
    int64_t groups;                               /* 0: no scales */
    uint64_t row_bytes, scale_at, zero_at, bytes; /* bytes: UINT64_MAX if they overflow */
    nib_type scale_type, zero_type;               /* as packed; NONE: there are none */
} nib_gpu_rows;

nib_gpu_rows nib__gpu_rows(const nib_weight *w);
extern const nib_packing nib__packing_rows;

#endif
