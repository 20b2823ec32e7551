/* SPDX-License-Identifier: Apache-2.0
 *
 * The choices of awq and smooth on disk, so that a killed run goes on after the layers that it
 * finished; and what a run costs.
 */
#include "plan_handle.h"
#include "scales_run.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- the store ---- */

static bool is_saved(const nib_gptq_run *g, size_t site)
{
    return nib__layer_is_quantized(&g->job->layers[site]);
}

/* What the choices depend on besides the model, the recipe and the text's tokens: ranges and
 * weights of inputs, which may come from an imatrix, and the form of biases. */
static nib_hash hash_inputs(const nib_scales_run *w, nib_hasher *hasher)
{
    const char *bias = w->job->options->request->bias;
    if (bias != NULL)
        nib__hasher_add(hasher, bias, strlen(bias));
    for (size_t i = 0; i < w->g.model->net.site_count; i++) {
        const nib_quantize_layer *l = &w->job->layers[i];
        const size_t k = (size_t)w->g.model->net.sites[i].k;
        nib__hasher_add(hasher, &l->act_scale, sizeof l->act_scale);
        if (l->importance != NULL)
            nib__hasher_add(hasher, l->importance, k * sizeof *l->importance);
        if (w->job->stats != NULL && w->job->stats[i].extremes != NULL)
            nib__hasher_add(hasher, w->job->stats[i].extremes, 2 * k * sizeof(float));
    }
    return nib__hasher_finish(hasher);
}

nib_status nib__scales_open_store(nib_scales_run *w, const nib_plan *plan, nib_err *err)
{
    const size_t layers = (size_t)w->g.model->net.config.layers;
    char inputs[33], key[128];
    if (w->job->out == NULL)
        return NIB_OK;
    nib_hasher *hasher = nib__hasher_open();
    if (hasher == NULL)
        return nib__fail_memory(err, 1024, "a hash");
    snprintf(key, sizeof key, "held out: %" PRId64 "\ninputs: %s\n", w->job->held_out,
             nib__hash_text(inputs, hash_inputs(w, hasher)));
    const nib_gptq_saved saved = {.parts = layers,
                                  .layers = layers,
                                  .is_saved = is_saved,
                                  .noun = "scales",
                                  .done = "scaled",
                                  .key = key};
    return nib__gptq_open_store(&w->g, &saved, plan->assignment.dtype, err);
}

nib_status nib__scales_stored(nib_scales_choice **out, size_t *count, const nib_scales_run *w,
                              size_t layer, nib_arena *arena, nib_err *err)
{
    nib_gptq_codes c;
    *out = NULL;
    *count = 0;
    if (!nib__gptq_store_has(w->g.store, layer, NULL))
        return NIB_OK;
    for (uint64_t offset = 0; nib__gptq_store_next(w->g.store, layer, &offset, &c);)
        ++*count;
    *out = nib__arena_take(arena, *count + 1, sizeof **out);
    if (*out == NULL)
        return nib__fail_memory(err, *count * sizeof **out, "the scales of a layer");
    size_t i = 0;
    for (uint64_t offset = 0; nib__gptq_store_next(w->g.store, layer, &offset, &c); i++)
        (*out)[i] = (nib_scales_choice){
            .site = (size_t)c.site,
            .candidate = (int)c.candidate,
            .lost = {c.codes.objective[0], c.codes.objective[1]},
        };
    return NIB_OK;
}

nib_status nib__scales_store(nib_scales_run *w, size_t layer, const nib_scales_choice *choices,
                             size_t count, nib_err *err)
{
    if (w->g.store == NULL)
        return NIB_OK;
    NIB_TRY(nib__gptq_store_begin(w->g.store, layer, err));
    for (size_t i = 0; i < count; i++) {
        const nib_gptq_codes c = {
            .site = choices[i].site,
            .candidate = choices[i].candidate,
            .codes = {.objective = {choices[i].lost[0], choices[i].lost[1]}},
        };
        NIB_TRY(nib__gptq_store_put(w->g.store, &c, err));
    }
    return nib__gptq_store_end(w->g.store, err);
}

/* ---- costs ---- */

/* To search, code, decode and load a weight takes the time of so many multiply-adds at the rate
 * that a run predicts by: 40 ns of a core each (int4wo, 25 M weights, 2 cores of an Intel Xeon with
 * AMX beside other builds, 2026-11-29). */
static const double coding_adds = 2400;

void nib__scales_cost_of(nib_gptq_cost *out, const nib_scales_run *w, int64_t layer, size_t begin,
                         size_t end)
{
    const nib_config *config = &w->g.model->net.config;
    nib__gptq_cost_of(out, &w->g, begin, end);
    /* queries with keys, and weights with values, of half a window on average */
    out->pass += (double)(config->heads * nib__config_head_dim(config, layer) * w->g.window);
}

double nib__scales_code_cost(const nib_scales_run *w, const size_t *sites, size_t count)
{
    double sum = 0;
    for (size_t i = 0; i < count; i++) {
        const nib_site *at = &w->g.model->net.sites[sites[i]];
        if (w->coded.inputs[sites[i]].is_changed)
            sum += coding_adds * (double)at->n * (double)at->k;
    }
    return sum;
}

const char *nib__scales_refuse(const nib_scales_run *w, const nib_fold_group *f)
{
    const nib_network *net = &w->g.model->net;
    if (f->why != NULL)
        return f->why;
    if (!w->is_forecast && w->job->layers[f->sites[0]].importance == NULL)
        return "they are 0 on the text";
    if (f->before != SIZE_MAX && net->sites[f->before].weight.bias != NULL &&
        w->job->options->request->bias != NULL)
        return "the bias of the linear layer before it becomes codes";
    return NULL;
}

/* Multiply-adds of the layer's candidates. */
static nib_status cost_of_candidates(double *out, const nib_scales_run *w, int64_t layer,
                                     double pass, nib_err *err)
{
    nib_fold_group *groups;
    nib_arena arena;
    size_t count;
    nib__arena_init(&arena, &w->g.model->engine->allocator, 0);
    const nib_status status =
        nib__fold_groups(&groups, &count, &w->g.model->net, layer, w->job->layers, &arena, err);
    *out = 0;
    for (size_t i = 0; i < count && status == NIB_OK; i++)
        if (nib__scales_refuse(w, &groups[i]) == NULL)
            *out += NIB_SCALES_CANDIDATES *
                    (pass * (double)w->chosen.count +
                     nib__scales_code_cost(w, groups[i].sites, (size_t)groups[i].count));
    nib__arena_free(&arena);
    return status;
}

/* Multiply-adds of the check of the sites [begin, end). */
static double cost_of_check(const nib_scales_run *w, double pass, size_t begin, size_t end)
{
    double sum = NIB_GPTQ_KINDS * pass * (double)w->job->held_out;
    for (size_t i = begin; i < end && w->job->held_out != 0; i++)
        sum += nib__scales_code_cost(w, &i, 1);
    return sum;
}

nib_status nib__scales_cost(double *out, nib_scales_run *w, nib_err *err)
{
    const nib_gptq_run *g = &w->g;
    const size_t head = g->model->net.site_count - 1;
    nib_gptq_cost cost;
    *out = 0;
    for (int64_t l = 0; l < g->model->net.config.layers; l++) {
        size_t begin, end;
        double candidates = 0;
        nib__gptq_find_sites(g, l, &begin, &end);
        nib__scales_cost_of(&cost, w, l, begin, end);
        if (!nib__gptq_store_has(g->store, (size_t)l, NULL))
            NIB_TRY(cost_of_candidates(&candidates, w, l, cost.pass, err));
        *out += cost.pass * (double)w->chosen.count + candidates +
                cost_of_check(w, cost.pass, begin, end);
    }
    nib__gptq_cost_of(&cost, g, head, head + 1);
    *out += cost_of_check(w, cost.pass, head, head + 1);
    return NIB_OK;
}
