/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the operations of one forward step.
 */
#include "lower.h"

typedef struct lowering {
    const nib_network *net;
    const nib_layers_plan *plan;
    nib_arena *arena;
    nib_lowered *out;
    size_t capacity;
    int held[NIB_BUFFER_COUNT]; /* bits: the sides that hold the buffer's values */
    nib_err *err;
} lowering;

const nib_use *nib__use_at(const nib_layer_plan *plan, int64_t m)
{
    for (int i = 0; i < plan->use_count - 1; i++)
        if (plan->uses[i].m_max == 0 || m <= plan->uses[i].m_max)
            return &plan->uses[i];
    return &plan->uses[plan->use_count - 1];
}

/* ---- input forms ---- */

static void *carve(char *base, uint64_t *used, uint64_t bytes)
{
    void *p = base ? base + *used : NULL;
    *used += (bytes + 63) & ~UINT64_C(63);
    return p;
}

void nib__input_place(nib_input *out, const nib_scheme *scheme, nib_type input, int64_t m,
                      int64_t k, char *at, uint64_t *bytes)
{
    uint64_t used = 0;
    const uint64_t groups = (uint64_t)nib__scheme_groups(scheme, k), tokens = (uint64_t)m;
    const int64_t padded = nib__round_up(k, NIB_CODES_PAD);
    *out = (nib_input){.m = m,
                       .k = k,
                       .ld = padded,
                       .groups = (int64_t)groups,
                       .group = nib__scheme_group_size(scheme, k)};
    switch (scheme->act) {
    case NIB_ACT_FLOAT:
        if (input == NIB_TYPE_BF16)
            out->bf16 = carve(at, &used, tokens * (uint64_t)padded * 2);
        else
            out->f32 = carve(at, &used, tokens * (uint64_t)padded * 4);
        if (scheme->zero == NIB_ZERO_FLOAT)
            out->fsums = carve(at, &used, tokens * groups * 4);
        break;
    case NIB_ACT_E4M3_TOKEN:
        out->bf16 = carve(at, &used, tokens * (uint64_t)padded * 2);
        out->scale = carve(at, &used, tokens * 4);
        break;
    case NIB_ACT_MX8:
    case NIB_ACT_MX4:
    case NIB_ACT_NV4:
        out->codes = carve(at, &used, tokens * (uint64_t)padded);
        out->scale = carve(at, &used, tokens * groups * 4);
        break;
    case NIB_ACT_I8_BLOCK32:
    case NIB_ACT_I8_BLOCK256:
        out->codes = carve(at, &used, tokens * (uint64_t)padded);
        out->scale =
            carve(at, &used, tokens * (uint64_t)nib__ceil_div(k, nib__act_block(scheme->act)) * 4);
        out->sums = carve(at, &used, tokens * groups * 4);
        break;
    default:
        out->codes = carve(at, &used, tokens * (uint64_t)padded);
        out->scale = carve(at, &used, tokens * 4);
        out->zero = carve(at, &used, tokens * 4);
        out->sums = carve(at, &used, tokens * groups * 4);
        break;
    }
    if (bytes)
        *bytes = used;
}

/* ---- nodes ---- */

static nib_status append(lowering *l, const nib_node *node)
{
    if (l->out->count == l->capacity)
        return nib__fail(l->err, NIB_FAILED, "the list of operations is full at %zu", l->capacity);
    l->out->nodes[l->out->count++] = *node;
    return NIB_OK;
}

/* Does a product read f32 rows as they lie, or what a row has made of them? */
static bool takes_rows(const lowering *l, const nib_layer_plan *uses)
{
    return uses->done.act == NIB_ACT_FLOAT && l->plan->dtype == NIB_TYPE_F32;
}

/* The buffers of f32 rows that an operation reads. INPUT is made where it is read. */
static int reads(const lowering *l, const nib_node *node, nib_buffer out[3])
{
    out[0] = node->from;
    switch (node->op) {
    case NIB_OP_EMBED: return 0;
    case NIB_OP_LINEAR: return takes_rows(l, node->uses);
    case NIB_OP_ROPE: out[0] = node->to; return 1;
    case NIB_OP_COPY:
    case NIB_OP_SWIGLU: out[1] = node->other; return 2;
    case NIB_OP_ADD: out[1] = node->to; return 2;
    case NIB_OP_ROPE_COPY: out[1] = node->other, out[2] = node->to; return 3;
    default: return 1;
    }
}

static int side_of(const nib_kernel *row)
{
    return row->device == NIB_DEVICE_CPU ? NIB_SIDE_CPU : NIB_SIDE_GPU;
}

/* An operation on the side of its row, and before it what brings its inputs there. */
static nib_status add(lowering *l, nib_node node)
{
    nib_buffer read[3];
    node.side = side_of(node.row != NULL ? node.row : node.uses->uses[0].kernel);
    l->out->uses_gpu = l->out->uses_gpu || node.side == NIB_SIDE_GPU;
    for (int i = reads(l, &node, read); i-- > 0;) {
        const nib_node move = {
            .op = NIB_OP_MOVE, .side = node.side, .from = read[i], .to = read[i]};
        if (l->held[read[i]] == 0)
            return nib__fail(l->err, NIB_FAILED, "%s would read rows that nothing has made",
                             nib__op_names[node.op]);
        if ((l->held[read[i]] & 1 << node.side) == 0)
            NIB_TRY(append(l, &move));
        l->held[read[i]] |= 1 << node.side;
    }
    if (node.op == NIB_OP_NORM_QUANT) /* its rows are made for an observer only */
        l->held[node.other] = 0;
    else if (node.op != NIB_OP_COPY && node.op != NIB_OP_QUANT)
        l->held[node.to] = 1 << node.side;
    if (node.op == NIB_OP_ROPE_COPY) /* which turns both in place */
        l->held[node.from] = 1 << node.side;
    return append(l, &node);
}

static nib_status add_op(lowering *l, nib_node node)
{
    const nib_op_plan *plan = nib__plan_operation(l->plan, node.op);
    if (plan == NULL || plan->row == NULL) /* it was denied, and whoever runs should have asked */
        return nib__fail(l->err, NIB_NOT_AS_ASKED, "no row runs the operation %s on %s",
                         nib__op_names[node.op], l->plan->machine->name);
    node.row = plan->row;
    if (node.op == NIB_OP_ATTN)
        l->out->cache_side = side_of(node.row);
    return add(l, node);
}

static nib_status add_norm(lowering *l, int64_t layer, const char *part, nib_node node,
                           int64_t width)
{
    float *weight = nib__arena_take(l->arena, (size_t)width, sizeof *weight);
    if (!weight)
        return nib__fail_memory(l->err, (size_t)width * sizeof *weight, "a norm weight");
    NIB_TRY(nib__network_norm(weight, l->net, layer, part, width, l->err));
    node.weight = weight, node.width = width, node.layer = layer;
    if (node.uses != NULL) {
        node.op = NIB_OP_NORM_QUANT;
        return add(l, node);
    }
    node.op = NIB_OP_NORM;
    return add_op(l, node);
}

/* Only f32 values without sums are taken as they lie; for any other form a row must make it. */
static nib_status check_form(lowering *l, const nib_layer_plan *uses)
{
    const bool as_it_is = takes_rows(l, uses) && uses->done.zero != NIB_ZERO_FLOAT;
    for (int i = 0; i < uses->use_count && !as_it_is; i++)
        if (!uses->uses[i].quant)
            return nib__fail(l->err, NIB_FAILED,
                             "%s: the plan has no row that makes the input of %s",
                             uses->layer->name, uses->uses[i].kernel->name);
    return NIB_OK;
}

/* The order of the columns that run, or NULL. */
static const int32_t *order_of(const lowering *l, const nib_layer_plan *uses, size_t site)
{
    return nib__plan_ordered(uses) ? l->net->sites[site].order : NULL;
}

/* The norm of the residual that the layers from `site` on read: its rows, or, where the plan has a
 * row for that, the form that those layers take. */
static nib_status add_norm_for(lowering *l, int64_t layer, const char *part, size_t site,
                               bool wanted_only)
{
    const nib_layer_plan *uses = &l->plan->layers[site];
    nib_node node = {.from = NIB_BUFFER_RESIDUAL,
                     .to = NIB_BUFFER_NORMED,
                     .rows_per_token = 1,
                     .wanted_only = wanted_only};
    if (uses->uses[0].normed != NULL) {
        node.to = NIB_BUFFER_INPUT, node.other = NIB_BUFFER_NORMED;
        node.uses = uses, node.site = site;
    }
    return add_norm(l, layer, part, node, l->net->config.width);
}

static bool same_order(const int32_t *a, const int32_t *b, int64_t k)
{
    return a == b || (a != NULL && b != NULL && memcmp(a, b, (size_t)k * sizeof *a) == 0);
}

/* A linear layer, and before it the gather into its act-order and the quantizer, unless the
 * previous layer, or the norm, left the same form of the same buffer: q, k and v share one, gate
 * and up another. */
static nib_status add_linear(lowering *l, size_t site, nib_buffer from, nib_buffer to, bool shares)
{
    const nib_layer_plan *uses = &l->plan->layers[site];
    const int64_t k = uses->layer->k;
    uint64_t bytes = 0;
    nib_input form;
    nib__input_place(&form, &uses->done, l->plan->dtype, 1, k, NULL, &bytes);
    if (bytes > l->out->token_bytes[NIB_BUFFER_INPUT])
        l->out->token_bytes[NIB_BUFFER_INPUT] = bytes;
    NIB_TRY(check_form(l, uses));
    const nib_node *last = &l->out->nodes[l->out->count - 1];
    const int32_t *order = order_of(l, uses, site);
    const bool same_side = side_of(uses->uses[0].kernel) == last->side;
    const bool ordered = shares && same_side && last->uses->layer->k == k &&
                         same_order(order, order_of(l, last->uses, last->site), k);
    const bool formed = ordered && nib__plan_same_form(last->uses, uses);
    if (order != NULL && !ordered)
        NIB_TRY(add_op(l, (nib_node){.op = NIB_OP_GATHER,
                                     .site = site,
                                     .from = from,
                                     .to = NIB_BUFFER_GATHERED,
                                     .order = order,
                                     .width = k}));
    if (order != NULL)
        from = NIB_BUFFER_GATHERED;
    if (!formed && !(last->op == NIB_OP_NORM_QUANT && last->site == site))
        NIB_TRY(add(l, (nib_node){.op = NIB_OP_QUANT,
                                  .uses = uses,
                                  .site = site,
                                  .from = from,
                                  .to = NIB_BUFFER_INPUT}));
    return add(l, (nib_node){.op = NIB_OP_LINEAR,
                             .uses = uses,
                             .site = site,
                             .from = from,
                             .to = to,
                             .joins = formed});
}

/* Queries and keys turned by their positions, and the cache's new ones. */
static nib_status lower_positions(lowering *l, int64_t layer)
{
    const nib_config *c = &l->net->config;
    nib_node copy = {
        .op = NIB_OP_COPY, .from = NIB_BUFFER_K, .other = NIB_BUFFER_V, .layer = layer};
    if (nib__plan_operation(l->plan, NIB_OP_ROPE_COPY) != NULL) {
        copy.op = NIB_OP_ROPE_COPY, copy.to = NIB_BUFFER_Q;
        return add_op(l, copy);
    }
    NIB_TRY(add_op(l, (nib_node){.op = NIB_OP_ROPE, .to = NIB_BUFFER_Q, .width = c->heads}));
    NIB_TRY(add_op(l, (nib_node){.op = NIB_OP_ROPE, .to = NIB_BUFFER_K, .width = c->kv_heads}));
    return add_op(l, copy);
}

static nib_status lower_attention(lowering *l, int64_t layer)
{
    const nib_config *c = &l->net->config;
    const size_t first = (size_t)(1 + layer * NIB_SITE_COUNT);
    NIB_TRY(add_norm_for(l, layer, "input_layernorm", first + NIB_SITE_Q, false));
    NIB_TRY(add_linear(l, first + NIB_SITE_Q, NIB_BUFFER_NORMED, NIB_BUFFER_Q, false));
    NIB_TRY(add_linear(l, first + NIB_SITE_K, NIB_BUFFER_NORMED, NIB_BUFFER_K, true));
    NIB_TRY(add_linear(l, first + NIB_SITE_V, NIB_BUFFER_NORMED, NIB_BUFFER_V, true));
    if (c->qk_norm) {
        NIB_TRY(add_norm(
            l, layer, "self_attn.q_norm",
            (nib_node){.from = NIB_BUFFER_Q, .to = NIB_BUFFER_Q, .rows_per_token = c->heads},
            c->head_dim));
        NIB_TRY(add_norm(
            l, layer, "self_attn.k_norm",
            (nib_node){.from = NIB_BUFFER_K, .to = NIB_BUFFER_K, .rows_per_token = c->kv_heads},
            c->head_dim));
    }
    NIB_TRY(lower_positions(l, layer));
    NIB_TRY(add_op(
        l, (nib_node){
               .op = NIB_OP_ATTN, .from = NIB_BUFFER_Q, .to = NIB_BUFFER_ATTN, .layer = layer}));
    NIB_TRY(add_linear(l, first + NIB_SITE_O, NIB_BUFFER_ATTN, NIB_BUFFER_NORMED, false));
    return add_op(l, (nib_node){.op = NIB_OP_ADD,
                                .from = NIB_BUFFER_NORMED,
                                .to = NIB_BUFFER_RESIDUAL,
                                .width = c->width});
}

static nib_status lower_mlp(lowering *l, int64_t layer)
{
    const nib_config *c = &l->net->config;
    const size_t first = (size_t)(1 + layer * NIB_SITE_COUNT);
    NIB_TRY(add_norm_for(l, layer, "post_attention_layernorm", first + NIB_SITE_GATE, false));
    NIB_TRY(add_linear(l, first + NIB_SITE_GATE, NIB_BUFFER_NORMED, NIB_BUFFER_GATE, false));
    NIB_TRY(add_linear(l, first + NIB_SITE_UP, NIB_BUFFER_NORMED, NIB_BUFFER_UP, true));
    NIB_TRY(add_op(l, (nib_node){.op = NIB_OP_SWIGLU,
                                 .from = NIB_BUFFER_GATE,
                                 .other = NIB_BUFFER_UP,
                                 .to = NIB_BUFFER_GATE,
                                 .width = c->ffn}));
    NIB_TRY(add_linear(l, first + NIB_SITE_DOWN, NIB_BUFFER_GATE, NIB_BUFFER_NORMED, false));
    return add_op(l, (nib_node){.op = NIB_OP_ADD,
                                .from = NIB_BUFFER_NORMED,
                                .to = NIB_BUFFER_RESIDUAL,
                                .width = c->width});
}

void nib__lower_sizes(nib_lowered *out, const nib_network *net)
{
    const nib_config *c = &net->config;
    const int64_t vocab = nib__network_head(net)->n;
    const int64_t q = c->heads * c->head_dim, kv = c->kv_heads * c->head_dim;
    const int64_t columns[NIB_BUFFER_COUNT] = {
        [NIB_BUFFER_RESIDUAL] = c->width,
        [NIB_BUFFER_NORMED] = c->width,
        [NIB_BUFFER_Q] = q,
        [NIB_BUFFER_K] = kv,
        [NIB_BUFFER_V] = kv,
        [NIB_BUFFER_ATTN] = q,
        [NIB_BUFFER_GATE] = c->ffn,
        [NIB_BUFFER_UP] = c->ffn,
        [NIB_BUFFER_GATHERED] = nib__max(nib__max(c->width, c->ffn), q),
        [NIB_BUFFER_LOGITS] = vocab,
    };
    for (int i = 0; i < NIB_BUFFER_COUNT; i++) {
        out->ld[i] = columns[i];
        out->token_bytes[i] = (uint64_t)columns[i] * sizeof(float);
    }
}

nib_status nib__lower(nib_lowered *out, const nib_network *net, const nib_layers_plan *plan,
                      nib_arena *arena, nib_err *err)
{
    const nib_config *c = &net->config;
    lowering l = {.net = net, .plan = plan, .arena = arena, .out = out, .err = err};
    enum { NODES_PER_LAYER = 64, NODES_AROUND = 16 }; /* each may move two buffers */
    l.capacity = (size_t)(c->layers * NODES_PER_LAYER + NODES_AROUND);
    *out = (nib_lowered){.nodes = nib__arena_take(arena, l.capacity, sizeof *out->nodes)};
    if (!out->nodes)
        return nib__fail_memory(err, l.capacity * sizeof *out->nodes, "the list of operations");
    nib__lower_sizes(out, net);
    NIB_TRY(add(&l, (nib_node){.op = NIB_OP_EMBED,
                               .row = plan->layers[0].uses[0].kernel,
                               .to = NIB_BUFFER_RESIDUAL}));
    for (int64_t i = 0; i < c->layers; i++) {
        NIB_TRY(lower_attention(&l, i));
        NIB_TRY(lower_mlp(&l, i));
    }
    NIB_TRY(add_norm_for(&l, -1, "", net->site_count - 1, true));
    return add_linear(&l, net->site_count - 1, NIB_BUFFER_NORMED, NIB_BUFFER_LOGITS, false);
}
