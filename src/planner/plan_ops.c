/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations without weights: norms, positions, attention, the cache. On the CPU each has a
 * row for every shape, and nothing is said. On another device one that lacks its row goes to the
 * host, if that is allowed, with a line of its own in the ledger: what crosses between the two, and
 * what that costs per token.
 */
#include "options.h"
#include "variant.h"

#include <math.h>
#include <stdio.h>

static const nib_op operations[] = {NIB_OP_NORM,   NIB_OP_ROPE, NIB_OP_ATTN,   NIB_OP_STORE_KV,
                                    NIB_OP_SWIGLU, NIB_OP_ADD,  NIB_OP_GATHER, NIB_OP_SCALE};

/* Those of a training step, which are the CPU's. */
static const nib_op of_training[] = {
    NIB_OP_NORM,      NIB_OP_ROPE,     NIB_OP_ATTN,    NIB_OP_STORE_KV, NIB_OP_SWIGLU,
    NIB_OP_ADD,       NIB_OP_XENT,     NIB_OP_NORM_DX, NIB_OP_NORM_DW,  NIB_OP_ATTN_DX,
    NIB_OP_SWIGLU_DX, NIB_OP_EMBED_DW, NIB_OP_BIAS_DW, NIB_OP_SQUARES,  NIB_OP_ADAMW,
    NIB_OP_SCALE,     NIB_OP_SCALE_DX};

_Static_assert(COUNT(operations) + 1 <= NIB_OPS_MAX && COUNT(of_training) + 1 <= NIB_OPS_MAX,
               "raise NIB_OPS_MAX");

const char *nib__plan_operation_name(size_t i)
{
    return i < COUNT(operations) ? nib__op_names[operations[i]] : NULL;
}

/* Does the model do it? Most operations are every model's. */
static bool is_used(const nib_assignment *plan, nib_op op)
{
    const nib_graph *g = plan->graph;
    bool used = op != NIB_OP_SCALE && op != NIB_OP_SCALE_DX;
    for (size_t i = 0; g != NULL && !used && i < g->node_count; i++)
        used = g->nodes[i].op == NIB_OP_SCALE;
    return used;
}

/* ---- what crosses: a walk through the graph for one pass ---- */

typedef struct walk {
    const nib_assignment *plan;
    double tokens;
    int wanted; /* the head's value: from it on only the last token's rows are wanted */
    double copies, bytes;
} walk;

enum { HERE, THERE };

static int side_of_row(const walk *w, const nib_kernel *row)
{
    const nib_machine *m = w->plan->machine; /* where what is denied was asked */
    return (row != NULL ? row->device : m->facts.fact[NIB_FACT_DEVICE]) == NIB_DEVICE_CPU ? HERE
                                                                                          : THERE;
}

static int side_of(const walk *w, const nib_graph_node *node)
{
    if (node->op == NIB_OP_LINEAR || node->op == NIB_OP_EMBED) {
        const size_t site = w->plan->graph->weights[node->weight].index;
        const nib_layer_plan *layer = &w->plan->layers[site];
        return side_of_row(w, layer->use_count > 0 ? layer->uses[0].kernel : NULL);
    }
    /* keys and values are written where attention reads them */
    const nib_op op = node->op == NIB_OP_STORE_KV ? NIB_OP_ATTN : node->op;
    const nib_op_plan *plan = nib__plan_operation(w->plan, op);
    return side_of_row(w, plan != NULL ? plan->row : NULL);
}

/* The result is of the last token alone. */
static void reads(walk *w, int side, int value)
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

/* Seconds that copies between the devices take for m tokens, of which the last has an output. */
static double crossing_seconds(walk *w, const nib_assignment *plan, const nib_policy *policy,
                               int64_t m)
{
    const nib_graph *g = plan->graph;
    *w = (walk){.plan = plan, .tokens = (double)m};
    if (plan->gpu == NULL || g == NULL)
        return 0;
    memset(plan->held, 0, g->value_count);
    w->wanted = (int)g->value_count - 1;
    while (g->nodes[g->values[w->wanted].writer].op == NIB_OP_SCALE)
        w->wanted--;
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        const int side = side_of(w, node);
        for (int j = 0; j < NIB_NODE_INPUTS; j++)
            if (node->in[j] >= 0)
                reads(w, side, node->in[j]);
        if (node->out >= 0)
            plan->held[node->out] = (uint8_t)(1 << side);
    }
    if (nib__plan_sampler(plan, policy, NIB_TOP_K, false, NULL) == NULL)
        reads(w, HERE, (int)g->value_count - 1); /* logits, to draw from */
    else
        w->copies++, w->bytes += sizeof(int32_t);
    const nib_machine *gpu = plan->gpu;
    return w->copies * gpu->copy_s +
           (gpu->copy_bytes_per_s > 0 ? w->bytes / gpu->copy_bytes_per_s : 0);
}

double nib__plan_moves_seconds(const nib_assignment *plan, const nib_policy *policy, int64_t m)
{
    walk w;
    return crossing_seconds(&w, plan, policy, m);
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

static const char *allowance(const nib_plan_options *options, const char *op)
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

/* ": 785 tokens/s, and 8330 if opencl did it"; empty where that is not known. */
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

/* What it costs that `plan` is done by the host: the copies of a token with it and without. */
static const char *say_price(nib_assignment *out, const nib_op_plan *plan, const nib_kernel *row,
                             const nib_policy *policy, double *seconds)
{
    nib_ledger *ledger = &out->ledger;
    nib_op_plan *slot = &out->ops[out->op_count++];
    char time[32], bytes[32];
    walk with, without;
    *slot = (nib_op_plan){plan->op, NULL, plan->machine}; /* as asked */
    const double without_s = crossing_seconds(&without, out, policy, 1);
    const double device_s = nib__plan_step_seconds(out, policy, 1, 1, NIB_PREFILL_TOKENS);
    *slot = (nib_op_plan){plan->op, row, plan->machine->host};
    *seconds = crossing_seconds(&with, out, policy, 1) - without_s;
    const double host_s = nib__plan_step_seconds(out, policy, 1, 1, NIB_PREFILL_TOKENS);
    out->op_count--;
    nib__say_seconds(time, *seconds);
    return nib__ledger_text(
        ledger, "%.0f more copies of %s per token between %s and %s, %s predicted%s",
        with.copies - without.copies, nib__say_bytes(bytes, (uint64_t)(with.bytes - without.bytes)),
        plan->machine->name, plan->machine->host->name, time,
        say_speeds(ledger, host_s, device_s, plan->machine->name));
}

/* The host does it: a line that says why, what it costs and what allows it. */
static void go_to_host(nib_assignment *out, nib_op_plan *plan, const nib_query *query,
                       const nib_plan_options *options, const nib_policy *policy)
{
    nib_ledger *ledger = &out->ledger;
    const nib_machine *device = plan->machine, *host = device->host;
    const char *name = nib__op_names[plan->op], *allowed = allowance(options, name);
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
        price = say_price(out, plan, row, policy, &seconds);
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

/* The driver refused the row that would have done it, and another of the device does. */
static void say_other_row(nib_assignment *out, const nib_op_plan *plan, const nib_query *query,
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

/* Keys are written where attention reads them. */
static const nib_machine *home_of(const nib_assignment *out, nib_op op)
{
    const nib_op_plan *attention =
        op == NIB_OP_STORE_KV ? nib__plan_operation(out, NIB_OP_ATTN) : NULL;
    return attention != NULL && attention->row != NULL ? attention->machine : out->machine;
}

/* Is it keys that are written where attention would read them, and is denied? What allows attention
 * takes them along. */
static bool follows_denied(const nib_assignment *out, nib_op op)
{
    return op == NIB_OP_STORE_KV && nib__plan_operation(out, NIB_OP_ATTN)->row == NULL;
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
    return false;
}

/* Gradients that the device made are added there where it has a row for that, which comes after the
 * CPU's in the list; else by the CPU. */
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

/* The best row of the CPU for each, or the error with what refuses every row. */
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
            go_to_host(out, &plan, &query, options, policy);
        out->ops[out->op_count++] = plan;
    }
    plan_sums(out, policy);
    nib__plan_training(out, layers, count, policy);
}

/* What keeps layers that read one norm from having their form made with it; NULL: nothing. */
static const char *needs_rows(nib_assignment *out, const nib_layer_plan *layers, size_t count)
{
    const nib_op_plan *norm = nib__plan_operation(out, NIB_OP_NORM);
    if (norm->row == NULL || norm->row->device != NIB_DEVICE_CPU)
        return nib__ledger_text(&out->ledger, "the norm is done on %s", norm->machine->name);
    for (size_t i = 0; i < count; i++) {
        const nib_layer_plan *layer = &layers[i];
        const char *name = layer->layer->name;
        if (layer->use_count == 0)
            return nib__ledger_text(&out->ledger, "%s has no allowed way", name);
        if (layer->uses[0].kernel->device != NIB_DEVICE_CPU)
            return nib__ledger_text(&out->ledger, "%s reads the norm's rows on %s", name,
                                    layer->machine->name);
        if (nib__plan_ordered(layer))
            return nib__ledger_text(
                &out->ledger, "%s has its columns in act-order, so that it reads the norm's rows",
                name);
        if (i > 0 && !nib__plan_same_form(&layers[0], layer))
            return nib__ledger_text(&out->ledger, "%s takes another form of the norm's rows", name);
    }
    return NULL;
}

/* Layers first.. that read one norm, and nothing else does: if all take its rows in one form, and
 * a row of the CPU makes that straight from the norm. */
static void plan_normed(nib_assignment *out, const nib_policy *policy, size_t first, size_t count)
{
    nib_layer_plan *layers = &out->layers[first];
    nib_ledger_layer *lines = &out->ledger.layers[first];
    const char *why = needs_rows(out, layers, count);
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

/* How many linear layers read the norm at `at`, if nothing else does and they follow each other;
 * else 0. */
static size_t readers_of(const nib_graph *g, size_t at)
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
        const bool rows = g->nodes[i].op == NIB_OP_NORM && g->nodes[i].heads == 1;
        const size_t count = rows ? readers_of(g, i) : 0;
        if (count != 0)
            plan_normed(out, policy, g->weights[g->nodes[i + 1].weight].index, count);
    }
}

/* Both in one pass where the CPU does them, if the row for that is not left out. */
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
    walk w;
    char time[32], bytes[32];
    if (policy->training)
        plan_training(out, options, layers, count, policy);
    if (policy->training)
        return;
    for (size_t i = 0; i < COUNT(operations); i++) {
        nib_op_plan plan = {.op = operations[i], .machine = home_of(out, operations[i])};
        nib_query query;
        if (!is_used(out, plan.op))
            continue;
        nib__plan_op_ask(&query, plan.op, policy, plan.machine);
        plan.row = nib__plan_op_best(&query, plan.machine);
        if (plan.row == NULL && !follows_denied(out, plan.op))
            go_to_host(out, &plan, &query, options, policy);
        else if (plan.row != NULL)
            say_other_row(out, &plan, &query, policy);
        out->ops[out->op_count++] = plan;
    }
    plan_rope_copy(out, policy);
    plan_norms(out, policy);
    nib__plan_drawing(out, policy);
    const double seconds = crossing_seconds(&w, out, policy, 1);
    if (seconds == 0)
        return;
    nib__ledger_add_note(
        &out->ledger, "moves", "%.0f cop%s of %s per token between %s and its host, %s predicted",
        w.copies, w.copies == 1 ? "y" : "ies", nib__say_bytes(bytes, (uint64_t)w.bytes),
        out->gpu->name, nib__say_seconds(time, seconds));
}
