/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_quantize: the recipe's choices, calibrated where they have static scales, handed to the
 * stream.
 */
#include "library.h"
#include "quantize.h"
#include "quantizer.h"

typedef struct work {
    nib_model *model;
    const nib_quantize_options *options;
    nib_arena arena;
    nib_recipe *recipe;
    const char *out; /* options->out without slashes at its end: they make no other place */
    nib_quantize_layer *layers;
    nib_ledger ledger;
} work;

static bool is_static(const nib_choice *choice)
{
    return !choice->keep && choice->scheme.act == NIB_ACT_I8_STATIC;
}

static nib_status choose_layers(work *w, nib_err *err)
{
    const nib_network *net = &w->model->net;
    const nib_recipe_layer *layers;
    NIB_TRY(nib__model_recipe(&w->recipe, &layers, w->model, &w->options->request, &w->arena, err));
    w->layers = nib__arena_take(&w->arena, net->site_count, sizeof *w->layers);
    if (!w->layers)
        return nib__fail_memory(err, net->site_count * sizeof *w->layers, "the layers");
    for (size_t i = 0; i < net->site_count; i++) {
        nib_quantize_layer *l = &w->layers[i];
        *l = (nib_quantize_layer){.name = net->sites[i].name, .role = net->sites[i].role};
        if (l->role == NIB_ROLE_HEAD && net->tied)
            l->source = net->sites[0].name;
        nib__recipe_resolve(&l->choice, w->recipe, &layers[i]);
    }
    return NIB_OK;
}

static nib_status calibrate(work *w, nib_err *err)
{
    const size_t count = w->model->net.site_count;
    const char *text = w->options->calibrate;
    const bool needed = nib__recipe_needs_calibration(w->recipe);
    if (text && !needed)
        return nib__fail(err, NIB_USAGE,
                         "--calibrate %s has no effect: the recipe has no static activation scales",
                         text);
    if (!needed || w->options->dry_run) /* sizes and ledger do not depend on the scales */
        return NIB_OK;
    if (!text)
        return nib__fail(
            err, NIB_USAGE,
            "the recipe has static activation scales; give a text to calibrate them with "
            "--calibrate TEXT");
    float(*ranges)[2] = nib__arena_take(&w->arena, count, sizeof *ranges);
    if (!ranges)
        return nib__fail_memory(err, count * sizeof *ranges, "ranges");
    NIB_TRY(nib__calibrate(ranges, w->model, &w->options->request, text, err));
    for (size_t i = 0; i < count; i++) {
        nib_quantize_layer *l = &w->layers[i];
        if (is_static(&l->choice))
            nib__static_scale(&l->act_scale, &l->act_zero, &l->choice.scheme, ranges[i]);
    }
    return NIB_OK;
}

static void add_notes(work *w)
{
    const nib_ledger *from = &w->model->net.notes;
    for (size_t i = 0; i < from->note_count; i++)
        nib__ledger_add_note(&w->ledger, from->notes[i].code, "%s", from->notes[i].text);
    for (size_t i = 0; i < nib__recipe_note_count(w->recipe); i++)
        nib__ledger_add_note(&w->ledger, "recipe", "%s", nib__recipe_note(w->recipe, i));
}

static nib_status name_output(work *w, nib_err *err)
{
    const char *out = w->options->out;
    size_t size = strlen(out);
    while (size > 1 && out[size - 1] == '/')
        size--;
    if (size == 0)
        return nib__fail(err, NIB_USAGE, "the name of the output is empty");
    w->out = nib__arena_copy(&w->arena, out, size);
    return w->out ? NIB_OK : nib__fail_memory(err, size, "a path");
}

static nib_status run(work *w, nib_form form, const nib_sink *sink, nib_err *err)
{
    const nib_quantize_options *o = w->options;
    nib_engine *engine = w->model->engine;
    NIB_TRY(name_output(w, err));
    NIB_TRY(choose_layers(w, err));
    NIB_TRY(calibrate(w, err));
    const nib_quantize_job job = {.checkpoint = w->model->net.checkpoint,
                                  .layers = w->layers,
                                  .count = w->model->net.site_count,
                                  .recipe = nib__recipe_text(w->recipe),
                                  .out = w->out,
                                  /* strictly: no other format than the default one either */
                                  .format = o->format == NULL && o->request.strict ? "torchao"
                                                                                   : o->format,
                                  .force = o->force,
                                  .dry_run = o->dry_run,
                                  .pool = engine->pool,
                                  .callbacks = &engine->callbacks,
                                  .allocator = &engine->allocator};
    nib_quantize_report report;
    NIB_TRY(nib__quantize(&w->ledger, &report, &job, err));
    add_notes(w);
    nib_text text;
    nib__text_init(&text, &engine->allocator);
    nib__quantize_render(&w->ledger, &report, form, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_quantize(nib_model *model, const nib_quantize_options *options, nib_form form,
                        const nib_sink *sink, nib_err *err)
{
    if (!model->net.checkpoint)
        return nib__fail(
            err, NIB_USAGE,
            "%s: only a config was given, without weights to quantize; name the directory or "
            "the .safetensors file",
            model->net.directory);
    if (!options->out || !options->request.recipe)
        return nib__fail(err, NIB_USAGE, "quantizing wants a recipe and a place for the result");
    NIB_TRY(nib__model_runs(model, err));
    work w = {.model = model, .options = options};
    nib__arena_init(&w.arena, &model->engine->allocator, 0);
    nib__ledger_init(&w.ledger, &model->engine->allocator);
    const nib_status status = run(&w, form, sink, err);
    nib__ledger_free(&w.ledger);
    nib__recipe_free(w.recipe);
    nib__arena_free(&w.arena);
    return status;
}
