/* SPDX-License-Identifier: Apache-2.0
 *
 * sha256.c: the examples of FIPS 180-4 (NIST's "Examples with Intermediate Values"), pieces equal
 * the whole, the SHA extensions equal plain C, conversion to text and back.
 */
#include "sha256.h"

#include "../skipping.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

static void expect(const char *text, const nib_digest digest)
{
    char out[NIB_DIGEST_TEXT];
    nib_digest back;
    assert_string_equal(nib__digest_text(out, &digest), text);
    assert_true(nib__digest_parse(&back, text, strlen(text)));
    assert_true(nib__digest_equal(&back, &digest));
}

static void expect_text(const char *text, const char *of)
{
    expect(text, nib__sha256_bytes(of, strlen(of)));
}

static void test_published_examples(void **state)
{
    (void)state;
    expect_text("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad", "abc");
    expect_text("e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", "");
    expect_text("248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1",
                "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq");
    expect_text("cf5b16a778af8380036ce59e7b0492370b249b11e8f07a51afac45037afee9d1",
                "abcdefghbcdefghicdefghijdefghijkefghijklfghijklmghijklmnhijklmnoijklmnopjklmnopqkl"
                "mnopqrlmnopqrsmnopqrstnopqrstu");
}

static void test_a_million_letters(void **state)
{
    (void)state;
    nib_sha256 s;
    char some[1000];
    memset(some, 'a', sizeof some);
    nib__sha256_init(&s);
    for (int i = 0; i < 1000; i++)
        nib__sha256_add(&s, some, sizeof some);
    expect("cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0",
           nib__sha256_finish(&s));
}

static void test_pieces_equal_the_whole(void **state)
{
    (void)state;
    uint8_t bytes[700];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 37 + i / 11);
    for (size_t size = 0; size <= sizeof bytes; size += size < 200 ? 1 : 83) {
        const nib_digest whole = nib__sha256_bytes(bytes, size);
        for (size_t piece = 1; piece < 300; piece = 2 * piece + 1) {
            nib_sha256 s;
            nib__sha256_init(&s);
            nib__sha256_add(&s, NULL, 0);
            for (size_t at = 0; at < size; at += piece)
                nib__sha256_add(&s, bytes + at, size - at < piece ? size - at : piece);
            const nib_digest pieces = nib__sha256_finish(&s);
            assert_true(nib__digest_equal(&pieces, &whole));
        }
    }
}

#define SKIP_SHA "this processor has no SHA extensions of x86"

static void test_extensions_equal_plain_c(void **state)
{
    (void)state;
#if defined(__x86_64__)
    unsigned a, b = 0, c, d;
    uint8_t blocks[5 * 64];
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (b & 1 << 29) == 0)
        skip_test(__func__, SKIP_SHA);
    for (size_t i = 0; i < sizeof blocks; i++)
        blocks[i] = (uint8_t)(i * 151 + i / 13);
    for (size_t count = 0; count <= 5; count++) {
        uint32_t plain[8] = {1, 2, 3, 4, 5, 6, 7, 8}, fast[8];
        memcpy(fast, plain, sizeof fast);
        nib__sha256_blocks(plain, blocks, count);
        nib__sha256_blocks_shani(fast, blocks, count);
        assert_memory_equal(plain, fast, sizeof fast);
    }
#else
    skip_test(__func__, SKIP_SHA);
#endif
}

static void test_refuses_other_text(void **state)
{
    (void)state;
    char text[NIB_DIGEST_TEXT];
    const nib_digest digest = nib__sha256_bytes("x", 1);
    nib_digest out;
    nib__digest_text(text, &digest);
    assert_false(nib__digest_parse(&out, text, 63));
    text[7] = 'g';
    assert_false(nib__digest_parse(&out, text, 64));
    text[7] = 'A'; /* sha256sum prints small letters; another form would be a second name */
    assert_false(nib__digest_parse(&out, text, 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_published_examples),
        cmocka_unit_test(test_a_million_letters),
        cmocka_unit_test(test_pieces_equal_the_whole),
        cmocka_unit_test(test_extensions_equal_plain_c),
        cmocka_unit_test(test_refuses_other_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
