/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights read through their code layout: permuted rows, columns in act-order, scales shared by
 * rows, and the values copied into packed layouts.
 */
#include "scheme.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const int8_t codes[4 * 4] = {0, 1, 2, 3, 4, 5, 6, 7, -1, -2, -3, -4, -5, -6, -7, -8};
static const float scales[4 * 2] = {1, 2, 4, 8, 16, 32, 64, 128};

static nib_weight weight(void)
{
    return (nib_weight){
        .scheme = {.code = NIB_CODE_I8, .group = 2, .symmetric = true},
        .n = 4,
        .k = 4,
        .layout = NIB_LAYOUT_BYTE,
        .codes = codes,
        .scales = scales,
        .scale_type = NIB_TYPE_F32,
        .scale_stride_n = 2,
        .scale_stride_g = 1,
    };
}

static void expect_row(const nib_weight *w, int64_t i, const float want[4])
{
    float row[4];
    nib__weight_row(w, i, row);
    assert_memory_equal(row, want, sizeof row);
}

static void test_permuted_rows(void **state)
{
    (void)state;
    static const int32_t rows[2] = {2, 1};
    nib_weight w = weight();
    w.n = 2;
    w.rows = rows;
    expect_row(&w, 0, (const float[4]){-16, -32, -96, -128});
    expect_row(&w, 1, (const float[4]){16, 20, 48, 56});
    assert_true(nib__weight_scale(&w, 0, 1) == 32);
    assert_int_equal(nib__weight_bytes(&w), 2 * 4 + 2 * 2 * 4);
    assert_int_equal(nib__weight_row_bytes(&w), 4);
}

static void test_columns_in_act_order(void **state)
{
    (void)state;
    static const int32_t order[4] = {3, 0, 2, 1};
    nib_weight w = weight();
    w.order = order;
    expect_row(&w, 1, (const float[4]){20, 56, 48, 16});
}

static void test_shared_scales(void **state)
{
    (void)state;
    nib_weight w = weight();
    w.scale_rows = 3; /* rows 0 to 2 share the first, row 3 has the second */
    expect_row(&w, 2, (const float[4]){-1, -2, -6, -8});
    expect_row(&w, 3, (const float[4]){-20, -24, -56, -64});
    assert_int_equal(nib__weight_bytes(&w), 16 + 2 * 2 * 4);
}

static void test_tensor_scale(void **state)
{
    (void)state;
    static const uint8_t e4m3[8] = {0x38, 0x40, 0x38, 0x38, 0x38, 0x38, 0x38, 0x38}; /* 1, 2, 1.. */
    nib_weight w = weight();
    w.scales = e4m3;
    w.scale_type = NIB_TYPE_E4M3;
    w.tensor_scale = 0.5F;
    expect_row(&w, 0, (const float[4]){0, 0.5F, 2, 3});
}

static void test_copies_scales_and_zeros(void **state)
{
    (void)state;
    static const double wide[8] = {0.1, 2, 3, 4, 5, 6, 7, 8};
    float rounded;
    nib_weight w = weight();
    w.scales = wide;
    w.scale_type = NIB_TYPE_F64;
    nib__weight_put_scales(&w, 0, 0, 1, &rounded, 0);
    assert_true(rounded == 0.1F);
    w.scheme.zero = NIB_ZERO_INT;
    w.zero_type = NIB_TYPE_I8;
    w.zeros = codes;
    int8_t zero;
    nib__weight_put_zeros(&w, 1, 1, 1, &zero, 0);
    assert_int_equal(zero, 3);
    assert_int_equal(nib__weight_int_zero(&w, 1, 1), 3);
}

/* f64 is read as the nearest f32, in whole rows and in pieces. */
static void test_f64(void **state)
{
    (void)state;
    static const double values[2 * 3] = {0.1, 1, 2, 1.0 / 3, 0x1p-200, -1e39};
    static const int32_t rows[2] = {1, 0};
    nib_weight w = {.scheme = {.code = NIB_CODE_F32, .symmetric = true},
                    .n = 2,
                    .k = 3,
                    .layout = NIB_LAYOUT_F64,
                    .codes = values};
    float row[3], piece[2];
    nib__weight_row(&w, 0, row);
    assert_true(row[0] == 0.1F && row[1] == 1 && row[2] == 2);
    w.rows = rows;
    nib__weight_row(&w, 0, row);
    assert_true(row[0] == 1.0F / 3 && row[1] == 0 && row[2] == -INFINITY);
    nib__weight_floats(&w, 1, 1, 2, piece);
    assert_true(piece[0] == 1 && piece[1] == 2);
    assert_int_equal(nib__weight_row_bytes(&w), 24);
    assert_int_equal(nib__weight_bytes(&w), 48);
}

/* Integer zero points stored as floats are read as integers everywhere. */
static void test_float_zeros_read_as_integers(void **state)
{
    (void)state;
    static const nib_type types[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16, NIB_TYPE_F64};
    static const float zeros[8] = {-8, 7, 0, 1, -1, 2, -2, 3};
    for (size_t t = 0; t < COUNT(types); t++) {
        nib_weight w = weight();
        double stored[8];
        if (types[t] == NIB_TYPE_F64)
            for (int i = 0; i < 8; i++)
                stored[i] = (double)zeros[i];
        else
            nib__from_f32(stored, types[t], zeros, 8);
        w.scheme.zero = NIB_ZERO_INT;
        w.zeros = stored;
        w.zero_type = NIB_TYPE_I8;
        w.float_zeros = types[t];
        for (int64_t i = 0; i < 4; i++)
            for (int64_t g = 0; g < 2; g++) {
                int8_t packed[2] = {0, 99};
                nib__weight_put_zeros(&w, i, g, 1, packed, 0);
                assert_true((float)packed[0] == zeros[2 * i + g]);
                assert_int_equal(packed[1], 99); /* only one byte is written */
                assert_true(nib__weight_zero(&w, i, g) == zeros[2 * i + g]);
                assert_int_equal(nib__weight_int_zero(&w, i, g), (int64_t)zeros[2 * i + g]);
            }
        expect_row(&w, 0, (const float[4]){8, 9, -10, -8});
    }
}

/* I32 zero points, one per scale, read directly and in dequantized values. */
static void test_wide_zeros(void **state)
{
    (void)state;
    static const int32_t zeros[4 * 2] = {0, 1, -2, 3, -128, 127, 6, -7};
    nib_weight w = weight();
    w.scheme.zero = NIB_ZERO_INT;
    w.zero_type = NIB_TYPE_I32;
    w.zeros = zeros;
    for (int64_t i = 0; i < 4; i++)
        for (int64_t g = 0; g < 2; g++) {
            assert_int_equal(nib__weight_int_zero(&w, i, g), zeros[2 * i + g]);
            assert_true(nib__weight_zero(&w, i, g) == (float)zeros[2 * i + g]);
        }
    expect_row(&w, 1, (const float[4]){24, 28, 24, 32});
}

/* Bit by bit: bit i of element j of a line is bit j * bits + i of its words, `stride` apart. */
static void put_element(uint32_t *words, int64_t stride, int64_t j, int bits, int value)
{
    for (int i = 0; i < bits; i++) {
        const int64_t bit = j * bits + i;
        words[bit / 32 * stride] |= (uint32_t)((value + (1 << (bits - 1))) >> i & 1) << bit % 32;
    }
}

/* Codes of 1 to 8 bits, packed without gaps: any part of a row, act-order, zeros along n. */
static void test_packed_words(void **state)
{
    (void)state;
    enum { N = 13, K = 77, G = 2 };
    static const float some[N * G] = {0};
    for (int bits = 1; bits <= 8; bits++) {
        const int64_t row = (K * bits + 31) / 32;
        uint32_t words[N * 20] = {0}, zero_words[4 * G] = {0};
        int8_t want[N][K], zeros[N][G], got[K];
        int32_t order[K];
        unsigned seed = 7;
        for (int64_t i = 0; i < N * K; i++) {
            seed = seed * 1664525U + 1013904223U;
            want[i / K][i % K] = (int8_t)((int)(seed >> 16) % (1 << bits) - (1 << (bits - 1)));
            put_element(words + i / K * row, 1, i % K, bits, want[i / K][i % K]);
        }
        for (int64_t i = 0; i < N * G; i++) {
            zeros[i / G][i % G] = (int8_t)(want[i / G][i % G + 3]);
            put_element(zero_words + i % G, G, i / G, bits, zeros[i / G][i % G]);
        }
        for (int32_t j = 0; j < K; j++)
            order[j] = (j * 5 + 2) % K;
        nib_weight w = {.scheme = {.code = nib__int_code(bits), .group = 64, .zero = NIB_ZERO_INT},
                        .n = N,
                        .k = K,
                        .layout = NIB_LAYOUT_WORDS_ZEROS,
                        .codes = words,
                        .scales = some,
                        .scale_type = NIB_TYPE_F32,
                        .scale_stride_n = G,
                        .scale_stride_g = 1,
                        .zeros = zero_words,
                        .zero_type = NIB_TYPE_I8};
        assert_int_equal(nib__weight_row_bytes(&w), 4 * row);
        for (int64_t i = 0; i < N; i++) {
            for (int64_t k0 = 0; k0 < K; k0 += 3) {
                const int64_t count = nib__min(K - k0, 5 + k0);
                nib__weight_codes(&w, i, k0, count, got);
                assert_memory_equal(got, want[i] + k0, (size_t)count);
            }
            for (int64_t g = 0; g < G; g++)
                assert_int_equal(nib__weight_int_zero(&w, i, g), zeros[i][g]);
            w.order = order;
            nib__weight_codes(&w, i, 0, K, got);
            for (int64_t j = 0; j < K; j++)
                assert_int_equal(got[j], want[i][order[j]]);
            w.order = NULL;
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_permuted_rows),
        cmocka_unit_test(test_columns_in_act_order),
        cmocka_unit_test(test_shared_scales),
        cmocka_unit_test(test_tensor_scale),
        cmocka_unit_test(test_copies_scales_and_zeros),
        cmocka_unit_test(test_f64),
        cmocka_unit_test(test_float_zeros_read_as_integers),
        cmocka_unit_test(test_wide_zeros),
        cmocka_unit_test(test_packed_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
