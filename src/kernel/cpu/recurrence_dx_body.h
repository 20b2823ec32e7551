/* SPDX-License-Identifier: Apache-2.0
 *
 * The gradients of both recurrences over matrices, written once on lanes and compiled per
 * instruction set. train_ops.h has the formulas and the order of sums. Each including file names
 * its functions through NIB_RECURRENCE_DX(name).
 *
 * A block of columns of a head goes through its document twice. The first time keeps the state
 * before each chunk of tokens. Then, from the last chunk to the first, the states of a chunk are
 * computed again and kept, and its tokens go backwards. An item is a document and a head of keys,
 * with all heads of values that it serves, so items share nothing.
 */
#include "lanes.h"
#include "recurrence_dx_rows.h"

enum {
    COLUMNS = NIB_MATRIX_COLUMNS,
    VECTORS = COLUMNS / NIB_LANES,
    CHUNK = NIB_RECURRENCE_DX_CHUNK,
    KEYS = NIB_MATRIX_KEYS_MAX
};

/* A block of columns of a head of values, in a document. */
typedef struct dx_block {
    const nib_recurrence_dx *a;
    nib_recurrence_dx_scratch s;
    int64_t first, length; /* rows of the document */
    int64_t key_head, head, column, count;
    int64_t q, k, v; /* the first columns of a row of x */
    bool is_first;   /* of the blocks that share the key */
} dx_block;

/* What a token brings for the block. */
typedef struct dx_token {
    const float *q, *k, *x;
    float beta, decay; /* SSM: dt in place of beta */
} dx_token;

/* Columns past the head's last one are zeros. */
NIB_INLINE void load_columns(nib_lanes out[VECTORS], const float *x, int64_t count)
{
    for (int j = 0; j < VECTORS; j++)
        out[j] = j * NIB_LANES < count ? nib__lanes_load_at(x, j * NIB_LANES, count)
                                       : nib__lanes_set(0.0f);
}

NIB_INLINE void store_columns(float *to, int64_t count, const nib_lanes values[VECTORS])
{
    for (int j = 0; j < VECTORS; j++)
        if (j * NIB_LANES < count)
            nib__lanes_store_at(to, j * NIB_LANES, count, values[j]);
}

/* The dot product of two rows of columns. */
NIB_INLINE float dot_columns(const nib_lanes a[VECTORS], const nib_lanes b[VECTORS])
{
    nib_lanes sum = nib__lanes_mul(a[0], b[0]);
    for (int j = 1; j < VECTORS; j++)
        sum = nib__lanes_fma(a[j], b[j], sum);
    return nib__lanes_sum(sum);
}

/* 1 / sqrt(|x|^2 + 1e-6), as delta_normalize has it */
NIB_INLINE float inverse_length(const float *x, int64_t width)
{
    nib_lanes squares = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < width; i += NIB_LANES) {
        const nib_lanes v = nib__lanes_load_at(x, i, width);
        squares = nib__lanes_fma(v, v, squares);
    }
    return 1.0f / sqrtf(nib__lanes_sum(squares) + 1e-6f);
}

NIB_INLINE void scale_row(float *out, const float *x, int64_t width, float by)
{
    const nib_lanes factor = nib__lanes_set(by);
    for (int64_t i = 0; i < width; i += NIB_LANES)
        nib__lanes_store_at(out, i, width, nib__lanes_mul(nib__lanes_load_at(x, i, width), factor));
}

/* Token t of the document; `at`: its place in a chunk. */
NIB_INLINE dx_token token_of(const dx_block *b, int64_t t, int64_t at, const bool delta)
{
    const nib_recurrence_dx *a = b->a;
    const int64_t keys = a->size.key_dim;
    const float *row = a->x + (b->first + t) * a->ldx, *gates = a->gates + (b->first + t) * a->ldg;
    dx_token out = {.q = row + b->q,
                    .k = row + b->k,
                    .x = row + b->v,
                    .beta = gates[b->head],
                    .decay = gates[a->size.heads + b->head]};
    if (delta) {
        float *q = b->s.tokens + at * 2 * KEYS, *k = q + KEYS;
        scale_row(q, out.q, keys, inverse_length(out.q, keys) * (1.0f / sqrtf((float)keys)));
        scale_row(k, out.k, keys, inverse_length(out.k, keys));
        out.q = q, out.k = k;
    }
    return out;
}

/* u of a token, and for the gated delta rule v - r. */
NIB_INLINE void forward_u(nib_lanes u[VECTORS], nib_lanes e[VECTORS], const dx_block *b,
                          const float *from, const dx_token *t, const bool delta)
{
    const nib_lanes decay = nib__lanes_set(t->decay), beta = nib__lanes_set(t->beta);
    nib_lanes r[VECTORS];
    load_columns(e, t->x, b->count);
    for (int j = 0; j < VECTORS; j++)
        r[j] = nib__lanes_set(0.0f);
    for (int64_t i = 0; delta && i < b->a->size.key_dim; i++) {
        const nib_lanes k = nib__lanes_set(t->k[i]);
        for (int j = 0; j < VECTORS; j++) {
            const nib_lanes s = nib__lanes_load(from + i * COLUMNS + j * NIB_LANES);
            r[j] = nib__lanes_fma(nib__lanes_mul(s, decay), k, r[j]);
        }
    }
    for (int j = 0; j < VECTORS; j++) {
        if (delta)
            e[j] = nib__lanes_sub(e[j], r[j]);
        u[j] = nib__lanes_mul(beta, e[j]);
    }
}

/* The state after a token. `to` may be `from`. */
NIB_INLINE void forward_state(float *to, const float *from, const dx_block *b, const dx_token *t,
                              const nib_lanes u[VECTORS])
{
    const nib_lanes decay = nib__lanes_set(t->decay);
    for (int64_t i = 0; i < b->a->size.key_dim; i++) {
        const nib_lanes k = nib__lanes_set(t->k[i]);
        for (int j = 0; j < VECTORS; j++) {
            const int64_t at = i * COLUMNS + j * NIB_LANES;
            nib__lanes_store(
                to + at,
                nib__lanes_fma(k, u[j], nib__lanes_mul(nib__lanes_load(from + at), decay)));
        }
    }
}

NIB_INLINE void put_sum(float *to, float value, bool first) { *to = first ? value : *to + value; }

/* The gradients of a token, with the states before and after it; u and e as forward_u has them. */
NIB_INLINE void backward_token(const dx_block *b, int64_t t, const dx_token *token,
                               const float *before, const float *after, const nib_lanes u[VECTORS],
                               const nib_lanes e[VECTORS], const bool delta)
{
    const nib_recurrence_dx *a = b->a;
    const int64_t keys = a->size.key_dim, row = b->first + t;
    float *dx = a->dx + row * a->lddx, *dgates = a->dgates + row * a->lddg;
    const nib_lanes decay = nib__lanes_set(token->decay), zero = nib__lanes_set(0.0f);
    nib_lanes dout[VECTORS], du[VECTORS], dvalue[VECTORS], dr[VECTORS], ddecay = zero;
    load_columns(dout, a->dy + row * a->ldy + b->head * a->size.value_dim + b->column, b->count);
    for (int j = 0; j < VECTORS; j++)
        du[j] = zero;
    for (int64_t i = 0; i < keys; i++) {
        const nib_lanes q = nib__lanes_set(token->q[i]), k = nib__lanes_set(token->k[i]);
        nib_lanes state[VECTORS];
        for (int j = 0; j < VECTORS; j++) {
            const int64_t at = i * COLUMNS + j * NIB_LANES;
            const nib_lanes ds = nib__lanes_fma(q, dout[j], nib__lanes_load(b->s.ds + at));
            nib__lanes_store(b->s.ds + at, ds);
            du[j] = nib__lanes_fma(ds, k, du[j]);
            state[j] = nib__lanes_load(after + at);
        }
        put_sum(dx + b->q + i, dot_columns(state, dout), b->is_first);
    }
    for (int j = 0; j < VECTORS; j++) {
        dvalue[j] = nib__lanes_mul(nib__lanes_set(token->beta), du[j]);
        dr[j] = nib__lanes_sub(zero, dvalue[j]);
    }
    for (int64_t i = 0; i < keys; i++) {
        const nib_lanes k = nib__lanes_set(token->k[i]);
        nib_lanes dk = zero;
        for (int j = 0; j < VECTORS; j++) {
            const int64_t at = i * COLUMNS + j * NIB_LANES;
            const nib_lanes ds = nib__lanes_load(b->s.ds + at), p = nib__lanes_load(before + at);
            const nib_lanes dd = delta ? nib__lanes_fma(k, dr[j], ds) : ds;
            dk = nib__lanes_fma(ds, u[j], dk);
            if (delta)
                dk = nib__lanes_fma(nib__lanes_mul(decay, p), dr[j], dk);
            ddecay = nib__lanes_fma(dd, p, ddecay);
            nib__lanes_store(b->s.ds + at, nib__lanes_mul(decay, dd));
        }
        put_sum(dx + b->k + i, nib__lanes_sum(dk), b->is_first);
    }
    put_sum(dgates + b->head, dot_columns(du, e), b->column == 0);
    put_sum(dgates + a->size.heads + b->head, nib__lanes_sum(ddecay), b->column == 0);
    if (!delta) {
        const nib_lanes skip = nib__lanes_set(a->skip[b->head]);
        for (int j = 0; j < VECTORS; j++)
            dvalue[j] = nib__lanes_fma(skip, dout[j], dvalue[j]);
        put_sum(a->dskip + row * a->size.heads + b->head, dot_columns(dout, e), b->column == 0);
    }
    store_columns(dx + b->v, b->count, dvalue);
}

/* The states before each chunk. */
NIB_INLINE void keep_starts(const dx_block *b, const bool delta)
{
    const int64_t values = b->a->size.key_dim * COLUMNS;
    float *state = b->s.ds;
    nib_lanes u[VECTORS], e[VECTORS];
    memset(state, 0, (size_t)values * sizeof *state);
    for (int64_t t = 0; t < b->length; t++) {
        const dx_token token = token_of(b, t, 0, delta);
        if (t % CHUNK == 0)
            memcpy(b->s.starts + t / CHUNK * values, state, (size_t)values * sizeof *state);
        forward_u(u, e, b, state, &token, delta);
        forward_state(state, state, b, &token, u);
    }
}

NIB_INLINE void backward_chunk(const dx_block *b, int64_t chunk, const bool delta)
{
    const int64_t values = b->a->size.key_dim * COLUMNS, first = chunk * CHUNK,
                  count = nib__min(CHUNK, b->length - first);
    dx_token tokens[CHUNK];
    nib_lanes u[CHUNK][VECTORS], e[CHUNK][VECTORS];
    memcpy(b->s.states, b->s.starts + chunk * values, (size_t)values * sizeof(float));
    for (int64_t i = 0; i < count; i++) {
        float *state = b->s.states + i * values;
        tokens[i] = token_of(b, first + i, i, delta);
        forward_u(u[i], e[i], b, state, &tokens[i], delta);
        forward_state(state + values, state, b, &tokens[i], u[i]);
    }
    for (int64_t i = count - 1; i >= 0; i--) {
        const float *state = b->s.states + i * values;
        backward_token(b, first + i, &tokens[i], state, state + values, u[i], e[i], delta);
    }
}

NIB_INLINE void backward_block(const dx_block *b, const bool delta)
{
    const int64_t values = b->a->size.key_dim * COLUMNS;
    keep_starts(b, delta);
    memset(b->s.ds, 0, (size_t)values * sizeof *b->s.ds);
    for (int64_t chunk = nib__ceil_div(b->length, CHUNK); chunk-- > 0;)
        backward_chunk(b, chunk, delta);
}

/* The gradient of a row from that of the normalized one, in place. */
NIB_INLINE void unnormalize(float *d, const float *x, int64_t width, float scale)
{
    const float n = inverse_length(x, width);
    nib_lanes dot = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < width; i += NIB_LANES)
        dot = nib__lanes_fma(nib__lanes_load_at(x, i, width), nib__lanes_load_at(d, i, width), dot);
    const nib_lanes minus = nib__lanes_set(-(n * n * nib__lanes_sum(dot))),
                    by = nib__lanes_set(n * scale);
    for (int64_t i = 0; i < width; i += NIB_LANES) {
        const nib_lanes across =
            nib__lanes_fma(nib__lanes_load_at(x, i, width), minus, nib__lanes_load_at(d, i, width));
        nib__lanes_store_at(d, i, width, nib__lanes_mul(across, by));
    }
}

/* The columns of heads of values in a row of x: q, k, then v; or x, B, then C. */
NIB_INLINE void place_columns(dx_block *b, const bool delta)
{
    const nib_matrix_size *s = &b->a->size;
    const int64_t keys = s->key_heads * s->key_dim, values = s->heads * s->value_dim,
                  key = b->key_head * s->key_dim;
    b->q = delta ? key : values + keys + key;
    b->k = delta ? keys + key : values + key;
    b->v = (delta ? 2 * keys : 0) + b->head * s->value_dim + b->column;
}

NIB_INLINE void backward_item(dx_block *b, const bool delta)
{
    const nib_recurrence_dx *a = b->a;
    const nib_matrix_size *s = &a->size;
    const int64_t share = s->heads / s->key_heads;
    for (int64_t h = 0; h < share; h++)
        for (b->column = 0; b->column < s->value_dim; b->column += COLUMNS) {
            b->head = s->by_turns ? h * s->key_heads + b->key_head : b->key_head * share + h;
            b->count = nib__min(COLUMNS, s->value_dim - b->column);
            b->is_first = h == 0 && b->column == 0;
            place_columns(b, delta);
            backward_block(b, delta);
        }
    for (int64_t t = 0; delta && t < b->length; t++) {
        const float *x = a->x + (b->first + t) * a->ldx;
        float *dx = a->dx + (b->first + t) * a->lddx;
        unnormalize(dx + b->q, x + b->q, s->key_dim, 1.0f / sqrtf((float)s->key_dim));
        unnormalize(dx + b->k, x + b->k, s->key_dim, 1.0f);
    }
}

NIB_INLINE void backward_items(const nib_recurrence_dx *a, int64_t item0, int64_t item1,
                               void *scratch, const bool delta)
{
    dx_block b = {.a = a};
    nib__recurrence_dx_split_scratch(&b.s, a, scratch);
    for (int64_t item = item0; item < item1; item++) {
        const int64_t document = item / a->size.key_heads;
        b.key_head = item % a->size.key_heads;
        b.first = a->start[document];
        b.length = a->start[document + 1] - b.first;
        backward_item(&b, delta);
    }
}

void NIB_RECURRENCE_DX(gated_delta)(const nib_recurrence_dx *a, int64_t item0, int64_t item1,
                                    void *scratch)
{
    backward_items(a, item0, item1, scratch, true);
}

void NIB_RECURRENCE_DX(ssm)(const nib_recurrence_dx *a, int64_t item0, int64_t item1, void *scratch)
{
    backward_items(a, item0, item1, scratch, false);
}
