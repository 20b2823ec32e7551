/* SPDX-License-Identifier: Apache-2.0
 *
 * The experts of a layer on a GPU: one launch multiplies the rows of all of them. A slab holds the
 * packed weights and biases of one matrix of all experts, and the tables by which a kernel finds
 * them. The host never learns who chose whom; a choice that failed is reported after the pass.
 * Heads with weights of their own are experts that get one row of every token.
 *
 *   slab   places [count][2], factors [count] (nib_linear_experts), at the next multiple of 64
 *          bytes each; then each expert's packed weight and bias
 */
#include "runner_parts.h"

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }

static uint64_t places_bytes(int64_t count)
{
    return aligned((uint64_t)count * 2 * sizeof(int64_t));
}

static uint64_t table_bytes(int64_t count)
{
    return places_bytes(count) + aligned((uint64_t)count * sizeof(float));
}

uint64_t nib__experts_table_bytes(const nib_graph *g)
{
    enum { GAP = 2 * 64 }; /* the most between an expert's weight, its bias, and the next one's */
    uint64_t sum = 0;
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        const int64_t count = node->op == NIB_OP_LINEAR_EXPERTS ? node->routing->experts
                              : node->op == NIB_OP_LINEAR_HEADS ? node->heads
                                                                : 0;
        if (count > 0)
            sum += table_bytes(count) + (uint64_t)count * GAP;
    }
    return sum;
}

/* ---- memory ---- */

nib_status nib__experts_reserve(nib_runner *r, nib_node *node, nib_err *err)
{
    void *at = NULL;
    const int64_t count = node->weight_count;
    if (count == 0 || !node->weights[0]->grouped)
        return NIB_OK;
    uint64_t bytes = table_bytes(count);
    for (int64_t e = 0; e < count; e++)
        bytes += nib__weight_room(node->weights[e]);
    NIB_TRY(nib__gpu_alloc(r->gpu, bytes, "the experts or heads of a layer", &at, err));
    node->slab = at;
    char *room = node->slab + table_bytes(count);
    for (int64_t e = 0; e < count; e++)
        NIB_TRY(nib__weight_reserve(&r->weights[node->site + (size_t)(e * node->site_step)],
                                    node->weights[e], r->gpu, &room, err));
    return NIB_OK;
}

enum { TABLE_PART = 256 };

/* Writes at most TABLE_PART entries, from `first` on. */
static nib_status write_entries(nib_runner *r, const nib_node *node, int64_t first, nib_err *err)
{
    int64_t places[TABLE_PART][2] = {{0}};
    float factors[TABLE_PART];
    const int64_t count = nib__min(node->weight_count - first, TABLE_PART);
    for (int64_t i = 0; i < count; i++) {
        const nib_loaded *own = &r->weights[node->site + (size_t)((first + i) * node->site_step)];
        places[i][0] = (char *)own->packs[0].at - node->slab;
        if (own->bias != NULL)
            places[i][1] = (char *)own->bias - node->slab;
        factors[i] = own->w.tensor_scale != 0 ? nib__weight_factor(&own->w) : 1;
    }
    char *const to_places = node->slab + (uint64_t)first * sizeof *places,
                *const to_factors = node->slab + places_bytes(node->weight_count) +
                                    (uint64_t)first * sizeof *factors;
    NIB_TRY(nib__gpu_write(r->gpu, to_places, places, (uint64_t)count * sizeof *places, err));
    return nib__gpu_write(r->gpu, to_factors, factors, (uint64_t)count * sizeof *factors, err);
}

static nib_status write_tables(nib_runner *r, const nib_node *node, nib_err *err)
{
    for (int64_t first = 0; first < node->weight_count; first += TABLE_PART)
        NIB_TRY(write_entries(r, node, first, err));
    return NIB_OK;
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

/* Rows of an expert, if no more experts than needed have rows, or of a head: decides the kernel, as
 * the tokens of a step decide that of other layers. */
static int64_t rows_each(int64_t rows, int64_t count)
{
    return nib__ceil_div(rows, nib__min(rows, count));
}

/* How to make the form that a product reads of `rows` rows: those of experts are sorted, and those
 * of heads are sorted here. */
static nib_quant rows_of(const nib_runner *r, const nib_node *node, int64_t rows)
{
    const nib_weight *w = &r->weights[node->site].w;
    const nib_routing *rule = node->of->routing;
    const float *x = nib__node_values(r, node, node->from);
    char *const at = r->sides[NIB_SIDE_GPU].at[NIB_BUFFER_INPUT];
    const int64_t ld = r->ops.ld[node->from];
    if (rule != NULL)
        return nib__quant_of(r, w, NIB_SIDE_GPU, x, ld / rule->top_k, at, rows);
    nib_quant quant = nib__quant_of(r, w, NIB_SIDE_GPU, NULL, ld, at, rows);
    quant.x = x;
    quant.per_head = rows / node->weight_count;
    quant.head_step = ld / node->weight_count;
    return quant;
}

nib_status nib__run_grouped(nib_runner *r, const nib_node *nodes, size_t count, int64_t m,
                            nib_err *err)
{
    const nib_routing *rule = nodes->of->routing; /* NULL: heads */
    const int64_t of_token = rule != NULL ? rule->top_k : nodes->weight_count, rows = m * of_token,
                  each = rows_each(rows, nodes->weight_count);
    const nib_expert_rows routed =
        rule != NULL ? nib__routed_rows(r, rule, NIB_SIDE_GPU, m) : (nib_expert_rows){0};
    const nib_quant quant = rows_of(r, nodes, rows);
    const nib_kernel *quantizer = nib__use_at(nodes->weights[0], each)->quant;
    if (quantizer != NULL)
        NIB_TRY(nib__run_on_gpu(r, quantizer, &quant, err));
    for (size_t i = 0; i < count; i++) {
        const nib_node *node = &nodes[i];
        const nib_loaded *one = &r->weights[node->site];
        char *const factors = node->slab + places_bytes(node->weight_count);
        const int64_t ld = r->ops.ld[node->to];
        const nib_linear_experts experts = {.count = node->weight_count,
                                            .first = routed.first,
                                            .expert = routed.expert,
                                            .places = (const int64_t *)(void *)node->slab,
                                            .factors = (const float *)(void *)factors,
                                            .head_step = rule != NULL ? 0 : ld / of_token};
        const nib_linear args = {.w = &one->w,
                                 .packed = node->slab,
                                 .x = quant.out,
                                 .y = nib__node_values(r, node, node->to),
                                 .ldy = rule != NULL ? ld / of_token : ld,
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
