/* SPDX-License-Identifier: Apache-2.0
 *
 * Training casts and the three products of one linear layer against torchao, or against the same
 * formulas in double where torchao refuses the shape: tests/golden/train_*.txt. Every row of this
 * machine; casts bit for bit.
 */
#include "golden_values.h"
#include "cast.h"
#include "machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

enum { LINE = 1 << 16, BLOCK = 32, WORDS = 12 };

static void *allocate(size_t bytes)
{
    void *p = aligned_alloc(64, (bytes + 127) / 64 * 64);
    assert_non_null(p);
    memset(p, 0xa5, (bytes + 127) / 64 * 64);
    return p;
}

/* ---- the same inputs as the generator's ---- */

static float *make_values(uint64_t tensor, int64_t rows, int64_t width, const char *kind)
{
    float *x = allocate((size_t)(rows * width) * sizeof *x);
    for (int64_t i = 0; i < rows * width; i++)
        x[i] = value(tensor, (uint64_t)i, (uint64_t)(i / width), kind);
    return x;
}

static uint64_t checksum(const void *data, size_t size)
{
    uint64_t sum = 0;
    for (size_t i = 0; i < size; i++)
        sum += (((const uint8_t *)data)[i] + UINT64_C(1)) * mix(i);
    return sum;
}

/* ---- the files ---- */

typedef struct fields {
    char *word[WORDS];
    int count;
} fields;

static fields split(char *line)
{
    fields f = {.count = 0};
    for (char *rest = line; f.count < WORDS;) {
        char *word = strtok_r(rest, " \n", &rest);
        if (word == NULL)
            break;
        f.word[f.count++] = word;
    }
    return f;
}

static int64_t number(const fields *f, int i) { return strtoll(f->word[i], NULL, 10); }

/* Compares a result with the line: bytes in hex, or their checksum. */
static void expect_result(const char *what, const char *how, const char *expected, const void *data,
                          size_t size)
{
    char got[3] = "";
    if (strcmp(how, "sum") == 0) {
        if (strtoull(expected, NULL, 16) != checksum(data, size))
            fail_msg("%s: the checksum differs", what);
        return;
    }
    assert_int_equal(strlen(expected), 2 * size);
    for (size_t i = 0; i < size; i++) {
        snprintf(got, sizeof got, "%02x", ((const uint8_t *)data)[i]);
        if (memcmp(got, expected + 2 * i, 2) != 0)
            fail_msg("%s: byte %zu is %s, not %.2s", what, i, got, expected + 2 * i);
    }
}

static void check_each_line(const char *path, int (*check)(const fields *f), int least)
{
    static char line[LINE];
    FILE *file = fopen(path, "r");
    int checked = 0;
    if (file == NULL)
        fail_msg("%s is not there: run from the repository's folder", path);
    while (fgets(line, sizeof line, file) != NULL) {
        assert_non_null(strchr(line, '\n'));
        if (line[0] == '#')
            continue;
        const fields f = split(line);
        checked += check(&f);
    }
    fclose(file);
    assert_true(checked >= least);
}

static bool runs_here(const nib_kernel *row)
{
    nib_query here = {.fact = {[NIB_FACT_ISA] = nib__cpu_isa(), [NIB_FACT_GROUP] = BLOCK}};
    return row->run.any != NULL && nib__kernel_holds(row, &here, true);
}

/* ---- casts ---- */

typedef struct cast_line {
    const char *how, *codes, *scales;
    char what[160];
    bool is_mx, e5m2, two_power, tensor, floor, across;
    int64_t sums, length, width;
    const float *x;
    float amax;
} cast_line;

static cast_line read_cast(const fields *f)
{
    cast_line c = {.how = f->word[8], .codes = f->word[9], .scales = f->word[10]};
    const int64_t rows = number(f, 6);
    c.width = number(f, 7);
    c.is_mx = strcmp(f->word[1], "mx8") == 0;
    c.e5m2 = strcmp(f->word[1], "e5m2") == 0;
    c.floor = strcmp(f->word[2], "floor") == 0;
    c.two_power = strchr(f->word[2], '2') != NULL;
    c.tensor = strncmp(f->word[2], "tensor", 6) == 0;
    c.across = number(f, 3) == 1;
    c.sums = c.across ? c.width : rows, c.length = c.across ? rows : c.width;
    c.x = make_values((uint64_t)number(f, 5), rows, c.width, f->word[4]);
    for (int64_t i = 0; i < rows * c.width; i++)
        c.amax = fmaxf(c.amax, fabsf(c.x[i]));
    snprintf(c.what, sizeof c.what, "%s %s %s dim %s %s %s %sx%s", f->word[0], f->word[1],
             f->word[2], f->word[3], f->word[4], f->word[5], f->word[6], f->word[7]);
    return c;
}

/* The reference's plain weight holds codes and scales in the line's layout. Other tests compare
 * other rows with it. */
static void check_weight(const cast_line *c)
{
    const char *name = c->is_mx    ? c->across ? "cast_t_f32_mx8__ref" : "cast_f32_mx8__ref"
                       : c->across ? "cast_t_f32_e4m3c__ref"
                                   : "cast_f32_e4m3c__ref";
    const nib_kernel *row = nib__kernel_find(name);
    nib_weight view, shape = {.n = c->sums, .k = c->length, .scheme = {.symmetric = true}};
    shape.scheme.code = c->is_mx ? NIB_CODE_MX8 : NIB_CODE_E4M3;
    shape.scheme.group = c->is_mx ? BLOCK : c->tensor ? NIB_GROUP_TENSOR : NIB_GROUP_ROW;
    shape.scheme.mx_floor = c->floor;
    shape.scale_type = c->is_mx ? NIB_TYPE_E8M0 : NIB_TYPE_F32;
    assert_non_null(row);
    nib_cast a = {.x = c->x, .ldx = c->width, .w = &shape, .two_power = c->two_power};
    a.packed = allocate((size_t)nib__cast_bytes(row, &shape));
    a.amax = c->tensor ? &c->amax : NULL;
    row->run.cast(&a, 0, c->sums);
    nib__cast_view(&view, row, &shape, a.packed);
    const int64_t scales = c->sums * (c->is_mx ? nib__ceil_div(c->length, BLOCK) : 1);
    expect_result(c->what, c->how, c->codes, view.codes, (size_t)(c->sums * c->length));
    expect_result(c->what, c->how, c->scales, view.scales, (size_t)(scales * (c->is_mx ? 1 : 4)));
    free(a.packed);
}

/* The codes and scales of an input in the line's byte layout. */
static void check_input_values(const cast_line *c, const nib_input *out)
{
    const int64_t scales = c->sums * out->groups;
    uint8_t *codes = allocate((size_t)(c->sums * c->length)), *bytes = allocate((size_t)scales * 4);
    for (int64_t i = 0; i < c->sums; i++)
        for (int64_t j = 0; j < c->length; j++) {
            uint8_t *to = codes + i * c->length + j;
            if (c->is_mx) {
                *to = (uint8_t)out->codes[i * out->ld + j];
                continue;
            }
            const float v = nib__bf16_to_f32(out->bf16[i * out->ld + j]);
            *to = c->e5m2 ? nib__f32_to_e5m2(v) : nib__f32_to_e4m3(v);
        }
    for (int64_t i = 0; i < scales; i++) {
        if (c->is_mx)
            bytes[i] = nib__f32_to_e8m0_up(out->scale[i]);
        else
            memcpy(bytes + 4 * i, &out->scale[i], 4);
    }
    expect_result(c->what, c->how, c->codes, codes, (size_t)(c->sums * c->length));
    expect_result(c->what, c->how, c->scales, bytes, (size_t)(scales * (c->is_mx ? 1 : 4)));
    free(codes);
    free(bytes);
}

static int check_input(const cast_line *c, const nib_kernel *row)
{
    const nib_op op = c->across ? NIB_OP_QUANT_T : NIB_OP_QUANT;
    const nib_act act = c->is_mx ? NIB_ACT_MX8 : NIB_ACT_E4M3_TOKEN;
    if (row->op != op || row->act != (int64_t)act || !runs_here(row))
        return 0;
    const int64_t ld = nib__round_up(c->length, NIB_CODES_PAD),
                  groups = c->is_mx ? nib__ceil_div(c->length, BLOCK) : 1;
    void *values = allocate((size_t)(c->sums * ld) * 2);
    nib_quant q = {.x = c->x, .ldx = c->width, .mx_floor = c->floor, .e5m2 = c->e5m2};
    q.two_power = c->two_power;
    q.amax = c->tensor ? &c->amax : NULL;
    q.out = (nib_input){.m = c->sums, .k = c->length, .ld = ld, .groups = groups};
    q.out.group = c->is_mx ? BLOCK : c->length;
    q.out.codes = c->is_mx ? values : NULL;
    q.out.bf16 = c->is_mx ? NULL : values;
    q.out.scale = allocate((size_t)(c->sums * groups) * 4);
    row->run.quant(&q, 0, c->sums);
    check_input_values(c, &q.out);
    free(values);
    free(q.out.scale);
    return 1;
}

static int check_cast_line(const fields *f)
{
    assert_int_equal(f->count, 11);
    const cast_line c = read_cast(f);
    /* without one of these, QUANT is the inference quantizer */
    const bool has_input = c.is_mx || c.across || c.e5m2 || c.two_power || c.tensor;
    int inputs = 0;
    if (!c.e5m2)
        check_weight(&c);
    for (size_t i = 0; has_input && i < nib__kernel_count(); i++)
        inputs += check_input(&c, nib__kernel_at(i));
    assert_true(!has_input || inputs > 0);
    free((void *)c.x);
    return 1;
}

static void casts_equal_torchao(void **state)
{
    (void)state;
    check_each_line("tests/golden/train_casts.txt", check_cast_line, 190);
}

/* ---- one linear layer ---- */

/* A matrix as one operand of a product, summed along its rows or its columns. */
typedef struct side {
    const float *x;
    int64_t sums, length, ldx;
    bool across;
} side;

/* A cast with the product's layout, or a row that makes its input. */
static const nib_kernel *row_of(nib_op op, const nib_kernel *product)
{
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        const bool is_weight = op == NIB_OP_CAST || op == NIB_OP_CAST_T;
        const bool fits = is_weight ? row->code == product->code && row->packing == product->packing
                                    : row->act == product->act;
        if (row->op == op && fits && runs_here(row))
            return row;
    }
    fail_msg("nothing makes an operand of %s", product->name);
    return NULL;
}

/* y [m][n] = x W^T in MX8. */
static float *product(const nib_kernel *row, side xs, side ws, bool is_floor)
{
    const nib_kernel *quant = row_of(xs.across ? NIB_OP_QUANT_T : NIB_OP_QUANT, row),
                     *cast = row_of(ws.across ? NIB_OP_CAST_T : NIB_OP_CAST, row);
    const int64_t m = xs.sums, n = ws.sums, k = xs.length, groups = nib__ceil_div(k, BLOCK);
    nib_weight view, shape = {.n = n, .k = k, .scale_type = NIB_TYPE_E8M0};
    shape.scheme = (nib_scheme){.code = NIB_CODE_MX8,
                                .group = BLOCK,
                                .symmetric = true,
                                .act = NIB_ACT_MX8,
                                .mx_floor = is_floor};
    nib_cast c = {.x = ws.x, .ldx = ws.ldx, .w = &shape};
    c.packed = allocate((size_t)nib__cast_bytes(cast, &shape));
    cast->run.cast(&c, 0, n);
    nib__cast_view(&view, row, &shape, c.packed);
    nib_quant q = {.x = xs.x, .ldx = xs.ldx, .mx_floor = is_floor};
    q.out = (nib_input){.m = m, .k = k, .group = BLOCK, .groups = groups};
    q.out.ld = nib__round_up(k, NIB_CODES_PAD);
    q.out.codes = allocate((size_t)(m * q.out.ld));
    q.out.scale = allocate((size_t)(m * groups) * 4);
    quant->run.quant(&q, 0, m);
    nib_linear a = {.w = &view, .packed = c.packed, .x = q.out, .ldy = n};
    a.y = allocate((size_t)(m * n) * 4);
    void *scratch = allocate(row->scratch(&a));
    row->run.linear(&a, 0, n, scratch);
    free(scratch);
    free(q.out.codes);
    free(q.out.scale);
    free(c.packed);
    return a.y;
}

static void expect_product(const fields *f, int which, const nib_kernel *row, float *y,
                           int64_t count)
{
    char what[160];
    snprintf(what, sizeof what, "%s %s %s %sx%sx%s by %s", f->word[0], f->word[1], f->word[2],
             f->word[3], f->word[4], f->word[5], row->name);
    for (int64_t i = 0; strcmp(f->word[0], "bf16") == 0 && i < count; i++)
        y[i] = nib__bf16_to_f32(nib__f32_to_bf16(y[i]));
    if (strcmp(f->word[6], "sum") == 0) {
        expect_result(what, "sum", f->word[7 + which], y, (size_t)count * 4);
        return;
    }
    /* another order of sums: approximate */
    float *want = allocate((size_t)count * 4), largest = 0;
    for (int64_t i = 0; i < count * 4; i++) {
        const char byte[3] = {f->word[7 + which][2 * i], f->word[7 + which][2 * i + 1], 0};
        ((uint8_t *)want)[i] = (uint8_t)strtoul(byte, NULL, 16);
    }
    for (int64_t i = 0; i < count; i++)
        largest = fmaxf(largest, fabsf(want[i]));
    for (int64_t i = 0; i < count; i++)
        if (!(fabsf(y[i] - want[i]) <= 1e-6F * largest))
            fail_msg("%s: value %d is %a, not %a", what, (int)i, (double)y[i], (double)want[i]);
    free(want);
}

static int check_linear_line(const fields *f)
{
    static const nib_op ops[] = {NIB_OP_LINEAR, NIB_OP_LINEAR_DX, NIB_OP_LINEAR_DW};
    assert_int_equal(f->count, 10);
    const bool is_floor = strcmp(f->word[1], "floor") == 0;
    const int64_t m = number(f, 3), n = number(f, 4), k = number(f, 5);
    float *x = make_values(0, m, k, f->word[2]), *w = make_values(1, n, k, f->word[2]),
          *dy = make_values(2, m, n, f->word[2]);
    float *all[] = {x, w, dy};
    const int64_t sizes[] = {m * k, n * k, m * n};
    for (int t = 0; t < 3 && strcmp(f->word[0], "bf16") == 0; t++)
        for (int64_t i = 0; i < sizes[t]; i++)
            all[t][i] = nib__bf16_to_f32(nib__f32_to_bf16(all[t][i]));
    const side xs[] = {{x, m, k, k, false}, {dy, m, n, n, false}, {dy, n, m, n, true}},
               ws[] = {{w, n, k, k, false}, {w, k, n, k, true}, {x, k, m, k, true}};
    int products = 0;
    for (size_t i = 0; i < nib__kernel_count(); i++)
        for (int t = 0; t < 3; t++) {
            const nib_kernel *row = nib__kernel_at(i);
            if (row->op != ops[t] || row->code != NIB_CODE_MX8 || row->act != NIB_ACT_MX8 ||
                !runs_here(row))
                continue;
            float *y = product(row, xs[t], ws[t], is_floor);
            expect_product(f, t, row, y, xs[t].sums * ws[t].sums);
            free(y);
            products++;
        }
    assert_true(products >= 3);
    for (int t = 0; t < 3; t++)
        free(all[t]);
    return 1;
}

static void products_equal_torchao(void **state)
{
    (void)state;
    check_each_line("tests/golden/train_linear.txt", check_linear_line, 7);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(casts_equal_torchao),
        cmocka_unit_test(products_equal_torchao),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
