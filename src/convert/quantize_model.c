/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_quantize: streams the recipe's choices, after calibrating those with static scales.
 * nib_convert: streams every weight as it is.
 */
#include "arch.h"
#include "bias_codes.h"
#include "convert_gguf.h"
#include "convert.h"
#include "fold.h"
#include "gptq.h"
#include "imatrix.h"
#include "mixed.h"
#include "public_struct.h"
#include "quantize.h"
#include "quantizer.h"
#include "receipt_options.h"
#include "renames.h"
#include "rotate.h"
#include "scales.h"

#include <stdio.h>
#include <string.h>

typedef struct work {
    nib_model *model;
    const nib_quantize_options *options; /* NULL: a conversion */
    nib_arena arena;
    nib_recipe *recipe; /* NULL: a conversion */
    const char *out;    /* without trailing slashes */
    nib_quantize_layer *layers;
    nib_text config;    /* for a model without a config.json */
    nib_gguf_head head; /* for the format gguf */
    nib_mixed *mixed;   /* chose the recipe; NULL: the request did */
    nib_plan *plan;     /* for the machine that will run the result; NULL: not named */
    nib_ledger ledger;
    nib_gptq gptq;          /* its codes, while the output is written */
    nib_input_stats *stats; /* [site_count] of a calibration; NULL: none ran */
    nib_scaling scales;     /* of awq and smooth */
    nib_rotating rotating;
    nib_asked asked;              /* for the receipt */
    const nib_examiner *examiner; /* NULL: the output is published, and reported */
} work;

static bool is_static(const nib_choice *choice)
{
    return !choice->keep && choice->scheme.act == NIB_ACT_I8_STATIC;
}

static bool is_gguf(const char *format) { return format && strcmp(format, "gguf") == 0; }

/* True if the weight is a plain tensor that can be copied. */
static bool is_plain(const nib_network *net, const nib_quantize_layer *l)
{
    const char *dialect = nib__checkpoint_dialect(net->checkpoint, l->source ? l->source : l->name);
    return dialect && strcmp(dialect, "safetensors") == 0;
}

/* Recodes a layer that only changes its container or float type, into the output's format. */
static void keep_in_format(nib_quantize_layer *l, const nib_scheme *stored)
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

/* The method of layers for which the recipe names none. */
static nib_status default_method(nib_ptq_method *out, const nib_quantize_options *o, nib_err *err)
{
    *out = NIB_PTQ_RTN;
    if (o->method == NULL || nib__ptq_parse(out, o->method))
        return NIB_OK;
    return nib__fail(
        err, NIB_USAGE,
        "method \"%.40s\" is not one of rtn, search, gptq, hqq, qronos, awq, learn, smooth, rotate",
        o->method);
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
    nib_ptq_method method;
    const nib_recipe_layer *layers;
    NIB_TRY(default_method(&method, w->options, err));
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
            keep_in_format(l, &net->sites[i].stored);
    }
    return check_method(w, err);
}

/* Whether a method chooses the codes of a layer by a calibration. */
static bool is_searched(const nib_quantize_layer *l)
{
    return nib__layer_is_quantized(l) && !l->recode &&
           (l->choice.method == NIB_PTQ_SEARCH || nib__ptq_changes(l->choice.method));
}

static size_t count_method(const work *w, nib_ptq_method method)
{
    size_t count = 0;
    for (size_t i = 0; i < w->model->net.site_count; i++) {
        const nib_quantize_layer *l = &w->layers[i];
        count += nib__layer_is_quantized(l) && !l->recode && l->choice.method == method;
    }
    return count;
}

static size_t count_searched(const work *w)
{
    return count_method(w, NIB_PTQ_SEARCH) + count_method(w, NIB_PTQ_AWQ) +
           count_method(w, NIB_PTQ_SMOOTH) + count_method(w, NIB_PTQ_ROTATE);
}

/* Whether a layer becomes blocks whose scales only the CPU chooses. */
static bool has_cpu_blocks(const work *w)
{
    for (size_t i = 0; i < w->model->net.site_count; i++)
        if (nib__layer_is_quantized(&w->layers[i]) && !w->layers[i].recode &&
            nib__scheme_is_gguf_block(&w->layers[i].choice.scheme))
            return true;
    return false;
}

/* The method that a device needs a kernel for. */
static nib_ptq_method method_of_device(const work *w)
{
    for (int m = NIB_PTQ_COUNT - 1; m > NIB_PTQ_RTN; m--)
        if (count_method(w, (nib_ptq_method)m) > 0)
            return (nib_ptq_method)m;
    return has_cpu_blocks(w) ? NIB_PTQ_SEARCH : NIB_PTQ_RTN;
}

/* Notes the searched layers of which `source` says nothing. */
static void note_unseen(work *w, const char *source)
{
    const nib_quantize_layer *first = NULL;
    size_t unseen = 0;
    char a[NIB_SHOWN];
    for (size_t i = w->model->net.site_count; i-- > 0;)
        if (is_searched(&w->layers[i]) && w->layers[i].role != NIB_ROLE_EMBED &&
            w->layers[i].importance == NULL) {
            first = &w->layers[i];
            unseen++;
        }
    if (unseen > 0)
        nib__ledger_add_note(&w->ledger, "method",
                             "search: %s has no inputs of %zu layers, so all their inputs count "
                             "the same: %s%s",
                             source, unseen, nib__escape_string(a, first->name),
                             unseen > 1 ? ", ..." : "");
}

/* Takes what the layers need from the calibration. */
static nib_status use_stats(work *w, const nib_input_stats *stats, nib_err *err)
{
    for (size_t i = 0; i < w->model->net.site_count; i++) {
        nib_quantize_layer *l = &w->layers[i];
        if (is_static(&l->choice))
            nib__compute_static_scale(&l->act_scale, &l->act_zero, &l->choice.scheme,
                                      stats[i].range);
        if (stats[i].squares != NULL)
            NIB_TRY(nib__importance(&l->importance, stats[i].squares, w->model->net.sites[i].k,
                                    &w->arena, err));
    }
    return NIB_OK;
}

/* What nib__text_parts is asked for. */
static int64_t asked_held_out(const work *w)
{
    return w->examiner != NULL ? w->examiner->held_out : NIB_HELD_OUT_DEFAULT;
}

/* Runs the model over the calibration text. */
static nib_status run_calibration(work *w, const char *text, nib_err *err)
{
    const nib_network *net = &w->model->net;
    const bool wants_squares = w->options->imatrix == NULL && count_searched(w) > 0;
    nib_calibration ran = {.held_out = asked_held_out(w)};
    nib_input_stats *stats = nib__arena_take(&w->arena, net->site_count, sizeof *stats);
    if (stats == NULL)
        return nib__fail_memory(err, net->site_count * sizeof *stats, "the calibration");
    w->stats = stats;
    for (size_t i = 0; i < net->site_count; i++) {
        const uint64_t k = (uint64_t)net->sites[i].k;
        const nib_choice *choice = &w->layers[i].choice;
        const bool wants_extremes =
            nib__fold_is_scaled(&w->layers[i]) &&
            (choice->method == NIB_PTQ_SMOOTH || choice->scheme.act == NIB_ACT_I8_STATIC);
        stats[i].turn = w->layers[i].turn;
        if (!is_searched(&w->layers[i]) || w->layers[i].role == NIB_ROLE_EMBED)
            continue;
        if (wants_squares)
            stats[i].squares = nib__arena_take(&w->arena, k, sizeof(double));
        if (wants_extremes)
            stats[i].extremes = nib__arena_take(&w->arena, 2 * k, sizeof(float));
        stats[i].in_parts = nib__fold_is_scaled(&w->layers[i]);
        if ((wants_squares && !stats[i].squares) || (wants_extremes && !stats[i].extremes))
            return nib__fail_memory(err, k * sizeof(double), "the calibration");
    }
    NIB_TRY(nib__calibrate(stats, &ran, w->model, w->options->request, text, err));
    NIB_TRY(use_stats(w, stats, err));
    if (wants_squares)
        note_unseen(w, "the calibration text");
    return NIB_OK;
}

static nib_status read_imatrix(work *w, const nib_imatrix *m, nib_err *err)
{
    const nib_network *net = &w->model->net;
    const char *arch = nib__family_of(&net->config)->gguf;
    size_t used = 0;
    char a[NIB_SHOWN];
    for (size_t i = 0; i < net->site_count; i++) {
        nib_quantize_layer *l = &w->layers[i];
        const int64_t k = net->sites[i].k;
        bool found;
        if (!is_searched(l) || l->role == NIB_ROLE_EMBED)
            continue;
        double *squares = nib__arena_take(&w->arena, (uint64_t)k, sizeof *squares);
        if (squares == NULL)
            return nib__fail_memory(err, (uint64_t)k * sizeof *squares, "an imatrix");
        NIB_TRY(nib__imatrix_read(squares, &found, m, arch, l->name, k, err));
        if (found)
            NIB_TRY(nib__importance(&l->importance, squares, k, &w->arena, err));
        used += found;
    }
    if (used == 0)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: none of its %zu entries is of a layer that is searched",
                         nib__escape_string(a, w->options->imatrix), nib__imatrix_count(m));
    note_unseen(w, "the imatrix");
    return NIB_OK;
}

static nib_status use_imatrix(work *w, nib_err *err)
{
    nib_imatrix *m;
    NIB_TRY(nib__imatrix_open(&m, w->options->imatrix, &w->model->engine->allocator, err));
    const nib_status status = read_imatrix(w, m, err);
    nib__imatrix_close(m);
    return status;
}

/* Codes that an examiner sees: in its order, and in a store of their own, whose old content is
 * removed, because codes that lie on the disk prove nothing. */
static nib_status use_new_store(work *w, nib_err *err)
{
    const char *other;
    w->gptq.ascending = w->examiner->ascending;
    w->gptq.out = nib__ledger_text(&w->ledger, "%s.verify", w->out);
    if (w->gptq.out == NULL)
        return nib__fail_memory(err, strlen(w->out), "a path");
    NIB_TRY(nib__gptq_store_open(&w->gptq.store, w->gptq.out, "codes: none\n", 1, &other,
                                 &w->model->engine->allocator, err));
    const nib_status status = nib__gptq_store_remove(w->gptq.store, err);
    w->gptq.store = NULL;
    return status;
}

/* Runs the method gptq. Layers without inputs on the text are searched. */
static nib_status run_gptq(work *w, const char *text, nib_err *err)
{
    const nib_quantize_layer *first = NULL;
    size_t unseen = 0;
    char a[NIB_SHOWN];
    w->gptq.layers = w->layers;
    w->gptq.request = w->options->request;
    w->gptq.text = text;
    w->gptq.out = w->out;
    w->gptq.ledger = &w->ledger;
    w->gptq.arena = &w->arena;
    w->gptq.orders = w->asked.orders;
    if (w->examiner != NULL)
        NIB_TRY(use_new_store(w, err));
    NIB_TRY(nib__gptq(&w->gptq, w->model, err));
    for (size_t i = w->model->net.site_count; i-- > 0;) {
        nib_quantize_layer *l = &w->layers[i];
        if (!nib__ptq_sweeps(l->choice.method) || !nib__layer_is_quantized(l))
            continue;
        if (w->gptq.keeps_rounding) {
            l->choice.method = NIB_PTQ_RTN;
            l->codes = NULL;
        }
        if (w->gptq.keeps_rounding || l->codes != NULL)
            continue;
        l->choice.method = NIB_PTQ_SEARCH;
        first = l;
        unseen++;
    }
    if (unseen > 0)
        nib__ledger_add_note(&w->ledger, "method",
                             "%s: %zu layers have no inputs on the text, so only their scales "
                             "are searched: %s%s",
                             w->gptq.name, unseen, nib__escape_string(a, first->name),
                             unseen > 1 ? ", ..." : "");
    return NIB_OK;
}

/* Runs the methods awq and smooth. */
static nib_status run_scales(work *w, nib_err *err)
{
    w->scales = (nib_scaling){.layers = w->layers,
                              .stats = w->stats,
                              .options = w->options,
                              .held_out = asked_held_out(w),
                              .ledger = &w->ledger,
                              .arena = &w->arena};
    NIB_TRY(nib__scales(&w->scales, w->model, err));
    w->asked.held_out = w->scales.held_out;
    return NIB_OK;
}

/* Runs the method rotate, as far as it needs no text. */
static nib_status run_rotate(work *w, nib_err *err)
{
    w->rotating = (nib_rotating){.layers = w->layers,
                                 .options = w->options,
                                 .seed = w->examiner != NULL ? w->examiner->seed : NIB_ROTATE_SEED,
                                 .ledger = &w->ledger,
                                 .arena = &w->arena};
    NIB_TRY(nib__rotate(&w->rotating, w->model, err));
    for (size_t i = 0; i < w->model->net.site_count; i++)
        if (w->layers[i].turn != NULL && !nib__layer_is_quantized(&w->layers[i]))
            keep_in_format(&w->layers[i], &w->model->net.sites[i].stored);
    if (w->rotating.graph.sites == NULL)
        return NIB_OK;
    w->asked.has_seed = true;
    w->asked.seed = w->rotating.seed;
    return w->options->dry_run ? NIB_OK : nib__rotate_check(&w->rotating, w->model, err);
}

/* When the output is complete: removes the store, and adds notes that are not about the output. */
static void finish_gptq(work *w)
{
    nib_err err;
    if (w->gptq.resumed.size != 0)
        nib__ledger_add_note(&w->ledger, "method", "%s", w->gptq.resumed.at);
    if (w->gptq.store != NULL)
        nib__ledger_add_note(
            &w->ledger, "method", "%s: %.3g multiply-adds, predicted to take %.1f s, took %.1f s",
            w->gptq.name, w->gptq.multiply_adds, w->gptq.predicted_s, w->gptq.seconds);
    if (nib__gptq_store_remove(w->gptq.store, &err) != NIB_OK)
        nib__ledger_add_note(&w->ledger, "method", "%s: its codes are still on the disk: %s",
                             w->gptq.name, err.text);
    w->gptq.store = NULL;
}

static nib_status calibrate(work *w, nib_err *err)
{
    const char *text = w->options->calibrate, *imatrix = w->options->imatrix;
    const bool is_static = nib__recipe_needs_calibration(w->recipe);
    const size_t smooth = count_method(w, NIB_PTQ_SMOOTH),
                 scaled = count_method(w, NIB_PTQ_AWQ) + smooth,
                 qronos = count_method(w, NIB_PTQ_QRONOS), learned = count_method(w, NIB_PTQ_LEARN),
                 coded = count_method(w, NIB_PTQ_GPTQ) + qronos + learned,
                 searched = count_searched(w);
    const nib_ptq_method coding = learned > 0  ? NIB_PTQ_LEARN
                                  : qronos > 0 ? NIB_PTQ_QRONOS
                                               : NIB_PTQ_GPTQ;
    if (coded > 0 && !text)
        return nib__fail(err, NIB_USAGE,
                         "the method %s needs a text to calibrate with; give --calibrate TEXT",
                         nib__ptq_names[coding]);
    if (imatrix && searched == 0)
        return nib__fail(err, NIB_USAGE,
                         "--imatrix %s has no effect: no layer is quantized by --method search",
                         imatrix);
    if (imatrix && count_method(w, NIB_PTQ_ROTATE) > 0)
        return nib__fail(err, NIB_USAGE,
                         "--imatrix %s has no effect: the method rotate mixes the inputs, and an "
                         "imatrix has the squares of each as stored; give --calibrate TEXT",
                         imatrix);
    const bool uses_text = is_static || coded + scaled > 0 || (searched > 0 && !imatrix);
    if (text && !uses_text && w->mixed == NULL)
        return nib__fail(err, NIB_USAGE,
                         "--calibrate %s has no effect: the recipe has no static activation "
                         "scales, and no method that %s",
                         text, imatrix ? "uses a text, as there is an --imatrix" : "uses a text");
    if (searched > 0 && !text && !imatrix)
        nib__ledger_add_note(&w->ledger, "method",
                             "search: all inputs count the same; with --calibrate TEXT each counts "
                             "by the mean of its squares");
    if (is_static && !text)
        return nib__fail(
            err, NIB_USAGE,
            "the recipe has static activation scales; give a text to calibrate them with "
            "--calibrate TEXT");
    NIB_TRY(nib__scales_check(w->layers, w->model->net.site_count, text, err));
    if (!w->options->dry_run)
        NIB_TRY(nib__asked_inputs(&w->asked, uses_text ? text : NULL, imatrix,
                                  w->model->tokenizer_path, &w->arena, err));
    NIB_TRY(run_rotate(w, err));
    if (imatrix)
        NIB_TRY(use_imatrix(w, err));
    if (!text)
        return NIB_OK;
    if (w->options->dry_run) /* sizes and ledger do not depend on the text */
        return nib__path_kind(text) == NIB_PATH_FILE
                   ? NIB_OK
                   : nib__fail(err, NIB_IO, "%s: file not found", text);
    if (is_static || smooth > 0 || (searched > 0 && !imatrix))
        NIB_TRY(run_calibration(w, text, err));
    if (scaled > 0)
        NIB_TRY(run_scales(w, err));
    return coded > 0 ? run_gptq(w, text, err) : NIB_OK;
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
    if (is_gguf(job->format))
        NIB_TRY(nib__convert_gguf(job, &w->head, w->model, &w->layers[1].choice.scheme, &w->arena,
                                  &w->ledger, err));
    else
        NIB_TRY(make_config(w, err));
    if (!is_gguf(job->format) && nib__checkpoint_gguf(w->model->net.checkpoint) != NULL)
        job->norm_shift = -nib__rename_norm_offset(nib__family_of(&w->model->net.config)->gguf);
    job->fused = w->model->net.unknown ? nib__checkpoint_fused(w->model->net.checkpoint)
                                       : nib__family_of(&w->model->net.config)->fused;
    job->family = w->model->net.unknown ? NULL : nib__arch_name(w->model->net.config.arch);
    job->config = w->config.at;
    job->checkpoint = w->model->net.checkpoint;
    job->layers = w->layers;
    job->count = w->model->net.site_count;
    job->out = w->out;
    job->receipt = nib__asked_json;
    job->receipt_ctx = &w->asked;
    job->examine = w->examiner != NULL ? w->examiner->examine : NULL;
    job->examine_ctx = w->examiner != NULL ? w->examiner->ctx : NULL;
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
    return nib__fail(err, NIB_USAGE,
                     "%s: the name ends in .gguf, but the format is %s; give --format gguf, or "
                     "another name",
                     nib__escape_string(a, w->out), format != NULL ? format : "torchao");
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

static nib_status render(work *w, const nib_quantize_report *report, nib_form form,
                         const nib_sink *sink, nib_err *err)
{
    nib_text text;
    if (w->examiner != NULL)
        return NIB_OK;
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
}

static void work_close(work *w)
{
    if (w->examiner != NULL)
        (void)nib__gptq_store_remove(w->gptq.store, NULL);
    else
        nib__gptq_store_close(w->gptq.store);
    nib__mixed_close(w->mixed);
    nib__text_free(&w->gptq.resumed);
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
    NIB_TRY(check_tokenizer(w->model, o->format, o->calibrate, err));
    NIB_TRY(check_pack(w, o->pack, o->format, err));
    NIB_TRY(choose_layers(w, err));
    NIB_TRY(nib__quantize_where(&device, &w->ledger, w->model, o, method_of_device(w), err));
    NIB_TRY(nib__quantize_for(&w->plan, &w->ledger, w->model, o, err));
    add_notes(w);
    nib__ledger_allow(&w->ledger, &o->request->allow);
    if (o->request->strict)
        NIB_TRY(nib__ledger_strict(&w->ledger, err));
    /* strict also forbids replacing the default format */
    const bool keep_default =
        o->format == NULL && o->request->strict && !nib__strings_hold(&o->request->allow, "format");
    const char *format = keep_default ? "torchao" : o->format;
    nib__asked_init(&w->asked, o, nib__recipe_source(w->recipe), format, device);
    nib_quantize_job job = {.recipe = nib__recipe_text(w->recipe),
                            .format = format,
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
    NIB_TRY(calibrate(w, err));
    const bool is_rotated = w->rotating.vectors != NULL; /* it does not mix with scales */
    job.vectors = is_rotated ? w->rotating.vectors : w->scales.vectors;
    job.vector_count = is_rotated ? w->rotating.vector_count : w->scales.vector_count;
    for (int m = 0; m < NIB_PTQ_COUNT; m++)
        w->asked.layers[m] = count_method(w, (nib_ptq_method)m);
    NIB_TRY(nib__quantize(&w->ledger, &report, &job, err));
    finish_gptq(w);
    nib__scales_note(&w->scales);
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
    work_open(&w, model, examiner);
    w.options = &o;
    nib_status status = choose_recipe(&w, &o, &request, err);
    if (status == NIB_OK)
        status = quantize(&w, form, sink, err);
    work_close(&w);
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
    work_open(&w, model, examiner);
    const nib_status status = convert(&w, &o, form, sink, err);
    work_close(&w);
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
