/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the operations that work token by token: embedding look-up, norm, rope, swiglu, residual
 * add, scaling, storing keys and values, and gathering inputs into act-order. The plain C of norm,
 * rope, swiglu, add, scale and store is token_body.h, as for every instruction set; look-up and
 * gather only move data and have one version.
 */
#include "token_rows.h"

#include "arm.h"
#include "x86.h"

#define NIB_TOKEN(name) nib__token_##name##__ref
#include "token_body.h"

static void embed_ref(const nib_embed *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++)
        nib__weight_row(a->table, a->ids[m], a->out + m * a->table->k);
}

static void gather_ref(const nib_gather *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++)
        for (int64_t j = 0; j < a->width; j++)
            a->out[m * a->ldo + j] = a->x[m * a->ldx + a->order[j]];
}

/* Only norms add up over a row; the other operations treat each element by itself. */
#define ARITHMETIC(operation)                                                                      \
    (NIB_OP_##operation == NIB_OP_NORM ? NIB_ARITHMETIC_LANES : NIB_ARITHMETIC_EXACT)
#define ROW(kernel, operation, target, rank_, conditions, ref, member, function, words)            \
    {                                                                                              \
        .name = #kernel "__" #target, .op = NIB_OP_##operation, .code = NIB_ANY, .act = NIB_ANY,   \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .arithmetic = ARITHMETIC(operation), .reference = ref, .rank = rank_,                      \
        .unit = NIB_UNIT_F32, .run = {.member = function}, .note = words                           \
    }

#define NEEDS_AVX2 NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL))
#define NEEDS_AVX512 NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL))
#define AVX512(kernel, operation, member, words)                                                   \
    ROW(kernel, operation, avx512, 10, NEEDS_AVX512, #kernel "__ref", member,                      \
        NIB_X86(nib__token_##member##__avx512), words)
#define AVX2(kernel, operation, member, words)                                                     \
    ROW(kernel, operation, avx2, 20, NEEDS_AVX2, #kernel "__ref", member,                          \
        NIB_X86(nib__token_##member##__avx2), words)
#define NEON(kernel, operation, member, words)                                                     \
    ROW(kernel, operation, neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)), #kernel "__ref", \
        member, NIB_ARM(nib__token_##member##__neon), words)
#define REF(kernel, operation, member, words)                                                      \
    ROW(kernel, operation, ref, 90, NIB_NO_CONDS, NULL, member, nib__token_##member##__ref, words)

static const nib_kernel rows[] = {
    AVX512(norm_f32, NORM, norm,
           "root mean square norm or LayerNorm, with a bias or without, 16 lanes and one tree"),
    AVX2(norm_f32, NORM, norm, "the same, two vectors of 8 lanes"),
    NEON(norm_f32, NORM, norm, "the same, four vectors of 4 lanes"),
    REF(norm_f32, NORM, norm, "the same in plain C"),
    AVX512(rope_f32, ROPE, rope, "rotates pairs (i, i + dims/2), or (2i, 2i + 1), of each head"),
    AVX2(rope_f32, ROPE, rope, "the same"),
    NEON(rope_f32, ROPE, rope, "the same, four vectors of 4 lanes"),
    REF(rope_f32, ROPE, rope, "the same in plain C"),
    AVX512(swiglu_f32, SWIGLU, swiglu,
           "silu(gate), tanh gelu(gate) or sigmoid(gate), times up if there is one, with the "
           "library's own exp"),
    AVX2(swiglu_f32, SWIGLU, swiglu, "the same"),
    NEON(swiglu_f32, SWIGLU, swiglu, "the same, four vectors of 4 lanes"),
    REF(swiglu_f32, SWIGLU, swiglu, "the same in plain C"),
    AVX512(add_f32, ADD, add, "adds into the residual"),
    AVX2(add_f32, ADD, add, "the same"),
    NEON(add_f32, ADD, add, "the same, four vectors of 4 lanes"),
    REF(add_f32, ADD, add, "the same in plain C"),
    AVX512(scale_f32, SCALE, scale, "multiplies by a number; with a cap, then cap * tanh(x / cap)"),
    AVX2(scale_f32, SCALE, scale, "the same"),
    NEON(scale_f32, SCALE, scale, "the same, four vectors of 4 lanes"),
    REF(scale_f32, SCALE, scale, "the same in plain C"),
    ROW(embed_f32, EMBED, ref, 90, NIB_NO_CONDS, NULL, embed, embed_ref,
        "copies rows of the table, dequantized to f32"),
    AVX512(copy_f32, STORE_KV, store_kv,
           "rounds keys and values into the cache: f32, f16, bf16, or int8 with a scale for each "
           "token and head"),
    AVX2(copy_f32, STORE_KV, store_kv, "the same"),
    NEON(copy_f32, STORE_KV, store_kv, "the same"),
    REF(copy_f32, STORE_KV, store_kv, "the same in plain C"),
    AVX512(rope_copy_f32, ROPE_COPY, rope_store_kv,
           "rope of queries and keys and copy, in one pass"),
    AVX2(rope_copy_f32, ROPE_COPY, rope_store_kv, "the same"),
    NEON(rope_copy_f32, ROPE_COPY, rope_store_kv, "the same"),
    REF(rope_copy_f32, ROPE_COPY, rope_store_kv, "the same in plain C"),
    ROW(gather_f32, GATHER, ref, 90, NIB_NO_CONDS, NULL, gather, gather_ref,
        "puts inputs into the order of a weight's columns (act-order)"),
};

const nib_family nib__family_token = {rows, COUNT(rows)};
