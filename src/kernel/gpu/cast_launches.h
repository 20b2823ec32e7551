/* SPDX-License-Identifier: Apache-2.0
 *
 * The launch functions (nib_gpu_code.launches) for cast.cl, defined in ocl_train.c. The OpenCL and
 * CUDA rows that cast the operands of training products share them.
 */
#ifndef NIB_CAST_LAUNCHES_H
#define NIB_CAST_LAUNCHES_H

#include "launch.h"

int nib__launch_cast(const void *args, nib_launch out[]);
int nib__launch_cast_t(const void *args, nib_launch out[]);
int nib__launch_quant_t_f32(const void *args, nib_launch out[]);
int nib__launch_quant_t_bf16(const void *args, nib_launch out[]);
int nib__launch_quant_t_e4m3t(const void *args, nib_launch out[]);
int nib__launch_quant_t_mx8(const void *args, nib_launch out[]);
int nib__launch_amax(const void *args, nib_launch out[]);

/* The rows of cast.cl: CAST(form, code, note) for packed weights, and
 * QUANT_T(form, activations, input type, note). */
#define NIB_GPU_CASTS(CAST, QUANT_T)                                                               \
    CAST("f32", F32, "unchanged, in tiles"), CAST("bf16", BF16, "rounds to bf16, in tiles"),       \
        CAST("e4m3c", E4M3, "e4m3 with a scale per row or tensor, in tiles"),                      \
        CAST("mx8", MX8, "e4m3 in blocks of 32, each in one tile"),                                \
        QUANT_T(f32, FLOAT, NIB_TYPE_F32, "unchanged, in tiles"),                                  \
        QUANT_T(bf16, FLOAT, NIB_TYPE_BF16, "rounds to bf16, in tiles"),                           \
        QUANT_T(e4m3t, E4M3_TOKEN, NIB_ANY,                                                        \
                "e4m3 or e5m2 with a scale per row or tensor, as bf16"),                           \
        QUANT_T(mx8, MX8, NIB_ANY, "e4m3 in blocks of 32, each in one tile")

#endif
