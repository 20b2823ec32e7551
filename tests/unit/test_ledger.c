/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger: it grows, layers with the same outcome fold into one line, counts and summary add up,
 * JSON has the documented members, text wraps, and a failing allocator is reported and never
 * crashes.
 */
#include "file.h"
#include "ledger.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "refused.h"

static nib_allocator allocator;

static void add(nib_ledger *ledger, const char *name, int64_t n, nib_rung rung, bool denied)
{
    static const nib_ledger_use use = {
        "infer", 1, 0, "linear_a8t_w4g_f32__avx512vnni_6x32", "cpu", "quant_f32_a8t__ref", 12.5, 0};
    nib_ledger_layer *layer = nib__ledger_add_layer(ledger, name);
    assert_non_null(layer);
    layer->role = "up";
    layer->asked = "8da4w-g32@cpu";
    layer->done = rung == NIB_RUNG_UNQUANTIZED ? "bf16@cpu" : "8da4w-g32@cpu";
    layer->rule = "recipe";
    layer->rung = rung;
    layer->denied = denied;
    layer->allowed = rung != NIB_RUNG_NONE && !denied ? "--allow unquantized" : NULL;
    layer->n = n;
    layer->k = 224;
    layer->bytes = 1000;
    layer->uses = nib__arena_take(&ledger->arena, 1, sizeof use);
    layer->uses[0] = use;
    layer->use_count = denied ? 0 : 1;
    if (rung != NIB_RUNG_NONE || denied)
        nib__ledger_add_reason(ledger, layer, "k%128",
                               "the input width k is 224, not a multiple of 128");
}

static void sample(nib_ledger *ledger)
{
    nib__ledger_init(ledger, &allocator);
    for (int i = 0; i < 12; i++)
        add(ledger, nib__ledger_text(ledger, "model.layers.%d.mlp.up_proj", i), 608, NIB_RUNG_NONE,
            false);
    add(ledger, "lm_head", 2256, NIB_RUNG_UNQUANTIZED, false);
    add(ledger, "odd_head", 7, NIB_RUNG_NONE, true);
    assert_false(ledger->failed);
}

static void counts_and_summary(void **state)
{
    (void)state;
    nib_ledger ledger;
    nib_text text;
    sample(&ledger);
    nib__text_init(&text, &allocator);
    const nib_ledger_counts counts = nib__ledger_count(&ledger);
    assert_int_equal(counts.asked, 14);
    assert_int_equal(counts.done, 12);
    assert_int_equal(counts.substituted, 1);
    assert_int_equal(counts.denied, 1);
    assert_int_equal(counts.embeddings, 0);
    nib__ledger_summary(&ledger, &text);
    assert_string_equal(text.at, "14 linear layers: 14 asked 8da4w-g32, 12 done on cpu/avx512vnni, "
                                 "1 substituted, 1 denied");
    /* the embedding is not counted, but listed if not as asked */
    add(&ledger, "embed_tokens", 9, NIB_RUNG_NONE, false);
    ledger.layers[14].role = "embed";
    assert_int_equal(nib__ledger_count(&ledger).asked, 14);
    assert_int_equal(nib__ledger_count(&ledger).embeddings, 0);
    ledger.layers[14].denied = true;
    assert_int_equal(nib__ledger_count(&ledger).denied, 1);
    assert_int_equal(nib__ledger_count(&ledger).embeddings, 1);
    nib__text_clear(&text);
    nib__ledger_summary(&ledger, &text);
    assert_non_null(strstr(text.at, "14 linear layers: "));
    assert_non_null(strstr(text.at, "1 denied; 1 embedding not as asked"));
    nib__text_free(&text);
    nib__ledger_free(&ledger);
}

static void an_empty_ledger_has_a_summary(void **state)
{
    (void)state;
    nib_ledger ledger;
    nib_text text;
    nib__ledger_init(&ledger, &allocator);
    nib__text_init(&text, &allocator);
    nib__ledger_summary(&ledger, &text);
    assert_string_equal(text.at, "0 linear layers: 0 substituted");
    nib__text_free(&text);
    nib__ledger_free(&ledger);
}

static void equal_outcomes_fold(void **state)
{
    (void)state;
    nib_ledger ledger;
    nib_text text;
    sample(&ledger);
    nib__text_init(&text, &allocator);
    nib__ledger_render(&ledger, true, &text);
    assert_non_null(strstr(text.at, "     12  model.layers.*.mlp.up_proj"));
    assert_non_null(strstr(text.at, "12.0 kB"));
    assert_null(strstr(text.at, "model.layers.3."));
    assert_non_null(strstr(text.at,
                           "substituted: asked 8da4w-g32@cpu, done bf16@cpu; rung unquantized, "
                           "allowed --allow unquantized\n      1  lm_head  2256x224\n"));
    assert_non_null(strstr(
        text.at, "denied: asked 8da4w-g32@cpu, no allowed kernel\n      1  odd_head  7x224\n"));
    assert_non_null(strstr(text.at, "  - the input width k is 224, not a multiple of 128"));
    nib__text_clear(&text);
    nib__ledger_render(&ledger, false, &text);
    assert_non_null(strstr(text.at, "model.layers.3.mlp.up_proj"));
    for (const char *line = text.at; *line != 0; line = strchr(line, '\n') + 1)
        assert_true(strcspn(line, "\n") <= 100);
    nib__text_free(&text);
    nib__ledger_free(&ledger);
}

/* Names come from files: control characters in them never reach a terminal. */
static void names_are_escaped(void **state)
{
    (void)state;
    nib_ledger ledger;
    nib_text text;
    nib__ledger_init(&ledger, &allocator);
    nib__text_init(&text, &allocator);
    add(&ledger, "a\x1b[2J.0", 7, NIB_RUNG_UNQUANTIZED, false);
    add(&ledger, "a\x1b[2J.1", 7, NIB_RUNG_UNQUANTIZED, false);
    add(&ledger, "b\x1b[2J", 8, NIB_RUNG_NONE, true);
    for (int i = 0; i < 2; i++) {
        nib_ledger_tensor *tensor = nib__ledger_add_tensor(&ledger, i == 0 ? "\rt.0" : "\rt.1");
        assert_non_null(tensor);
        tensor->asked = "f64";
        tensor->done = "f32";
    }
    for (int fold = 0; fold < 2; fold++) {
        nib__text_clear(&text);
        nib__ledger_render(&ledger, fold != 0, &text);
        assert_null(strpbrk(text.at, "\x1b\r"));
        assert_non_null(strstr(text.at, fold ? "a\\x1b[2J.*" : "a\\x1b[2J.1"));
        assert_non_null(strstr(text.at, fold ? "2 x \\x0dt.*: f64 -> f32" : "1 x \\x0dt.0: f64"));
    }
    nib__text_free(&text);
    nib__ledger_free(&ledger);
}

static void names_fold_whole_parts_only(void **state)
{
    (void)state;
    char out[64];
    assert_string_equal(nib__ledger_fold_name(out, sizeof out, "a.0.b.12"), "a.*.b.*");
    assert_string_equal(nib__ledger_fold_name(out, sizeof out, "fc1.w2x.3x"), "fc1.w2x.3x");
    assert_string_equal(nib__ledger_fold_name(out, 5, "abcdefgh"), "abcd");
    assert_string_equal(nib__ledger_fold_name(out, sizeof out, ""), "");
}

static void text_wraps(void **state)
{
    (void)state;
    nib_text text;
    nib__text_init(&text, &allocator);
    nib__ledger_wrap(&text, "- ", "  ", 10, "aaa bbb ccc dddddddddddd e");
    assert_string_equal(text.at, "- aaa bbb\n  ccc\n  dddddddddddd\n  e\n");
    nib__text_free(&text);
}

/* Expects this part in the JSON, ignoring white space. */
static void expect_json(const nib_text *json, const char *part)
{
    char *plain = malloc(json->size + 1), *to = plain;
    for (const char *from = json->at; *from != 0; from++)
        if (*from != ' ' || (from[-1] != ':' && from[-1] != ','))
            *to++ = *from;
    *to = 0;
    if (strstr(plain, part) == NULL)
        fail_msg("%s is not in %s", part, plain);
    free(plain);
}

static void json_has_the_documented_members(void **state)
{
    (void)state;
    static const char *const expected[] = {
        "\"name\":\"lm_head\"",
        "\"role\":\"up\"",
        "\"rung\":\"unquantized\"",
        "\"rule\":\"recipe\"",
        "\"bytes\":1000",
        "\"code\":\"k%128\"",
        "\"phase\":\"infer\"",
        "\"m_min\":1",
        "\"m_max\":null",
        "\"kernel\":\"linear_a8t_w4g_f32__avx512vnni_6x32\"",
        "\"predicted_us\":12.5",
        "\"counts\":{\"asked\":14,\"done\":12,\"substituted\":1,\"denied\":1,"
        "\"embeddings_not_as_asked\":0,\"settings\":{\"equivalent\":0,\"narrower\":0,\"other\":0,"
        "\"without effect\":0}}",
        "\"tensors\":[{\"name\":\"a.scale\",\"asked\":\"f64\",\"done\":\"f32\"",
        "\"max_rel_change\":0.25",
    };
    nib_ledger ledger;
    nib_text text;
    nib_jsonw w;
    sample(&ledger);
    nib_ledger_tensor *tensor = nib__ledger_add_tensor(&ledger, "a.scale");
    tensor->asked = "f64", tensor->done = "f32", tensor->max_rel_change = 0.25;
    nib__text_init(&text, &allocator);
    nib__jsonw_init(&w, &text, 0);
    nib__jsonw_object(&w);
    nib__ledger_json(&ledger, &w);
    nib__jsonw_object_end(&w);
    for (size_t i = 0; i < COUNT(expected); i++)
        expect_json(&text, expected[i]);
    nib__text_free(&text);
    nib__ledger_free(&ledger);
}

/* ---- settings ---- */

static void add_three(nib_ledger *ledger)
{
    nib__ledger_add_setting(ledger,
                            &(nib_ledger_setting){.code = "training-key",
                                                  .name = "training.compile",
                                                  .asked = "true",
                                                  .by = NIB_BY_OPTION,
                                                  .relation = NIB_SETTING_EQUIVALENT},
                            "kernels are compiled %s", "already");
    nib__ledger_add_unread(ledger, "config-key", "config.json", "mood", "3");
    nib__ledger_add_unread(ledger, "config-key", "config.json", "weather", "3");
    nib__ledger_add_setting(ledger,
                            &(nib_ledger_setting){.code = "tie",
                                                  .name = "tie_word_embeddings",
                                                  .asked = "true",
                                                  .done = "false",
                                                  .by = NIB_BY_CONFIG,
                                                  .relation = NIB_SETTING_OTHER},
                            "a head is stored");
}

/* Settings that differ only in name share a line; the caller chooses the least relation shown. */
static void equal_settings_share_a_line(void **state)
{
    (void)state;
    nib_ledger ledger;
    nib_text text;
    nib__ledger_init(&ledger, &allocator);
    nib__text_init(&text, &allocator);
    nib__ledger_add_setting(NULL, &(nib_ledger_setting){.code = "tie"}, "nobody keeps it");
    add_three(&ledger);
    nib__ledger_render_settings(&ledger, NIB_SETTING_EQUIVALENT, &text);
    assert_string_equal(text.at,
                        "equivalent: training.compile true (option): kernels are compiled already\n"
                        "without effect: mood, weather 3 (config): config.json has this key, and "
                        "Nibble does not read it\n"
                        "not as asked: tie_word_embeddings true (config): a head is stored\n");
    nib_text all;
    nib__text_init(&all, &allocator);
    nib__ledger_render(&ledger, false, &all);
    assert_int_equal(all.at[0], '\n'); /* settings begin a paragraph */
    assert_string_equal(all.at + 1, text.at);
    nib__text_free(&all);
    nib__text_clear(&text);
    nib__ledger_render_settings(&ledger, NIB_SETTING_NONE, &text);
    assert_int_equal(strncmp(text.at, "without effect: mood, weather", 29), 0);
    nib__text_clear(&text);
    nib__ledger_summary(&ledger, &text);
    assert_non_null(strstr(text.at, "; 3 settings not as asked"));
    nib_ledger other;
    nib__ledger_init(&other, &allocator);
    nib__ledger_append(&other, &ledger);
    nib__ledger_free(&ledger);
    nib__text_clear(&text);
    nib_jsonw w;
    nib__jsonw_init(&w, &text, 0);
    nib__jsonw_object(&w);
    nib__ledger_json(&other, &w);
    nib__jsonw_object_end(&w);
    expect_json(&text, "{\"code\":\"tie\",\"name\":\"tie_word_embeddings\",\"asked\":\"true\","
                       "\"done\":\"false\",\"by\":\"config\",\"relation\":\"other\",\"allowed\":"
                       "false,\"text\":\"a head is stored\"}");
    expect_json(&text, "\"settings\":{\"equivalent\":1,\"narrower\":0,\"other\":1,"
                       "\"without effect\":2}");
    nib__ledger_free(&other);
    nib__text_free(&text);
}

static void strict_refuses_what_is_not_allowed(void **state)
{
    (void)state;
    static const char *const all[] = {"dequant", "config-key", "tie"};
    nib_ledger ledger;
    nib_err err;
    nib__ledger_init(&ledger, &allocator);
    assert_int_equal(nib__ledger_strict(&ledger, &err), NIB_OK);
    add_three(&ledger);
    refused(NIB_NOT_AS_ASKED, nib__ledger_strict(&ledger, &err), &err);
    nib__ledger_allow(&ledger, &(nib_strings){all, 2});
    refused(NIB_NOT_AS_ASKED, nib__ledger_strict(&ledger, &err), &err);
    nib__ledger_allow(&ledger, &(nib_strings){all, 3});
    assert_int_equal(nib__ledger_strict(&ledger, &err), NIB_OK);
    assert_true(nib__setting_code_is_known("tie") && !nib__setting_code_is_known("dequant"));
    nib__ledger_free(&ledger);
}

/* A code is explained once per kind, in order, and differs from every rung, so --allow is
 * unambiguous. */
static void codes_are_explained(void **state)
{
    (void)state;
    for (const nib_ledger_code *c = nib__ledger_codes; c->code != NULL; c++) {
        assert_true(c->kind <= c[1].kind && c->meaning[0] != 0);
        assert_true(c->kind != c[1].kind || strcmp(c->code, c[1].code) < 0);
        for (int rung = 0; c->kind == NIB_LEDGER_SETTING && rung < NIB_RUNG_COUNT; rung++)
            assert_string_not_equal(c->code, nib__rung_names[rung]);
    }
}

/* ---- out of memory ---- */

static void *failing_resize(void *ctx, void *old, size_t size)
{
    int *left = ctx;
    if (size == 0) {
        free(old);
        return NULL;
    }
    return --*left < 0 ? NULL : realloc(old, size);
}

static void a_failing_allocator_is_reported(void **state)
{
    (void)state;
    for (int n = 0; n < 12; n++) {
        int left = n;
        const nib_allocator failing = {failing_resize, &left};
        nib_ledger ledger;
        nib_text text;
        nib__ledger_init(&ledger, &failing);
        for (int i = 0; i < 2000 && !ledger.failed; i++) {
            nib_ledger_layer *layer = nib__ledger_add_layer(&ledger, "x");
            if (layer != NULL)
                nib__ledger_add_reason(&ledger, layer, "code", "text");
            assert_true(layer != NULL || ledger.failed);
            add_three(&ledger);
        }
        assert_true(ledger.failed || n > 4);
        nib__text_init(&text, &allocator);
        nib__ledger_summary(&ledger, &text);
        assert_int_equal(text.failed, ledger.failed);
        nib__text_free(&text);
        nib__ledger_free(&ledger);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_and_summary),
        cmocka_unit_test(an_empty_ledger_has_a_summary),
        cmocka_unit_test(equal_outcomes_fold),
        cmocka_unit_test(names_are_escaped),
        cmocka_unit_test(names_fold_whole_parts_only),
        cmocka_unit_test(text_wraps),
        cmocka_unit_test(json_has_the_documented_members),
        cmocka_unit_test(equal_settings_share_a_line),
        cmocka_unit_test(strict_refuses_what_is_not_allowed),
        cmocka_unit_test(codes_are_explained),
        cmocka_unit_test(a_failing_allocator_is_reported),
    };
    allocator = nib__allocator_default();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
