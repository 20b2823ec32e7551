/* SPDX-License-Identifier: Apache-2.0
 *
 * receipt.c, receipt_options.c and receipt_read.c: options are read back as written; damaged and
 * incomplete receipts are refused; a checkpoint without one is not an error.
 */
#include "receipt_options.h"

#include "opening.h"
#include "refused.h"
#include "safetensors_build.h"

static nib_allocator heap;
static char root[256];
static nib_checkpoint *cp;

#define ONE "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define PROGRAM "\"version\": 1, \"program\": \"nibble 0\", "
#define HASHES                                                                                     \
    "\"source\": {\"files\": {\"config.json\": \"" ONE "\"}, \"tensors\": {\"a\": \"" ONE          \
    "\"}}, \"outputs\": {\"model.safetensors\": \"" ONE "\"}"
#define CONVERTED "\"command\": \"convert\", \"options\": {\"format\": \"gguf\"}, "

static int set_up(void **state)
{
    (void)state;
    static const char header[] =
        "{\"a\": {\"dtype\": \"F32\", \"shape\": [1], \"data_offsets\": [0, 4]}}";
    const float value = 1;
    heap = nib__allocator_default();
    make_directory(root);
    write_safetensors(root, "model.safetensors", header, &value, sizeof value);
    cp = open_ok(root);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    nib__checkpoint_close(cp);
    drop_directory(root);
    return 0;
}

static nib_status read_receipt(nib_read_receipt *out, nib_arena *arena, const char *manifest,
                               nib_err *err)
{
    nib__arena_init(arena, &heap, 0);
    write_text(root, "nibble.json", manifest);
    return nib__receipt_read(out, cp, arena, &heap, err);
}

static void done(nib_read_receipt *r, nib_arena *arena)
{
    nib__receipt_free(r, &heap);
    nib__arena_free(arena);
}

static void test_options_are_read_back(void **state)
{
    (void)state;
    const char *skip[] = {"lm_head", "*.mlp.*"};
    const nib_asked asked = {.recipe = "{\"rules\": []}",
                             .method = "gptq",
                             .dtype = "bf16",
                             .skip = {.items = skip, .count = 2},
                             .context = 512,
                             .text = {.path = "a \"text\".txt", .size = 7},
                             .layers = {[NIB_PTQ_GPTQ] = 3},
                             .orders = {[NIB_INPUTS_BY_GROUP] = 2, [NIB_INPUTS_ONE_BY_ONE] = 1}};
    nib_text text;
    nib_jsonw w;
    nib_arena arena;
    nib_read_receipt r;
    nib_err err;
    nib__text_init(&text, &heap);
    nib__jsonw_init(&w, &text, 1);
    nib__text_str(&text, "{\"receipt\": {" PROGRAM HASHES ", ");
    w.depth = 1;
    nib__asked_json(&asked, &w);
    nib__text_str(&text, "}}");
    assert_false(text.failed);
    if (read_receipt(&r, &arena, text.at, &err) != NIB_OK)
        fail_msg("%s\n%s", err.text, text.at);
    assert_true(r.found);
    assert_false(r.asked.convert);
    assert_string_equal(r.asked.recipe, asked.recipe);
    assert_string_equal(r.asked.method, "gptq");
    assert_string_equal(r.asked.dtype, "bf16");
    assert_null(r.asked.format);
    assert_null(r.asked.device);
    assert_int_equal(r.asked.context, 512);
    assert_memory_equal(r.asked.layers, asked.layers, sizeof asked.layers);
    assert_true(r.has_orders);
    assert_memory_equal(r.asked.orders, asked.orders, sizeof asked.orders);
    assert_int_equal(r.asked.skip.count, 2);
    assert_string_equal(r.asked.skip.items[1], "*.mlp.*");
    assert_int_equal(r.asked.only.count, 0);
    assert_string_equal(r.asked.text.path, "a \"text\".txt");
    assert_int_equal(r.asked.text.size, 7);
    assert_true(nib__digest_equal(&r.asked.text.digest, &asked.text.digest));
    assert_null(r.asked.imatrix.path);
    assert_int_equal(r.tensors.count, 1);
    assert_string_equal(r.outputs.items[0].name, "model.safetensors");
    nib__text_free(&text);
    done(&r, &arena);
}

static void test_damaged_receipts(void **state)
{
    (void)state;
    static const char *const manifests[] = {
        "{\"receipt\": 1}",
        "{\"receipt\": {}}",
        "{\"receipt\": {\"version\": 2}}",
        "{\"receipt\": {\"version\": 1, \"later\": 1}}",
        "{\"receipt\": {" PROGRAM CONVERTED "}}",
        "{\"receipt\": {" PROGRAM HASHES "}}",
        "{\"receipt\": {" PROGRAM HASHES ", \"command\": \"train\"}}",
        "{\"receipt\": {" PROGRAM HASHES ", \"command\": \"convert\", \"options\": {}}}",
        "{\"receipt\": {" PROGRAM HASHES ", \"options\": {\"skip\": [1]}}}",
        "{\"receipt\": {" PROGRAM HASHES ", \"options\": {\"format\": 1}}}",
        "{\"receipt\": {" PROGRAM HASHES ", \"options\": {\"context\": -1}}}",
        "{\"receipt\": {" PROGRAM HASHES ", \"options\": {\"allow\": []}}}",
        "{\"receipt\": {" PROGRAM CONVERTED HASHES ", \"calibrate\": {\"bytes\": 1}}}",
        "{\"receipt\": {" PROGRAM CONVERTED HASHES ", \"calibrate\": {\"name\": \"a\"}}}",
        "{\"receipt\": {" PROGRAM CONVERTED HASHES ", \"calibrate\": 7}}",
        "{\"receipt\": {" PROGRAM CONVERTED HASHES ", \"layers\": {\"guessed\": 1}}}",
        "{\"receipt\": {" PROGRAM CONVERTED HASHES ", \"orders\": {\"random\": 1}}}",
        "{\"receipt\": {" PROGRAM CONVERTED HASHES ", \"orders\": {\"groups\": -1}}}",
        "{\"receipt\": {" PROGRAM CONVERTED "\"outputs\": {\"a\": \"0123\"}}}",
        "{\"receipt\": {" PROGRAM CONVERTED "\"source\": {\"a\": {}}}}",
        "{\"receipt\": {" PROGRAM CONVERTED HASHES "}",
    };
    for (size_t i = 0; i < COUNT(manifests); i++) {
        nib_arena arena;
        nib_read_receipt r;
        nib_err err = {NIB_OK, ""};
        refused(NIB_BAD_INPUT, read_receipt(&r, &arena, manifests[i], &err), &err);
        done(&r, &arena);
    }
}

static void test_without_a_receipt(void **state)
{
    (void)state;
    nib_arena arena;
    nib_read_receipt r;
    nib_err err;
    char path[300];
    assert_int_equal(read_receipt(&r, &arena, "{\"schema\": 1}", &err), NIB_OK);
    assert_false(r.found);
    assert_non_null(r.manifest);
    done(&r, &arena);
    static const char converted[] = "{\"receipt\": {" PROGRAM CONVERTED HASHES "}}";
    assert_int_equal(read_receipt(&r, &arena, converted, &err), NIB_OK);
    assert_true(r.found && r.asked.convert);
    done(&r, &arena);
    snprintf(path, sizeof path, "%s/nibble.json", root);
    assert_int_equal(unlink(path), 0);
    nib__arena_init(&arena, &heap, 0);
    assert_int_equal(nib__receipt_read(&r, cp, &arena, &heap, &err), NIB_OK);
    assert_false(r.found);
    assert_null(r.manifest);
    done(&r, &arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_options_are_read_back),
        cmocka_unit_test(test_damaged_receipts),
        cmocka_unit_test(test_without_a_receipt),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
