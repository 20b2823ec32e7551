/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights as torchao 0.18 stores them in safetensors: tensors M._weight_qdata, M._weight_scale,
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
 * A Float8Tensor in blocks has a scale per 128 x 128, [n/128][k/128]; an NVFP4Tensor may have a
 * scale of the tensor over those of its blocks, M._weight_per_tensor_scale, F32 [], and one for its
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
    int64_t shape[2]; /* Int4Tensor: of the unpacked weight */
    char target[NIB_FIELD_TEXT], elem[NIB_FIELD_TEXT];
    char act[NIB_FIELD_TEXT];      /* class of act_quant_kwargs; empty: none */
    char act_size[NIB_FIELD_TEXT]; /* PerRow, PerTensor */
    char act_mapping[NIB_FIELD_TEXT], act_elem[NIB_FIELD_TEXT], act_rounding[NIB_FIELD_TEXT];
    char act_name[NIB_FIELD_TEXT];  /* IntxUnpackedToInt8Tensor: "int8_asym_per_token" */
    char act_float[NIB_FIELD_TEXT]; /* Int4Tensor: the type that activations are multiplied in */
    bool act_reduced, swizzled;
    bool act_two_levels; /* NVFP4Tensor: a scale of the batch over those of its blocks */
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
    /* The type that a peer would give results in, and which of its kernels it would prefer. */
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

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }

/* The group from block_size: [n, k] one scale, [1, k] one per row, [1, g] groups; of float8 also
 * [r, g] blocks. */
static nib_status take_group(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const int64_t rows = d->block[0], g = d->block[1];
    if (rows == w->n && g == w->k && w->n > 1)
        w->scheme.group = NIB_GROUP_TENSOR;
    else if (rows < 1 || rows > w->n || (rows > 1 && w->scheme.code != NIB_CODE_E4M3) || g < 1 ||
             g > w->k)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "has blocks of %" PRId64 " x %" PRId64
                                " per scale; known are one row, a part of a row, the whole tensor, "
                                "and of e4m3 a part of the tensor",
                                rows, g);
    else if (w->n % rows != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "blocks of %" PRId64 " rows do not divide n = %" PRId64
                                ", which torchao never writes",
                                rows, w->n);
    else if (w->k % g != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "groups of %" PRId64 " do not divide k = %" PRId64
                                ", which torchao never writes",
                                g, w->k);
    else
        /* Rows as short as usual groups cannot be told from one group per row; both mean the same.
         */
        w->scheme.group =
            g == w->k && (g > 256 || w->scheme.code != NIB_CODE_I4) ? NIB_GROUP_ROW : g;
    w->scale_rows = rows > 1 && w->scheme.group != NIB_GROUP_TENSOR ? rows : 0;
    return NIB_OK;
}

/* Scales, and zeros if stored, both [n][groups], of blocks [n/rows][groups], or of one element for
 * a tensor. */
static nib_status take_scales(const nib_weight_query *q, bool zero_needed)
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

/* A scale over the whole batch would make a token's result depend on its neighbours: never done
 * here. */
static void say_per_tensor(const nib_weight_query *q, const description *d, const char *type)
{
    char asked[64], done[64];
    if (!is(d->act_size, "PerTensor"))
        return;
    snprintf(asked, sizeof asked, "%s activations per tensor", type);
    snprintf(done, sizeof done, "%s activations per token", type);
    nib__weight_say(
        q, ".weight", asked, done, 0,
        "one scale for the whole batch would make a token's result depend on its neighbours");
}

static nib_status take_int8_act(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    if (nib__weight_part(q, "._weight_act_quant_scale") != NULL) {
        w->scheme.act = NIB_ACT_I8_STATIC;
        NIB_TRY(nib__weight_take_static(q, "._weight_act_quant_scale",
                                        "._weight_act_quant_zero_point"));
        w->scheme.act_symmetric = w->act_zero == NULL || *w->act_zero == 0;
        if (w->scheme.act_symmetric)
            w->act_zero = NULL;
        return NIB_OK;
    }
    if (d->act[0] == 0)
        return NIB_OK;
    const bool asymmetric = is(d->act_mapping, "ASYMMETRIC");
    const bool symmetric = d->act_mapping[0] == 0 || is(d->act_mapping, "SYMMETRIC");
    if (!is(d->act, "QuantizeTensorToInt8Kwargs") || d->act_reduced || !(asymmetric || symmetric) ||
        !(is(d->act_size, "PerRow") || is(d->act_size, "PerTensor")))
        return nib__weight_fail(
            q, NIB_UNSUPPORTED, ".weight",
            "asks for activations as %s%s %s %s; int8 per token, SYMMETRIC or ASYMMETRIC, is known",
            d->act, d->act_reduced ? " with reduced range" : "", d->act_size, d->act_mapping);
    w->scheme.act = NIB_ACT_I8_TOKEN;
    w->scheme.act_symmetric = symmetric;
    say_per_tensor(q, d, "int8");
    return NIB_OK;
}

static nib_status take_fp8_act(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    if (d->act[0] == 0)
        return NIB_OK;
    if (!is(d->act, "QuantizeTensorToFloat8Kwargs") || !is(d->act_elem, "float8_e4m3fn") ||
        !(is(d->act_size, "PerRow") || is(d->act_size, "PerTensor")))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "asks for activations as %s %s %s; e4m3 per token is known", d->act,
                                d->act_elem, d->act_size);
    w->scheme.act = NIB_ACT_E4M3_TOKEN;
    w->scheme.act_symmetric = true;
    say_per_tensor(q, d, "e4m3");
    return NIB_OK;
}

static nib_status take_mx_act(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    if (d->act[0] == 0)
        return NIB_OK;
    if (!is(d->act, "QuantizeTensorToMXKwargs") || !is(d->act_elem, d->elem) ||
        d->act_block != 32 || !(is(d->act_rounding, "RCEIL") || is(d->act_rounding, "FLOOR")))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "asks for activations as %s %s %s in blocks of %" PRId64
                                "; the weight's own type with RCEIL or FLOOR is known",
                                d->act, d->act_elem, d->act_rounding, d->act_block);
    w->scheme.act = w->scheme.code == NIB_CODE_MX4 ? NIB_ACT_MX4 : NIB_ACT_MX8;
    w->scheme.act_symmetric = true;
    w->scheme.mx_floor = is(d->act_rounding, "FLOOR");
    return NIB_OK;
}

/* ---- classes ---- */

static nib_status take_int8(const nib_weight_query *q, const description *d)
{
    q->out->scheme.code = NIB_CODE_I8;
    NIB_TRY(nib__weight_take_bytes(q, qdata, NIB_TYPE_I8));
    NIB_TRY(take_group(q, d));
    NIB_TRY(take_scales(q, false));
    return take_int8_act(q, d);
}

static nib_status take_intx(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const nib_tensor *zeros = nib__weight_part(q, zero_point);
    const char *width = strncmp(d->target, "int", 3) == 0 ? d->target + 3 : "";
    if (width[0] < '1' || width[0] > '8' || width[1] != 0)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "has %s codes; int1 to int8 are known", d->target);
    if (zeros != NULL && nib__type_is_float(zeros->type))
        return nib__weight_fail(q, NIB_UNSUPPORTED, zero_point,
                                "is %s in an IntxUnpackedToInt8Tensor; integer zero "
                                "points are known",
                                nib__type_stored_name(zeros->type));
    w->scheme.code = width[0] <= '4' ? NIB_CODE_I4 : NIB_CODE_I8;
    if (width[0] != '4' && width[0] != '8')
        nib__weight_say(q, ".weight", d->target, width[0] < '4' ? "int4" : "int8", 0,
                        "the same codes, of which the wider type holds more");
    NIB_TRY(nib__weight_take_bytes(q, qdata, NIB_TYPE_I8));
    NIB_TRY(take_group(q, d));
    NIB_TRY(take_scales(q, true));
    if (d->act_name[0] == 0)
        return NIB_OK;
    if (!is(d->act_name, "int8_asym_per_token"))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "asks for activations as %s; int8_asym_per_token is known",
                                d->act_name);
    w->scheme.act = NIB_ACT_I8_TOKEN;
    return NIB_OK;
}

static nib_status take_int4(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, qdata), *scales = nib__weight_part(q, scale);
    const nib_tensor *zeros = nib__weight_part(q, zero_point);
    const int64_t k = d->shape[1], g = d->block[1];
    if (d->shape[0] < 1 || k < 1 || d->block[0] != 1 || g < 1 || k % g != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "is %" PRId64 " x %" PRId64 " in blocks of %" PRId64 " x %" PRId64
                                ", which no Int4Tensor can be",
                                d->shape[0], k, d->block[0], g);
    if (d->act_float[0] != 0 && !is(d->act_float, "bfloat16"))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "asks for %s activations; bfloat16 (not quantized) is known",
                                d->act_float);
    const int64_t packed[2] = {d->shape[0], nib__ceil_div(k, 2)}, groups[2] = {k / g, d->shape[0]};
    NIB_TRY(nib__weight_expect(
        q, qdata, codes, codes != NULL && codes->type == NIB_TYPE_U8 ? NIB_TYPE_U8 : NIB_TYPE_I8, 2,
        packed));
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

static nib_status take_float8(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, qdata);
    const bool e5m2 = codes != NULL && codes->type == NIB_TYPE_E5M2;
    w->scheme.code = e5m2 ? NIB_CODE_E5M2 : NIB_CODE_E4M3;
    NIB_TRY(nib__weight_take_bytes(q, qdata, e5m2 ? NIB_TYPE_E5M2 : NIB_TYPE_E4M3));
    NIB_TRY(take_group(q, d));
    NIB_TRY(take_scales(q, false));
    if (w->scheme.zero != NIB_ZERO_NONE)
        return nib__weight_fail(q, NIB_UNSUPPORTED, zero_point,
                                "is not 0 throughout; a Float8Tensor has no zero points");
    return take_fp8_act(q, d);
}

/* One byte per scale, in rows or in tiles. */
static nib_status take_byte_scales(const nib_weight_query *q, const description *d, nib_type type)
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

static nib_status take_mx(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const bool fp4 = is(d->elem, "float4_e2m1fn_x2");
    if (!fp4 && !is(d->elem, "float8_e4m3fn"))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "is MX of %s; float8_e4m3fn and float4_e2m1fn_x2 are known",
                                d->elem);
    if (d->mx_block != 32)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "is MX in blocks of %" PRId64 "; 32 are known", d->mx_block);
    NIB_TRY(nib__weight_take_bytes(q, qdata, fp4 ? NIB_TYPE_U8 : NIB_TYPE_E4M3));
    if (fp4 && w->k > INT64_MAX / 2)
        return nib__weight_fail(q, NIB_BAD_INPUT, qdata, "has rows of %" PRId64 " bytes", w->k);
    w->k *= fp4 ? 2 : 1;
    w->layout = fp4 ? NIB_LAYOUT_NIBBLE : NIB_LAYOUT_BYTE;
    w->scheme =
        (nib_scheme){.code = fp4 ? NIB_CODE_MX4 : NIB_CODE_MX8, .group = 32, .symmetric = true};
    if (w->k % 32 != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, qdata,
                                "k = %" PRId64 " is no multiple of the block of 32, which torchao "
                                "never writes",
                                w->k);
    NIB_TRY(take_byte_scales(q, d, NIB_TYPE_E8M0));
    return take_mx_act(q, d);
}

/* Activations have as many levels of scales as the weight, and the one over their blocks is each
 * token's own. Where torchao uses another scale, the ledger has a line. */
static void say_nv_act(const nib_weight_query *q, const description *d)
{
    const bool has_token = !q->out->scheme.block_only,
               is_fixed = nib__weight_part(q, act_per_tensor) != NULL && !d->act_two_levels;
    if (!has_token && !is_fixed && !d->act_two_levels)
        return;
    nib__weight_say(
        q, ".weight",
        is_fixed            ? "nvfp4 activations with a fixed scale over their blocks"
        : d->act_two_levels ? "nvfp4 activations with a scale of the batch over their blocks"
                            : "nvfp4 activations with scales of their blocks alone",
        has_token ? "nvfp4 activations with a scale per token over their blocks"
                  : "nvfp4 activations with scales of their blocks alone",
        0,
        !has_token          ? "activations have the levels of scales that their weight has"
        : is_fixed          ? "no kernel here takes a fixed scale of 4-bit floats"
        : d->act_two_levels ? "one scale for the whole batch would make a token's result depend on "
                              "its neighbours"
                            : "activations have the levels of scales that their weight has");
}

static nib_status take_nv_act(const nib_weight_query *q, const description *d)
{
    if (d->act[0] == 0)
        return NIB_OK;
    if (!is(d->act, "QuantizeTensorToNVFP4Kwargs") || d->act_block != 16)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "asks for activations as %s in blocks of %" PRId64
                                "; QuantizeTensorToNVFP4Kwargs in blocks of 16 is known",
                                d->act, d->act_block);
    q->out->scheme.act = NIB_ACT_NV4;
    q->out->scheme.act_symmetric = true;
    say_nv_act(q, d);
    return NIB_OK;
}

static nib_status take_nv(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    if (d->mx_block != 16)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "is NVFP4 in blocks of %" PRId64 "; 16 are known", d->mx_block);
    NIB_TRY(nib__weight_take_bytes(q, qdata, NIB_TYPE_U8));
    if (w->k > INT64_MAX / 2)
        return nib__weight_fail(q, NIB_BAD_INPUT, qdata, "has rows of %" PRId64 " bytes", w->k);
    w->k *= 2;
    w->layout = NIB_LAYOUT_NIBBLE;
    w->scheme = (nib_scheme){.code = NIB_CODE_NV4,
                             .group = 16,
                             .symmetric = true,
                             .block_only = nib__weight_part(q, per_tensor) == NULL};
    if (w->k % 16 != 0)
        return nib__weight_fail(q, NIB_BAD_INPUT, qdata,
                                "k = %" PRId64 " is no multiple of the block of 16, which torchao "
                                "never writes",
                                w->k);
    NIB_TRY(take_byte_scales(q, d, NIB_TYPE_E4M3));
    if (!w->scheme.block_only)
        NIB_TRY(nib__weight_take_tensor_scale(q, per_tensor, false));
    return take_nv_act(q, d);
}

/* n and k are padded before they are packed, n to the tile and k to 1,024; shape says how far they
 * are the weight's. Whether CUDA or ROCm packed it, only the codes show. */
static nib_status take_tile_packed(const nib_weight_query *q, const description *d)
{
    enum { ROWS = 8, INNER = 16, LANES = 32, TILE_MAX = 16, K_MULTIPLE = 1024 };
    nib_weight *w = q->out;
    const nib_tensor *t = nib__weight_part(q, qdata), *pairs = nib__weight_part(q, scale_and_zero);
    const int64_t g = d->block[1];
    if (t == NULL || t->type != NIB_TYPE_I32 || t->rank != 4 || t->shape[0] < 1 ||
        t->shape[0] > INT32_MAX || t->shape[1] < 1 || t->shape[1] > INT32_MAX ||
        t->shape[2] != LANES || (t->shape[3] != 1 && t->shape[3] != 2 && t->shape[3] != 4))
        return nib__weight_fail(q, NIB_BAD_INPUT, qdata,
                                "is no I32 [n/8][k/16/t][32][t/2] with t = 2, 4 or 8");
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
    if (d->block[0] != 1 || g < 1 || w->stored_k % g != 0 || pairs == NULL || pairs->rank != 3 ||
        pairs->shape[0] != w->stored_k / g || pairs->shape[1] != w->stored_n)
        return nib__weight_fail(q, NIB_BAD_INPUT, scale_and_zero,
                                "is no [k/g][n][2] for groups of %" PRId64 " and %" PRId64
                                " x %" PRId64 " packed codes",
                                g, w->stored_n, w->stored_k);
    w->codes = t->data;
    NIB_TRY(nib__weight_take_pairs(q, scale_and_zero, 0));
    return nib__weight_pick_layout(q, qdata, scale_and_zero, true);
}

/* ---- the class ---- */

typedef struct class_row {
    const char *name;
    nib_status (*take)(const nib_weight_query *q, const description *d);
    const char *why; /* for what is not read */
} class_row;

static const class_row classes[] = {
    {"Int8Tensor", take_int8, NULL},
    {"IntxUnpackedToInt8Tensor", take_intx, NULL},
    {"Int4Tensor", take_int4, NULL},
    {"Float8Tensor", take_float8, NULL},
    {"MXTensor", take_mx, NULL},
    {"NVFP4Tensor", take_nv, NULL},
    {"Int4TilePackedTo4dTensor", take_tile_packed, NULL},
    {"Int4PlainInt32Tensor", NULL, "is packed for XPU or NPU"},
};

/* Every tensor that the description lists is there and has a meaning here. */
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
        while (at < COUNT(known) && !is(d->names[i], known[at]))
            at++;
        snprintf(suffix, sizeof suffix, "._weight_%s", d->names[i]);
        if (at == COUNT(known))
            return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                    "is described with a tensor \"%s\", whose meaning is not "
                                    "known here",
                                    d->names[i]);
        if (nib__weight_part(q, suffix) == NULL)
            return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                    "the description lists this tensor, but it is missing");
    }
    return nib__weight_part(q, "._weight_act_pre_scale") == NULL
               ? NIB_OK
               : nib__weight_fail(q, NIB_UNSUPPORTED, "._weight_act_pre_scale",
                                  "scales of inputs (AWQ, SmoothQuant) are "
                                  "not read by this version");
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
        if (!is(d.type, classes[i].name))
            continue;
        if (classes[i].take == NULL)
            return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                    "%s (%s); quantize the original checkpoint instead",
                                    classes[i].why, d.type);
        NIB_TRY(check_names(q, &d));
        return classes[i].take(q, &d);
    }
    return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                            "is a \"%s\"; Int8Tensor, IntxUnpackedToInt8Tensor, Int4Tensor, "
                            "Float8Tensor, MXTensor and NVFP4Tensor are known",
                            nib__say_name(shown, sizeof shown, d.type, strlen(d.type)));
}
