/* SPDX-License-Identifier: Apache-2.0
 *
 * info and verify: info lists the contents with the documented members; verify finds and names each
 * kind of damage, and nothing else.
 */
#include "info.h"
#include "verify.h"

#include "quantize.h"
#include "failing.h"
#include "manifest.h"
#include "opening.h"
#include "safetensors_build.h"
#include "writer.h"

#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "refused.h"

static nib_allocator heap;
static nib_pool *pool;

/* Writes a model of one layer: embedding, a projection with a bias, a norm. */
static void write_model(const char *directory)
{
    static const struct {
        const char *name;
        int64_t shape[2];
        int rank;
    } tensors[] = {{"embed.weight", {4, 32}, 2},
                   {"layers.0.q_proj.weight", {6, 32}, 2},
                   {"layers.0.q_proj.bias", {6}, 1},
                   {"norm.weight", {32}, 1}};
    nib_writer *w;
    nib_err err;
    assert_int_equal(nib__writer_make(&w, &heap, &err), NIB_OK);
    for (size_t i = 0; i < COUNT(tensors); i++)
        (void)nib__writer_add_tensor(w, tensors[i].name, NIB_TYPE_F32, tensors[i].shape,
                                     tensors[i].rank, i);
    nib__writer_add_meta(w, "head.weight", "embed.weight");
    assert_int_equal(nib__writer_layout(w, 0, &err), NIB_OK);
    assert_int_equal(nib__writer_begin(w, directory, NULL, &err), NIB_OK);
    for (size_t t = 0; t < COUNT(tensors); t++)
        for (int64_t i = 0; i < tensors[t].shape[0] * (tensors[t].rank == 2 ? 32 : 1); i++) {
            const float value = (float)((i * 37 + (int64_t)t) % 101 - 50) / 64;
            assert_int_equal(nib__writer_put(w, t, &value, 4, &err), NIB_OK);
        }
    assert_int_equal(nib__writer_finish(w, &err), NIB_OK);
    nib__writer_free(w);
    write_text(directory, "config.json", "{}");
}

static const nib_expected expected[] = {{"embed", 4, 32, false, false, false, 0},
                                        {"layers.0.q_proj", 6, 32, true, false, false, 0},
                                        {"norm", 32, 0, false, false, false, 0},
                                        {"head", 4, 32, false, true, false, 0}};

static const char *head, *against_head; /* arguments of the next verify */

static size_t verify(nib_text *out, const char *path, const nib_expected *list, size_t count,
                     const char *against, nib_form form)
{
    nib_checkpoint *cp = open_ok(path), *other = against == NULL ? NULL : open_ok(against);
    const nib_verify_job job = {.checkpoint = cp,
                                .against = other,
                                .expected = list,
                                .expected_count = count,
                                .head = head,
                                .against_head = against_head,
                                .pool = pool,
                                .allocator = &heap};
    size_t problems = 999;
    nib_err err = {NIB_OK, ""};
    nib__text_clear(out);
    if (nib__verify_render(&job, form, out, &problems, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__checkpoint_close(cp);
    nib__checkpoint_close(other);
    return problems;
}

static void expect_in(const nib_text *text, const char *fragment)
{
    if (strstr(text->at, fragment) == NULL)
        fail_msg("no \"%s\" in:\n%s", fragment, text->at);
}

static void quantize(const char *from, const char *out)
{
    nib_quantize_layer layers[] = {{.name = "embed", .role = NIB_ROLE_EMBED, .choice.keep = true},
                                   {.name = "layers.0.q_proj"}};
    nib_checkpoint *cp = open_ok(from);
    nib_err err;
    assert_int_equal(nib__scheme_parse(&layers[1].choice.scheme, "8da4w-g32", 9, &err), NIB_OK);
    const nib_quantize_job job = {.checkpoint = cp,
                                  .layers = layers,
                                  .count = 2,
                                  .recipe = "8da4w",
                                  .format = "torchao",
                                  .out = out,
                                  .pool = pool,
                                  .allocator = &heap};
    nib_ledger ledger;
    nib_quantize_report report;
    nib__ledger_init(&ledger, &heap);
    if (nib__quantize(&ledger, &report, &job, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__ledger_free(&ledger);
    nib__checkpoint_close(cp);
}

/* Changes bytes of a tensor in the file. */
static void damage(const char *directory, const char *tensor, size_t at, const void *bytes,
                   size_t size)
{
    char path[600];
    uint64_t header = 0;
    nib_checkpoint *cp = open_ok(directory);
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    const int fd = open(path, O_RDWR);
    assert_int_equal(pread(fd, &header, 8, 0), 8);
    const nib_tensor *first = nib__checkpoint_at(cp, 0), *t = nib__checkpoint_find(cp, tensor);
    assert_non_null(t);
    const off_t offset = (off_t)(8 + header + (uint64_t)(t->data - first->data) + at);
    assert_int_equal(pwrite(fd, bytes, size, offset), (ssize_t)size);
    close(fd);
    nib__checkpoint_close(cp);
}

static void test_info(void **state)
{
    (void)state;
    char dir[256], out[300];
    nib_text text;
    nib_err err;
    nib__text_init(&text, &heap);
    write_model(make_directory(dir));
    snprintf(out, sizeof out, "%s.q", dir);
    quantize(dir, out);
    nib_checkpoint *cp = open_ok(out);
    assert_int_equal(nib__info_render(cp, &heap, NIB_FORM_JSON, &text, &err), NIB_OK);
    expect_in(&text, "\"name\": \"layers.0.q_proj.weight\"");
    expect_in(&text, "\"format\": \"torchao\"");
    expect_in(&text, "\"scheme\": \"8da4w-g32\"");
    expect_in(&text, "\"group\": 32");
    expect_in(&text, "\"bias\": true");
    expect_in(&text, "\"bytes\": 246"); /* 192 codes, 24 of scales, 6 zero points, 24 of bias */
    expect_in(&text, "\"name\": \"norm.weight\"");
    expect_in(&text, "head.weight is stored as embed.weight");
    assert_null(strstr(text.at, "_weight_qdata"));
    nib__text_clear(&text);
    assert_int_equal(nib__info_render(cp, &heap, NIB_FORM_TEXT, &text, &err), NIB_OK);
    expect_in(&text, "8da4w-g32");
    expect_in(&text, "with a bias");
    nib__checkpoint_close(cp);
    /* An unreadable weight is listed part by part, with the reason. */
    write_safetensors(
        dir, "model.safetensors",
        "{\"x._weight_qdata\":{\"dtype\":\"I8\",\"shape\":[1,2],\"data_offsets\":[0,2]}}", NULL, 2);
    cp = open_ok(dir);
    nib__text_clear(&text);
    assert_int_equal(nib__info_render(cp, &heap, NIB_FORM_JSON, &text, &err), NIB_OK);
    expect_in(&text, "\"name\": \"x._weight_qdata\"");
    expect_in(&text, "no __metadata__ entry describes");
    nib__checkpoint_close(cp);
    nib__text_free(&text);
    drop_directory(out);
    drop_directory(dir);
}

static void test_verify_finds_nothing_wrong(void **state)
{
    (void)state;
    char dir[256], out[300];
    nib_text text;
    nib__text_init(&text, &heap);
    write_model(make_directory(dir));
    snprintf(out, sizeof out, "%s.q", dir);
    quantize(dir, out);
    assert_int_equal(verify(&text, dir, expected, COUNT(expected), NULL, NIB_FORM_TEXT), 0);
    expect_in(&text, "no manifest next to it");
    assert_int_equal(verify(&text, out, expected, COUNT(expected), dir, NIB_FORM_TEXT), 0);
    expect_in(&text, "7 hashes of nibble.json compared"); /* 6 tensors, config.json */
    expect_in(&text, " dB");
    assert_int_equal(verify(&text, out, expected, COUNT(expected), dir, NIB_FORM_JSON), 0);
    expect_in(&text, "\"findings\": []");
    expect_in(&text, "\"sqnr_db\": ");
    nib__text_free(&text);
    drop_directory(out);
    drop_directory(dir);
}

/* Against another checkpoint every tensor is compared: also norms, biases, and tensors that only
 * one has. */
static void test_verify_against_another_checkpoint(void **state)
{
    (void)state;
    const float half = 0.5f, nan = NAN;
    char dir[256], other[256];
    nib_text text;
    nib__text_init(&text, &heap);
    write_model(make_directory(dir));
    write_model(make_directory(other));
    assert_int_equal(verify(&text, dir, NULL, 0, other, NIB_FORM_TEXT), 0);
    assert_null(strstr(text.at, " dB"));
    expect_in(&text, "norm.weight                                           equal");
    assert_int_equal(verify(&text, dir, NULL, 0, other, NIB_FORM_JSON), 0);
    assert_null(strstr(text.at, "\"equal\": false"));
    damage(dir, "layers.0.q_proj.bias", 0, &half, 4);
    damage(dir, "norm.weight", 0, &half, 4);
    assert_int_equal(verify(&text, dir, NULL, 0, other, NIB_FORM_TEXT), 0);
    expect_in(&text, "layers.0.q_proj                                       equal");
    assert_null(strstr(text.at, "norm.weight                                           equal"));
    assert_null(strstr(text.at, "layers.0.q_proj.bias                                  equal"));
    /* a NaN is neither a distance nor equal */
    damage(dir, "embed.weight", 0, &nan, 4);
    assert_int_equal(verify(&text, dir, NULL, 0, other, NIB_FORM_JSON), 1);
    expect_in(&text, "\"name\": \"embed\",\n      \"sqnr_db\": null,\n      \"equal\": false");
    write_safetensors(
        dir, "model.safetensors",
        "{\"embed.weight\":{\"dtype\":\"F32\",\"shape\":[4,32],\"data_offsets\":[0,512]},"
        "\"norm.weight\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[512,516]},"
        "\"new\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[516,517]}}",
        NULL, 517);
    assert_int_equal(verify(&text, dir, NULL, 0, other, NIB_FORM_TEXT), 3);
    expect_in(&text, "against: norm.weight: has a different shape");
    expect_in(&text, "against: new: is only in one of the checkpoints");
    expect_in(&text, "against: layers.0.q_proj.weight: is only in the other checkpoint");
    /* an output that was tied is compared with the embedding */
    static const char *const lists[] = {
        "{\"embed.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]},"
        "\"head.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[8,16]}}",
        "{\"embed.weight\":{\"dtype\":\"F32\",\"shape\":[1,2],\"data_offsets\":[0,8]}}"};
    const float values[] = {1, 2, 1, 2};
    write_safetensors(dir, "model.safetensors", lists[0], values, 16);
    write_safetensors(other, "model.safetensors", lists[1], values, 8);
    assert_int_equal(verify(&text, dir, NULL, 0, other, NIB_FORM_TEXT), 1);
    expect_in(&text, "against: head.weight: is only in one of the checkpoints");
    head = "head", against_head = "embed";
    assert_int_equal(verify(&text, dir, NULL, 0, other, NIB_FORM_TEXT), 0);
    expect_in(&text, "head                                                  equal");
    head = against_head = NULL;
    nib__text_free(&text);
    drop_directory(other);
    drop_directory(dir);
}

static void test_damage(void **state)
{
    (void)state;
    const float nan = 0.0f / 0.0f * -1, inf = 1e38f * 10, none = 0;
    const struct {
        const char *tensor;
        size_t at;
        const void *bytes;
        size_t size;
        size_t problems;
        const char *fragments[2];
    } cases[] = {
        {"layers.0.q_proj._weight_qdata",
         37,
         "\x03",
         1,
         1,
         {"hash: layers.0.q_proj._weight_qdata"}},
        {"layers.0.q_proj._weight_qdata",
         37,
         "\x09",
         1,
         2,
         {"code at row 1, column 5 is 9", "hash: "}},
        {"embed.weight",
         40,
         &nan,
         4,
         2,
         {"embed.weight: 1 value is not finite, the first at index 10", "hash: "}},
        {"norm.weight",
         0,
         &inf,
         4,
         2,
         {"norm.weight: 1 value is not finite, the first at index 0", "hash: "}},
        {"layers.0.q_proj._weight_scale", 4, &none, 4, 2, {"1 groups have a scale of 0", "hash: "}},
        /* a NaN scale makes the weight unreadable, so its parts are listed */
        {"layers.0.q_proj._weight_scale",
         4,
         &nan,
         4,
         3,
         {"scale at row 1, group 0 is", "not-finite: "}},
        {"layers.0.q_proj.bias", 8, &inf, 4, 3, {"bias at index 2 is inf", "hash: "}},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char dir[256], out[300];
        nib_text text;
        nib__text_init(&text, &heap);
        write_model(make_directory(dir));
        snprintf(out, sizeof out, "%s.q", dir);
        quantize(dir, out);
        damage(out, cases[i].tensor, cases[i].at, cases[i].bytes, cases[i].size);
        const size_t problems = verify(&text, out, expected, COUNT(expected), NULL, NIB_FORM_TEXT);
        for (size_t f = 0; f < 2 && cases[i].fragments[f] != NULL; f++)
            expect_in(&text, cases[i].fragments[f]);
        if (problems != cases[i].problems)
            fail_msg("%zu problems, not %zu:\n%s", problems, cases[i].problems, text.at);
        nib__text_free(&text);
        drop_directory(out);
        drop_directory(dir);
    }
}

/* The metadata gives the weight's name to a tensor that is none, so the module owns no tensor. */
static void test_unreadable_alias(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\":{\"head.weight\":\"m.zeros\"},"
        "\"m.zeros\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]},"
        "\"head.qweight\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[4,8]}}";
    char dir[256];
    nib_text text;
    nib__text_init(&text, &heap);
    write_safetensors(make_directory(dir), "model.safetensors", header, NULL, 8);
    assert_int_equal(verify(&text, dir, NULL, 0, NULL, NIB_FORM_TEXT), 1);
    expect_in(&text, "unreadable: head.weight: has shape []");
    assert_int_equal(verify(&text, dir, NULL, 0, NULL, NIB_FORM_JSON), 1);
    expect_in(&text, "\"unreadable\"");
    nib__text_free(&text);
    drop_directory(dir);
}

static void test_completeness(void **state)
{
    (void)state;
    static const struct {
        nib_expected list[5];
        size_t count, problems;
        const char *fragment;
    } cases[] = {
        {{{"embed", 4, 32, 0, 0, 0, 0},
          {"layers.0.q_proj", 6, 32, 1, 0, 0, 0},
          {"norm", 32, 0, 0, 0, 0, 0},
          {"layers.1.q_proj", 6, 32, 1, 0, 0, 0}},
         4,
         1,
         "missing: layers.1.q_proj.weight"},
        {{{"embed", 4, 32, 0, 0, 0, 0}, {"layers.0.q_proj", 6, 32, 1, 0, 0, 0}},
         2,
         1,
         "surplus: norm.weight"},
        {{{"embed", 4, 32, 1, 0, 0, 0},
          {"layers.0.q_proj", 6, 32, 1, 0, 0, 0},
          {"norm", 32, 0, 0, 0, 0, 0}},
         3,
         1,
         "bias: embed.weight"},
        {{{"embed", 5, 32, 0, 0, 0, 0},
          {"layers.0.q_proj", 6, 32, 1, 0, 0, 0},
          {"norm", 32, 0, 0, 0, 0, 0}},
         3,
         1,
         "shape: embed.weight: is 4x32, but config.json implies 5x32"},
        {{{"embed", 4, 32, 0, 0, 0, 0},
          {"layers.0.q_proj", 6, 32, 1, 0, 0, 0},
          {"norm", 31, 0, 0, 0, 0, 0}},
         3,
         1,
         "shape: norm.weight: is 32, but config.json implies 31"},
        {{{"embed", 4, 32, 0, 0, 0, 0},
          {"layers.0.q_proj", 6, 32, 0, 0, 0, 0},
          {"norm", 32, 0, 0, 0, 0, 0}},
         3,
         1,
         "bias: layers.0.q_proj.weight: has a bias that config.json does not imply"},
    };
    char dir[256];
    nib_text text;
    nib__text_init(&text, &heap);
    write_model(make_directory(dir));
    for (size_t i = 0; i < COUNT(cases); i++) {
        assert_int_equal(verify(&text, dir, cases[i].list, cases[i].count, NULL, NIB_FORM_TEXT),
                         cases[i].problems);
        expect_in(&text, cases[i].fragment);
    }
    nib__text_free(&text);
    drop_directory(dir);
}

/* A scale of 0 for codes that are equal within each of two blocks (256 and 44 codes). */
static void test_scales_of_zero_are_found(void **state)
{
    (void)state;
    uint8_t data[304] = {0};
    char dir[256];
    nib_text text;
    nib__text_init(&text, &heap);
    memset(data, 1, 256);
    memset(data + 256, 2, 44);
    write_safetensors(make_directory(dir), "model.safetensors",
                      "{\"m.weight\":{\"dtype\":\"I8\",\"shape\":[1,300],\"data_offsets\":[0,300]},"
                      "\"m.scales\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[300,304]}}",
                      data, sizeof data);
    assert_int_equal(verify(&text, dir, NULL, 0, NULL, NIB_FORM_TEXT), 1);
    expect_in(&text, "1 groups have a scale of 0");
    drop_directory(dir);
    nib__text_free(&text);
}

/* Files beside the weights, and tensors that the manifest lists or lacks. */
static void test_manifest(void **state)
{
    (void)state;
    char dir[256], out[300];
    nib_text text;
    nib__text_init(&text, &heap);
    write_model(make_directory(dir));
    snprintf(out, sizeof out, "%s.q", dir);
    quantize(dir, out);
    write_text(out, "config.json", "{\"changed\": true}");
    assert_int_equal(verify(&text, out, NULL, 0, NULL, NIB_FORM_TEXT), 1);
    expect_in(&text, "file-hash: config.json");
    drop_directory(out);
    quantize(dir, out);
    write_safetensors(out, "model.safetensors",
                      "{\"new\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[0,1]}}", NULL, 1);
    assert_int_equal(verify(&text, out, NULL, 0, NULL, NIB_FORM_TEXT), 7);
    expect_in(&text, "not-in-manifest: new");
    expect_in(&text, "missing: layers.0.q_proj._weight_scale");
    write_text(out, "nibble.json",
               "{\"files\": {\"../up\": \"00000000000000000000000000000000\"}}");
    assert_int_equal(verify(&text, out, NULL, 0, NULL, NIB_FORM_TEXT), 2);
    expect_in(&text, "file-name: ../up");
    expect_in(&text, "0 hashes of nibble.json compared");
    static const char *const bad[] = {"",
                                      "[]",
                                      "{\"schema\": 2}",
                                      "{\"tensors\": {\"a\": 1}}",
                                      "{\"tensors\": {\"a\": \"12\"}}",
                                      "{\"tensors\": {\"\\ud800\": \"12\"}}",
                                      "{\"tensors\": {",
                                      "{\"recipe\": 7}",
                                      "{\"other\": [}",
                                      "{\"schema\": 1} 2",
                                      "{\"files\": []}"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        nib_checkpoint *cp = open_ok(out);
        nib_err err = {NIB_OK, ""};
        size_t problems;
        const nib_verify_job job = {.checkpoint = cp, .pool = pool, .allocator = &heap};
        write_text(out, "nibble.json", bad[i]);
        nib__text_clear(&text);
        refused(NIB_BAD_INPUT, nib__verify_render(&job, NIB_FORM_TEXT, &text, &problems, &err),
                &err);
        nib__checkpoint_close(cp);
    }
    nib__text_free(&text);
    drop_directory(out);
    drop_directory(dir);
}

/* Manifests of a directory and of a file, with each allocation failing once. */
static void test_manifest_memory(void **state)
{
    (void)state;
    char dir[256], file[300];
    write_model(make_directory(dir));
    snprintf(file, sizeof file, "%s/model.safetensors", dir);
    for (int beside = 0; beside < 2; beside++) {
        bool failed = true;
        nib_checkpoint *cp = open_ok(beside ? file : dir);
        write_text(dir, beside ? "model.safetensors.nibble.json" : "nibble.json",
                   "{\"schema\":1,\"recipe\":\"r\",\"format\":\"f\",\"tool\":\"t\",\"ledger\":[],"
                   "\"tensors\":{\"a\":\"00000000000000000000000000000000\"},\"files\":{}}");
        for (int left = 0; failed; left++) {
            failing f = {left, 0};
            const nib_allocator a = failing_allocator(&f);
            nib_arena arena;
            nib_manifest manifest;
            nib_err err = {NIB_OK, ""};
            nib__arena_init(&arena, &a, 0);
            const nib_status status = nib__manifest_read(&manifest, cp, &arena, &a, &err);
            failed = f.left == 0;
            assert_int_equal(err.status, status);
            if (status != NIB_OK) {
                assert_true(failed && status == NIB_NO_MEMORY);
            } else {
                assert_non_null(manifest.path);
                assert_string_equal(manifest.recipe, "r");
                assert_int_equal(manifest.tensor_count, 1);
                assert_int_equal(manifest.file_count, 0);
            }
            nib__arena_free(&arena);
            assert_int_equal(f.live, 0);
        }
        nib__checkpoint_close(cp);
    }
    drop_directory(dir);
}

/* A single file named *.json has no place for a manifest. */
static void test_no_manifest(void **state)
{
    (void)state;
    char dir[256], path[300];
    nib_arena arena;
    nib_manifest manifest;
    nib_err err;
    make_directory(dir);
    write_safetensors(dir, "x.json", "{}", NULL, 0);
    snprintf(path, sizeof path, "%s/x.json", dir);
    nib_checkpoint *cp = open_ok(path);
    nib__arena_init(&arena, &heap, 0);
    assert_int_equal(nib__manifest_read(&manifest, cp, &arena, &heap, &err), NIB_OK);
    assert_null(manifest.path);
    nib__arena_free(&arena);
    nib__checkpoint_close(cp);
    drop_directory(dir);
}

static int set_up(void **state)
{
    (void)state;
    heap = nib__allocator_default();
    return nib__pool_open(&pool, 3, &heap, NULL) == NIB_OK ? 0 : -1;
}

static int tear_down(void **state)
{
    (void)state;
    nib__pool_close(pool);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_info),
        cmocka_unit_test(test_verify_finds_nothing_wrong),
        cmocka_unit_test(test_verify_against_another_checkpoint),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_unreadable_alias),
        cmocka_unit_test(test_completeness),
        cmocka_unit_test(test_manifest),
        cmocka_unit_test(test_manifest_memory),
        cmocka_unit_test(test_no_manifest),
        cmocka_unit_test(test_scales_of_zero_are_found),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
