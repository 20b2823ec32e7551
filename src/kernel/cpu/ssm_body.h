/* SPDX-License-Identifier: Apache-2.0
 *
 * The code of the state-space recurrence's rows, written once on lanes and compiled per instruction
 * set. Each including file names its functions through NIB_SSM(name). Lanes are columns of a head,
 * so nothing is summed across them. Rows of a state do not depend on each other, so several tokens
 * go through a row while it is in registers.
 */
#include "lanes.h"
#include "ops.h"

enum {
    TOKENS = 4, /* most that go through a row together */
    VECTORS = NIB_SSM_COLUMNS / NIB_LANES,
    /* Columns in longer passes: 16 KiB of a state with 128 rows, half of an L1 cache */
    LONG = NIB_SSM_COLUMNS / 2,
    /* Rows to prefetch. On AMD EPYC a step of one token reads and writes states at 0.85 of what
     * scaling them in place does, without it at 0.7 (2026-11-30). */
    AHEAD = 32
};

/* The block's columns of the rows of a state; at NULL: none. */
typedef struct ssm_rows {
    float *at;
    int64_t stride;
} ssm_rows;

/* A block of columns of a head, and what the next tokens bring for it. */
typedef struct ssm_block {
    int64_t head, column, count;                    /* first column and columns */
    const float *x[TOKENS], *b[TOKENS], *c[TOKENS]; /* x: from the block's first column on */
    float dt[TOKENS], decay[TOKENS];
    float *out[TOKENS]; /* likewise */
    float skip;
    /* The state before these tokens, after the first of them, and after all */
    ssm_rows from, middle, to;
    float state[NIB_MATRIX_KEYS_MAX * NIB_SSM_COLUMNS];
} ssm_block;

NIB_INLINE nib_lanes ssm_load(ssm_rows rows, int64_t n, int64_t column, int64_t count,
                              const bool tail)
{
    const float *row = rows.at + n * rows.stride + column;
    return tail ? nib__lanes_load_at(row, 0, count) : nib__lanes_load(row);
}

NIB_INLINE void ssm_store(ssm_rows rows, int64_t n, int64_t column, int64_t count, const bool tail,
                          nib_lanes values)
{
    float *row = rows.at + n * rows.stride + column;
    if (tail)
        nib__lanes_store_at(row, 0, count, values);
    else
        nib__lanes_store(row, values);
}

/* Takes the first `tokens` tokens through `vectors` vectors of columns. The first `silent` of them
 * have no output. tail: the columns are fewer. */
NIB_INLINE void ssm_columns(const ssm_block *s, int64_t rows, int64_t column, const int tokens,
                            const int silent, const int vectors, const bool tail)
{
    nib_lanes dx[TOKENS][VECTORS], y[TOKENS][VECTORS], decay[TOKENS];
    const int64_t count = s->count - column;
    for (int t = 0; t < tokens; t++) {
        const nib_lanes dt = nib__lanes_set(s->dt[t]);
        decay[t] = nib__lanes_set(s->decay[t]);
        for (int v = 0; v < vectors; v++) {
            const float *x = s->x[t] + column;
            dx[t][v] = nib__lanes_mul(dt, tail ? nib__lanes_load_at(x, 0, count)
                                               : nib__lanes_load(x + v * NIB_LANES));
            y[t][v] = nib__lanes_set(0.0f);
        }
    }
    const ssm_rows from = s->from, middle = s->middle, to = s->to;
    for (int64_t n = 0; n < rows; n++) {
        nib_lanes b[TOKENS], c[TOKENS];
        for (int v = 0; v < vectors && tokens == 2; v++)
            __builtin_prefetch(
                nib__ahead(from.at, (uint64_t)((n + AHEAD) * from.stride + column + v * NIB_LANES) *
                                        sizeof(float)),
                1);
        for (int t = 0; t < tokens; t++)
            b[t] = nib__lanes_set(s->b[t][n]);
        for (int t = silent; t < tokens; t++)
            c[t] = nib__lanes_set(s->c[t][n]);
        for (int v = 0; v < vectors; v++) {
            const int64_t at = column + v * NIB_LANES;
            nib_lanes state = ssm_load(from, n, at, count, tail);
            for (int t = 0; t < tokens; t++) {
                state = nib__lanes_fma(dx[t][v], b[t], nib__lanes_mul(state, decay[t]));
                if (t >= silent)
                    y[t][v] = nib__lanes_fma(state, c[t], y[t][v]);
                if (t == 0 && tokens == 2 && middle.at != NULL)
                    ssm_store(middle, n, at, count, tail, state);
            }
            if (to.at != NULL)
                ssm_store(to, n, at, count, tail, state);
        }
    }
    const nib_lanes skip = nib__lanes_set(s->skip);
    for (int t = silent; t < tokens; t++)
        for (int v = 0; v < vectors; v++) {
            const float *x = s->x[t] + column;
            float *out = s->out[t] + column;
            if (tail)
                nib__lanes_store_at(out, 0, count,
                                    nib__lanes_fma(skip, nib__lanes_load_at(x, 0, count), y[t][v]));
            else
                nib__lanes_store(out + v * NIB_LANES,
                                 nib__lanes_fma(skip, nib__lanes_load(x + v * NIB_LANES), y[t][v]));
        }
}

/* `together`: vectors of columns that fit in the registers */
NIB_INLINE void ssm_tokens(const ssm_block *s, int64_t rows, const int tokens, const int silent,
                           const int together)
{
    int64_t column = 0;
    for (; column + together * NIB_LANES <= s->count; column += together * NIB_LANES)
        ssm_columns(s, rows, column, tokens, silent, together, false);
    if (together > 2 && column + 2 * NIB_LANES <= s->count) {
        ssm_columns(s, rows, column, tokens, silent, 2, false);
        column += 2 * NIB_LANES;
    }
    for (; column + NIB_LANES <= s->count; column += NIB_LANES)
        ssm_columns(s, rows, column, tokens, silent, 1, false);
    if (column < s->count)
        ssm_columns(s, rows, column, tokens, silent, 1, true);
}

/* Reads token number i of a run: those that run again come first. */
static void ssm_read(ssm_block *s, int at, const nib_recurrence *a, const nib_matrix_run *run,
                     int64_t i)
{
    const nib_matrix_size *size = &a->size;
    const int64_t width = nib__matrix_token_values(size), values = size->heads * size->value_dim,
                  key = s->head / (size->heads / size->key_heads) * size->key_dim,
                  channel = s->head * size->value_dim + s->column;
    const float *row, *gates;
    if (i < run->again) {
        row = run->earlier + i * width;
        gates = row + width - 2 * size->heads;
    } else {
        const int64_t slot = a->slots[run->first + i - run->again];
        row = a->x + slot * a->ldx;
        gates = a->gates + slot * a->ldg;
        s->c[at] = row + values + size->key_heads * size->key_dim + key;
        s->out[at] = a->out + slot * a->ldo + channel;
    }
    s->x[at] = row + channel;
    s->b[at] = row + values + key;
    s->dt[at] = gates[s->head], s->decay[at] = gates[size->heads + s->head];
}

/* Tokens from number i on that go through the rows together: four; in each step of one token the
 * one that runs again and its own, between which the state is written; else one. */
static int ssm_group(const nib_matrix_run *run, int64_t i, int64_t all)
{
    const int64_t kept = i < run->kept ? run->kept : all, /* the state there is written */
        same = nib__min(kept, i < run->again ? run->again : all) - i;
    if (same >= TOKENS)
        return TOKENS;
    return i + 1 == run->again && i + 2 <= all ? 2 : 1;
}

/* `count` columns from `column` on, through all tokens of the run. */
static void ssm_run(ssm_block *s, const nib_recurrence *a, const nib_matrix_run *run,
                    int64_t column, int64_t count)
{
    const nib_matrix_size *size = &a->size;
    const int64_t rows = size->key_dim, all = run->again + run->end - run->first;
    s->column = column, s->count = count;
    const ssm_rows none = {NULL, 0}, own = {s->state, count <= LONG ? LONG : NIB_SSM_COLUMNS},
                   state = {run->state + s->head * rows * size->value_dim + s->column,
                            size->value_dim};
    s->from = run->empty ? own : state;
    if (run->empty)
        memset(s->state, 0, (size_t)rows * NIB_SSM_COLUMNS * sizeof *s->state);
    for (int64_t i = 0; i < all;) {
        const int together = ssm_group(run, i, all);
        for (int t = 0; t < together; t++)
            ssm_read(s, t, a, run, i + t);
        const bool again = i < run->again;
        s->middle = together == 2 && i + 1 == run->kept ? state : none;
        i += together;
        s->to = i == run->kept ? state : i < all ? own : none;
        if (together == TOKENS && again)
            ssm_tokens(s, rows, TOKENS, TOKENS, 1);
        else if (together == TOKENS)
            ssm_tokens(s, rows, TOKENS, 0, 1);
        else if (together == 2)
            ssm_tokens(s, rows, 2, 1, VECTORS);
        else if (again)
            ssm_tokens(s, rows, 1, 1, VECTORS);
        else
            ssm_tokens(s, rows, 1, 0, VECTORS);
        s->from = s->to;
    }
}

void NIB_SSM(ssm)(const nib_recurrence *a, int64_t part0, int64_t part1)
{
    const int64_t width = a->size.value_dim, blocks = nib__matrix_blocks(&a->size, NIB_SSM_COLUMNS);
    ssm_block s;
    for (int64_t part = part0; part < part1; part++) {
        const int64_t first = part % blocks * NIB_SSM_COLUMNS,
                      end = nib__min(width, first + NIB_SSM_COLUMNS);
        s.head = part / blocks;
        s.skip = a->skip[s.head];
        for (int64_t r = 0; r < a->count; r++) {
            const nib_matrix_run *run = &a->runs[r];
            const bool once = run->again + run->end - run->first <= 2;
            for (int64_t j = first; j < end; j += once ? NIB_SSM_COLUMNS : LONG)
                ssm_run(&s, a, run, j, nib__min(once ? NIB_SSM_COLUMNS : LONG, end - j));
        }
    }
}
