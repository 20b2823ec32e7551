/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the gated delta rule and of its gates (delta_rows.c) against their definition in f64:
 * any chunks of a text, sequences that share a pass, and tokens that run again after a rollback.
 */
#include "kernel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

enum { KEYS = 2, HEADS = 6, KEY = 24, VALUE = 72 };
enum { BLOCKS = (VALUE + NIB_DELTA_COLUMNS - 1) / NIB_DELTA_COLUMNS };
enum { STATE = HEADS * BLOCKS * KEY * NIB_DELTA_COLUMNS };
enum { X = 2 * KEYS * KEY + HEADS * VALUE, OUT = HEADS * VALUE };

static const nib_matrix_size size = {
    .key_heads = KEYS, .heads = HEADS, .key_dim = KEY, .value_dim = VALUE};

#include "recurrence_rows.h"

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

static void test_rows(void **state)
{
    (void)state;
    check_rows(&(recurrence){.family = &nib__family_delta,
                             .op = NIB_OP_GATED_DELTA,
                             .columns = NIB_DELTA_COLUMNS,
                             .logged = KEYS * KEY,
                             .off = 2e-6});
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
