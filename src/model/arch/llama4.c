/* SPDX-License-Identifier: Apache-2.0
 *
 * Llama 4: layers with RoPE see their own chunk of the text and normalize q and k, without weights,
 * after it; every fourth layer sees everything, has no RoPE, and scales its queries with their
 * position. Layers with experts have a shared one besides; the others have a wider MLP.
 */
#include "arch.h"

static const nib_family_key keys[] = {
    NIB_EXPERTS_KEY("num_local_experts", 16),
    NIB_TOP_K_KEY(1),
    NIB_COUNT_KEY("intermediate_size", "expert_feed_forward_length", moe.ffn, 8192, 1, 1 << 24),
    NIB_COUNT_KEY("intermediate_size_mlp", NULL, ffn, 16384, 1, 1 << 24),
    NIB_COUNT_KEY("interleave_moe_layer_step", "interleave_moe_layer_step", moe.interval, 1, 1,
                  NIB_EXPERTS_MAX),
    NIB_COUNT_KEY("floor_scale", NULL, query_step, 8192, 1, 1 << 30),
    {.key = "attn_scale",
     .at = offsetof(nib_config, query_beta),
     .absent = 0.1,
     .least = 0,
     .most = 10},
    {.key = "attn_temperature_tuning", /* older files have a number */
     .at = offsetof(nib_config, query_unrotated),
     .is = NIB_OWN_FLAG,
     .absent = 1,
     .least = 0,
     .most = 1 << 30},
    {.key = "use_qk_norm",
     .at = offsetof(nib_config, qk_norm),
     .is = NIB_OWN_FLAG,
     .absent = 1,
     .least = 0,
     .most = 1},
    {.key = NULL},
};

static const nib_expert_names experts = {
    NIB_USUAL_EXPERTS, .shared_gate = "mlp.shared_expert.gate_proj",
    .shared_up = "mlp.shared_expert.up_proj", .shared_down = "mlp.shared_expert.down_proj"};

static void complete(nib_config *c)
{
    c->moe.shared = 1;
    c->moe.scaled_inputs = true;
    c->query_first = 1;
    c->query_beta = c->query_unrotated ? c->query_beta : 0;
}

/* GGUF has no keys for them: as in llama.cpp. Without chunks, all layers have RoPE. */
static void complete_gguf(nib_config *c)
{
    enum { MAVERICK = 128 };
    c->qk_norm = c->moe.experts != MAVERICK;
    c->query_unrotated = c->rope_layers != NULL;
    c->query_beta = c->query_unrotated ? 0.1 : 0;
    c->query_step = 8192;
}

const nib_family_row nib__family_llama4 = {
    .name = "llama4_text",
    .outer = "llama4",
    .class_name = "Llama4ForCausalLM",
    .title = "Llama 4 Scout and Maverick (text)",
    .gguf = "llama4",
    .bare_head_norms = true,
    .keys = keys,
    .experts = &experts,
    .lists_experts = true,
    .rope_interval = 4,
    .interleaved = true,
    .window = NIB_WINDOW_CHUNKS,
    .layer_types = true,
    .absent = {.heads = 40,
               .kv_heads = 8,
               .head_dim = 128,
               .vocab = 202048,
               .context = 131072,
               .window = 8192,
               .norm_eps = 1e-5,
               .rope_theta = 500000},
    .complete = complete,
    .complete_gguf = complete_gguf,
    .build = nib__build_llama,
};
