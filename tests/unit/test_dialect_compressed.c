/* SPDX-License-Identifier: Apache-2.0
 *
 * compressed-tensors: what config.json says about a weight and its activations, and errors in its
 * tensors. test_dialects.c compares values with its own tool.
 */
#include "checkpoint_build.h"

#include <math.h>

#define CT_CONFIG(format, weights, inputs)                                                         \
    "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"" format       \
    "\",\"config_groups\":{\"group_0\":{\"targets\":[\"Linear\"],\"weights\":{" weights            \
    "},\"input_activations\":" inputs "}},\"ignore\":[\"lm_head\"]}}"

static const float ones[64] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                               1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
static const float not_finite[6] = {1, 1, 1, NAN, 1, 1}, infinite[6] = {1, INFINITY, 1, 1, 1, 1};

static void test_packed_hostile(void **state)
{
    (void)state;
    static const int64_t shape[2] = {3, 20}, wrong[2] = {3, 28}, huge[2] = {INT64_MAX, 20},
                         negative[2] = {3, -20};
    static const int32_t narrow[2] = {3, 20};
    static const int32_t order[20] = {1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 0},
                         beyond[20] = {0, 2}, uneven[20] = {1}, before[20] = {0, -1};
    static const char config[] =
        CT_CONFIG("pack-quantized",
                  "\"num_bits\":4,\"type\":\"int\",\"symmetric\":false,\"strategy\":\"group\","
                  "\"group_size\":10",
                  "null");
    static const part parts[] = {
        {"m.weight_packed", "I32", 2, {3, 3}, NULL},
        {"m.weight_scale", "F32", 2, {3, 2}, ones},
        {"m.weight_shape", "I64", 1, {2}, shape},
        {"m.weight_zero_point", "I32", 2, {1, 2}, NULL},
        {"m.weight_g_idx",
         "I32",
         1,
         {20},
         NULL}, /* all 0, which is uneven; every case replaces it */
        {"m.bias", "BF16", 1, {3}, NULL},
    };
    static const change changes[] = {
        {2, {"m.weight_shape", "I32", 1, {2}, narrow}, NIB_OK},
        {0, {0}, NIB_BAD_INPUT},
        {0, {"m.weight_packed", "I32", 2, {3, 4}, NULL}, NIB_BAD_INPUT},
        {0, {"m.weight_packed", "I32", 2, {2, 3}, NULL}, NIB_BAD_INPUT},
        {0, {"m.weight_packed", "U8", 2, {3, 3}, NULL}, NIB_BAD_INPUT},
        {0, {"m.weight_packed", "I32", 2, {0, 0}, NULL}, NIB_BAD_INPUT},
        {1, {0}, NIB_BAD_INPUT},
        {1, {"m.weight_scale", "F32", 2, {2, 3}, ones}, NIB_BAD_INPUT},
        {1, {"m.weight_scale", "I32", 2, {3, 2}, NULL}, NIB_BAD_INPUT},
        {1, {"m.weight_scale", "F32", 2, {3, 2}, not_finite}, NIB_BAD_INPUT},
        {1, {"m.weight_scale", "F32", 2, {3, 2}, infinite}, NIB_BAD_INPUT},
        {2, {0}, NIB_BAD_INPUT},
        {2, {"m.weight_shape", "I64", 1, {2}, wrong}, NIB_BAD_INPUT},
        {2, {"m.weight_shape", "I64", 1, {2}, huge}, NIB_BAD_INPUT},
        {2, {"m.weight_shape", "I64", 1, {2}, negative}, NIB_BAD_INPUT},
        {2, {"m.weight_shape", "F32", 1, {2}, NULL}, NIB_BAD_INPUT},
        {2, {"m.weight_shape", "I64", 1, {1}, shape}, NIB_BAD_INPUT},
        {3, {0}, NIB_BAD_INPUT},
        {3, {"m.weight_zero_point", "I32", 2, {3, 2}, NULL}, NIB_BAD_INPUT}, /* not packed */
        {3, {"m.weight_zero_point", "F32", 2, {3, 2}, ones}, NIB_BAD_INPUT},
        {3, {"m.weight_zero_point", "I8", 2, {3, 2}, "\1\2\3\4\5\6"}, NIB_OK},
        {3, {"m.weight_zero_point", "I8", 2, {3, 2}, "\1\2\3\4\5\10"}, NIB_BAD_INPUT}, /* above 7 */
        {3,
         {"m.weight_zero_point", "I8", 2, {3, 2}, "\1\2\3\xf7\5\6"},
         NIB_BAD_INPUT}, /* below -8 */
        {4, {0}, NIB_OK},
        {4, {"m.weight_g_idx", "I32", 1, {20}, beyond}, NIB_BAD_INPUT}, /* of 2 groups */
        {4, {"m.weight_g_idx", "I32", 1, {20}, before}, NIB_BAD_INPUT},
        {4, {"m.weight_g_idx", "I32", 1, {20}, uneven}, NIB_UNSUPPORTED},
        {4, {"m.weight_g_idx", "F32", 1, {20}, NULL}, NIB_BAD_INPUT},
        {4, {"m.weight_g_idx", "I32", 1, {19}, order}, NIB_BAD_INPUT},
        {5, {"m.bias", "BF16", 1, {4}, NULL}, NIB_BAD_INPUT},
        {5, {"m.bias", "I8", 1, {3}, NULL}, NIB_BAD_INPUT},
        {5, {"m.weight", "BF16", 2, {3, 20}, NULL}, NIB_BAD_INPUT}, /* stored twice */
    };
    part good[COUNT(parts)];
    memcpy(good, parts, sizeof parts);
    good[4].data = order;
    expect_changes(config, good, COUNT(good), changes, COUNT(changes));
}

static void test_bytes_hostile(void **state)
{
    (void)state;
    static const float negative_scale[1] = {-1};
    static const char config[] = CT_CONFIG(
        "int-quantized",
        "\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"channel\"",
        "{\"num_bits\":8,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"tensor\",\"dynamic\":"
        "false}");
    static const part parts[] = {
        {"m.weight", "I8", 2, {3, 5}, NULL},
        {"m.weight_scale", "F32", 2, {3, 1}, ones},
        {"m.input_scale", "F32", 1, {1}, ones},
    };
    static const change changes[] = {
        {0, {"m.weight", "I8", 2, {3, 0}, NULL}, NIB_BAD_INPUT},
        {0, {"m.weight", "U8", 2, {3, 5}, NULL}, NIB_UNSUPPORTED},
        {1, {"m.weight_scale", "F32", 1, {3}, ones}, NIB_OK},
        {1, {"m.weight_scale", "F32", 2, {1, 1}, ones}, NIB_BAD_INPUT},
        {1, {"m.weight_scale", "F32", 2, {3, 1}, not_finite + 2}, NIB_BAD_INPUT},
        {2, {0}, NIB_BAD_INPUT},
        {2, {"m.input_scale", "F32", 1, {2}, ones}, NIB_BAD_INPUT},
        {2, {"m.input_scale", "F32", 1, {1}, negative_scale}, NIB_BAD_INPUT},
        {2, {"m.input_scale", "F32", 1, {1}, NULL}, NIB_BAD_INPUT},
    };
    expect_changes(config, parts, COUNT(parts), changes, COUNT(changes));
}

static void test_float_hostile(void **state)
{
    (void)state;
    static const uint8_t e8m0[2] = {127, 255}, e4m3[2] = {0x38, 0x7f};
    static const float zero[1] = {0};
    static const char mx[] = CT_CONFIG(
        "mxfp4-pack-quantized", "\"num_bits\":4,\"type\":\"float\",\"group_size\":32", "null");
    static const char nv[] = CT_CONFIG(
        "nvfp4-pack-quantized", "\"num_bits\":4,\"type\":\"float\",\"group_size\":16", "null");
    static const part mx_parts[] = {{"m.weight_packed", "U8", 2, {2, 16}, NULL},
                                    {"m.weight_scale", "U8", 2, {2, 1}, "\177\177"}};
    static const part nv_parts[] = {{"m.weight_packed", "U8", 2, {2, 8}, NULL},
                                    {"m.weight_scale", "F8_E4M3", 2, {2, 1}, "\70\70"},
                                    {"m.weight_global_scale", "F32", 1, {1}, ones}};
    static const change mx_changes[] = {
        {1, {"m.weight_scale", "F8_E8M0", 2, {2, 1}, "\177\177"}, NIB_OK},
        {1, {"m.weight_scale", "U8", 2, {2, 1}, e8m0}, NIB_BAD_INPUT},
        {1, {"m.weight_scale", "BF16", 2, {2, 1}, ones}, NIB_BAD_INPUT},
        {0, {"m.weight_packed", "I32", 2, {2, 16}, NULL}, NIB_BAD_INPUT},
    };
    static const change nv_changes[] = {
        {1, {"m.weight_scale", "F8_E4M3", 2, {2, 1}, e4m3}, NIB_BAD_INPUT},
        {1, {"m.weight_scale", "F32", 2, {2, 1}, ones}, NIB_BAD_INPUT},
        {2, {0}, NIB_BAD_INPUT},
        {2, {"m.weight_global_scale", "F32", 1, {2}, ones}, NIB_BAD_INPUT},
        {2, {"m.weight_global_scale", "F32", 1, {1}, zero}, NIB_BAD_INPUT},
        {2, {"m.weight_global_scale", "F32", 1, {1}, infinite + 1}, NIB_BAD_INPUT},
    };
    static const char fp8[] = CT_CONFIG(
        "float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"", "null");
    static const part fp8_parts[] = {{"m.weight", "F8_E4M3", 2, {2, 5}, NULL},
                                     {"m.weight_scale", "F32", 2, {2, 1}, ones},
                                     {"m.weight_zero_point", "F8_E4M3", 2, {2, 1}, NULL}};
    static const change fp8_changes[] = {
        {2, {"m.weight_zero_point", "F8_E4M3", 2, {2, 1}, "\0\70"}, NIB_UNSUPPORTED}, /* not 0 */
        {2, {0}, NIB_OK},
    };
    static const char *const without_transforms[] = {"null", "{}", "{\"config_groups\":{}}",
                                                     "{\"config_groups\":null}"};
    for (size_t i = 0; i < COUNT(without_transforms); i++) {
        char config[400];
        snprintf(config, sizeof config,
                 "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
                 "\"mxfp4-pack-quantized\",\"transform_config\":%s,\"config_groups\":{\"a\":"
                 "{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4,\"type\":\"float\","
                 "\"group_size\":32}}}}}",
                 without_transforms[i]);
        expect_module(config, mx_parts, COUNT(mx_parts), NIB_OK);
    }
    expect_changes(fp8, fp8_parts, COUNT(fp8_parts), fp8_changes, COUNT(fp8_changes));
    expect_changes(mx, mx_parts, COUNT(mx_parts), mx_changes, COUNT(mx_changes));
    expect_changes(nv, nv_parts, COUNT(nv_parts), nv_changes, COUNT(nv_changes));
}

/* Configs of one packed weight. */
static void test_config(void **state)
{
    (void)state;
    static const int64_t shape[2] = {2, 8};
    static const part parts[] = {{"m.weight_packed", "I32", 2, {2, 1}, NULL},
                                 {"m.weight_scale", "F32", 2, {2, 1}, ones},
                                 {"m.weight_shape", "I64", 1, {2}, shape}};
#define INT4                                                                                       \
    "\"num_bits\":4,\"type\":\"int\",\"symmetric\":true,\"strategy\":\"group\",\"group_size\":"
    static const struct {
        const char *config;
        nib_status status;
    } rows[] = {
        {CT_CONFIG("pack-quantized", INT4 "8", "null"), NIB_OK},
        {CT_CONFIG("pack-quantized", INT4 "100", "null"), NIB_OK},      /* a short group */
        {CT_CONFIG("pack-quantized", INT4 "4", "null"), NIB_BAD_INPUT}, /* 2 scales per row */
        {CT_CONFIG("pack-quantized", INT4 "0", "null"), NIB_UNSUPPORTED},
        {CT_CONFIG("pack-quantized", INT4 "-9", "null"), NIB_UNSUPPORTED},
        {CT_CONFIG("pack-quantized", INT4 "2.5", "null"), NIB_BAD_INPUT},
        {CT_CONFIG("pack-quantized", INT4 "\"8\"", "null"), NIB_BAD_INPUT},
        {CT_CONFIG("pack-quantized", "\"num_bits\":9,\"group_size\":8", "null"), NIB_UNSUPPORTED},
        {CT_CONFIG("pack-quantized", "\"num_bits\":4,\"type\":\"nf4\"", "null"), NIB_UNSUPPORTED},
        {CT_CONFIG("marlin-24", INT4 "8", "null"), NIB_UNSUPPORTED},
        {CT_CONFIG("int-quantized", INT4 "8", "null"), NIB_BAD_INPUT}, /* no m.weight */
        {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
         "\"pack-quantized\"}}",
         NIB_BAD_INPUT}, /* no config_groups */
        {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"
         "\"pack-quantized\",\"config_groups\":{\"a\":{\"targets\":[\"re:x.*\"],\"weights\":"
         "{\"num_bits\":4}}}}}",
         NIB_BAD_INPUT}, /* no group's targets match */
        {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"ignore\":[\"re:m\"],"
         "\"config_groups\":{\"a\":{\"targets\":[\"Linear\"],\"weights\":{\"num_bits\":4}}}}}",
         NIB_BAD_INPUT},
        {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":"
         "{\"W4A16\":[\"Linear\"]}}}",
         NIB_BAD_INPUT}, /* a preset */
        {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":"
         "{\"a\":{\"targets\":[\"re:(\"]}}}}",
         NIB_BAD_INPUT}, /* a bad pattern */
        {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":"
         "{\"a\":{\"targets\":[\"m\"]}},\"transform_config\":{\"config_groups\":{\"R1\":{}}}}}",
         NIB_UNSUPPORTED},
        {"{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"config_groups\":"
         "{\"a\":{\"targets\":[\"m\"]}},\"sparsity_config\":{\"format\":\"sparse-24-bitmask\"}}}",
         NIB_UNSUPPORTED},
        {NULL, NIB_UNSUPPORTED}, /* no config.json */
        {"{}", NIB_UNSUPPORTED}, /* no quantization_config */
    };
    for (size_t i = 0; i < COUNT(rows); i++)
        expect_module(rows[i].config, parts, COUNT(parts), rows[i].status);
}

/* What each format may code, with two rows of 32 codes. */
static void test_codings(void **state)
{
    (void)state;
#define TYPE(type, bits) "\"type\":\"" type "\",\"num_bits\":" bits
#define STRATEGY(name) ",\"strategy\":\"" name "\""
#define INT8 TYPE("int", "8")
#define FP8 TYPE("float", "8")
#define FP4 TYPE("float", "4")
    static const struct {
        const char *config, *codes;
        int64_t columns;
        const char *scales;
        int64_t groups;
        nib_status status;
    } rows[] = {
        {CT_CONFIG("int-quantized", INT8 STRATEGY("channel"), "null"), "I8", 32, "F32", 1, NIB_OK},
        {CT_CONFIG("int-quantized", TYPE("int", "4") STRATEGY("channel"), "null"), "I8", 32, "F32",
         1, NIB_OK},
        {CT_CONFIG("int-quantized", TYPE("int", "9") STRATEGY("channel"), "null"), "I8", 32, "F32",
         1, NIB_UNSUPPORTED},
        {CT_CONFIG("int-quantized", TYPE("int", "0") STRATEGY("channel"), "null"), "I8", 32, "F32",
         1, NIB_UNSUPPORTED},
        {CT_CONFIG("int-quantized", FP8 STRATEGY("channel"), "null"), "I8", 32, "F32", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("int-quantized", INT8 STRATEGY("channel"), "null"), "F8_E4M3", 32, "F32", 1,
         NIB_BAD_INPUT},
        {CT_CONFIG("int-quantized", INT8 STRATEGY("channel"), "null"), "I8", 32, "F32", 2,
         NIB_BAD_INPUT},
        {CT_CONFIG("int-quantized", INT8 STRATEGY("rows"), "null"), "I8", 32, "F32", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("int-quantized", INT8 STRATEGY("group"), "null"), "I8", 32, "F32", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("int-quantized", INT8 STRATEGY("tensor_group"), "null"), "I8", 32, "F32", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("int-quantized", INT8 STRATEGY("block"), "null"), "I8", 32, "F32", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("int-quantized", INT8 STRATEGY("block") ",\"block_structure\":[2,0]", "null"),
         "I8", 32, "F32", 1, NIB_UNSUPPORTED},
        {CT_CONFIG("int-quantized", INT8 STRATEGY("channel") ",\"symmetric\":false", "null"), "I8",
         32, "F32", 1, NIB_BAD_INPUT}, /* no zero points */
        {CT_CONFIG("naive-quantized", INT8 STRATEGY("channel"), "null"), "I8", 32, "F32", 1,
         NIB_OK},
        {CT_CONFIG("naive-quantized", FP8 STRATEGY("channel"), "null"), "F8_E4M3", 32, "F32", 1,
         NIB_OK},
        {CT_CONFIG("float-quantized", FP8 STRATEGY("channel"), "null"), "I8", 32, "F32", 1,
         NIB_BAD_INPUT},
        {CT_CONFIG("float-quantized", INT8 STRATEGY("channel"), "null"), "F8_E4M3", 32, "F32", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("float-quantized", FP4 STRATEGY("channel"), "null"), "F8_E4M3", 32, "F32", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("float-quantized", FP8 STRATEGY("channel") ",\"symmetric\":false", "null"),
         "F8_E4M3", 32, "F32", 1, NIB_UNSUPPORTED},
        {CT_CONFIG("float-quantized", FP8 STRATEGY("rows"), "null"), "F8_E4M3", 32, "F32", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("mxfp8-quantized", FP8 ",\"group_size\":32", "null"), "F8_E4M3", 32, "U8", 1,
         NIB_OK},
        {CT_CONFIG("mxfp8-quantized", FP8 ",\"group_size\":32",
                   "{" FP8 ",\"group_size\":32,\"dynamic\":true}"),
         "F8_E4M3", 32, "U8", 1, NIB_OK},
        {CT_CONFIG("mxfp8-quantized", FP8 ",\"group_size\":32",
                   "{" FP8 ",\"group_size\":16,\"dynamic\":true}"),
         "F8_E4M3", 32, "U8", 1, NIB_OK},
        {CT_CONFIG("mxfp8-quantized", FP8 ",\"group_size\":32", "null"), "I8", 32, "U8", 1,
         NIB_BAD_INPUT},
        {CT_CONFIG("mxfp8-quantized", FP8 ",\"group_size\":16", "null"), "F8_E4M3", 32, "U8", 2,
         NIB_UNSUPPORTED},
        {CT_CONFIG("mxfp8-quantized", INT8 ",\"group_size\":32", "null"), "F8_E4M3", 32, "U8", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("mxfp8-quantized", FP4 ",\"group_size\":32", "null"), "F8_E4M3", 32, "U8", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("mxfp4-pack-quantized", FP4 ",\"group_size\":32", "null"), "U8", 16, "U8", 1,
         NIB_OK},
        {CT_CONFIG("mxfp4-pack-quantized", FP4 ",\"group_size\":16", "null"), "U8", 16, "U8", 2,
         NIB_UNSUPPORTED},
        {CT_CONFIG("mxfp4-pack-quantized", FP8 ",\"group_size\":32", "null"), "U8", 16, "U8", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("mxfp4-pack-quantized", INT8 ",\"group_size\":32", "null"), "U8", 16, "U8", 1,
         NIB_UNSUPPORTED},
        {CT_CONFIG("nvfp4-pack-quantized", FP4 ",\"group_size\":16", "null"), "U8", 16, "F8_E4M3",
         2, NIB_OK},
        {CT_CONFIG("nvfp4-pack-quantized", FP4 ",\"group_size\":16", "null"), "I8", 16, "F8_E4M3",
         2, NIB_BAD_INPUT},
        {CT_CONFIG("nvfp4-pack-quantized", FP4 ",\"group_size\":32", "null"), "U8", 16, "F8_E4M3",
         1, NIB_UNSUPPORTED},
        {CT_CONFIG("nvfp4-pack-quantized", FP8 ",\"group_size\":16", "null"), "U8", 16, "F8_E4M3",
         2, NIB_UNSUPPORTED},
        {CT_CONFIG("nvfp4-pack-quantized", TYPE("int", "4") ",\"group_size\":16", "null"), "U8", 16,
         "F8_E4M3", 2, NIB_UNSUPPORTED},
        {CT_CONFIG("nvfp4-pack-quantized", FP4 ",\"group_size\":16,\"symmetric\":false", "null"),
         "U8", 16, "F8_E4M3", 2, NIB_UNSUPPORTED},
    };
    for (size_t i = 0; i < COUNT(rows); i++) {
        const bool is_packed = rows[i].columns == 16;
        const part parts[] = {{is_packed ? "m.weight_packed" : "m.weight",
                               rows[i].codes,
                               2,
                               {2, rows[i].columns},
                               NULL},
                              {"m.weight_scale",
                               rows[i].scales,
                               2,
                               {2, rows[i].groups},
                               strcmp(rows[i].scales, "F32") == 0 ? ones : NULL},
                              {"m.weight_global_scale", "F32", 1, {1}, ones}};
        expect_module(rows[i].config, parts, COUNT(parts), rows[i].status);
    }
#undef INT8
}

/* One scale for a tensor has one value, however many dimensions. */
static void test_tensor_scale(void **state)
{
    (void)state;
    static const char config[] = CT_CONFIG(
        "int-quantized", "\"num_bits\":8,\"type\":\"int\",\"strategy\":\"tensor\"", "null"),
                      nv[] =
                          CT_CONFIG("nvfp4-pack-quantized",
                                    "\"num_bits\":4,\"type\":\"float\",\"group_size\":16", "null");
    static const part parts[] = {{"m.weight", "I8", 2, {2, 4}, NULL},
                                 {"m.weight_scale", "F32", 2, {1, 1}, ones}},
                      four[] = {{"m.weight_packed", "U8", 2, {2, 8}, NULL},
                                {"m.weight_scale", "F8_E4M3", 2, {2, 1}, NULL},
                                {"m.weight_global_scale", "F32", 1, {1}, ones}};
    static const change changes[] = {{1, {"m.weight_scale", "F32", 0, {0}, ones}, NIB_OK},
                                     {1, {"m.weight_scale", "F32", 1, {2}, ones}, NIB_BAD_INPUT},
                                     {1, {"m.weight_scale", "F32", 2, {2, 1}, ones}, NIB_BAD_INPUT},
                                     {1, {0}, NIB_UNSUPPORTED}},
                        global[] = {
                            {2, {"m.weight_global_scale", "F16", 1, {1}, NULL}, NIB_BAD_INPUT},
                            {2, {"m.weight_global_scale", "F64", 1, {1}, NULL}, NIB_BAD_INPUT}};
    expect_changes(config, parts, COUNT(parts), changes, COUNT(changes));
    expect_changes(nv, four, COUNT(four), global, COUNT(global));
}

/* Which tensors are compressed-tensors' codes, and of which group. */
static void test_claims(void **state)
{
    (void)state;
    static const part plain[] = {{"m.weight", "F32", 2, {2, 4}, NULL},
                                 {"m.weight_scale", "F32", 2, {2, 1}, ones}},
                      codes[] = {{"m.weight", "I8", 2, {2, 4}, NULL},
                                 {"m.weight_scale", "F32", 2, {2, 1}, ones}},
                      zeros[] = {{"m.weight", "I8", 2, {2, 4}, NULL},
                                 {"m.weight_scale", "F32", 2, {2, 1}, ones},
                                 {"m.weight_zero_point", "I8", 2, {1, 2}, NULL}};
#define OF(group)                                                                                  \
    "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":"                \
    "\"int-quantized\",\"config_groups\":{\"a\":{\"targets\":[\"Linear\"]" group "}}}}"
#define CHANNEL ",\"weights\":{\"strategy\":\"channel\"}"
    static const struct {
        const char *config;
        const part *parts;
        size_t count;
        nib_status status;
    } cases[] = {
        {OF(CHANNEL), codes, 2, NIB_OK},
        {OF(CHANNEL ",\"format\":\"mixed-precision\""), codes, 2, NIB_OK},
        {OF(CHANNEL ",\"format\":\"float-quantized\""), codes, 2, NIB_UNSUPPORTED},
        {OF(CHANNEL), plain, 2, NIB_OK},          /* floats */
        {OF(CHANNEL), codes, 1, NIB_UNSUPPORTED}, /* codes without scales */
        {OF(CHANNEL), zeros, 3, NIB_BAD_INPUT},
        {OF(",\"weights\":null"), codes, 2, NIB_BAD_INPUT},
        {OF(""), codes, 2, NIB_BAD_INPUT},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        expect_module(cases[i].config, cases[i].parts, cases[i].count, cases[i].status);
}

/* ---- keys of config.json ---- */

/* Reads module m of two rows and its scheme's name. */
static void read_scheme(made *m, nib_weight *w, nib_ledger *ledger, char name[64],
                        const char *config, const part *parts, size_t count)
{
    if (make_checkpoint(m, config, parts, count) != NIB_OK)
        fail_msg("%s", m->err.text);
    nib__ledger_init(ledger, &m->allocator);
    if (nib__checkpoint_weight(w, NULL, m->cp, "m", ledger, &m->err) != NIB_OK)
        fail_msg("%s: %s", config, m->err.text);
    nib__scheme_name(name, &w->scheme);
}

#define INTS(weights, inputs)                                                                      \
    CT_CONFIG("int-quantized", "\"num_bits\":8,\"type\":\"int\"" weights, inputs)
#define FLOATS(inputs)                                                                             \
    CT_CONFIG("float-quantized", "\"num_bits\":8,\"type\":\"float\",\"strategy\":\"channel\"",     \
              "{\"num_bits\":8,\"type\":\"float\"," inputs "}")
#define ROWS(bits, inputs)                                                                         \
    INTS(",\"strategy\":\"channel\"",                                                              \
         "{\"num_bits\":" bits ",\"type\":\"int\",\"dynamic\":true," inputs "}")

static void test_config_keys(void **state)
{
    (void)state;
    static const struct {
        const char *config;
        int64_t rows, groups; /* of the scales; rows 0: one value */
        const char *scheme;
        size_t said; /* lines of the ledger */
    } cases[] = {
        /* without a strategy, group_size decides */
        {INTS("", "null"), 0, 1, "int8wo-tensor", 0},
        {INTS(",\"group_size\":-1", "null"), 2, 1, "int8wo", 0},
        {INTS(",\"group_size\":8", "null"), 2, 2, "int8wo-g8", 0},
        {INTS(",\"group_size\":8,\"strategy\":\"channel\"", "null"), 2, 1, "int8wo", 0},
        {INTS(",\"strategy\":\"block\",\"block_structure\":[2,8]", "null"), 1, 2, "int8wo-g8", 0},
        /* dynamic activations; one scale per batch gets a ledger line */
        {ROWS("8", "\"strategy\":\"token\""), 2, 1, "int8dq", 0},
        {ROWS("8", "\"strategy\":\"tensor\""), 2, 1, "int8dq", 1},
        {ROWS("8", "\"strategy\":\"token\",\"symmetric\":false"), 2, 1, "int8dq-actasym", 0},
        {ROWS("4", "\"strategy\":\"token\""), 2, 1, "i8+a4t-actsym", 0},
        {ROWS("8", "\"strategy\":\"group\",\"group_size\":8"), 2, 1, "int8wo", 1},
        {FLOATS("\"strategy\":\"token\",\"dynamic\":true"), 2, 1, "fp8dq", 0},
        {FLOATS("\"strategy\":\"tensor\",\"dynamic\":true"), 2, 1, "fp8dq", 1},
        {FLOATS("\"strategy\":\"tensor\",\"dynamic\":false"), 2, 1, "fp8wo", 1},
        {FLOATS("\"strategy\":\"group\",\"group_size\":128,\"dynamic\":true"), 2, 1, "fp8wo", 1},
        {INTS(",\"strategy\":\"tensor_group\",\"group_size\":8", "null"), 2, 2, "int8wo-g8", 0},
        {ROWS("8", "\"observer\":\"minmax\""), 2, 1, "int8dq", 0}, /* no strategy */
        {FLOATS("\"dynamic\":true"), 2, 1, "fp8dq", 0},
        /* activations without a kernel get a ledger line and stay floats */
        {ROWS("3", "\"strategy\":\"token\""), 2, 1, "int8wo", 1},
        {ROWS("8", "\"strategy\":\"channel\""), 2, 1, "int8wo", 1},
        {ROWS("8", "\"group_size\":8,\"type\":\"float\""), 2, 1, "int8wo", 1},
        {ROWS("8", "\"dynamic\":\"local\",\"strategy\":\"tensor_group\",\"group_size\":8"), 2, 1,
         "int8wo", 1},
        {ROWS("4", "\"dynamic\":false,\"strategy\":\"tensor\""), 2, 1, "int8wo", 1},
        {ROWS("8", "\"dynamic\":false,\"strategy\":\"token\""), 2, 1, "int8wo", 1},
        {FLOATS("\"num_bits\":4,\"dynamic\":true"), 2, 1, "fp8wo", 1},
        {FLOATS("\"group_size\":8,\"dynamic\":true"), 2, 1, "fp8wo", 1},
        {FLOATS("\"type\":\"int\",\"dynamic\":false"), 2, 1, "fp8wo", 1},
        {FLOATS("\"type\":\"int\",\"dynamic\":true"), 2, 1, "fp8wo", 1},
        {FLOATS("\"type\":\"nf\",\"dynamic\":true"), 2, 1, "fp8wo", 1},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        const bool e4m3 = strstr(cases[i].config, "float-quantized") != NULL;
        const part parts[] = {{"m.weight", e4m3 ? "F8_E4M3" : "I8", 2, {2, 16}, NULL},
                              {"m.weight_scale",
                               "F32",
                               cases[i].rows == 0 ? 1 : 2,
                               {nib__max(1, cases[i].rows), cases[i].groups},
                               ones}};
        made m;
        nib_weight w;
        nib_ledger ledger;
        char name[64];
        read_scheme(&m, &w, &ledger, name, cases[i].config, parts, COUNT(parts));
        if (strcmp(name, cases[i].scheme) != 0 || ledger.tensor_count != cases[i].said)
            fail_msg("%s is %s with %zu lines", cases[i].config, name, ledger.tensor_count);
        nib__ledger_free(&ledger);
        drop_checkpoint(&m);
    }
}

/* Asymmetric static activations have a zero point of I8 or I32. */
static void test_static_zero(void **state)
{
    (void)state;
    static const char config[] =
        INTS(",\"strategy\":\"channel\"",
             "{\"num_bits\":8,\"type\":\"int\",\"symmetric\":false,\"strategy\":\"tensor\"}");
    static const float scale[1] = {0.25F};
    static const int8_t low[1] = {-128};
    static const int32_t wide[1] = {127}, beyond[1] = {128}, below[1] = {-129};
    const part parts[] = {{"m.weight", "I8", 2, {2, 16}, NULL},
                          {"m.weight_scale", "F32", 2, {2, 1}, ones},
                          {"m.input_scale", "F32", 1, {1}, scale},
                          {"m.input_zero_point", "I8", 1, {1}, low}};
    made m;
    nib_weight w;
    nib_ledger ledger;
    char name[64];
    read_scheme(&m, &w, &ledger, name, config, parts, COUNT(parts));
    assert_string_equal(name, "int8dq-actasym-static");
    assert_true(*w.act_scale == 0.25F);
    assert_int_equal(*w.act_zero, -128);
    nib__ledger_free(&ledger);
    drop_checkpoint(&m);
    static const change changes[] = {
        {3, {"m.input_zero_point", "I32", 1, {1}, wide}, NIB_OK},
        {3, {"m.input_zero_point", "I32", 1, {1}, beyond}, NIB_BAD_INPUT},
        {3, {"m.input_zero_point", "I32", 1, {1}, below}, NIB_BAD_INPUT},
        {3, {"m.input_zero_point", "F32", 1, {1}, NULL}, NIB_BAD_INPUT},
        {3, {"m.input_zero_point", "I8", 1, {2}, NULL}, NIB_BAD_INPUT},
    };
    expect_changes(config, parts, COUNT(parts), changes, COUNT(changes));
}

/* A per-tensor zero point is not packed, whatever its type. */
static void test_tensor_zero(void **state)
{
    (void)state;
    static const char config[] = CT_CONFIG(
        "pack-quantized",
        "\"num_bits\":4,\"type\":\"int\",\"symmetric\":false,\"strategy\":\"tensor\"", "null");
    static const int64_t shape[2] = {2, 8};
    static const int32_t three[1] = {3};
    static const uint8_t codes[8] = {0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe};
    static const float two[1] = {2};
    const part parts[] = {{"m.weight_packed", "I32", 2, {2, 1}, codes},
                          {"m.weight_scale", "F32", 1, {1}, two},
                          {"m.weight_shape", "I64", 1, {2}, shape},
                          {"m.weight_zero_point", "I32", 1, {1}, three}};
    made m;
    nib_weight w;
    nib_ledger ledger;
    char name[64];
    float row[8];
    read_scheme(&m, &w, &ledger, name, config, parts, COUNT(parts));
    nib__weight_row(&w, 1, row);
    for (int j = 0; j < 8; j++)
        assert_true(row[j] == 2 * (float)(j - 3)); /* stored as 8 + j */
    nib__ledger_free(&ledger);
    drop_checkpoint(&m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_packed_hostile), cmocka_unit_test(test_bytes_hostile),
        cmocka_unit_test(test_float_hostile),  cmocka_unit_test(test_config),
        cmocka_unit_test(test_codings),        cmocka_unit_test(test_claims),
        cmocka_unit_test(test_tensor_scale),   cmocka_unit_test(test_config_keys),
        cmocka_unit_test(test_static_zero),    cmocka_unit_test(test_tensor_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
