/* SPDX-License-Identifier: Apache-2.0
 *
 * The launches of linear.cl. Rows for devices with more than OpenCL 1.2 add options to them.
 */
#ifndef NIB_OCL_LINEAR_H
#define NIB_OCL_LINEAR_H

#include "launch.h"

/* k that a work-group of "tile" multiplies at a time. */
enum { NIB_OCL_STEP = 32 };

/* nib_gpu_code.launches of any linear product: "matvec" for few tokens, "tile" for many. */
int nib__ocl_linear(const void *args, nib_launch out[]);
/* Whether the launch is "tile". */
bool nib__ocl_is_tile(const nib_launch *launch);
/* Whether no step crosses groups of the weight. */
bool nib__ocl_steps_whole(const nib_weight *w);

/* The products of linear.cl, as X(types in a row's name, weight code, activations, input type): for
 * float activations, integers and small floats. */
#define NIB_OCL_FLOATS_OF(X, word, code)                                                           \
    X("f32_" word, code, FLOAT, NIB_TYPE_F32)                                                      \
    X("f16_" word, code, FLOAT, NIB_TYPE_F16)                                                      \
    X("bf16_" word, code, FLOAT, NIB_TYPE_BF16)
#define NIB_OCL_FLOATS(X)                                                                          \
    NIB_OCL_FLOATS_OF(X, "f32", F32)                                                               \
    NIB_OCL_FLOATS_OF(X, "f16", F16)                                                               \
    NIB_OCL_FLOATS_OF(X, "bf16", BF16)                                                             \
    NIB_OCL_FLOATS_OF(X, "w8g", I8)                                                                \
    NIB_OCL_FLOATS_OF(X, "w4g", I4)                                                                \
    NIB_OCL_FLOATS_OF(X, "e4m3c", E4M3)                                                            \
    NIB_OCL_FLOATS_OF(X, "e5m2c", E5M2)                                                            \
    NIB_OCL_FLOATS_OF(X, "mx8", MX8)                                                               \
    NIB_OCL_FLOATS_OF(X, "mx4", MX4)                                                               \
    NIB_OCL_FLOATS_OF(X, "nv4", NV4)
#define NIB_OCL_INTEGERS(X)                                                                        \
    X("a8t_w8g", I8, I8_TOKEN, NIB_ANY)                                                            \
    X("a8s_w8g", I8, I8_STATIC, NIB_ANY)                                                           \
    X("a4t_w8g", I8, I4_TOKEN, NIB_ANY)                                                            \
    X("a8b32_w8g", I8, I8_BLOCK32, NIB_ANY)                                                        \
    X("a8b256_w8g", I8, I8_BLOCK256, NIB_ANY)                                                      \
    X("a8t_w4g", I4, I8_TOKEN, NIB_ANY)                                                            \
    X("a8s_w4g", I4, I8_STATIC, NIB_ANY)                                                           \
    X("a4t_w4g", I4, I4_TOKEN, NIB_ANY)                                                            \
    X("a8b32_w4g", I4, I8_BLOCK32, NIB_ANY)                                                        \
    X("a8b256_w4g", I4, I8_BLOCK256, NIB_ANY)
#define NIB_OCL_SMALL_FLOATS(X)                                                                    \
    X("e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY)                                                    \
    X("mx8_mx8", MX8, MX8, NIB_ANY)                                                                \
    X("mx8_mx4", MX4, MX8, NIB_ANY)                                                                \
    X("a8b32_mx4", MX4, I8_BLOCK32, NIB_ANY)                                                       \
    X("mx4_mx4", MX4, MX4, NIB_ANY)                                                                \
    X("nv4_nv4", NV4, NV4, NIB_ANY)

#endif
