/* SPDX-License-Identifier: Apache-2.0
 *
 * Recipes in torchao's JSON against one small model: its configs, those that torchao writes,
 * packing layouts, Hugging Face's object, which name wins, types of scales, and what is refused.
 */
#include "golden_scheme.h"
#include "ledger_lines.h"
#include "recipe.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>

#include "recipe_expect.h"

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
        {CONFIG("IntxWeightOnlyConfig", "2",
                "\"weight_dtype\":" DTYPE("int3") ",\"granularity\":" GROUP("64")),
         "int3wo-g64"},
        {CONFIG("IntxWeightOnlyConfig", "2",
                "\"weight_dtype\":" DTYPE("int2") ",\"mapping_type\":" ENUMERATOR("MappingType",
                                                                                  "ASYMMETRIC")),
         "int2wo-row-asym"},
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
    expect_refused(CONFIG("IntxWeightOnlyConfig", "2", "\"weight_dtype\":" DTYPE("uint3")),
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_torchao),
        cmocka_unit_test(test_torchao_golden),
        cmocka_unit_test(test_torchao_layouts),
        cmocka_unit_test(test_hugging_face),
        cmocka_unit_test(test_fqn_precedence),
        cmocka_unit_test(test_torchao_refused),
        cmocka_unit_test(test_torchao_scale_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
