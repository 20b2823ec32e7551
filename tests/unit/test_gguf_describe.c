/* SPDX-License-Identifier: Apache-2.0
 *
 * Model and tokenizer metadata written to a GGUF and read back: the same config values, and a
 * tokenizer that gives the same ids.
 */
#include "gguf_describe.h"
#include "gguf_vocab.h"
#include "skipping.h"
#include "tokenizing.h"

#include "refused.h"

#include <stdio.h>
#include <unistd.h>

enum { SPECIAL = NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL };

/* The bytes of a GGUF with the head's key/values and no tensors. */
static void finish_head(nib_text *file, const nib_gguf_head *head, const nib_allocator *a)
{
    nib__text_init(file, a);
    nib__gguf_begin(file, head, 0);
    while (file->size % NIB_GGUF_ALIGNMENT != 0)
        nib__text_put(file, "\0", 1);
    assert_false(file->failed);
}

static void parse(nib_container *contents, const nib_text *file, nib_arena *arena)
{
    nib_err err = {.status = NIB_OK};
    if (nib__gguf_parse(contents, (const uint8_t *)file->at, file->size, "x.gguf", 0, arena,
                        &err) != NIB_OK)
        fail_msg("%s", err.text);
}

/* ---- the model ---- */

static void expect_int(const nib_gguf *gguf, const char *key, int64_t expected)
{
    int64_t value = -1;
    assert_int_equal(nib__gguf_int(&value, NULL, gguf, key, NULL), NIB_OK);
    if (value != expected)
        fail_msg("%s is %lld", key, (long long)value);
}

static void test_config(void **state)
{
    const nib_allocator a = nib__allocator_default();
    const nib_config c = {.arch = NIB_ARCH_QWEN3,
                          .layers = 3,
                          .width = 64,
                          .ffn = 172,
                          .heads = 8,
                          .kv_heads = 2,
                          .head_dim = 16,
                          .vocab = 512,
                          .context = 2048,
                          .norm_eps = 1e-6,
                          .rope_theta = 10000,
                          .rope = NIB_ROPE_LINEAR,
                          .rope_factor = 4};
    nib_gguf_head head;
    nib_container contents;
    nib_arena arena;
    nib_text file;
    double value = 0;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    nib__gguf_head_init(&head, &a);
    nib__gguf_describe_config(&head, &c, "a name", nib__gguf_file_type(NIB_TYPE_Q8_0));
    finish_head(&file, &head, &a);
    parse(&contents, &file, &arena);
    const nib_gguf *g = contents.gguf;
    assert_string_equal(g->arch, "qwen3");
    expect_int(g, "qwen3.block_count", 3);
    expect_int(g, "qwen3.attention.head_count_kv", 2);
    expect_int(g, "qwen3.attention.key_length", 16);
    expect_int(g, "qwen3.rope.dimension_count", 16);
    expect_int(g, "qwen3.vocab_size", 512);
    expect_int(g, "general.file_type", 7);
    expect_int(g, "general.quantization_version", 2);
    assert_int_equal(nib__gguf_double(&value, NULL, g, "qwen3.rope.scaling.factor", NULL), NIB_OK);
    assert_true(value == 4);
    assert_int_equal(
        nib__gguf_double(&value, NULL, g, "qwen3.attention.layer_norm_rms_epsilon", NULL), NIB_OK);
    assert_true(value == (double)1e-6f);
    nib__text_free(&file);
    nib__gguf_head_free(&head);
    nib__arena_free(&arena);
}

/* Dividing by the divisors gives the model's own rope table. */
static void test_rope_divisors(void **state)
{
    nib_config c = {.head_dim = 8,
                    .rope_theta = 500000,
                    .rope = NIB_ROPE_LLAMA3,
                    .rope_factor = 8,
                    .rope_low = 1,
                    .rope_high = 4,
                    .rope_original = 8192};
    float divisors[4], by_rule[3 * 8], by_divisors[3 * 8];
    (void)state;
    for (int64_t i = 0; i < 4; i++)
        divisors[i] = (float)nib__rope_divisor(&c, i);
    assert_true(divisors[0] == 1 && divisors[3] == 8);
    nib__rope_table(by_rule, &c, 0, 3, 0, 3);
    c.rope = NIB_ROPE_PLAIN;
    c.rope_divisors = divisors;
    nib__rope_table(by_divisors, &c, 0, 3, 0, 3);
    for (size_t i = 0; i < COUNT(by_rule); i++)
        assert_float_equal(by_rule[i], by_divisors[i], 1e-6);
}

/* ---- tokenizers ---- */

static nib_status describe(nib_text *file, const char *directory, const char *name, int64_t rows,
                           const nib_allocator *a, nib_ledger *ledger, nib_err *err)
{
    const nib_config c = {.vocab = rows, .bos = -1};
    char path[1024];
    nib_gguf_head head;
    snprintf(path, sizeof path, "%s/%s", directory, name);
    nib__gguf_head_init(&head, a);
    const nib_status status =
        nib__gguf_describe_tokenizer(&head, path, directory, &c, "{{ x }}", a, ledger, err);
    finish_head(file, &head, a);
    nib__gguf_head_free(&head);
    return status;
}

/* Every text of the golden files gives the same ids after the round trip. */
static void check_same_file(const char *directory, const char *name, int64_t rows, unsigned most)
{
    const nib_allocator a = nib__allocator_default();
    char path[1024], config[1024];
    nib_err err = {.status = NIB_OK};
    nib_tokenizer *gguf = NULL;
    nib_container contents;
    nib_arena arena;
    nib_text file, one, two;
    size_t size, count = 0;
    nib__arena_init(&arena, &a, 0);
    if (describe(&file, directory, name, rows, &a, NULL, &err) != NIB_OK)
        fail_msg("%s", err.text);
    parse(&contents, &file, &arena);
    if (nib__gguf_tokenizer(&gguf, contents.gguf, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    snprintf(path, sizeof path, "%s/%s", directory, name);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", directory);
    nib_tokenizer *json = open_path(path, nib__path_kind(config) == NIB_PATH_FILE ? config : NULL);
    assert_int_equal(nib__tokenizer_vocab_size(gguf), rows);
    nib__text_init(&one, &a);
    nib__text_init(&two, &a);
    char *at = read_text(&arena, "tests/golden/tokenizer_texts.txt", &size);
    for (char *end; (end = strchr(at, '\n')) != NULL; at = end + 1) {
        nib_json reader;
        if (at[0] != 's')
            continue;
        nib__json_init(&reader, "golden", at + 2, (size_t)(end - at) - 2, NULL);
        const char *text = nib__json_read_string(&reader, &arena, &size);
        for (unsigned flags = 0; flags <= most; flags += SPECIAL) {
            ids_text(&one, gguf, text, size, flags);
            ids_text(&two, json, text, size, flags);
            if (strcmp(one.at, two.at) != 0)
                fail_msg("%.*s gives %s by the GGUF and %s by tokenizer.json", (int)(end - at), at,
                         one.at, two.at);
        }
        count++;
    }
    assert_true(count > 100);
    nib__tokenizer_close(gguf);
    nib__tokenizer_close(json);
    nib__text_free(&one);
    nib__text_free(&two);
    nib__text_free(&file);
    nib__arena_free(&arena);
}

static void check_same(const char *directory, int64_t rows, unsigned most)
{
    check_same_file(directory, "tokenizer.json", rows, most);
}

static void test_shipped_model(void **state)
{
    (void)state;
    check_same("models/nibble-tales", 2256, SPECIAL);
}

/* A SentencePiece vocabulary. */
static void test_pieces(void **state)
{
    (void)state;
    check_same_file("tests/golden", "tokenizer_free.json", 900, SPECIAL);
}

static void test_tinystories(void **state)
{
    char path[1024];
    (void)state;
    snprintf(path, sizeof path, "%s/weights/TinyStories-656K/hf-f32", test_data());
    check_same(path, 2048, 0); /* this tokenizer matches special tokens in normalized text */
}

static void test_gpt2(void **state)
{
    char path[1024];
    (void)state;
    snprintf(path, sizeof path, "%s/tokenizers/gpt2", test_data());
    check_same(path, 50257, SPECIAL);
}

static void test_built(void **state)
{
    char path[1024];
    const char *built = test_tokenizers();
    (void)state;
    snprintf(path, sizeof path, "%s/llama-bpe", built);
    check_same(path, 128256, SPECIAL);
    snprintf(path, sizeof path, "%s/qwen2", built);
    check_same(path, 151936, SPECIAL);
}

/* The pre-tokenizer name written is that of the vocabulary's family. */
static void test_names(void **state)
{
    const nib_allocator a = nib__allocator_default();
    const char *text;
    nib_container contents;
    nib_arena arena;
    nib_text file;
    size_t size;
    (void)state;
    nib__arena_init(&arena, &a, 0);
    assert_int_equal(describe(&file, "models/nibble-tales", "tokenizer.json", 2256, &a, NULL, NULL),
                     NIB_OK);
    parse(&contents, &file, &arena);
    assert_int_equal(
        nib__gguf_string(&text, &size, NULL, contents.gguf, "tokenizer.ggml.pre", NULL), NIB_OK);
    assert_int_equal(size, 5);
    assert_memory_equal(text, "qwen2", 5);
    assert_int_equal(nib__gguf_chat_template(&text, &size, contents.gguf, NULL), NIB_OK);
    assert_int_equal(size, 7);
    nib__text_free(&file);
    nib__arena_free(&arena);
}

/* Rows of the model without a token are named, and nothing else is reported. */
static void test_rows_without_tokens(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_text file;
    nib_ledger ledger;
    nib_err err;
    nib__ledger_init(&ledger, &a);
    assert_int_equal(
        describe(&file, "models/nibble-tales", "tokenizer.json", 2300, &a, &ledger, &err), NIB_OK);
    assert_non_null(memmem(file.at, file.size, "[PAD2256]", 9));
    assert_non_null(memmem(file.at, file.size, "[PAD2299]", 9));
    assert_null(memmem(file.at, file.size, "[PAD2255]", 9));
    assert_int_equal(ledger.setting_count, 0);
    nib__text_free(&file);
    assert_int_equal(
        describe(&file, "tests/golden", "tokenizer_words.json", 900, &a, &ledger, &err), NIB_OK);
    assert_int_equal(ledger.setting_count, 2);
    assert_non_null(strstr(ledger.settings[0].text, "puts a space only before a text that"));
    assert_non_null(strstr(ledger.settings[1].text, "it lists 571 merges"));
    nib__text_free(&file);
    nib__ledger_free(&ledger);
}

static nib_status to_vocab(const char *json, nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    nib_vocab_source source;
    nib_arena arena;
    nib__arena_init(&arena, &a, 0);
    nib_tokenizer *t = open_path(json, NULL);
    const nib_status status =
        nib__tokenizer_to_vocab(&source, t, json, 0, false, &arena, NULL, err);
    nib__tokenizer_close(t);
    nib__arena_free(&arena);
    return status;
}

/* Splitting rules that GGUF has no name for are refused. */
static void test_unsupported(void **state)
{
    nib_err err;
    (void)state;
    refused(NIB_UNSUPPORTED, to_vocab("tests/golden/tokenizer_bytes.json", &err), &err);
    /* the shipped tokenizer, but splitting at marks instead of digits */
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    size_t size;
    char path[] = "/tmp/nib-tokenizer-XXXXXX";
    const int file = mkstemp(path);
    nib__arena_init(&arena, &a, 0);
    char *text = read_text(&arena, "models/nibble-tales/tokenizer.json", &size);
    char *at = memmem(text, size, "|\\\\p{N}|", 8);
    assert_non_null(at);
    at[5] = 'M';
    assert_int_equal(write(file, text, size), size);
    close(file);
    refused(NIB_UNSUPPORTED, to_vocab(path, &err), &err);
    assert_int_equal(nib__path_remove(path, NULL), NIB_OK);
    nib__arena_free(&arena);
    assert_int_equal(to_vocab("tests/golden/tokenizer_free.json", NULL), NIB_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config),
        cmocka_unit_test(test_rope_divisors),
        cmocka_unit_test(test_shipped_model),
        cmocka_unit_test(test_pieces),
        cmocka_unit_test(test_tinystories),
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_built),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_rows_without_tokens),
        cmocka_unit_test(test_unsupported),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
