/* SPDX-License-Identifier: Apache-2.0
 *
 * The method `search`: every code is the nearest under its stored scale, no group is worse than
 * rounding, the optimum is nearly that of an exhaustive search, and all rows give the same bits.
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

/* All kinds of scales and zeros, with and without a short last group. */
static const char *const schemes[] = {
    "int4wo-g32-sym", "int4wo-g32",     "int4wo-g16",  "8da4w-g32",       "8da4w-g32-asym",
    "8da4w-row",      "int8wo",         "int8wo-asym", "int8wo-g32",      "int8dq",
    "fp8wo",          "fp8dq",          "mxfp8",       "mxfp4",           "mxfp4-floor",
    "nvfp4",          "nvfp4-block",    "int4wo-ggml", "int8wo-g32-ggml", "int4wo-sym-ggml",
    "int4wo-intzero", "int4wo-tinygemm"};

/* Weighted squared error of row i, of group g only if it is not -1. */
static double error_of(const result *r, const float *x, const float *importance, int64_t i,
                       int64_t g)
{
    const int64_t k = r->q.k, size = nib__scheme_group_size(&r->q.scheme, k);
    float row[K_MAX];
    double sum = 0;
    nib__weight_row(&r->w, i, row);
    for (int64_t j = 0; j < k; j++)
        if (g == -1 || j / size == g) {
            const double lost = (double)x[i * k + j] - (double)row[j];
            sum += (importance != NULL ? (double)importance[j] : 1) * lost * lost;
        }
    return sum;
}

static void fill_importance(float *importance, int64_t k)
{
    for (int64_t j = 0; j < k; j++)
        importance[j] = expf(2 * (float)rand() / (float)RAND_MAX - 1);
}

static void test_no_group_is_worse(void **state)
{
    static float x[CELLS], importance[K_MAX];
    static result rounded, searched;
    static const nib_type sources[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16};
    (void)state;
    for (size_t s = 0; s < COUNT(schemes); s++)
        for (size_t t = 0; t < COUNT(sources); t++)
            for (int64_t k = 128; k <= K_MAX; k += K_MAX - 128) {
                make_rows(x, sources[t], k, (unsigned)(s + 100 * t));
                fill_importance(importance, k);
                const float *w = t == 1 ? NULL : importance;
                quantize(&rounded, schemes[s], sources[t], k, x, w, NIB_PTQ_RTN, NULL);
                quantize(&searched, schemes[s], sources[t], k, x, w, NIB_PTQ_SEARCH, NULL);
                double before = 0, after = 0;
                for (int64_t i = 0; i < ROWS; i++)
                    for (int64_t g = 0; g < searched.q.groups; g++) {
                        const double a = error_of(&rounded, x, w, i, g),
                                     b = error_of(&searched, x, w, i, g);
                        if (b > a * (1 + 1e-4))
                            fail_msg("%s, row %d, group %d: %.9g after %.9g", schemes[s], (int)i,
                                     (int)g, b, a);
                        before += a;
                        after += b;
                    }
                /* the reported sums are those of the stored values */
                assert_true(fabs(searched.sums.objective[0] - before) <= 1e-4 * before);
                assert_true(fabs(searched.sums.objective[1] - after) <= 1e-4 * before);
                /* a scale of e4m3 codes gains only where codes are denormal or clipped */
                if (!(after < before) && rounded.q.scheme.code != NIB_CODE_MX8)
                    fail_msg("%s: search gains nothing", schemes[s]);
            }
}

/* The distance of x from the value of a code. */
static double distance(const result *r, float x, int64_t i, int64_t g, int code)
{
    const float scale = nib__weight_scale(&r->w, i, g), zero = nib__weight_zero(&r->w, i, g);
    return fabs((double)x - (double)nib__weight_value(&r->w, (int8_t)code, scale, zero));
}

/* The least squared error of a group under its stored scale. */
static double least_error(const result *r, const float *x, int64_t i, int64_t g, int64_t size)
{
    double sum = 0;
    for (int64_t j = g * size; j < (g + 1) * size; j++) {
        double best = (double)INFINITY;
        for (int code = 0; code < 16; code++)
            best = fmin(best, distance(r, x[i * 128 + j], i, g, code));
        sum += best * best;
    }
    return sum;
}

/* Scales of a byte: no other one of all is better by more than a percent of the error. */
static void test_all_byte_scales(void **state)
{
    static const char *const names[] = {"mxfp4", "mxfp4-floor", "nvfp4", "nvfp4-block"};
    static float x[CELLS];
    static result r;
    (void)state;
    for (size_t s = 0; s < COUNT(names); s++) {
        double found = 0, best = 0;
        make_rows(x, NIB_TYPE_F32, 128, (unsigned)s);
        quantize(&r, names[s], NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_SEARCH, NULL);
        const int64_t size = nib__scheme_group_size(&r.q.scheme, 128);
        const bool is_e4m3 = r.q.scale_type == NIB_TYPE_E4M3;
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t g = 0; g < r.q.groups; g++) {
                uint8_t *scale = &r.scales[i * r.q.groups + g];
                const uint8_t stored = *scale;
                double least = least_error(&r, x, i, g, size);
                found += least;
                for (int code = is_e4m3 ? 8 : 1; code <= (is_e4m3 ? 0x7e : 254); code++) {
                    *scale = (uint8_t)code;
                    least = fmin(least, least_error(&r, x, i, g, size));
                }
                *scale = stored;
                best += least;
            }
        if (!(found <= 1.01 * best))
            fail_msg("%s: %g is left, %g of the best scales", names[s], found, best);
    }
}

static void test_codes_are_nearest(void **state)
{
    static float x[CELLS];
    static result r;
    (void)state;
    for (size_t s = 0; s < COUNT(schemes); s++) {
        make_rows(x, NIB_TYPE_F32, 128, (unsigned)s);
        quantize(&r, schemes[s], NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_SEARCH, NULL);
        const nib_element element = nib__codes[r.q.scheme.code].element;
        const bool is_8 = element == NIB_ELEMENT_I8, is_4 = element == NIB_ELEMENT_I4;
        const int low = is_8 ? -127 : is_4 ? -8 : 0;
        const int high = is_8 ? 127 : is_4 ? 7 : element == NIB_ELEMENT_E2M1 ? 15 : 255;
        const int64_t size = nib__scheme_group_size(&r.q.scheme, 128);
        for (int64_t i = 0; i < ROWS; i++)
            for (int64_t j = 0; j < 128; j++) {
                const float value = x[i * 128 + j];
                const double own = distance(&r, value, i, j / size, r.codes[i * 128 + j]);
                for (int code = low; code <= high; code++) {
                    if (element == NIB_ELEMENT_E4M3 && (code & 0x7f) == 0x7f)
                        continue; /* NaN */
                    if (distance(&r, value, i, j / size, code) < own - 1e-5 * fabs((double)value))
                        fail_msg("%s, row %d, column %d: code %d is nearer to %.9g than %d",
                                 schemes[s], (int)i, (int)j, code, (double)value,
                                 r.codes[i * 128 + j]);
                }
            }
    }
}

/* 2,000 scales per group of 32, each with the nearest codes. */
static void test_near_the_optimum(void **state)
{
    static float x[CELLS], importance[K_MAX];
    static result rounded, searched;
    double before = 0, after = 0, least = 0;
    (void)state;
    make_rows(x, NIB_TYPE_F32, 128, 7);
    fill_importance(importance, 128);
    quantize(&rounded, "int4wo-g32-sym", NIB_TYPE_F32, 128, x, importance, NIB_PTQ_RTN, NULL);
    quantize(&searched, "int4wo-g32-sym", NIB_TYPE_F32, 128, x, importance, NIB_PTQ_SEARCH, NULL);
    for (int64_t i = 0; i < ROWS; i++)
        for (int64_t g = 0; g < 4; g++) {
            const float scale = nib__weight_scale(&rounded.w, i, g);
            double best = INFINITY;
            for (int step = 0; step < 2000; step++) {
                const float s = scale * (0.4F + 0.0005F * (float)step);
                double sum = 0;
                for (int64_t j = 32 * g; j < 32 * g + 32; j++) {
                    const float v = x[i * 128 + j];
                    const float code = fmaxf(-8, fminf(7, rintf(v / s)));
                    sum += (double)importance[j] * pow((double)(v - code * s), 2);
                }
                best = sum < best ? sum : best;
            }
            before += error_of(&rounded, x, importance, i, g);
            after += error_of(&searched, x, importance, i, g);
            least += best;
        }
    assert_true(before - after >= 0.93 * (before - least));
}

/* An input with nearly all the weight loses nearly nothing. */
static void test_importance_decides(void **state)
{
    static float x[CELLS], importance[K_MAX];
    static result plain, weighted;
    (void)state;
    make_rows(x, NIB_TYPE_F32, 128, 3);
    for (int64_t j = 0; j < 128; j++)
        importance[j] = j % 32 == 5 ? 1 : 1e-6F;
    quantize(&plain, "int4wo-g32-sym", NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_SEARCH, NULL);
    quantize(&weighted, "int4wo-g32-sym", NIB_TYPE_F32, 128, x, importance, NIB_PTQ_SEARCH, NULL);
    double one = 0, other = 0;
    for (int64_t i = 0; i < ROWS; i++) {
        one += error_of(&plain, x, importance, i, -1);
        other += error_of(&weighted, x, importance, i, -1);
    }
    if (!(other < 0.3 * one))
        fail_msg("%.9g, and %.9g without importance", other, one);
}

static void test_rows_agree(void **state)
{
    static float x[CELLS], importance[K_MAX];
    static result one, other;
    const nib_quant_w_run run = nib__quant_w_best(nib__cpu_isa());
    (void)state;
    for (size_t s = 0; s < COUNT(schemes); s++) {
        make_rows(x, NIB_TYPE_BF16, K_MAX, (unsigned)s);
        fill_importance(importance, K_MAX);
        quantize(&one, schemes[s], NIB_TYPE_BF16, K_MAX, x, importance, NIB_PTQ_SEARCH, NULL);
        quantize(&other, schemes[s], NIB_TYPE_BF16, K_MAX, x, importance, NIB_PTQ_SEARCH, run);
        assert_memory_equal(one.codes, other.codes, sizeof one.codes);
        assert_memory_equal(one.scales, other.scales, sizeof one.scales);
        assert_memory_equal(one.zeros, other.zeros, sizeof one.zeros);
        assert_memory_equal(&one.sums.signal, &other.sums.signal, 4 * sizeof(double));
    }
}

/* Values for which scales are denormal, infinite or alone. */
static void test_extremes(void **state)
{
    static const float values[] = {0, 1e-45F, 1e-38F, 1e-30F, 1, 60000, 1e30F, 3e38F};
    static float x[CELLS];
    static result rounded, searched;
    int compared = 0;
    (void)state;
    for (size_t s = 0; s < COUNT(schemes); s++)
        for (size_t v = 0; v < COUNT(values); v++) {
            for (int64_t i = 0; i < ROWS * 128; i++)
                x[i] = i % 3 == 0 ? values[v] : i % 3 == 1 ? -values[v] / 2 : 0;
            const nib_status status =
                try_quantize(&rounded, schemes[s], NIB_TYPE_F32, 128, x, NULL, NIB_PTQ_RTN, NULL);
            assert_int_equal(try_quantize(&searched, schemes[s], NIB_TYPE_F32, 128, x, NULL,
                                          NIB_PTQ_SEARCH, NULL),
                             status);
            if (status != NIB_OK)
                continue; /* no scale holds the range */
            compared++;
            for (int64_t i = 0; i < ROWS; i++) {
                const double a = error_of(&rounded, x, NULL, i, -1),
                             b = error_of(&searched, x, NULL, i, -1);
                if (!(b <= a * (1 + 1e-4)) && isfinite(a))
                    fail_msg("%s of %g: %g after %g", schemes[s], (double)values[v], b, a);
            }
        }
    assert_true(compared > 150);
}

static void test_one_scale_is_refused(void **state)
{
    nib_quantizer q;
    nib_err err = {0};
    const nib_scheme s = golden_scheme("int8dq-tensor");
    (void)state;
    assert_int_equal(nib__quantizer_init(&q, &s, NIB_TYPE_F32, 32, &err), NIB_OK);
    refused(NIB_UNSUPPORTED, nib__quantizer_method(&q, NIB_PTQ_SEARCH, NULL, &err), &err);
    assert_int_equal(nib__quantizer_method(&q, NIB_PTQ_RTN, NULL, &err), NIB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_group_is_worse),  cmocka_unit_test(test_codes_are_nearest),
        cmocka_unit_test(test_all_byte_scales),    cmocka_unit_test(test_near_the_optimum),
        cmocka_unit_test(test_importance_decides), cmocka_unit_test(test_rows_agree),
        cmocka_unit_test(test_extremes),           cmocka_unit_test(test_one_scale_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
