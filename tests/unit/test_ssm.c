/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the state-space recurrence of Mamba-2 and of its gates (ssm_rows.c) against their
 * definition in f64: any chunks of a text, sequences that share a pass, and tokens that run again
 * after a rollback.
 */
#include "kernel.h"
#include "machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

/* A head has a whole block of columns, one of 16, and five more. */
enum { GROUPS = 2, HEADS = 6, STATE = 24, DIM = 53, TOKENS = 40, SEQUENCES = 2 };
enum { X = 2 * GROUPS * STATE + HEADS * DIM, OUT = HEADS * DIM, GATES = 2 * HEADS };

static const nib_matrix_size size = {
    .key_heads = GROUPS, .heads = HEADS, .key_dim = STATE, .value_dim = DIM};

static uint64_t seed = 20261130;

/* Values from low to high. */
static void fill(float *x, int64_t count, float low, float high)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        x[i] = low + (high - low) * (float)(seed >> 40) * 0x1p-24F;
    }
}

static float rows[SEQUENCES][TOKENS][X], gates[SEQUENCES][TOKENS][GATES], skip[HEADS];
static float states[SEQUENCES][HEADS * STATE * DIM];
static double wanted[TOKENS][OUT];

/* ---- the definition ---- */

static void define_head(int sequence, int64_t head)
{
    static double s[STATE][DIM];
    memset(s, 0, sizeof s);
    for (int64_t t = 0; t < TOKENS; t++) {
        const float *x = rows[sequence][t] + head * DIM,
                    *b = rows[sequence][t] + OUT + head / (HEADS / GROUPS) * STATE,
                    *c = b + GROUPS * STATE;
        const double dt = (double)gates[sequence][t][head],
                     decay = (double)gates[sequence][t][HEADS + head];
        for (int64_t j = 0; j < DIM; j++) {
            double out = (double)skip[head] * (double)x[j];
            for (int64_t n = 0; n < STATE; n++) {
                s[n][j] = s[n][j] * decay + dt * (double)x[j] * (double)b[n];
                out += s[n][j] * (double)c[n];
            }
            wanted[t][head * DIM + j] = out;
        }
    }
}

/* ---- the rows ---- */

/* Runs the tokens [from, to) of a sequence after `again` earlier ones, before which its state ends.
 * The state is written up to token `kept`. */
static void run(const nib_kernel *row, int sequence, int64_t again, int64_t from, int64_t to,
                int64_t kept, float *out)
{
    enum { WIDTH = GROUPS * STATE + OUT + GATES };
    static float earlier[TOKENS][WIDTH];
    int32_t slots[TOKENS];
    for (int64_t i = 0; i < again; i++) {
        const int64_t t = from - again + i;
        memcpy(earlier[i], rows[sequence][t], (WIDTH - GATES) * sizeof(float));
        memcpy(earlier[i] + WIDTH - GATES, gates[sequence][t], GATES * sizeof(float));
    }
    for (int64_t i = 0; i < to - from; i++)
        slots[i] = (int32_t)i;
    const nib_matrix_run runs[] = {{.state = states[sequence],
                                    .empty = from == again,
                                    .earlier = earlier[0],
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
                              .size = size,
                              .slots = slots,
                              .runs = runs,
                              .count = 1};
    row->run.recurrence(&a, 0, HEADS * nib__matrix_blocks(&size, NIB_SSM_COLUMNS));
}

static void check_row(const nib_kernel *row)
{
    static float whole[TOKENS * OUT], parts[TOKENS * OUT], other[TOKENS * OUT];
    fill(states[0], SEQUENCES * HEADS * STATE * DIM, -1, 1); /* of an earlier text */
    run(row, 1, 0, 0, TOKENS, 0, whole);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < OUT; i++)
            assert_true(fabs((double)whole[t * OUT + i] - wanted[t][i]) <= 2e-5);
    static const int64_t chunks[] = {1, 2, 3, 7, 20};
    for (size_t i = 0; i < COUNT(chunks); i++)
        for (int64_t t = 0, at = 0; t < TOKENS; t += chunks[i]) {
            const int64_t end = nib__min(t + chunks[i], TOKENS);
            run(row, 1, t - at, t, end, at, other); /* a draft, which is rolled back */
            run(row, 0, 0, 0, 5, 5, other);         /* another sequence between */
            run(row, 1, t - at, t, end, t, parts);
            at = t;
            if (end == TOKENS)
                assert_memory_equal(parts, whole, sizeof whole);
        }
}

static void test_rows(void **unused)
{
    (void)unused;
    const nib_query here = {.fact = {[NIB_FACT_OP] = NIB_OP_SSM, [NIB_FACT_ISA] = nib__cpu_isa()}};
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
    for (size_t i = 0; i < nib__family_ssm.count; i++) {
        const nib_kernel *row = &nib__family_ssm.rows[i];
        if (row->op != NIB_OP_SSM || row->run.any == NULL || !nib__kernel_holds(row, &here, true))
            continue;
        check_row(row);
        count++;
    }
    assert_true(count > 0);
}

static void test_gates(void **unused)
{
    (void)unused;
    static const float x[] = {0, 30, -30, 2, -1000, 5, -1}, rate[] = {1, 0.1F, 3, 20, 0.5F, 2, 1},
                       dt_bias[] = {0, 1, -1, 0.5F, 2, 1, 0};
    enum { COUNT_OF = COUNT(x) };
    static const double limits[][2] = {{0, (double)INFINITY}, {0.5, 4}};
    const nib_kernel *row = nib__kernel_find("ssm_gates_f32__ref");
    assert_non_null(row);
    for (size_t l = 0; l < COUNT(limits); l++) {
        float out[2 * COUNT_OF];
        const nib_ssm_gates args = {.x = x,
                                    .rate = rate,
                                    .dt_bias = dt_bias,
                                    .out = out,
                                    .least = limits[l][0],
                                    .most = limits[l][1],
                                    .m = 1,
                                    .heads = COUNT_OF};
        row->run.ssm_gates(&args, 0, 1);
        for (int i = 0; i < COUNT_OF; i++) {
            const double sum = (double)x[i] + (double)dt_bias[i],
                         step = sum > 50 ? sum : log1p(exp(sum)),
                         dt = fmin(fmax(step, limits[l][0]), limits[l][1]);
            assert_true(fabs((double)out[i] - dt) <= 1e-7 * dt);
            assert_true(fabs((double)out[COUNT_OF + i] - exp(-(double)rate[i] * dt)) <= 1e-7);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_gates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
