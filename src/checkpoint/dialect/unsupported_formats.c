/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights that no dialect reads: identifies the tool by its other tensors, so that the error says
 * more than "missing" or "unknown type".
 */
#include "checkpoint_inside.h"

static const struct {
    const char *suffix; /* after the module name */
    const char *made_by;
    const char *remedy;
} others[] = {
    {".weight_packed", "compressed-tensors",
     "needs a config.json with quantization_config next to the file"},
    {".qweight", "GPTQ or AWQ",
     "needs a config.json next to the file whose quantization_config has quant_method, bits and "
     "group_size"},
    {".weight.absmax", "bitsandbytes", "transformers with bitsandbytes reads it"},
    {".SCB", "bitsandbytes", "transformers with bitsandbytes reads it"},
    {".weight.SCB", "bitsandbytes", "transformers with bitsandbytes reads it"},
    {".W_q", "HQQ", "transformers with hqq reads it"},
    {".weight._data", "quanto", "transformers with optimum-quanto reads it"},
    {".weight_scales", "EETQ", "transformers with eetq reads it"},
    {".codebooks", "AQLM", "transformers with aqlm reads it"},
    {".dense_weights", "SpQR", "transformers with spqr_quant reads it"},
    {".centroids.weight", "VPTQ", "transformers with vptq reads it"},
    {".activation_scale_ub", "FBGEMM", "transformers with fbgemm-gpu reads it"},
    {".weight_scale_2", "NVIDIA ModelOpt",
     "needs hf_quant_config.json, or a config.json with quantization_config, next to the file"},
    {".q_weight", "ExLlamaV2", "exllamav2 reads it"},
    {".trellis", "ExLlamaV3", "exllamav3 reads it"},
    {".weight_format", "Quark", "transformers with amd-quark reads it"},
    {".weight_scale_inv", "DeepSeek FP8",
     "needs a config.json with quantization_config next to the file"},
};

bool nib__weight_fail_unsupported(const nib_weight_query *q, nib_status *status)
{
    for (size_t i = 0; i < COUNT(others); i++) {
        if (nib__weight_part(q, others[i].suffix) == NULL)
            continue;
        *status = nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                   "is stored in the format of %s (%s): %s; or quantize the "
                                   "original checkpoint with nibble",
                                   others[i].made_by, others[i].suffix + 1, others[i].remedy);
        return true;
    }
    return false;
}
