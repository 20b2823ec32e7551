/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens files, directories and sharded checkpoints: what is found, reported and refused.
 */
#include "checkpoint.h"
#include "failing.h"
#include "name_index.h"
#include "opening.h"
#include "safetensors_build.h"
#include "skipping.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "refused.h"

static nib_allocator heap(void) { return nib__allocator_default(); }

#define U8(name, offsets)                                                                          \
    "\"" name "\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[" offsets "]}"
#define F32_2X2(name) "\"" name "\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"

/* The path of `name` in the directory. */
static const char *in(char out[512], const char *directory, const char *name)
{
    snprintf(out, 512, "%s/%s", directory, name);
    return out;
}

static void expect_refused(const char *path, nib_status status)
{
    const nib_allocator a = heap();
    nib_checkpoint *cp = NULL;
    nib_err err = {NIB_OK, ""};
    refused(status, nib__checkpoint_open(&cp, path, &a, &err), &err);
    assert_null(cp);
}

/* ---- one file ---- */

static void test_file(void **state)
{
    (void)state;
    char dir[256], path[512];
    make_directory(dir);
    write_safetensors(dir, "x.safetensors",
                      "{\"__metadata__\":{\"format\":\"pt\",\"embed.weight\":\"head.weight\","
                      "\"gone.weight\":\"nowhere.weight\","
                      "\"head.weight\":\"head.weight\"},\"head.weight\":{\"dtype\":\"F32\","
                      "\"shape\":[2,2],\"data_offsets\":[0,16]},"
                      "\"norm.weight\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[16,24]}}",
                      NULL, 24);
    nib_checkpoint *cp = open_ok(in(path, dir, "x.safetensors"));
    assert_string_equal(nib__checkpoint_path(cp), path);
    assert_null(nib__checkpoint_directory(cp));
    assert_int_equal(nib__checkpoint_count(cp), 2);
    assert_string_equal(nib__checkpoint_at(cp, 1)->name, "norm.weight");
    assert_int_equal(nib__checkpoint_meta_count(cp), 4);
    assert_null(nib__checkpoint_find(cp, "nothing"));
    /* An alias names a stored tensor. An alias of a missing tensor, or of a stored name, is
     * ignored. */
    assert_ptr_equal(nib__checkpoint_find(cp, "embed.weight"),
                     nib__checkpoint_find(cp, "head.weight"));
    assert_string_equal(nib__checkpoint_alias(cp, "embed.weight")->value, "head.weight");
    assert_null(nib__checkpoint_find(cp, "gone.weight"));
    assert_null(nib__checkpoint_alias(cp, "gone.weight"));
    assert_null(nib__checkpoint_alias(cp, "head.weight"));
    assert_int_equal(nib__checkpoint_module_count(cp), 1);
    assert_string_equal(nib__checkpoint_module(cp, 0), "head");
    nib__checkpoint_close(cp);
    /* A config.json beside the file makes the directory known. */
    write_text(dir, "config.json", "{}");
    cp = open_ok(path);
    assert_non_null(nib__checkpoint_directory(cp));
    nib__checkpoint_close(cp);
    drop_directory(dir);
    nib__checkpoint_close(NULL);
}

static void test_other_formats(void **state)
{
    (void)state;
    char dir[256], path[512];
    make_directory(dir);
    expect_refused(in(path, dir, "absent"), NIB_IO);
    write_text(dir, "a.gguf", "GGUF\3\0\0\0");
    expect_refused(in(path, dir, "a.gguf"), NIB_BAD_INPUT);
    write_text(dir, "b.gguf", "FUGG");
    expect_refused(in(path, dir, "b.gguf"), NIB_UNSUPPORTED);
    write_bytes(in(path, dir, "b.pt"), "PK\003\004 and more", 13);
    expect_refused(path, NIB_BAD_INPUT);
    write_bytes(in(path, dir, "c.bin"), "\x80\002ctorch", 8);
    expect_refused(path, NIB_UNSUPPORTED);
    write_bytes(in(path, dir, "d.bin"), "\x80\002\x8a\nl\xfc\x9c\x46\xf9 j\xa8P\x19.", 16);
    expect_refused(path, NIB_UNSUPPORTED);
    /* A header of 640 bytes: its size looks like the start of a pickle. */
    char header[700];
    snprintf(header, sizeof header, "{\"__metadata__\":{\"a\":\"%0*d\"},%s}", 640 - 88, 0,
             F32_2X2("a.weight"));
    write_safetensors(dir, "e", header, NULL, 16);
    assert_int_equal(strlen(header), 640);
    nib__checkpoint_close(open_ok(in(path, dir, "e")));
    write_text(dir, "empty", "");
    expect_refused(in(path, dir, "empty"), NIB_BAD_INPUT);
    assert_int_equal(mkfifo(in(path, dir, "fifo"), 0600), 0);
    expect_refused(path, NIB_IO);
    expect_refused("/dev/zero", NIB_IO);
    drop_directory(dir);
}

static void test_sparse_file(void **state)
{
    (void)state;
    char dir[256], path[512];
    const nib_allocator a = heap();
    nib_checkpoint *cp = NULL;
    make_directory(dir);
    write_safetensors(dir, "big.safetensors", "{" U8("a", "0,1") "}", NULL, 1);
    /* 4 TiB, sparse, where the file system allows it */
    if (truncate(in(path, dir, "big.safetensors"), (off_t)1 << 42) == 0)
        assert_int_equal(nib__checkpoint_open(&cp, path, &a, NULL),
                         sizeof(void *) < 8 ? NIB_UNSUPPORTED : NIB_BAD_INPUT);
    drop_directory(dir);
}

/* ---- directories ---- */

static void test_directory(void **state)
{
    (void)state;
    char dir[256], path[512];
    make_directory(dir);
    expect_refused(dir, NIB_BAD_INPUT);
    write_bytes(in(path, dir, "pytorch_model.bin"), "PK\003\004", 4);
    expect_refused(dir, NIB_BAD_INPUT);
    write_safetensors(dir, "model.safetensors", "{" F32_2X2("a.weight") "}", NULL, 16);
    nib_checkpoint *cp = open_ok(dir);
    assert_string_equal(nib__checkpoint_directory(cp), dir);
    assert_int_equal(nib__checkpoint_ledger(cp)->setting_count, 1);
    assert_string_equal(nib__checkpoint_ledger(cp)->settings[0].name, "pytorch_model.bin");
    nib__checkpoint_close(cp);
    write_text(dir, "model.safetensors.index.json",
               "{\"weight_map\":{\"b\":\"../b\"}}"); /* not read */
    write_text(dir, "config.json", "{}");
    cp = open_ok(in(path, dir, "config.json"));
    assert_int_equal(nib__checkpoint_ledger(cp)->setting_count, 2);
    assert_string_equal(nib__checkpoint_ledger(cp)->settings[0].name,
                        "model.safetensors.index.json");
    assert_non_null(strstr(nib__checkpoint_ledger(cp)->settings[0].text, "model.safetensors is"));
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

static void test_quantization(void **state)
{
    (void)state;
    static const char value[] = "{\"x\":[1,{}], \"quant_method\":\"gptq\",\"bits\":4}";
    char dir[256], text[256], other[512];
    make_directory(dir);
    write_safetensors(dir, "model.safetensors", "{" F32_2X2("a.weight") "}", NULL, 16);
    snprintf(text, sizeof text, "{\"a\":1,\"quantization_config\": %s ,\"b\":{}}", value);
    write_text(dir, "config.json", text);
    nib_checkpoint *cp = open_ok(dir);
    assert_string_equal(nib__checkpoint_quantization(cp), value);
    nib__checkpoint_close(cp);
    write_text(dir, "config.json", "{\"quantization_config\":null}");
    cp = open_ok(in(other, dir, "model.safetensors"));
    assert_null(nib__checkpoint_quantization(cp));
    nib__checkpoint_close(cp);
    write_text(dir, "config.json", "{\"quantization_config\":{");
    expect_refused(dir, NIB_BAD_INPUT);
    drop_directory(dir);
}

/* Release ignores memory outside the map: dropping its pages would lose the data. */
static void test_release_ignores_unmapped_memory(void **state)
{
    (void)state;
    enum { COUNT_OF = 64 * 512 };
    char dir[256];
    make_directory(dir);
    write_safetensors(dir, "model.safetensors",
                      "{\"a.weight\":{\"dtype\":\"F32\",\"shape\":[64,512],"
                      "\"data_offsets\":[0,131072]}}",
                      NULL, 131072);
    nib_checkpoint *cp = open_ok(dir);
    float *values = malloc(COUNT_OF * sizeof *values);
    for (int i = 0; i < COUNT_OF; i++)
        values[i] = 1;
    nib__checkpoint_release(cp, values, COUNT_OF * sizeof *values);
    for (int i = 0; i < COUNT_OF; i++)
        assert_true(values[i] == 1);
    free(values);
    const nib_tensor *tensor = nib__checkpoint_find(cp, "a.weight");
    nib__checkpoint_release(cp, tensor->data, tensor->bytes);
    assert_int_equal(tensor->data[tensor->bytes - 1], 0); /* read again */
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

static const char index_name[] = "model.safetensors.index.json";

static void write_shards(const char *dir)
{
    write_safetensors(
        dir, "s1.safetensors",
        "{\"__metadata__\":{\"format\":\"pt\"}," U8("b", "1,2") "," U8("a", "0,1") "}", "xy", 2);
    write_safetensors(dir, "s2.safetensors",
                      "{\"__metadata__\":{\"format\":\"pt\",\"c.alias\":\"a\"}," U8("c", "0,1") "}",
                      "z", 1);
}

static void test_shards(void **state)
{
    (void)state;
    char dir[256], path[512];
    make_directory(dir);
    write_shards(dir);
    write_text(
        dir, index_name,
        "{\"metadata\":{\"total_size\":3,\"x\":[1]},\"weight_map\":{\"c\":\"s2.safetensors\","
        "\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"},\"more\":{}}");
    nib_checkpoint *cp = open_ok(dir);
    assert_int_equal(nib__checkpoint_count(cp), 3);
    assert_string_equal(nib__checkpoint_at(cp, 0)->name, "a");
    assert_string_equal(nib__checkpoint_at(cp, 2)->name, "c");
    assert_int_equal(nib__checkpoint_at(cp, 2)->file, 1);
    assert_int_equal(nib__checkpoint_find(cp, "b")->data[0], 'y');
    assert_ptr_equal(nib__checkpoint_find(cp, "c.alias"),
                     nib__checkpoint_find(cp, "a")); /* across files */
    assert_int_equal(nib__checkpoint_meta_count(cp), 2);
    assert_int_equal(nib__checkpoint_ledger(cp)->note_count, 0);
    nib__checkpoint_close(cp);
    write_text(dir, index_name, /* metadata of another kind is for people */
               "{\"metadata\":7,\"weight_map\":{\"c\":\"s2.safetensors\",\"a\":\"s1.safetensors\","
               "\"b\":\"s1.safetensors\"}}");
    cp = open_ok(in(path, dir, index_name)); /* the index file itself, without a config.json */
    assert_int_equal(nib__checkpoint_count(cp), 3);
    assert_non_null(nib__checkpoint_directory(cp));
    nib__checkpoint_close(cp);
    write_text(
        dir, index_name,
        "\xef\xbb\xbf{\"metadata\":{\"total_size\":4},\r\n\"weight_map\":{\"c\":\"s2.safetensors\","
        "\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}}");
    cp = open_ok(dir);
    assert_int_equal(nib__checkpoint_ledger(cp)->note_count, 1);
    assert_non_null(strstr(nib__checkpoint_ledger(cp)->notes[0].text,
                           "total_size 4, but the tensors have 3 bytes"));
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

static void test_bad_indexes(void **state)
{
    (void)state;
    static const struct {
        const char *index;
        nib_status status;
    } cases[] = {
        {"", NIB_BAD_INPUT},
        {"[]", NIB_BAD_INPUT},
        {"{}", NIB_BAD_INPUT},
        {"{\"weight_map\":{}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\"},\"weight_map\":{\"b\":\"s1.safetensors\"}}",
         NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s1.safetensors\"}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":1}}", NIB_BAD_INPUT},
        {"{\"weight_map\":7}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\".\"}}", NIB_BAD_INPUT},
        {"{\"metadata\":{\"total_size\":\"1\",\"x\":1},\"weight_map\":{}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"../s1.safetensors\"}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"/etc/passwd\"}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"x/s1.safetensors\"}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"..\\\\s1.safetensors\"}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"..\"}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"\"}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"s1.safe\\u0000tensors\"}}", NIB_BAD_INPUT},
        {"{\"metadata\":{\"total_size\":1e999},\"weight_map\":{}}", NIB_BAD_INPUT},
        /* no such shard; b is not listed; b is in another shard; d is not stored */
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\",\"c\":\"s3."
         "safetensors\"}}",
         NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\"}}", NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s2.safetensors\",\"c\":\"s2."
         "safetensors\"}}",
         NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\",\"d\":\"s1."
         "safetensors\"}}",
         NIB_BAD_INPUT},
        /* a shard that stores a again, one that is cut short, a directory */
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\",\"c\":\"twice."
         "safetensors\"}}",
         NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\",\"c\":\"cut."
         "safetensors\"}}",
         NIB_BAD_INPUT},
        {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\",\"c\":\"sub\"}}",
         NIB_IO},
    };
    char dir[256], path[512];
    make_directory(dir);
    write_shards(dir);
    write_safetensors(dir, "twice.safetensors", "{" U8("a", "0,1") "," U8("c", "1,2") "}", NULL, 2);
    write_safetensors(dir, "cut.safetensors", "{" U8("c", "0,1") "}", NULL, 0);
    assert_int_equal(mkdir(in(path, dir, "sub"), 0700), 0);
    for (size_t i = 0; i < COUNT(cases); i++) {
        write_text(dir, index_name, cases[i].index);
        expect_refused(dir, cases[i].status);
    }
    assert_int_equal(rmdir(path), 0);
    nib_text text; /* 4,097 shards, one over the limit */
    const nib_allocator a = heap();
    nib__text_init(&text, &a);
    for (int i = 0; i < 4097; i++)
        nib__text_format(&text, "%s\"%d\":\"%d\"", i == 0 ? "{\"weight_map\":{" : ",", i, i);
    nib__text_str(&text, "}}");
    write_text(dir, index_name, text.at);
    expect_refused(dir, NIB_BAD_INPUT);
    nib__text_free(&text);
    drop_directory(dir);
}

/* Informative metadata may differ between shards; metadata that describes a weight may not. */
static void test_metadata_of_shards(void **state)
{
    (void)state;
    char dir[256];
    make_directory(dir);
    write_safetensors(dir, "1",
                      "{\"__metadata__\":{\"made\":\"1\",\"a.weight\":\"a\"}," U8("a", "0,1") "}",
                      "x", 1);
    write_safetensors(dir, "2",
                      "{\"__metadata__\":{\"made\":\"2\",\"a.weight\":\"a\"}," U8("b", "0,1") "}",
                      "y", 1);
    write_safetensors(dir, "3",
                      "{\"__metadata__\":{\"made\":\"3\",\"a.weight\":\"b\"}," U8("b", "0,1") "}",
                      "y", 1);
    write_text(dir, index_name, "{\"weight_map\":{\"a\":\"1\",\"b\":\"2\"}}");
    nib__checkpoint_close(open_ok(dir));
    write_text(dir, index_name, "{\"weight_map\":{\"a\":\"1\",\"b\":\"3\"}}");
    expect_refused(dir, NIB_BAD_INPUT);
    static const char *const keys[] = {"a.bias", "nibble"};
    for (size_t i = 0; i < COUNT(keys); i++) {
        char header[200];
        for (int shard = 1; shard <= 2; shard++) {
            snprintf(header, sizeof header,
                     "{\"__metadata__\":{\"%s\":\"%d\"}," U8("%s", "0,1") "}", keys[i], shard,
                     shard == 1 ? "a" : "b");
            write_safetensors(dir, shard == 1 ? "1" : "2", header, "x", 1);
        }
        write_text(dir, index_name, "{\"weight_map\":{\"a\":\"1\",\"b\":\"2\"}}");
        expect_refused(dir, NIB_BAD_INPUT);
    }
    drop_directory(dir);
}

/* Files beside, or in place of, a model. */
static void test_other_files(void **state)
{
    (void)state;
    char dir[256], path[512];
    make_directory(dir);
    write_text(dir, "adapter_config.json", "{}");
    expect_refused(dir, NIB_UNSUPPORTED); /* an adapter alone */
    write_safetensors(dir, "model.safetensors", "{" F32_2X2("a.weight") "}", NULL, 16);
    for (int left = 0, failed = 1; failed; left++) { /* beside a model it gets a line */
        failing f = {left, 0};
        const nib_allocator a = failing_allocator(&f);
        nib_checkpoint *cp = NULL;
        nib_err err;
        const nib_status status = nib__checkpoint_open(&cp, dir, &a, &err);
        failed = f.left == 0;
        assert_true(status == NIB_OK || (failed && status == NIB_NO_MEMORY));
        if (status == NIB_OK) {
            assert_int_equal(nib__checkpoint_ledger(cp)->setting_count, 1);
            assert_string_equal(nib__checkpoint_ledger(cp)->settings[0].name,
                                "adapter_config.json");
        }
        nib__checkpoint_close(cp);
        assert_int_equal(f.live, 0);
    }
    assert_int_equal(unlink(in(path, dir, "adapter_config.json")), 0);
    assert_int_equal(unlink(in(path, dir, "model.safetensors")), 0);
    write_text(dir, "config.json", "{}");
    expect_refused(dir, NIB_BAD_INPUT); /* no weights */
    write_text(dir, "consolidated.00.pth", "");
    write_text(dir, "consolidated.01.pth", "");
    expect_refused(dir, NIB_UNSUPPORTED); /* split for several devices */
    const nib_allocator a = heap();
    nib_checkpoint *cp = NULL; /* a path without a folder */
    assert_int_equal(nib__checkpoint_open(&cp, "LICENSE", &a, NULL), NIB_BAD_INPUT);
    drop_directory(dir);
}

/* A folder whose path is so long that a file's in it is over the system's limit, and longer ones.
 */
static void test_long_paths(void **state)
{
    (void)state;
    char dir[256], path[5000];
    make_directory(dir);
    for (size_t size = 4084; size <= 4100; size += 8) {
        size_t at = strlen(dir);
        memcpy(path, dir, at);
        for (; at + 2 <= size; at += 2)
            memcpy(path + at, "/.", 2);
        path[at] = 0;
        const nib_allocator a = heap();
        nib_checkpoint *cp = NULL;
        nib_err err = {NIB_OK, ""};
        assert_int_equal(nib__checkpoint_open(&cp, path, &a, &err), NIB_IO);
        assert_true(err.text[0] != 0);
    }
    drop_directory(dir);
}

/* More names than an index can count are refused before anything is allocated. */
static void test_index_too_large(void **state)
{
    (void)state;
    const nib_allocator a = heap();
    nib_arena arena;
    nib_name_index index;
    nib__arena_init(&arena, &a, 1 << 20);
    assert_true(nib__name_index_init(&index, &arena, 1000));
    assert_false(nib__name_index_init(&index, &arena, ((size_t)1 << 30) + 1));
    nib__arena_free(&arena);
}

/* Symlinked shards are followed: the Hugging Face cache consists of links. Two names of one file,
 * as on a file system that ignores case, store a tensor twice. */
static void test_linked_shards(void **state)
{
    (void)state;
    char dir[256], other[256], a[512], b[512];
    make_directory(dir);
    make_directory(other);
    write_safetensors(other, "blob", "{" U8("a", "0,1") "}", "x", 1);
    assert_int_equal(symlink(in(b, other, "blob"), in(a, dir, "S.safetensors")), 0);
    write_text(dir, index_name, "{\"weight_map\":{\"a\":\"S.safetensors\"}}");
    nib_checkpoint *cp = open_ok(dir);
    assert_int_equal(nib__checkpoint_find(cp, "a")->data[0], 'x');
    nib__checkpoint_close(cp);
    assert_int_equal(symlink(b, in(a, dir, "s.safetensors")), 0);
    write_text(dir, index_name,
               "{\"weight_map\":{\"a\":\"S.safetensors\",\"b\":\"s.safetensors\"}}");
    expect_refused(dir, NIB_BAD_INPUT);
    drop_directory(dir);
    drop_directory(other);
}

/* Every allocation fails once; no memory leaks and no file stays open. */
static void test_no_memory(void **state)
{
    (void)state;
    char dir[256];
    make_directory(dir);
    write_shards(dir);
    write_text(dir, "pytorch_model.bin", "");
    write_text(dir, index_name,
               "{\"metadata\":{\"total_size\":4},\"weight_map\":{\"c\":\"s2.safetensors\","
               "\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}}");
    nib_status status = NIB_NO_MEMORY;
    for (int n = 0; status != NIB_OK; n++) {
        failing f = {n, 0};
        const nib_allocator a = failing_allocator(&f);
        nib_checkpoint *cp = NULL;
        nib_err err = {NIB_OK, ""};
        status = nib__checkpoint_open(&cp, dir, &a, &err);
        if (status != NIB_OK && status != NIB_NO_MEMORY)
            fail_msg("allocation %d: %s: %s", n, nib_status_name(status), err.text);
        assert_true((status == NIB_OK) == (cp != NULL));
        nib__checkpoint_close(cp);
        assert_int_equal(f.live, 0);
        assert_true(n < 1000);
    }
    drop_directory(dir);
}

/* ---- real files ---- */

static void test_tinystories(void **state)
{
    (void)state;
    const char *data = test_data();
    char path[512];
    nib_checkpoint *f32 = open_ok(in(path, data, "weights/TinyStories-656K/hf-f32"));
    nib_checkpoint *bf16 = open_ok(in(path, data, "weights/TinyStories-656K/hf-bf16"));
    /* The F32 directory has one table under two names, whatever its config says. */
    const nib_meta *alias = nib__checkpoint_alias(f32, "model.embed_tokens.weight");
    assert_non_null(alias);
    assert_string_equal(alias->value, "lm_head.weight");
    assert_null(nib__checkpoint_alias(bf16, "model.embed_tokens.weight"));
    assert_int_equal(nib__checkpoint_module_count(f32), 15);
    assert_int_equal(nib__checkpoint_module_count(bf16), 15);
    nib__checkpoint_close(f32);
    nib__checkpoint_close(bf16);
}

static void test_robustness_files(void **state)
{
    (void)state;
    static const char *const good[] = {"robustness/modelaudit/safe_model.safetensors",
                                       "robustness/modelaudit/obfuscated_metadata.safetensors"},
                             *const bad[] = {"robustness/las7/tiny.safetensors",
                                             "robustness/las7/tiny.gguf"};
    const nib_allocator a = heap();
    nib_checkpoint *cp = NULL;
    const char *data = test_data();
    char path[512];
    for (size_t i = 0; i < COUNT(good); i++)
        nib__checkpoint_close(open_ok(in(path, data, good[i])));
    /* 5 bytes after the last tensor, which safetensors' own reader refuses too; cut short */
    for (size_t i = 0; i < COUNT(bad); i++)
        assert_int_equal(nib__checkpoint_open(&cp, in(path, data, bad[i]), &a, NULL),
                         NIB_BAD_INPUT);
}

/* Vectors in hexadecimal with an expected class: "semantic" is well-formed. */
static void test_planner_vectors(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t zeros;
        nib_status status;
    } cases[] = {
        {"safetensors-header-only", 0, NIB_OK},
        {"safetensors-two-tensors", 0, NIB_OK},
        {"safetensors-fp8-te137-canonical-member-units", 589824, NIB_OK},
        {"safetensors-fp8-flux2-worker-output", 23592960, NIB_OK},
        {"raw-empty", 0, NIB_BAD_INPUT},
        {"raw-small", 0, NIB_BAD_INPUT},
        {"safetensors-unknown-dtype", 0, NIB_BAD_INPUT},
        {"safetensors-gap", 0, NIB_BAD_INPUT},
        {"gguf-v2-f32", 0, NIB_OK},
        {"gguf-v3-q4-0", 0, NIB_OK},
        {"gguf-unsupported-version", 0, NIB_UNSUPPORTED},
        {"gguf-unknown-type", 0, NIB_UNSUPPORTED},
    };
    const char *data = test_data();
    char dir[256], path[512];
    make_directory(dir);
    for (size_t i = 0; i < COUNT(cases); i++) {
        const nib_allocator a = heap();
        nib_checkpoint *cp = NULL;
        char *hex;
        size_t size;
        snprintf(path, sizeof path, "%s/robustness/planner-vectors/fixtures/%s.hex", data,
                 cases[i].name);
        assert_int_equal(nib__file_read(&hex, &size, path, 1 << 20, &a, NULL), NIB_OK);
        const size_t bytes = size / 2;
        uint8_t *file = calloc(1, bytes + cases[i].zeros + 1);
        for (size_t b = 0; b < bytes; b++)
            sscanf(hex + 2 * b, "%2hhx", &file[b]);
        write_bytes(in(path, dir, "v"), file, bytes + cases[i].zeros);
        const nib_status got = nib__checkpoint_open(&cp, path, &a, NULL);
        if (got != cases[i].status)
            fail_msg("%s: %s", cases[i].name, nib_status_name(got));
        nib__checkpoint_close(cp);
        free(file);
        nib__release(&a, hex);
    }
    drop_directory(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_other_formats),
        cmocka_unit_test(test_sparse_file),
        cmocka_unit_test(test_directory),
        cmocka_unit_test(test_quantization),
        cmocka_unit_test(test_release_ignores_unmapped_memory),
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_bad_indexes),
        cmocka_unit_test(test_linked_shards),
        cmocka_unit_test(test_other_files),
        cmocka_unit_test(test_long_paths),
        cmocka_unit_test(test_index_too_large),
        cmocka_unit_test(test_metadata_of_shards),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_tinystories),
        cmocka_unit_test(test_robustness_files),
        cmocka_unit_test(test_planner_vectors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
