/* SPDX-License-Identifier: Apache-2.0
 *
 * Decoding id by id: never emits part of a code point; invalid bytes become U+FFFD.
 */
#include "tokenizing.h"

#include <stdio.h>

#define BAD "\xef\xbf\xbd"

typedef struct stream {
    nib_detok d;
    nib_text out;
} stream;

static void open_stream(stream *s, const nib_tokenizer *t, bool skip_special)
{
    static nib_allocator a;
    a = nib__allocator_default();
    nib__detok_init(&s->d, t, skip_special);
    nib__text_init(&s->out, &a);
}

static void close_stream(stream *s)
{
    nib__detok_free(&s->d);
    nib__text_free(&s->out);
}

/* Puts the token (NULL: ends the text) and compares the output. */
static void expect_put(stream *s, const char *token, const char *expected)
{
    nib__text_clear(&s->out);
    if (token == NULL) {
        nib__detok_finish(&s->d, &s->out);
    } else {
        const int32_t id = nib__tokenizer_find(s->d.tokenizer, token, strlen(token));
        if (id < 0)
            fail_msg("no token %s", token);
        nib__detok_put(&s->d, id, &s->out);
    }
    const char *got = s->out.at == NULL ? "" : s->out.at;
    if (strcmp(got, expected) != 0)
        fail_msg("%s gives \"%s\" instead of \"%s\"", token == NULL ? "the end" : token, got,
                 expected);
}

/* T14 */
static void test_fallback_bytes(void **state)
{
    nib_tokenizer *t = open_path("tests/golden/tokenizer_free.json", NULL);
    stream s;
    (void)state;
    open_stream(&s, t, true);
    expect_put(&s, "\xe2\x96\x81", ""); /* the space before the text */
    expect_put(&s, "<0xF0>", "");
    expect_put(&s, "<0x9F>", "");
    expect_put(&s, "<0xA6>", "");
    expect_put(&s, "<0x99>", "\xf0\x9f\xa6\x99");
    expect_put(&s, "<0xC3>", "");
    expect_put(&s, "</s>", ""); /* special tokens are skipped */
    expect_put(&s, "<0xA9>", "\xc3\xa9");
    /* each invalid byte becomes one U+FFFD */
    expect_put(&s, "<0xF0>", "");
    expect_put(&s, "<0x9F>", "");
    expect_put(&s, "a", BAD BAD "a");
    expect_put(&s, "<0xE2>", "");
    expect_put(&s, "<0x82>", "");
    expect_put(&s, "<0xC3>", BAD BAD);
    expect_put(&s, "<0x80>", "\xc3\x80");
    expect_put(&s, "<0x80>", BAD);
    expect_put(&s, "<0xFF>", BAD);
    expect_put(&s, "<0xED>", "");
    expect_put(&s, "<0xA0>", BAD BAD); /* a surrogate */
    expect_put(&s, "<0xF4>", "");
    expect_put(&s, "<0x90>", BAD BAD); /* beyond U+10FFFF */
    expect_put(&s, "<0xE0>", "");
    expect_put(&s, "<0x80>", BAD BAD); /* overlong */
    expect_put(&s, "<0xE3>", "");
    expect_put(&s, NULL, BAD);
    expect_put(&s, NULL, "");
    /* a new text: its leading space is dropped again */
    expect_put(&s, "\xe2\x96\x81", "");
    expect_put(&s, "\xe2\x96\x81", " ");
    expect_put(&s, NULL, "");
    nib__detok_continue(&s.d); /* but kept after other text */
    expect_put(&s, "\xe2\x96\x81", " ");
    close_stream(&s);
    nib__tokenizer_close(t);
}

static void test_byte_level(void **state)
{
    nib_tokenizer *t = open_path("tests/golden/tokenizer_bytes.json", NULL);
    stream s;
    (void)state;
    open_stream(&s, t, false);
    expect_put(&s, "\xc3\xb0", "");                 /* the character that encodes byte 0xf0 */
    expect_put(&s, "\xc5\x81", "");                 /* 0x9f */
    expect_put(&s, "\xc2\xa6", "");                 /* 0xa6 */
    expect_put(&s, "\xc4\xbb", "\xf0\x9f\xa6\x99"); /* 0x99 */
    expect_put(&s, "\xc4\xa0", " ");
    /* the longest valid prefix of a code point becomes one U+FFFD */
    expect_put(&s, "\xc3\xb0", "");
    expect_put(&s, "\xc5\x81", "");
    expect_put(&s, "a", BAD "a");
    expect_put(&s, "<s>", "<s>");
    expect_put(&s, "\xc5\x81", BAD);
    expect_put(&s, "\xc3\xb0", "");
    expect_put(&s, NULL, BAD);
    close_stream(&s);
    nib__tokenizer_close(t);
}

static void test_no_such_id(void **state)
{
    nib_tokenizer *t = open_path("tests/golden/tokenizer_bytes.json", NULL);
    const nib_allocator a = nib__allocator_default();
    const int32_t ids[] = {INT32_MIN, -1, 64, 100000, INT32_MAX};
    nib_text out;
    (void)state;
    nib__text_init(&out, &a);
    decode_both(&out, t, ids, COUNT(ids), true);
    assert_string_equal(out.at, BAD BAD "a" BAD BAD);
    nib__text_free(&out);
    nib__tokenizer_close(t);
}

/* Opens a decoder over the tokens "_", "a", "_b_", "__". */
static nib_tokenizer *open_with(const char *decoder)
{
    char json[1024];
    snprintf(
        json, sizeof json,
        "{\"decoder\":%s,\"model\":{\"vocab\":{\"_\":0,\"a\":1,\"_b_\":2,\"__\":3},\"merges\":[]}}",
        decoder);
    return parse_text(json, NULL);
}

static void expect_decoded(const char *decoder, const char *ids_words, const char *expected)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = open_with(decoder);
    int32_t ids[32];
    nib_text out;
    const size_t count = read_ids(ids_words, ids, COUNT(ids));
    nib__text_init(&out, &a);
    decode_both(&out, t, ids, count, true);
    if (strcmp(out.at, expected) != 0)
        fail_msg("%s of %s gives \"%s\" instead of \"%s\"", decoder, ids_words, out.at, expected);
    nib__text_free(&out);
    nib__tokenizer_close(t);
}

static void test_strips(void **state)
{
    static const char each[] = "{\"type\":\"Strip\",\"content\":\"_\",\"start\":1,\"stop\":1}";
    static const char whole[] = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Fuse\"},"
                                "{\"type\":\"Strip\",\"content\":\"_\",\"start\":2,\"stop\":2}]}";
    (void)state;
    expect_decoded(each, "1 2 3 0 1", "aba");
    expect_decoded(whole, "0 3 1", "_a");
    expect_decoded(whole, "1 3 3", "a__");
    expect_decoded(whole, "1 0 1 0", "a_a");
    expect_decoded(whole, "2 2", "b__b");
    expect_decoded(whole, "0", "");
    expect_decoded(whole, "3 3", "");
    expect_decoded(whole, "3 3 3", "__");
    expect_decoded(whole, "", "");
}

static void test_other_decoders(void **state)
{
    static const char space[] =
        "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"always\"}";
    static const char never[] =
        "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"never\"}";
    static const char replace[] =
        "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
        "{\"String\":\"_\"},\"content\":\"<>\"},{\"type\":\"Replace\",\"pattern\":"
        "{\"String\":\"<><>\"},\"content\":\"\"},{\"type\":\"Fuse\"}]}";
    (void)state;
    expect_decoded(space, "2 2 0", "b b  "); /* all spaces of the first token are dropped */
    expect_decoded(never, "2 2", " b  b ");
    expect_decoded(replace, "2 3 1", "<>b<>a");
    expect_decoded("null", "1 1 2", "a a _b_");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fallback_bytes), cmocka_unit_test(test_byte_level),
        cmocka_unit_test(test_no_such_id),     cmocka_unit_test(test_strips),
        cmocka_unit_test(test_other_decoders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
