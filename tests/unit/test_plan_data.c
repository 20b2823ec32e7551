/* SPDX-License-Identifier: Apache-2.0
 *
 * The plan as structs: written as JSON with the public functions alone, it is what nib_plan_write
 * writes.
 */
#include "json.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "refused.h"

static void put_reasons(nib_jsonw *w, const nib_reason *reasons, size_t count)
{
    nib__jsonw_key(w, "reasons");
    nib__jsonw_array(w);
    for (size_t i = 0; i < count; i++) {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "code", reasons[i].code);
        nib__jsonw_pair_string(w, "text", reasons[i].text);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void put_candidates(nib_jsonw *w, const nib_plan *plan, size_t layer, size_t count)
{
    nib__jsonw_key(w, "candidates");
    nib__jsonw_array(w);
    for (size_t i = 0; i < count; i++) {
        nib_plan_candidate c = {.size = sizeof c};
        assert_int_equal(nib_plan_candidate_get(plan, layer, i, &c, NULL), NIB_OK);
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "kernel", c.kernel);
        nib__jsonw_pair_string(w, "phase", c.phase);
        nib__jsonw_pair_string(w, "verdict", nib_verdict_name(c.verdict));
        if (c.engine != NULL) {
            nib__jsonw_pair_string(w, "engine", c.engine);
            nib__jsonw_pair_string(w, "consequence", c.consequence);
            nib__jsonw_pair_string(w, "source", c.source);
        }
        put_reasons(w, c.reasons, c.reason_count);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void put_uses(nib_jsonw *w, const nib_plan *plan, size_t layer, size_t count)
{
    nib__jsonw_key(w, "uses");
    nib__jsonw_array(w);
    for (size_t i = 0; i < count; i++) {
        nib_plan_use u = {.size = sizeof u};
        assert_int_equal(nib_plan_use_get(plan, layer, i, &u, NULL), NIB_OK);
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "phase", u.phase);
        nib__jsonw_pair_int(w, "m_min", u.m_min);
        nib__jsonw_key(w, "m_max");
        if (u.m_max == 0)
            nib__jsonw_null(w);
        else
            nib__jsonw_int(w, u.m_max);
        nib__jsonw_pair_string(w, "kernel", u.kernel);
        nib__jsonw_pair_string(w, "quant", u.quant);
        nib__jsonw_pair_string(w, "device", u.device);
        nib__jsonw_pair_double(w, "predicted_us", u.predicted_us);
        if (u.tuned_us > 0)
            nib__jsonw_pair_double(w, "tuned_us", u.tuned_us);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void put_advice(nib_jsonw *w, const nib_plan *plan, size_t layer, size_t count)
{
    nib__jsonw_key(w, "advice");
    nib__jsonw_array(w);
    for (size_t i = 0; i < count; i++) {
        nib_plan_advice a = {.size = sizeof a};
        assert_int_equal(nib_plan_advice_get(plan, layer, i, &a, NULL), NIB_OK);
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "code", a.code);
        nib__jsonw_pair_string(w, "option", a.option);
        nib__jsonw_pair_string(w, "text", a.text);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static void put_layer(nib_jsonw *w, const nib_plan *plan, size_t layer)
{
    nib_plan_layer l = {.size = sizeof l};
    assert_int_equal(nib_plan_layer_get(plan, layer, &l, NULL), NIB_OK);
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "name", l.name);
    nib__jsonw_pair_string(w, "role", l.role);
    nib__jsonw_pair_int(w, "n", l.n);
    nib__jsonw_pair_int(w, "k", l.k);
    nib__jsonw_pair_bool(w, "bias", l.bias);
    nib__jsonw_pair_string(w, "bias_form", l.bias_form);
    nib__jsonw_pair_string(w, "asked", l.asked);
    nib__jsonw_pair_string(w, "done", l.done);
    nib__jsonw_pair_string(w, "rung", nib_rung_name(l.rung));
    nib__jsonw_pair_string(w, "rule", l.rule);
    nib__jsonw_pair_string(w, "allowed", l.allowed);
    nib__jsonw_pair_bool(w, "denied", l.denied);
    nib__jsonw_pair_int(w, "bytes", (int64_t)l.bytes);
    put_reasons(w, l.reasons, l.reason_count);
    if (l.candidates > 0)
        put_candidates(w, plan, layer, l.candidates);
    put_uses(w, plan, layer, l.uses);
    if (l.advice > 0)
        put_advice(w, plan, layer, l.advice);
    nib__jsonw_object_end(w);
}

static void put_setting(nib_jsonw *w, const nib_plan *plan, size_t setting)
{
    nib_plan_setting s = {.size = sizeof s};
    assert_int_equal(nib_plan_setting_get(plan, setting, &s, NULL), NIB_OK);
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "code", s.code);
    nib__jsonw_pair_string(w, "name", s.name);
    nib__jsonw_pair_string(w, "asked", s.asked);
    nib__jsonw_pair_string(w, "done", s.done);
    nib__jsonw_pair_string(w, "by", nib_asker_name(s.by));
    nib__jsonw_pair_string(w, "relation", nib_setting_relation_name(s.relation));
    nib__jsonw_pair_string(w, "text", s.text);
    nib__jsonw_pair_bool(w, "allowed", s.allowed);
    nib__jsonw_object_end(w);
}

static void put_plan(nib_jsonw *w, const nib_plan *plan)
{
    nib_plan_facts f = {.size = sizeof f};
    nib_plan_facts_get(plan, &f);
    nib__jsonw_key(w, "layers");
    nib__jsonw_array(w);
    for (size_t i = 0; i < f.layers; i++)
        put_layer(w, plan, i);
    nib__jsonw_array_end(w);
    nib__jsonw_key(w, "settings");
    nib__jsonw_array(w);
    for (size_t i = 0; i < f.settings; i++)
        put_setting(w, plan, i);
    nib__jsonw_array_end(w);
    nib__jsonw_key(w, "notes");
    nib__jsonw_array(w);
    for (size_t i = 0; i < f.notes; i++) {
        nib_reason note;
        assert_int_equal(nib_plan_note_get(plan, i, &note, NULL), NIB_OK);
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "code", note.code);
        nib__jsonw_pair_string(w, "text", note.text);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
}

static nib_status keep(void *ctx, const char *bytes, size_t size)
{
    nib__text_put(ctx, bytes, size);
    return NIB_OK;
}

/* The array under a key in the ledger's JSON, which is written with the same indent. */
static void expect_same(const nib_text *json, const nib_text *own, const char *key)
{
    char start[32];
    snprintf(start, sizeof start, "\"%s\": [", key);
    const char *a = strstr(json->at, start), *b = strstr(own->at, start);
    assert_non_null(a);
    assert_non_null(b);
    for (int depth = 0;; a++, b++) {
        if (*a != *b)
            fail_msg("%s differ: %.200s\n---\n%.200s", key, a, b);
        depth += (*a == '[' || *a == '{') - (*a == ']' || *a == '}');
        if (*a == ']' && depth == 0)
            return;
    }
}

static void check(const char *path, const nib_request *request, bool bare)
{
    const nib_allocator allocator = nib__allocator_default();
    const nib_model_options options = {.size = sizeof options, .config_only = bare};
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    nib_text json, own;
    nib_jsonw w;
    nib_err err = {NIB_OK, ""};
    nib__text_init(&json, &allocator);
    nib__text_init(&own, &allocator);
    const nib_sink sink = {keep, &json};
    if (nib_engine_open(&engine, NULL, &err) != NIB_OK ||
        nib_model_open(&model, engine, path, &options, &err) != NIB_OK ||
        nib_plan_open(&plan, model, request, &err) != NIB_OK ||
        nib_plan_ledger_write(plan, NIB_FORM_JSON, &sink, &err) != NIB_OK)
        fail_msg("%s", err.text);
    nib__jsonw_init(&w, &own, 0);
    nib__jsonw_object(&w);
    put_plan(&w, plan);
    nib__jsonw_object_end(&w);
    expect_same(&json, &own, "layers");
    expect_same(&json, &own, "settings");
    expect_same(&json, &own, "notes");

    nib_plan_facts f = {.size = sizeof f};
    nib_plan_facts_get(plan, &f);
    assert_int_equal(f.asked, f.done + f.substituted + f.denied);
    assert_true(f.layers > 0 && f.weight_bytes > 0 && f.context > 0);
    nib_plan_layer l = {.size = sizeof l};
    nib_plan_use u = {.size = sizeof u};
    nib_plan_setting s = {.size = sizeof s};
    nib_reason note = {"untouched", NULL};
    refused(NIB_USAGE, nib_plan_layer_get(plan, f.layers, &l, &err), &err);
    refused(NIB_USAGE, nib_plan_use_get(plan, f.layers, 0, &u, &err), &err);
    refused(NIB_USAGE, nib_plan_use_get(plan, 0, 1000, &u, &err), &err);
    refused(NIB_USAGE, nib_plan_setting_get(plan, f.settings, &s, &err), &err);
    refused(NIB_USAGE, nib_plan_note_get(plan, f.notes, &note, &err), &err);
    assert_string_equal(note.code, "untouched");
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
    nib__text_free(&json);
    nib__text_free(&own);
}

static void test_equals_json(void **state)
{
    static const char model[] = "models/nibble-tales",
                      config[] = "configs/shapes/llama-3.2-1b/config.json";
    (void)state;
    check(model, NULL, false);
    check(model, &(nib_request){.recipe = "8da4w", .cache = "int8", .lookup = 60}, false);
    check(model, &(nib_request){.recipe = "int4wo-g12"}, false);
    check(config, &(nib_request){.recipe = "8da4w", .device = "h200", .engine = "torchao"}, true);
    check(config,
          &(nib_request){
              .recipe = "mxfp4dq", .device = "mi210", .layer = "model.layers.0.mlp.up_proj"},
          true);
    check(config, &(nib_request){.recipe = "nvfp4dq", .device = "a100", .strict = true}, true);
}

/* A caller of an earlier version gets as much as fits its struct. */
static void test_short_struct(void **state)
{
    struct {
        nib_plan_facts facts;
        char after[8];
    } at = {.facts.size = offsetof(nib_plan_facts, context), .after = "after"};
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    (void)state;
    at.facts.context = 77;
    assert_int_equal(nib_engine_open(&engine, NULL, NULL), NIB_OK);
    assert_int_equal(nib_model_open(&model, engine, "models/nibble-tales", NULL, NULL), NIB_OK);
    assert_int_equal(nib_plan_open(&plan, model, NULL, NULL), NIB_OK);
    nib_plan_facts_get(plan, &at.facts);
    assert_string_equal(at.facts.device, "cpu");
    assert_int_equal(at.facts.context, 77);
    assert_int_equal(at.facts.size, offsetof(nib_plan_facts, context));
    assert_string_equal(at.after, "after");
    nib_plan_close(plan);
    nib_model_close(model);
    nib_engine_close(engine);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(nib_rung_name(NIB_RUNG_DEQUANT), "dequant");
    assert_string_equal(nib_verdict_name(NIB_VERDICT_COULD), "could");
    assert_string_equal(nib_setting_relation_name(NIB_SETTING_NONE), "without effect");
    assert_string_equal(nib_asker_name(NIB_BY_REQUEST), "request");
    assert_string_equal(nib_rung_name((nib_rung)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_equals_json),
        cmocka_unit_test(test_short_struct),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
