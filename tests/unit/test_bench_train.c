/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_bench_train on a shipped config cut down in size: what it writes, not how fast it is.
 */
#include "json.h"
#include "session_handle.h"

#include <stdio.h>

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

#include "kept.h"
#include "refused.h"

static nib_status bench(kept *k, const char *path, int steps, nib_form form, nib_err *err)
{
    static const char *const small[] = {"model.n_layers=1",
                                        "model.dim=64",
                                        "model.n_heads=4",
                                        "model.n_kv_heads=2",
                                        "training.local_batch_size=2",
                                        "training.seq_len=48",
                                        "training.global_batch_size=4"};
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    const nib_engine_options one = {.threads = 1};
    const nib_model_options options = {.overrides = {small, COUNT(small)}};
    const nib_model_options none = {.config_only = true};
    const nib_request request = {0};
    const nib_sink sink = {keep, k};
    *k = (kept){.size = 0};
    assert_int_equal(nib_engine_open(&engine, &one, err), NIB_OK);
    if (nib_model_open(&model, engine, path, strstr(path, "golden") ? &none : &options, err))
        fail_msg("%s", err->text);
    nib_status status = nib_plan_open(&plan, model, &request, err);
    if (status == NIB_OK)
        status = nib_bench_train(model, plan, steps, form, &sink, err);
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    return status;
}

static const char config[] = "configs/llama3_debugmodel_mxfp8_vocab2256.json";

static void must_bench(kept *k, nib_form form)
{
    nib_err err;
    if (bench(k, config, 1, form, &err) != NIB_OK)
        fail_msg("%s", err.text);
}

static void expect(const kept *k, const char *const *words)
{
    for (; *words; words++)
        if (!strstr(k->text, *words))
            fail_msg("\"%s\" is not in\n%s", *words, k->text);
}

static void test_writes_what_was_timed(void **state)
{
    static kept k;
    (void)state;
    must_bench(&k, NIB_FORM_TEXT);
    expect(&k,
           (const char *const[]){"2 x 2 x 48 tokens per step, 1 thread", "tokens/s", " predicted, ",
                                 "linear_dw          output", "linear             attention",
                                 "attn_dx", "adamw", "cast of weights", NULL});
    must_bench(&k, NIB_FORM_MARKDOWN);
    expect(&k, (const char *const[]){"| operation | layers | ms per step |", "| linear_dx | mlp |",
                                     "| adamw |  |", NULL});
}

/* The shares of all operations add up to the timed step. */
static void test_json_adds_up(void **state)
{
    static kept k;
    double share = 0, value;
    int operations = 0;
    (void)state;
    must_bench(&k, NIB_FORM_JSON);
    expect(&k, (const char *const[]){"\"tokens_per_step\": 192",
                                     "\"memory_said_bytes\": ", "\"operation\": \"linear\"", NULL});
    nib_json json;
    nib__json_init(&json, "bench", k.text, k.size, NULL);
    while (nib__json_next(&json) != NIB_JSON_END && json.event != NIB_JSON_ERROR)
        if (json.event == NIB_JSON_KEY && nib__json_is(&json, "share")) {
            assert_true(nib__json_read_double(&json, &value) && value >= 0);
            share += value;
            operations++;
        }
    assert_int_equal(json.event, NIB_JSON_END);
    assert_true(operations > 20);
    assert_true(share > 0.9 && share < 1.001);
}

static void test_refusals(void **state)
{
    static kept k;
    nib_err err;
    (void)state;
    static const char model[] = "tests/golden/train/llama/config.json";
    refused(NIB_USAGE, bench(&k, config, 1001, NIB_FORM_TEXT, &err), &err);
    refused(NIB_USAGE, bench(&k, model, 1, NIB_FORM_TEXT, &err), &err);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_writes_what_was_timed),
        cmocka_unit_test(test_json_adds_up),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
