/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixtures of experts in Llama's order: Qwen3-MoE is Qwen3, and Mixtral is Mistral, with experts in
 * place of the MLP.
 */
#include "arch.h"

static const nib_expert_names of_qwen = {NIB_USUAL_EXPERTS, .balance = 0.001};

static const nib_family_key keys_of_qwen3[] = {
    NIB_EXPERTS_KEY("num_experts", 128),
    NIB_TOP_K_KEY(8),
    NIB_COUNT_KEY("moe_intermediate_size", "expert_feed_forward_length", moe.ffn, 768, 1, 1 << 24),
    NIB_COUNT_KEY("decoder_sparse_step", NULL, moe.interval, 1, 1, NIB_EXPERTS_MAX),
    {.key = "norm_topk_prob",
     .at = offsetof(nib_config, moe.normalize),
     .is = NIB_OWN_FLAG,
     .least = 0,
     .most = 1},
    {.key = NULL},
};

/* GGUF has no keys for them: llama.cpp divides the weights by their sum, in all layers. */
static void complete_qwen3_gguf(nib_config *c)
{
    c->moe.interval = 1;
    c->moe.normalize = true;
}

const nib_family_row nib__family_qwen3_moe = {
    .name = "qwen3_moe",
    .class_name = "Qwen3MoeForCausalLM",
    .title = "Qwen3 30B-A3B and 235B-A22B",
    .gguf = "qwen3moe",
    .head_norms = true,
    .keys = keys_of_qwen3,
    .experts = &of_qwen,
    .window = NIB_WINDOW_ALL_IF_USED,
    .absent =
        {.kv_heads = 4, .context = 32768, .window = 4096, .norm_eps = 1e-6, .rope_theta = 10000},
    .complete_gguf = complete_qwen3_gguf,
    .build = nib__build_llama,
};

static const nib_expert_names of_mixtral = {.router = "block_sparse_moe.gate",
                                            .gate = "block_sparse_moe.experts.%d.w1",
                                            .up = "block_sparse_moe.experts.%d.w3",
                                            .down = "block_sparse_moe.experts.%d.w2",
                                            .balance = 0.001};

static const nib_family_key keys_of_mixtral[] = {
    NIB_EXPERTS_KEY("num_local_experts", 8),
    NIB_TOP_K_KEY(2),
    {.key = NULL},
};

/* Every layer is a mixture of MLPs of the usual width, and weights are always normalized. */
static void complete_mixtral(nib_config *c)
{
    c->moe.ffn = c->ffn;
    c->moe.interval = 1;
    c->moe.normalize = true;
}

const nib_family_row nib__family_mixtral = {
    .name = "mixtral",
    .class_name = "MixtralForCausalLM",
    .title = "Mixtral 8x7B and 8x22B",
    .gguf = "llama",
    .keys = keys_of_mixtral,
    .experts = &of_mixtral,
    .window = NIB_WINDOW_ALWAYS,
    .absent = {.kv_heads = 8, .context = 131072, .norm_eps = 1e-5, .rope_theta = 1000000},
    .complete = complete_mixtral,
    .build = nib__build_llama,
};
