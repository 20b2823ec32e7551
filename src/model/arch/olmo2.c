/* SPDX-License-Identifier: Apache-2.0
 *
 * OLMo 2 and EXAONE 4: norms after attention and after the MLP, before their outputs are added, and
 * none before them. OLMo 2 normalizes all heads of q, and of k, together. EXAONE 4 normalizes each
 * head, and in its models with windows only layers with a window use RoPE.
 */
#include "arch.h"

static void build_post_norm(nib_build *b, const nib_config *c, nib_qk_norm norm)
{
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int y = nib__block_attention(b, c, layer, x, norm);
        x = nib__block_add(b, c, x, nib__block_norm(b, c, layer, "post_attention_layernorm", y));
        y = nib__block_gated_mlp(b, c, layer, x);
        x = nib__block_add(b, c, x, nib__block_norm(b, c, layer, "post_feedforward_layernorm", y));
    }
    nib__block_head(b, c, x);
}

static void build_olmo2(nib_build *b, const nib_config *c) { build_post_norm(b, c, NIB_QK_WHOLE); }
static void build_exaone4(nib_build *b, const nib_config *c)
{
    build_post_norm(b, c, NIB_QK_HEADS);
}

const nib_family_row nib__family_olmo2 = {
    .name = "olmo2",
    .class_name = "Olmo2ForCausalLM",
    .title = "OLMo 2",
    .gguf = "olmo2",
    .absent = {.context = 2048, .norm_eps = 1e-5, .rope_theta = 10000},
    .build = build_olmo2,
};

const nib_family_row nib__family_exaone4 = {
    .name = "exaone4",
    .class_name = "Exaone4ForCausalLM",
    .title = "EXAONE 4.0 1.2B and 32B",
    .gguf = "exaone4",
    .window = NIB_WINDOW_PATTERN,
    .layer_types = true,
    .pattern = 4,
    .rope_in_windows = true,
    .absent =
        {.kv_heads = 32, .context = 2048, .window = 4096, .norm_eps = 1e-5, .rope_theta = 10000},
    .build = build_exaone4,
};
