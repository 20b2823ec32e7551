/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of a tokenizer by themselves: the classes of characters, each normalizer with the marks of
 * user text, the bytes of byte-level tokenizers, and each allocation of opening and encoding
 * failing once. Names text_regex.c, normalize.c, added_tokens.c, tokenizer.c, vocab.c and bpe.c.
 */
#include "tokenizer_parts.h"

#include "failing.h"
#include "tokenizing.h"
#include "wrapped.h"

#include <ctype.h>
#include <xxhash.h>

#include "refused.h"

static int search_error; /* what a search that fails returns */

WRAPPED(OnigRegion *, onig_region_new, (void), (), NULL)
WRAPPED(OnigMatchParam *, onig_new_match_param, (void), (), NULL)
WRAPPED(int, onig_search_with_param,
        (OnigRegex regex, const OnigUChar *text, const OnigUChar *end, const OnigUChar *start,
         const OnigUChar *range, OnigRegion *region, OnigOptionType option, OnigMatchParam *param),
        (regex, text, end, start, range, region, option, param), search_error)

/* ---- characters ---- */

/* White_Space of Unicode. */
static void test_spaces(void **state)
{
    (void)state;
    static const uint32_t spaces[] = {0x9,    0xa,    0xb,    0xc,    0xd,    0x20,   0x85,
                                      0xa0,   0x1680, 0x2000, 0x2001, 0x2002, 0x2003, 0x2004,
                                      0x2005, 0x2006, 0x2007, 0x2008, 0x2009, 0x200a, 0x2028,
                                      0x2029, 0x202f, 0x205f, 0x3000};
    size_t next = 0;
    for (uint32_t point = 0; point <= 0x10ffff; point++) {
        const bool space = next < COUNT(spaces) && point == spaces[next];
        if (nib__is_space(point) != space)
            fail_msg("U+%04X", point);
        next += space;
    }
}

static void test_word_characters(void **state)
{
    (void)state;
    for (uint32_t point = 0; point < 0x80; point++)
        assert_int_equal(nib__is_word_char(point), isalnum((int)point) != 0 || point == '_');
    static const uint32_t words[] = {0xe9, 0x200c, 0x200d, 0x4e00};
    static const uint32_t others[] = {0xa0, 0x200b, 0x200e, 0x20ac};
    for (size_t i = 0; i < COUNT(words); i++) {
        assert_true(nib__is_word_char(words[i]));
        assert_false(nib__is_word_char(others[i]));
    }
}

static bool is_found(nib_finder_kind kind, uint32_t point)
{
    const nib_finder finder = {.kind = kind};
    char text[4];
    const int size = nib__utf8_put(text, point);
    size_t from = 0, last = SIZE_MAX;
    nib_text_range match;
    bool found;
    nib_err err;
    assert_int_equal(
        nib__find_next(&finder, NULL, text, (size_t)size, &from, &last, &match, &found, &err),
        NIB_OK);
    return found;
}

static void test_classes(void **state)
{
    (void)state;
    for (uint32_t point = 0; point < 0x80; point++) {
        assert_int_equal(is_found(NIB_FIND_PUNCTUATION, point), ispunct((int)point) != 0);
        assert_int_equal(is_found(NIB_FIND_NUMERIC, point), isdigit((int)point) != 0);
        assert_int_equal(is_found(NIB_FIND_SPACE, point), isspace((int)point) != 0);
        assert_int_equal(is_found(NIB_FIND_WORDS, point), isspace((int)point) == 0);
    }
    static const struct {
        uint32_t point;
        bool punctuation, numeric;
    } others[] = {
        {0x203f, true, false}, /* Pc, the first category of punctuation */
        {0x2014, true, false}, /* Pd */
        {0xa7, true, false},   /* Po, the last */
        {0x20ac, false, false}, {0xe9, false, false},
        {0x301, false, false},  {0x660, false, true}, /* Nd */
        {0x2160, false, true},                        /* Nl */
        {0xbd, false, true},                          /* No */
    };
    for (size_t i = 0; i < COUNT(others); i++) {
        assert_int_equal(is_found(NIB_FIND_PUNCTUATION, others[i].point), others[i].punctuation);
        assert_int_equal(is_found(NIB_FIND_NUMERIC, others[i].point), others[i].numeric);
    }
}

/* Each byte stands for one character, and no other character stands for a byte. */
static void test_bytes(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    char all[256];
    bool seen[256] = {false};
    nib_text text;
    nib__text_init(&text, &a);
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    nib__byte_level_put(&text, all, sizeof all);
    const char *at = text.at;
    for (int i = 0; i < 256; i++)
        assert_int_equal(nib__byte_level_byte(nib__utf8_next(&at)), i);
    assert_ptr_equal(at, text.at + text.size);
    int count = 0;
    for (uint32_t point = 0; point < 0x400; point++) {
        const int byte = nib__byte_level_byte(point);
        count += byte >= 0;
        if (byte >= 0)
            seen[byte] = true;
    }
    assert_int_equal(count, 256);
    for (int i = 0; i < 256; i++)
        assert_true(seen[i]);
    nib__text_free(&text);
}

/* ---- regular expressions ---- */

static nib_status find_on_small_stack(size_t max_word, nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib_finder finder = {.kind = NIB_FIND_REGEX};
    nib_regex_run run;
    char text[4096];
    size_t from = 0, last = SIZE_MAX;
    nib_text_range match;
    bool found;
    memset(text, 'a', sizeof text);
    text[sizeof text - 1] = 'c';
    nib__arena_init(&arena, &a, 0);
    assert_int_equal(nib__text_regex_open(&finder.regex, "(?:a|b)*c", 9, &arena, err), NIB_OK);
    nib_status status = nib__regex_run_open(&run, sizeof text, max_word, err);
    if (status == NIB_OK && max_word == 0)
        onig_set_match_stack_limit_size_of_match_param(run.param, 64);
    if (status == NIB_OK)
        status =
            nib__find_next(&finder, &run, text, sizeof text, &from, &last, &match, &found, err);
    nib__regex_run_close(&run);
    nib__regex_run_close(&run); /* allowed again */
    nib__text_regex_close(&finder.regex);
    nib__arena_free(&arena);
    return status;
}

/* A search that needs more positions than allowed: because of the limit on words, or of memory. */
static void test_stack(void **state)
{
    (void)state;
    nib_err err = {NIB_OK, ""};
    refused(NIB_NO_MEMORY, find_on_small_stack(0, &err), &err);
    refused(NIB_BAD_INPUT, find_on_small_stack(64, &err), &err);
    /* a limit that is higher than that of memory */
    assert_int_equal(find_on_small_stack(9 * 1024 * 1024, &err), NIB_OK);
}

/* Calls of Oniguruma that fail, one after the other: the region, its limits, the search. */
static void test_failing_search(void **state)
{
    (void)state;
    nib_err err = {NIB_OK, ""};
    search_error = ONIGERR_MEMORY;
    for (int n = 1; n <= 3; n++) {
        atomic_store(&countdown, n);
        refused(NIB_NO_MEMORY, find_on_small_stack(64, &err), &err);
    }
    search_error = ONIGERR_PARSER_BUG;
    atomic_store(&countdown, 3);
    refused(NIB_FAILED, find_on_small_stack(64, &err), &err);
}

/* ---- names that share a hash ---- */

enum { CAPACITY = 2048, NAMES = 1200, NEAR = 48 };

/* All names begin to probe at the start of the table. */
static void test_hash_of_tokens(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_vocab v = {0};
    nib_err err = {NIB_OK, ""};
    nib_status status = NIB_OK;
    int64_t id = 0;
    char name[16], first[16];
    for (int i = 0; status == NIB_OK; i++) {
        const int size = snprintf(name, sizeof name, "%d", i);
        if ((XXH3_64bits(name, (size_t)size) & (CAPACITY - 1)) >= NEAR)
            continue;
        if (id == 0)
            memcpy(first, name, sizeof first);
        status = nib__vocab_put(&v, &v.model, name, (size_t)size, id++, &a, &err);
    }
    refused(NIB_UNSUPPORTED, status, &err);
    assert_int_equal(v.model.capacity, CAPACITY);
    assert_int_equal(nib__vocab_find(&v, &v.model, name, strlen(name)), -1);
    assert_int_equal(nib__vocab_find(&v, &v.model, first, strlen(first)), 0);
    nib__vocab_free(&v, &a);
}

static void test_hash_of_merges(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_merge *list = calloc(NAMES, sizeof *list);
    nib_bpe *b = calloc(1, sizeof *b);
    nib_vocab v = {0};
    nib_err err = {NIB_OK, ""};
    size_t count = 0;
    assert_non_null(list);
    assert_non_null(b);
    for (uint32_t i = 0; count < NAMES; i++) {
        const nib_merge m = {i % 999, i / 999, (uint32_t)count, 0};
        const uint64_t key = (uint64_t)m.left << 32 | m.right;
        if ((key * UINT64_C(0x9e3779b97f4a7c15)) >> 53 < NEAR) /* of 11 bits */
            list[count++] = m;
    }
    refused(NIB_UNSUPPORTED, nib__bpe_build(b, &v, list, NAMES, false, &a, &err), &err);
    nib__bpe_free(b, &a);
    free(b);
    free(list);
}

/* A token whose each byte is the one that begins to probe nearest to the start. */
static void test_hash_of_added_tokens(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    char match[NAMES];
    const nib_added added = {.match = match, .match_size = NAMES};
    nib_trie trie = {0};
    nib_err err = {NIB_OK, ""};
    for (uint32_t node = 0; node < NAMES; node++) {
        uint64_t best = CAPACITY;
        for (uint32_t byte = 0; byte < 256; byte++) {
            const uint32_t key_1 = (node << 8 | byte) + 1;
            const uint64_t slot = (key_1 * UINT64_C(0x9e3779b97f4a7c15)) >> 32 & (CAPACITY - 1);
            if (slot < best)
                best = slot, match[node] = (char)byte;
        }
        assert_true(best < NEAR);
    }
    refused(NIB_UNSUPPORTED, nib__trie_build(&trie, &added, 1, false, &a, &err), &err);
    assert_int_equal(trie.capacity, CAPACITY);
    nib__trie_free(&trie, &a);
}

/* ---- normalizers ---- */

#define MODEL                                                                                      \
    "'model':{'type':'BPE','unk_token':'c','vocab':{'a':0,'b':1,'ab':2,'c':3,' ':4},'merges':['a " \
    "b']}"
#define NORMALIZER(list) "{'normalizer':{'type':'Sequence','normalizers':[" list "]}," MODEL "}"
#define STRIP(left, right) "{'type':'Strip','strip_left':" left ",'strip_right':" right "}"
#define PREPEND "{'type':'Prepend','prepend':'__'}"
#define REPLACE(pattern, content) "{'type':'Replace','pattern':" pattern ",'content':'" content "'}"

static void test_normalizers(void **state)
{
    (void)state;
    static const struct {
        const char *list, *text, *marks, *wanted, *wanted_marks; /* marks: of bytes, '-' or '+' */
    } cases[] = {
        {STRIP("true", "true"), "  a b ", "--++--", "a b", "+++"},
        {STRIP("true", "false"), "   ", "---", "", ""},
        {STRIP("false", "true"), "   ", "-+-", "", ""},
        {STRIP("true", "false"), " a ", "---", "a ", "--"},
        {STRIP("false", "true"), " \xe3\x80\x80", "----", "", ""}, /* U+3000 */
        {PREPEND, "ab", "-+", "__ab", "---+"},
        {STRIP("true", "true") "," PREPEND, " ", "+", "", ""},
        {STRIP("true", "true") ",{'type':'Lowercase'}", " ", "+", "", ""},
        {"{'type':'Lowercase'}", "ab", "-+", "ab", "-+"},
        {"{'type':'Lowercase'}", "aB", "-+", "ab", "++"},
        {"{'type':'Lowercase'}", "aB", "--", "ab", "--"},
        {"{'type':'Lowercase'}", "\xc4\xb0", "--", "i\xcc\x87", "---"}, /* U+0130 */
        {REPLACE("{'String':'b'}", "xy"), "abcb", "-+--", "axycxy", "-++---"},
        {REPLACE("{'Regex':'b+'}", ""), "abbc", "-+--", "ac", "--"},
        {REPLACE("{'String':'q'}", "x"), "ab", "-+", "ab", "-+"},
        {"{'type':'ByteLevel'}", " a", "-+",
         "\xc4\xa0"
         "a",
         "+++"},
        /* marks of U+0041 U+0327 U+0301: in order, and out of it */
        {"{'type':'NFD'}", "A\xcc\xa7\xcc\x81", "-----", "A\xcc\xa7\xcc\x81", "-----"},
        {"{'type':'NFD'}", "A\xcc\x81\xcc\xa7", "----+", "A\xcc\xa7\xcc\x81", "+++++"},
        {"{'type':'NFC'}", "\xc3\xa9", "--", "\xc3\xa9", "--"},
        {"{'type':'NFC'}", "e\xcc\x81", "+--", "\xc3\xa9", "++"},
        {"{'type':'NFC'}", "\xcc\x81\xcd\xb8 x", "------", "\xcc\x81\xcd\xb8 x", "------"},
        {"{'type':'NFKC'}", "\xef\xac\x81", "---", "fi", "--"},
        {"{'type':'NFKC'}", "\xef\xac\x81\xe0\xb0\x84", "------", "fi\xe0\xb0\x84", "-----"},
        {"{'type':'StripAccents'}", "e\xcc\x81\xe0\xa4\x83", "------", "e", "-"}, /* Mn, Mc */
        /* U+0C04 is a mark since Unicode 11 only */
        {"{'type':'StripAccents'}", "\xe0\xb0\x84", "---", "\xe0\xb0\x84", "---"},
    };
    for (size_t i = 0; i < 2 * COUNT(cases); i++) {
        const bool marked = i % 2 != 0;
        char json[600], marks[16], got[16];
        const char *text = cases[i / 2].text, *out;
        const size_t size = strlen(text);
        size_t out_size;
        nib_encoder e;
        nib_err err = {NIB_OK, ""};
        snprintf(json, sizeof json, NORMALIZER("%s"), cases[i / 2].list);
        nib_tokenizer *t = parse_text(with_double_quotes(json), NULL);
        assert_int_equal(nib__encoder_open(&e, t, size, &(nib_encoding){.flags = 0}, &err), NIB_OK);
        assert_int_equal(strlen(cases[i / 2].marks), size);
        for (size_t j = 0; j < size; j++)
            marks[j] = cases[i / 2].marks[j] == '+';
        e.piece_marks = marked ? marks : NULL;
        if (nib__normalize(&e, text, size, &out, &out_size) != NIB_OK)
            fail_msg("%s", err.text);
        if (out_size != strlen(cases[i / 2].wanted) ||
            memcmp(out, cases[i / 2].wanted, out_size) != 0)
            fail_msg("%s of \"%s\": \"%.*s\"", cases[i / 2].list, text, (int)out_size, out);
        for (size_t j = 0; marked && j < out_size; j++)
            got[j] = e.piece_marks[j] != 0 ? '+' : '-';
        if (marked && (strlen(cases[i / 2].wanted_marks) != out_size ||
                       memcmp(got, cases[i / 2].wanted_marks, out_size) != 0))
            fail_msg("%s of \"%s\": %.*s", cases[i / 2].list, text, (int)out_size, got);
        nib__encoder_close(&e);
        nib__tokenizer_close(t);
    }
}

/* ---- memory ---- */

#define ADDED(id, content, more) "{'id':" #id ",'content':'" content "'" more "}"
#define LETTERS "bcdefghijklmnopqrstuvwxyz"
#define CS "cccccccccccccccccccccccccccccccccccccc"
#define MANY_ADDED                                                                                 \
    ADDED(10, "a" LETTERS LETTERS "0", ",'special':true,'normalized':false")                       \
    "," ADDED(11, "z" LETTERS LETTERS "0", "") "," ADDED(                                          \
        12, "b c",                                                                                 \
        ",'normalized':true,'lstrip':true,'rstrip':true") "," ADDED(13, CS CS CS,                  \
                                                                    "") "," ADDED(14, "Cc",        \
                                                                                  ",'normalized':" \
                                                                                  "true,'single_"  \
                                                                                  "word':true")

/* 600 and 1,500 are beyond the first sizes of what grows. */
static char *long_text(size_t size)
{
    static const char parts[] = "ab C\xcc\x81\xcc\xa7 b c, a\xef\xac\x81 Cc ";
    char *text = calloc(1, size + sizeof parts);
    assert_non_null(text);
    while (strlen(text) < size)
        strcat(text, parts);
    return text;
}

/* Opens, encodes with half of the text marked, and decodes. */
static nib_status use(const char *json, const char *text, const nib_allocator *a, nib_err *err)
{
    const size_t size = strlen(text);
    const nib_byte_range marked = {size / 3, 2 * size / 3};
    const nib_encoding how = {.flags = NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL,
                              .marked = &marked,
                              .marked_count = 1};
    nib_tokenizer *t = NULL;
    int32_t *ids = NULL;
    size_t count = 0;
    nib_text out;
    nib_status status = parse_status(&t, json, "{\"bos_token\": \"a\"}", a, err);
    nib__text_init(&out, a);
    if (status == NIB_OK)
        status = nib__tokenizer_encode_as(t, text, size, &how, &ids, &count, err);
    if (status == NIB_OK)
        status = nib__tokenizer_decode(t, ids, count, false, &out, err);
    nib__text_free(&out);
    if (t != NULL)
        nib__tokenizer_ids_free(t, ids);
    nib__tokenizer_close(t);
    return status;
}

static void test_no_memory(void **state)
{
    (void)state;
    static const char *const cases[] = {
        NORMALIZER("{'type':'NFD'},{'type':'NFKC'}"),
        NORMALIZER("{'type':'Lowercase'}," STRIP("true", "true") "," PREPEND "," REPLACE(
            "{'String':' '}", "_") ",{'type':'StripAccents'},{'type':'ByteLevel'}"),
        "{'added_tokens':[" MANY_ADDED "],'normalizer':{'type':'Lowercase'}," MODEL "}",
        "{'pre_tokenizer':{'type':'Sequence','pretokenizers':[{'type':'ByteLevel',"
        "'add_prefix_space':true},{'type':'Punctuation'},{'type':'Metaspace','replacement':'_'}]},"
        "'post_processor':{'type':'BertProcessing','cls':['a',0],'sep':['b',1]},"
        "'decoder':{'type':'Sequence','decoders':[{'type':'Replace','pattern':{'String':'_'},"
        "'content':' '},{'type':'ByteFallback'},{'type':'Fuse'}]}," MODEL "}",
        "{'model':{'type':'BPE','unk_token':'u','byte_fallback':true,'fuse_unk':true,"
        "'ignore_merges':true,'vocab':{'u':0,'a':1,'b':2,'ab':3,'<0x63>':4},"
        "'merges':[['a','b']]}}",
    };
    const nib_allocator heap = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        char *text = long_text(i == 0 ? 1500 : 600);
        char *json = strdup(with_double_quotes(cases[i]));
        nib_err err = {NIB_OK, ""};
        if (use(json, text, &heap, &err) != NIB_OK)
            fail_msg("%s", err.text);
        nib_status status = NIB_NO_MEMORY;
        for (int n = 0; status != NIB_OK; n++) {
            failing f = {.left = n};
            const nib_allocator a = failing_allocator(&f);
            status = use(json, text, &a, &err);
            if (status != NIB_OK && status != NIB_NO_MEMORY)
                fail_msg("allocation %d: %s", n, err.text);
            assert_int_equal(f.live, 0);
            assert_true(n < 10000);
        }
        free(json);
        free(text);
    }
}

/* ---- added tokens ---- */

/* Spaces of several bytes on both sides; of tokens that become the same text the first counts. */
static void test_added_tokens(void **state)
{
    (void)state;
    nib_tokenizer *t = parse_text(
        with_double_quotes("{'added_tokens':[" ADDED(
            10, "<x>",
            ",'normalized':false,'lstrip':true,"
            "'rstrip':true") "," ADDED(11, "Qq", ",'normalized':true") "," ADDED(12, "qQ",
                                                                                 ",'normalized':"
                                                                                 "true") "],'"
                                                                                         "normalize"
                                                                                         "r':{'"
                                                                                         "type':"
                                                                                         "'Lowercas"
                                                                                         "e'}"
                                                                                         "," MODEL
                                                                                         "}"),
        NULL);
    expect_ids(t, "a\xe3\x80\x80 \xc2\xa0<x>\xe2\x80\x83 b", 0, "0 10 1");
    expect_ids(t, "aqqb", 0, "0 11 1");
    nib__tokenizer_close(t);
}

/* ---- ids that do not fit ---- */

/* Encoding stops at the id over the limit, whichever part adds it. */
static void test_max_ids_of_each_part(void **state)
{
    (void)state;
    nib_tokenizer *t = parse_text(
        with_double_quotes("{'added_tokens':[" ADDED(10, "x", ",'normalized':false") "," ADDED(
            11, "Y", ",'normalized':true") "],'normalizer':{'type':'Lowercase'},"
                                           "'post_processor':{'type':'BertProcessing','cls':['a',0]"
                                           ",'sep':['b',1]}," MODEL "}"),
        NULL);
    static const int32_t wanted[] = {0, 3, 10, 3, 11, 3, 1};
    for (size_t most = 1; most <= COUNT(wanted); most++) {
        const nib_encoding how = {.flags = NIB_ENCODE_ADD_SPECIAL, .max_ids = most};
        int32_t *ids = NULL;
        size_t count = 0;
        nib_err err = {NIB_OK, ""};
        if (nib__tokenizer_encode_as(t, "cxcYc", 5, &how, &ids, &count, &err) != NIB_OK)
            fail_msg("%s", err.text);
        assert_int_equal(count, most < COUNT(wanted) ? most + 1 : COUNT(wanted));
        assert_memory_equal(ids, wanted, count * sizeof *ids);
        nib__tokenizer_ids_free(t, ids);
    }
    assert_false(nib__tokenizer_is_special(t, -1));
    assert_false(nib__tokenizer_is_special(t, 12));
    nib__tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spaces),
        cmocka_unit_test(test_word_characters),
        cmocka_unit_test(test_classes),
        cmocka_unit_test(test_bytes),
        cmocka_unit_test(test_stack),
        cmocka_unit_test(test_failing_search),
        cmocka_unit_test(test_hash_of_tokens),
        cmocka_unit_test(test_hash_of_merges),
        cmocka_unit_test(test_hash_of_added_tokens),
        cmocka_unit_test(test_normalizers),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_added_tokens),
        cmocka_unit_test(test_max_ids_of_each_part),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
