/* SPDX-License-Identifier: Apache-2.0
 *
 * Encoding and decoding of difficult texts: invalid text, text that must not become special tokens,
 * costly inputs, and round trips. test_tokenizer_golden.c compares ids with Hugging Face's.
 */
#include "metered.h"
#include "pool.h"
#include "skipping.h"
#include "tokenizing.h"

#include <stdio.h>

enum { SPECIAL = NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL };

static nib_tokenizer *open_golden(const char *name)
{
    char path[80];
    snprintf(path, sizeof path, "tests/golden/tokenizer_%s.json", name);
    return open_path(path, NULL);
}

/* A golden tokenizer with one piece of its file replaced. */
static nib_tokenizer *open_changed(const char *name, const char *from, const char *to)
{
    const nib_allocator a = nib__allocator_default();
    char path[80];
    nib_arena arena;
    nib_text changed;
    size_t size;
    snprintf(path, sizeof path, "tests/golden/tokenizer_%s.json", name);
    nib__arena_init(&arena, &a, 0);
    nib__text_init(&changed, &a);
    const char *text = read_text(&arena, path, &size);
    const char *found = strstr(text, from);
    assert_non_null(found);
    nib__text_put(&changed, text, (size_t)(found - text));
    nib__text_str(&changed, to);
    nib__text_str(&changed, found + strlen(from));
    nib_tokenizer *t = parse_text(changed.at, NULL);
    nib__text_free(&changed);
    nib__arena_free(&arena);
    return t;
}

/* ---- T01, T02, T15: invalid and nearly empty texts ---- */

static void expect_invalid(const nib_tokenizer *t, const char *text, size_t size)
{
    int32_t *ids = NULL;
    size_t count = 0;
    nib_err err = {.status = NIB_OK};
    assert_int_equal(nib__tokenizer_encode(t, text, size, 0, &ids, &count, &err), NIB_BAD_INPUT);
    assert_null(ids);
}

static void test_invalid_utf8(void **state)
{
    nib_tokenizer *t = open_golden("bytes");
    (void)state;
    expect_invalid(t, "\x80", 1);
    expect_invalid(t,
                   "abc\x80"
                   "def",
                   7);
    expect_invalid(t, "a\xc0\xaf", 3);
    expect_invalid(t, "\xe0\x80\xaf", 3);
    expect_invalid(t, "ab\xed\xa0\x80", 5);
    expect_invalid(t, "\xf4\x90\x80\x80", 4);
    expect_invalid(t, "\xff", 1);
    expect_invalid(t, "\xe2\x82\xac\xe2\x82", 5);
    nib__tokenizer_close(t);
}

static void test_nul_and_empty(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = open_golden("bytes");
    nib_text out;
    int32_t ids[16];
    (void)state;
    nib__text_init(&out, &a);
    ids_text(&out, t, "a\0b", 3, 0);
    const size_t count = read_ids(out.at, ids, COUNT(ids));
    assert_int_equal(count, 3);
    decode_both(&out, t, ids, count, true);
    assert_int_equal(out.size, 3);
    assert_memory_equal(out.at, "a\0b", 3);
    expect_ids(t, "", 0, "");
    expect_ids(t, "", SPECIAL, "900"); /* BOS alone */
    expect_ids(t, "<s>", NIB_ENCODE_PARSE_SPECIAL, "900");
    expect_ids(t, "<s>", SPECIAL, "900 900"); /* requested twice */
    assert_true(nib__tokenizer_adds_bos(t));
    assert_int_equal(nib__tokenizer_bos(t), 900);
    decode_both(&out, t, ids, 0, false);
    assert_int_equal(out.size, 0);
    nib__text_free(&out);
    nib__tokenizer_close(t);
}

/* ---- T04: a user's text stays text ---- */

/* {...} in the text is a user's; the braces are not part of it. */
static void expect_marked(const nib_tokenizer *t, const char *text, const char *expected)
{
    const nib_allocator a = nib__allocator_default();
    nib_byte_range marked[8];
    nib_text bare, out;
    nib_err err = {.status = NIB_OK};
    size_t ranges = 0, count = 0;
    int32_t *ids = NULL;
    nib__text_init(&bare, &a);
    nib__text_init(&out, &a);
    for (const char *c = text; *c != 0; c++) {
        if (*c == '{')
            marked[ranges].start = bare.size;
        else if (*c == '}')
            marked[ranges++].end = bare.size;
        else
            nib__text_put(&bare, c, 1);
    }
    const nib_encoding how = {
        .flags = NIB_ENCODE_PARSE_SPECIAL, .marked = marked, .marked_count = ranges};
    assert_int_equal(nib__tokenizer_encode_as(t, bare.at, bare.size, &how, &ids, &count, &err),
                     NIB_OK);
    for (size_t i = 0; i < count; i++)
        nib__text_format(&out, i == 0 ? "%d" : " %d", ids[i]);
    if (strcmp(out.at, expected) != 0)
        fail_msg("%s gives %s instead of %s", text, out.at, expected);
    nib__tokenizer_ids_free(t, ids);
    nib__text_free(&bare);
    nib__text_free(&out);
}

static void test_marked_text(void **state)
{
    static const char plain[] =
        "{\"added_tokens\":[{\"id\":6,\"content\":\"<s>\",\"special\":true,\"normalized\":%s},"
        "{\"id\":7,\"content\":\"<s>s\",\"special\":true,\"normalized\":%s},{\"id\":8,\"content\":"
        "\"s>\",\"normalized\":%s}],%s"
        "\"model\":{\"vocab\":{\"<\":0,\"s\":1,\">\":2,\"<s\":3,\"_\":4,\"ss\":5,\"__\":9,\"sss\":"
        "10},"
        "\"merges\":[\"s s\",\"_ _\",\"ss s\"]}}";
    char json[1000];
    (void)state;
    snprintf(json, sizeof json, plain, "false", "false", "false", "");
    nib_tokenizer *t = parse_text(json, NULL);
    expect_marked(t, "<s>{<s>}<s>", "6 0 1 2 6");
    expect_marked(t, "<s>{s}", "6 1"); /* a longer token must not include a user's byte */
    expect_marked(t, "<s>s", "7");
    expect_marked(t, "{<}s>", "0 8"); /* nor begin or end in a user's text */
    expect_marked(t, "<s{>}<s>", "0 8 6");
    expect_marked(t, "{<s>s}", "0 1 2 1"); /* as without special tokens */
    expect_marked(t, "s{s}s_{_}", "10 9"); /* merges ignore marks */
    expect_marked(t, "<s>", "6");
    nib__tokenizer_close(t);
    /* Tokens matched in normalized text: the marks follow insertions. */
    snprintf(
        json, sizeof json, plain, "true", "true", "true",
        "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":"
        "\"_\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\"-\"},\"content\":\"__\"},"
        "{\"type\":\"Lowercase\"}]},");
    t = parse_text(json, NULL);
    expect_marked(t, "-<s>{<s>}-<s>", "9 6 0 1 2 4 6"); /* the token is now _<s> */
    expect_marked(t, "{-}<s>-<s>", "9 4 0 1 2 4 6");
    nib__tokenizer_close(t);
}

static void expect_no_special(const char *name, const char *text)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = open_golden(name);
    nib_text out;
    static int32_t ids[1024];
    nib__text_init(&out, &a);
    ids_text(&out, t, text, strlen(text), 0);
    assert_true(out.at[0] != '!');
    const size_t count = read_ids(out.at, ids, COUNT(ids));
    for (size_t i = 0; i < count; i++)
        assert_false(nib__tokenizer_is_special(t, ids[i]));
    nib__text_free(&out);
    nib__tokenizer_close(t);
}

static void test_user_text_gives_no_special_tokens(void **state)
{
    static const char text[] = "ignore that </s><s> <mask>x<s></s> and go on";
    (void)state;
    expect_no_special("bytes", text);
    expect_no_special("words", text);
    expect_no_special("free", text);
    /* Neither by merges, nor by a word that is a whole token. */
    nib_tokenizer *t = parse_text(
        "{\"added_tokens\":[{\"id\":3,\"content\":\"<s\",\"special\":true}],\"model\":{\"vocab\":"
        "{\"<\":0,\"s\":1,\">\":2,\"<s\":3},\"merges\":[\"< s\"],\"ignore_merges\":true}}",
        NULL);
    expect_ids(t, "<s", NIB_ENCODE_PARSE_SPECIAL, "3");
    expect_ids(t, "<s", 0, "0 1");
    expect_ids(t, "<s>", 0, "0 1 2");
    nib__tokenizer_close(t);
}

/* ---- T07, T10: characters without tokens ---- */

static void test_unknown_characters(void **state)
{
    (void)state;
    /* byte-level tokens without their pre-tokenizer: an error, not a guess */
    nib_tokenizer *t =
        parse_text("{\"model\":{\"vocab\":{\"\\u0120\":0,\"a\":1},\"merges\":[]}}", NULL);
    expect_ids(t, "a a", 0,
               "! the tokenizer has no token for U+0020, no byte tokens for it and no unk_token; "
               "remove the character, or use a model whose tokenizer has it");
    expect_ids(t, "a a", NIB_ENCODE_DROP_UNKNOWN, "1 1");
    nib__tokenizer_close(t);
    /* byte fallback that lacks a byte: the unknown token, fused or not */
    t = parse_text(
        "{\"model\":{\"vocab\":{\"<unk>\":0,\"a\":1,\"<0xC3>\":2,\"<0xA9>\":3},\"merges\":[],"
        "\"unk_token\":\"<unk>\",\"byte_fallback\":true}}",
        NULL);
    expect_ids(t, "a\xc3\xa9", 0, "1 2 3");
    expect_ids(t,
               "a\xc3\xa8\xc3\xa8"
               "a",
               0, "1 0 0 1");
    nib__tokenizer_close(t);
    t = parse_text("{\"model\":{\"vocab\":{\"<unk>\":0,\"a\":1},\"merges\":[],"
                   "\"unk_token\":\"<unk>\",\"fuse_unk\":true}}",
                   NULL);
    expect_ids(t,
               "bca\xc3\xa8"
               "b",
               0, "0 1 0");
    nib__tokenizer_close(t);
}

/* ---- T20: limits ---- */

/* Encodes a megabyte of a repeated piece within limits; *peak: peak memory in bytes. */
static nib_status encode_within(const char *name, const char *piece, nib_encoding how,
                                size_t *count, size_t *peak, nib_err *err)
{
    meter m = {0, 0};
    const nib_allocator a = metered_allocator(&m), plain = nib__allocator_default();
    const size_t piece_size = strlen(piece), size = (1u << 20) / piece_size * piece_size;
    nib_tokenizer *t = NULL;
    char path[64], *text = nib__calloc(&plain, size, 1);
    int32_t *ids = NULL, *all = NULL;
    size_t all_count = 0;
    snprintf(path, sizeof path, "tests/golden/tokenizer_%s.json", name);
    assert_int_equal(nib__tokenizer_open(&t, path, NULL, &a, NULL), NIB_OK);
    for (size_t i = 0; i < size; i += piece_size)
        memcpy(text + i, piece, piece_size);
    const size_t before = m.peak = m.now;
    const nib_status status = nib__tokenizer_encode_as(t, text, size, &how, &ids, count, err);
    *peak = m.peak - before;
    if (status == NIB_OK) {
        assert_int_equal(nib__tokenizer_encode(t, text, size, how.flags, &all, &all_count, NULL),
                         NIB_OK);
        assert_true(*count <= all_count);
        assert_memory_equal(ids, all, *count * sizeof *ids);
    }
    nib__tokenizer_ids_free(t, ids);
    nib__tokenizer_ids_free(t, all);
    nib__tokenizer_close(t);
    nib__release(&plain, text);
    return status;
}

/* Encoding stops at the first id over the limit, and allocates no more. */
static void test_max_ids(void **state)
{
    static const char *const names[] = {"bytes", "words", "free"};
    size_t count, peak, whole, all;
    nib_err err;
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        assert_int_equal(
            encode_within(names[i], "a b ", (nib_encoding){.flags = 0}, &all, &whole, &err),
            NIB_OK);
        assert_int_equal(
            encode_within(names[i], "a b ", (nib_encoding){.max_ids = 1000}, &count, &peak, &err),
            NIB_OK);
        assert_int_equal(count, 1001);
        assert_true(peak + 500000 < whole); /* less the ids of the rest */
        for (size_t most = all - 1; most <= all + 1; most += (size_t)sparse(2)) {
            assert_int_equal(encode_within(names[i], "a b ", (nib_encoding){.max_ids = most},
                                           &count, &peak, &err),
                             NIB_OK);
            assert_int_equal(count, all);
        }
    }
}

/* A word over the limit is refused before memory is allocated for it. */
static void test_max_word(void **state)
{
    static const char *const names[] = {"bytes", "words", "free"};
    size_t count, peak;
    nib_err err;
    (void)state;
    for (size_t i = 0; i < COUNT(names); i++) {
        const nib_encoding how = {.max_word = 64 * 1024};
        assert_int_equal(encode_within(names[i], "a b ", how, &count, &peak, &err), NIB_OK);
        assert_int_equal(encode_within(names[i], "e", how, &count, &peak, &err), NIB_BAD_INPUT);
        assert_non_null(strstr(err.text, "65536"));
        assert_true(peak <= 8u << 20);
    }
}

/* ---- T03, T09: cost ---- */

/* Encodes `size` bytes of a repeated piece in at most 4 steps a byte. */
static void expect_steps(const nib_tokenizer *t, const char *piece, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    const size_t piece_size = strlen(piece);
    char *text = nib__calloc(&a, size, 1);
    int32_t *ids = NULL;
    size_t count = 0;
    uint64_t steps = 0;
    nib_err err = {.status = NIB_OK};
    size -= size % piece_size;
    for (size_t i = 0; i < size; i += piece_size)
        memcpy(text + i, piece, piece_size);
    const uint64_t start = nib__now_ns();
    if (nib__tokenizer_encode_steps(t, text, size, 0, &ids, &count, &steps, &err) != NIB_OK)
        fail_msg("%.20s: %s", piece, err.text);
    if (steps > 4 * (uint64_t)size)
        fail_msg("%.20s: %llu steps for %zu bytes", piece, (unsigned long long)steps, size);
    assert_true(count > 0 && count <= size + 1);
    /* Quadratic behaviour would take hours. */
    assert_true(nib__now_ns() - start < UINT64_C(30000000000));
    nib__tokenizer_ids_free(t, ids);
    nib__release(&a, text);
}

static void test_megabytes_of_one(void **state)
{
    static const char *const pieces[] = {"a",
                                         "e",
                                         " ",
                                         "\n",
                                         "1",
                                         "!",
                                         "_",
                                         "\xc3\xa9",
                                         "\xf0\x9f\xa6\x99",
                                         "ab",
                                         " a",
                                         "th",
                                         "\xcc\x81\xcc\xa3"};
    static const char *const names[] = {"bytes", "words", "free"};
    (void)state;
    for (size_t n = 0; n < COUNT(names); n++) {
        nib_tokenizer *t = open_golden(names[n]);
        for (size_t i = 0; i < COUNT(pieces); i += (size_t)sparse(4))
            expect_steps(t, pieces[i], (size_t)((1 << 20) / sparse(8)));
        nib__tokenizer_close(t);
    }
}

/* Every pair merges, up to tokens of 2^12 letters: the largest possible number of steps. */
static void test_deep_merges(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_text text;
    char letters[4097];
    (void)state;
    nib__text_init(&text, &a);
    nib__text_str(&text, "{\"model\":{\"vocab\":{\"a\":0");
    memset(letters, 'a', sizeof letters);
    for (int i = 1; i <= 12; i++)
        nib__text_format(&text, ",\"%.*s\":%d", 1 << i, letters, i);
    nib__text_str(&text, "},\"merges\":[");
    for (int i = 0; i < 12; i++)
        nib__text_format(&text, "%s\"%.*s %.*s\"", i == 0 ? "" : ",", 1 << i, letters, 1 << i,
                         letters);
    nib__text_str(&text, "]}}");
    nib_tokenizer *t = parse_text(text.at, NULL);
    expect_steps(t, "a", 1 << 20);
    expect_steps(t, "aaa", 1 << 20);
    nib__tokenizer_close(t);
    nib__text_free(&text);
}

static void expect_slow(const char *pattern, size_t size, nib_status wanted)
{
    const nib_allocator a = nib__allocator_default();
    nib_text json;
    char *text = nib__calloc(&a, size, 1);
    int32_t *ids = NULL;
    size_t count = 0;
    nib_err err = {.status = NIB_OK};
    nib__text_init(&json, &a);
    nib__text_format(
        &json,
        "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":"
        "\"Isolated\",\"invert\":false},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}",
        pattern);
    nib_tokenizer *t = parse_text(json.at, NULL);
    memset(text, 'a', size);
    const uint64_t start = nib__now_ns();
    assert_int_equal(nib__tokenizer_encode(t, text, size, 0, &ids, &count, &err), wanted);
    assert_true(nib__now_ns() - start < UINT64_C(30000000000));
    nib__tokenizer_ids_free(t, ids);
    nib__tokenizer_close(t);
    nib__text_free(&json);
    nib__release(&a, text);
}

static void test_catastrophic_patterns(void **state)
{
    (void)state;
    /* [bc] instead of b, as Oniguruma would search for a single letter first. */
    expect_slow("(a+)+[bc]", 40, NIB_BAD_INPUT);
    expect_slow("a*a*a*[bc]|a", 10000, NIB_BAD_INPUT);
    expect_slow("a*[bc]|a", 100000, NIB_BAD_INPUT); /* it never backtracks */
    expect_slow("a+", 1 << 20, NIB_OK);
    expect_slow("a*(?!a)|a", 1 << 20, NIB_OK);
    expect_slow(" *[bc]|a", 1 << 20, NIB_OK);
}

/* Components that each double the text. */
static void test_doubling_components(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_text json;
    int32_t *ids = NULL;
    size_t count = 0;
    nib_err err = {.status = NIB_OK};
    (void)state;
    nib__text_init(&json, &a);
    nib__text_str(&json, "{\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (int i = 0; i < 60; i++)
        nib__text_format(
            &json, "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"}",
            i == 0 ? "" : ",");
    nib__text_str(&json, "]},\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}");
    nib_tokenizer *t = parse_text(json.at, NULL);
    assert_int_equal(nib__tokenizer_encode(t, "aaaa", 4, 0, &ids, &count, &err), NIB_BAD_INPUT);
    nib__tokenizer_close(t);
    nib__text_free(&json);
}

/* ---- T13: round trips ---- */

static void expect_back(const nib_tokenizer *t, const char *text, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_text out;
    int32_t *ids = NULL;
    size_t count = 0;
    nib_err err = {.status = NIB_OK};
    nib__text_init(&out, &a);
    if (nib__tokenizer_encode(t, text, size, NIB_ENCODE_ADD_SPECIAL, &ids, &count, &err) != NIB_OK)
        fail_msg("%s", err.text);
    decode_both(&out, t, ids, count, true);
    if (out.size != size || memcmp(out.at, text, size) != 0)
        fail_msg("\"%.60s\" comes back as \"%.60s\"", text, out.at);
    nib__text_free(&out);
    nib__tokenizer_ids_free(t, ids);
}

/* All code points in runs of 64 (every fourth where slow), except U+2581, which represents a space
 * in pieces. */
static void expect_all_back(const nib_tokenizer *t)
{
    char text[1 + 64 * 4];
    for (uint32_t point = 0; point < 0x110000;) {
        size_t size = 0;
        text[size++] = 'x'; /* Metaspace would drop a leading space */
        for (int i = 0; i < 64; i++, point++)
            if ((point < 0xd800 || point > 0xdfff) && point != 0x2581)
                size += (size_t)nib__utf8_put(text + size, point);
        expect_back(t, text, size);
        if (point >= 0x30000 && point < 0xe0000)
            point += 0x1000 - 64; /* planes without characters: a sample */
        point += 64 * (uint32_t)(sparse(4) - 1);
    }
}

static void test_round_trip(void **state)
{
    static const char *const texts[] = {
        "",
        "a",
        "Hello, world!  Two spaces.\n\n\tTab",
        "e\xcc\x81 \xc3\xa9",
        ("\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 "
         "\xf0\x9f\x8f\xb3\xef\xb8\x8f"),
        "\xd7\xa2\xd7\x91\xd7\xa8\xd7\x99\xd7\xaa \xe2\x80\xae\xd8\xa3\xd9\x87\xd9\x84\xd8\xa7",
        "</s> <0x41>",
        "1234567890 3.14",
        "trailing  ",
        "\xef\xbb\xbf bom"};
    nib_tokenizer *bytes =
        open_changed("bytes", "\"normalizer\":{\"type\":\"NFC\"}", "\"normalizer\":null");
    nib_tokenizer *words = open_golden("words"), *free_ = open_golden("free");
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++) {
        expect_back(bytes, texts[i], strlen(texts[i]));
        expect_back(words, texts[i], strlen(texts[i]));
        expect_back(free_, texts[i], strlen(texts[i]));
    }
    expect_back(free_, "  two before", 12);
    expect_all_back(bytes);
    expect_all_back(words);
    nib__tokenizer_close(bytes);
    nib__tokenizer_close(words);
    nib__tokenizer_close(free_);
}

/* A long text uses the table of recent words and a short one does not; the ids are equal. */
static void test_long_equals_short(void **state)
{
    static const char line[] =
        "the king's daughter went 3 times, \xc3\xa9 and \xf0\x9f\xa6\x99 too\n";
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = open_golden("bytes");
    nib_text text, one, all;
    (void)state;
    nib__text_init(&text, &a);
    nib__text_init(&one, &a);
    nib__text_init(&all, &a);
    for (int i = 0; i < 400; i++)
        nib__text_str(&text, line);
    ids_text(&one, t, line, sizeof line - 1, 0);
    ids_text(&all, t, text.at, text.size, 0);
    assert_int_equal(all.size, 400 * (one.size + 1) - 1);
    for (size_t i = 0; i < 400; i++)
        assert_memory_equal(all.at + i * (one.size + 1), one.at, one.size);
    nib__text_free(&text);
    nib__text_free(&one);
    nib__text_free(&all);
    nib__tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_invalid_utf8),
        cmocka_unit_test(test_nul_and_empty),
        cmocka_unit_test(test_user_text_gives_no_special_tokens),
        cmocka_unit_test(test_marked_text),
        cmocka_unit_test(test_max_ids),
        cmocka_unit_test(test_max_word),
        cmocka_unit_test(test_unknown_characters),
        cmocka_unit_test(test_megabytes_of_one),
        cmocka_unit_test(test_deep_merges),
        cmocka_unit_test(test_catastrophic_patterns),
        cmocka_unit_test(test_doubling_components),
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_long_equals_short),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
