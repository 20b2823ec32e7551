/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers in GGUF files: ids equal llama.cpp's for every pre-tokenizer name
 * (tests/golden/tokenizer_gguf.txt); with NIBBLE_TEST_DATA also the ids shipped with files of known
 * models, and those of the tokenizer.json of the same vocabulary.
 */
#include "gguf_vocab.h"

#include "failing.h"
#include "gguf_build.h"
#include "safetensors_build.h"
#include "skipping.h"
#include "tokenizing.h"

#include "pool.h"
#include "refused.h"

#include <stdio.h>

enum { SPECIAL = NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL };

/* ---- a file and its vocabulary ---- */

typedef struct file {
    nib_map map;
    nib_arena arena;
    nib_container contents;
    nib_vocab_source source;
} file;

static void file_open(file *f, const nib_allocator *a, const char *path)
{
    nib_err err = {.status = NIB_OK};
    *f = (file){.map = {0}};
    nib__arena_init(&f->arena, a, 0);
    if (nib__map_open(&f->map, path, &err) != NIB_OK ||
        nib__gguf_parse(&f->contents, f->map.at, f->map.size, path, 0, &f->arena, &err) != NIB_OK ||
        nib__gguf_vocab(&f->source, f->contents.gguf, &f->arena, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void file_close(file *f)
{
    nib__arena_free(&f->arena);
    nib__map_close(&f->map);
}

static nib_tokenizer *open_gguf(const char *path)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *t = NULL;
    nib_err err = {.status = NIB_OK};
    if (nib__gguf_tokenizer_open(&t, path, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return t;
}

/* The tokenizer.json of a tokenizer, opened. exact: it decodes every token to the same bytes. */
static nib_tokenizer *as_json(const nib_tokenizer *t, bool exact)
{
    const nib_allocator a = nib__allocator_default();
    nib_tokenizer *out = NULL;
    nib_err err = {.status = NIB_OK};
    nib_text text;
    nib_json_losses losses;
    nib__text_init(&text, &a);
    assert_int_equal(nib__tokenizer_write(&text, t, &losses, &err), NIB_OK);
    assert_int_equal(losses.twice, -1);
    assert_true(losses.misspelled == 0 || !exact);
    const nib_named_text json = {"tokenizer.json", text.at, text.size};
    if (nib__tokenizer_parse(&out, &json, NULL, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__text_free(&text);
    return out;
}

/* ---- the golden file ---- */

enum { MOST_TEXTS = 200, MOST_NAMES = 80 };

typedef struct golden {
    nib_arena arena;
    nib_text out, decoded;
    struct {
        const char *json, *ids;
    } first[MOST_TEXTS]; /* [first_count], ids from the first section with the text */
    size_t first_count;
    nib_tokenizer *tokenizers[MOST_NAMES]; /* of one section, [count] */
    nib_tokenizer *written[MOST_NAMES];    /* the same, from their tokenizer.json */
    const char *names[MOST_NAMES];
    size_t count, checked;
} golden;

static void close_section(golden *g)
{
    for (size_t i = 0; i < g->count; i++) {
        nib__tokenizer_close(g->tokenizers[i]);
        nib__tokenizer_close(g->written[i]);
    }
    g->count = 0;
}

/* "@ FILE PRE..." */
static void open_section(golden *g, char *line)
{
    const nib_allocator a = nib__allocator_default();
    char path[120], *rest = NULL;
    file f;
    close_section(g);
    snprintf(path, sizeof path, "tests/golden/%s", strtok_r(line + 2, " ", &rest));
    file_open(&f, &a, path);
    for (char *name; (name = strtok_r(NULL, " ", &rest)) != NULL; g->count++) {
        nib_err err = {.status = NIB_OK};
        assert_true(g->count < MOST_NAMES);
        f.source.pre = (nib_vocab_text){name, strlen(name)};
        if (nib__tokenizer_from_vocab(&g->tokenizers[g->count], &f.source, &a, &err) != NIB_OK)
            fail_msg("%s", err.text);
        g->written[g->count] = as_json(g->tokenizers[g->count], true);
        g->names[g->count] = name;
    }
    file_close(&f);
}

static const char *ids_of_line(golden *g, const char *json, const char *ids)
{
    size_t i = 0;
    while (i < g->first_count && strcmp(g->first[i].json, json) != 0)
        i++;
    if (strcmp(ids, "=") == 0) {
        assert_true(i < g->first_count);
        return g->first[i].ids;
    }
    if (i == g->first_count) {
        assert_true(i < MOST_TEXTS);
        g->first[g->first_count].json = json;
        g->first[g->first_count++].ids = ids;
    }
    return ids;
}

static void check_line(golden *g, char *line)
{
    static int32_t ids[4096];
    char *tab = strrchr(line, '\t');
    nib_json json;
    size_t size;
    assert_non_null(tab);
    *tab = 0;
    const char *expected = ids_of_line(g, line, tab + 1);
    nib__json_init(&json, "golden", line, strlen(line), NULL);
    const char *text = nib__json_read_string(&json, &g->arena, &size);
    assert_non_null(text);
    const size_t count = read_ids(expected, ids, COUNT(ids));
    for (size_t i = 0; i < g->count; i++, g->checked++) {
        ids_text(&g->out, g->tokenizers[i], text, size, 0);
        if (strcmp(g->out.at, expected) != 0)
            fail_msg("%s: %s gives %s instead of %s", g->names[i], line, g->out.at, expected);
        ids_text(&g->out, g->written[i], text, size, 0);
        if (strcmp(g->out.at, expected) != 0)
            fail_msg("%s, written: %s gives %s instead of %s", g->names[i], line, g->out.at,
                     expected);
        decode_both(&g->decoded, i % 2 == 0 ? g->tokenizers[i] : g->written[i], ids, count, true);
        if (strstr(line, "\\u2581") != NULL && strcmp(g->names[i], "default") == 0)
            continue; /* a space in SentencePiece */
        if (g->decoded.size != size || memcmp(g->decoded.at, text, size) != 0)
            fail_msg("%s: %s decodes to \"%s\"", g->names[i], line, g->decoded.at);
    }
}

static void test_golden(void **state)
{
    const nib_allocator a = nib__allocator_default();
    static golden g;
    size_t size;
    (void)state;
    nib__arena_init(&g.arena, &a, 0);
    nib__text_init(&g.out, &a);
    nib__text_init(&g.decoded, &a);
    char *at = read_text(&g.arena, "tests/golden/tokenizer_gguf.txt", &size);
    for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        *end = 0;
        if (at[0] == '@')
            open_section(&g, at);
        else if (at[0] != '#')
            check_line(&g, at);
    }
    close_section(&g);
    nib__text_free(&g.out);
    nib__text_free(&g.decoded);
    nib__arena_free(&g.arena);
    assert_true(g.checked > 3000);
}

/* ---- the keys ---- */

static void test_keys(void **state)
{
    const nib_allocator a = nib__allocator_default();
    const char *template;
    size_t size;
    file f;
    (void)state;
    nib_tokenizer *t = open_gguf("tests/golden/vocab_pieces.gguf");
    assert_int_equal(nib__tokenizer_bos(t), 1);
    assert_int_equal(nib__tokenizer_eos(t), 2);
    expect_ids(t, "", SPECIAL, "1");
    nib__tokenizer_close(t);
    file_open(&f, &a, "tests/golden/vocab_pieces.gguf");
    assert_int_equal(nib__gguf_chat_template(&template, &size, f.contents.gguf, NULL), NIB_OK);
    assert_null(template);
    file_close(&f);
    file_open(&f, &a, "tests/golden/vocab_bytes.gguf");
    assert_int_equal(nib__gguf_chat_template(&template, &size, f.contents.gguf, NULL), NIB_OK);
    assert_int_equal(size, strlen("{{ messages }}"));
    assert_memory_equal(template, "{{ messages }}", size);
    assert_int_equal(f.source.bos, f.source.token_count - 5);
    assert_int_equal(f.source.unk, -1);
    assert_int_equal(f.source.add_bos, NIB_VOCAB_FLAG_UNSET);
    assert_null(f.source.scores);
    file_close(&f);
    assert_true(nib__gguf_begins("tests/golden/vocab_bytes.gguf"));
    assert_false(nib__gguf_begins("tests/golden/tokenizer_bytes.json"));
    assert_false(nib__gguf_begins("tests/golden"));
    assert_false(nib__gguf_begins("nowhere"));
}

/* A value of another type is an error that names the key, and no read passes the end of the file:
 * each key in turn becomes a number. */
static void test_wrong_value_types(void **state)
{
    static const char *const keys[] = {
        "tokenizer.ggml.model",
        "tokenizer.ggml.pre",
        "tokenizer.ggml.tokens",
        "tokenizer.ggml.scores",
        "tokenizer.ggml.token_type",
        "tokenizer.ggml.merges",
        "tokenizer.ggml.bos_token_id",
        "tokenizer.ggml.eos_token_id",
        "tokenizer.ggml.unknown_token_id",
        "tokenizer.ggml.add_bos_token",
        "tokenizer.ggml.add_eos_token",
        "tokenizer.ggml.add_space_prefix",
        "tokenizer.ggml.remove_extra_whitespaces",
    };
    const nib_allocator a = nib__allocator_default();
    static const uint8_t zeros[8];
    (void)state;
    for (size_t i = 0; i < COUNT(keys); i++) {
        const bool is_id = strstr(keys[i], "_id") != NULL;
        nib_gguf_value value = {
            .key = keys[i], .at = zeros, .count = 1, .kind = is_id ? NIB_GGUF_F32 : NIB_GGUF_U32};
        nib_gguf_value *values[] = {&value};
        nib_gguf gguf = {.name = "x.gguf", .values = values, .count = 1};
        nib_vocab_source source;
        nib_err err = {.status = NIB_OK};
        nib_arena arena;
        nib__arena_init(&arena, &a, 0);
        assert_true(nib__name_index_init(&gguf.by_key, &arena, 1));
        assert_null(nib__name_index_add(&gguf.by_key, (const void *const *)values, 0));
        refused(NIB_BAD_INPUT, nib__gguf_vocab(&source, &gguf, &arena, &err), &err);
        nib__arena_free(&arena);
    }
}

static nib_status open_status(const char *path, const nib_allocator *a, nib_err *err)
{
    nib_tokenizer *t = NULL;
    const nib_status status = nib__gguf_tokenizer_open(&t, path, a, err);
    assert_true((status == NIB_OK) == (t != NULL));
    nib__tokenizer_close(t);
    return status;
}

static void test_files(void **state)
{
    (void)state;
    const nib_allocator heap = nib__allocator_default();
    char dir[256], path[300];
    nib_err err = {NIB_OK, ""};
    make_directory(dir);
    snprintf(path, sizeof path, "%s/x.gguf", dir);
    refused(NIB_IO, open_status(path, &heap, &err), &err);
    write_text(dir, "x.gguf", "GGU");
    assert_false(nib__gguf_begins(path));
    refused(NIB_BAD_INPUT, open_status(path, &heap, &err), &err);
    drop_directory(dir);
    nib_status status = NIB_NO_MEMORY;
    for (int n = 0; status != NIB_OK; n++) { /* each allocation fails once */
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        status = open_status("tests/golden/vocab_pieces.gguf", &a, &err);
        if (status != NIB_OK)
            assert_int_equal(status, NIB_NO_MEMORY);
        assert_int_equal(f.live, 0);
    }
}

/* -1 also means none. */
static void test_negative_id(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    gguf_file *f = calloc(1, sizeof *f);
    nib_container contents;
    nib_vocab_source source;
    nib_arena arena;
    assert_non_null(f);
    nib__arena_init(&arena, &a, 0);
    put_header(f, 3, 0, 2);
    put_key_int(f, "tokenizer.ggml.bos_token_id", NIB_GGUF_I32, UINT32_MAX, 4);
    put_key_int(f, "tokenizer.ggml.eos_token_id", NIB_GGUF_I32, 3, 4);
    assert_int_equal(nib__gguf_parse(&contents, f->bytes, f->size, "x.gguf", 0, &arena, NULL),
                     NIB_OK);
    assert_int_equal(nib__gguf_vocab(&source, contents.gguf, &arena, NULL), NIB_OK);
    assert_int_equal(source.bos, UINT32_MAX);
    assert_int_equal(source.eos, 3);
    assert_int_equal(source.unk, -1);
    nib__arena_free(&arena);
    free(f);
}

/* ---- known models ---- */

/* llama.cpp's 46 texts and expected ids, which are those of the models' own tokenizers */
static void check_texts(const nib_tokenizer *t, const char *data, const char *name, bool decodes)
{
    static const char separator[] = "\n__ggml_vocab_test__\n";
    static int32_t ids[4096];
    const nib_allocator a = nib__allocator_default();
    char path[1024];
    nib_arena arena;
    nib_text out;
    size_t size, count = 0;
    nib__arena_init(&arena, &a, 0);
    nib__text_init(&out, &a);
    snprintf(path, sizeof path, "%s/tokenizers/llama.cpp-vocab/ggml-vocab-%s.gguf.inp", data, name);
    char *text = read_text(&arena, path, &size);
    snprintf(path, sizeof path, "%s/tokenizers/llama.cpp-vocab/ggml-vocab-%s.gguf.out", data, name);
    char *line = read_text(&arena, path, &size), *line_end;
    for (char *end; text != NULL && (line_end = strchr(line, '\n')) != NULL; line = line_end + 1) {
        *line_end = 0;
        end = strstr(text, separator);
        const size_t text_size = end == NULL ? strlen(text) : (size_t)(end - text);
        ids_text(&out, t, text, text_size, 0);
        if (strcmp(out.at, line + (line[0] == ' ')) != 0)
            fail_msg("%s, text %zu: %s instead of %s", name, count, out.at, line);
        decode_both(&out, t, ids, read_ids(line, ids, COUNT(ids)), true);
        if (!decodes && memmem(text, text_size, "\xc3\xbc", 2) != NULL)
            assert_memory_equal(out.at, "F\xef\xbf\xbdhrer", out.size); /* as published */
        else if (out.size != text_size || memcmp(out.at, text, text_size) != 0)
            fail_msg("%s, text %zu decodes to \"%s\"", name, count, out.at);
        text = end == NULL ? NULL : end + sizeof separator - 1;
        count++;
    }
    assert_int_equal(count, 46);
    nib__text_free(&out);
    nib__arena_free(&arena);
}

/* The vocabulary of a file, and what it is as a tokenizer.json. */
static void check_cases(const char *gguf, const char *data, const char *name)
{
    const bool exact = strcmp(name, "deepseek-coder") != 0; /* it adds the letter \u00fc */
    nib_tokenizer *t = open_gguf(gguf), *written = as_json(t, exact);
    check_texts(t, data, name, true);
    check_texts(written, data, name, exact);
    nib__tokenizer_close(written);
    nib__tokenizer_close(t);
}

static void check_shipped(const char *data, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/tokenizers/llama.cpp-vocab/ggml-vocab-%s.gguf", data, name);
    check_cases(path, data, name);
}

static void test_deepseek_coder_cases(void **state)
{
    (void)state;
    check_shipped(test_data(), "deepseek-coder");
}

static void test_mpt_cases(void **state)
{
    (void)state;
    check_shipped(test_data(), "mpt");
}

static void test_gpt2_cases(void **state)
{
    (void)state;
    check_shipped(test_data(), "gpt-2");
}

static void test_llama_spm_cases(void **state)
{
    (void)state;
    check_shipped(test_data(), "llama-spm");
}

/* Uses a vocab.gguf built by tools/golden/make_tokenizers.py. */
static void check_built(const char *data, const char *built, const char *name)
{
    char path[1024];
    snprintf(path, sizeof path, "%s/%s/vocab.gguf", built, name);
    check_cases(path, data, name);
}

static void test_llama_bpe_cases(void **state)
{
    (void)state;
    check_built(test_data(), test_tokenizers(), "llama-bpe");
}

static void test_qwen2_cases(void **state)
{
    (void)state;
    check_built(test_data(), test_tokenizers(), "qwen2");
}

/* ---- the tokenizer.json of the same vocabulary ---- */

/* Texts of the golden files, alone and concatenated, give the same ids, except those containing
 * `except`, where one of the two files is known to be wrong. */
static void check_same(nib_tokenizer *gguf, nib_tokenizer *json, unsigned flags, const char *except)
{
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    nib_text one, two, text;
    size_t size, count = 0;
    nib__arena_init(&arena, &a, 0);
    nib__text_init(&one, &a);
    nib__text_init(&two, &a);
    nib__text_init(&text, &a);
    char *at = read_text(&arena, "tests/golden/tokenizer_texts.txt", &size);
    for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        nib_json reader;
        if (at[0] != 's')
            continue;
        nib__json_init(&reader, "golden", at + 2, (size_t)(end - at) - 2, NULL);
        const char *words = nib__json_read_string(&reader, &arena, &size);
        assert_non_null(words);
        if (except != NULL && memmem(words, size, except, strlen(except)) != NULL)
            continue;
        nib__text_put(&text, words, size);
        ids_text(&one, gguf, text.at, text.size, flags);
        ids_text(&two, json, text.at, text.size, flags);
        if (strcmp(one.at, two.at) != 0)
            fail_msg("%.*s gives %s by the GGUF and %s by tokenizer.json", (int)(end - at), at,
                     one.at, two.at);
        nib__text_clear(&text);
        if (++count % 2 == 0)
            nib__text_put(&text, words, size);
    }
    assert_true(count > 100);
    nib__text_free(&one);
    nib__text_free(&two);
    nib__text_free(&text);
    nib__arena_free(&arena);
    nib__tokenizer_close(gguf);
    nib__tokenizer_close(json);
}

static void test_same_llama2(void **state)
{
    const char *data = test_data();
    char path[1024], other[1024];
    (void)state;
    snprintf(path, sizeof path, "%s/tokenizers/llama.cpp-vocab/ggml-vocab-llama-spm.gguf", data);
    snprintf(other, sizeof other, "%s/tokenizers/llama2/hf/tokenizer.json", data);
    /* That tokenizer.json matches special tokens in normalized text, as early ones did, and turns
     * no-break spaces into spaces: SentencePiece and llama.cpp give the GGUF's ids for both. */
    check_same(open_gguf(path), open_path(other, NULL), NIB_ENCODE_ADD_SPECIAL, "\xc2\xa0");
}

static void test_same_gpt2(void **state)
{
    const char *data = test_data();
    char path[1024], other[1024];
    (void)state;
    snprintf(path, sizeof path, "%s/tokenizers/llama.cpp-vocab/ggml-vocab-gpt-2.gguf", data);
    snprintf(other, sizeof other, "%s/tokenizers/gpt2/tokenizer.json", data);
    check_same(open_gguf(path), open_path(other, NULL), 0, NULL);
}

/* Its scores are all -1000. */
static void test_same_tinystories(void **state)
{
    const char *data = test_data();
    char path[1024], other[1024];
    (void)state;
    snprintf(path, sizeof path, "%s/weights/TinyStories-656K/TinyStories-656K-Q8_0.gguf", data);
    snprintf(other, sizeof other, "%s/weights/TinyStories-656K/hf-f32/tokenizer.json", data);
    check_same(open_gguf(path), open_path(other, NULL), 0, NULL);
}

static void check_same_built(const char *built, const char *name)
{
    char path[1024], other[1024];
    snprintf(path, sizeof path, "%s/%s/vocab.gguf", built, name);
    snprintf(other, sizeof other, "%s/%s/tokenizer.json", built, name);
    check_same(open_gguf(path), open_path(other, NULL), SPECIAL, NULL);
}

static void test_same_llama3(void **state)
{
    (void)state;
    check_same_built(test_tokenizers(), "llama-bpe");
}

static void test_same_qwen2(void **state)
{
    (void)state;
    check_same_built(test_tokenizers(), "qwen2");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_keys),
        cmocka_unit_test(test_wrong_value_types),
        cmocka_unit_test(test_files),
        cmocka_unit_test(test_negative_id),
        cmocka_unit_test(test_deepseek_coder_cases),
        cmocka_unit_test(test_mpt_cases),
        cmocka_unit_test(test_gpt2_cases),
        cmocka_unit_test(test_llama_spm_cases),
        cmocka_unit_test(test_llama_bpe_cases),
        cmocka_unit_test(test_qwen2_cases),
        cmocka_unit_test(test_same_llama2),
        cmocka_unit_test(test_same_gpt2),
        cmocka_unit_test(test_same_tinystories),
        cmocka_unit_test(test_same_llama3),
        cmocka_unit_test(test_same_qwen2),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
