/* SPDX-License-Identifier: Apache-2.0
 *
 * DeepSeek-V2, DeepSeek-V3 and Kimi K2: Llama's order with latent attention and, after the first
 * layers, mixtures of experts. V2 chooses experts by softmax; V3 and Kimi K2 by sigmoid and a bias.
 * DeepSeek-AI, "DeepSeek-V2", 2024, and "DeepSeek-V3 Technical Report", 2024.
 */
#include "arch.h"

#include "config_rope.h"
#include "fused.h"

#include <math.h>

/* Norms of latent vectors have this epsilon in the models' own code, whatever config.json says. */
static const double LATENT_EPS = 1e-6;

static int linear(nib_build *b, int x, nib_role role, int64_t layer, const char *part, int64_t n,
                  bool bias)
{
    const int64_t k = b->failed ? 1 : b->graph.values[x].columns;
    return nib__emit_linear(b, x, nib__build_matrix(b, role, layer, part, n, k, bias));
}

static int latent_norm(nib_build *b, int64_t layer, const char *part, int64_t n)
{
    return nib__build_norm(b, layer, part, 1, n, (nib_norm_form){.eps = LATENT_EPS});
}

static int linear_heads(nib_build *b, const nib_config *c, int x, nib_role role, int64_t layer,
                        const char *part, int64_t n, int64_t k)
{
    const nib_expert_part weight = {role, part, n, k, false};
    return nib__emit_linear_heads(b, x, nib__build_heads(b, layer, c->heads, &weight), c->heads);
}

int nib__block_latent(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    const nib_latent *l = &c->latent;
    const int64_t wide = c->heads * (l->nope + l->rope);
    const nib_attention attention = {
        .heads = c->heads, .value_dim = l->rank, .scale = c->attention_scale, .sinks = NIB_NO_ID};
    int q = l->query_rank == 0
                ? linear(b, x, NIB_ROLE_Q, layer, "self_attn.q_proj", wide, false)
                : linear(b, x, NIB_ROLE_Q, layer, "self_attn.q_a_proj", l->query_rank, c->qkv_bias);
    int key = linear(b, x, NIB_ROLE_K, layer, "self_attn.kv_a_proj_with_mqa",
                     nib__config_latent_key(c), c->qkv_bias);
    if (l->query_rank > 0) {
        q = nib__emit_norm(b, q, latent_norm(b, layer, "self_attn.q_a_layernorm", l->query_rank),
                           1);
        q = linear(b, q, NIB_ROLE_Q, layer, "self_attn.q_b_proj", wide, false);
    }
    q = nib__emit_rope(b, q, c->heads, 0, l->nope);
    q = linear_heads(b, c, q, NIB_ROLE_K, layer, "self_attn.k_b_proj.%d", l->rank, l->nope);
    key =
        nib__emit_norm_part(b, key, latent_norm(b, layer, "self_attn.kv_a_layernorm", l->rank), 0);
    key = nib__emit_rope(b, key, 1, 0, l->rank);
    nib__emit_store(b, key, NIB_NO_ID);
    int y = nib__emit_attention(b, q, attention);
    y = linear_heads(b, c, y, NIB_ROLE_V, layer, "self_attn.v_b_proj.%d", l->value, l->rank);
    return linear(b, y, NIB_ROLE_O, layer, "self_attn.o_proj", c->width, c->o_bias);
}

/* A width whose 0 is null in config.json. */
#define WIDTH_OR_NONE(key_, gguf_, member, absent_)                                                \
    {                                                                                              \
        .key = key_, .gguf = gguf_, .at = offsetof(nib_config, member), .is = NIB_OWN_COUNT,       \
        .none = true, .absent = absent_, .least = 0, .most = 1 << 16                               \
    }
#define LATENT_KEYS                                                                                \
    NIB_COUNT_KEY("kv_lora_rank", "attention.kv_lora_rank", latent.rank, 512, 1, 1 << 16),         \
        WIDTH_OR_NONE("q_lora_rank", "attention.q_lora_rank", latent.query_rank, 1536),            \
        NIB_COUNT_KEY("qk_nope_head_dim", NULL, latent.nope, 128, 1, 1 << 15),                     \
        NIB_COUNT_KEY("qk_rope_head_dim", NULL, latent.rope, 64, 2, 1 << 15),                      \
        NIB_COUNT_KEY("v_head_dim", NULL, latent.value, 128, 1, 1 << 16),                          \
        WIDTH_OR_NONE("qk_head_dim", NULL, latent.head, 0)

#define SHARED_KEYS(experts_, top_k_, ffn_, shared_, dense_)                                       \
    NIB_EXPERTS_KEY("n_routed_experts", experts_), NIB_TOP_K_KEY(top_k_),                          \
        NIB_COUNT_KEY("moe_intermediate_size", "expert_feed_forward_length", moe.ffn, ffn_, 1,     \
                      1 << 24),                                                                    \
        NIB_COUNT_KEY("n_shared_experts", "expert_shared_count", moe.shared, shared_, 0,           \
                      NIB_EXPERTS_MAX),                                                            \
        NIB_COUNT_KEY("first_k_dense_replace", "leading_dense_block_count", moe.first, dense_, 0,  \
                      1024),                                                                       \
        NIB_COUNT_KEY("moe_layer_freq", NULL, moe.interval, 1, 1, 1),                              \
    {                                                                                              \
        .key = "routed_scaling_factor", .gguf = "expert_weights_scale",                            \
        .at = offsetof(nib_config, moe.scale), .absent = 1, .least = 1e-6, .most = 1e6             \
    }

static const nib_family_key keys_of_v2[] = {
    LATENT_KEYS,
    SHARED_KEYS(64, 0, 1407, 2, 0),
    NIB_COUNT_KEY("n_group", NULL, moe.groups, 1, 1, NIB_EXPERTS_MAX),
    NIB_COUNT_KEY("topk_group", NULL, moe.top_groups, 1, 1, NIB_EXPERTS_MAX),
    {.key = "topk_method",
     .at = offsetof(nib_config, moe.method),
     .is = NIB_OWN_WORD,
     .text = "greedy|group_limited_greedy"},
    {.key = "scoring_func", .is = NIB_OWN_TEXT, .text = "softmax", .elsewhere_text = "softmax"},
    {.key = "norm_topk_prob",
     .at = offsetof(nib_config, moe.normalize),
     .is = NIB_OWN_FLAG}, /* transformers multiplies instead, DeepSeek's code divides */
    {.key = NULL},
};

static const nib_family_key keys_of_v3[] = {
    LATENT_KEYS,
    SHARED_KEYS(256, 8, 2048, 1, 3),
    NIB_COUNT_KEY("n_group", NULL, moe.groups, 8, 1, NIB_EXPERTS_MAX),
    NIB_COUNT_KEY("topk_group", NULL, moe.top_groups, 4, 1, NIB_EXPERTS_MAX),
    NIB_COUNT_KEY("num_nextn_predict_layers", NULL, moe.unread_layers, 1, 0, 64),
    {.key = "topk_method", .is = NIB_OWN_TEXT, .text = "noaux_tc"},
    {.key = "scoring_func", .is = NIB_OWN_TEXT, .text = "sigmoid"},
    {.key = "norm_topk_prob",
     .at = offsetof(nib_config, moe.normalize),
     .is = NIB_OWN_FLAG,
     .absent = 1,
     .most = 1},
    {.key = "rope_interleave",
     .at = offsetof(nib_config, rope_interleaved),
     .is = NIB_OWN_FLAG,
     .absent = 1,
     .most = 1},
    {.key = NULL},
};

static const nib_expert_names of_v2 = {NIB_USUAL_EXPERTS, NIB_USUAL_SHARED,
                                       .balance_over = NIB_BALANCE_SEQUENCES};
static const nib_expert_names of_v3 = {NIB_USUAL_EXPERTS, NIB_USUAL_SHARED,
                                       .balance_over = NIB_BALANCE_SEQUENCES,
                                       .choice_bias = "mlp.gate.e_score_correction_bias"};

/* With YaRN, scores are multiplied by the square of its factor for mscale_all_dim. */
static void complete_latent(nib_config *c)
{
    const double gain = nib__rope_yarn_gain(c->rope_factor, c->latent.mscale);
    c->head_dim = c->latent.nope + c->latent.rope;
    c->rope_dims = c->latent.rope;
    c->attention_scale = gain * gain / sqrt((double)c->head_dim);
}

static void complete_v2(nib_config *c)
{
    complete_latent(c);
    if (c->moe.method == 0) /* greedy: all experts */
        c->moe.groups = c->moe.top_groups = 1;
}

static void complete_v3(nib_config *c)
{
    complete_latent(c);
    c->moe.sigmoid = true;
}

const nib_family_row nib__family_deepseek_v2 = {
    .name = "deepseek_v2",
    .class_name = "DeepseekV2ForCausalLM",
    .title = "DeepSeek-V2, V2-Lite, V2.5 and Coder-V2",
    .gguf = "deepseek2",
    .keys = keys_of_v2,
    .experts = &of_v2,
    .fused = NIB_FUSED_HEADS,
    .interleaved = true,
    .window = NIB_WINDOW_IGNORED,
    .absent = {.heads = 32,
               .head_dim = 64,
               .vocab = 102400,
               .context = 2048,
               .norm_eps = 1e-6,
               .rope_theta = 10000},
    .complete = complete_v2,
    .build = nib__build_llama,
};

/* Kimi K2 is DeepSeek-V3 under another name; a GGUF of it is read as DeepSeek-V3. */
#define LIKE_V3(name_, title_)                                                                     \
    {                                                                                              \
        .name = name_, .class_name = "DeepseekV3ForCausalLM", .title = title_,                     \
        .gguf = "deepseek2", .keys = keys_of_v3, .experts = &of_v3, .draft = &nib__draft_after,    \
        .fused = NIB_FUSED_HEADS, .interleaved = true, .window = NIB_WINDOW_IGNORED,               \
        .absent = {.heads = 128,                                                                   \
                   .head_dim = 64,                                                                 \
                   .vocab = 129280,                                                                \
                   .context = 4096,                                                                \
                   .norm_eps = 1e-6,                                                               \
                   .rope_theta = 10000},                                                           \
        .complete = complete_v3, .build = nib__build_llama,                                        \
    }
const nib_family_row nib__family_deepseek_v3 = LIKE_V3("deepseek_v3", "DeepSeek-V3, V3.1 and R1");
const nib_family_row nib__family_kimi_k2 = LIKE_V3("kimi_k2", "Kimi K2");
