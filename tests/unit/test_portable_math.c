/* SPDX-License-Identifier: Apache-2.0
 *
 * exp, log, sin and cos differ from libm by at most a few units in the last place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>
#include <float.h>
#include <math.h>

#include "base.h"
#include "portable_math.h"

static double ulps(double got, double want)
{
    return got == want ? 0.0 : fabs(got - want) / (fabs(want) * DBL_EPSILON + DBL_MIN);
}

/* The largest difference over evenly spaced points in [low, high]. */
static double worst(double (*ours)(double), double (*theirs)(double), double low, double high)
{
    double most = 0.0;
    for (int i = 0; i <= 200000; i++) {
        const double x = low + (high - low) * i / 200000.0;
        most = fmax(most, ulps(ours(x), theirs(x)));
    }
    return most;
}

static void test_close_to_libm(void **state)
{
    (void)state;
    assert_true(worst(nib__exp, exp, -700.0, 700.0) <= 4.0);
    assert_true(worst(nib__exp, exp, -1.0, 1.0) <= 3.0);
    assert_true(worst(nib__log, log, 1e-300, 1e-290) <= 3.0);
    assert_true(worst(nib__log, log, 1.5, 1e9) <= 3.0);
    /* near the zeros of sin and cos only the absolute error is small: 2^31 takes 31 bits of the
     * reduction */
    for (int i = 0; i < 200000; i++) {
        const double x = i * 0.7311 + 1e-3;
        assert_true(fabs(nib__sin(x) - sin(x)) < 1e-15);
        assert_true(fabs(nib__cos(x) - cos(x)) < 1e-15);
    }
}

static void test_edges(void **state)
{
    (void)state;
    assert_true(nib__exp(0.0) == 1.0);
    assert_true(nib__exp(-1000.0) == 0.0);
    assert_true(isinf(nib__exp(1000.0)));
    assert_true(isnan(nib__exp(NAN)));
    double many[] = {1, -1000, 0, NAN, 1000, -INFINITY, 0.5, -2, 1, INFINITY, -708};
    double each[COUNT(many)];
    memcpy(each, many, sizeof each);
    nib__exp_each(each, COUNT(each));
    for (size_t i = 0; i < COUNT(many); i++) {
        const double alone = nib__exp(many[i]);
        assert_memory_equal(&each[i], &alone, sizeof alone);
    }
    assert_true(nib__log(1.0) == 0.0);
    assert_true(isinf(nib__log(0.0)) && nib__log(0.0) < 0);
    assert_true(isnan(nib__log(-1.0)));
    assert_true(nib__sin(0.0) == 0.0);
    assert_true(nib__cos(0.0) == 1.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_close_to_libm),
                                       cmocka_unit_test(test_edges)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
