/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights of quant_method "fp8", as DeepSeek, transformers and vLLM write them, and of
 * "fbgemm_fp8", as in Llama 4:
 *
 *   M.weight            F8_E4M3 [n][k]
 *   M.weight_scale_inv  float [ceil(n/128)][ceil(k/128)], if config.json has weight_block_size
 *   M.weight_scale      or weight_scale_inv: one float for the tensor, or [n] or [n][1]
 *   M.input_scale       or M.activation_scale: one float for static activations; not supported
 *
 * The value is code * scale, even if the name says inv.
 */
#include "dialect_common.h"

#include <inttypes.h>
#include <stdio.h>

static const char weight[] = ".weight";

bool nib__weight_is_fp8(const nib_weight_query *q, const nib_tensor *codes)
{
    const nib_quantization *config = q->cp->coding;
    return config != NULL && config->method == NIB_METHOD_FP8 && codes->type == NIB_TYPE_E4M3;
}

/* Sets the activations that config.json asks for, or reports that they stay floats. */
static void set_activations(const nib_weight_query *q)
{
    const nib_quantization *config = q->cp->coding;
    nib_weight *w = q->out;
    char asked[NIB_FP8_INPUTS];
    (void)nib__weight_part(q, ".input_scale"); /* mark as the module's, even if unused */
    (void)nib__weight_part(q, ".activation_scale");
    if (nib__quantization_fp8_inputs(asked, config)) {
        w->scheme.act = NIB_ACT_E4M3_TOKEN;
        w->scheme.act_symmetric = true;
        if (config->act_limit > 0) {
            nib__format(asked, sizeof asked, "e4m3 activations per token, clipped at %g",
                        config->act_limit);
            nib__weight_report(q, weight, asked, "e4m3 activations per token", 0,
                               "the scale of a token covers its largest value");
        }
        return;
    }
    nib__weight_report(
        q, weight, asked, "float activations", 0,
        "no kernel supports such activations; float activations are at least as exact");
}

nib_status nib__weight_fp8(const nib_weight_query *q)
{
    const nib_quantization *config = q->cp->coding;
    nib_weight *w = q->out;
    const char *suffix = ".weight_scale_inv";
    const nib_tensor *scale = nib__weight_part(q, suffix);
    if (scale == NULL)
        scale = nib__weight_part(q, suffix = ".weight_scale");
    if (scale == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, weight,
                                "is F8_E4M3, but has neither weight_scale_inv nor weight_scale");
    w->scheme = (nib_scheme){.code = NIB_CODE_E4M3, .symmetric = true};
    NIB_TRY(nib__weight_read_bytes(q, weight, NIB_TYPE_E4M3));
    if (config->block[0] > 0) {
        w->scheme.group = config->block[1];
        w->scale_rows = config->block[0];
    } else {
        w->scheme.group = scale->bytes == (uint64_t)nib__type_bits(scale->type) / 8 && w->n > 1
                              ? NIB_GROUP_TENSOR
                              : NIB_GROUP_ROW;
    }
    NIB_TRY(nib__weight_read_grid(q, suffix, NIB_TYPE_NONE));
    set_activations(q);
    return NIB_OK;
}
