/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizer tables: refused with their name if truncated, changed, made from another file, or false
 * under valid hashes; also read from files. test_tokenizer_golden.c checks that they give the same
 * ids.
 */
#include "failing.h"
#include "tokenizing.h"

#include "refused.h"

#include <stdio.h>
#include <unistd.h>

/* Offsets of the numbers in the head; the arrays follow it. */
enum { IDS = 16, SLOTS = 24, BITS = 32, BYTES = 40, JSON = 48, SOURCE = 56, REST = 72, SELF = 88 };
enum { HEAD = 104 };

static nib_text tables; /* of tests/golden/tokenizer_bytes.json */
static char *json;
static size_t json_size;
static nib_arena arena;
static nib_allocator a0; /* their allocator */

static int setup(void **state)
{
    (void)state;
    a0 = nib__allocator_default();
    nib__arena_init(&arena, &a0, 0);
    nib__text_init(&tables, &a0);
    json = read_text(&arena, "tests/golden/tokenizer_bytes.json", &json_size);
    nib_tokenizer *t = parse_text(json, NULL);
    nib__tokenizer_close(by_tables(&tables, t, json, json_size));
    nib__tokenizer_close(t);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nib__text_free(&tables);
    nib__arena_free(&arena);
    return 0;
}

static uint64_t number(size_t at)
{
    uint64_t value;
    memcpy(&value, tables.at + at, sizeof value);
    return value;
}

static size_t slots_at(void) { return HEAD + 8 * number(IDS); }
static size_t merges_at(void) { return slots_at() + 8 * number(SLOTS); }
static size_t joins_at(void) { return merges_at() + ((size_t)16 << number(BITS)); }
static size_t bytes_at(void) { return joins_at() + 8 * (size_t)4096; }
static size_t json_at(void) { return bytes_at() + number(BYTES); }

static nib_status parse(const char *at, size_t size, const nib_hash *source, const nib_allocator *a,
                        nib_tokenizer **t, nib_err *err)
{
    const nib_named_text file = {"x/nibble.tokens", at, size};
    return nib__tokenizer_parse_tables(t, &file, source, NULL, a, err);
}

/* Parses a copy of exactly this size, so that a sanitizer catches reads outside. */
static void expect_refused(const char *at, size_t size, const nib_hash *source)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    char *copy = malloc(size == 0 ? 1 : size);
    assert_non_null(copy);
    memcpy(copy, at, size);
    refused(NIB_BAD_INPUT, parse(copy, size, source, &a, &t, &err), &err);
    free(copy);
    assert_null(t);
}

/* Recomputes the hashes. */
static void rehash(char *at, size_t size)
{
    const nib_hash rest = nib__hash_bytes(at + HEAD, size - HEAD);
    memcpy(at + REST, &rest, sizeof rest);
    memset(at + SELF, 0, sizeof rest);
    const nib_hash self = nib__hash_bytes(at, HEAD);
    memcpy(at + SELF, &self, sizeof self);
}

/* Patches bytes, recomputes the hashes, and expects an error. */
static void expect_patch_refused(size_t at, const void *bytes, size_t size)
{
    char *copy = malloc(tables.size);
    assert_non_null(copy);
    memcpy(copy, tables.at, tables.size);
    memcpy(copy + at, bytes, size);
    rehash(copy, tables.size);
    expect_refused(copy, tables.size, NULL);
    free(copy);
}

static void test_rejects_truncated_tables(void **state)
{
    (void)state;
    expect_refused(tables.at, 0, NULL);
    expect_refused(tables.at, HEAD - 1, NULL);
    for (size_t size = HEAD; size < tables.size; size += tables.size / 50)
        expect_refused(tables.at, size, NULL);
    expect_refused(tables.at, tables.size - 1, NULL);
}

static void test_rejects_changed_tables(void **state)
{
    const size_t cases[] = {0, 8, 12, IDS, SELF, HEAD, merges_at(), tables.size - 1};
    (void)state;
    for (size_t i = 0; i < COUNT(cases); i++) {
        tables.at[cases[i]] ^= 1;
        expect_refused(tables.at, tables.size, NULL);
        tables.at[cases[i]] ^= 1;
    }
}

static void test_rejects_other_tokenizer(void **state)
{
    const nib_allocator a = nib__allocator_default();
    nib_hash source = nib__hash_bytes(json, json_size);
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    (void)state;
    assert_int_equal(parse(tables.at, tables.size, &source, &a, &t, &err), NIB_OK);
    nib__tokenizer_close(t);
    source.low ^= 1;
    expect_refused(tables.at, tables.size, &source);
}

static void test_rejects_false_sizes(void **state)
{
    static const uint64_t values[] = {UINT64_MAX, INT64_MAX, UINT64_C(1) << 60, UINT64_C(1) << 40};
    static const size_t places[] = {IDS, SLOTS, BITS, BYTES, JSON};
    (void)state;
    for (size_t i = 0; i < COUNT(values); i++)
        for (size_t j = 0; j < COUNT(places); j++)
            expect_patch_refused(places[j], &values[i], sizeof *values);
    for (size_t j = 0; j < COUNT(places); j++) {
        const uint64_t more = places[j] == SLOTS ? 2 * number(SLOTS) : number(places[j]) + 1;
        expect_patch_refused(places[j], &more, sizeof more);
    }
    const uint64_t odd = number(SLOTS) + 1, none = 0;
    expect_patch_refused(SLOTS, &odd, sizeof odd);
    expect_patch_refused(BITS, &none, sizeof none);
}

static void test_rejects_false_texts(void **state)
{
    const uint32_t ids = (uint32_t)number(IDS), bytes = (uint32_t)number(BYTES);
    const uint32_t texts[][2] = {{bytes, UINT32_C(0x80000001)},
                                 {UINT32_MAX, UINT32_C(0x80000001)},
                                 {0, UINT32_C(0x8fffffff)},
                                 {0, 1},                     /* absent, yet with a size */
                                 {0, UINT32_C(0xc0000001)}}; /* special, as the JSON says */
    const uint32_t past = ids + 1, far = UINT32_MAX;
    (void)state;
    for (size_t i = 0; i < COUNT(texts); i++)
        expect_patch_refused(HEAD, texts[i], sizeof texts[i]);
    for (size_t i = 0; i < number(SLOTS); i++) {
        const size_t at = slots_at() + 8 * i + 4;
        if (i % 100 != 0)
            continue;
        expect_patch_refused(at, &past, sizeof past);
        expect_patch_refused(at, &far, sizeof far);
    }
    expect_patch_refused(bytes_at(), "\xff", 1);
    expect_patch_refused(bytes_at() + bytes - 1, "\xc3", 1);
    /* a text that begins inside a character: the first of two bytes */
    for (size_t i = 0; i + 1 < bytes; i++)
        if (((unsigned char)tables.at[bytes_at() + i] & 0xe0) == 0xc0) {
            const uint32_t inside[2] = {(uint32_t)i + 1, UINT32_C(0x80000001)};
            const uint32_t half[2] = {(uint32_t)i, UINT32_C(0x80000001)};
            expect_patch_refused(HEAD, inside, sizeof inside);
            expect_patch_refused(HEAD, half, sizeof half);
            return;
        }
    fail_msg("no token has a character of two bytes");
}

static void test_rejects_false_merges(void **state)
{
    const uint32_t ids = (uint32_t)number(IDS);
    const uint32_t merges[][4] = {{ids, 0, 0, 0},
                                  {0, ids, 0, 0},
                                  {0, 0, 0, ids},
                                  {0, UINT32_MAX, 0, 0},
                                  {0, 0, UINT32_MAX, 0}};
    const size_t slots = (size_t)1 << number(BITS);
    char *full = calloc(slots, 16);
    (void)state;
    for (size_t i = 0; i < COUNT(merges); i++) {
        expect_patch_refused(merges_at(), merges[i], sizeof merges[i]);
        expect_patch_refused(merges_at() + 16 * (slots - 1), merges[i], sizeof merges[i]);
    }
    assert_non_null(full);
    expect_patch_refused(merges_at(), full, 16 * slots); /* no empty slot to end a search */
    free(full);
}

/* The small parts are parsed like any tokenizer.json, and errors name the tables file. */
static void test_rejects_false_json(void **state)
{
    static const char vocab[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0},\"merges\":[]}}";
    static const char added[] = "{\"model\":{\"type\":\"BPE\",\"vocab\":{},\"merges\":[]},"
                                "\"added_tokens\":[{\"id\":300000,\"content\":\"<x>\"}]}";
    const size_t size = number(JSON);
    char *text = malloc(size);
    (void)state;
    assert_non_null(text);
    memset(text, ' ', size);
    memcpy(text, vocab, strlen(vocab));
    expect_patch_refused(json_at(), text, size);
    memset(text, ' ', size);
    memcpy(text, added, strlen(added));
    expect_patch_refused(json_at(), text, size);
    expect_patch_refused(json_at(), "[", 1);
    free(text);
}

/* Tables of a text that is not that of the tokenizer. */
static void test_rejects_other_json(void **state)
{
    (void)state;
    static const char *const texts[] = {"[]", "{", "{\"model\":5}", "{\"model\":{\"type\":}}",
                                        "{\"version\":}"};
    nib_tokenizer *t = parse_text(json, NULL);
    for (size_t i = 0; i < COUNT(texts); i++) {
        const nib_named_text file = {"tokenizer.json", texts[i], strlen(texts[i])};
        nib_text out;
        nib_err err = {.status = NIB_OK};
        nib__text_init(&out, &a0);
        refused(NIB_BAD_INPUT, nib__tokenizer_tables(&out, t, &file, &err), &err);
        nib__text_free(&out);
    }
    nib__tokenizer_close(t);
    nib_tokenizer *none = NULL;
    assert_int_equal(parse(tables.at, HEAD, NULL, &a0, &none, NULL), NIB_BAD_INPUT);
    assert_null(none);
}

/* A tokenizer without a token, and one whose merges make special tokens, and others. */
static void test_odd_vocabularies(void **state)
{
    (void)state;
    static const struct {
        const char *json, *text, *ids, *special; /* special: ids if special tokens are parsed */
    } cases[] = {
        {"{'model':{'type':'BPE','vocab':{},'merges':[]}}", "", "", ""},
        {"{'added_tokens':[{'id':3,'content':'<s','special':true}],'model':{'type':'BPE','vocab':"
         "{'<':0,'s':1,'a':2,'<s':3,'as':4,'sa':5},'merges':['< s','a s','s a']}}",
         "as<s", "4 0 1", "4 3"},
    };
    nib_text held, out;
    nib__text_init(&held, &a0);
    nib__text_init(&out, &a0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const char *const text = with_double_quotes(cases[i].json);
        nib_tokenizer *t = parse_text(text, NULL);
        nib_tokenizer *same = by_tables(&held, t, text, strlen(text));
        const nib_tokenizer *const both[] = {t, same};
        for (int j = 0; j < 2; j++) {
            expect_ids(both[j], cases[i].text, 0, cases[i].ids);
            expect_ids(both[j], cases[i].text, NIB_ENCODE_PARSE_SPECIAL, cases[i].special);
        }
        nib__tokenizer_close(same);
        nib__tokenizer_close(t);
    }
    nib__text_free(&out);
    nib__text_free(&held);
}

static void test_no_memory(void **state)
{
    const nib_named_text file = {"tokenizer.json", json, json_size};
    bool done = false;
    (void)state;
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_tokenizer *t = NULL;
        nib_err err = {.status = NIB_OK};
        done = parse(tables.at, tables.size, NULL, &a, &t, &err) == NIB_OK;
        if (!done && err.status != NIB_NO_MEMORY)
            fail_msg("allocation %d: %s", n, err.text);
        nib__tokenizer_close(t);
        assert_int_equal(f.live, 0);
        assert_true(n < 10000);
    }
    nib_tokenizer *t = parse_text(json, NULL);
    done = false;
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_text out;
        nib_err err = {.status = NIB_OK};
        nib__text_init(&out, &a);
        done = nib__tokenizer_tables(&out, t, &file, &err) == NIB_OK;
        assert_int_equal(err.status, done ? NIB_OK : NIB_NO_MEMORY);
        nib__text_free(&out);
        assert_int_equal(f.live, 0);
    }
    nib__tokenizer_close(t);
}

/* Written to a file, opened from it, and refused after tokenizer.json changes. */
static void test_files(void **state)
{
    const nib_allocator a = nib__allocator_default();
    char root[] = "/tmp/nibble-tables-XXXXXX", path[64], source[64];
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    uint64_t bytes = 0;
    (void)state;
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/" NIB_TABLES_NAME, root);
    snprintf(source, sizeof source, "%s/tokenizer.json", root);
    refused(NIB_IO, nib__tokenizer_open_tables(&t, path, source, NULL, &a, &err), &err);
    refused(NIB_IO, nib__tokenizer_write_tables(path, source, NULL, &bytes, &a, &err), &err);
    assert_int_equal(nib__file_write(source, json, json_size, &a, &err), NIB_OK);
    refused(NIB_IO, nib__tokenizer_open_tables(&t, path, source, NULL, &a, &err), &err);
    assert_int_equal(nib__tokenizer_write_tables(path, source, NULL, &bytes, &a, &err), NIB_OK);
    assert_int_equal(bytes, tables.size);
    assert_int_equal(nib__tokenizer_open_tables(&t, path, source, NULL, &a, &err), NIB_OK);
    nib_tokenizer *from_json = parse_text(json, NULL);
    nib_text out;
    nib__text_init(&out, &a);
    ids_text(&out, from_json, "Hello  world, e\xcc\x81!", 18, NIB_ENCODE_ADD_SPECIAL);
    expect_ids(t, "Hello  world, e\xcc\x81!", NIB_ENCODE_ADD_SPECIAL, out.at);
    nib__text_free(&out);
    nib__tokenizer_close(from_json);
    nib__tokenizer_close(t);
    json[json_size - 1] = json[json_size - 1] == '\n' ? ' ' : '\n';
    assert_int_equal(nib__file_replace(source, json, json_size, &a, &err), NIB_OK);
    t = NULL;
    refused(NIB_BAD_INPUT, nib__tokenizer_open_tables(&t, path, source, NULL, &a, &err), &err);
    assert_null(t);
    assert_int_equal(nib__path_remove(root, &err), NIB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rejects_truncated_tables),
        cmocka_unit_test(test_rejects_changed_tables),
        cmocka_unit_test(test_rejects_other_tokenizer),
        cmocka_unit_test(test_rejects_false_sizes),
        cmocka_unit_test(test_rejects_false_texts),
        cmocka_unit_test(test_rejects_false_merges),
        cmocka_unit_test(test_rejects_false_json),
        cmocka_unit_test(test_rejects_other_json),
        cmocka_unit_test(test_odd_vocabularies),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_files),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
