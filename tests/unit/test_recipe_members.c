/* SPDX-License-Identifier: Apache-2.0
 *
 * The members of recipe files one by one: torchao's settings in configs, in maps of names and in
 * Hugging Face's object, and the members of the other forms. Each allowed value gives its scheme,
 * and each other value is refused. test_recipe_torchao.c compares schemes with torchao's own
 * numbers.
 */
#include "ledger_lines.h"
#include "recipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "refused.h"

enum { EMBED, Q, HEAD, LAYERS };

/* layers: with the output and the embedding as one tensor */
static const nib_recipe_layer layers[LAYERS] = {
    {"model.embed_tokens", NIB_ROLE_EMBED, true},
    {"model.layers.0.self_attn.q_proj", NIB_ROLE_Q, false},
    {"lm_head", NIB_ROLE_HEAD, true},
};

typedef struct row {
    const char *text; /* ' stands for " */
    const char *want; /* scheme of q, or keep; NULL: refused */
    const char *note; /* in the ledger, as its only setting; NULL: none; refused: the sentence */
} row;

enum { TEXT_SIZE = 1024 };

/* text [TEXT_SIZE]: gets the recipe with its double quotes */
static nib_status load(nib_recipe **out, char *text, const char *quoted, nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    const nib_recipe_input in = {
        .text = text, .layers = layers, .count = LAYERS, .by = NIB_BY_OPTION};
    assert_true(strlen(quoted) < TEXT_SIZE);
    for (size_t i = 0; i <= strlen(quoted); i++)
        text[i] = quoted[i] == '\'' ? '"' : quoted[i];
    return nib__recipe_load(out, &in, &a, err);
}

static void check_row(const row *r)
{
    char text[TEXT_SIZE], name[64];
    nib_recipe *recipe = NULL;
    nib_err err = {NIB_OK, ""};
    const nib_status status = load(&recipe, text, r->text, &err);
    if (r->want == NULL) {
        if (status == NIB_OK || strstr(err.text, r->note) == NULL)
            fail_msg("status %d \"%s\": %s", status, err.text, text);
        refused(status == NIB_UNSUPPORTED ? status : NIB_BAD_INPUT, status, &err);
        return;
    }
    if (status != NIB_OK)
        fail_msg("%s: %s", text, err.text);
    nib_choice choice;
    nib__recipe_resolve(&choice, recipe, &layers[Q]);
    const char *got = choice.keep ? "keep" : nib__scheme_name(name, &choice.scheme);
    const nib_ledger *ledger = nib__recipe_ledger(recipe);
    if (strcmp(got, r->want) != 0 || ledger->setting_count != (r->note != NULL) ||
        (r->note != NULL && count_settings(ledger, NULL, r->note) != 1))
        fail_msg("%s is %s with %zu settings", text, got, ledger->setting_count);
    nib__recipe_free(recipe);
}

#define CHECK_ROWS(rows)                                                                           \
    for (size_t i = 0; i < COUNT(rows); i++)                                                       \
    check_row(&(rows)[i])

#define CONFIG(type, version, data) "{'_type':'" type "','_version':" version ",'_data':{" data "}}"
#define OF(type, data) "{'_type':'" type "','_data':" data "}"
#define DTYPE(name) OF("torch.dtype", "'" name "'")
#define LONE "\\ud800" /* half a character */

/* ---- granularities ---- */

#define INT8WO(granularity) CONFIG("Int8WeightOnlyConfig", "2", "'granularity':" granularity)
#define INT8DQ(version, data) CONFIG("Int8DynamicActivationInt8WeightConfig", version, data)
#define STATIC(data) CONFIG("Int8StaticActivationInt8WeightConfig", "1", data)
#define FP8DQ(data) CONFIG("Float8DynamicActivationFloat8WeightConfig", "2", data)

static void test_granularities(void **state)
{
    (void)state;
    static const row rows[] = {
        {INT8WO("null"), "int8wo", NULL},
        {INT8WO("32"), "int8wo-g32", NULL},
        {INT8WO("-1"), "int8wo", NULL},
        {INT8WO("0"), NULL, "granularity has no scheme"},
        {INT8WO("true"), NULL, "granularity has no scheme"},
        {INT8WO(OF("PerGroup", "{'group_size':64}")), "int8wo-g64", NULL},
        {INT8WO(OF("PerGroup", "{'group_size':-1}")), "int8wo", NULL},
        {INT8WO(OF("PerGroup", "{'group_size':'64'}")), NULL, "PerGroup has no scheme"},
        {INT8WO(OF("PerRow", "{}")), "int8wo", NULL},
        {INT8WO(OF("PerRow", "{'dim':-1}")), "int8wo", NULL},
        {INT8WO(OF("PerRow", "{'dim':1}")), "int8wo", NULL},
        {INT8WO(OF("PerRow", "{'dim':0}")), NULL, "PerRow has no scheme"},
        {INT8WO(OF("PerRow", "{'dim':1,'axis':0}")), NULL, "PerRow has no setting"},
        {INT8WO(OF("PerAxis", "{}")), "int8wo", NULL},
        {INT8WO(OF("PerAxis", "{'axis':0}")), "int8wo", NULL},
        {INT8WO(OF("PerAxis", "{'axis':1}")), NULL, "PerAxis has no scheme"},
        {INT8WO(OF("PerTensor", "{}")), "int8wo-tensor", NULL},
        {INT8WO(OF("PerToken", "{}")), NULL, "PerToken has no scheme"},
        {INT8WO(OF("PerBlock", "{'block_size':[128,128]}")), NULL, "PerBlock has no scheme"},
        {INT8WO("[" OF("PerTensor", "{}") "," OF("PerRow", "{}") "]"), "int8wo", NULL},
        {INT8WO("[" OF("PerRow", "{}") "," OF("PerBlock", "{}") "]"), NULL, "PerBlock has no"},
        {INT8WO("[" OF("PerAxis", "{}") "," OF("PerRow", "{}") "]"), NULL, "PerAxis has no"},
        {INT8WO("[1,2,3]"), NULL, "a list of more than two items"},
        {INT8WO("[[1]]"), NULL, "granularity has no scheme"},
        {INT8WO("1e999"), NULL, "1e999"},
        {INT8WO("1e300"), NULL, "granularity has no scheme"},
        {INT8WO("-1e300"), NULL, "granularity has no scheme"},
        {INT8WO("{'_type':'PerRow','_version':'x','_data':3}"), "int8wo", NULL},
        {INT8WO("{'_type':'" LONE "','_data':{}}"), NULL, "surrogate"},
        {INT8WO(OF("PerRow", "{'" LONE "':1}")), NULL, "surrogate"},
        {INT8WO("'" LONE "'"), NULL, "surrogate"},
        {INT8WO("{'more':1}"), NULL, "belong in"},
        {"{'_type':'Int8WeightOnlyConfig','" LONE "':1}", NULL, "surrogate"},
        {CONFIG("Int8WeightOnlyConfig", "2", "'" LONE "':1"), NULL, "surrogate"},
        {CONFIG("Int8WeightOnlyConfig", "2", "'group_size':32,'granularity':32"), NULL,
         "keep granularity"},
        {INT8DQ("2", "'granularity':" OF("PerAxis", "{'axis':1}")), NULL, "PerAxis has no scheme"},
        {INT8DQ("2", "'granularity':" OF("PerTensor", "{}")), "int8dq-tensor",
         "one scale per token"},
        {INT8DQ("2", "'granularity':[" OF("PerTensor", "{}") "," OF("PerRow", "{}") "]"), "int8dq",
         "one scale per token"},
        {INT8DQ("2", "'granularity':-1"), "int8dq", NULL},
        {INT8DQ("1", ""), "int8dq", "version 1 kept scales in the weight's type"},
        {INT8DQ("0", ""), NULL, "version 0 is not supported"},
        {INT8DQ("3", ""), NULL, "version 3 is not supported"},
        {INT8DQ("2", "'version':'x'"), "int8dq", NULL}, /* not a number: "_version" holds */
        {INT8DQ("2", "'version':1"), "int8dq", "version 1"},
        {STATIC("'granularity':" OF("PerAxis", "{'axis':1}")), NULL, "PerAxis has no scheme"},
        {STATIC("'granularity':" OF("PerTensor", "{}")), "int8dq-tensor-static", NULL},
        {STATIC("'act_quant_scale':null"), "int8dq-static", NULL},
        {STATIC("'act_quant_zero_point':0"), NULL, "a given activation scale"},
        {CONFIG("Float8WeightOnlyConfig", "2", "'granularity':true"), NULL, "granularity has no"},
        {FP8DQ("'granularity':" OF("PerGroup", "{'group_size':'x'}")), NULL, "PerGroup has no"},
        {FP8DQ("'granularity':" OF("PerRow", "{}")), "fp8dq", NULL},
        {FP8DQ("'granularity':-1"), "fp8dq", NULL},
        {CONFIG("IntxWeightOnlyConfig", "2", "'granularity':true"), NULL, "granularity has no"},
        {CONFIG("Int8DynamicActivationIntxWeightConfig", "2", "'weight_granularity':true"), NULL,
         "weight_granularity has no"},
        {CONFIG("Int8DynamicActivationInt4WeightConfig", "1", "'group_size':true"), NULL,
         "group_size has no"},
        {CONFIG("Int4WeightOnlyConfig", "2", "'group_size':-3"), NULL, "group_size has no"},
    };
    CHECK_ROWS(rows);
}

/* ---- types, mappings and layouts ---- */

#define INTX(data) CONFIG("IntxWeightOnlyConfig", "2", data)
#define DYNAMIC_INTX(data) CONFIG("Int8DynamicActivationIntxWeightConfig", "2", data)
#define INT4WO(version, data) CONFIG("Int4WeightOnlyConfig", version, data)
#define MX(data) CONFIG("MXDynamicActivationMXWeightConfig", "1", data)
#define NVWO(data) CONFIG("NVFP4WeightOnlyConfig", "1", data)
#define ASYMMETRIC OF("MappingType", "'ASYMMETRIC'")
#define FP4 DTYPE("float4_e2m1fn_x2")
#define E5M2 DTYPE("float8_e5m2")

static void test_types(void **state)
{
    (void)state;
    static const row rows[] = {
        {INTX("'weight_dtype':" DTYPE("int8") ",'mapping_type':" ASYMMETRIC), "int8wo-asym", NULL},
        {INTX("'weight_dtype':" DTYPE("int8") ",'granularity':32"), "int8wo-g32", NULL},
        {INTX("'weight_dtype':" DTYPE("int4") ",'granularity':9999999999"), NULL, "but "},
        {DYNAMIC_INTX("'weight_dtype':" DTYPE("int8")), "int8dq-g32-actasym", NULL},
        {DYNAMIC_INTX("'weight_mapping_type':" ASYMMETRIC), NULL, "asymmetric int8 has no scheme"},
        {DYNAMIC_INTX("'weight_dtype':" DTYPE("int3")), NULL, "int3 has no scheme"},
        {DYNAMIC_INTX("'weight_dtype':" DTYPE("int3") ",'weight_mapping_type':" ASYMMETRIC), NULL,
         "asymmetric int8 has no scheme"},
        {CONFIG("Float8WeightOnlyConfig", "2", "'weight_dtype':" E5M2), NULL, "float8_e5m2 has no"},
        {FP8DQ("'weight_dtype':" E5M2), NULL, "float8_e5m2 has no"},
        {FP8DQ("'activation_dtype':" E5M2), NULL, "float8_e5m2 has no"},
        {FP8DQ("'activation_value_lb':0.5"), NULL, "a bound on activations"},
        {FP8DQ("'activation_value_ub':1200.0"), NULL, "a bound on activations"},
        {MX("'weight_dtype':" FP4 ",'activation_dtype':" FP4), "mxfp4dq", NULL},
        {MX("'weight_dtype':" FP4), NULL, "float4_e2m1fn_x2 has no"},
        {MX("'activation_dtype':" FP4), NULL, "float4_e2m1fn_x2 has no"},
        {MX("'block_size':32"), "mxfp8", NULL},
        {MX("'block_size':16"), NULL, "a block_size other than 32"},
        {MX("'scaling_mode':" OF("ScaleCalculationMode", "'RCEIL'")), "mxfp8", NULL},
        {MX("'scaling_mode':'rceil'"), "mxfp8", NULL},
        {MX("'scaling_mode':" OF("ScaleCalculationMode", "'FLOOR'")), "mxfp8-floor", NULL},
        {MX("'scaling_mode':'floor'"), "mxfp8-floor", NULL},
        {MX("'scaling_mode':'EVEN'"), NULL, "EVEN has no scheme"},
        {NVWO(""), "nvfp4", NULL},
        {NVWO("'use_dynamic_per_tensor_scale':true"), "nvfp4", NULL},
        {NVWO("'use_dynamic_per_tensor_scale':false"), "nvfp4-block", NULL},
        {INT4WO("1", "'zero_point_domain':" OF("ZeroPointDomain", "'FLOAT'")),
         "int4wo-g128-tinygemm", NULL},
        {INT4WO("1", "'zero_point_domain':" OF("ZeroPointDomain", "'NONE'")),
         "int4wo-g128-tinygemm", NULL},
        {INT4WO("2", "'int4_packing_format':'plain'"), "int4wo-g128", NULL},
        {INT4WO("2", "'int4_packing_format':'tile_packed_to_4d'"), "int4wo-g128-tinygemm", NULL},
        {INT4WO("2", "'int4_packing_format':'plain_int32'"), NULL, "integer zero points"},
        {INT4WO("2", "'int4_packing_format':'marlin_sparse'"), NULL, "marlin_sparse has no scheme"},
        {INT4WO("2", "'new_setting':1"), NULL, "no setting \"new_setting\""},
        {CONFIG("Int8DynamicActivationInt4WeightConfig", "1", "'mapping_type':" ASYMMETRIC),
         "8da4w-g32-asym", NULL},
        {CONFIG("Int4DynamicActivationInt4WeightConfig", "1", "'act_mapping_type':" ASYMMETRIC),
         "4da4w-row", NULL},
        {INT8DQ("2", "'layout':" OF("CutlassSemiSparseLayout", "{}")), "int8dq", "2:4 sparse"},
        {DYNAMIC_INTX("'weight_dtype':" DTYPE("int4") ",'packing_format':'MARLIN_SPARSE'"),
         "8da4w-g32", "2:4 sparse"},
    };
    CHECK_ROWS(rows);
}

/* A plain layout asks for no kernel of torchao's. */
static void test_plain_layouts(void **state)
{
    (void)state;
    static const char *const plain[] = {
        INT4WO("2", "'int4_packing_format':'PLAIN'"),
        INT4WO("2", "'int4_packing_format':'plain'"),
        INT4WO("2", "'int4_packing_format':" OF("Int4PackingFormat", "'PLAIN'")),
    };
    for (size_t i = 0; i < COUNT(plain); i++) {
        char text[TEXT_SIZE];
        nib_recipe *recipe;
        nib_choice choice;
        assert_int_equal(load(&recipe, text, plain[i], NULL), NIB_OK);
        nib__recipe_resolve(&choice, recipe, &layers[Q]);
        assert_int_equal(choice.hint, NIB_HINT_NONE);
        assert_null(choice.hint_text);
        nib__recipe_free(recipe);
    }
}

/* ---- settings of kernels alone: anything but the default is in the ledger ---- */

static void test_kernels(void **state)
{
    (void)state;
    static const row rows[] = {
        {INT8DQ("2", "'set_inductor_config':true"), "int8dq", NULL},
        {INT8DQ("2", "'set_inductor_config':false"), "int8dq", "set_inductor_config false"},
        {FP8DQ("'granularity':-1,'kernel_preference':" OF("KernelPreference", "'AUTO'")), "fp8dq",
         NULL},
        {FP8DQ("'granularity':-1,'kernel_preference':7"), "fp8dq", NULL},
        {FP8DQ("'granularity':-1,'kernel_preference':'triton'"), "fp8dq", "triton"},
        {FP8DQ("'granularity':-1,'kernel_preference':'FAST'"), NULL, "no value \"FAST\""},
        {FP8DQ("'granularity':-1,'mm_config':" OF("Float8MMConfig", "{'use_fast_accum':true}")),
         "fp8dq", NULL},
        {FP8DQ("'granularity':-1,'mm_config':" OF("Float8MMConfig", "{'use_fast_accum':false}")),
         "fp8dq", "Float8MMConfig"},
        {FP8DQ("'granularity':-1,'mm_config':" OF("Float8MMConfig", "{'emulate':true}")), "fp8dq",
         "Float8MMConfig"},
        {FP8DQ("'granularity':-1,'mm_config':" OF(
             "Float8MMConfig", "{'emulate':false,'use_fast_accum':true,'pad':false,'more':false,"
                               "'other':false}")),
         "fp8dq", NULL},
        {FP8DQ("'granularity':-1,'alg_id':0"), "fp8dq", NULL},
        {FP8DQ("'granularity':-1,'alg_id':3"), "fp8dq", "alg_id 3"},
        {FP8DQ("'granularity':-1,'alg_id':true"), "fp8dq", "alg_id true"},
        {MX("'gemm_kernel_choice':" OF("MXGemmKernelChoice", "'EMULATED'")), "mxfp8", NULL},
        {MX("'gemm_kernel_choice':" OF("MXGemmKernelChoice", "'CUBLAS'")), "mxfp8", "CUBLAS"},
        {INT4WO("2", "'int4_tile_packed_ntile':8"), "int4wo-g128", NULL},
        {CONFIG("NVFP4DynamicActivationNVFP4WeightConfig", "1", "'step':'LATER'"), NULL,
         "no value \"LATER\""},
    };
    CHECK_ROWS(rows);
}

/* ---- maps of names ---- */

#define INT8 CONFIG("Int8WeightOnlyConfig", "2", "")
#define INT4 CONFIG("Int4WeightOnlyConfig", "2", "")
#define MAPS(map, older)                                                                           \
    CONFIG("FqnToConfig", "1", "'fqn_to_config':" map ",'module_fqn_to_config':" older)

static void test_maps(void **state)
{
    (void)state;
    static const row rows[] = {
        {MAPS("{'_default':" INT8 "}", "{'_default':" INT8 "}"), "int8wo", NULL},
        {MAPS("{'_default':" INT8 "}", "{}"), "int8wo", NULL},
        {MAPS("{}", "{'_default':" INT4 "}"), "int4wo-g128", NULL},
        {MAPS("{}", "{}"), "keep", NULL},
        {MAPS("{'_default':null}", "{'_default':null}"), "keep", NULL},
        {MAPS("{'lm_head':" INT8 "}", "{'lm':" INT8 "}"), NULL, "differ"},
        {MAPS("{'" LONE "':" INT8 "}", "{}"), NULL, "surrogate"},
        {CONFIG("FqnToConfig", "1", "'" LONE "':1"), NULL, "surrogate"},
        {"{'_type':'FqnToConfig','_data':3}", NULL, "expected"},
        {MAPS("{'_default':" INT8 "}", "{'_default':" INT4 "}"), NULL, "differ"},
        {MAPS("{'_default':" INT8 "}", "{'_defaulx':" INT8 "}"), NULL, "differ"},
        {MAPS("{'_default':null}", "{'_default':" INT8 "}"), NULL, "differ"},
        {MAPS("{'_default':" INT8 "}", "{'_default':" INT8 ",'lm_head':null}"), NULL, "differ"},
        {CONFIG("FqnToConfig", "1", "'fqn_to_config':{'_default':" INT8 "},'version':1"), "int8wo",
         NULL},
        {CONFIG("FqnToConfig", "1", "'fqn_to_config':{},'more':1"), NULL, "no setting \"more\""},
        {CONFIG("FqnToConfig", "3", "'fqn_to_config':{}"), NULL, "version 3 is not supported"},
        {CONFIG("FqnToConfig", "1", "'fqn_to_config':[]"), NULL, "expected"},
        {CONFIG("FqnToConfig", "1", "'fqn_to_config':{'re:(':" INT8 "}"), NULL, "re:("},
    };
    CHECK_ROWS(rows);
}

/* ---- Hugging Face's object ---- */

#define HF(type, more) "{'quant_type':" type ",'quant_method':'torchao'" more "}"
#define DEFAULT "{'default':" INT8 "}"

static void test_hugging_face(void **state)
{
    (void)state;
    static const row rows[] = {
        {HF(DEFAULT, ",'include_input_output_embeddings':false"), "int8wo", NULL},
        {HF(DEFAULT, ",'include_input_output_embeddings':null"), "int8wo", NULL},
        {HF("{'default':" CONFIG("FqnToConfig", "1", "'fqn_to_config':{'re:.*_proj':" INT8 "}") "}",
            ",'include_input_output_embeddings':true"),
         "int8wo", NULL},
        {HF(DEFAULT, ",'untie_embedding_weights':null"), "int8wo", NULL},
        {HF(DEFAULT, ",'untie_embedding_weights':true"), "int8wo", "stay one tensor"},
        {HF(DEFAULT, ",'include_input_output_embeddings':true,'untie_embedding_weights':true"),
         "int8wo", NULL},
        {HF(DEFAULT, ",'untie_embedding_weights':1"), NULL, "must be true, false or null"},
        {HF(DEFAULT, ",'modules_to_not_convert':[3]"), NULL, "not a name"},
        {HF(DEFAULT, ",'modules_to_not_convert':['']"), NULL, "not a name"},
        {HF(DEFAULT, ",'modules_to_not_convert':['(']"), NULL, "(?:("},
        {HF(DEFAULT, ",'quant_type_kwargs':{}"), "int8wo", NULL},
        {HF(DEFAULT, ",'quant_type_kwargs':null"), "int8wo", NULL},
        {HF(DEFAULT, ",'quant_type_kwargs':{'group_size':32}"), "int8wo", "its own settings"},
        {HF(DEFAULT, ",'quant_type_kwargs':3"), NULL, "neither an object nor null"},
        {HF("{'default':null}", ""), NULL, "asks for nothing"},
        {HF("{'default':" INT8 ",'other':" INT8 "}", ""), NULL, "more than \"default\""},
        {HF("{}", ""), NULL, "expected a key"},
        {HF("{'x':1}", ""), NULL, "quant_type is not"},
        {HF("[]", ""), NULL, "quant_type is not"},
        {"{'quant_type':" DEFAULT ",'quant_method':3}", NULL, "quant_method is not a name"},
        {"{'_type':'Int8WeightOnlyConfig','_data':3}", NULL, "expected"},
        {"{'_type':7,'_data':{}}", NULL, "expected"},
        {CONFIG("Int8WeightOnlyConfig", "-1", ""), NULL, "outside of"},
        {CONFIG("Int8WeightOnlyConfig", "2",
                "'a':0,'b':0,'c':0,'d':0,'e':0,'f':0,'g':0,'h':0,'i':0,'j':0,'k':0,'l':0,'m':0,"
                "'n':0,'o':0,'p':0,'q':0,'r':0,'s':0,'t':0,'u':0,'v':0,'w':0,'x':0,'y':0,'z':0,"
                "'A':0,'B':0,'C':0,'D':0,'E':0,'F':0"),
         NULL, "a config has more than"},
        /* every linear layer is kept, so the option has no effect */
        {HF(DEFAULT, ",'modules_to_not_convert':['model','lm_head']"), "keep", "--recipe"},
    };
    CHECK_ROWS(rows);
}

/* ---- the other forms ---- */

static void test_other_forms(void **state)
{
    (void)state;
    static const row rows[] = {
        {"{'else':3}", NULL, "expected"},
        {"{'else':'" LONE "'}", NULL, "surrogate"},
        {"{'rules':[{'match':3}]}", NULL, "expected"},
        {"{'rules':[{'match':'" LONE "'}]}", NULL, "surrogate"},
        {"{'else':'int8wo','skip':3}", NULL, "expected"},
        {"{'else':'int8wo','skip':[3]}", NULL, "not a string"},
        {"{'else':'int8wo','skip':['" LONE "']}", NULL, "surrogate"},
        {"{'else':'int8wo','only':['re:(']}", NULL, "re:("},
        {"{'recipe_name':3}", NULL, "expected"},
        {"{'recipe_name':'" LONE "'}", NULL, "surrogate"},
        {"{'recipe':3}", NULL, "expected"},
        {"{'recipe':'" LONE "'}", NULL, "surrogate"},
        {"{'schema':'1','rules':[]}", NULL, "expected"},
        {"{'linear:int8':{'groupsize':-2}}", NULL, "out of range"},
        {"{'':1}", NULL, "not a recipe"},
        {"{'executor':{'accelerator':'" LONE "'}}", NULL, "surrogate"},
        {"{'executor':{'accelerator':'mps'},'linear:int8':{'groupsize':null}}", "int8wo", NULL},
    };
    CHECK_ROWS(rows);
}

/* Patterns for linear layers where there are none, and where none has one of Meta's names. */
static void test_no_match(void **state)
{
    (void)state;
    const nib_recipe_layer embed = {"embed", NIB_ROLE_EMBED, false},
                           vision = {"vision.proj", NIB_ROLE_OTHER, false};
    const nib_recipe_layer *const cases[] = {&embed, &vision};
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_recipe *r = NULL;
        nib_err err = {NIB_OK, ""};
        const nib_recipe_input in = {.text = "{\"recipe_name\":\"mxfp8\",\"fqns\":[\"attention\"]}",
                                     .layers = cases[i],
                                     .count = 1};
        refused(NIB_USAGE, nib__recipe_load(&r, &in, &a, &err), &err);
        assert_true((strstr(err.text, "vision.proj") != NULL) == (cases[i] == &vision));
    }
}

/* A config that quantizes nothing is named as what it is: an option, or a recipe elsewhere. */
static void test_names_its_source(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_recipe *r = NULL;
    const char *const skip = "*";
    const nib_recipe_input in = {.text = "int8wo",
                                 .skip = {&skip, 1},
                                 .layers = layers,
                                 .count = LAYERS,
                                 .by = NIB_BY_CONFIG};
    assert_int_equal(nib__recipe_load(&r, &in, &a, NULL), NIB_OK);
    assert_int_equal(nib__recipe_ledger(r)->setting_count, 1);
    assert_string_equal(nib__recipe_ledger(r)->settings[0].name, "recipe");
    nib__recipe_free(r);
    const nib_recipe_input bad = {.text = "{\"schema\":2,\"rules\":[]}"};
    assert_int_equal(nib__recipe_load(&r, &bad, &a, NULL), NIB_UNSUPPORTED);
}

/* Untying is reported where the tied tensor stays whole, and only there. */
static void test_untie(void **state)
{
    (void)state;
    static const nib_recipe_layer apart = {"lm_head", NIB_ROLE_HEAD, false};
    static const char text[] =
        "{\"quant_type\":{\"default\":{\"_type\":\"FqnToConfig\",\"_data\":{\"fqn_to_config\":{"
        "\"lm_head\":{\"_type\":\"Int8WeightOnlyConfig\",\"_version\":2,\"_data\":{}}}}}},"
        "\"modules_to_not_convert\":[],\"untie_embedding_weights\":true}";
    const struct {
        const nib_recipe_layer *layers;
        size_t count;
    } cases[] = {{&apart, 1}, {&layers[HEAD], 1}, {layers, LAYERS}};
    const nib_allocator a = nib__allocator_default();
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_recipe *r = NULL;
        nib_choice choice;
        nib_err err = {NIB_OK, ""};
        const nib_recipe_input in = {
            .text = text, .layers = cases[i].layers, .count = cases[i].count};
        if (nib__recipe_load(&r, &in, &a, &err) != NIB_OK)
            fail_msg("%s", err.text);
        nib__recipe_resolve(&choice, r, &cases[i].layers[cases[i].count - 1]);
        assert_false(choice.keep);
        assert_int_equal(nib__recipe_ledger(r)->setting_count, 0);
        nib__recipe_free(r);
    }
}

/* The second pattern is tried only on layers that the first one names. */
static void test_costly_after_another(void **state)
{
    (void)state;
    char name[121];
    memset(name, 'a', sizeof name - 1);
    name[sizeof name - 1] = 0;
    const nib_recipe_layer layer = {name, NIB_ROLE_Q, false};
    const char *const only[] = {"a*", "re:(.*)(.*)(.*)(.*)(.*)b"};
    const nib_allocator a = nib__allocator_default();
    nib_recipe *r = NULL;
    nib_err err = {NIB_OK, ""};
    const nib_recipe_input in = {.text = "int8wo", .only = {only, 2}, .layers = &layer, .count = 1};
    refused(NIB_BAD_INPUT, nib__recipe_load(&r, &in, &a, &err), &err);
    assert_int_equal(nib__recipe_load(&r, &in, &a, NULL), NIB_BAD_INPUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_granularities),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_plain_layouts),
        cmocka_unit_test(test_kernels),
        cmocka_unit_test(test_maps),
        cmocka_unit_test(test_hugging_face),
        cmocka_unit_test(test_other_forms),
        cmocka_unit_test(test_no_match),
        cmocka_unit_test(test_names_its_source),
        cmocka_unit_test(test_untie),
        cmocka_unit_test(test_costly_after_another),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
