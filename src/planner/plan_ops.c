/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations without weights: norms, positions, attention, the KV cache. The CPU has a row for
 * every shape, so nothing is noted there. An operation without a row on a device goes to the host,
 * if allowed, with a ledger line of its own: the copies between the two, and their cost per token.
 */
#include "options.h"
#include "variant.h"

#include <math.h>
#include <stdio.h>

static const nib_op of_inference[] = {
    NIB_OP_NORM,      NIB_OP_ROPE,    NIB_OP_ATTN,       NIB_OP_STORE_KV,    NIB_OP_SWIGLU,
    NIB_OP_ADD,       NIB_OP_GATHER,  NIB_OP_SCALE,      NIB_OP_ROUTE,       NIB_OP_SORT,
    NIB_OP_DISPATCH,  NIB_OP_COMBINE, NIB_OP_SHORT_CONV, NIB_OP_DELTA_GATES, NIB_OP_GATED_DELTA,
    NIB_OP_SSM_GATES, NIB_OP_SSM};

/* Operations of a training step, which run on the CPU. */
static const nib_op of_training[] = {NIB_OP_NORM,          NIB_OP_ROPE,
                                     NIB_OP_ATTN,          NIB_OP_STORE_KV,
                                     NIB_OP_SWIGLU,        NIB_OP_ADD,
                                     NIB_OP_XENT,          NIB_OP_NORM_DX,
                                     NIB_OP_NORM_DW,       NIB_OP_ATTN_DX,
                                     NIB_OP_SWIGLU_DX,     NIB_OP_EMBED_DW,
                                     NIB_OP_BIAS_DW,       NIB_OP_SQUARES,
                                     NIB_OP_ADAMW,         NIB_OP_SCALE,
                                     NIB_OP_SCALE_DX,      NIB_OP_SINKS_DW,
                                     NIB_OP_ROUTE,         NIB_OP_SORT,
                                     NIB_OP_DISPATCH,      NIB_OP_COMBINE,
                                     NIB_OP_ROUTE_DX,      NIB_OP_ROUTE_DW,
                                     NIB_OP_COMBINE_DW,    NIB_OP_SHORT_CONV,
                                     NIB_OP_SHORT_CONV_DX, NIB_OP_SHORT_CONV_DW,
                                     NIB_OP_GATHER,        NIB_OP_GATHER_DX,
                                     NIB_OP_DELTA_GATES,   NIB_OP_DELTA_GATES_DX,
                                     NIB_OP_GATED_DELTA,   NIB_OP_GATED_DELTA_DX,
                                     NIB_OP_SSM_GATES,     NIB_OP_SSM_GATES_DX,
                                     NIB_OP_SSM,           NIB_OP_SSM_DX};

_Static_assert(COUNT(of_inference) + 1 <= NIB_OPS_MAX && COUNT(of_training) + 1 <= NIB_OPS_MAX,
               "raise NIB_OPS_MAX");

const char *nib__plan_operation_name(size_t i)
{
    return i < COUNT(of_inference) ? nib__op_names[of_inference[i]] : NULL;
}

/* Whether the model has this operation. Every model has most of them. */
static bool is_used(const nib_assignment *plan, nib_op op)
{
    static const nib_op of_some[][2] = {
        /* an operation, and that of the graph that needs it */
        {NIB_OP_SCALE, NIB_OP_SCALE},
        {NIB_OP_SCALE_DX, NIB_OP_SCALE},
        {NIB_OP_ROUTE, NIB_OP_ROUTE},
        {NIB_OP_ROUTE_DX, NIB_OP_ROUTE},
        {NIB_OP_ROUTE_DW, NIB_OP_ROUTE},
        {NIB_OP_SORT, NIB_OP_ROUTE},
        {NIB_OP_DISPATCH, NIB_OP_DISPATCH},
        {NIB_OP_COMBINE, NIB_OP_COMBINE},
        {NIB_OP_COMBINE_DW, NIB_OP_COMBINE},
        {NIB_OP_SINKS_DW, NIB_OP_ATTN},
        {NIB_OP_SHORT_CONV, NIB_OP_SHORT_CONV},
        {NIB_OP_SHORT_CONV_DX, NIB_OP_SHORT_CONV},
        {NIB_OP_SHORT_CONV_DW, NIB_OP_SHORT_CONV},
        {NIB_OP_GATHER_DX, NIB_OP_GATHER},
        {NIB_OP_DELTA_GATES_DX, NIB_OP_DELTA_GATES},
        {NIB_OP_GATED_DELTA_DX, NIB_OP_GATED_DELTA},
        {NIB_OP_SSM_GATES_DX, NIB_OP_SSM_GATES},
        {NIB_OP_SSM_DX, NIB_OP_SSM},
        {NIB_OP_DELTA_GATES, NIB_OP_DELTA_GATES},
        {NIB_OP_GATED_DELTA, NIB_OP_GATED_DELTA},
        {NIB_OP_SSM_GATES, NIB_OP_SSM_GATES},
        {NIB_OP_SSM, NIB_OP_SSM},
    };
    const nib_graph *g = plan->graph;
    size_t at = 0;
    bool used = false;
    while (at < COUNT(of_some) && of_some[at][0] != op)
        at++;
    for (size_t i = 0; at < COUNT(of_some) && g != NULL && !used && i < g->node_count; i++)
        used = g->nodes[i].op == of_some[at][1] &&
               (op != NIB_OP_SINKS_DW || g->nodes[i].weight != NIB_NO_ID);
    return used || at == COUNT(of_some);
}

/* ---- copies between host and device: a walk over the graph for one pass ---- */

typedef struct copy_walk {
    const nib_assignment *plan;
    double tokens;
    int wanted; /* the head's output: from it on, values have only the last token's row */
    int routed; /* bits: sides that hold the rows of the layer's experts */
    double copies, bytes;
} copy_walk;

enum { ON_HOST, ON_DEVICE };

static int side_of_row(const copy_walk *w, const nib_kernel *row)
{
    const nib_machine *m = w->plan->machine; /* a denied operation counts as on its requested
                                                machine */
    return (row != NULL ? row->device : m->facts.fact[NIB_FACT_DEVICE]) == NIB_DEVICE_CPU
               ? ON_HOST
               : ON_DEVICE;
}

static int side_of_op(const copy_walk *w, nib_op op)
{
    const nib_op_plan *plan = nib__plan_operation(w->plan, op);
    return side_of_row(w, plan != NULL ? plan->row : NULL);
}

static int side_of(const copy_walk *w, const nib_graph_node *node)
{
    if (node->op == NIB_OP_HIDDEN)
        return ON_HOST;
    if (node->op == NIB_OP_LINEAR || node->op == NIB_OP_LINEAR_EXPERTS ||
        node->op == NIB_OP_LINEAR_HEADS || node->op == NIB_OP_EMBED) {
        const size_t site = w->plan->graph->weights[node->weight].index;
        const nib_layer_plan *layer = &w->plan->layers[site];
        return side_of_row(w, layer->use_count > 0 ? layer->uses[0].kernel : NULL);
    }
    /* keys and values are written where attention reads them */
    return side_of_op(w, node->op == NIB_OP_STORE_KV ? NIB_OP_ATTN : node->op);
}

/* Counts a copy unless the side already holds the value. From `wanted` on, values have one row. */
static void read_value(copy_walk *w, int side, int value)
{
    const nib_graph *g = w->plan->graph;
    uint8_t *held = &w->plan->held[value];
    if ((*held & 1 << side) == 0) {
        const double rows = value >= w->wanted ? 1 : w->tokens;
        w->copies++;
        w->bytes += 4 * rows * (double)g->values[value].columns;
    }
    *held = (uint8_t)(*held | 1 << side);
}

/* Counts a copy of the rows of experts, four lists and an end, unless the side holds them. */
static void read_routed(copy_walk *w, int side, const nib_routing *rule)
{
    if ((w->routed & 1 << side) == 0) {
        w->copies++;
        w->bytes += 4 * (4 * w->tokens * (double)rule->top_k + (double)rule->experts + 1);
    }
    w->routed |= 1 << side;
}

/* After a choice of experts, its rows are sorted. Then their readers need them, and the host if it
 * launches one expert at a time. *layers: how many choices the device sorted. */
static void walk_experts(copy_walk *w, const nib_graph_node *node, int side, double *layers)
{
    const nib_graph *g = w->plan->graph;
    const nib_op_plan *sort = nib__plan_operation(w->plan, NIB_OP_SORT);
    const int sorts = side_of_op(w, sort != NULL && sort->row != NULL ? NIB_OP_SORT : NIB_OP_ROUTE);
    switch (node->op) {
    case NIB_OP_ROUTE:
        w->routed = 1 << sorts;
        read_value(w, sorts, node->out);
        *layers += sorts == ON_DEVICE;
        break;
    case NIB_OP_LINEAR_EXPERTS:
        if (!w->plan->layers[g->weights[node->weight].index].grouped)
            read_routed(w, ON_HOST, node->routing);
        read_routed(w, side, node->routing);
        break;
    case NIB_OP_DISPATCH:
    case NIB_OP_COMBINE: read_routed(w, side, node->routing); break;
    default: break;
    }
}

/* Seconds of copies between host and device for m tokens, of which the last has an output. */
static double copy_seconds(copy_walk *w, const nib_assignment *plan, const nib_policy *policy,
                           int64_t m)
{
    const nib_graph *g = plan->graph;
    double sorted = 0;
    *w = (copy_walk){.plan = plan, .tokens = (double)m};
    if (plan->gpu == NULL || g == NULL)
        return 0;
    memset(plan->held, 0, g->value_count);
    w->wanted = (int)g->value_count - 1;
    while (g->nodes[g->values[w->wanted].writer].op == NIB_OP_SCALE)
        w->wanted--;
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        const int side = side_of(w, node);
        const int inputs = node->op == NIB_OP_DISPATCH ? 1 : NIB_NODE_INPUTS; /* not the choice */
        for (int j = 0; j < inputs; j++)
            if (node->in[j] >= 0)
                read_value(w, side, node->in[j]);
        if (node->out >= 0)
            plan->held[node->out] = (uint8_t)(1 << side);
        walk_experts(w, node, side, &sorted);
    }
    if (sorted > 0) /* whether a choice failed, once per pass */
        w->copies++, w->bytes += 4 * sorted;
    if (nib__plan_sampler(plan, policy, NIB_TOP_K, false, NULL) == NULL)
        read_value(w, ON_HOST, (int)g->value_count - 1); /* logits, for drawing on the CPU */
    else
        w->copies++, w->bytes += sizeof(int32_t);
    const nib_machine *gpu = plan->gpu;
    return w->copies * gpu->copy_s +
           (gpu->copy_bytes_per_s > 0 ? w->bytes / gpu->copy_bytes_per_s : 0);
}

double nib__plan_moves_seconds(const nib_assignment *plan, const nib_policy *policy, int64_t m)
{
    copy_walk w;
    return copy_seconds(&w, plan, policy, m);
}

/* ---- an operation that the device has no row for ---- */

void nib__explain_operation(nib_ledger *ledger, nib_ledger_layer *line, const nib_query *query,
                            const nib_policy *policy, const nib_machine *machine)
{
    bool any = false;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->peer != NULL || !nib__kernel_keyed(row, query))
            continue;
        any = true;
        nib__explain_row(ledger, line, row, query, policy, machine->here);
    }
    if (!any)
        nib__ledger_add_reason(ledger, line, "no-row",
                               nib__ledger_text(ledger, "no kernel: the table has no %s on %s",
                                                nib__op_names[query->fact[NIB_FACT_OP]],
                                                machine->name));
}

static const char *find_allowance(const nib_plan_options *options, const char *op)
{
    for (size_t i = 0; i < options->allow_count; i++)
        if (options->allow[i].rung == NIB_RUNG_DEVICE &&
            nib__plan_option_find(&options->allow[i], 1, op) != NULL)
            return options->allow[i].text;
    return NULL;
}

static void write_use(nib_ledger *ledger, nib_ledger_layer *line, const nib_op_plan *plan,
                      double seconds)
{
    line->uses = nib__arena_take(&ledger->arena, 1, sizeof *line->uses);
    if (line->uses == NULL) {
        ledger->failed = true;
        return;
    }
    line->uses[0] = (nib_ledger_use){.phase = nib__phase_names[NIB_PHASE_INFER],
                                     .m_min = 1,
                                     .kernel = plan->row->name,
                                     .device = plan->machine->name,
                                     .predicted_us = seconds * 1e6};
    line->use_count = 1;
}

/* ": 785 tokens/s, and 8330 if opencl did it"; empty if unknown. */
static const char *say_speeds(nib_ledger *ledger, double host_s, double device_s,
                              const char *device)
{
    const double with = 1 / host_s, without = 1 / device_s;
    if (isnan(with) || isnan(without))
        return "";
    return nib__ledger_text(ledger,
                            without < 100 ? ": %.3g tokens/s, and %.3g if %s did it"
                                          : ": %.0f tokens/s, and %.0f if %s did it",
                            with, without, device);
}

/* The price of running `plan` on the host: the additional copies per token. */
static const char *describe_price(nib_assignment *out, const nib_op_plan *plan,
                                  const nib_kernel *row, const nib_policy *policy, double *seconds)
{
    nib_ledger *ledger = &out->ledger;
    nib_op_plan *slot = &out->ops[out->op_count++];
    char time[32], bytes[32];
    copy_walk with, without;
    *slot = (nib_op_plan){plan->op, NULL, plan->machine}; /* as requested */
    const double without_s = copy_seconds(&without, out, policy, 1);
    const double device_s = nib__plan_step_seconds(out, policy, 1, 1, NIB_PREFILL_TOKENS);
    *slot = (nib_op_plan){plan->op, row, plan->machine->host};
    *seconds = copy_seconds(&with, out, policy, 1) - without_s;
    const double host_s = nib__plan_step_seconds(out, policy, 1, 1, NIB_PREFILL_TOKENS);
    out->op_count--;
    nib__format_seconds(time, *seconds);
    return nib__ledger_text(
        ledger, "%.0f more copies of %s per token between %s and %s, %s predicted%s",
        with.copies - without.copies,
        nib__format_bytes(bytes, (uint64_t)(with.bytes - without.bytes)), plan->machine->name,
        plan->machine->host->name, time, say_speeds(ledger, host_s, device_s, plan->machine->name));
}

/* Moves an operation to the host, with a ledger line: why, at what cost, allowed by what. */
static void move_to_host(nib_assignment *out, nib_op_plan *plan, const nib_query *query,
                         const nib_plan_options *options, const nib_policy *policy)
{
    nib_ledger *ledger = &out->ledger;
    const nib_machine *device = plan->machine, *host = device->host;
    const char *name = nib__op_names[plan->op], *allowed = find_allowance(options, name);
    nib_ledger_layer *line = nib__ledger_add_layer(ledger, name);
    const nib_kernel *row = NULL;
    const char *price = "";
    double seconds = 0;
    if (line == NULL)
        return;
    line->role = NIB_LEDGER_OPERATION;
    line->asked = nib__ledger_text(ledger, "f32@%s", device->name);
    nib__explain_operation(ledger, line, query, policy, device);
    if (host != NULL) {
        nib_query host_query;
        nib__plan_op_ask(&host_query, plan->op, policy, host);
        row = nib__plan_op_best(&host_query, host);
    }
    if (row != NULL)
        price = describe_price(out, plan, row, policy, &seconds);
    line->denied = row == NULL || allowed == NULL || policy->strict;
    line->rung = row != NULL && allowed != NULL ? NIB_RUNG_DEVICE : NIB_RUNG_NONE;
    if (row != NULL && line->denied)
        nib__plan_advise_rung(
            ledger, line, policy, NIB_RUNG_DEVICE,
            nib__ledger_text(ledger, "done f32@%s by %s; %s", host->name, row->name, price));
    if (line->denied)
        return;
    line->allowed = nib__ledger_text(ledger, "by --allow %s", allowed);
    line->done = nib__ledger_text(ledger, "f32@%s", host->name);
    nib__ledger_add_reason(ledger, line, "price", price);
    plan->row = row, plan->machine = host;
    write_use(ledger, line, plan, seconds);
}

/* The driver refused the best row, and another row of the device runs: explain it. */
static void explain_other_row(nib_assignment *out, const nib_op_plan *plan, const nib_query *query,
                              const nib_policy *policy)
{
    nib_ledger *ledger = &out->ledger;
    const nib_kernel *refused = nib__driver_refused(plan->row, query, policy);
    nib_ledger_layer *line =
        refused != NULL ? nib__ledger_add_layer(ledger, nib__op_names[plan->op]) : NULL;
    if (line == NULL)
        return;
    line->role = NIB_LEDGER_OPERATION;
    line->asked = nib__ledger_text(ledger, "f32@%s", plan->machine->name);
    line->rung = NIB_RUNG_KERNEL;
    line->denied = policy->strict;
    nib__explain_row(ledger, line, refused, query, policy, plan->machine->here);
    if (line->denied)
        return;
    line->allowed = "by default";
    line->done = line->asked;
    write_use(ledger, line, plan, 0);
}

/* The operation that decides where this one runs: keys are written where attention reads them, and
 * experts' rows are sorted where experts are chosen. NULL: none. */
static const nib_op_plan *leader_of(const nib_assignment *out, nib_op op)
{
    return op == NIB_OP_STORE_KV ? nib__plan_operation(out, NIB_OP_ATTN)
           : op == NIB_OP_SORT   ? nib__plan_operation(out, NIB_OP_ROUTE)
                                 : NULL;
}

/* The machine asked for an operation. */
static const nib_machine *machine_for(const nib_assignment *out, nib_op op)
{
    const nib_op_plan *leader = leader_of(out, op);
    return leader != NULL && leader->row != NULL ? leader->machine : out->machine;
}

/* Whether the operation that this one follows is denied. Allowing that one allows this one, too. */
static bool follows_denied(const nib_assignment *out, nib_op op)
{
    const nib_op_plan *leader = leader_of(out, op);
    return leader != NULL && leader->row == NULL;
}

static bool has_bias(const nib_assignment *plan, const nib_layer *layers, size_t count)
{
    const nib_graph *g = plan->graph;
    for (size_t i = 0; i < count; i++)
        if (layers[i].bias)
            return true;
    for (size_t i = 0; g != NULL && i < g->weight_count; i++)
        if (g->weights[i].kind == NIB_WEIGHT_NORM && g->weights[i].bias)
            return true;
    for (size_t i = 0; g != NULL && i < g->node_count; i++)
        if (g->nodes[i].biased || g->nodes[i].op == NIB_OP_DELTA_GATES ||
            g->nodes[i].op == NIB_OP_SSM_GATES)
            return true;
    return false;
}

/* Gradients that the device computed are added there if it has a row for sums, listed after the
 * CPU's row; else by the CPU. */
static void plan_sums(nib_assignment *out, const nib_policy *policy)
{
    nib_query query;
    if (out->gpu == NULL)
        return;
    nib__plan_op_ask(&query, NIB_OP_ADD, policy, out->gpu);
    const nib_kernel *row = nib__plan_op_best(&query, out->gpu);
    if (row != NULL)
        out->ops[out->op_count++] = (nib_op_plan){NIB_OP_ADD, row, out->gpu};
}

/* The CPU's best row for each operation, or the error with what refuses every row. */
static void plan_training(nib_assignment *out, const nib_plan_options *options,
                          const nib_layer *layers, size_t count, const nib_policy *policy)
{
    const nib_machine *host = nib__plan_host(out);
    for (size_t i = 0; i < COUNT(of_training) && host != NULL; i++) {
        nib_op_plan plan = {.op = of_training[i], .machine = host};
        nib_query query;
        if ((plan.op == NIB_OP_BIAS_DW && !has_bias(out, layers, count)) || !is_used(out, plan.op))
            continue;
        nib__plan_op_ask(&query, plan.op, policy, host);
        plan.row = nib__plan_op_best(&query, host);
        if (plan.row == NULL)
            move_to_host(out, &plan, &query, options, policy);
        out->ops[out->op_count++] = plan;
    }
    plan_sums(out, policy);
    nib__plan_training(out, layers, count, policy);
}

/* Why the layers that read one norm cannot have it fused with quantizing; NULL: they can. */
static const char *why_not_fused(nib_assignment *out, const nib_layer_plan *layers, size_t count)
{
    const nib_op_plan *norm = nib__plan_operation(out, NIB_OP_NORM);
    if (norm->row == NULL || norm->row->device != NIB_DEVICE_CPU)
        return nib__ledger_text(&out->ledger, "the norm runs on %s", norm->machine->name);
    for (size_t i = 0; i < count; i++) {
        const nib_layer_plan *layer = &layers[i];
        const char *name = layer->layer->name;
        if (layer->use_count == 0)
            return nib__ledger_text(&out->ledger, "%s has no allowed kernel", name);
        if (layer->uses[0].kernel->device != NIB_DEVICE_CPU)
            return nib__ledger_text(&out->ledger, "%s reads the norm's output on %s", name,
                                    layer->machine->name);
        if (nib__plan_ordered(layer))
            return nib__ledger_text(
                &out->ledger,
                "%s has its columns in act-order, so it reads the norm's output unquantized", name);
        if (i > 0 && !nib__plan_same_form(&layers[0], layer))
            return nib__ledger_text(&out->ledger, "%s needs the norm's output in another form",
                                    name);
    }
    return NULL;
}

/* For the layers [first, first + count), the only readers of one norm: fuses the norm with
 * quantizing if all need one form and the CPU has a row for it. */
static void plan_fused_norm(nib_assignment *out, const nib_policy *policy, size_t first,
                            size_t count)
{
    nib_layer_plan *layers = &out->layers[first];
    nib_ledger_layer *lines = &out->ledger.layers[first];
    const char *why = why_not_fused(out, layers, count);
    const nib_kernel *row = NULL;
    if (why == NULL)
        row = nib__plan_operand(NIB_OP_NORM_QUANT, &layers[0].done, out->dtype, NULL,
                                layers[0].machine, &policy->without);
    for (int u = 0; row != NULL && u < layers[0].use_count; u++) {
        layers[0].uses[u].normed = row;
        for (size_t i = 0; i < count; i++)
            lines[i].uses[u].quant = row->name;
    }
    for (size_t i = 0; i < count; i++)
        if (lines[i].detailed && layers[i].use_count > 0)
            nib__explain_normed(&out->ledger, &lines[i], &layers[i], policy, row, why);
}

/* The number of linear layers that read the norm at `at`, if they are consecutive and nothing else
 * reads it; else 0. */
static size_t count_readers(const nib_graph *g, size_t at)
{
    const int value = g->nodes[at].out;
    size_t count = 0, other = 0;
    for (size_t i = at + 1; i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        if (node->op == NIB_OP_LINEAR && node->in[0] == value && i == at + 1 + count)
            count++;
        else
            other += node->in[0] == value || node->in[1] == value;
    }
    return other == 0 ? count : 0;
}

static void plan_norms(nib_assignment *out, const nib_policy *policy)
{
    const nib_graph *g = out->graph;
    for (size_t i = 0; g != NULL && i < g->node_count; i++) {
        const bool rows =
            g->nodes[i].op == NIB_OP_NORM && g->nodes[i].heads == 1 && !g->nodes[i].part;
        const size_t count = rows ? count_readers(g, i) : 0;
        if (count != 0)
            plan_fused_norm(out, policy, g->weights[g->nodes[i + 1].weight].index, count);
    }
}

/* Rope and storing keys in one pass if the CPU does both and the fused row is not excluded. */
static void plan_rope_copy(nib_assignment *out, const nib_policy *policy)
{
    static const nib_op parts[] = {NIB_OP_ROPE, NIB_OP_STORE_KV};
    nib_op_plan plan = {.op = NIB_OP_ROPE_COPY, .machine = nib__plan_host(out)};
    nib_query query;
    for (size_t i = 0; i < COUNT(parts); i++) {
        const nib_op_plan *part = nib__plan_operation(out, parts[i]);
        if (part->row == NULL || part->row->device != NIB_DEVICE_CPU)
            return;
    }
    nib__plan_op_ask(&query, plan.op, policy, plan.machine);
    plan.row = nib__plan_op_best(&query, plan.machine);
    if (plan.row != NULL)
        out->ops[out->op_count++] = plan;
}

void nib__plan_operations(nib_assignment *out, const nib_plan_options *options,
                          const nib_layer *layers, size_t count, const nib_policy *policy)
{
    copy_walk w;
    char time[32], bytes[32];
    if (policy->training)
        plan_training(out, options, layers, count, policy);
    if (policy->training)
        return;
    for (size_t i = 0; i < COUNT(of_inference); i++) {
        nib_op_plan plan = {.op = of_inference[i], .machine = machine_for(out, of_inference[i])};
        nib_query query;
        if (!is_used(out, plan.op))
            continue;
        nib__plan_op_ask(&query, plan.op, policy, plan.machine);
        plan.row = nib__plan_op_best(&query, plan.machine);
        if (plan.row == NULL && !follows_denied(out, plan.op))
            move_to_host(out, &plan, &query, options, policy);
        else if (plan.row != NULL)
            explain_other_row(out, &plan, &query, policy);
        out->ops[out->op_count++] = plan;
    }
    plan_rope_copy(out, policy);
    plan_norms(out, policy);
    nib__plan_drawing(out, policy);
    const double seconds = copy_seconds(&w, out, policy, 1);
    if (seconds == 0)
        return;
    nib__ledger_add_note(
        &out->ledger, "moves", "%.0f cop%s of %s per token between %s and its host, %s predicted",
        w.copies, w.copies == 1 ? "y" : "ies", nib__format_bytes(bytes, (uint64_t)w.bytes),
        out->gpu->name, nib__format_seconds(time, seconds));
}
