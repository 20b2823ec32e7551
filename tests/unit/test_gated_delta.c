/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the gated delta rule and of its gates (delta_rows.c) against their definition in f64:
 * any chunks of a text, sequences that share a pass, and tokens that run again after a rollback.
 */
#include "kernel.h"
#include "machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { KEYS = 2, HEADS = 6, KEY = 24, VALUE = 72, TOKENS = 40, SEQUENCES = 2 };
enum { BLOCKS = (VALUE + NIB_DELTA_COLUMNS - 1) / NIB_DELTA_COLUMNS };
enum { STATE = HEADS * BLOCKS * KEY * NIB_DELTA_COLUMNS };
enum { X = 2 * KEYS * KEY + HEADS * VALUE, OUT = HEADS * VALUE, GATES = 2 * HEADS };

static const nib_matrix_size size = {
    .key_heads = KEYS, .heads = HEADS, .key_dim = KEY, .value_dim = VALUE};

static uint64_t seed = 20261130;

/* Values from low to high. */
static void fill(float *x, int64_t count, float low, float high)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        x[i] = low + (high - low) * (float)(seed >> 40) * 0x1p-24F;
    }
}

static float rows[SEQUENCES][TOKENS][X], gates[SEQUENCES][TOKENS][GATES];
static float states[SEQUENCES][STATE];
static double wanted[TOKENS][OUT];

/* ---- the definition ---- */

static double norm_of(const float *x)
{
    double sum = 0;
    for (int64_t i = 0; i < KEY; i++)
        sum += (double)x[i] * (double)x[i];
    return sqrt(sum + 1e-6);
}

static void define_head(int sequence, int64_t head)
{
    static double s[KEY][VALUE];
    memset(s, 0, sizeof s);
    for (int64_t t = 0; t < TOKENS; t++) {
        const float *q = rows[sequence][t] + head / (HEADS / KEYS) * KEY, *k = q + KEYS * KEY,
                    *v = rows[sequence][t] + 2 * KEYS * KEY + head * VALUE;
        const double beta = (double)gates[sequence][t][head],
                     decay = (double)gates[sequence][t][HEADS + head], of_q = norm_of(q),
                     of_k = norm_of(k);
        for (int64_t j = 0; j < VALUE; j++) {
            double seen = 0, out = 0;
            for (int64_t i = 0; i < KEY; i++) {
                s[i][j] *= decay;
                seen += s[i][j] * (double)k[i] / of_k;
            }
            for (int64_t i = 0; i < KEY; i++) {
                s[i][j] += (double)k[i] / of_k * (beta * ((double)v[j] - seen));
                out += s[i][j] * (double)q[i] / of_q / sqrt((double)KEY);
            }
            wanted[t][head * VALUE + j] = out;
        }
    }
}

/* ---- the rows ---- */

/* Runs the tokens [from, to) of a sequence after `again` earlier ones, before which its state ends.
 * The state is written up to token `kept`. */
static void run(const nib_kernel *row, int sequence, int64_t again, int64_t from, int64_t to,
                int64_t kept, float *out)
{
    enum { WIDTH = KEYS * KEY + OUT + GATES };
    static float earlier[TOKENS][WIDTH];
    int32_t slots[TOKENS];
    for (int64_t i = 0; i < again; i++) {
        const int64_t t = from - again + i;
        memcpy(earlier[i], rows[sequence][t] + KEYS * KEY, (WIDTH - GATES) * sizeof(float));
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
                              .out = out + from * OUT,
                              .ldx = X,
                              .ldg = GATES,
                              .ldo = OUT,
                              .size = size,
                              .slots = slots,
                              .runs = runs,
                              .count = 1};
    row->run.recurrence(&a, 0, HEADS * nib__matrix_blocks(&size, NIB_DELTA_COLUMNS));
}

static void check_row(const nib_kernel *row)
{
    static float whole[TOKENS * OUT], parts[TOKENS * OUT], other[TOKENS * OUT];
    fill(states[0], SEQUENCES * STATE, -1, 1); /* of an earlier text */
    run(row, 1, 0, 0, TOKENS, 0, whole);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t i = 0; i < OUT; i++)
            assert_true(fabs((double)whole[t * OUT + i] - wanted[t][i]) <= 2e-6);
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
    const nib_query here = {
        .fact = {[NIB_FACT_OP] = NIB_OP_GATED_DELTA, [NIB_FACT_ISA] = nib__cpu_isa()}};
    size_t count = 0;
    fill(rows[0][0], SEQUENCES * TOKENS * X, -1, 1);
    for (int s = 0; s < SEQUENCES; s++)
        for (int64_t t = 0; t < TOKENS; t++) {
            fill(gates[s][t], HEADS, 0, 1);
            fill(gates[s][t] + HEADS, HEADS, 0.5F, 1);
        }
    for (int64_t head = 0; head < HEADS; head++)
        define_head(1, head);
    for (size_t i = 0; i < nib__family_delta.count; i++) {
        const nib_kernel *row = &nib__family_delta.rows[i];
        if (row->op != NIB_OP_GATED_DELTA || row->run.any == NULL ||
            !nib__kernel_holds(row, &here, true))
            continue;
        check_row(row);
        count++;
    }
    assert_true(count > 0);
}

static void test_gates(void **unused)
{
    (void)unused;
    static const float b[] = {0, 1.5F, -40, 90, -90}, a[] = {0, 30, -30, 2, -1000},
                       a_log[] = {0, -2, 1, 3, -8}, dt_bias[] = {0, 1, -1, 0.5F, 2};
    enum { COUNT_OF = COUNT(b) };
    float out[2 * COUNT_OF];
    const nib_delta_gates args = {
        .b = b, .a = a, .a_log = a_log, .dt_bias = dt_bias, .out = out, .m = 1, .heads = COUNT_OF};
    const nib_kernel *row = nib__kernel_find("delta_gates_f32__ref");
    assert_non_null(row);
    row->run.delta_gates(&args, 0, 1);
    for (int i = 0; i < COUNT_OF; i++) {
        const double x = (double)a[i] + (double)dt_bias[i],
                     decay = exp(-exp((double)a_log[i]) * (x > 50 ? x : log1p(exp(x))));
        assert_true(fabs((double)out[i] - 1 / (1 + exp(-(double)b[i]))) <= 1e-7);
        assert_true(fabs((double)out[COUNT_OF + i] - decay) <= 1e-7);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows), cmocka_unit_test(test_gates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
