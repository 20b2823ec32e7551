/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the operations that work token by token: embedding look-up, norm, rope, swiglu, residual
 * add, storing keys and values, and putting inputs into act-order. The plain C of norm, rope,
 * swiglu and add is token_body.h, as for every other instruction set; look-up, store and gather
 * move data and have one version.
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

/* nib__from_f32 in a form that compilers make vectors of: bf16 is what training stores. */
static void rounded(void *to, nib_type type, const float *from, int64_t count)
{
    uint16_t *half = to;
    if (type != NIB_TYPE_BF16) {
        nib__from_f32(to, type, from, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &from[i], sizeof bits);
        const uint32_t near = (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
        const uint32_t nan = (bits >> 16 & 0x8000) | 0x7fc0;
        half[i] = (uint16_t)((bits & 0x7fffffff) > 0x7f800000 ? nan : near);
    }
}

/* Rounded, to consecutive places. */
static void store_values(const nib_cache *c, const float *from, int64_t at)
{
    char *to = (char *)c->values + at * (c->type == NIB_TYPE_F32 ? 4 : 2);
    rounded(to, c->type, from, c->head_dim);
}

/* Rounded, NIB_CACHE_BLOCK places apart: attention reads one dimension of many positions. */
static void store_keys(const nib_cache *c, const float *from, int64_t at)
{
    enum { PART = 64 };
    float f32[PART];
    uint16_t half[PART];
    for (int64_t d = 0; d < c->head_dim; d += PART) {
        const int64_t count = nib__min(PART, c->head_dim - d);
        rounded(c->type == NIB_TYPE_F32 ? (void *)f32 : half, c->type, from + d, count);
        for (int64_t i = 0; i < count; i++, at += NIB_CACHE_BLOCK) {
            if (c->type == NIB_TYPE_F32)
                ((float *)c->keys)[at] = f32[i];
            else
                ((uint16_t *)c->keys)[at] = half[i];
        }
    }
}

static void store_kv_ref(const nib_store_kv *a, int64_t m0, int64_t m1)
{
    const nib_cache *c = &a->cache;
    for (int64_t m = m0; m < m1; m++) {
        const int64_t position = a->position[m], inside = position % NIB_CACHE_BLOCK;
        const int64_t block = c->tables[a->sequence[m] * c->table_ld + position / NIB_CACHE_BLOCK];
        for (int64_t h = 0; h < c->kv_heads; h++) {
            const int64_t at = (block * c->kv_heads + h) * NIB_CACHE_BLOCK * c->head_dim;
            store_keys(c, a->k + m * a->ld + h * c->head_dim, at + inside);
            store_values(c, a->v + m * a->ld + h * c->head_dim, at + inside * c->head_dim);
        }
    }
}

static void gather_ref(const nib_gather *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++)
        for (int64_t j = 0; j < a->width; j++)
            a->out[m * a->ldo + j] = a->x[m * a->ldx + a->order[j]];
}

#define ROW(kernel, operation, target, rank_, conditions, ref, member, function, words)            \
    {                                                                                              \
        .name = #kernel "__" #target, .op = NIB_OP_##operation, .code = NIB_ANY, .act = NIB_ANY,   \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .numbers = NIB_NUMBERS_LANES, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32,       \
        .run = {.member = function}, .note = words                                                 \
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
    AVX512(norm_f32, NORM, norm, "root mean square norm, 16 lanes and one tree"),
    AVX2(norm_f32, NORM, norm, "the same, two vectors of 8 lanes"),
    NEON(norm_f32, NORM, norm, "the same, four vectors of 4 lanes"),
    REF(norm_f32, NORM, norm, "the same in plain C"),
    AVX512(rope_f32, ROPE, rope, "rotates pairs (i, i + dims/2) of each head"),
    AVX2(rope_f32, ROPE, rope, "the same"),
    NEON(rope_f32, ROPE, rope, "the same, four vectors of 4 lanes"),
    REF(rope_f32, ROPE, rope, "the same in plain C"),
    AVX512(swiglu_f32, SWIGLU, swiglu, "silu(gate) * up, with the library's own exp"),
    AVX2(swiglu_f32, SWIGLU, swiglu, "the same"),
    NEON(swiglu_f32, SWIGLU, swiglu, "the same, four vectors of 4 lanes"),
    REF(swiglu_f32, SWIGLU, swiglu, "the same in plain C"),
    AVX512(add_f32, ADD, add, "adds into the residual"),
    AVX2(add_f32, ADD, add, "the same"),
    NEON(add_f32, ADD, add, "the same, four vectors of 4 lanes"),
    REF(add_f32, ADD, add, "the same in plain C"),
    ROW(embed_f32, EMBED, ref, 90, NIB_NO_CONDS, NULL, embed, embed_ref,
        "copies rows of the table, dequantized to f32"),
    ROW(copy_f32, COPY, ref, 90, NIB_NO_CONDS, NULL, store_kv, store_kv_ref,
        "rounds keys and values into the cache"),
    ROW(gather_f32, GATHER, ref, 90, NIB_NO_CONDS, NULL, gather, gather_ref,
        "puts inputs into the order of a weight's columns (act-order)"),
};

const nib_family nib__family_token = {rows, COUNT(rows)};
