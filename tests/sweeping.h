/* SPDX-License-Identifier: Apache-2.0
 *
 * Sweeps of the methods gptq and qronos over random rows of K inputs, which the includer defines,
 * checked against E from its definition.
 */
#ifndef SWEEPING_H
#define SWEEPING_H

#include "gptq_run.h"
#include "machine.h"
#include "moments_factor.h"
#include "quantizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

enum { N = 37, TOKENS = 700 };

static float x[TOKENS][K], weights[N][K];
static double want[K * K];      /* H in f64 */
static float apart[TOKENS][K];  /* the inputs in another model, less x */
static float difference[K * K]; /* apart^T x */

static float next_float(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (float)((double)(*seed >> 11) * 0x1p-52 - 1);
}

/* Inputs that depend on each other, one of them always 0. */
static void make_values(void)
{
    uint64_t seed = 7;
    for (int t = 0; t < TOKENS; t++)
        for (int j = 0; j < K; j++)
            x[t][j] = j == 5 ? 0
                             : next_float(&seed) * (j % 17 == 3 ? 8.0F : 1.0F) +
                                   (j > 0 ? 0.7F * x[t][j - 1] : 0);
    for (int i = 0; i < N; i++)
        for (int j = 0; j < K; j++) { /* exact in bf16 */
            uint16_t code;
            const float value = next_float(&seed);
            nib__from_f32(&code, NIB_TYPE_BF16, &value, 1);
            nib__to_f32(&weights[i][j], &code, NIB_TYPE_BF16, 1);
        }
    for (int i = 0; i < K; i++)
        for (int j = i; j < K; j++)
            for (int t = 0; t < TOKENS; t++)
                want[i * K + j] += (double)x[t][i] * (double)x[t][j];
    for (int t = 0; t < TOKENS; t++)
        for (int j = 0; j < K; j++)
            apart[t][j] = 0.1F * x[t][(j * 7 + 3) % K] - 0.05F * x[t][j];
    for (int i = 0; i < K; i++)
        for (int j = 0; j < K; j++) {
            double sum = 0;
            for (int t = 0; t < TOKENS; t++)
                sum += (double)apart[t][i] * (double)x[t][j];
            difference[i * K + j] = (float)sum;
        }
}

/* H with a damped diagonal. */
static void copy_moments(double *h)
{
    double mean = 0;
    memcpy(h, want, sizeof want);
    for (int j = 0; j < K; j++)
        mean += want[j * K + j] / K;
    for (int j = 0; j < K; j++)
        h[j * K + j] += 0.01 * mean;
}

/* Of `want`, with any rule's order. */
static nib_gptq_factor factor;
static nib_arena factor_memory;
static nib_pool *factor_pool;

static int make_factor(void **state)
{
    static double h[K * K];
    static nib_allocator a; /* which the arena keeps */
    a = nib__allocator_default();
    (void)state;
    make_values();
    memcpy(h, want, sizeof want);
    nib__arena_init(&factor_memory, &a, 0);
    assert_int_equal(nib__pool_open(&factor_pool, 3, &a, NULL), NIB_OK);
    assert_int_equal(nib__gptq_moments(&factor, h, K, "a layer", factor_pool, &factor_memory, NULL),
                     NIB_OK);
    return 0;
}

static int free_factor(void **state)
{
    (void)state;
    nib__pool_close(factor_pool);
    nib__arena_free(&factor_memory);
    return 0;
}

static void set_order(nib_order_rule rule)
{
    assert_int_equal(nib__gptq_factor(&factor, rule, &nib__moments__ref, factor_pool, NULL),
                     NIB_OK);
}

typedef struct coded {
    int8_t codes[N][K];
    float scales[N][K], zeros[N][K]; /* at most, of any type */
    double objective[N][2];
    int32_t failed[N];
} coded;

static void sweep(coded *out, const nib_quantizer *q, nib_order_rule rule, const float *moved,
                  nib_quant_sweep_run run, int64_t step)
{
    static char room[1 << 20];
    static float difference_there[K * K];
    for (int i = 0; i < K; i++)
        for (int j = 0; j < K && moved != NULL; j++)
            difference_there[i * K + j] = moved[factor.order[i] * K + factor.order[j]];
    const nib_quant_sweep a = {.q = q,
                               .rows = weights[0],
                               .n = N,
                               .k = K,
                               .order = factor.order,
                               .place = factor.place,
                               .scales_first = nib__order_has_scales_first(rule, K),
                               .factor = factor.factor,
                               .diagonal = factor.diagonal,
                               .difference = moved != NULL ? difference_there : NULL,
                               .codes = out->codes[0],
                               .scales = out->scales,
                               .zeros = out->zeros,
                               .objective = out->objective[0],
                               .failed = out->failed};
    memset(out, 0, sizeof *out);
    assert_true(nib__quant_sweep_scratch(q) + 64 <= sizeof room);
    for (int64_t i = 0; i < N; i += step)
        run(&a, i, nib__min(i + step, N), room + (64 - (uintptr_t)room % 64) % 64);
}

/* Adds x D H^-1 to a row: Gaussian elimination, which a positive definite H needs no pivots for. */
static void move_target(double *row, const float *moved)
{
    static double h[K * K];
    double by[K] = {0};
    copy_moments(h);
    for (int a = 0; a < K; a++)
        for (int b = 0; b < K; b++) {
            h[b * K + a] = a <= b ? h[a * K + b] : h[b * K + a];
            by[b] += row[a] * (double)moved[a * K + b];
        }
    for (int a = 0; a < K; a++)
        for (int b = a + 1; b < K; b++) {
            const double share = h[b * K + a] / h[a * K + a];
            for (int c = a; c < K; c++)
                h[b * K + c] -= share * h[a * K + c];
            by[b] -= share * by[a];
        }
    for (int a = K - 1; a >= 0; a--) {
        for (int b = a + 1; b < K; b++)
            by[a] -= h[a * K + b] * by[b];
        by[a] /= h[a * K + a];
        row[a] += by[a];
    }
}

/* d H d^T of a row, d from the target. */
static double error_of(const float *row, const float *moved, const nib_weight *of, int64_t i)
{
    static double h[K * K];
    float decoded[K];
    double target[K], sum = 0;
    for (int a = 0; a < K; a++)
        target[a] = (double)row[a];
    if (moved != NULL)
        move_target(target, moved);
    copy_moments(h);
    nib__weight_row(of, i, decoded);
    for (int a = 0; a < K; a++)
        for (int b = 0; b < K; b++)
            sum += (target[a] - (double)decoded[a]) * (target[b] - (double)decoded[b]) *
                   (a <= b ? h[a * K + b] : h[b * K + a]);
    return sum;
}

static nib_quantizer quantizer_of(const char *name)
{
    nib_scheme scheme;
    nib_quantizer q;
    assert_int_equal(nib__scheme_parse(&scheme, name, strlen(name), NULL), NIB_OK);
    assert_int_equal(nib__quantizer_init(&q, &scheme, NIB_TYPE_BF16, K, NULL), NIB_OK);
    assert_int_equal(nib__quantizer_method(&q, NIB_PTQ_SEARCH, NULL, NULL), NIB_OK);
    if (nib__quantizer_needs_scan(&q)) {
        float range[2] = {0, 0};
        assert_int_equal(nib__quantizer_scan(&q, weights[0], 0, N, range, NULL), NIB_OK);
        assert_int_equal(nib__quantizer_set_range(&q, range, NULL), NIB_OK);
    }
    return q;
}

/* The share of rounding's error that is left. */
static double check_scheme(const char *name, nib_order_rule rule, const float *moved)
{
    static coded plain, best;
    nib_weight w;
    double rounding = 0, left = 0;
    const nib_quantizer q = quantizer_of(name);
    set_order(rule);
    sweep(&plain, &q, rule, moved, nib__quant_sweep__ref, 16);
    sweep(&best, &q, rule, moved, nib__quant_sweep_best(nib__cpu_isa()), 3);
    assert_memory_equal(&plain, &best, sizeof plain);
    nib__quantizer_describe_weight(&w, &q, N, plain.codes, plain.scales,
                                   q.zero_type == NIB_TYPE_NONE ? NULL : plain.zeros);
    for (int64_t i = 0; i < N; i++) {
        const double error = error_of(weights[i], moved, &w, i);
        assert_int_equal(plain.failed[i], 0);
        assert_true(plain.objective[i][1] <= plain.objective[i][0]);
        if (!(fabs(error - plain.objective[i][1]) <= 1e-3 * error))
            fail_msg("%s: row %d loses %g, not %g", name, (int)i, error, plain.objective[i][1]);
        rounding += plain.objective[i][0];
        left += plain.objective[i][1];
    }
    if (!(left < 0.8 * rounding))
        fail_msg("%s: %g of rounding's %g is left", name, left, rounding);
    return left / rounding;
}

static nib_order_rule rule_of(const char *name, bool ascending)
{
    const nib_quantizer q = quantizer_of(name);
    return nib__order_of(&q.scheme, K, ascending);
}

#endif
