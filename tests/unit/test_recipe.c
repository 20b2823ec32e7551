/* SPDX-License-Identifier: Apache-2.0
 *
 * Recipes: names, rule files, filters and torchchat's JSON against one small model; every wrong
 * key, name and pattern is refused with near names; each failing allocation is an error.
 */
#include "failing.h"
#include "file.h"
#include "json.h"
#include "ledger_lines.h"
#include "recipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
#include <cmocka.h>

#include "recipe_expect.h"

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
    expect("{\"linear:afpwx\":{\"bitwidth\":3,\"groupsize\":64}}",
           "keep int3wo-g64-asym int3wo-g64-asym int3wo-g64-asym int3wo-g64-asym int3wo-g64-asym");
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
        cmocka_unit_test(test_file),
        cmocka_unit_test(test_roles),
        cmocka_unit_test(test_memory_runs_out),
        cmocka_unit_test(test_other_layers),
        cmocka_unit_test(test_words),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
