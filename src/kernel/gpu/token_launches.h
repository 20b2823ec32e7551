/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of the functions of token.cl, attention.cl, sample.cl and pack.cl, which rows of OpenCL
 * and of CUDA share: nib_gpu_code.launches of each operation (ocl_token.c, ocl_sample.c,
 * ocl_pack.c).
 */
#ifndef NIB_TOKEN_LAUNCHES_H
#define NIB_TOKEN_LAUNCHES_H

#include "launch.h"

/* A condition of rows that store keys and values, or attend to them. */
#define NIB_FLOAT_CACHE                                                                            \
    NIB_ONE_OF(CACHE, NIB_BIT(NIB_TYPE_F32) | NIB_BIT(NIB_TYPE_F16) | NIB_BIT(NIB_TYPE_BF16),      \
               "it keeps keys and values as floats")

int nib__launch_norm(const void *args, nib_launch out[]);
int nib__launch_rope(const void *args, nib_launch out[]);
int nib__launch_store_kv(const void *args, nib_launch out[]);
int nib__launch_swiglu(const void *args, nib_launch out[]);
int nib__launch_scale(const void *args, nib_launch out[]);
int nib__launch_add(const void *args, nib_launch out[]);
int nib__launch_gather(const void *args, nib_launch out[]);
int nib__launch_attention(const void *args, nib_launch out[]);
/* As nib__launch_attention, but of many slots several in a work-group. */
int nib__ocl_attention(const void *args, nib_launch out[]);

enum { NIB_DRAW_KEEP_MOST = 256 }; /* candidates that are sorted in a work-group's memory */
int nib__launch_greedy(const void *args, nib_launch out[]);
int nib__launch_draw(const void *args, nib_launch out[]);

int nib__launch_pack(const void *args, nib_launch out[]);

#endif
