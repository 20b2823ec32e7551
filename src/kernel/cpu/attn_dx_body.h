/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of causal attention over documents, written once on lanes and compiled per
 * instruction set. The forward pass does not keep the probabilities; they are recomputed from its
 * log-sum-exp (Dao 2022, FlashAttention):
 *
 *   p = e^(scale q.k - lse)          delta = dout.out             dv = p^T dout
 *   ds = p * scale * (dout.v - delta)       dq = ds k             dk = ds^T q
 *
 * With a cap the score is y = cap * tanh(scale q.k / cap): p = e^(y - lse), and ds gets the factor
 * 1 - tanh^2 last.
 *
 * Order of operations, the same everywhere: q.k and dout.v are one fused multiply-add per
 * dimension, ascending from zero; delta is a sum by the 16 lanes and the tree. dq, dk and dv are
 * sums over positions in blocks of NIB_CACHE_BLOCK positions of the document: within a block one
 * fused multiply-add per position, ascending from zero. Block sums are added ascending; for dk and
 * dv, those of a group's first head before those of the next. Blocks on the diagonal are cut into
 * squares of 16 positions: squares above the diagonal are left out of the sums; in squares on it,
 * the pairs above the diagonal enter as zeros. A window works the same way: squares in which no
 * query sees a key are left out; in the others, pairs outside the window enter as zeros.
 *
 * If values are the first channels of the keys (latent attention), dv is added to those of dk: each
 * block of queries adds ds^T q, then p^T dout.
 *
 * An item is a document and a kv head, with all heads that share it. So items share nothing, and
 * the result does not depend on threads. A batch of fewer (document, kv head) pairs than threads
 * leaves threads idle.
 *
 * The queries, query gradients and dout of a head are gathered first: in the arguments, rows are so
 * far apart that they would map to few cache sets. Then each key block meets all queries that see
 * it: its keys and values are widened and transposed once, and its gradients stay in the L1 cache.
 * All five products are `multiply`: a register tile over 16-lane vectors. NIB_ATTN_DX_WIDE: 1 with
 * 32 registers of 16 lanes, 0 with 16 of 8.
 */
#include "attn_dx_rows.h"
#include "lanes.h"
#if NIB_ATTN_DX_WIDE
#include "transpose_x512.h"
#endif

enum { SIDE = NIB_CACHE_BLOCK };

/* ---- products ---- */

/* c[r][0..16 * vectors) = or += the sum over t < count of a[r * row + t * step] * b[t][..], for
 * `rows` rows. */
NIB_INLINE void multiply_tile(float *c, int64_t ldc, const float *a, int64_t row, int64_t step,
                              const float *b, int64_t ldb, int64_t count, const bool add,
                              const int rows, const int vectors)
{
    nib_lanes sum[16][4];
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            sum[r][v] = nib__lanes_set(0.0f);
    for (int64_t t = 0; t < count; t++, a += step, b += ldb) {
        nib_lanes x[4];
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++)
            x[v] = nib__lanes_load(b + v * NIB_LANES);
#pragma GCC unroll 16
        for (int r = 0; r < rows; r++) {
            const nib_lanes w = nib__lanes_set(a[r * row]);
#pragma GCC unroll 4
            for (int v = 0; v < vectors; v++)
                sum[r][v] = nib__lanes_fma(w, x[v], sum[r][v]);
        }
    }
#pragma GCC unroll 16
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int v = 0; v < vectors; v++) {
            float *at = c + r * ldc + v * NIB_LANES;
            nib__lanes_store(at, add ? nib__lanes_add(nib__lanes_load(at), sum[r][v]) : sum[r][v]);
        }
}

/* 16 rows of one to four vectors. */
NIB_INLINE void multiply_rows(float *c, int64_t ldc, const float *a, int64_t row, int64_t step,
                              const float *b, int64_t ldb, int64_t count, const bool add,
                              const int rows, const int vectors)
{
#pragma GCC unroll 1
    for (int r = 0; r < NIB_LANES; r += rows)
        multiply_tile(c + r * ldc, ldc, a + r * row, row, step, b, ldb, count, add, rows, vectors);
}

/* 16 rows of `width` (whole lanes) columns. Uses the tile with the fewest loads per product. */
NIB_INLINE void multiply(float *c, int64_t ldc, const float *a, int64_t row, int64_t step,
                         const float *b, int64_t ldb, int64_t count, int64_t width, const bool add)
{
    int64_t i = 0;
    for (; NIB_ATTN_DX_WIDE && i + 4 * NIB_LANES <= width; i += 4 * NIB_LANES)
        multiply_rows(c + i, ldc, a, row, step, b + i, ldb, count, add, 4, 4);
    for (; NIB_ATTN_DX_WIDE && i + 2 * NIB_LANES <= width; i += 2 * NIB_LANES)
        multiply_rows(c + i, ldc, a, row, step, b + i, ldb, count, add, 8, 2);
    for (; i < width; i += NIB_LANES)
        multiply_rows(c + i, ldc, a, row, step, b + i, ldb, count, add, NIB_ATTN_DX_WIDE ? 16 : 4,
                      1);
}

/* ---- blocks ---- */

/* A kv head of a document. */
typedef struct dx_item {
    const nib_attn_dx *a;
    nib_attn_dx_scratch s;
    int64_t first, length; /* rows of the document */
    const int32_t *table;  /* of the document's cache blocks */
    int64_t kv_head, dim, padded;
    int64_t wide; /* dimensions of a value */
    bool latent;  /* values are the first of the keys' dimensions: s.vt is s.kt, s.dv is s.dk */
} dx_item;

/* to[i][0..padded) = from[i][0..dim), then zeros. */
NIB_INLINE void copy_rows(float *to, int64_t padded, const float *from, int64_t ld, int64_t dim,
                          int64_t count)
{
    for (int64_t i = 0; i < count; i++, to += padded, from += ld) {
        int64_t d = 0;
        for (; d + NIB_LANES <= dim; d += NIB_LANES)
            nib__lanes_store(to + d, nib__lanes_load(from + d));
        if (d < dim)
            nib__lanes_store(to + d, nib__lanes_load_part(from + d, dim - d));
    }
}

NIB_INLINE void write_rows(float *to, int64_t ld, const float *from, int64_t padded, int64_t dim,
                           int64_t count)
{
    for (int64_t i = 0; i < count; i++, to += ld, from += padded) {
        int64_t d = 0;
        for (; d + NIB_LANES <= dim; d += NIB_LANES)
            nib__lanes_store(to + d, nib__lanes_load(from + d));
        if (d < dim)
            nib__lanes_store_part(to + d, nib__lanes_load(from + d), dim - d);
    }
}

#if NIB_ATTN_DX_WIDE
NIB_INLINE void transpose_square(float *out, int64_t ldo, const float *in, int64_t ldi)
{
    __m512i words[NIB_LANES];
#pragma GCC unroll 16
    for (int r = 0; r < NIB_LANES; r++)
        words[r] = _mm512_loadu_si512(in + r * ldi);
    nib__transpose_x512(words);
#pragma GCC unroll 16
    for (int r = 0; r < NIB_LANES; r++)
        _mm512_storeu_si512(out + r * ldo, words[r]);
}
#endif

/* out [columns][ldo] = in [rows][ldi] transposed. */
NIB_INLINE void transpose(float *out, int64_t ldo, const float *in, int64_t ldi, int64_t rows,
                          int64_t columns)
{
#if NIB_ATTN_DX_WIDE
    if (rows % NIB_LANES == 0 && columns % NIB_LANES == 0) {
        for (int64_t i = 0; i < rows; i += NIB_LANES)
            for (int64_t j = 0; j < columns; j += NIB_LANES)
                transpose_square(out + j * ldo + i, ldo, in + i * ldi + j, ldi);
        return;
    }
#endif
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < columns; j++)
            out[j * ldo + i] = in[i * ldi + j];
}

NIB_INLINE void widen(float *to, const void *block, nib_type type, int64_t count)
{
    const int64_t bytes = type == NIB_TYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < count; i += NIB_LANES)
        nib__lanes_store(to + i, nib__lanes_load_as((const char *)block + i * bytes, type));
}

/* Loads a cache block's keys and values, both transposed and not. Positions past the document's end
 * hold arbitrary values: no sum reaches them. */
NIB_INLINE void load_keys(const dx_item *t, int64_t key0)
{
    const nib_cache *c = &t->a->cache;
    const nib_attn_dx_scratch *s = &t->s;
    const nib_type type = c->types.keys.type; /* of values, too */
    const int64_t count = SIDE * t->dim, bytes = count * (type == NIB_TYPE_F32 ? 4 : 2);
    const int64_t at = t->table[key0 / SIDE] * c->block_bytes + t->kv_head * bytes;
    widen(s->kt, (const char *)c->keys + at, type, count);
    transpose(s->k, t->padded, s->kt, SIDE, t->dim, SIDE);
    if (t->latent)
        return;
    widen(s->v, (const char *)c->values + at, type, count);
    transpose(s->vt, SIDE, s->v, t->dim, SIDE, t->dim);
}

/* ---- a query block against a key block ---- */

/* Columns (keys) of p and ds, or rows (queries). */
typedef struct strip {
    int64_t from, to;
} strip;

/* p and ds of 16 queries, computed in place from q.k and dout.v, for the columns of `seen` (whole
 * lanes). On the diagonal, the last 16 columns form a square whose upper triangle is zero. Columns
 * before the windows are zero, too. query0, key0: positions of the first row and column. */
NIB_INLINE void compute_p_ds(float *p, float *ds, const float *lse, const float *delta,
                             const nib_attn_dx *a, strip seen, int64_t query0, int64_t key0,
                             bool diagonal)
{
    const nib_lanes factor = nib__lanes_set(a->scale), cap = nib__lanes_set(a->cap);
    const nib_lanes one = nib__lanes_set(1.0f), zero = nib__lanes_set(0.0f);
    const bool capped = a->cap > 0;
    for (int64_t r = 0; r < NIB_LANES; r++, p += SIDE, ds += SIDE) {
        const nib_lanes minus_lse = nib__lanes_set(-lse[r]),
                        minus_delta = nib__lanes_set(-delta[r]);
        for (int64_t j = seen.from; !capped && j < seen.to; j += NIB_LANES) {
            const nib_lanes s = nib__lanes_load(p + j), dp = nib__lanes_load(ds + j);
            const nib_lanes e = nib__lanes_exp(nib__lanes_fma(s, factor, minus_lse));
            nib__lanes_store(p + j, e);
            nib__lanes_store(ds + j, nib__lanes_mul(e, nib__lanes_fma(dp, factor, minus_delta)));
        }
        for (int64_t j = seen.from; capped && j < seen.to; j += NIB_LANES) {
            const nib_lanes s = nib__lanes_load(p + j), dp = nib__lanes_load(ds + j);
            const nib_lanes t = nib__lanes_tanh(nib__lanes_div(nib__lanes_mul(s, factor), cap));
            const nib_lanes e = nib__lanes_exp(nib__lanes_fma(cap, t, minus_lse));
            const nib_lanes slope = nib__lanes_fma(nib__lanes_sub(zero, t), t, one);
            const nib_lanes d = nib__lanes_mul(e, nib__lanes_fma(dp, factor, minus_delta));
            nib__lanes_store(p + j, e);
            nib__lanes_store(ds + j, nib__lanes_mul(d, slope));
        }
        for (int64_t j = seen.to - NIB_LANES + r + 1; diagonal && j < seen.to; j++)
            p[j] = ds[j] = 0.0f;
        const int64_t begin = nib__attn_first(a->window, a->chunked, query0 + r) - key0;
        for (int64_t j = seen.from; j < nib__min(seen.to, begin); j++)
            p[j] = ds[j] = 0.0f;
    }
}

/* Adds to dq of the queries from query0 on, and to dk and dv of the key block at key0. On the
 * diagonal, queries and keys have the same positions. */
NIB_INLINE void multiply_block(const dx_item *t, int64_t key0, int64_t query0)
{
    const nib_attn_dx_scratch *s = &t->s;
    const nib_attn_dx *a = t->a;
    const bool diagonal = key0 == query0;
    const int64_t padded = t->padded, count = nib__min(SIDE, t->length - query0);
    const int64_t rows = nib__round_up(count, NIB_LANES);
    const float *q = s->q + query0 * padded, *dout = s->dout + query0 * padded;
    for (int64_t i = 0; i < rows; i += NIB_LANES) {
        float *p = s->p + i * SIDE, *ds = s->ds + i * SIDE;
        const int64_t begin = nib__attn_first(a->window, a->chunked, query0 + i) - key0;
        const int64_t from = nib__round_down(nib__max(0, begin), NIB_LANES);
        const strip seen = {from, diagonal ? i + NIB_LANES : SIDE};
        if (seen.from >= seen.to)
            break;
        multiply(p + from, SIDE, q + i * padded, padded, 1, s->kt + from, SIDE, t->dim,
                 seen.to - from, false);
        multiply(ds + from, SIDE, dout + i * padded, padded, 1, s->vt + from, SIDE, t->wide,
                 seen.to - from, false);
        compute_p_ds(p, ds, s->lse + query0 + i, s->delta + query0 + i, a, seen, query0 + i, key0,
                     diagonal);
        multiply(s->dq + (query0 + i) * padded, padded, ds + from, SIDE, 1, s->k + from * padded,
                 padded, (diagonal ? nib__min(seen.to, count) : SIDE) - from, padded, true);
    }
    const int64_t wide_padded = nib__round_up(t->wide, NIB_LANES);
    for (int64_t j = 0; j < (diagonal ? rows : SIDE); j += NIB_LANES) {
        /* the queries that see a key of the strip, in whole strips */
        const int64_t end =
            nib__attn_end(a->window, a->chunked, key0 + j + NIB_LANES - 1, query0 + count) - query0;
        const strip seen = {diagonal ? j : 0,
                            nib__min(count, nib__round_up(nib__max(0, end), NIB_LANES))};
        const int64_t i = seen.from;
        if (seen.from >= seen.to)
            continue;
        multiply(s->dk + j * padded, padded, s->ds + i * SIDE + j, 1, SIDE, q + i * padded, padded,
                 seen.to - i, padded, true);
        multiply(s->dv + j * padded, padded, s->p + i * SIDE + j, 1, SIDE, dout + i * padded,
                 padded, seen.to - i, wide_padded, true);
    }
}

/* ---- an item ---- */

/* Gathers a head. Rows past the document's end, up to whole lanes, are computed and ignored. */
NIB_INLINE void gather_head(const dx_item *t, int64_t head)
{
    const nib_attn_dx *a = t->a;
    const nib_attn_dx_scratch *s = &t->s;
    const int64_t dim = t->dim, wide = t->wide, padded = t->padded, length = t->length;
    const int64_t past = (nib__round_up(length, NIB_LANES) - length) * padded;
    copy_rows(s->q, padded, a->q + t->first * a->ldq + head * dim, a->ldq, dim, length);
    copy_rows(s->dout, padded, a->dout + t->first * a->ldo + head * wide, a->ldo, wide, length);
    memset(s->q + length * padded, 0, (size_t)past * sizeof *s->q);
    memset(s->dout + length * padded, 0, (size_t)past * sizeof *s->dout);
    memset(s->dq, 0, (size_t)(length * padded + past) * sizeof *s->dq);
    memset(s->lse + length, 0, (size_t)(past / padded) * sizeof *s->lse);
    memset(s->delta + length, 0, (size_t)(past / padded) * sizeof *s->delta);
    for (int64_t i = 0; i < length; i++) {
        const float *out = a->out + (t->first + i) * a->ldo + head * wide;
        const float *dout = s->dout + i * padded;
        nib_lanes sum = nib__lanes_set(0.0f);
        int64_t d = 0;
        for (; d + NIB_LANES <= wide; d += NIB_LANES)
            sum = nib__lanes_fma(nib__lanes_load(out + d), nib__lanes_load(dout + d), sum);
        if (d < wide)
            sum = nib__lanes_fma(nib__lanes_load_part(out + d, wide - d), nib__lanes_load(dout + d),
                                 sum);
        s->delta[i] = a->scale * nib__lanes_sum(sum);
        s->lse[i] = a->lse[(t->first + i) * a->heads + head];
    }
}

/* The sums of a key block before a head's: zeros, or those of the heads before. */
NIB_INLINE void begin_sums(const dx_item *t, float *sums, const float *so_far, int64_t keys,
                           bool is_first)
{
    if (is_first)
        memset(sums, 0, (size_t)(SIDE * t->padded) * sizeof *sums);
    else
        copy_rows(sums, t->padded, so_far, t->a->ldkv, t->dim, keys);
}

NIB_INLINE void run_head(const dx_item *t, int64_t head, bool is_first)
{
    const nib_attn_dx *a = t->a;
    const nib_attn_dx_scratch *s = &t->s;
    gather_head(t, head);
    for (int64_t key0 = 0; key0 < t->length; key0 += SIDE) {
        const int64_t at = (t->first + key0) * a->ldkv + t->kv_head * t->dim;
        const int64_t keys = nib__min(SIDE, t->length - key0);
        load_keys(t, key0);
        begin_sums(t, s->dk, a->dk + at, keys, is_first);
        if (!t->latent)
            begin_sums(t, s->dv, a->dv + at, keys, is_first);
        /* end of the queries that see the block */
        const int64_t last = nib__attn_end(a->window, a->chunked, key0 + SIDE - 1, t->length);
        for (int64_t query0 = key0; query0 < last; query0 += SIDE)
            multiply_block(t, key0, query0);
        write_rows(a->dk + at, a->ldkv, s->dk, t->padded, t->dim, keys);
        if (!t->latent)
            write_rows(a->dv + at, a->ldkv, s->dv, t->padded, t->dim, keys);
    }
    write_rows(a->dq + t->first * a->ldq + head * t->dim, a->ldq, s->dq, t->padded, t->dim,
               t->length);
}

void NIB_ATTN_DX(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch)
{
    const int64_t kv_heads = a->cache.kv_heads, dim = a->cache.head_dim;
    dx_item t = {.a = a,
                 .dim = dim,
                 .padded = nib__round_up(dim, NIB_LANES),
                 .wide = nib__cache_value_dim(&a->cache),
                 .latent = a->cache.values == NULL};
    const int64_t share = a->heads / kv_heads;
    nib__attn_dx_split_scratch(&t.s, a, scratch);
    if (t.latent)
        t.s.vt = t.s.kt, t.s.dv = t.s.dk;
    for (int64_t item = item0; item < item1; item++) {
        const int64_t document = item / kv_heads;
        t.kv_head = item % kv_heads;
        t.first = a->start[document];
        t.length = a->start[document + 1] - t.first;
        t.table = a->cache.tables + document * a->cache.table_ld;
        for (int64_t h = 0; h < share; h++)
            run_head(&t, t.kv_head * share + h, h == 0);
    }
}
