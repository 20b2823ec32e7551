/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight quantizers: codes, scales and zeros equal torchao's bit for bit
 * (tests/golden/quant_torchao.txt, quant_fp4.txt). Cases that torchao does not have (short last
 * groups, fp8 zero rows, hostile values) are checked by properties and by hand.
 */
#include "golden_scheme.h"
#include "machine.h"
#include "quantizer.h"

#include <inttypes.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "refused.h"

enum { ROWS_MAX = 16, K_MAX = 128, CELLS = ROWS_MAX * K_MAX };

typedef struct input {
    char name[32];
    nib_type type;
    int n, k;
    float x[CELLS];
} input;

/* One quantized weight, large enough for every test here. */
typedef struct result {
    nib_quantizer q;
    int8_t codes[CELLS];
    uint8_t scales[4 * CELLS], zeros[4 * CELLS];
    double signal, error;
    nib_weight w;
} result;

/* Quantizes in blocks of `block` rows. */
static nib_status quantize(result *r, const char *scheme, nib_type source, const float *x,
                           int64_t n, int64_t k, int64_t block, nib_err *err)
{
    const nib_scheme s = golden_scheme(scheme);
    memset(r, 0x5a, sizeof *r);
    r->signal = r->error = 0;
    NIB_TRY(nib__quantizer_init(&r->q, &s, source, k, err));
    NIB_TRY(nib__quantizer_scales(&r->q, golden_scales(scheme), err));
    if (nib__quantizer_needs_scan(&r->q)) {
        float range[2] = {0, 0};
        NIB_TRY(nib__quantizer_scan(&r->q, x, 0, n, range, err));
        NIB_TRY(nib__quantizer_set_range(&r->q, range, err));
        if (nib__quantizer_is_one(&r->q))
            nib__quantizer_store_tensor_scale(&r->q, r->scales, r->zeros);
    }
    const int64_t scale_row = r->q.groups * nib__type_bits(r->q.scale_type) / 8;
    const int64_t zero_row = r->q.groups * nib__type_bits(r->q.zero_type) / 8;
    for (int64_t i = 0; i < n; i += block) {
        nib_quantized out = {r->codes + i * k,
                             r->scales + i * scale_row,
                             r->zeros + i * zero_row,
                             r->signal,
                             r->error,
                             {0, 0}};
        NIB_TRY(
            nib__quantizer_quantize_rows(&r->q, x + i * k, i, nib__min(block, n - i), &out, err));
        r->signal = out.signal;
        r->error = out.error;
    }
    nib__quantizer_describe_weight(&r->w, &r->q, n, r->codes, r->scales, r->zeros);
    return NIB_OK;
}

static int unhex(uint8_t *out, size_t room, const char *hex)
{
    size_t count = 0;
    unsigned byte;
    while (count < room && sscanf(hex + 2 * count, "%2x", &byte) == 1)
        out[count++] = (uint8_t)byte;
    return (int)count;
}

static void read_input(input *in, const char *line, char *hex)
{
    char type[8];
    assert_int_equal(sscanf(line, "input %31s %7s %d %d %s", in->name, type, &in->n, &in->k, hex),
                     5);
    in->type = golden_type(type);
    static uint8_t bytes[4 * CELLS];
    assert_true(in->n * in->k <= CELLS);
    assert_int_equal(unhex(bytes, sizeof bytes, hex), in->n * in->k * nib__type_bits(in->type) / 8);
    nib__to_f32(in->x, bytes, in->type, in->n * in->k);
}

static void compare(const char *scheme, const char *name, const char *what, const void *got,
                    const char *hex)
{
    static uint8_t want[4 * CELLS];
    const int count = unhex(want, sizeof want, hex);
    const uint8_t *bytes = got;
    for (int i = 0; i < count; i++)
        if (bytes[i] != want[i])
            fail_msg("%s of %s: byte %d of the %s is %02x, torchao's is %02x", scheme, name, i,
                     what, bytes[i], want[i]);
}

/* The weight scheme with the same formula as these activations; NULL: none. */
static const char *weights_like(const char *activations)
{
    static const char *const pairs[][2] = {
        {"8da4w", "int8wo-asym"},    {"8da4w-ao017", "int8wo-asym-ao017"}, {"int8dq", "int8wo"},
        {"4da4w", "8da4w-row-asym"}, {"4da4w-actsym", "8da4w-row"},        {"fp8dq", "fp8wo"},
        {"mxfp8", "mxfp8"},          {"mxfp8-floor", "mxfp8-floor"},
    };
    for (size_t i = 0; i < COUNT(pairs); i++)
        if (strcmp(pairs[i][0], activations) == 0)
            return pairs[i][1];
    return NULL;
}

/* Checks all cases of a file and returns their number. */
static int compare_file(const char *path, bool activations)
{
    static char line[1 << 16], part[4][1 << 15];
    static input inputs[16];
    static result r;
    int input_count = 0, cases = 0;
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        char scheme[64], name[32];
        if (strncmp(line, "input", 5) == 0)
            read_input(&inputs[input_count++], line, part[0]);
        if (strncmp(line, "case", 4) != 0)
            continue;
        assert_int_equal(
            sscanf(line, "case %63s %31s %s %s %s", scheme, name, part[0], part[1], part[2]), 5);
        const input *in = &inputs[input_count - 1];
        const char *as = activations ? weights_like(scheme) : scheme;
        if (as == NULL)
            continue;
        assert_string_equal(name, in->name);
        for (int64_t block = 1; block <= 4; block += 3) {
            nib_err err = {0};
            if (quantize(&r, as, in->type, in->x, in->n, in->k, block, &err) != NIB_OK)
                fail_msg("%s of %s: %s", scheme, name, err.text);
            compare(scheme, name, "codes", r.codes, part[0]);
            compare(scheme, name, "scales", r.scales, part[1]);
            if (r.q.tensor_scale != 0)
                compare(scheme, name, "tensor's scale", &r.q.tensor_scale, part[2]);
            else if (part[2][0] != '-' && r.q.zero_type != NIB_TYPE_NONE)
                compare(scheme, name, "zeros", r.zeros, part[2]);
            assert_true(activations || (part[2][0] == '-') == (r.q.zero_type == NIB_TYPE_NONE &&
                                                               r.q.tensor_scale == 0));
        }
        cases++;
    }
    fclose(file);
    return cases;
}

static void test_equal_to_torchao(void **state)
{
    (void)state;
    assert_int_equal(compare_file("tests/golden/quant_torchao.txt", false), 190);
}

static void test_fp4_equal_to_torchao(void **state)
{
    (void)state;
    assert_int_equal(compare_file("tests/golden/quant_fp4.txt", false), 24);
}

static void test_other_widths_equal_to_torchao(void **state)
{
    (void)state;
    assert_int_equal(compare_file("tests/golden/quant_intx.txt", false), 108);
}

/* Activations are f32 rows, quantized with the weight formulas. */
static void test_activation_formulas(void **state)
{
    (void)state;
    assert_int_equal(compare_file("tests/golden/quant_activations.txt", true), 16);
}

static const char *const all_schemes[] = {
    "int8wo",
    "int8wo-tensor",
    "int8wo-g32",
    "int8wo-g7-asym",
    "int8wo-tensor-asym",
    "int8dq-g16",
    "int4wo-g32",
    "int4wo-row",
    "int4wo-g5",
    "int4wo-sym",
    "int4wo-g5-intzero",
    "int4wo-row-intzero:bf16",
    "int4wo-g5-tinygemm",
    "int1wo-asym",
    "int2wo-g5-floatzero",
    "int3wo-row",
    "int5wo-g7-asym",
    "int6wo-row-floatzero",
    "int7wo-g32:bf16",
    "8da4w-g32",
    "8da4w-g7-asym",
    "8da4w-row:f32",
    "8da4w-ao017",
    "4da4w-g16",
    "fp8wo",
    "fp8dq-tensor",
    "mxfp8",
    "mxfp8-floor",
    "mxfp4",
    "mxfp4-floor",
    "mxfp4dq",
    "nvfp4",
    "nvfp4-block",
    "nvfp4dq",
};

static void fill(float *x, int64_t count, uint32_t seed)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 1664525U + 1013904223U;
        x[i] = ((float)(seed >> 8) / 0x1p24f - 0.5f) * 0.3f;
    }
}

/* A signal-to-noise ratio that these codes of evenly spread weights exceed. */
static double least_db(const nib_scheme *s)
{
    const int bits = nib__code_bits(s->code);
    return bits >= 4 ? 15 : bits == 3 ? 9 : bits == 2 ? 3 : -1;
}

/* Odd n, odd k, short last groups. Every block of rows gives the same codes by itself (unless the
 * tensor has a scale too). Dequantized values are within half a step (one and a half where the
 * range is clipped), and the error sums match them. */
static void test_any_shape(void **state)
{
    (void)state;
    static result whole, piece;
    static float x[CELLS], row[K_MAX];
    fill(x, CELLS, 7);
    for (size_t c = 0; c < COUNT(all_schemes); c++)
        for (int64_t k = 1; k <= 97; k += 8) {
            const int64_t n = 3;
            nib_err err = {0};
            if (quantize(&whole, all_schemes[c], NIB_TYPE_F32, x, n, k, n, &err) != NIB_OK)
                fail_msg("%s: %s", all_schemes[c], err.text);
            double signal = 0, error = 0;
            for (int64_t i = 0; i < n; i++) {
                nib__weight_row(&whole.w, i, row);
                for (int64_t j = 0; j < k; j++) {
                    const double was = (double)x[i * k + j], lost = was - (double)row[j];
                    signal += was * was;
                    error += lost * lost;
                }
            }
            assert_true(fabs(signal - whole.signal) <= 1e-12 * signal);
            assert_true(fabs(error - whole.error) <= 1e-9 * signal);
            assert_true(k < 8 || nib__sqnr_db(signal, error) > least_db(&whole.q.scheme));
            const int64_t group = whole.q.scheme.group, last = k - k % nib__max(group, 1);
            if (group <= 0 || last == k || last == 0 || whole.q.tensor_scale != 0)
                continue;
            for (int64_t i = 0; i < n; i++) { /* the short group counts as a group */
                assert_int_equal(quantize(&piece, all_schemes[c], NIB_TYPE_F32, x + i * k + last, 1,
                                          k - last, 1, &err),
                                 NIB_OK);
                assert_memory_equal(piece.codes, whole.codes + i * k + last, (size_t)(k - last));
                assert_true(nib__weight_scale(&piece.w, 0, 0) ==
                            nib__weight_scale(&whole.w, i, whole.q.groups - 1));
            }
        }
}

static void test_zero_and_constant(void **state)
{
    (void)state;
    static result r;
    static float x[2 * 33], row[33];
    for (size_t c = 0; c < COUNT(all_schemes); c++)
        for (int source = 0; source < 3; source++) {
            static const nib_type sources[] = {NIB_TYPE_F32, NIB_TYPE_BF16, NIB_TYPE_F16};
            if (source == 2 && strncmp(all_schemes[c], "mx", 2) == 0)
                continue;
            /* int4 clips 7.5 to 7, int3 3.5 to 3; e2m1 has no value between 4 and 6 */
            const float part = strstr(all_schemes[c], "fp4") != NULL     ? 0.201f
                               : strncmp(all_schemes[c], "int3", 4) == 0 ? 0.15f
                                                                         : 0.071f;
            /* half of the smallest range, 1e-6, if f16 cannot hold a step of it */
            const float least = strstr(all_schemes[c], "floatzero") != NULL ? 6e-7f : 1e-7f;
            for (int v = 0; v < 3; v++) {
                const float value = v == 0 ? 0 : v == 1 ? 1.5f : -0.625f;
                for (int j = 0; j < 2 * 33; j++)
                    x[j] = value;
                nib_err err = {0};
                assert_int_equal(quantize(&r, all_schemes[c], sources[source], x, 2, 33, 1, &err),
                                 NIB_OK);
                for (int64_t i = 0; i < 2; i++) {
                    nib__weight_row(&r.w, i, row);
                    for (int j = 0; j < 33; j++)
                        if (!(fabsf(row[j] - value) <= fabsf(value) * part + least))
                            fail_msg("%s: %g became %g", all_schemes[c], (double)value,
                                     (double)row[j]);
                }
            }
        }
}

static void test_fp8_zero_row(void **state)
{
    (void)state;
    static result r;
    const float x[] = {0, -0.0f, 0, 1, -2, 3, 1e-44f, -1e-44f, 0};
    nib_err err = {0};
    assert_int_equal(quantize(&r, "fp8wo", NIB_TYPE_F32, x, 3, 3, 3, &err), NIB_OK);
    assert_true(nib__weight_scale(&r.w, 0, 0) == 1 && nib__weight_scale(&r.w, 2, 0) == 1);
    for (int j = 0; j < 3; j++)
        assert_true(r.codes[j] == 0 && r.codes[6 + j] == 0);
    assert_int_equal((uint8_t)r.codes[5], 0x7e);
    const float zeros[] = {0, -0.0f};
    assert_int_equal(quantize(&r, "fp8wo-tensor", NIB_TYPE_F32, zeros, 1, 2, 1, &err), NIB_OK);
    assert_true(nib__weight_scale(&r.w, 0, 0) == 1 && r.codes[0] == 0 && r.codes[1] == 0);
}

/* The exact power of two, even where a float log2 would round to the wrong one. */
static void test_mx_scales(void **state)
{
    (void)state;
    static result r;
    const float amax[] = {448, nextafterf(448, 500), 448 * 0x1p100f,
                          nextafterf(448 * 0x1p100f, INFINITY), 3e38f};
    const int rceil[] = {127, 128, 227, 228, 247}, floor_[] = {127, 127, 227, 227, 246};
    for (size_t i = 0; i < COUNT(amax); i++) {
        nib_err err = {0};
        assert_int_equal(quantize(&r, "mxfp8", NIB_TYPE_F32, &amax[i], 1, 1, 1, &err), NIB_OK);
        assert_int_equal(r.scales[0], rceil[i]);
        assert_int_equal(quantize(&r, "mxfp8-floor", NIB_TYPE_F32, &amax[i], 1, 1, 1, &err),
                         NIB_OK);
        assert_int_equal(r.scales[0], floor_[i]);
    }
}

/* f16 scales of f32 weights. A scale of 0, or one whose reciprocal overflows f16, becomes 1 with
 * codes of 0. A scale that overflows f16 is refused. */
static void test_f16_scales(void **state)
{
    (void)state;
    static result r;
    nib_err err = {0};
    const float x[] = {1e-12f, -1e-12f, 0, 3e-12f, 1e-5f, -2e-5f, 1e-6f, 0, 0.7f, -0.5f, 0.1f, 0};
    assert_int_equal(quantize(&r, "int4wo-g4-intzero:f16", NIB_TYPE_F32, x, 1, 12, 1, &err),
                     NIB_OK);
    assert_int_equal(r.w.scale_type, NIB_TYPE_F16);
    for (int64_t j = 0; j < 8; j++)
        assert_int_equal(r.codes[j], (int)nib__weight_zero(&r.w, 0, j / 4));
    assert_true(nib__weight_scale(&r.w, 0, 0) == 1 && nib__weight_scale(&r.w, 0, 1) == 1);
    assert_true(fabsf(nib__weight_scale(&r.w, 0, 2) - 0.08f) < 1e-4f);
    assert_int_equal(r.codes[8], 7);
    const float large[] = {1, 2e6f, -1, 0};
    refused(NIB_BAD_INPUT,
            quantize(&r, "int4wo-g4-intzero:f16", NIB_TYPE_F32, large, 1, 4, 1, &err), &err);
}

/* Weights of zeros, or so small that torchao's scale is 0 or has no finite reciprocal, get codes of
 * 0. Zero blocks beside others get the smallest scale. */
static void test_nv_zeros(void **state)
{
    (void)state;
    static result r;
    nib_err err = {0};
    float x[32] = {0, -0.0f, 1e-37f, -1e-37f, 1e-44f};
    assert_int_equal(quantize(&r, "nvfp4", NIB_TYPE_F32, x, 1, 32, 1, &err), NIB_OK);
    assert_true(r.q.tensor_scale == 1 && r.w.tensor_scale == 1);
    for (int j = 0; j < 32; j++)
        assert_int_equal(r.codes[j] & 7, 0);
    assert_int_equal(r.codes[1], 8); /* the sign stays */
    assert_true(nib__weight_group_scale(&r.w, 0, 0) == 0x1p-6f);
    x[20] = -2688;
    assert_int_equal(quantize(&r, "nvfp4", NIB_TYPE_F32, x, 1, 32, 1, &err), NIB_OK);
    assert_true(r.q.tensor_scale == 1 && nib__weight_group_scale(&r.w, 0, 1) == 448);
    assert_int_equal(r.codes[20], 15);
    assert_int_equal(quantize(&r, "nvfp4-block", NIB_TYPE_F32, x, 1, 32, 1, &err), NIB_OK);
    assert_true(r.q.tensor_scale == 0 && nib__weight_scale(&r.w, 0, 1) == 448);
}

static void test_hostile_values(void **state)
{
    (void)state;
    static result r;
    static float x[5 * 40];
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    for (size_t b = 0; b < COUNT(bad); b++)
        for (size_t c = 0; c < COUNT(all_schemes); c++) {
            nib_err err = {0};
            fill(x, COUNT(x), 3);
            x[3 * 40 + 37] = bad[b];
            refused(NIB_BAD_INPUT, quantize(&r, all_schemes[c], NIB_TYPE_F32, x, 5, 40, 2, &err),
                    &err);
        }
    for (size_t c = 0; c < COUNT(all_schemes); c++) {
        nib_err err = {0};
        fill(x, COUNT(x), 3);
        x[40] = 3.4e38f;
        x[41] = -3.4e38f;
        const nib_scheme s = golden_scheme(all_schemes[c]);
        const nib_status status = quantize(&r, all_schemes[c], NIB_TYPE_F32, x, 5, 40, 2, &err);
        if (s.symmetric)
            assert_int_equal(status, NIB_OK);
        else
            refused(NIB_BAD_INPUT, status, &err);
    }
    nib_err err = {0};
    fill(x, 64, 3);
    x[33] = 1e8f;
    refused(NIB_BAD_INPUT, quantize(&r, "int8wo-g32-ggml", NIB_TYPE_F32, x, 2, 32, 1, &err), &err);
}

static void test_rejects_unsupported_types(void **state)
{
    (void)state;
    nib_quantizer q;
    nib_err err = {0};
    const nib_scheme floats = {.code = NIB_CODE_BF16}, e5m2 = {.code = NIB_CODE_E5M2};
    const nib_scheme int8 = golden_scheme("int8wo");
    refused(NIB_UNSUPPORTED, nib__quantizer_init(&q, &floats, NIB_TYPE_F32, 8, &err), &err);
    refused(NIB_UNSUPPORTED, nib__quantizer_init(&q, &e5m2, NIB_TYPE_F32, 8, &err), &err);
    refused(NIB_UNSUPPORTED, nib__quantizer_init(&q, &int8, NIB_TYPE_I8, 8, &err), &err);
    assert_int_equal(nib__quantizer_init(&q, &int8, NIB_TYPE_BF16, 8, &err), NIB_OK);
    assert_int_equal(nib__quantizer_scales(&q, NIB_TYPE_F32, &err), NIB_OK); /* f32 is its own */
    refused(NIB_UNSUPPORTED, nib__quantizer_scales(&q, NIB_TYPE_BF16, &err), &err);
    assert_true(isinf(nib__sqnr_db(1, 0)) && nib__sqnr_db(100, 1) == 20);
}

/* A processor with no known instruction set, or with one that no row uses, runs the reference. */
static void test_rows_by_instruction_set(void **state)
{
    (void)state;
    assert_true(nib__quant_w_best(0) == nib__quant_w__ref);
    assert_true(nib__quant_w_best(NIB_ISA_DOTPROD) == nib__quant_w__ref);
#if defined(__x86_64__)
    assert_true(nib__quant_w_best(NIB_ISA_AVX2) == nib__quant_w__avx2);
    assert_true(nib__quant_w_best(NIB_ISA_AVX2 | NIB_ISA_AVX512) == nib__quant_w__avx512);
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equal_to_torchao),
        cmocka_unit_test(test_fp4_equal_to_torchao),
        cmocka_unit_test(test_other_widths_equal_to_torchao),
        cmocka_unit_test(test_activation_formulas),
        cmocka_unit_test(test_any_shape),
        cmocka_unit_test(test_zero_and_constant),
        cmocka_unit_test(test_fp8_zero_row),
        cmocka_unit_test(test_mx_scales),
        cmocka_unit_test(test_f16_scales),
        cmocka_unit_test(test_nv_zeros),
        cmocka_unit_test(test_hostile_values),
        cmocka_unit_test(test_rejects_unsupported_types),
        cmocka_unit_test(test_rows_by_instruction_set),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
