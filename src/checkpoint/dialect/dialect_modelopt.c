/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of NVIDIA's ModelOpt (quant_method "modelopt"), as its export to Hugging Face's layout
 * writes them. The tensors show the codes; quantization_config, or hf_quant_config.json if
 * config.json has none, says what activations run with them:
 *
 *   quant_algo                M.weight         M.weight_scale
 *   NVFP4, W4A16_NVFP4,       U8 [n][k/2],     F8_E4M3 [n][k/16], multiplied by
 *   W4A8_NVFP4_FP8            low nibble first M.weight_scale_2 F32, one value
 *   FP8                       F8_E4M3 [n][k]   one float
 *   FP8_PER_CHANNEL_PER_TOKEN F8_E4M3 [n][k]   float [n]
 *   FP8_PB_WO                 F8_E4M3 [n][k]   float [n/128][k/128], also with dimensions of 1
 *   MXFP8                     F8_E4M3 [n][k]   U8 [n][k/32]
 *   W8A16, W8A8_SQ_PER_CHANNEL  I8 [n][k]      float [n]
 *
 * M.input_scale is one float for static activations. M.pre_quant_scale, which multiplies the
 * inputs, is refused.
 */
#include "dialect_common.h"

#include <inttypes.h>
#include <stdio.h>

static const char weight[] = ".weight", scale[] = ".weight_scale", whole[] = ".weight_scale_2";

/* ---- algorithms ---- */

bool nib__modelopt_algorithm(nib_coding *weights, nib_coding *inputs, const char *algorithm,
                             int64_t group)
{
    /* strategy of the activations: empty if they stay floats */
    static const struct {
        const char *name, *type;
        int64_t bits, group; /* group: elements of k per scale; 0: none */
        const char *strategy, *acts, *act_type;
        int64_t act_bits;
        const char *dynamic;
    } rows[] = {
        {"FP8", "float", 8, 0, "tensor", "tensor", "float", 8, "false"},
        {"FP8_PER_CHANNEL_PER_TOKEN", "float", 8, 0, "channel", "token", "float", 8, "true"},
        {"FP8_PB_WO", "float", 8, 128, "block", "", "", 0, ""},
        {"NVFP4", "float", 4, 16, "tensor_group", "tensor_group", "float", 4, "local"},
        {"W4A16_NVFP4", "float", 4, 16, "tensor_group", "", "", 0, ""},
        {"W4A8_NVFP4_FP8", "float", 4, 16, "tensor_group", "tensor", "float", 8, "false"},
        {"MXFP8", "float", 8, 32, "group", "group", "float", 8, "true"},
        {"W8A16", "int", 8, 0, "channel", "", "", 0, ""},
        {"W8A8_SQ_PER_CHANNEL", "int", 8, 0, "channel", "tensor", "int", 8, "false"},
    };
    *weights = *inputs = (nib_coding){.symmetric = true};
    for (size_t i = 0; i < COUNT(rows); i++) {
        if (!nib__same_ignoring_case(rows[i].name, algorithm))
            continue;
        weights->given = true;
        weights->bits = rows[i].bits;
        weights->group = group > 0 ? group : rows[i].group;
        snprintf(weights->type, NIB_WORD, "%s", rows[i].type);
        snprintf(weights->strategy, NIB_WORD, "%s", rows[i].strategy);
        inputs->given = rows[i].acts[0] != 0;
        inputs->bits = rows[i].act_bits;
        inputs->group = inputs->bits == weights->bits ? weights->group : 0;
        snprintf(inputs->type, NIB_WORD, "%s", rows[i].act_type);
        snprintf(inputs->strategy, NIB_WORD, "%s", rows[i].acts);
        snprintf(inputs->dynamic, NIB_WORD, "%s", rows[i].dynamic);
        return true;
    }
    return false;
}

/* ---- codes ---- */

bool nib__weight_is_modelopt(const nib_weight_query *q, const nib_tensor *codes)
{
    const nib_quantization *config = q->cp->coding;
    return config != NULL && config->method == NIB_METHOD_MODELOPT &&
           !nib__type_is_float(codes->type) && nib__weight_part(q, scale) != NULL;
}

static nib_status read_nv4(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    w->scheme = (nib_scheme){.code = NIB_CODE_NV4, .group = 16, .symmetric = true};
    NIB_TRY(nib__weight_read_bytes(q, weight, NIB_TYPE_U8));
    w->k *= 2; /* a row of k bytes is in the file */
    w->layout = NIB_LAYOUT_NIBBLE;
    NIB_TRY(nib__weight_read_grid(q, scale, NIB_TYPE_NONE));
    return nib__weight_read_tensor_scale(q, whole, false);
}

/* Codes of one byte: the scales show how many inputs and rows share one. */
static nib_status read_eights(const nib_weight_query *q, nib_type type)
{
    nib_weight *w = q->out;
    const nib_tensor *scales = nib__weight_part(q, scale);
    const bool mx = scales->type == NIB_TYPE_U8 || scales->type == NIB_TYPE_E8M0;
    const uint64_t bytes = (uint64_t)nib__type_bits(scales->type) / 8;
    NIB_TRY(nib__weight_read_bytes(q, weight, type));
    w->scheme = (nib_scheme){.code = type == NIB_TYPE_I8 ? NIB_CODE_I8
                                     : mx                ? NIB_CODE_MX8
                                                         : NIB_CODE_E4M3,
                             .symmetric = true};
    if (mx && type == NIB_TYPE_E4M3) {
        w->scheme.group = 32;
    } else if (scales->bytes == bytes && w->n > 1) {
        w->scheme.group = NIB_GROUP_TENSOR;
    } else if (scales->bytes != bytes * (uint64_t)w->n) {
        w->scheme.group = w->scale_rows = 128;
    }
    return nib__weight_read_grid(q, scale, mx ? NIB_TYPE_E8M0 : NIB_TYPE_NONE);
}

/* Refuses tensors that change the inputs or the outputs of the layer. */
static nib_status check_others(const nib_weight_query *q)
{
    static const char *const others[] = {".pre_quant_scale", ".svdquant_lora_a",
                                         ".svdquant_lora_b"};
    for (size_t i = 0; i < COUNT(others); i++)
        if (nib__weight_part(q, others[i]) != NULL)
            return nib__weight_fail(q, NIB_UNSUPPORTED, others[i],
                                    "is a part of the layer that nibble does not compute; "
                                    "TensorRT-LLM reads it");
    return NIB_OK;
}

nib_status nib__weight_modelopt(const nib_weight_query *q)
{
    const nib_coding_group *group;
    const nib_tensor *codes = nib__weight_part(q, weight);
    char stored[64];
    NIB_TRY(check_others(q));
    const bool pairs = codes->type == NIB_TYPE_U8;
    if (!pairs && codes->type != NIB_TYPE_E4M3 && codes->type != NIB_TYPE_I8)
        return nib__weight_fail(q, NIB_UNSUPPORTED, weight,
                                "is %s; of ModelOpt's codes, U8 (NVFP4), F8_E4M3 and I8 are read",
                                nib__type_stored_name(codes->type));
    if (pairs && nib__weight_part(q, whole) == NULL)
        return nib__weight_fail(q, NIB_UNSUPPORTED, weight,
                                "is U8 without weight_scale_2; of ModelOpt's codes of 4 bits, "
                                "NVFP4 is read");
    NIB_TRY(pairs ? read_nv4(q) : read_eights(q, codes->type));
    NIB_TRY(nib__quantization_group(&group, q->cp->coding, q->module, q->err));
    if (group == NULL || !group->weights.given) /* checkpoint.c reports it */
        return NIB_OK;
    const nib_coding *c = &group->weights;
    if (c->bits != (pairs ? 4 : 8) || strcmp(c->type, codes->type == NIB_TYPE_I8 ? "int" : "float"))
        return nib__weight_fail(q, NIB_BAD_INPUT, weight,
                                "is %s, but quantization_config describes codes of %" PRId64
                                " bits of type \"%s\"",
                                nib__type_stored_name(codes->type), c->bits,
                                nib__escape_name(stored, sizeof stored, c->type, strlen(c->type)));
    if (c->group > 0 && q->out->scheme.group > 0 && c->group != q->out->scheme.group)
        return nib__weight_fail(q, NIB_BAD_INPUT, scale,
                                "holds a scale for %" PRId64 " inputs, but quantization_config "
                                "describes groups of %" PRId64,
                                q->out->scheme.group, c->group);
    return nib__weight_set_activations(q, &group->inputs);
}
