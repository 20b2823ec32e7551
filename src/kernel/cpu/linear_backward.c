/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the backward products of a linear layer. Both are products like the forward one with
 * other operands (train_ops.h), so they run the functions of the forward rows on weights that CAST
 * and CAST_T rows wrote: float, e4m3 with one scale per row or tensor, MX8. Rows with a packing
 * read that layout, the __ref rows the plain form of cast.h.
 */
#include "linear_float.h"

#define REF(op_, name_, types, CODE, ACT, input_, NUMBERS, function)                               \
    {                                                                                              \
        .name = "linear_" name_ "_" types "_f32__ref", .op = NIB_OP_LINEAR_##op_,                  \
        .code = NIB_CODE_##CODE, .act = NIB_ACT_##ACT, .input = input_, .device = NIB_DEVICE_CPU,  \
        .conds = NIB_NO_CONDS, .arithmetic = NIB_ARITHMETIC_##NUMBERS, .rank = 90,                 \
        .unit = NIB_UNIT_SCALAR, .n_step = 1, .scratch = nib__linear_float_ref_scratch,            \
        .run = {.linear = nib__linear_##function##_ref}, .note = "plain C, any shape"              \
    }

/* Casts make one group per row, groups of 32, or none; these conditions are those of the layout. */
#define FAST(op_, name_, types, CODE, ACT, input_, NUMBERS, function, target, tile, isa, arch,     \
             rank_, unit_, words)                                                                  \
    {                                                                                              \
        .name = "linear_" name_ "_" types "_f32__" #target "_" tile, .op = NIB_OP_LINEAR_##op_,    \
        .code = NIB_CODE_##CODE, .act = NIB_ACT_##ACT, .input = input_, .device = NIB_DEVICE_CPU,  \
        .conds = NIB_CONDS(                                                                        \
            NIB_HAS(ISA, isa, NULL),                                                               \
            NIB_MULTIPLE(GROUP, NIB_FLOAT_STEP, "weights are decoded 8 inputs at a time"),         \
            NIB_AT_MOST(GROUP, NIB_SUM_BLOCK, "a group lies within one block of a sum")),          \
        .arithmetic = NIB_ARITHMETIC_##NUMBERS,                                                    \
        .reference = "linear_" name_ "_" types "_f32__ref", .rank = rank_,                         \
        .unit = NIB_UNIT_##unit_, .n_step = 2 * NIB_FLOAT_PANEL, .packing = &nib__packing_n16,     \
        .scratch = nib__linear_float_scratch,                                                      \
        .run = {.linear = arch(nib__linear_##function##_##target)}, .note = words                  \
    }

#define F32_ROWS(op, name)                                                                         \
    FAST(op, name, "f32_f32", F32, FLOAT, NIB_TYPE_F32, F32, f32, avx512, "12x32", NIB_ISA_AVX512, \
         NIB_X86, 20, F32, "f32 multiply-adds, 16 outputs in a register"),                         \
        FAST(op, name, "f32_f32", F32, FLOAT, NIB_TYPE_F32, F32, f32, avx2, "6x16", NIB_ISA_AVX2,  \
             NIB_X86, 30, F32, "f32 multiply-adds, 16 outputs in two registers"),                  \
        FAST(op, name, "f32_f32", F32, FLOAT, NIB_TYPE_F32, F32, f32, neon, "4x16", NIB_ISA_NEON,  \
             NIB_ARM, 30, F32, "f32 multiply-adds by element, 16 outputs in four registers"),      \
        REF(op, name, "f32_f32", F32, FLOAT, NIB_TYPE_F32, F32, f32)

#define BF16_ROWS(op, name, types, CODE, ACT, input)                                               \
    FAST(op, name, types, CODE, ACT, input, BF16, bf16, avx512bf16, "12x32",                       \
         NIB_ISA_AVX512 | NIB_ISA_AVX512BF16, NIB_X86, 10, BF16,                                   \
         "vdpbf16ps on pairs of k, 16 outputs in a register"),                                     \
        FAST(op, name, types, CODE, ACT, input, BF16, bf16, avx512, "12x32", NIB_ISA_AVX512,       \
             NIB_X86, 20, F32, "f32 multiply-adds in pairs"),                                      \
        FAST(op, name, types, CODE, ACT, input, BF16, bf16, avx2, "6x16", NIB_ISA_AVX2, NIB_X86,   \
             30, F32, "f32 multiply-adds in pairs"),                                               \
        FAST(op, name, types, CODE, ACT, input, BF16, bf16, neon, "4x16", NIB_ISA_NEON, NIB_ARM,   \
             30, F32, "f32 multiply-adds in pairs"),                                               \
        REF(op, name, types, CODE, ACT, input, BF16, bf16)

#define ROWS(op, name)                                                                             \
    F32_ROWS(op, name), BF16_ROWS(op, name, "bf16_bf16", BF16, FLOAT, NIB_TYPE_BF16),              \
        BF16_ROWS(op, name, "e4m3t_e4m3c", E4M3, E4M3_TOKEN, NIB_ANY),                             \
        BF16_ROWS(op, name, "mx8_mx8", MX8, MX8, NIB_ANY)

static const nib_kernel rows[] = {ROWS(DX, "dx"), ROWS(DW, "dw")};

const nib_family nib__family_linear_backward = {rows, COUNT(rows)};
