/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of attention; attn_body.h is the code for every instruction set.
 */
#include "token_rows.h"

#include "x86.h"

#define NIB_ATTN nib__attn__ref
#include "attn_body.h"

/* Scores of a softmax block, the query, the running sum. */
static size_t attn_scratch(const void *args)
{
    const nib_attn *a = args;
    const int64_t padded = nib__round_up(a->cache.head_dim, NIB_LANES);
    return (size_t)(NIB_SOFTMAX_BLOCK + 2 * padded) * sizeof(float);
}

#define ROW(target, rank_, conditions, ref, function, words)                                       \
    {                                                                                              \
        .name = "attn_f32__" #target, .op = NIB_OP_ATTN, .code = NIB_ANY, .act = NIB_ANY,          \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .numbers = NIB_NUMBERS_LANES, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32,       \
        .scratch = attn_scratch, .run = {.attn = function}, .note = words                          \
    }

static const nib_kernel rows[] = {
    ROW(avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)), "attn_f32__ref",
        NIB_X86(nib__attn__avx512),
        "causal attention, softmax blocks of 256 positions merged ascending"),
    ROW(avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)), "attn_f32__ref",
        NIB_X86(nib__attn__avx2), "the same"),
    ROW(ref, 90, NIB_NO_CONDS, NULL, nib__attn__ref, "the same in plain C"),
};

const nib_family nib__family_attn = {rows, COUNT(rows)};
