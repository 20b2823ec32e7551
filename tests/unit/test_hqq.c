/* SPDX-License-Identifier: Apache-2.0
 *
 * The method `hqq`: no group is worse than rounding in the sum of |error|^(11/16), every code that
 * it changed is the nearest under the stored scale and zero, the zero is nearly the best of a fine
 * grid, its codes do not depend on the size of the weights, and all rows give the same bits.
 */
#include "golden_scheme.h"
#include "machine.h"
#include "quantizer.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "quantized_rows.h"
#include "refused.h"

/* All formulas with float zeros, with and without a short last group. */
static const char *const schemes[] = {"int4wo-g32", "int4wo-g16",      "int4wo-g64",
                                      "int4wo-row", "int4wo-tinygemm", "int4wo-ggml"};

/* The sum of |error|^(11/16) of group g of row i. */
static double error_of(const result *r, const float *x, int64_t i, int64_t g)
{
    const int64_t k = r->q.k, size = nib__scheme_group_size(&r->q.scheme, k);
    float row[K_MAX];
    double sum = 0;
    nib__weight_row(&r->w, i, row);
    for (int64_t j = g * size; j < k && j < (g + 1) * size; j++)
        sum += pow(fabs((double)x[i * k + j] - (double)row[j]), 11.0 / 16);
    return sum;
}

static void test_no_group_is_worse(void **state)
{
    static float x[CELLS];
    static result rounded, moved;
    static const nib_type sources[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16};
    (void)state;
    for (size_t s = 0; s < COUNT(schemes); s++)
        for (size_t t = 0; t < COUNT(sources); t++)
            for (int64_t k = 128; k <= K_MAX; k += K_MAX - 128) {
                double before = 0, after = 0;
                make_rows(x, sources[t], k, (unsigned)(s + 100 * t));
                quantize(&rounded, schemes[s], sources[t], k, x, NULL, NIB_PTQ_RTN, NULL);
                quantize(&moved, schemes[s], sources[t], k, x, NULL, NIB_PTQ_HQQ, NULL);
                for (int64_t i = 0; i < ROWS; i++)
                    for (int64_t g = 0; g < moved.q.groups; g++) {
                        const double a = error_of(&rounded, x, i, g), b = error_of(&moved, x, i, g);
                        if (b > a * (1 + 1e-4) + 1e-9)
                            fail_msg("%s, row %d, group %d: %.9g after %.9g", schemes[s], (int)i,
                                     (int)g, b, a);
                        before += a;
                        after += b;
                    }
                /* the reported sums are those of the stored values */
                assert_true(fabs(moved.sums.objective[0] - before) <= 1e-3 * before);
                assert_true(fabs(moved.sums.objective[1] - after) <= 1e-3 * before);
                if (!(after < 0.99 * before))
                    fail_msg("%s: hqq gains too little, %.9g after %.9g", schemes[s], after,
                             before);
                /* scales are rounding's */
                assert_memory_equal(moved.scales, rounded.scales, sizeof moved.scales);
            }
}

static void test_codes_are_nearest(void **state)
{
    static float x[CELLS];
    static result rounded, r;
    int changed = 0;
    (void)state;
    for (size_t s = 0; s < COUNT(schemes); s++) {
        make_rows(x, NIB_TYPE_F32, 128, (unsigned)s);
        quantize(&rounded, schemes[s], NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_RTN, NULL);
        quantize(&r, schemes[s], NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_HQQ, NULL);
        const int64_t size = nib__scheme_group_size(&r.q.scheme, 128);
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t j = 0; j < 128; j++) {
                const float value = x[i * 128 + j], scale = nib__weight_scale(&r.w, i, j / size),
                            zero = nib__weight_zero(&r.w, i, j / size);
                const int8_t own = r.codes[i * 128 + j];
                if (zero == nib__weight_zero(&rounded.w, i, j / size))
                    continue; /* rounding's codes */
                changed++;
                const double lost =
                    fabs((double)value - (double)nib__weight_value(&r.w, own, scale, zero));
                for (int code = -8; code <= 7; code++)
                    assert_true(fabs((double)value -
                                     (double)nib__weight_value(&r.w, (int8_t)code, scale, zero)) >=
                                lost - 1e-5 * fabs((double)value));
            }
    }
    assert_true(changed > 2000);
}

/* 400 zeros per group of 32, within a step of rounding's, each with the nearest codes. */
static void test_near_the_optimum(void **state)
{
    static float x[CELLS];
    static result rounded, moved;
    double before = 0, after = 0, least = 0;
    (void)state;
    make_rows(x, NIB_TYPE_F32, 128, 7);
    quantize(&rounded, "int4wo-g32", NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_RTN, NULL);
    quantize(&moved, "int4wo-g32", NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_HQQ, NULL);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t g = 0; g < 4; g++) {
            const float s = nib__weight_scale(&rounded.w, i, g);
            double best = INFINITY;
            for (int step = -200; step <= 200; step++) {
                const float zero = nib__weight_zero(&rounded.w, i, g) + s * (float)step / 200;
                double sum = 0;
                for (int64_t j = 32 * g; j < 32 * g + 32; j++) {
                    const float v = x[i * 128 + j];
                    const float code = fmaxf(-8, fminf(7, rintf((v - zero) / s)));
                    sum += pow(fabs((double)v - (double)(code * s + zero)), 11.0 / 16);
                }
                best = sum < best ? sum : best;
            }
            before += error_of(&rounded, x, i, g);
            after += error_of(&moved, x, i, g);
            least += best;
        }
    if (!(before - after >= 0.4 * (before - least)))
        fail_msg("%.9g of rounding, %.9g by hqq, at least %.9g", before, after, least);
}

/* Weights 2^10 times as large have the same codes. */
static void test_size_changes_no_code(void **state)
{
    static float x[CELLS];
    static result one, other;
    (void)state;
    make_rows(x, NIB_TYPE_F32, 128, 5);
    quantize(&one, "int4wo-g32", NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_HQQ, NULL);
    for (int64_t i = 0; i < CELLS; i++)
        x[i] *= 1024;
    quantize(&other, "int4wo-g32", NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_HQQ, NULL);
    for (int64_t i = 0; i < ROWS * 128; i++) /* a group of zeros has the formula's smallest scale */
        if (i / 32 != 1)
            assert_int_equal(one.codes[i], other.codes[i]);
}

static void test_rows_agree(void **state)
{
    static float x[CELLS];
    static result one, other;
    const nib_quant_w_run run = nib__quant_w_best(nib__cpu_isa());
    (void)state;
    for (size_t s = 0; s < COUNT(schemes); s++) {
        make_rows(x, NIB_TYPE_BF16, K_MAX, (unsigned)s);
        quantize(&one, schemes[s], NIB_TYPE_BF16, K_MAX, x, NULL, NIB_PTQ_HQQ, NULL);
        quantize(&other, schemes[s], NIB_TYPE_BF16, K_MAX, x, NULL, NIB_PTQ_HQQ, run);
        assert_memory_equal(one.codes, other.codes, sizeof one.codes);
        assert_memory_equal(one.scales, other.scales, sizeof one.scales);
        assert_memory_equal(one.zeros, other.zeros, sizeof one.zeros);
        assert_memory_equal(&one.sums.signal, &other.sums.signal, 4 * sizeof(double));
    }
}

/* Values for which scales are denormal or infinite. */
static void test_extremes(void **state)
{
    static const float values[] = {0, 1e-45F, 1e-38F, 1e-30F, 1, 60000, 1e30F, 3e38F};
    static float x[CELLS];
    static result rounded, moved;
    int compared = 0;
    (void)state;
    for (size_t s = 0; s < COUNT(schemes); s++)
        for (size_t v = 0; v < COUNT(values); v++) {
            for (int64_t i = 0; i < ROWS * 128; i++)
                x[i] = i % 3 == 0 ? values[v] : i % 3 == 1 ? -values[v] / 2 : 0;
            const nib_status status =
                try_quantize(&rounded, schemes[s], NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_RTN, NULL);
            assert_int_equal(
                try_quantize(&moved, schemes[s], NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_HQQ, NULL),
                status);
            if (status != NIB_OK)
                continue; /* no scale holds the range */
            compared++;
            for (int64_t i = 0; i < ROWS; i++)
                for (int64_t g = 0; g < moved.q.groups; g++) {
                    const double a = error_of(&rounded, x, i, g), b = error_of(&moved, x, i, g);
                    /* values round to f32, which is all that some of them lose */
                    const double all = pow((double)values[v], 11.0 / 16) * 64;
                    if (!(b <= a * (1 + 1e-4) + 4e-5 * all) && isfinite(a))
                        fail_msg("%s of %g: %g after %g", schemes[s], (double)values[v], b, a);
                }
        }
    assert_true(compared > 35);
}

static void test_others_are_refused(void **state)
{
    static const char *const others[] = {"int4wo-sym", "8da4w",  "int4wo-intzero", "int8wo-asym",
                                         "mxfp4",      "nvfp4",  "q4_k",           "q6_k",
                                         "fp8wo",      "int8wo", "int8dq-tensor"};
    (void)state;
    for (size_t i = 0; i < COUNT(others); i++) {
        nib_quantizer q;
        nib_err err = {0};
        const nib_scheme s = golden_scheme(others[i]);
        assert_int_equal(nib__quantizer_init(&q, &s, NIB_TYPE_F32, 256, &err), NIB_OK);
        refused(NIB_UNSUPPORTED, nib__quantizer_method(&q, NIB_PTQ_HQQ, NULL, &err), &err);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_group_is_worse),  cmocka_unit_test(test_codes_are_nearest),
        cmocka_unit_test(test_near_the_optimum),   cmocka_unit_test(test_size_changes_no_code),
        cmocka_unit_test(test_rows_agree),         cmocka_unit_test(test_extremes),
        cmocka_unit_test(test_others_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
