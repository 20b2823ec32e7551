/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowers a graph to the operations of one forward step.
 */
#include "lower.h"

#include "portable_math.h"

#include <inttypes.h>
#include <math.h>

typedef struct lowering {
    const nib_network *net;
    const nib_graph *graph;
    const nib_assignment *plan;
    nib_arena *arena;
    nib_lowered *out;
    nib_graph_buffers buffers;
    size_t capacity;
    int held[NIB_BUFFERS_MAX]; /* bit per side that holds the buffer's current values */
    int input;                 /* value the last linear layer read; -1: none */
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
    if (scheme->act == NIB_ACT_FLOAT) {
        if (input == NIB_TYPE_BF16)
            out->bf16 = carve(at, &used, tokens * (uint64_t)padded * 2);
        else
            out->f32 = carve(at, &used, tokens * (uint64_t)padded * 4);
        if (scheme->zero == NIB_ZERO_FLOAT)
            out->fsums = carve(at, &used, tokens * groups * 4);
    } else {
        const int64_t block = nib__act_block(scheme->act);
        const bool is_int = nib__code_is_int(nib__acts[scheme->act].code);
        const uint64_t blocks = block > 0 ? (uint64_t)nib__ceil_div(k, block) : 1;
        if (block == 0 && !is_int) /* e4m3 values widened */
            out->bf16 = carve(at, &used, tokens * (uint64_t)padded * 2);
        else
            out->codes = carve(at, &used, tokens * (uint64_t)padded);
        out->scale = carve(at, &used, tokens * blocks * 4);
        if (nib__act_is_int(scheme->act))
            out->zero = carve(at, &used, tokens * 4);
        if (is_int)
            out->sums = carve(at, &used, tokens * groups * 4);
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

/* Whether a product reads f32 rows directly, without a quantizer's output. */
static bool reads_f32_rows(const lowering *l, const nib_layer_plan *uses)
{
    return uses->done.act == NIB_ACT_FLOAT && l->plan->dtype == NIB_TYPE_F32;
}

/* Lists the f32 buffers that an operation reads. direct: products read them, too. INPUT is not one:
 * it is produced where it is read. */
static int list_read_buffers(const nib_node *node, bool direct, int out[3])
{
    out[0] = node->from, out[1] = node->other, out[2] = node->to;
    switch (node->op) {
    case NIB_OP_EMBED: return 0;
    case NIB_OP_LINEAR: return direct;
    case NIB_OP_SWIGLU: return node->of->in[1] >= 0 ? 2 : 1;
    case NIB_OP_STORE_KV: return node->of->in[1] >= 0 ? 2 : 1;
    case NIB_OP_DELTA_GATES:
    case NIB_OP_GATED_DELTA:
    case NIB_OP_SSM:
    case NIB_OP_ADD: return 2;
    case NIB_OP_DISPATCH: /* the sorted rows instead of the choice */
    case NIB_OP_LINEAR_EXPERTS: out[1] = NIB_BUFFER_ROUTED; return 2;
    case NIB_OP_COMBINE: out[2] = NIB_BUFFER_ROUTED; return 3;
    case NIB_OP_ROPE_COPY: return 3;
    default: return 1;
    }
}

void nib__lowered_live(bool live[NIB_BUFFERS_MAX], const nib_lowered *ops, size_t at)
{
    bool written[NIB_BUFFERS_MAX] = {false};
    int read[3];
    memset(live, 0, NIB_BUFFERS_MAX * sizeof *live);
    for (size_t i = at; i < ops->count; i++) {
        const nib_node *node = &ops->nodes[i];
        for (int j = list_read_buffers(node, true, read); j-- > 0;)
            live[read[j]] = live[read[j]] || !written[read[j]];
        written[node->to] = true;
    }
    for (int i = 0; i < NIB_BUFFER_VALUES; i++) /* those do not outlive a layer */
        live[i] = false;
}

static int side_of(const nib_kernel *row)
{
    return row->device == NIB_DEVICE_CPU ? NIB_SIDE_CPU : NIB_SIDE_GPU;
}

/* Makes a side hold a buffer that `node` reads: appends a move unless it does. */
static nib_status bring(lowering *l, const nib_node *node, int buffer, int side)
{
    const nib_node move = {.op = NIB_OP_MOVE,
                           .side = side,
                           .from = buffer,
                           .to = buffer,
                           .of = buffer == NIB_BUFFER_ROUTED ? node->of : NULL};
    if (l->held[buffer] == 0)
        return nib__fail(l->err, NIB_FAILED, "%s would read rows that no operation has written",
                         nib__op_names[node->op]);
    if ((l->held[buffer] & 1 << side) == 0)
        NIB_TRY(append(l, &move));
    l->held[buffer] |= 1 << side;
    return NIB_OK;
}

/* Appends an operation on its row's side, after the moves that bring its inputs to that side. */
static nib_status add_node(lowering *l, nib_node node)
{
    int read[3];
    node.side = side_of(node.row != NULL ? node.row : node.uses->uses[0].kernel);
    l->out->uses_gpu = l->out->uses_gpu || node.side == NIB_SIDE_GPU;
    const bool direct = node.op == NIB_OP_LINEAR && reads_f32_rows(l, node.uses);
    for (int i = list_read_buffers(&node, direct, read); i-- > 0;)
        NIB_TRY(bring(l, &node, read[i], node.side));
    if (node.op == NIB_OP_NORM_QUANT) /* its rows are only written for an observer */
        l->held[node.other] = 0;
    else if (node.op != NIB_OP_STORE_KV && node.op != NIB_OP_QUANT)
        l->held[node.to] = 1 << node.side;
    if (node.op == NIB_OP_ROPE_COPY) /* rotates both in place */
        l->held[node.from] = 1 << node.side;
    return append(l, &node);
}

static nib_status add_op(lowering *l, nib_node node)
{
    const nib_op_plan *plan = nib__plan_operation(l->plan, node.op);
    if (plan == NULL || plan->row == NULL) /* the plan was refused; the caller should have
                                              checked */
        return nib__fail(l->err, NIB_NOT_AS_ASKED, "no row runs the operation %s on %s",
                         nib__op_names[node.op], l->plan->machine->name);
    node.row = plan->row;
    if (node.op == NIB_OP_ATTN)
        l->out->cache_side = side_of(node.row);
    return add_node(l, node);
}

/* Products read only f32 values without sums directly; any other form needs a row that makes it. */
static nib_status check_form(lowering *l, const nib_layer_plan *uses)
{
    const bool direct = reads_f32_rows(l, uses) && uses->done.zero != NIB_ZERO_FLOAT;
    for (int i = 0; i < uses->use_count && !direct; i++)
        if (!uses->uses[i].quant)
            return nib__fail(l->err, NIB_FAILED,
                             "%s: the plan has no row that makes the input of %s",
                             uses->layer->name, uses->uses[i].kernel->name);
    return NIB_OK;
}

/* The column order that the product reads, or NULL. */
static const int32_t *order_of(const lowering *l, const nib_layer_plan *uses, size_t site)
{
    return nib__plan_ordered(uses) ? l->net->sites[site].order : NULL;
}

static bool same_order(const int32_t *a, const int32_t *b, int64_t k)
{
    return a == b || (a != NULL && b != NULL && memcmp(a, b, (size_t)k * sizeof *a) == 0);
}

/* ---- the graph's nodes ---- */

static int buffer_of(const lowering *l, int value)
{
    return value == NIB_NO_ID ? 0
           : l->buffers.of[value] == l->buffers.count - 1
               ? NIB_BUFFER_LOGITS
               : NIB_BUFFER_VALUES + l->buffers.of[value];
}

static nib_node node_of(const lowering *l, const nib_graph_node *from)
{
    return (nib_node){.op = from->op,
                      .from = buffer_of(l, from->in[0]),
                      .other = buffer_of(l, from->in[1]),
                      .to = buffer_of(l, from->out),
                      .layer = from->layer,
                      .of = from,
                      .width = from->heads};
}

static const nib_graph_weight *weight_of(const lowering *l, const nib_graph_node *node)
{
    return &l->graph->weights[node->weight];
}

/* Appends a linear layer, preceded by the gather into act-order and the quantizer unless the
 * previous layer or norm left this form of this value: q, k and v share one, gate and up
 * another. */
static nib_status add_linear(lowering *l, const nib_graph_node *node)
{
    const size_t site = weight_of(l, node)->index;
    const nib_layer_plan *uses = &l->plan->layers[site];
    const int64_t k = uses->layer->k;
    const nib_node *last = &l->out->nodes[l->out->count - 1];
    const bool shares = last->op == NIB_OP_LINEAR && l->input == node->in[0];
    int from = buffer_of(l, node->in[0]);
    uint64_t bytes = 0;
    nib_input form;
    nib__input_place(&form, &uses->done, l->plan->dtype, 1, k, NULL, &bytes);
    if (bytes > l->out->token_bytes[NIB_BUFFER_INPUT])
        l->out->token_bytes[NIB_BUFFER_INPUT] = bytes;
    NIB_TRY(check_form(l, uses));
    const int32_t *order = order_of(l, uses, site);
    const bool same_side = side_of(uses->uses[0].kernel) == last->side;
    const bool ordered =
        shares && same_side && same_order(order, order_of(l, last->uses, last->site), k);
    const bool formed = ordered && nib__plan_same_form(last->uses, uses);
    l->input = node->in[0];
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
        NIB_TRY(add_node(l, (nib_node){.op = NIB_OP_QUANT,
                                       .uses = uses,
                                       .site = site,
                                       .from = from,
                                       .to = NIB_BUFFER_INPUT}));
    return add_node(l, (nib_node){.op = NIB_OP_LINEAR,
                                  .uses = uses,
                                  .site = site,
                                  .from = from,
                                  .to = buffer_of(l, node->out),
                                  .joins = formed});
}

/* The layer that reads the norm right after it, or NULL. */
static const nib_layer_plan *reader_of(const lowering *l, const nib_graph_node *norm)
{
    const nib_graph_node *next = norm + 1;
    return next->op == NIB_OP_LINEAR && next->in[0] == norm->out && !norm->part
               ? &l->plan->layers[weight_of(l, next)->index]
               : NULL;
}

/* Reads the weight and bias of a norm; one without a weight is one whose weight is 1. */
static nib_status read_norm(float **values, const nib_graph_weight **entry, lowering *l,
                            const nib_graph_node *from)
{
    const int64_t width = l->graph->values[from->out].columns / from->heads;
    const nib_graph_weight *norm = from->weight != NIB_NO_ID ? weight_of(l, from) : NULL;
    const int64_t count = norm != NULL ? 2 * norm->n : width;
    nib_graph_weight *ones = nib__arena_take(l->arena, 1, sizeof *ones);
    *values = nib__arena_take(l->arena, (uint64_t)count, sizeof **values);
    if (*values == NULL || ones == NULL)
        return nib__fail_memory(l->err, (uint64_t)count * sizeof **values, "a norm weight");
    *entry = norm;
    if (norm == NULL) {
        *ones = (nib_graph_weight){.kind = NIB_WEIGHT_NORM, .n = width, .k = 1, .heads = 1};
        *entry = ones;
        for (int64_t i = 0; i < width; i++)
            (*values)[i] = 1.0f;
        return NIB_OK;
    }
    NIB_TRY(nib__network_norm(*values, l->net, norm->index, NIB_NORM_WEIGHT, l->err));
    return norm->bias
               ? nib__network_norm(*values + norm->n, l->net, norm->index, NIB_NORM_BIAS, l->err)
               : NIB_OK;
}

/* Appends a norm. It writes f32 rows or, if the plan has a fused row, the input form of the layers
 * that read it. */
static nib_status add_norm(lowering *l, const nib_graph_node *from)
{
    const nib_graph_weight *norm = NULL;
    const nib_layer_plan *uses = reader_of(l, from);
    float *values;
    nib_node node = node_of(l, from);
    NIB_TRY(read_norm(&values, &norm, l, from));
    node.weight = values, node.entry = norm, node.width = norm->n / norm->heads,
    node.rows_per_token = from->heads;
    node.wanted_only = uses != NULL && uses->layer->role == NIB_ROLE_HEAD;
    if (uses == NULL || uses->uses[0].normed == NULL)
        return add_op(l, node);
    node.op = NIB_OP_NORM_QUANT;
    node.other = node.to, node.to = NIB_BUFFER_INPUT;
    node.uses = uses, node.site = weight_of(l, from + 1)->index;
    return add_node(l, node);
}

/* Fills in the plans of the weights of experts or heads, and the room for the input forms of a
 * token's `rows` rows. Each weight has the rows and the input form of its own plan, so the runner
 * quantizes its rows when it knows them. */
static nib_status list_weights(lowering *l, nib_node *node, const char *what, int64_t count,
                               int64_t rows)
{
    const size_t site = weight_of(l, node->of)->index;
    const nib_layer_plan **each = nib__arena_take(l->arena, (uint64_t)count, sizeof *each);
    if (each == NULL)
        return nib__fail_memory(l->err, (uint64_t)count * sizeof *each, "the list of weights");
    for (int64_t e = 0; e < count; e++) {
        const nib_layer_plan *uses = &l->plan->layers[site + (size_t)(e * node->of->weight_step)];
        uint64_t bytes = 0;
        nib_input form;
        each[e] = uses;
        if (side_of(uses->uses[0].kernel) != side_of(each[0]->uses[0].kernel) ||
            (nib__plan_ordered(uses) && side_of(uses->uses[0].kernel) == NIB_SIDE_GPU))
            return nib__fail(l->err, NIB_UNSUPPORTED,
                             "%s: the %s of a layer run on one device, and on a GPU only "
                             "without act-order; give --place 'PATTERN=cpu' for all of them",
                             uses->layer->name, what);
        NIB_TRY(check_form(l, uses));
        nib__input_place(&form, &uses->done, l->plan->dtype, 1, uses->layer->k, NULL, &bytes);
        bytes *= (uint64_t)rows;
        if (bytes > l->out->token_bytes[NIB_BUFFER_INPUT])
            l->out->token_bytes[NIB_BUFFER_INPUT] = bytes;
    }
    node->site = site, node->site_step = node->of->weight_step;
    node->weights = each, node->weight_count = count, node->uses = each[0];
    return NIB_OK;
}

/* Appends the product of each row with the weight of its expert. */
static nib_status add_linear_experts(lowering *l, const nib_graph_node *from)
{
    nib_node node = node_of(l, from);
    const nib_node *last = &l->out->nodes[l->out->count - 1];
    NIB_TRY(list_weights(l, &node, "experts", from->routing->experts, from->routing->top_k));
    node.joins = last->op == node.op && last->from == node.from;
    for (int64_t e = 0; e < node.weight_count && node.joins; e++) {
        const size_t own = node.site + (size_t)(e * node.site_step),
                     other = last->site + (size_t)(e * last->site_step);
        node.joins = nib__plan_same_form(last->weights[e], node.weights[e]) &&
                     last->weights[e]->grouped == node.weights[e]->grouped &&
                     same_order(order_of(l, last->weights[e], other),
                                order_of(l, node.weights[e], own), node.weights[e]->layer->k);
    }
    if (!node.uses->grouped) /* each expert's rows are counted on the host */
        NIB_TRY(bring(l, &node, NIB_BUFFER_ROUTED, NIB_SIDE_CPU));
    return add_node(l, node);
}

/* Appends the copy of the channels of each head that its weight does not read, behind those that
 * the weight makes. */
static nib_status add_rest(lowering *l, const nib_node *heads)
{
    const nib_graph_node *from = heads->of;
    const nib_graph_weight *w = weight_of(l, from);
    const int64_t width = l->graph->values[from->in[0]].columns / from->heads - w->k;
    nib_node node = {.op = NIB_OP_GATHER,
                     .site = heads->site,
                     .from = heads->from,
                     .to = heads->to,
                     .width = width,
                     .rows_per_token = from->heads,
                     .from_column = w->k,
                     .to_column = w->n};
    int32_t *order = nib__arena_take(l->arena, (uint64_t)nib__max(width, 1), sizeof *order);
    if (order == NULL)
        return nib__fail_memory(l->err, (uint64_t)width * sizeof *order, "an order of channels");
    if (width == 0)
        return NIB_OK;
    for (int64_t i = 0; i < width; i++)
        order[i] = (int32_t)i;
    node.order = order;
    NIB_TRY(add_op(l, node));
    if (l->out->nodes[l->out->count - 1].side == side_of(heads->uses->uses[0].kernel))
        return NIB_OK;
    return nib__fail(l->err, NIB_UNSUPPORTED,
                     "%s: runs on another device than the operation %s, which moves the other "
                     "channels of its head; give --place 'PATTERN=DEVICE' for one of them",
                     heads->uses->layer->name, nib__op_names[NIB_OP_GATHER]);
}

/* Appends the product of each head of a token with the weight of the head. */
static nib_status add_linear_heads(lowering *l, const nib_graph_node *from)
{
    nib_node node = node_of(l, from);
    NIB_TRY(list_weights(l, &node, "heads", from->heads, from->heads));
    NIB_TRY(add_rest(l, &node));
    return add_node(l, node);
}

static nib_status add_embed(lowering *l, const nib_graph_node *from)
{
    nib_node node = node_of(l, from);
    node.site = weight_of(l, from)->index;
    node.row = l->plan->layers[node.site].uses[0].kernel;
    return add_node(l, node);
}

/* Whether these nodes rotate queries, rotate keys and store keys and values, and the plan has one
 * row for all three. */
static bool is_rope_copy(const lowering *l, const nib_graph_node *node)
{
    return nib__plan_operation(l->plan, NIB_OP_ROPE_COPY) != NULL && node[1].op == NIB_OP_ROPE &&
           node[0].table == node[1].table && node[2].op == NIB_OP_STORE_KV &&
           node[2].in[0] == node[1].out;
}

static nib_status add_rope_copy(lowering *l, const nib_graph_node *queries)
{
    nib_node node = node_of(l, &queries[2]);
    node.op = NIB_OP_ROPE_COPY, node.of = queries;
    node.to = buffer_of(l, queries->out);
    return add_op(l, node);
}

/* Reads a vector that must be finite. */
static nib_status read_vector(float **out, lowering *l, const nib_graph_weight *vector)
{
    float *values = nib__arena_take(l->arena, (uint64_t)vector->n, sizeof *values);
    if (values == NULL)
        return nib__fail_memory(l->err, (uint64_t)vector->n * sizeof *values, vector->name);
    NIB_TRY(nib__network_norm(values, l->net, vector->index, NIB_NORM_WEIGHT, l->err));
    for (int64_t i = 0; i < vector->n; i++)
        if (!isfinite(values[i]))
            return nib__fail(l->err, NIB_BAD_INPUT, "%s: value %" PRId64 " is not a finite number",
                             vector->name, i);
    *out = values;
    return NIB_OK;
}

/* An operation with a vector of its own: of a router, the sinks of heads, or a factor. */
static nib_status add_with_vector(lowering *l, const nib_graph_node *from)
{
    nib_node node = node_of(l, from);
    float *values;
    if (from->op == NIB_OP_SCALE)
        node.width = l->graph->values[from->out].columns;
    if (from->weight < 0)
        return add_op(l, node);
    NIB_TRY(read_vector(&values, l, weight_of(l, from)));
    node.weight = values;
    return add_op(l, node);
}

/* A short convolution. Its weight is stored by channel, and read by tap. */
static nib_status add_short_conv(lowering *l, const nib_graph_node *from)
{
    nib_node node = node_of(l, from);
    const nib_graph_weight *w = weight_of(l, from);
    const int64_t channels = w->n / w->taps, count = w->n + (from->biased ? channels : 0);
    float *stored, *values = nib__arena_take(l->arena, (uint64_t)count, sizeof *values);
    if (values == NULL)
        return nib__fail_memory(l->err, (uint64_t)count * sizeof *values, w->name);
    if (from->biased) {
        NIB_TRY(read_vector(&stored, l, w + 1));
        memcpy(values + w->n, stored, (size_t)channels * sizeof *values);
    }
    NIB_TRY(read_vector(&stored, l, w));
    for (int64_t c = 0; c < channels; c++)
        for (int64_t tap = 0; tap < w->taps; tap++)
            values[tap * channels + c] = stored[c * w->taps + tap];
    node.weight = values, node.width = channels;
    return add_op(l, node);
}

/* The gates of a recurrence, with A_log and dt_bias. */
static nib_status add_gates(lowering *l, const nib_graph_node *from)
{
    nib_node node = node_of(l, from);
    const nib_graph_weight *a_log = weight_of(l, from);
    const bool negated = from->op == NIB_OP_SSM_GATES && from->rates;
    float *rates, *biases,
        *values = nib__arena_take(l->arena, (uint64_t)(2 * a_log->n), sizeof *values);
    if (values == NULL)
        return nib__fail_memory(l->err, (uint64_t)(2 * a_log->n) * sizeof *values, a_log->name);
    NIB_TRY(read_vector(&rates, l, a_log));
    NIB_TRY(read_vector(&biases, l, a_log + 1));
    for (int64_t i = 0; i < a_log->n; i++)
        values[i] = a_log->exponential ? (float)nib__exp((double)rates[i])
                    : negated          ? -rates[i]
                                       : rates[i];
    memcpy(values + a_log->n, biases, (size_t)a_log->n * sizeof *values);
    node.weight = values, node.width = a_log->n;
    return add_op(l, node);
}

/* Columns and hidden states side by side, on the CPU, where the caller has the hidden states. */
static nib_status add_hidden(lowering *l, const nib_graph_node *from)
{
    nib_node node = node_of(l, from);
    node.side = NIB_SIDE_CPU, node.width = l->graph->values[from->in[0]].columns;
    NIB_TRY(bring(l, &node, node.from, node.side));
    l->held[node.to] = 1 << node.side;
    return append(l, &node);
}

/* Columns of the output of a linear layer. */
static nib_status add_gather(lowering *l, const nib_graph_node *from)
{
    nib_node node = node_of(l, from);
    const nib_graph_node *writer = &l->graph->nodes[l->graph->values[from->in[0]].writer];
    node.site = weight_of(l, writer)->index;
    node.order = from->order, node.width = l->graph->values[from->out].columns;
    return add_op(l, node);
}

/* The choice of experts, then their rows. */
static nib_status add_route(lowering *l, const nib_graph_node *from)
{
    NIB_TRY(add_with_vector(l, from));
    return add_op(l, (nib_node){.op = NIB_OP_SORT,
                                .from = buffer_of(l, from->out),
                                .to = NIB_BUFFER_ROUTED,
                                .layer = from->layer,
                                .of = from});
}

static nib_status add_elementwise(lowering *l, const nib_graph_node *from)
{
    nib_node node = node_of(l, from);
    node.width = l->graph->values[from->out].columns;
    if (node.op == NIB_OP_ADD && node.to == node.from) /* rows add `from` to `to` */
        node.from = node.other, node.other = node.to;
    return add_op(l, node);
}

/* Lowers one node, or several that one row covers; *count: how many. */
static nib_status lower_node(lowering *l, const nib_graph_node *node, size_t *count)
{
    *count = 1;
    switch (node->op) {
    case NIB_OP_EMBED: return add_embed(l, node);
    case NIB_OP_LINEAR: return add_linear(l, node);
    case NIB_OP_LINEAR_EXPERTS: return add_linear_experts(l, node);
    case NIB_OP_LINEAR_HEADS: return add_linear_heads(l, node);
    case NIB_OP_NORM: return add_norm(l, node);
    case NIB_OP_ATTN:
    case NIB_OP_SSM:
    case NIB_OP_SCALE: return add_with_vector(l, node);
    case NIB_OP_ROUTE: return add_route(l, node);
    case NIB_OP_SHORT_CONV: return add_short_conv(l, node);
    case NIB_OP_DELTA_GATES:
    case NIB_OP_SSM_GATES: return add_gates(l, node);
    case NIB_OP_GATHER: return add_gather(l, node);
    case NIB_OP_HIDDEN: return add_hidden(l, node);
    case NIB_OP_SWIGLU:
    case NIB_OP_ADD: return add_elementwise(l, node);
    case NIB_OP_ROPE:
        if (!is_rope_copy(l, node))
            break;
        *count = 3;
        return add_rope_copy(l, node);
    default: break;
    }
    return add_op(l, node_of(l, node));
}

/* ---- the whole graph ---- */

nib_status nib__lower_sizes(nib_lowered *out, nib_graph_buffers *buffers, const nib_network *net,
                            nib_arena *arena, nib_err *err)
{
    const nib_graph *g = &net->graph;
    int64_t widest = 0,
            routed = 0; /* rows of experts: five lists, one with an end (nib_expert_rows) */
    NIB_TRY(nib__graph_buffers(buffers, g, arena, err));
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == NIB_OP_ROUTE)
            routed =
                nib__max(routed, g->nodes[i].routing->experts + 1 + 4 * g->nodes[i].routing->top_k);
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == NIB_OP_LINEAR || g->nodes[i].op == NIB_OP_LINEAR_EXPERTS ||
            g->nodes[i].op == NIB_OP_LINEAR_HEADS)
            widest =
                nib__max(widest, g->weights[g->nodes[i].weight].k * nib__max(g->nodes[i].heads, 1));
    out->buffer_count = NIB_BUFFER_VALUES + buffers->count - 1; /* without the result */
    out->ld[NIB_BUFFER_GATHERED] = widest;
    out->ld[NIB_BUFFER_ROUTED] = routed;
    out->ld[NIB_BUFFER_LOGITS] = nib__network_head(net)->n;
    for (int i = 0; i < buffers->count - 1; i++)
        out->ld[NIB_BUFFER_VALUES + i] = buffers->columns[i];
    for (int i = 0; i < out->buffer_count; i++)
        out->token_bytes[i] = (uint64_t)out->ld[i] * sizeof(float);
    return NIB_OK;
}

nib_status nib__lower(nib_lowered *out, const nib_network *net, const nib_assignment *plan,
                      nib_arena *arena, nib_err *err)
{
    lowering l = {.net = net,
                  .graph = &net->graph,
                  .plan = plan,
                  .arena = arena,
                  .out = out,
                  .input = NIB_NO_ID,
                  .err = err};
    enum { NODES_OF_ONE = 5 }; /* a gather, a quantizer, and a move before each of the three */
    l.capacity = net->graph.node_count * NODES_OF_ONE;
    *out = (nib_lowered){.nodes = nib__arena_take(arena, l.capacity, sizeof *out->nodes)};
    if (!out->nodes)
        return nib__fail_memory(err, l.capacity * sizeof *out->nodes, "the list of operations");
    NIB_TRY(nib__lower_sizes(out, &l.buffers, net, arena, err));
    for (size_t i = 0, count; i < net->graph.node_count; i += count)
        NIB_TRY(lower_node(&l, &net->graph.nodes[i], &count));
    return NIB_OK;
}
