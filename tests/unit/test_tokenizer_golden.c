/* SPDX-License-Identifier: Apache-2.0
 *
 * Ids and decoded text equal those of Hugging Face's tokenizers: for our own tokenizers
 * (tests/golden/tokenizer_*.txt), and for known ones if NIBBLE_TEST_DATA and NIBBLE_TOKENIZERS name
 * their folders.
 */
#include "skipping.h"
#include "tokenizing.h"

#include <stdio.h>

/* ---- the golden files ---- */

static char *next_line(char **at)
{
    char *line = *at, *end = strchr(line, '\n');
    if (end == NULL)
        return NULL;
    *end = 0;
    *at = end + 1;
    return line;
}

static char *json_string(nib_arena *arena, const char *text, size_t size, size_t *out_size)
{
    nib_json json;
    nib__json_init(&json, "golden", text, size, NULL);
    char *string = nib__json_read_string(&json, arena, out_size);
    if (string == NULL)
        fail_msg("%s", json.err.text);
    return string;
}

/* Writes "key": value for every key of the object that is not in `except` (an object or NULL). */
static void put_members(nib_text *out, const char *object, size_t size, const char *except)
{
    nib_json json, other;
    nib__json_init(&json, "golden", object, size, NULL);
    assert_true(nib__json_expect(&json, NIB_JSON_OBJECT));
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        char key[40];
        snprintf(key, sizeof key, "%.*s", (int)json.token_size, json.token);
        bool found = false;
        nib__json_init(&other, "golden", except == NULL ? "{}" : except,
                       except == NULL ? 2 : strlen(except), NULL);
        assert_true(nib__json_expect(&other, NIB_JSON_OBJECT));
        while (nib__json_next(&other) == NIB_JSON_KEY) {
            found = found || nib__json_is(&other, key);
            assert_true(nib__json_skip(&other));
        }
        assert_int_not_equal(nib__json_next(&json), NIB_JSON_ERROR);
        const char *from = json.from;
        assert_true(nib__json_skip(&json));
        if (!found)
            nib__text_format(out, "%s\"%s\":%.*s", out->size > 1 ? "," : "", key,
                             (int)(json.at - from), from);
    }
    assert_int_equal(json.event, NIB_JSON_OBJECT_END);
}

/* "@ MODEL JSON": the tokenizer with some parts replaced; with `held`, opened from its tables. */
static nib_tokenizer *open_section(const char *line, nib_text *held)
{
    const nib_allocator a = nib__allocator_default();
    char path[80], name[20];
    nib_arena arena;
    nib_text whole;
    size_t size;
    assert_int_equal(sscanf(line, "@ %19s", name), 1);
    const char *parts = strchr(line, '{');
    snprintf(path, sizeof path, "tests/golden/tokenizer_%s.json", name);
    nib__arena_init(&arena, &a, 0);
    nib__text_init(&whole, &a);
    const char *base = read_text(&arena, path, &size);
    nib__text_str(&whole, "{");
    put_members(&whole, parts, strlen(parts), NULL);
    put_members(&whole, base, size, parts);
    nib__text_str(&whole, "}");
    nib_tokenizer *t = parse_text(whole.at, NULL);
    if (held != NULL) {
        nib_tokenizer *other = by_tables(held, t, whole.at, whole.size);
        nib__tokenizer_close(t);
        t = other;
    }
    nib__text_free(&whole);
    nib__arena_free(&arena);
    return t;
}

static void check_decoded(nib_arena *arena, const nib_tokenizer *t, const char *words,
                          const char *expected, const char *text, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    static int32_t ids[4096];
    nib_text out;
    if (expected[0] == '?')
        return; /* Hugging Face's decoder fails */
    const size_t count = read_ids(words, ids, COUNT(ids));
    nib__text_init(&out, &a);
    decode_both(&out, t, ids, count, true);
    if (expected[0] != '=')
        text = json_string(arena, expected, strlen(expected), &size);
    if (out.size != size || memcmp(out.at, text, size) != 0)
        fail_msg("%s decodes to \"%s\" instead of %s", words, out.at, expected);
    nib__text_free(&out);
}

/* flags, text, ids, decoded text, separated by tabs */
static void check_line(nib_arena *arena, const nib_tokenizer *t, char *line, const char *section)
{
    const nib_allocator a = nib__allocator_default();
    char *field[4] = {line, NULL, NULL, NULL};
    for (int i = 1; i < 4; i++) {
        field[i] = strchr(field[i - 1], '\t');
        assert_non_null(field[i]);
        *field[i]++ = 0;
    }
    const unsigned flags = line[0] == 's' ? NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL : 0;
    size_t size;
    const char *text = json_string(arena, field[1], strlen(field[1]), &size);
    nib_text out;
    nib__text_init(&out, &a);
    ids_text(&out, t, text, size, flags);
    if (strcmp(out.at, field[2]) != 0)
        fail_msg("%.80s: %s %s gives %s instead of %s", section, line, field[1], out.at, field[2]);
    nib__text_free(&out);
    check_decoded(arena, t, field[2], field[3], text, size);
}

static void check_file(const char *path, size_t least, bool tables)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib_text held;
    size_t size, count = 0;
    nib__arena_init(&arena, &a, 0);
    nib__text_init(&held, &a);
    char *at = read_text(&arena, path, &size), *section = NULL;
    nib_tokenizer *t = NULL;
    for (char *line; (line = next_line(&at)) != NULL;) {
        if (line[0] == '#')
            continue;
        if (line[0] == '@') {
            nib__tokenizer_close(t);
            section = line;
            t = open_section(line, tables ? &held : NULL);
        } else {
            check_line(&arena, t, line, section);
            count++;
        }
    }
    nib__tokenizer_close(t);
    nib__text_free(&held);
    nib__arena_free(&arena);
    assert_true(count >= least);
}

static void test_texts(void **state)
{
    (void)state;
    check_file("tests/golden/tokenizer_texts.txt", 200, false);
    check_file("tests/golden/tokenizer_texts.txt", 200, true);
}

static void test_components(void **state)
{
    (void)state;
    check_file("tests/golden/tokenizer_components.txt", 400, false);
    check_file("tests/golden/tokenizer_components.txt", 400, true);
}

/* ---- known tokenizers ---- */

/* Compares every token's text, id and kind. */
static void check_same(const nib_tokenizer *t, const nib_tokenizer *other)
{
    const int64_t ids = nib__tokenizer_vocab_size(t);
    assert_int_equal(nib__tokenizer_vocab_size(other), ids);
    assert_int_equal(nib__tokenizer_bos(other), nib__tokenizer_bos(t));
    assert_int_equal(nib__tokenizer_eos(other), nib__tokenizer_eos(t));
    for (int32_t id = 0; id < ids; id++) {
        size_t size = 0, other_size = 0;
        const char *text = nib__tokenizer_token(t, id, &size);
        const char *same = nib__tokenizer_token(other, id, &other_size);
        assert_int_equal(text == NULL, same == NULL);
        if (text == NULL)
            continue;
        assert_int_equal(other_size, size);
        assert_memory_equal(same, text, size);
        assert_int_equal(nib__tokenizer_find(other, text, size),
                         nib__tokenizer_find(t, text, size));
        assert_int_equal(nib__tokenizer_is_special(other, id), nib__tokenizer_is_special(t, id));
    }
}

/* llama.cpp's texts and expected ids, one text a line in both; also with the tokenizer's tables. */
static void check_cases(const char *tokenizer, const char *data, const char *name)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    const nib_allocator a = nib__allocator_default();
    char path[1024];
    nib_arena arena;
    nib_text out, same, held;
    size_t size, count = 0;
    nib__arena_init(&arena, &a, 0);
    nib__text_init(&out, &a);
    nib__text_init(&same, &a);
    nib__text_init(&held, &a);
    nib_tokenizer *t = open_path(tokenizer, NULL);
    const char *json = read_text(&arena, tokenizer, &size);
    nib_tokenizer *other = by_tables(&held, t, json, size);
    check_same(t, other);
    snprintf(path, sizeof path, "%s/tokenizers/llama.cpp-vocab/ggml-vocab-%s.gguf.inp", data, name);
    char *text = read_text(&arena, path, &size);
    snprintf(path, sizeof path, "%s/tokenizers/llama.cpp-vocab/ggml-vocab-%s.gguf.out", data, name);
    char *expected = read_text(&arena, path, &size);
    for (char *end; text != NULL; text = end == NULL ? NULL : end + sizeof separator - 1) {
        end = strstr(text, separator);
        const size_t length = end == NULL ? strlen(text) : (size_t)(end - text);
        ids_text(&out, t, text, length, 0);
        ids_text(&same, other, text, length, 0);
        assert_string_equal(same.at, out.at);
        char *line = next_line(&expected);
        if (line == NULL)
            break; /* the last separator ends the file */
        if (strcmp(out.at, line + (line[0] == ' ')) != 0)
            fail_msg("%s, text %zu: %s instead of %s", name, count, out.at, line);
        count++;
    }
    assert_int_equal(count, 46);
    nib__tokenizer_close(other);
    nib__tokenizer_close(t);
    nib__text_free(&held);
    nib__text_free(&same);
    nib__text_free(&out);
    nib__arena_free(&arena);
}

static void test_gpt2_cases(void **state)
{
    const char *data = test_data();
    char path[1024];
    (void)state;
    snprintf(path, sizeof path, "%s/tokenizers/gpt2/tokenizer.json", data);
    check_cases(path, data, "gpt-2");
}

static void test_llama_spm_cases(void **state)
{
    const char *data = test_data();
    char path[1024];
    (void)state;
    snprintf(path, sizeof path, "%s/tokenizers/llama2/hf/tokenizer.json", data);
    check_cases(path, data, "llama-spm");
}

/* With a tokenizer.json from tools/golden/make_tokenizers.py. */
static void check_built_cases(const char *data, const char *built, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/tokenizer.json", built, name);
    check_cases(path, data, name);
}

static void test_llama_bpe_cases(void **state)
{
    (void)state;
    check_built_cases(test_data(), test_tokenizers(), "llama-bpe");
}

static void test_qwen2_cases(void **state)
{
    (void)state;
    check_built_cases(test_data(), test_tokenizers(), "qwen2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),           cmocka_unit_test(test_components),
        cmocka_unit_test(test_gpt2_cases),      cmocka_unit_test(test_llama_spm_cases),
        cmocka_unit_test(test_llama_bpe_cases), cmocka_unit_test(test_qwen2_cases),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
