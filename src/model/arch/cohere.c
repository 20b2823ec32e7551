/* SPDX-License-Identifier: Apache-2.0
 *
 * Cohere: attention and the MLP read one norm, a LayerNorm without bias, and both are added to the
 * residual; RoPE rotates neighbouring channels, and logits are scaled. Command R+ normalizes each
 * head of q and k, with its own weight. Command R7B and A (cohere2) have a sliding window in three
 * of four layers, and only those use RoPE.
 */
#include "arch.h"

void nib__build_parallel(nib_build *b, const nib_config *c)
{
    const nib_qk_norm norm = nib__block_qk_norm(c);
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        const int y = nib__block_norm(b, c, layer, "input_layernorm", x);
        const int attended = nib__block_attention(b, c, layer, y, norm);
        x = nib__block_add(b, c, x, attended);
        x = nib__block_add(b, c, x, nib__block_gated_mlp(b, c, layer, y));
    }
    nib__block_head(b, c, x);
}

/* Cohere 2 has all keys but the first. */
static const nib_family_key keys[] = {
    {.key = "use_qk_norm",
     .at = offsetof(nib_config, qk_norm),
     .is = NIB_OWN_FLAG,
     .absent = 0,
     .least = 0,
     .most = 1},
    {.key = "logit_scale",
     .gguf = "logit_scale",
     .at = offsetof(nib_config, logits_scale),
     .absent = 0.0625,
     .least = 1e-6,
     .most = 1e6,
     .elsewhere = 1},
    {.key = "use_parallel_block", .is = NIB_OWN_CHECKED, .absent = 1, .least = 1, .most = 1},
    {.key = "use_gated_activation", .is = NIB_OWN_CHECKED, .absent = 1, .least = 1, .most = 1},
    {.key = "position_embedding_type",
     .is = NIB_OWN_TEXT,
     .text = "rope_gptj",
     .elsewhere_text = "rope"},
    {.key = "layer_switch", .is = NIB_OWN_CHECKED, .absent = 4, .least = 4, .most = 4},
    {.key = "order_of_interleaved_layers", .is = NIB_OWN_TEXT, .text = "local_attn_first"},
    {.key = NULL},
};

const nib_family_row nib__family_cohere = {
    .name = "cohere",
    .class_name = "CohereForCausalLM",
    .title = "Command R, Command R+, Aya 23, Aya Expanse",
    .gguf = "command-r",
    .own_head_norms = true,
    .norm = {.centered = true},
    .keys = keys,
    .eps = NIB_EPS_LAYER,
    .interleaved = true,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.context = 8192, .norm_eps = 1e-5, .rope_theta = 500000, .tied = true},
    .build = nib__build_parallel,
};

const nib_family_row nib__family_cohere2 = {
    .name = "cohere2",
    .class_name = "Cohere2ForCausalLM",
    .title = "Command R7B, Command A",
    .gguf = "cohere2",
    .norm = {.centered = true},
    .keys = keys + 1,
    .eps = NIB_EPS_LAYER,
    .interleaved = true,
    .window = NIB_WINDOW_PATTERN,
    .layer_types = true,
    .pattern = 4,
    .rope_in_windows = true,
    .needs_window = true,
    .absent =
        {.context = 8192, .window = 4096, .norm_eps = 1e-5, .rope_theta = 10000, .tied = true},
    .build = nib__build_parallel,
};
