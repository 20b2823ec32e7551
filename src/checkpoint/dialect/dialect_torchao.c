/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of torchao 0.18 in safetensors: tensors M._weight_qdata, M._weight_scale,
 * M._weight_zero_point, and a JSON description of the subclass in __metadata__ under M.weight.
 *
 *   class                     qdata                     scale                  zero_point
 *   Int8Tensor                I8 [n][k]                 F32 [n][1] or [1][1]   I8 as scale, or none
 *   IntxUnpackedToInt8Tensor  I8 [n][k], a code a byte  float [n][k/g]         I8 [n][k/g]
 *   Int4Tensor                I8 [n][k/2], low first    float [k/g][n]         float [k/g][n]
 *   Float8Tensor              F8 [n][k]                 float [n][k/g] or [1][1]  none
 *   MXTensor                  F8 [n][k], U8 [n][k/2]    E8M0 [n][k/32], or     none
 *                                                       in tiles of 128 x 4
 *   NVFP4Tensor               U8 [n][k/2]               F8 [n][k/16], or       none
 *                                                       in tiles of 128 x 4
 *
 *   Int4TilePackedTo4dTensor  I32 [n/8][k/128][32][4]   bf16 [k/g][n][2] with the zeros
 *
 * A Float8Tensor in blocks has a scale per 128 x 128, [n/128][k/128]. An NVFP4Tensor may have a
 * per-tensor scale on top of its block scales, M._weight_per_tensor_scale, F32 [], and one for its
 * activations, M._weight_act_per_tensor_scale.
 */
#include "checkpoint_inside.h"
#include "dialects.h"
#include "json_fields.h"
#include "dialect_common.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct description {
    char type[NIB_FIELD_TEXT];
    int64_t block[2]; /* elements of n and of k that share a scale */
    int64_t shape[2]; /* Int4Tensor: unpacked n and k */
    char target[NIB_FIELD_TEXT], elem[NIB_FIELD_TEXT];
    char act[NIB_FIELD_TEXT];      /* class of act_quant_kwargs; empty: none */
    char act_size[NIB_FIELD_TEXT]; /* PerRow, PerTensor */
    char act_mapping[NIB_FIELD_TEXT], act_elem[NIB_FIELD_TEXT], act_rounding[NIB_FIELD_TEXT];
    char act_name[NIB_FIELD_TEXT];  /* IntxUnpackedToInt8Tensor: "int8_asym_per_token" */
    char act_float[NIB_FIELD_TEXT]; /* Int4Tensor: float type of the activations */
    bool act_reduced, swizzled;
    bool act_two_levels; /* NVFP4Tensor: a scale of the batch on top of the block scales */
    int64_t mx_block, act_block;
    char names[8][NIB_FIELD_TEXT]; /* of the stored tensors */
} description;

#define AT(member) offsetof(description, member)
#define ACT "_data.act_quant_kwargs."

static const nib_field fields[] = {
    {"_type", NIB_FIELD_STRING, AT(type)},
    {"_tensor_data_names[0]", NIB_FIELD_STRING, AT(names[0])},
    {"_tensor_data_names[1]", NIB_FIELD_STRING, AT(names[1])},
    {"_tensor_data_names[2]", NIB_FIELD_STRING, AT(names[2])},
    {"_tensor_data_names[3]", NIB_FIELD_STRING, AT(names[3])},
    {"_tensor_data_names[4]", NIB_FIELD_STRING, AT(names[4])},
    {"_tensor_data_names[5]", NIB_FIELD_STRING, AT(names[5])},
    {"_tensor_data_names[6]", NIB_FIELD_STRING, AT(names[6])},
    {"_tensor_data_names[7]", NIB_FIELD_STRING, AT(names[7])},
    {"_data.block_size[0]", NIB_FIELD_INT, AT(block[0])},
    {"_data.block_size[1]", NIB_FIELD_INT, AT(block[1])},
    {"_data.block_size", NIB_FIELD_INT, AT(mx_block)},
    {"_data.shape[0]", NIB_FIELD_INT, AT(shape[0])},
    {"_data.shape[1]", NIB_FIELD_INT, AT(shape[1])},
    {"_data.target_dtype._type", NIB_FIELD_ANY, 0},
    {"_data.target_dtype._data", NIB_FIELD_STRING, AT(target)},
    {"_data.elem_dtype._type", NIB_FIELD_ANY, 0},
    {"_data.elem_dtype._data", NIB_FIELD_STRING, AT(elem)},
    /* torchao's result type and preferred kernels */
    {"_data.dtype._type", NIB_FIELD_ANY, 0},
    {"_data.dtype._data", NIB_FIELD_ANY, 0},
    {"_data.orig_dtype._type", NIB_FIELD_ANY, 0},
    {"_data.orig_dtype._data", NIB_FIELD_ANY, 0},
    {"_data.kernel_preference._type", NIB_FIELD_ANY, 0},
    {"_data.kernel_preference._data", NIB_FIELD_ANY, 0},
    {"_data.mm_config._type", NIB_FIELD_ANY, 0},
    {"_data.mm_config._data.emulate", NIB_FIELD_ANY, 0},
    {"_data.mm_config._data.use_fast_accum", NIB_FIELD_ANY, 0},
    {"_data.mm_config._data.pad_inner_dim", NIB_FIELD_ANY, 0},
    {"_data.reduce_range", NIB_FIELD_ANY, 0}, /* the stored codes show it */
    {"_data.use_triton_kernel", NIB_FIELD_ANY, 0},
    {"_data.is_swizzled_scales", NIB_FIELD_BOOL, AT(swizzled)},
    {"_data.activation_quantization", NIB_FIELD_STRING, AT(act_name)},
    {"_data.activation_dtype._type", NIB_FIELD_ANY, 0},
    {"_data.activation_dtype._data", NIB_FIELD_STRING, AT(act_float)},
    {ACT "_type", NIB_FIELD_STRING, AT(act)},
    {ACT "_data.granularity._type", NIB_FIELD_STRING, AT(act_size)},
    {ACT "_data.granularity._data.dim", NIB_FIELD_ANY, 0},
    {ACT "_data.granularity._data.block_size[0]", NIB_FIELD_ANY, 0},
    {ACT "_data.granularity._data.block_size[1]", NIB_FIELD_ANY, 0},
    {ACT "_data.mapping_type._type", NIB_FIELD_ANY, 0},
    {ACT "_data.mapping_type._data", NIB_FIELD_STRING, AT(act_mapping)},
    {ACT "_data.reduce_range", NIB_FIELD_BOOL, AT(act_reduced)},
    {ACT "_data.float8_dtype._type", NIB_FIELD_ANY, 0},
    {ACT "_data.float8_dtype._data", NIB_FIELD_STRING, AT(act_elem)},
    {ACT "_data.float8_packing_format._type", NIB_FIELD_ANY, 0},
    {ACT "_data.float8_packing_format._data", NIB_FIELD_ANY, 0},
    {ACT "_data.mm_config._type", NIB_FIELD_ANY, 0},
    {ACT "_data.mm_config._data.emulate", NIB_FIELD_ANY, 0},
    {ACT "_data.mm_config._data.use_fast_accum", NIB_FIELD_ANY, 0},
    {ACT "_data.mm_config._data.pad_inner_dim", NIB_FIELD_ANY, 0},
    {ACT "_data.kernel_preference._type", NIB_FIELD_ANY, 0},
    {ACT "_data.kernel_preference._data", NIB_FIELD_ANY, 0},
    {ACT "_data.elem_dtype._type", NIB_FIELD_ANY, 0},
    {ACT "_data.elem_dtype._data", NIB_FIELD_STRING, AT(act_elem)},
    {ACT "_data.block_size", NIB_FIELD_INT, AT(act_block)},
    {ACT "_data.scaling_mode._type", NIB_FIELD_ANY, 0},
    {ACT "_data.scaling_mode._data", NIB_FIELD_STRING, AT(act_rounding)},
    {ACT "_data.is_swizzled_scales", NIB_FIELD_ANY, 0},
    {ACT "_data.use_triton_kernel", NIB_FIELD_ANY, 0},
    {ACT "_data.use_dynamic_per_tensor_scale", NIB_FIELD_BOOL, AT(act_two_levels)},
};

static const char qdata[] = "._weight_qdata", scale[] = "._weight_scale",
                  zero_point[] = "._weight_zero_point", per_tensor[] = "._weight_per_tensor_scale",
                  act_per_tensor[] = "._weight_act_per_tensor_scale",
                  scale_and_zero[] = "._weight_scale_and_zero";

/* ---- sizes ---- */

static bool equals(const char *a, const char *b) { return strcmp(a, b) == 0; }

static bool is_below_int8(nib_code code)
{
    return nib__code_is_int(code) && nib__code_bits(code) < 8;
}

/* Sets the group from block_size: [n, k] one scale, [1, k] one per row, [1, g] groups; for float8
 * also [r, g] blocks. */
static nib_status read_group(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const int64_t rows = d->block[0], g = d->block[1];
    if (rows == w->n && g == w->k && w->n > 1)
        w->scheme.group = NIB_GROUP_TENSOR;
    else if (rows < 1 || rows > w->n || (rows > 1 && w->scheme.code != NIB_CODE_E4M3) || g < 1 ||
             g > w->k)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "has blocks of %" PRId64 " x %" PRId64
                                " per scale; nibble reads a row, part of a row, the whole tensor, "
                                "and for e4m3 blocks of rows",
                                rows, g);
    else if (w->n % rows != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "blocks of %" PRId64 " rows do not divide n = %" PRId64
                                "; torchao writes no such tensor",
                                rows, w->n);
    else if (w->k % g != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "groups of %" PRId64 " do not divide k = %" PRId64
                                "; torchao writes no such tensor",
                                g, w->k);
    else
        /* One group per row is the same as one scale per row; short rows of int1 to int7 count as
         * groups. */
        w->scheme.group =
            g == w->k && (g > 256 || !is_below_int8(w->scheme.code)) ? NIB_GROUP_ROW : g;
    w->scale_rows = rows > 1 && w->scheme.group != NIB_GROUP_TENSOR ? rows : 0;
    return NIB_OK;
}

/* Reads scales, and zeros if stored: both [n][groups], [n/rows][groups] for blocks, or one element
 * for a tensor. */
static nib_status read_scales(const nib_weight_query *q, bool zero_needed)
{
    nib_weight *w = q->out;
    const bool one = w->scheme.group == NIB_GROUP_TENSOR;
    const int64_t rows = w->scale_rows > 1 ? w->n / w->scale_rows : w->n;
    const int64_t shape[2] = {one ? 1 : rows, nib__scheme_groups(&w->scheme, w->k)};
    const nib_tensor *scales = nib__weight_part(q, scale), *zeros = nib__weight_part(q, zero_point);
    const bool flat = scales != NULL && shape[1] == 1 && scales->rank == 1; /* [n] for [n][1] */
    NIB_TRY(nib__weight_expect(q, scale, scales, NIB_TYPE_NONE, flat ? 1 : 2, shape));
    w->scales = scales->data;
    w->scale_type = scales->type;
    w->scale_stride_n = one ? 0 : shape[1];
    w->scale_stride_g = one ? 0 : 1;
    NIB_TRY(nib__weight_check_scales(q, scale));
    w->scheme.symmetric = zeros == NULL;
    if (zeros == NULL)
        return zero_needed ? nib__weight_fail(q, NIB_BAD_INPUT, zero_point, "the tensor is missing")
                           : NIB_OK;
    NIB_TRY(nib__weight_expect(q, zero_point, zeros, NIB_TYPE_NONE,
                               zeros->rank == 1 && flat ? 1 : 2, shape));
    w->zeros = zeros->data;
    w->zero_type = zeros->type;
    w->scheme.zero = NIB_ZERO_INT;
    return nib__weight_check_zeros(q, zero_point);
}

/* ---- activations ---- */

/* Reports that activations get a scale per token instead of one for the batch. */
static void report_per_tensor(const nib_weight_query *q, const description *d, const char *type)
{
    char asked[64], done[64];
    if (!equals(d->act_size, "PerTensor"))
        return;
    snprintf(asked, sizeof asked, "%s activations per tensor", type);
    snprintf(done, sizeof done, "%s activations per token", type);
    nib__weight_report(
        q, ".weight", asked, done, 0,
        "one scale for the whole batch would make a token's result depend on its neighbours");
}

static nib_status read_int8_act(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    if (nib__weight_part(q, "._weight_act_quant_scale") != NULL) {
        w->scheme.act = NIB_ACT_I8_STATIC;
        NIB_TRY(nib__weight_read_static(q, "._weight_act_quant_scale",
                                        "._weight_act_quant_zero_point"));
        w->scheme.act_symmetric = w->act_zero == NULL || *w->act_zero == 0;
        if (w->scheme.act_symmetric)
            w->act_zero = NULL;
        return NIB_OK;
    }
    if (d->act[0] == 0)
        return NIB_OK;
    const bool asymmetric = equals(d->act_mapping, "ASYMMETRIC");
    const bool symmetric = d->act_mapping[0] == 0 || equals(d->act_mapping, "SYMMETRIC");
    if (!equals(d->act, "QuantizeTensorToInt8Kwargs") || d->act_reduced ||
        !(asymmetric || symmetric) ||
        !(equals(d->act_size, "PerRow") || equals(d->act_size, "PerTensor")))
        return nib__weight_fail(
            q, NIB_UNSUPPORTED, ".weight",
            "needs activations quantized as %s%s, %s, mapping \"%s\"; only int8 per token, "
            "SYMMETRIC or ASYMMETRIC, is supported",
            d->act, d->act_reduced ? " with reduced range" : "", d->act_size, d->act_mapping);
    w->scheme.act = NIB_ACT_I8_TOKEN;
    w->scheme.act_symmetric = symmetric;
    report_per_tensor(q, d, "int8");
    return NIB_OK;
}

static nib_status read_fp8_act(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    if (d->act[0] == 0)
        return NIB_OK;
    if (!equals(d->act, "QuantizeTensorToFloat8Kwargs") || !equals(d->act_elem, "float8_e4m3fn") ||
        !(equals(d->act_size, "PerRow") || equals(d->act_size, "PerTensor")))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "needs activations quantized as %s %s %s; only e4m3 per token is "
                                "supported",
                                d->act, d->act_elem, d->act_size);
    w->scheme.act = NIB_ACT_E4M3_TOKEN;
    w->scheme.act_symmetric = true;
    report_per_tensor(q, d, "e4m3");
    return NIB_OK;
}

static nib_status read_mx_act(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    if (d->act[0] == 0)
        return NIB_OK;
    if (!equals(d->act, "QuantizeTensorToMXKwargs") || !equals(d->act_elem, d->elem) ||
        d->act_block != 32 ||
        !(equals(d->act_rounding, "RCEIL") || equals(d->act_rounding, "FLOOR")))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "needs activations quantized as %s %s %s in blocks of %" PRId64
                                "; only QuantizeTensorToMXKwargs with the weight's type, RCEIL or "
                                "FLOOR, in blocks of 32 is supported",
                                d->act, d->act_elem, d->act_rounding, d->act_block);
    w->scheme.act = w->scheme.code == NIB_CODE_MX4 ? NIB_ACT_MX4 : NIB_ACT_MX8;
    w->scheme.act_symmetric = true;
    w->scheme.mx_floor = equals(d->act_rounding, "FLOOR");
    return NIB_OK;
}

/* ---- classes: the dialect was chosen by its codes, so qdata is always there ---- */

static nib_status read_int8(const nib_weight_query *q, const description *d)
{
    q->out->scheme.code = NIB_CODE_I8;
    NIB_TRY(nib__weight_read_bytes(q, qdata, NIB_TYPE_I8));
    NIB_TRY(read_group(q, d));
    NIB_TRY(read_scales(q, false));
    return read_int8_act(q, d);
}

static nib_status read_intx(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const nib_tensor *zeros = nib__weight_part(q, zero_point);
    const char *width = strncmp(d->target, "int", 3) == 0 ? d->target + 3 : "";
    if (width[0] < '1' || width[0] > '8' || width[1] != 0)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "has codes of type \"%s\"; int1 to int8 are supported", d->target);
    if (zeros != NULL && nib__type_is_float(zeros->type))
        return nib__weight_fail(q, NIB_UNSUPPORTED, zero_point,
                                "is %s in an IntxUnpackedToInt8Tensor; only integer zero "
                                "points are supported",
                                nib__type_stored_name(zeros->type));
    const bool is_weight_only = d->act_name[0] == 0;
    w->scheme.code = nib__int_code(is_weight_only ? width[0] - '0' : width[0] <= '4' ? 4 : 8);
    if (!is_weight_only && width[0] != '4' && width[0] != '8')
        nib__weight_report(q, ".weight", d->target, width[0] < '4' ? "int4" : "int8", 0,
                           "the codes are the same in the wider type, whose kernels have int8 "
                           "activations");
    NIB_TRY(nib__weight_read_bytes(q, qdata, NIB_TYPE_I8));
    NIB_TRY(read_group(q, d));
    NIB_TRY(read_scales(q, true));
    if (is_weight_only)
        return NIB_OK;
    if (!equals(d->act_name, "int8_asym_per_token"))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "needs activations quantized as %s; only int8_asym_per_token is "
                                "supported",
                                d->act_name);
    w->scheme.act = NIB_ACT_I8_TOKEN;
    return NIB_OK;
}

static nib_status read_int4(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, qdata), *scales = nib__weight_part(q, scale);
    const nib_tensor *zeros = nib__weight_part(q, zero_point);
    const int64_t k = d->shape[1], g = d->block[1];
    if (d->shape[0] < 1 || k < 1 || d->block[0] != 1 || g < 1 || k % g != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "is %" PRId64 " x %" PRId64 " in blocks of %" PRId64 " x %" PRId64
                                ", which is impossible for an Int4Tensor",
                                d->shape[0], k, d->block[0], g);
    if (d->act_float[0] != 0 && !equals(d->act_float, "bfloat16"))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "asks for %s activations; nibble supports bfloat16 (not quantized)",
                                d->act_float);
    const int64_t packed[2] = {d->shape[0], nib__ceil_div(k, 2)}, groups[2] = {k / g, d->shape[0]};
    NIB_TRY(nib__weight_expect(q, qdata, codes,
                               codes->type == NIB_TYPE_U8 ? NIB_TYPE_U8 : NIB_TYPE_I8, 2, packed));
    NIB_TRY(nib__weight_expect(q, scale, scales, NIB_TYPE_NONE, 2, groups));
    NIB_TRY(nib__weight_expect(q, zero_point, zeros, NIB_TYPE_NONE, 2, groups));
    w->scheme = (nib_scheme){.code = NIB_CODE_I4, .group = g, .zero = NIB_ZERO_FLOAT};
    w->n = d->shape[0];
    w->k = k;
    w->layout = NIB_LAYOUT_NIBBLE;
    w->codes = codes->data;
    w->scales = scales->data;
    w->scale_type = scales->type;
    w->scale_stride_n = 1;
    w->scale_stride_g = w->n;
    w->zeros = zeros->data;
    w->zero_type = zeros->type;
    NIB_TRY(nib__weight_check_scales(q, scale));
    return nib__weight_check_zeros(q, zero_point);
}

static nib_status read_float8(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, qdata);
    const bool e5m2 = codes->type == NIB_TYPE_E5M2;
    w->scheme.code = e5m2 ? NIB_CODE_E5M2 : NIB_CODE_E4M3;
    NIB_TRY(nib__weight_read_bytes(q, qdata, e5m2 ? NIB_TYPE_E5M2 : NIB_TYPE_E4M3));
    NIB_TRY(read_group(q, d));
    NIB_TRY(read_scales(q, false));
    if (w->scheme.zero != NIB_ZERO_NONE)
        return nib__weight_fail(q, NIB_UNSUPPORTED, zero_point,
                                "has values other than 0; a Float8Tensor has no zero points");
    return read_fp8_act(q, d);
}

/* Reads scales of one byte, in rows or in tiles. */
static nib_status read_byte_scales(const nib_weight_query *q, const description *d, nib_type type)
{
    nib_weight *w = q->out;
    const nib_tensor *scales = nib__weight_part(q, scale);
    const int64_t groups = w->k / w->scheme.group;
    const int64_t rows[2] = {w->n, groups},
                  tiles[2] = {nib__ceil_div(w->n, 128) * 32, nib__ceil_div(groups, 4) * 16};
    NIB_TRY(nib__weight_expect(q, scale, scales, type, 2, d->swizzled ? tiles : rows));
    w->scales = scales->data;
    w->scale_type = type;
    w->scale_stride_n = groups;
    w->scale_stride_g = 1;
    w->scale_tiles = d->swizzled;
    return nib__weight_check_scales(q, scale);
}

static nib_status read_mx(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const bool fp4 = equals(d->elem, "float4_e2m1fn_x2");
    if (!fp4 && !equals(d->elem, "float8_e4m3fn"))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "is MX of %s; nibble reads float8_e4m3fn and float4_e2m1fn_x2",
                                d->elem);
    if (d->mx_block != 32)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "is MX in blocks of %" PRId64 "; 32 is supported", d->mx_block);
    NIB_TRY(nib__weight_read_bytes(q, qdata, fp4 ? NIB_TYPE_U8 : NIB_TYPE_E4M3));
    w->k *= fp4 ? 2 : 1; /* a row of k bytes is in the file, so twice k fits */
    w->layout = fp4 ? NIB_LAYOUT_NIBBLE : NIB_LAYOUT_BYTE;
    w->scheme =
        (nib_scheme){.code = fp4 ? NIB_CODE_MX4 : NIB_CODE_MX8, .group = 32, .symmetric = true};
    if (w->k % 32 != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, qdata,
                                "k = %" PRId64 " is not a multiple of the block size 32; "
                                "torchao writes no such tensor",
                                w->k);
    NIB_TRY(read_byte_scales(q, d, NIB_TYPE_E8M0));
    return read_mx_act(q, d);
}

/* Our activations have as many levels of scales as the weight, the upper one per token. Adds a
 * ledger line if torchao uses other scales. */
static void report_nv_act(const nib_weight_query *q, const description *d)
{
    const bool has_token = !q->out->scheme.block_only,
               is_fixed = nib__weight_part(q, act_per_tensor) != NULL && !d->act_two_levels;
    if (!has_token && !is_fixed && !d->act_two_levels)
        return;
    nib__weight_report(
        q, ".weight",
        is_fixed            ? "nvfp4 activations with block scales and a fixed scale"
        : d->act_two_levels ? "nvfp4 activations with block scales and a scale per batch"
                            : "nvfp4 activations with block scales only",
        has_token ? "nvfp4 activations with block scales and a scale per token"
                  : "nvfp4 activations with block scales only",
        0,
        !has_token          ? "activations have the same levels of scales as their weight"
        : is_fixed          ? "no kernel supports a fixed scale for nvfp4 activations"
        : d->act_two_levels ? "one scale for the whole batch would make a token's result depend on "
                              "its neighbours"
                            : "activations have the same levels of scales as their weight");
}

static nib_status read_nv_act(const nib_weight_query *q, const description *d)
{
    if (d->act[0] == 0)
        return NIB_OK;
    if (!equals(d->act, "QuantizeTensorToNVFP4Kwargs") || d->act_block != 16)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "needs activations quantized as %s in blocks of %" PRId64
                                "; only QuantizeTensorToNVFP4Kwargs in blocks of 16 is supported",
                                d->act, d->act_block);
    q->out->scheme.act = NIB_ACT_NV4;
    q->out->scheme.act_symmetric = true;
    report_nv_act(q, d);
    return NIB_OK;
}

static nib_status read_nv(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    if (d->mx_block != 16)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "is NVFP4 in blocks of %" PRId64 "; 16 is supported", d->mx_block);
    NIB_TRY(nib__weight_read_bytes(q, qdata, NIB_TYPE_U8));
    w->k *= 2; /* a row of k bytes is in the file */
    w->layout = NIB_LAYOUT_NIBBLE;
    w->scheme = (nib_scheme){.code = NIB_CODE_NV4,
                             .group = 16,
                             .symmetric = true,
                             .block_only = nib__weight_part(q, per_tensor) == NULL};
    if (w->k % 16 != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, qdata,
                                "k = %" PRId64 " is not a multiple of the block size 16; "
                                "torchao writes no such tensor",
                                w->k);
    NIB_TRY(read_byte_scales(q, d, NIB_TYPE_E4M3));
    if (!w->scheme.block_only)
        NIB_TRY(nib__weight_read_tensor_scale(q, per_tensor, false));
    return read_nv_act(q, d);
}

/* n is padded to the tile and k to 1,024 before packing; shape has the unpadded n and k. Only the
 * codes show whether CUDA or ROCm packed it. */
static nib_status read_tile_packed(const nib_weight_query *q, const description *d)
{
    enum { ROWS = 8, INNER = 16, LANES = 32, TILE_MAX = 16, K_MULTIPLE = 1024 };
    nib_weight *w = q->out;
    const nib_tensor *t = nib__weight_part(q, qdata), *pairs = nib__weight_part(q, scale_and_zero);
    const int64_t g = d->block[1];
    if (t->type != NIB_TYPE_I32 || t->rank != 4 || t->shape[0] < 1 || t->shape[0] > INT32_MAX ||
        t->shape[1] < 1 || t->shape[1] > INT32_MAX || t->shape[2] != LANES ||
        (t->shape[3] != 1 && t->shape[3] != 2 && t->shape[3] != 4))
        return nib__weight_fail(q, NIB_BAD_INPUT, qdata,
                                "is not I32 [n/8][k/16/t][32][t/2] with t = 2, 4 or 8");
    w->inner_tiles = t->shape[3] * 2;
    w->stored_n = t->shape[0] * ROWS;
    w->stored_k = t->shape[1] * INNER * w->inner_tiles;
    w->n = d->shape[0];
    w->k = d->shape[1];
    if (w->n < 1 || w->n > w->stored_n || w->n + TILE_MAX <= w->stored_n || w->k < 1 ||
        w->k > w->stored_k || w->k + K_MULTIPLE <= w->stored_k)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "is %" PRId64 " x %" PRId64 ", but packed as %" PRId64
                                " x %" PRId64,
                                w->n, w->k, w->stored_n, w->stored_k);
    if (d->block[0] != 1 || g < 1 || w->stored_k % g != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "has block_size [%" PRId64 ", %" PRId64
                                "]; the first must be 1, and the second must divide %" PRId64,
                                d->block[0], g, w->stored_k);
    if (pairs == NULL || pairs->rank != 3 || pairs->shape[0] != w->stored_k / g ||
        pairs->shape[1] != w->stored_n)
        return nib__weight_fail(q, NIB_BAD_INPUT, scale_and_zero,
                                "%s; it must be [%" PRId64 "][%" PRId64
                                "][2]: a pair for each group of %" PRId64 " inputs",
                                pairs == NULL ? "is missing" : "has another shape", w->stored_k / g,
                                w->stored_n, g);
    w->codes = t->data;
    NIB_TRY(nib__weight_read_pairs(q, scale_and_zero, 0));
    return nib__weight_pick_layout(q, qdata, scale_and_zero, true);
}

/* ---- the class ---- */

typedef struct class_row {
    const char *name;
    nib_status (*read)(const nib_weight_query *q, const description *d);
    const char *why; /* why it is not supported */
} class_row;

static const class_row classes[] = {
    {"Int8Tensor", read_int8, NULL},
    {"IntxUnpackedToInt8Tensor", read_intx, NULL},
    {"Int4Tensor", read_int4, NULL},
    {"Float8Tensor", read_float8, NULL},
    {"MXTensor", read_mx, NULL},
    {"NVFP4Tensor", read_nv, NULL},
    {"Int4TilePackedTo4dTensor", read_tile_packed, NULL},
    {"Int4PlainInt32Tensor", NULL, "is packed for XPU or NPU"},
};

/* Checks that every tensor in the description exists and is known. */
static nib_status check_names(const nib_weight_query *q, const description *d)
{
    static const char *const known[] = {"qdata",
                                        "scale",
                                        "zero_point",
                                        "act_quant_scale",
                                        "act_quant_zero_point",
                                        "per_tensor_scale",
                                        "act_per_tensor_scale",
                                        "scale_and_zero"};
    char suffix[NIB_FIELD_TEXT + 16];
    for (size_t i = 0; i < COUNT(d->names) && d->names[i][0] != 0; i++) {
        size_t at = 0;
        while (at < COUNT(known) && !equals(d->names[i], known[at]))
            at++;
        snprintf(suffix, sizeof suffix, "._weight_%s", d->names[i]);
        if (at == COUNT(known))
            return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                    "is described with an unknown tensor \"%s\"", d->names[i]);
        if (nib__weight_part(q, suffix) == NULL)
            return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                    "is missing, but _tensor_data_names in __metadata__ lists it");
    }
    return nib__weight_part(q, "._weight_act_pre_scale") == NULL
               ? NIB_OK
               : nib__weight_fail(q, NIB_UNSUPPORTED, "._weight_act_pre_scale",
                                  "input scales (AWQ, SmoothQuant) are not supported");
}

nib_status nib__weight_torchao(const nib_weight_query *q)
{
    description d = {.mx_block = 0};
    char name[NIB_SHOWN + 40], shown[NIB_FIELD_TEXT + 40];
    const nib_meta *meta = nib__weight_meta(q, ".weight");
    snprintf(name, sizeof name, "__metadata__ of %s.weight", q->shown);
    if (meta == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, "._weight_qdata",
                                "no __metadata__ entry describes these codes");
    NIB_TRY(nib__fields_read(&d, fields, COUNT(fields), name, meta->value, q->err));
    for (size_t i = 0; i < COUNT(classes); i++) {
        if (!equals(d.type, classes[i].name))
            continue;
        if (classes[i].read == NULL)
            return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                    "%s (%s); quantize the original checkpoint instead",
                                    classes[i].why, d.type);
        NIB_TRY(check_names(q, &d));
        return classes[i].read(q, &d);
    }
    return nib__weight_fail(
        q, NIB_UNSUPPORTED, ".weight",
        "has the type \"%s\"; nibble reads Int8Tensor, IntxUnpackedToInt8Tensor, "
        "Int4Tensor, Int4TilePackedTo4dTensor, Float8Tensor, MXTensor and "
        "NVFP4Tensor",
        nib__escape_name(shown, sizeof shown, d.type, strlen(d.type)));
}
