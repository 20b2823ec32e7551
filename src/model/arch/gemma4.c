/* SPDX-License-Identifier: Apache-2.0
 *
 * Gemma 4's text models: Gemma 3's order of norms, with norms as they are stored. Layers without a
 * window have heads of another width, of which RoPE rotates a quarter, and values that are those
 * of the keys before their norm. Values are normalized without a weight, scores are not scaled, and
 * each layer's result is multiplied by a number. In a mixture, experts run beside the MLP on the
 * residual, each with norms of its own; the router normalizes the residual for itself. In small
 * models each layer also reads values that are looked up for it, and the last layers share the keys
 * and values of earlier ones.
 */
#include "arch.h"
#include "config_layers.h"

#include <math.h>

/* Emits the MLP and, in a mixture, the experts: x is the residual. */
static int build_mlp(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    int y = nib__block_norm(b, c, layer, "pre_feedforward_layernorm", x);
    y = nib__block_gated_mlp(b, c, layer, y);
    if (!nib__config_has_experts(c, layer))
        return y;
    y = nib__block_norm(b, c, layer, "post_feedforward_layernorm_1", y);
    const int scale = nib__build_vector(b, layer, "router.scale", c->width);
    int seen = nib__emit_norm(b, x, scale, 1);
    seen = nib__emit_scale(b, seen, 1 / sqrt((double)c->width), 0);
    int z = nib__block_norm(b, c, layer, "pre_feedforward_layernorm_2", x);
    z = nib__block_routed_experts(b, c, layer, z, seen);
    z = nib__block_norm(b, c, layer, "post_feedforward_layernorm_2", z);
    return nib__emit_add(b, y, z);
}

static void build(nib_build *b, const nib_config *c)
{
    int x = nib__block_embed(b, c);
    const int inputs = c->layer_inputs > 0 ? nib__block_layer_inputs(b, c, x) : NIB_NO_ID;
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int y = nib__block_norm(b, c, layer, "input_layernorm", x);
        y = nib__block_attention(b, c, layer, y, NIB_QK_HEADS);
        x = nib__block_add(b, c, x, nib__block_norm(b, c, layer, "post_attention_layernorm", y));
        y = build_mlp(b, c, layer, x);
        x = nib__block_add(b, c, x, nib__block_norm(b, c, layer, "post_feedforward_layernorm", y));
        if (c->layer_inputs > 0)
            x = nib__block_layer_input(b, c, layer, x, inputs);
        x = nib__emit_scale_by(b, x, nib__build_vector(b, layer, "layer_scalar", 1));
    }
    nib__block_head(b, c, x);
}

static void complete(nib_config *c)
{
    nib__gemma_complete(c);
    c->attention_scale = 1;
    c->moe.interval = 1;
    c->moe.normalize = true;
    if (!c->moe.enabled)
        c->moe.experts = 0;
    if (!c->keys_are_values) /* as in transformers; nib__config_check_heads says so */
        c->global_kv_heads = 0;
    if (c->layer_inputs == 0)
        c->layer_vocab = c->vocab; /* without effect */
}

static const nib_expert_names experts = {.router = "router.proj",
                                         .gate = "experts.%d.gate_proj",
                                         .up = "experts.%d.up_proj",
                                         .down = "experts.%d.down_proj",
                                         .weight_scales = "router.per_expert_scale"};

static const nib_family_key keys[] = {
    {.key = "final_logit_softcapping",
     .gguf = "final_logit_softcapping",
     .at = offsetof(nib_config, logits_cap),
     .absent = 0,
     .least = 0,
     .most = 1e6},
    {.key = "rope_parameters.sliding_attention.rope_theta", /* nested, so only GGUF has this key */
     .gguf = "rope.freq_base_swa",
     .at = offsetof(nib_config, local_theta),
     .absent = 10000,
     .least = 1,
     .most = 1e18},
    NIB_COUNT_KEY("global_head_dim", NULL, global_head_dim, 512, 2, 65536),
    NIB_COUNT_KEY("num_global_key_value_heads", NULL, global_kv_heads, 0, 0, 65536),
    {.key = "attention_k_eq_v",
     .at = offsetof(nib_config, keys_are_values),
     .is = NIB_OWN_FLAG,
     .least = 0,
     .most = 1},
    NIB_OPTIONAL_KEY("num_kv_shared_layers", "attention.shared_kv_layers", shared_layers, 0, 0,
                     NIB_LAYERS_MAX),
    NIB_COUNT_KEY("hidden_size_per_layer_input", "embedding_length_per_layer_input", layer_inputs,
                  256, 0, 65536),
    NIB_COUNT_KEY("vocab_size_per_layer_input", NULL, layer_vocab, 262144, 1, 1 << 24),
    {.key = "use_double_wide_mlp",
     .at = offsetof(nib_config, wide_mlp),
     .is = NIB_OWN_FLAG,
     .least = 0,
     .most = 1},
    {.key = "enable_moe_block",
     .at = offsetof(nib_config, moe.enabled),
     .is = NIB_OWN_FLAG,
     .least = 0,
     .most = 1},
    NIB_OPTIONAL_KEY("num_experts", "expert_count", moe.experts, 0, 0, NIB_EXPERTS_MAX),
    NIB_OPTIONAL_KEY("top_k_experts", "expert_used_count", moe.top_k, 0, 0, NIB_TOP_K_MAX),
    NIB_OPTIONAL_KEY("moe_intermediate_size", "expert_feed_forward_length", moe.ffn, 0, 0, 1 << 24),
    /* of images, which are not read */
    {.key = "use_bidirectional_attention", .is = NIB_OWN_TEXT, .text = "vision"},
    {.key = NULL},
};

const nib_family_row nib__family_gemma4 = {
    .name = "gemma4_text",
    .class_name = "Gemma4ForCausalLM",
    .outer = "gemma4",
    .title = "Gemma 4 E2B, E4B, 26B-A4B and 31B (text)",
    .gguf = "gemma4",
    .listed_merges = true,
    .head_norms = true,
    .value_norms = true,
    .activation = NIB_GELU_TANH,
    .act = "gelu_pytorch_tanh",
    .newer_act = true,
    .keys = keys,
    .experts = &experts,
    .proportional = true,
    .window = NIB_WINDOW_PATTERN,
    .layer_types = true,
    .pattern = 6,
    .last_full = true,
    .absent = {.heads = 8,
               .kv_heads = 4,
               .head_dim = 256,
               .vocab = 262144,
               .context = 131072,
               .window = 512,
               .norm_eps = 1e-6,
               .rope_theta = 1000000,
               .rope_partial = 0.25,
               .tied = true},
    .complete = complete,
    .build = build,
};
