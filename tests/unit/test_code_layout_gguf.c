/* SPDX-License-Identifier: Apache-2.0
 *
 * GGUF's block types as weights: values equal those of PyPI's gguf bit for bit
 * (tests/golden/gguf_blocks.txt), for any part of a row; and the values copied into packed layouts.
 */
#include "file.h"
#include "scheme.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

typedef struct golden {
    nib_type type;
    int64_t rows, k;
    uint8_t *blocks;
    float *values; /* [rows][k] */
} golden;

static nib_type type_of(const char *name)
{
    for (int t = 0; t < NIB_TYPE_COUNT; t++)
        if (nib__type_is_block((nib_type)t) &&
            strcmp(nib__type_stored_name((nib_type)t), name) == 0)
            return (nib_type)t;
    fail_msg("no type %s", name);
    return NIB_TYPE_NONE;
}

/* Parses the next word of the line as bytes. */
static uint8_t *take_hex(char **at, size_t size)
{
    uint8_t *out = malloc(size);
    assert_non_null(out);
    for (size_t i = 0; i < size; i++, *at += 2)
        assert_int_equal(sscanf(*at, "%2hhx", &out[i]), 1);
    assert_true(**at == ' ' || **at == '\n');
    ++*at;
    return out;
}

/* Calls back for each line of the golden file. */
static int each_golden(void (*look)(const golden *g))
{
    const nib_allocator a = nib__allocator_default();
    char *text, name[16];
    size_t size;
    int lines = 0;
    assert_int_equal(
        nib__file_read(&text, &size, "tests/golden/gguf_blocks.txt", 1 << 20, &a, NULL), NIB_OK);
    for (char *at = strchr(text, '\n') + 1; *at != 0; lines++) {
        golden g;
        int used;
        long long rows, k;
        assert_int_equal(sscanf(at, "%15s %lld %lld %n", name, &rows, &k, &used), 3);
        at += used;
        g = (golden){.type = type_of(name), .rows = rows, .k = k};
        const size_t bytes =
            (size_t)(rows * k / nib__type_block_elements(g.type) * nib__type_block_bytes(g.type));
        g.blocks = take_hex(&at, bytes);
        g.values = (float *)(void *)take_hex(&at, (size_t)(rows * k) * sizeof *g.values);
        look(&g);
        free(g.blocks);
        free(g.values);
    }
    nib__release(&a, text);
    return lines;
}

static nib_weight weight_of(const golden *g)
{
    nib_weight w;
    assert_true(nib__block_weight(&w, g->type, g->rows, g->k, g->blocks));
    return w;
}

/* Compares bits, except the sign of zero: e2m1 has a -0, which ggml reads as 0. */
static void look_at_values(const golden *g)
{
    const nib_weight w = weight_of(g);
    float *row = malloc((size_t)g->k * sizeof *row);
    for (int64_t i = 0; i < g->rows; i++) {
        nib__weight_row(&w, i, row);
        for (int64_t j = 0; j < g->k; j++) {
            const float want = g->values[i * g->k + j];
            if (memcmp(&row[j], &want, sizeof want) != 0 && !(row[j] == 0 && want == 0))
                fail_msg("%s, row %d, column %d: %a is not %a", nib__type_name(g->type), (int)i,
                         (int)j, (double)row[j], (double)want);
        }
    }
    free(row);
}

static void test_values(void **state)
{
    (void)state;
    assert_int_equal(each_golden(look_at_values), 24);
}

/* Reading part of a row equals that part of the whole row. */
static void look_at_parts(const golden *g)
{
    const nib_weight w = weight_of(g);
    int8_t *whole = malloc((size_t)g->k), *part = malloc((size_t)g->k);
    for (int64_t i = 0; i < g->rows; i++) {
        nib__weight_codes(&w, i, 0, g->k, whole);
        for (int64_t k0 = 0; k0 < g->k; k0 += 7)
            for (int64_t count = 1; k0 + count <= g->k; count = count * 2 + 1) {
                memset(part, 99, (size_t)g->k);
                nib__weight_codes(&w, i, k0, count, part);
                assert_memory_equal(part, whole + k0, (size_t)count);
                if (count < g->k)
                    assert_int_equal(part[count], 99);
            }
    }
    free(whole);
    free(part);
}

static void test_parts(void **state)
{
    (void)state;
    assert_int_equal(each_golden(look_at_parts), 24);
}

/* A packed scale has the weight's scale type and loses nothing. */
static void look_at_packing(const golden *g)
{
    const nib_weight w = weight_of(g);
    const int64_t groups = nib__scheme_groups(&w.scheme, w.k);
    assert_true(nib__weight_holds_scales(&w));
    assert_int_equal(nib__weight_bytes(&w), g->rows * g->k / nib__type_block_elements(g->type) *
                                                nib__type_block_bytes(g->type));
    for (int64_t i = 0; i < g->rows; i++)
        for (int64_t group = 0; group < groups; group++) {
            float packed, value;
            const float scale = nib__weight_scale(&w, i, group);
            nib__weight_put_scales(&w, i, group, 1, &packed, 0);
            nib__to_f32(&value, &packed, w.scale_type, 1);
            assert_true(value == scale);
            if (g->type == NIB_TYPE_Q6_K) {
                uint16_t half;
                int8_t s[16];
                nib__weight_q6_k(&w, i, group / 16 * 16, &half, s);
                assert_true(nib__f16_to_f32(half) * (float)s[group % 16] == scale);
            }
            if (w.scheme.zero == NIB_ZERO_NONE)
                continue;
            nib__weight_put_zeros(&w, i, group, 1, &packed, 0);
            nib__to_f32(&value, &packed, w.zero_type, 1);
            assert_true(value == nib__weight_zero(&w, i, group));
        }
}

static void test_packed_scales_lose_nothing(void **state)
{
    (void)state;
    assert_int_equal(each_golden(look_at_packing), 24);
}

/* Adding 8 scales gives a zero point that f32 rounds, so values are off by its last bit. */
static void test_rounded_zero_point(void **state)
{
    (void)state;
    uint8_t block[20] = {0};
    const uint16_t d = nib__f32_to_f16(0x1.004p-10F), m = nib__f32_to_f16(0x1.554p12F);
    memcpy(block, &d, 2);
    memcpy(block + 2, &m, 2);
    for (int i = 4; i < 20; i++)
        block[i] = (uint8_t)(i * 13);
    nib_weight w;
    float row[32];
    assert_true(nib__block_weight(&w, NIB_TYPE_Q4_1, 1, 32, block));
    nib__weight_row(&w, 0, row);
    for (int j = 0; j < 32; j++) {
        const int q = block[4 + j % 16] >> j / 16 * 4 & 15;
        const float want = (float)q * nib__f16_to_f32(d) + nib__f16_to_f32(m);
        assert_true(fabsf(row[j] - want) <= 0x1p-11F);
    }
}

static void test_types_and_sizes(void **state)
{
    (void)state;
    nib_weight w;
    assert_false(nib__block_weight(&w, NIB_TYPE_F32, 1, 32, NULL));
    assert_false(nib__type_is_block(NIB_TYPE_F32));
    assert_int_equal(nib__type_block_elements(NIB_TYPE_F32), 1);
    assert_int_equal(nib__type_find("Q4_0", 4), NIB_TYPE_NONE); /* not a dtype of safetensors */
    uint64_t bytes;
    assert_true(nib__tensor_bytes(&bytes, NIB_TYPE_Q6_K, (const int64_t[]){3, 512}, 2));
    assert_int_equal(bytes, 3 * 2 * 210);
    assert_false(nib__tensor_bytes(&bytes, NIB_TYPE_Q6_K, (const int64_t[]){3, 500}, 2));
    assert_false(nib__tensor_bytes(&bytes, NIB_TYPE_Q6_K,
                                   (const int64_t[]){INT64_C(1) << 33, INT64_C(1) << 33}, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_parts),
        cmocka_unit_test(test_packed_scales_lose_nothing),
        cmocka_unit_test(test_rounded_zero_point),
        cmocka_unit_test(test_types_and_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
