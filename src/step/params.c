/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of parameters, and their first values.
 */
#include "params.h"

#include "portable_math.h"
#include "sample.h"

#include <math.h>
#include <stdio.h>

/* ---- the list ---- */

typedef struct lister {
    const nib_network *net;
    nib_params *out;
    nib_arena *arena;
} lister;

static bool add_param(lister *l, const char *name, nib_param p)
{
    p.name = nib__arena_copy(l->arena, name, strlen(name));
    if (p.name == NULL)
        return false;
    p.at = l->out->total;
    l->out->values += nib__param_size(&p);
    l->out->total += (uint64_t)nib__round_up((int64_t)nib__param_size(&p), NIB_LANES);
    l->out->items[l->out->count++] = p;
    return true;
}

static bool add_site(lister *l, const nib_graph_weight *entry)
{
    const size_t site = entry->index;
    const int64_t layer = entry->layer;
    const nib_site *s = &l->net->sites[site];
    const bool table = s->role == NIB_ROLE_EMBED || s->role == NIB_ROLE_HEAD;
    char name[160];
    l->out->bias[site] = SIZE_MAX;
    if (s->role == NIB_ROLE_HEAD && l->net->tied) {
        l->out->weight[site] = l->out->weight[0];
        return true;
    }
    snprintf(name, sizeof name, "%s.weight", s->name);
    l->out->weight[site] = l->out->count;
    if (!add_param(l, name,
                   (nib_param){.role = table ? NIB_PARAM_TABLE : NIB_PARAM_WEIGHT,
                               .layer = layer,
                               .rows = s->n,
                               .columns = s->k,
                               .entry = entry}))
        return false;
    if (!s->bias)
        return true;
    snprintf(name, sizeof name, "%s.bias", s->name);
    l->out->bias[site] = l->out->count;
    return add_param(
        l, name,
        (nib_param){
            .role = NIB_PARAM_BIAS, .layer = layer, .rows = 1, .columns = s->n, .entry = entry});
}

static bool add_norm(lister *l, const nib_graph_weight *norm)
{
    char name[NIB_NORM_NAME];
    nib_param p = {.role = NIB_PARAM_NORM,
                   .layer = norm->layer,
                   .rows = norm->heads,
                   .columns = norm->n / norm->heads,
                   .entry = norm};
    l->out->norm[norm->index] = l->out->count;
    l->out->norm_bias[norm->index] = SIZE_MAX;
    if (!add_param(l, nib__network_norm_name(name, l->net, norm->index, NIB_NORM_WEIGHT), p))
        return false;
    if (!norm->bias)
        return true;
    p.role = NIB_PARAM_BIAS;
    l->out->norm_bias[norm->index] = l->out->count;
    return add_param(l, nib__network_norm_name(name, l->net, norm->index, NIB_NORM_BIAS), p);
}

static bool list_weights(lister *l)
{
    const nib_graph *graph = &l->net->graph;
    bool ok = true;
    for (size_t i = 0; ok && i < graph->weight_count; i++) {
        const nib_graph_weight *entry = &graph->weights[i];
        ok = entry->kind == NIB_WEIGHT_NORM ? add_norm(l, entry) : add_site(l, entry);
    }
    return ok;
}

/* The role of an operation's own vector. */
static nib_param_role vector_role(const nib_graph_node *node)
{
    switch (node->op) {
    case NIB_OP_ATTN: return NIB_PARAM_SINKS;
    case NIB_OP_SCALE: return NIB_PARAM_FIXED;
    case NIB_OP_SHORT_CONV: return NIB_PARAM_TAPS;
    case NIB_OP_DELTA_GATES:
    case NIB_OP_SSM_GATES: return NIB_PARAM_LOG_RATE;
    case NIB_OP_ROUTE: return node->routing->weight_scales ? NIB_PARAM_NORM : NIB_PARAM_CHOICE;
    default: return NIB_PARAM_NORM;
    }
}

/* Sets the roles of vectors: norms and those that are stored as norms are. */
static void set_vector_roles(nib_params *out, const nib_graph *graph)
{
    for (size_t i = 0; i < graph->node_count; i++) {
        const nib_graph_node *node = &graph->nodes[i];
        if (node->weight == NIB_NO_ID || graph->weights[node->weight].kind != NIB_WEIGHT_NORM)
            continue;
        out->items[out->norm[graph->weights[node->weight].index]].role = vector_role(node);
        if (node->biased)
            out->items[out->norm[graph->weights[node->weight + 1].index]].role = NIB_PARAM_SHIFT;
    }
}

nib_status nib__params_list(nib_params *out, const nib_network *net, nib_arena *arena, nib_err *err)
{
    const size_t norms = net->graph.kind_count[NIB_WEIGHT_NORM],
                 most = 2 * (net->site_count + norms);
    *out = (nib_params){.items = nib__arena_take(arena, most, sizeof *out->items),
                        .weight = nib__arena_take(arena, net->site_count, sizeof *out->weight),
                        .bias = nib__arena_take(arena, net->site_count, sizeof *out->bias),
                        .norm = nib__arena_take(arena, norms, sizeof *out->norm),
                        .norm_bias = nib__arena_take(arena, norms, sizeof *out->norm_bias)};
    lister l = {net, out, arena};
    if (!out->items || !out->weight || !out->bias || !out->norm || !out->norm_bias ||
        !list_weights(&l))
        return nib__fail_memory(err, most * sizeof *out->items, "the list of parameters");
    set_vector_roles(out, &net->graph);
    return nib__load_list(&out->load, net, out->total, arena, err);
}

/* ---- first values ---- */

/* A normal value; draws past `cut` deviations are repeated. */
static float draw_normal(uint64_t seed, size_t parameter, int64_t place, double deviation,
                         double cut)
{
    for (int64_t draw = 0;; draw++) {
        /* a separate random sequence per parameter and draw */
        const int64_t sequence = (int64_t)parameter << 16 | draw;
        const double x = nib__random_normal(seed, sequence, place);
        if (fabs(x) <= cut)
            return (float)(x * deviation);
    }
}

/* Taps are uniform within taps^-1/2, rates within 0 and 16. */
static float draw_uniform(const nib_param *p, uint64_t seed, size_t parameter, int64_t place)
{
    const double x = nib__random(seed, (int64_t)parameter << 16, place);
    return p->role == NIB_PARAM_LOG_RATE ? (float)nib__log(16 * (1 - x))
                                         : (float)((2 * x - 1) / sqrt((double)p->entry->taps));
}

typedef struct fill {
    float *to;
    uint64_t seed;
    size_t parameter;
    double deviation, cut;
} fill;

static void job_fill(void *ctx, int worker, int64_t begin, int64_t end)
{
    const fill *f = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        f->to[i] = draw_normal(f->seed, f->parameter, i, f->deviation, f->cut);
}

static bool
scales_with_depth(const nib_param *p) /* o, up (w3) and down (w2) write to the residual path */
{
    const nib_role role = p->entry->role;
    return p->role == NIB_PARAM_SINKS || role == NIB_ROLE_O || role == NIB_ROLE_UP ||
           role == NIB_ROLE_DOWN || role == NIB_ROLE_ROUTER;
}

void nib__params_init(float *block, const nib_params *params, bool tied, uint64_t seed,
                      nib_pool *pool)
{
    const double limit = 2; /* trunc_normal_'s default bounds are absolute */
    for (size_t i = 0; i < params->count; i++) {
        const nib_param *p = &params->items[i];
        const int64_t count = (int64_t)nib__param_size(p);
        fill f = {.to = block + p->at, .seed = seed, .parameter = i, .deviation = 0.02};
        const bool ones = p->role == NIB_PARAM_NORM || p->role == NIB_PARAM_FIXED;
        if (ones)
            for (int64_t j = 0; j < count; j++)
                f.to[j] = (float)(1 - p->entry->offset);
        if (p->role == NIB_PARAM_TAPS || p->role == NIB_PARAM_LOG_RATE)
            for (int64_t j = 0; j < count; j++)
                f.to[j] = draw_uniform(p, seed, i, j);
        if (ones || p->role == NIB_PARAM_BIAS || p->role == NIB_PARAM_CHOICE ||
            p->role == NIB_PARAM_SHIFT || p->role == NIB_PARAM_TAPS ||
            p->role == NIB_PARAM_LOG_RATE)
            continue;
        f.cut = INFINITY;
        if (p->role != NIB_PARAM_SINKS && p->entry->role == NIB_ROLE_EMBED && !tied) {
            f.deviation = 1;
        } else if (p->role == NIB_PARAM_TABLE) {
            f.deviation = 1 / sqrt((double)p->columns);
            f.cut = 3;
        } else {
            if (scales_with_depth(p))
                f.deviation /= sqrt(2 * (double)(p->layer + 1));
            f.cut = limit / f.deviation;
        }
        nib__pool_run(pool, count, 4096, false, job_fill, &f);
    }
}

static nib_status load_weight(float *to, const nib_param *p, const nib_network *net, nib_err *err)
{
    nib_weight w;
    NIB_TRY(nib__checkpoint_weight(&w, NULL, net->checkpoint, p->entry->name, NULL, err));
    if (p->role == NIB_PARAM_BIAS) {
        nib__weight_bias(&w, to);
        return NIB_OK;
    }
    for (int64_t i = 0; i < p->rows; i++)
        nib__weight_row(&w, i, to + i * p->columns);
    return NIB_OK;
}

nib_status nib__params_load(float *block, const nib_params *params, const nib_network *net,
                            nib_err *err)
{
    for (size_t i = 0; i < params->count; i++) {
        const nib_param *p = &params->items[i];
        if (p->entry->kind == NIB_WEIGHT_NORM) {
            const bool bias = p->role == NIB_PARAM_BIAS;
            NIB_TRY(nib__network_norm(block + p->at, net, p->entry->index,
                                      bias ? NIB_NORM_BIAS : NIB_NORM_STORED, err));
        } else {
            NIB_TRY(load_weight(block + p->at, p, net, err));
        }
    }
    return NIB_OK;
}
