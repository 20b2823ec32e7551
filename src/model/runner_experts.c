/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture's operations in a step: which rows each expert gets, and the products of each expert
 * with its own rows. An expert's product is that of a linear layer with as many tokens as chose the
 * expert, so its bits do not depend on who else is in the step. Heads with weights of their own are
 * like experts that every token chooses.
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
    } args; /* [2 * experts], or [heads] */
};

nib_status nib__experts_open(nib_runner *r, nib_err *err)
{
    const nib_graph *g = &r->net->graph;
    uint64_t experts = 0, rows = 0, products = 0;
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        if (node->op == NIB_OP_ROUTE) {
            experts = (uint64_t)nib__max((int64_t)experts, node->routing->experts);
            rows = (uint64_t)nib__max((int64_t)rows, node->routing->top_k * NIB_CHUNK);
            products = (uint64_t)nib__max((int64_t)products, 2 * node->routing->experts);
        }
        if (node->op == NIB_OP_LINEAR_HEADS)
            products = (uint64_t)nib__max((int64_t)products, node->heads);
    }
    if (products == 0)
        return NIB_OK;
    const size_t size =
        sizeof(nib_linear) > sizeof(nib_quant) ? sizeof(nib_linear) : sizeof(nib_quant);
    nib_routed *s = nib__arena_take(&r->arena, 1, sizeof *s);
    void *const args = nib__arena_take(&r->arena, products, size);
    if (s == NULL || args == NULL)
        return nib__fail_memory(err, products * size, "the experts of a step");
    *s = (nib_routed){.token = nib__arena_take(&r->arena, rows, sizeof *s->token),
                      .row = nib__arena_take(&r->arena, rows, sizeof *s->row),
                      .weight = nib__arena_take(&r->arena, rows, sizeof *s->weight),
                      .first = nib__arena_take(&r->arena, experts + 1, sizeof *s->first),
                      .parts = nib__arena_take(&r->arena, products, sizeof *s->parts),
                      .index = nib__arena_take(&r->arena, products + 1, sizeof *s->index),
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
                                   .bias = node->weight,
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

/* Expert or head e in a step of m tokens. */
static expert expert_of(const nib_runner *r, const nib_node *node, int64_t e, int64_t m)
{
    const nib_routing *rule = node->of->routing;
    const nib_routed *s = r->routed;
    const size_t site = node->site + (size_t)(e * node->site_step);
    const int64_t rows = rule != NULL ? rule->top_k : node->of->heads, /* per token */
        first = rule != NULL ? s->first[e] : e * m;
    const int64_t in = r->ops.ld[node->from] / rows, out = r->ops.ld[node->to] / rows;
    const float *from = nib__node_values(r, node, node->from);
    float *to = nib__node_values(r, node, node->to);
    expert x = {.plan = node->weights[e],
                .loaded = &r->weights[site],
                .site = site,
                .count = rule != NULL ? s->first[e + 1] - first : m,
                .x = from + (rule != NULL ? first : e) * in,
                .y = to + (rule != NULL ? first : e) * out,
                .ldx = rule != NULL ? in : r->ops.ld[node->from],
                .ldy = rule != NULL ? out : r->ops.ld[node->to]};
    x.gathered = nib__node_values(r, node, NIB_BUFFER_GATHERED) + first * x.plan->layer->k;
    x.input = r->sides[node->side].at[NIB_BUFFER_INPUT] + (uint64_t)first * input_step(r, rows);
    return x;
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
        if (node->of->routing != NULL) {
            memset(r->routed->first, 0, (size_t)(e + 1) * sizeof *r->routed->first);
            r->routed->first[e + 1] = m;
        }
        const expert x = expert_of(r, node, e, m);
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
