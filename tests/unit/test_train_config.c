/* SPDX-License-Identifier: Apache-2.0
 *
 * Training configs: the sections that are taken, and what is refused instead of being passed over.
 */
#include "train_config.h"

#include "failing.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#define SIZES "\"dim\":256,\"n_layers\":6,\"n_heads\":16,\"vocab_size\":2256"

static nib_status parse(nib_train_config *out, nib_config *model, const char *text, nib_err *err)
{
    static nib_allocator a;
    static nib_arena arena; /* holds out->recipe until the next call */
    nib__arena_free(&arena);
    a = nib__allocator_default();
    nib__arena_init(&arena, &a, 0);
    return nib__train_config_parse(out, model, "train.json", text, strlen(text), &arena, err);
}

static void refused(const char *text, const char *words)
{
    nib_train_config train;
    nib_config model;
    nib_err err;
    assert_int_equal(parse(&train, &model, text, &err), NIB_BAD_INPUT);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void test_is(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool is;
    } cases[] = {
        {"{\"training\":{},\"model\":{}}", true},
        {"{\"model\":\"llama\"}", false},
        {"{\"model_type\":\"llama\"}", false},
        {"[{\"model\":{}}]", false},
        {"", false},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        assert_int_equal(nib__train_config_is(cases[i].text, strlen(cases[i].text)), cases[i].is);
}

static void test_takes(void **state)
{
    (void)state;
    nib_train_config train;
    nib_config model;
    nib_err err;
    assert_int_equal(parse(&train, &model,
                           "{\"model\":{\"name\":\"llama3\"," SIZES ",\"n_kv_heads\":4,"
                           "\"multiple_of\":256,\"norm_eps\":1e-5,\"max_seq_len\":2048},"
                           "\"training\":{\"local_batch_size\":2,\"seq_len\":64,\"steps\":10},"
                           "\"quantize\": {\"recipe_name\":\"mxfp8\"}}",
                           &err),
                     NIB_OK);
    assert_true(train.batch == 2 && train.sequence == 64);
    assert_string_equal(train.recipe, "{\"recipe_name\":\"mxfp8\"}");
    assert_true(model.width == 256 && model.layers == 6 && model.heads == 16);
    assert_true(model.kv_heads == 4 && model.head_dim == 16 && model.vocab == 2256);
    /* two thirds of 1,024 are 682, the next multiple of 256 is 768 */
    assert_int_equal(model.ffn, 768);
    assert_int_equal(parse(&train, &model,
                           "{\"model\":{" SIZES ",\"ffn_dim_multiplier\":1.3,\"multiple_of\":1}}",
                           &err),
                     NIB_OK);
    assert_int_equal(model.ffn, 886);
    assert_true(model.kv_heads == 16 && train.batch == 8 && train.sequence == 2048);
    assert_null(train.recipe);
}

static void test_refuses(void **state)
{
    (void)state;
    refused("{\"model\":{" SIZES "},\"optimizer\":{}}", "\"optimizer\" is not one of model");
    refused("{\"model\":{" SIZES ",\"n_head\":4}}", "did you mean n_heads");
    refused("{\"model\":{" SIZES "},\"training\":{\"local_batch_size\":0}}",
            "a micro-batch of 0 x");
    refused("{\"model\":{" SIZES ",\"dim\":-1}}", "-1 is outside of 0");
    refused("{\"model\":{\"dim\":256}}", "num_hidden_layers is missing");
    refused("{\"model\":{" SIZES ",\"ffn_dim_multiplier\":-1}}", "ffn_dim_multiplier is -1");
    /* a product that no integer holds */
    refused("{\"model\":{" SIZES ",\"ffn_dim_multiplier\":1e300}}", "intermediate_size is 11");
    refused("{\"model\":{" SIZES "},\"quantize\":", "");
}

/* Memory that runs out at any request is that error, and nothing leaks. */
static void test_memory(void **state)
{
    (void)state;
    static const char text[] = "{\"model\":{" SIZES "},\"quantize\":{\"a\":1}}";
    bool done = false;
    for (int n = 0; !done; n++) {
        failing f = {.left = n};
        const nib_allocator a = failing_allocator(&f);
        nib_train_config train;
        nib_config model;
        nib_arena arena;
        nib_err err;
        nib__arena_init(&arena, &a, 0);
        const nib_status status = nib__train_config_parse(&train, &model, "train.json", text,
                                                          sizeof text - 1, &arena, &err);
        done = status == NIB_OK;
        assert_true(done ? train.recipe && model.layers == 6 : status == NIB_NO_MEMORY);
        nib__arena_free(&arena);
        assert_int_equal(f.live, 0);
        assert_true(n < 100);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_is),
        cmocka_unit_test(test_takes),
        cmocka_unit_test(test_refuses),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
