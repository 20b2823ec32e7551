/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists a micro-batch. Operations that compute each token by itself are adjacent, so that an
 * executor can run a few tokens through many of them. Operations that sum over tokens (gradients of
 * weights, and packing inputs for them) are postponed to the end of their segment. A segment of a
 * decoder layer ends with attention, or another operation that reads other tokens, or with it.
 */
#include "training.h"

/* ---- the state of a list ---- */

typedef struct list {
    nib_training_node *nodes;
    size_t count, capacity;
} list;

typedef struct lister {
    const nib_graph *graph;
    nib_ac checkpointing;
    const nib_allocator *allocator;
    list nodes, late; /* late: postponed to the end of this segment */
    nib_training_value *values;
    size_t value_count, value_capacity;
    int *now;     /* of each graph value: its value in the list; NIB_NO_ID: not kept */
    int *extra;   /* of each node: the state, log-sum or order that it writes, or NIB_NO_ID */
    int *packed;  /* of each node: the packed input of its linear layer, or NIB_NO_ID */
    int *sum;     /* of each graph value: its gradient so far, or NIB_NO_ID */
    bool *wanted; /* of each node: must run again */
    bool failed;  /* out of memory */
} lister;

typedef struct range {
    size_t first, end; /* of the graph's nodes */
} range;

static const nib_graph_node *node_at(const lister *l, size_t i) { return &l->graph->nodes[i]; }

static void append(lister *l, list *to, const nib_training_node *node)
{
    if (nib__reserve(l->allocator, (void **)&to->nodes, &to->capacity, to->count + 1, sizeof *node))
        to->nodes[to->count++] = *node;
    else
        l->failed = true;
}

static void add(lister *l, const nib_training_node *node) { append(l, &l->nodes, node); }
static void postpone(lister *l, const nib_training_node *node) { append(l, &l->late, node); }

static void end_segment(lister *l)
{
    for (size_t i = 0; i < l->late.count; i++)
        add(l, &l->late.nodes[i]);
    l->late.count = 0;
}

static int add_value(lister *l, nib_training_kind kind, int64_t columns)
{
    if (!nib__reserve(l->allocator, (void **)&l->values, &l->value_capacity, l->value_count + 1,
                      sizeof *l->values)) {
        l->failed = true;
        return 0;
    }
    l->values[l->value_count] = (nib_training_value){kind, columns};
    return (int)l->value_count++;
}

static int add_rows(lister *l, int64_t columns) { return add_value(l, NIB_TRAINING_ROWS, columns); }

/* A value as wide as a graph value. */
static int add_like(lister *l, int value) { return add_rows(l, l->graph->values[value].columns); }

/* A node for a graph node, without inputs and outputs. */
static nib_training_node node_of(const lister *l, nib_op op, size_t i)
{
    nib_training_node node = {.op = op,
                              .weight = node_at(l, i)->weight,
                              .layer = node_at(l, i)->layer,
                              .heads = node_at(l, i)->heads,
                              .of = node_at(l, i)};
    for (int j = 0; j < NIB_TRAINING_INPUTS; j++)
        node.in[j] = NIB_NO_ID;
    for (int j = 0; j < NIB_TRAINING_OUTPUTS; j++)
        node.out[j] = NIB_NO_ID;
    return node;
}

/* The node that stores the keys and values which an attention reads. */
static size_t store_of(const lister *l, size_t attention)
{
    size_t i = attention;
    while (i > 0 && !(node_at(l, i)->op == NIB_OP_STORE_KV &&
                      node_at(l, i)->layer == node_at(l, attention)->layer))
        i--;
    return i;
}

/* The node that sorted the rows which an operation of a mixture reads. */
static size_t dispatch_of(const lister *l, size_t i)
{
    while (i > 0 && node_at(l, i)->op != NIB_OP_DISPATCH)
        i--;
    return i;
}

/* True for the operations on rows of experts, which read their order. */
static bool reads_order(nib_op op)
{
    return op == NIB_OP_DISPATCH || op == NIB_OP_LINEAR_EXPERTS || op == NIB_OP_COMBINE;
}

static bool is_linear(nib_op op)
{
    return op == NIB_OP_LINEAR || op == NIB_OP_LINEAR_EXPERTS || op == NIB_OP_LINEAR_HEADS;
}

/* Sets input `at` of a product's operation to the order of the experts' rows, if it has experts. */
static void set_order(const lister *l, nib_training_node *node, int at, size_t i)
{
    if (node_at(l, i)->op == NIB_OP_LINEAR_EXPERTS)
        node->in[at] = l->extra[dispatch_of(l, i)];
}

/* ---- the gradients ---- */

/* Adds to the gradient of a value. Readers come in reverse order, so the last reader contributes
 * first. */
static void contribute(lister *l, int value, int gradient)
{
    nib_training_node node;
    int *sum = &l->sum[value];
    if (*sum == NIB_NO_ID) {
        *sum = gradient;
        return;
    }
    node = node_of(l, NIB_OP_ADD, (size_t)l->graph->values[value].writer);
    node.weight = NIB_NO_ID, node.heads = 0, node.of = NULL;
    node.in[0] = gradient, node.in[1] = *sum;
    node.out[0] = *sum = add_like(l, value);
    add(l, &node);
}

/* Whether one of the nodes first .. end - 1 is a linear layer with this weight. */
static bool reads_weight(const lister *l, int weight, size_t first, size_t end)
{
    size_t i = first;
    while (i < end && !(is_linear(node_at(l, i)->op) && node_at(l, i)->weight == weight))
        i++;
    return i < end;
}

static void set_uses(const lister *l, nib_training_node *node, size_t i)
{
    node->adds = reads_weight(l, node->weight, i + 1, l->graph->node_count);
    node->partial = reads_weight(l, node->weight, 0, i);
}

static void pack_input(lister *l, size_t i, void (*put)(lister *, const nib_training_node *))
{
    const nib_graph_node *linear = node_at(l, i);
    nib_training_node node = node_of(l, NIB_OP_CAST_T, i);
    node.in[0] = l->now[linear->in[0]];
    set_order(l, &node, 1, i);
    node.out[0] = add_value(l, NIB_TRAINING_PACKED, l->graph->values[linear->in[0]].columns);
    set_uses(l, &node, i);
    l->packed[i] = node.out[0];
    put(l, &node);
}

/* The gradients of linear layers, or of those of experts or heads, that read one value. The value's
 * gradient is summed in their order. Experts and heads read rows that no other operation can join
 * in a chain, so their gradients are not postponed, and free the rows. */
static void linear_gradient(lister *l, range nodes)
{
    for (size_t i = nodes.first; i < nodes.end; i++) {
        nib_training_node node = node_of(l, NIB_OP_LINEAR_DX, i);
        node.in[0] = l->sum[node_at(l, i)->out];
        set_order(l, &node, 1, i);
        node.out[0] = add_like(l, node_at(l, i)->in[0]);
        add(l, &node);
        contribute(l, node_at(l, i)->in[0], node.out[0]);
    }
    for (size_t i = nodes.first; i < nodes.end; i++) {
        void (*const put)(lister *, const nib_training_node *) =
            node_at(l, i)->op == NIB_OP_LINEAR ? postpone : add;
        nib_training_node node = node_of(l, NIB_OP_LINEAR_DW, i);
        if (l->packed[i] == NIB_NO_ID)
            pack_input(l, i, put);
        node.in[0] = l->sum[node_at(l, i)->out], node.in[1] = l->packed[i];
        set_order(l, &node, 2, i);
        set_uses(l, &node, i);
        put(l, &node);
    }
}

/* NORM_DX adds the gradient to the sum so far. */
static void norm_gradient(lister *l, range nodes)
{
    const nib_graph_node *norm = node_at(l, nodes.first);
    nib_training_node dx = node_of(l, NIB_OP_NORM_DX, nodes.first),
                      dw = node_of(l, NIB_OP_NORM_DW, nodes.first);
    int *sum = &l->sum[norm->in[0]];
    dx.in[0] = dw.in[0] = l->now[norm->in[0]];
    dx.in[1] = dw.in[1] = l->sum[norm->out];
    dx.in[2] = *sum;
    dx.out[0] = *sum = add_like(l, norm->in[0]);
    dx.out[1] = dw.in[2] = add_rows(l, norm->heads);
    if (norm->weight != NIB_NO_ID && l->graph->weights[norm->weight].centered)
        dx.out[2] = dw.in[3] = add_rows(l, norm->heads);
    add(l, &dx);
    if (norm->weight != NIB_NO_ID)
        postpone(l, &dw);
}

static void rope_gradient(lister *l, range nodes)
{
    const nib_graph_node *rope = node_at(l, nodes.first);
    nib_training_node node = node_of(l, NIB_OP_ROPE, nodes.first);
    node.inverse = true;
    node.in[0] = l->sum[rope->out];
    node.out[0] = add_like(l, rope->in[0]);
    add(l, &node);
    contribute(l, rope->in[0], node.out[0]);
}

static void attention_gradient(lister *l, range nodes)
{
    const nib_graph_node *attention = node_at(l, nodes.first);
    const size_t store = store_of(l, nodes.first);
    const int reads[] = {attention->in[0], node_at(l, store)->in[0], node_at(l, store)->in[1]};
    const size_t count = reads[2] >= 0 ? 3 : 2; /* or keys hold the values */
    nib_training_node node = node_of(l, NIB_OP_ATTN_DX, nodes.first);
    node.in[0] = l->sum[attention->out], node.in[1] = l->now[attention->in[0]];
    node.in[2] = l->now[attention->out];
    node.in[3] = l->extra[nodes.first], node.in[4] = l->extra[store];
    for (size_t i = 0; i < count; i++)
        node.out[i] = add_like(l, reads[i]);
    add(l, &node);
    for (size_t i = 0; i < count; i++)
        contribute(l, reads[i], node.out[i]);
    if (attention->weight == NIB_NO_ID)
        return;
    nib_training_node sinks = node_of(l, NIB_OP_SINKS_DW, nodes.first);
    sinks.in[0] = node.in[0], sinks.in[1] = node.in[2], sinks.in[2] = node.in[3];
    postpone(l, &sinks);
}

/* The gradient of a vector that is added to every token. */
static void postpone_vector(lister *l, size_t i, int dy, int weight)
{
    nib_training_node node = node_of(l, NIB_OP_BIAS_DW, i);
    node.weight = weight, node.heads = 0;
    node.in[0] = dy;
    postpone(l, &node);
}

static void conv_gradient(lister *l, range nodes)
{
    const nib_graph_node *conv = node_at(l, nodes.first);
    nib_training_node dx = node_of(l, NIB_OP_SHORT_CONV_DX, nodes.first),
                      dw = node_of(l, NIB_OP_SHORT_CONV_DW, nodes.first);
    dx.in[0] = l->sum[conv->out];
    dx.in[1] = dw.in[1] = l->now[conv->in[0]];
    dx.out[0] = add_like(l, conv->in[0]);
    dx.out[1] = dw.in[0] = add_like(l, conv->out);
    add(l, &dx);
    contribute(l, conv->in[0], dx.out[0]);
    postpone(l, &dw);
    if (conv->biased)
        postpone_vector(l, nodes.first, dx.out[1], conv->weight + 1);
}

static void hidden_gradient(lister *l, range nodes)
{
    const nib_graph_node *hidden = node_at(l, nodes.first);
    nib_training_node node = node_of(l, NIB_OP_HIDDEN, nodes.first);
    node.inverse = true;
    node.in[0] = l->sum[hidden->out];
    for (int i = 0; i < 2; i++)
        node.out[i] = add_like(l, hidden->in[i]);
    add(l, &node);
    for (int i = 0; i < 2; i++)
        contribute(l, hidden->in[i], node.out[i]);
}

/* GATHER_DX adds the gradient to the sum so far. */
static void gather_gradient(lister *l, range nodes)
{
    const nib_graph_node *gather = node_at(l, nodes.first);
    nib_training_node node = node_of(l, NIB_OP_GATHER_DX, nodes.first);
    int *sum = &l->sum[gather->in[0]];
    node.in[0] = l->sum[gather->out], node.in[1] = *sum;
    node.out[0] = *sum = add_like(l, gather->in[0]);
    add(l, &node);
}

/* A_log is followed by dt_bias, whose gradient is that of a. */
static void delta_gates_gradient(lister *l, range nodes)
{
    const nib_graph_node *gates = node_at(l, nodes.first);
    nib_training_node node = node_of(l, NIB_OP_DELTA_GATES_DX, nodes.first);
    node.in[0] = l->sum[gates->out];
    for (int i = 0; i < 2; i++) {
        node.in[1 + i] = l->now[gates->in[i]];
        node.out[i] = add_like(l, gates->in[i]);
    }
    node.out[2] = add_like(l, gates->in[0]);
    add(l, &node);
    for (int i = 0; i < 2; i++)
        contribute(l, gates->in[i], node.out[i]);
    postpone_vector(l, nodes.first, node.out[2], gates->weight);
    postpone_vector(l, nodes.first, node.out[1], gates->weight + 1);
}

static void ssm_gates_gradient(lister *l, range nodes)
{
    const nib_graph_node *gates = node_at(l, nodes.first);
    const int64_t heads = l->graph->values[gates->out].columns / 2;
    nib_training_node node = node_of(l, NIB_OP_SSM_GATES_DX, nodes.first);
    node.in[0] = l->sum[gates->out], node.in[1] = l->now[gates->in[0]];
    node.out[0] = add_like(l, gates->in[0]);
    node.out[1] = add_rows(l, heads), node.out[2] = add_rows(l, heads);
    add(l, &node);
    contribute(l, gates->in[0], node.out[0]);
    postpone_vector(l, nodes.first, node.out[2], gates->weight);
    postpone_vector(l, nodes.first, node.out[1], gates->weight + 1);
}

static void recurrence_gradient(lister *l, range nodes)
{
    const nib_graph_node *from = node_at(l, nodes.first);
    const bool ssm = from->op == NIB_OP_SSM;
    nib_training_node node = node_of(l, ssm ? NIB_OP_SSM_DX : NIB_OP_GATED_DELTA_DX, nodes.first);
    node.in[0] = l->sum[from->out];
    for (int i = 0; i < 2; i++) {
        node.in[1 + i] = l->now[from->in[i]];
        node.out[i] = add_like(l, from->in[i]);
    }
    if (ssm)
        node.out[2] = add_rows(l, from->matrix.heads);
    add(l, &node);
    for (int i = 0; i < 2; i++)
        contribute(l, from->in[i], node.out[i]);
    if (ssm)
        postpone_vector(l, nodes.first, node.out[2], from->weight);
}

static void swiglu_gradient(lister *l, range nodes)
{
    const nib_graph_node *swiglu = node_at(l, nodes.first);
    nib_training_node node = node_of(l, NIB_OP_SWIGLU_DX, nodes.first);
    const int inputs = swiglu->in[1] >= 0 ? 2 : 1;
    node.in[0] = l->sum[swiglu->out];
    for (int i = 0; i < inputs; i++) {
        node.in[1 + i] = l->now[swiglu->in[i]];
        node.out[i] = add_like(l, swiglu->in[i]);
    }
    add(l, &node);
    for (int i = 0; i < inputs; i++)
        contribute(l, swiglu->in[i], node.out[i]);
}

/* Only a cap needs the input. A layer's number, if that is the factor, is fixed. */
static void scale_gradient(lister *l, range nodes)
{
    const nib_graph_node *scale = node_at(l, nodes.first);
    nib_training_node node = node_of(l, NIB_OP_SCALE_DX, nodes.first);
    node.in[0] = l->sum[scale->out];
    node.in[1] = scale->cap > 0 ? l->now[scale->in[0]] : NIB_NO_ID;
    node.out[0] = add_like(l, scale->in[0]);
    add(l, &node);
    contribute(l, scale->in[0], node.out[0]);
}

/* An addition passes its gradient to both inputs. */
static void add_gradient(lister *l, range nodes)
{
    const nib_graph_node *node = node_at(l, nodes.first);
    contribute(l, node->in[0], l->sum[node->out]);
    contribute(l, node->in[1], l->sum[node->out]);
}

/* A token's gradient is the sum of its rows', times the weights if they multiply the input. */
static void dispatch_gradient(lister *l, range nodes)
{
    const nib_graph_node *dispatch = node_at(l, nodes.first);
    nib_training_node dx = node_of(l, NIB_OP_COMBINE, nodes.first);
    dx.in[0] = l->sum[dispatch->out], dx.in[2] = l->extra[nodes.first];
    if (dispatch->routing->on_input) {
        nib_training_node dw = node_of(l, NIB_OP_COMBINE_DW, nodes.first);
        dw.in[0] = l->now[dispatch->in[0]], dw.in[1] = dx.in[0], dw.in[2] = dx.in[2];
        dw.out[0] = l->sum[dispatch->in[1]] = add_rows(l, dispatch->routing->top_k);
        add(l, &dw);
        dx.in[1] = l->now[dispatch->in[1]];
    }
    dx.out[0] = add_like(l, dispatch->in[0]);
    add(l, &dx);
    contribute(l, dispatch->in[0], dx.out[0]);
}

static void combine_gradient(lister *l, range nodes)
{
    const nib_graph_node *combine = node_at(l, nodes.first);
    nib_training_node dx = node_of(l, NIB_OP_DISPATCH, nodes.first);
    dx.in[0] = l->sum[combine->out], dx.in[2] = l->extra[dispatch_of(l, nodes.first)];
    if (!combine->routing->on_input) {
        nib_training_node dw = node_of(l, NIB_OP_COMBINE_DW, nodes.first);
        dw.in[0] = dx.in[0], dw.in[1] = l->now[combine->in[0]], dw.in[2] = dx.in[2];
        dw.out[0] = l->sum[combine->in[1]] = add_rows(l, combine->routing->top_k);
        add(l, &dw);
    }
    dx.out[0] = add_like(l, combine->in[0]);
    add(l, &dx);
    contribute(l, combine->in[0], dx.out[0]);
}

/* The gradient of a routing value is that of its weights. A bias that only chooses has none. */
static void route_gradient(lister *l, range nodes)
{
    const nib_graph_node *route = node_at(l, nodes.first);
    nib_training_node node = node_of(l, NIB_OP_ROUTE_DX, nodes.first),
                      dw = node_of(l, NIB_OP_ROUTE_DW, nodes.first);
    const bool factors = route->routing->weight_scales;
    node.in[0] = dw.in[0] = l->sum[route->out];
    node.in[1] = l->now[route->in[0]], node.in[2] = dw.in[1] = l->now[route->out];
    node.out[0] = add_like(l, route->in[0]);
    if (factors)
        node.out[1] = dw.in[2] = add_rows(l, route->routing->top_k);
    add(l, &node);
    contribute(l, route->in[0], node.out[0]);
    if (factors)
        postpone(l, &dw);
}

/* Nothing to do: attention's gradient includes those of keys and values. */
static void store_gradient(lister *l, range nodes) { (void)l, (void)nodes; }

static void embed_gradient(lister *l, range nodes)
{
    nib_training_node node = node_of(l, NIB_OP_EMBED_DW, nodes.first);
    node.in[0] = l->sum[node_at(l, nodes.first)->out];
    postpone(l, &node);
}

/* ---- the rules ---- */

enum { FIRST = 1, SECOND = 2, OWN = 4 };

typedef struct rule {
    nib_op op;
    int reads;                                /* what the gradient reads: inputs, own output */
    bool cheap;                               /* NIB_AC_SELECTIVE recomputes it */
    bool mixes;                               /* it reads other tokens */
    void (*gradient)(lister *l, range nodes); /* several nodes: linear layers with one input */
} rule;

static const rule *rule_of(nib_op op)
{
    static const rule rules[] = {
        {NIB_OP_EMBED, 0, false, false, embed_gradient},
        {NIB_OP_LINEAR, FIRST, false, false, linear_gradient},
        {NIB_OP_NORM, FIRST, true, false, norm_gradient},
        {NIB_OP_ROPE, 0, false, false, rope_gradient},
        {NIB_OP_STORE_KV, 0, false, false, store_gradient},
        {NIB_OP_ATTN, FIRST | OWN, false, true, attention_gradient},
        {NIB_OP_SHORT_CONV, FIRST, false, true, conv_gradient},
        {NIB_OP_DELTA_GATES, FIRST | SECOND, false, false, delta_gates_gradient},
        {NIB_OP_GATED_DELTA, FIRST | SECOND, false, true, recurrence_gradient},
        {NIB_OP_SSM_GATES, FIRST, false, false, ssm_gates_gradient},
        {NIB_OP_SSM, FIRST | SECOND, false, true, recurrence_gradient},
        {NIB_OP_GATHER, 0, true, false, gather_gradient},
        {NIB_OP_HIDDEN, 0, true, false, hidden_gradient},
        {NIB_OP_SWIGLU, FIRST | SECOND, true, false, swiglu_gradient},
        {NIB_OP_ADD, 0, false, false, add_gradient},
        {NIB_OP_ROUTE, FIRST | OWN, false, false, route_gradient},
        {NIB_OP_DISPATCH, FIRST | SECOND, true, false, dispatch_gradient},
        {NIB_OP_LINEAR_EXPERTS, FIRST, false, false, linear_gradient},
        {NIB_OP_LINEAR_HEADS, FIRST, false, false, linear_gradient},
        {NIB_OP_COMBINE, FIRST, false, false, combine_gradient},
        {NIB_OP_SCALE, FIRST, false, false, scale_gradient},
    };
    size_t i = 0;
    while (i < COUNT(rules) - 1 && rules[i].op != op)
        i++;
    return &rules[i];
}

/* Whether every operation has a rule. */
static nib_status check_rules(const nib_graph *g, nib_err *err)
{
    for (size_t i = 0; i < g->node_count; i++)
        if (rule_of(g->nodes[i].op)->op != g->nodes[i].op)
            return nib__fail(err, NIB_UNSUPPORTED,
                             "the operation %s runs, but it cannot be trained yet",
                             nib__op_names[g->nodes[i].op]);
    return NIB_OK;
}

/* ---- the forward pass ---- */

static void add_forward(lister *l, size_t i)
{
    const nib_graph_node *from = node_at(l, i);
    nib_training_node node = node_of(l, from->op, i);
    for (int j = 0; j < NIB_NODE_INPUTS; j++)
        if (from->in[j] >= 0)
            node.in[j] = l->now[from->in[j]];
    if (from->out >= 0)
        node.out[0] = l->now[from->out] = add_like(l, from->out);
    if (from->op == NIB_OP_STORE_KV)
        node.out[0] = l->extra[i] =
            add_value(l, NIB_TRAINING_STATE, l->graph->values[from->in[0]].columns);
    if (from->op == NIB_OP_ATTN) {
        node.in[1] = l->extra[store_of(l, i)];
        node.out[1] = l->extra[i] = add_rows(l, from->heads);
    }
    if (from->op == NIB_OP_DISPATCH)
        node.out[1] = l->extra[i] = add_value(l, NIB_TRAINING_ORDER, from->routing->top_k);
    if (from->op == NIB_OP_COMBINE)
        node.in[2] = l->extra[dispatch_of(l, i)];
    set_order(l, &node, 1, i);
    add(l, &node);
}

/* Sums of probabilities and of choices over tokens, for the load-balancing loss. */
static void add_route_sums(lister *l, size_t i)
{
    nib_training_node node = node_of(l, NIB_OP_ROUTE_SUMS, i);
    if (node_at(l, i)->op != NIB_OP_ROUTE || node_at(l, i)->routing->balance == 0)
        return;
    node.weight = NIB_NO_ID;
    node.in[0] = l->now[node_at(l, i)->in[0]], node.in[1] = l->now[node_at(l, i)->out];
    add(l, &node);
}

/* Lists all nodes or the wanted ones. keeps: pack inputs of linear layers for the gradients of
 * their weights. */
static void add_range(lister *l, range nodes, bool all, bool keeps)
{
    for (size_t i = nodes.first; i < nodes.end && !l->failed; i++) {
        const nib_graph_node *node = node_at(l, i);
        if (rule_of(node->op)->mixes || (i > 0 && node->layer != node_at(l, i - 1)->layer))
            end_segment(l);
        if (all || l->wanted[i])
            add_forward(l, i);
        l->wanted[i] = false;
        if (all)
            add_route_sums(l, i);
        if (keeps && is_linear(node->op) && node->layer >= 0)
            pack_input(l, i, node->op == NIB_OP_LINEAR ? postpone : add);
    }
}

/* Adds the load-balancing loss, if the model has one. */
static void add_balance(lister *l)
{
    size_t i = l->graph->node_count;
    while (i > 0 &&
           !(node_at(l, i - 1)->op == NIB_OP_ROUTE && node_at(l, i - 1)->routing->balance > 0))
        i--;
    if (i == 0)
        return;
    nib_training_node node = node_of(l, NIB_OP_BALANCE, i - 1);
    node.weight = NIB_NO_ID;
    add(l, &node);
}

/* Adds the loss of logits, which also gives their gradient. */
static void add_loss(lister *l, size_t i)
{
    const int logits = node_at(l, i)->out;
    nib_training_node node = node_of(l, NIB_OP_XENT, i);
    node.weight = NIB_NO_ID, node.heads = 0, node.of = NULL;
    node.ahead = node_at(l, i)->ahead;
    node.in[0] = l->now[logits];
    node.out[0] = l->sum[logits] = add_like(l, logits);
    node.out[1] = add_rows(l, 1);
    add(l, &node);
}

/* Adds the loss of a draft head, if there is one, and last that of the model. */
static void add_losses(lister *l)
{
    const size_t last = l->graph->node_count - 1;
    for (size_t i = 0; i < last; i++)
        if (node_at(l, i)->ahead && node_at(l, i)->op != NIB_OP_EMBED)
            add_loss(l, i);
    add_loss(l, last);
}

/* ---- recomputation ---- */

/* crosses[value]: a layer other than its writer's reads it. */
static void find_crossing(const lister *l, bool *crosses)
{
    for (size_t i = 0; i < l->graph->node_count; i++)
        for (int j = 0; j < NIB_NODE_INPUTS; j++) {
            const int value = node_at(l, i)->in[j];
            if (value >= 0)
                crosses[value] |= node_at(l, (size_t)l->graph->values[value].writer)->layer !=
                                  node_at(l, i)->layer;
        }
}

/* Forgets values that the policy does not keep, of those that one layer alone reads. */
static void forget(lister *l, const bool *crosses)
{
    for (size_t i = 0; i < l->graph->node_count; i++) {
        const nib_graph_node *node = node_at(l, i);
        const bool full = l->checkpointing == NIB_AC_FULL, drops = full || rule_of(node->op)->cheap;
        if (node->layer < 0 || !drops)
            continue;
        l->extra[i] = NIB_NO_ID;
        if (node->out >= 0 && !crosses[node->out])
            l->now[node->out] = NIB_NO_ID;
    }
}

static void want_value(lister *l, int value)
{
    if (value >= 0 && l->now[value] == NIB_NO_ID)
        l->wanted[l->graph->values[value].writer] = true;
}

static void want_extra(lister *l, size_t i)
{
    if (l->extra[i] == NIB_NO_ID)
        l->wanted[i] = true;
}

/* Bits of a node's rule for what its gradient has yet to read. */
static int reads_of(const lister *l, size_t i)
{
    const nib_graph_node *node = node_at(l, i);
    const bool is_packed = is_linear(node->op) && l->packed[i] != NIB_NO_ID,
               is_factor = node->op == NIB_OP_SCALE && node->cap == 0,
               is_copy = node->op == NIB_OP_DISPATCH && !node->routing->on_input;
    return is_packed || is_factor || is_copy ? 0 : rule_of(node->op)->reads;
}

/* What a node or its gradient reads besides values of the graph. */
static void want_extras_of(lister *l, size_t i)
{
    if (node_at(l, i)->op == NIB_OP_ATTN)
        want_extra(l, store_of(l, i));
    if (reads_order(node_at(l, i)->op))
        want_extra(l, dispatch_of(l, i));
}

/* Marks the nodes of a layer, from `first` on, that must be recomputed for the gradients of a
 * range. */
static void mark_wanted(lister *l, range nodes, size_t first)
{
    for (size_t i = nodes.first; i < nodes.end; i++) {
        const nib_graph_node *node = node_at(l, i);
        const int reads = reads_of(l, i);
        for (int j = 0; j < NIB_NODE_INPUTS; j++)
            if (reads & FIRST << j)
                want_value(l, node->in[j]);
        if (reads & OWN)
            want_value(l, node->out);
        if (node->op == NIB_OP_ATTN)
            want_extra(l, i);
        want_extras_of(l, i);
    }
    for (size_t i = nodes.end; i-- > first;)
        if (l->wanted[i]) {
            for (int j = 0; j < NIB_NODE_INPUTS; j++)
                want_value(l, node_at(l, i)->in[j]);
            want_extras_of(l, i);
        }
}

/* ---- the backward pass ---- */

static size_t layer_begin(const lister *l, size_t i)
{
    while (i > 0 && node_at(l, i - 1)->layer == node_at(l, i)->layer)
        i--;
    return i;
}

/* The segment that ends with node `last`. */
static range segment_of(const lister *l, size_t last)
{
    const size_t begin = layer_begin(l, last);
    size_t first = last;
    while (first > begin && !rule_of(node_at(l, first - 1)->op)->mixes)
        first--;
    return (range){first, last + 1};
}

/* The node, or the layers with one input that end with it. */
static range group_of(const lister *l, size_t last)
{
    size_t first = last;
    while (first > 0 && is_linear(node_at(l, last)->op) &&
           node_at(l, first - 1)->op == node_at(l, last)->op &&
           node_at(l, first - 1)->in[0] == node_at(l, last)->in[0])
        first--;
    return (range){first, last + 1};
}

static void pack_inputs(lister *l, range nodes)
{
    for (range group; nodes.end > nodes.first; nodes.end = group.first) {
        group = group_of(l, nodes.end - 1);
        for (size_t i = group.first; i < group.end; i++)
            if (is_linear(node_at(l, i)->op))
                pack_input(l, i, add);
    }
}

static void add_gradients(lister *l, range nodes)
{
    for (range group; nodes.end > nodes.first && !l->failed; nodes.end = group.first) {
        group = group_of(l, nodes.end - 1);
        rule_of(node_at(l, group.first)->op)->gradient(l, group);
    }
}

/* Recomputes what the segment before `nodes` needs and NIB_AC_SELECTIVE does not keep, token by
 * token like the gradients of this segment. */
static void recompute_cheap(lister *l, range nodes)
{
    const range before = segment_of(l, nodes.first - 1);
    const size_t first = layer_begin(l, before.first);
    mark_wanted(l, before, first);
    add_range(l, (range){first, before.end}, false, false);
}

/* Recomputes a decoder layer, except what nothing reads any more. */
static void recompute_layer(lister *l, size_t last)
{
    const range layer = {layer_begin(l, last), last + 1};
    mark_wanted(l, layer, layer.first);
    add_range(l, layer, false, true);
    end_segment(l);
}

static void backward(lister *l)
{
    range nodes = {l->graph->node_count, l->graph->node_count};
    while (nodes.first > 0 && !l->failed) {
        const size_t last = nodes.first - 1;
        const bool decodes = node_at(l, last)->layer >= 0,
                   is_last_of_layer = nodes.first == nodes.end ||
                                      node_at(l, last + 1)->layer != node_at(l, last)->layer;
        nodes = segment_of(l, last);
        if (l->checkpointing == NIB_AC_FULL && decodes && is_last_of_layer)
            recompute_layer(l, last);
        if (l->checkpointing == NIB_AC_SELECTIVE && decodes)
            pack_inputs(l, nodes);
        add_gradients(l, nodes);
        if (l->checkpointing == NIB_AC_SELECTIVE && nodes.first > 0)
            recompute_cheap(l, nodes);
        end_segment(l);
    }
}

/* ---- the whole list ---- */

/* [count] of NIB_NO_ID. */
static int *allocate_ids(nib_arena *arena, size_t count)
{
    int *ids = nib__arena_take(arena, count, sizeof *ids);
    for (size_t i = 0; ids != NULL && i < count; i++)
        ids[i] = NIB_NO_ID;
    return ids;
}

static bool allocate_lists(lister *l, bool **crosses, nib_arena *arena)
{
    const nib_graph *g = l->graph;
    l->now = allocate_ids(arena, g->value_count);
    l->sum = allocate_ids(arena, g->value_count);
    l->extra = allocate_ids(arena, g->node_count);
    l->packed = allocate_ids(arena, g->node_count);
    l->wanted = nib__arena_take(arena, g->node_count, sizeof *l->wanted);
    *crosses = nib__arena_take(arena, g->value_count, sizeof **crosses);
    return l->now && l->sum && l->extra && l->packed && l->wanted && *crosses;
}

static void list_all(lister *l, nib_training *out, bool *crosses)
{
    find_crossing(l, crosses);
    add_range(l, (range){0, l->graph->node_count}, true, l->checkpointing == NIB_AC_NONE);
    end_segment(l);
    add_balance(l);
    add_losses(l);
    out->forward_end = l->nodes.count;
    if (l->checkpointing != NIB_AC_NONE)
        forget(l, crosses);
    backward(l);
}

nib_status nib__graph_training(nib_training *out, const nib_graph *graph, nib_ac checkpointing,
                               nib_arena *arena, nib_err *err)
{
    lister l = {.graph = graph, .checkpointing = checkpointing, .allocator = arena->allocator};
    bool *crosses;
    *out = (nib_training){0};
    NIB_TRY(check_rules(graph, err));
    if (!allocate_lists(&l, &crosses, arena))
        return nib__fail_memory(err, graph->node_count * sizeof *out->nodes, "a training step");
    list_all(&l, out, crosses);
    nib__release(l.allocator, l.late.nodes);
    out->count = l.nodes.count;
    out->value_count = l.value_count;
    out->nodes =
        nib__arena_settle(arena, l.allocator, l.nodes.nodes, out->count, sizeof *out->nodes);
    out->values =
        nib__arena_settle(arena, l.allocator, l.values, out->value_count, sizeof *out->values);
    if (l.failed || out->nodes == NULL || out->values == NULL)
        return nib__fail_memory(err, out->count * sizeof *out->nodes, "a training step");
    return NIB_OK;
}
