/* SPDX-License-Identifier: Apache-2.0
 *
 * The code of the gated delta rule's rows, written once on lanes and compiled per instruction set.
 * Each including file names its functions through NIB_DELTA(name). Lanes are columns of a value
 * head, so only |q|^2 and |k|^2 are summed across them.
 */
#include "lanes.h"
#include "ops.h"

enum {
    VECTORS = NIB_DELTA_COLUMNS / NIB_LANES,
    GROUP = NIB_LANES == 4 ? 4 : 2, /* vectors whose sums fit in registers */
    /* of the next block, which a token asks for at each row: half of the block in all */
    AHEAD = NIB_DELTA_COLUMNS / 2 * GROUP / VECTORS
};

/* A block of columns of a value head. */
typedef struct delta_block {
    int64_t head, column, count;                         /* first column and columns */
    float rows[NIB_MATRIX_KEYS_MAX * NIB_DELTA_COLUMNS]; /* after tokens that are not kept */
} delta_block;

/* What a token brings for a value head. */
typedef struct delta_token {
    float q[NIB_MATRIX_KEYS_MAX], k[NIB_MATRIX_KEYS_MAX]; /* normalized */
    const float *v;                                       /* from the block's first column on */
    float beta, decay;
    float *out; /* likewise; NULL: none is wanted */
} delta_token;

/* x / sqrt(|x|^2 + 1e-6), times `scale` */
static void delta_normalize(float *out, const float *x, int64_t width, float scale)
{
    nib_lanes squares = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < width; i += NIB_LANES) {
        const nib_lanes v = nib__lanes_load_at(x, i, width);
        squares = nib__lanes_fma(v, v, squares);
    }
    const nib_lanes by = nib__lanes_set(1.0f / sqrtf(nib__lanes_sum(squares) + 1e-6f) * scale);
    for (int64_t i = 0; i < width; i += NIB_LANES)
        nib__lanes_store_at(out, i, width, nib__lanes_mul(nib__lanes_load_at(x, i, width), by));
}

/* u of a token, from r */
static void delta_errors(nib_lanes u[VECTORS], const delta_block *b, const delta_token *t,
                         const nib_lanes r[VECTORS])
{
    const nib_lanes beta = nib__lanes_set(t->beta);
    for (int j = 0; j < VECTORS; j++) {
        const int64_t column = j * NIB_LANES;
        const nib_lanes v =
            column < b->count ? nib__lanes_load_at(t->v, column, b->count) : nib__lanes_set(0.0f);
        u[j] = nib__lanes_mul(beta, nib__lanes_sub(v, r[j]));
    }
}

/* r of the first token */
static void delta_first(nib_lanes r[VECTORS], const float *from, int64_t keys, const delta_token *t)
{
    const nib_lanes decay = nib__lanes_set(t->decay);
    for (int j = 0; j < VECTORS; j++)
        r[j] = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < keys; i++) {
        const nib_lanes k = nib__lanes_set(t->k[i]);
        const float *row = from + i * NIB_DELTA_COLUMNS;
        for (int j = 0; j < VECTORS; j++)
            r[j] = nib__lanes_fma(nib__lanes_mul(nib__lanes_load(row + j * NIB_LANES), decay), k,
                                  r[j]);
    }
}

/* A token's update of S, its output, and r of the next token, in one loop over the key's channels.
 * to: NULL if nothing reads S any more. next: NULL for the last token. */
NIB_INLINE void delta_group(const delta_block *b, const float *from, float *to, int64_t keys,
                            const delta_token *t, const delta_token *next, int first,
                            const nib_lanes *u, nib_lanes *r, const float *ahead)
{
    const nib_lanes decay = nib__lanes_set(t->decay),
                    decay_next = nib__lanes_set(next != NULL ? next->decay : 0.0f);
    nib_lanes out[GROUP];
    for (int j = 0; j < GROUP; j++)
        out[j] = r[j] = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < keys; i++) {
        const int64_t at = i * NIB_DELTA_COLUMNS + first * NIB_LANES;
        const nib_lanes k = nib__lanes_set(t->k[i]), q = nib__lanes_set(t->q[i]),
                        k_next = nib__lanes_set(next != NULL ? next->k[i] : 0.0f);
        __builtin_prefetch(ahead + i * AHEAD, 1, 3);
        for (int j = 0; j < GROUP; j++) {
            const int64_t lanes = at + j * NIB_LANES;
            const nib_lanes s =
                nib__lanes_fma(k, u[j], nib__lanes_mul(nib__lanes_load(from + lanes), decay));
            if (to != NULL)
                nib__lanes_store(to + lanes, s);
            out[j] = nib__lanes_fma(s, q, out[j]);
            if (next != NULL)
                r[j] = nib__lanes_fma(nib__lanes_mul(s, decay_next), k_next, r[j]);
        }
    }
    for (int j = 0; j < GROUP && t->out != NULL; j++)
        if ((first + j) * NIB_LANES < b->count)
            nib__lanes_store_at(t->out, (int64_t)(first + j) * NIB_LANES, b->count, out[j]);
}

static void delta_step(const delta_block *b, const float *from, float *to, int64_t keys,
                       const delta_token *t, const delta_token *next, nib_lanes r[VECTORS],
                       const float *ahead)
{
    nib_lanes u[VECTORS];
    delta_errors(u, b, t, r);
    for (int j = 0; j < VECTORS && j * NIB_LANES < b->count; j += GROUP) {
        const float *asked = ahead + j / GROUP * keys * AHEAD;
        if (next != NULL)
            delta_group(b, from, to, keys, t, next, j, u + j, r + j, asked);
        else if (to != NULL)
            delta_group(b, from, to, keys, t, NULL, j, u + j, r + j, asked);
        else
            delta_group(b, from, NULL, keys, t, NULL, j, u + j, r + j, asked);
    }
}

/* x: k, then v. q: NULL for a token that runs again. */
static void delta_read(delta_token *t, const nib_recurrence *a, const delta_block *b,
                       const float *q, const float *x, const float *gates)
{
    const nib_matrix_size *s = &a->size;
    const int64_t key_head =
                      s->by_turns ? b->head % s->key_heads : b->head / (s->heads / s->key_heads),
                  key = key_head * s->key_dim;
    delta_normalize(t->k, x + key, s->key_dim, 1.0f);
    if (q != NULL)
        delta_normalize(t->q, q + key, s->key_dim, 1.0f / sqrtf((float)s->key_dim));
    t->v = x + s->key_heads * s->key_dim + b->head * s->value_dim + b->column;
    t->beta = gates[b->head], t->decay = gates[s->heads + b->head];
}

/* Reads token i of a run. */
static void delta_token_at(delta_token *t, const nib_recurrence *a, const delta_block *b,
                           const nib_matrix_run *run, int64_t i)
{
    const nib_matrix_size *s = &a->size;
    const int64_t width = nib__matrix_token_values(s);
    if (i < run->again) {
        const float *row = run->earlier + i * width;
        delta_read(t, a, b, NULL, row, row + width - 2 * s->heads);
        t->out = NULL;
    } else {
        const int64_t slot = a->slots[run->first + i - run->again];
        const float *row = a->x + slot * a->ldx;
        delta_read(t, a, b, row, row + s->key_heads * s->key_dim, a->gates + slot * a->ldg);
        t->out = a->out + slot * a->ldo + b->head * s->value_dim + b->column;
    }
}

/* Tokens that are kept change the state in place, the others a copy. ahead: the next state. */
static void delta_run(delta_block *b, delta_token t[2], const nib_recurrence *a,
                      const nib_matrix_run *run, float *state, const float *ahead)
{
    const int64_t keys = a->size.key_dim, all = run->again + run->end - run->first;
    float *from = state;
    nib_lanes r[VECTORS];
    if (all == 0)
        return;
    if (run->empty) {
        from = run->kept > 0 ? state : b->rows;
        memset(from, 0, (size_t)(keys * NIB_DELTA_COLUMNS) * sizeof *from);
    }
    delta_token_at(&t[0], a, b, run, 0);
    delta_first(r, from, keys, &t[0]);
    for (int64_t i = 0; i < all; i++) {
        delta_token *next = i + 1 < all ? &t[(i + 1) % 2] : NULL;
        float *to = i < run->kept ? state : next != NULL ? b->rows : NULL;
        if (next != NULL)
            delta_token_at(next, a, b, run, i + 1);
        delta_step(b, from, to, keys, &t[i % 2], next, r,
                   i + 2 < all ? from : ahead + (next == NULL ? keys * NIB_DELTA_COLUMNS / 2 : 0));
        from = to;
    }
}

void NIB_DELTA(gated_delta)(const nib_recurrence *a, int64_t part0, int64_t part1)
{
    const int64_t blocks = nib__matrix_blocks(&a->size, NIB_DELTA_COLUMNS),
                  values = a->size.key_dim * NIB_DELTA_COLUMNS;
    delta_block b;
    delta_token t[2] = {{.out = NULL}}; /* their q is read before any token has one */
    for (int64_t part = part0; part < part1; part++) {
        b.head = part / blocks;
        b.column = part % blocks * NIB_DELTA_COLUMNS;
        b.count = nib__min(NIB_DELTA_COLUMNS, a->size.value_dim - b.column);
        for (int64_t r = 0; r < a->count; r++) {
            float *state = a->runs[r].state + part * values;
            const float *ahead = r + 1 < a->count   ? a->runs[r + 1].state + part * values
                                 : part + 1 < part1 ? a->runs[0].state + (part + 1) * values
                                                    : state;
            delta_run(&b, t, a, &a->runs[r], state, ahead);
        }
    }
}
