/* SPDX-License-Identifier: Apache-2.0
 *
 * quantization_config: what each tool's keys may be, and which modules stay floats.
 */
#include "quantization.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <cmocka.h>

#include "refused.h"

typedef struct parsed {
    nib_allocator allocator;
    nib_arena arena;
    nib_ledger ledger;
    nib_quantization *q; /* NULL if refused */
    nib_err err;
} parsed;

/* ' stands for ". */
static nib_status parse(parsed *p, const char *text)
{
    char json[4096];
    size_t size = 0;
    for (; text[size] != 0; size++) {
        assert_true(size < sizeof json);
        json[size] = text[size];
        if (text[size] == '\'')
            json[size] = '"';
    }
    *p = (parsed){.allocator = nib__allocator_default()};
    nib__arena_init(&p->arena, &p->allocator, 4 << 20);
    nib__ledger_init(&p->ledger, &p->allocator);
    return nib__quantization_parse(&p->q, "config.json", json, size, NULL, &p->arena, &p->allocator,
                                   &p->ledger, &p->err);
}

static void drop(parsed *p)
{
    nib__quantization_free(p->q);
    nib__ledger_free(&p->ledger);
    nib__arena_free(&p->arena);
}

typedef struct row {
    const char *members;
    nib_status status;
} row;

/* Members after `head`, which opens the object. */
static void check_rows(const char *head, const row *rows, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char text[1024];
        parsed p;
        snprintf(text, sizeof text, "%s%s}", head, rows[i].members);
        const nib_status got = parse(&p, text);
        if (rows[i].status != NIB_OK)
            refused(rows[i].status, got, &p.err);
        else if (got != NIB_OK)
            fail_msg("%s: %s", text, p.err.text);
        assert_true((p.q != NULL) == (got == NIB_OK));
        drop(&p);
    }
}

static void test_objects(void **state)
{
    (void)state;
    static const char *const bad[] = {"",
                                      "7",
                                      "[]",
                                      "{}7",
                                      "{'a':}",
                                      "{'quant_method':7}",
                                      "{'quant_method':'gptq'",
                                      "{'quant_method':'g\\u0070tq'}"};
    for (size_t i = 0; i < COUNT(bad); i++) {
        parsed p;
        refused(NIB_BAD_INPUT, parse(&p, bad[i]), &p.err);
        drop(&p);
    }
}

static void test_gptq(void **state)
{
    (void)state;
    static const row rows[] = {
        {"'bits':4", NIB_OK}, /* group_size: -1 */
        {"'bits':8,'group_size':1", NIB_OK},
        {"'bits':4,'group_size':1073741824", NIB_OK},
        {"'bits':4,'group_size':1073741825", NIB_BAD_INPUT},
        {"'bits':4,'group_size':0", NIB_BAD_INPUT},
        {"'bits':4,'group_size':-2", NIB_BAD_INPUT},
        {"'bits':4,'group_size':'128'", NIB_BAD_INPUT},
        {"'bits':4.0", NIB_BAD_INPUT},
        {"'bits':3", NIB_UNSUPPORTED},
        {"'bits':4,'checkpoint_format':'gptq'", NIB_OK},
        {"'bits':4,'checkpoint_format':'marlin'", NIB_UNSUPPORTED},
        {"'bits':4,'format':'gptq_v2','checkpoint_format':null", NIB_OK},
        {"'bits':4,'is_marlin_format':false", NIB_OK},
        {"'bits':4,'is_marlin_format':true", NIB_UNSUPPORTED},
        {"'bits':4,'is_marlin_format':1", NIB_BAD_INPUT},
        {"'bits':4,'pack_dtype':'int32'", NIB_OK},
        {"'bits':4,'pack_dtype':'int8'", NIB_UNSUPPORTED},
        {"'bits':4,'pack_dtype':'0123456789012345678901234567890'", NIB_UNSUPPORTED},
        {"'bits':4,'pack_dtype':'01234567890123456789012345678901'", NIB_BAD_INPUT},
        {"'bits':4,'rotation':null", NIB_OK},
        {"'bits':4,'rotation':{}", NIB_OK},
        {"'bits':4,'rotation':'hadamard'", NIB_UNSUPPORTED},
        {"'bits':4,'rotation':{'a':[1]}", NIB_UNSUPPORTED},
        {"'bits':4,'dynamic':null", NIB_OK},
        {"'bits':4,'dynamic':{'-:a':{}}", NIB_OK},
        {"'bits':4,'dynamic':{'-:a':{},'+:b':{},'c':{}}", NIB_UNSUPPORTED},
        {"'bits':4,'dynamic':{'-':{}}", NIB_UNSUPPORTED},
        {"'bits':4,'lm_head':true", NIB_OK},
        {"'bits':4,'desc_act':true,'sym':false", NIB_OK},
    };
    check_rows("{'quant_method':'gptq',", rows, COUNT(rows));
}

static void test_awq(void **state)
{
    (void)state;
    static const row rows[] = {
        {"'bits':4", NIB_OK},
        {"'w_bit':4,'q_group_size':128", NIB_OK},
        {"'bits':8", NIB_UNSUPPORTED},
        {"'bits':4,'version':'gemm'", NIB_OK},
        {"'bits':4,'version':'GEMM'", NIB_OK},
        {"'bits':4,'format':'gemm'", NIB_OK},
        {"'bits':4,'version':'gemv'", NIB_UNSUPPORTED},
    };
    check_rows("{'quant_method':'awq',", rows, COUNT(rows));
    static const char *const zeros[][2] = {
        {"{'quant_method':'awq','bits':4}", ""},
        {"{'quant_method':'awq','bits':4,'zero_point':true}", "false"},
        {"{'quant_method':'awq','bits':4,'zero_point':false}", "true"},
    };
    for (size_t i = 0; i < COUNT(zeros); i++) {
        parsed p;
        assert_int_equal(parse(&p, zeros[i][0]), NIB_OK);
        assert_string_equal(p.q->symmetric, zeros[i][1]);
        drop(&p);
    }
}

static void test_fp8(void **state)
{
    (void)state;
    static const row rows[] = {
        {"'fmt':'e4m3'", NIB_OK},
        {"'fmt':'float8_e4m3fn'", NIB_OK},
        {"'fmt':'e5m2'", NIB_UNSUPPORTED},
        {"'activation_scheme':'static'", NIB_OK},
        {"'activation_scheme':'dynamic'", NIB_OK},
        {"'activation_scheme':'none'", NIB_UNSUPPORTED},
        {"'weight_block_size':null", NIB_OK},
        {"'weight_block_size':[128,64]", NIB_OK},
        {"'weight_block_size':'128x128'", NIB_OK},
        {"'weight_block_size':'64x64'", NIB_BAD_INPUT},
        {"'weight_block_size':7", NIB_BAD_INPUT},
        {"'weight_block_size':{}", NIB_BAD_INPUT},
        {"'weight_block_size':[]", NIB_BAD_INPUT},
        {"'weight_block_size':[1]", NIB_BAD_INPUT},
        {"'weight_block_size':['1',1]", NIB_BAD_INPUT},
        {"'weight_block_size':[1.5,1]", NIB_BAD_INPUT},
        {"'weight_block_size':[1,'1']", NIB_BAD_INPUT},
        {"'weight_block_size':[1,1.5]", NIB_BAD_INPUT},
        {"'weight_block_size':[1,1,1]", NIB_BAD_INPUT},
        {"'weight_block_size':[0,128]", NIB_BAD_INPUT},
        {"'weight_block_size':[128,0]", NIB_BAD_INPUT},
        {"'weight_block_size':[-1,128]", NIB_BAD_INPUT},
        {"'weight_block_size':[1073741824,1073741824]", NIB_OK},
        {"'weight_block_size':[1073741825,1]", NIB_BAD_INPUT},
        {"'weight_block_size':[1,1073741825]", NIB_BAD_INPUT},
        {"'modules_to_not_convert':['a','re:b.*']", NIB_OK},
        {"'ignored_layers':[7]", NIB_BAD_INPUT},
    };
    check_rows("{'quant_method':'fp8',", rows, COUNT(rows));
}

#define GROUP ",'config_groups':{'a':{'targets':['Linear'],'weights':{}}}"

static void test_compressed(void **state)
{
    (void)state;
    static const row rows[] = {
        {GROUP, NIB_OK},
        {"", NIB_BAD_INPUT}, /* no config_groups */
        {",'config_groups':{}", NIB_BAD_INPUT},
        {",'config_groups':[]", NIB_BAD_INPUT},
        {GROUP GROUP, NIB_BAD_INPUT},
        {",'config_groups':{'a':[]}", NIB_BAD_INPUT},
        {",'config_groups':{'a':{'targets':'Linear'}}", NIB_BAD_INPUT},
        {",'config_groups':{'a':{'weights':7}}", NIB_BAD_INPUT},
        {",'config_groups':{'a':{'weights':{'symmetric':1}}}", NIB_BAD_INPUT},
        {",'config_groups':{'a':{'weights':{'type':[]}}}", NIB_BAD_INPUT},
        {",'config_groups':{'a':{'weights':{'dynamic':'local','observer':{},'new':1}}}", NIB_OK},
        {GROUP ",'kv_cache_scheme':null", NIB_OK},
        {GROUP ",'kv_cache_scheme':7", NIB_OK},
        {GROUP ",'sparsity_config':7", NIB_OK},
        {GROUP ",'sparsity_config':{'x':1,'format':'dense'}", NIB_OK},
        {GROUP ",'sparsity_config':{'format':'sparse'}", NIB_UNSUPPORTED},
        {GROUP ",'transform_config':7", NIB_UNSUPPORTED},
        {GROUP ",'transform_config':{'x':{'y':1},'config_groups':null}", NIB_OK},
        {GROUP ",'transform_config':{'config_groups':7}", NIB_UNSUPPORTED},
        {GROUP ",'transform_config':{'config_groups':{'a':1},'config_groups':{}}", NIB_UNSUPPORTED},
        {GROUP ",'ignore':7", NIB_BAD_INPUT},
    };
    check_rows("{'quant_method':'compressed-tensors'", rows, COUNT(rows));
    for (int count = 256; count < 258; count++) { /* config groups, up to the limit and past it */
        char text[4096] = "{'quant_method':'compressed-tensors','config_groups':{";
        parsed p;
        for (int i = 0; i < count; i++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s'%d':{}",
                     i == 0 ? "" : ",", i);
        snprintf(text + strlen(text), sizeof text - strlen(text), "}}");
        const nib_status got = parse(&p, text);
        if (count == 256)
            assert_int_equal(got, NIB_OK);
        else
            refused(NIB_BAD_INPUT, got, &p.err);
        drop(&p);
    }
}

/* A name in modules_to_not_convert keeps modules that have it as a dotted part, and the parts of a
 * fused weight of that name. */
static void test_kept(void **state)
{
    (void)state;
    static const struct {
        const char *module;
        bool kept;
    } cases[] = {
        {"model.layers.0.mlp.up_proj", true}, /* layers.0 */
        {"model.layers.01.mlp.up_proj", false},
        {"model.layers.1.self_attn.q_proj", true}, /* qkv_proj */
        {"model.layers.1.mlp.gate", true},         /* gate */
        {"model.layers.1.mlp.gate_proj", false},
        {"model.layers.1.mlp.a_gate.gate", true},
        {"gate.x", true},
        {"a_gate", false},
        {"visual.x", true},
        {"lm_head", false},
    };
    parsed p;
    assert_int_equal(parse(&p,
                           "{'quant_method':'fp8','modules_to_not_convert':['layers.0','','gate',"
                           "'model.layers.1.self_attn.qkv_proj','re:visual.*']}"),
                     NIB_OK);
    assert_false(p.q->kept_unknown);
    for (size_t i = 0; i < COUNT(cases); i++) {
        bool kept;
        assert_int_equal(nib__quantization_keeps(&kept, p.q, cases[i].module, &p.err), NIB_OK);
        if (kept != cases[i].kept)
            fail_msg("%s is%s kept", cases[i].module, kept ? "" : " not");
    }
    drop(&p);
    assert_int_equal(
        parse(&p, "{'quant_method':'gptq','bits':4,'modules_in_block_to_quantize':[['q']]}"),
        NIB_OK);
    assert_true(p.q->kept_unknown);
    drop(&p);
}

/* An expression that would be matched for hours is an error wherever it is looked up. */
static void test_costly_expressions(void **state)
{
    (void)state;
#define COSTLY "'re:(.*)(.*)(.*)(.*)(.*)b'"
    static const char *const texts[] = {
        "{'quant_method':'fp8','modules_to_not_convert':[" COSTLY "]}",
        "{'quant_method':'compressed-tensors','config_groups':{'a':{}},'ignore':[" COSTLY "]}",
        "{'quant_method':'compressed-tensors','config_groups':{'a':{'targets':[" COSTLY "]}}}",
    };
    char module[121];
    memset(module, 'a', sizeof module - 1);
    module[sizeof module - 1] = 0;
    for (size_t i = 0; i < COUNT(texts); i++) {
        parsed p;
        bool kept;
        assert_int_equal(parse(&p, texts[i]), NIB_OK);
        refused(NIB_BAD_INPUT, nib__quantization_keeps(&kept, p.q, module, &p.err), &p.err);
        drop(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_objects),
        cmocka_unit_test(test_gptq),
        cmocka_unit_test(test_awq),
        cmocka_unit_test(test_fp8),
        cmocka_unit_test(test_compressed),
        cmocka_unit_test(test_kept),
        cmocka_unit_test(test_costly_expressions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
