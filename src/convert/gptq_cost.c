/* SPDX-License-Identifier: Apache-2.0
 *
 * What a run of the methods gptq and qronos costs, in multiply-adds, and how long that takes here.
 */
#include "gptq_run.h"

enum {
    SEARCH = 100, /* operations to search the scale of a group, for each of its weights */
    F64 = 4,      /* a multiply-add in f64 without fma, in those of f32 */
};

static const double share_of_rate = 0.6; /* of the machine's rate, that all this reaches */

void nib__gptq_cost_of(nib_gptq_cost *out, const nib_gptq_run *g, size_t begin, size_t end)
{
    size_t owner = SIZE_MAX;
    bool has_pairs = false;
    *out = (nib_gptq_cost){0};
    for (size_t i = begin; i < end; i++) {
        const nib_site *at = &g->model->net.sites[i];
        const double n = (double)at->n, k = (double)at->k,
                     share = nib__layer_share(g->runner.plan->layers[i].layer);
        out->pass += share * n * k;
        if (!nib__gptq_is_coded(g, i))
            continue;
        const bool is_paired = nib__gptq_is_paired(g, i);
        out->codes += n * k * (k + SEARCH); /* k / 2 for rounding's error, and for the codes */
        if (is_paired)
            out->codes += n * k * 1.5 * k;
        if (nib__gptq_owner(g, i) == owner)
            continue;
        owner = nib__gptq_owner(g, i);
        out->moments += share * k * k / 2;
        out->codes += F64 * k * k * k / 6;
        if (!is_paired)
            continue;
        out->moments += k * k;
        has_pairs = true;
    }
    for (size_t i = begin; has_pairs && i < end; i = nib__gptq_stage_end(g, i, end))
        out->stages++;
}

double nib__gptq_layer_cost(const nib_gptq_run *g, const nib_gptq_cost *c, bool is_stored)
{
    const double tokens = (double)g->coded.count,
                 passes = c->stages > 0 ? 2 * (double)c->stages : 1;
    return (tokens + (double)(g->stored.count + g->rounded.count)) * c->pass +
           (is_stored ? 0 : tokens * (passes * c->pass + c->moments) + c->codes);
}

double nib__gptq_head_cost(const nib_gptq_run *g, const nib_gptq_cost *c, bool is_stored)
{
    return 3 * (double)g->rounded.count * c->pass +
           (is_stored ? 0 : (double)g->coded.count * c->moments + c->codes);
}

nib_status nib__gptq_time(nib_gptq_run *g, nib_err *err)
{
    nib_engine *engine = g->model->engine;
    NIB_TRY(nib__engine_measure(engine, err));
    g->rate = engine->here.rate[NIB_UNIT_F32] / 2;
    g->job->multiply_adds = g->total;
    g->job->predicted_s = g->rate > 0 ? g->total / (g->rate * share_of_rate) : 0;
    return NIB_OK;
}

nib_status nib__gptq_predict(nib_gptq_run *g, nib_err *err)
{
    nib_engine *engine = g->model->engine;
    const nib_callbacks *call = &engine->callbacks;
    nib_text line;
    NIB_TRY(nib__gptq_time(g, err));
    if (call->log == NULL)
        return NIB_OK;
    nib__text_init(&line, &engine->allocator);
    nib__text_format(&line,
                     "%s: %.3g multiply-adds, about %.0f s at %.0f %% of this machine's %.3g per "
                     "second",
                     g->job->name, g->total, g->job->predicted_s, 100 * share_of_rate, g->rate);
    if (!line.failed)
        call->log(call->ctx, line.at);
    nib__text_free(&line);
    return NIB_OK;
}

nib_status nib__gptq_count(nib_gptq_run *g, double multiply_adds, nib_err *err)
{
    enum { UNIT = 1 << 20 };
    g->done += multiply_adds;
    return nib__engine_progress(g->model->engine, g->job->name,
                                (uint64_t)((g->done < g->total ? g->done : g->total) / UNIT),
                                (uint64_t)(g->total / UNIT) + 1)
               ? NIB_OK
               : nib__fail(err, NIB_CANCELLED, "the method %s was cancelled%s", g->job->name,
                           g->store != NULL ? "; the same command continues after the layers that "
                                              "it finished"
                                            : "");
}

uint64_t nib__gptq_store_bound(const nib_quantize_layer *layers, const nib_network *net)
{
    enum {
        VALUES = 2, /* scale and zero, f32 */
        STATES = 2, /* of learn's steps, while one replaces the other */
    };
    uint64_t sum = 0;
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_choice *c = &layers[i].choice;
        const bool is_learned = c->method == NIB_PTQ_LEARN;
        const uint64_t n = (uint64_t)net->sites[i].n, k = (uint64_t)net->sites[i].k,
                       groups = n * (uint64_t)nib__scheme_groups(&c->scheme, (int64_t)k),
                       values = VALUES * sizeof(float) * groups + NIB_GPTQ_STORE_EXTRA,
                       codes = n * k + values;
        if (nib__layer_is_quantized(&layers[i]) && nib__ptq_sweeps(c->method))
            sum += is_learned ? 3 * codes + STATES * values : codes;
    }
    return sum;
}
