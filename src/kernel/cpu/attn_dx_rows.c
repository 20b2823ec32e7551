/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the gradients of attention; attn_dx_body.h is the code for every instruction set.
 */
#include "attn_dx_rows.h"

#include "arm.h"
#include "scratch_parts.h"
#include "x86.h"

#define NIB_ATTN_DX nib__attn_dx__ref
#define NIB_ATTN_DX_WIDE 0
#include "attn_dx_body.h"

static size_t split_scratch(nib_attn_dx_scratch *s, const nib_attn_dx *a, float *memory)
{
    const int64_t padded = nib__round_up(a->cache.head_dim, NIB_LANES);
    const int64_t longest = nib__min(nib__round_up(a->m, SIDE), a->cache.table_ld * SIDE);
    const nib_scratch_part parts[] = {
        {&s->q, longest * padded}, {&s->dout, longest * padded}, {&s->dq, longest * padded},
        {&s->lse, longest},        {&s->delta, longest},         {&s->k, SIDE * padded},
        {&s->kt, SIDE * padded},   {&s->vt, SIDE * padded},      {&s->v, SIDE * padded},
        {&s->dk, SIDE * padded},   {&s->dv, SIDE * padded},      {&s->p, SIDE * SIDE},
        {&s->ds, SIDE * SIDE},
    };
    return nib__scratch_split(parts, COUNT(parts), memory);
}

static size_t attn_dx_scratch(const void *args)
{
    nib_attn_dx_scratch s;
    return split_scratch(&s, args, NULL);
}

void nib__attn_dx_split_scratch(nib_attn_dx_scratch *s, const nib_attn_dx *a, float *memory)
{
    split_scratch(s, a, memory);
}

#define ROW(target, rank_, conditions, ref, function, words)                                       \
    {                                                                                              \
        .name = "attn_dx_f32__" #target, .op = NIB_OP_ATTN_DX, .code = NIB_ANY, .act = NIB_ANY,    \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .arithmetic = NIB_ARITHMETIC_LANES, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32, \
        .scratch = attn_dx_scratch, .run = {.attn_dx = function}, .note = words                    \
    }

static const nib_kernel rows[] = {
    ROW(avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)), "attn_dx_f32__ref",
        NIB_X86(nib__attn_dx__avx512),
        "gradients of q, k and v; probabilities recomputed from the log-sum-exp; windows, chunks "
        "and caps"),
    ROW(avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)), "attn_dx_f32__ref",
        NIB_X86(nib__attn_dx__avx2), "the same"),
    ROW(neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)), "attn_dx_f32__ref",
        NIB_ARM(nib__attn_dx__neon), "the same"),
    ROW(ref, 90, NIB_NO_CONDS, NULL, nib__attn_dx__ref, "the same in plain C"),
};

const nib_family nib__family_attn_dx = {rows, COUNT(rows)};
