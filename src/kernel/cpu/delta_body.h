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
    HALF = VECTORS / 2 /* as many as fit in the registers of AVX2 beside their sums */
};

/* A block of columns of a value head. */
typedef struct delta_block {
    int64_t head, column, count; /* first column and columns */
    float state[NIB_DELTA_KEYS_MAX][NIB_DELTA_COLUMNS];
} delta_block;

/* What a token brings for a value head. */
typedef struct delta_token {
    float q[NIB_DELTA_KEYS_MAX], k[NIB_DELTA_KEYS_MAX]; /* normalized */
    const float *v;                                     /* from the block's first column on */
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

/* The second loop over the key's channels, for HALF vectors of columns. */
NIB_INLINE void delta_update(delta_block *b, int64_t keys, const delta_token *t, int64_t column,
                             const nib_lanes u[HALF])
{
    const nib_lanes decay = nib__lanes_set(t->decay);
    nib_lanes sum[HALF];
    for (int j = 0; j < HALF; j++)
        sum[j] = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < keys; i++) {
        float *row = b->state[i] + column;
        const nib_lanes k = nib__lanes_set(t->k[i]), q = nib__lanes_set(t->q[i]);
        for (int j = 0; j < HALF; j++) {
            const nib_lanes s = nib__lanes_fma(
                k, u[j], nib__lanes_mul(nib__lanes_load(row + j * NIB_LANES), decay));
            nib__lanes_store(row + j * NIB_LANES, s);
            sum[j] = nib__lanes_fma(s, q, sum[j]);
        }
    }
    for (int j = 0; j < HALF && t->out != NULL; j++)
        if (column + j * NIB_LANES < b->count)
            nib__lanes_store_at(t->out, column + j * NIB_LANES, b->count, sum[j]);
}

static void delta_step(delta_block *b, int64_t keys, const delta_token *t)
{
    const nib_lanes decay = nib__lanes_set(t->decay), beta = nib__lanes_set(t->beta);
    nib_lanes u[VECTORS];
    for (int j = 0; j < VECTORS; j++)
        u[j] = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < keys; i++) {
        const nib_lanes k = nib__lanes_set(t->k[i]);
        for (int j = 0; j < VECTORS; j++)
            u[j] = nib__lanes_fma(
                nib__lanes_mul(nib__lanes_load(b->state[i] + j * NIB_LANES), decay), k, u[j]);
    }
    for (int j = 0; j < VECTORS; j++) {
        const int64_t column = j * NIB_LANES;
        const nib_lanes v =
            column < b->count ? nib__lanes_load_at(t->v, column, b->count) : nib__lanes_set(0.0f);
        u[j] = nib__lanes_mul(beta, nib__lanes_sub(v, u[j]));
    }
    for (int64_t j = 0; j < VECTORS && j * NIB_LANES < b->count; j += HALF)
        delta_update(b, keys, t, j * NIB_LANES, u + j);
}

/* The rows of the block in a state [heads][key_dim][value_dim]. */
static float *delta_rows_of(const nib_gated_delta *a, const delta_block *b, float *state)
{
    return state + b->head * a->size.key_dim * a->size.value_dim + b->column;
}

static void delta_load(delta_block *b, const nib_gated_delta *a, const nib_delta_run *run)
{
    const float *from = delta_rows_of(a, b, run->state);
    memset(b->state, 0, (size_t)a->size.key_dim * sizeof *b->state);
    for (int64_t i = 0; i < a->size.key_dim && !run->empty; i++)
        memcpy(b->state[i], from + i * a->size.value_dim, (size_t)b->count * sizeof *from);
}

static void delta_store(const delta_block *b, const nib_gated_delta *a, const nib_delta_run *run)
{
    float *to = delta_rows_of(a, b, run->state);
    for (int64_t i = 0; i < a->size.key_dim; i++)
        memcpy(to + i * a->size.value_dim, b->state[i], (size_t)b->count * sizeof *to);
}

/* x: k, then v. q: NULL for a token that runs again. */
static void delta_read(delta_token *t, const nib_gated_delta *a, const delta_block *b,
                       const float *q, const float *x, const float *gates)
{
    const nib_delta_size *s = &a->size;
    const int64_t key = b->head / (s->heads / s->key_heads) * s->key_dim;
    delta_normalize(t->k, x + key, s->key_dim, 1.0f);
    if (q != NULL)
        delta_normalize(t->q, q + key, s->key_dim, 1.0f / sqrtf((float)s->key_dim));
    t->v = x + s->key_heads * s->key_dim + b->head * s->value_dim + b->column;
    t->beta = gates[b->head], t->decay = gates[s->heads + b->head];
}

static void delta_run(delta_block *b, delta_token *t, const nib_gated_delta *a,
                      const nib_delta_run *run)
{
    const nib_delta_size *s = &a->size;
    const int64_t width = nib__delta_token_values(s), keys = s->key_heads * s->key_dim,
                  all = run->again + run->end - run->first;
    delta_load(b, a, run);
    for (int64_t i = 0; i < all; i++) {
        if (i < run->again) {
            const float *row = run->earlier + i * width;
            delta_read(t, a, b, NULL, row, row + width - 2 * s->heads);
            t->out = NULL;
        } else {
            const int64_t slot = a->slots[run->first + i - run->again];
            const float *row = a->x + slot * a->ldx;
            delta_read(t, a, b, row, row + keys, a->gates + slot * a->ldg);
            t->out = a->out + slot * a->ldo + b->head * s->value_dim + b->column;
        }
        delta_step(b, s->key_dim, t);
        if (i + 1 == run->kept)
            delta_store(b, a, run);
    }
}

void NIB_DELTA(gated_delta)(const nib_gated_delta *a, int64_t part0, int64_t part1)
{
    const int64_t blocks = nib__delta_blocks(&a->size);
    delta_block b;
    delta_token t = {.out = NULL}; /* its q is read before any token has one */
    for (int64_t part = part0; part < part1; part++) {
        b.head = part / blocks;
        b.column = part % blocks * NIB_DELTA_COLUMNS;
        b.count = nib__min(NIB_DELTA_COLUMNS, a->size.value_dim - b.column);
        for (int64_t r = 0; r < a->count; r++)
            delta_run(&b, &t, a, &a->runs[r]);
    }
}
