/* SPDX-License-Identifier: Apache-2.0
 *
 * The residual stream is the value of the embedding, and all that shares its basis: sums, constant
 * factors, norms and copies of it. A linear layer between two bases can have the rotation merged
 * into its columns or rows; any other operation cannot follow.
 */
#include "rotate_graph.h"

#include "fold.h"

typedef struct walk {
    const nib_graph *g;
    nib_rotate_graph *out;
    bool *turned; /* [value_count] in the basis of the residual stream */
    int *norm;    /* [value_count] weight whose norm wrote it; NIB_NO_ID: none */
} walk;

static bool is_linear(nib_op op) { return op == NIB_OP_LINEAR || op == NIB_OP_LINEAR_EXPERTS; }

/* Whether input and output of an operation have one basis. */
static bool keeps_basis(const nib_graph_node *n)
{
    return n->op == NIB_OP_ADD || n->op == NIB_OP_SCALE || n->op == NIB_OP_NORM ||
           n->op == NIB_OP_DISPATCH || n->op == NIB_OP_COMBINE;
}

static bool turns(const walk *w, int value) { return value != NIB_NO_ID && w->turned[value]; }

/* The second input of DISPATCH and COMBINE is a choice of experts. */
static int inputs_of(const nib_graph_node *n) { return n->op == NIB_OP_ADD ? 2 : 1; }

/* Spreads the basis over an operation; whether anything changed. */
static bool spread(walk *w, const nib_graph_node *n)
{
    bool any = turns(w, n->out), changed = false;
    if (!keeps_basis(n))
        return false;
    for (int i = 0; i < inputs_of(n); i++)
        any = any || turns(w, n->in[i]);
    for (int i = 0; i < inputs_of(n) && any; i++) {
        changed = changed || !w->turned[n->in[i]];
        w->turned[n->in[i]] = true;
    }
    changed = changed || (any && !w->turned[n->out]);
    if (any)
        w->turned[n->out] = true;
    return changed;
}

static void refuse(walk *w, const char *why, const char *at)
{
    if (w->out->residual_why != NULL)
        return;
    w->out->residual_why = why;
    w->out->residual_at = at;
}

/* The name of the norm before an operation, of its weight, or of one that reads the same value. */
static const char *name_of(const walk *w, const nib_graph_node *n)
{
    const nib_graph *g = w->g;
    for (int i = 0; i < inputs_of(n); i++)
        if (!is_linear(n->op) && n->in[i] != NIB_NO_ID && w->norm[n->in[i]] != NIB_NO_ID)
            return g->weights[w->norm[n->in[i]]].name;
    if (n->weight != NIB_NO_ID)
        return g->weights[n->weight].name;
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].in[0] == n->in[0] && g->nodes[i].weight != NIB_NO_ID)
            return g->weights[g->nodes[i].weight].name;
    return "";
}

/* Why an operation on the residual stream cannot follow a rotation; NULL: it can. */
static const char *find_refusal(const walk *w, const nib_graph_node *n)
{
    if (n->op == NIB_OP_NORM && n->weight != NIB_NO_ID && w->g->weights[n->weight].centered)
        return "a norm subtracts the mean (LayerNorm)";
    if (n->op == NIB_OP_NORM && (n->heads > 1 || n->part))
        return "a norm is of parts of it";
    if (n->op == NIB_OP_NORM && n->weight != NIB_NO_ID && w->g->weights[n->weight].bias)
        return "a norm adds a bias";
    if (n->op == NIB_OP_SCALE && n->cap != 0)
        return "it is capped";
    if (n->op == NIB_OP_SCALE && n->weight != NIB_NO_ID && w->g->weights[n->weight].n != 1)
        return "its channels are scaled one by one";
    if (!keeps_basis(n) && !is_linear(n->op) && n->op != NIB_OP_EMBED)
        return "an operation that is not linear reads it";
    for (int i = 0; i < inputs_of(n); i++)
        if (!is_linear(n->op) && n->op != NIB_OP_DISPATCH && n->in[i] != NIB_NO_ID &&
            w->norm[n->in[i]] != NIB_NO_ID)
            return "a norm with weights is between a linear layer and the stream";
    return NULL;
}

/* The sites of a linear operation: the first, and how many with the step between them. */
static void mark(const walk *w, const nib_graph_node *n, bool rows, int norm)
{
    const int64_t count = n->op == NIB_OP_LINEAR_EXPERTS ? n->routing->experts : 1;
    for (int64_t e = 0; e < count; e++) {
        const nib_graph_weight *weight = &w->g->weights[n->weight + (int)e * n->weight_step];
        nib_rotate_site *site = &w->out->sites[weight->index];
        if (rows) {
            site->residual_rows = true;
            continue;
        }
        site->residual_columns = true;
        site->norm = norm != NIB_NO_ID ? (int)w->g->weights[norm].index : -1;
    }
}

/* Notes which norm wrote each value of the stream. */
static void find_norms(walk *w)
{
    for (size_t i = 0; i < w->g->node_count; i++) {
        const nib_graph_node *n = &w->g->nodes[i];
        if (n->out == NIB_NO_ID || !w->turned[n->out])
            continue;
        if (n->op == NIB_OP_NORM)
            w->norm[n->out] = n->weight;
        else if (n->op == NIB_OP_DISPATCH)
            w->norm[n->out] = w->norm[n->in[0]];
    }
}

static void find_residual(walk *w)
{
    const nib_graph *g = w->g;
    bool changed = true;
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == NIB_OP_EMBED && g->weights[g->nodes[i].weight].index == 0)
            w->turned[g->nodes[i].out] = true;
    while (changed) {
        changed = false;
        for (size_t i = 0; i < g->node_count; i++)
            changed = spread(w, &g->nodes[i]) || changed;
    }
    find_norms(w);
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *n = &g->nodes[i];
        const bool in = turns(w, n->in[0]) || turns(w, n->in[1]), out = turns(w, n->out);
        const char *why = in || out ? find_refusal(w, n) : NULL;
        if (why != NULL)
            refuse(w, why, name_of(w, n));
        if (n->op == NIB_OP_NORM && in && n->weight != NIB_NO_ID)
            w->out->norms[g->weights[n->weight].index] = true;
        if (is_linear(n->op) && in)
            mark(w, n, false, w->norm[n->in[0]]);
        if (is_linear(n->op) && out)
            mark(w, n, true, NIB_NO_ID);
        if (n->op == NIB_OP_EMBED && out)
            w->out->sites[g->weights[n->weight].index].residual_columns = true;
    }
}

/* ---- values ---- */

/* Finds what reads the values of a layer; returns why that cannot follow, or NULL. */
static const char *find_attended(const walk *w, int64_t layer, bool marks)
{
    const nib_graph *g = w->g;
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *n = &g->nodes[i];
        if (n->op != NIB_OP_ATTN || n->layer != layer)
            continue;
        const nib_fold_use use = nib__fold_use_of(g, n->out);
        if (use.count != 1 || !use.linear)
            return "more than a linear layer reads what attention makes of them";
        nib_rotate_site *site = &w->out->sites[g->weights[use.last->weight].index];
        if (marks) {
            site->value_columns = true;
            site->layer = layer;
        }
    }
    return NULL;
}

static const char *find_values(const walk *w, const nib_network *net, const nib_graph_node *store)
{
    const nib_graph *g = w->g;
    if (net->config.latent.rank > 0 || store->in[1] == NIB_NO_ID)
        return "attention is latent";
    const nib_graph_node *n = &g->nodes[g->values[store->in[1]].writer];
    if (n->op == NIB_OP_NORM)
        return "they pass a norm";
    if (n->op != NIB_OP_LINEAR || nib__fold_use_of(g, store->in[1]).count != 1)
        return "they are not those of a linear layer alone";
    const nib_graph_weight *weight = &g->weights[n->weight];
    if (weight->n % nib__config_head_dim(&net->config, store->layer) != 0)
        return "they are not whole heads";
    const char *why = find_attended(w, store->layer, false);
    if (why != NULL)
        return why;
    nib_rotate_site *site = &w->out->sites[weight->index];
    site->value_rows = true;
    site->layer = store->layer;
    return find_attended(w, store->layer, true);
}

nib_status nib__rotate_graph(nib_rotate_graph *out, const nib_network *net, nib_arena *arena,
                             nib_err *err)
{
    const nib_graph *g = &net->graph;
    const size_t layers = (size_t)net->config.layers;
    walk w = {.g = g,
              .out = out,
              .turned = nib__arena_take(arena, g->value_count, sizeof *w.turned),
              .norm = nib__arena_take(arena, g->value_count, sizeof *w.norm)};
    *out = (nib_rotate_graph){
        .sites = nib__arena_take(arena, net->site_count, sizeof *out->sites),
        .norms = nib__arena_take(arena, g->kind_count[NIB_WEIGHT_NORM] + 1, sizeof *out->norms),
        .values_why = nib__arena_take(arena, layers, sizeof *out->values_why)};
    if (!w.turned || !w.norm || !out->sites || !out->norms || !out->values_why)
        return nib__fail_memory(err, net->site_count * sizeof *out->sites, "rotations");
    for (size_t i = 0; i < g->value_count; i++)
        w.norm[i] = NIB_NO_ID;
    for (size_t i = 0; i < net->site_count; i++)
        out->sites[i].norm = -1;
    for (size_t l = 0; l < layers; l++)
        out->values_why[l] = "";
    find_residual(&w);
    for (size_t i = 0; i < g->node_count; i++)
        if (g->nodes[i].op == NIB_OP_STORE_KV)
            out->values_why[g->nodes[i].layer] = find_values(&w, net, &g->nodes[i]);
    return NIB_OK;
}
