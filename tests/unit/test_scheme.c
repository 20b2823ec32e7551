/* SPDX-License-Identifier: Apache-2.0
 *
 * Schemes: every name of the grammar parses to its meaning and prints in canonical form; options
 * that do not apply are refused by name. Plain weights in every layout, and ONNX's
 * DequantizeLinear.
 */
#include "file.h"
#include "json.h"
#include "onnx_tensor.h"
#include "scheme.h"
#include "skipping.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "refused.h"

static nib_scheme parse_scheme(const char *name)
{
    nib_scheme s;
    nib_err err = {0};
    if (nib__scheme_parse(&s, name, strlen(name), &err) != NIB_OK)
        fail_msg("%s: %s", name, err.text);
    return s;
}

static void test_canonical_names(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"f32", "f32"},
        {"f16", "f16"},
        {"bf16", "bf16"},
        {"int8wo", "int8wo"},
        {"int8wo-row", "int8wo"},
        {"int8wo-sym", "int8wo"},
        {"int8wo-g64", "int8wo-g64"},
        {"int8wo-tensor", "int8wo-tensor"},
        {"int8wo-asym", "int8wo-asym"},
        {"int8wo-g32-ao017", "int8wo-g32-ao017"},
        {"int8wo-ao017-asym", "int8wo-asym-ao017"},
        {"int8dq", "int8dq"},
        {"int8dq-actsym", "int8dq"},
        {"int8dq-actasym-tensor", "int8dq-tensor-actasym"},
        {"int8dq-static", "int8dq-static"},
        {"int8dq-static-g128", "int8dq-g128-static"},
        {"int4wo", "int4wo-g32"},
        {"int4wo-asym", "int4wo-g32"},
        {"int4wo-row", "int4wo-row"},
        {"int4wo-g128-sym", "int4wo-g128-sym"},
        {"int4wo-sym-ao017", "int4wo-g32-sym-ao017"},
        {"int4wo-tinygemm", "int4wo-g32-tinygemm"},
        {"int8wo-g32-ggml", "int8wo-g32-ggml"},
        {"int4wo-sym-ggml", "int4wo-g32-sym-ggml"},
        {"int4wo-ggml", "int4wo-g32-ggml"},
        {"q2_k", "q2_k"},
        {"q3_k", "q3_k"},
        {"q4_k", "q4_k"},
        {"q5_k", "q5_k"},
        {"q6_k", "q6_k"},
        {"iq4_nl", "iq4_nl"},
        {"8da4w", "8da4w-g32"},
        {"8da4w-g7", "8da4w-g7"},
        {"8da4w-actsym", "8da4w-g32-actsym"},
        {"8da4w-asym-actsym-static-ao017-row", "8da4w-row-asym-actsym-static-ao017"},
        {"4da4w", "4da4w-g32"},
        {"4da4w-actsym-g64", "4da4w-g64-actsym"},
        {"fp8wo", "fp8wo"},
        {"fp8wo-tensor", "fp8wo-tensor"},
        {"fp8dq-row", "fp8dq"},
        {"fp8dq-tensor", "fp8dq-tensor"},
        {"mxfp8", "mxfp8"},
        {"mxfp8-rceil", "mxfp8"},
        {"mxfp8-floor", "mxfp8-floor"},
        {"int4wo-g1073741824", "int4wo-g1073741824"},
        {"int4wo-intzero", "int4wo-g32-intzero"},
        {"int4wo-intzero-row", "int4wo-row-intzero"},
        {"int1wo", "int1wo-g32"},
        {"int2wo-floatzero", "int2wo-g32-floatzero"},
        {"int3wo-asym-g64", "int3wo-g64-asym"},
        {"int5wo-row-sym", "int5wo-row"},
        {"int6wo-ao017", "int6wo-g32-ao017"},
        {"int7wo-floatzero-row", "int7wo-row-floatzero"},
        {"int4wo-ao017-g64-intzero", "int4wo-g64-intzero-ao017"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char name[64];
        const nib_scheme s = parse_scheme(cases[i][0]);
        assert_string_equal(nib__scheme_name(name, &s), cases[i][1]);
        const nib_scheme again = parse_scheme(name);
        assert_true(nib__scheme_equal(&s, &again));
        for (size_t j = 0; j < COUNT(cases); j++) {
            const nib_scheme other = parse_scheme(cases[j][0]);
            assert_int_equal(nib__scheme_equal(&s, &other), strcmp(cases[i][1], cases[j][1]) == 0);
        }
    }
}

static void test_meanings(void **state)
{
    (void)state;
    const nib_scheme bare = parse_scheme("8da4w");
    assert_int_equal(bare.code, NIB_CODE_I4);
    assert_int_equal(bare.group, 32);
    assert_true(bare.symmetric && bare.zero == NIB_ZERO_NONE);
    assert_true(bare.act == NIB_ACT_I8_TOKEN && !bare.act_symmetric);
    const nib_scheme int4 = parse_scheme("int4wo");
    assert_true(!int4.symmetric && int4.zero == NIB_ZERO_FLOAT && int4.act == NIB_ACT_FLOAT);
    assert_true(int4.zero == parse_scheme("int4wo-asym").zero);
    const nib_scheme intzero = parse_scheme("int4wo-intzero");
    assert_true(!intzero.symmetric && intzero.zero == NIB_ZERO_INT && intzero.act == int4.act);
    assert_int_equal(parse_scheme("int4wo-sym").zero, NIB_ZERO_NONE);
    assert_int_equal(parse_scheme("int8wo-asym").zero, NIB_ZERO_INT);
    assert_int_equal(parse_scheme("8da4w-asym").zero, NIB_ZERO_INT);
    const nib_scheme static8 = parse_scheme("8da4w-static");
    assert_true(static8.act == NIB_ACT_I8_STATIC && !static8.act_symmetric);
    assert_true(parse_scheme("int8dq-static").act_symmetric);
    assert_true(parse_scheme("int8dq").act_symmetric &&
                parse_scheme("int8dq").group == NIB_GROUP_ROW);
    assert_int_equal(parse_scheme("4da4w").act, NIB_ACT_I4_TOKEN);
    assert_int_equal(parse_scheme("fp8dq-tensor").act, NIB_ACT_E4M3_TOKEN);
    assert_int_equal(parse_scheme("fp8dq-tensor").group, NIB_GROUP_TENSOR);
    assert_true(parse_scheme("mxfp8").group == 32 && !parse_scheme("mxfp8").mx_floor &&
                parse_scheme("mxfp8-floor").mx_floor);
    assert_true(parse_scheme("nvfp4dq").act == NIB_ACT_NV4 && !parse_scheme("nvfp4dq").block_only &&
                parse_scheme("nvfp4dq-block").block_only &&
                parse_scheme("nvfp4").act == NIB_ACT_FLOAT);
    assert_true(!nib__scheme_is_quantized(&(nib_scheme){.code = NIB_CODE_BF16}));
    assert_true(nib__scheme_is_quantized(&bare));
}

static void test_rejects_bad_names(void **state)
{
    (void)state;
    static const char *const names[] = {
        /* no such scheme */
        "8da4x",
        "banana",
        "",
        "-g32",
        /* a modifier that the scheme does not take */
        "8da4w-tinygemm",
        "int8dq-asym",
        "fp8wo-g32",
        "mxfp8-g64",
        "bf16-g32",
        "int4wo-tensor",
        "int4wo-gx",
        "int4wo-",
        "int4wo--sym",
        "4da4w-static",
        "int8wo-intzero",
        "int3wo-intzero",
        "int4wo-floatzero",
        "int3wo-tensor",
        "int2wo-asym-floatzero",
        "int2wo-floatzero-ao017",
        "8da4w-intzero",
        "8da4w-ggml",
        "q4_k-g32",
        "q6_k-sym",
        "q3_k-asym",
        "iq4_nl-g32",
        "mxfp4-block",
        "nvfp4dq-floor",
        "nvfp4-g16",
        /* a group out of range */
        "int4wo-g0",
        "int4wo-g1073741825",
        "int4wo-g99999999999999999999999999",
        "int4wo-g3x",
        /* control characters */
        "int4wo-g3\x1b[2J",
        "mxfp4-\x1b[2J",
        /* modifiers that repeat or contradict */
        "int4wo-sym-asym",
        "int4wo-g32-row",
        "int4wo-g32-g32",
        "8da4w-static-static",
        "int4wo-sym-asym-intzero",
        "int4wo-asym-intzero",
        /* a format that cannot hold it */
        "int4wo-sym-tinygemm",
        "int4wo-intzero-tinygemm",
        "int4wo-intzero-ggml",
        "int4wo-ao017",
        "int8wo-ao017",
        "int8wo-ggml",
        "int4wo-g64-ggml",
        "int8wo-g32-asym-ggml",
    };
    for (size_t i = 0; i < COUNT(names); i++) {
        nib_scheme s = {.group = 77};
        nib_err err = {0};
        refused(NIB_USAGE, nib__scheme_parse(&s, names[i], strlen(names[i]), &err), &err);
        assert_null(strchr(err.text, '\x1b')); /* no escape reaches a terminal raw */
        assert_int_equal(s.group, 77);         /* unchanged */
    }
    nib_scheme s;
    assert_int_equal(nib__scheme_parse(&s, "int4wo-g32+head", 10, NULL),
                     NIB_OK); /* only `size` bytes */
    assert_int_equal(nib__scheme_parse(&s, "nope", 4, NULL), NIB_USAGE);
}

/* Schemes that no recipe makes have names too, of less than 64 bytes. */
static void test_names_of_other_schemes(void **state)
{
    (void)state;
    char name[64];
    const nib_scheme e5m2 = {.code = NIB_CODE_E5M2, .symmetric = true};
    assert_string_equal(nib__scheme_name(name, &e5m2), "e5m2+float");
    const nib_scheme odd = {.code = NIB_CODE_I8,
                            .group = 1 << 30,
                            .zero = NIB_ZERO_FLOAT,
                            .act = NIB_ACT_E4M3_TOKEN,
                            .formula = NIB_FORMULA_AO017};
    assert_string_equal(nib__scheme_name(name, &odd), "i8+e4m3t-g1073741824-asym-floatzero-ao017");
    const nib_scheme mx4 = {.code = NIB_CODE_MX4, .group = 32, .act = NIB_ACT_MX8};
    assert_string_equal(nib__scheme_name(name, &mx4), "mx4+mx8");
}

static void test_bases(void **state)
{
    (void)state;
    char takes[128];
    size_t count = 0;
    for (; nib__scheme_base(count) != NULL; count++) {
        const nib_scheme_base *base = nib__scheme_base(count);
        const nib_scheme s = parse_scheme(base->name);
        const char *wanted = strcmp(base->name, "fp8wo") == 0  ? "-row and -tensor"
                             : strcmp(base->name, "bf16") == 0 ? ""
                             : strcmp(base->name, "int8dq") == 0
                                 ? "-gN, -row, -tensor, -sym, -actsym, -actasym, -static and -ao017"
                                 : NULL;
        assert_true(nib__scheme_equal(&s, &base->scheme));
        assert_true(base->weights != NULL && base->activations != NULL && base->source != NULL);
        nib__scheme_takes(takes, base->takes);
        if (wanted != NULL)
            assert_string_equal(takes, wanted);
    }
    assert_int_equal(count, 27);
}

static void test_groups(void **state)
{
    (void)state;
    const nib_scheme g = {.code = NIB_CODE_I4, .group = 32};
    assert_int_equal(nib__scheme_groups(&g, 96), 3);
    assert_int_equal(nib__scheme_groups(&g, 97), 4);
    assert_int_equal(nib__scheme_groups(&g, 1), 1);
    assert_int_equal(nib__scheme_group_size(&g, 96), 32);
    const nib_scheme row = {.code = NIB_CODE_I8, .group = NIB_GROUP_ROW};
    assert_int_equal(nib__scheme_groups(&row, 97), 1);
    assert_int_equal(nib__scheme_group_size(&row, 97), 97);
    const nib_scheme tensor = {.code = NIB_CODE_I8, .group = NIB_GROUP_TENSOR};
    assert_int_equal(nib__scheme_groups(&tensor, 97), 1);
}

/* 2 rows of 5 in groups of 2 (the last of 1), unaligned, scales transposed as torchao's Int4Tensor.
 */
static void test_weight_nibbles(void **state)
{
    (void)state;
    const int8_t codes[2][5] = {{-8, 7, 0, 1, -1}, {2, 3, -4, 5, -6}};
    uint8_t bytes[1 + 6], scales[1 + 24], zeros[1 + 24];
    const float scale[3][2] = {{1, 2}, {0.5f, 4}, {8, 0.25f}},
                zero[3][2] = {{0, 1}, {2, 3}, {4, 5}};
    nib__pack_i4(bytes + 1, codes[0], 5);
    nib__pack_i4(bytes + 4, codes[1], 5);
    memcpy(scales + 1, scale, sizeof scale);
    memcpy(zeros + 1, zero, sizeof zero);
    nib_weight w = {
        .scheme = {.code = NIB_CODE_I4, .group = 2, .zero = NIB_ZERO_FLOAT},
        .n = 2,
        .k = 5,
        .layout = NIB_LAYOUT_NIBBLE,
        .codes = bytes + 1,
        .scales = scales + 1,
        .scale_type = NIB_TYPE_F32,
        .scale_stride_n = 1,
        .scale_stride_g = 2,
        .zeros = zeros + 1,
        .zero_type = NIB_TYPE_F32,
    };
    float row[5];
    int8_t some[4];
    nib__weight_codes(&w, 1, 1, 4, some);
    assert_memory_equal(some, codes[1] + 1, 4);
    for (int64_t i = 0; i < 2; i++) {
        nib__weight_row(&w, i, row);
        for (int64_t j = 0; j < 5; j++)
            assert_true(row[j] == (float)codes[i][j] * scale[j / 2][i] + zero[j / 2][i]);
    }
    assert_int_equal(nib__weight_bytes(&w), 6 + 6 * 8);
    w.scheme.zero = NIB_ZERO_INT;
    nib__weight_row(&w, 1, row);
    assert_true(row[2] == (-4.0f - 3) * 4);
    w.scheme.zero = NIB_ZERO_NONE;
    nib__weight_row(&w, 1, row);
    assert_true(row[4] == -6 * 0.25f && nib__weight_zero(&w, 1, 0) == 0);
    assert_int_equal(nib__weight_bytes(&w), 6 + 6 * 4);
}

static void test_weight_bytes_and_floats(void **state)
{
    (void)state;
    const uint8_t codes[] = {0x38, 0xb8, 0x7e, 0x01, 0, 0x40};
    const double scale = 2;
    nib_weight w = {.scheme = {.code = NIB_CODE_E4M3, .group = NIB_GROUP_TENSOR, .symmetric = true},
                    .n = 2,
                    .k = 3,
                    .layout = NIB_LAYOUT_BYTE,
                    .codes = codes,
                    .scales = &scale,
                    .scale_type = NIB_TYPE_F64};
    float row[300];
    nib__weight_row(&w, 0, row);
    assert_true(row[0] == 2 && row[1] == -2 && row[2] == 896);
    nib__weight_row(&w, 1, row);
    assert_true(row[0] == 2 * 0x1p-9f && row[1] == 0 && row[2] == 4);
    assert_int_equal(nib__weight_bytes(&w), 6 + 8);

    const uint8_t e8m0[] = {127, 126};
    const uint8_t mx4[] = {0x21, 0x0f, 0x43, 0x08}; /* 2 rows of 3: .5 1 -6, 1.5 2 -0 */
    w = (nib_weight){.scheme = {.code = NIB_CODE_MX4, .group = 32, .symmetric = true},
                     .n = 2,
                     .k = 3,
                     .layout = NIB_LAYOUT_NIBBLE,
                     .codes = mx4,
                     .scales = e8m0,
                     .scale_type = NIB_TYPE_E8M0,
                     .scale_stride_n = 1,
                     .scale_stride_g = 1};
    nib__weight_row(&w, 0, row);
    assert_true(row[0] == 0.5f && row[1] == 1 && row[2] == -6);
    nib__weight_row(&w, 1, row);
    assert_true(row[0] == 0.75f && row[1] == 1 && row[2] == 0);

    const uint16_t bf16[] = {0x3f80, 0xc000};
    w = (nib_weight){.scheme = {.code = NIB_CODE_BF16},
                     .n = 1,
                     .k = 2,
                     .layout = NIB_LAYOUT_FLOAT,
                     .codes = bf16};
    nib__weight_row(&w, 0, row);
    assert_true(row[0] == 1 && row[1] == -2);
    assert_int_equal(nib__weight_bytes(&w), 4);

    int8_t many[300];
    const float one = 1;
    for (int i = 0; i < 300; i++)
        many[i] = (int8_t)(i % 256 - 128);
    w = (nib_weight){.scheme = {.code = NIB_CODE_I8, .symmetric = true},
                     .n = 1,
                     .k = 300,
                     .layout = NIB_LAYOUT_BYTE,
                     .codes = many,
                     .scales = &one,
                     .scale_type = NIB_TYPE_F32,
                     .scale_stride_n = 1,
                     .scale_stride_g = 1};
    nib__weight_row(&w, 0, row); /* longer than one piece */
    for (int i = 0; i < 300; i++)
        assert_true(row[i] == (float)many[i]);
}

/* ---- DequantizeLinear ---- */

enum { MOST = 256 }; /* values of a tensor */

/* A line "dequantize ..." of number_casts.txt, see tools/golden/make_number_golden.py. */
typedef struct onnx_case {
    char codes[8], zeros[8], scales[8], axis[8];
    int block, rows, columns;
    int code_count, zero_count, scale_count, value_count;
    uint8_t code[MOST], zero[MOST];
    float scale[MOST], value[MOST];
} onnx_case;

static int hex_bytes(uint8_t *out, const char *from)
{
    int count = 0;
    for (unsigned byte; count < MOST && sscanf(from, "%2x", &byte) == 1; from += 2)
        out[count++] = (uint8_t)byte;
    return count;
}

static int hex_floats(float *out, const char *from)
{
    int count = 0;
    for (uint32_t bits; count < MOST && sscanf(from, "%8" SCNx32, &bits) == 1; from += 8)
        memcpy(&out[count++], &bits, sizeof bits);
    return count;
}

static void read_case(onnx_case *c, const char *line)
{
    int end = 0;
    const int fields = sscanf(line, "dequantize %7s %7s %7s %7s %d %d %d codes=%n", c->codes,
                              c->zeros, c->scales, c->axis, &c->block, &c->rows, &c->columns, &end);
    assert_true(fields == 7 && end > 0);
    const char *zeros = strstr(line, " zeros="), *scales = strstr(line, " scales="),
               *values = strstr(line, " values=");
    assert_true(zeros && scales && values);
    c->code_count = hex_bytes(c->code, line + end);
    c->zero_count = hex_bytes(c->zero, zeros + strlen(" zeros="));
    c->scale_count = hex_floats(c->scale, scales + strlen(" scales="));
    c->value_count = hex_floats(c->value, values + strlen(" values="));
    assert_int_equal(c->code_count, c->rows * c->columns);
    assert_int_equal(c->value_count, c->rows * c->columns);
}

static void scheme_of(const onnx_case *c, nib_scheme *s, nib_type *scale_type)
{
    static const struct {
        const char *codes, *scales;
        nib_code code;
        nib_type scale_type;
    } kinds[] = {
        {"int4", "f32", NIB_CODE_I4, NIB_TYPE_F32},
        {"uint8", "f32", NIB_CODE_I8, NIB_TYPE_F32},
        {"int8", "f32", NIB_CODE_I8, NIB_TYPE_F32},
        {"int8", "f16", NIB_CODE_I8, NIB_TYPE_F16},
        {"e4m3", "f32", NIB_CODE_E4M3, NIB_TYPE_F32},
        {"e5m2", "f32", NIB_CODE_E5M2, NIB_TYPE_F32},
        {"e2m1", "e4m3", NIB_CODE_NV4, NIB_TYPE_E4M3},
        {"e2m1", "e8m0", NIB_CODE_MX4, NIB_TYPE_E8M0},
    };
    size_t i = 0;
    while (strcmp(kinds[i].codes, c->codes) != 0 || strcmp(kinds[i].scales, c->scales) != 0)
        assert_true(++i < COUNT(kinds));
    *s = (nib_scheme){.code = kinds[i].code,
                      .group = strcmp(c->axis, "row") == 0      ? NIB_GROUP_ROW
                               : strcmp(c->axis, "tensor") == 0 ? NIB_GROUP_TENSOR
                                                                : c->block,
                      .zero = strcmp(c->zeros, "none") == 0 ? NIB_ZERO_NONE : NIB_ZERO_INT,
                      .symmetric = strcmp(c->zeros, "none") == 0};
    *scale_type = kinds[i].scale_type;
}

/* A weight's groups run along its rows, so blocks along axis 0 need the transpose. uint8 codes and
 * zero points both become int8 by subtracting 128. */
static void expect_case(const onnx_case *c)
{
    const bool transposed = strcmp(c->axis, "0") == 0;
    const bool is_unsigned = strcmp(c->codes, "uint8") == 0;
    const int n = transposed ? c->columns : c->rows, k = transposed ? c->rows : c->columns;
    nib_weight w = {.n = n, .k = k};
    int8_t codes[MOST], zeros[MOST];
    uint8_t packed[MOST], scales[MOST * sizeof(float)];
    scheme_of(c, &w.scheme, &w.scale_type);
    for (int i = 0; i < n; i++)
        for (int j = 0; j < k; j++)
            codes[i * k + j] =
                (int8_t)(c->code[transposed ? j * n + i : i * k + j] - (is_unsigned ? 128 : 0));
    for (int i = 0; i < c->zero_count; i++)
        zeros[i] = (int8_t)(c->zero[i] - (is_unsigned ? 128 : 0));
    const bool half = strcmp(c->codes, "int4") == 0 || strcmp(c->codes, "e2m1") == 0;
    w.layout = half ? NIB_LAYOUT_NIBBLE : NIB_LAYOUT_BYTE;
    w.codes = codes;
    if (half) {
        const int stride = (k + 1) / 2;
        for (int i = 0; i < n; i++)
            nib__pack_i4(packed + i * stride, codes + i * k, k);
        w.codes = packed;
    }
    nib__from_f32(scales, w.scale_type, c->scale, c->scale_count);
    w.scales = scales;
    if (c->zero_count > 0) {
        w.zeros = zeros;
        w.zero_type = NIB_TYPE_I8;
    }
    if (w.scheme.group != NIB_GROUP_TENSOR) {
        const int groups = c->scale_count / n;
        w.scale_stride_n = transposed ? 1 : groups;
        w.scale_stride_g = transposed ? n : 1;
    }
    for (int i = 0; i < n; i++) {
        float row[MOST];
        nib__weight_row(&w, i, row);
        for (int j = 0; j < k; j++) {
            const float want = c->value[transposed ? j * n + i : i * k + j];
            if (row[j] != want)
                fail_msg("%s %s blocks of %d along %s: value (%d, %d) is %a, not %a", c->codes,
                         c->scales, c->block, c->axis, i, j, (double)row[j], (double)want);
        }
    }
}

/* Results of ONNX's reference evaluator on our own numbers. */
static void test_dequantize_linear(void **state)
{
    (void)state;
    static onnx_case c;
    const nib_allocator a = nib__allocator_default();
    char *text, *lines;
    size_t size;
    int cases = 0;
    assert_int_equal(
        nib__file_read(&text, &size, "tests/golden/number_casts.txt", 1 << 20, &a, NULL), NIB_OK);
    for (char *line = strtok_r(text, "\n", &lines); line; line = strtok_r(NULL, "\n", &lines)) {
        if (strncmp(line, "dequantize ", 11) != 0)
            continue;
        read_case(&c, line);
        expect_case(&c);
        cases++;
    }
    nib__release(&a, text);
    assert_int_equal(cases, 13);
}

/* x is [1][4][3][2], blocks of 2 along the axis of 4, uint8: as int8 (both less 128) it is 6 rows
 * of 4. */
static void test_onnx_dequantize_blocked(void **state)
{
    (void)state;
    static onnx_tensor x, scale, zero, out;
    const char *data = test_data(), *name = "test_dequantizelinear_blocked";
    assert_true(onnx_read(&x, data, name, "input_0") && onnx_read(&scale, data, name, "input_1") &&
                onnx_read(&zero, data, name, "input_2") && onnx_read(&out, data, name, "output_0"));
    assert_true(x.count == 24 && scale.count == 12 && zero.count == 12 && out.count == 24);
    int8_t codes[6][4], zeros[2][6];
    for (int i = 0; i < 24; i++)
        codes[i % 6][i / 6] = (int8_t)(x.bytes[i] - 128);
    for (int i = 0; i < 12; i++)
        zeros[i / 6][i % 6] = (int8_t)(zero.bytes[i] - 128);
    const nib_weight w = {.scheme = {.code = NIB_CODE_I8, .group = 2, .zero = NIB_ZERO_INT},
                          .n = 6,
                          .k = 4,
                          .layout = NIB_LAYOUT_BYTE,
                          .codes = codes,
                          .scales = scale.bytes, /* [2][6] */
                          .scale_type = NIB_TYPE_F32,
                          .scale_stride_n = 1,
                          .scale_stride_g = 6,
                          .zeros = zeros,
                          .zero_type = NIB_TYPE_I8};
    for (int64_t i = 0; i < 6; i++) {
        float row[4], want[24];
        memcpy(want, out.bytes, sizeof want);
        nib__weight_row(&w, i, row);
        for (int64_t j = 0; j < 4; j++)
            assert_true(row[j] == want[j * 6 + i]);
    }
}

static void test_onnx_dequantize_int4(void **state)
{
    (void)state;
    static onnx_tensor x, scale, zero, out;
    const char *data = test_data(), *name = "test_dequantizelinear_int4";
    assert_true(onnx_read(&x, data, name, "input_0") && onnx_read(&scale, data, name, "input_1") &&
                onnx_read(&zero, data, name, "input_2") && onnx_read(&out, data, name, "output_0"));
    assert_true(x.type == ONNX_INT4 && scale.count == 1 && out.count == x.count && x.count <= 64);
    int8_t zero_point;
    nib__unpack_i4(&zero_point, zero.bytes, 0, 1);
    const nib_weight w = {
        .scheme = {.code = NIB_CODE_I4, .group = NIB_GROUP_TENSOR, .zero = NIB_ZERO_INT},
        .n = 1,
        .k = x.count,
        .layout = NIB_LAYOUT_NIBBLE,
        .codes = x.bytes,
        .scales = scale.bytes,
        .scale_type = NIB_TYPE_F32,
        .zeros = &zero_point,
        .zero_type = NIB_TYPE_I8};
    float row[64], want[64];
    nib__weight_row(&w, 0, row);
    memcpy(want, out.bytes, (size_t)out.count * sizeof *want);
    for (int64_t j = 0; j < x.count; j++)
        assert_true(row[j] == want[j]);
}

/* Reads all numbers of the file, in order: 64 packed bytes, 4 scales, 128 values. */
static int read_numbers(double *out, int room, const char *path)
{
    const nib_allocator a = nib__allocator_default();
    char *text;
    size_t size;
    nib_json json;
    int count = 0;
    assert_int_equal(nib__file_read(&text, &size, path, 1 << 20, &a, NULL), NIB_OK);
    nib__json_init(&json, path, text, size, NULL);
    for (;;) {
        const nib_json_event event = nib__json_next(&json);
        assert_int_not_equal(event, NIB_JSON_ERROR);
        if (event == NIB_JSON_END)
            break;
        if (event == NIB_JSON_NUMBER && count < room)
            assert_true(nib__json_double(&json, &out[count++]));
    }
    nib__release(&a, text);
    return count;
}

/* compressed-tensors' MXFP4, as torchtitan stores it: 2 rows of 64. */
static void test_mxfp4_reference(void **state)
{
    (void)state;
    const char *data = test_data();
    char path[1024];
    double numbers[256];
    uint8_t packed[2][32], scales[2][2];
    snprintf(path, sizeof path, "%s/quant/mxfp4-reference.json", data);
    assert_int_equal(read_numbers(numbers, 256, path), 64 + 4 + 128);
    for (int i = 0; i < 64; i++)
        packed[i / 32][i % 32] = (uint8_t)numbers[i];
    for (int i = 0; i < 4; i++)
        scales[i / 2][i % 2] = (uint8_t)numbers[64 + i];
    const nib_weight w = {.scheme = {.code = NIB_CODE_MX4, .group = 32, .symmetric = true},
                          .n = 2,
                          .k = 64,
                          .layout = NIB_LAYOUT_NIBBLE,
                          .codes = packed,
                          .scales = scales,
                          .scale_type = NIB_TYPE_E8M0,
                          .scale_stride_n = 2,
                          .scale_stride_g = 1};
    for (int64_t i = 0; i < 2; i++) {
        float row[64];
        nib__weight_row(&w, i, row);
        for (int64_t j = 0; j < 64; j++)
            assert_true((double)row[j] == numbers[68 + i * 64 + j]);
    }
}

static void test_float_codes(void **state)
{
    (void)state;
    static const nib_type types[] = {NIB_TYPE_F32, NIB_TYPE_F16, NIB_TYPE_BF16};
    for (size_t i = 0; i < COUNT(types); i++)
        assert_int_equal(nib__float_type(nib__float_code(types[i])), types[i]);
    assert_int_equal(nib__float_type(NIB_CODE_I8), NIB_TYPE_NONE);
    assert_int_equal(nib__float_type(NIB_CODE_E4M3), NIB_TYPE_NONE);
    assert_int_equal(nib__float_code(NIB_TYPE_NONE), NIB_CODE_F32);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_canonical_names),
        cmocka_unit_test(test_meanings),
        cmocka_unit_test(test_rejects_bad_names),
        cmocka_unit_test(test_names_of_other_schemes),
        cmocka_unit_test(test_bases),
        cmocka_unit_test(test_groups),
        cmocka_unit_test(test_weight_nibbles),
        cmocka_unit_test(test_weight_bytes_and_floats),
        cmocka_unit_test(test_dequantize_linear),
        cmocka_unit_test(test_onnx_dequantize_blocked),
        cmocka_unit_test(test_onnx_dequantize_int4),
        cmocka_unit_test(test_mxfp4_reference),
        cmocka_unit_test(test_float_codes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
