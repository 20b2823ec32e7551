/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture's operations in a step: which rows each expert gets, and the products of each expert
 * with its own rows; runner_grouped.c has one launch for all. An expert's product is that of
 * a linear layer with as many tokens as chose the expert, so on the CPU its bits do not depend on
 * who else is in the step. Heads with weights of their own are like experts that every token
 * chooses.
 */
#include "runner_parts.h"

#include <inttypes.h>

/* Room for the products of a step. */
struct nib_routed {
    nib_part *parts;
    int64_t *index;
    union {
        nib_linear *linear;
        nib_quant *quant;
        nib_gather *gather;
    } args; /* [2 * experts], or [heads] */
};

nib_status nib__experts_open(nib_runner *r, nib_err *err)
{
    const nib_graph *g = &r->net->graph;
    uint64_t products = 0;
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        const int64_t own = node->op == NIB_OP_ROUTE          ? 2 * node->routing->experts
                            : node->op == NIB_OP_LINEAR_HEADS ? node->heads
                                                              : 0;
        products = (uint64_t)nib__max((int64_t)products, own);
    }
    if (products == 0)
        return NIB_OK;
    const size_t size =
        sizeof(nib_linear) > sizeof(nib_quant) ? sizeof(nib_linear) : sizeof(nib_quant);
    nib_routed *s = nib__arena_take(&r->arena, 1, sizeof *s);
    void *const args = nib__arena_take(&r->arena, products, size);
    if (s == NULL || args == NULL)
        return nib__fail_memory(err, products * size, "the experts of a step");
    *s = (nib_routed){.parts = nib__arena_take(&r->arena, products, sizeof *s->parts),
                      .index = nib__arena_take(&r->arena, products + 1, sizeof *s->index),
                      .args.linear = args};
    if (s->parts == NULL || s->index == NULL)
        return nib__fail_memory(err, products * sizeof *s->parts, "the experts of a step");
    r->routed = s;
    return NIB_OK;
}

/* ---- which rows an expert gets ---- */

nib_status nib__fail_choice(const nib_runner *r, int64_t layer, int32_t failed, nib_err *err)
{
    const int32_t token = (failed - 1) / NIB_EXPERTS_MAX, expert = (failed - 1) % NIB_EXPERTS_MAX;
    return nib__fail(err, NIB_BAD_INPUT,
                     "layer %" PRId64 ": the router's logit of expert %d"
                     " is not a finite number at position %d; are the weights damaged?",
                     layer, expert, r->sides[NIB_SIDE_CPU].positions[token]);
}

uint64_t nib__routed_bytes(const nib_routing *rule, int64_t m)
{
    enum { LISTS = 4 }; /* of one value per row */
    return (uint64_t)(rule->experts + 1 + LISTS * m * rule->top_k) * sizeof(int32_t);
}

nib_expert_rows nib__routed_rows(const nib_runner *r, const nib_routing *rule, int side, int64_t m)
{
    int32_t *at = (int32_t *)(void *)r->sides[side].at[NIB_BUFFER_ROUTED];
    int32_t *lists = at + rule->experts + 1;
    const int64_t rows = m * rule->top_k;
    return (nib_expert_rows){.first = at,
                             .token = lists,
                             .expert = lists + rows,
                             .weight = (float *)(void *)(lists + 2 * rows),
                             .row = lists + 3 * rows};
}

/* Shows a router's logits on a device to the observer, and writes back what it changed. */
static nib_status show_device_logits(nib_runner *r, float *logits, int64_t ld, int64_t m,
                                     nib_err *err)
{
    const uint64_t bytes = (uint64_t)(m * ld) * sizeof *logits;
    float *host = nib__calloc(&r->engine->allocator, 1, bytes);
    if (host == NULL)
        return nib__fail_memory(err, bytes, "a router's logits");
    nib_status status = nib__gpu_read(r->gpu, host, logits, bytes, err);
    if (status == NIB_OK) {
        r->observer.routes(r->observer.ctx, host, ld, m);
        status = nib__gpu_write(r->gpu, logits, host, bytes, err);
    }
    nib__release(&r->engine->allocator, host);
    return status;
}

static nib_status show_logits(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    float *logits = nib__node_values(r, node, node->from);
    const int64_t ld = r->ops.ld[node->from];
    if (r->observer.routes == NULL || r->preparing)
        return NIB_OK;
    if (node->side == NIB_SIDE_GPU)
        return show_device_logits(r, logits, ld, m, err);
    r->observer.routes(r->observer.ctx, logits, ld, m);
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
    NIB_TRY(show_logits(r, node, m, err));
    return nib__run_rows(r, node->row, &args, m, err);
}

nib_status nib__run_sort(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const bool on_gpu = node->side == NIB_SIDE_GPU;
    int32_t failed = 0;
    const nib_sort_rows args = {.rule = node->of->routing,
                                .choice = nib__node_values(r, node, node->from),
                                .m = m,
                                .ldc = r->ops.ld[node->from],
                                .to = nib__routed_rows(r, node->of->routing, node->side, m),
                                .failed = on_gpu ? r->failed + node->layer : &failed};
    NIB_TRY(nib__run_rows(r, node->row, &args, 1, err));
    return failed != 0 ? nib__fail_choice(r, node->layer, failed, err) : NIB_OK;
}

nib_status nib__run_dispatch(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    const nib_routing *rule = node->of->routing;
    const nib_expert_rows rows = nib__routed_rows(r, rule, node->side, m);
    const nib_dispatch args = {.x = nib__node_values(r, node, node->from),
                               .token = rows.token,
                               .weight = rule->on_input ? rows.weight : NULL,
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
                              .row = nib__routed_rows(r, rule, node->side, m).row,
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

/* One expert's rows in one product, or one head's. */
typedef struct expert {
    const nib_layer_plan *plan;
    const nib_loaded *loaded;
    size_t site;
    int64_t count;  /* rows */
    const float *x; /* its rows, [count][ldx] */
    float *y;       /* [count][ldy] */
    int64_t ldx, ldy;
    float *gathered; /* [count][k] room for its rows in act-order */
    char *input;     /* the form of its input */
} expert;

/* Bytes from one row's input form to the next, of `rows` per token. Each expert places the form of
 * its rows at those of its first row: a form of m rows never takes more than m forms of one. */
static uint64_t input_step(const nib_runner *r, int64_t rows)
{
    return r->ops.token_bytes[NIB_BUFFER_INPUT] / (uint64_t)rows & ~UINT64_C(63);
}

/* Expert e with its `count` rows from `first` on, or head e with those of `count` tokens. */
static expert expert_with(const nib_runner *r, const nib_node *node, int64_t e, int64_t first,
                          int64_t count)
{
    const nib_routing *rule = node->of->routing;
    const size_t site = node->site + (size_t)(e * node->site_step);
    const int64_t rows = rule != NULL ? rule->top_k : node->of->heads; /* per token */
    const int64_t ldx = r->ops.ld[node->from], in = ldx / rows, ldy = r->ops.ld[node->to],
                  out = ldy / rows, at = rule != NULL ? first : e;
    expert x = {.plan = node->weights[e],
                .loaded = &r->weights[site],
                .site = site,
                .count = count,
                .x = nib__node_values(r, node, node->from) + at * in,
                .y = nib__node_values(r, node, node->to) + at * out,
                .ldx = rule != NULL ? in : ldx,
                .ldy = rule != NULL ? out : ldy};
    x.gathered = nib__node_values(r, node, NIB_BUFFER_GATHERED) + first * x.plan->layer->k;
    x.input = r->sides[node->side].at[NIB_BUFFER_INPUT] + (uint64_t)first * input_step(r, rows);
    return x;
}

/* Expert e with the rows that tokens gave it, which the host knows; or head e. m tokens. */
static expert expert_of(const nib_runner *r, const nib_node *node, int64_t e, int64_t m)
{
    if (node->of->routing == NULL)
        return expert_with(r, node, e, e * m, m);
    const int32_t *first = nib__routed_rows(r, node->of->routing, NIB_SIDE_CPU, 0).first;
    return expert_with(r, node, e, first[e], first[e + 1] - first[e]);
}

/* The rows that the product reads. */
static const float *rows_of(const expert *x, int64_t *ld)
{
    const bool ordered = nib__plan_ordered(x->plan); /* gathered before */
    *ld = ordered ? x->plan->layer->k : x->ldx;
    return ordered ? x->gathered : x->x;
}

static void add_part(nib_runner *r, nib_parts *all, const nib_kernel *row, const void *args,
                     int64_t step, int64_t end)
{
    all->parts[all->count] = nib__part_of(r, row, args, step, end);
    all->first[all->count + 1] = all->first[all->count] + nib__ceil_div(end, step);
    all->count++;
}

/* Puts the rows of experts whose weights are in act-order into that order. */
static void gather_rows(nib_runner *r, const nib_node *node, int64_t m)
{
    const nib_op_plan *plan = nib__plan_operation(r->plan, NIB_OP_GATHER);
    nib_parts all = {.parts = r->routed->parts, .first = r->routed->index};
    for (int64_t e = 0; e < node->weight_count; e++) {
        const expert x = expert_of(r, node, e, m);
        nib_gather *args = &r->routed->args.gather[all.count];
        if (x.count == 0 || !nib__plan_ordered(x.plan))
            continue;
        *args = (nib_gather){.x = x.x,
                             .out = x.gathered,
                             .order = r->net->sites[x.site].order,
                             .m = x.count,
                             .width = x.plan->layer->k,
                             .ldx = x.ldx,
                             .ldo = x.plan->layer->k};
        add_part(r, &all, plan->row, args, 1, x.count);
    }
    if (all.count != 0)
        nib__pool_run(r->engine->pool, all.first[all.count],
                      nib__grain_for(r, all.first[all.count]), false, nib__job_parts, &all);
}

static nib_quant quant_of(const nib_runner *r, const nib_node *node, const expert *x)
{
    int64_t ld;
    const float *rows = rows_of(x, &ld);
    return nib__quant_of(r, &x->loaded->w, node->side, rows, ld, x->input, x->count);
}

/* Makes the input form of each expert's rows. */
static nib_status quantize_rows(nib_runner *r, const nib_node *node, int64_t m, nib_err *err)
{
    nib_parts all = {.parts = r->routed->parts, .first = r->routed->index};
    for (int64_t e = 0; e < node->weight_count; e++) {
        const expert x = expert_of(r, node, e, m);
        nib_quant *args = &r->routed->args.quant[all.count];
        const nib_kernel *row = nib__use_at(x.plan, x.count)->quant;
        if (x.count == 0 || row == NULL)
            continue;
        *args = quant_of(r, node, &x);
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
    int64_t ld;
    const float *rows = rows_of(x, &ld);
    if (r->observer.see && node->side == NIB_SIDE_CPU)
        r->observer.see(r->observer.ctx, x->site, rows, ld, x->count, x->loaded->w.k);
    return (nib_linear){.w = &x->loaded->w,
                        .packed = nib__weight_packed(x->loaded, row),
                        .x = quant_of(r, node, x).out,
                        .y = x->y,
                        .ldy = x->ldy,
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
    for (int64_t e = 0; e < node->weight_count; e++) {
        if (e > 0 && nib__plan_same_form(node->weights[e - 1], node->weights[e]))
            continue;
        const expert x = expert_with(r, node, e, 0, m);
        const nib_use *use = nib__use_at(x.plan, m);
        const nib_quant quant = quant_of(r, node, &x);
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
    if (nodes->slab != NULL)
        return nib__run_grouped(r, nodes, count, m, err);
    if (r->preparing)
        return prepare_experts(r, nodes, m, err);
    if (nodes->side == NIB_SIDE_CPU)
        gather_rows(r, nodes, m);
    NIB_TRY(quantize_rows(r, nodes, m, err));
    for (size_t i = 0; i < count; i++)
        for (int64_t e = 0; e < nodes[i].weight_count; e++) {
            const expert x = expert_of(r, &nodes[i], e, m);
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
