/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of short convolutions and their gradients. The plain C is conv_body.h, as for every
 * instruction set.
 */
#include "conv_rows.h"

#include "arm.h"
#include "x86.h"

#define NIB_CONV(name) nib__conv_##name##__ref
#include "conv_body.h"

#define ROW(member, operation, target, rank_, conditions, ref, numbers, function, words)           \
    {                                                                                              \
        .name = #member "_f32__" #target, .op = NIB_OP_##operation, .code = NIB_ANY,               \
        .act = NIB_ANY, .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,           \
        .arithmetic = NIB_ARITHMETIC_##numbers, .reference = ref, .rank = rank_,                   \
        .unit = NIB_UNIT_F32, .run = {.member = function}, .note = words                           \
    }

#define NEEDS_AVX2 NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL))
#define NEEDS_AVX512 NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL))
/* The rows of one operation, one per instruction set. */
#define ROWS(member, operation, numbers, words)                                                    \
    ROW(member, operation, avx512, 10, NEEDS_AVX512, #member "_f32__ref", numbers,                 \
        NIB_X86(nib__conv_##member##__avx512), words),                                             \
        ROW(member, operation, avx2, 20, NEEDS_AVX2, #member "_f32__ref", numbers,                 \
            NIB_X86(nib__conv_##member##__avx2), "the same, two vectors of 8 channels"),           \
        ROW(member, operation, neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)),              \
            #member "_f32__ref", numbers, NIB_ARM(nib__conv_##member##__neon),                     \
            "the same, four vectors of 4 channels"),                                               \
        ROW(member, operation, ref, 90, NIB_NO_CONDS, NULL, numbers, nib__conv_##member##__ref,    \
            "the same in plain C")

static const nib_kernel rows[] = {
    ROWS(short_conv, SHORT_CONV, F32,
         "a causal convolution of each channel between two gates; keeps its last inputs"),
    ROWS(short_conv_dx, SHORT_CONV_DX, F32,
         "gradients of the inputs, of the gates and of the sums, which are computed again"),
    ROWS(short_conv_dw, SHORT_CONV_DW, F32,
         "sums over tokens in blocks of 256, 16 channels at a time"),
};

const nib_family nib__family_conv = {rows, COUNT(rows)};
