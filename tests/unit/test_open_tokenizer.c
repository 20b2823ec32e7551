/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokenizers of the public interface: opened from a directory, a file, a GGUF, with prebuilt
 * tables, and of a model; their flags, ids and errors.
 */
#include "model_handle.h"
#include "tokenizing.h"

#include "failing.h"
#include "kept.h"
#include "refused.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

static const char tales[] = "models/nibble-tales", text[] = "Once upon a time, <|endoftext|>.";

static char folder[] = "/tmp/nibble-tokenizer-XXXXXX";
static nib_engine *engine;
static char logged[2048];

static void log_line(void *ctx, const char *line)
{
    (void)ctx;
    snprintf(logged, sizeof logged, "%s", line);
}

static const char *path_of(const char *name)
{
    static char path[2][256];
    static int next;
    char *out = path[next++ % 2];
    snprintf(out, sizeof path[0], "%s/%s", folder, name);
    return out;
}

static void put_file(const char *name, const char *bytes, size_t size)
{
    FILE *file = fopen(path_of(name), "wb");
    assert_non_null(file);
    assert_int_equal(fwrite(bytes, 1, size, file), size);
    assert_int_equal(fclose(file), 0);
}

static int setup(void **state)
{
    const nib_engine_options options = {.threads = 1, .callbacks = {.log = log_line}};
    const nib_allocator a = nib__allocator_default();
    nib_arena arena;
    size_t size;
    (void)state;
    assert_int_equal(nib_engine_open(&engine, &options, NULL), NIB_OK);
    assert_non_null(mkdtemp(folder));
    nib__arena_init(&arena, &a, 0);
    const char *json = read_text(&arena, "models/nibble-tales/tokenizer.json", &size);
    put_file("tokenizer.json", json, size);
    nib__arena_free(&arena);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    nib_engine_close(engine);
    (void)unlink(path_of(NIB_TABLES_NAME));
    (void)unlink(path_of("tokenizer.json"));
    return rmdir(folder);
}

static nib_tokenizer *open_at(const char *path)
{
    nib_tokenizer *t = NULL;
    nib_err err;
    if (nib_tokenizer_open(&t, engine, path, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return t;
}

typedef struct ids {
    int32_t *at;
    size_t count;
} ids;

static ids encode(const nib_tokenizer *t, uint32_t flags)
{
    ids out;
    nib_err err;
    if (nib_tokenize(t, text, strlen(text), flags, &out.at, &out.count, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return out;
}

static void expect_same(const nib_tokenizer *t, const nib_tokenizer *as)
{
    for (uint32_t flags = 0; flags < 4; flags++) {
        const ids a = encode(t, flags), b = encode(as, flags);
        assert_int_equal(a.count, b.count);
        assert_memory_equal(a.at, b.at, a.count * sizeof *a.at);
        nib_tokens_free(engine, a.at);
        nib_tokens_free(engine, b.at);
    }
}

/* A directory with tokenizer.json alone is enough. */
static void test_places(void **state)
{
    const char *const places[] = {tales, "models/nibble-tales/tokenizer.json", folder,
                                  path_of("tokenizer.json")};
    const nib_tokenizer *own;
    nib_model *model;
    (void)state;
    assert_int_equal(nib_model_open(&model, engine, tales, NULL, NULL), NIB_OK);
    assert_int_equal(nib_model_tokenizer(&own, model, NULL), NIB_OK);
    for (size_t i = 0; i < COUNT(places); i++) {
        nib_tokenizer *t = open_at(places[i]);
        expect_same(t, own);
        nib_tokenizer_close(t);
    }
    nib_model_close(model);
    nib_tokenizer_close(NULL);
}

static void test_gguf(void **state)
{
    nib_tokenizer *t = open_at("tests/golden/vocab_pieces.gguf");
    nib_tokenizer_facts f = {.size = sizeof f};
    kept out = {.size = 0};
    (void)state;
    nib_tokenizer_facts_get(t, &f);
    assert_int_equal(f.vocab, nib__tokenizer_vocab_size(t));
    assert_true(f.bos >= 0 && f.eos == 2 && f.adds_bos);
    const ids a = encode(t, NIB_TOKENIZE_ADD_SPECIAL);
    assert_int_equal(a.at[0], f.bos);
    assert_int_equal(nib_detokenize(t, a.at + 1, a.count - 1, &(nib_sink){keep, &out}, NULL),
                     NIB_OK);
    assert_string_equal(out.text, text);
    nib_tokens_free(engine, a.at);
    nib_tokenizer_close(t);
}

static void test_facts(void **state)
{
    nib_tokenizer *t = open_at(tales), *bare = open_at(folder);
    nib_tokenizer_facts f = {.size = sizeof f};
    (void)state;
    nib_tokenizer_facts_get(t, &f);
    assert_true(f.vocab == 2256 && f.bos == 2255 && f.eos == 2255 && !f.adds_bos);
    nib_tokenizer_facts_get(bare, &f); /* tokenizer_config.json names BOS and EOS */
    assert_true(f.vocab == 2256 && f.bos == -1 && f.eos == -1 && !f.adds_bos);
    nib_tokenizer_close(bare);
    nib_tokenizer_close(t);
}

static size_t count_end(ids a)
{
    size_t count = 0;
    for (size_t i = 0; i < a.count; i++)
        count += a.at[i] == 2255;
    return count;
}

static void test_flags(void **state)
{
    nib_tokenizer *t = open_at(tales);
    kept out = {.size = 0};
    (void)state;
    const ids plain = encode(t, 0), special = encode(t, NIB_TOKENIZE_PARSE_SPECIAL);
    assert_int_equal(count_end(plain), 0);
    assert_int_equal(count_end(special), 1);
    assert_true(special.count < plain.count);
    assert_int_equal(nib_detokenize(t, special.at, special.count, &(nib_sink){keep, &out}, NULL),
                     NIB_OK);
    assert_string_equal(out.text, text);
    nib_tokens_free(engine, plain.at);
    nib_tokens_free(engine, special.at);
    nib_tokens_free(engine, NULL);
    nib_tokenizer_close(t);
}

static nib_status refuse(void *ctx, const char *bytes, size_t size)
{
    (void)bytes, (void)size;
    return *(const nib_status *)ctx;
}

static void test_errors(void **state)
{
    nib_tokenizer *t = open_at(tales), *none = NULL;
    const nib_status full = NIB_IO, garbage = (nib_status)77;
    int32_t id = 5, *untouched = &id;
    size_t count = 7;
    nib_err err;
    (void)state;
    refused(NIB_USAGE, nib_tokenize(t, text, 4, 6, &untouched, &count, &err), &err);
    refused(NIB_BAD_INPUT, nib_tokenize(t, "a\xff", 2, 0, &untouched, &count, &err), &err);
    assert_true(untouched == &id && count == 7);
    refused(NIB_IO, nib_detokenize(t, &id, 1, &(nib_sink){refuse, (void *)&full}, &err), &err);
    assert_int_equal(nib_detokenize(t, &id, 1, &(nib_sink){refuse, (void *)&garbage}, &err),
                     garbage);
    assert_int_equal(nib_detokenize(t, NULL, 0, &(nib_sink){refuse, (void *)&full}, &err), NIB_OK);
    refused(NIB_IO, nib_tokenizer_open(&none, engine, "models/none", &err), &err);
    refused(NIB_IO, nib_tokenizer_open(&none, engine, "tests/golden/models/gemma2", &err), &err);
    refused(NIB_BAD_INPUT,
            nib_tokenizer_open(&none, engine, "models/nibble-tales/heldout.txt", &err), &err);
    refused(NIB_BAD_INPUT,
            nib_tokenizer_open(&none, engine, "models/nibble-tales/config.json", &err), &err);
    refused(NIB_BAD_INPUT, nib_tokenizer_open(&none, engine, "tests/golden/gguf_blocks.gguf", &err),
            &err);
    assert_null(none);
    nib_tokenizer_close(t);
}

static void test_tables(void **state)
{
    nib_tokenizer *t = open_at(folder);
    uint64_t bytes;
    nib_err err;
    int32_t *untouched = NULL;
    size_t count;
    (void)state;
    assert_int_equal(nib__tokenizer_write_tables(path_of(NIB_TABLES_NAME),
                                                 path_of("tokenizer.json"), NULL, &bytes,
                                                 &engine->allocator, &err),
                     NIB_OK);
    nib_tokenizer *mapped = open_at(folder);
    assert_true(nib__tokenizer_bytes(mapped) < nib__tokenizer_bytes(t));
    expect_same(mapped, t);
    /* another process writes to them */
    const struct timespec later[2] = {{.tv_sec = 1}, {.tv_sec = 1}};
    assert_int_equal(utimensat(AT_FDCWD, path_of(NIB_TABLES_NAME), later, 0), 0);
    assert_int_equal(nib_tokenize(mapped, "", 0, 0, &untouched, &count, &err), NIB_IO);
    assert_null(untouched);
    nib_tokenizer_close(mapped);
    /* not tables: said, and read without them */
    put_file(NIB_TABLES_NAME, "changed", 7);
    logged[0] = '\0';
    nib_tokenizer *again = open_at(folder);
    assert_non_null(strstr(logged, NIB_TABLES_NAME));
    assert_non_null(strstr(logged, "; tokenizer.json is read instead"));
    expect_same(again, t);
    nib_tokenizer_close(again);
    nib_tokenizer_close(t);
    assert_int_equal(unlink(path_of(NIB_TABLES_NAME)), 0);
}

static void test_no_memory(void **state)
{
    failing f = {.left = -1};
    const nib_allocator a = failing_allocator(&f);
    const nib_engine_options options = {.threads = 1, .allocator = &a};
    nib_engine *own;
    nib_status status = NIB_NO_MEMORY;
    (void)state;
    assert_int_equal(nib_engine_open(&own, &options, NULL), NIB_OK);
    const int before = f.live;
    for (int n = 0; status == NIB_NO_MEMORY; n++) {
        nib_tokenizer *t = NULL;
        int32_t *made = NULL;
        size_t count = 0;
        kept out = {.size = 0};
        nib_err err;
        f.left = n;
        status = nib_tokenizer_open(&t, own, "tests/golden/tokenizer_words.json", &err);
        if (status == NIB_OK)
            status = nib_tokenize(t, text, strlen(text), 0, &made, &count, &err);
        if (status == NIB_OK)
            status = nib_detokenize(t, made, count, &(nib_sink){keep, &out}, &err);
        if (status != NIB_OK && status != NIB_NO_MEMORY)
            fail_msg("allocation %d: %s", n, err.text);
        nib_tokens_free(own, made);
        nib_tokenizer_close(t);
        assert_int_equal(f.live, before);
    }
    nib_engine_close(own);
    assert_int_equal(f.live, 0);
}

static void *use_tokenizer(void *ctx)
{
    for (int i = 0; i < 50; i++) {
        kept out = {.size = 0};
        int32_t *made;
        size_t count;
        if (nib_tokenize(ctx, text, strlen(text), 0, &made, &count, NULL) != NIB_OK ||
            nib_detokenize(ctx, made, count, &(nib_sink){keep, &out}, NULL) != NIB_OK ||
            strcmp(out.text, text) != 0)
            return ctx;
        nib_tokens_free(engine, made);
    }
    return NULL;
}

static void test_threads(void **state)
{
    nib_tokenizer *t = open_at(tales);
    pthread_t threads[4];
    void *failed;
    (void)state;
    for (size_t i = 0; i < COUNT(threads); i++)
        assert_int_equal(pthread_create(&threads[i], NULL, use_tokenizer, t), 0);
    for (size_t i = 0; i < COUNT(threads); i++) {
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    nib_tokenizer_close(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_places),    cmocka_unit_test(test_gguf),
        cmocka_unit_test(test_facts),     cmocka_unit_test(test_flags),
        cmocka_unit_test(test_errors),    cmocka_unit_test(test_tables),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_threads),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
