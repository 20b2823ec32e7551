/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of attention; attn_body.h is the code for every instruction set.
 */
#include "token_rows.h"

#include "arm.h"
#include "x86.h"

#define NIB_ATTN nib__attn__ref
#define NIB_ATTN_REGISTERS 0
#include "attn_body.h"

static int most_rows(const nib_cache *c)
{
    return c->values == NULL ? NIB_ATTN_ROWS_MAX : NIB_ATTN_ROWS;
}

/* For every row of a tile: scores, query, the sums of a block and of all blocks. Then values turned
 * from keys. */
static size_t attn_scratch(const void *args)
{
    const nib_cache *c = &((const nib_attn *)args)->cache;
    const int64_t padded = nib__round_up(c->head_dim, NIB_LANES),
                  wide = nib__round_up(nib__cache_value_dim(c), NIB_LANES),
                  turned = c->values == NULL ? NIB_SOFTMAX_BLOCK * NIB_ATTN_TURNED : 0;
    return (size_t)(most_rows(c) * (NIB_SOFTMAX_BLOCK + padded + 2 * wide) + turned) *
           sizeof(float);
}

/* Values that lie in keys are rotated as those are. */
static int64_t rotated_back(const nib_cache *c)
{
    const nib_kv_type values = c->values != NULL ? c->types.values : c->types.keys;
    return values.hadamard ? nib__cache_block(c) : 0;
}

static void run_tile(nib_tile *t, void (*run)(nib_tile *t))
{
    if (t->rows > 0)
        run(t);
    t->rows = 0;
}

static void add_item(nib_tile *t, int64_t slot, int64_t head)
{
    const nib_attn *a = t->a;
    float *q = t->q + t->rows * t->padded;
    memcpy(q, a->q + slot * a->ldq + head * t->dim, (size_t)t->dim * sizeof *q);
    if (a->cache.types.keys.hadamard)
        nib__hadamard(q, q, t->dim, nib__cache_block(&a->cache));
    t->slots[t->rows] = slot;
    t->heads[t->rows] = head;
    t->ends[t->rows] = (int64_t)a->position[slot] + 1;
    t->begins[t->rows] = nib__attn_first(a->window, a->chunked, a->position[slot]);
    t->rows++;
}

void nib__attn_tiles(const nib_attn *a, int64_t item0, int64_t item1, void *scratch,
                     void (*run)(nib_tile *t))
{
    const int64_t dim = a->cache.head_dim, padded = nib__round_up(dim, NIB_LANES);
    const int64_t share = a->heads / a->cache.kv_heads;
    nib_tile t = {.a = a,
                  .dim = dim,
                  .padded = padded,
                  .wide = nib__cache_value_dim(&a->cache),
                  .most = most_rows(&a->cache),
                  .back = rotated_back(&a->cache),
                  .scores = scratch};
    t.wide_padded = nib__round_up(t.wide, NIB_LANES);
    t.q = t.scores + t.most * NIB_SOFTMAX_BLOCK;
    t.part = t.q + t.most * padded;
    t.total = t.part + t.most * t.wide_padded;
    t.turned = a->cache.values == NULL ? t.total + t.most * t.wide_padded : NULL;
    memset(t.q, 0, (size_t)(t.most * padded) * sizeof *t.q);
    for (t.kv_head = 0; t.kv_head < a->cache.kv_heads; t.kv_head++) {
        for (int64_t slot = item0 / a->heads; slot * a->heads < item1; slot++) {
            const int64_t first = slot * a->heads + t.kv_head * share;
            const int64_t begin = nib__max(item0, first), end = nib__min(item1, first + share);
            const int32_t *table = a->cache.tables + a->sequence[slot] * a->cache.table_ld;
            for (int64_t item = begin; item < end; item++) {
                if (t.rows == t.most || t.table != table)
                    run_tile(&t, run);
                t.table = table;
                add_item(&t, slot, item - slot * a->heads);
            }
        }
        run_tile(&t, run);
    }
}

#define ROW(target, rank_, conditions, ref, function, words)                                       \
    {                                                                                              \
        .name = "attn_f32__" #target, .op = NIB_OP_ATTN, .code = NIB_ANY, .act = NIB_ANY,          \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .arithmetic = NIB_ARITHMETIC_LANES, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32, \
        .scratch = attn_scratch, .run = {.attn = function}, .note = words                          \
    }

static const nib_kernel rows[] = {
    ROW(avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)), "attn_f32__ref",
        NIB_X86(nib__attn__avx512),
        "causal attention over keys and values in f32, f16, bf16, int8 or int4, each rotated or "
        "not; "
        "softmax blocks of 256 positions merged ascending; windows, chunks and caps of scores"),
    ROW(avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)), "attn_f32__ref",
        NIB_X86(nib__attn__avx2), "the same"),
    ROW(neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)), "attn_f32__ref",
        NIB_ARM(nib__attn__neon), "the same"),
    ROW(ref, 90, NIB_NO_CONDS, NULL, nib__attn__ref, "the same in plain C"),
};

const nib_family nib__family_attn = {rows, COUNT(rows)};
