/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotations are orthogonal for every width, the same for the same seed, and turn weights so that
 * products stay.
 */
#include "rotation.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>

#include <cmocka.h>

#include "refused.h"

static nib_arena arena;

static int set_up(void **state)
{
    static nib_allocator a;
    (void)state;
    a = nib__allocator_default();
    nib__arena_init(&arena, &a, 0);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    nib__arena_free(&arena);
    return 0;
}

static nib_rotation make(int64_t size, uint64_t seed)
{
    nib_rotation r;
    assert_int_equal(nib__rotation_make(&r, size, seed, &arena, NULL), NIB_OK);
    return r;
}

/* Fills rows with R: the products of unit vectors. */
static double *rows_of(const nib_rotation *r)
{
    double *rows = nib__arena_take(&arena, (uint64_t)(r->size * r->size), sizeof *rows),
           *room = nib__arena_take(&arena, (uint64_t)r->base, sizeof *room);
    for (int64_t i = 0; i < r->size; i++) {
        rows[i * r->size + i] = 1;
        nib__rotation_apply(r, rows + i * r->size, r->size, room);
    }
    return rows;
}

static void check_orthogonal(int64_t size)
{
    const nib_rotation r = make(size, 7);
    const double *rows = rows_of(&r);
    for (int64_t i = 0; i < size; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t k = 0; k < size; k++)
                sum += rows[i * size + k] * rows[j * size + k];
            if (!(fabs(sum - (i == j)) < 1e-13))
                fail_msg("size %d: rows %d and %d have the product %g", (int)size, (int)i, (int)j,
                         sum);
        }
}

static void test_orthogonal(void **state)
{
    (void)state;
    for (int64_t size = 1; size <= 160; size++)
        check_orthogonal(size);
    check_orthogonal(224);
    check_orthogonal(344);
}

/* A Hadamard matrix where one is known: every value has the same magnitude. */
static void test_flat(void **state)
{
    static const struct {
        int64_t size, base;
        bool is_hadamard;
    } want[] = {{128, 1, true},   {96, 12, true},  {80, 20, true},   {224, 28, true},
                {160, 20, true},  {72, 36, true},  {3584, 28, true}, {5120, 20, true},
                {2304, 36, true}, {75, 75, false}, {172, 43, false}, {6, 3, false}};
    (void)state;
    for (size_t i = 0; i < COUNT(want); i++) {
        const nib_rotation r = make(want[i].size, 0);
        if (r.base != want[i].base || r.is_hadamard != want[i].is_hadamard)
            fail_msg("%d: base %d, %d", (int)r.size, (int)r.base, r.is_hadamard);
        const int64_t base = r.base;
        for (int64_t j = 0; r.is_hadamard && base > 1 && j < base * base; j++)
            assert_true(fabs(r.matrix[j]) == 1);
    }
}

static void test_seed(void **state)
{
    (void)state;
    const nib_rotation a = make(100, 3), b = make(100, 3), c = make(100, 4);
    const double *x = rows_of(&a), *y = rows_of(&b), *z = rows_of(&c);
    assert_memory_equal(x, y, 100 * 100 * sizeof *x);
    assert_memory_not_equal(x, z, 100 * 100 * sizeof *x);
}

/* (x / f) C through W' gives (W x) R + b R. */
static void test_weight(void **state)
{
    enum { N = 24, K = 40 };
    static float values[N * K], factors[K], x[K], turned[K], bias[N], rotated[N], out[N * K];
    double room[2 * K], want[N];
    const nib_allocator a = nib__allocator_default();
    nib_pool *pool;
    (void)state;
    for (int i = 0; i < N * K; i++)
        values[i] = (float)((i * 37 + 11) % 101 - 50) / 64;
    for (int j = 0; j < K; j++) {
        factors[j] = 0.5F + (float)(j % 7) / 4;
        x[j] = (float)((j * 29 + 5) % 31 - 15) / 16;
    }
    for (int i = 0; i < N; i++)
        bias[i] = (float)(i % 5) - 2;
    const nib_rotation rows = make(12, 1), columns = make(40, 2);
    const nib_weight w = {.scheme = {.code = NIB_CODE_F32, .symmetric = true},
                          .n = N,
                          .k = K,
                          .layout = NIB_LAYOUT_FLOAT,
                          .codes = (const void *)values,
                          .bias = (const void *)bias,
                          .bias_type = NIB_TYPE_F32};
    const nib_turn turn = {.from = &w, .factors = factors, .rows = &rows, .columns = &columns};
    assert_int_equal(nib__pool_open(&pool, 2, &a, NULL), NIB_OK);
    assert_int_equal(nib__turn_weight(out, &turn, pool, &a, NULL), NIB_OK);
    nib__turn_bias(rotated, &turn, room);
    nib__turn_input(turned, &turn, x, room);
    for (int i = 0; i < N; i++) {
        want[i] = (double)bias[i];
        for (int j = 0; j < K; j++)
            want[i] += (double)values[i * K + j] * (double)x[j];
    }
    nib__rotation_apply(&rows, want, N, room);
    for (int i = 0; i < N; i++) {
        double sum = (double)rotated[i];
        for (int j = 0; j < K; j++)
            sum += (double)out[i * K + j] * (double)turned[j];
        assert_true(fabs(sum - want[i]) < 1e-5);
    }
    nib__pool_close(pool);
}

static void test_too_wide(void **state)
{
    nib_rotation r;
    nib_err err;
    (void)state;
    refused(NIB_UNSUPPORTED, nib__rotation_make(&r, 4999, 0, &arena, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_orthogonal, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_flat, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_seed, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_weight, set_up, tear_down),
        cmocka_unit_test_setup_teardown(test_too_wide, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
