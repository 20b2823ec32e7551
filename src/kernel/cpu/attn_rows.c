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

/* For every row of a tile: scores, query, the sums of a block and of all blocks. */
static size_t attn_scratch(const void *args)
{
    const nib_attn *a = args;
    const int64_t padded = nib__round_up(a->cache.head_dim, NIB_LANES);
    return (size_t)(NIB_ATTN_ROWS * (NIB_SOFTMAX_BLOCK + 3 * padded)) * sizeof(float);
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
    nib_tile t = {.a = a, .dim = dim, .padded = padded, .scores = scratch};
    t.q = t.scores + NIB_ATTN_ROWS * NIB_SOFTMAX_BLOCK;
    t.part = t.q + NIB_ATTN_ROWS * padded;
    t.total = t.part + NIB_ATTN_ROWS * padded;
    memset(t.q, 0, (size_t)(NIB_ATTN_ROWS * padded) * sizeof *t.q);
    for (t.kv_head = 0; t.kv_head < a->cache.kv_heads; t.kv_head++) {
        for (int64_t slot = item0 / a->heads; slot * a->heads < item1; slot++) {
            const int64_t first = slot * a->heads + t.kv_head * share;
            const int64_t begin = nib__max(item0, first), end = nib__min(item1, first + share);
            const int32_t *table = a->cache.tables + a->sequence[slot] * a->cache.table_ld;
            for (int64_t item = begin; item < end; item++) {
                if (t.rows == NIB_ATTN_ROWS || t.table != table)
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
        "causal attention over a cache in f32, f16, bf16 or int8, softmax blocks of 256 positions "
        "merged ascending; windows, chunks and caps of scores"),
    ROW(avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)), "attn_f32__ref",
        NIB_X86(nib__attn__avx2), "the same"),
    ROW(neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)), "attn_f32__ref",
        NIB_ARM(nib__attn__neon), "the same"),
    ROW(ref, 90, NIB_NO_CONDS, NULL, nib__attn__ref, "the same in plain C"),
};

const nib_family nib__family_attn = {rows, COUNT(rows)};
