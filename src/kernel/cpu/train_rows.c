/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the operations that only training has, except casts and attention: gradients of norm,
 * swiglu, scale, sinks, embedding and bias, the loss, and the optimizer. The plain C is
 * train_body.h, as for every instruction set.
 */
#include "train_rows.h"

#include "arm.h"
#include "x86.h"

#define NIB_TRAIN(name) nib__train_##name##__ref
#include "train_body.h"

#define ROW(kernel, operation, target, rank_, conditions, ref, member, numbers, function, words)   \
    {                                                                                              \
        .name = #kernel "__" #target, .op = NIB_OP_##operation, .code = NIB_ANY, .act = NIB_ANY,   \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .arithmetic = NIB_ARITHMETIC_##numbers, .reference = ref, .rank = rank_,                   \
        .unit = NIB_UNIT_F32, .run = {.member = function}, .note = words                           \
    }

#define NEEDS_AVX2 NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL))
#define NEEDS_AVX512 NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL))
/* The rows of one operation, one per instruction set. */
#define ROWS(kernel, operation, member, numbers, words)                                            \
    ROW(kernel, operation, avx512, 10, NEEDS_AVX512, #kernel "__ref", member, numbers,             \
        NIB_X86(nib__train_##member##__avx512), words),                                            \
        ROW(kernel, operation, avx2, 20, NEEDS_AVX2, #kernel "__ref", member, numbers,             \
            NIB_X86(nib__train_##member##__avx2), "the same, two vectors of 8 lanes"),             \
        ROW(kernel, operation, neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)),              \
            #kernel "__ref", member, numbers, NIB_ARM(nib__train_##member##__neon),                \
            "the same, four vectors of 4 lanes"),                                                  \
        ROW(kernel, operation, ref, 90, NIB_NO_CONDS, NULL, member, numbers,                       \
            nib__train_##member##__ref, "the same in plain C")

static const nib_kernel rows[] = {
    ROWS(norm_dx_f32, NORM_DX, norm_dx, LANES,
         "adds the gradient of a norm's input, centered or not"),
    ROWS(norm_dw_f32, NORM_DW, norm_dw, F32,
         "sums over tokens in blocks of 256, 64 columns at a time"),
    ROWS(swiglu_dx_f32, SWIGLU_DX, swiglu_dx, LANES,
         "gradient of silu, tanh gelu, sigmoid or the clamped swiglu, with the exp of the forward "
         "pass"),
    ROWS(scale_dx_f32, SCALE_DX, scale_dx, LANES, "gradient of scaling, capped or not"),
    ROWS(sinks_dw_f32, SINKS_DW, sinks_dw, LANES, "gradients of the sinks of attention"),
    ROWS(embed_dw_f32, EMBED_DW, embed_dw, F32, "adds tokens into the table's rows in order"),
    ROWS(bias_dw_f32, BIAS_DW, bias_dw, F32,
         "sums over tokens in blocks of 256, 64 columns at a time"),
    ROWS(xent_f32, XENT, xent, LANES, "loss per token; logits become their gradient in place"),
    ROWS(squares_f32, SQUARES, squares, LANES, "sums in f64, 65,536 values a part"),
    ROWS(adamw_f32, ADAMW, adamw, EXACT, "PyTorch's AdamW, moments in f32"),
};

const nib_family nib__family_train = {rows, COUNT(rows)};
