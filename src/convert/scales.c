/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs the text a decoder layer at a time with the weights as stored, in f32. For each input of
 * linear layers that can be scaled, it runs the layer again with the weights that the codes of each
 * candidate stand for, and with the codes of that input if the layer codes its activations; it
 * keeps the candidate whose output is nearest to that of the stored weights. The other weights and
 * inputs are as stored meanwhile.
 */
#include "plan_handle.h"
#include "quantizer.h"
#include "scales_run.h"

#include <math.h>

/* ---- a layer ---- */

/* The squared distance of the layer's output with the weights that are loaded. */
static nib_status measure(nib_scales_run *w, size_t layer, double *lost, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    const int64_t floats = w->chosen.count * g->width;
    const nib_gptq_stream stream = {w->trial, w->chosen.count, w->chosen.first};
    memcpy(w->trial, w->chosen.state, (size_t)floats * sizeof *w->trial);
    NIB_TRY(nib__gptq_run_layer(g, &stream, layer, false, err));
    *lost = 0;
    for (int64_t i = 0; i < floats; i++) {
        const double d = (double)w->trial[i] - (double)w->target[i];
        *lost += d * d;
    }
    return NIB_OK;
}

/* Loads a candidate for the sites of the group, whose inputs it codes. */
static nib_status load_candidate(nib_scales_run *w, int candidate, nib_err *err)
{
    NIB_TRY(nib__scales_make(w, candidate, err));
    for (int i = 0; i < w->group->count; i++) {
        const size_t site = w->group->sites[i];
        const nib_quantize_layer *l = &w->job->layers[site];
        nib_coded_input *input = &w->coded.inputs[site];
        nib_coded_as as = {.method = candidate == 0 ? NIB_PTQ_RTN : l->choice.method,
                           .fold = {.columns = w->columns}};
        if (l->choice.scheme.act == NIB_ACT_I8_STATIC)
            nib__scales_static(w, site, w->columns, &input->codes.static_scale,
                               &input->codes.static_zero);
        input->columns = w->columns;
        input->is_coded = true;
        NIB_TRY(nib__scales_importance(&as.importance, l->importance, w->columns, w->group->k,
                                       &w->coded.held, err));
        NIB_TRY(nib__coded_load(&w->coded, site, &as, err));
    }
    return NIB_OK;
}

static nib_status measure_candidate(nib_scales_run *w, size_t layer, int candidate, double *lost,
                                    nib_err *err)
{
    nib__arena_init(&w->coded.held, &w->g.model->engine->allocator, 0);
    nib_status status = load_candidate(w, candidate, err);
    if (status == NIB_OK)
        status = measure(w, layer, lost, err);
    for (int i = 0; i < w->group->count; i++) {
        w->coded.inputs[w->group->sites[i]].is_coded = false;
        if (status == NIB_OK)
            status = nib__gptq_load_stored(&w->g, w->group->sites[i], err);
    }
    nib__arena_free(&w->coded.held);
    return status;
}

static nib_status choose(nib_scales_run *w, size_t layer, nib_scales_choice *out, nib_err *err)
{
    const nib_fold_group *f = w->group;
    const double codes = nib__scales_code_cost(w, f->sites, (size_t)f->count);
    *out = (nib_scales_choice){.site = f->sites[0]};
    for (int i = 0; i < NIB_SCALES_CANDIDATES; i++) {
        double one = 0;
        NIB_TRY(measure_candidate(w, layer, i, &one, err));
        NIB_TRY(nib__gptq_count(&w->g, codes, err));
        if (i == 0)
            out->lost[0] = out->lost[1] = one;
        else if (one < out->lost[1]) {
            out->lost[1] = one;
            out->candidate = i;
        }
    }
    return NIB_OK;
}

/* Scales the groups of a layer, by the choices of an earlier run if there are some, and otherwise
 * stores those of this one. */
static nib_status scale_groups(nib_scales_run *w, size_t layer, nib_fold_group *groups,
                               size_t count, nib_arena *arena, nib_err *err)
{
    nib_scales_choice *choices = NULL;
    size_t stored = 0, done = 0;
    NIB_TRY(nib__scales_stored(&choices, &stored, w, layer, arena, err));
    const bool is_stored = choices != NULL;
    if (!is_stored)
        choices = nib__arena_take(arena, count + 1, sizeof *choices);
    if (choices == NULL)
        return nib__fail_memory(err, count * sizeof *choices, "the scales of a layer");
    for (size_t i = 0; i < count; i++) {
        w->group = &groups[i];
        if (nib__scales_refuse(w, &groups[i]) != NULL)
            continue;
        NIB_TRY(nib__scales_weigh(w, err));
        if (!is_stored)
            NIB_TRY(choose(w, layer, &choices[done], err));
        else if (done >= stored || choices[done].site != groups[i].sites[0] ||
                 choices[done].candidate < 0 || choices[done].candidate >= NIB_SCALES_CANDIDATES)
            return nib__fail(err, NIB_BAD_INPUT,
                             "%s: part %zu holds scales of another model; remove the directory",
                             nib__gptq_store_path(w->g.store), layer);
        NIB_TRY(nib__scales_keep(w, choices[done].candidate, choices[done].lost, err));
        done++;
    }
    return is_stored ? NIB_OK : nib__scales_store(w, layer, choices, done, err);
}

/* ---- notes ---- */

/* Says of the sites of each reason why their inputs have no scales: every one by its name. */
static nib_status note_unscaled(const nib_scales_run *w, const char *const *why, nib_err *err)
{
    const size_t sites = w->g.model->net.site_count;
    for (size_t i = 0; i < sites; i++) {
        bool known = why[i] == NULL;
        size_t count = 0;
        nib_text names;
        for (size_t j = 0; j < i && !known; j++)
            known = why[j] != NULL && strcmp(why[j], why[i]) == 0;
        if (known)
            continue;
        nib__text_init(&names, &w->g.model->engine->allocator);
        for (size_t j = i; j < sites; j++)
            if (why[j] != NULL && strcmp(why[j], why[i]) == 0)
                nib__text_format(&names, "%s%s", count++ == 0 ? "" : ", ", w->job->layers[j].name);
        if (!names.failed)
            nib__ledger_add_note(w->job->ledger, "method",
                                 "%s: the inputs of %zu layer%s have no scales, as %s: %s",
                                 w->g.job->name, count, count == 1 ? "" : "s", why[i], names.at);
        const bool failed = names.failed;
        nib__text_free(&names);
        if (failed)
            return nib__fail_memory(err, sites, "names of layers");
    }
    return NIB_OK;
}

static void note_kept(const nib_scales_run *w)
{
    nib__ledger_add_note(w->job->ledger, "method",
                         "%s: %zu inputs have scales, folded into what makes them; without scales "
                         "%zu lose least of their layer's output by searched codes, and %zu by "
                         "rounding",
                         w->g.job->name, w->kept[2], w->kept[1], w->kept[0]);
}

/* Scaled inputs all fill a static activation scale, so that another text is clipped sooner. */
static void note_static(const nib_scales_run *w)
{
    size_t count = 0;
    for (size_t i = 0; i < w->g.model->net.site_count; i++)
        count += w->job->layers[i].choice.scheme.act == NIB_ACT_I8_STATIC &&
                 w->job->layers[i].fold.columns != NULL;
    if (count > 0)
        nib__ledger_add_note(w->job->ledger, "method",
                             "%s: the activation scales of %zu layers fit this text, and larger "
                             "inputs of another are clipped; measure the result on another text "
                             "with nibble eval --against",
                             w->g.job->name, count);
}

/* ---- the layers ---- */

static nib_status scale_layer(nib_scales_run *w, size_t layer, const char **why, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    nib_fold_group *groups;
    nib_arena arena;
    size_t begin, end, count;
    float *target = w->chosen.state;
    nib__gptq_find_sites(g, (int64_t)layer, &begin, &end);
    nib__scales_cost_of(&g->cost, w, (int64_t)layer, begin, end);
    NIB_TRY(nib__gptq_load_sites(g, begin, end, err));
    memcpy(w->target, w->chosen.state, (size_t)(w->chosen.count * g->width) * sizeof *w->target);
    const nib_gptq_stream stored = {w->target, w->chosen.count, w->chosen.first};
    NIB_TRY(nib__gptq_run_layer(g, &stored, layer, false, err));
    nib__arena_init(&arena, &g->model->engine->allocator, 0);
    nib_status status = nib__fold_groups(&groups, &count, &g->model->net, (int64_t)layer,
                                         w->job->layers, &arena, err);
    for (size_t i = 0; i < count && status == NIB_OK; i++)
        for (int j = 0; j < groups[i].count; j++)
            if (nib__fold_is_scaled(&w->job->layers[groups[i].sites[j]]))
                why[groups[i].sites[j]] = nib__scales_refuse(w, &groups[i]);
    if (status == NIB_OK)
        status = scale_groups(w, layer, groups, count, &arena, err);
    nib__arena_free(&arena);
    if (status == NIB_OK && w->job->held_out != 0)
        status = nib__coded_check_layer(&w->coded, layer, begin, end, err);
    nib__gptq_unload_sites(g, begin, end);
    w->chosen.state = w->target;
    w->target = target;
    return status;
}

static nib_status scale_layers(nib_scales_run *w, const char **why, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    const uint64_t start = nib__now_ns();
    for (size_t i = 0; i < g->model->net.site_count; i++)
        if (nib__fold_is_scaled(&w->job->layers[i]))
            why[i] = g->model->net.sites[i].experts > 1 ? "they are of experts"
                                                        : "they are outside of the decoder layers";
    NIB_TRY(nib__scales_cost(&g->total, w, err));
    NIB_TRY(nib__gptq_predict(g, err));
    for (int64_t l = 0; l < g->model->net.config.layers; l++)
        NIB_TRY(scale_layer(w, (size_t)l, why, err));
    NIB_TRY(nib__scales_check_end(w, err));
    NIB_TRY(nib__gptq_count(g, g->total, err));
    w->job->seconds = (double)(nib__now_ns() - start) * 1e-9;
    if (w->job->keeps_rounding)
        return NIB_OK;
    note_kept(w);
    note_static(w);
    return note_unscaled(w, why, err);
}

/* ---- opening ---- */

static nib_status allocate(nib_scales_run *w, const nib_plan *plan, nib_arena *arena, nib_err *err)
{
    nib_gptq_run *g = &w->g;
    const nib_network *net = &g->model->net;
    const size_t layers = (size_t)net->config.layers;
    uint64_t widest = 0, floats;
    for (size_t i = 0; i < net->site_count; i++)
        widest = (uint64_t)net->sites[i].k > widest ? (uint64_t)net->sites[i].k : widest;
    g->first = nib__arena_take(arena, layers + 1, sizeof *g->first);
    w->columns = nib__arena_take(arena, widest, sizeof *w->columns);
    w->norm = nib__arena_take(arena, widest, sizeof *w->norm);
    w->largest = nib__arena_take(arena, widest, sizeof *w->largest);
    /* a weight and a bias of each norm, and the bias of each linear layer */
    w->job->vectors =
        nib__arena_take(w->job->arena, 2 * net->graph.kind_count[NIB_WEIGHT_NORM] + net->site_count,
                        sizeof *w->job->vectors);
    if (!g->first || !w->columns || !w->norm || !w->largest || !w->job->vectors)
        return nib__fail_memory(err, widest, "the scales of inputs");
    NIB_TRY(nib__coded_open(&w->coded, plan, nib__fold_is_scaled, arena, err));
    nib__runner_layers(g->first, &g->runner);
    for (size_t l = 1; l <= layers; l++)
        g->width = nib__max(g->width, nib__runner_state_width(&g->runner, g->first[l]));
    NIB_TRY(nib__scales_check_open(w, arena, err));
    floats = (uint64_t)w->chosen.count * (uint64_t)g->width;
    float **const states[] = {&w->chosen.state, &w->target, &w->trial};
    for (size_t i = 0; i < COUNT(states); i++)
        if ((*states[i] = nib__arena_take(arena, floats, sizeof(float))) == NULL)
            return nib__fail_memory(err, floats * sizeof(float), "the hidden states of a text");
    return NIB_OK;
}

static nib_status run_model(void *ctx, const nib_plan *plan, nib_err *err)
{
    nib_scales_run *w = ctx;
    nib_gptq_run *g = &w->g;
    nib_arena arena;
    NIB_TRY(
        nib__runner_open_unloaded(&g->runner, &g->model->net, &plan->assignment, g->window, err));
    nib__arena_init(&arena, &g->model->engine->allocator, 0);
    const char **why = nib__arena_take(&arena, g->model->net.site_count, sizeof *why);
    nib_status status = why != NULL ? allocate(w, plan, &arena, err)
                                    : nib__fail_memory(err, sizeof *why, "the scales of inputs");
    if (status == NIB_OK)
        status = nib__scales_open_store(w, plan, err);
    if (status == NIB_OK)
        status = scale_layers(w, why, err);
    nib__arena_free(&arena);
    nib__runner_close(&g->runner);
    return status;
}

/* Which of the methods there are: "awq", "smooth" or both; NULL: none. */
static const char *name_methods(const nib_quantize_layer *layers, size_t count)
{
    bool found[NIB_PTQ_COUNT] = {0};
    for (size_t i = 0; i < count; i++)
        if (nib__fold_is_scaled(&layers[i]))
            found[layers[i].choice.method] = true;
    return found[NIB_PTQ_AWQ] && found[NIB_PTQ_SMOOTH] ? "awq and smooth"
           : found[NIB_PTQ_AWQ]                        ? nib__ptq_names[NIB_PTQ_AWQ]
           : found[NIB_PTQ_SMOOTH]                     ? nib__ptq_names[NIB_PTQ_SMOOTH]
                                                       : NULL;
}

/* Predicts what run_model takes. */
static nib_status forecast(void *ctx, const nib_plan *plan, nib_err *err)
{
    nib_scales_run *w = ctx;
    nib_gptq_run *g = &w->g;
    const size_t sites = g->model->net.site_count;
    g->runner.plan = &plan->assignment;
    w->is_forecast = true;
    w->coded.inputs = nib__arena_take(w->job->arena, sites, sizeof *w->coded.inputs);
    if (w->coded.inputs == NULL)
        return nib__fail_memory(err, sites * sizeof *w->coded.inputs, "inputs");
    for (size_t i = 0; i < sites; i++)
        w->coded.inputs[i].is_changed = nib__fold_is_scaled(&w->job->layers[i]);
    NIB_TRY(nib__scales_divide(w, err));
    NIB_TRY(nib__scales_cost(&g->total, w, err));
    return nib__gptq_time(g, err);
}

static nib_status with_text(nib_scaling *job, nib_model *model, nib_gptq_job run, nib_err *err)
{
    job->name = name_methods(job->layers, model->net.site_count);
    nib_gptq as = {.name = job->name,
                   .dtype = "f32",
                   .tokens = INT64_MAX,
                   .layers = job->layers,
                   .request = job->options->request,
                   .text = job->options->calibrate,
                   .out = job->out,
                   .ledger = job->ledger,
                   .arena = job->arena,
                   .resumed = job->resumed};
    nib_scales_run w = {.job = job, .g = {.job = &as, .model = model}};
    w.coded = (nib_coded_check){.g = &w.g, .layers = job->layers};
    if (nib__checkpoint_gguf(model->net.checkpoint) != NULL)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method %s changes norms, which are not those of the family in a "
                         "GGUF; `nibble convert` it to --format safetensors first",
                         job->name);
    const nib_status status = nib__gptq_with_text(&w.g, run, &w, err);
    job->store = as.store;
    job->resumed = as.resumed;
    job->multiply_adds = as.multiply_adds;
    job->predicted_s = as.predicted_s;
    return status;
}

nib_status nib__scales(nib_scaling *job, nib_model *model, nib_err *err)
{
    return with_text(job, model, run_model, err);
}

nib_status nib__scales_forecast(nib_scaling *job, nib_model *model, nib_err *err)
{
    return with_text(job, model, forecast, err);
}

nib_status nib__scales_check(const nib_quantize_layer *layers, size_t count, const char *text,
                             nib_err *err)
{
    const char *name = name_methods(layers, count), *other = NULL;
    bool is_smooth = false, is_coded = false;
    for (size_t i = 0; i < count; i++) {
        const nib_choice *c = &layers[i].choice;
        if (nib__ptq_sweeps(c->method) && nib__layer_is_quantized(&layers[i]) && !layers[i].recode)
            other = nib__ptq_names[c->method];
        if (!nib__fold_is_scaled(&layers[i]) || c->method != NIB_PTQ_SMOOTH)
            continue;
        is_smooth = true;
        is_coded = is_coded || c->scheme.act != NIB_ACT_FLOAT;
    }
    if (name == NULL)
        return NIB_OK;
    if (text == NULL)
        return nib__fail(err, NIB_USAGE,
                         "the method %s needs a text to calibrate with; give --calibrate TEXT",
                         name);
    if (is_smooth && !is_coded)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the method smooth makes activations easier to code, and here they are "
                         "floats in all layers; use awq, or a recipe like 8da4w or int8dq");
    return other == NULL ? NIB_OK
                         : nib__fail(err, NIB_UNSUPPORTED,
                                     "the methods %s and %s do not mix: %s codes weights as they "
                                     "are stored, and %s scales them; use search where the recipe "
                                     "has one of them",
                                     other, name, other, name);
}

void nib__scales_note(const nib_scaling *job)
{
    if (job->name != NULL)
        nib__ledger_add_note(job->ledger, "method",
                             "%s: %.3g multiply-adds, predicted to take %.1f s, took %.1f s",
                             job->name, job->multiply_adds, job->predicted_s, job->seconds);
}
