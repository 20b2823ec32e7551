/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether the model with the codes of turned weights is nearer to the stored one than rounded, on
 * the end of the calibration text, which chose none of them.
 */
#include "coded_check.h"
#include "plan_handle.h"
#include "quantizer.h"

typedef struct losing {
    nib_rotating *job;
    nib_gptq_run g;
    nib_coded_check coded;
    nib_rotate_norms norms;
} losing;

void nib__rotate_set_norms(const nib_rotate_norms *norms, nib_runner *runner, bool are_ones)
{
    for (size_t i = 0; i < runner->ops.count; i++)
        if (norms->stored[i] != NULL)
            runner->ops.nodes[i].weight = are_ones ? norms->ones : norms->stored[i];
}

nib_status nib__rotate_find_norms(nib_rotate_norms *out, const nib_rotating *job,
                                  const nib_runner *runner, nib_arena *arena, nib_err *err)
{
    const nib_lowered *ops = &runner->ops;
    const nib_graph *graph = &runner->net->graph;
    const int64_t width = runner->net->config.width;
    out->stored = nib__arena_take(arena, ops->count, sizeof *out->stored);
    out->ones = nib__arena_take(arena, (uint64_t)width, sizeof *out->ones);
    if (out->stored == NULL || out->ones == NULL)
        return nib__fail_memory(err, (uint64_t)width * sizeof *out->ones, "the weights of norms");
    for (int64_t j = 0; j < width; j++)
        out->ones[j] = 1;
    for (size_t i = 0; i < ops->count && job->graph.residual_why == NULL; i++) {
        const nib_node *node = &ops->nodes[i];
        const bool is_norm = node->op == NIB_OP_NORM || node->op == NIB_OP_NORM_QUANT;
        if (is_norm && node->of->weight != NIB_NO_ID &&
            job->graph.norms[graph->weights[node->of->weight].index])
            out->stored[i] = node->weight;
    }
    return NIB_OK;
}

/* ---- the text ---- */

static bool is_changed(const nib_quantize_layer *l)
{
    return nib__rotate_is_turned(l) || l->turn != NULL;
}

/* Rounding's scales of activations, which are those of the inputs as stored. */
static void find_static(losing *w)
{
    for (size_t i = 0; i < w->g.model->net.site_count; i++)
        if (w->coded.inputs[i].codes.row != NULL)
            nib__compute_static_scale(
                &w->coded.inputs[i].rounded_scale, &w->coded.inputs[i].rounded_zero,
                &w->job->layers[i].choice.scheme, w->job->stats[i].stored_range);
}

static nib_status allocate(losing *w, const nib_plan *plan, nib_arena *arena, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    const size_t layers = (size_t)g->model->net.config.layers;
    nib_text_parts parts;
    NIB_TRY(nib__text_parts(&parts, w->job->held_out, g->count, err));
    w->job->held_out = parts.third;
    g->first = nib__arena_take(arena, layers + 1, sizeof *g->first);
    if (g->first == NULL)
        return nib__fail_memory(err, layers, "the check of rotations");
    nib__runner_layers(g->first, &g->runner);
    for (size_t l = 1; l <= layers; l++)
        g->width = nib__max(g->width, nib__runner_state_width(&g->runner, g->first[l]));
    NIB_TRY(nib__rotate_find_norms(&w->norms, w->job, &g->runner, arena, err));
    NIB_TRY(nib__coded_open(&w->coded, plan, is_changed, arena, err));
    find_static(w);
    return nib__coded_begin(&w->coded, parts.third, arena, err);
}

static nib_status run_layers(losing *w, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    const size_t head = g->model->net.site_count - 1;
    nib__gptq_cost_of(&g->cost, g, 0, head + 1);
    g->total = NIB_GPTQ_KINDS * g->cost.pass * (double)w->job->held_out;
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
    losing *w = ctx;
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

nib_status nib__rotate_compare(nib_rotating *job, nib_model *model, nib_err *err)
{
    nib_gptq as = {.name = nib__ptq_names[NIB_PTQ_ROTATE],
                   .dtype = "f32",
                   .tokens = INT64_MAX,
                   .layers = job->layers,
                   .request = job->options->request,
                   .text = job->options->calibrate,
                   .ledger = job->ledger,
                   .arena = job->arena};
    losing w = {.job = job, .g = {.job = &as, .model = model}};
    w.coded = (nib_coded_check){.g = &w.g, .layers = job->layers, .norms = &w.norms};
    return nib__gptq_with_text(&w.g, run_model, &w, err);
}
