/* SPDX-License-Identifier: Apache-2.0
 *
 * LFM2 (Liquid AI, 2025): Llama's order, in which most layers have a short convolution between two
 * gates in place of attention, and a norm for each head of q and k before RoPE. Modules have names
 * of their own. MLPs are narrower than intermediate_size says; in the mixtures they are as wide,
 * and layers after the first few have experts, which a sigmoid and a bias choose.
 */
#include "arch.h"

static void build(nib_build *b, const nib_config *c)
{
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int y = nib__block_norm(b, c, layer, "operator_norm", x);
        y = nib__config_has_conv(c, layer) ? nib__block_short_conv(b, c, layer, y)
                                           : nib__block_attention(b, c, layer, y, NIB_QK_HEADS);
        x = nib__block_add(b, c, x, y);
        y = nib__block_norm(b, c, layer, "ffn_norm", x);
        x = nib__block_add(b, c, x, nib__block_experts(b, c, layer, y));
    }
    nib__block_head(b, c, x);
}

enum { MULTIPLE = 256 }; /* block_multiple_of if absent */

/* The width of the MLPs, in the steps of transformers, each of which rounds down. */
static void complete(nib_config *c)
{
    if (c->ffn_adjusted)
        c->ffn = nib__max(2 * c->ffn / 3, 1);
    if (c->ffn_adjusted && c->ffn_factor > 0)
        c->ffn =
            nib__round_up(nib__max((int64_t)(c->ffn_factor * (double)c->ffn), 1), c->ffn_multiple);
    /* done: the rest has no effect any more, and a GGUF does not have it */
    c->ffn_adjusted = false;
    c->ffn_factor = 1;
    c->ffn_multiple = MULTIPLE;
}

static const nib_block_names names = {.output = "self_attn.out_proj",
                                      .q_norm = "self_attn.q_layernorm",
                                      .k_norm = "self_attn.k_layernorm",
                                      .gate = "feed_forward.w1",
                                      .up = "feed_forward.w3",
                                      .down = "feed_forward.w2",
                                      .last_norm = "model.embedding_norm"};

/* Keys of both. */
#define CONV_KEYS                                                                                  \
    NIB_COUNT_KEY("conv_L_cache", "shortconv.l_cache", conv_taps, 3, 2, NIB_TAPS_MAX),             \
        {.key = "conv_bias", .is = NIB_OWN_CHECKED, .absent = 0, .least = 0, .most = 0},           \
    {                                                                                              \
        .key = "tie_embedding", .at = offsetof(nib_config, tied), .is = NIB_OWN_FLAG,              \
        .older = true, .least = 0, .most = 1                                                       \
    }

static const nib_family_key keys[] = {
    CONV_KEYS,
    {.key = "block_auto_adjust_ff_dim",
     .at = offsetof(nib_config, ffn_adjusted),
     .is = NIB_OWN_FLAG,
     .absent = 1,
     .least = 0,
     .most = 1},
    {.key = "block_ffn_dim_multiplier",
     .at = offsetof(nib_config, ffn_factor),
     .absent = 1,
     .least = 0,
     .most = 16},
    NIB_COUNT_KEY("block_multiple_of", NULL, ffn_multiple, MULTIPLE, 1, 1 << 20),
    {.key = "block_ff_dim",
     .at = offsetof(nib_config, ffn),
     .is = NIB_OWN_COUNT,
     .older = true,
     .least = 1,
     .most = 1 << 24},
    {.key = NULL},
};

static const nib_family_key keys_of_mixture[] = {
    CONV_KEYS,
    NIB_EXPERTS_KEY("num_experts", 32),
    NIB_TOP_K_KEY(4),
    NIB_COUNT_KEY("moe_intermediate_size", "expert_feed_forward_length", moe.ffn, 1792, 1, 1 << 24),
    NIB_OPTIONAL_KEY("num_dense_layers", "leading_dense_block_count", moe.first, 2, 0, 1024),
    {.key = "use_expert_bias", .is = NIB_OWN_CHECKED, .absent = 1, .least = 1, .most = 1},
    {.key = "norm_topk_prob",
     .gguf = "expert_weights_norm",
     .optional = true,
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
    {.key = NULL},
};

static const nib_expert_names experts = {.router = "feed_forward.gate",
                                         .gate = "feed_forward.experts.%d.w1",
                                         .up = "feed_forward.experts.%d.w3",
                                         .down = "feed_forward.experts.%d.w2",
                                         .choice_bias = "feed_forward.expert_bias",
                                         .floor = 1e-6f};

static void complete_mixture(nib_config *c)
{
    c->moe.interval = 1;
    c->moe.sigmoid = true;
}

/* Settings of Liquid AI's own code. Sizes among them are those of hidden_size and the heads; if a
 * tensor has another one, it is refused. */
static const char *const ignored[] = {"block_dim",
                                      "block_mlp_init_scale",
                                      "block_norm_eps",
                                      "block_out_init_scale",
                                      "block_use_swiglu",
                                      "block_use_xavier_init",
                                      "conv_dim",
                                      "conv_dim_out",
                                      "conv_use_xavier_init",
                                      "num_heads",
                                      "theta",
                                      "use_pos_enc",
                                      NULL};

const nib_family_row nib__family_lfm2 = {
    .name = "lfm2",
    .gguf = "lfm2",
    .class_name = "Lfm2ForCausalLM",
    .title = "LFM2 350M, 700M and 1.2B",
    .head_norms = true,
    .keys = keys,
    .ignored = ignored,
    .names = &names,
    .state_type = "conv",
    .biases = NIB_BIASES_OWN,
    .eps = NIB_EPS_PLAIN,
    .window = NIB_WINDOW_IGNORED,
    .layer_types = true,
    .absent = {.kv_heads = 8,
               .vocab = 65536,
               .context = 128000,
               .norm_eps = 1e-5,
               .rope_theta = 1000000,
               .tied = true},
    .complete = complete,
    .build = build,
};

const nib_family_row nib__family_lfm2_moe = {
    .name = "lfm2_moe",
    .gguf = "lfm2moe",
    .gguf_gating = 2,
    .gguf_plain_weights = true,
    .class_name = "Lfm2MoeForCausalLM",
    .title = "LFM2 8B-A1B",
    .head_norms = true,
    .keys = keys_of_mixture,
    .ignored = ignored,
    .names = &names,
    .experts = &experts,
    .state_type = "conv",
    .biases = NIB_BIASES_OWN,
    .eps = NIB_EPS_PLAIN,
    .window = NIB_WINDOW_IGNORED,
    .layer_types = true,
    .absent = {.heads = 32,
               .kv_heads = 8,
               .vocab = 65536,
               .context = 128000,
               .norm_eps = 1e-5,
               .rope_theta = 1000000,
               .tied = true},
    .complete = complete_mixture,
    .build = build,
};
