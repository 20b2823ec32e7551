/* SPDX-License-Identifier: Apache-2.0
 *
 * Damaged JSON: recipes, quantization_configs and machine files cut short at each byte, with each
 * value replaced by one of another kind, and with each allocation failing once. A refusal has its
 * status and a sentence, and nothing leaks. Names: recipe*.c, torchao_*.c, quantization.c,
 * targets.c, machine_file.c.
 */
#include "corpus.h"
#include "failing.h"
#include "file.h"
#include "json.h"
#include "ledger.h"
#include "machine.h"
#include "quantization.h"
#include "recipe.h"

#include <stdarg.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

/* Reads text, which ends in a NUL, and frees the result. */
typedef nib_status reader(const char *text, const nib_allocator *a, nib_err *err);

static nib_status load_recipe(const nib_recipe_input *in, const nib_allocator *a, nib_err *err)
{
    nib_recipe *recipe = NULL;
    const nib_status status = nib__recipe_load(&recipe, in, a, err);
    assert_true((recipe != NULL) == (status == NIB_OK));
    nib__recipe_free(recipe);
    return status;
}

static const nib_recipe_layer layers[] = {
    {"model.embed_tokens", NIB_ROLE_EMBED, true},
    {"model.layers.0.self_attn.q_proj", NIB_ROLE_Q, false},
    {"model.layers.0.mlp.down_proj", NIB_ROLE_DOWN, false},
    {"lm_head", NIB_ROLE_HEAD, true},
};

static nib_status read_recipe(const char *text, const nib_allocator *a, nib_err *err)
{
    const char *const skip = "lm_head", *const only = "*_proj";
    const nib_recipe_input in = {.text = text,
                                 .skip = {&skip, 1},
                                 .only = {&only, 1},
                                 .layers = layers,
                                 .count = COUNT(layers)};
    return load_recipe(&in, a, err);
}

/* The recipe alone. "as stored" stands for none. */
static nib_status read_plain_recipe(const char *text, const nib_allocator *a, nib_err *err)
{
    const bool none = strcmp(text, "as stored") == 0;
    const nib_recipe_input in = {
        .text = none ? NULL : text, .layers = layers, .count = COUNT(layers)};
    return load_recipe(&in, a, err);
}

static nib_status read_quantization(const char *text, const nib_allocator *a, nib_err *err)
{
    nib_arena arena;
    nib_ledger ledger;
    nib_quantization *q = NULL;
    nib__arena_init(&arena, a, 4 << 20);
    nib__ledger_init(&ledger, a);
    nib_status status = nib__quantization_parse(&q, "config.json", text, strlen(text), NULL, &arena,
                                                a, &ledger, err);
    if (status == NIB_OK) {
        const nib_coding_group *group;
        bool kept;
        status = nib__quantization_keeps(&kept, q, "model.layers.0.self_attn.q_proj", err);
        if (status == NIB_OK)
            status = nib__quantization_group(&group, q, "lm_head", err);
        nib__quantization_free(q);
    }
    nib__ledger_free(&ledger);
    nib__arena_free(&arena);
    return status;
}

static nib_status read_machine(const char *text, const nib_allocator *a, nib_err *err)
{
    nib_arena arena;
    nib_machine machine;
    const char *host;
    nib__arena_init(&arena, a, 4 << 20);
    const nib_status status =
        nib__machine_parse(&machine, &host, "m", "m.json", text, strlen(text), &arena, err);
    nib__arena_free(&arena);
    return status;
}

/* Reads from an exact allocation, so that a reader past its end is seen. */
static nib_status read_with(failing *f, reader *read, const char *text, size_t size)
{
    const nib_allocator a = failing_allocator(f);
    nib_err err = {NIB_OK, ""};
    char *copy = malloc(size + 1);
    assert_non_null(copy);
    memcpy(copy, text, size);
    copy[size] = 0;
    const nib_status status = read(copy, &a, &err);
    if (f->live != 0)
        fail_msg("%d allocations leak: %s", f->live, copy);
    if (status != err.status || (status != NIB_OK && err.text[0] == 0))
        fail_msg("status %d, error %d \"%s\": %s", status, err.status, err.text, copy);
    free(copy);
    return status;
}

static nib_status read_exactly(reader *read, const char *text, size_t size)
{
    return read_with(&(failing){-1, 0}, read, text, size);
}

static void refuse_each_prefix(reader *read, const char *text, size_t size)
{
    for (size_t cut = 0; cut < size; cut++)
        if (read_exactly(read, text, cut) == NIB_OK)
            fail_msg("accepted: %.*s", (int)cut, text);
}

static void replace_each_value(reader *read, const char *text, size_t size)
{
    static const char *const values[] = {"null", "true", "7",   "-1",      "0.5",        "1e300",
                                         "\"\"", "[]",   "[7]", "[\"x\"]", "{\"x\":{}}", "{}"};
    char changed[8192];
    nib_json json;
    nib__json_init(&json, "text", text, size, NULL);
    for (nib_json_event event; (event = nib__json_next(&json)) != NIB_JSON_END;) {
        assert_int_not_equal(event, NIB_JSON_ERROR);
        if (event == NIB_JSON_KEY || event == NIB_JSON_OBJECT_END || event == NIB_JSON_ARRAY_END)
            continue;
        nib_json end = json;
        assert_true(nib__json_skip(&end));
        for (size_t i = 0; i < COUNT(values); i++) {
            const int length =
                snprintf(changed, sizeof changed, "%.*s%s%.*s", (int)(json.from - text), text,
                         values[i], (int)(text + size - end.at), end.at);
            assert_in_range(length, 1, sizeof changed - 1);
            const nib_status status = read_exactly(read, changed, (size_t)length);
            if (status != NIB_OK && status != NIB_USAGE && status != NIB_BAD_INPUT &&
                status != NIB_UNSUPPORTED)
                fail_msg("status %d: %s", status, changed);
        }
    }
}

static void fail_each_allocation(reader *read, const char *text, size_t size)
{
    const nib_status with_memory = read_exactly(read, text, size);
    bool failed = true;
    for (int left = 0; failed; left++) {
        failing f = {left, 0};
        const nib_status status = read_with(&f, read, text, size);
        failed = f.left == 0;
        if (status != with_memory && !(failed && status == NIB_NO_MEMORY))
            fail_msg("status %d after %d allocations, %d with memory: %s", status, left,
                     with_memory, text);
    }
}

static void damage(reader *read, const char *text, size_t size)
{
    if (text[0] == '{') {
        refuse_each_prefix(read, text, size);
        replace_each_value(read, text, size);
    }
    fail_each_allocation(read, text, size);
}

static void damage_file(reader *read, const char *path)
{
    const nib_allocator a = nib__allocator_default();
    char *text;
    size_t size;
    nib_err err;
    if (nib__file_read(&text, &size, path, 1 << 16, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    while (size > 0 && text[size - 1] == '\n')
        size--;
    damage(read, text, size);
    nib__release(&a, text);
}

static void damage_named(void *context, const char *path)
{
    damage_file(*(reader **)context, path);
}

static void damage_corpus(reader *read, const char *folder)
{
    assert_true(each_named_file(folder, damage_named, &read) > 2);
}

static void test_recipes(void **state)
{
    (void)state;
    static char line[1 << 13];
    FILE *file = fopen("tests/golden/torchao_configs.txt", "r");
    assert_non_null(file);
    damage_corpus(read_recipe, "tests/fuzz/corpus/recipe");
    while (fgets(line, sizeof line, file) != NULL) {
        const char *tab = strchr(line, '\t');
        if (line[0] != '#' && tab != NULL)
            damage(read_recipe, tab + 1, strcspn(tab + 1, "\n"));
    }
    fclose(file);
}

/* Sentences of refusals and lines of ledgers need memory, too. */
static void test_recipes_with_lines(void **state)
{
    (void)state;
#define CONFIG(type, data) "{\"_type\":\"" type "\",\"_version\":2,\"_data\":{" data "}}"
#define HF(extra) "{\"quant_type\":{\"default\":" CONFIG("Int8WeightOnlyConfig", "") "}" extra "}"
    static const char *const texts[] = {
        "as stored",
        "mxfp8",
        "int8wo+embed",
        "8da4x",
        "{\"ruels\":[]}",
        "{\"zzzzzzzzzz\":[],\"rules\":[]}",
        "{\"recipe_name\":\"mxfp8\"}",
        "{\"recipe_name\":\"mxfp9\"}",
        "{\"recipe\":\"int8wo+embed+head\",\"emulate\":true}",
        "{\"rules\":[{\"match\":\"zzz*\",\"scheme\":\"int8wo\"}]}",
        "{\"rules\":[{\"match\":\"lm_haed\",\"scheme\":\"int8wo\"}]}",
        "{\"rules\":[{\"match\":\"lm_head\",\"scheme\":\"int9wo\"}]}",
        "{\"rules\":[{\"match\":\"re:lm_head\",\"scheme\":\"keep\"},"
        "{\"match\":\"lm_*\",\"scheme\":\"int8wo\"}]}",
        "{\"linear:afpwx\":{\"bitwidth\":4,\"groupsize\":64}}",
        "{\"precision\":{\"dtype\":\"bf17\"}}",
        CONFIG("Float8DynamicActivationFloat8WeightConfig",
               "\"kernel_preference\":\"TORCH\",\"alg_id\":7"),
        CONFIG("Int8DynamicActivationInt8WeightConfig",
               "\"granularity\":{\"_type\":\"PerTensor\",\"_data\":{}},\"version\":1"),
        CONFIG("Int8DynamicActivationInt8WeightConfig", "\"layout\":\"SPARSE\""),
        CONFIG("IntxWeightOnlyConfig", ""),
        CONFIG("IntxWeightOnlyConfg", ""),
        HF(",\"modules_to_not_convert\":[\"lm_head\",\"visual\"]"),
        HF(",\"quant_type_kwargs\":{\"a\":1},\"new\":7"),
        HF(",\"untie_embedding_weights\":true"),
    };
    for (size_t i = 0; i < COUNT(texts); i++) {
        fail_each_allocation(read_plain_recipe, texts[i], strlen(texts[i]));
        fail_each_allocation(read_recipe, texts[i], strlen(texts[i]));
    }
}

static void test_quantizations(void **state)
{
    (void)state;
    damage_corpus(read_quantization, "tests/fuzz/corpus/quantization");
}

static void test_machines(void **state)
{
    (void)state;
    damage_corpus(read_machine, "tests/fuzz/corpus/machine");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recipes),
        cmocka_unit_test(test_recipes_with_lines),
        cmocka_unit_test(test_quantizations),
        cmocka_unit_test(test_machines),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
