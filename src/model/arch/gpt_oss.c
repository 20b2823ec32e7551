/* SPDX-License-Identifier: Apache-2.0
 *
 * gpt-oss: experts with biases and a clamped activation, windows in every other layer, and a sink
 * for each head of attention.
 */
#include "arch.h"

static const nib_family_key keys[] = {
    NIB_EXPERTS_KEY("num_local_experts", 128),
    NIB_TOP_K_KEY(4),
    NIB_COUNT_KEY("experts_per_token", NULL, moe.same_top_k, 0, 0, NIB_TOP_K_MAX),
    {.key = "swiglu_limit",
     .at = offsetof(nib_config, swiglu_limit),
     .absent = 7,
     .least = 1e-3,
     .most = 1e6},
    {.key = NULL},
};

static const nib_expert_names experts = {NIB_USUAL_EXPERTS, .biases = true, .balance = 0.001};

/* Every layer is a mixture of MLPs of the usual width. */
static void complete(nib_config *c)
{
    c->moe.ffn = c->ffn;
    c->moe.interval = 1;
    c->moe.chosen_softmax = true;
}

/* GGUF has no keys for them: as in llama.cpp, but yarn's range of pairs is not rounded, as the
 * published models say. */
static void complete_gguf(nib_config *c)
{
    c->swiglu_limit = 7;
    c->rope_unrounded = c->rope == NIB_ROPE_YARN;
}

const nib_family_row nib__family_gpt_oss = {
    .name = "gpt_oss",
    .class_name = "GptOssForCausalLM",
    .title = "gpt-oss 20b and 120b",
    .gguf = "gpt-oss",
    .activation = NIB_SWIGLU_CLAMPED,
    .keys = keys,
    .experts = &experts,
    .sinks = true,
    .window = NIB_WINDOW_PATTERN,
    .pattern = 2,
    .layer_types = true,
    .absent = {.heads = 64,
               .kv_heads = 8,
               .head_dim = 64,
               .vocab = 201088,
               .context = 131072,
               .window = 128,
               .norm_eps = 1e-5,
               .rope_theta = 150000,
               .bias = true},
    .complete = complete,
    .complete_gguf = complete_gguf,
    .build = nib__build_llama,
};
