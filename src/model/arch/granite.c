/* SPDX-License-Identifier: Apache-2.0
 *
 * Granite: Llama with four factors: of the embedding, of attention scores, of what a layer adds to
 * the residual, and a divisor of the logits. Granite MoE has experts in place of the MLP. Most
 * layers of Granite 4 have Mamba-2 (Dao and Gu, 2024) in place of attention; its MLPs may have
 * experts besides.
 */
#include "arch.h"

#include "fused.h"

#include <math.h>

#define FACTORS                                                                                    \
    {.key = "embedding_multiplier",                                                                \
     .gguf = "embedding_scale",                                                                    \
     .at = offsetof(nib_config, embed_scale),                                                      \
     .absent = 1,                                                                                  \
     .least = 1e-6,                                                                                \
     .most = 1e6,                                                                                  \
     .elsewhere = 1},                                                                              \
        {.key = "attention_multiplier",                                                            \
         .gguf = "attention.scale",                                                                \
         .at = offsetof(nib_config, attention_scale),                                              \
         .absent = 1,                                                                              \
         .least = 1e-6,                                                                            \
         .most = 1e6},                                                                             \
        {.key = "residual_multiplier",                                                             \
         .gguf = "residual_scale",                                                                 \
         .at = offsetof(nib_config, residual_scale),                                               \
         .absent = 1,                                                                              \
         .least = 1e-6,                                                                            \
         .most = 1e6,                                                                              \
         .elsewhere = 1},                                                                          \
    {                                                                                              \
        .key = "logits_scaling", .gguf = "logit_scale", .at = offsetof(nib_config, logits_scale),  \
        .is = NIB_OWN_INVERSE, .absent = 1, .least = 1e-6, .most = 1e6, .elsewhere = 1             \
    }

static const nib_family_key keys[] = {FACTORS, {.key = NULL}};

static const nib_family_key keys_of_mixture[] = {
    FACTORS,
    NIB_EXPERTS_KEY("num_local_experts", 8),
    NIB_TOP_K_KEY(2),
    {.key = NULL},
};

const nib_family_row nib__family_granite = {
    .name = "granite",
    .class_name = "GraniteForCausalLM",
    .title = "Granite 3 (dense)",
    .gguf = "granite",
    .keys = keys,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.context = 2048, .norm_eps = 1e-6, .rope_theta = 10000},
    .build = nib__build_llama,
};

static const nib_expert_names experts = {NIB_USUAL_EXPERTS, .balance = 0.001};

/* Every layer is a mixture of MLPs of the usual width. */
static void complete_mixture(nib_config *c)
{
    c->moe.ffn = c->ffn;
    c->moe.interval = 1;
    c->moe.chosen_softmax = true;
    c->moe.normalize = true; /* as softmax over the chosen ones does */
}

const nib_family_row nib__family_granite_moe = {
    .name = "granitemoe",
    .class_name = "GraniteMoeForCausalLM",
    .title = "Granite 3 1B-A400M and 3B-A800M",
    .gguf = "granitemoe",
    .keys = keys_of_mixture,
    .experts = &experts,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.context = 2048, .norm_eps = 1e-6, .rope_theta = 10000},
    .complete = complete_mixture,
    .build = nib__build_llama,
};

/* ---- Granite 4 ---- */

static int linear(nib_build *b, int x, int64_t layer, const char *part, int64_t n, int64_t k,
                  bool bias)
{
    return nib__emit_linear(b, x, nib__build_matrix(b, NIB_ROLE_OTHER, layer, part, n, k, bias));
}

/* Mamba-2. A row of the first projection has the gates z, then x, B and C, which pass the
 * convolution, then the steps dt. */
static int mamba(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    const nib_matrix_size *s = &c->matrix;
    const int64_t inner = s->heads * s->value_dim, conv = nib__config_conv_channels(c);
    const int projected =
        linear(b, x, layer, "mamba.in_proj", inner + conv + s->heads, c->width, c->mamba_bias);
    const int taps = nib__build_taps(b, layer, "mamba.conv1d", conv, c->conv_taps);
    if (c->conv_bias)
        (void)nib__build_vector(b, layer, "mamba.conv1d.bias", conv);
    const int a_log = nib__build_vector(b, layer, "mamba.A_log", s->heads);
    (void)nib__build_vector(b, layer, "mamba.dt_bias", s->heads);
    const int gates = nib__emit_ssm_gates(b, projected, inner + conv, a_log, c->delta_converted,
                                          c->least_step, c->most_step);
    const nib_conv_form form = {.biased = c->conv_bias, .channel = inner};
    int y = nib__emit_short_conv(b, projected, taps, form);
    y = nib__emit_ssm(b, y, gates, nib__build_vector(b, layer, "mamba.D", s->heads), *s);
    y = nib__emit_swiglu(b, (nib_gating){.activation = NIB_SILU}, projected, y);
    const nib_norm_form flat = {.flat = true};
    y = nib__emit_norm(b, y, nib__build_norm(b, layer, "mamba.norm", s->key_heads, inner, flat),
                       s->key_heads);
    return linear(b, y, layer, "mamba.out_proj", c->width, inner, c->mamba_bias);
}

static void build_hybrid(nib_build *b, const nib_config *c)
{
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int y = nib__block_norm(b, c, layer, "input_layernorm", x);
        y = nib__config_has_conv(c, layer) ? mamba(b, c, layer, y)
                                           : nib__block_attention(b, c, layer, y, NIB_QK_PLAIN);
        x = nib__block_add(b, c, x, y);
        y = nib__block_norm(b, c, layer, "post_attention_layernorm", x);
        x = nib__block_add(b, c, x, nib__block_experts(b, c, layer, y));
    }
    nib__block_head(b, c, x);
}

static const nib_expert_names hybrid_experts = {
    NIB_USUAL_EXPERTS,
    .shared_gate = "mlp.shared_expert.gate_proj",
    .shared_up = "mlp.shared_expert.up_proj",
    .shared_down = "mlp.shared_expert.down_proj",
    .balance = 0.001,
};

/* Without experts the MLP is the shared one. */
static const nib_block_names hybrid_names = {.output = "self_attn.o_proj",
                                             .gate = "mlp.shared_expert.gate_proj",
                                             .up = "mlp.shared_expert.up_proj",
                                             .down = "mlp.shared_expert.down_proj",
                                             .last_norm = "model.norm"};

enum { MAMBA_HEADS_MOST = 4096 };

static const nib_family_key keys_of_hybrid[] = {
    FACTORS,
    NIB_OPTIONAL_KEY("num_local_experts", "expert_count", moe.experts, 8, 0, NIB_EXPERTS_MAX),
    NIB_OPTIONAL_KEY("num_experts_per_tok", "expert_used_count", moe.top_k, 2, 0, NIB_TOP_K_MAX),
    NIB_COUNT_KEY("intermediate_size", NULL, moe.ffn, 11008, 1, 1 << 24),
    NIB_COUNT_KEY("shared_intermediate_size", NULL, ffn, 1024, 1, 1 << 24),
    NIB_COUNT_KEY("mamba_n_heads", "ssm.time_step_rank", matrix.heads, 128, 1, MAMBA_HEADS_MOST),
    NIB_COUNT_KEY("mamba_n_groups", "ssm.group_count", matrix.key_heads, 1, 1, MAMBA_HEADS_MOST),
    NIB_COUNT_KEY("mamba_d_state", "ssm.state_size", matrix.key_dim, 256, 1, NIB_MATRIX_KEYS_MAX),
    {.key = "mamba_d_head",
     .at = offsetof(nib_config, matrix.value_dim),
     .is = NIB_OWN_COUNT,
     .text = "auto",
     .least = 1,
     .most = 4096},
    NIB_COUNT_KEY("mamba_d_conv", "ssm.conv_kernel", conv_taps, 4, 2, NIB_TAPS_MAX),
    NIB_COUNT_KEY("mamba_expand", NULL, mamba_expand, 2, 1, 64),
    {.key = "mamba_conv_bias",
     .at = offsetof(nib_config, conv_bias),
     .is = NIB_OWN_FLAG,
     .absent = 1,
     .least = 0,
     .most = 1},
    {.key = "mamba_proj_bias",
     .at = offsetof(nib_config, mamba_bias),
     .is = NIB_OWN_FLAG,
     .absent = 0,
     .least = 0,
     .most = 1},
    {.key = "position_embedding_type",
     .gguf = "rope.scaling.finetuned", /* so llama.cpp calls it */
     .at = offsetof(nib_config, position_type),
     .is = NIB_OWN_WORD,
     .most = 1,
     .text = "nope|rope",
     .elsewhere_text = "rope"},
    {.key = "normalization_function",
     .is = NIB_OWN_TEXT,
     .text = "rmsnorm",
     .elsewhere_text = "rmsnorm"},
    {.key = NULL},
};

/* How it was trained, or only how transformers computes it. */
static const char *const ignored_of_hybrid[] = {"init_method", "mamba_chunk_size", NULL};

static void complete_hybrid(nib_config *c)
{
    c->unrotated = c->position_type == 0;
    if (c->matrix.value_dim == 0)
        c->matrix.value_dim = nib__max(c->mamba_expand * c->width / c->matrix.heads, 1);
    if (c->moe.experts == 0)
        c->moe.top_k = 0;
    c->moe.shared = 1;
    c->moe.shared_ffn = c->ffn;
    c->moe.interval = 1;
    c->moe.chosen_softmax = true;
    c->moe.normalize = true;
}

/* What llama.cpp has no keys for. */
static void complete_hybrid_gguf(nib_config *c)
{
    c->conv_bias = true;
    c->mamba_bias = false;
    c->least_step = 0;
    c->most_step = (double)INFINITY;
}

const nib_family_row nib__family_granite_hybrid = {
    .name = "granitemoehybrid",
    .gguf = "granitehybrid",
    .class_name = "GraniteMoeHybridForCausalLM",
    .title = "Granite 4.0 H-350M to H-Small, and those without Mamba-2",
    .keys = keys_of_hybrid,
    .ignored = ignored_of_hybrid,
    .experts = &hybrid_experts,
    .names = &hybrid_names,
    .state_type = "mamba",
    .fused = NIB_FUSED_SHARED,
    .mamba = true,
    .window = NIB_WINDOW_IGNORED,
    .layer_types = true,
    .absent = {.vocab = 32000, .context = 2048, .norm_eps = 1e-6, .rope_theta = 10000},
    .complete = complete_hybrid,
    .complete_gguf = complete_hybrid_gguf,
    .build = build_hybrid,
};
