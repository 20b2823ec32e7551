/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds where the scales of inputs can go, by the graph alone: what writes a value, and everything
 * that reads it.
 */
#include "fold.h"

nib_fold_use nib__fold_use_of(const nib_graph *g, int value)
{
    nib_fold_use use = {.linear = true};
    for (size_t i = 0; i < g->node_count; i++)
        for (int j = 0; j < NIB_NODE_INPUTS; j++)
            if (g->nodes[i].in[j] == value) {
                use.count++;
                use.linear = use.linear && g->nodes[i].op == NIB_OP_LINEAR;
                use.last = &g->nodes[i];
            }
    return use;
}

static int count_uses(const nib_graph *g, int weight)
{
    int count = 0;
    for (size_t i = 0; i < g->node_count; i++)
        count += g->nodes[i].weight == weight;
    return count;
}

/* The site of the linear layer that writes a value which only one operation reads; SIZE_MAX: there
 * is none. */
static size_t linear_before(const nib_graph *g, int value)
{
    if (value == NIB_NO_ID)
        return SIZE_MAX;
    const nib_graph_node *n = &g->nodes[g->values[value].writer];
    return n->op == NIB_OP_LINEAR && nib__fold_use_of(g, value).count == 1
               ? g->weights[n->weight].index
               : SIZE_MAX;
}

static void find_norm(nib_fold_group *out, const nib_graph *g, const nib_graph_node *n)
{
    if (n->weight == NIB_NO_ID)
        out->why = "the norm before it has no weight";
    else if (n->heads > 1 || n->part || g->weights[n->weight].n != out->k)
        out->why = "the norm before it is not of the whole input";
    else if (count_uses(g, n->weight) > 1)
        out->why = "the norm before it is also used elsewhere";
    else
        out->norm = (int)g->weights[n->weight].index;
}

/* The layer of values of an attention, whose heads may share them. */
static void find_values(nib_fold_group *out, const nib_network *net, int64_t layer)
{
    const nib_graph *g = &net->graph;
    if (net->config.latent.rank > 0) {
        out->why = "attention before it is latent";
        return;
    }
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *n = &g->nodes[i];
        if (n->op != NIB_OP_STORE_KV || n->layer != layer)
            continue;
        out->before = linear_before(g, n->in[1]);
        if (out->before == SIZE_MAX)
            break;
        out->head_dim = nib__config_head_dim(&net->config, layer);
        out->heads_per_row = out->k / net->sites[out->before].n;
        if (out->heads_per_row * net->sites[out->before].n != out->k)
            break;
        return;
    }
    out->before = SIZE_MAX;
    out->why = "the values of attention before it are not those of a linear layer alone";
}

static void find_up(nib_fold_group *out, const nib_graph *g, const nib_graph_node *n)
{
    if (n->in[1] == NIB_NO_ID)
        out->why = "the activation before it is not linear, and has no gate";
    else if (n->activation == NIB_SWIGLU_CLAMPED)
        out->why = "the activation before it clamps";
    else if (n->channel != 0 || (out->before = linear_before(g, n->in[1])) == SIZE_MAX)
        out->why = "what its gate multiplies is not the output of a linear layer alone";
}

/* What makes the value. */
static void find_place(nib_fold_group *out, const nib_network *net, int value, int64_t layer)
{
    const nib_graph *g = &net->graph;
    const nib_graph_node *n = &g->nodes[g->values[value].writer];
    if (!nib__fold_use_of(g, value).linear)
        out->why = "more than linear layers reads its input";
    else if (n->op == NIB_OP_NORM)
        find_norm(out, g, n);
    else if (n->op == NIB_OP_ATTN)
        find_values(out, net, layer);
    else if (n->op == NIB_OP_SWIGLU)
        find_up(out, g, n);
    else
        out->why = "neither a norm nor a linear layer is before it";
    if (out->before != SIZE_MAX && net->sites[out->before].n * out->heads_per_row != out->k)
        out->why = "the layer before it has other outputs";
}

bool nib__fold_is_scaled(const nib_quantize_layer *l)
{
    return nib__layer_is_quantized(l) && !l->recode && nib__ptq_scales(l->choice.method);
}

/* Whether the recipe lets all weights of a group change. */
static void check_layers(nib_fold_group *out, const nib_network *net,
                         const nib_quantize_layer *layers)
{
    const nib_ptq_method method = layers[out->sites[0]].choice.method;
    bool all = out->before == SIZE_MAX || nib__fold_is_scaled(&layers[out->before]);
    bool coded = method != NIB_PTQ_SMOOTH;
    if (out->why == NULL && !all)
        out->why = "the linear layer before it is not of a method that scales inputs";
    for (int i = 0; i < out->count && out->why == NULL; i++) {
        const size_t site = out->sites[i];
        const nib_act act = layers[site].choice.scheme.act;
        coded = coded || act != NIB_ACT_FLOAT;
        if (!nib__fold_is_scaled(&layers[site]) || layers[site].choice.method != method)
            out->why = "a layer that reads the same input is not of the same method";
        else if (act == NIB_ACT_I8_STATIC && method == NIB_PTQ_AWQ)
            out->why = "its activation scale is static";
        else if (!net->sites[site].plain)
            out->why = "its stored weight is not plain";
    }
    if (out->why == NULL && !coded)
        out->why = "its activations are floats";
}

nib_status nib__fold_groups(nib_fold_group **groups, size_t *count, const nib_network *net,
                            int64_t layer, const nib_quantize_layer *layers, nib_arena *arena,
                            nib_err *err)
{
    const nib_graph *g = &net->graph;
    int *values = nib__arena_take(arena, g->node_count, sizeof *values);
    *groups = nib__arena_take(arena, g->node_count, sizeof **groups);
    *count = 0;
    if (values == NULL || *groups == NULL)
        return nib__fail_memory(err, g->node_count * sizeof **groups, "the inputs of a layer");
    for (size_t i = 0; i < g->node_count; i++) {
        const nib_graph_node *n = &g->nodes[i];
        size_t at = 0;
        if (n->op != NIB_OP_LINEAR || g->weights[n->weight].layer != layer)
            continue;
        while (at < *count && values[at] != n->in[0])
            at++;
        nib_fold_group *to = &(*groups)[at];
        if (at == *count) {
            values[(*count)++] = n->in[0];
            *to = (nib_fold_group){.norm = -1,
                                   .before = SIZE_MAX,
                                   .k = g->values[n->in[0]].columns,
                                   .head_dim = 1,
                                   .heads_per_row = 1};
            find_place(to, net, n->in[0], layer);
        }
        if (to->count < NIB_FOLD_READERS)
            to->sites[to->count++] = g->weights[n->weight].index;
        else
            to->why = "too many layers read its input";
    }
    for (size_t i = 0; i < *count && layers != NULL; i++)
        check_layers(&(*groups)[i], net, layers);
    return NIB_OK;
}

int64_t nib__fold_row_of(const nib_fold_group *group, int64_t j)
{
    const int64_t head = j / group->head_dim, channel = j % group->head_dim;
    return head / group->heads_per_row * group->head_dim + channel;
}
