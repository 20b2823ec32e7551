/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of causal attention over documents, written once on lanes and compiled per
 * instruction set. The probabilities are not kept by the forward pass but made again from its
 * log-sum-exp (Dao 2022, FlashAttention):
 *
 *   p = e^(scale q.k - lse)          delta = dout.out             dv = p^T dout
 *   ds = p * scale * (dout.v - delta)       dq = ds k             dk = ds^T q
 *
 * Order, the same everywhere: q.k and dout.v are one fused multiply-add per dimension, ascending
 * from zero; delta is a sum by the 16 lanes and the tree. dq, dk and dv are sums over positions in
 * blocks of NIB_CACHE_BLOCK positions of the document: in a block one fused multiply-add per
 * position, ascending from zero; block sums are added ascending, and of dk and dv those of the
 * first head of a group before the next head's. Blocks on the diagonal go by squares of 16
 * positions: squares above the diagonal are no part of a sum, in those on it the pairs above the
 * diagonal take part as zeros.
 *
 * An item is a document and a kv head, with all heads that share it; so nothing is shared by items,
 * and the result does not depend on threads. A batch of fewer (document, kv head) pairs than
 * threads leaves threads idle.
 *
 * For each key block, all queries that see it pass by: its keys and values are widened and
 * transposed once, and its gradients stay in the first caches. All five products are
 * `multiply`: a register tile over 16-lane vectors. NIB_ATTN_DX_WIDE: there are 32 registers of 16
 * lanes, else 16 of 8.
 */
#include "attn_dx_rows.h"
#include "lanes.h"

enum { SIDE = NIB_CACHE_BLOCK };

/* ---- products ---- */

/* c[r][0..16 * vectors) = or += the sum over t < count of a[r * row + t * step] * b[t][..], `rows`
 * of them. */
NIB_INLINE void tile(float *c, int64_t ldc, const float *a, int64_t row, int64_t step,
                     const float *b, int64_t ldb, int64_t count, const bool add, const int rows,
                     const int vectors)
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
NIB_INLINE void tiles(float *c, int64_t ldc, const float *a, int64_t row, int64_t step,
                      const float *b, int64_t ldb, int64_t count, const bool add, const int rows,
                      const int vectors)
{
#pragma GCC unroll 1
    for (int r = 0; r < NIB_LANES; r += rows)
        tile(c + r * ldc, ldc, a + r * row, row, step, b, ldb, count, add, rows, vectors);
}

/* 16 rows of `width` (whole lanes) columns. The tile with the fewest loads per product is taken. */
NIB_INLINE void multiply(float *c, int64_t ldc, const float *a, int64_t row, int64_t step,
                         const float *b, int64_t ldb, int64_t count, int64_t width, const bool add)
{
    int64_t i = 0;
    for (; NIB_ATTN_DX_WIDE && i + 4 * NIB_LANES <= width; i += 4 * NIB_LANES)
        tiles(c + i, ldc, a, row, step, b + i, ldb, count, add, 4, 4);
    for (; NIB_ATTN_DX_WIDE && i + 2 * NIB_LANES <= width; i += 2 * NIB_LANES)
        tiles(c + i, ldc, a, row, step, b + i, ldb, count, add, 8, 2);
    for (; i < width; i += NIB_LANES)
        tiles(c + i, ldc, a, row, step, b + i, ldb, count, add, NIB_ATTN_DX_WIDE ? 16 : 4, 1);
}

/* ---- blocks ---- */

/* A kv head of a document. */
typedef struct dx_item {
    const nib_attn_dx *a;
    nib_attn_dx_scratch s;
    int64_t first, length; /* rows of the document */
    const int32_t *table;  /* of the document's cache blocks */
    int64_t kv_head, dim, padded;
} dx_item;

/* to[i][0..padded) = from[i][0..dim), zeros after. */
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

/* out [columns][ldo] = in [rows][ldi] transposed. */
NIB_INLINE void transpose(float *out, int64_t ldo, const float *in, int64_t ldi, int64_t rows,
                          int64_t columns)
{
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

/* The cache block's keys and values, both ways. Positions past the document's end are what they
 * are: no sum reaches them. */
NIB_INLINE void take_keys(const dx_item *t, int64_t key0)
{
    const nib_cache *c = &t->a->cache;
    const nib_attn_dx_scratch *s = &t->s;
    const int64_t block = t->table[key0 / SIDE] * c->kv_heads + t->kv_head;
    const int64_t count = SIDE * t->dim, bytes = count * (c->type == NIB_TYPE_F32 ? 4 : 2);
    const char *keys = (const char *)c->keys + block * bytes;
    const char *values = (const char *)c->values + block * bytes;
    widen(s->kt, keys, c->type, count);
    widen(s->v, values, c->type, count);
    transpose(s->k, t->padded, s->kt, SIDE, t->dim, SIDE);
    transpose(s->vt, SIDE, s->v, t->dim, SIDE, t->dim);
}

/* ---- a query block against a key block ---- */

/* p and ds of 16 queries, in place of q.k and dout.v; their first columns. On the diagonal the last
 * 16 columns are a square of which the upper triangle is zero. */
NIB_INLINE void weigh(float *p, float *ds, const float *lse, const float *delta, float scale,
                      int64_t columns, bool diagonal)
{
    const nib_lanes factor = nib__lanes_set(scale);
    for (int64_t r = 0; r < NIB_LANES; r++, p += SIDE, ds += SIDE) {
        const nib_lanes less = nib__lanes_set(-lse[r]), mean = nib__lanes_set(-delta[r]);
        for (int64_t j = 0; j < columns; j += NIB_LANES) {
            const nib_lanes s = nib__lanes_load(p + j), dp = nib__lanes_load(ds + j);
            const nib_lanes e = nib__lanes_exp(nib__lanes_fma(s, factor, less));
            nib__lanes_store(p + j, e);
            nib__lanes_store(ds + j, nib__lanes_mul(e, nib__lanes_fma(dp, factor, mean)));
        }
        for (int64_t j = columns - NIB_LANES + r + 1; diagonal && j < columns; j++)
            p[j] = ds[j] = 0.0f;
    }
}

/* Adds to dq of `count` queries and to dk and dv of the key block; on the diagonal both are of the
 * same positions. */
NIB_INLINE void multiply_block(const dx_item *t, int64_t count, bool diagonal)
{
    const nib_attn_dx_scratch *s = &t->s;
    const int64_t padded = t->padded, strips = nib__ceil_div(count, NIB_LANES);
    for (int64_t i = 0; i < strips * NIB_LANES; i += NIB_LANES) {
        float *p = s->p + i * SIDE, *ds = s->ds + i * SIDE;
        const int64_t columns = diagonal ? i + NIB_LANES : SIDE;
        multiply(p, SIDE, s->q + i * padded, padded, 1, s->kt, SIDE, t->dim, columns, false);
        multiply(ds, SIDE, s->dout + i * padded, padded, 1, s->vt, SIDE, t->dim, columns, false);
        weigh(p, ds, s->lse + i, s->delta_block + i, t->a->scale, columns, diagonal);
        multiply(s->dq + i * padded, padded, ds, SIDE, 1, s->k, padded,
                 diagonal ? nib__min(columns, count) : SIDE, padded, true);
    }
    for (int64_t j = 0; j < (diagonal ? strips * NIB_LANES : SIDE); j += NIB_LANES) {
        const int64_t i = diagonal ? j : 0; /* the first query that sees a key of the strip */
        multiply(s->dv + j * padded, padded, s->p + i * SIDE + j, 1, SIDE, s->dout + i * padded,
                 padded, count - i, padded, true);
        multiply(s->dk + j * padded, padded, s->ds + i * SIDE + j, 1, SIDE, s->q + i * padded,
                 padded, count - i, padded, true);
    }
}

/* What one head's block of queries adds for the key block. */
NIB_INLINE void pass(const dx_item *t, int64_t share_head, int64_t query0, int64_t key0)
{
    const nib_attn_dx *a = t->a;
    const nib_attn_dx_scratch *s = &t->s;
    const int64_t count = nib__min(SIDE, t->length - query0), row = t->first + query0;
    const int64_t head = t->kv_head * (a->heads / a->cache.kv_heads) + share_head;
    float *dq = a->dq + row * a->ldq + head * t->dim;
    copy_rows(s->q, t->padded, a->q + row * a->ldq + head * t->dim, a->ldq, t->dim, count);
    copy_rows(s->dout, t->padded, a->dout + row * a->ldo + head * t->dim, a->ldo, t->dim, count);
    if (key0 == 0)
        memset(s->dq, 0, (size_t)(SIDE * t->padded) * sizeof *s->dq);
    else
        copy_rows(s->dq, t->padded, dq, a->ldq, t->dim, count);
    memcpy(s->delta_block, s->delta + share_head * a->m + query0, (size_t)count * sizeof *s->delta);
    for (int64_t i = 0; i < count; i++)
        s->lse[i] = a->lse[(row + i) * a->heads + head];
    if (query0 == key0)
        multiply_block(t, count, true);
    else
        multiply_block(t, count, false);
    write_rows(dq, a->ldq, s->dq, t->padded, t->dim, count);
}

/* ---- an item ---- */

/* delta of all queries of the item, by head and position. */
NIB_INLINE void make_delta(const dx_item *t, int64_t share)
{
    const nib_attn_dx *a = t->a;
    for (int64_t h = 0; h < share; h++)
        for (int64_t i = 0; i < t->length; i++) {
            const int64_t at = (t->first + i) * a->ldo + (t->kv_head * share + h) * t->dim;
            const float *out = a->out + at, *dout = a->dout + at;
            nib_lanes sum = nib__lanes_set(0.0f);
            int64_t d = 0;
            for (; d + NIB_LANES <= t->dim; d += NIB_LANES)
                sum = nib__lanes_fma(nib__lanes_load(out + d), nib__lanes_load(dout + d), sum);
            if (d < t->dim)
                sum = nib__lanes_fma(nib__lanes_load_part(out + d, t->dim - d),
                                     nib__lanes_load_part(dout + d, t->dim - d), sum);
            t->s.delta[h * a->m + i] = a->scale * nib__lanes_sum(sum);
        }
}

NIB_INLINE void run_item(const dx_item *t)
{
    const nib_attn_dx *a = t->a;
    const nib_attn_dx_scratch *s = &t->s;
    const int64_t share = a->heads / a->cache.kv_heads;
    const size_t bytes = (size_t)(SIDE * t->padded) * sizeof(float);
    make_delta(t, share);
    for (int64_t key0 = 0; key0 < t->length; key0 += SIDE) {
        const int64_t at = (t->first + key0) * a->ldkv + t->kv_head * t->dim;
        const int64_t keys = nib__min(SIDE, t->length - key0);
        take_keys(t, key0);
        memset(s->dk, 0, bytes);
        memset(s->dv, 0, bytes);
        for (int64_t h = 0; h < share; h++)
            for (int64_t query0 = key0; query0 < t->length; query0 += SIDE)
                pass(t, h, query0, key0);
        write_rows(a->dk + at, a->ldkv, s->dk, t->padded, t->dim, keys);
        write_rows(a->dv + at, a->ldkv, s->dv, t->padded, t->dim, keys);
    }
}

void NIB_ATTN_DX(const nib_attn_dx *a, int64_t item0, int64_t item1, void *scratch)
{
    const int64_t kv_heads = a->cache.kv_heads, dim = a->cache.head_dim;
    dx_item t = {.a = a, .dim = dim, .padded = nib__round_up(dim, NIB_LANES)};
    nib__attn_dx_part(&t.s, scratch, t.padded);
    for (int64_t item = item0; item < item1; item++) {
        const int64_t document = item / kv_heads;
        t.kv_head = item % kv_heads;
        t.first = a->start[document];
        t.length = a->start[document + 1] - t.first;
        t.table = a->cache.tables + document * a->cache.table_ld;
        run_item(&t);
    }
}
