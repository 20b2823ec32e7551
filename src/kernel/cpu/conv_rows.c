/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of short convolutions. The plain C is conv_body.h, as for every instruction set.
 */
#include "conv_rows.h"

#include "arm.h"
#include "x86.h"

#define NIB_CONV(name) nib__conv_##name##__ref
#include "conv_body.h"

#define ROW(target, rank_, conditions, ref, function, words)                                       \
    {                                                                                              \
        .name = "short_conv_f32__" #target, .op = NIB_OP_SHORT_CONV, .code = NIB_ANY,              \
        .act = NIB_ANY, .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,           \
        .arithmetic = NIB_ARITHMETIC_F32, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32,   \
        .run = {.short_conv = function}, .note = words                                             \
    }

static const nib_kernel rows[] = {
    ROW(avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)), "short_conv_f32__ref",
        NIB_X86(nib__conv_short_conv__avx512),
        "a causal convolution of each channel between two gates; keeps its last inputs"),
    ROW(avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)), "short_conv_f32__ref",
        NIB_X86(nib__conv_short_conv__avx2), "the same, two vectors of 8 channels"),
    ROW(neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)), "short_conv_f32__ref",
        NIB_ARM(nib__conv_short_conv__neon), "the same, four vectors of 4 channels"),
    ROW(ref, 90, NIB_NO_CONDS, NULL, nib__conv_short_conv__ref, "the same in plain C"),
};

const nib_family nib__family_conv = {rows, COUNT(rows)};
