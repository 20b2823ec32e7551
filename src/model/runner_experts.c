/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture's operations in a step: which rows each expert gets, and the products of each expert
 * with its own rows. An expert's product is that of a linear layer with as many tokens as chose the
 * expert, so its bits do not depend on who else is in the step.
 */
#include "runner_parts.h"

#include <inttypes.h>

/* Where the rows of each expert are, and room for the products of a step. */
struct nib_routed {
    int32_t *token; /* [NIB_CHUNK * top_k] the token of each row; rows are sorted by expert */
    int32_t *row;   /* [NIB_CHUNK][top_k] the rows of each token, experts ascending */
    float *weight;  /* [NIB_CHUNK * top_k] of each row */
    int64_t *first; /* [experts + 1] first row of each expert */
    nib_part *parts;
    int64_t *index;
    union {
        nib_linear *linear;
        nib_quant *quant;
        nib_gather *gather;
    } args; /* [2 * experts] */
};

nib_status nib__experts_open(nib_runner *r, nib_err *err)
{
    const nib_graph *g = &r->net->graph;
    uint64_t experts = 0, rows = 0;
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == NIB_OP_ROUTE) {
            const nib_routing *rule = g->nodes[i].routing;
            experts = (uint64_t)nib__max((int64_t)experts, rule->experts);
            rows = (uint64_t)nib__max((int64_t)rows, rule->top_k * NIB_CHUNK);
        }
    if (experts == 0)
        return NIB_OK;
    const size_t size =
        sizeof(nib_linear) > sizeof(nib_quant) ? sizeof(nib_linear) : sizeof(nib_quant);
    nib_routed *s = nib__arena_take(&r->arena, 1, sizeof *s);
    void *const args = nib__arena_take(&r->arena, 2 * experts, size);
    if (s == NULL || args == NULL)
        return nib__fail_memory(err, 2 * experts * size, "the experts of a step");
    *s = (nib_routed){.token = nib__arena_take(&r->arena, rows, sizeof *s->token),
                      .row = nib__arena_take(&r->arena, rows, sizeof *s->row),
                      .weight = nib__arena_take(&r->arena, rows, sizeof *s->weight),
                      .first = nib__arena_take(&r->arena, experts + 1, sizeof *s->first),
                      .parts = nib__arena_take(&r->arena, 2 * experts, sizeof *s->parts),
                      .index = nib__arena_take(&r->arena, 2 * experts + 1, sizeof *s->index),
                      .args.linear = args};
    if (s->token == NULL || s->row == NULL || s->weight == NULL || s->first == NULL ||
        s->parts == NULL || s->index == NULL)
        return nib__fail_memory(err, rows * sizeof *s->token, "the experts of a step");
    r->routed = s;
    return NIB_OK;
}

/* ---- which rows an expert gets ---- */

static nib_status fail_not_finite(const nib_runner *r, const nib_node *node, int64_t token,
                                  int64_t expert, nib_err *err)
{
    return nib__fail(err, NIB_BAD_INPUT,
                     "layer %" PRId64 ": the router's logit of expert %" PRId64
                     " is not a finite number at position %d; are the weights damaged?",
                     node->layer, expert, r->sides[NIB_SIDE_CPU].positions[token]);
}

/* Sorts the rows of m tokens by expert; within an expert by token. */
static nib_status sort_rows(nib_runner *r, const nib_node *node, const float *routing, int64_t m,
                            nib_err *err)
{
    const nib_routing *rule = node->of->routing;
    const int64_t experts = rule->experts, top_k = rule->top_k;
    nib_routed *s = r->routed;
    memset(s->first, 0, (size_t)(experts + 1) * sizeof *s->first);
    for (int64_t i = 0; i < m; i++) {
        const float *chosen = routing + i * 2 * top_k;
        if (chosen[0] < 0.0f)
            return fail_not_finite(r, node, i, -1 - (int64_t)chosen[0], err);
        for (int64_t j = 0; j < top_k; j++)
            s->first[(int64_t)chosen[j] + 1]++;
    }
    for (int64_t e = 0; e < experts; e++)
        s->first[e + 1] += s->first[e];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < top_k; j++) {
            const float *chosen = routing + i * 2 * top_k;
            const int64_t row = s->first[(int64_t)chosen[j]]++; /* shifted back below */
            s->token[row] = (int32_t)i;
            s->weight[row] = chosen[top_k + j];
            s->row[i * top_k + j] = (int32_t)row;
        }
    memmove(s->first + 1, s->first, (size_t)experts * sizeof *s->first);
    s->first[0] = 0;
    return NIB_OK;
}

nib_status nib__run_route(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_route_tokens args = {.rule = node->of->routing,
                                   .logits = nib__node_values(r, node, node->from),
                                   .bias = node->of->routing->weight_scales ? NULL : node->weight,
                                   .weight_scales =
                                       node->of->routing->weight_scales ? node->weight : NULL,
                                   .out = nib__node_values(r, node, node->to),
                                   .m = m,
                                   .ldx = r->ops.ld[node->from],
                                   .ldo = r->ops.ld[node->to]};
    NIB_TRY(nib__run_rows(r, node->row, &args, m, err));
    return sort_rows(r, node, args.out, m, err);
}

nib_status nib__run_dispatch(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_routing *rule = node->of->routing;
    const nib_dispatch args = {.x = nib__node_values(r, node, node->from),
                               .token = r->routed->token,
                               .weight = rule->on_input ? r->routed->weight : NULL,
                               .out = nib__node_values(r, node, node->to),
                               .rows = m * rule->top_k,
                               .width = r->ops.ld[node->to] / rule->top_k,
                               .ldx = r->ops.ld[node->from]};
    return nib__run_rows(r, node->row, &args, args.rows, err);
}

nib_status nib__run_combine(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_routing *rule = node->of->routing;
    const float *routing = nib__node_values(r, node, node->other);
    const nib_combine args = {.y = nib__node_values(r, node, node->from),
                              .row = r->routed->row,
                              .weight = rule->on_input ? NULL : routing + rule->top_k,
                              .out = nib__node_values(r, node, node->to),
                              .m = m,
                              .top_k = rule->top_k,
                              .width = r->ops.ld[node->from] / rule->top_k,
                              .ldw = r->ops.ld[node->other],
                              .ldo = r->ops.ld[node->to]};
    return nib__run_rows(r, node->row, &args, m, err);
}

/* ---- the products of the experts ---- */

/* One expert's rows in one product. */
typedef struct expert {
    const nib_layer_plan *plan;
    const nib_loaded *loaded;
    size_t site;
    int64_t first, count; /* rows */
    const float *x;       /* its rows, [count][ldx] */
    int64_t ldx;
    char *input; /* the form of its input */
} expert;

/* Bytes from one row's input form to the next. Each expert places the form of its rows at those of
 * its first row: a form of m rows never takes more than m forms of one. */
static uint64_t input_step(const nib_runner *r, int64_t top_k)
{
    return r->ops.token_bytes[NIB_BUFFER_INPUT] / (uint64_t)top_k & ~UINT64_C(63);
}

static expert expert_of(const nib_runner *r, const nib_node *node, int64_t e)
{
    const nib_routing *rule = node->of->routing;
    const nib_routed *s = r->routed;
    const size_t site = node->site + (size_t)(e * node->site_step);
    const int64_t first = s->first[e], ldx = r->ops.ld[node->from] / rule->top_k;
    expert x = {.plan = node->experts[e],
                .loaded = &r->weights[site],
                .site = site,
                .first = first,
                .count = s->first[e + 1] - first,
                .x = nib__node_values(r, node, node->from) + first * ldx,
                .ldx = ldx};
    x.input =
        r->sides[node->side].at[NIB_BUFFER_INPUT] + (uint64_t)first * input_step(r, rule->top_k);
    if (nib__plan_ordered(x.plan)) { /* gathered before */
        x.ldx = x.plan->layer->k;
        x.x = nib__node_values(r, node, NIB_BUFFER_GATHERED) + first * x.ldx;
    }
    return x;
}

static void add_part(nib_runner *r, nib_parts *all, const nib_kernel *row, const void *args,
                     int64_t step, int64_t end)
{
    all->parts[all->count] = nib__part_of(r, row, args, step, end);
    all->first[all->count + 1] = all->first[all->count] + nib__ceil_div(end, step);
    all->count++;
}

/* Puts the rows of experts whose weights are in act-order into that order. */
static void gather_rows(nib_runner *r, const nib_node *node)
{
    const nib_op_plan *plan = nib__plan_operation(r->plan, NIB_OP_GATHER);
    nib_parts all = {.parts = r->routed->parts, .first = r->routed->index};
    const int64_t ldx = r->ops.ld[node->from] / node->of->routing->top_k;
    for (int64_t e = 0; e < node->of->routing->experts; e++) {
        const expert x = expert_of(r, node, e);
        nib_gather *args = &r->routed->args.gather[all.count];
        if (x.count == 0 || !nib__plan_ordered(x.plan))
            continue;
        *args = (nib_gather){.x = nib__node_values(r, node, node->from) + x.first * ldx,
                             .out = (float *)(uintptr_t)x.x,
                             .order = r->net->sites[x.site].order,
                             .m = x.count,
                             .width = x.ldx,
                             .ldx = ldx,
                             .ldo = x.ldx};
        add_part(r, &all, plan->row, args, 1, x.count);
    }
    if (all.count != 0)
        nib__pool_run(r->engine->pool, all.first[all.count],
                      nib__grain_for(r, all.first[all.count]), false, nib__job_parts, &all);
}

/* Makes the input form of each expert's rows. */
static nib_status quantize_rows(nib_runner *r, const nib_node *node, nib_err *err)
{
    nib_parts all = {.parts = r->routed->parts, .first = r->routed->index};
    for (int64_t e = 0; e < node->of->routing->experts; e++) {
        const expert x = expert_of(r, node, e);
        nib_quant *args = &r->routed->args.quant[all.count];
        const nib_kernel *row = nib__use_at(x.plan, x.count)->quant;
        if (x.count == 0 || row == NULL)
            continue;
        *args = nib__quant_of(r, &x.loaded->w, node->side, x.x, x.ldx, x.input, x.count);
        if (row->gpu != NULL)
            NIB_TRY(nib__run_on_gpu(r, row, args, err));
        else
            add_part(r, &all, row, args, 1, x.count);
    }
    if (all.count != 0)
        nib__pool_run(r->engine->pool, all.first[all.count],
                      nib__grain_for(r, all.first[all.count]), false, nib__job_parts, &all);
    return NIB_OK;
}

static nib_linear product_of(nib_runner *r, const nib_node *node, const expert *x,
                             const nib_kernel *row)
{
    const int64_t ldy = r->ops.ld[node->to] / node->of->routing->top_k;
    if (r->observer.see && node->side == NIB_SIDE_CPU)
        r->observer.see(r->observer.ctx, x->site, x->x, x->ldx, x->count, x->loaded->w.k);
    return (nib_linear){
        .w = &x->loaded->w,
        .packed = nib__weight_packed(x->loaded, row),
        .x = nib__quant_of(r, &x->loaded->w, node->side, x->x, x->ldx, x->input, x->count).out,
        .y = nib__node_values(r, node, node->to) + x->first * ldy,
        .ldy = ldy,
        .bias = x->loaded->bias,
        .int_bias = x->loaded->int_bias};
}

/* Shares the products among the workers. Many tokens: parts fine enough that experts with more rows
 * than others keep nobody waiting. */
static void share_products(nib_runner *r, nib_parts *all, int64_t least, int64_t most_rows)
{
    enum { PARTS_PER_WORKER = 16, OUTPUTS = 64 };
    nib_pool *pool = r->engine->pool;
    const int64_t count = all->first[all->count];
    const int64_t parts = (int64_t)nib__pool_threads(pool) * PARTS_PER_WORKER;
    if (most_rows <= NIB_FEW_TOKENS)
        nib__share_outputs(pool, count, least, most_rows, nib__job_parts, all);
    else
        nib__pool_run(pool, count,
                      nib__max(nib__ceil_div(count, parts), nib__ceil_div(OUTPUTS, least)), true,
                      nib__job_parts, all);
}

/* As if all m tokens chose each expert in turn: compiles the rows of every form. */
static nib_status prepare_experts(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    for (int64_t e = 0; e < node->of->routing->experts; e++) {
        if (e > 0 && nib__plan_same_form(node->experts[e - 1], node->experts[e]))
            continue;
        memset(r->routed->first, 0, (size_t)(e + 1) * sizeof *r->routed->first);
        r->routed->first[e + 1] = m;
        const expert x = expert_of(r, node, e);
        const nib_use *use = nib__use_at(x.plan, m);
        const nib_quant quant =
            nib__quant_of(r, &x.loaded->w, node->side, x.x, x.ldx, x.input, x.count);
        const nib_linear linear = product_of(r, node, &x, use->kernel);
        if (use->quant != NULL)
            NIB_TRY(nib__run_on_gpu(r, use->quant, &quant, err));
        NIB_TRY(nib__run_on_gpu(r, use->kernel, &linear, err));
    }
    return NIB_OK;
}

nib_status nib__run_experts(nib_runner *r, const nib_node *nodes, size_t count, int64_t m,
                            nib_err *err)
{
    nib_parts all = {.parts = r->routed->parts, .first = r->routed->index};
    int64_t least = INT64_MAX, most_rows = 0;
    if (r->preparing)
        return prepare_experts(r, nodes, m, err);
    if (nodes->side == NIB_SIDE_CPU)
        gather_rows(r, nodes);
    NIB_TRY(quantize_rows(r, nodes, err));
    for (size_t i = 0; i < count; i++)
        for (int64_t e = 0; e < nodes[i].of->routing->experts; e++) {
            const expert x = expert_of(r, &nodes[i], e);
            if (x.count == 0)
                continue;
            const nib_kernel *row = nib__use_at(x.plan, x.count)->kernel;
            nib_linear *args = &r->routed->args.linear[all.count];
            *args = product_of(r, &nodes[i], &x, row);
            if (row->gpu != NULL) {
                NIB_TRY(nib__run_on_gpu(r, row, args, err));
                continue;
            }
            add_part(r, &all, row, args, nib__max(1, row->n_step), args->w->n);
            least = nib__min(least, nib__max(1, row->n_step));
            most_rows = nib__max(most_rows, x.count);
        }
    if (all.count != 0)
        share_products(r, &all, least, most_rows);
    return NIB_OK;
}
