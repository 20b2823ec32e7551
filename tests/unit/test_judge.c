/* SPDX-License-Identifier: Apache-2.0
 *
 * judge.c, judge_rows.c and judge_fit.c: names the formula of rounded codes, tells searched scales
 * from those of formulas, finds one changed code among a million and one changed scale, and says
 * yes to no weight that was not made from the source.
 */
#include "judge.h"

#include "golden_scheme.h"
#include "machine.h"
#include "quantizer.h"
#include "skipping.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

enum { N = 1024, K = 1024, CELLS = N * K, FEWER = 256 };

static nib_allocator heap;
static nib_pool *pool;
static int64_t rows; /* of the weights of a test */
static float source[CELLS];
static int8_t codes[CELLS];
static uint8_t scales[4 * CELLS], zeros[4 * CELLS];

static const char *const schemes[] = {"int8wo",
                                      "int8wo-g32",
                                      "int8wo-g64-asym",
                                      "int8wo-tensor",
                                      "int4wo",
                                      "int4wo-sym",
                                      "int4wo-g128",
                                      "int4wo-intzero",
                                      "int4wo-row",
                                      "int3wo",
                                      "int6wo-asym",
                                      "int2wo-floatzero",
                                      "int4wo-tinygemm",
                                      "8da4w-g64-asym",
                                      "int4wo-ggml",
                                      "int4wo-sym-ggml",
                                      "int8wo-g32-ggml",
                                      "fp8wo",
                                      "fp8wo-tensor",
                                      "mxfp4",
                                      "mxfp4-floor",
                                      "mxfp8",
                                      "nvfp4",
                                      "nvfp4-block",
                                      "q2_k",
                                      "q3_k",
                                      "q4_k",
                                      "q5_k",
                                      "q6_k"};

static float round_as(nib_type type, float x)
{
    uint64_t room;
    nib__from_f32(&room, type, &x, 1);
    nib__to_f32(&x, &room, type, 1);
    return x;
}

/* Sums of uniform numbers, of a type. */
static void fill(float *x, nib_type type, uint64_t seed)
{
    for (int64_t i = 0; i < rows * K; i++) {
        float sum = 0;
        for (int j = 0; j < 4; j++) {
            seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            sum += (float)(int32_t)(seed >> 32) * 0x1p-31f;
        }
        x[i] = round_as(type, sum * 0.05f);
    }
}

static int set_up(void **state)
{
    (void)state;
    nib_err err;
    heap = nib__allocator_default();
    return nib__pool_open(&pool, 3, &heap, &err) == NIB_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    nib__pool_close(pool);
    return 0;
}

static nib_weight plain(float *values)
{
    return (nib_weight){.scheme = {.code = NIB_CODE_F32, .symmetric = true},
                        .n = rows,
                        .k = K,
                        .layout = NIB_LAYOUT_FLOAT,
                        .codes = values};
}

/* Quantizes the source. */
static nib_weight quantize(const char *name, nib_type type, nib_ptq_method method)
{
    static nib_quantizer q;
    const nib_scheme s = golden_scheme(name);
    nib_weight w;
    nib_err err;
    float range[2] = {0, 0};
    assert_int_equal(nib__quantizer_init(&q, &s, type, K, &err), NIB_OK);
    assert_int_equal(nib__quantizer_method(&q, method, NULL, &err), NIB_OK);
    if (nib__quantizer_needs_scan(&q)) {
        assert_int_equal(nib__quantizer_scan(&q, source, 0, rows, range, &err), NIB_OK);
        assert_int_equal(nib__quantizer_set_range(&q, range, &err), NIB_OK);
        if (nib__quantizer_is_one(&q))
            nib__quantizer_store_tensor_scale(&q, scales, zeros);
    }
    nib_quantized out = {codes, scales, zeros, 0, 0, {0, 0}};
    assert_int_equal(nib__quantizer_quantize_rows(&q, source, 0, rows, &out, &err), NIB_OK);
    nib__quantizer_describe_weight(&w, &q, rows, codes, scales, zeros);
    return w;
}

/* The source is f32 in memory; its values are exact in the type that the schemes were told. */
static nib_judgement judge(const nib_weight *w, nib_type type)
{
    static uint16_t halves[CELLS];
    nib_weight from = plain(source);
    nib_judgement out;
    nib_err err;
    if (type != NIB_TYPE_F32) {
        nib__from_f32(halves, type, source, rows * K);
        from.scheme.code = nib__float_code(type);
        from.codes = halves;
    }
    const nib_judge_pair pair = {.weight = w, .source = &from, .pool = pool, .allocator = &heap};
    if (nib__judge_weight(&out, &pair, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return out;
}

static void expect(const char *what, const nib_judgement *j, nib_origin origin)
{
    if (j->verdict != origin)
        fail_msg("%s: is %s, not %s: %s", what, nib__origins[j->verdict].name,
                 nib__origins[origin].name, j->text);
}

/* A code of the scheme other than this one. */
static int8_t other_code(const nib_weight *w, int8_t code)
{
    if (nib__codes[w->scheme.code].element == NIB_ELEMENT_I4)
        return (int8_t)(code < 0 ? code + 1 : code - 1);
    return (int8_t)(code ^ 1);
}

static void test_rounded(void **state)
{
    (void)state;
    rows = FEWER;
    const nib_type types[] = {NIB_TYPE_BF16, NIB_TYPE_F32, NIB_TYPE_F16};
    for (size_t i = 0; i < COUNT(schemes); i++) {
        const nib_type type = types[i % 3];
        fill(source, type, i + 1);
        const nib_weight w = quantize(schemes[i], type, NIB_PTQ_RTN);
        const nib_judgement j = judge(&w, type);
        expect(schemes[i], &j, NIB_ORIGIN_ROUNDED);
        assert_int_equal(j.altered, 0);
    }
}

static void test_one_changed_code_in_a_million(void **state)
{
    (void)state;
    rows = N;
    for (size_t i = 0; i < COUNT(schemes); i += (size_t)sampled(3)) {
        const nib_type type = i % 2 == 0 ? NIB_TYPE_F32 : NIB_TYPE_BF16;
        fill(source, type, 100 + i);
        const nib_weight w = quantize(schemes[i], type, NIB_PTQ_RTN);
        const int64_t at = 123457 * (int64_t)(i + 1) % CELLS;
        const int8_t was = codes[at], is = other_code(&w, was);
        codes[at] = is;
        const nib_judgement j = judge(&w, type);
        expect(schemes[i], &j, NIB_ORIGIN_ALTERED);
        assert_int_equal(j.altered, 1);
        assert_int_equal(j.place_count, 1);
        assert_false(j.places[0].is_scale);
        assert_int_equal(j.places[0].row, at / K);
        assert_int_equal(j.places[0].column, at % K);
        assert_true(j.places[0].found == nib__weight_value(&w, is, 1, 0));
        assert_true(j.places[0].expected == nib__weight_value(&w, was, 1, 0));
    }
}

static void test_one_changed_scale(void **state)
{
    (void)state;
    rows = FEWER;
    for (size_t i = 0; i < COUNT(schemes); i++) {
        fill(source, NIB_TYPE_F32, 200 + i);
        const nib_weight w = quantize(schemes[i], NIB_TYPE_F32, NIB_PTQ_RTN);
        if (w.scheme.group == NIB_GROUP_TENSOR)
            continue; /* then every code is another one */
        const int64_t groups = nib__scheme_groups(&w.scheme, K), g = 77 * groups + groups / 2;
        scales[g * (nib__type_bits(w.scale_type) / 8)] ^= 1;
        const nib_judgement j = judge(&w, NIB_TYPE_F32);
        expect(schemes[i], &j, NIB_ORIGIN_ALTERED);
        assert_int_equal(j.altered, 1);
        assert_true(j.places[0].is_scale);
        assert_int_equal(j.places[0].row, 77);
        assert_int_equal(j.places[0].column, groups / 2 * nib__scheme_group_size(&w.scheme, K));
    }
}

static void test_searched(void **state)
{
    (void)state;
    rows = FEWER;
    const char *const some[] = {
        "int4wo", "int4wo-sym", "8da4w-g64-asym", "nvfp4", "int4wo-sym-ggml",
        "q2_k",   "q3_k",       "q4_k",           "q5_k",  "q6_k"};
    for (size_t i = 0; i < COUNT(some); i++) {
        fill(source, NIB_TYPE_F32, 300 + i);
        const nib_weight w = quantize(some[i], NIB_TYPE_F32, NIB_PTQ_SEARCH);
        const nib_judgement j = judge(&w, NIB_TYPE_F32);
        expect(some[i], &j, NIB_ORIGIN_SEARCHED);
    }
}

/* In weights of a few thousand codes each changed code is found, or counted as one at the border;
 * many of those of bf16 lie within the error of an arithmetic in bf16. */
static void test_one_changed_code_of_few(void **state)
{
    (void)state;
    rows = 8;
    const char *const some[] = {"int8wo", "int8wo-g32", "int4wo-sym", "fp8wo"};
    int at_border = 0;
    for (int i = 0; i < 60; i++) {
        const char *name = some[i % 4];
        fill(source, NIB_TYPE_BF16, 800 + (uint64_t)i);
        const nib_weight w =
            quantize(name, NIB_TYPE_BF16, i % 3 != 0 ? NIB_PTQ_SEARCH : NIB_PTQ_RTN);
        nib_judgement j = judge(&w, NIB_TYPE_BF16);
        assert_true(j.verdict == NIB_ORIGIN_ROUNDED || j.verdict == NIB_ORIGIN_SEARCHED);
        assert_int_equal(j.altered, 0);
        const int64_t at = 5003 * (int64_t)(i + 1) % (rows * K);
        codes[at] = other_code(&w, codes[at]);
        j = judge(&w, NIB_TYPE_BF16);
        if (j.verdict != NIB_ORIGIN_ALTERED && j.verdict != NIB_ORIGIN_UNKNOWN) {
            assert_non_null(strstr(j.text, "1 of 8192 codes lie at the border of two"));
            at_border++;
        }
        assert_int_equal(j.altered, 1);
        assert_int_equal(j.places[0].row, at / K);
        assert_int_equal(j.places[0].column, at % K);
    }
    assert_in_range(at_border, 0, 6);
}

/* Q8_0's formula clips to -127, which a format for codes to -128 may hold. */
static void test_clipped_codes(void **state)
{
    (void)state;
    rows = FEWER;
    for (uint64_t seed = 900; seed < 908; seed++) {
        fill(source, NIB_TYPE_F16, seed);
        const nib_weight w = quantize("int8wo-g32-ggml", NIB_TYPE_F16, NIB_PTQ_SEARCH);
        const nib_judgement j = judge(&w, NIB_TYPE_F16);
        expect("int8wo-g32-ggml", &j, NIB_ORIGIN_SEARCHED);
    }
}

/* A block of ggml's Q5_1: f16 scale and lowest value, bit 4 of 32 codes, their lower bits. */
static void put_q5_1(uint8_t *block, const float *x)
{
    float low = x[0], high = x[0];
    uint32_t fifth = 0;
    for (int j = 1; j < 32; j++) {
        low = fminf(low, x[j]);
        high = fmaxf(high, x[j]);
    }
    const float scale = (high - low) / 31, inverse = 1 / scale;
    nib__from_f32(block, NIB_TYPE_F16, &scale, 1);
    nib__from_f32(block + 2, NIB_TYPE_F16, &low, 1);
    for (int j = 0; j < 16; j++) {
        const uint32_t a = (uint32_t)((x[j] - low) * inverse + 0.5f),
                       b = (uint32_t)((x[16 + j] - low) * inverse + 0.5f);
        block[8 + j] = (uint8_t)((a & 15) | (b & 15) << 4);
        fifth |= (a >> 4) << j | (b >> 4) << (16 + j);
    }
    memcpy(block + 4, &fifth, sizeof fifth);
}

/* Codes are taken under scales and zeros before these are rounded to f16. */
static void test_q5_1(void **state)
{
    (void)state;
    static uint8_t blocks[CELLS / 32 * 24];
    rows = FEWER;
    for (uint64_t seed = 1000; seed < 1008; seed++) {
        nib_weight w;
        fill(source, NIB_TYPE_F32, seed);
        for (int64_t b = 0; b < rows * K / 32; b++)
            put_q5_1(blocks + 24 * b, source + 32 * b);
        assert_true(nib__block_weight(&w, NIB_TYPE_Q5_1, rows, K, blocks));
        nib_judgement j = judge(&w, NIB_TYPE_F32);
        expect("q5_1", &j, NIB_ORIGIN_ROUNDED);
        blocks[24 * 777 + 9] ^= 2;
        j = judge(&w, NIB_TYPE_F32);
        expect("q5_1", &j, NIB_ORIGIN_ALTERED);
    }
}

/* Weights that were not made from the source: none may be accounted for. */
static void test_no_false_yes(void **state)
{
    (void)state;
    rows = FEWER;
    for (size_t i = 0; i < COUNT(schemes); i++) {
        fill(source, NIB_TYPE_F32, 400 + i);
        const nib_weight w = quantize(schemes[i], NIB_TYPE_F32, NIB_PTQ_RTN);
        fill(source, NIB_TYPE_F32, 500 + i); /* another model */
        nib_judgement j = judge(&w, NIB_TYPE_F32);
        expect(schemes[i], &j, NIB_ORIGIN_OTHER);
        fill(source, NIB_TYPE_F32, 400 + i);
        for (int64_t at = 0; at < rows * K; at++) /* one trained a little further */
            source[at] += (float)(at * 7919 % 1024 - 512) * 1e-5f;
        j = judge(&w, NIB_TYPE_F32);
        if (nib__origins[j.verdict].accounted)
            fail_msg("%s: %s: %s", schemes[i], nib__origins[j.verdict].name, j.text);
    }
}

/* Codes as error feedback leaves them: each column's rounding error goes into the next column. */
static void test_feedback(void **state)
{
    (void)state;
    rows = FEWER;
    fill(source, NIB_TYPE_F32, 600);
    const nib_weight w = quantize("int4wo-sym", NIB_TYPE_F32, NIB_PTQ_RTN);
    for (int64_t i = 0; i < rows; i++) {
        float error = 0;
        for (int64_t j = 0; j < K; j++) {
            const float scale = nib__weight_scale(&w, i, j / 32);
            const float wanted = source[i * K + j] + 0.3f * error;
            const float code = fmaxf(-8, fminf(7, rintf(wanted / scale)));
            error = wanted - code * scale;
            codes[i * K + j] = (int8_t)code;
        }
    }
    const nib_judgement j = judge(&w, NIB_TYPE_F32);
    expect("int4wo-sym", &j, NIB_ORIGIN_FEEDBACK);
}

static void test_scaled_and_rotated(void **state)
{
    (void)state;
    rows = FEWER;
    fill(source, NIB_TYPE_F32, 700);
    for (int64_t i = 0; i < rows * K; i++)
        source[i] *= 0.5f + (float)(i % K % 7);
    nib_weight w = quantize("int4wo", NIB_TYPE_F32, NIB_PTQ_RTN);
    fill(source, NIB_TYPE_F32, 700);
    nib_judgement j = judge(&w, NIB_TYPE_F32);
    expect("inputs scaled", &j, NIB_ORIGIN_SCALED);
    for (int64_t i = 0; i < rows * K; i += 2) { /* each pair of inputs, by 45 degrees */
        const float a = source[i], b = source[i + 1];
        source[i] = (a - b) * 0x1.6a09e6p-1f;
        source[i + 1] = (a + b) * 0x1.6a09e6p-1f;
    }
    w = quantize("int8wo", NIB_TYPE_F32, NIB_PTQ_RTN);
    fill(source, NIB_TYPE_F32, 700);
    j = judge(&w, NIB_TYPE_F32);
    expect("rotated", &j, NIB_ORIGIN_ROTATED);
}

static void test_values(void **state)
{
    (void)state;
    float a[4] = {1, 2, 1.0009765625f, 4}, b[4] = {1, 2, 1.0009765625f, 4};
    nib_judgement j;
    nib__judge_values(&j, a, NIB_TYPE_F32, b, NIB_TYPE_F32, 4);
    assert_int_equal(j.verdict, NIB_ORIGIN_SAME);
    a[2] = 1;
    nib__judge_values(&j, a, NIB_TYPE_BF16, b, NIB_TYPE_F32, 4);
    assert_int_equal(j.verdict, NIB_ORIGIN_CAST);
    nib__judge_values(&j, a, NIB_TYPE_F32, b, NIB_TYPE_F32, 4);
    assert_int_equal(j.verdict, NIB_ORIGIN_ALTERED);
    assert_int_equal(j.place_count, 1);
    assert_int_equal(j.places[0].column, 2);
    a[0] = -4, a[1] = 3, a[3] = -1;
    nib__judge_values(&j, a, NIB_TYPE_F32, b, NIB_TYPE_F32, 4);
    assert_int_equal(j.verdict, NIB_ORIGIN_OTHER);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounded),
        cmocka_unit_test(test_one_changed_code_in_a_million),
        cmocka_unit_test(test_one_changed_scale),
        cmocka_unit_test(test_searched),
        cmocka_unit_test(test_one_changed_code_of_few),
        cmocka_unit_test(test_clipped_codes),
        cmocka_unit_test(test_q5_1),
        cmocka_unit_test(test_no_false_yes),
        cmocka_unit_test(test_feedback),
        cmocka_unit_test(test_scaled_and_rotated),
        cmocka_unit_test(test_values),
    };
    return cmocka_run_group_tests_name("judge", tests, set_up, tear_down);
}
