/* SPDX-License-Identifier: Apache-2.0
 *
 * Arrays, arenas and blocks, also with the nth allocation failing.
 */
#include "failing.h"
#include "memory.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static bool is_zero(const void *p, size_t size)
{
    const unsigned char *c = p;
    for (size_t i = 0; i < size; i++)
        if (c[i] != 0)
            return false;
    return true;
}

static void test_default(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    char *p = a.resize(a.ctx, NULL, 10);
    assert_non_null(p);
    assert_int_equal((uintptr_t)p % 16, 0);
    memcpy(p, "123456789", 10);
    p = a.resize(a.ctx, p, 100000);
    assert_non_null(p);
    assert_string_equal(p, "123456789");
    assert_null(a.resize(a.ctx, p, 0));
    assert_null(a.resize(a.ctx, NULL, 0));
}

static void test_zeroed(void **state)
{
    (void)state;
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    int *p = nib__calloc(&a, 100, sizeof *p);
    assert_non_null(p);
    assert_true(is_zero(p, 400));
    nib__release(&a, p);
    assert_null(nib__calloc(&a, SIZE_MAX / 2, 3));
    assert_null(nib__calloc(&a, SIZE_MAX, SIZE_MAX));
    void *empty = nib__calloc(&a, 0, 8); /* NULL would read as a failure */
    assert_non_null(empty);
    nib__release(&a, empty);
    nib__release(&a, NULL);
    assert_int_equal(f.live, 0);
    f.left = 0;
    assert_null(nib__calloc(&a, 1, 1));
}

static void test_reserve(void **state)
{
    (void)state;
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    uint32_t *array = NULL;
    size_t capacity = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        const size_t before = capacity;
        assert_true(nib__reserve(&a, (void **)&array, &capacity, i + 1, sizeof *array));
        assert_true(capacity >= i + 1);
        assert_true(capacity == before || capacity >= 2 * before);
        array[i] = i;
    }
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(array[i], i);
    assert_int_equal(capacity, 1024);
    uint32_t *const old = array;
    assert_false(nib__reserve(&a, (void **)&array, &capacity, SIZE_MAX / 4 + 1, sizeof *array));
    assert_false(nib__reserve(&a, (void **)&array, &capacity, SIZE_MAX, sizeof *array));
    f.left = 0;
    assert_false(nib__reserve(&a, (void **)&array, &capacity, 1025, sizeof *array));
    assert_true(nib__reserve(&a, (void **)&array, &capacity, 1024, sizeof *array));
    assert_ptr_equal(array, old); /* unchanged */
    assert_int_equal(capacity, 1024);
    nib__release(&a, array);
    assert_int_equal(f.live, 0);
}

static void test_arena(void **state)
{
    (void)state;
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    nib_arena arena;
    nib__arena_init(&arena, &a, 0);
    enum { PIECES = 3000 };
    unsigned char *pieces[PIECES];
    size_t sizes[PIECES], total = 0;
    for (size_t i = 0; i < PIECES; i++) {
        sizes[i] =
            i % 97 == 0 ? i * 11 : i % 50; /* small, empty, and some in a block of their own */
        pieces[i] = nib__arena_take(&arena, sizes[i], 1);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        assert_true(is_zero(pieces[i], sizes[i]));
        memset(pieces[i], (int)(i % 251) + 1, sizes[i]);
        total += sizes[i];
    }
    assert_true(arena.total >= total);
    for (size_t i = 0; i < PIECES; i++) /* no piece overlaps another */
        for (size_t k = 0; k < sizes[i]; k++)
            assert_int_equal(pieces[i][k], i % 251 + 1);
    nib__arena_free(&arena);
    assert_int_equal(f.live, 0);
    assert_int_equal(arena.total, 0);
    assert_non_null(nib__arena_take(&arena, 1, 1)); /* a freed arena may be used again */
    nib__arena_free(&arena);
    nib__arena_free(&arena);
    assert_int_equal(f.live, 0);
}

static void test_arena_limits(void **state)
{
    (void)state;
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    nib_arena arena;
    nib__arena_init(&arena, &a, 1600);
    assert_null(nib__arena_take(&arena, 1601, 1));
    assert_null(nib__arena_take(&arena, SIZE_MAX, 1));
    /* counts that 32 bits would cut to 16 */
    assert_null(nib__arena_take(&arena, ((uint64_t)1 << 32) + 16, 1));
    assert_null(nib__arena_take(&arena, ((uint64_t)1 << 30) + 4, 4));
    assert_null(nib__block_take(((uint64_t)1 << 63) + 16));
    assert_null(nib__arena_take(&arena, SIZE_MAX / 2, 4));
    assert_null(nib__arena_take(&arena, (uint64_t)1 << 33, (uint64_t)1 << 33));
    for (int i = 0; i < 100; i++)
        assert_non_null(nib__arena_take(&arena, 3, 5));
    assert_int_equal(arena.total, 1600);
    assert_null(nib__arena_take(&arena, 1, 1));
    assert_null(nib__arena_copy(&arena, "x", SIZE_MAX));
    nib__arena_free(&arena);
    assert_int_equal(f.live, 0);
}

static void test_arena_copy(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib__arena_init(&arena, &a, 0);
    assert_string_equal(nib__arena_copy(&arena, "hello world", 5), "hello");
    assert_string_equal(nib__arena_copy(&arena, NULL, 0), "");
    assert_memory_equal(nib__arena_copy(&arena, "a\0b", 3), "a\0b", 4);
    nib__arena_free(&arena);
}

static void test_arena_without_memory(void **state)
{
    (void)state;
    for (int n = 0;; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        int taken = 0;
        for (size_t i = 0; i < 60; i++) {
            unsigned char *p = nib__arena_take(&arena, i * i, 3);
            if (p != NULL)
                memset(p, 0xff, i * i * 3);
            taken += p != NULL;
        }
        nib__arena_free(&arena);
        assert_int_equal(f.live, 0);
        if (taken == 60) {
            assert_true(n > 1);
            return;
        }
    }
}

static void test_blocks(void **state)
{
    (void)state;
    static const size_t sizes[] = {0,      1, 4096, 100000, (2 << 20) - 1, 2 << 20, (2 << 20) + 1,
                                   9000000};
    for (size_t i = 0; i < COUNT(sizes); i++) {
        unsigned char *p = nib__block_take(sizes[i]);
        assert_non_null(p);
        assert_int_equal((uintptr_t)p % 64, 0);
        assert_true(is_zero(p, sizes[i]));
        memset(p, 0xaa, sizes[i]);
        if (sizes[i] >= 2 << 20)
            assert_int_equal((uintptr_t)p % (2 << 20), 0);
        nib__block_free(p, sizes[i]);
    }
    assert_null(nib__block_take(SIZE_MAX));
    assert_null(nib__block_take(UINT64_MAX / 2));
    nib__block_free(NULL, 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_default),
        cmocka_unit_test(test_zeroed),
        cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_arena),
        cmocka_unit_test(test_arena_limits),
        cmocka_unit_test(test_arena_copy),
        cmocka_unit_test(test_arena_without_memory),
        cmocka_unit_test(test_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
