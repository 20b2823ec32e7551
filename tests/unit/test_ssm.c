/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of the state-space recurrence of Mamba-2 and of its gates (ssm_rows.c) against their
 * definition in f64: any chunks of a text, sequences that share a pass, and tokens that run again
 * after a rollback.
 */
#include "kernel.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

/* A head has a whole block of columns, one of 16, and five more. */
enum { GROUPS = 2, HEADS = 6, ROWS = 24, DIM = 53, STATE = HEADS * ROWS * DIM };
enum { X = 2 * GROUPS * ROWS + HEADS * DIM, OUT = HEADS * DIM };

static const nib_matrix_size size = {
    .key_heads = GROUPS, .heads = HEADS, .key_dim = ROWS, .value_dim = DIM};

#include "recurrence_rows.h"

/* ---- the definition ---- */

static void define_head(int sequence, int64_t head)
{
    static double s[ROWS][DIM];
    memset(s, 0, sizeof s);
    for (int64_t t = 0; t < TOKENS; t++) {
        const float *x = rows[sequence][t] + head * DIM,
                    *b = rows[sequence][t] + OUT + head / (HEADS / GROUPS) * ROWS,
                    *c = b + GROUPS * ROWS;
        const double dt = (double)gates[sequence][t][head],
                     decay = (double)gates[sequence][t][HEADS + head];
        for (int64_t j = 0; j < DIM; j++) {
            double out = (double)skip[head] * (double)x[j];
            for (int64_t n = 0; n < ROWS; n++) {
                s[n][j] = s[n][j] * decay + dt * (double)x[j] * (double)b[n];
                out += s[n][j] * (double)c[n];
            }
            wanted[t][head * DIM + j] = out;
        }
    }
}

/* ---- the rows ---- */

static void test_rows(void **state)
{
    (void)state;
    check_rows(&(recurrence){.family = &nib__family_ssm,
                             .op = NIB_OP_SSM,
                             .columns = NIB_SSM_COLUMNS,
                             .logged = 0,
                             .off = 2e-5});
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
