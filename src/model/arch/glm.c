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
