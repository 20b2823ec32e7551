/* SPDX-License-Identifier: Apache-2.0
 *
 * Builds graphs. Lists grow in the caller's allocator and move into the arena at the end.
 */
#include "graph.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

void nib__build_begin(nib_build *b, nib_arena *arena, const nib_allocator *a)
{
    *b = (nib_build){.arena = arena, .allocator = a, .prefix = "model.layers."};
}

static void *settle(nib_build *b, void *list, size_t count, size_t size)
{
    void *kept = nib__arena_settle(b->arena, b->allocator, list, count, size);
    b->failed = b->failed || kept == NULL;
    return kept;
}

static void index_by_kind(nib_build *b)
{
    nib_graph *g = &b->graph;
    for (int kind = 0; kind < NIB_WEIGHT_KINDS; kind++) {
        g->of_kind[kind] = nib__arena_take(b->arena, g->kind_count[kind], sizeof(size_t));
        b->failed = b->failed || g->of_kind[kind] == NULL;
    }
    for (size_t i = 0; i < g->weight_count && !b->failed; i++)
        g->of_kind[g->weights[i].kind][g->weights[i].index] = i;
}

nib_status nib__build_end(nib_graph *out, nib_build *b, nib_err *err)
{
    nib_graph *g = &b->graph;
    g->nodes = settle(b, g->nodes, g->node_count, sizeof *g->nodes);
    g->values = settle(b, g->values, g->value_count, sizeof *g->values);
    g->weights = settle(b, g->weights, g->weight_count, sizeof *g->weights);
    if (!b->failed)
        index_by_kind(b);
    if (b->failed)
        return nib__fail_memory(err, g->node_count * sizeof *g->nodes, "the model's graph");
    *out = *g;
    return NIB_OK;
}

/* ---- weights ---- */

static int add_weight(nib_build *b, nib_graph_weight weight, const char *part)
{
    nib_graph *g = &b->graph;
    char name[160];
    if (weight.layer < 0)
        snprintf(name, sizeof name, "%s", part);
    else
        snprintf(name, sizeof name, "%s%" PRId64 ".%s", b->prefix, b->first + weight.layer, part);
    weight.name = nib__arena_copy(b->arena, name, strlen(name));
    if (weight.name == NULL ||
        !nib__reserve(b->allocator, (void **)&g->weights, &b->weight_capacity, g->weight_count + 1,
                      sizeof weight))
        b->failed = true;
    if (b->failed)
        return 0;
    b->layer = weight.layer;
    weight.experts = weight.experts > 0 ? weight.experts : 1;
    weight.top_k = weight.top_k > 0 ? weight.top_k : 1;
    weight.index = g->kind_count[weight.kind]++;
    g->weights[g->weight_count] = weight;
    return (int)g->weight_count++;
}

int nib__build_matrix(nib_build *b, nib_role role, int64_t layer, const char *part, int64_t n,
                      int64_t k, bool bias)
{
    return add_weight(
        b,
        (nib_graph_weight){
            .kind = NIB_WEIGHT_MATRIX, .role = role, .layer = layer, .n = n, .k = k, .bias = bias},
        part);
}

/* Adds matrix number `number` of a part. of: the experts or heads of which it belongs to one. */
static int add_numbered(nib_build *b, int64_t layer, const nib_expert_part *p, int64_t number,
                        nib_graph_weight of)
{
    const char *at = strstr(p->part, "%d");
    char name[128];
    snprintf(name, sizeof name, "%.*s%" PRId64 "%s", (int)(at - p->part), p->part, number, at + 2);
    of.kind = NIB_WEIGHT_MATRIX, of.role = p->role, of.layer = layer;
    of.n = p->n, of.k = p->k, of.bias = p->bias;
    return add_weight(b, of, name);
}

int nib__build_experts(nib_build *b, int64_t layer, const nib_routing *routing,
                       const nib_expert_part *parts, int count)
{
    int first = 0;
    for (int64_t e = 0; e < routing->experts; e++)
        for (int i = 0; i < count; i++) {
            const nib_graph_weight of = {.experts = routing->experts, .top_k = routing->top_k};
            const int weight = add_numbered(b, layer, &parts[i], e, of);
            first = e == 0 && i == 0 ? weight : first;
        }
    return first;
}

int nib__build_heads(nib_build *b, int64_t layer, int64_t heads, const nib_expert_part *part)
{
    const nib_graph_weight of = {.experts = 1, .top_k = 1, .heads = heads};
    const int first = add_numbered(b, layer, part, 0, of);
    for (int64_t h = 1; h < heads; h++)
        (void)add_numbered(b, layer, part, h, of);
    return first;
}

const nib_routing *nib__build_routing(nib_build *b, const nib_routing *routing)
{
    nib_routing *copy = nib__arena_take(b->arena, 1, sizeof *copy);
    b->failed = b->failed || copy == NULL;
    if (copy == NULL)
        return routing; /* nothing is added any more */
    *copy = *routing;
    return copy;
}

int nib__build_norm(nib_build *b, int64_t layer, const char *part, int64_t heads, int64_t n,
                    nib_norm_form form)
{
    return add_weight(b,
                      (nib_graph_weight){.kind = NIB_WEIGHT_NORM,
                                         .layer = layer,
                                         .n = n,
                                         .k = 1,
                                         .heads = heads,
                                         .bias = form.bias,
                                         .centered = form.centered,
                                         .flat = form.flat,
                                         .offset = form.offset,
                                         .eps = form.eps},
                      part);
}

int nib__build_vector(nib_build *b, int64_t layer, const char *name, int64_t n)
{
    return add_weight(
        b,
        (nib_graph_weight){
            .kind = NIB_WEIGHT_NORM, .layer = layer, .n = n, .k = 1, .heads = 1, .bare = true},
        name);
}

int nib__build_taps(nib_build *b, int64_t layer, const char *part, int64_t channels, int64_t taps)
{
    return add_weight(b,
                      (nib_graph_weight){.kind = NIB_WEIGHT_NORM,
                                         .layer = layer,
                                         .n = channels * taps,
                                         .k = 1,
                                         .heads = 1,
                                         .taps = taps},
                      part);
}

int nib__graph_vector_shape(int64_t shape[NIB_NORM_RANK], const nib_graph_weight *weight)
{
    if (weight->taps > 0) {
        shape[0] = weight->n / weight->taps, shape[1] = 1, shape[2] = weight->taps;
        return 3;
    }
    const bool by_head = weight->heads > 1 && !weight->flat;
    shape[0] = by_head ? weight->heads : weight->n, shape[1] = weight->n / weight->heads;
    return by_head ? 2 : 1;
}

/* ---- operations ---- */

static int add_node(nib_build *b, nib_graph_node node, int64_t columns)
{
    nib_graph *g = &b->graph;
    if (!nib__reserve(b->allocator, (void **)&g->nodes, &b->node_capacity, g->node_count + 1,
                      sizeof node) ||
        !nib__reserve(b->allocator, (void **)&g->values, &b->value_capacity, g->value_count + 1,
                      sizeof *g->values))
        b->failed = true;
    if (b->failed)
        return 0;
    node.layer = b->layer;
    node.out = NIB_NO_ID;
    if (columns > 0) {
        node.out = (int)g->value_count++;
        g->values[node.out] = (nib_graph_value){.columns = columns, .writer = (int)g->node_count};
    }
    g->nodes[g->node_count++] = node;
    return node.out;
}

static int64_t columns_of(const nib_build *b, int value)
{
    return b->failed ? 1 : b->graph.values[value].columns;
}

static const nib_graph_weight *weight_of(const nib_build *b, int weight)
{
    static const nib_graph_weight none = {.n = 1};
    return b->failed ? &none : &b->graph.weights[weight];
}

int nib__emit_embed(nib_build *b, int weight)
{
    return add_node(
        b, (nib_graph_node){.op = NIB_OP_EMBED, .in = {NIB_NO_ID, NIB_NO_ID}, .weight = weight},
        weight_of(b, weight)->k);
}

int nib__emit_linear(nib_build *b, int x, int weight)
{
    const nib_graph *g = &b->graph;
    const nib_graph_node node = {.op = NIB_OP_LINEAR, .in = {x, NIB_NO_ID}, .weight = weight};
    const nib_graph_node *last = g->node_count != 0 ? &g->nodes[g->node_count - 1] : NULL;
    if (last != NULL && last->op == NIB_OP_LINEAR && last->in[0] == x && !b->failed)
        g->weights[weight].shares_input = true;
    return add_node(b, node, weight_of(b, weight)->n);
}

int nib__emit_route(nib_build *b, int logits, int vector, const nib_routing *routing)
{
    return add_node(
        b,
        (nib_graph_node){
            .op = NIB_OP_ROUTE, .in = {logits, NIB_NO_ID}, .weight = vector, .routing = routing},
        2 * routing->top_k);
}

int nib__emit_dispatch(nib_build *b, int x, int routing_value, const nib_routing *routing)
{
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_DISPATCH,
                                     .in = {x, routing_value},
                                     .weight = NIB_NO_ID,
                                     .routing = routing},
                    columns_of(b, x) * routing->top_k);
}

int nib__emit_linear_experts(nib_build *b, int rows, int weight, int step,
                             const nib_routing *routing)
{
    const nib_graph *g = &b->graph;
    const nib_graph_node node = {.op = NIB_OP_LINEAR_EXPERTS,
                                 .in = {rows, NIB_NO_ID},
                                 .weight = weight,
                                 .weight_step = step,
                                 .heads = routing->top_k,
                                 .routing = routing};
    const nib_graph_node *last = g->node_count != 0 ? &g->nodes[g->node_count - 1] : NULL;
    const bool shares = last != NULL && last->op == node.op && last->in[0] == rows;
    for (int64_t e = 0; e < routing->experts && shares && !b->failed; e++)
        g->weights[weight + e * step].shares_input = true;
    return add_node(b, node, weight_of(b, weight)->n * routing->top_k);
}

int nib__emit_linear_heads(nib_build *b, int x, int weight, int64_t heads)
{
    const nib_graph_weight *w = weight_of(b, weight);
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_LINEAR_HEADS,
                                     .in = {x, NIB_NO_ID},
                                     .weight = weight,
                                     .weight_step = 1,
                                     .heads = heads},
                    columns_of(b, x) + heads * (w->n - w->k));
}

int nib__emit_combine(nib_build *b, int rows, int routing_value, const nib_routing *routing)
{
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_COMBINE,
                                     .in = {rows, routing_value},
                                     .weight = NIB_NO_ID,
                                     .routing = routing},
                    columns_of(b, rows) / routing->top_k);
}

int nib__emit_norm(nib_build *b, int x, int weight, int64_t heads)
{
    return add_node(
        b,
        (nib_graph_node){.op = NIB_OP_NORM, .in = {x, NIB_NO_ID}, .weight = weight, .heads = heads},
        columns_of(b, x));
}

int nib__emit_norm_part(nib_build *b, int x, int weight, int64_t channel)
{
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_NORM,
                                     .in = {x, NIB_NO_ID},
                                     .weight = weight,
                                     .heads = 1,
                                     .channel = channel,
                                     .part = true},
                    columns_of(b, x));
}

int nib__emit_hidden(nib_build *b, int x, int hidden)
{
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_HIDDEN, .in = {x, hidden}, .weight = NIB_NO_ID},
                    2 * columns_of(b, x));
}

void nib__build_ahead(nib_build *b)
{
    if (!b->failed)
        b->graph.nodes[b->graph.node_count - 1].ahead = true;
}

int nib__emit_rope(nib_build *b, int x, int64_t heads, int table, int64_t channel)
{
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_ROPE,
                                     .in = {x, NIB_NO_ID},
                                     .weight = NIB_NO_ID,
                                     .heads = heads,
                                     .channel = channel,
                                     .table = table},
                    columns_of(b, x));
}

void nib__emit_store(nib_build *b, int k, int v)
{
    add_node(b, (nib_graph_node){.op = NIB_OP_STORE_KV, .in = {k, v}, .weight = NIB_NO_ID}, 0);
}

int nib__emit_attention(nib_build *b, int q, nib_attention attention)
{
    const int64_t columns =
        attention.value_dim > 0 ? attention.heads * attention.value_dim : columns_of(b, q);
    const int out = add_node(b,
                             (nib_graph_node){.op = NIB_OP_ATTN,
                                              .in = {q, NIB_NO_ID},
                                              .weight = attention.sinks,
                                              .heads = attention.heads,
                                              .scale = attention.scale,
                                              .cap = attention.cap,
                                              .window = attention.window,
                                              .chunked = attention.chunked},
                             columns);
    if (!b->failed)
        b->graph.nodes[b->graph.node_count - 1].layer -= attention.layers_back;
    return out;
}

int nib__emit_swiglu(nib_build *b, nib_gating gating, int gate, int up)
{
    int64_t columns = columns_of(b, gate);
    if (up != NIB_NO_ID && (columns == 1 || columns > columns_of(b, up)))
        columns = columns_of(b, up);
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_SWIGLU,
                                     .in = {gate, up},
                                     .weight = NIB_NO_ID,
                                     .activation = gating.activation,
                                     .channel = gating.channel,
                                     .scale = gating.alpha,
                                     .cap = gating.limit},
                    columns);
}

int nib__emit_add(nib_build *b, int x, int y)
{
    return add_node(b, (nib_graph_node){.op = NIB_OP_ADD, .in = {x, y}, .weight = NIB_NO_ID},
                    columns_of(b, x));
}

int nib__emit_scale(nib_build *b, int x, double scale, double cap)
{
    const double factor = scale != 0 ? scale : 1;
    if (factor == 1 && cap == 0)
        return x;
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_SCALE,
                                     .in = {x, NIB_NO_ID},
                                     .weight = NIB_NO_ID,
                                     .scale = factor,
                                     .cap = cap},
                    columns_of(b, x));
}

int nib__emit_scale_by(nib_build *b, int x, int weight)
{
    return add_node(
        b, (nib_graph_node){.op = NIB_OP_SCALE, .in = {x, NIB_NO_ID}, .weight = weight, .scale = 1},
        columns_of(b, x));
}

int nib__emit_short_conv(nib_build *b, int x, int weight, nib_conv_form form)
{
    const nib_graph_weight *taps = weight_of(b, weight);
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_SHORT_CONV,
                                     .in = {x, NIB_NO_ID},
                                     .weight = weight,
                                     .gated = form.gated,
                                     .biased = form.biased,
                                     .channel = form.channel},
                    taps->n / nib__max(taps->taps, 1));
}

int nib__emit_delta_gates(nib_build *b, int beta, int a, int a_log, bool rates)
{
    return add_node(b,
                    (nib_graph_node){
                        .op = NIB_OP_DELTA_GATES, .in = {beta, a}, .weight = a_log, .rates = rates},
                    2 * columns_of(b, beta));
}

int nib__emit_gated_delta(nib_build *b, int qkv, int gates, nib_matrix_size size)
{
    return add_node(
        b,
        (nib_graph_node){
            .op = NIB_OP_GATED_DELTA, .in = {qkv, gates}, .weight = NIB_NO_ID, .matrix = size},
        size.heads * size.value_dim);
}

int nib__emit_ssm_gates(nib_build *b, int x, int64_t channel, int a_log, bool rates, double least,
                        double most)
{
    if (!b->failed)
        b->graph.weights[a_log].exponential = !rates;
    return add_node(b,
                    (nib_graph_node){.op = NIB_OP_SSM_GATES,
                                     .in = {x, NIB_NO_ID},
                                     .weight = a_log,
                                     .rates = rates,
                                     .channel = channel,
                                     .scale = least,
                                     .cap = most},
                    2 * weight_of(b, a_log)->n);
}

int nib__emit_ssm(nib_build *b, int xbc, int gates, int skip, nib_matrix_size size)
{
    return add_node(
        b, (nib_graph_node){.op = NIB_OP_SSM, .in = {xbc, gates}, .weight = skip, .matrix = size},
        size.heads * size.value_dim);
}

int nib__emit_gather(nib_build *b, int x, const nib_columns *parts, int count)
{
    int64_t columns = 0, at = 0;
    for (int p = 0; p < count; p++)
        columns += parts[p].heads * parts[p].count;
    int32_t *order = nib__arena_take(b->arena, (uint64_t)columns, sizeof *order);
    b->failed = b->failed || order == NULL;
    for (int p = 0; p < count && order != NULL; p++) {
        const int64_t width = columns_of(b, x) / parts[p].heads;
        for (int64_t h = 0; h < parts[p].heads; h++)
            for (int64_t i = 0; i < parts[p].count; i++)
                order[at++] = (int32_t)(h * width + parts[p].first + i);
    }
    return add_node(
        b,
        (nib_graph_node){
            .op = NIB_OP_GATHER, .in = {x, NIB_NO_ID}, .weight = NIB_NO_ID, .order = order},
        columns);
}
