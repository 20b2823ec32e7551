/* SPDX-License-Identifier: Apache-2.0
 *
 * A config.json whose quantization_config says which weights have codes, planned without weights
 * (src/model/config_codes.c).
 */
#include "session_handle.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "refused.h"
#include "safetensors_build.h"

typedef struct planned {
    nib_engine *engine;
    nib_model *model;
    nib_plan *plan;
    char directory[256];
} planned;

/* Writes the config of a golden model with this quantization_config, and opens it alone. */
static nib_status open_config(planned *p, const char *family, const char *codes, nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    char path[300], config[8192], *text;
    size_t size;
    *p = (planned){0};
    snprintf(path, sizeof path, "tests/golden/models/%s/config.json", family);
    assert_int_equal(nib__file_read(&text, &size, path, 4096, &a, NULL), NIB_OK);
    snprintf(config, sizeof config, "%.*s, \"quantization_config\": %s}\n",
             (int)(strrchr(text, '}') - text), text, codes);
    nib__release(&a, text);
    make_directory(p->directory);
    write_text(p->directory, "config.json", config);
    snprintf(path, sizeof path, "%s/config.json", p->directory);
    assert_int_equal(nib_engine_open(&p->engine, NULL, NULL), NIB_OK);
    return nib_model_open(&p->model, p->engine, path, NULL, err);
}

static void close_config(planned *p)
{
    nib_plan_close(p->plan);
    nib_model_close(p->model);
    nib_engine_close(p->engine);
    drop_directory(p->directory);
}

/* The scheme asked for a layer: "mxfp4@cpu". */
static const char *asked(const planned *p, const char *name)
{
    const nib_ledger *ledger = &p->plan->assignment.ledger;
    for (size_t i = 0; i < ledger->layer_count; i++)
        if (strcmp(ledger->layers[i].name, name) == 0)
            return ledger->layers[i].asked;
    fail_msg("no layer %s", name);
    return "";
}

static void plan_config(planned *p, const char *family, const char *codes, const char *recipe)
{
    nib_err err;
    const nib_request request = {.recipe = recipe, .device = "cpu"};
    if (open_config(p, family, codes, &err) != NIB_OK ||
        nib_plan_open(&p->plan, p->model, &request, &err) != NIB_OK)
        fail_msg("%s: %s", family, err.text);
}

#define MXFP4                                                                                      \
    "{\"modules_to_not_convert\":[\"model.layers.*.self_attn\",\"model.layers.*.mlp.router\","     \
    "\"model.embed_tokens\",\"lm_head\"],\"quant_method\":\"mxfp4\"}"
#define FP8(more) "{\"fmt\":\"e4m3\",\"quant_method\":\"fp8\"" more "}"
#define L0 "model.layers.0."
#define L1 "model.layers.1."

static void test_schemes(void **state)
{
    (void)state;
    static const struct {
        const char *family, *codes, *recipe, *layer, *asked;
    } cases[] = {
        {"gpt_oss", MXFP4, NULL, L0 "mlp.experts.3.down_proj", "mxfp4@cpu"},
        {"gpt_oss", MXFP4, NULL, L0 "self_attn.q_proj", "bf16@cpu"},
        {"gpt_oss", MXFP4, NULL, L0 "mlp.gate", "bf16@cpu"},
        {"gpt_oss", MXFP4, NULL, "lm_head", "bf16@cpu"},
        {"gpt_oss", MXFP4, "int8wo", L0 "mlp.experts.3.down_proj", "int8wo@cpu"},
        {"gpt_oss", MXFP4, "int8wo", L0 "mlp.gate", "bf16@cpu"},
        {"deepseek_v3", FP8(",\"weight_block_size\":[128,128]"), NULL, L1 "mlp.experts.3.up_proj",
         "fp8wo-g128@cpu"},
        {"deepseek_v3", FP8(",\"weight_block_size\":[128,128]"), NULL, L0 "self_attn.o_proj",
         "fp8wo-g128@cpu"},
        {"deepseek_v3", FP8(",\"weight_block_size\":[128,128]"), NULL, L1 "mlp.gate", "bf16@cpu"},
        {"qwen3_moe", FP8(",\"modules_to_not_convert\":[\"model.layers.0.self_attn.q_proj\"]"),
         NULL, L0 "self_attn.q_proj", "bf16@cpu"},
        {"qwen3_moe", FP8(",\"modules_to_not_convert\":[\"model.layers.0.self_attn.q_proj\"]"),
         NULL, L0 "self_attn.k_proj", "fp8dq@cpu"},
        {"qwen3_moe", "{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":128}", NULL,
         L0 "self_attn.k_proj", "bf16@cpu"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        planned p;
        plan_config(&p, cases[i].family, cases[i].codes, cases[i].recipe);
        if (strcmp(asked(&p, cases[i].layer), cases[i].asked) != 0)
            fail_msg("%s, %s: %s, not %s", cases[i].family, cases[i].layer,
                     asked(&p, cases[i].layer), cases[i].asked);
        close_config(&p);
    }
}

/* What is not planned as the config says has a line; the rest has none. */
static void test_lines(void **state)
{
    (void)state;
    static const struct {
        const char *family, *codes, *code, *done; /* code NULL: no line */
    } cases[] = {
        {"gpt_oss", MXFP4, NULL, NULL},
        {"qwen3_moe", FP8(""), NULL, NULL},
        {"qwen3_moe", FP8(",\"activation_scheme\":\"static\""), "activations", "float activations"},
        {"qwen3_moe", FP8(",\"weight_block_size\":[128,128]"), "activations", "float activations"},
        {"qwen3_moe", FP8(",\"colour\":\"red\""), "quantization-config", NULL},
        {"qwen3_moe", "{\"quant_method\":\"bitsandbytes\"}", "quantization-config", NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        planned p;
        plan_config(&p, cases[i].family, cases[i].codes, NULL);
        const nib_ledger *notes = &p.model->net.notes;
        assert_int_equal(notes->setting_count, cases[i].code != NULL);
        if (cases[i].code != NULL)
            assert_string_equal(notes->settings[0].code, cases[i].code);
        if (cases[i].done != NULL)
            assert_string_equal(notes->settings[0].done, cases[i].done);
        close_config(&p);
    }
}

static void test_bad_input(void **state)
{
    (void)state;
    planned p;
    nib_err err;
    refused(NIB_BAD_INPUT,
            open_config(&p, "qwen3_moe", FP8(",\"weight_block_size\":[0,128]"), &err), &err);
    close_config(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_schemes),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_bad_input),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
