/* SPDX-License-Identifier: Apache-2.0
 *
 * Launches of token.cl, attention.cl, sample.cl and pack.cl, shared by the OpenCL and CUDA rows:
 * nib_gpu_code.launches for each operation (ocl_token.c, ocl_sample.c, ocl_pack.c).
 */
#ifndef NIB_TOKEN_LAUNCHES_H
#define NIB_TOKEN_LAUNCHES_H

#include "launch.h"

enum { NIB_OCL_GROUP = 64 }; /* work-items of a group on OpenCL, of which some share a row */

/* The conditions of rows that write or read the KV cache. */
#define NIB_NO_LATENT NIB_IS(LATENT, 0, "it reads values of their own")
#define NIB_LATENT NIB_IS(LATENT, 1, "it is made for latent attention")
#define NIB_LATENT_NOTE(group)                                                                     \
    "one " group " per token and four heads, or eight if there are many tokens; the same bits "    \
    "whatever else is in the step; windows, chunks, caps and sinks"
#define NIB_FLOAT_CACHE                                                                            \
    NIB_ONE_OF(CACHE, NIB_BIT(NIB_KV_F32) | NIB_BIT(NIB_KV_F16) | NIB_BIT(NIB_KV_BF16),            \
               "it keeps keys and values as floats"),                                              \
        NIB_IS(CACHE_MIXED, 0, "keys and values have one type"),                                   \
        NIB_IS(CACHE_HADAMARD, 0, "it does not rotate keys and values")

/* One work-group of `items`, a power of two, per row. */
int nib__launch_norm(const nib_norm *a, nib_launch out[], int items);
int nib__launch_rope(const void *args, nib_launch out[]);
int nib__launch_store_kv(const void *args, nib_launch out[]);
int nib__launch_swiglu(const void *args, nib_launch out[]);
int nib__launch_scale(const void *args, nib_launch out[]);
int nib__launch_add(const void *args, nib_launch out[]);
int nib__launch_gather(const void *args, nib_launch out[]);
int nib__launch_attention(const void *args, nib_launch out[]);
/* For values inside keys. */
int nib__launch_latent(const void *args, nib_launch out[]);
/* Like nib__launch_attention, but if there are many slots, a work-group takes several. */
int nib__ocl_attention(const void *args, nib_launch out[]);

enum { NIB_DRAW_KEEP_MOST = 256 }; /* most candidates that a work-group sorts */
/* In one work-group of `items`, a power of two. */
int nib__launch_greedy(const nib_draw *a, nib_launch out[], int items);
int nib__launch_draw(const nib_draw *a, nib_launch out[], int items);

int nib__launch_pack(const void *args, nib_launch out[]);

#endif
