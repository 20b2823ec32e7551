/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that turn f32 activations into the input of a linear row, and rows that do so with the
 * values of a norm. The code is quant_body.h and norm_quant_body.h, in plain C for every
 * instruction set; this file has their references and the rows.
 */
#define NIB_QUANT(name) nib__quant_##name##__ref
#include "norm_quant_body.h"
#include "arm.h"
#include "x86.h"

/* The other instruction sets have mx8 in cast_body.h, where three operands share the form. */
void nib__quant_mx8__ref(const nib_quant *a, int64_t m0, int64_t m1)
{
    mx_tokens(a, m0, m1, false);
}

#define ROW(form, act_, input_, target, rank_, conditions, ref, function, words)                   \
    {                                                                                              \
        .name = "quant_f32_" #form "__" #target, .op = NIB_OP_QUANT, .code = NIB_ANY,              \
        .act = NIB_ACT_##act_, .input = input_, .device = NIB_DEVICE_CPU, .conds = conditions,     \
        .arithmetic = NIB_ARITHMETIC_EXACT, .reference = ref, .rank = rank_,                       \
        .unit = NIB_UNIT_SCALAR, .run = {.quant = function}, .note = words                         \
    }
#define ROWS(form, act, input, words)                                                              \
    ROW(form, act, input, avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)),               \
        "quant_f32_" #form "__ref", NIB_X86(nib__quant_##form##__avx512), words),                  \
        ROW(form, act, input, avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)),               \
            "quant_f32_" #form "__ref", NIB_X86(nib__quant_##form##__avx2), words),                \
        ROW(form, act, input, neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)),               \
            "quant_f32_" #form "__ref", NIB_ARM(nib__quant_##form##__neon), words),                \
        ROW(form, act, input, ref, 90, NIB_NO_CONDS, NULL, nib__quant_##form##__ref, words)

#define NORMED_ROW(form, act_, target, rank_, conditions, ref, function, words)                    \
    {                                                                                              \
        .name = "norm_quant_f32_" #form "__" #target, .op = NIB_OP_NORM_QUANT, .code = NIB_ANY,    \
        .act = NIB_ACT_##act_, .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,    \
        .arithmetic = NIB_ARITHMETIC_LANES, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32, \
        .run = {.norm_quant = function}, .note = words                                             \
    }
#define NORMED(form, act, words)                                                                   \
    NORMED_ROW(form, act, avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)),               \
               "norm_quant_f32_" #form "__ref", NIB_X86(nib__quant_normed_##form##__avx512),       \
               words),                                                                             \
        NORMED_ROW(form, act, avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)),               \
                   "norm_quant_f32_" #form "__ref", NIB_X86(nib__quant_normed_##form##__avx2),     \
                   words),                                                                         \
        NORMED_ROW(form, act, neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)),               \
                   "norm_quant_f32_" #form "__ref", NIB_ARM(nib__quant_normed_##form##__neon),     \
                   words),                                                                         \
        NORMED_ROW(form, act, ref, 90, NIB_NO_CONDS, NULL, nib__quant_normed_##form##__ref, words)

static const nib_kernel rows[] = {
    NORMED(a8t, I8_TOKEN, "a norm's rows as quant_f32_a8t makes them, not kept as floats"),
    NORMED(a4t, I4_TOKEN, "a norm's rows as quant_f32_a4t makes them"),
    NORMED(a8b32, I8_BLOCK32, "a norm's rows as quant_f32_a8b32 makes them"),
    NORMED(a8b256, I8_BLOCK256, "a norm's rows as quant_f32_a8b256 makes them"),
    ROWS(a8t, I8_TOKEN, NIB_ANY, "int8 with a dynamic scale per token, and code sums by group"),
    ROWS(a8s, I8_STATIC, NIB_ANY, "int8 with the layer's fixed scale, and code sums by group"),
    ROWS(a4t, I4_TOKEN, NIB_ANY,
         "int4 with a dynamic scale per token, in bytes, and code sums by group"),
    ROWS(e4m3t, E4M3_TOKEN, NIB_ANY, "e4m3 with a dynamic scale per token, widened to bf16"),
    ROWS(mx8, MX8, NIB_ANY, "e4m3 in blocks of 32 with power-of-two scales"),
    ROWS(mx4, MX4, NIB_ANY, "e2m1 in blocks of 32 with power-of-two scales, as e4m3 of its values"),
    ROWS(nv4, NV4, NIB_ANY,
         "e2m1 in blocks of 16 with e4m3 scales, times the token's scale, as e4m3 of its values"),
    ROWS(a8b32, I8_BLOCK32, NIB_ANY,
         "int8 in blocks of 32 with f16 scales, as ggml's Q8_0, and code sums by group"),
    ROWS(a8b256, I8_BLOCK256, NIB_ANY,
         "int8 in blocks of 256 with f32 scales, as ggml's Q8_K, and code sums by group"),
    ROWS(bf16, FLOAT, NIB_TYPE_BF16, "rounds to bf16, with sums by group where zeros are floats"),
    ROWS(f16, FLOAT, NIB_TYPE_F16,
         "rounds to f16, kept in f32, with sums by group where zeros are floats"),
    ROWS(f32, FLOAT, NIB_TYPE_F32, "unchanged, with sums by group where zeros are floats"),
};

const nib_family nib__family_quant = {rows, COUNT(rows)};
