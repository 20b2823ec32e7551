/* SPDX-License-Identifier: Apache-2.0
 *
 * tanh and the soft cap of the lanes against the C library in double. check_kernels compares
 * instruction sets bit for bit through the rows that use them.
 */
#include "cpu/lanes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static float first(nib_lanes x)
{
    float all[16];
    nib__lanes_store(all, x);
    return all[0];
}

static float lanes_tanh(float x) { return first(nib__lanes_tanh(nib__lanes_set(x))); }
static float lanes_cap(float x, float cap)
{
    return first(nib__lanes_softcap(nib__lanes_set(x), nib__lanes_set(cap)));
}

/* Both signs from 2^-30 to 2^5, 2^12 values a binade. */
static void test_tanh(void **state)
{
    (void)state;
    double largest = 0;
    for (int e = -30; e < 5; e++)
        for (int i = 0; i < 1 << 12; i++) {
            const float x = ldexpf(1.0F + (float)i * 0x1p-12F, e);
            const double want = tanh((double)x);
            assert_true(isfinite(lanes_tanh(x)) && isfinite(lanes_tanh(-x))); /* fmax drops NaN */
            largest = fmax(largest, fabs((double)lanes_tanh(x) - want) / want);
            largest = fmax(largest, fabs((double)lanes_tanh(-x) + want) / want);
        }
    print_message("largest relative error of tanh: %.3g\n", largest);
    assert_true(largest <= 2e-7);
}

static void test_tanh_of_edges(void **state)
{
    (void)state;
    assert_true(lanes_tanh(0.0F) == 0.0F);
    assert_true(lanes_tanh(10.0F) == 1.0F && lanes_tanh(-10.0F) == -1.0F);
    assert_true(lanes_tanh(INFINITY) == 1.0F && lanes_tanh(-INFINITY) == -1.0F);
    assert_true(isnan(lanes_tanh(NAN)));
}

static void test_cap(void **state)
{
    (void)state;
    static const float caps[] = {0.5F, 1.0F, 30.0F, 50.0F};
    for (size_t c = 0; c < COUNT(caps); c++)
        for (int i = -2000; i <= 2000; i++) {
            const float x = (float)i * 0.1F, cap = caps[c], got = lanes_cap(x, cap);
            const double want = (double)cap * tanh((double)x / (double)cap);
            assert_true(fabs((double)got - want) <= 3e-7 * fabs(want));
            assert_true(fabsf(got) <= cap);
        }
    assert_true(lanes_cap(INFINITY, 30.0F) == 30.0F && isnan(lanes_cap(NAN, 30.0F)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tanh),
        cmocka_unit_test(test_tanh_of_edges),
        cmocka_unit_test(test_cap),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
