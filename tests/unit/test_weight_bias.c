/* SPDX-License-Identifier: Apache-2.0
 *
 * Reading quantized biases: their values, and errors by tensor and value.
 */
#include "checkpoint_build.h"
#include "dialects.h"

#include <math.h>

#define INT8_BIAS                                                                                  \
    "\"m.bias\":\"{\\\"form\\\": \\\"int8\\\", \\\"group\\\": 32, "                                \
    "\\\"symmetric\\\": false, \\\"shape\\\": [35]}\""
#define INT32_BIAS "\"m.bias\":\"{\\\"form\\\": \\\"int32\\\", \\\"shape\\\": [2]}\""

static const int8_t bias_codes[35] = {-128, 127, 5, [31] = -7, [32] = 100, [33] = -100, [34] = 1};
static const float bias_scales[2] = {0.5f, 0.25f};
static const double wide_scales[2] = {0.5, 0.25};
static const part int8_bias[] = {{"m.weight", "BF16", 2, {35, 2}, NULL},
                                 {"m._bias_qdata", "I8", 1, {35}, bias_codes},
                                 {"m._bias_scale", "F32", 1, {2}, bias_scales},
                                 {"m._bias_zero_point", "I8", 1, {2}, "\x80\x01"}};

/* A short last group, zero points at the end of their range, scales of f64. */
static void test_int8_bias(void **state)
{
    (void)state;
    for (int wide = 0; wide < 2; wide++) {
        const nib_allocator a = nib__allocator_default();
        part parts[COUNT(int8_bias)];
        made m;
        nib_weight w;
        nib_ledger ledger;
        nib_err err = {NIB_OK, ""};
        float values[35];
        memcpy(parts, int8_bias, sizeof parts);
        if (wide)
            parts[2] = (part){"m._bias_scale", "F64", 1, {2}, wide_scales};
        open_parts(&m, "\"nibble\":\"1\"," INT8_BIAS, parts, COUNT(parts));
        nib__ledger_init(&ledger, &a);
        if (nib__checkpoint_weight(&w, NULL, m.cp, "m", &ledger, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(nib__weight_bias_form(&w), NIB_BIAS_INT8);
        nib__weight_bias(&w, values);
        for (int i = 0; i < 35; i++)
            assert_true(values[i] ==
                        (float)(bias_codes[i] - (i < 32 ? -128 : 1)) * bias_scales[i / 32]);
        assert_int_equal(ledger.tensor_count, wide);
        nib__ledger_free(&ledger);
        drop_checkpoint(&m);
    }
}

static void test_bad_int8_bias(void **state)
{
    (void)state;
    static const float nan_scales[2] = {0.5f, NAN}, huge_scales[2] = {0.5f, 3e38f};
    static const struct {
        int at;
        part by; /* name NULL: left out */
        nib_status status;
    } cases[] = {
        {1, {"m._bias_qdata", "I8", 1, {34}, NULL}, NIB_BAD_INPUT},
        {1, {"m._bias_qdata", "U8", 1, {35}, NULL}, NIB_BAD_INPUT},
        {1, {"m._bias_qdata", "I8", 2, {35, 1}, NULL}, NIB_BAD_INPUT},
        {1, {"m._bias_data", "I8", 1, {35}, NULL}, NIB_UNSUPPORTED}, /* m._bias_qdata is missing */
        {2, {"m._bias_scale", "I8", 1, {2}, NULL}, NIB_BAD_INPUT},
        {2, {"m._bias_scale", "F32", 1, {3}, NULL}, NIB_BAD_INPUT},
        {2, {"m._bias_scale", "F32", 1, {2}, nan_scales}, NIB_BAD_INPUT},
        {2,
         {"m._bias_scale", "F32", 1, {2}, huge_scales},
         NIB_BAD_INPUT},                                        /* a value overflows f32 */
        {2, {"m._bias_s", "F32", 1, {2}, NULL}, NIB_BAD_INPUT}, /* m._bias_scale is missing */
        {3, {"m._bias_zero_point", "F32", 1, {2}, NULL}, NIB_BAD_INPUT},
        {3, {"m._bias_zero_point", "I32", 1, {2}, NULL}, NIB_BAD_INPUT},
        {3, {"m._bias_z", "I8", 1, {2}, NULL}, NIB_BAD_INPUT}, /* m._bias_zero_point is missing */
        {3, {"m.bias", "F32", 1, {35}, NULL}, NIB_BAD_INPUT},  /* stored twice */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        part parts[COUNT(int8_bias)];
        made m;
        memcpy(parts, int8_bias, sizeof parts);
        parts[cases[i].at] = cases[i].by;
        open_parts(&m, "\"nibble\":\"1\"," INT8_BIAS, parts, COUNT(parts));
        expect_weight(&m, cases[i].status);
        drop_checkpoint(&m);
    }
}

static void test_bad_bias_description(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to;
        nib_status status;
    } cases[] = {
        {"int8", "int7", NIB_UNSUPPORTED}, {": 32", ": 64", NIB_UNSUPPORTED},
        {"false", "true", NIB_BAD_INPUT},  {"[35]", "[36]", NIB_BAD_INPUT},
        {"group", "grope", NIB_BAD_INPUT}, {"m.bias", "n.bias", NIB_BAD_INPUT},
    };
    static const char whole[] = "\"nibble\":\"1\"," INT8_BIAS;
    for (size_t i = 0; i < COUNT(cases); i++) {
        char changed[sizeof whole + 16];
        const char *at = strstr(whole, cases[i].from);
        made m;
        assert_non_null(at);
        snprintf(changed, sizeof changed, "%.*s%s%s", (int)(at - whole), whole, cases[i].to,
                 at + strlen(cases[i].from));
        open_parts(&m, changed, int8_bias, COUNT(int8_bias));
        expect_weight(&m, cases[i].status);
        drop_checkpoint(&m);
    }
    made m; /* described but absent */
    open_parts(&m, whole, int8_bias, 1);
    expect_weight(&m, NIB_BAD_INPUT);
    drop_checkpoint(&m);
}

/* The description and the suffixes of each form. */
static void test_described(void **state)
{
    (void)state;
    static const char *const suffixes[] = {".bias", "._bias_qdata", "._bias_scale",
                                           "._bias_zero_point"};
    const nib_allocator a = nib__allocator_default();
    for (int form = NIB_BIAS_INT8; form <= NIB_BIAS_INT32; form++) {
        nib_text text;
        nib__text_init(&text, &a);
        nib__describe_bias(&text, (nib_bias)form, true, 35);
        assert_true((strstr(text.at, "\"group\": 32, \"symmetric\": true") != NULL) ==
                    (form == NIB_BIAS_INT8));
        assert_non_null(strstr(text.at, "\"shape\": [35]"));
        nib__text_free(&text);
    }
    for (size_t i = 0; i < COUNT(suffixes); i++)
        assert_true(nib__is_bias_part(suffixes[i]));
    assert_false(nib__is_bias_part(".weight"));
}

/* An int32 bias: its values, and the weights that it may accompany. */
static void test_int32_bias(void **state)
{
    (void)state;
    static const int32_t codes[2] = {1000, -3}, wide[2] = {0, INT32_MIN}, high[2] = {0, INT32_MAX};
    static const float act_scale[1] = {0.125f}, scales[2] = {0.5f, 2.0f};
    static const struct {
        const char *scheme;
        const int32_t *codes;
        nib_status status;
    } cases[] = {
        {"int8dq-static", codes, NIB_OK},
        {"int8dq-static", wide, NIB_BAD_INPUT},
        {"int8dq-static", high, NIB_BAD_INPUT},
        {"int8dq-g64-static", codes, NIB_BAD_INPUT}, /* each group has a scale */
        {"int8dq", codes, NIB_BAD_INPUT},            /* each token has a scale */
        {"int8wo", codes, NIB_BAD_INPUT},            /* float activations */
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char metadata[1200], described[1024];
        const part parts[] = {{"m._weight_scale", "F32", 2, {2, 1}, scales},
                              {"m._weight_qdata", "I8", 2, {2, 35}, NULL},
                              {"m.input_scale", "F32", 1, {1}, act_scale},
                              {"m.input_zero_point", "I32", 1, {1}, NULL},
                              {"m._bias_qdata", "I32", 1, {2}, cases[i].codes}};
        made m;
        nib_weight w;
        nib_err err = {NIB_OK, ""};
        float values[2];
        describe_nibble(described, cases[i].scheme, 2, 35);
        snprintf(metadata, sizeof metadata, "%s,%s", described, INT32_BIAS);
        open_parts(&m, metadata, parts, COUNT(parts));
        const nib_status got = nib__checkpoint_weight(&w, NULL, m.cp, "m", NULL, &err);
        if (cases[i].status == NIB_OK) {
            assert_int_equal(got, NIB_OK);
            nib__weight_bias(&w, values);
            assert_true(values[0] == 62.5f && values[1] == -0.75f);
        } else
            refused(cases[i].status, got, &err);
        drop_checkpoint(&m);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_int8_bias),
        cmocka_unit_test(test_bad_int8_bias),
        cmocka_unit_test(test_bad_bias_description),
        cmocka_unit_test(test_described),
        cmocka_unit_test(test_int32_bias),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
