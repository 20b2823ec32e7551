/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of compressed-tensors. quantization_config in config.json has groups of modules with a
 * format and the coding of weights and activations (quantization.h); the tensors have these
 * suffixes after the module name:
 *
 *   format                weights                                  weight_scale
 *   pack-quantized        weight_packed I32 [n][ceil(k*b/32)],     float [n][k/g], [n][1] or [1]
 *                         weight_shape I32 or I64 [2],
 *                         weight_zero_point I32 [ceil(n*b/32)][k/g], older files I8 [n][k/g],
 *                         weight_g_idx I32 [k]
 *   int-quantized         weight I8 [n][k], weight_zero_point      the same
 *   float-quantized       weight F8_E4M3 [n][k]                    the same, or [n/128][k/128]
 *   mxfp4-pack-quantized  weight_packed U8 [n][k/2], low first     U8 or F8_E8M0 [n][k/32]
 *   mxfp8-quantized       weight F8_E4M3 [n][k]                    U8 or F8_E8M0 [n][k/32]
 *   nvfp4-pack-quantized  weight_packed U8 [n][k/2], low first     F8_E4M3 [n][k/16], divided by
 *                                                                  weight_global_scale F32 [1]
 *
 * naive-quantized is int-quantized or float-quantized. input_scale and input_zero_point are for
 * static activations, input_global_scale for those of NVFP4.
 */
#include "dialect_common.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static bool equals(const char *a, const char *b) { return strcmp(a, b) == 0; }

static const char packed[] = ".weight_packed", plain[] = ".weight", scale[] = ".weight_scale",
                  zero_point[] = ".weight_zero_point";

/* ---- scales ---- */

static nib_status refuse_coding(const nib_weight_query *q, const nib_coding *c)
{
    char type[2 * NIB_WORD], strategy[2 * NIB_WORD];
    return nib__weight_fail(
        q, NIB_UNSUPPORTED, ".weight",
        "is coded in %" PRId64 " bits of type \"%s\", strategy \"%s\", groups of %" PRId64
        ", which is not supported for this format",
        c->bits, nib__escape_name(type, sizeof type, c->type, strlen(c->type)),
        nib__escape_name(strategy, sizeof strategy, c->strategy, strlen(c->strategy)), c->group);
}

/* Sets the group and the rows that share a scale, from strategy and group_size. */
static nib_status read_group(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    const char *strategy = c->strategy;
    if (strategy[0] == 0)
        strategy = c->group > 0 ? "group" : c->group == -1 ? "channel" : "tensor";
    if (equals(strategy, "tensor")) {
        w->scheme.group = NIB_GROUP_TENSOR;
    } else if (equals(strategy, "channel")) {
        w->scheme.group = NIB_GROUP_ROW;
    } else if ((equals(strategy, "group") || equals(strategy, "tensor_group")) && c->group > 0) {
        w->scheme.group = c->group;
    } else if (equals(strategy, "block") && c->block[0] > 0 && c->block[1] > 0) {
        w->scheme.group = c->block[1];
        w->scale_rows = c->block[0];
    } else {
        return refuse_coding(q, c);
    }
    return NIB_OK;
}

/* ---- activations ---- */

/* "float activations of 8 bits in groups of 16 with a static scale" */
static const char *describe_inputs(char out[160], const nib_coding *in)
{
    char type[2 * NIB_WORD], group[48] = "";
    const bool grouped =
        in->group > 0 &&
        (equals(in->strategy, "group") || equals(in->strategy, "tensor_group") || !in->strategy[0]);
    if (grouped)
        snprintf(group, sizeof group, " in groups of %" PRId64, in->group);
    snprintf(out, 160, "%s activations of %" PRId64 " bits%s%s",
             nib__escape_name(type, sizeof type, in->type, strlen(in->type)), in->bits,
             grouped                          ? group
             : equals(in->strategy, "token")  ? " per token"
             : equals(in->strategy, "tensor") ? " per tensor"
                                              : "",
             equals(in->dynamic, "true")    ? ""
             : equals(in->dynamic, "local") ? " with a static per-tensor scale"
                                            : " with a static scale");
    return out;
}

static void report_float(const nib_weight_query *q, const nib_coding *in)
{
    char asked[160];
    nib__weight_report(
        q, ".weight", describe_inputs(asked, in), "float activations", 0,
        "no kernel supports such activations with such weights; float activations are "
        "at least as exact");
}

/* Reports that activations get a scale per token instead of one for the batch. */
static void report_per_token(const nib_weight_query *q, const nib_coding *in, const char *done)
{
    char asked[160];
    if (!equals(in->strategy, "token") && in->strategy[0] != 0)
        nib__weight_report(
            q, ".weight", describe_inputs(asked, in), done, 0,
            "one scale for the whole batch would make a token's result depend on its "
            "neighbours");
}

static nib_status set_int_activations(const nib_weight_query *q, const nib_coding *in)
{
    nib_weight *w = q->out;
    const bool per_batch = equals(in->strategy, "tensor") || in->strategy[0] == 0;
    const bool is_static = in->dynamic[0] == 0 || equals(in->dynamic, "false");
    const bool int_weight =
        nib__code_is_int(w->scheme.code) && !nib__code_is_odd_int(w->scheme.code);
    w->scheme.act_symmetric = in->symmetric;
    if (int_weight && is_static && in->bits == 8 && per_batch) {
        w->scheme.act = NIB_ACT_I8_STATIC;
        return nib__weight_read_static(q, ".input_scale",
                                       in->symmetric ? NULL : ".input_zero_point");
    }
    if (int_weight && equals(in->dynamic, "true") && (per_batch || equals(in->strategy, "token")) &&
        (in->bits == 8 || in->bits == 4)) {
        w->scheme.act = in->bits == 8 ? NIB_ACT_I8_TOKEN : NIB_ACT_I4_TOKEN;
        report_per_token(q, in, in->bits == 8 ? "int8 per token" : "int4 per token");
        return NIB_OK;
    }
    report_float(q, in);
    return NIB_OK;
}

nib_status nib__weight_set_activations(const nib_weight_query *q, const nib_coding *in)
{
    nib_weight *w = q->out;
    static const char *const input_suffixes[] = {".input_scale", ".input_zero_point",
                                                 ".input_global_scale"};
    for (size_t i = 0; i < COUNT(input_suffixes); i++) /* mark as the module's, even if unused */
        (void)nib__weight_part(q, input_suffixes[i]);
    if (!in->given)
        return NIB_OK;
    if (equals(in->type, "int"))
        return set_int_activations(q, in);
    const nib_code code = w->scheme.code;
    const bool dynamic = equals(in->dynamic, "true"),
               e4m3 = equals(in->type, "float") && in->bits == 8;
    w->scheme.act_symmetric = true;
    if (e4m3 && dynamic && nib__code_is_mx(code) && in->group == 32) {
        w->scheme.act = NIB_ACT_MX8;
        nib__weight_report(q, ".weight",
                           "e4m3 activations, scales rounded to the nearest power of 2",
                           "scales rounded up", 0, "so that no value of a block is clipped");
    } else if (e4m3 && dynamic && code == NIB_CODE_E4M3 && in->group <= 0) {
        w->scheme.act = NIB_ACT_E4M3_TOKEN;
        report_per_token(q, in, "e4m3 per token");
    } else {
        report_float(q, in);
    }
    return NIB_OK;
}

/* ---- formats ---- */

static nib_status read_shape(const nib_weight_query *q)
{
    static const char suffix[] = ".weight_shape";
    static const int64_t two[1] = {2};
    nib_weight *w = q->out;
    const nib_tensor *shape = nib__weight_part(q, suffix);
    int64_t size[2];
    NIB_TRY(nib__weight_expect(q, suffix, shape, NIB_TYPE_NONE, 1, two));
    if (shape->type != NIB_TYPE_I64 && shape->type != NIB_TYPE_I32)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix, "is %s; a shape must be I64 or I32",
                                nib__type_stored_name(shape->type));
    for (int i = 0; i < 2; i++) {
        int32_t narrow;
        if (shape->type == NIB_TYPE_I64) {
            memcpy(&size[i], shape->data + 8 * i, sizeof size[i]);
        } else {
            memcpy(&narrow, shape->data + 4 * i, sizeof narrow);
            size[i] = narrow;
        }
        if (size[i] < 1 || size[i] > INT64_MAX / 64)
            return nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                    "is %" PRId64 " at index %d; sizes must be 1 to 2^57 - 1",
                                    size[i], i);
    }
    w->n = size[0];
    w->k = size[1];
    return NIB_OK;
}

/* Zero points packed in words, or one per byte in files from before 2025. */
static nib_status read_packed_zeros(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    const nib_tensor *zeros = nib__weight_part(q, zero_point);
    if (zeros == NULL) {
        w->scheme.symmetric = true;
        return c->symmetric ? NIB_OK
                            : nib__weight_fail(q, NIB_BAD_INPUT, zero_point,
                                               "the tensor is missing, but the config group has "
                                               "\"symmetric\": false");
    }
    if (zeros->type != NIB_TYPE_I32 || w->scheme.group == NIB_GROUP_TENSOR)
        return nib__weight_read_zeros(q, zero_point);
    const int64_t shape[2] = {nib__ceil_div(w->n * c->bits, 32),
                              nib__scheme_groups(&w->scheme, w->k)};
    NIB_TRY(nib__weight_expect(q, zero_point, zeros, NIB_TYPE_I32, 2, shape));
    w->layout = NIB_LAYOUT_WORDS_ZEROS;
    w->zeros = zeros->data;
    nib__weight_drop_zeros(q);
    return NIB_OK;
}

static nib_status read_pack(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, packed);
    if (!equals(c->type, "int") || c->bits < 1 || c->bits > 8)
        return refuse_coding(q, c);
    w->scheme.code = nib__int_code(c->bits);
    NIB_TRY(read_shape(q));
    const int64_t shape[2] = {w->n, nib__ceil_div(w->k * c->bits, 32)};
    NIB_TRY(nib__weight_expect(q, packed, codes, NIB_TYPE_I32, 2, shape));
    w->codes = codes->data;
    w->layout = NIB_LAYOUT_WORDS;
    NIB_TRY(read_group(q, c));
    NIB_TRY(nib__weight_read_grid(q, scale, NIB_TYPE_NONE));
    NIB_TRY(read_packed_zeros(q, c));
    return nib__weight_read_order(q, ".weight_g_idx");
}

static nib_status read_ints(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    if (!equals(c->type, "int") || c->bits < 1 || c->bits > 8)
        return refuse_coding(q, c);
    w->scheme.code = nib__int_code(c->bits); /* one per byte */
    NIB_TRY(nib__weight_read_bytes(q, plain, NIB_TYPE_I8));
    NIB_TRY(read_group(q, c));
    NIB_TRY(nib__weight_read_grid(q, scale, NIB_TYPE_NONE));
    if (!c->symmetric && nib__weight_part(q, zero_point) == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, zero_point, "the tensor is missing");
    NIB_TRY(nib__weight_read_zeros(q, zero_point));
    return nib__weight_read_order(q, ".weight_g_idx");
}

/* Older files also store zero points of symmetric codes; they must be 0. */
static nib_status check_no_zeros(const nib_weight_query *q)
{
    const nib_tensor *zeros = nib__weight_part(q, zero_point);
    for (uint64_t i = 0; zeros != NULL && i < zeros->bytes; i++)
        if (zeros->data[i] != 0)
            return nib__weight_fail(q, NIB_UNSUPPORTED, zero_point,
                                    "has values other than 0; zero points are not supported for "
                                    "e4m3 codes");
    return NIB_OK;
}

static nib_status read_floats(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    if (!equals(c->type, "float") || c->bits != 8 || !c->symmetric)
        return refuse_coding(q, c);
    w->scheme.code = NIB_CODE_E4M3;
    w->scheme.symmetric = true;
    NIB_TRY(nib__weight_read_bytes(q, plain, NIB_TYPE_E4M3));
    NIB_TRY(check_no_zeros(q));
    NIB_TRY(read_group(q, c));
    return nib__weight_read_grid(q, scale, NIB_TYPE_NONE);
}

static nib_status read_naive(const nib_weight_query *q, const nib_coding *c)
{
    return equals(c->type, "int") ? read_ints(q, c) : read_floats(q, c);
}

static nib_status read_mx8(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    if (!equals(c->type, "float") || c->bits != 8 || c->group != 32)
        return refuse_coding(q, c);
    w->scheme = (nib_scheme){.code = NIB_CODE_MX8, .group = 32, .symmetric = true};
    NIB_TRY(nib__weight_read_bytes(q, plain, NIB_TYPE_E4M3));
    return nib__weight_read_grid(q, scale, NIB_TYPE_E8M0);
}

/* 4-bit codes, two per byte. */
static nib_status read_pairs(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    NIB_TRY(nib__weight_read_bytes(q, packed, NIB_TYPE_U8));
    w->k *= 2; /* a row of k bytes is in the file */
    w->layout = NIB_LAYOUT_NIBBLE;
    return NIB_OK;
}

static nib_status read_mx4(const nib_weight_query *q, const nib_coding *c)
{
    if (!equals(c->type, "float") || c->bits != 4 || c->group != 32)
        return refuse_coding(q, c);
    q->out->scheme = (nib_scheme){.code = NIB_CODE_MX4, .group = 32, .symmetric = true};
    NIB_TRY(read_pairs(q));
    return nib__weight_read_grid(q, scale, NIB_TYPE_E8M0);
}

static nib_status read_nv4(const nib_weight_query *q, const nib_coding *c)
{
    if (!equals(c->type, "float") || c->bits != 4 || c->group != 16 || !c->symmetric)
        return refuse_coding(q, c);
    q->out->scheme = (nib_scheme){.code = NIB_CODE_NV4, .group = 16, .symmetric = true};
    NIB_TRY(read_pairs(q));
    NIB_TRY(nib__weight_read_grid(q, scale, NIB_TYPE_NONE));
    return nib__weight_read_tensor_scale(q, ".weight_global_scale", true);
}

/* ---- which format ---- */

static const struct {
    const char *name;
    const char *codes; /* suffix of its codes */
    nib_status (*read)(const nib_weight_query *q, const nib_coding *c);
} formats[] = {
    {"pack-quantized", packed, read_pack},      {"int-quantized", plain, read_ints},
    {"float-quantized", plain, read_floats},    {"naive-quantized", plain, read_naive},
    {"mxfp4-pack-quantized", packed, read_mx4}, {"mxfp8-quantized", plain, read_mx8},
    {"nvfp4-pack-quantized", packed, read_nv4},
};

bool nib__weight_is_compressed(const nib_weight_query *q, const nib_tensor *codes)
{
    const nib_quantization *config = q->cp->coding;
    if (config == NULL || config->method != NIB_METHOD_COMPRESSED)
        return false;
    const size_t size = strlen(codes->name), end = sizeof packed - 1;
    if (size > end && equals(codes->name + size - end, packed))
        return true;
    return (codes->type == NIB_TYPE_I8 || codes->type == NIB_TYPE_E4M3) &&
           nib__weight_part(q, scale) != NULL;
}

nib_status nib__weight_compressed(const nib_weight_query *q)
{
    const nib_quantization *config = q->cp->coding;
    const nib_coding_group *group;
    char shown[2 * NIB_WORD];
    bool ignored;
    NIB_TRY(nib__targets_match(&ignored, &config->ignore, q->module, q->err));
    NIB_TRY(nib__quantization_group(&group, config, q->module, q->err));
    if (group == NULL || !group->weights.given)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "is quantized, but %s in config.json's quantization_config",
                                ignored ? "on the ignore list" : "matches no config group");
    const bool own = group->format[0] != 0 && !equals(group->format, "mixed-precision");
    const char *format = own ? group->format : config->format;
    nib__escape_name(shown, sizeof shown, format, strlen(format));
    for (size_t i = 0; i < COUNT(formats); i++) {
        if (!equals(format, formats[i].name))
            continue;
        if (nib__weight_part(q, formats[i].codes) == NULL)
            return nib__weight_fail(q, NIB_BAD_INPUT, formats[i].codes,
                                    "is missing; format \"%s\" stores its codes there", shown);
        NIB_TRY(formats[i].read(q, &group->weights));
        return nib__weight_set_activations(q, &group->inputs);
    }
    return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                            "has format \"%s\"; nibble reads pack-quantized, int-quantized, "
                            "float-quantized, naive-quantized, mxfp4-pack-quantized, "
                            "mxfp8-quantized and nvfp4-pack-quantized; vLLM reads others",
                            shown);
}
