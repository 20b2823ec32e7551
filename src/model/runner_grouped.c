/* SPDX-License-Identifier: Apache-2.0
 *
 * The experts of a layer on a GPU: one launch multiplies the rows of all of them. A slab holds the
 * packed weights and biases of one matrix of all experts, and the tables by which a kernel finds
 * them. The host never learns who chose whom; a choice that failed is reported after the pass.
 *
 *   slab   places [experts][2], factors [experts] (nib_linear_experts), at the next multiple of 64
 *          bytes each; then each expert's packed weight and bias
 */
#include "runner_parts.h"

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }

static uint64_t places_bytes(int64_t experts)
{
    return aligned((uint64_t)experts * 2 * sizeof(int64_t));
}

static uint64_t table_bytes(int64_t experts)
{
    return places_bytes(experts) + aligned((uint64_t)experts * sizeof(float));
}

uint64_t nib__experts_table_bytes(const nib_graph *g)
{
    enum { GAP = 2 * 64 }; /* the most between an expert's weight, its bias, and the next one's */
    uint64_t sum = 0;
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        if (node->op == NIB_OP_LINEAR_EXPERTS)
            sum += table_bytes(node->routing->experts) + (uint64_t)node->routing->experts * GAP;
    }
    return sum;
}

/* ---- memory ---- */

nib_status nib__experts_reserve(nib_runner *r, nib_node *node, nib_err *err)
{
    void *at = NULL;
    if (node->op != NIB_OP_LINEAR_EXPERTS || !node->weights[0]->grouped)
        return NIB_OK;
    const int64_t experts = node->of->routing->experts;
    uint64_t bytes = table_bytes(experts);
    for (int64_t e = 0; e < experts; e++)
        bytes += nib__weight_room(node->weights[e]);
    NIB_TRY(nib__gpu_alloc(r->gpu, bytes, "the experts of a layer", &at, err));
    node->slab = at;
    char *room = node->slab + table_bytes(experts);
    for (int64_t e = 0; e < experts; e++)
        NIB_TRY(nib__weight_reserve(&r->weights[node->site + (size_t)(e * node->site_step)],
                                    node->weights[e], r->gpu, &room, err));
    return NIB_OK;
}

static nib_status write_tables(nib_runner *r, const nib_node *node, nib_err *err)
{
    const int64_t experts = node->of->routing->experts;
    int64_t places[NIB_EXPERTS_MAX][2] = {{0}};
    float factors[NIB_EXPERTS_MAX];
    for (int64_t e = 0; e < experts; e++) {
        const nib_loaded *own = &r->weights[node->site + (size_t)(e * node->site_step)];
        places[e][0] = (char *)own->packs[0].at - node->slab;
        if (own->bias != NULL)
            places[e][1] = (char *)own->bias - node->slab;
        factors[e] = own->w.tensor_scale != 0 ? nib__weight_factor(&own->w) : 1;
    }
    NIB_TRY(nib__gpu_write(r->gpu, node->slab, places, (uint64_t)experts * sizeof *places, err));
    return nib__gpu_write(r->gpu, node->slab + places_bytes(experts), factors,
                          (uint64_t)experts * sizeof *factors, err);
}

nib_status nib__experts_describe(nib_runner *r, nib_err *err)
{
    for (size_t i = 0; i < r->ops.count; i++)
        if (r->ops.nodes[i].slab != NULL)
            NIB_TRY(write_tables(r, &r->ops.nodes[i], err));
    return NIB_OK;
}

void nib__experts_close(nib_runner *r)
{
    for (size_t i = 0; i < r->ops.count; i++)
        nib__gpu_free(r->gpu, r->ops.nodes[i].slab);
    nib__gpu_free(r->gpu, r->failed);
}

/* ---- products ---- */

/* Rows of an expert, if no more experts than needed have rows: decides the kernel, as the tokens of
 * a step decide that of other layers. */
static int64_t rows_each(const nib_routing *rule, int64_t m)
{
    const int64_t rows = m * rule->top_k;
    return nib__ceil_div(rows, nib__min(rows, rule->experts));
}

nib_status nib__run_grouped(nib_runner *r, const nib_node *nodes, size_t count, int64_t m,
                            nib_err *err)
{
    const nib_routing *rule = nodes->of->routing;
    const int64_t rows = m * rule->top_k, each = rows_each(rule, m);
    const nib_expert_rows routed = nib__routed_rows(r, rule, NIB_SIDE_GPU, m);
    const nib_quant quant = nib__quant_of(
        r, &r->weights[nodes->site].w, NIB_SIDE_GPU, nib__node_values(r, nodes, nodes->from),
        r->ops.ld[nodes->from] / rule->top_k, r->sides[NIB_SIDE_GPU].at[NIB_BUFFER_INPUT], rows);
    const nib_kernel *quantizer = nib__use_at(nodes->weights[0], each)->quant;
    if (quantizer != NULL)
        NIB_TRY(nib__run_on_gpu(r, quantizer, &quant, err));
    for (size_t i = 0; i < count; i++) {
        const nib_node *node = &nodes[i];
        const nib_loaded *one = &r->weights[node->site];
        char *const factors = node->slab + places_bytes(rule->experts);
        const nib_linear_experts experts = {.count = rule->experts,
                                            .first = routed.first,
                                            .expert = routed.expert,
                                            .places = (const int64_t *)(void *)node->slab,
                                            .factors = (const float *)(void *)factors};
        const nib_linear args = {.w = &one->w,
                                 .packed = node->slab,
                                 .x = quant.out,
                                 .y = nib__node_values(r, node, node->to),
                                 .ldy = r->ops.ld[node->to] / rule->top_k,
                                 .bias =
                                     one->bias != NULL ? (const float *)(void *)node->slab : NULL,
                                 .experts = &experts};
        NIB_TRY(nib__run_on_gpu(r, nib__use_at(node->weights[0], each)->kernel, &args, err));
    }
    return NIB_OK;
}

/* ---- choices that fail ---- */

nib_status nib__experts_watch(nib_runner *r, nib_err *err)
{
    const uint64_t layers = (uint64_t)r->net->config.layers;
    bool sorts = false;
    void *at = NULL;
    for (size_t i = 0; i < r->ops.count; i++)
        sorts =
            sorts || (r->ops.nodes[i].op == NIB_OP_SORT && r->ops.nodes[i].side == NIB_SIDE_GPU);
    if (!sorts)
        return NIB_OK;
    int32_t *none = nib__arena_take(&r->arena, layers, sizeof *none);
    if (none == NULL)
        return nib__fail_memory(err, layers * sizeof *none, "the choices of a pass");
    memset(none, 0, (size_t)layers * sizeof *none);
    NIB_TRY(nib__gpu_alloc(r->gpu, layers * sizeof *none, "the choices of a pass", &at, err));
    r->failed = at, r->failures = none;
    return nib__gpu_write(r->gpu, at, none, layers * sizeof *none, err);
}

nib_status nib__experts_check(nib_runner *r, nib_err *err)
{
    const int64_t layers = r->net->config.layers;
    if (r->failed == NULL)
        return NIB_OK;
    NIB_TRY(
        nib__gpu_read(r->gpu, r->failures, r->failed, (uint64_t)layers * sizeof *r->failures, err));
    for (int64_t i = 0; i < layers; i++)
        if (r->failures[i] != 0)
            return nib__fail_choice(r, i, r->failures[i], err);
    return NIB_OK;
}
