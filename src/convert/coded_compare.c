/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the model by a method that does not run it layer by layer, as search, hqq and rotate, is
 * nearer to the stored one than rounded, on the end of the calibration text, which chose no codes.
 */
#include "coded_check.h"
#include "plan_handle.h"
#include "quantizer.h"

#include <inttypes.h>

typedef struct comparing {
    nib_coded_comparison *job;
    nib_gptq_run g;
    nib_coded_check coded;
    nib_rotate_norms norms;
} comparing;

/* Rounding's scales of activations, which are those of the inputs as stored. */
static void find_static(comparing *w)
{
    for (size_t i = 0; i < w->g.model->net.site_count; i++)
        if (w->coded.inputs[i].codes.row != NULL &&
            w->job->layers[i].choice.scheme.act == NIB_ACT_I8_STATIC)
            nib__compute_static_scale(
                &w->coded.inputs[i].rounded_scale, &w->coded.inputs[i].rounded_zero,
                &w->job->layers[i].choice.scheme, w->job->stats[i].stored_range);
}

static nib_status allocate(comparing *w, const nib_plan *plan, nib_arena *arena, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    const size_t layers = (size_t)g->model->net.config.layers;
    if (w->job->tokens == NIB_CHECKED_DEFAULT)
        w->job->tokens = nib__min(nib__text_end(g->count), w->job->most);
    if (w->job->tokens > g->count)
        return nib__fail(err, NIB_BAD_INPUT,
                         "the calibration text has %" PRId64 " tokens, and %" PRId64
                         " of them are to check the whole model",
                         g->count, w->job->tokens);
    g->first = nib__arena_take(arena, layers + 1, sizeof *g->first);
    if (g->first == NULL)
        return nib__fail_memory(err, layers, "the check of the whole model");
    nib__runner_layers(g->first, &g->runner);
    for (size_t l = 1; l <= layers; l++)
        g->width = nib__max(g->width, nib__runner_state_width(&g->runner, g->first[l]));
    if (w->job->rotating != NULL) {
        NIB_TRY(nib__rotate_find_norms(&w->norms, w->job->rotating, &g->runner, arena, err));
        w->coded.norms = &w->norms;
    }
    NIB_TRY(nib__coded_open(&w->coded, plan, w->job->is_changed, arena, err));
    find_static(w);
    return nib__coded_begin(&w->coded, w->job->tokens, arena, err);
}

static nib_status run_layers(comparing *w, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    const size_t head = g->model->net.site_count - 1;
    nib__gptq_cost_of(&g->cost, g, 0, head + 1);
    g->total = NIB_GPTQ_KINDS * g->cost.pass * (double)w->job->tokens;
    for (int64_t l = 0; l < g->model->net.config.layers; l++) {
        size_t begin, end;
        nib__gptq_find_sites(g, l, &begin, &end);
        nib__gptq_cost_of(&g->cost, g, begin, end);
        NIB_TRY(nib__gptq_load_sites(g, begin, end, err));
        NIB_TRY(nib__coded_check_layer(&w->coded, (size_t)l, begin, end, err));
    }
    NIB_TRY(nib__coded_end(&w->coded, &w->job->keeps_rounding, err));
    return nib__gptq_count(g, g->total, err);
}

static nib_status run_model(void *ctx, const nib_plan *plan, nib_err *err)
{
    comparing *w = ctx;
    nib_gptq_run *g = &w->g;
    nib_arena arena;
    NIB_TRY(
        nib__runner_open_unloaded(&g->runner, &g->model->net, &plan->assignment, g->window, err));
    nib__arena_init(&arena, &g->model->engine->allocator, 0);
    nib_status status = allocate(w, plan, &arena, err);
    if (status == NIB_OK)
        status = run_layers(w, err);
    nib__arena_free(&arena);
    nib__runner_close(&g->runner);
    return status;
}

nib_status nib__coded_compare(nib_coded_comparison *job, nib_model *model, nib_err *err)
{
    nib_gptq as = {.name = job->name,
                   .dtype = "f32",
                   .tokens = INT64_MAX,
                   .layers = job->layers,
                   .request = job->options->request,
                   .text = job->options->calibrate,
                   .ledger = job->ledger,
                   .arena = job->arena};
    comparing w = {.job = job, .g = {.job = &as, .model = model}};
    w.coded = (nib_coded_check){.g = &w.g, .layers = job->layers};
    return nib__gptq_with_text(&w.g, run_model, &w, err);
}
