/* SPDX-License-Identifier: Apache-2.0
 *
 * Fake quantizers against torchao's (tests/golden/train/qat.txt, made by
 * tools/golden/make_qat_golden.py): values bit for bit; gradients are zero exactly where torchao's
 * are, otherwise within the rounding of its method: times scale and its inverse, or f32 sums
 * through a range.
 */
#include "golden_values.h"
#include "fake_quant.h"
#include "kernel.h"
#include "lower.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { MOST = 512, LINE = 1 << 14 };

/* ---- the same as in the generator ---- */

static void make_values(float *x, uint64_t tensor, int64_t rows, int64_t width, const char *kind)
{
    const bool flat = strcmp(kind, "flat") == 0;
    for (int64_t i = 0; i < rows * width; i++)
        x[i] = value(tensor, (uint64_t)(flat ? i / width * width : i), (uint64_t)(i / width), kind);
}

/* ---- both sides ---- */

typedef struct matrix {
    nib_scheme scheme;
    int64_t rows, columns;
    float x[MOST], y[MOST], gradient[MOST];
} matrix;

static nib_fake_weight weight_of(const matrix *m, int8_t *codes, float *scales, float *zeros)
{
    nib_fake_weight f = {.codes = codes, .scales = scales};
    nib_err err;
    if (nib__quantizer_init(&f.quantizer, &m->scheme, NIB_TYPE_F32, m->columns, &err) != NIB_OK)
        fail_msg("%s", err.text);
    f.zeros = f.quantizer.zero_type == NIB_TYPE_NONE ? NULL : zeros;
    return f;
}

static void fake_weight(matrix *m)
{
    int8_t codes[MOST];
    float scales[MOST], zeros[MOST];
    const nib_fake_weight f = weight_of(m, codes, scales, zeros);
    for (int64_t i = 0; i < m->rows; i++) /* row by row, like threads */
        nib__fake_weight_rows(&f, m->x, m->y, i, i + 1);
    nib__fake_weight_gradient(&f, m->x, m->gradient, 1, m->rows);
    nib__fake_weight_gradient(&f, m->x, m->gradient, 0, 1);
}

static void fake_input(matrix *m)
{
    char room[1 << 13];
    uint8_t mask[MOST];
    uint64_t bytes;
    nib_quant q = {.x = m->x,
                   .ldx = m->columns,
                   .symmetric = m->scheme.act_symmetric,
                   .formula = m->scheme.formula};
    nib__input_place(&q.out, &m->scheme, NIB_TYPE_F32, m->rows, m->columns, room, &bytes);
    assert_true(bytes <= sizeof room);
    nib__kernel_find("quant_f32_a8t__ref")->run.quant(&q, 0, m->rows);
    nib__fake_input_rows(&q, m->y, m->columns, mask, 0, m->rows);
    nib__fake_input_gradient(mask, m->gradient, m->columns, m->columns, 0, m->rows);
}

/* ---- the file ---- */

static void read_hex(float *out, int64_t count, const char *text)
{
    assert_int_equal(strlen(text), 8 * count);
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits = 0;
        for (int b = 0; b < 4; b++) {
            const char digits[] = {text[8 * i + 2 * b], text[8 * i + 2 * b + 1], 0};
            bits |= (uint32_t)strtoul(digits, NULL, 16) << (8 * b);
        }
        memcpy(&out[i], &bits, sizeof bits);
    }
}

/* Zeros may differ in sign; other values may not differ. */
static void check_values(const char *what, const float *got, const float *wanted, int64_t count,
                         float limit)
{
    float scale = 0;
    for (int64_t i = 0; i < count; i++)
        scale = fmaxf(scale, fabsf(wanted[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(got[i] - wanted[i]) <= limit * scale) || (got[i] == 0) != (wanted[i] == 0))
            fail_msg("%s: value %lld is %.9g, not %.9g", what, (long long)i, (double)got[i],
                     (double)wanted[i]);
}

static void check_line(char *line)
{
    matrix m;
    char *word[8], what[64], *rest = line;
    nib_err err;
    float wanted[MOST];
    for (int i = 0; i < 8; i++)
        assert_non_null(word[i] = strtok_r(rest, " \n", &rest));
    if (nib__scheme_parse(&m.scheme, word[1], strlen(word[1]), &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_true(nib__fake_has(&m.scheme));
    const uint64_t tensor = strtoull(word[3], NULL, 10);
    m.rows = strtoll(word[4], NULL, 10);
    m.columns = strtoll(word[5], NULL, 10);
    const int64_t count = m.rows * m.columns;
    assert_in_range(count, 1, MOST);
    make_values(m.x, tensor, m.rows, m.columns, word[2]);
    make_values(m.gradient, tensor + 1, m.rows, m.columns, "plain");
    if (strcmp(word[0], "weight") == 0)
        fake_weight(&m);
    else
        fake_input(&m);
    snprintf(what, sizeof what, "%s %s %s", word[0], word[1], word[2]);
    read_hex(wanted, count, word[6]);
    check_values(what, m.y, wanted, count, 0);
    read_hex(wanted, count, word[7]);
    snprintf(what, sizeof what, "the gradient of %s %s %s", word[0], word[1], word[2]);
    check_values(what, m.gradient, wanted, count, m.scheme.zero == NIB_ZERO_FLOAT ? 2e-6F : 2e-7F);
}

static void test_golden(void **state)
{
    static char line[LINE];
    FILE *file = fopen("tests/golden/train/qat.txt", "r");
    int checked = 0;
    (void)state;
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        assert_non_null(strchr(line, '\n'));
        if (line[0] != '#') {
            check_line(line);
            checked++;
        }
    }
    fclose(file);
    assert_int_equal(checked, 18);
}

/* ---- cases that torchao lacks ---- */

/* A short last group is quantized as a group of its own. */
static void test_short_group(void **state)
{
    static const char *const names[] = {"8da4w-g32", "int4wo-g32"};
    (void)state;
    for (size_t s = 0; s < COUNT(names); s++) {
        matrix whole = {.rows = 2, .columns = 40}, last = {.rows = 2, .columns = 8};
        nib_err err;
        assert_int_equal(nib__scheme_parse(&whole.scheme, names[s], strlen(names[s]), &err), 0);
        last.scheme = whole.scheme;
        make_values(whole.x, 90, 2, 40, "plain");
        make_values(whole.gradient, 91, 2, 40, "plain");
        for (int64_t i = 0; i < 16; i++) {
            last.x[i] = whole.x[i / 8 * 40 + 32 + i % 8];
            last.gradient[i] = whole.gradient[i / 8 * 40 + 32 + i % 8];
        }
        fake_weight(&whole);
        fake_weight(&last);
        for (int64_t i = 0; i < 16; i++) {
            assert_true(last.y[i] == whole.y[i / 8 * 40 + 32 + i % 8]);
            assert_true(last.gradient[i] == whole.gradient[i / 8 * 40 + 32 + i % 8]);
        }
    }
}

/* Rows without a finite scale become NaN; others do not. */
static void test_non_finite_rows_become_nan(void **state)
{
    matrix m = {.rows = 3, .columns = 40}, in;
    nib_err err;
    (void)state;
    assert_int_equal(nib__scheme_parse(&m.scheme, "8da4w-g32", 9, &err), NIB_OK);
    make_values(m.x, 92, 3, 40, "plain");
    m.x[40 + 7] = INFINITY;
    in = m;
    fake_weight(&m);
    fake_input(&in);
    for (int64_t i = 0; i < 120; i++) {
        assert_int_equal(isnan(m.y[i]) != 0, i / 40 == 1);
        assert_int_equal(isnan(in.y[i]) != 0, i / 40 == 1);
    }
}

/* If the weight will be stored in fewer bits, the values are those of its stored codes. */
static void test_values_of_the_stored_type(void **state)
{
    static const char *const names[] = {"8da4w-g32", "int4wo-g32", "int8wo"};
    static const nib_type types[] = {NIB_TYPE_BF16, NIB_TYPE_F16};
    enum { ROWS = 3, WIDE = 72 };
    (void)state;
    for (size_t i = 0; i < COUNT(names) * COUNT(types); i++) {
        const nib_type type = types[i % COUNT(types)];
        const char *name = names[i / COUNT(types)];
        float x[ROWS * WIDE], stored[ROWS * WIDE], y[ROWS * WIDE], row[WIDE], room[2][64],
            own[2][64];
        int8_t codes[ROWS * WIDE], own_codes[ROWS * WIDE];
        nib_fake_weight f = {.codes = codes, .scales = room[0]};
        nib_quantized to = {.codes = own_codes, .scales = own[0], .zeros = own[1]};
        nib_scheme scheme;
        nib_weight w;
        nib_err err;
        assert_int_equal(nib__scheme_parse(&scheme, name, strlen(name), &err), NIB_OK);
        assert_int_equal(nib__quantizer_init(&f.quantizer, &scheme, type, WIDE, &err), NIB_OK);
        f.zeros = f.quantizer.zero_type == NIB_TYPE_NONE ? NULL : room[1];
        make_values(x, 94, ROWS, WIDE, "plain");
        nib__from_f32(y, type, x, ROWS * WIDE);
        nib__to_f32(stored, y, type, ROWS * WIDE);
        assert_int_equal(nib__quantizer_quantize_rows(&f.quantizer, stored, 0, ROWS, &to, &err),
                         NIB_OK);
        nib__quantizer_describe_weight(&w, &f.quantizer, ROWS, own_codes, own[0], own[1]);
        nib__fake_weight_rows(&f, x, y, 0, ROWS);
        assert_memory_equal(codes, own_codes, sizeof codes);
        for (int64_t n = 0; n < ROWS; n++) {
            nib__weight_row(&w, n, row);
            assert_memory_equal(row, y + n * WIDE, sizeof row);
        }
    }
}

static void test_supported_schemes(void **state)
{
    static const struct {
        const char *name;
        bool has;
    } cases[] = {{"8da4w", true},          {"8da4w-row", true},        {"int8wo", true},
                 {"int8wo-g32", true},     {"int4wo-g128", true},      {"int4wo-sym", true},
                 {"int8dq", true},         {"8da4w-asym", false},      {"int4wo-intzero", false},
                 {"int8wo-tensor", false}, {"int4wo-ggml", false},     {"4da4w", false},
                 {"fp8dq", false},         {"int8wo-g32-ggml", false}, {"mxfp8", false},
                 {"bf16", false},          {"int4wo-tinygemm", false}};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_scheme scheme;
        nib_err err;
        if (nib__scheme_parse(&scheme, cases[i].name, strlen(cases[i].name), &err) != NIB_OK)
            fail_msg("%s", err.text);
        if (nib__fake_has(&scheme) != cases[i].has)
            fail_msg("%s", cases[i].name);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_short_group),
        cmocka_unit_test(test_non_finite_rows_become_nan),
        cmocka_unit_test(test_values_of_the_stored_type),
        cmocka_unit_test(test_supported_schemes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
