/* SPDX-License-Identifier: Apache-2.0
 *
 * The dialects that store a weight under its own name: the tensors of each, as in docs/formats.md,
 * the bytes of packed codes and zero points, and what each refuses and why.
 */
#include "dialects.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

static nib_output_weight stored(const char *scheme, int64_t n, int64_t k)
{
    nib_output_weight out = {.n = n, .k = k, .source = NIB_TYPE_BF16};
    nib_err err;
    if (nib__scheme_parse(&out.scheme, scheme, strlen(scheme), &err) != NIB_OK)
        fail_msg("%s", err.text);
    out.scale_type = NIB_TYPE_F32;
    out.zero_type = out.scheme.zero == NIB_ZERO_INT     ? NIB_TYPE_I8
                    : out.scheme.zero == NIB_ZERO_FLOAT ? NIB_TYPE_F32
                                                        : NIB_TYPE_NONE;
    return out;
}

/* int4 with integer zeros and float activations: found in files of other tools, but not a recipe.
 */
static nib_output_weight without_act(const char *scheme, int64_t n, int64_t k)
{
    nib_output_weight out = stored(scheme, n, k);
    out.scheme.act = NIB_ACT_FLOAT;
    return out;
}

/* ---- tensors ---- */

/* ".scales F32 [3, 2]"; "-": not stored. */
static const char *say_part(char out[100], const nib_output_part *part)
{
    if (part->suffix == NULL)
        return "-";
    int used = snprintf(out, 100, "%s %s [", part->suffix, nib__type_stored_name(part->type));
    for (int i = 0; i < part->rank; i++)
        used += snprintf(out + used, 100 - (size_t)used, "%s%d", i == 0 ? "" : ", ",
                         (int)part->shape[i]);
    snprintf(out + used, 100 - (size_t)used, "]");
    return out;
}

static void test_tensors(void **state)
{
    (void)state;
    static const struct {
        const nib_dialect_writer *writer;
        const char *scheme;
        int64_t n, k;
        const char *codes, *scales, *zeros, *size;
    } cases[] = {
        {&nib__write_8da4w, "8da4w-g32", 9, 64, ".weight I8 [9, 64]", ".scales F32 [9, 2]",
         ".zeros F32 [9, 2]", "-"},
        {&nib__write_8da4w, "8da4w-g32-asym", 9, 64, ".weight I8 [9, 64]", ".scales F32 [9, 2]",
         ".zeros F32 [9, 2]", "-"},
        {&nib__write_8da4w, "int8dq-actasym", 9, 64, ".weight I8 [9, 64]", ".scales F32 [9]", "-",
         "-"},
        {&nib__write_compressed, "int4wo-g32-sym", 9, 64, ".weight_packed I32 [9, 8]",
         ".weight_scale F32 [9, 2]", "-", ".weight_shape I64 [2]"},
        {&nib__write_compressed, "int3wo-g32", 9, 64, ".weight_packed I32 [9, 6]",
         ".weight_scale F32 [9, 2]", "-", ".weight_shape I64 [2]"},
        {&nib__write_compressed, "int8wo-asym", 9, 67, ".weight_packed I32 [9, 17]",
         ".weight_scale F32 [9, 1]", ".weight_zero_point I32 [3, 1]", ".weight_shape I64 [2]"},
        {&nib__write_compressed, "8da4w-g32-asym", 9, 64, ".weight I8 [9, 64]",
         ".weight_scale F32 [9, 2]", ".weight_zero_point I8 [9, 2]", "-"},
        {&nib__write_compressed, "int8dq-tensor", 9, 67, ".weight I8 [9, 67]",
         ".weight_scale F32 [1]", "-", "-"},
        {&nib__write_compressed, "fp8dq", 9, 67, ".weight F8_E4M3 [9, 67]",
         ".weight_scale F32 [9, 1]", "-", "-"},
        {&nib__write_gguf, "int8wo-g32", 9, 64, ".weight Q8_0 [9, 64]", "-", "-", "-"},
        {&nib__write_gguf, "8da4w-g32", 9, 64, ".weight Q4_0 [9, 64]", "-", "-", "-"},
        {&nib__write_gguf, "int4wo-g32", 9, 64, ".weight Q4_1 [9, 64]", "-", "-", "-"},
        {&nib__write_gguf, "mxfp4", 9, 64, ".weight MXFP4 [9, 64]", "-", "-", "-"},
        {&nib__write_float, "8da4w-g32", 9, 67, ".weight BF16 [9, 67]", "-", "-", "-"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char why[160], said[4][100];
        nib_file_layout layout;
        nib_output_weight w = stored(cases[i].scheme, cases[i].n, cases[i].k);
        const char *refused = cases[i].writer->fit(why, &w);
        if (refused != NULL)
            fail_msg("%s: %s", cases[i].scheme, refused);
        cases[i].writer->layout(&layout, &w);
        assert_string_equal(say_part(said[0], &layout.codes), cases[i].codes);
        assert_string_equal(say_part(said[1], &layout.scales), cases[i].scales);
        assert_string_equal(say_part(said[2], &layout.zeros), cases[i].zeros);
        assert_string_equal(say_part(said[3], &layout.size), cases[i].size);
        /* a scheme without zero points may have to store zeros */
        assert_int_equal(layout.zero_filled,
                         layout.zeros.suffix != NULL && w.zero_type == NIB_TYPE_NONE);
    }
    char why[160], said[100];
    nib_file_layout layout;
    nib_output_weight w = without_act("8da4w-row-asym", 9, 67);
    assert_null(nib__write_compressed.fit(why, &w));
    nib__write_compressed.layout(&layout, &w);
    assert_string_equal(say_part(said, &layout.codes), ".weight_packed I32 [9, 9]");
    assert_string_equal(say_part(said, &layout.zeros), ".weight_zero_point I32 [2, 1]");
    /* e4m3 in blocks of 2 x 32, which may end early */
    w = stored("fp8wo", 9, 67);
    w.scheme.group = 32;
    w.scale_rows = 2;
    assert_null(nib__write_compressed.fit(why, &w));
    nib__write_compressed.layout(&layout, &w);
    assert_string_equal(say_part(said, &layout.codes), ".weight F8_E4M3 [9, 67]");
    assert_string_equal(say_part(said, &layout.scales), ".weight_scale F32 [5, 3]");
}

/* ---- bytes ---- */

/* The first code is in the lowest bits of a little-endian word, as in compressed-tensors. */
static void test_packed_bytes(void **state)
{
    (void)state;
    static const int8_t four[9] = {-8, -7, 0, 7, 1, 2, 3, 4, 5}, eight[5] = {-128, 127, 0, 1, -1};
    static const uint8_t four_packed[8] = {0x10, 0xf8, 0xa9, 0xcb, 0x0d, 0, 0, 0},
                         eight_packed[8] = {0, 255, 128, 129, 127, 0, 0, 0};
    uint8_t out[8];
    static const int8_t three[11] = {-4, -3, 0, 3, 1, 2, -1, -2, 3, 3, -3};
    static const uint8_t three_packed[8] = {0x8, 0x5f, 0x4f, 0x7f, 0, 0, 0, 0};
    nib_file_layout layout = {.pieces = NIB_PIECES_WORDS, .bits = 4};
    assert_int_equal(nib__file_layout_row_bytes(&layout, 9), 8);
    memset(out, 0xee, sizeof out);
    nib__file_layout_row(&layout, four, 9, out);
    assert_memory_equal(out, four_packed, sizeof out);
    layout.bits = 8;
    assert_int_equal(nib__file_layout_row_bytes(&layout, 5), 8);
    memset(out, 0xee, sizeof out);
    nib__file_layout_row(&layout, eight, 5, out);
    assert_memory_equal(out, eight_packed, sizeof out);
    layout.bits = 3; /* the eleventh code begins in the first word and ends in the second */
    assert_int_equal(nib__file_layout_row_bytes(&layout, 11), 8);
    memset(out, 0xee, sizeof out);
    nib__file_layout_row(&layout, three, 11, out);
    assert_memory_equal(out, three_packed, sizeof out);
}

/* Zero points are packed along rows: a word holds one group's of eight or four rows. */
static void test_packed_zeros(void **state)
{
    (void)state;
    static const int8_t zeros[9 * 2] = {-8, 7,  -7, 6,  -6, 5,  -5, 4, -4,
                                        3,  -3, 2,  -2, 1,  -1, 0,  7, -8};
    static const uint32_t four[4] = {0x76543210, 0x89abcdef, 0xf, 0x0};
    static const uint32_t eight[6] = {0x7b7a7978, 0x84858687, 0x7f7e7d7c, 0x80818283, 0x87, 0x78};
    static const uint32_t five[4] = {0x9ac5a928, 0x653a56d7, 0x177b, 0x884};
    const nib_output_part part = {".weight_zero_point", NIB_TYPE_I32, 2, {0, 2}};
    uint32_t out[6] = {0};
    nib__file_layout_values(NIB_ORDER_WORDS, 4, &part, (uint8_t *)out, (const uint8_t *)zeros, 9,
                            2);
    assert_memory_equal(out, four, sizeof four);
    memset(out, 0, sizeof out);
    nib__file_layout_values(NIB_ORDER_WORDS, 8, &part, (uint8_t *)out, (const uint8_t *)zeros, 9,
                            2);
    assert_memory_equal(out, eight, sizeof eight);
    memset(out, 0, sizeof out);
    nib__file_layout_values(NIB_ORDER_WORDS, 5, &part, (uint8_t *)out, (const uint8_t *)zeros, 9,
                            2);
    assert_memory_equal(out, five, sizeof five);
}

/* The writer returns a block's scale and zero point as rounded to f16; exact ones stay. */
static void test_blocks(void **state)
{
    (void)state;
    static const nib_file_layout q4_1 = {.codes = {".weight", NIB_TYPE_Q4_1, 2, {1, 64}},
                                         .pieces = NIB_PIECES_BLOCKS};
    int8_t codes[64];
    uint8_t blocks[40];
    float scales[2] = {0.25F, 1.0F / 3}, zeros[2] = {5, -1.0F / 3};
    for (int j = 0; j < 64; j++)
        codes[j] = (int8_t)(j % 16 - 8);
    assert_int_equal(nib__file_layout_row_bytes(&q4_1, 64), 40);
    assert_true(nib__file_layout_blocks(&q4_1, codes, scales, zeros, 32, blocks));
    assert_true(scales[0] == 0.25F && zeros[0] == 5);
    assert_int_equal(blocks[0] | blocks[1] << 8, 0x3400); /* 0.25 */
    assert_int_equal(blocks[2] | blocks[3] << 8, 0x4200); /* 5 - 8 * 0.25 = 3 */
    assert_false(nib__file_layout_blocks(&q4_1, codes, scales, zeros, 64, blocks));
    assert_true(scales[0] == 0.25F && zeros[0] == 5);
    assert_true(scales[1] == 0x1.554p-2F);                /* a third in f16 */
    assert_true(zeros[1] == -0x1.8p1F + 8 * 0x1.554p-2F); /* -1/3 - 8/3 is -3 */
}

/* ---- refusals ---- */

static void test_refusals(void **state)
{
    (void)state;
    static const struct {
        const nib_dialect_writer *writer;
        const char *scheme;
        int64_t k;
        bool embedding;
        const char *why; /* NULL: accepted */
    } cases[] = {
        {&nib__write_8da4w, "8da4w-g32", 64, false, NULL},
        {&nib__write_8da4w, "8da4w-g32", 65, false,
         "k = 65 is not a multiple of the group size 32"},
        {&nib__write_8da4w, "8da4w-row", 64, false, "int4 must have groups"},
        {&nib__write_8da4w, "8da4w-g32-actsym", 64, false, "int4 layers have asymmetric int8"},
        {&nib__write_8da4w, "4da4w-g32", 64, false, "int4 layers have asymmetric int8"},
        {&nib__write_8da4w, "int4wo-g32-sym", 64, false, "int4 layers have asymmetric int8"},
        {&nib__write_8da4w, "int8dq-actasym", 64, false, NULL},
        {&nib__write_8da4w, "int8dq", 64, false, "int8 layers have asymmetric int8"},
        {&nib__write_8da4w, "int8wo", 64, false, "int8 layers have asymmetric int8"},
        {&nib__write_8da4w, "int8wo", 64, true, NULL},
        {&nib__write_8da4w, "int8wo-g32", 64, true, "int4 in groups and symmetric int8 rows"},
        {&nib__write_8da4w, "fp8wo", 64, false, "int4 in groups and symmetric int8 rows"},
        {&nib__write_compressed, "8da4w-g32-asym", 64, false, NULL},
        {&nib__write_compressed, "8da4w-g32", 65, false, "not a multiple of the group"},
        {&nib__write_compressed, "int4wo-g32", 64, false, "zero points are integers"},
        {&nib__write_compressed, "mxfp8", 64, false, "only integers and e4m3"},
        {&nib__write_compressed, "nvfp4", 64, false, "only integers and e4m3"},
        {&nib__write_compressed, "fp8wo-tensor", 64, false, NULL},
        {&nib__write_gguf, "int8wo-g32", 96, false, NULL},
        {&nib__write_gguf, "int8wo-g32", 65, false, "not a multiple of the group size 32"},
        {&nib__write_gguf, "int8wo-g64", 64, false, "its blocks have 32 codes"},
        {&nib__write_gguf, "int8wo", 32, false, "its blocks have 32 codes"},
        {&nib__write_gguf, "int8wo-g32-asym", 64, false, "its blocks have 32 codes"},
        {&nib__write_gguf, "mxfp8", 64, false, "its blocks have 32 codes"},
        {&nib__write_float, "nvfp4", 48, false, NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char why[160];
        nib_output_weight w = stored(cases[i].scheme, 9, cases[i].k);
        w.embedding = cases[i].embedding;
        const char *said = cases[i].writer->fit(why, &w);
        if ((said == NULL) != (cases[i].why == NULL) ||
            (said != NULL && strstr(said, cases[i].why) == NULL))
            fail_msg("case %zu, %s: %s", i, cases[i].scheme, said == NULL ? "held" : said);
    }
    char why[160];
    nib_output_weight zeros = without_act("8da4w-g32-asym", 9, 64);
    assert_non_null(strstr(nib__write_gguf.fit(why, &zeros), "its blocks have 32 codes"));
    zeros = stored("8da4w-g32-asym", 9, 64);
    zeros.scheme.zero = NIB_ZERO_FLOAT;
    assert_string_equal(nib__write_8da4w.fit(why, &zeros), "its zero points are integers");
}

/* compressed-tensors keeps the order of inputs of packed integers, and stores it for groups. */
static void test_ordered(void **state)
{
    (void)state;
    static const struct {
        const char *scheme;
        const char *inputs; /* NULL: refused */
    } cases[] = {{"int4wo-g32-sym", ".weight_g_idx I32 [64]"},
                 {"int8wo-asym", "-"},
                 {"8da4w-g32-asym", NULL},
                 {"fp8wo", NULL}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        char why[160], said[100];
        nib_file_layout layout;
        nib_output_weight w = stored(cases[i].scheme, 9, 64);
        w.ordered = true;
        const char *refused = nib__write_compressed.fit(why, &w);
        if (refused != NULL) {
            assert_null(cases[i].inputs);
            assert_non_null(strstr(refused, "act-order requires packed integers"));
            continue;
        }
        nib__write_compressed.layout(&layout, &w);
        assert_string_equal(say_part(said, &layout.inputs), cases[i].inputs);
    }
}

/* f64 scales are written as f32, or as f16 or e8m0 in GGUF; GGUF cannot describe activations. */
static void test_types(void **state)
{
    (void)state;
    static const struct {
        const nib_dialect_writer *writer;
        const char *scheme;
        nib_type scales, zeros;
    } cases[] = {
        {&nib__write_8da4w, "8da4w-g32", NIB_TYPE_F32, NIB_TYPE_NONE},
        {&nib__write_8da4w, "8da4w-g32-asym", NIB_TYPE_F32, NIB_TYPE_F32},
        {&nib__write_compressed, "8da4w-g32-asym", NIB_TYPE_F32, NIB_TYPE_I8},
        {&nib__write_gguf, "8da4w-g32", NIB_TYPE_F16, NIB_TYPE_NONE},
        {&nib__write_gguf, "int4wo-g32", NIB_TYPE_F16, NIB_TYPE_F16},
        {&nib__write_gguf, "mxfp4", NIB_TYPE_E8M0, NIB_TYPE_NONE},
        {&nib__write_float, "8da4w-g32", NIB_TYPE_NONE, NIB_TYPE_NONE},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char why[160];
        nib_output_weight w = stored(cases[i].scheme, 9, 64);
        const nib_act asked = w.scheme.act;
        w.scale_type = NIB_TYPE_F64;
        assert_null(cases[i].writer->fit(why, &w));
        assert_int_equal(w.scale_type, cases[i].scales);
        assert_int_equal(w.zero_type, cases[i].zeros);
        const bool silent =
            cases[i].writer == &nib__write_gguf || cases[i].writer == &nib__write_float;
        assert_int_equal(w.scheme.act, silent ? NIB_ACT_FLOAT : asked);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tensors),      cmocka_unit_test(test_packed_bytes),
        cmocka_unit_test(test_packed_zeros), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_ordered),      cmocka_unit_test(test_types),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
