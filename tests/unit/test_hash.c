/* SPDX-License-Identifier: Apache-2.0
 *
 * Hashes: known values of XXH3-128, hashing in pieces equals the whole, conversion to text and
 * back.
 */
#include "hash.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>

#include <cmocka.h>

static void expect(const char *text, const char *bytes, size_t size)
{
    char out[33];
    assert_string_equal(nib__hash_text(out, nib__hash_bytes(bytes, size)), text);
    nib_hash back = {0, 0};
    assert_true(nib__hash_parse(&back, text, 32));
    assert_true(nib__hash_equal(back, nib__hash_bytes(bytes, size)));
}

/* In the canonical form of XXH3-128, seed 0. */
static void test_known_hashes(void **state)
{
    (void)state;
    expect("99aa06d3014798d86001c324468d497f", "", 0);
    expect("a96faf705af16834e6c632b61e964e1f", "a", 1);
    expect("06b05ab6733a618578af5f94892f3950", "abc", 3);
}

static void test_pieces_equal_the_whole(void **state)
{
    (void)state;
    uint8_t bytes[3000];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 37 + i / 11);
    for (size_t size = 0; size <= sizeof bytes; size += size < 300 ? 1 : 271) {
        for (size_t piece = 1; piece < 400; piece = 3 * piece + 1) {
            nib_hasher *hasher = nib__hasher_open();
            assert_non_null(hasher);
            nib__hasher_add(hasher, NULL, 0);
            for (size_t at = 0; at < size; at += piece)
                nib__hasher_add(hasher, bytes + at, size - at < piece ? size - at : piece);
            assert_true(nib__hash_equal(nib__hasher_finish(hasher), nib__hash_bytes(bytes, size)));
        }
    }
}

/* Long inputs may use other code at once than in pieces. */
static void test_long_pieces_equal_the_whole(void **state)
{
    (void)state;
    enum { MOST = 300 << 10 };
    uint8_t *bytes = malloc(MOST);
    assert_non_null(bytes);
    for (size_t i = 0; i < MOST; i++)
        bytes[i] = (uint8_t)(i * 151 + i / 13 + (i >> 9));
    for (size_t size = (64 << 10) - 3; size <= MOST; size += size % 1024 < 70 ? 1 : 9973) {
        nib_hasher *hasher = nib__hasher_open();
        assert_non_null(hasher);
        for (size_t at = 0; at < size; at += 40000)
            nib__hasher_add(hasher, bytes + at, size - at < 40000 ? size - at : 40000);
        assert_true(nib__hash_equal(nib__hasher_finish(hasher), nib__hash_bytes(bytes, size)));
    }
    free(bytes);
}

static void test_equality_and_text(void **state)
{
    (void)state;
    const nib_hash a = {1, 2}, b = {1, 3}, c = {0, 2};
    assert_true(nib__hash_equal(a, a));
    assert_false(nib__hash_equal(a, b));
    assert_false(nib__hash_equal(a, c));
    char out[33];
    assert_string_equal(nib__hash_text(out, a), "00000000000000020000000000000001");
}

static void test_parse(void **state)
{
    (void)state;
    nib_hash hash = {7, 7};
    assert_false(nib__hash_parse(&hash, "", 0));
    assert_false(nib__hash_parse(&hash, "99aa06d3014798d86001c324468d497", 31));
    assert_false(nib__hash_parse(&hash, "99aa06d3014798d86001c324468d497f0", 33));
    assert_false(nib__hash_parse(&hash, "99aa06d3014798d86001c324468d497g", 32));
    assert_false(nib__hash_parse(&hash, "0x99aa06d3014798d86001c324468d49", 32));
    assert_int_equal(hash.low, 7); /* untouched */
    assert_true(nib__hash_parse(&hash, "FFffFFffFFffFFff0000000000000001", 32));
    assert_true(hash.high == UINT64_MAX);
    assert_int_equal(hash.low, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_known_hashes),
        cmocka_unit_test(test_pieces_equal_the_whole),
        cmocka_unit_test(test_long_pieces_equal_the_whole),
        cmocka_unit_test(test_equality_and_text),
        cmocka_unit_test(test_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
