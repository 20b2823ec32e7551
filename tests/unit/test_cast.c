/* SPDX-License-Identifier: Apache-2.0
 *
 * Training casts: every row against its reference, bit for bit, over odd shapes and hard values,
 * with denormals flushed or not; products of their output; values that are not finite; the plain
 * block and its view; the counts of saturated and underflowed values.
 */
#include "cast.h"
#include "machine.h"
#include "pool.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

enum { BLOCK = 32, PART = 16, GUARD = 64, POISON = 0xa5 };

static uint64_t seed = 20261120;

static uint32_t any(void)
{
    seed = seed * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)(seed >> 33);
}

static void *take(size_t bytes)
{
    const size_t size = (bytes + GUARD + 63) / 64 * 64;
    void *p = aligned_alloc(64, size);
    assert_non_null(p);
    memset(p, POISON, size);
    return p;
}

static void check_guard(const void *p, size_t bytes)
{
    for (size_t i = bytes; i < bytes + GUARD; i++)
        assert_int_equal(((const uint8_t *)p)[i], POISON);
}

static float *make_values(int64_t count, bool finite)
{
    float *x = take((size_t)count * sizeof *x);
    for (int64_t i = 0; i < count; i++) {
        const float u = (float)(int32_t)(any() << 1) * 0x1p-31F;
        const uint32_t kind = any() % 64;
        x[i] = kind == 0              ? 0
               : kind == 1            ? -0.0F
               : kind < 6             ? ldexpf(u, -130)
               : kind == 6            ? ldexpf(u, 125)
               : kind == 7 && !finite ? NAN
               : kind == 8 && !finite ? -INFINITY
               : i / 512 % 5 == 1     ? u * 0x1p-120F /* all-tiny blocks */
                                      : ldexpf(u, (int)(any() % 21) - 10);
    }
    return x;
}

static bool runs_here(const nib_kernel *row)
{
    nib_query here = {.fact = {[NIB_FACT_ISA] = nib__cpu_isa(), [NIB_FACT_GROUP] = BLOCK}};
    return row->run.any != NULL && nib__kernel_holds(row, &here, true);
}

/* ---- casting a matrix ---- */

typedef struct how {
    bool mx_floor, two_power, e5m2;
    const float *amax;
} how;

/* A matrix x [.][ldx] with sums along rows, or across them. */
typedef struct side {
    const float *x;
    int64_t sums, length, ldx;
    bool across;
} side;

static nib_weight shape_of(nib_code code, int64_t n, int64_t k, how h)
{
    nib_weight w = {.n = n, .k = k, .scheme = {.code = code, .symmetric = true}};
    w.scheme.group = code == NIB_CODE_MX8 ? BLOCK : h.amax != NULL ? NIB_GROUP_TENSOR : 0;
    w.scheme.act = code == NIB_CODE_MX8    ? NIB_ACT_MX8
                   : code == NIB_CODE_E4M3 ? NIB_ACT_E4M3_TOKEN
                                           : NIB_ACT_FLOAT;
    w.scheme.mx_floor = h.mx_floor;
    w.scale_type = code == NIB_CODE_MX8    ? NIB_TYPE_E8M0
                   : code == NIB_CODE_E4M3 ? NIB_TYPE_F32
                                           : NIB_TYPE_NONE;
    return w;
}

static uint8_t *run_cast(const nib_kernel *row, const nib_weight *shape, side s, how h,
                         int64_t part)
{
    const size_t bytes = (size_t)nib__cast_bytes(row, shape);
    nib_cast a = {.x = s.x, .ldx = s.ldx, .w = shape, .packed = take(bytes), .amax = h.amax};
    a.two_power = h.two_power;
    for (int64_t i = 0; i < shape->n; i += part)
        row->run.cast(&a, i, nib__min(shape->n, i + part));
    check_guard(a.packed, bytes);
    return a.packed;
}

static nib_input run_quant(const nib_kernel *row, side s, how h, int64_t part)
{
    const nib_act act = (nib_act)row->act;
    const bool is_f32 = act == NIB_ACT_FLOAT && row->input == NIB_TYPE_F32,
               is_mx = act == NIB_ACT_MX8;
    const int64_t size = is_f32 ? 4 : is_mx ? 1 : 2;
    nib_quant q = {.x = s.x, .ldx = s.ldx, .mx_floor = h.mx_floor, .e5m2 = h.e5m2};
    q.two_power = h.two_power, q.amax = h.amax;
    q.out = (nib_input){.m = s.sums, .k = s.length, .group = is_mx ? BLOCK : s.length};
    q.out.groups = nib__ceil_div(s.length, q.out.group);
    q.out.ld = is_f32 ? s.length : nib__round_up(s.length, NIB_CODES_PAD);
    const size_t bytes = (size_t)(s.sums * q.out.ld * size),
                 scales = (size_t)(s.sums * q.out.groups) * 4;
    void *values = take(bytes);
    q.out.f32 = is_f32 ? values : NULL;
    q.out.codes = is_mx ? values : NULL;
    q.out.bf16 = !is_f32 && !is_mx ? values : NULL;
    q.out.scale = take(scales);
    for (int64_t i = 0; i < s.sums; i += part)
        row->run.quant(&q, i, nib__min(s.sums, i + part));
    check_guard(values, bytes);
    check_guard(q.out.scale, scales);
    return q.out;
}

static void *values_of(const nib_input *x)
{
    return x->f32 != NULL ? (void *)x->f32 : x->codes != NULL ? (void *)x->codes : x->bf16;
}

static void free_input(nib_input *x)
{
    free(values_of(x));
    free(x->scale);
}

/* ---- rows and their references ---- */

/* A row's packed bytes equal pack() of the reference's plain weight. */
static void compare_cast(const nib_kernel *row, side s, how h)
{
    const nib_kernel *ref = nib__kernel_find(row->reference);
    const nib_weight shape = shape_of((nib_code)row->code, s.sums, s.length, h);
    uint8_t *plain = run_cast(ref, &shape, s, h, s.sums), *got = run_cast(row, &shape, s, h, PART);
    const size_t bytes = (size_t)nib__cast_bytes(row, &shape);
    uint8_t *want = take(bytes);
    nib_weight view;
    nib__cast_view(&view, ref, &shape, plain);
    assert_non_null(row->packing);
    row->packing->pack(&view, want, 0, shape.n);
    if (memcmp(got, want, bytes) != 0)
        fail_msg("%s differs from its reference: %d sums of %d", row->name, (int)s.sums,
                 (int)s.length);
    free(plain);
    free(got);
    free(want);
}

static void compare_quant(const nib_kernel *row, side s, how h)
{
    nib_input want = run_quant(nib__kernel_find(row->reference), s, h, s.sums),
              got = run_quant(row, s, h, PART);
    const size_t size = want.f32 != NULL ? 4 : want.codes != NULL ? 1 : 2;
    const bool same =
        memcmp(values_of(&got), values_of(&want), (size_t)(s.sums * want.ld) * size) == 0;
    if (!same)
        fail_msg("%s differs from its reference: %d sums of %d", row->name, (int)s.sums,
                 (int)s.length);
    for (int64_t i = 0; row->act != NIB_ACT_FLOAT && i < s.sums * want.groups; i++)
        assert_true(memcmp(&got.scale[i], &want.scale[i], 4) == 0 ||
                    (isnan(got.scale[i]) && isnan(want.scale[i])));
    free_input(&want);
    free_input(&got);
}

static void compare_rows(side s, how h)
{
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        const bool is_weight = row->op == (s.across ? NIB_OP_CAST_T : NIB_OP_CAST);
        if (row->reference == NULL || !runs_here(row))
            continue;
        if (is_weight)
            compare_cast(row, s, h);
        else if (row->op == NIB_OP_QUANT_T && s.across)
            compare_quant(row, s, h);
    }
}

static void rows_equal_their_references(void **state)
{
    (void)state;
    static const int64_t shapes[][2] = {{33, 2256}, {2256, 33}, {341, 70}, {70, 341}, {2000, 1},
                                        {1, 2000},  {16, 32},   {48, 64},  {15, 31},  {17, 33},
                                        {300, 300}, {64, 127},  {7, 2},    {129, 600}};
    for (size_t i = 0; i < 4 * COUNT(shapes); i++) {
        const int64_t rows = shapes[i / 4][0], width = shapes[i / 4][1], ldx = width + any() % 3;
        const float amax = i % 2 == 0 ? 3.0F : NAN; /* larger values saturate */
        float *x = make_values(rows * ldx, i % 2 == 0);
        const how h = {any() % 2 != 0, any() % 2 != 0, any() % 2 != 0,
                       any() % 4 == 0 ? &amax : NULL};
        const nib_float_mode mode = i % 4 < 2 ? nib__float_mode_flush() : (nib_float_mode){0};
        compare_rows((side){x, rows, width, ldx, false}, h);
        compare_rows((side){x, width, rows, ldx, true}, h);
        if (i % 4 < 2)
            nib__float_mode_restore(mode);
        free(x);
    }
}

static void amax_is_the_largest(void **state)
{
    (void)state;
    enum { ROWS = 700, WIDTH = 37, LD = 40, PARTS = 3 };
    float *x = make_values(ROWS * LD, true);
    x[300 * LD + 5] = -3e38F;    /* in the second part */
    x[600 * LD + 36] = NAN;      /* in the third */
    x[600 * LD + 37] = INFINITY; /* in the padding between rows */
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        float out[PARTS] = {0}, want = 0;
        if (row->op != NIB_OP_AMAX || !runs_here(row))
            continue;
        const nib_amax a = {.x = x, .rows = ROWS, .width = WIDTH, .ldx = LD, .out = out};
        for (int p = 0; p < PARTS; p++)
            row->run.amax(&a, p, p + 1);
        for (int r = 0; r < NIB_TRAIN_ROWS; r++)
            for (int j = 0; j < WIDTH; j++)
                want = fmaxf(want, fabsf(x[r * LD + j]));
        assert_true(out[0] == want && out[1] == 3e38F && isnan(out[2]));
    }
    free(x);
}

/* ---- products of cast weights ---- */

static const nib_kernel *row_of(nib_op op, const nib_kernel *product)
{
    const bool is_weight = op == NIB_OP_CAST || op == NIB_OP_CAST_T;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        const bool fits = is_weight ? row->code == product->code && row->packing == product->packing
                                    : row->act == product->act &&
                                          (row->input == NIB_ANY || row->input == product->input);
        if (row->op == op && fits && runs_here(row))
            return row;
    }
    fail_msg("nothing makes an operand of %s", product->name);
    return NULL;
}

static float *run_product(const nib_kernel *row, side xs, side ws, how h)
{
    const nib_weight shape = shape_of((nib_code)row->code, ws.sums, ws.length, h);
    uint8_t *block =
        run_cast(row_of(ws.across ? NIB_OP_CAST_T : NIB_OP_CAST, row), &shape, ws, h, ws.sums);
    nib_input x = run_quant(row_of(xs.across ? NIB_OP_QUANT_T : NIB_OP_QUANT, row), xs, h, xs.sums);
    nib_weight view;
    nib__cast_view(&view, row, &shape, block);
    nib_linear a = {.w = &view, .packed = block, .x = x, .ldy = ws.sums};
    a.y = take((size_t)(xs.sums * ws.sums) * 4);
    void *scratch = take(row->scratch(&a));
    row->run.linear(&a, 0, ws.sums, scratch);
    free(scratch);
    free(block);
    free_input(&x);
    return a.y;
}

/* y, dx and dW of a layer: every row equals its reference bit for bit. */
static void compare_products(int64_t m, int64_t n, int64_t k, how h)
{
    static const nib_op ops[] = {NIB_OP_LINEAR, NIB_OP_LINEAR_DX, NIB_OP_LINEAR_DW};
    float *x = make_values(m * k, true), *w = make_values(n * k, true),
          *dy = make_values(m * n, true);
    const side xs[] = {{x, m, k, k, false}, {dy, m, n, n, false}, {dy, n, m, n, true}},
               ws[] = {{w, n, k, k, false}, {w, k, n, k, true}, {x, k, m, k, true}};
    int compared = 0;
    for (size_t i = 0; i < nib__kernel_count(); i++)
        for (int t = 0; t < 3; t++) {
            const nib_kernel *row = nib__kernel_at(i);
            const bool known =
                row->code == NIB_CODE_MX8 || row->code == NIB_CODE_E4M3
                    ? row->act != NIB_ACT_FLOAT
                    : row->act == NIB_ACT_FLOAT &&
                          (row->code == NIB_CODE_F32 || row->code == NIB_CODE_BF16) &&
                          nib__float_code((nib_type)row->input) == row->code;
            if (row->op != ops[t] || !known || row->reference == NULL || !runs_here(row))
                continue;
            const nib_kernel *ref = nib__kernel_find(row->reference);
            float *want = run_product(ref, xs[t], ws[t], h),
                  *got = run_product(row, xs[t], ws[t], h);
            for (int64_t j = 0; j < xs[t].sums * ws[t].sums; j++)
                if (memcmp(&got[j], &want[j], 4) != 0 && !(isnan(got[j]) && isnan(want[j])))
                    fail_msg("%s: value %d is %a, not %a", row->name, (int)j, (double)got[j],
                             (double)want[j]);
            free(want);
            free(got);
            compared++;
        }
    assert_true(compared > 0 || nib__cpu_isa() == 0);
    free(x);
    free(w);
    free(dy);
}

static void products_equal_their_references(void **state)
{
    (void)state;
    const float amax = 2;
    const nib_float_mode mode = nib__float_mode_flush();
    compare_products(37, 70, 131, (how){.two_power = true});
    compare_products(5, 2256, 33, (how){.amax = &amax});
    compare_products(341, 17, 20, (how){.mx_floor = true, .two_power = true, .amax = &amax});
    nib__float_mode_restore(mode);
}

/* ---- values that are not finite ---- */

static void non_finite_rows_make_only_their_products_nan(void **state)
{
    (void)state;
    enum { N = 40, K = 96, BAD = 21 };
    float *x = take(N * K * sizeof *x);
    for (int i = 0; i < N * K; i++)
        x[i] = (float)(i % 7) - 3;
    x[BAD * K + 40] = NAN; /* in the second block */
    x[BAD * K + 41] = -INFINITY;
    const how h = {.two_power = true};
    const side s = {x, N, K, K, false};
    const nib_kernel *mx = nib__kernel_find("cast_f32_mx8__ref"),
                     *e4m3 = nib__kernel_find("cast_f32_e4m3c__ref");
    nib_weight view, shape = shape_of(NIB_CODE_MX8, N, K, h);
    uint8_t *block = run_cast(mx, &shape, s, h, N);
    nib__cast_view(&view, mx, &shape, block);
    assert_true(isnan(nib__weight_scale(&view, BAD, 1)));
    assert_false(isnan(nib__weight_scale(&view, BAD, 0)));
    for (int j = 32; j < 64; j++)
        assert_int_equal(block[BAD * K + j], 0);
    assert_int_not_equal(block[BAD * K + 30], 0);
    free(block);
    shape = shape_of(NIB_CODE_E4M3, N, K, h);
    block = run_cast(e4m3, &shape, s, h, N);
    nib__cast_view(&view, e4m3, &shape, block);
    for (int i = 0; i < N; i++)
        assert_int_equal(isnan(nib__weight_scale(&view, i, 0)) != 0, i == BAD);
    for (int j = 0; j < K; j++)
        assert_int_equal(block[BAD * K + j], 0);
    free(block);
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        const bool is_f8 = row->code == NIB_CODE_MX8 || row->code == NIB_CODE_E4M3;
        if (row->op != NIB_OP_LINEAR_DX || !is_f8 || !runs_here(row))
            continue;
        float *ones = take(2 * K * sizeof *ones);
        for (int j = 0; j < 2 * K; j++)
            ones[j] = 1;
        float *y = run_product(row, (side){ones, 2, K, K, false}, s, h);
        for (int j = 0; j < 2 * N; j++)
            assert_int_equal(isnan(y[j]) != 0, j % N == BAD);
        free(y);
        free(ones);
    }
    free(x);
}

/* ---- the block, factors, counts ---- */

static void blocks_have_the_right_sizes(void **state)
{
    (void)state;
    const nib_kernel *ref = nib__kernel_find("cast_f32_mx8__ref");
    nib_weight view, shape = shape_of(NIB_CODE_MX8, 5, 33, (how){0});
    uint8_t block[256];
    assert_int_equal(nib__cast_bytes(ref, &shape), 192 + 5 * 2); /* 165 codes, then scales */
    nib__cast_view(&view, ref, &shape, block);
    assert_ptr_equal(view.codes, block);
    assert_ptr_equal(view.scales, block + 192);
    assert_int_equal(view.scale_stride_n, 2);
    shape = shape_of(NIB_CODE_E4M3, 5, 33, (how){0});
    assert_int_equal(nib__cast_bytes(ref, &shape), 192 + 5 * 4);
    shape = shape_of(NIB_CODE_BF16, 5, 33, (how){0});
    assert_int_equal(nib__cast_bytes(ref, &shape), 384);
    shape.n = shape.k = INT64_C(1) << 33;
    assert_int_equal(nib__cast_bytes(ref, &shape), UINT64_MAX);
    const nib_kernel packed = {.packing = nib__kernel_find("cast_f32_mx8__avx2")->packing};
    shape = shape_of(NIB_CODE_MX8, 5, 33, (how){0});
    assert_int_equal(nib__cast_bytes(&packed, &shape), packed.packing->bytes(&shape));
    nib__cast_view(&view, &packed, &shape, block);
    assert_null(view.codes);
}

static void factors_equal_torchao(void **state)
{
    (void)state;
    assert_true(nib__cast_factor(448, 448, false) == 1);
    assert_true(nib__cast_factor(3, 448, false) == (float)(448.0 / 3));
    assert_true(nib__cast_factor(3, 448, true) == 128);
    assert_true(nib__cast_factor(3.5F, 448, true) == 128);
    assert_true(nib__cast_factor(0, 448, false) == (float)(448 / 1e-12));
    assert_true(nib__cast_factor(1e-30F, 57344, false) == (float)(57344 / 1e-12));
    assert_true(nib__cast_factor(3e38F, 448, false) == (float)(448 / (double)3e38F));
    assert_true(isnan(nib__cast_factor(INFINITY, 448, false)));
    assert_true(isnan(nib__cast_factor(NAN, 448, true)));
}

static nib_cast_counts count(const float *x, int64_t rows, int64_t width, bool across,
                             nib_cast_form form)
{
    nib_cast_counts counts = {0};
    nib__cast_count(&counts, x, rows, width, width, across, &form);
    return counts;
}

static void losses_are_counted(void **state)
{
    (void)state;
    float x[4][64] = {{0}};
    for (int j = 0; j < 64; j++)
        x[0][j] = 1;
    x[0][3] = 1.99F; /* floor: 1.99 * 256 = 509 exceeds 448; rceil does not */
    x[0][4] = 1e-6F; /* below 2^-8 of the smallest step */
    x[1][40] = 500;  /* alone in its block: floor divides by 1 */
    x[2][0] = NAN;   /* its block counts nothing */
    x[2][1] = 1;
    nib_cast_counts c = count(x[0], 4, 64, false, (nib_cast_form){.code = NIB_CODE_MX8});
    assert_true(c.nonzero == 65 && c.saturated == 0 && c.underflowed == 1);
    c = count(x[0], 4, 64, false, (nib_cast_form){.code = NIB_CODE_MX8, .mx_floor = true});
    assert_true(c.nonzero == 65 && c.saturated == 2 && c.underflowed == 1);
    /* along columns each value is alone, except 1 with 500 and with the NaN */
    c = count(x[0], 4, 64, true, (nib_cast_form){.code = NIB_CODE_MX8});
    assert_true(c.nonzero == 65 && c.saturated == 0 && c.underflowed == 0);
    const float one = 1;
    c = count(x[0], 2, 64, false, (nib_cast_form){.code = NIB_CODE_E4M3, .amax = &one});
    assert_true(c.nonzero == 65 && c.saturated == 2 && c.underflowed == 1);
    c = count(x[0], 2, 64, false, (nib_cast_form){.code = NIB_CODE_E5M2});
    assert_true(c.nonzero == 65 && c.saturated == 0 && c.underflowed == 0);
    c = count(x[0], 2, 64, false, (nib_cast_form){.code = NIB_CODE_BF16});
    assert_true(c.nonzero == 65 && c.saturated == 0 && c.underflowed == 0);
    const float most[] = {3.4e38F, 1e-45F};
    c = count(most, 1, 2, false, (nib_cast_form){.code = NIB_CODE_BF16});
    assert_true(c.nonzero == 2 && c.saturated == 1 && c.underflowed == 1);
    c = count(most, 1, 2, false, (nib_cast_form){.code = NIB_CODE_F32});
    assert_true(c.nonzero == 2 && c.saturated == 0 && c.underflowed == 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_equal_their_references),
        cmocka_unit_test(amax_is_the_largest),
        cmocka_unit_test(products_equal_their_references),
        cmocka_unit_test(non_finite_rows_make_only_their_products_nan),
        cmocka_unit_test(blocks_have_the_right_sizes),
        cmocka_unit_test(factors_equal_torchao),
        cmocka_unit_test(losses_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
