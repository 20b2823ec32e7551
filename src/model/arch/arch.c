/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of families, by nib_arch.
 */
#include "arch.h"

#include <stdio.h>

const char *const nib__eps_keys[] = {[NIB_EPS_RMS] = "rms_norm_eps",
                                     [NIB_EPS_LAYER] = "layer_norm_eps",
                                     [NIB_EPS_NORM] = "norm_epsilon",
                                     [NIB_EPS_PLAIN] = "norm_eps"};

static const nib_family_row *const families[] = {
    [NIB_ARCH_LLAMA] = &nib__family_llama,
    [NIB_ARCH_MISTRAL] = &nib__family_mistral,
    [NIB_ARCH_QWEN2] = &nib__family_qwen2,
    [NIB_ARCH_QWEN3] = &nib__family_qwen3,
    [NIB_ARCH_SMOLLM3] = &nib__family_smollm3,
    [NIB_ARCH_OLMO2] = &nib__family_olmo2,
    [NIB_ARCH_EXAONE4] = &nib__family_exaone4,
    [NIB_ARCH_GRANITE] = &nib__family_granite,
    [NIB_ARCH_GEMMA] = &nib__family_gemma,
    [NIB_ARCH_GEMMA2] = &nib__family_gemma2,
    [NIB_ARCH_GEMMA3] = &nib__family_gemma3,
    [NIB_ARCH_GEMMA4] = &nib__family_gemma4,
    [NIB_ARCH_COHERE] = &nib__family_cohere,
    [NIB_ARCH_COHERE2] = &nib__family_cohere2,
    [NIB_ARCH_STARCODER2] = &nib__family_starcoder2,
    [NIB_ARCH_STABLELM] = &nib__family_stablelm,
    [NIB_ARCH_MINISTRAL] = &nib__family_ministral,
    [NIB_ARCH_MINISTRAL3] = &nib__family_ministral3,
    [NIB_ARCH_PHI3] = &nib__family_phi3,
    [NIB_ARCH_GLM] = &nib__family_glm,
    [NIB_ARCH_GLM4] = &nib__family_glm4,
    [NIB_ARCH_QWEN3_MOE] = &nib__family_qwen3_moe,
    [NIB_ARCH_MIXTRAL] = &nib__family_mixtral,
    [NIB_ARCH_GRANITE_MOE] = &nib__family_granite_moe,
    [NIB_ARCH_GLM4_MOE] = &nib__family_glm4_moe,
    [NIB_ARCH_GPT_OSS] = &nib__family_gpt_oss,
    [NIB_ARCH_LLAMA4] = &nib__family_llama4,
    [NIB_ARCH_DEEPSEEK_V2] = &nib__family_deepseek_v2,
    [NIB_ARCH_DEEPSEEK_V3] = &nib__family_deepseek_v3,
    [NIB_ARCH_KIMI_K2] = &nib__family_kimi_k2,
    [NIB_ARCH_LFM2] = &nib__family_lfm2,
    [NIB_ARCH_QWEN3_NEXT] = &nib__family_qwen3_next,
    [NIB_ARCH_QWEN3_5] = &nib__family_qwen3_5,
    [NIB_ARCH_QWEN3_5_MOE] = &nib__family_qwen3_5_moe,
    [NIB_ARCH_GRANITE_HYBRID] = &nib__family_granite_hybrid,
    [NIB_ARCH_LFM2_MOE] = &nib__family_lfm2_moe,
};

const nib_family_row *nib__family_at(size_t i) { return i < COUNT(families) ? families[i] : NULL; }

nib_arch nib__family_of_params(bool qkv_bias, bool qk_norm)
{
    size_t i = 0;
    while (i + 1 < COUNT(families) &&
           !(families[i]->of_params && families[i]->head_norms == qk_norm &&
             (qk_norm || (families[i]->biases == NIB_BIASES_QKV_ALWAYS) == qkv_bias)))
        i++;
    return (nib_arch)i;
}

const char *nib__arch_name(nib_arch arch) { return families[arch]->name; }

const char *nib__family_names(char *out, size_t size)
{
    size_t used = 0;
    for (size_t i = 0; i < COUNT(families) && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "%s%s",
                                 i == 0                     ? ""
                                 : i == COUNT(families) - 1 ? " and "
                                                            : ", ",
                                 families[i]->name);
    return out;
}

nib_status nib__arch_build(nib_graph *out, const nib_config *config, nib_arena *arena,
                           const nib_allocator *a, nib_err *err)
{
    nib_build b;
    nib__build_begin(&b, arena, a);
    if (config->draft_head)
        nib__build_draft_head(&b, config);
    else
        nib__family_of(config)->build(&b, config);
    return nib__build_end(out, &b, err);
}
