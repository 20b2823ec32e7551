/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of linear products whose activations are small floats: e4m3 with one scale per token
 * (fp8dq); MX in blocks of 32, e4m3 (mxfp8) or e2m1 (mxfp4dq); NVFP4, e2m1 in blocks of 16
 * (nvfp4dq). All use BF16 sums, as both sides are exact in bf16. The sums are defined in
 * linear_float_ref.c; packed layout and code are those of the float rows.
 *
 *   fp8dq      y = (total * s_w) * s_x + bias
 *   MX, NVFP4  acc = fma(s_x,b * s_w,b, sum of block b, acc), the blocks ascending
 *   NVFP4      y = total * t_w + bias; the token's own scale is a factor of its s_x,b
 *
 * A scale of 2^-127, e8m0 code 0, is a denormal and counts as 0.
 */
#include "linear_float.h"

#define REF(type, CODE, ACT)                                                                       \
    {                                                                                              \
        .name = "linear_" type "_f32__ref", .op = NIB_OP_LINEAR, .code = NIB_CODE_##CODE,          \
        .act = NIB_ACT_##ACT, .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = NIB_NO_CONDS,   \
        .arithmetic = NIB_ARITHMETIC_BF16, .rank = 90, .unit = NIB_UNIT_SCALAR, .n_step = 1,       \
        .scratch = nib__linear_float_ref_scratch, .run = {.linear = nib__linear_bf16_ref},         \
        .note = "plain C, any shape, group and scale"                                              \
    }

/* `arch`: NIB_X86 or NIB_ARM. */
#define FAST(type, CODE, ACT, target, tile, isa, arch, rank_, unit_, words)                        \
    {                                                                                              \
        .name = "linear_" type "_f32__" #target "_" tile, .op = NIB_OP_LINEAR,                     \
        .code = NIB_CODE_##CODE, .act = NIB_ACT_##ACT, .input = NIB_ANY, .device = NIB_DEVICE_CPU, \
        .conds = NIB_CONDS(                                                                        \
            NIB_HAS(ISA, isa, NULL),                                                               \
            NIB_MULTIPLE(GROUP, NIB_FLOAT_STEP, "weights are decoded 8 inputs at a time"),         \
            NIB_AT_MOST(GROUP, NIB_SUM_BLOCK, "a group lies within one block of a sum")),          \
        .arithmetic = NIB_ARITHMETIC_BF16, .reference = "linear_" type "_f32__ref", .rank = rank_, \
        .unit = NIB_UNIT_##unit_, .n_step = 2 * NIB_FLOAT_PANEL, .packing = &nib__packing_n16,     \
        .scratch = nib__linear_float_scratch, .run = {.linear = arch(nib__linear_bf16_##target)},  \
        .note = words                                                                              \
    }

#define ROWS(type, CODE, ACT)                                                                      \
    FAST(type, CODE, ACT, avx512bf16, "12x32", NIB_ISA_AVX512 | NIB_ISA_AVX512BF16, NIB_X86, 10,   \
         BF16, "vdpbf16ps on codes widened to bf16"),                                              \
        FAST(type, CODE, ACT, avx512, "12x32", NIB_ISA_AVX512, NIB_X86, 20, F32,                   \
             "f32 multiply-adds in pairs"),                                                        \
        FAST(type, CODE, ACT, avx2, "6x16", NIB_ISA_AVX2, NIB_X86, 30, F32,                        \
             "f32 multiply-adds in pairs"),                                                        \
        FAST(type, CODE, ACT, neon, "4x16", NIB_ISA_NEON, NIB_ARM, 30, F32,                        \
             "f32 multiply-adds in pairs"),                                                        \
        REF(type, CODE, ACT)

static const nib_kernel rows[] = {
    ROWS("e4m3t_e4m3c", E4M3, E4M3_TOKEN),
    ROWS("mx8_mx8", MX8, MX8),
    ROWS("mx4_mx4", MX4, MX4),
    REF("mx8_mx4", MX4, MX8),
    ROWS("nv4_nv4", NV4, NV4),
};

const nib_family nib__family_linear_fp8 = {rows, COUNT(rows)};
