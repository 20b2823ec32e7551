/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the gradients of attention; attn_dx_body.h is the code for every instruction set.
 */
#include "attn_dx_rows.h"

#include "x86.h"

#define NIB_ATTN_DX nib__attn_dx__ref
#define NIB_ATTN_DX_WIDE 0
#include "attn_dx_body.h"

enum { MATRICES = 9 /* of SIDE x padded */, SQUARES = 2 /* of SIDE x SIDE */, VECTORS = 2 };

static size_t attn_dx_scratch(const void *args)
{
    const nib_attn_dx *a = args;
    const int64_t padded = nib__round_up(a->cache.head_dim, NIB_LANES);
    const int64_t blocks = SIDE * (MATRICES * padded + SQUARES * SIDE + VECTORS);
    return (size_t)(blocks + a->heads / a->cache.kv_heads * a->m) * sizeof(float);
}

void nib__attn_dx_part(nib_attn_dx_scratch *s, float *memory, int64_t padded)
{
    float **const matrices[MATRICES] = {&s->k,  &s->kt, &s->vt,   &s->v, &s->dk,
                                        &s->dv, &s->q,  &s->dout, &s->dq};
    float **const squares[SQUARES] = {&s->p, &s->ds},
                  **const vectors[] = {&s->lse, &s->delta_block};
    float *at = memory;
    for (int i = 0; i < MATRICES; i++, at += SIDE * padded)
        *matrices[i] = at;
    for (int i = 0; i < SQUARES; i++, at += SIDE * SIDE)
        *squares[i] = at;
    for (int i = 0; i < VECTORS; i++, at += SIDE)
        *vectors[i] = at;
    s->delta = at;
    memset(memory, 0, (size_t)(at - memory) * sizeof *memory);
}

#define ROW(target, rank_, conditions, ref, function, words)                                       \
    {                                                                                              \
        .name = "attn_dx_f32__" #target, .op = NIB_OP_ATTN_DX, .code = NIB_ANY, .act = NIB_ANY,    \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .numbers = NIB_NUMBERS_LANES, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32,       \
        .scratch = attn_dx_scratch, .run = {.attn_dx = function}, .note = words                    \
    }

static const nib_kernel rows[] = {
    ROW(avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)), "attn_dx_f32__ref",
        NIB_X86(nib__attn_dx__avx512),
        "gradients of q, k and v; probabilities made again from the log-sum-exp"),
    ROW(avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)), "attn_dx_f32__ref",
        NIB_X86(nib__attn_dx__avx2), "the same"),
    ROW(ref, 90, NIB_NO_CONDS, NULL, nib__attn_dx__ref, "the same in plain C"),
};

const nib_family nib__family_attn_dx = {rows, COUNT(rows)};
