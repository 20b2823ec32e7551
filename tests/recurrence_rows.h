/* SPDX-License-Identifier: Apache-2.0
 *
 * For tests of recurrences over matrices: their rows against a definition in f64, with any chunks
 * of a text, sequences that share a pass, and tokens that run again after a rollback. The including
 * test has the enumerators HEADS, OUT, X and STATE (values of a state), and `size` before it.
 */
#ifndef NIB_TESTS_RECURRENCE_ROWS_H
#define NIB_TESTS_RECURRENCE_ROWS_H

#include "kernel.h"
#include "machine.h"

#include <math.h>
#include <string.h>

enum { TOKENS = 40, SEQUENCES = 2, GATES = 2 * HEADS };

static float rows[SEQUENCES][TOKENS][X], gates[SEQUENCES][TOKENS][GATES], skip[HEADS];
static float states[SEQUENCES][STATE];
static double wanted[TOKENS][OUT];

/* Fills in a head's part of `wanted`. */
static void define_head(int sequence, int64_t head);

typedef struct recurrence {
    const nib_family *family;
    nib_op op;
    int64_t columns; /* of a part */
    int64_t logged;  /* nib_recurrence's */
    double off;      /* most that an output differs from the definition */
} recurrence;

/* Values from low to high. */
static void fill(float *x, int64_t count, float low, float high)
{
    static uint64_t seed = 20261130;
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        x[i] = low + (high - low) * (float)(seed >> 40) * 0x1p-24F;
    }
}

/* Runs the tokens [from, to) of a sequence after `again` earlier ones, before which its state ends.
 * The state is written up to token `kept`. */
static void run(const recurrence *r, const nib_kernel *row, int sequence, int64_t again,
                int64_t from, int64_t to, int64_t kept, float *out)
{
    static float earlier[TOKENS * (X + GATES)];
    const int64_t width = nib__matrix_token_values(&size);
    int32_t slots[TOKENS];
    for (int64_t i = 0; i < again; i++) {
        const int64_t t = from - again + i;
        float *to_row = earlier + i * width;
        memcpy(to_row, rows[sequence][t] + r->logged, (size_t)(width - GATES) * sizeof(float));
        memcpy(to_row + width - GATES, gates[sequence][t], GATES * sizeof(float));
    }
    for (int64_t i = 0; i < to - from; i++)
        slots[i] = (int32_t)i;
    const nib_matrix_run runs[] = {{.state = states[sequence],
                                    .empty = from == again,
                                    .earlier = earlier,
                                    .again = again,
                                    .kept = kept - (from - again),
                                    .end = to - from}};
    const nib_recurrence a = {.x = rows[sequence][from],
                              .gates = gates[sequence][from],
                              .skip = skip,
                              .out = out + from * OUT,
                              .ldx = X,
                              .ldg = GATES,
                              .ldo = OUT,
                              .logged = r->logged,
                              .size = size,
                              .slots = slots,
                              .runs = runs,
                              .count = 1};
    row->run.recurrence(&a, 0, HEADS * nib__matrix_blocks(&size, r->columns));
}

static void check_row(const recurrence *r, const nib_kernel *row)
{
    static float whole[TOKENS * OUT], parts[TOKENS * OUT], other[TOKENS * OUT];
    fill(states[0], SEQUENCES * STATE, -1, 1); /* of an earlier text */
    run(r, row, 1, 0, 0, TOKENS, 0, whole);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < OUT; i++)
            assert_true(fabs((double)whole[t * OUT + i] - wanted[t][i]) <= r->off);
    static const int64_t chunks[] = {1, 2, 3, 7, 20};
    for (size_t i = 0; i < COUNT(chunks); i++)
        for (int64_t t = 0, at = 0; t < TOKENS; t += chunks[i]) {
            const int64_t end = nib__min(t + chunks[i], TOKENS);
            run(r, row, 1, t - at, t, end, at, other); /* a draft, which is rolled back */
            run(r, row, 0, 0, 0, 5, 5, other);         /* another sequence between */
            run(r, row, 1, t - at, t, end, t, parts);
            at = t;
            if (end == TOKENS)
                assert_memory_equal(parts, whole, sizeof whole);
        }
}

/* Checks every row of the recurrence that runs here. */
static void check_rows(const recurrence *r)
{
    const nib_query here = {.fact = {[NIB_FACT_OP] = r->op, [NIB_FACT_ISA] = nib__cpu_isa()}};
    size_t count = 0;
    fill(rows[0][0], SEQUENCES * TOKENS * X, -1, 1);
    fill(skip, HEADS, -1, 1);
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t t = 0; t < TOKENS; t++) {
            fill(gates[s][t], HEADS, 0, 1);
            fill(gates[s][t] + HEADS, HEADS, 0.5F, 1);
        }
    for (int64_t head = 0; head < HEADS; head++)
        define_head(1, head);
    for (size_t i = 0; i < r->family->count; i++) {
        const nib_kernel *row = &r->family->rows[i];
        if (row->op != r->op || row->run.any == NULL || !nib__kernel_holds(row, &here, true))
            continue;
        check_row(r, row);
        count++;
    }
    assert_true(count > 0);
}

#endif
