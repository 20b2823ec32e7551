/* SPDX-License-Identifier: Apache-2.0
 *
 * Statistics of src/measure/divergence.c on tokens made here: sums and positions by hand,
 * percentiles against a sorted array, intervals against the normal approximation.
 */
#include "divergence.h"
#include "sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const double step = 0x1p-12; /* relative error of percentiles */

static nib_divergence *must_open_divergence(void)
{
    static nib_allocator allocator;
    nib_divergence *d;
    allocator = nib__allocator_default();
    assert_int_equal(nib__divergence_open(&d, &allocator, NULL), NIB_OK);
    return d;
}

static void add(nib_divergence *d, nib_token_divergence token)
{
    assert_int_equal(nib__divergence_add(d, &token, NULL), NIB_OK);
}

/* Reports and closes. */
static nib_eval_result report(nib_divergence *d)
{
    nib_eval_result r = {0};
    assert_int_equal(nib__divergence_report(d, &r, NULL), NIB_OK);
    nib__divergence_close(d);
    return r;
}

static void assert_near(double value, double wanted)
{
    if (!(fabs(value - wanted) <= 1e-15 * fmax(1, fabs(wanted))))
        fail_msg("%.17g, not %.17g", value, wanted);
}

static void test_sums(void **state)
{
    (void)state;
    static const nib_token_divergence tokens[] = {
        {.kl = 0.5, .loss = 2, .reference_loss = 1, .same_top = true, .position = 7, .unit = 1},
        {.kl = 0.25, .loss = 1, .reference_loss = 2, .position = 8, .unit = 1},
        {.kl = 2, .loss = 4, .reference_loss = 1.5, .position = 31, .token = 9, .unit = 3},
        {.kl = 2, .loss = 3, .reference_loss = 3, .same_top = true, .position = 2047, .unit = 3},
        {.kl = 0, .loss = 1, .reference_loss = 1, .same_top = true, .position = 99999, .unit = 4},
    };
    nib_divergence *d = must_open_divergence();
    for (size_t i = 0; i < COUNT(tokens); i++)
        add(d, tokens[i]);
    const nib_eval_result r = report(d);
    assert_near(r.kl, 0.95);
    assert_near(r.top1_agreement, 0.6);
    assert_near(r.against_loss, 1.7);
    assert_near(r.loss_difference, 0.5);
    assert_true(fabs(r.perplexity_ratio / exp(0.5) - 1) < 1e-15);
    assert_true(r.kl_largest == 2); /* the first of equals */
    assert_int_equal(r.kl_largest_unit, 3);
    assert_int_equal(r.kl_largest_position, 31);
    assert_int_equal(r.kl_largest_token, 9);
    static const int64_t begins[] = {0, 8, 32, 128, 512, 2048}, counts[] = {1, 2, 0, 0, 1, 1};
    static const double means[] = {0.5, 1.125, 0, 0, 2, 0};
    for (size_t i = 0; i < NIB_EVAL_POSITIONS; i++) {
        assert_int_equal(r.position_begin[i], begins[i]);
        assert_int_equal(r.position_predicted[i], counts[i]);
        assert_near(r.position_kl[i], means[i]);
    }
    assert_int_equal(r.units, 3);
    assert_int_equal(r.resamples, 0);
    assert_true(r.kl_interval[1] == 0);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* Nearest rank: the least value that this share of them does not exceed. */
static void assert_percentile(double value, const double *sorted, size_t count, double share)
{
    const double wanted = fmax(0, sorted[(size_t)ceil((double)count * share - 1e-9) - 1]);
    if (!(fabs(value - wanted) <= step * wanted))
        fail_msg("%g %% of %zu values: %.9g, not %.9g", 100 * share, count, value, wanted);
}

static void test_percentiles(void **state)
{
    (void)state;
    static const size_t counts[] = {1, 2, 3, 99, 100, 101, 999, 1000, 1001, 20000};
    static double values[20000];
    for (size_t c = 0; c < COUNT(counts); c++) {
        nib_divergence *d = must_open_divergence();
        for (size_t i = 0; i < counts[c]; i++) { /* from 2^-38 to 2^12 */
            values[i] = exp2(50 * nib__random(1, (int64_t)c, (int64_t)i) - 38);
            add(d, (nib_token_divergence){.kl = values[i]});
        }
        const nib_eval_result r = report(d);
        qsort(values, counts[c], sizeof *values, by_value);
        assert_percentile(r.kl_median, values, counts[c], 0.5);
        assert_percentile(r.kl_p99, values, counts[c], 0.99);
        assert_percentile(r.kl_p999, values, counts[c], 0.999);
        assert_true(r.kl_largest == values[counts[c] - 1]);
    }
}

/* Rounding may give values below 0; the last bin also has what is above all bins. */
static void test_ends_of_the_bins(void **state)
{
    (void)state;
    nib_divergence *d = must_open_divergence();
    for (int i = 0; i < 600; i++)
        add(d, (nib_token_divergence){.kl = i % 2 ? -1e-9 : 0x1p-41});
    for (int i = 0; i < 400; i++)
        add(d, (nib_token_divergence){.kl = 0x1p60});
    const nib_eval_result r = report(d);
    assert_true(r.kl_median == 0);
    assert_true(r.kl_p99 > 0x1p23 && r.kl_p999 == r.kl_p99);
    assert_true(r.kl_largest == 0x1p60);
    d = must_open_divergence();
    add(d, (nib_token_divergence){.kl = -1e-9});
    assert_true(report(d).kl_p999 == 0);
}

/* Units of one, two or three tokens around a mean. */
static nib_eval_result resampled_units(int64_t units, double spread)
{
    nib_divergence *d = must_open_divergence();
    for (int64_t u = 0; u < units; u++) {
        const double kl = 1 + spread * nib__random_normal(5, 0, u);
        for (int64_t i = 0; i <= u % 3; i++)
            add(d, (nib_token_divergence){.kl = kl,
                                          .loss = 3 * kl,
                                          .reference_loss = 2,
                                          .same_top = u % 4 != 0,
                                          .unit = u + 1});
    }
    return report(d);
}

static void test_intervals(void **state)
{
    (void)state;
    nib_eval_result r = resampled_units(9, 0.1);
    assert_true(r.resamples == 0 && r.units == 9 && r.kl_interval[0] == 0);
    r = resampled_units(10, 0);
    assert_true(r.resamples == NIB_EVAL_RESAMPLES && r.units == 10);
    assert_true(r.kl_interval[0] == 1 && r.kl_interval[1] == 1);
    assert_true(r.loss_difference_interval[0] == 1 && r.loss_difference_interval[1] == 1);
    assert_true(fabs(r.perplexity_ratio_interval[0] / exp(1) - 1) < 1e-15);
    enum { UNITS = 900 };
    r = resampled_units(UNITS, 0.1);
    /* standard error of a weighted mean, weights 1, 2, 3: sqrt of 14/3 over 4 times 1/units */
    const double half = 1.96 * 0.1 * sqrt(14.0 / 12 / UNITS);
    const double *kl = r.kl_interval, *difference = r.loss_difference_interval;
    assert_true(kl[0] < r.kl && r.kl < kl[1]);
    assert_true(fabs((kl[1] - kl[0]) / (2 * half) - 1) < 0.1);
    assert_true(fabs((difference[1] - difference[0]) / (3 * (kl[1] - kl[0])) - 1) < 1e-9);
    const double *top = r.top1_agreement_interval;
    const double top_half = 1.96 * sqrt(0.75 * 0.25 * 14 / 12 / UNITS);
    assert_true(top[0] < 0.75 && 0.75 < top[1]);
    assert_true(fabs((top[1] - top[0]) / (2 * top_half) - 1) < 0.1);
    for (size_t i = 0; i < 2; i++)
        assert_true(fabs(r.perplexity_ratio_interval[i] / exp(difference[i]) - 1) < 1e-14);
    const nib_eval_result again = resampled_units(UNITS, 0.1);
    assert_memory_equal(again.kl_interval, r.kl_interval, sizeof r.kl_interval);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sums),
        cmocka_unit_test(test_percentiles),
        cmocka_unit_test(test_ends_of_the_bins),
        cmocka_unit_test(test_intervals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
