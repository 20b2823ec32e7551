/* SPDX-License-Identifier: Apache-2.0
 *
 * Cuts a decoder layer out of a graph. What the layer reads becomes the embedding of a network of
 * its own: a table with a row for each token, whose gradient is that of the inputs.
 */
#include "learn_slice.h"

#include "planner.h"

/* Nodes and weights of the model's graph that become the slice's. */
typedef struct cutting {
    const nib_network *from;
    size_t node, node_end;
    size_t weight, weight_end;
    int read, left; /* values of the model */
} cutting;

/* What follows the layers has layer -1, as what is before them. */
static int64_t layer_of_node(const nib_graph *g, size_t i) { return g->nodes[i].layer; }
static int64_t layer_of_weight(const nib_graph *g, size_t i) { return g->weights[i].layer; }

/* Finds the items of a layer, or of what follows the layers; false: they do not stand together. */
static bool find_range(const nib_graph *g, int64_t (*layer_of)(const nib_graph *, size_t),
                       int64_t layer, size_t count, size_t *begin, size_t *end)
{
    size_t first = count, items = 0;
    *end = count;
    if (layer < 0) {
        while (first > 0 && layer_of(g, first - 1) == layer)
            first--;
        *begin = first;
        return first < count;
    }
    for (size_t i = count; i-- > 0;)
        if (layer_of(g, i) == layer) {
            *end = items == 0 ? i + 1 : *end;
            first = i;
            items++;
        }
    *begin = first;
    return items > 0 && *end - first == items;
}

static bool is_inside(const cutting *c, int value)
{
    const size_t writer = (size_t)c->from->graph.values[value].writer;
    return writer >= c->node && writer < c->node_end;
}

/* Finds what the nodes read and leave; false: more than one value. */
static bool find_values(cutting *c)
{
    const nib_graph *g = &c->from->graph;
    c->read = NIB_NO_ID;
    c->left = g->nodes[c->node_end - 1].out;
    for (size_t i = c->node; i < g->node_count; i++)
        for (int j = 0; j < NIB_NODE_INPUTS; j++) {
            const int value = g->nodes[i].in[j];
            if (value < 0 || (i >= c->node_end && !is_inside(c, value)))
                continue;
            if (i >= c->node_end) {
                if (value != c->left)
                    return false;
            } else if (!is_inside(c, value)) {
                if (c->read != NIB_NO_ID && c->read != value)
                    return false;
                c->read = value;
            }
        }
    return c->read != NIB_NO_ID && c->left != NIB_NO_ID;
}

static bool find_cut(cutting *c, const nib_network *net, int64_t layer)
{
    const nib_graph *g = &net->graph;
    const int64_t wanted = layer < net->config.layers ? layer : -1;
    c->from = net;
    return find_range(g, layer_of_node, wanted, g->node_count, &c->node, &c->node_end) &&
           find_range(g, layer_of_weight, wanted, g->weight_count, &c->weight, &c->weight_end) &&
           find_values(c);
}

bool nib__slice_has(const nib_network *net, int64_t layer)
{
    cutting c;
    return find_cut(&c, net, layer);
}

nib_status nib__slice_fail(int64_t layer, nib_err *err)
{
    return nib__fail(
        err, NIB_UNSUPPORTED,
        "the method learn runs a layer at a time, and decoder layer %lld of this model "
        "reads or leaves more than the hidden state; use qronos or gptq",
        (long long)layer);
}

/* ---- the graph ---- */

/* The table of inputs first, then the layer's weights. */
static void cut_weights(nib_graph *to, const cutting *c, int64_t tokens)
{
    const nib_graph *g = &c->from->graph;
    to->weights[0] = (nib_graph_weight){.kind = NIB_WEIGHT_MATRIX,
                                        .role = NIB_ROLE_EMBED,
                                        .name = "inputs",
                                        .layer = -1,
                                        .experts = 1,
                                        .top_k = 1,
                                        .n = tokens,
                                        .k = g->values[c->read].columns};
    to->weight_count = 1 + c->weight_end - c->weight;
    memcpy(to->weights + 1, g->weights + c->weight,
           (c->weight_end - c->weight) * sizeof *to->weights);
    for (size_t i = 0; i < to->weight_count; i++) {
        nib_graph_weight *w = &to->weights[i];
        w->index = to->kind_count[w->kind]++;
        to->of_kind[w->kind][w->index] = i;
    }
}

static int renumber(const cutting *c, const int *ids, int value)
{
    return value < 0 ? value : value == c->read ? 0 : ids[value];
}

/* A node that looks the inputs up, then the layer's. ids: [values of the model] room */
static void cut_nodes(nib_graph *to, const cutting *c, int *ids)
{
    const nib_graph *g = &c->from->graph;
    to->nodes[0] = (nib_graph_node){
        .op = NIB_OP_EMBED, .in = {NIB_NO_ID, NIB_NO_ID}, .weight = 0, .layer = -1, .heads = 1};
    to->values[0] = (nib_graph_value){.columns = g->values[c->read].columns};
    to->node_count = to->value_count = 1;
    for (size_t i = c->node; i < c->node_end; i++) {
        nib_graph_node *node = &to->nodes[to->node_count];
        *node = g->nodes[i];
        for (int j = 0; j < NIB_NODE_INPUTS; j++)
            node->in[j] = renumber(c, ids, node->in[j]);
        if (node->weight != NIB_NO_ID)
            node->weight += 1 - (int)c->weight;
        if (node->out != NIB_NO_ID) {
            ids[node->out] = (int)to->value_count;
            to->values[to->value_count] = (nib_graph_value){.columns = g->values[node->out].columns,
                                                            .writer = (int)to->node_count};
            node->out = (int)to->value_count++;
        }
        to->node_count++;
    }
}

static nib_status cut_graph(nib_slice *s, const cutting *c, int64_t tokens, nib_err *err)
{
    const size_t nodes = 1 + c->node_end - c->node, weights = 1 + c->weight_end - c->weight;
    nib_graph *to = &s->net.graph;
    *to = (nib_graph){.nodes = nib__arena_take(&s->arena, nodes, sizeof *to->nodes),
                      .values = nib__arena_take(&s->arena, nodes, sizeof *to->values),
                      .weights = nib__arena_take(&s->arena, weights, sizeof *to->weights)};
    int *ids = nib__arena_take(&s->arena, c->from->graph.value_count, sizeof *ids);
    bool ok = to->nodes && to->values && to->weights && ids;
    for (int i = 0; i < NIB_WEIGHT_KINDS; i++) {
        to->of_kind[i] = nib__arena_take(&s->arena, weights, sizeof **to->of_kind);
        ok = ok && to->of_kind[i] != NULL;
    }
    if (!ok)
        return nib__fail_memory(err, nodes * sizeof *to->nodes, "the graph of a layer");
    cut_weights(to, c, tokens);
    cut_nodes(to, c, ids);
    return NIB_OK;
}

/* The sites of the layer, behind one for the inputs. */
static nib_status cut_sites(nib_slice *s, const cutting *c, nib_err *err)
{
    const size_t count = s->net.graph.kind_count[NIB_WEIGHT_MATRIX];
    const nib_graph_weight *w = &c->from->graph.weights[c->weight];
    s->net.sites = nib__arena_take(&s->arena, count, sizeof *s->net.sites);
    if (s->net.sites == NULL)
        return nib__fail_memory(err, count * sizeof *s->net.sites, "the weights of a layer");
    while (w->kind != NIB_WEIGHT_MATRIX)
        w++;
    s->site = w->index;
    s->net.site_count = count;
    s->net.sites[0] = c->from->sites[0];
    s->net.sites[0].n = s->net.graph.weights[0].n;
    s->net.sites[0].bias = false;
    memcpy(s->net.sites + 1, c->from->sites + s->site, (count - 1) * sizeof *s->net.sites);
    return NIB_OK;
}

/* ---- opening ---- */

static nib_status plan_slice(nib_slice *s, const nib_assignment *of, nib_err *err)
{
    static const nib_scheme f32 = {.code = NIB_CODE_F32, .symmetric = true, .act_symmetric = true};
    const size_t count = s->net.site_count;
    nib_layer *layers = nib__arena_take(&s->arena, count, sizeof *layers);
    if (layers == NULL)
        return nib__fail_memory(err, count * sizeof *layers, "the layers of a step");
    for (size_t i = 0; i < count; i++) {
        const nib_site *at = &s->net.sites[i];
        layers[i] = (nib_layer){.name = at->name,
                                .role = at->role,
                                .n = at->n,
                                .k = at->k,
                                .experts = at->experts,
                                .top_k = at->top_k,
                                .heads = at->heads,
                                .stored = f32,
                                .asked = f32,
                                .qat = f32,
                                .bias = at->bias,
                                .bias_form = at->bias_form,
                                .plain = true,
                                .shares_input = at->shares_input};
    }
    const nib_policy policy = {.graph = &s->net.graph,
                               .dtype = NIB_TYPE_F32,
                               .training = true,
                               .m = s->tokens,
                               .checkpointing = NIB_AC_NONE};
    NIB_TRY(nib__plan_layers(&s->plan, layers, count, nib__plan_host(of), &policy,
                             &s->net.engine->allocator, err));
    s->is_open[0] = true;
    return s->plan.denied.status == NIB_OK
               ? NIB_OK
               : nib__fail(err, s->plan.denied.status, "%s", s->plan.denied.text);
}

static nib_status load_param(nib_slice *s, const nib_param *p, nib_err *err)
{
    float *to = s->weights + p->at;
    if (p->entry->kind == NIB_WEIGHT_NORM)
        return nib__network_norm(to, &s->net, p->entry->index,
                                 p->role == NIB_PARAM_BIAS ? NIB_NORM_BIAS : NIB_NORM_STORED, err);
    const nib_weight *w = &s->net.sites[p->entry->index].weight;
    if (p->role == NIB_PARAM_BIAS)
        nib__weight_bias(w, to);
    for (int64_t i = 0; p->role != NIB_PARAM_BIAS && i < p->rows; i++)
        nib__weight_row(w, i, to + i * p->columns);
    return NIB_OK;
}

static nib_status load_weights(nib_slice *s, nib_err *err)
{
    const nib_step_options *options = &s->step.options;
    s->weights = nib__block_take(s->params.total * sizeof *s->weights);
    s->gradient = nib__block_take(nib__load_block(&s->params.load) * sizeof *s->gradient);
    s->rows = nib__arena_take(&s->arena, (uint64_t)s->tokens, sizeof *s->rows);
    s->start = nib__arena_take(&s->arena, (uint64_t)options->batch + 1, sizeof *s->start);
    if (!s->weights || !s->gradient || !s->rows || !s->start)
        return nib__fail_memory(err, 2 * s->params.total * sizeof *s->weights,
                                "the weights of a layer and their gradient");
    for (size_t i = 0; i < s->params.count; i++)
        if (i != s->params.weight[0])
            NIB_TRY(load_param(s, &s->params.items[i], err));
    for (int64_t i = 0; i < s->tokens; i++)
        s->rows[i] = (int32_t)i;
    for (int64_t i = 0; i <= options->batch; i++)
        s->start[i] = (int32_t)(i * options->length);
    return NIB_OK;
}

static nib_status open_slice(nib_slice *s, const nib_assignment *plan, const cutting *c,
                             int64_t sequences, const nib_step_loss *loss, nib_err *err)
{
    const nib_step_options options = {.batch = sequences,
                                      .length = s->tokens / sequences,
                                      .checkpointing = NIB_AC_NONE,
                                      .loss = *loss};
    nib_refusal refusal;
    NIB_TRY(cut_graph(s, c, s->tokens, err));
    NIB_TRY(cut_sites(s, c, err));
    NIB_TRY(nib__params_list(&s->params, &s->net, &s->arena, err));
    NIB_TRY(plan_slice(s, plan, err));
    NIB_TRY(nib__step_open(&s->step, &s->net, &s->plan, &s->params, &options, &refusal, err));
    s->is_open[1] = true;
    return load_weights(s, err);
}

nib_status nib__slice_open(nib_slice *out, const nib_network *net, const nib_assignment *plan,
                           int64_t layer, int64_t sequences, int64_t length,
                           const nib_step_loss *loss, nib_err *err)
{
    cutting c;
    *out = (nib_slice){.net = *net, .tokens = sequences * length};
    out->net.tied = false;
    if (!find_cut(&c, net, layer))
        return nib__slice_fail(layer, err);
    nib__arena_init(&out->arena, &net->engine->allocator, 0);
    const nib_status status = open_slice(out, plan, &c, sequences, loss, err);
    if (status != NIB_OK)
        nib__slice_close(out);
    return status;
}

void nib__slice_close(nib_slice *s)
{
    nib__block_free(s->weights, s->params.total * sizeof *s->weights);
    nib__block_free(s->gradient, nib__load_block(&s->params.load) * sizeof *s->gradient);
    if (s->is_open[1])
        nib__step_close(&s->step);
    if (s->is_open[0])
        nib__assignment_free(&s->plan);
    nib__arena_free(&s->arena);
    *s = (nib_slice){0};
}

uint64_t nib__slice_bytes(const nib_slice *s)
{
    return s->params.total * sizeof *s->weights +
           nib__load_block(&s->params.load) * sizeof *s->gradient + nib__step_bytes(&s->step) +
           s->arena.total;
}

/* ---- running ---- */

float *nib__slice_inputs(const nib_slice *s)
{
    return s->weights + s->params.items[s->params.weight[0]].at;
}

static uint64_t place_of(const nib_slice *s, size_t site)
{
    return s->params.items[s->params.weight[1 + site - s->site]].at;
}

float *nib__slice_weight(const nib_slice *s, size_t site) { return s->weights + place_of(s, site); }

const float *nib__slice_gradient(const nib_slice *s, size_t site)
{
    return s->gradient + place_of(s, site);
}

const float *nib__slice_inputs_gradient(const nib_slice *s)
{
    return s->gradient + s->params.items[s->params.weight[0]].at;
}

nib_status nib__slice_run(nib_slice *s, float scale, bool wants_gradient, double *loss,
                          nib_err *err)
{
    const nib_micro_batch batch = {
        .m = s->tokens, .documents = s->step.options.batch, .ids = s->rows, .start = s->start};
    nib_losses losses = {0};
    const nib_status status = nib__step_run(&s->step, s->weights, &batch, scale,
                                            wants_gradient ? s->gradient : NULL, &losses, err);
    *loss = losses.text;
    return status;
}
