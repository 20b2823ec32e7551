/* SPDX-License-Identifier: Apache-2.0
 *
 * GLM-4: RoPE rotates neighbouring channels of half a head, q, k and v have biases, and gate and up
 * are stored as one tensor (fused.h). The first models have Llama's order; those of 2025 (glm4)
 * also have a norm after attention and one after the MLP.
 */
#include "arch.h"

#include "fused.h"

static void build_sandwich(nib_build *b, const nib_config *c)
{
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int y = nib__block_norm(b, c, layer, "input_layernorm", x);
        y = nib__block_attention(b, c, layer, y, NIB_QK_PLAIN);
        x = nib__block_add(b, c, x, nib__block_norm(b, c, layer, "post_self_attn_layernorm", y));
        y = nib__block_norm(b, c, layer, "post_attention_layernorm", x);
        y = nib__block_gated_mlp(b, c, layer, y);
        x = nib__block_add(b, c, x, nib__block_norm(b, c, layer, "post_mlp_layernorm", y));
    }
    nib__block_head(b, c, x);
}

#define SIZES                                                                                      \
    {                                                                                              \
        .heads = 32, .kv_heads = 2, .head_dim = 128, .vocab = 151552, .context = 131072,           \
        .norm_eps = 1.5625e-7, .rope_theta = 10000, .rope_partial = 0.5, .bias = true              \
    }

const nib_family_row nib__family_glm = {
    .name = "glm",
    .class_name = "GlmForCausalLM",
    .title = "GLM-4 9B, GLM-Edge 1.5B and 4B",
    .fused = NIB_FUSED_GATE_UP,
    .biases = NIB_BIASES_QKV,
    .interleaved = true,
    .partial = true,
    .window = NIB_WINDOW_IGNORED,
    .absent = SIZES,
    .build = nib__build_llama,
};

const nib_family_row nib__family_glm4 = {
    .name = "glm4",
    .class_name = "Glm4ForCausalLM",
    .title = "GLM-4-0414 9B and 32B, GLM-Z1",
    .gguf = "glm4",
    .fused = NIB_FUSED_GATE_UP,
    .biases = NIB_BIASES_QKV,
    .interleaved = true,
    .partial = true,
    .window = NIB_WINDOW_IGNORED,
    .absent = SIZES,
    .build = build_sandwich,
};

/* GLM-4.5: Llama's order and pairs of RoPE, on half a head; a sigmoid and a bias choose experts. */

static const nib_family_key keys_of_mixture[] = {
    NIB_EXPERTS_KEY("n_routed_experts", 128),
    NIB_TOP_K_KEY(8),
    NIB_COUNT_KEY("moe_intermediate_size", "expert_feed_forward_length", moe.ffn, 1408, 1, 1 << 24),
    NIB_COUNT_KEY("n_shared_experts", "expert_shared_count", moe.shared, 1, 0, NIB_EXPERTS_MAX),
    NIB_COUNT_KEY("first_k_dense_replace", "leading_dense_block_count", moe.first, 1, 0, 1024),
    NIB_OPTIONAL_KEY("n_group", "expert_group_count", moe.groups, 1, 1, NIB_EXPERTS_MAX),
    NIB_OPTIONAL_KEY("topk_group", "expert_group_used_count", moe.top_groups, 1, 1,
                     NIB_EXPERTS_MAX),
    NIB_COUNT_KEY("num_nextn_predict_layers", NULL, moe.unread_layers, 0, 0, 64),
    {.key = "norm_topk_prob",
     .gguf = "expert_weights_norm",
     .at = offsetof(nib_config, moe.normalize),
     .is = NIB_OWN_FLAG,
     .absent = 1,
     .least = 0,
     .most = 1},
    {.key = "routed_scaling_factor",
     .gguf = "expert_weights_scale",
     .at = offsetof(nib_config, moe.scale),
     .absent = 1,
     .least = 1e-6,
     .most = 1e6},
    {.key = "use_qk_norm",
     .at = offsetof(nib_config, qk_norm),
     .is = NIB_OWN_FLAG,
     .least = 0,
     .most = 1},
    {.key = NULL},
};

static const nib_expert_names experts = {NIB_USUAL_EXPERTS, NIB_USUAL_SHARED,
                                         .choice_bias = "mlp.gate.e_score_correction_bias"};

static void complete_mixture(nib_config *c)
{
    c->moe.interval = 1;
    c->moe.sigmoid = true;
}

const nib_family_row nib__family_glm4_moe = {
    .name = "glm4_moe",
    .class_name = "Glm4MoeForCausalLM",
    .title = "GLM-4.5, GLM-4.5-Air, GLM-4.6",
    .gguf = "glm4moe",
    .gguf_gating = 2,
    .keys = keys_of_mixture,
    .experts = &experts,
    .draft = &nib__draft_after,
    .biases = NIB_BIASES_QKV,
    .partial = true,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.heads = 96,
               .kv_heads = 8,
               .vocab = 151552,
               .context = 131072,
               .norm_eps = 1e-5,
               .rope_theta = 10000,
               .rope_partial = 0.5},
    .complete = complete_mixture,
    .build = nib__build_llama,
};
