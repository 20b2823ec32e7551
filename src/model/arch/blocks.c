/* SPDX-License-Identifier: Apache-2.0
 *
 * Blocks that families share. A block emits its weights beside the operations that read them, so
 * this order is also the order of weights in plans, checkpoints and parameters.
 */
#include "arch.h"

#include <math.h>

static const nib_block_names *names_of(const nib_config *c)
{
    static const nib_block_names usual = {.output = "self_attn.o_proj",
                                          .q_norm = "self_attn.q_norm",
                                          .k_norm = "self_attn.k_norm",
                                          .gate = "mlp.gate_proj",
                                          .up = "mlp.up_proj",
                                          .down = "mlp.down_proj",
                                          .last_norm = "model.norm"};
    const nib_block_names *own = nib__family_of(c)->names;
    return own != NULL ? own : &usual;
}

int nib__block_embed(nib_build *b, const nib_config *c)
{
    const int table =
        nib__build_matrix(b, NIB_ROLE_EMBED, -1, "model.embed_tokens", c->vocab, c->width, false);
    return nib__emit_scale(b, nib__emit_embed(b, table), c->embed_scale, 0);
}

int nib__block_embed_ahead(nib_build *b, const nib_config *c)
{
    const int x = nib__emit_embed(b, 0); /* the embedding is the first weight */
    nib__build_ahead(b);
    return nib__emit_scale(b, x, c->embed_scale, 0);
}

/* Emits a linear layer with a new weight. */
static int linear(nib_build *b, int x, nib_role role, int64_t layer, const char *part, int64_t n,
                  int64_t k, bool bias)
{
    return nib__emit_linear(b, x, nib__build_matrix(b, role, layer, part, n, k, bias));
}

int nib__block_norm(nib_build *b, const nib_config *c, int64_t layer, const char *part, int x)
{
    const nib_norm_form form = nib__family_of(c)->norm;
    return nib__emit_norm(b, x, nib__build_norm(b, layer, part, 1, c->width, form), 1);
}

nib_qk_norm nib__block_qk_norm(const nib_config *c)
{
    return !c->qk_norm                          ? NIB_QK_PLAIN
           : nib__family_of(c)->bare_head_norms ? NIB_QK_BARE
           : nib__family_of(c)->own_head_norms  ? NIB_QK_EACH
                                                : NIB_QK_HEADS;
}

/* Emits the norm of q or k. No family has biases there. */
static int norm_heads(nib_build *b, const nib_config *c, int x, int64_t layer, const char *part,
                      int64_t heads, nib_qk_norm norm)
{
    const int64_t head_dim = nib__config_head_dim(c, layer),
                  n = norm == NIB_QK_HEADS ? head_dim : heads * head_dim,
                  own = norm == NIB_QK_EACH ? heads : 1;
    nib_norm_form form = nib__family_of(c)->norm;
    form.bias = false;
    return norm == NIB_QK_PLAIN || norm == NIB_QK_BARE
               ? x
               : nib__emit_norm(b, x, nib__build_norm(b, layer, part, own, n, form),
                                norm == NIB_QK_WHOLE ? 1 : heads);
}

static nib_gating gating_of(const nib_config *c)
{
    return (nib_gating){.activation = nib__family_of(c)->activation,
                        .alpha = 1.702, /* where a family clamps; gpt-oss has no key for it */
                        .limit = c->swiglu_limit};
}

int nib__block_attention(nib_build *b, const nib_config *c, int64_t layer, int x, nib_qk_norm norm)
{
    if (c->latent.rank > 0)
        return nib__block_latent(b, c, layer, x);
    const int64_t window = nib__config_window(c, layer), head_dim = nib__config_head_dim(c, layer),
                  kv_heads = nib__config_kv_heads(c, layer);
    const int table = window > 0 && c->local_theta > 0;
    const int64_t back = layer - nib__config_kv_layer(c, layer);
    const bool rotates = nib__config_has_rope(c, layer), scales = c->query_beta > 0,
               stores = back == 0;
    const int query_table = table == 1 || (scales && !c->query_unrotated);
    const int sinks = nib__family_of(c)->sinks
                          ? nib__build_vector(b, layer, "self_attn.sinks", c->heads)
                          : NIB_NO_ID;
    const nib_attention attention = {.heads = c->heads,
                                     .window = window < c->context ? window : 0,
                                     .chunked = c->chunked && window < c->context && window > 0,
                                     .scale = c->attention_scale > 0
                                                  ? c->attention_scale
                                                  : (double)(1.0f / sqrtf((float)head_dim)),
                                     .cap = c->attention_cap,
                                     .sinks = sinks,
                                     .layers_back = back};
    const int64_t width = c->width, wide = c->heads * head_dim, narrow = kv_heads * head_dim;
    const bool gated = nib__family_of(c)->output_gate;
    int q = linear(b, x, NIB_ROLE_Q, layer, "self_attn.q_proj", gated ? 2 * wide : wide, width,
                   c->qkv_bias);
    int k = NIB_NO_ID, v = NIB_NO_ID;
    if (stores)
        v = k = linear(b, x, NIB_ROLE_K, layer, "self_attn.k_proj", narrow, width, c->qkv_bias);
    if (stores && (!c->keys_are_values || window > 0))
        v = linear(b, x, NIB_ROLE_V, layer, "self_attn.v_proj", narrow, width, c->qkv_bias);
    const nib_columns halves[] = {{c->heads, 0, head_dim}, {c->heads, head_dim, head_dim}};
    const int gate = gated ? nib__emit_gather(b, q, &halves[1], 1) : NIB_NO_ID;
    if (gated)
        q = nib__emit_gather(b, q, &halves[0], 1);
    if (stores && nib__family_of(c)->value_norms)
        v = nib__emit_norm(b, v, NIB_NO_ID, kv_heads);
    q = norm_heads(b, c, q, layer, names_of(c)->q_norm, c->heads, norm);
    if (stores)
        k = norm_heads(b, c, k, layer, names_of(c)->k_norm, kv_heads, norm);
    if (rotates)
        q = nib__emit_rope(b, q, c->heads, query_table, 0);
    else if (scales && c->query_unrotated)
        q = nib__emit_rope(b, q, c->heads, 1, 0); /* by an angle of 0 */
    if (rotates && stores)
        k = nib__emit_rope(b, k, kv_heads, table, 0);
    if (rotates && norm == NIB_QK_BARE) {
        q = nib__emit_norm(b, q, NIB_NO_ID, c->heads);
        k = nib__emit_norm(b, k, NIB_NO_ID, kv_heads);
    }
    if (stores)
        nib__emit_store(b, k, v);
    int attended = nib__emit_attention(b, q, attention);
    if (gated)
        attended = nib__emit_swiglu(b, (nib_gating){.activation = NIB_SIGMOID}, gate, attended);
    return linear(b, attended, NIB_ROLE_O, layer, names_of(c)->output, width, wide, c->o_bias);
}

int nib__block_short_conv(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    const int64_t width = c->width;
    int y = linear(b, x, NIB_ROLE_OTHER, layer, "conv.in_proj", 3 * width, width, false);
    y = nib__emit_short_conv(b, y, nib__build_taps(b, layer, "conv.conv", width, c->conv_taps),
                             (nib_conv_form){.gated = true});
    return linear(b, y, NIB_ROLE_OTHER, layer, "conv.out_proj", width, width, false);
}

int nib__block_add(nib_build *b, const nib_config *c, int x, int branch)
{
    return nib__emit_add(b, x, nib__emit_scale(b, branch, c->residual_scale, 0));
}

int nib__block_gated_mlp(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    const int64_t width = c->width, ffn = nib__config_ffn(c, layer);
    const bool bias = c->mlp_bias;
    const nib_block_names *names = names_of(c);
    int gate = linear(b, x, NIB_ROLE_GATE, layer, names->gate, ffn, width, bias);
    int up = linear(b, x, NIB_ROLE_UP, layer, names->up, ffn, width, bias);
    int h = nib__emit_swiglu(b, gating_of(c), gate, up);
    return linear(b, h, NIB_ROLE_DOWN, layer, names->down, width, ffn, bias);
}

int nib__block_layer_inputs(nib_build *b, const nib_config *c, int x)
{
    const int64_t each = c->layer_inputs, all = c->layers * each;
    const nib_norm_form form = nib__family_of(c)->norm;
    int y =
        linear(b, x, NIB_ROLE_OTHER, -1, "model.per_layer_model_projection", all, c->width, false);
    y = nib__emit_scale(b, y, 1 / sqrt((double)c->width), 0);
    const int norm = nib__build_norm(b, -1, "model.per_layer_projection_norm", 1, each, form);
    y = nib__emit_norm(b, y, norm, c->layers);
    const int table = nib__build_matrix(b, NIB_ROLE_EMBED, -1, "model.embed_tokens_per_layer",
                                        c->layer_vocab, all, false);
    const int e = nib__emit_scale(b, nib__emit_embed(b, table), c->layer_embed_scale, 0);
    return nib__emit_scale(b, nib__emit_add(b, y, e), 1 / sqrt(2.0), 0);
}

int nib__block_layer_input(nib_build *b, const nib_config *c, int64_t layer, int x, int inputs)
{
    const int64_t each = c->layer_inputs;
    nib_gating gating = gating_of(c);
    gating.channel = layer * each;
    int y = linear(b, x, NIB_ROLE_OTHER, layer, "per_layer_input_gate", each, c->width, false);
    y = nib__emit_swiglu(b, gating, y, inputs);
    y = linear(b, y, NIB_ROLE_OTHER, layer, "per_layer_projection", c->width, each, false);
    return nib__block_add(b, c, x, nib__block_norm(b, c, layer, "post_per_layer_input_norm", y));
}

/* How a layer's router chooses. A sigmoid's sum may be 0, so it gets a floor. */
static nib_routing routing_of(const nib_config *c)
{
    const nib_mixture *moe = &c->moe;
    const float floor = nib__family_of(c)->experts->floor;
    return (nib_routing){.experts = moe->experts,
                         .top_k = moe->top_k,
                         .score = moe->sigmoid          ? NIB_SCORE_SIGMOID
                                  : moe->scaled_inputs  ? NIB_SCORE_CHOSEN_SIGMOID
                                  : moe->chosen_softmax ? NIB_SCORE_CHOSEN
                                                        : NIB_SCORE_SOFTMAX,
                         .groups = moe->groups > 0 ? moe->groups : 1,
                         .top_groups = moe->top_groups > 0 ? moe->top_groups : 1,
                         .group_pairs = moe->sigmoid,
                         .normalize = moe->normalize,
                         .floor = floor > 0      ? floor
                                  : moe->sigmoid ? 1e-20f
                                                 : 0.0f,
                         .scale = moe->scale > 0 ? (float)moe->scale : 1.0f,
                         .weight_scales = nib__family_of(c)->experts->weight_scales != NULL,
                         .on_input = moe->scaled_inputs,
                         .balance = (float)moe->balance,
                         .balance_over = moe->whole_batches
                                             ? NIB_BALANCE_MICRO_BATCH
                                             : nib__family_of(c)->experts->balance_over};
}

/* Emits the MLP that every token has. */
static int shared_expert(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    const nib_expert_names *names = nib__family_of(c)->experts;
    const int64_t width = c->width,
                  ffn = c->moe.shared_ffn > 0 ? c->moe.shared_ffn : c->moe.shared * c->moe.ffn;
    const int gate = linear(b, x, NIB_ROLE_GATE, layer, names->shared_gate, ffn, width, false);
    const int up = linear(b, x, NIB_ROLE_UP, layer, names->shared_up, ffn, width, false);
    const int h = nib__emit_swiglu(b, gating_of(c), gate, up);
    const int y = linear(b, h, NIB_ROLE_DOWN, layer, names->shared_down, width, ffn, false);
    if (names->shared_factor == NULL)
        return y;
    const int factor = linear(b, x, NIB_ROLE_ROUTER, layer, names->shared_factor, 1, width, false);
    return nib__emit_swiglu(b, (nib_gating){.activation = NIB_SIGMOID}, factor, y);
}

int nib__block_routed_experts(nib_build *b, const nib_config *c, int64_t layer, int x, int seen)
{
    enum { GATE, UP, DOWN, PARTS };
    const nib_expert_names *names = nib__family_of(c)->experts;
    const int64_t width = c->width, ffn = c->moe.ffn;
    const nib_routing rule = routing_of(c), *routing = nib__build_routing(b, &rule);
    const nib_expert_part parts[PARTS] = {
        [GATE] = {NIB_ROLE_GATE, names->gate, ffn, width, names->biases},
        [UP] = {NIB_ROLE_UP, names->up, ffn, width, names->biases},
        [DOWN] = {NIB_ROLE_DOWN, names->down, width, ffn, names->biases}};
    const int logits = linear(b, seen, NIB_ROLE_ROUTER, layer, names->router, c->moe.experts, width,
                              names->biases);
    const char *name = rule.weight_scales ? names->weight_scales
                       : c->moe.sigmoid   ? names->choice_bias
                                          : NULL;
    const int vector = name != NULL ? nib__build_vector(b, layer, name, c->moe.experts) : NIB_NO_ID;
    const int chosen = nib__emit_route(b, logits, vector, routing);
    const int first = nib__build_experts(b, layer, routing, parts, PARTS);
    int rows = nib__emit_dispatch(b, x, chosen, routing);
    const int gate = nib__emit_linear_experts(b, rows, first + GATE, PARTS, routing);
    const int up = nib__emit_linear_experts(b, rows, first + UP, PARTS, routing);
    rows = nib__emit_swiglu(b, gating_of(c), gate, up);
    rows = nib__emit_linear_experts(b, rows, first + DOWN, PARTS, routing);
    return nib__emit_combine(b, rows, chosen, routing);
}

int nib__block_experts(nib_build *b, const nib_config *c, int64_t layer, int x)
{
    if (!nib__config_has_experts(c, layer))
        return nib__block_gated_mlp(b, c, layer, x);
    const int routed = nib__block_routed_experts(b, c, layer, x, x);
    return c->moe.shared > 0 ? nib__emit_add(b, routed, shared_expert(b, c, layer, x)) : routed;
}

int nib__block_plain_mlp(nib_build *b, const nib_config *c, int64_t layer, int x, const char *up,
                         const char *down)
{
    int h = linear(b, x, NIB_ROLE_UP, layer, up, c->ffn, c->width, c->mlp_bias);
    h = nib__emit_swiglu(b, gating_of(c), h, NIB_NO_ID);
    return linear(b, h, NIB_ROLE_DOWN, layer, down, c->width, c->ffn, c->mlp_bias);
}

static int output_matrix(nib_build *b, const nib_config *c)
{
    return nib__build_matrix(b, NIB_ROLE_HEAD, -1, "lm_head", c->vocab, c->width, false);
}

static int logits_of(nib_build *b, const nib_config *c, int x, int matrix)
{
    return nib__emit_scale(b, nib__emit_linear(b, x, matrix), c->logits_scale, c->logits_cap);
}

int nib__block_head(nib_build *b, const nib_config *c, int x)
{
    x = nib__block_norm(b, c, -1, names_of(c)->last_norm, x);
    const int drafted = c->trains_head ? nib__block_draft_head(b, c, x) : NIB_NO_ID;
    const int head = output_matrix(b, c);
    if (drafted != NIB_NO_ID) {
        (void)logits_of(b, c, drafted, head);
        nib__build_ahead(b);
    }
    return logits_of(b, c, x, head);
}

int nib__block_logits(nib_build *b, const nib_config *c, int x)
{
    return logits_of(b, c, x, output_matrix(b, c));
}
