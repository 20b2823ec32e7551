/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention over a paged KV cache, written once on lanes and compiled per instruction set.
 *
 * Order of operations, the same everywhere: q.k is one fused multiply-add per dimension, ascending
 * from zero (lanes are positions, so nothing is summed across them). Softmax runs over blocks of
 * NIB_SOFTMAX_BLOCK absolute positions; each block has its own maximum and its own sum by the 16
 * lanes and the tree, and blocks are merged ascending. p.v is one fused multiply-add per position,
 * ascending from zero in each block. The scale of an int8 key multiplies its q.k before the
 * attention scale does; the scale of an int8 value multiplies its p, but not in the sum of the p.
 * int4 codes are widened to values, one fused multiply-add each, and then treated like floats. A
 * rotated query is rotated before it enters the tile; the output for rotated values is rotated
 * back after its division.
 * So the result does not depend on threads, batch, chunking of the prompt, or on what else is
 * computed in the same tile.
 *
 * A window or chunk changes none of this: blocks stay at absolute positions, and only those that a
 * row sees enter its maxima and sums. The first block with a position that a row sees initializes
 * the row's totals; earlier blocks do not exist for that row. Cache blocks below the windows of all
 * rows of a tile are not read, nor are their entries in the block table. Positions that a row does
 * not see may be read and scored together with positions that it sees, but they enter no maximum,
 * sum or product, so they may be NaN. A cap replaces the score before the maximum is taken.
 *
 * Values that lie in the keys (latent) are turned into rows of f32 first, some dimensions of a
 * softmax block at a time, for all rows of a tile. Widening is exact, so the order is the same.
 *
 * An item is one slot and one head. Items of one sequence that share keys form a tile of up to
 * nib_tile.most rows: the heads of a group and, in a prompt, several slots. So keys and values are
 * read and widened once for all rows of the tile. NIB_ATTN_REGISTERS: 32 (of 16 lanes), 16 (of 8),
 * or 0 in plain C, where one form serves every type and window: more forms take long to compile and
 * gain little.
 */
#include "attn_tile.h"
#include "hadamard.h"
#include "lanes.h"
#include "portable_math.h"

/* Positions from..to, counted from the first scored position of a softmax block. */
typedef struct range {
    int64_t from, to;
} range;

NIB_INLINE bool is_nonempty(range a) { return a.from < a.to; }

/* Without a window all rows see a block from its beginning. This case is compiled separately:
 * testing the window's begin slowed AVX2 decoding by 3 percent (4,096 positions, EPYC with AVX-512,
 * 2026-11-24). */
NIB_INLINE range seen_by(const range *each, int row, const bool windowed)
{
    return windowed ? each[row] : (range){0, each[row].to};
}

/* Bytes of `count` values of a cached vector, without scales. */
NIB_INLINE int64_t code_bytes(nib_type type, int64_t count)
{
    return type == NIB_TYPE_Q4_1 ? (count + 1) / 2 : count * nib__cache_value_bytes(type);
}

/* Sixteen values of a cached vector; of int4, codes. */
NIB_INLINE nib_lanes load_cached(const void *at, nib_type type)
{
    return type == NIB_TYPE_Q4_1 ? nib__lanes_load_pairs(at) : nib__lanes_load_as(at, type);
}

/* The first `count` values of a cached vector, then zeros. */
NIB_INLINE nib_lanes load_cached_part(const void *at, nib_type type, int64_t count)
{
    if (type == NIB_TYPE_F32)
        return nib__lanes_load_part(at, count);
    float part[NIB_LANES] = {0}; /* room for any type */
    memcpy(part, at, (size_t)code_bytes(type, count));
    return load_cached(part, type);
}

/* ---- prefetch ---- */

/* Prefetches bytes at..at+count of what the next phase reads: the values of a softmax block while
 * its keys are read, then the keys of the next block. Cache blocks are not adjacent, so the
 * hardware does not prefetch them. */
NIB_INLINE void prefetch(const char *next, int64_t at, int64_t count)
{
    if (next != NULL)
        for (int64_t i = 0; i < count; i += 64)
            __builtin_prefetch(next + at + i, 0, 3);
}

/* Start of the keys or values (`side`) in the cache block that holds a position. */
NIB_INLINE const char *cache_block(const nib_tile *t, const void *side, int64_t kv_head,
                                   int64_t position, nib_type type)
{
    const int64_t block = t->table[position / NIB_CACHE_BLOCK];
    return (const char *)side + block * t->a->cache.block_bytes +
           kv_head * nib__cache_bytes(type, t->dim, NIB_CACHE_BLOCK);
}

/* The scales of 16 positions of an int8 cache. */
NIB_INLINE nib_lanes load_scales(const nib_tile *t, const void *side, int64_t position)
{
    const char *block = cache_block(t, side, t->kv_head, position, NIB_TYPE_I8);
    return nib__lanes_load((const float *)(const void *)(block + NIB_CACHE_BLOCK * t->dim) +
                           position % NIB_CACHE_BLOCK);
}

/* Scales and minima of int4, as nib_cache defines them. */
typedef struct steps {
    nib_lanes scale, minimum;
} steps;

/* Those of a group for 16 positions. `block` is the head's. */
NIB_INLINE steps load_steps(const nib_tile *t, const char *block, int64_t group, int64_t inside)
{
    const uint16_t *scales =
        (const uint16_t *)(const void *)(block + NIB_CACHE_BLOCK * ((t->dim + 1) / 2)) +
        group * NIB_CACHE_BLOCK + inside;
    return (steps){nib__lanes_load_f16(scales),
                   nib__lanes_load_f16(scales + nib__kv_groups(t->dim) * NIB_CACHE_BLOCK)};
}

/* One dimension of 16 positions, whose codes lie in `row`, two dimensions in a byte. */
NIB_INLINE nib_lanes widen_key(const char *row, int64_t d, steps by)
{
    return nib__lanes_fma(nib__lanes_load_nibbles((const uint8_t *)row, d % 2 == 0 ? 0 : 4),
                          by.scale, by.minimum);
}

/* The keys one softmax block after a position or, past the last block, the first keys of the next
 * head. A head's first softmax block may begin below the window. */
NIB_INLINE const char *next_keys(const nib_tile *t, int64_t position, nib_type type)
{
    const nib_cache *c = &t->a->cache;
    if (position + NIB_SOFTMAX_BLOCK < t->longest)
        return cache_block(t, c->keys, t->kv_head, position + NIB_SOFTMAX_BLOCK, type);
    position = nib__round_down(t->earliest, NIB_SOFTMAX_BLOCK) + position % NIB_SOFTMAX_BLOCK;
    return t->kv_head + 1 < c->kv_heads && position < t->longest &&
                   position >= nib__round_down(t->earliest, NIB_CACHE_BLOCK)
               ? cache_block(t, c->keys, t->kv_head + 1, position, type)
               : NULL;
}

/* ---- scores ---- */

/* Scores of rows row..row+rows for 16 * vectors positions of one cache block, starting at `from` in
 * the softmax block that begins at `first`. Positions that a row may not see are computed and
 * ignored. */
NIB_INLINE void score(const nib_tile *t, int64_t first, int64_t from, int row, nib_type type,
                      const int rows, const int vectors)
{
    const nib_cache *c = &t->a->cache;
    const bool int4 = type == NIB_TYPE_Q4_1;
    const int64_t inside = from % NIB_CACHE_BLOCK, bytes = nib__cache_value_bytes(type);
    const char *block = cache_block(t, c->keys, t->kv_head, first + from, type);
    const char *keys = block + inside * bytes;
    const nib_type other = c->types.values.type == type ? type : c->types.values.type;
    const char *next = row == 0 && inside == 0 && c->values != NULL
                           ? cache_block(t, c->values, t->kv_head, first + from, other)
                           : NULL;
    const float *q = t->q + row * t->padded;
    float *scores = t->scores + row * NIB_SOFTMAX_BLOCK + from;
    nib_lanes sum[NIB_ATTN_ROWS][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = nib__lanes_set(0.0f);
    for (int64_t d = 0, end; d < t->dim; d = end) { /* all dimensions, or a group of int4 */
        steps by[4];
        end = int4 ? nib__min(d + NIB_KV_GROUP, t->dim) : t->dim;
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            by[v] = int4 ? load_steps(t, block, d / NIB_KV_GROUP, inside + v * NIB_LANES)
                         : (steps){sum[0][0], sum[0][0]};
        for (; d < end; d++, keys += int4 && d % 2 != 0 ? 0 : NIB_CACHE_BLOCK * bytes) {
            nib_lanes k[4];
            prefetch(next, (int4 ? d / 2 : d) * NIB_CACHE_BLOCK * bytes,
                     int4 && d % 2 != 0 ? 0 : NIB_CACHE_BLOCK * bytes);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                k[v] = int4 ? widen_key(keys + v * NIB_LANES, d, by[v])
                            : nib__lanes_load_as(keys + v * NIB_LANES * bytes, type);
#pragma GCC unroll 8
            for (int r = 0; r < rows; r++) {
                const nib_lanes x = nib__lanes_set(q[r * t->padded + d]);
#pragma GCC unroll 4
                for (int v = 0; v < vectors; v++)
                    sum[r][v] = nib__lanes_fma(x, k[v], sum[r][v]);
            }
        }
    }
#pragma GCC unroll 4
    for (int v = 0; v < vectors; v++) {
        const nib_lanes scale = nib__lanes_set(t->a->scale);
        const nib_lanes key_scale =
            type == NIB_TYPE_I8 ? load_scales(t, c->keys, first + from + v * NIB_LANES) : scale;
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            if (type == NIB_TYPE_I8)
                sum[r][v] = nib__lanes_mul(sum[r][v], key_scale);
            nib__lanes_store(scores + r * NIB_SOFTMAX_BLOCK + v * NIB_LANES,
                             nib__lanes_mul(sum[r][v], scale));
        }
    }
}

NIB_INLINE void score_rows(const nib_tile *t, int64_t first, int64_t count, int row, nib_type type,
                           const int rows, const int vectors)
{
    for (int64_t i = 0; i < count; i += vectors * NIB_LANES)
        score(t, first, i, row, type, rows, vectors);
}

NIB_INLINE void score_tile(const nib_tile *t, int64_t first, int64_t count, nib_type type)
{
    int row = 0;
    for (; NIB_ATTN_REGISTERS == 32 && row + 8 <= t->rows; row += 8)
        score_rows(t, first, count, row, type, 8, 2);
    for (; row + 4 <= t->rows; row += 4)
        score_rows(t, first, count, row, type, 4, NIB_ATTN_REGISTERS == 32 ? 4 : 1);
    for (; NIB_ATTN_REGISTERS > 0 && row + 2 <= t->rows; row += 2)
        score_rows(t, first, count, row, type, 2, NIB_ATTN_REGISTERS == 32 ? 4 : 2);
    for (; row < t->rows; row++)
        score_rows(t, first, count, row, type, 1, NIB_ATTN_REGISTERS > 0 ? 4 : 1);
}

/* ---- softmax of one block ---- */

/* Caps the scores that a row sees and the padding up to whole lanes. */
NIB_INLINE void cap_scores(float *scores, range seen, float cap)
{
    const nib_lanes most = nib__lanes_set(cap);
    for (int64_t i = nib__round_down(seen.from, NIB_LANES); i < seen.to; i += NIB_LANES)
        nib__lanes_store(scores + i, nib__lanes_softcap(nib__lanes_load(scores + i), most));
}

/* The maximum of the scores that a row sees. Overwrites unseen scores up to whole lanes with a seen
 * one. The maximum may skip a NaN score, but the sum will contain it. */
NIB_INLINE float max_score(float *scores, range seen)
{
    const int64_t from = nib__round_down(seen.from, NIB_LANES);
    for (int64_t i = from; i < seen.from; i++)
        scores[i] = scores[seen.from];
    for (int64_t i = seen.to; i % NIB_LANES != 0; i++)
        scores[i] = scores[seen.from];
    nib_lanes all = nib__lanes_load(scores + from);
    for (int64_t i = from + NIB_LANES; i < seen.to; i += NIB_LANES)
        all = nib__lanes_max(nib__lanes_load(scores + i), all);
    return nib__lanes_reduce_max(all);
}

/* Replaces scores by p = e^(score - max) and returns their sum. With int8 values, stores p times
 * the value's scale instead. */
NIB_INLINE float exp_scores(const nib_tile *t, int row, int64_t first, range seen, float max,
                            nib_type type)
{
    const void *values = t->turned != NULL ? t->a->cache.keys : t->a->cache.values;
    float *scores = t->scores + row * NIB_SOFTMAX_BLOCK;
    const bool scaled =
        (type != NIB_TYPE_NONE ? type : t->a->cache.types.values.type) == NIB_TYPE_I8;
    nib_lanes sum = nib__lanes_set(0.0f);
    for (int64_t i = nib__round_down(seen.from, NIB_LANES); i < seen.to; i += NIB_LANES) {
        nib_lanes p =
            nib__lanes_exp(nib__lanes_sub(nib__lanes_load(scores + i), nib__lanes_set(max)));
        nib__lanes_store(scores + i,
                         scaled ? nib__lanes_mul(p, load_scales(t, values, first + i)) : p);
        if (i + NIB_LANES > seen.to)
            p = nib__lanes_keep_first(p, seen.to - i);
        if (i < seen.from)
            p = nib__lanes_clear_first(p, seen.from - i);
        sum = nib__lanes_add(sum, p);
    }
    return nib__lanes_sum(sum);
}

/* ---- p . v ---- */

/* Rows of a tile from `row` on, and the positions of a softmax block that they see: every row sees
 * `common`; no row sees anything from `end` on. */
typedef struct row_group {
    int row;
    int64_t first;     /* first scored position of the block */
    const range *each; /* per row */
    range common;
    int64_t end;
} row_group;

/* Scales and minima of int4 values: of the groups of up to four vectors of dimensions, for the
 * positions of a cache block. */
typedef struct value_steps {
    float scale[3][NIB_CACHE_BLOCK], minimum[3][NIB_CACHE_BLOCK];
} value_steps;

/* Those of `vectors` vectors from dimension d on. */
NIB_INLINE void load_value_steps(value_steps *out, const nib_tile *t, const char *block, int64_t d,
                                 const int vectors)
{
    const int64_t first = d / NIB_KV_GROUP,
                  last = nib__min(d + vectors * NIB_LANES - 1, t->dim - 1) / NIB_KV_GROUP;
    for (int64_t g = first; g <= last; g++)
        for (int64_t i = 0; i < NIB_CACHE_BLOCK; i += NIB_LANES) {
            const steps by = load_steps(t, block, g, i);
            nib__lanes_store(out->scale[g - first] + i, by.scale);
            nib__lanes_store(out->minimum[g - first] + i, by.minimum);
        }
}

/* The codes of vector v of the dimensions from d on, widened. */
NIB_INLINE nib_lanes widen_value(nib_lanes codes, const value_steps *by, int64_t d, int v,
                                 int64_t position)
{
    const int64_t group = (d % NIB_KV_GROUP + v * NIB_LANES) / NIB_KV_GROUP;
    return nib__lanes_fma(codes, nib__lanes_set(by->scale[group][position % NIB_CACHE_BLOCK]),
                          nib__lanes_set(by->minimum[group][position % NIB_CACHE_BLOCK]));
}

/* sum[r][..] += p . v over positions from..to of one cache block, whose values begin at `values`,
 * one every row_bytes. `all`: every row sees all of them. `some`: the number of dimensions if the
 * one vector is the head's last and not whole, else 0. by: of the dimensions from d on. */
NIB_INLINE void weigh_run(nib_lanes sum[NIB_ATTN_ROWS][4], const float *p, const char *values,
                          int64_t row_bytes, int64_t from, int64_t to, const range *each,
                          int64_t some, const value_steps *by, int64_t d, nib_type type,
                          const char *next, const bool all, const bool windowed, const int rows,
                          const int vectors)
{
    for (int64_t i = from; i < to; i++, values += row_bytes) {
        nib_lanes x[4];
        prefetch(next, i % NIB_CACHE_BLOCK * row_bytes, row_bytes);
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            x[v] = some > 0 ? load_cached_part(values, type, some)
                            : load_cached(values + code_bytes(type, v * NIB_LANES), type);
#pragma GCC unroll 4
        for (int v = 0; type == NIB_TYPE_Q4_1 && v < vectors; v++)
            x[v] = widen_value(x[v], by, d, v, i);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++) {
            if (!all && ((windowed && i < each[r].from) || i >= each[r].to))
                continue;
            const nib_lanes w = nib__lanes_set(p[r * NIB_SOFTMAX_BLOCK + i]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[r][v] = nib__lanes_fma(w, x[v], sum[r][v]);
        }
    }
}

/* Turns dimensions d..d + NIB_ATTN_TURNED of the values in the keys of `count` positions into rows.
 * In the last cache block, positions up to whole lanes are turned, too. */
NIB_INLINE void turn_values(const nib_tile *t, int64_t first, int64_t count, int64_t d,
                            nib_type type)
{
    _Static_assert((int)NIB_ATTN_TURNED % (int)NIB_KV_GROUP == 0, "d begins a group");
    const bool int4 = type == NIB_TYPE_Q4_1;
    const int64_t dims = nib__min(NIB_ATTN_TURNED, t->wide - d), inner = NIB_CACHE_BLOCK,
                  bytes = nib__cache_value_bytes(type);
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        const char *block = cache_block(t, t->a->cache.keys, t->kv_head, first + i, type),
                   *keys = block + i % inner * bytes;
        steps by = {nib__lanes_set(0.0f), nib__lanes_set(0.0f)};
        for (int64_t j = 0; j < dims; j++) {
            float values[NIB_LANES];
            if (int4 && (d + j) % NIB_KV_GROUP == 0)
                by = load_steps(t, block, (d + j) / NIB_KV_GROUP, i % inner);
            nib__lanes_store(values,
                             int4 ? widen_key(keys + (d + j) / 2 * inner, d + j, by)
                                  : nib__lanes_load_as(keys + (d + j) * inner * bytes, type));
            for (int64_t l = 0; l < NIB_LANES; l++)
                t->turned[(i + l) * NIB_ATTN_TURNED + j] = values[l];
        }
    }
}

/* part[r][d..d + 16 * vectors) += p . v over a softmax block. */
NIB_INLINE void weigh(const nib_tile *t, const row_group *s, int64_t d, int64_t some, nib_type keys,
                      nib_type type, const bool windowed, const bool latent, const int rows,
                      const int vectors)
{
    const nib_cache *c = &t->a->cache;
    const nib_type stored = latent ? NIB_TYPE_F32 : type;
    const int64_t row_bytes = code_bytes(stored, latent ? NIB_ATTN_TURNED : t->wide);
    value_steps by;
    const float *p = t->scores + s->row * NIB_SOFTMAX_BLOCK;
    float *part = t->part + s->row * t->wide_padded + d;
    nib_lanes sum[NIB_ATTN_ROWS][4];
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = nib__lanes_load(part + r * t->wide_padded + v * NIB_LANES);
    for (int64_t i = 0; i < s->end; i += NIB_CACHE_BLOCK) {
        const char *values =
            latent
                ? (const char *)(t->turned + i * NIB_ATTN_TURNED + d % NIB_ATTN_TURNED)
                : cache_block(t, c->values, t->kv_head, s->first + i, type) + code_bytes(type, d);
        const char *next =
            !latent && s->row == 0 && d == 0 ? next_keys(t, s->first + i, keys) : NULL;
        if (stored == NIB_TYPE_Q4_1)
            load_value_steps(&by, t, values - code_bytes(type, d), d, vectors);
        const int64_t end = nib__min(i + NIB_CACHE_BLOCK, s->end);
        /* where a window begins in the block, test each row at every position of the block */
        const int64_t split =
            windowed && i < s->common.from ? i : nib__max(i, nib__min(end, s->common.to));
        weigh_run(sum, p, values, row_bytes, i, split, s->each, some, &by, d, stored, next, true,
                  windowed, rows, vectors);
        weigh_run(sum, p, values + (split - i) * row_bytes, row_bytes, split, end, s->each, some,
                  &by, d, stored, next, false, windowed, rows, vectors);
    }
#pragma GCC unroll 8
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            nib__lanes_store(part + r * t->wide_padded + v * NIB_LANES, sum[r][v]);
}

/* Dimensions d..end of `rows` rows, starting at `row`. */
NIB_INLINE void weigh_rows(const nib_tile *t, int row, int64_t first, const range *each, int64_t d,
                           int64_t end, nib_type keys, nib_type type, const bool windowed,
                           const bool latent, const int rows, const int vectors)
{
    row_group s = {row, first, each + row, each[row], each[row].to};
    for (int r = 1; r < rows; r++) {
        s.common.from = nib__max(s.common.from, s.each[r].from);
        s.common.to = nib__min(s.common.to, s.each[r].to);
        s.end = nib__max(s.end, s.each[r].to);
    }
    for (; d + vectors * NIB_LANES <= end; d += vectors * NIB_LANES)
        weigh(t, &s, d, 0, keys, type, windowed, latent, rows, vectors);
    for (; d + NIB_LANES <= end; d += NIB_LANES)
        weigh(t, &s, d, 0, keys, type, windowed, latent, rows, 1);
    if (d < end)
        weigh(t, &s, d, end - d, keys, type, windowed, latent, rows, 1);
}

/* Dimensions d..end of all rows. */
NIB_INLINE void weigh_tile(const nib_tile *t, int64_t first, const range *each, int64_t d,
                           int64_t end, nib_type keys, nib_type type, const bool windowed,
                           const bool latent)
{
    int row = 0;
    for (; NIB_ATTN_REGISTERS == 32 && row + 8 <= t->rows; row += 8)
        weigh_rows(t, row, first, each, d, end, keys, type, windowed, latent, 8, 2);
    for (; row + 4 <= t->rows; row += 4)
        weigh_rows(t, row, first, each, d, end, keys, type, windowed, latent, 4,
                   NIB_ATTN_REGISTERS == 32 ? 4 : 1);
    for (; NIB_ATTN_REGISTERS > 0 && row + 2 <= t->rows; row += 2)
        weigh_rows(t, row, first, each, d, end, keys, type, windowed, latent, 2,
                   NIB_ATTN_REGISTERS == 32 ? 4 : 2);
    for (; row < t->rows; row++)
        weigh_rows(t, row, first, each, d, end, keys, type, windowed, latent, 1,
                   NIB_ATTN_REGISTERS > 0 ? 4 : 1);
}

/* ---- keys and values of different types ---- */

#if NIB_ATTN_REGISTERS == 0
NIB_INLINE void score_any(const nib_tile *t, int64_t first, int64_t count, nib_type type)
{
    score_tile(t, first, count, type);
}
NIB_INLINE void weigh_any(const nib_tile *t, int64_t first, const range *each, nib_type keys,
                          nib_type values, const bool windowed)
{
    weigh_tile(t, first, each, 0, t->wide, keys, values, windowed, false);
}
#else
/* A form for each pair of types would be 25. So keys and values of different types have a function
 * per type and side, called once per softmax block; their type is NONE in all other code. */
static void score_f32(const nib_tile *t, int64_t first, int64_t count)
{
    score_tile(t, first, count, NIB_TYPE_F32);
}
static void score_f16(const nib_tile *t, int64_t first, int64_t count)
{
    score_tile(t, first, count, NIB_TYPE_F16);
}
static void score_bf16(const nib_tile *t, int64_t first, int64_t count)
{
    score_tile(t, first, count, NIB_TYPE_BF16);
}
static void score_i8(const nib_tile *t, int64_t first, int64_t count)
{
    score_tile(t, first, count, NIB_TYPE_I8);
}
static void score_i4(const nib_tile *t, int64_t first, int64_t count)
{
    score_tile(t, first, count, NIB_TYPE_Q4_1);
}
static void weigh_f32(const nib_tile *t, int64_t first, const range *each)
{
    weigh_tile(t, first, each, 0, t->wide, t->a->cache.types.keys.type, NIB_TYPE_F32, true, false);
}
static void weigh_f16(const nib_tile *t, int64_t first, const range *each)
{
    weigh_tile(t, first, each, 0, t->wide, t->a->cache.types.keys.type, NIB_TYPE_F16, true, false);
}
static void weigh_bf16(const nib_tile *t, int64_t first, const range *each)
{
    weigh_tile(t, first, each, 0, t->wide, t->a->cache.types.keys.type, NIB_TYPE_BF16, true, false);
}
static void weigh_i8(const nib_tile *t, int64_t first, const range *each)
{
    weigh_tile(t, first, each, 0, t->wide, t->a->cache.types.keys.type, NIB_TYPE_I8, true, false);
}
static void weigh_i4(const nib_tile *t, int64_t first, const range *each)
{
    weigh_tile(t, first, each, 0, t->wide, t->a->cache.types.keys.type, NIB_TYPE_Q4_1, true, false);
}

NIB_INLINE void score_any(const nib_tile *t, int64_t first, int64_t count, nib_type type)
{
    if (type != NIB_TYPE_NONE) {
        score_tile(t, first, count, type);
        return;
    }
    switch (t->a->cache.types.keys.type) {
    case NIB_TYPE_F16: score_f16(t, first, count); break;
    case NIB_TYPE_BF16: score_bf16(t, first, count); break;
    case NIB_TYPE_I8: score_i8(t, first, count); break;
    case NIB_TYPE_Q4_1: score_i4(t, first, count); break;
    default: score_f32(t, first, count); break;
    }
}

NIB_INLINE void weigh_any(const nib_tile *t, int64_t first, const range *each, nib_type keys,
                          nib_type values, const bool windowed)
{
    if (values != NIB_TYPE_NONE) {
        weigh_tile(t, first, each, 0, t->wide, keys, values, windowed, false);
        return;
    }
    switch (t->a->cache.types.values.type) {
    case NIB_TYPE_F16: weigh_f16(t, first, each); break;
    case NIB_TYPE_BF16: weigh_bf16(t, first, each); break;
    case NIB_TYPE_I8: weigh_i8(t, first, each); break;
    case NIB_TYPE_Q4_1: weigh_i4(t, first, each); break;
    default: weigh_f32(t, first, each); break;
    }
}
#endif

/* ---- a tile ---- */

/* Merges one softmax block into a row's running totals; the first block initializes them. */
NIB_INLINE void merge(nib_tile *t, int row, bool is_first, float block_max, float block_weight)
{
    const float old_max = t->max[row];
    const float new_max = is_first || block_max > old_max ? block_max : old_max;
    float factors[NIB_LANES] = {is_first ? 0.0f : old_max - new_max, block_max - new_max};
    nib__lanes_store(factors, nib__lanes_exp(nib__lanes_load(factors)));
    const nib_lanes old_factor = nib__lanes_set(is_first ? 0.0f : factors[0]);
    const nib_lanes new_factor = nib__lanes_set(factors[1]);
    const float *part = t->part + row * t->wide_padded;
    float *total = t->total + row * t->wide_padded;
    for (int64_t d = 0; d < t->wide_padded; d += NIB_LANES) {
        const nib_lanes old = is_first ? nib__lanes_set(0.0f) : nib__lanes_load(total + d);
        nib__lanes_store(total + d, nib__lanes_fma(nib__lanes_load(part + d), new_factor,
                                                   nib__lanes_mul(old, old_factor)));
    }
    const float old_weight = is_first ? 0.0f : t->weight[row] * factors[0];
    t->weight[row] = fmaf(block_weight, factors[1], old_weight);
    t->max[row] = new_max;
}

/* The first position of a softmax block that is scored: the start of the first cache block in which
 * some row sees a position, or the end of the softmax block if no row sees any. */
NIB_INLINE int64_t first_scored(const nib_tile *t, int64_t block)
{
    const int64_t end = block + NIB_SOFTMAX_BLOCK;
    int64_t first = end;
    for (int r = 0; r < t->rows; r++)
        if (t->begins[r] < end && t->ends[r] > block)
            first = nib__min(first, nib__max(block, t->begins[r]));
    return nib__round_down(first, NIB_CACHE_BLOCK);
}

/* The part of positions first..first + count that each row sees. */
NIB_INLINE void find_seen(const nib_tile *t, int64_t first, int64_t count,
                          range each[NIB_ATTN_ROWS_MAX])
{
    for (int r = 0; r < t->rows; r++) {
        const int64_t from = nib__max(0, t->begins[r] - first),
                      to = nib__min(count, t->ends[r] - first);
        each[r] = from < to ? (range){from, to} : (range){count, 0};
    }
}

/* One softmax block, from its first scored position on. */
NIB_INLINE void attend_block(nib_tile *t, int64_t first, int64_t count, nib_type keys,
                             nib_type values, const bool windowed, const bool latent)
{
    const float cap = t->a->cap;
    float max[NIB_ATTN_ROWS_MAX], weight[NIB_ATTN_ROWS_MAX];
    range each[NIB_ATTN_ROWS_MAX];
    find_seen(t, first, count, each);
    score_any(t, first, count, keys);
    for (int r = 0; r < t->rows; r++) {
        const range seen = seen_by(each, r, windowed);
        float *scores = t->scores + r * NIB_SOFTMAX_BLOCK;
        if (cap > 0 && is_nonempty(seen))
            cap_scores(scores, seen, cap);
        if (is_nonempty(seen))
            max[r] = max_score(scores, seen);
    }
    for (int r = 0; r < t->rows; r++) /* a separate loop, so that rows do not wait for each other */
        if (is_nonempty(each[r]))
            weight[r] = exp_scores(t, r, first, seen_by(each, r, windowed), max[r], values);
    memset(t->part, 0, (size_t)(t->rows * t->wide_padded) * sizeof *t->part);
    if (!latent)
        weigh_any(t, first, each, keys, values, windowed);
    for (int64_t d = 0; latent && d < t->wide; d += NIB_ATTN_TURNED) {
        turn_values(t, first, count, d, keys);
        weigh_tile(t, first, each, d, nib__min(d + NIB_ATTN_TURNED, t->wide), keys, values,
                   windowed, true);
    }
    for (int r = 0; r < t->rows; r++)
        if (is_nonempty(each[r]))
            merge(t, r, windowed ? t->begins[r] >= first : first == 0, max[r], weight[r]);
}

NIB_INLINE void attend(nib_tile *t, nib_type keys, nib_type values, const bool windowed,
                       const bool latent)
{
    t->earliest = t->begins[0], t->longest = t->ends[0];
    for (int r = 1; r < t->rows; r++) {
        t->earliest = nib__min(t->earliest, t->begins[r]);
        t->longest = nib__max(t->longest, t->ends[r]);
    }
    for (int64_t block = windowed ? nib__round_down(t->earliest, NIB_SOFTMAX_BLOCK) : 0;
         block < t->longest; block += NIB_SOFTMAX_BLOCK) {
        const int64_t end = nib__min(block + NIB_SOFTMAX_BLOCK, t->longest);
        const int64_t first = windowed ? first_scored(t, block) : block;
        if (first < end)
            attend_block(t, first, end - first, keys, values, windowed, latent);
    }
    for (int r = 0; t->a->sinks != NULL && r < t->rows; r++) {
        memset(t->part + r * t->wide_padded, 0, (size_t)t->wide_padded * sizeof *t->part);
        merge(t, r, false, t->a->sinks[t->heads[r]], 1.0f);
    }
    for (int r = 0; r < t->rows; r++) {
        const nib_lanes weight = nib__lanes_set(t->weight[r]);
        float *total = t->total + r * t->wide_padded;
        for (int64_t d = 0; d < t->wide_padded; d += NIB_LANES)
            nib__lanes_store(total + d, nib__lanes_div(nib__lanes_load(total + d), weight));
        if (t->back > 0)
            nib__hadamard(total, total, t->wide, t->back);
        memcpy(t->a->out + t->slots[r] * t->a->ldo + t->heads[r] * t->wide, total,
               (size_t)t->wide * sizeof *total);
    }
    for (int r = 0; t->a->lse != NULL && r < t->rows; r++)
        t->a->lse[t->slots[r] * t->a->heads + t->heads[r]] =
            (float)((double)t->max[r] + nib__log((double)t->weight[r]));
}

#if NIB_ATTN_REGISTERS == 0
static void attend_any(nib_tile *t)
{
    const nib_kv_types types = t->a->cache.types;
    attend(t, types.keys.type, t->turned != NULL ? types.keys.type : types.values.type,
           t->a->window > 0, t->turned != NULL);
}
#else
static void attend_f32(nib_tile *t) { attend(t, NIB_TYPE_F32, NIB_TYPE_F32, false, false); }
static void attend_f16(nib_tile *t) { attend(t, NIB_TYPE_F16, NIB_TYPE_F16, false, false); }
static void attend_bf16(nib_tile *t) { attend(t, NIB_TYPE_BF16, NIB_TYPE_BF16, false, false); }
static void attend_i8(nib_tile *t) { attend(t, NIB_TYPE_I8, NIB_TYPE_I8, false, false); }
static void attend_i4(nib_tile *t) { attend(t, NIB_TYPE_Q4_1, NIB_TYPE_Q4_1, false, false); }
static void attend_window_f32(nib_tile *t) { attend(t, NIB_TYPE_F32, NIB_TYPE_F32, true, false); }
static void attend_window_f16(nib_tile *t) { attend(t, NIB_TYPE_F16, NIB_TYPE_F16, true, false); }
static void attend_window_bf16(nib_tile *t)
{
    attend(t, NIB_TYPE_BF16, NIB_TYPE_BF16, true, false);
}
static void attend_window_i8(nib_tile *t) { attend(t, NIB_TYPE_I8, NIB_TYPE_I8, true, false); }
static void attend_window_i4(nib_tile *t) { attend(t, NIB_TYPE_Q4_1, NIB_TYPE_Q4_1, true, false); }
static void attend_latent_f32(nib_tile *t) { attend(t, NIB_TYPE_F32, NIB_TYPE_F32, true, true); }
static void attend_latent_f16(nib_tile *t) { attend(t, NIB_TYPE_F16, NIB_TYPE_F16, true, true); }
static void attend_latent_bf16(nib_tile *t) { attend(t, NIB_TYPE_BF16, NIB_TYPE_BF16, true, true); }
static void attend_latent_i8(nib_tile *t) { attend(t, NIB_TYPE_I8, NIB_TYPE_I8, true, true); }
static void attend_latent_i4(nib_tile *t) { attend(t, NIB_TYPE_Q4_1, NIB_TYPE_Q4_1, true, true); }
static void attend_mixed(nib_tile *t) { attend(t, NIB_TYPE_NONE, NIB_TYPE_NONE, true, false); }
#define FORM(name) (latent ? attend_latent_##name : windowed ? attend_window_##name : attend_##name)
#endif

void NIB_ATTN(const nib_attn *a, int64_t item0, int64_t item1, void *scratch)
{
#if NIB_ATTN_REGISTERS == 0
    nib__attn_tiles(a, item0, item1, scratch, attend_any);
#else
    const bool windowed = a->window > 0, latent = a->cache.values == NULL;
    void (*run)(nib_tile * t) = NULL;
    switch (a->cache.types.keys.type) {
    case NIB_TYPE_F16: run = FORM(f16); break;
    case NIB_TYPE_BF16: run = FORM(bf16); break;
    case NIB_TYPE_I8: run = FORM(i8); break;
    case NIB_TYPE_Q4_1: run = FORM(i4); break;
    default: run = FORM(f32); break;
    }
    if (!latent && a->cache.types.keys.type != a->cache.types.values.type)
        run = attend_mixed;
    nib__attn_tiles(a, item0, item1, scratch, run);
#endif
}
#undef FORM
