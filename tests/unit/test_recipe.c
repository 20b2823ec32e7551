/* SPDX-License-Identifier: Apache-2.0
 *
 * Recipes: names, rule files, filters, torchchat's and torchao's JSON against one small model;
 * every wrong key, name and pattern is refused with near names; each failing allocation is an
 * error.
 */
#include "failing.h"
#include "file.h"
#include "golden_scheme.h"
#include "json.h"
#include "ledger_lines.h"
#include "recipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "refused.h"

enum { EMBED, Q, V, DOWN, Q1, HEAD, LAYERS };

static const nib_recipe_layer untied[LAYERS] = {
    {"model.embed_tokens", NIB_ROLE_EMBED, false},
    {"model.layers.0.self_attn.q_proj", NIB_ROLE_Q, false},
    {"model.layers.0.self_attn.v_proj", NIB_ROLE_V, false},
    {"model.layers.0.mlp.down_proj", NIB_ROLE_DOWN, false},
    {"model.layers.1.self_attn.q_proj", NIB_ROLE_Q, false},
    {"lm_head", NIB_ROLE_HEAD, false},
};

static nib_recipe *load(const char *text, const nib_recipe_layer *layers, const char *skip,
                        const char *only)
{
    const nib_allocator a = nib__allocator_default();
    nib_recipe *r = NULL;
    nib_err err = {0};
    const nib_recipe_input in = {.text = text,
                                 .skip = {&skip, skip != NULL},
                                 .only = {&only, only != NULL},
                                 .layers = layers,
                                 .count = LAYERS};
    if (nib__recipe_load(&r, &in, &a, &err) != NIB_OK)
        fail_msg("%s: %s", text, err.text);
    return r;
}

/* "keep", "weight-only" or the scheme of each layer, in order, in one string. */
static void expect_of(nib_recipe *r, const nib_recipe_layer *layers, const char *text,
                      const char *want)
{
    char got[512] = "";
    for (int i = 0; i < LAYERS; i++) {
        nib_choice choice;
        char name[64];
        nib__recipe_resolve(&choice, r, &layers[i]);
        assert_non_null(choice.rule);
        strncat(got, i == 0 ? "" : " ", sizeof got - strlen(got) - 1);
        strncat(got,
                choice.weight_only ? "weight-only"
                : choice.keep      ? "keep"
                                   : nib__scheme_name(name, &choice.scheme),
                sizeof got - strlen(got) - 1);
    }
    if (strcmp(got, want) != 0)
        fail_msg("%s gives\n  %s, not\n  %s", text, got, want);
}

static void expect(const char *text, const char *want)
{
    nib_recipe *r = load(text, untied, NULL, NULL);
    expect_of(r, untied, text, want);
    nib__recipe_free(r);
}

static void expect_rule(const char *text, int layer, const char *rule)
{
    nib_choice choice;
    nib_recipe *r = load(text, untied, NULL, NULL);
    nib__recipe_resolve(&choice, r, &untied[layer]);
    assert_string_equal(choice.rule, rule);
    nib__recipe_free(r);
}

static void expect_refused(const char *text, nib_status want)
{
    const nib_allocator a = nib__allocator_default();
    nib_recipe *r = NULL;
    nib_err err = {0};
    const nib_recipe_input in = {.text = text, .layers = untied, .count = LAYERS};
    refused(want, nib__recipe_load(&r, &in, &a, &err), &err);
    assert_null(r);
}

/* A pattern that would be matched for hours is an error, in rules and in --only. */
static void test_costly_patterns(void **state)
{
    (void)state;
    char name[121];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    const nib_recipe_layer layers[] = {{name, NIB_ROLE_Q, false}};
    const char *const only = "re:(.*)(.*)(.*)(.*)(.*)b";
    const nib_allocator a = nib__allocator_default();
    nib_recipe *r = NULL;
    nib_err err = {0};
    const nib_recipe_input rules = {
        .text = "{\"rules\":[{\"match\":\"re:(.*)(.*)(.*)(.*)(.*)b\",\"scheme\":\"keep\"}]}",
        .layers = layers,
        .count = 1};
    refused(NIB_BAD_INPUT, nib__recipe_load(&r, &rules, &a, &err), &err);
    err = (nib_err){0};
    const nib_recipe_input option = {
        .text = "int8wo", .only = {&only, 1}, .layers = layers, .count = 1};
    refused(NIB_BAD_INPUT, nib__recipe_load(&r, &option, &a, &err), &err);
    assert_int_equal(nib__recipe_load(&r, &rules, &a, NULL), NIB_BAD_INPUT);
    assert_int_equal(nib__recipe_load(&r, &option, &a, NULL), NIB_BAD_INPUT);
}

static void test_names(void **state)
{
    (void)state;
    expect("8da4w", "keep 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32");
    expect("8da4w-g64+head", "keep 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64");
    expect("8da4w+head-int8wo", "keep 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32 int8wo");
    expect("8da4w+embed", "int4wo-g32-sym 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32");
    nib_choice choice; /* no activations, so no setting of theirs */
    nib_recipe *r = load("8da4w-actsym+embed", untied, NULL, NULL);
    nib__recipe_resolve(&choice, r, &untied[EMBED]);
    assert_int_equal(choice.scheme.act, NIB_ACT_FLOAT);
    assert_false(choice.scheme.act_symmetric);
    nib__recipe_free(r);
    expect("int8dq+embed-int4wo-g64+head-fp8wo-tensor",
           "int4wo-g64 int8dq int8dq int8dq int8dq fp8wo-tensor");
    expect("fp8dq+embed", "fp8wo fp8dq fp8dq fp8dq fp8dq fp8dq");
    expect("mxfp8", "keep mxfp8 mxfp8 mxfp8 mxfp8 keep");
    expect("mxfp8+head", "keep mxfp8 mxfp8 mxfp8 mxfp8 mxfp8");
    expect("mxfp8+embed", "mxfp8 mxfp8 mxfp8 mxfp8 mxfp8 keep");
    expect("bf16", "keep bf16 bf16 bf16 bf16 bf16");
    expect("weight-only",
           "weight-only weight-only weight-only weight-only weight-only weight-only");
    expect("{\"rules\": [{\"match\": \"*.mlp.*\", \"scheme\": \"weight-only\"}]}",
           "keep keep keep weight-only keep keep");
    expect("{\"rules\": [], \"else\": \"weight-only\"}",
           "weight-only weight-only weight-only weight-only weight-only weight-only");
    expect_rule("mxfp8", HEAD, "mxfp8 keeps the output layer");
    expect_rule("8da4w", EMBED, "the embedding is kept without +embed");
    expect_rule("8da4w", Q, "recipe");
    expect_rule("8da4w+head", HEAD, "+head");
    expect_refused("8da4w+hed", NIB_USAGE);
    expect_refused("8da4w+head+head", NIB_USAGE);
    expect_refused("8da4w+", NIB_USAGE);
    expect_refused("8da4w+head-8da4x", NIB_USAGE);
    expect_refused("8da5w", NIB_USAGE);
    expect_refused("", NIB_USAGE);
}

static void test_tied(void **state)
{
    (void)state;
    nib_recipe_layer tied[LAYERS];
    memcpy(tied, untied, sizeof tied);
    tied[EMBED].tied = tied[HEAD].tied = true;
    nib_recipe *r = load("int8wo", tied, NULL, NULL);
    expect_of(r, tied, "tied", "keep int8wo int8wo int8wo int8wo keep");
    nib_choice choice;
    nib__recipe_resolve(&choice, r, &tied[HEAD]);
    assert_string_equal(choice.rule, "a tied output is kept without +head");
    nib__recipe_free(r);
    r = load("int8wo+head", tied, NULL, NULL);
    expect_of(r, tied, "tied+head", "keep int8wo int8wo int8wo int8wo int8wo");
    nib__recipe_free(r);
    /* A pattern that matches everything selects neither; one for the output alone selects it. */
    r = load("{\"rules\":[{\"match\":\"re:lm_.*\",\"scheme\":\"int8wo\"},{\"match\":\"*\","
             "\"scheme\":\"8da4w\"}]}",
             tied, NULL, NULL);
    expect_of(r, tied, "tied rules", "keep 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32 int8wo");
    nib__recipe_free(r);
}

static void test_as_stored(void **state)
{
    (void)state;
    nib_recipe *r = load(NULL, untied, NULL, NULL);
    expect_of(r, untied, "none", "keep keep keep keep keep keep");
    assert_string_equal(nib__recipe_text(r), "as stored");
    assert_null(nib__recipe_dtype(r));
    assert_null(nib__recipe_device(r));
    assert_false(nib__recipe_needs_calibration(r));
    nib__recipe_free(r);
    r = load("8da4w-static", untied, NULL, NULL);
    assert_true(nib__recipe_needs_calibration(r));
    nib__recipe_free(r);
    nib__recipe_free(NULL);
}

static void test_skip_and_only(void **state)
{
    (void)state;
    static const struct {
        const char *skip, *only, *want;
    } cases[] = {
        {"lm_head", NULL, "keep int8wo int8wo int8wo int8wo keep"},
        {"lm_head.weight", NULL, "keep int8wo int8wo int8wo int8wo keep"},
        {"output", NULL, "keep int8wo int8wo int8wo int8wo keep"},
        {"layers.0.attention.wq", NULL, "keep keep int8wo int8wo int8wo int8wo"},
        {"layers.*.attention.*", NULL, "keep keep keep int8wo keep int8wo"},
        {"*.layers.0.*", NULL, "keep keep keep keep int8wo int8wo"},
        {"re:.*_proj", NULL, "keep keep keep keep keep int8wo"},
        {NULL, "*q_proj", "keep int8wo keep keep int8wo keep"},
        {"model.layers.1.*", "*q_proj", "keep int8wo keep keep keep keep"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_recipe *r = load("int8wo", untied, cases[i].skip, cases[i].only);
        expect_of(r, untied, cases[i].skip == NULL ? "only" : cases[i].skip, cases[i].want);
        nib__recipe_free(r);
    }
    nib_recipe *r = load("int8wo", untied, "lm_head", "*q_proj");
    nib_choice choice;
    nib__recipe_resolve(&choice, r, &untied[HEAD]);
    assert_string_equal(choice.rule, "--skip lm_head");
    nib__recipe_resolve(&choice, r, &untied[V]);
    assert_string_equal(choice.rule, "not named by --only");
    nib__recipe_free(r);
}

static void test_patterns_that_match_nothing(void **state)
{
    (void)state;
    static const struct {
        const char *text, *skip, *only;
    } cases[] = {
        {"int8wo", "lm_haed", NULL},
        {"int8wo", NULL, "q_prj"},
        {"int8wo", "layers.0.attention.wk", NULL},
        {"int8wo", NULL, "*layernorm*"},
        {"int8wo", "zzz*", NULL}, /* no name is near */
        {"{\"recipe\":\"int8wo\",\"filter_fqns\":[\"experts\"]}", NULL, NULL},
        {"{\"rules\":[{\"match\":\"model.layers.9.*\",\"scheme\":\"int8wo\"}]}", NULL, NULL},
    };
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_recipe *r = NULL;
        nib_err err = {0};
        const nib_recipe_input in = {.text = cases[i].text,
                                     .skip = {&cases[i].skip, cases[i].skip != NULL},
                                     .only = {&cases[i].only, cases[i].only != NULL},
                                     .layers = untied,
                                     .count = LAYERS};
        refused(NIB_USAGE, nib__recipe_load(&r, &in, &a, &err), &err);
    }
}

static void test_rules(void **state)
{
    (void)state;
    expect("{\"schema\":1,\"rules\":[{\"match\":\"*.0.*\",\"scheme\":\"8da4w\"},"
           "{\"match\":\"lm_head\",\"scheme\":\"keep\"},{\"match\":\"*\",\"scheme\":\"int8wo\"}],"
           "\"else\":\"keep\"}",
           "keep 8da4w-g32 8da4w-g32 8da4w-g32 int8wo keep");
    expect("{\"else\":\"fp8wo\",\"rules\":[{\"scheme\":\"keep\",\"match\":\"re:.*v_proj\"}]}",
           "keep fp8wo keep fp8wo fp8wo fp8wo");
    expect("{\"rules\":[{\"match\":\"model.embed_tokens\",\"scheme\":\"8da4w\"}]}",
           "int4wo-g32-sym keep keep keep keep keep");
    expect("{\"rules\":[],\"else\":\"int8wo\",\"skip\":[\"*.v_proj\"],\"only\":[\"*_proj\"]}",
           "keep int8wo keep int8wo int8wo keep");
    expect_rule("{\"rules\":[{\"match\":\"*.0.*\",\"scheme\":\"8da4w\"}]}", Q,
                "rules[0] \"*.0.*\"");
    nib_recipe *r = load("{\"rules\":[{\"match\":\"*\",\"scheme\":\"8da4w\",\"layout\":"
                         "\"CutlassInt4PackedLayout\"}]}",
                         untied, NULL, NULL);
    nib_choice choice;
    nib__recipe_resolve(&choice, r, &untied[Q]);
    assert_int_equal(choice.hint, NIB_HINT_CUTLASS_INT4);
    assert_string_equal(choice.hint_text, "CutlassInt4PackedLayout");
    nib__recipe_free(r);
}

static void test_rules_refused(void **state)
{
    (void)state;
    expect_refused("{\"rules\":[{\"match\":\"*\",\"scheme\":\"int9\"}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[{\"match\":\"*\",\"scheme\":\"mxfp4-g32\"}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[{\"match\":\"*\"}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[{\"scheme\":\"keep\"}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[{\"mach\":\"*\",\"scheme\":\"keep\"}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[{\"match\":\"a\",\"match\":\"b\"}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[3]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[{\"match\":\"a\",\"\\ud800\":1}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[],\"\\ud800\":1}", NIB_BAD_INPUT);
    expect_refused("{\"\":{},\"\":{}}", NIB_BAD_INPUT);
    expect_refused("{\"recipe\":\"int9\"}", NIB_BAD_INPUT);
    expect_refused("{\"mx\":{\"mx\":{\"mx\":{\"mx\":{\"mx\":{\"recipe\":\"int8wo\"}}}}}}",
                   NIB_BAD_INPUT);
    expect_refused("{\"mx\":{},\"float8\":{}}", NIB_BAD_INPUT); /* two sections */
    expect_refused("{\"mx\":3}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":{}}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[],\"rules\":[]}", NIB_BAD_INPUT);
    expect_refused("{\"ruels\":[],\"else\":\"keep\"}", NIB_BAD_INPUT);
    /* text from a file must not control a terminal */
    expect_refused("{\"rules\":[],\"\\u001b[2J\\u009b2J\":1}", NIB_BAD_INPUT);
    expect_refused("{\"schema\":2,\"rules\":[]}", NIB_UNSUPPORTED);
    expect_refused("{\"schema\":1}", NIB_BAD_INPUT);
    expect_refused("{\"recipe\":\"int8wo\",\"else\":\"keep\"}", NIB_BAD_INPUT); /* two forms */
    expect_refused("{\"rules\":[{\"match\":\"re:(\",\"scheme\":\"keep\"}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[{\"match\":\"\",\"scheme\":\"keep\"}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[{\"match\":\"a\\u0000b\",\"scheme\":\"keep\"}]}", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[]", NIB_BAD_INPUT);
    expect_refused("{\"rules\":[]} x", NIB_BAD_INPUT);
    expect_refused("[1]", NIB_BAD_INPUT);
    expect_refused("{}", NIB_BAD_INPUT);
    expect_refused("{\"model\":{},\"training\":{}}", NIB_BAD_INPUT);
    expect_refused("./no/such/file.json", NIB_IO);
    expect_refused("nosuchfile.json", NIB_IO);
    expect_refused("nosuch.jso", NIB_USAGE);
}

static void test_torchtitan(void **state)
{
    (void)state;
    expect("{\"mx\":{\"recipe_name\":\"mxfp8_cublas_rceil\",\"filter_fqns\":[\"output\"]}}",
           "keep mxfp8 mxfp8 mxfp8 mxfp8 keep");
    expect("{\"mx\":{\"recipe_name\":\"mxfp8\",\"filter_fqns\":[]}}",
           "keep mxfp8-floor mxfp8-floor mxfp8-floor mxfp8-floor mxfp8-floor");
    expect("{\"mx\":{\"recipe_name\":\"mxfp8_rceil\"}}", "keep mxfp8 mxfp8 mxfp8 mxfp8 keep");
    expect("{\"recipe_name\":\"rowwise\",\"fqns\":[\"wq\"]}", "keep fp8dq keep keep fp8dq keep");
    expect("{\"float8\":{\"recipe_name\":\"rowwise\",\"emulate\":true,\"filter_fqns\":[\"layers.0."
           "\",\"wv\"]}}",
           "keep keep keep keep fp8dq fp8dq");
    expect("{\"model\":{\"name\":\"llama3\"},\"quantize\":{\"linear\":{\"mx\":{\"recipe_name\":"
           "\"mxfp8_rceil\",\"fqns\":[\"attention\",\"feed_forward\"]}}}}",
           "keep mxfp8 mxfp8 mxfp8 mxfp8 keep");
    expect("{\"quantize\":{\"recipe\":\"mxfp8+head\",\"filter_fqns\":[\"self_attn\"]}}",
           "keep keep keep mxfp8 keep mxfp8");
    expect_rule("{\"recipe\":\"int8wo\",\"filter_fqns\":[\"output\"]}", HEAD,
                "filter_fqns \"output\"");
    nib_recipe *r =
        load("{\"float8\":{\"recipe_name\":\"rowwise\",\"emulate\":true}}", untied, NULL, NULL);
    assert_int_equal(count_settings(nib__recipe_ledger(r), "recipe", "emulate (recipe): "), 1);
    nib__recipe_free(r);
    expect_refused("{\"mx\":{\"recipe_name\":\"mxfp9\"}}", NIB_BAD_INPUT);
    /* a token's result would depend on its batch */
    expect_refused("{\"float8\":{\"recipe_name\":\"tensorwise\"}}", NIB_UNSUPPORTED);
    expect_refused("{\"float8\":{\"recipe_name\":\"rowwise_with_gw_hp\"}}", NIB_UNSUPPORTED);
    /* which layers that filters was measured on an H100 */
    expect_refused("{\"recipe_name\":\"rowwise\",\"filter_fqns\":[\"auto_filter_small_kn\"]}",
                   NIB_UNSUPPORTED);
    /* it would match every layer */
    expect_refused("{\"recipe_name\":\"rowwise\",\"filter_fqns\":[\"\"]}", NIB_BAD_INPUT);
    /* a key of torchtitan's recipes only */
    expect_refused("{\"recipe\":\"int8wo\",\"fqns\":[\"wq\"]}", NIB_BAD_INPUT);
    /* a name that exists but is not a linear layer's */
    expect_refused("{\"recipe_name\":\"mxfp8\",\"fqns\":[\"embed_tokens\"]}", NIB_USAGE);
}

static void test_torchchat(void **state)
{
    (void)state;
    expect(
        "{\"executor\":{\"accelerator\":\"cuda\"},\"precision\":{\"dtype\":\"bf16\"},"
        "\"linear:int4\":{\"groupsize\":256}}",
        "keep int4wo-g256-tinygemm int4wo-g256-tinygemm int4wo-g256-tinygemm int4wo-g256-tinygemm "
        "int4wo-g256-tinygemm");
    expect(
        "{\"embedding\":{\"bitwidth\":4,\"groupsize\":32},\"linear:a8w4dq\":{\"groupsize\":256}}",
        "int4wo-g32-sym 8da4w-g256 8da4w-g256 8da4w-g256 8da4w-g256 8da4w-g256");
    expect("{\"linear:int8\":{\"bitwidth\":8,\"groupsize\":0}}",
           "keep int8wo int8wo int8wo int8wo int8wo");
    expect("{\"linear:int8\":{\"bitwidth\":4,\"groupsize\":64}}",
           "keep int4wo-g64-sym int4wo-g64-sym int4wo-g64-sym int4wo-g64-sym int4wo-g64-sym");
    expect("{\"linear:int8\":{\"node_type\":\"output\",\"groupsize\":null},\"linear:a8w4dq\":{"
           "\"groupsize\":32}}",
           "keep 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32 int8wo");
    expect("{\"linear:int8\":{\"node_type\":\"!output\"}}",
           "keep int8wo int8wo int8wo int8wo keep");
    expect("{\"linear:a8wxdq\":{\"bitwidth\":4,\"groupsize\":-1,\"has_weight_zeros\":true},"
           "\"embedding:wx\":{\"bitwidth\":8,\"groupsize\":64}}",
           "int8wo-g64-asym 8da4w-row-asym 8da4w-row-asym 8da4w-row-asym 8da4w-row-asym "
           "8da4w-row-asym");
    expect("{\"linear:a8wxdq\":{\"bitwidth\":8,\"groupsize\":-1}}",
           "keep int8dq-actasym int8dq-actasym int8dq-actasym int8dq-actasym int8dq-actasym");
    expect("{\"linear:afpwx\":{\"bitwidth\":4,\"groupsize\":64}}",
           "keep int4wo-g64 int4wo-g64 int4wo-g64 int4wo-g64 int4wo-g64");
    expect("{\"embedding:wx\":{\"bitwidth\":4,\"groupsize\":32}}",
           "int4wo-g32-intzero keep keep keep keep keep");
    expect("{\"embedding:wx\":{\"bitwidth\":4,\"groupsize\":32,\"has_weight_zeros\":false}}",
           "int4wo-g32-sym keep keep keep keep keep");
    expect("{\"embedding:wx\":{\"bitwidth\":8,\"groupsize\":32,\"has_weight_zeros\":false}}",
           "int8wo-g32 keep keep keep keep keep");
    expect("{\"linear:a8wxdq\":{\"bitwidth\":4,\"groupsize\":32}}",
           "keep 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32");
    expect("{\"executor\":{\"accelerator\":\"fast\"},\"precision\":{\"dtype\":\"fast16\"}}",
           "keep keep keep keep keep keep");
    nib_recipe *r =
        load("{\"executor\":{\"accelerator\":\"mps\"},\"precision\":{\"dtype\":\"fp16\"}}", untied,
             NULL, NULL);
    assert_string_equal(nib__recipe_device(r), "mps");
    assert_int_equal(nib__recipe_ledger(r)->setting_count, 0);
    assert_string_equal(nib__recipe_dtype(r), "f16");
    nib__recipe_free(r);
    r = load("{\"linear:afpwx\":{\"bitwidth\":4,\"groupsize\":64}}", untied, NULL, NULL);
    assert_int_equal(count_settings(nib__recipe_ledger(r), "zero-point",
                                    "linear:afpwx integer zero points (recipe): "),
                     1);
    nib__recipe_free(r);
}

static void test_torchchat_refused(void **state)
{
    (void)state;
    expect_refused("{\"linear:int5\":{}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:hqq\":{}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:int4\":{\"groupsze\":32}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:int4\":{\"bitwidth\":4}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:int4\":{}}", NIB_BAD_INPUT); /* no groupsize */
    expect_refused("{\"linear:a8wxdq\":{\"groupsize\":32}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:a8wxdq\":{\"bitwidth\":3}}", NIB_UNSUPPORTED);
    expect_refused("{\"linear:a8wxdq\":{\"bitwidth\":8,\"has_weight_zeros\":true}}",
                   NIB_UNSUPPORTED);
    expect_refused("{\"linear:int8\":{\"groupsize\":\"32\"}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:int8\":{\"groupsize\":1.5}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:int8\":{\"node_type\":1}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:a8wxdq\":{\"bitwidth\":4,\"has_weight_zeros\":1}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:afpwx\":{\"bitwidth\":8}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:int4\":{\"\\ud800\":1}}", NIB_BAD_INPUT);
    expect_refused("{\"embedding\":{},\"\\ud800\":1}", NIB_BAD_INPUT);
    expect_refused("{\"executor\":{}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:int8\":{\"groupsize\":99999999999}}", NIB_BAD_INPUT);
    expect_refused("{\"linear:int8\":{\"node_type\":\"head\"}}", NIB_BAD_INPUT);
    expect_refused("{\"precision\":{\"dtype\":\"bf8\"}}", NIB_BAD_INPUT);
    expect_refused("{\"precision\":{}}", NIB_BAD_INPUT);
    expect_refused("{\"embedding\":{},\"embedding\":{}}", NIB_BAD_INPUT);
    expect_refused("{\"embedding\":3}", NIB_BAD_INPUT);
}

#define DTYPE(name) "{\"_type\":\"torch.dtype\",\"_data\":\"" name "\"}"
#define GROUP(n) "{\"_type\":\"PerGroup\",\"_version\":1,\"_data\":{\"group_size\":" n "}}"
#define ENUMERATOR(type, name) "{\"_type\":\"" type "\",\"_data\":\"" name "\"}"
#define CONFIG(type, version, data)                                                                \
    "{\"_type\":\"" type "\",\"_version\":" version ",\"_data\":{" data "}}"
#define EIGHT_DA_FOUR(extra)                                                                       \
    CONFIG("Int8DynamicActivationIntxWeightConfig", "2",                                           \
           "\"weight_dtype\":" DTYPE("int4") ",\"weight_granularity\":" GROUP("64") extra)

static void test_torchao(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {CONFIG("Int8WeightOnlyConfig", "2", "\"group_size\":null"), "int8wo"},
        {CONFIG("Int8WeightOnlyConfig", "2",
                "\"granularity\":{\"_type\":\"PerTensor\",\"_data\":{}}"),
         "int8wo-tensor"},
        {CONFIG("Int8WeightOnlyConfig", "1", "\"group_size\":64"), "int8wo-g64"},
        {CONFIG("Int8DynamicActivationInt8WeightConfig", "2",
                "\"act_mapping_type\":" ENUMERATOR("MappingType", "ASYMMETRIC")),
         "int8dq-actasym"},
        {CONFIG("Int8StaticActivationInt8WeightConfig", "1", ""), "int8dq-static"},
        {EIGHT_DA_FOUR(""), "8da4w-g64"},
        {EIGHT_DA_FOUR(",\"weight_mapping_type\":" ENUMERATOR("MappingType", "ASYMMETRIC")),
         "8da4w-g64-asym"},
        {CONFIG("Int8DynamicActivationIntxWeightConfig", "2",
                "\"weight_dtype\":" DTYPE(
                    "int8") ",\"weight_granularity\":{\"_type\":\"PerAxis\",\"_data\":"
                            "{\"axis\":0}}"),
         "int8dq-actasym"},
        {CONFIG("Int8DynamicActivationInt4WeightConfig", "1", "\"group_size\":128"), "8da4w-g128"},
        {CONFIG("Int8DynamicActivationInt4WeightConfig", "1", "\"group_size\":null"), "8da4w-row"},
        {CONFIG("Int4DynamicActivationInt4WeightConfig", "1", ""), "4da4w-row-actsym"},
        {CONFIG("Int4WeightOnlyConfig", "2",
                "\"int4_packing_format\":" ENUMERATOR("Int4PackingFormat", "PLAIN")),
         "int4wo-g128"},
        {CONFIG("Int4WeightOnlyConfig", "2",
                "\"group_size\":32,\"int4_packing_format\":" ENUMERATOR("Int4PackingFormat",
                                                                        "TILE_PACKED_TO_4D")),
         "int4wo-g32-tinygemm"},
        {CONFIG("Int4WeightOnlyConfig", "1", "\"group_size\":64"), "int4wo-g64-tinygemm"},
        {CONFIG("IntxWeightOnlyConfig", "2",
                "\"weight_dtype\":" DTYPE("int4") ",\"granularity\":" GROUP("32")),
         "int4wo-g32-sym"},
        {CONFIG("IntxWeightOnlyConfig", "2",
                "\"weight_dtype\":" DTYPE("int4") ",\"granularity\":" GROUP(
                    "32") ",\"mapping_type\":" ENUMERATOR("MappingType", "ASYMMETRIC")),
         "int4wo-g32-intzero"},
        {CONFIG("IntxWeightOnlyConfig", "2",
                "\"mapping_type\":" ENUMERATOR("MappingType", "ASYMMETRIC")),
         "int8wo-asym"},
        {CONFIG("IntxWeightOnlyConfig", "2", ""), "int8wo"},
        {CONFIG("Float8WeightOnlyConfig", "2", "\"weight_dtype\":" DTYPE("float8_e4m3fn")),
         "fp8wo"},
        {CONFIG("Float8DynamicActivationFloat8WeightConfig", "2",
                "\"granularity\":[{\"_type\":\"PerRow\",\"_data\":{\"dim\":-1}},{\"_type\":"
                "\"PerRow\",\"_data\":"
                "{\"dim\":-1}}],\"mm_config\":{\"_type\":\"Float8MMConfig\",\"_data\":{\"emulate\":"
                "false,"
                "\"use_fast_accum\":true}},\"activation_value_lb\":null"),
         "fp8dq"},
        {CONFIG("Float8DynamicActivationFloat8WeightConfig", "2", ""), "fp8dq-tensor"},
        {CONFIG("MXDynamicActivationMXWeightConfig", "1",
                "\"block_size\":32,\"scaling_mode\":" ENUMERATOR("ScaleCalculationMode", "FLOOR")),
         "mxfp8-floor"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        char want[512];
        const char *s = cases[i][1];
        snprintf(want, sizeof want, "keep %s %s %s %s %s", s, s, s, s, s);
        expect(cases[i][0], want);
    }
}

/* The configs that torchao writes, with the scheme names that they mean. */
static void test_torchao_golden(void **state)
{
    (void)state;
    static char line[1 << 13];
    int count = 0;
    FILE *file = fopen("tests/golden/torchao_configs.txt", "r");
    assert_non_null(file);
    while (fgets(line, sizeof line, file) != NULL) {
        char *tab = strchr(line, '\t');
        if (line[0] == '#' || tab == NULL)
            continue;
        *tab = 0;
        char want[512], name[64];
        nib_choice choice;
        snprintf(name, sizeof name, "%.*s", (int)strcspn(line, ":"), line);
        snprintf(want, sizeof want, "keep %s %s %s %s %s", name, name, name, name, name);
        expect(tab + 1, want);
        nib_recipe *r = load(tab + 1, untied, NULL, NULL);
        nib__recipe_resolve(&choice, r, &untied[Q]);
        assert_int_equal(choice.scale_type, golden_scales(line));
        nib__recipe_free(r);
        count++;
    }
    fclose(file);
    assert_true(count > 10);
}

static void test_torchao_layouts(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        nib_layout_hint hint;
        const char *said;
    } cases[] = {
        {EIGHT_DA_FOUR(
             ",\"intx_packing_format\":" ENUMERATOR("IntxPackingFormat", "UNPACKED_TO_INT8")),
         NIB_HINT_NONE, NULL},
        {EIGHT_DA_FOUR(
             ",\"intx_packing_format\":" ENUMERATOR("IntxPackingFormat", "OPAQUE_TORCHAO_AUTO")),
         NIB_HINT_OPAQUE, "OPAQUE_TORCHAO_AUTO"},
        {CONFIG(
             "Int8DynamicActivationInt4WeightConfig", "1",
             "\"group_size\":null,\"layout\":{\"_type\":\"CutlassInt4PackedLayout\",\"_data\":{}}"),
         NIB_HINT_CUTLASS_INT4, "CutlassInt4PackedLayout"},
        {CONFIG("Int8DynamicActivationInt4WeightConfig", "1",
                "\"layout\":{\"_type\":\"PlainLayout\",\"_data\":{}}"),
         NIB_HINT_NONE, NULL},
        {CONFIG("Int8DynamicActivationInt4WeightConfig", "1",
                "\"layout\":{\"_type\":\"MarlinQQQLayout\",\"_data\":{}}"),
         NIB_HINT_MARLIN, "MarlinQQQLayout"},
        {CONFIG("Int4WeightOnlyConfig", "1",
                "\"layout\":{\"_type\":\"TensorCoreTiledLayout\",\"_data\":{\"inner_k_tiles\":8}}"),
         NIB_HINT_TILE_PACKED, "TensorCoreTiledLayout"},
        {CONFIG("Int4WeightOnlyConfig", "2",
                "\"int4_packing_format\":" ENUMERATOR("Int4PackingFormat", "PRESHUFFLED")),
         NIB_HINT_OTHER, "PRESHUFFLED"},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_choice choice;
        nib_recipe *r = load(cases[i].text, untied, NULL, NULL);
        nib__recipe_resolve(&choice, r, &untied[Q]);
        assert_int_equal(choice.hint, cases[i].hint);
        if (cases[i].said == NULL)
            assert_null(choice.hint_text);
        else
            assert_string_equal(choice.hint_text, cases[i].said);
        nib__recipe_free(r);
    }
}

#define HF(extra)                                                                                  \
    "{\"quant_method\":\"torchao\",\"quant_type\":{\"default\":" EIGHT_DA_FOUR("") "}" extra "}"

static void test_hugging_face(void **state)
{
    (void)state;
    expect(HF(""), "keep 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64 keep");
    expect(HF(",\"modules_to_not_convert\":null"),
           "keep 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64 keep");
    expect(HF(",\"modules_to_not_convert\":[]"),
           "keep 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64");
    expect(HF(",\"modules_to_not_convert\":[\"model.layers.0\",\"lm_head\"]"),
           "keep keep keep keep 8da4w-g64 keep");
    expect(HF(",\"modules_to_not_convert\":[\"v_proj\"]"),
           "keep 8da4w-g64 keep 8da4w-g64 8da4w-g64 8da4w-g64");
    expect(HF(",\"modules_to_not_convert\":[\"model.layers.*q_proj\"]"),
           "keep keep 8da4w-g64 8da4w-g64 keep 8da4w-g64");
    expect(HF(",\"include_input_output_embeddings\":true"),
           "int4wo-g64-sym 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64");
    expect("{\"model_type\":\"llama\",\"vocab_size\":9,\"quantization_config\":" HF("") "}",
           "keep 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64 keep");
    /* an older form of transformers: a function's name and its arguments */
    expect(
        "{\"quant_method\":\"torchao\",\"quant_type\":\"int4_weight_only\",\"quant_type_kwargs\":"
        "{\"group_size\":64}}",
        "keep int4wo-g64-tinygemm int4wo-g64-tinygemm int4wo-g64-tinygemm int4wo-g64-tinygemm "
        "keep");
    expect("{\"quant_type\":\"int8_dynamic_activation_int4_weight\",\"modules_to_not_convert\":[]}",
           "keep 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32 8da4w-g32");
    expect("{\"quant_type\":\"int8_weight_only\",\"quant_type_kwargs\":null}",
           "keep int8wo int8wo int8wo int8wo keep");
    nib_recipe *r = load(HF(",\"modules_to_not_convert\":[\"visual\"]"), untied, NULL, NULL);
    assert_int_equal(nib__recipe_ledger(r)->setting_count, 1);
    assert_int_equal(
        count_settings(nib__recipe_ledger(r), "filter", "modules_to_not_convert \"visual\""), 1);
    nib__recipe_free(r);
    r = load(
        HF(",\"modules_to_not_convert\":[\"lm_head\"],\"include_input_output_embeddings\":true,"
           "\"untie_embedding_weights\":false,\"ne\\u001bw\":1"),
        untied, NULL, NULL);
    assert_int_equal(nib__recipe_ledger(r)->setting_count, 1);
    assert_int_equal(count_settings(nib__recipe_ledger(r), "recipe", "ne\\u001bw (recipe): "), 1);
    nib__recipe_free(r);
    expect_refused(HF(",\"modules_to_not_convert\":\"lm_head\""), NIB_BAD_INPUT);
    expect_refused(HF(",\"include_input_output_embeddings\":1"), NIB_BAD_INPUT);
    expect_refused("{\"quant_method\":\"awq\",\"bits\":4}", NIB_UNSUPPORTED);
    expect_refused("{\"quant_method\":\"torchao\"}", NIB_BAD_INPUT);
    expect_refused("{\"quant_type\":\"autoquant\"}", NIB_UNSUPPORTED);
    expect_refused("{\"quant_type\":\"int8_weight_only\",\"quant_type_kwargs\":{\"group\":3}}",
                   NIB_BAD_INPUT);
    expect_refused("{\"quant_type\":{\"other\":null}}", NIB_BAD_INPUT);
}

#define INT8 CONFIG("Int8WeightOnlyConfig", "2", "")

static void test_fqn_precedence(void **state)
{
    (void)state;
    /* parameter name > module name > parameter regex > module regex > _default, whatever the order
     */
    expect(CONFIG("FqnToConfig", "1",
                  "\"fqn_to_config\":{\"_default\":" INT8 ",\"re:.*q_proj\":" EIGHT_DA_FOUR(
                      "") ","
                          "\"re:.*layers\\\\.1\\\\..*weight\":" CONFIG(
                              "Float8WeightOnlyConfig", "2",
                              "") ","
                                  "\"model.layers.0.self_attn.v_proj\":null,"
                                  "\"lm_head\":" CONFIG("Float8WeightOnlyConfig", "2",
                                                        "") ",\"lm_head.weight\":null}"),
           "keep 8da4w-g64 keep int8wo fp8wo keep");
    expect(CONFIG("ModuleFqnToConfig", "1",
                  "\"module_fqn_to_config\":{\"_default\":" INT8 ",\"model.embed_tokens\":" INT8
                  "}"),
           "int8wo int8wo int8wo int8wo int8wo int8wo");
    expect(CONFIG("FqnToConfig", "1", "\"fqn_to_config\":{\"re:.*down_proj\":" INT8 "}"),
           "keep keep keep int8wo keep keep");
    expect(HF(""), "keep 8da4w-g64 8da4w-g64 8da4w-g64 8da4w-g64 keep");
    expect_rule(
        CONFIG("FqnToConfig", "1", "\"fqn_to_config\":{\"_default\":" INT8 ",\"lm_head\":null}"),
        HEAD, "FqnToConfig \"lm_head\"");
    expect_rule(CONFIG("FqnToConfig", "1",
                       "\"fqn_to_config\":{\"_default\":" INT8
                       ",\"re:lm_head|\\u0007\\u007f\\u0085\":null}"),
                HEAD, "FqnToConfig \"re:lm_head|????\""); /* no control character */
    nib_recipe *r = load(CONFIG("FqnToConfig", "1",
                                "\"fqn_to_config\":{\"_default\":" INT8 ",\"re:.+norm.+\":null}"),
                         untied, NULL, NULL);
    assert_int_equal(nib__recipe_ledger(r)->setting_count, 1); /* norms are not layers */
    nib__recipe_free(r);
    r = load(CONFIG("Int4WeightOnlyConfig", "2", "\"int4_tile_packed_ntile\":16"), untied, NULL,
             NULL); /* a number is shown as one */
    assert_int_equal(nib__recipe_ledger(r)->setting_count, 1);
    assert_string_equal(nib__recipe_ledger(r)->settings[0].asked, "16");
    nib__recipe_free(r);
    expect_refused(CONFIG("FqnToConfig", "1", "\"fqn_to_config\":{\"lm_haed\":" INT8 "}"),
                   NIB_USAGE);
    expect_refused(CONFIG("FqnToConfig", "1", ""), NIB_BAD_INPUT);
    expect_refused(CONFIG("FqnToConfig", "1", "\"fqn_to_config\":{\"lm_head\":3}"), NIB_BAD_INPUT);
}

static void test_torchao_refused(void **state)
{
    (void)state;
    expect_refused(CONFIG("Int8WeightOnlyConfg", "2", ""), NIB_BAD_INPUT);
    expect_refused(CONFIG("CodebookWeightOnlyConfig", "1", ""), NIB_UNSUPPORTED);
    expect_refused(CONFIG("Int8WeightOnlyConfig", "2", "\"groupsize\":3"), NIB_BAD_INPUT);
    expect_refused(CONFIG("Int4WeightOnlyConfig", "1", "\"use_hqq\":true"), NIB_UNSUPPORTED);
    expect_refused(CONFIG("Int4WeightOnlyConfig", "2",
                          "\"int4_choose_qparams_algorithm\":" ENUMERATOR(
                              "Int4ChooseQParamsAlgorithm", "HQQ")),
                   NIB_UNSUPPORTED);
    expect_refused(EIGHT_DA_FOUR(",\"weight_mapping_type\":" ENUMERATOR(
                       "MappingType", "SYMMETRIC_NO_CLIPPING_ERR")),
                   NIB_UNSUPPORTED);
    expect_refused(EIGHT_DA_FOUR(",\"act_mapping_type\":" ENUMERATOR("MappingType", "ASYMETRIC")),
                   NIB_UNSUPPORTED);
    expect_refused(CONFIG("Int8WeightOnlyConfig", "1", "\"group_size\":32.5"), NIB_UNSUPPORTED);
    expect_refused(CONFIG("Int8WeightOnlyConfig", "1", "\"group_size\":-2"), NIB_UNSUPPORTED);
    expect_refused(CONFIG("IntxWeightOnlyConfig", "2", "\"granularity\":{\"_data\":{\"x\":1}}"),
                   NIB_BAD_INPUT); /* no type to name */
    expect_refused(CONFIG("IntxWeightOnlyConfig", "2",
                          "\"granularity\":{\"_type\":\"PerRow\",\"_data\":{\"x\":1}}"),
                   NIB_BAD_INPUT);
    expect_refused(CONFIG("IntxWeightOnlyConfig", "2",
                          "\"granularity\":{\"_type\":\"PerAxis\",\"_data\":{\"axis\":1}}"),
                   NIB_UNSUPPORTED);
    expect_refused(CONFIG("Int4WeightOnlyConfig", "1",
                          "\"zero_point_domain\":" ENUMERATOR("ZeroPointDomain", "INT")),
                   NIB_UNSUPPORTED);
    expect_refused(
        CONFIG("Int4WeightOnlyConfig", "2",
               "\"int4_packing_format\":" ENUMERATOR("Int4PackingFormat", "PLAIN_INT32")),
        NIB_UNSUPPORTED);
    expect_refused(CONFIG("Int4WeightOnlyConfig", "1",
                          "\"layout\":{\"_type\":\"MarlinSparseLayout\",\"_data\":{}}"),
                   NIB_UNSUPPORTED);
    expect_refused(CONFIG("Int4WeightOnlyConfig", "1", "\"preserve_zero\":true"), NIB_UNSUPPORTED);
    expect_refused(CONFIG("Int8StaticActivationInt8WeightConfig", "1", "\"act_quant_scale\":[0.1]"),
                   NIB_UNSUPPORTED);
    expect_refused(CONFIG("IntxWeightOnlyConfig", "2", "\"weight_dtype\":" DTYPE("int3")),
                   NIB_UNSUPPORTED);
    expect_refused(CONFIG("Int4WeightOnlyConfig", "2", "\"group_size\":9999999999"),
                   NIB_UNSUPPORTED);
    expect_refused(CONFIG("MXDynamicActivationMXWeightConfig", "1",
                          "\"weight_dtype\":" DTYPE("float4_e2m1fn_x2")),
                   NIB_UNSUPPORTED);
    expect_refused(
        CONFIG("Float8DynamicActivationFloat8WeightConfig", "2",
               "\"granularity\":[{\"_type\":\"PerBlock\",\"_data\":{}},{\"_type\":\"PerRow\",\"_"
               "data\":{}}]"),
        NIB_UNSUPPORTED);
    expect_refused("{\"_type\":\"Int8WeightOnlyConfig\"}", NIB_BAD_INPUT);
    expect_refused("{\"_data\":{}}", NIB_BAD_INPUT);
    nib_recipe *r =
        load(CONFIG("Float8DynamicActivationFloat8WeightConfig", "2", ""), untied, NULL, NULL);
    assert_int_equal(count_settings(nib__recipe_ledger(r), "activations", "PerTensor"), 1);
    nib__recipe_free(r);
    static const char *const over_blocks[] = {
        CONFIG("NVFP4DynamicActivationNVFP4WeightConfig", "1", ""), "one per batch",
        CONFIG("NVFP4DynamicActivationNVFP4WeightConfig", "1",
               "\"use_dynamic_per_tensor_scale\":false,\"step\":" ENUMERATOR("QuantizationStep",
                                                                             "CONVERT")),
        "one fixed by calibration"};
    for (size_t i = 0; i < COUNT(over_blocks); i += 2) {
        expect(over_blocks[i], "keep nvfp4dq nvfp4dq nvfp4dq nvfp4dq nvfp4dq");
        r = load(over_blocks[i], untied, NULL, NULL);
        assert_int_equal(nib__recipe_ledger(r)->setting_count, 1);
        assert_int_equal(count_settings(nib__recipe_ledger(r), "activations", over_blocks[i + 1]),
                         1);
        nib__recipe_free(r);
    }
    r = load(CONFIG("NVFP4DynamicActivationNVFP4WeightConfig", "1",
                    "\"use_dynamic_per_tensor_scale\":false,\"step\":null"),
             untied, NULL, NULL);
    assert_int_equal(nib__recipe_ledger(r)->setting_count, 0);
    nib__recipe_free(r);
}

#define INTX(extra) CONFIG("IntxWeightOnlyConfig", "2", extra)
#define INTX8_ROWS "symmetric int8 rows (recipe): they are quantized as by "

/* Scales have the type that the config requests, or else the scheme's. */
static void test_torchao_scale_types(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        nib_type type;
        const char *note; /* NULL: none */
    } cases[] = {
        {EIGHT_DA_FOUR(""), NIB_TYPE_NONE, NULL},
        {EIGHT_DA_FOUR(",\"weight_scale_dtype\":null"), NIB_TYPE_NONE, NULL},
        {EIGHT_DA_FOUR(",\"weight_scale_dtype\":" DTYPE("float32")), NIB_TYPE_F32, NULL},
        {EIGHT_DA_FOUR(",\"weight_scale_dtype\":" DTYPE("bfloat16")), NIB_TYPE_BF16, NULL},
        {INTX("\"weight_dtype\":" DTYPE("int4") ",\"scale_dtype\":" DTYPE("float16")), NIB_TYPE_F16,
         NULL},
        {INTX("\"granularity\":" GROUP("32") ",\"scale_dtype\":" DTYPE("bfloat16")), NIB_TYPE_BF16,
         NULL},
        {INTX(""), NIB_TYPE_NONE, INTX8_ROWS "Int8WeightOnlyConfig"},
        {INTX("\"scale_dtype\":" DTYPE("float32")), NIB_TYPE_F32,
         INTX8_ROWS "Int8WeightOnlyConfig"},
        {CONFIG("Int8DynamicActivationIntxWeightConfig", "2",
                "\"weight_granularity\":{\"_type\":\"PerAxis\",\"_data\":{\"axis\":0}}"),
         NIB_TYPE_NONE, INTX8_ROWS "Int8DynamicActivationInt8WeightConfig"},
        {CONFIG("FqnToConfig", "1",
                "\"fqn_to_config\":{\"_default\":" EIGHT_DA_FOUR(
                    ",\"weight_scale_dtype\":" DTYPE("float32")) "}"),
         NIB_TYPE_F32, NULL},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_choice choice;
        nib_recipe *r = load(cases[i].text, untied, NULL, NULL);
        nib__recipe_resolve(&choice, r, &untied[Q]);
        if (choice.scale_type != cases[i].type)
            fail_msg("%s gives %s", cases[i].text, nib__type_name(choice.scale_type));
        nib__recipe_resolve(&choice, r, &untied[EMBED]);
        assert_int_equal(choice.scale_type, NIB_TYPE_NONE);
        assert_int_equal(nib__recipe_ledger(r)->setting_count, cases[i].note != NULL);
        if (cases[i].note != NULL)
            assert_int_equal(count_settings(nib__recipe_ledger(r), "scale-type", cases[i].note), 1);
        nib__recipe_free(r);
    }
    expect_refused(EIGHT_DA_FOUR(",\"weight_scale_dtype\":" DTYPE("float64")), NIB_UNSUPPORTED);
    expect_refused(INTX("\"weight_dtype\":" DTYPE("int4") ",\"scale_dtype\":3"), NIB_UNSUPPORTED);
    expect_refused(INTX("\"scale_dtype\":" DTYPE("bfloat16")), NIB_UNSUPPORTED);
}

static void test_file(void **state)
{
    (void)state;
    char path[] = "/tmp/nibble_recipe_XXXXXX.json";
    const int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    static const char text[] = "{\"rules\": [], \"else\": \"int8wo\"}\n";
    assert_int_equal(write(fd, text, sizeof text - 1), sizeof text - 1);
    close(fd);
    expect(path, "keep int8wo int8wo int8wo int8wo int8wo");
    unlink(path);
}

static void test_roles(void **state)
{
    (void)state;
    assert_string_equal(nib__role_name(NIB_ROLE_Q), "q");
    assert_string_equal(nib__role_name(NIB_ROLE_EMBED), "embed");
    assert_string_equal(nib__role_name(NIB_ROLE_COUNT), "other");
}

/* ---- memory ---- */

static void test_memory_runs_out(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        nib_status status;
    } cases[] = {
        {NULL, NIB_OK},
        {"8da4w+head-int8wo+embed", NIB_OK},
        {"mxfp8", NIB_OK},
        {"8da4x", NIB_USAGE},
        {"{\"ruels\":[],\"else\":\"keep\"}", NIB_BAD_INPUT},
        {"{\"zzzzzzz\":[],\"else\":\"keep\"}", NIB_BAD_INPUT}, /* lists all keys */
        {"{\"rules\":[{\"match\":\"model.layers.9.*\",\"scheme\":\"int8wo\"}]}", NIB_USAGE},
        {"{\"rules\":[{\"match\":\"*\",\"scheme\":\"int8wo\"},{\"match\":\"*q_proj\","
         "\"scheme\":\"8da4w\"}]}",
         NIB_OK}, /* a rule without effect */
        {"{\"rules\":[],\"else\":\"keep\",\"only\":[\"*q_proj\"]}", NIB_OK},
        {"{\"recipe_name\":\"mxfp8\",\"emulate\":true}", NIB_OK},
        {"{\"recipe\":\"mxfp8+embed\"}", NIB_OK},
        {"{\"linear:afpwx\":{\"bitwidth\":4,\"groupsize\":64}}", NIB_OK},
        {"{\"linear:int5\":{}}", NIB_BAD_INPUT},
        {"{\"linear:int4\":{\"groupsze\":32}}", NIB_BAD_INPUT},
        {"{\"skip\":[\"*v_proj\"],\"only\":[\"*_proj\"],\"rules\":[{\"match\":\"re:.*q_proj\","
         "\"scheme\":\"8da4w\"}]}",
         NIB_OK},
        {"{\"linear:int8\":{\"bitwidth\":4,\"groupsize\":64},\"executor\":{\"accelerator\":"
         "\"mps\"}}",
         NIB_OK},
        {HF(",\"modules_to_not_convert\":[\"model.layers.0\",\"lm_head\"]"), NIB_OK},
        {HF(",\"quant_type_kwargs\":{\"x\":1},\"untie_embedding_weights\":true"), NIB_OK},
        {CONFIG("FqnToConfig", "1",
                "\"fqn_to_config\":{\"_default\":" INT8 ",\"re:.+norm.+\":null}"),
         NIB_OK},
        {CONFIG("Int4WeightOnlyConfig", "2", "\"int4_tile_packed_ntile\":16"), NIB_OK},
        {CONFIG("Int8DynamicActivationInt8WeightConfig", "1",
                "\"granularity\":{\"_type\":\"PerTensor\",\"_data\":{}},\"layout\":{\"_type\":"
                "\"CutlassSemiSparseLayout\",\"_data\":{}}"),
         NIB_OK},
    };
    nib_recipe_layer tied[LAYERS];
    memcpy(tied, untied, sizeof tied);
    tied[EMBED].tied = tied[HEAD].tied = true;
    for (size_t t = 0; t < COUNT(cases); t++) {
        nib_status status = NIB_NO_MEMORY;
        for (int left = 0; left < 1000; left++) {
            failing f = {left, 0};
            const nib_allocator a = failing_allocator(&f);
            const char *const skip = "*.1.*", *const only[] = {"lm_head", "*"};
            nib_recipe *r = NULL;
            nib_err err = {0};
            const nib_recipe_input in = {.text = cases[t].text,
                                         .skip = {&skip, t % 2},
                                         .only = {only, 2},
                                         .layers = tied,
                                         .count = LAYERS};
            status = nib__recipe_load(&r, &in, &a, &err);
            nib__recipe_free(r);
            assert_int_equal(f.live, 0); /* nothing leaks */
            if (f.left > 0)
                break;
        }
        assert_int_equal(status, cases[t].status);
    }
}

/* ---- names of layers that are no Llama's, and none at all ---- */

static void test_other_layers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        bool first, second; /* quantized */
    } cases[] = {
        {"{\"rules\":[{\"match\":\"*.weight\",\"scheme\":\"int8wo\"}]}", true, false},
        {"{\"rules\":[{\"match\":\"a*\",\"scheme\":\"int8wo\"}]}", false, true},
        {"{\"recipe\":\"int8wo\",\"filter_fqns\":[\"blocks\"]}", false, true},
        {"{\"recipe\":\"int8wo\",\"filter_fqns\":[\"attention\"]}", true, true},
    };
    const nib_allocator a = nib__allocator_default();
    char name[1200];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    const nib_recipe_layer layers[] = {{"vision.blocks.0.proj", NIB_ROLE_OTHER, false},
                                       {name, NIB_ROLE_OTHER, false}, /* too long for a suffix */
                                       {"model.layers.0.self_attn.q_proj", NIB_ROLE_Q, false}};
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_recipe *r = NULL;
        nib_choice choice;
        const nib_recipe_input in = {.text = cases[i].text, .layers = layers, .count = 3};
        assert_int_equal(nib__recipe_load(&r, &in, &a, NULL), NIB_OK);
        nib__recipe_resolve(&choice, r, &layers[0]);
        assert_int_equal(!choice.keep, cases[i].first);
        nib__recipe_resolve(&choice, r, &layers[1]);
        assert_int_equal(!choice.keep, cases[i].second);
        nib__recipe_free(r);
    }
    nib_recipe *r = NULL;
    const nib_recipe_input none = {.text = cases[0].text};
    assert_int_equal(nib__recipe_load(&r, &none, &a, NULL), NIB_OK);
    nib__recipe_free(r);
}

/* ---- printed text ---- */

static nib_status collect(void *ctx, const char *bytes, size_t size)
{
    nib__text_put(ctx, bytes, size);
    return NIB_OK;
}

static void test_words(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    for (int form = NIB_FORM_TEXT; form <= NIB_FORM_MARKDOWN; form++) {
        nib_text text;
        nib__text_init(&text, &a);
        const nib_sink sink = {collect, &text};
        assert_int_equal(nib__recipes_write((nib_form)form, &a, &sink, NULL), NIB_OK);
        for (size_t i = 0; nib__scheme_base(i) != NULL; i++)
            assert_non_null(strstr(text.at, nib__scheme_base(i)->name));
        assert_non_null(strstr(text.at, "amax/7.5"));
        if (form == NIB_FORM_JSON) {
            nib_json json;
            nib__json_init(&json, "recipes", text.at, text.size, NULL);
            nib_json_event event;
            do
                event = nib__json_next(&json);
            while (event != NIB_JSON_END && event != NIB_JSON_ERROR);
            assert_int_equal(event, NIB_JSON_END);
        }
        nib__text_free(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costly_patterns),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_tied),
        cmocka_unit_test(test_as_stored),
        cmocka_unit_test(test_skip_and_only),
        cmocka_unit_test(test_patterns_that_match_nothing),
        cmocka_unit_test(test_rules),
        cmocka_unit_test(test_rules_refused),
        cmocka_unit_test(test_torchtitan),
        cmocka_unit_test(test_torchchat),
        cmocka_unit_test(test_torchchat_refused),
        cmocka_unit_test(test_torchao),
        cmocka_unit_test(test_torchao_golden),
        cmocka_unit_test(test_torchao_layouts),
        cmocka_unit_test(test_hugging_face),
        cmocka_unit_test(test_fqn_precedence),
        cmocka_unit_test(test_torchao_refused),
        cmocka_unit_test(test_torchao_scale_types),
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_other_layers),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
