/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts beyond their logits (test_network.c) and bits (test_same_bits.c): quantized
 * models, plans, and what a config or a file that does not fit gets.
 */
#include "ledger_lines.h"
#include "session.h"

#include "safetensors_build.h"
#include "skipping.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

#define MODEL "tests/golden/models/qwen3_moe"

static nib_status drop(void *ctx, const char *text, size_t size)
{
    (void)ctx, (void)text, (void)size;
    return NIB_OK;
}

/* A copy of the model with `from` replaced by `to` in config.json, or unchanged. */
static const char *copy_of(char directory[256], const char *from, const char *to)
{
    static const char *const names[] = {"config.json", "model.safetensors"};
    const nib_allocator a = nib__allocator_default();
    make_directory(directory);
    for (size_t i = 0; i < COUNT(names); i++) {
        char path[300], *text;
        size_t size;
        nib_err err;
        snprintf(path, sizeof path, MODEL "/%s", names[i]);
        if (nib__file_read(&text, &size, path, 1 << 24, &a, &err) != NIB_OK)
            fail_msg("%s", err.text);
        snprintf(path, sizeof path, "%s/%s", directory, names[i]);
        char *const found = i == 0 && from != NULL ? strstr(text, from) : NULL;
        if (i == 0 && from != NULL)
            assert_non_null(found);
        if (found == NULL) {
            write_bytes(path, text, size);
        } else {
            char changed[8192];
            snprintf(changed, sizeof changed, "%.*s%s%s", (int)(found - text), text, to,
                     found + strlen(from));
            write_bytes(path, changed, strlen(changed));
        }
        nib__release(&a, text);
    }
    return directory;
}

static nib_status try_model(const char *path, nib_err *err)
{
    opened o;
    const nib_status status = try_open(&o, &(open_how){.path = path, .dtype = "f32"}, err);
    if (status == NIB_OK)
        close_opened(&o);
    return status;
}

static void refuse_config(nib_status wanted, const char *from, const char *to)
{
    char directory[256];
    nib_err err;
    refused(wanted, try_model(copy_of(directory, from, to), &err), &err);
    drop_directory(directory);
}

static void a_config_that_does_not_fit_is_refused(void **state)
{
    (void)state;
    refuse_config(NIB_BAD_INPUT, "\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 10");
    refuse_config(NIB_BAD_INPUT, "\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 0");
    refuse_config(NIB_BAD_INPUT, "\"num_experts_per_tok\": 3", "\"num_experts_per_tok\": 2.5");
    refuse_config(NIB_BAD_INPUT, "\"num_experts\": 9", "\"num_experts\": 10");
    refuse_config(NIB_BAD_INPUT, "\"num_experts\": 9", "\"num_experts\": 8");
    refuse_config(NIB_BAD_INPUT, "\"num_experts\": 9", "\"num_experts\": 2000");
    refuse_config(NIB_BAD_INPUT, "\"moe_intermediate_size\": 36", "\"moe_intermediate_size\": 40");
    refuse_config(NIB_BAD_INPUT, "\"decoder_sparse_step\": 1", "\"decoder_sparse_step\": 0");
    refuse_config(NIB_BAD_INPUT, "1\n  ],\n  \"norm_topk_prob\"", "3\n  ],\n  \"norm_topk_prob\"");
}

/* Sets two bytes of a stored tensor. */
static void damage(const char *directory, const char *tensor, int64_t at, uint16_t bits)
{
    const nib_allocator a = nib__allocator_default();
    char path[300], *text, name[128];
    size_t size;
    uint64_t header = 0, first = 0;
    nib_err err;
    snprintf(path, sizeof path, "%s/model.safetensors", directory);
    if (nib__file_read(&text, &size, path, 1 << 24, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < 8; i++)
        header |= (uint64_t)(uint8_t)text[i] << 8 * i;
    snprintf(name, sizeof name, "\"%s\"", tensor);
    const char *entry = strstr(text + 8, name);
    assert_non_null(entry);
    entry = strstr(entry, "\"data_offsets\":[");
    assert_int_equal(sscanf(entry, "\"data_offsets\":[%" SCNu64, &first), 1);
    memcpy(text + 8 + header + first + 2 * (uint64_t)at, &bits, sizeof bits);
    write_bytes(path, text, size);
    nib__release(&a, text);
}

/* The same error from a device, after the pass. */
static void refuse_on_device(const char *directory, const nib_slot slots[2], const char *text)
{
    nib_err err;
    const float *logits;
    opened o = must_open(&(open_how){.path = directory, .dtype = "f32", .device = tested_device()});
    for (size_t count = 2; count > 0; count--) {
        assert_int_equal(nib_session_step(o.session, slots, count, &logits, &err), NIB_BAD_INPUT);
        assert_string_equal(err.text, text);
        assert_int_equal(nib_session_length(o.session, 0), 0);
    }
    close_opened(&o);
}

/* A stored NaN is refused at load. Weights so large that a logit overflows: an error of the step,
 * and the sequence is as before. */
static void a_router_that_is_not_finite_is_an_error(void **state)
{
    char directory[256];
    nib_err err;
    (void)state;
    copy_of(directory, NULL, NULL);
    damage(directory, "model.layers.2.mlp.gate.weight", 4 * 64 + 7, 0x7fc0);
    refused(NIB_BAD_INPUT, try_model(directory, &err), &err);
    for (int64_t i = 0; i < 64; i++)
        damage(directory, "model.layers.2.mlp.gate.weight", 4 * 64 + i, 0x7f7f);
    opened o = must_open(&(open_how){.path = directory, .dtype = "f32", .threads = 2});
    const nib_slot slots[] = {{0, 0, 5, 0}, {0, 1, 6, NIB_SLOT_LOGITS}};
    const float *logits;
    refused(NIB_BAD_INPUT, nib_session_step(o.session, slots, 2, &logits, &err), &err);
    refused(NIB_BAD_INPUT, nib_session_step(o.session, slots, 1, &logits, &err), &err);
    assert_int_equal(nib_session_length(o.session, 0), 0);
    close_opened(&o);
    if (!SANITIZED && device_is_here())
        refuse_on_device(directory, slots, err.text);
    drop_directory(directory);
}

/* Logits of a few tokens. */
static float *logits_of(const opened *o, size_t *size)
{
    const nib_slot slots[] = {
        {0, 0, 5, NIB_SLOT_LOGITS}, {0, 1, 60, NIB_SLOT_LOGITS}, {0, 2, 7, NIB_SLOT_LOGITS}};
    const float *logits;
    nib_err err;
    if (nib_session_step(o->session, slots, COUNT(slots), &logits, &err) != NIB_OK)
        fail_msg("%s", err.text);
    *size = COUNT(slots) * (size_t)nib_session_vocab(o->session) * sizeof *logits;
    float *copy = malloc(*size);
    assert_non_null(copy);
    memcpy(copy, logits, *size);
    return copy;
}

static void a_quantized_model_has_the_logits_of_quantizing_at_load(void **state)
{
    static const char *const recipes[] = {"8da4w-g32", "int4wo-g32", "int8dq",          "mxfp8",
                                          "nvfp4dq",   "fp8dq",      "8da4w-g32+router"};
    (void)state;
    for (size_t i = 0; i < COUNT(recipes); i++) {
        char directory[256], out[300];
        const nib_sink sink = {.write = drop};
        nib_err err;
        size_t size, other_size;
        snprintf(out, sizeof out, "%s/q", make_directory(directory));
        opened o = must_open(&(open_how){.path = MODEL, .recipe = recipes[i], .dtype = "f32"});
        float *const want = logits_of(&o, &size);
        const nib_quantize_options options = {.request = &(nib_request){.recipe = recipes[i]},
                                              .out = out};
        if (nib_quantize(o.model, &options, NIB_FORM_TEXT, &sink, &err) != NIB_OK)
            fail_msg("%s: %s", recipes[i], err.text);
        opened q = must_open(&(open_how){.path = out, .dtype = "f32"});
        float *const got = logits_of(&q, &other_size);
        assert_int_equal(size, other_size);
        if (memcmp(got, want, size) != 0)
            fail_msg("%s: other logits", recipes[i]);
        free(got), free(want);
        close_opened(&q), close_opened(&o);
        drop_directory(out);
        drop_directory(directory);
    }
}

/* Experts of one layer may have different schemes; --strict holds for all. */
static void experts_may_differ(void **state)
{
    static const char rules[] = "{\"schema\": 1, \"rules\": [{\"match\": \"*.experts.1.*\", "
                                "\"scheme\": \"int8dq\"}, {\"match\": "
                                "\"*.experts.2.down_proj\", \"scheme\": \"keep\"}, {\"match\": "
                                "\"*.gate_proj\", \"scheme\": "
                                "\"int4wo-g32\"}, {\"match\": \"*\", \"scheme\": \"8da4w-g32\"}]}";
    (void)state;
    opened alone = must_open(&(open_how){.path = MODEL, .recipe = rules, .isa = "ref"});
    opened many = must_open(&(open_how){.path = MODEL, .recipe = rules, .threads = 3});
    size_t size;
    float *const want = logits_of(&alone, &size), *const got = logits_of(&many, &size);
    assert_memory_equal(got, want, size);
    const nib_assignment *plan = &many.plan->assignment;
    size_t int8 = 0, kept = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const bool expert = plan->layers[i].layer->experts > 1;
        int8 += expert && plan->layers[i].done.code == NIB_CODE_I8;
        kept += expert && !nib__scheme_is_quantized(&plan->layers[i].done);
    }
    assert_int_equal(int8, 2 * 3); /* two layers have experts */
    assert_int_equal(kept, 2);
    free(got), free(want);
    close_opened(&many), close_opened(&alone);
}

static void a_plan_says_what_a_token_reads(void **state)
{
    (void)state;
    opened o = must_open(&(open_how){.path = MODEL, .recipe = "8da4w-g32"});
    const nib_ledger *ledger = &o.plan->assignment.ledger;
    const char *text = NULL;
    for (size_t i = 0; i < ledger->note_count; i++)
        if (strcmp(ledger->notes[i].code, "experts") == 0)
            text = ledger->notes[i].text;
    assert_non_null(text);
    assert_non_null(strstr(text, "a token chooses 3 of 9 experts"));
    close_opened(&o);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_config_that_does_not_fit_is_refused),
        cmocka_unit_test(a_router_that_is_not_finite_is_an_error),
        cmocka_unit_test(a_quantized_model_has_the_logits_of_quantizing_at_load),
        cmocka_unit_test(experts_may_differ),
        cmocka_unit_test(a_plan_says_what_a_token_reads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
