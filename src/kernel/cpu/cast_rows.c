/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows that cast f32 into the operands of training's products. CAST and CAST_T write packed
 * weights, QUANT_T the other side; blocks and scales run along the summed dimension of the product
 * that reads them. AMAX finds the largest magnitude for a tensor's scale. The references write
 * plain weights (cast.h).
 */
#include "arm.h"
#include "cast_rows.h"

#define ROW(op_, name_, code_, act_, input_, target, rank_, conditions, ref, packing_, member,     \
            function, words)                                                                       \
    {                                                                                              \
        .name = name_ "__" #target, .op = NIB_OP_##op_, .code = code_, .act = act_,                \
        .input = input_, .device = NIB_DEVICE_CPU, .conds = conditions,                            \
        .arithmetic = NIB_ARITHMETIC_EXACT, .reference = ref, .rank = rank_,                       \
        .unit = NIB_UNIT_SCALAR, .n_step = NIB_FLOAT_PANEL, .packing = packing_,                   \
        .run = {.member = function}, .note = words                                                 \
    }
#define ROWS(op, name, code, act, input, packing, member, function, words)                         \
    ROW(op, name, code, act, input, avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)),     \
        name "__ref", packing, member, NIB_X86(function##__avx512), words),                        \
        ROW(op, name, code, act, input, avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)),     \
            name "__ref", packing, member, NIB_X86(function##__avx2), words),                      \
        ROW(op, name, code, act, input, neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)),     \
            name "__ref", packing, member, NIB_ARM(function##__neon), words),                      \
        ROW(op, name, code, act, input, ref, 90, NIB_NO_CONDS, NULL, NULL, member,                 \
            function##__ref, words)

#define CAST(form, CODE, words)                                                                    \
    ROWS(CAST, "cast_f32_" #form, NIB_CODE_##CODE, NIB_ANY, NIB_ANY, &nib__packing_n16, cast,      \
         nib__cast_##form, words),                                                                 \
        ROWS(CAST_T, "cast_t_f32_" #form, NIB_CODE_##CODE, NIB_ANY, NIB_ANY, &nib__packing_n16,    \
             cast, nib__cast_t_##form, words)
#define QUANT_T(form, ACT, input, words)                                                           \
    ROWS(QUANT_T, "quant_t_f32_" #form, NIB_ANY, NIB_ACT_##ACT, input, NULL, quant,                \
         nib__quant_t_##form, words)

static const nib_kernel rows[] = {
    CAST(f32, F32, "unchanged"),
    CAST(bf16, BF16, "rounds to bf16"),
    CAST(e4m3c, E4M3, "e4m3 with a scale per row or tensor"),
    CAST(mx8, MX8, "e4m3 in blocks of 32 with power-of-two scales"),
    QUANT_T(f32, FLOAT, NIB_TYPE_F32, "unchanged"),
    QUANT_T(bf16, FLOAT, NIB_TYPE_BF16, "rounds to bf16"),
    QUANT_T(e4m3t, E4M3_TOKEN, NIB_ANY, "e4m3 or e5m2 with a scale per row or tensor, as bf16"),
    QUANT_T(mx8, MX8, NIB_ANY, "e4m3 in blocks of 32 with power-of-two scales"),
    ROWS(AMAX, "amax_f32", NIB_ANY, NIB_ANY, NIB_ANY, NULL, amax, nib__amax_f32,
         "the largest magnitude"),
};

const nib_family nib__family_cast = {rows, COUNT(rows)};
