/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods gptq and qronos for schemes whose scales are multiples in super-blocks of 256 inputs:
 * with each instruction set, against E from its definition.
 */
enum { K = 256 };
#include "../sweeping.h"

static const char *const names[] = {"q2_k", "q3_k", "q4_k", "q5_k", "q6_k"};

/* Inputs are coded one by one, also where a receipt names no order. */
static void test_order(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++)
        for (int ascending = 0; ascending < 2; ascending++) {
            const nib_order_rule rule = rule_of(names[i], ascending == 1);
            assert_int_equal(rule.kind, NIB_INPUTS_ONE_BY_ONE);
            assert_true(nib__order_has_scales_first(rule, K));
        }
}

static void test_schemes(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++)
        (void)check_scheme(names[i], rule_of(names[i], false), NULL);
}

static void test_moved(void **state)
{
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++)
        (void)check_scheme(names[i], rule_of(names[i], false), difference);
}

/* Groups of weights that are all 0 have the scale 0, and codes that mean 0. */
static void test_zeros(void **state)
{
    static float kept[N][K];
    static coded out;
    nib_weight w;
    float decoded[K];
    (void)state;
    memcpy(kept, weights, sizeof kept);
    memset(weights[3], 0, sizeof weights[3]);
    for (int j = 0; j < K / 4; j++)
        weights[4][j] = 0;
    for (size_t i = 0; i < COUNT(names); i++) {
        const nib_quantizer q = quantizer_of(names[i]);
        const nib_order_rule rule = rule_of(names[i], false);
        set_order(rule);
        sweep(&out, &q, rule, NULL, nib__quant_sweep_best(nib__cpu_isa()), 16);
        nib__quantizer_describe_weight(&w, &q, N, out.codes, out.scales,
                                       q.zero_type == NIB_TYPE_NONE ? NULL : out.zeros);
        nib__weight_row(&w, 3, decoded);
        for (int j = 0; j < K; j++)
            assert_true(decoded[j] == 0);
        nib__weight_row(&w, 4, decoded);
        for (int j = 0; j < K; j++)
            assert_true(fabsf(decoded[j]) < 4);
    }
    memcpy(weights, kept, sizeof kept);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_moved),
        cmocka_unit_test(test_zeros),
    };
    return cmocka_run_group_tests(tests, make_factor, free_factor);
}
