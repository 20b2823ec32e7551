/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes weights for torchao: the tensor class for a scheme, its metadata and its config, with
 * members in the order in which torchao 0.18 writes them.
 */
#include "dialects.h"

#include <inttypes.h>
#include <stdio.h>

typedef enum tensor_class { INT8, INTX, INT4, FLOAT8, MX, NV } tensor_class;

static tensor_class choose_class(const nib_scheme *s)
{
    switch (s->code) {
    case NIB_CODE_I8: return s->group <= 0 && s->symmetric ? INT8 : INTX;
    case NIB_CODE_I4: return s->zero == NIB_ZERO_FLOAT ? INT4 : INTX;
    default:
        return nib__code_is_odd_int(s->code)                     ? INTX
               : nib__code_is_mx(s->code)                        ? MX
               : nib__codes[s->code].scale_type == NIB_TYPE_E4M3 ? NV
                                                                 : FLOAT8;
    }
}

/* ---- what torchao cannot store ---- */

static const char *refuse_acts(const nib_scheme *s)
{
    const bool intx = choose_class(s) == INTX;
    if (s->act == NIB_ACT_I8_STATIC)
        return "static activation scales need the nibble dialect";
    if (s->act == NIB_ACT_I4_TOKEN)
        return "torchao has no 4-bit activations for it";
    if (choose_class(s) == MX && !nib__act_is_mx(s->act))
        return "torchao has MX weights with MX activations only (mxfp8, mxfp4dq)";
    if (s->act == NIB_ACT_I8_TOKEN && s->formula == NIB_FORMULA_AO017)
        return "its activations use the formula of torchao 0.17, which 0.18 no longer has";
    if (intx && s->code == NIB_CODE_I8 && s->act == NIB_ACT_I8_TOKEN)
        return "torchao's int8 weights with int8 activations have one scale per row or tensor";
    if (intx && s->act == NIB_ACT_I8_TOKEN && s->act_symmetric)
        return "torchao's 8da4w has asymmetric activations only";
    if ((s->act == NIB_ACT_E4M3_TOKEN && s->group == NIB_GROUP_TENSOR) ||
        (s->act == NIB_ACT_NV4 && !s->block_only))
        return "torchao would also scale the activations per tensor, not per token";
    return NULL;
}

static const char *refuse_shape(char out[160], const nib_output_weight *w)
{
    const nib_scheme *s = &w->scheme;
    const int64_t g = nib__scheme_group_size(s, w->k);
    if (s->group > 0 && w->k % g != 0) {
        snprintf(out, 160, "k = %" PRId64 " is not a multiple of the group size %" PRId64, w->k, g);
        return out;
    }
    if (choose_class(s) == INT4 && w->k % 2 != 0) {
        snprintf(out, 160, "k = %" PRId64 " is odd, and two codes share a byte", w->k);
        return out;
    }
    return NULL;
}

static const char *fit_torchao(char out[160], nib_output_weight *w)
{
    const nib_scheme *s = &w->scheme;
    const char *acts = refuse_acts(s), *shape = refuse_shape(out, w);
    if (acts != NULL || shape != NULL)
        return acts != NULL ? acts : shape;
    if (s->formula == NIB_FORMULA_SUPER)
        return "torchao has no super-blocks";
    if (s->formula == NIB_FORMULA_LEVELS)
        return "torchao has no codes from a table of levels";
    if (choose_class(s) == INT4 && s->formula == NIB_FORMULA_GGML)
        return "torchao's int4 stores zeros in the type of the scales, f16, which cannot represent "
               "ggml's zeros";
    if (w->embedding && (choose_class(s) == INT4 || choose_class(s) == NV))
        return "torchao cannot look up rows of an Int4Tensor or an NVFP4Tensor";
    if (choose_class(s) == INT4 && s->group <= 0)
        return "torchao's int4 with float zeros must have groups";
    if (choose_class(s) == INTX && s->group == NIB_GROUP_TENSOR)
        return "torchao's asymmetric integers have one scale per row or group";
    if (choose_class(s) == INTX && s->zero == NIB_ZERO_FLOAT)
        return "torchao's integers of this width have integer zero points";
    if (choose_class(s) == FLOAT8 && s->group > 0)
        return "torchao's fp8 weights have one scale per row or tensor";
    if (s->code == NIB_CODE_E5M2)
        return "nibble does not write e5m2 for torchao";
    w->tensor_divides = false; /* torchao multiplies */
    if (w->scale_type == NIB_TYPE_F64 || choose_class(s) == INT8 || choose_class(s) == FLOAT8)
        w->scale_type = NIB_TYPE_F32;
    if (s->zero == NIB_ZERO_INT)
        w->zero_type = NIB_TYPE_I8;
    if (s->zero == NIB_ZERO_FLOAT)
        w->zero_type = w->scale_type;
    return NULL;
}

/* ---- layouts ---- */

static nib_output_part part(const char *suffix, nib_type type, int64_t rows, int64_t columns)
{
    return (nib_output_part){suffix, type, 2, {rows, columns}};
}

static void layout_torchao(nib_file_layout *out, const nib_output_weight *w)
{
    static const char scale[] = "._weight_scale";
    const nib_scheme *s = &w->scheme;
    const tensor_class class = choose_class(s);
    const bool nibbles = class != INTX && nib__code_bits(s->code) == 4,
               tiles = class == MX || class == NV;
    const int64_t groups = nib__scheme_groups(s, w->k),
                  rows = s->group == NIB_GROUP_TENSOR ? 1 : w->n;
    *out = (nib_file_layout){.pieces = nibbles ? NIB_PIECES_NIBBLES : NIB_PIECES_BYTES,
                             .order = class == INT4 ? NIB_ORDER_GROUPS
                                      : tiles       ? NIB_ORDER_TILES
                                                    : NIB_ORDER_ROWS,
                             .zero_filled =
                                 (class == INT8 || class == INTX) && w->zero_type == NIB_TYPE_NONE};
    out->zero_order = out->order;
    out->codes =
        part("._weight_qdata", nib__code_is_int(s->code) ? NIB_TYPE_I8 : nib__code_type(s->code),
             w->n, nibbles ? nib__ceil_div(w->k, 2) : w->k);
    out->scales = class == INT4 ? part(scale, w->scale_type, groups, rows)
                  : tiles       ? part(scale, w->scale_type, nib__ceil_div(w->n, 128) * 32,
                                       nib__ceil_div(groups, 4) * 16)
                                : part(scale, w->scale_type, rows, groups);
    if (nib__scheme_has_tensor_scale(s))
        out->tensor = (nib_output_part){"._weight_per_tensor_scale", NIB_TYPE_F32, 0, {0}};
    if (w->zero_type == NIB_TYPE_NONE && !out->zero_filled)
        return;
    out->zeros = out->scales;
    out->zeros.suffix = "._weight_zero_point";
    out->zeros.type = out->zero_filled ? NIB_TYPE_I8 : w->zero_type;
}

/* ---- torchao's JSON ---- */

/* {"_type": type, "_data": data} */
static void put_typed(nib_jsonw *w, const char *key, const char *type, const char *data)
{
    nib__jsonw_key(w, key);
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "_type", type);
    nib__jsonw_pair_string(w, "_data", data);
    nib__jsonw_object_end(w);
}

static void put_dtype(nib_jsonw *w, const char *key, const char *name)
{
    put_typed(w, key, "torch.dtype", name);
}

static void put_null(nib_jsonw *w, const char *key)
{
    nib__jsonw_key(w, key);
    nib__jsonw_null(w);
}

static void open_typed(nib_jsonw *w, const char *type, int version)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "_type", type);
    if (version != 0)
        nib__jsonw_pair_int(w, "_version", version);
    nib__jsonw_key(w, "_data");
    nib__jsonw_object(w);
}

static void close_typed(nib_jsonw *w)
{
    nib__jsonw_object_end(w);
    nib__jsonw_object_end(w);
}

/* Configs have a version here, metadata does not (0). */
static void put_granularity(nib_jsonw *w, int64_t group, int version)
{
    open_typed(w,
               group == NIB_GROUP_TENSOR ? "PerTensor"
               : group == NIB_GROUP_ROW  ? "PerRow"
                                         : "PerGroup",
               version);
    if (group == NIB_GROUP_ROW)
        nib__jsonw_pair_int(w, "dim", -1);
    else if (group > 0)
        nib__jsonw_pair_int(w, "group_size", group);
    close_typed(w);
}

/* Intx configs use PerAxis instead of PerRow. */
static void put_intx_granularity(nib_jsonw *w, int64_t group)
{
    if (group > 0) {
        put_granularity(w, group, 1);
        return;
    }
    open_typed(w, "PerAxis", 1);
    nib__jsonw_pair_int(w, "axis", 0);
    close_typed(w);
}

static void put_block_size(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    nib__jsonw_key(w, "block_size");
    nib__jsonw_array(w);
    nib__jsonw_int(w, s->group == NIB_GROUP_TENSOR ? weight->n : 1);
    nib__jsonw_int(w, nib__scheme_group_size(s, weight->k));
    nib__jsonw_array_end(w);
}

static const char *dtype_name(nib_type type)
{
    return type == NIB_TYPE_BF16 ? "bfloat16" : type == NIB_TYPE_F16 ? "float16" : "float32";
}

static const char *mapping_name(bool symmetric) { return symmetric ? "SYMMETRIC" : "ASYMMETRIC"; }

static const char *mx_type_name(const nib_scheme *s)
{
    return s->code == NIB_CODE_MX4 ? "float4_e2m1fn_x2" : "float8_e4m3fn";
}

/* ---- descriptions ---- */

static void describe_int8(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    nib__jsonw_key(w, "act_quant_kwargs");
    if (s->act == NIB_ACT_I8_TOKEN) {
        open_typed(w, "QuantizeTensorToInt8Kwargs", 0);
        nib__jsonw_key(w, "granularity");
        put_granularity(w, NIB_GROUP_ROW, 0);
        put_typed(w, "mapping_type", "MappingType", mapping_name(s->act_symmetric));
        nib__jsonw_pair_bool(w, "reduce_range", false);
        close_typed(w);
    } else {
        nib__jsonw_null(w);
    }
    nib__jsonw_pair_bool(w, "reduce_range", false);
    put_block_size(w, weight);
    put_dtype(w, "dtype", dtype_name(weight->source));
}

static void describe_intx(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    put_dtype(w, "target_dtype", nib__codes[s->code].name);
    put_block_size(w, weight);
    put_dtype(w, "dtype", dtype_name(weight->source));
    nib__jsonw_pair_string(w, "activation_quantization",
                           s->act == NIB_ACT_I8_TOKEN ? "int8_asym_per_token" : NULL);
}

static void describe_int4(nib_jsonw *w, const nib_output_weight *weight)
{
    put_dtype(w, "activation_dtype", "bfloat16");
    put_block_size(w, weight);
    nib__jsonw_key(w, "shape");
    nib__jsonw_array(w);
    nib__jsonw_int(w, weight->n);
    nib__jsonw_int(w, weight->k);
    nib__jsonw_array_end(w);
}

static void put_mm_config(nib_jsonw *w, int version)
{
    nib__jsonw_key(w, "mm_config");
    open_typed(w, "Float8MMConfig", version);
    nib__jsonw_pair_bool(w, "emulate", false);
    nib__jsonw_pair_bool(w, "use_fast_accum", true);
    nib__jsonw_pair_bool(w, "pad_inner_dim", false);
    close_typed(w);
}

static void describe_float8(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    put_block_size(w, weight);
    if (s->act == NIB_ACT_E4M3_TOKEN) {
        put_mm_config(w, 0);
        nib__jsonw_key(w, "act_quant_kwargs");
        open_typed(w, "QuantizeTensorToFloat8Kwargs", 0);
        put_dtype(w, "float8_dtype", "float8_e4m3fn");
        nib__jsonw_key(w, "granularity");
        put_granularity(w, s->group, 0);
        put_null(w, "mm_config");
        put_null(w, "hp_value_lb");
        put_null(w, "hp_value_ub");
        put_typed(w, "kernel_preference", "KernelPreference", "AUTO");
        close_typed(w);
    } else {
        put_null(w, "mm_config");
        put_null(w, "act_quant_kwargs");
    }
    put_typed(w, "kernel_preference", "KernelPreference", "AUTO");
    put_dtype(w, "dtype", dtype_name(weight->source));
}

static void describe_mx(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    put_dtype(w, "elem_dtype", mx_type_name(s));
    nib__jsonw_pair_int(w, "block_size", 32);
    put_dtype(w, "orig_dtype", dtype_name(weight->source));
    put_typed(w, "kernel_preference", "KernelPreference", "AUTO");
    nib__jsonw_key(w, "act_quant_kwargs");
    if (nib__act_is_mx(s->act)) {
        open_typed(w, "QuantizeTensorToMXKwargs", 0);
        put_dtype(w, "elem_dtype", mx_type_name(s));
        nib__jsonw_pair_int(w, "block_size", 32);
        put_typed(w, "scaling_mode", "ScaleCalculationMode", s->mx_floor ? "FLOOR" : "RCEIL");
        put_typed(w, "kernel_preference", "KernelPreference", "AUTO");
        nib__jsonw_pair_bool(w, "is_swizzled_scales", true);
        close_typed(w);
    } else {
        nib__jsonw_null(w);
    }
    nib__jsonw_pair_bool(w, "is_swizzled_scales", true);
}

static void describe_nv(nib_jsonw *w, const nib_output_weight *weight)
{
    nib__jsonw_pair_bool(w, "is_swizzled_scales", true);
    nib__jsonw_pair_bool(w, "use_triton_kernel", false);
    nib__jsonw_key(w, "act_quant_kwargs");
    if (weight->scheme.act == NIB_ACT_NV4) {
        open_typed(w, "QuantizeTensorToNVFP4Kwargs", 0);
        nib__jsonw_pair_int(w, "block_size", 16);
        nib__jsonw_pair_bool(w, "is_swizzled_scales", true);
        nib__jsonw_pair_bool(w, "use_triton_kernel", false);
        nib__jsonw_pair_bool(w, "use_dynamic_per_tensor_scale", !weight->scheme.block_only);
        close_typed(w);
    } else {
        nib__jsonw_null(w);
    }
    nib__jsonw_pair_int(w, "block_size", 16);
    put_dtype(w, "orig_dtype", dtype_name(weight->source));
}

static void describe(nib_text *out, const nib_output_weight *weight)
{
    static const struct {
        const char *name;
        void (*describe)(nib_jsonw *w, const nib_output_weight *weight);
        const char *parts[3];
    } classes[] = {
        [INT8] = {"Int8Tensor", describe_int8, {"zero_point", "qdata", "scale"}},
        [INTX] = {"IntxUnpackedToInt8Tensor", describe_intx, {"qdata", "scale", "zero_point"}},
        [INT4] = {"Int4Tensor", describe_int4, {"qdata", "scale", "zero_point"}},
        [FLOAT8] = {"Float8Tensor", describe_float8, {"qdata", "scale"}},
        [MX] = {"MXTensor", describe_mx, {"qdata", "scale"}},
        [NV] = {"NVFP4Tensor", describe_nv, {"per_tensor_scale", "qdata", "scale"}},
    };
    const tensor_class class = choose_class(&weight->scheme);
    nib_jsonw w;
    nib__jsonw_init(&w, out, 0);
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "_type", classes[class].name);
    nib__jsonw_key(&w, "_data");
    nib__jsonw_object(&w);
    classes[class].describe(&w, weight);
    nib__jsonw_object_end(&w);
    nib__jsonw_key(&w, "_tensor_data_names");
    nib__jsonw_array(&w);
    const size_t first = class == NV && !nib__scheme_has_tensor_scale(&weight->scheme);
    for (size_t i = first; i < 3 && classes[class].parts[i] != NULL; i++)
        nib__jsonw_string(&w, classes[class].parts[i]);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
}

const nib_dialect_writer nib__write_torchao = {
    .ties = true, .fit = fit_torchao, .layout = layout_torchao, .describe = describe};

/* ---- configs ---- */

static void config_int8(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    if (s->act == NIB_ACT_FLOAT) {
        open_typed(w, "Int8WeightOnlyConfig", 2);
        put_null(w, "group_size");
        nib__jsonw_key(w, "granularity");
        put_granularity(w, s->group, 1);
        nib__jsonw_pair_bool(w, "set_inductor_config", true);
        close_typed(w);
        return;
    }
    open_typed(w, "Int8DynamicActivationInt8WeightConfig", 2);
    put_typed(w, "act_mapping_type", "MappingType", mapping_name(s->act_symmetric));
    nib__jsonw_pair_bool(w, "weight_only_decode", false);
    nib__jsonw_key(w, "granularity");
    if (s->group == NIB_GROUP_TENSOR) { /* activations, then weight */
        nib__jsonw_array(w);
        put_granularity(w, NIB_GROUP_ROW, 1);
        put_granularity(w, NIB_GROUP_TENSOR, 1);
        nib__jsonw_array_end(w);
    } else {
        put_granularity(w, NIB_GROUP_ROW, 1);
    }
    nib__jsonw_pair_bool(w, "set_inductor_config", true);
    nib__jsonw_pair_bool(w, "reduce_range", false);
    close_typed(w);
}

nib_type nib__torchao_scale_dtype(const nib_output_weight *weight)
{
    return choose_class(&weight->scheme) == INTX && weight->scale_type != weight->source
               ? weight->scale_type
               : NIB_TYPE_NONE;
}

static void config_intx(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    const bool act = s->act == NIB_ACT_I8_TOKEN;
    open_typed(w, act ? "Int8DynamicActivationIntxWeightConfig" : "IntxWeightOnlyConfig", 2);
    put_dtype(w, "weight_dtype", nib__codes[s->code].name);
    nib__jsonw_key(w, act ? "weight_granularity" : "granularity");
    put_intx_granularity(w, s->group);
    put_typed(w, act ? "weight_mapping_type" : "mapping_type", "MappingType",
              mapping_name(s->symmetric));
    const char *key = act ? "weight_scale_dtype" : "scale_dtype";
    const nib_type scales = nib__torchao_scale_dtype(weight);
    if (scales == NIB_TYPE_NONE)
        put_null(w, key);
    else
        put_dtype(w, key, dtype_name(scales));
    if (act)
        put_typed(w, "act_mapping_type", "MappingType", "ASYMMETRIC");
    put_typed(w, "intx_packing_format", "IntxPackingFormat", "UNPACKED_TO_INT8");
    put_typed(w, "intx_choose_qparams_algorithm", "IntxChooseQParamsAlgorithm", "AFFINE");
    close_typed(w);
}

static void config_int4(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    open_typed(w, "Int4WeightOnlyConfig", 2);
    nib__jsonw_pair_int(w, "group_size", s->group);
    nib__jsonw_pair_bool(w, "set_inductor_config", true);
    put_typed(w, "int4_packing_format", "Int4PackingFormat", "PLAIN");
    put_typed(w, "int4_choose_qparams_algorithm", "Int4ChooseQParamsAlgorithm", "TINYGEMM");
    nib__jsonw_pair_int(w, "int4_tile_packed_ntile", 8);
    close_typed(w);
}

static void config_float8(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    if (s->act == NIB_ACT_FLOAT) {
        open_typed(w, "Float8WeightOnlyConfig", 2);
        put_dtype(w, "weight_dtype", "float8_e4m3fn");
        nib__jsonw_pair_bool(w, "set_inductor_config", true);
        nib__jsonw_key(w, "granularity");
        put_granularity(w, s->group, 1);
        close_typed(w);
        return;
    }
    open_typed(w, "Float8DynamicActivationFloat8WeightConfig", 2);
    put_dtype(w, "activation_dtype", "float8_e4m3fn");
    put_dtype(w, "weight_dtype", "float8_e4m3fn");
    nib__jsonw_key(w, "granularity");
    nib__jsonw_array(w);
    put_granularity(w, s->group, 1);
    put_granularity(w, s->group, 1);
    nib__jsonw_array_end(w);
    put_typed(w, "packing_format", "Float8PackingFormat", "PLAIN");
    put_mm_config(w, 1);
    put_null(w, "activation_value_lb");
    put_null(w, "activation_value_ub");
    put_typed(w, "kernel_preference", "KernelPreference", "AUTO");
    nib__jsonw_pair_bool(w, "set_inductor_config", true);
    nib__jsonw_pair_int(w, "alg_id", 0);
    close_typed(w);
}

static void config_mx(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    open_typed(w, "MXDynamicActivationMXWeightConfig", 1);
    nib__jsonw_pair_int(w, "block_size", 32);
    put_dtype(w, "activation_dtype", mx_type_name(s));
    put_dtype(w, "weight_dtype", mx_type_name(s));
    put_typed(w, "kernel_preference", "KernelPreference", "AUTO");
    put_typed(w, "scaling_mode", "ScaleCalculationMode", s->mx_floor ? "FLOOR" : "RCEIL");
    close_typed(w);
}

static void config_nv(nib_jsonw *w, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    const bool act = s->act == NIB_ACT_NV4;
    open_typed(w, act ? "NVFP4DynamicActivationNVFP4WeightConfig" : "NVFP4WeightOnlyConfig", 1);
    if (act)
        nib__jsonw_pair_bool(w, "use_triton_kernel", true);
    nib__jsonw_pair_bool(w, "use_dynamic_per_tensor_scale", !s->block_only);
    if (act)
        put_null(w, "step");
    close_typed(w);
}

void nib__torchao_config(nib_jsonw *w, const nib_output_weight *weight)
{
    static void (*const configs[])(nib_jsonw *, const nib_output_weight *) = {
        [INT8] = config_int8,     [INTX] = config_intx, [INT4] = config_int4,
        [FLOAT8] = config_float8, [MX] = config_mx,     [NV] = config_nv,
    };
    configs[choose_class(&weight->scheme)](w, weight);
}
