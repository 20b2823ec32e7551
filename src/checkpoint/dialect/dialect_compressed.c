/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights as compressed-tensors stores them. config.json's quantization_config has groups of
 * modules with a format and the coding of weights and activations (quantization.h); the tensors
 * have these names behind the module's:
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
 * naive-quantized is int-quantized or float-quantized. input_scale and input_zero_point hold static
 * activation scales, input_global_scale one of NVFP4's.
 */
#include "dialect_common.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static bool is(const char *a, const char *b) { return strcmp(a, b) == 0; }

static const char packed[] = ".weight_packed", plain[] = ".weight", scale[] = ".weight_scale",
                  zero_point[] = ".weight_zero_point";

/* ---- scales ---- */

static nib_status refuse_coding(const nib_weight_query *q, const nib_coding *c)
{
    char type[2 * NIB_WORD], strategy[2 * NIB_WORD];
    return nib__weight_fail(
        q, NIB_UNSUPPORTED, ".weight",
        "is coded in %" PRId64 " bits of type \"%s\", strategy \"%s\", groups of %" PRId64
        ", which this format does not hold here",
        c->bits, nib__say_name(type, sizeof type, c->type, strlen(c->type)),
        nib__say_name(strategy, sizeof strategy, c->strategy, strlen(c->strategy)), c->group);
}

/* The group and the rows that share a scale, from strategy and group_size. */
static nib_status take_group(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    const char *strategy = c->strategy;
    if (strategy[0] == 0)
        strategy = c->group > 0 ? "group" : c->group == -1 ? "channel" : "tensor";
    if (is(strategy, "tensor")) {
        w->scheme.group = NIB_GROUP_TENSOR;
    } else if (is(strategy, "channel")) {
        w->scheme.group = NIB_GROUP_ROW;
    } else if ((is(strategy, "group") || is(strategy, "tensor_group")) && c->group > 0) {
        w->scheme.group = c->group;
    } else if (is(strategy, "block") && c->block[0] > 0 && c->block[1] > 0) {
        w->scheme.group = c->block[1];
        w->scale_rows = c->block[0];
    } else {
        return refuse_coding(q, c);
    }
    return NIB_OK;
}

/* ---- activations ---- */

/* "float activations of 8 bits in groups of 16 with a static scale" */
static const char *say_inputs(char out[160], const nib_coding *in)
{
    char type[2 * NIB_WORD], group[48] = "";
    const bool grouped = in->group > 0 && (is(in->strategy, "group") ||
                                           is(in->strategy, "tensor_group") || !in->strategy[0]);
    if (grouped)
        snprintf(group, sizeof group, " in groups of %" PRId64, in->group);
    snprintf(out, 160, "%s activations of %" PRId64 " bits%s%s",
             nib__say_name(type, sizeof type, in->type, strlen(in->type)), in->bits,
             grouped                      ? group
             : is(in->strategy, "token")  ? " per token"
             : is(in->strategy, "tensor") ? " per tensor"
                                          : "",
             is(in->dynamic, "true")    ? ""
             : is(in->dynamic, "local") ? " with a static scale over them"
                                        : " with a static scale");
    return out;
}

static void say_float(const nib_weight_query *q, const nib_coding *in)
{
    char asked[160];
    nib__weight_say(q, ".weight", say_inputs(asked, in), "float activations", 0,
                    "no kernel here takes such activations with such weights; float ones are no "
                    "less exact");
}

/* One scale for a batch would make a token's result depend on its neighbours. */
static void say_token(const nib_weight_query *q, const nib_coding *in, const char *done)
{
    char asked[160];
    if (!is(in->strategy, "token") && in->strategy[0] != 0)
        nib__weight_say(q, ".weight", say_inputs(asked, in), done, 0,
                        "one scale for the whole batch would make a token's result depend on its "
                        "neighbours");
}

static nib_status take_int_act(const nib_weight_query *q, const nib_coding *in)
{
    nib_weight *w = q->out;
    const bool per_batch = is(in->strategy, "tensor") || in->strategy[0] == 0;
    const bool is_static = in->dynamic[0] == 0 || is(in->dynamic, "false");
    const bool int_weight = w->scheme.code == NIB_CODE_I8 || w->scheme.code == NIB_CODE_I4;
    w->scheme.act_symmetric = in->symmetric;
    if (int_weight && is_static && in->bits == 8 && per_batch) {
        w->scheme.act = NIB_ACT_I8_STATIC;
        return nib__weight_take_static(q, ".input_scale",
                                       in->symmetric ? NULL : ".input_zero_point");
    }
    if (int_weight && is(in->dynamic, "true") && (per_batch || is(in->strategy, "token")) &&
        (in->bits == 8 || in->bits == 4)) {
        w->scheme.act = in->bits == 8 ? NIB_ACT_I8_TOKEN : NIB_ACT_I4_TOKEN;
        say_token(q, in, in->bits == 8 ? "int8 per token" : "int4 per token");
        return NIB_OK;
    }
    say_float(q, in);
    return NIB_OK;
}

static nib_status take_act(const nib_weight_query *q, const nib_coding *in)
{
    nib_weight *w = q->out;
    static const char *const of_inputs[] = {".input_scale", ".input_zero_point",
                                            ".input_global_scale"};
    for (size_t i = 0; i < COUNT(of_inputs); i++) /* the module's, used or not */
        (void)nib__weight_part(q, of_inputs[i]);
    if (!in->given)
        return NIB_OK;
    if (is(in->type, "int"))
        return take_int_act(q, in);
    const nib_code code = w->scheme.code;
    const bool dynamic = is(in->dynamic, "true"), e4m3 = is(in->type, "float") && in->bits == 8;
    w->scheme.act_symmetric = true;
    if (e4m3 && dynamic && (code == NIB_CODE_MX8 || code == NIB_CODE_MX4) && in->group == 32) {
        w->scheme.act = NIB_ACT_MX8;
        nib__weight_say(q, ".weight", "e4m3 activations, scales rounded to the nearest power of 2",
                        "scales rounded up", 0, "so no value of a block is cut off");
    } else if (e4m3 && dynamic && code == NIB_CODE_E4M3 && in->group <= 0) {
        w->scheme.act = NIB_ACT_E4M3_TOKEN;
        say_token(q, in, "e4m3 per token");
    } else {
        say_float(q, in);
    }
    return NIB_OK;
}

/* ---- formats ---- */

static nib_status take_shape(const nib_weight_query *q)
{
    static const char suffix[] = ".weight_shape";
    static const int64_t two[1] = {2};
    nib_weight *w = q->out;
    const nib_tensor *shape = nib__weight_part(q, suffix);
    int64_t size[2];
    NIB_TRY(nib__weight_expect(q, suffix, shape, NIB_TYPE_NONE, 1, two));
    if (shape->type != NIB_TYPE_I64 && shape->type != NIB_TYPE_I32)
        return nib__weight_fail(q, NIB_BAD_INPUT, suffix, "is %s; a shape is I64 or I32",
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
            return nib__weight_fail(q, NIB_BAD_INPUT, suffix, "is [%" PRId64 ", ...] at index %d",
                                    size[i], i);
    }
    w->n = size[0];
    w->k = size[1];
    return NIB_OK;
}

/* Zero points in words, or, in files of before 2025, one per byte. */
static nib_status take_packed_zeros(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    const nib_tensor *zeros = nib__weight_part(q, zero_point);
    if (zeros == NULL) {
        w->scheme.symmetric = true;
        return c->symmetric ? NIB_OK
                            : nib__weight_fail(q, NIB_BAD_INPUT, zero_point,
                                               "the tensor is missing; the config group says "
                                               "\"symmetric\": false");
    }
    if (zeros->type != NIB_TYPE_I32 || w->scheme.group == NIB_GROUP_TENSOR)
        return nib__weight_take_zeros(q, zero_point);
    const int64_t per = c->bits == 4 ? 8 : 4;
    const int64_t shape[2] = {nib__ceil_div(w->n, per), nib__scheme_groups(&w->scheme, w->k)};
    NIB_TRY(nib__weight_expect(q, zero_point, zeros, NIB_TYPE_I32, 2, shape));
    w->layout = NIB_LAYOUT_WORDS_ZEROS;
    w->zeros = zeros->data;
    nib__weight_drop_zeros(q);
    return NIB_OK;
}

static nib_status take_pack(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, packed);
    if (!is(c->type, "int") || (c->bits != 4 && c->bits != 8))
        return refuse_coding(q, c);
    w->scheme.code = c->bits == 4 ? NIB_CODE_I4 : NIB_CODE_I8;
    NIB_TRY(take_shape(q));
    const int64_t shape[2] = {w->n, nib__ceil_div(w->k, c->bits == 4 ? 8 : 4)};
    NIB_TRY(nib__weight_expect(q, packed, codes, NIB_TYPE_I32, 2, shape));
    w->codes = codes->data;
    w->layout = NIB_LAYOUT_WORDS;
    NIB_TRY(take_group(q, c));
    NIB_TRY(nib__weight_take_grid(q, scale, NIB_TYPE_NONE));
    NIB_TRY(take_packed_zeros(q, c));
    return nib__weight_take_order(q, ".weight_g_idx");
}

static nib_status take_ints(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    if (!is(c->type, "int") || c->bits > 8)
        return refuse_coding(q, c);
    w->scheme.code = c->bits == 4 ? NIB_CODE_I4 : NIB_CODE_I8; /* a byte each, either way */
    NIB_TRY(nib__weight_take_bytes(q, plain, NIB_TYPE_I8));
    NIB_TRY(take_group(q, c));
    NIB_TRY(nib__weight_take_grid(q, scale, NIB_TYPE_NONE));
    if (!c->symmetric && nib__weight_part(q, zero_point) == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, zero_point, "the tensor is missing");
    NIB_TRY(nib__weight_take_zeros(q, zero_point));
    return nib__weight_take_order(q, ".weight_g_idx");
}

/* Older files keep zero points of symmetric codes, too: they are 0, whatever their type. */
static nib_status check_no_zeros(const nib_weight_query *q)
{
    const nib_tensor *zeros = nib__weight_part(q, zero_point);
    for (uint64_t i = 0; zeros != NULL && i < zeros->bytes; i++)
        if (zeros->data[i] != 0)
            return nib__weight_fail(q, NIB_UNSUPPORTED, zero_point,
                                    "is not 0 throughout; codes of e4m3 are read without zero "
                                    "points");
    return NIB_OK;
}

static nib_status take_floats(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    if (!is(c->type, "float") || c->bits != 8 || !c->symmetric)
        return refuse_coding(q, c);
    w->scheme.code = NIB_CODE_E4M3;
    w->scheme.symmetric = true;
    NIB_TRY(nib__weight_take_bytes(q, plain, NIB_TYPE_E4M3));
    NIB_TRY(check_no_zeros(q));
    NIB_TRY(take_group(q, c));
    return nib__weight_take_grid(q, scale, NIB_TYPE_NONE);
}

static nib_status take_naive(const nib_weight_query *q, const nib_coding *c)
{
    return is(c->type, "int") ? take_ints(q, c) : take_floats(q, c);
}

static nib_status take_mx8(const nib_weight_query *q, const nib_coding *c)
{
    nib_weight *w = q->out;
    if (!is(c->type, "float") || c->bits != 8 || c->group != 32)
        return refuse_coding(q, c);
    w->scheme = (nib_scheme){.code = NIB_CODE_MX8, .group = 32, .symmetric = true};
    NIB_TRY(nib__weight_take_bytes(q, plain, NIB_TYPE_E4M3));
    return nib__weight_take_grid(q, scale, NIB_TYPE_E8M0);
}

/* Codes of 4 bits, two per byte. */
static nib_status take_pairs(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    NIB_TRY(nib__weight_take_bytes(q, packed, NIB_TYPE_U8));
    if (w->k > INT64_MAX / 2)
        return nib__weight_fail(q, NIB_BAD_INPUT, packed, "has rows of %" PRId64 " bytes", w->k);
    w->k *= 2;
    w->layout = NIB_LAYOUT_NIBBLE;
    return NIB_OK;
}

static nib_status take_mx4(const nib_weight_query *q, const nib_coding *c)
{
    if (!is(c->type, "float") || c->bits != 4 || c->group != 32)
        return refuse_coding(q, c);
    q->out->scheme = (nib_scheme){.code = NIB_CODE_MX4, .group = 32, .symmetric = true};
    NIB_TRY(take_pairs(q));
    return nib__weight_take_grid(q, scale, NIB_TYPE_E8M0);
}

static nib_status take_nv4(const nib_weight_query *q, const nib_coding *c)
{
    if (!is(c->type, "float") || c->bits != 4 || c->group != 16 || !c->symmetric)
        return refuse_coding(q, c);
    q->out->scheme = (nib_scheme){.code = NIB_CODE_NV4, .group = 16, .symmetric = true};
    NIB_TRY(take_pairs(q));
    NIB_TRY(nib__weight_take_grid(q, scale, NIB_TYPE_NONE));
    return nib__weight_take_tensor_scale(q, ".weight_global_scale", true);
}

/* ---- which format ---- */

static const struct {
    const char *name;
    const char *codes; /* where its codes are */
    nib_status (*take)(const nib_weight_query *q, const nib_coding *c);
} formats[] = {
    {"pack-quantized", packed, take_pack},      {"int-quantized", plain, take_ints},
    {"float-quantized", plain, take_floats},    {"naive-quantized", plain, take_naive},
    {"mxfp4-pack-quantized", packed, take_mx4}, {"mxfp8-quantized", plain, take_mx8},
    {"nvfp4-pack-quantized", packed, take_nv4},
};

bool nib__weight_is_compressed(const nib_weight_query *q, const nib_tensor *codes)
{
    const nib_quantization *config = q->cp->coding;
    if (config == NULL || config->method != NIB_METHOD_COMPRESSED)
        return false;
    const size_t size = strlen(codes->name), end = sizeof packed - 1;
    if (size > end && is(codes->name + size - end, packed))
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
                                "is stored as codes, but %s of config.json's quantization_config "
                                "describes it",
                                ignored ? "the ignore list and no config group"
                                        : "no config group");
    const bool own = group->format[0] != 0 && !is(group->format, "mixed-precision");
    const char *format = own ? group->format : config->format;
    nib__say_name(shown, sizeof shown, format, strlen(format));
    for (size_t i = 0; i < COUNT(formats); i++) {
        if (!is(format, formats[i].name))
            continue;
        if (nib__weight_part(q, formats[i].codes) == NULL)
            return nib__weight_fail(q, NIB_BAD_INPUT, formats[i].codes,
                                    "is missing, where format \"%s\" keeps its codes", shown);
        NIB_TRY(formats[i].take(q, &group->weights));
        return take_act(q, &group->inputs);
    }
    return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                            "is of format \"%s\"; pack-quantized, int-quantized, float-quantized, "
                            "naive-quantized, mxfp4-pack-quantized, mxfp8-quantized and "
                            "nvfp4-pack-quantized are read; vLLM reads others",
                            shown);
}
