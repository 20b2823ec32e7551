/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides which rotations are merged, and describes what they make of each weight, norm and bias.
 */
#include "rotate.h"

#include <inttypes.h>
#include <stdio.h>

typedef struct work {
    nib_rotating *job;
    nib_model *model;
    const float **factors; /* [norms] their weights; NULL: not read yet */
} work;

bool nib__rotate_is_turned(const nib_quantize_layer *l)
{
    return nib__layer_is_quantized(l) && !l->recode && l->choice.method == NIB_PTQ_ROTATE;
}

/* ---- what forbids it ---- */

static nib_status check_methods(const work *w, nib_err *err)
{
    for (size_t i = 0; i < w->model->net.site_count; i++) {
        const nib_quantize_layer *l = &w->job->layers[i];
        const nib_ptq_method method = l->choice.method;
        if (nib__layer_is_quantized(l) && !l->recode &&
            (nib__ptq_sweeps(method) || nib__ptq_scales(method)))
            return nib__fail(err, NIB_UNSUPPORTED,
                             "the methods %s and rotate do not mix: %s starts at the weights as "
                             "they are stored, and rotate changes them; use one of them",
                             nib__ptq_names[method], nib__ptq_names[method]);
    }
    return nib__checkpoint_gguf(w->model->net.checkpoint) == NULL
               ? NIB_OK
               : nib__fail(err, NIB_UNSUPPORTED,
                           "the method rotate changes norms, which are not those of the family in "
                           "a GGUF; `nibble convert` it to --format safetensors first");
}

/* Whether a bias is a tensor of its own, which can get new values. */
static bool has_own_bias(const work *w, const nib_site *at)
{
    char name[512];
    snprintf(name, sizeof name, "%s.bias", at->name);
    const nib_tensor *t = nib__checkpoint_find(w->model->net.checkpoint, name);
    return t != NULL && t->rank == 1 && t->shape[0] == at->n && nib__type_is_float(t->type) &&
           t->data == at->weight.bias;
}

/* Why a weight cannot turn, to end a sentence; NULL: it can. */
static const char *check_site(const work *w, size_t site, bool rows)
{
    const nib_site *at = &w->model->net.sites[site];
    if (nib__scheme_is_quantized(&at->stored))
        return "its weight is stored as codes";
    if (!rows || at->weight.bias == NULL)
        return NULL;
    if (w->job->options->request->bias != NULL)
        return "its bias becomes codes";
    return has_own_bias(w, at) ? NULL : "its bias is not a tensor of its own";
}

/* Checks the weights around the residual stream. NIB_UNSUPPORTED: one has another method. */
static nib_status check_residual(const work *w, nib_err *err)
{
    nib_rotate_graph *graph = &w->job->graph;
    char a[NIB_SHOWN];
    for (size_t i = 0; i < w->model->net.site_count && graph->residual_why == NULL; i++) {
        const nib_rotate_site *site = &graph->sites[i];
        if (!site->residual_rows && !site->residual_columns)
            continue;
        graph->residual_why = check_site(w, i, site->residual_rows);
        graph->residual_at = w->model->net.sites[i].name;
    }
    for (size_t i = 0; i < w->model->net.site_count && graph->residual_why == NULL; i++) {
        const nib_rotate_site *site = &graph->sites[i];
        const nib_quantize_layer *l = &w->job->layers[i];
        if ((site->residual_rows || site->residual_columns) && nib__layer_is_quantized(l) &&
            !nib__rotate_is_turned(l))
            return nib__fail(err, NIB_UNSUPPORTED,
                             "the method rotate rotates the residual stream of the whole model, "
                             "and %s, which reads or writes it, is quantized by %s; give all "
                             "layers the method rotate, or keep that one as floats",
                             nib__escape_string(a, l->name), nib__ptq_names[l->choice.method]);
    }
    return NIB_OK;
}

/* Checks the weights around the values of each layer. */
static void check_values(const work *w)
{
    nib_rotate_graph *graph = &w->job->graph;
    for (int64_t layer = 0; layer < w->model->net.config.layers; layer++) {
        bool any = false;
        for (size_t i = 0; i < w->model->net.site_count; i++) {
            const nib_rotate_site *site = &graph->sites[i];
            const nib_quantize_layer *l = &w->job->layers[i];
            if ((!site->value_rows && !site->value_columns) || site->layer != layer ||
                graph->values_why[layer] != NULL)
                continue;
            any = any || nib__rotate_is_turned(l);
            graph->values_why[layer] = check_site(w, i, site->value_rows);
            if (nib__layer_is_quantized(l) && !nib__rotate_is_turned(l))
                graph->values_why[layer] = "a layer that makes or reads them has another method";
        }
        if (!any && graph->values_why[layer] == NULL)
            graph->values_why[layer] = "no layer that makes or reads them has the method";
    }
}

/* ---- rotations ---- */

static nib_status make_rotation(nib_rotation **out, const work *w, int64_t size, uint64_t seed,
                                nib_err *err)
{
    *out = nib__arena_take(w->job->arena, 1, sizeof **out);
    if (*out == NULL)
        return nib__fail_memory(err, sizeof **out, "a rotation");
    return nib__rotation_make(*out, size, seed, w->job->arena, err);
}

/* Draws the rotations that can go into the model; their widths may refuse them, too. */
static nib_status make_rotations(work *w, nib_err *err)
{
    const nib_config *config = &w->model->net.config;
    nib_rotate_graph *graph = &w->job->graph;
    nib_err why;
    if (graph->residual_why == NULL &&
        make_rotation(&w->job->residual, w, config->width, w->job->seed, &why) != NIB_OK) {
        if (why.status != NIB_UNSUPPORTED)
            return nib__fail(err, why.status, "%s", why.text);
        w->job->residual = NULL;
        graph->residual_why = nib__ledger_text(w->job->ledger, "%s", why.text);
        graph->residual_at = "config.json";
    }
    for (int64_t l = 0; l < config->layers; l++)
        if (graph->values_why[l] == NULL)
            NIB_TRY(make_rotation(&w->job->values[l], w, nib__config_head_dim(config, l),
                                  w->job->seed + (uint64_t)l + 1, err));
    return NIB_OK;
}

/* ---- weights ---- */

static nib_status read_factors(work *w, int norm, nib_err *err)
{
    const nib_network *net = &w->model->net;
    const nib_graph_weight *weight = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, (size_t)norm);
    if (w->factors[norm] != NULL)
        return NIB_OK;
    float *values = nib__arena_take(w->job->arena, (uint64_t)weight->n, sizeof *values);
    if (values == NULL)
        return nib__fail_memory(err, (uint64_t)weight->n * sizeof *values, "a norm weight");
    w->factors[norm] = values;
    return nib__network_norm(values, net, (size_t)norm, NIB_NORM_WEIGHT, err);
}

static nib_status add_vector(nib_rotating *job, const char *name, const float *values,
                             int64_t count, nib_err *err)
{
    return nib__vector_add(job->vectors, &job->vector_count, name, values, count, job->arena, err);
}

static nib_status turn_bias(const work *w, const nib_site *at, const nib_turn *turn, nib_err *err)
{
    nib_arena *arena = w->job->arena;
    const uint64_t n = (uint64_t)at->n;
    char name[512];
    float *bias = nib__arena_take(arena, n, sizeof *bias);
    double *room = nib__arena_take(arena, n + (uint64_t)turn->rows->base, sizeof *room);
    if (bias == NULL || room == NULL)
        return nib__fail_memory(err, n * sizeof *room, "a bias");
    nib__turn_bias(bias, turn, room);
    snprintf(name, sizeof name, "%s.bias", at->name);
    return add_vector(w->job, name, bias, at->n, err);
}

static nib_status turn_site(work *w, size_t i, nib_err *err)
{
    const nib_rotate_site *site = &w->job->graph.sites[i];
    const nib_site *at = &w->model->net.sites[i];
    const nib_rotation *values =
        site->value_rows || site->value_columns ? w->job->values[site->layer] : NULL;
    const nib_turn turn = {.from = &at->weight,
                           .rows = site->residual_rows ? w->job->residual
                                   : site->value_rows  ? values
                                                       : NULL,
                           .columns = site->residual_columns ? w->job->residual
                                      : site->value_columns  ? values
                                                             : NULL};
    if (turn.rows == NULL && turn.columns == NULL)
        return NIB_OK;
    nib_turn *to = nib__arena_take(w->job->arena, 1, sizeof *to);
    if (to == NULL)
        return nib__fail_memory(err, sizeof *to, "a rotation");
    *to = turn;
    if (w->job->residual != NULL && site->norm >= 0) {
        NIB_TRY(read_factors(w, site->norm, err));
        to->factors = w->factors[site->norm];
    }
    w->job->layers[i].turn = to;
    return to->rows != NULL && at->weight.bias != NULL ? turn_bias(w, at, to, err) : NIB_OK;
}

/* Norms whose weights went into the layers after them multiply by 1. */
static nib_status reset_norms(const work *w, nib_err *err)
{
    const nib_network *net = &w->model->net;
    char name[NIB_NORM_NAME];
    for (size_t i = 0; i < net->graph.kind_count[NIB_WEIGHT_NORM] && w->job->residual != NULL;
         i++) {
        const nib_graph_weight *norm = nib__graph_weight(&net->graph, NIB_WEIGHT_NORM, i);
        if (!w->job->graph.norms[i])
            continue;
        float *values = nib__arena_take(w->job->arena, (uint64_t)norm->n, sizeof *values);
        if (values == NULL)
            return nib__fail_memory(err, (uint64_t)norm->n * sizeof *values, "a norm weight");
        for (int64_t j = 0; j < norm->n; j++)
            values[j] = (float)(1 - norm->offset);
        nib__network_norm_name(name, net, i, NIB_NORM_STORED);
        NIB_TRY(add_vector(w->job, name, values, norm->n, err));
    }
    return NIB_OK;
}

/* ---- the whole ---- */

static nib_status allocate(work *w, nib_err *err)
{
    const nib_network *net = &w->model->net;
    const size_t norms = net->graph.kind_count[NIB_WEIGHT_NORM];
    nib_arena *arena = w->job->arena;
    w->job->values = nib__arena_take(arena, (uint64_t)net->config.layers, sizeof(nib_rotation *));
    w->factors = nib__arena_take(arena, norms + 1, sizeof(float *));
    w->job->vectors = nib__arena_take(arena, norms + net->site_count, sizeof *w->job->vectors);
    return w->job->values && w->factors && w->job->vectors
               ? NIB_OK
               : nib__fail_memory(err, net->site_count * sizeof *w->job->vectors, "rotations");
}

/* Refuses a model into which nothing can go. */
static nib_status check_any(const work *w, nib_err *err)
{
    const char *const *why = w->job->graph.values_why;
    bool any = w->job->residual != NULL;
    for (int64_t l = 0; l < w->model->net.config.layers; l++)
        any = any || w->job->values[l] != NULL;
    return any ? NIB_OK
               : nib__fail(err, NIB_UNSUPPORTED,
                           "the method rotate finds nothing to rotate in this model: the residual "
                           "stream is not rotated, as %s: %s; the values of attention are not, as "
                           "%s; use search",
                           w->job->graph.residual_why, w->job->graph.residual_at,
                           why[0] != NULL && *why[0] != 0 ? why[0] : "no layer stores them");
}

nib_status nib__rotate(nib_rotating *job, nib_model *model, nib_err *err)
{
    work w = {.job = job, .model = model};
    bool any = false;
    for (size_t i = 0; i < model->net.site_count; i++)
        any = any || nib__rotate_is_turned(&job->layers[i]);
    if (!any)
        return NIB_OK;
    NIB_TRY(check_methods(&w, err));
    NIB_TRY(nib__rotate_graph(&job->graph, &model->net, job->arena, err));
    NIB_TRY(allocate(&w, err));
    NIB_TRY(check_residual(&w, err));
    check_values(&w);
    NIB_TRY(make_rotations(&w, err));
    NIB_TRY(check_any(&w, err));
    for (size_t i = 0; i < model->net.site_count; i++)
        NIB_TRY(turn_site(&w, i, err));
    NIB_TRY(reset_norms(&w, err));
    return NIB_OK;
}

/* ---- notes ---- */

static const char *describe(const nib_rotation *r)
{
    return r->is_hadamard ? "a Hadamard matrix with random signs"
                          : "a Hadamard matrix with random signs times a random orthogonal one";
}

static void note_residual(const nib_rotating *job, const nib_model *model)
{
    nib_ledger *ledger = job->ledger;
    const nib_rotate_graph *graph = &job->graph;
    char a[NIB_SHOWN];
    size_t count = 0, norms = 0;
    if (job->residual == NULL) {
        nib__ledger_add_note(ledger, "method",
                             "rotate: the residual stream is not rotated, as %s: %s",
                             graph->residual_why, nib__escape_string(a, graph->residual_at));
        return;
    }
    for (size_t i = 0; i < model->net.site_count; i++)
        count += graph->sites[i].residual_rows || graph->sites[i].residual_columns;
    for (size_t i = 0; i < model->net.graph.kind_count[NIB_WEIGHT_NORM]; i++)
        norms += graph->norms[i];
    nib__ledger_add_note(ledger, "method",
                         "rotate: the residual stream is rotated by %s of %" PRId64
                         ", seed %" PRIu64 ", merged into %zu layers; %zu norms become 1, and "
                         "their weights part of the layers after them",
                         describe(job->residual), job->residual->size, job->seed, count, norms);
}

/* An output layer that shares the embedding's tensor gets its own, because only one of them takes
 * the weights of the final norm. */
static void note_untied(const nib_rotating *job, const nib_model *model)
{
    const nib_network *net = &model->net;
    const nib_quantize_layer *head = &job->layers[net->site_count - 1];
    if (job->residual != NULL && net->tied && !nib__layer_is_quantized(head))
        nib__ledger_add_note(job->ledger, "method",
                             "rotate: the output layer shares the embedding's tensor, and only one "
                             "of them takes the final norm's weights, so they become two tensors; "
                             "%" PRIu64 " bytes more",
                             nib__network_head(net)->stored_bytes);
}

/* One note for the layers whose values rotate, and one for each reason why others' do not. */
static void note_values(const nib_rotating *job, const nib_model *model)
{
    const int64_t layers = model->net.config.layers;
    const char *const *why = job->graph.values_why;
    const nib_rotation *first = NULL;
    int64_t count = 0;
    for (int64_t l = layers; l-- > 0;)
        if (job->values[l] != NULL) {
            first = job->values[l];
            count++;
        }
    if (count > 0)
        nib__ledger_add_note(job->ledger, "method",
                             "rotate: the values of attention are rotated in %" PRId64
                             " layers, each head by %s of %" PRId64,
                             count, describe(first), first->size);
    for (int64_t l = 0; l < layers; l++) {
        int64_t same = 0, before = 0;
        for (int64_t i = 0; i < layers && why[l] != NULL && *why[l] != 0; i++)
            if (why[i] != NULL && strcmp(why[i], why[l]) == 0) {
                same++;
                before += i < l;
            }
        if (same > 0 && before == 0)
            nib__ledger_add_note(job->ledger, "method",
                                 "rotate: the values of attention are not rotated in %" PRId64
                                 " layers, as %s: the first is model.layers.%" PRId64,
                                 same, why[l], l);
    }
}

void nib__rotate_note(const nib_rotating *job, const nib_model *model)
{
    if (job->graph.sites == NULL)
        return;
    note_residual(job, model);
    note_untied(job, model);
    note_values(job, model);
}
