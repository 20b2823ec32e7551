/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantized biases: int8 codes, scales and values equal torchao's bit for bit
 * (tests/golden/bias_int8.txt); int32 by its formula and limits; which weights accept which form.
 */
#include "bias_codes.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "refused.h"

enum { N_MAX = 128 };

static nib_scheme parsed(const char *name)
{
    nib_scheme s;
    nib_err err;
    if (nib__scheme_parse(&s, name, strlen(name), &err) != NIB_OK)
        fail_msg("%s", err.text);
    return s;
}

/* ---- int8 against torchao ---- */

static size_t unhex(void *out, const char *hex)
{
    size_t count = 0;
    for (unsigned byte; sscanf(hex + 2 * count, "%2x", &byte) == 1; count++)
        ((uint8_t *)out)[count] = (uint8_t)byte;
    return count;
}

static void expect_golden(const char *line)
{
    static char mapping[16], hex[5][8 * N_MAX + 1];
    float values[N_MAX], scales[4], after[N_MAX], wanted[N_MAX];
    int8_t codes[N_MAX], zeros[4];
    int n;
    assert_int_equal(sscanf(line, "%15s %d %1024s %1024s %1024s %1024s %1024s", mapping, &n, hex[0],
                            hex[1], hex[2], hex[3], hex[4]),
                     7);
    const size_t groups = (size_t)(n + 31) / 32;
    assert_int_equal(unhex(values, hex[0]), (size_t)n * 4);
    assert_int_equal(unhex(codes, hex[1]), n);
    assert_int_equal(unhex(scales, hex[2]), groups * 4);
    assert_int_equal(unhex(zeros, hex[3]), groups);
    assert_int_equal(unhex(wanted, hex[4]), (size_t)n * 4);
    const bool symmetric = strcmp(mapping, "symmetric") == 0;
    const nib_allocator a = nib__allocator_default();
    nib_weight w = {.scheme = parsed(symmetric ? "8da4w-g32" : "8da4w-g32-asym"),
                    .n = n,
                    .bias = values,
                    .bias_type = NIB_TYPE_F32};
    nib_arena arena;
    nib_err err;
    double change;
    nib__arena_init(&arena, &a, 0);
    if (nib__bias_code(&w, NIB_BIAS_INT8, &change, &arena, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_int_equal(nib__weight_bias_form(&w), NIB_BIAS_INT8);
    assert_memory_equal(w.bias, codes, (size_t)n);
    assert_memory_equal(w.bias_scales, scales, groups * 4);
    assert_true((w.bias_zeros == NULL) == symmetric);
    if (!symmetric)
        assert_memory_equal(w.bias_zeros, zeros, groups);
    nib__weight_bias(&w, after);
    for (int i = 0; i < n; i++)
        assert_true(after[i] == wanted[i]);
    double largest = 0, lost = 0;
    for (int i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)values[i]));
        lost = fmax(lost, fabs((double)values[i] - (double)wanted[i]));
    }
    assert_true(change == lost / largest && change < 0.01);
    /* and back: exactly the values of the codes */
    assert_int_equal(nib__bias_code(&w, NIB_BIAS_FLOAT, &change, &arena, &err), NIB_OK);
    assert_true(change == 0 && memcmp(w.bias, after, (size_t)n * 4) == 0);
    nib__arena_free(&arena);
}

static void test_int8(void **state)
{
    (void)state;
    static char line[8 * 5 * N_MAX];
    FILE *f = fopen("tests/golden/bias_int8.txt", "r");
    int count = 0;
    assert_non_null(f);
    while (fgets(line, sizeof line, f) != NULL)
        if (line[0] != '#') {
            expect_golden(line);
            count++;
        }
    fclose(f);
    assert_int_equal(count, 10);
}

/* ---- int32 ---- */

static const float act_scale = 0x1p-7f;
static const float row_scales[4] = {0x1p-6f, 0x1p-8f, 0x1p-10f, 0};

static nib_status code_int32(nib_weight *w, const float *values, int32_t out[4], nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    double change;
    *w = (nib_weight){.scheme = parsed("int8dq-static"),
                      .n = 4,
                      .k = 100,
                      .layout = NIB_LAYOUT_BYTE,
                      .scales = row_scales,
                      .scale_type = NIB_TYPE_F32,
                      .scale_stride_n = 1,
                      .act_scale = &act_scale,
                      .bias = values,
                      .bias_type = NIB_TYPE_F32};
    nib__arena_init(&arena, &a, 0);
    const nib_status status = nib__bias_code(w, NIB_BIAS_INT32, &change, &arena, err);
    if (status == NIB_OK)
        memcpy(out, w->bias, 4 * sizeof *out);
    nib__arena_free(&arena);
    w->bias = out;
    return status;
}

static void test_int32(void **state)
{
    (void)state;
    /* steps of 2^-13, 2^-15, 2^-17; ties to even; a zero weight row has no step, and no bias */
    static const float values[4] = {1.5f * 0x1p-13f, -2.5f * 0x1p-15f, 1000, 0};
    nib_weight w;
    nib_err err;
    int32_t codes[4];
    float after[4];
    assert_int_equal(code_int32(&w, values, codes, &err), NIB_OK);
    assert_true(codes[0] == 2 && codes[1] == -2 && codes[2] == 131072000 && codes[3] == 0);
    nib__weight_bias(&w, after);
    assert_true(after[0] == 2 * 0x1p-13f && after[2] == 1000 && after[3] == 0);
}

static void test_int32_limits(void **state)
{
    (void)state;
    static const float large[4] = {0, 0, 17000, 0}, dead[4] = {0, 0, 0, 0.5f};
    nib_weight w;
    nib_err err;
    int32_t codes[4];
    refused(NIB_NOT_AS_ASKED, code_int32(&w, large, codes, &err), &err);
    refused(NIB_NOT_AS_ASKED, code_int32(&w, dead, codes, &err), &err);
}

/* The largest bias plus the largest sum still fits in int32. */
static void test_largest_bias_fits_int32(void **state)
{
    (void)state;
    static const struct {
        const char *scheme;
        int64_t code, act;
    } cases[] = {{"int8dq-static", 128, 255},
                 {"int8dq-static", 255, 255},
                 {"int8dq-static", 128, 128},
                 {"8da4w-row-static", 8, 255},
                 {"8da4w-row-static-asym", 15, 255}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_scheme s = parsed(cases[i].scheme);
        s.act_symmetric = cases[i].act == 128;
        s.zero = cases[i].code % 2 == 0 ? NIB_ZERO_NONE : NIB_ZERO_INT;
        for (int64_t k = 1; k <= 1 << 15; k *= 2) {
            assert_null(nib__bias_int32_refuses(&s, k));
            const int64_t most = nib__bias_int32_most(&s, k);
            assert_true(most >= 1);
            assert_int_equal(most + k * cases[i].code * cases[i].act, INT32_MAX);
        }
        assert_non_null(nib__bias_int32_refuses(&s, (1 << 15) + 1));
    }
}

/* ---- requests ---- */

static void test_which_weights_allow_which_bias(void **state)
{
    (void)state;
    static const struct {
        const char *scheme;
        nib_bias asked, done; /* NIB_BIAS_NONE: refused */
    } cases[] = {
        {"8da4w-g32", NIB_BIAS_INT8, NIB_BIAS_INT8},
        {"fp8dq", NIB_BIAS_INT8, NIB_BIAS_INT8},
        {"bf16", NIB_BIAS_INT8, NIB_BIAS_FLOAT},
        {"bf16", NIB_BIAS_INT32, NIB_BIAS_FLOAT},
        {"int8dq", NIB_BIAS_FLOAT, NIB_BIAS_FLOAT},
        {"int8dq-static", NIB_BIAS_INT32, NIB_BIAS_INT32},
        {"int8dq", NIB_BIAS_INT32, NIB_BIAS_NONE},           /* each token has a scale */
        {"8da4w-g32-static", NIB_BIAS_INT32, NIB_BIAS_NONE}, /* each group has a scale */
        {"int8wo", NIB_BIAS_INT32, NIB_BIAS_NONE},           /* float activations */
        {"fp8dq", NIB_BIAS_INT32, NIB_BIAS_NONE},            /* float sums */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const nib_scheme s = parsed(cases[i].scheme);
        nib_bias form = cases[i].asked;
        nib_err err = {NIB_OK, ""};
        const nib_status status = nib__bias_allowed(&form, "m", &s, 64, &err);
        if (cases[i].done == NIB_BIAS_NONE)
            refused(NIB_NOT_AS_ASKED, status, &err);
        else {
            assert_int_equal(status, NIB_OK);
            assert_int_equal(form, cases[i].done);
        }
    }
}

static void test_parse(void **state)
{
    (void)state;
    nib_bias form;
    nib_err err;
    assert_true(nib__bias_parse(&form, NULL, &err) == NIB_OK && form == NIB_BIAS_NONE);
    assert_true(nib__bias_parse(&form, "int32", &err) == NIB_OK && form == NIB_BIAS_INT32);
    refused(NIB_USAGE, nib__bias_parse(&form, "none", &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8),
        cmocka_unit_test(test_int32),
        cmocka_unit_test(test_int32_limits),
        cmocka_unit_test(test_largest_bias_fits_int32),
        cmocka_unit_test(test_which_weights_allow_which_bias),
        cmocka_unit_test(test_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
