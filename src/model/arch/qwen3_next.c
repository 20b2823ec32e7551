/* SPDX-License-Identifier: Apache-2.0
 *
 * Qwen3-Next (Qwen team, 2025) and Qwen3.5 (2026): Llama's order, in which three of four layers
 * have the gated delta rule in place of attention: linear attention over a matrix, after a short
 * convolution. The other layers gate what attention returns. Norms add 1 to their weight, except
 * that of the gated delta rule.
 */
#include "arch.h"

static int linear(nib_build *b, int x, int64_t layer, const char *part, int64_t n, int64_t k)
{
    return nib__emit_linear(b, x, nib__build_matrix(b, NIB_ROLE_OTHER, layer, part, n, k, false));
}

/* What the projections make of a token. */
typedef struct projected {
    int qkv, z, beta, a;
} projected;

/* Qwen3-Next: the rows of a head of keys are its q, its k, then v and z of its heads of values. */
static void project_joined(projected *out, nib_build *b, const nib_config *c, int64_t layer, int x)
{
    const nib_matrix_size *d = &c->matrix;
    const int64_t heads = d->key_heads, keys = d->key_dim, values = d->heads / heads * d->value_dim;
    const nib_columns qkv[] = {{heads, 0, keys}, {heads, keys, keys}, {heads, 2 * keys, values}};
    const nib_columns z = {heads, 2 * keys + values, values};
    const int all =
        linear(b, x, layer, "linear_attn.in_proj_qkvz", heads * (2 * keys + 2 * values), c->width);
    out->qkv = nib__emit_gather(b, all, qkv, COUNT(qkv));
    out->z = nib__emit_gather(b, all, &z, 1);
}

static void project(projected *out, nib_build *b, const nib_config *c, int64_t layer, int x)
{
    out->qkv =
        linear(b, x, layer, "linear_attn.in_proj_qkv", nib__config_conv_channels(c), c->width);
    out->z = linear(b, x, layer, "linear_attn.in_proj_z", c->matrix.heads * c->matrix.value_dim,
                    c->width);
}

/* The inputs of the gates; Qwen3-Next's rows are b and a of each head of keys. */
static void project_gates(projected *out, nib_build *b, const nib_config *c, int64_t layer, int x)
{
    const int64_t heads = c->matrix.heads, groups = c->matrix.key_heads, each = heads / groups;
    const nib_columns beta = {groups, 0, each}, a = {groups, each, each};
    if (nib__family_of(c)->joined_delta) {
        const int gates = linear(b, x, layer, "linear_attn.in_proj_ba", 2 * heads, c->width);
        out->beta = nib__emit_gather(b, gates, &beta, 1);
        out->a = nib__emit_gather(b, gates, &a, 1);
    } else {
        out->beta = linear(b, x, layer, "linear_attn.in_proj_b", heads, c->width);
        out->a = linear(b, x, layer, "linear_attn.in_proj_a", heads, c->width);
    }
}

int nib__block_gated_delta(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    const nib_matrix_size *d = &c->matrix;
    projected p;
    if (nib__family_of(c)->joined_delta && !c->gguf_order)
        project_joined(&p, b, c, layer, x);
    else
        project(&p, b, c, layer, x);
    project_gates(&p, b, c, layer, x);
    const int taps =
        nib__build_taps(b, layer, "linear_attn.conv1d", nib__config_conv_channels(c), c->conv_taps);
    const int a_log = nib__build_vector(b, layer, "linear_attn.A_log", d->heads);
    (void)nib__build_vector(b, layer, "linear_attn.dt_bias", d->heads);
    const int gates = nib__emit_delta_gates(b, p.beta, p.a, a_log, c->delta_converted);
    int y = nib__emit_short_conv(b, p.qkv, taps, (nib_conv_form){.gated = false});
    y = nib__emit_gated_delta(b, y, gates, *d);
    const nib_norm_form plain = {.eps = 0};
    y = nib__emit_norm(b, y, nib__build_norm(b, layer, "linear_attn.norm", 1, d->value_dim, plain),
                       d->heads);
    y = nib__emit_swiglu(b, (nib_gating){.activation = NIB_SILU}, p.z, y);
    return linear(b, y, layer, "linear_attn.out_proj", c->width, d->heads * d->value_dim);
}

static void build(nib_build *b, const nib_config *c)
{
    int x = nib__block_embed(b, c);
    for (int64_t layer = 0; layer < c->layers; layer++) {
        int y = nib__block_norm(b, c, layer, "input_layernorm", x);
        y = nib__config_has_conv(c, layer) ? nib__block_gated_delta(b, c, layer, y)
                                           : nib__block_attention(b, c, layer, y, NIB_QK_HEADS);
        x = nib__block_add(b, c, x, y);
        y = nib__block_norm(b, c, layer, "post_attention_layernorm", x);
        x = nib__block_add(b, c, x, nib__block_experts(b, c, layer, y));
    }
    nib__block_head(b, c, x);
}

static const nib_expert_names experts = {
    NIB_USUAL_EXPERTS,
    .shared_gate = "mlp.shared_expert.gate_proj",
    .shared_up = "mlp.shared_expert.up_proj",
    .shared_down = "mlp.shared_expert.down_proj",
    .shared_factor = "mlp.shared_expert_gate",
    .balance = 0.001,
};

static const nib_draft_names draft = {.prefix = "mtp.layers.",
                                      .join = "mtp.fc",
                                      .embed_norm = "mtp.pre_fc_norm_embedding",
                                      .hidden_norm = "mtp.pre_fc_norm_hidden",
                                      .last_norm = "mtp.norm",
                                      .count = "mtp_num_hidden_layers"};

enum { HEADS_MOST = 1024 };

/* Keys of all three. The widest q, k and v fit in the largest matrix. */
#define DELTA_KEYS                                                                                 \
    NIB_COUNT_KEY("linear_conv_kernel_dim", "ssm.conv_kernel", conv_taps, 4, 2, NIB_TAPS_MAX),     \
        NIB_COUNT_KEY("linear_num_key_heads", "ssm.group_count", matrix.key_heads, 16, 1,          \
                      HEADS_MOST),                                                                 \
        NIB_COUNT_KEY("linear_num_value_heads", "ssm.time_step_rank", matrix.heads, 32, 1,         \
                      HEADS_MOST),                                                                 \
        NIB_COUNT_KEY("linear_key_head_dim", "ssm.state_size", matrix.key_dim, 128, 1,             \
                      NIB_MATRIX_KEYS_MAX),                                                        \
        NIB_COUNT_KEY("linear_value_head_dim", NULL, matrix.value_dim, 128, 1, 4096),              \
        {.key = "full_attention_interval",                                                         \
         .at = offsetof(nib_config, full_interval),                                                \
         .is = NIB_OWN_COUNT,                                                                      \
         .none = true,                                                                             \
         .older = true,                                                                            \
         .least = 0,                                                                               \
         .most = HEADS_MOST},                                                                      \
        {.key = "attn_output_gate", .is = NIB_OWN_CHECKED, .absent = 1, .least = 1, .most = 1},    \
        {.key = "output_gate_type", .is = NIB_OWN_TEXT, .text = "swish"},                          \
    {                                                                                              \
        .key = "mamba_ssm_dtype", .is = NIB_OWN_TEXT, .text = "float32"                            \
    }

#define MIXTURE_KEYS(experts_, top_k_)                                                             \
    NIB_EXPERTS_KEY("num_experts", experts_), NIB_TOP_K_KEY(top_k_),                               \
        NIB_COUNT_KEY("moe_intermediate_size", "expert_feed_forward_length", moe.ffn, 512, 1,      \
                      1 << 24),                                                                    \
        NIB_COUNT_KEY("shared_expert_intermediate_size", "expert_shared_feed_forward_length",      \
                      moe.shared_ffn, 512, 1, 1 << 24)

static const nib_family_key keys_of_next[] = {
    DELTA_KEYS,
    MIXTURE_KEYS(512, 10),
    NIB_COUNT_KEY("intermediate_size", NULL, ffn, 5632, 1, 1 << 24),
    NIB_COUNT_KEY("decoder_sparse_step", NULL, moe.interval, 1, 1, NIB_EXPERTS_MAX),
    {.key = "norm_topk_prob",
     .at = offsetof(nib_config, moe.normalize),
     .is = NIB_OWN_FLAG,
     .absent = 1,
     .least = 0,
     .most = 1},
    {.key = NULL},
};

static const nib_family_key keys_of_dense[] = {
    DELTA_KEYS,
    NIB_COUNT_KEY("intermediate_size", NULL, ffn, 12288, 1, 1 << 24),
    {.key = NULL},
};

static const nib_family_key keys_of_mixture[] = {
    DELTA_KEYS,
    MIXTURE_KEYS(256, 8),
    NIB_COUNT_KEY("intermediate_size", NULL, ffn, 512, 1, 1 << 24), /* no layer has such an MLP */
    {.key = NULL},
};

/* Of draft heads, of which only the first is used, with the model's own embedding. */
static const char *const ignored[] = {"mtp_num_hidden_layers", "mtp_use_dedicated_embeddings",
                                      NULL};

static void complete_next(nib_config *c) { c->moe.shared = 1; }

/* Also of both in a GGUF, which has no keys for it: llama.cpp divides the weights by their sum. */
static void complete_mixture(nib_config *c)
{
    c->moe.shared = 1;
    c->moe.interval = 1;
    c->moe.normalize = true;
}

const nib_family_row nib__family_qwen3_next = {
    .name = "qwen3_next",
    .gguf = "qwen3next",
    .class_name = "Qwen3NextForCausalLM",
    .title = "Qwen3-Next 80B-A3B",
    .head_norms = true,
    .norm = {.offset = 1},
    .keys = keys_of_next,
    .ignored = ignored,
    .draft = &draft,
    .experts = &experts,
    .state_type = "linear_attention",
    .full_interval = 4,
    .joined_delta = true,
    .output_gate = true,
    .partial = true,
    .window = NIB_WINDOW_IGNORED,
    .layer_types = true,
    .absent = {.heads = 16,
               .kv_heads = 2,
               .head_dim = 256,
               .vocab = 151936,
               .context = 32768,
               .norm_eps = 1e-6,
               .rope_theta = 10000,
               .rope_partial = 0.25},
    .complete = complete_next,
    .complete_gguf = complete_mixture,
    .build = build,
};

const nib_family_row nib__family_qwen3_5 = {
    .name = "qwen3_5_text",
    .gguf = "qwen35",
    .outer = "qwen3_5",
    .class_name = "Qwen3_5ForCausalLM",
    .title = "Qwen3.5 4B, 9B and 27B (text)",
    .head_norms = true,
    .norm = {.offset = 1},
    .keys = keys_of_dense,
    .ignored = ignored,
    .draft = &draft,
    .state_type = "linear_attention",
    .full_interval = 4,
    .output_gate = true,
    .mrope = true,
    .partial = true,
    .window = NIB_WINDOW_IGNORED,
    .layer_types = true,
    .absent = {.heads = 16,
               .kv_heads = 4,
               .head_dim = 256,
               .vocab = 248320,
               .context = 32768,
               .norm_eps = 1e-6,
               .rope_theta = 10000,
               .rope_partial = 0.25},
    .build = build,
};

const nib_family_row nib__family_qwen3_5_moe = {
    .name = "qwen3_5_moe_text",
    .gguf = "qwen35moe",
    .outer = "qwen3_5_moe",
    .class_name = "Qwen3_5MoeForCausalLM",
    .title = "Qwen3.5 35B-A3B (text)",
    .head_norms = true,
    .norm = {.offset = 1},
    .keys = keys_of_mixture,
    .ignored = ignored,
    .draft = &draft,
    .experts = &experts,
    .state_type = "linear_attention",
    .full_interval = 4,
    .output_gate = true,
    .mrope = true,
    .partial = true,
    .window = NIB_WINDOW_IGNORED,
    .layer_types = true,
    .absent = {.heads = 16,
               .kv_heads = 2,
               .head_dim = 256,
               .vocab = 248320,
               .context = 32768,
               .norm_eps = 1e-6,
               .rope_theta = 10000,
               .rope_partial = 0.25},
    .complete = complete_mixture,
    .build = build,
};
