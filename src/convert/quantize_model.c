/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_quantize: streams the recipe's choices, after calibrating those with static scales.
 * nib_convert: streams every weight as it is.
 */
#include "arch.h"
#include "bias_codes.h"
#include "convert_gguf.h"
#include "hf_files.h"
#include "public_struct.h"
#include "quantize_run.h"
#include "quantizer.h"
#include "renames.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

typedef nib_quantize_run work;

static bool is_gguf(const char *format) { return format && strcmp(format, "gguf") == 0; }

/* True if the weight is a plain tensor that can be copied. */
static bool is_plain(const nib_network *net, const nib_quantize_layer *l)
{
    const char *dialect = nib__checkpoint_dialect(net->checkpoint, l->source ? l->source : l->name);
    return dialect && strcmp(dialect, "safetensors") == 0;
}

void nib__layer_keep(nib_quantize_layer *l, const nib_scheme *stored)
{
    const bool cast = !l->choice.keep && !nib__scheme_is_quantized(&l->choice.scheme) &&
                      !nib__scheme_is_quantized(stored);
    l->recode = l->choice.keep || cast;
    if (l->choice.keep)
        l->choice.scheme = *stored;
    if (l->choice.weight_only && nib__scheme_is_quantized(stored) && l->role != NIB_ROLE_EMBED)
        l->choice.scheme.act = NIB_ACT_FLOAT, l->choice.scheme.act_symmetric = false;
    l->choice.keep = false;
}

/* Refuses a method that no layer would use. */
static nib_status check_method(const work *w, nib_err *err)
{
    for (size_t i = 0; i < w->model->net.site_count; i++)
        if (nib__layer_is_quantized(&w->layers[i]) && !w->layers[i].recode &&
            !w->layers[i].choice.has_method)
            return NIB_OK;
    return w->options->method == NULL
               ? NIB_OK
               : nib__fail(err, NIB_USAGE,
                           "--method %.40s has no effect: no layer is quantized here without a "
                           "method of its own in the recipe",
                           w->options->method);
}

static nib_status choose_layers(work *w, nib_err *err)
{
    const nib_network *net = &w->model->net;
    nib_ptq_method method = NIB_PTQ_RTN;
    const nib_recipe_layer *layers;
    if (w->options->method != NULL)
        NIB_TRY(nib__method_read(&method, w->options->method, err));
    NIB_TRY(nib__model_recipe(&w->recipe, &layers, w->model, w->options->request, &w->arena, err));
    w->layers = nib__arena_take(&w->arena, net->site_count, sizeof *w->layers);
    if (!w->layers)
        return nib__fail_memory(err, net->site_count * sizeof *w->layers, "the layers");
    for (size_t i = 0; i < net->site_count; i++) {
        nib_quantize_layer *l = &w->layers[i];
        *l = (nib_quantize_layer){.name = net->sites[i].name, .role = net->sites[i].role};
        if (l->role == NIB_ROLE_HEAD && net->tied)
            l->source = net->sites[0].name;
        nib__recipe_resolve(&l->choice, w->recipe, &layers[i]);
        if (!l->choice.has_method)
            l->choice.method = method;
        if (!is_plain(net, l) || is_gguf(w->options->format))
            nib__layer_keep(l, &net->sites[i].stored);
    }
    return check_method(w, err);
}

/* Reports recipe settings that only concern runs and are not stored. */
static void report_run_setting(nib_ledger *ledger, const char *name, const char *asked,
                               const char *option)
{
    if (asked)
        nib__ledger_add_setting(ledger,
                                &(nib_ledger_setting){.code = "recipe",
                                                      .name = name,
                                                      .asked = asked,
                                                      .by = NIB_BY_RECIPE,
                                                      .relation = NIB_SETTING_NONE},
                                "it is not stored; pass %s %s when you run the quantized model",
                                option, asked);
}

/* Reports a packed layout of a recipe: it concerns runs, and files hold plain codes. */
static void report_layouts(work *w)
{
    const nib_choice *first = NULL;
    size_t count = 0;
    for (size_t i = w->model->net.site_count; i-- > 0;) {
        const nib_choice *choice = &w->layers[i].choice;
        if (choice->keep || choice->hint_text == NULL || choice->hint == NIB_HINT_NONE)
            continue;
        first = choice;
        count++;
    }
    if (first)
        nib__ledger_add_setting(&w->ledger,
                                &(nib_ledger_setting){.code = "recipe",
                                                      .name = "layout",
                                                      .asked = first->hint_text,
                                                      .done = "plain",
                                                      .by = NIB_BY_RECIPE,
                                                      .relation = NIB_SETTING_EQUIVALENT},
                                "codes of %zu layers are stored plain, and packed for the machine "
                                "that runs them",
                                count);
}

static void add_notes(work *w)
{
    nib__ledger_append(&w->ledger, &w->model->net.notes);
    nib__ledger_append(&w->ledger, nib__checkpoint_ledger(w->model->net.checkpoint));
    if (!w->recipe)
        return;
    nib__ledger_append(&w->ledger, nib__recipe_ledger(w->recipe));
    report_run_setting(&w->ledger, "precision", nib__recipe_dtype(w->recipe), "--dtype");
    report_run_setting(&w->ledger, "executor", nib__recipe_device(w->recipe), "--device");
    report_layouts(w);
}

static nib_status name_output(work *w, const char *out, nib_err *err)
{
    size_t size = strlen(out);
    while (size > 1 && out[size - 1] == '/')
        size--;
    if (size == 0)
        return nib__fail(err, NIB_USAGE, "the name of the output is empty");
    w->out = nib__arena_copy(&w->arena, out, size);
    return w->out ? NIB_OK : nib__fail_memory(err, size, "a path");
}

/* Makes a config.json for a GGUF or a checkpoint of Meta's from what they contain. */
static nib_status make_config(work *w, nib_err *err)
{
    const nib_checkpoint *cp = w->model->net.checkpoint;
    const char *directory = nib__checkpoint_directory(cp);
    const char *path = directory ? nib__path_join(&w->arena, directory, "config.json") : "";
    if (!path)
        return nib__fail_memory(err, strlen(directory), "a path");
    if (!nib__checkpoint_gguf(cp) && nib__path_kind(path) == NIB_PATH_FILE)
        return NIB_OK;
    const nib_status status = nib__config_write(&w->config, &w->model->net.config, err);
    return status == NIB_OK ? status : nib__fail_in(err, status, nib__checkpoint_path(cp));
}

/* Completes the job with what quantizing and converting share. */
static nib_status complete_job(work *w, nib_quantize_job *job, nib_err *err)
{
    nib_engine *engine = w->model->engine;
    const nib_network *net = &w->model->net;
    if (is_gguf(job->format))
        NIB_TRY(nib__convert_gguf(job, &w->head, w->model, &w->layers[1].choice.scheme, &w->arena,
                                  &w->ledger, err));
    else
        NIB_TRY(make_config(w, err));
    if (!is_gguf(job->format) && nib__checkpoint_gguf(w->model->net.checkpoint) != NULL &&
        !nib__ends_with(w->out, ".safetensors"))
        NIB_TRY(nib__hf_files(job, w->model, &w->arena, &w->ledger, err));
    if (!is_gguf(job->format) && nib__checkpoint_gguf(w->model->net.checkpoint) != NULL)
        job->norm_shift = -nib__rename_norm_offset(nib__family_of(&w->model->net.config)->gguf);
    job->has_rates = net->config.delta_converted;
    job->fused = w->model->net.unknown ? nib__checkpoint_fused(w->model->net.checkpoint)
                                       : nib__family_of(&w->model->net.config)->fused;
    job->family = w->model->net.unknown ? NULL : nib__arch_name(w->model->net.config.arch);
    job->config = w->config.at;
    job->checkpoint = w->model->net.checkpoint;
    job->layers = w->layers;
    job->count = w->model->net.site_count;
    job->weights = nib__network_weights(net);
    job->out = w->out;
    job->receipt = nib__asked_json;
    job->receipt_ctx = &w->asked;
    job->examine = w->examiner != NULL ? w->examiner->examine : NULL;
    job->examine_ctx = w->examiner != NULL ? w->examiner->ctx : NULL;
    job->examine_directory = w->examiner != NULL && w->examiner->directory;
    job->pool = engine->pool;
    job->isa = engine->isa;
    job->callbacks = &engine->callbacks;
    job->allocator = &engine->allocator;
    return NIB_OK;
}

/* Refuses a tokenizer that nothing would use. calibrate: the text to tokenize; NULL: none. */
static nib_status check_tokenizer(const nib_model *model, const char *format, const char *calibrate,
                                  nib_err *err)
{
    if (model->tokenizer_path == NULL || calibrate != NULL || is_gguf(format))
        return NIB_OK;
    return nib__fail(err, NIB_USAGE,
                     "--tokenizer has no effect: the format %s has no tokenizer inside, and the "
                     "model's own is copied; --format gguf and `nibble quantize --calibrate` use "
                     "it",
                     format != NULL ? format : "torchao");
}

/* Refuses an output name with the ending of another format. */
static nib_status check_file_ending(const work *w, const char *format, nib_err *err)
{
    char a[NIB_SHOWN];
    if (is_gguf(format) || !nib__ends_with(w->out, ".gguf"))
        return NIB_OK;
    return nib__fail(
        err, NIB_USAGE, "%s: the name ends in .gguf, but %s%s; give --format gguf, or another name",
        nib__escape_string(a, w->out), format != NULL ? "the format is " : "no format is given",
        format != NULL ? format : "");
}

/* Refuses --pack for a single file: packed weights go beside a config.json. */
static nib_status check_pack(const work *w, bool pack, const char *format, nib_err *err)
{
    const char *from = nib__checkpoint_path(w->model->net.checkpoint);
    if (!pack || !(is_gguf(format) || nib__ends_with(w->out, ".safetensors") ||
                   nib__ends_with(from, ".safetensors")))
        return NIB_OK;
    return nib__fail(err, NIB_USAGE,
                     "%s: packed weights need the directory of a model, and this is a single "
                     "file; give a directory as MODEL and OUT, or omit --pack",
                     w->out);
}

static nib_status pack_result(void *ctx, const char *directory, nib_err *err)
{
    work *w = ctx;
    const nib_packing_job job = {
        .model = w->model, .out = w->out, .ledger = &w->ledger, .arena = &w->arena};
    return nib__pack_output(&job, directory, err);
}

/* Writes the chosen recipe; directory: of OUT before it is complete; NULL: OUT is a file. */
static nib_status write_rules(work *w, const char *directory, nib_err *err)
{
    const char *recipe = nib__mixed_recipe(w->mixed), *path = w->options->budget->rules;
    if (path == NULL)
        path = directory != NULL ? nib__path_join(&w->arena, directory, "recipe.json")
                                 : nib__ledger_text(&w->ledger, "%s.recipe.json", w->out);
    if (path == NULL)
        return nib__fail_memory(err, strlen(w->out), "a path");
    return nib__file_replace(path, recipe, strlen(recipe), &w->model->engine->allocator, err);
}

/* Adds files to the directory of OUT. */
static nib_status complete_output(void *ctx, const char *directory, nib_err *err)
{
    work *w = ctx;
    if (w->mixed != NULL && w->options->budget->rules == NULL)
        NIB_TRY(write_rules(w, directory, err));
    return w->options->pack ? pack_result(ctx, directory, err) : NIB_OK;
}

/* After OUT is written: the recipe elsewhere, and what the budget came to. */
static nib_status finish_mixed(work *w, nib_err *err)
{
    const nib_quantize_options *o = w->options;
    if (w->mixed == NULL)
        return NIB_OK;
    if (o->budget->rules != NULL || (!o->dry_run && nib__path_kind(w->out) == NIB_PATH_FILE))
        NIB_TRY(write_rules(w, NULL, err));
    return o->dry_run ? NIB_OK : nib__mixed_measure(w->mixed, w->out, err);
}

static void render_json(const work *w, const nib_quantize_report *report, nib_text *out)
{
    nib_jsonw json;
    nib__jsonw_report(&json, out);
    nib__quantize_json(&w->ledger, report, &json);
    if (w->mixed != NULL) {
        nib__jsonw_key(&json, "budget");
        nib__jsonw_object(&json);
        nib__mixed_json(w->mixed, &json);
        nib__jsonw_object_end(&json);
    }
    if (w->plan != NULL) {
        nib__jsonw_key(&json, "for");
        nib__jsonw_object(&json);
        nib__plan_json(w->plan, &json);
        nib__jsonw_object_end(&json);
    }
    nib__jsonw_report_end(&json);
}

/* The seconds that the methods of a dry run would say before they start; NaN: none does. */
static nib_status forecast(double *seconds, work *w, nib_err *err)
{
    nib_gptq coding = {.layers = w->layers,
                       .request = w->options->request,
                       .text = w->options->calibrate,
                       .rounds = w->examiner->rounds,
                       .ledger = &w->ledger,
                       .arena = &w->arena};
    nib_scaling scaling = {.layers = w->layers,
                           .options = w->options,
                           .held_out = w->examiner->held_out,
                           .ledger = &w->ledger,
                           .arena = &w->arena};
    size_t coded = 0, scaled = 0;
    for (int m = 0; m < NIB_PTQ_COUNT; m++) {
        const size_t count = nib__methods_count(w, (nib_ptq_method)m);
        coded += nib__ptq_sweeps((nib_ptq_method)m) ? count : 0;
        scaled += nib__ptq_scales((nib_ptq_method)m) ? count : 0;
    }
    *seconds = NAN;
    if (coded > 0) {
        NIB_TRY(nib__gptq_forecast(&coding, w->model, err));
        *seconds = coding.predicted_s;
    } else if (scaled > 0) { /* they do not mix */
        NIB_TRY(nib__scales_forecast(&scaling, w->model, err));
        *seconds = scaling.predicted_s;
    }
    return NIB_OK;
}

static nib_status tell_examiner(work *w, const nib_quantize_report *report, nib_err *err)
{
    const bool is_dry = w->options != NULL && w->options->dry_run;
    nib_examined made = {.report = report,
                         .ledger = &w->ledger,
                         .store_bytes = nib__gptq_store_bound(w->layers, &w->model->net),
                         .predicted_s = NAN,
                         .keeps_rounding = w->keeps_rounding || w->gptq.keeps_rounding ||
                                           w->scales.keeps_rounding};
    if (w->examiner->tell == NULL)
        return NIB_OK;
    if (is_dry)
        NIB_TRY(forecast(&made.predicted_s, w, err));
    return w->examiner->tell(w->examiner->ctx, &made, err);
}

static nib_status render(work *w, const nib_quantize_report *report, nib_form form,
                         const nib_sink *sink, nib_err *err)
{
    nib_text text;
    if (w->examiner != NULL)
        return tell_examiner(w, report, err);
    nib__text_init(&text, &w->model->engine->allocator);
    if (form == NIB_FORM_JSON) {
        render_json(w, report, &text);
    } else {
        nib__quantize_render(&w->ledger, report, &text);
        if (w->mixed != NULL)
            nib__mixed_render(w->mixed, &text);
        if (w->plan != NULL) {
            nib__text_format(&text, "\nplanned for %s\n\n", w->plan->machine.name);
            nib__plan_render(&w->plan->assignment, &w->plan->policy, &text);
        }
    }
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

/* Requires a model with weights and an output path; the architecture may be unknown. */
static nib_status check_model(const nib_model *model, const char *out, nib_err *err)
{
    if (!model->net.checkpoint)
        return nib__fail(err, NIB_USAGE,
                         "%s: only a config was given, without weights to write; give the "
                         "directory or the .safetensors file",
                         model->net.path);
    if (!out)
        return nib__fail(err, NIB_USAGE, "no output path is given");
    return model->net.unknown && !model->net.inspected ? NIB_OK : nib__model_runs(model, err);
}

static void work_open(work *w, nib_model *model, const nib_examiner *examiner)
{
    *w = (work){.model = model, .examiner = examiner};
    nib__arena_init(&w->arena, &model->engine->allocator, 0);
    nib__ledger_init(&w->ledger, &model->engine->allocator);
    nib__text_init(&w->config, &model->engine->allocator);
    nib__gguf_head_init(&w->head, &model->engine->allocator);
    nib__text_init(&w->gptq.resumed, &model->engine->allocator);
    nib__text_init(&w->scales.resumed, &model->engine->allocator);
}

static void work_close(work *w)
{
    if (w->examiner != NULL)
        (void)nib__gptq_store_remove(w->gptq.store, NULL);
    else
        nib__gptq_store_close(w->gptq.store);
    nib__mixed_close(w->mixed);
    nib__gptq_store_close(w->scales.store);
    nib__text_free(&w->gptq.resumed);
    nib__text_free(&w->scales.resumed);
    nib_plan_close(w->plan);
    nib__ledger_free(&w->ledger);
    nib__text_free(&w->config);
    nib__gguf_head_free(&w->head);
    nib__recipe_free(w->recipe);
    nib__arena_free(&w->arena);
}

static const char bias_reason[] =
    "stay floats: their weights are floats, or the format has no quantized biases";

static void note_biases(nib_ledger *ledger, const void *ctx)
{
    nib__report_biases(ledger, ctx, bias_reason);
}

static nib_status quantize(work *w, nib_form form, const nib_sink *sink, nib_err *err)
{
    const nib_quantize_options *o = w->options;
    struct nib_quant_device *device = NULL;
    nib_quantize_report report;
    NIB_TRY(name_output(w, o->out, err));
    NIB_TRY(check_file_ending(w, o->format, err));
    if (w->examiner == NULL)
        NIB_TRY(check_tokenizer(w->model, o->format, o->calibrate, err));
    NIB_TRY(check_pack(w, o->pack, o->format, err));
    NIB_TRY(choose_layers(w, err));
    NIB_TRY(nib__quantize_where(&device, &w->ledger, w->model, o, nib__methods_on_device(w), err));
    NIB_TRY(nib__quantize_for(&w->plan, &w->ledger, w->model, o, err));
    add_notes(w);
    nib__ledger_allow(&w->ledger, &o->request->allow);
    if (o->request->strict)
        NIB_TRY(nib__ledger_strict(&w->ledger, err));
    nib__asked_init(&w->asked, o, nib__recipe_source(w->recipe), device);
    nib_quantize_job job = {.recipe = nib__recipe_text(w->recipe),
                            .format = o->format,
                            .strict = o->request->strict,
                            .allow = &o->request->allow,
                            .decided = note_biases,
                            .ctx = o->request->bias,
                            .complete = o->pack || w->mixed != NULL ? complete_output : NULL,
                            .complete_ctx = w,
                            .force = o->force,
                            .dry_run = o->dry_run,
                            .device = device};
    NIB_TRY(nib__bias_parse(&job.bias, o->request->bias, err));
    NIB_TRY(complete_job(w, &job, err));
    NIB_TRY(nib__quantize_check(&job, err)); /* before the calibration, which may take hours */
    NIB_TRY(nib__methods_run(w, err));
    nib__methods_vectors(w, &job);
    for (int m = 0; m < NIB_PTQ_COUNT; m++)
        w->asked.layers[m] = nib__methods_count(w, (nib_ptq_method)m);
    NIB_TRY(nib__quantize(&w->ledger, &report, &job, err));
    nib__methods_finish(w);
    NIB_TRY(finish_mixed(w, err));
    return render(w, &report, form, sink, err);
}

/* nib_mixed_sizes: what a dry run would write. */
static nib_status dry_sizes(work *w, uint64_t *bytes, nib_err *err)
{
    const nib_quantize_options *o = w->options;
    nib_quantize_report report;
    nib_quantize_job job = {.format = o->format, .force = o->force, .dry_run = true};
    NIB_TRY(name_output(w, o->out, err));
    NIB_TRY(choose_layers(w, err));
    job.recipe = nib__recipe_text(w->recipe);
    NIB_TRY(nib__bias_parse(&job.bias, o->request->bias, err));
    NIB_TRY(complete_job(w, &job, err));
    NIB_TRY(nib__quantize(&w->ledger, &report, &job, err));
    for (size_t i = 0; i < w->model->net.site_count; i++)
        for (size_t j = 0; j < w->ledger.layer_count; j++)
            if (strcmp(w->ledger.layers[j].name, w->layers[i].name) == 0)
                bytes[i] = w->ledger.layers[j].bytes;
    return NIB_OK;
}

static nib_status find_sizes(uint64_t *bytes, nib_model *model, const nib_quantize_options *options,
                             nib_err *err)
{
    nib_quantize_options plain = *options;
    work w;
    plain.method = NULL;
    work_open(&w, model, NULL);
    w.options = &plain;
    const nib_status status = dry_sizes(&w, bytes, err);
    work_close(&w);
    return status;
}

/* Chooses the recipe, which the request then has, if there is a budget. */
static nib_status choose_recipe(work *w, nib_quantize_options *o, nib_request *request,
                                nib_err *err)
{
    if (o->budget == NULL)
        return request->recipe != NULL ? NIB_OK
                                       : nib__fail(err, NIB_USAGE, "quantizing needs a recipe");
    NIB_TRY(nib__mixed_check(o->budget, err));
    if (o->budget->rules != NULL)
        NIB_TRY(nib__file_may_replace(o->budget->rules, err));
    if (o->format == NULL)
        o->format = "torchao"; /* its sizes are those of the budget */
    w->options = o;
    NIB_TRY(nib__mixed_open(&w->mixed, w->model, o, find_sizes, err));
    request->recipe = nib__mixed_recipe(w->mixed);
    return NIB_OK;
}

static nib_status quantize_with(nib_model *model, const nib_quantize_options *options,
                                const nib_examiner *examiner, nib_form form, const nib_sink *sink,
                                nib_err *err)
{
    NIB_OPTIONS(nib_quantize_options, o, options, err);
    NIB_OPTIONS(nib_request, request, o.request, err);
    NIB_TRY(nib__request_check(&request, err));
    work w;
    o.request = &request;
    NIB_TRY(nib__engine_check(model->engine, err));
    NIB_TRY(check_model(model, o.out, err));
    NIB_TRY(nib__model_runs(model, err));
    nib_budget budget;
    if (o.budget != NULL) {
        NIB_TRY(nib__options_read(&budget, sizeof budget, offsetof(nib_budget, reserved), o.budget,
                                  "nib_budget", err));
        o.budget = &budget;
    }
    nib_model *own;
    NIB_TRY(nib__model_ordered(&own, model, is_gguf(o.format), err));
    work_open(&w, own != NULL ? own : model, examiner);
    w.options = &o;
    nib_status status = choose_recipe(&w, &o, &request, err);
    if (status == NIB_OK)
        status = quantize(&w, form, sink, err);
    work_close(&w);
    nib_model_close(own);
    return status;
}

nib_status nib_quantize(nib_model *model, const nib_quantize_options *options, nib_form form,
                        const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "model", model);
    NIB_TRY(nib__report_check(form, sink, err));
    return quantize_with(model, options, NULL, form, sink, err);
}

nib_status nib__quantize_again(nib_model *model, const nib_quantize_options *options,
                               const nib_examiner *examiner, nib_err *err)
{
    return quantize_with(model, options, examiner, NIB_FORM_TEXT, NULL, err);
}

/* ---- conversions ---- */

/* The float type that codes become: the given one, or f32, which keeps most of them exact. */
static nib_status find_float(nib_code *out, const char *dtype, nib_err *err)
{
    *out = NIB_CODE_F32;
    if (!dtype)
        return NIB_OK;
    for (nib_code code = NIB_CODE_F32; code <= NIB_CODE_BF16; code++)
        if (strcmp(dtype, nib__codes[code].name) == 0) {
            *out = code;
            return NIB_OK;
        }
    return nib__fail(err, NIB_USAGE, "dtype \"%s\" is not one of f32, f16, bf16", dtype);
}

/* Keeps every weight. A plain weight is copied as a tensor, with the other names that share it. */
static nib_status keep_layers(work *w, const nib_convert_options *o, nib_err *err)
{
    const nib_network *net = &w->model->net;
    const bool floats = strcmp(o->format, "safetensors") == 0;
    const bool gguf = is_gguf(o->format);
    nib_code float_code;
    NIB_TRY(find_float(&float_code, o->dtype, err));
    w->layers = nib__arena_take(&w->arena, net->site_count, sizeof *w->layers);
    if (!w->layers)
        return nib__fail_memory(err, net->site_count * sizeof *w->layers, "the layers");
    for (size_t i = 0; i < net->site_count; i++) {
        const nib_site *site = &net->sites[i];
        nib_quantize_layer *l = &w->layers[i];
        *l = (nib_quantize_layer){.name = site->name, .role = site->role};
        if (l->role == NIB_ROLE_HEAD && net->tied)
            l->source = net->sites[0].name;
        const bool plain = is_plain(net, l);
        l->choice = (nib_choice){.scheme = site->stored, .rule = "as stored"};
        l->recode = !plain || gguf;
        l->choice.keep = plain && !o->dtype && !gguf;
        if (floats && (o->dtype || nib__scheme_is_quantized(&site->stored)))
            l->choice.scheme = (nib_scheme){.code = float_code, .symmetric = true};
    }
    return NIB_OK;
}

/* Notes how well a conversion kept weights and biases. */
static void note_kept(work *w, const nib_quantize_report *report)
{
    size_t lossy = 0, exact = 0, lossless = 0;
    char changed[64] = "";
    for (size_t i = 0; i < w->ledger.layer_count; i++) {
        const nib_ledger_layer *l = &w->ledger.layers[i];
        lossy += l->kept && strcmp(l->kept, "lossy") == 0;
        exact += l->kept && strncmp(l->kept, "exact", 5) == 0;
        lossless += l->kept && strcmp(l->kept, "lossless") == 0;
    }
    if (report->biases_changed)
        snprintf(changed, sizeof changed, ", %zu in another type or form", report->biases_changed);
    nib__ledger_add_note(
        &w->ledger, "converted",
        "%zu weights: %zu lossless, %zu exact after a change of layout, %zu lossy; "
        "%zu biases bit for bit%s",
        lossless + exact + lossy, lossless, exact, lossy, report->biases - report->biases_changed,
        changed);
}

static nib_status convert(work *w, const nib_convert_options *o, nib_form form,
                          const nib_sink *sink, nib_err *err)
{
    nib_quantize_report report;
    NIB_TRY(name_output(w, o->out, err));
    NIB_TRY(check_file_ending(w, o->format, err));
    NIB_TRY(check_pack(w, o->pack, o->format, err));
    NIB_TRY(keep_layers(w, o, err));
    nib_quantize_job job = {.recipe = "as stored",
                            .format = o->format,
                            .convert = true,
                            .dtype = o->dtype,
                            .strict = o->strict,
                            .allow = &o->allow,
                            .decided = note_biases,
                            .ctx = o->bias,
                            .complete = o->pack ? pack_result : NULL,
                            .complete_ctx = w,
                            .force = o->force,
                            .dry_run = o->dry_run};
    NIB_TRY(nib__bias_parse(&job.bias, o->bias, err));
    w->asked =
        (nib_asked){.convert = true, .format = o->format, .bias = o->bias, .dtype = o->dtype};
    NIB_TRY(nib__asked_tokenizer(&w->asked.tokenizer, w->model->tokenizer_path, &w->arena, err));
    add_notes(w);
    NIB_TRY(complete_job(w, &job, err));
    NIB_TRY(nib__quantize(&w->ledger, &report, &job, err));
    if (!o->dry_run)
        note_kept(w, &report);
    return render(w, &report, form, sink, err);
}

static nib_status convert_with(nib_model *model, const nib_convert_options *options,
                               const nib_examiner *examiner, nib_form form, const nib_sink *sink,
                               nib_err *err)
{
    NIB_OPTIONS(nib_convert_options, o, options, err);
    NIB_TRY(nib__strings_check("nib_convert_options.allow", &o.allow, err));
    work w;
    NIB_TRY(nib__engine_check(model->engine, err));
    NIB_TRY(check_model(model, o.out, err));
    if (!o.format)
        return nib__fail(err, NIB_USAGE, "converting needs a format");
    for (size_t i = 0; i < o.allow.count; i++)
        if (!nib__setting_code_is_known(o.allow.items[i]))
            return nib__fail(err, NIB_USAGE,
                             "--allow %s has no effect: converting takes only setting codes; "
                             "--strict names those that it needs",
                             o.allow.items[i]);
    if (o.dtype && strcmp(o.format, "safetensors") != 0)
        return nib__fail(err, NIB_USAGE,
                         "--dtype has no effect: the format %s keeps codes; --format safetensors "
                         "holds plain floats",
                         o.format);
    NIB_TRY(check_tokenizer(model, o.format, NULL, err));
    nib_model *own;
    NIB_TRY(nib__model_ordered(&own, model, is_gguf(o.format), err));
    work_open(&w, own != NULL ? own : model, examiner);
    const nib_status status = convert(&w, &o, form, sink, err);
    work_close(&w);
    nib_model_close(own);
    return status;
}

nib_status nib_convert(nib_model *model, const nib_convert_options *options, nib_form form,
                       const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "model", model);
    NIB_TRY(nib__report_check(form, sink, err));
    return convert_with(model, options, NULL, form, sink, err);
}

nib_status nib__convert_again(nib_model *model, const nib_convert_options *options,
                              const nib_examiner *examiner, nib_err *err)
{
    return convert_with(model, options, examiner, NIB_FORM_TEXT, NULL, err);
}
