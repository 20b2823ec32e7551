/* SPDX-License-Identifier: Apache-2.0
 *
 * StarCoder2: Llama's order with LayerNorms, an MLP without a gate, biases everywhere, and a
 * sliding window in all layers.
 */
#include "arch.h"

static void build(nib_build *b, const nib_config *c)
{
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int y = nib__block_norm(b, c, layer, "input_layernorm", x);
        x = nib__block_add(b, c, x, nib__block_attention(b, c, layer, y, NIB_QK_PLAIN));
        y = nib__block_norm(b, c, layer, "post_attention_layernorm", x);
        x = nib__block_add(b, c, x, nib__block_plain_mlp(b, c, layer, y, "mlp.c_fc", "mlp.c_proj"));
    }
    nib__block_head(b, c, x);
}

static void complete(nib_config *c) { c->qkv_bias = c->o_bias = c->mlp_bias; }

static const nib_family_key keys[] = {
    {.key = "use_bias",
     .at = offsetof(nib_config, mlp_bias),
     .is = NIB_OWN_FLAG,
     .absent = 1,
     .least = 0,
     .most = 1},
    {.key = "mlp_type", .is = NIB_OWN_TEXT, .text = "default"},
    {.key = "norm_type", .is = NIB_OWN_TEXT, .text = "layer_norm"},
    {.key = "scale_attn_weights", .is = NIB_OWN_CHECKED, .absent = 1, .least = 1, .most = 1},
    {.key = NULL},
};

const nib_family_row nib__family_starcoder2 = {
    .name = "starcoder2",
    .class_name = "Starcoder2ForCausalLM",
    .title = "StarCoder2",
    .gguf = "starcoder2",
    .norm = {.centered = true, .bias = true},
    .activation = NIB_GELU_TANH,
    .act = "gelu_pytorch_tanh",
    .keys = keys,
    .biases = NIB_BIASES_OWN,
    .eps = NIB_EPS_NORM,
    .window = NIB_WINDOW_ALWAYS,
    .absent = {.kv_heads = 2, .context = 4096, .norm_eps = 1e-5, .rope_theta = 10000, .tied = true},
    .complete = complete,
    .build = build,
};
