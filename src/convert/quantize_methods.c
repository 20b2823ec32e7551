/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of nib_quantize that run before the stream: calibration, imatrix, and one method
 * after the other.
 */
#include "arch.h"
#include "coded_check.h"
#include "config_gguf_states.h"
#include "fold.h"
#include "imatrix.h"
#include "learn.h"
#include "quantize_run.h"
#include "quantizer.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SEARCHES_CHECKED = 1024 }; /* tokens: few, because these methods are fast without a text */

typedef nib_quantize_run work;

static bool is_static(const nib_choice *choice)
{
    return !choice->keep && choice->scheme.act == NIB_ACT_I8_STATIC;
}

/* Whether a method chooses the codes of a layer by a calibration. */
static bool is_searched(const nib_quantize_layer *l)
{
    return nib__layer_is_quantized(l) && !l->recode &&
           (l->choice.method == NIB_PTQ_SEARCH || nib__ptq_changes(l->choice.method));
}

size_t nib__methods_count(const work *w, nib_ptq_method method)
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
    return nib__methods_count(w, NIB_PTQ_SEARCH) + nib__methods_count(w, NIB_PTQ_AWQ) +
           nib__methods_count(w, NIB_PTQ_SMOOTH) + nib__methods_count(w, NIB_PTQ_ROTATE);
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

nib_ptq_method nib__methods_on_device(const work *w)
{
    for (int m = NIB_PTQ_COUNT - 1; m > NIB_PTQ_RTN; m--)
        if (nib__methods_count(w, (nib_ptq_method)m) > 0)
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
                             "search: %s has no inputs of %zu layer%s, so all inputs there count "
                             "the same: %s%s",
                             source, unseen, unseen == 1 ? "" : "s",
                             nib__escape_string(a, first->name), unseen > 1 ? ", ..." : "");
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

/* The tokens that are to check search and hqq. */
static int64_t asked_checked(const work *w)
{
    return w->examiner != NULL ? w->examiner->checked : NIB_CHECKED_DEFAULT;
}

/* Whether the end of the text is to check what rotate does to a layer. */
static bool is_compared(const work *w, size_t site)
{
    return nib__rotate_is_turned(&w->layers[site]) && asked_held_out(w) != 0;
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
        stats[i].in_parts = nib__fold_is_scaled(&w->layers[i]) || is_compared(w, i);
        if ((wants_squares && !stats[i].squares) || (wants_extremes && !stats[i].extremes))
            return nib__fail_memory(err, k * sizeof(double), "the calibration");
    }
    NIB_TRY(nib__calibrate(stats, &ran, w->model, w->options->request, text, err));
    NIB_TRY(use_stats(w, stats, err));
    if (wants_squares)
        note_unseen(w, "the calibration text");
    return NIB_OK;
}

/* Reads the squares of a layer's inputs, in the model's order. */
static nib_status read_squares(double *squares, double *room, bool *found, const nib_imatrix *m,
                               const nib_config *c, const char *layer, int64_t k, nib_err *err)
{
    static const char joined[] = ".linear_attn.in_proj_qkvz";
    char as_apart[256];
    const bool orders = nib__family_of(c)->full_interval > 0 && !c->gguf_order;
    nib_head_order order;
    snprintf(as_apart, sizeof as_apart, "%s", layer);
    if (orders && nib__ends_with(as_apart, joined))
        as_apart[strlen(as_apart) - 1] = 0; /* they read the same inputs */
    NIB_TRY(nib__imatrix_read(squares, found, m, nib__gguf_names(c), as_apart, k, err));
    if (*found && orders) {
        nib__network_head_order(&order, c);
        nib__head_order_inputs(squares, room, &order, layer);
    }
    return NIB_OK;
}

static nib_status read_imatrix(work *w, const nib_imatrix *m, nib_err *err)
{
    const nib_network *net = &w->model->net;
    size_t used = 0;
    char a[NIB_SHOWN];
    for (size_t i = 0; i < net->site_count; i++) {
        nib_quantize_layer *l = &w->layers[i];
        const int64_t k = net->sites[i].k;
        bool found;
        if (!is_searched(l) || l->role == NIB_ROLE_EMBED)
            continue;
        double *squares = nib__arena_take(&w->arena, 2 * (uint64_t)k, sizeof *squares);
        if (squares == NULL)
            return nib__fail_memory(err, 2 * (uint64_t)k * sizeof *squares, "an imatrix");
        NIB_TRY(read_squares(squares, squares + k, &found, m, &net->config, l->name, k, err));
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
    w->gptq.rounds = w->examiner == NULL || w->examiner->rounds;
    w->asked.rounding_steps = w->gptq.rounds ? NIB_LEARN_ROUNDING : 0;
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
                             "%s: the text has no inputs of %zu layer%s, so only scales are "
                             "searched there: %s%s",
                             w->gptq.name, unseen, unseen == 1 ? "" : "s",
                             nib__escape_string(a, first->name), unseen > 1 ? ", ..." : "");
    return NIB_OK;
}

/* Runs the methods awq and smooth. */
static nib_status run_scales(work *w, nib_err *err)
{
    w->scales = (nib_scaling){.layers = w->layers,
                              .stats = w->stats,
                              .options = w->options,
                              .out = w->examiner == NULL ? w->out : NULL,
                              .held_out = asked_held_out(w),
                              .ledger = &w->ledger,
                              .arena = &w->arena,
                              .resumed = w->scales.resumed};
    NIB_TRY(nib__scales(&w->scales, w->model, err));
    w->asked.held_out = w->scales.held_out;
    return NIB_OK;
}

/* Runs the method rotate, as far as it needs no text. */
static nib_status run_rotate(work *w, nib_err *err)
{
    const size_t count = w->model->net.site_count;
    w->unrotated = nib__arena_take(&w->arena, count, sizeof *w->unrotated);
    if (w->unrotated == NULL)
        return nib__fail_memory(err, count * sizeof *w->unrotated, "the layers");
    memcpy(w->unrotated, w->layers, count * sizeof *w->layers);
    w->rotating = (nib_rotating){.layers = w->layers,
                                 .options = w->options,
                                 .seed = w->examiner != NULL ? w->examiner->seed : NIB_ROTATE_SEED,
                                 .ledger = &w->ledger,
                                 .arena = &w->arena};
    NIB_TRY(nib__rotate(&w->rotating, w->model, err));
    for (size_t i = 0; i < count; i++)
        if (w->layers[i].turn != NULL && !nib__layer_is_quantized(&w->layers[i]))
            nib__layer_keep(&w->layers[i], &w->model->net.sites[i].stored);
    w->asked.has_seed = true;
    w->asked.seed = w->rotating.seed;
    return w->options->dry_run ? NIB_OK : nib__rotate_check(&w->rotating, w->model, err);
}

/* Rounds the layers of the method, and keeps the others, as if nothing had been rotated. */
static void undo_rotate(work *w)
{
    for (size_t i = 0; i < w->model->net.site_count; i++) {
        nib_quantize_layer *l = &w->layers[i];
        const bool is_rotated = nib__rotate_is_turned(l);
        if (!is_rotated && l->turn == NULL)
            continue;
        *l = w->unrotated[i];
        if (is_rotated)
            l->choice.method = NIB_PTQ_RTN;
        if (is_rotated && is_static(&l->choice))
            nib__compute_static_scale(&l->act_scale, &l->act_zero, &l->choice.scheme,
                                      w->stats[i].stored_range);
    }
    w->rotating.vector_count = 0;
}

/* ---- comparing with rounding ---- */

/* Says that without a text a method is not compared with rounding. */
static void note_uncompared(work *w, const char *name)
{
    nib__ledger_add_note(&w->ledger, "method",
                         "%s: without a text the whole model is not compared with rounding; with "
                         "--calibrate TEXT it is, and rounding is kept if it is better",
                         name);
}

/* Compares the output with rounding on the end of the text. */
static nib_status compare(work *w, nib_coded_comparison *c, nib_err *err)
{
    c->layers = w->layers;
    c->options = w->options;
    c->stats = w->stats;
    c->ledger = &w->ledger;
    c->arena = &w->arena;
    NIB_TRY(nib__coded_compare(c, w->model, err));
    w->keeps_rounding = w->keeps_rounding || c->keeps_rounding;
    return NIB_OK;
}

static bool has_turn(const nib_quantize_layer *l)
{
    return nib__rotate_is_turned(l) || l->turn != NULL;
}

/* Compares the rotated model with rounding, on the text if there is one, and says what is done. */
static nib_status finish_rotate(work *w, nib_err *err)
{
    const bool has_text = w->options->calibrate != NULL, is_dry = w->options->dry_run;
    nib_coded_comparison c = {.name = nib__ptq_names[NIB_PTQ_ROTATE],
                              .is_changed = has_turn,
                              .rotating = &w->rotating,
                              .tokens = asked_held_out(w),
                              .most = INT64_MAX};
    if (has_text && !is_dry && c.tokens != 0) {
        NIB_TRY(compare(w, &c, err));
        w->asked.held_out = c.tokens;
    }
    if (c.keeps_rounding)
        undo_rotate(w);
    else
        nib__rotate_note(&w->rotating, w->model);
    if (!has_text)
        note_uncompared(w, nib__ptq_names[NIB_PTQ_ROTATE]);
    return NIB_OK;
}

/* Whether a layer has the codes of a method that no run of the text decides. */
static bool is_unchecked(const nib_quantize_layer *l)
{
    return nib__layer_is_quantized(l) && !l->recode &&
           (l->choice.method == NIB_PTQ_SEARCH || l->choice.method == NIB_PTQ_HQQ);
}

/* Names them for notes; NULL: no layer has such codes. */
static const char *name_unchecked(const work *w)
{
    const bool has_hqq = nib__methods_count(w, NIB_PTQ_HQQ) > 0;
    if (nib__methods_count(w, NIB_PTQ_SEARCH) > 0)
        return has_hqq ? "search and hqq" : nib__ptq_names[NIB_PTQ_SEARCH];
    return has_hqq ? nib__ptq_names[NIB_PTQ_HQQ] : NULL;
}

/* Compares layers by search and hqq with rounding on the text, and rounds them if that is better.
 * A model that does not run layer by layer is not compared, which a note says. */
static nib_status check_searches(work *w, nib_err *err)
{
    nib_coded_comparison c = {.name = name_unchecked(w),
                              .is_changed = is_unchecked,
                              .tokens = asked_checked(w),
                              .most = SEARCHES_CHECKED};
    const int64_t shared = w->model->net.config.shared_layers;
    if (c.name == NULL || c.tokens == 0)
        return NIB_OK;
    if (shared > 0) {
        nib__ledger_add_note(&w->ledger, "method",
                             "%s: the last %" PRId64 " layers of this model read the keys of "
                             "earlier ones, so the whole model is not compared with rounding",
                             c.name, shared);
        return NIB_OK;
    }
    NIB_TRY(compare(w, &c, err));
    w->asked.checked = c.tokens;
    for (size_t i = 0; i < w->model->net.site_count && c.keeps_rounding; i++)
        if (is_unchecked(&w->layers[i])) {
            w->layers[i].choice.method = NIB_PTQ_RTN;
            w->layers[i].importance = NULL;
        }
    return NIB_OK;
}

void nib__methods_vectors(const work *w, nib_quantize_job *job)
{
    const bool is_rotated = w->rotating.vectors != NULL; /* it does not mix with scales */
    job->vectors = is_rotated ? w->rotating.vectors : w->scales.vectors;
    job->vector_count = is_rotated ? w->rotating.vector_count : w->scales.vector_count;
}

/* Removes the store of a run, and notes what an earlier one left there. */
static void finish_store(work *w, const char *name, const char *held, const nib_text *resumed,
                         nib_gptq_store **store)
{
    nib_err err;
    if (resumed->size != 0)
        nib__ledger_add_note(&w->ledger, "method", "%s", resumed->at);
    if (nib__gptq_store_remove(*store, &err) != NIB_OK)
        nib__ledger_add_note(&w->ledger, "method", "%s: its %s are still on the disk: %s", name,
                             held, err.text);
    *store = NULL;
}

void nib__methods_finish(work *w)
{
    if (w->gptq.store != NULL)
        nib__ledger_add_note(
            &w->ledger, "method", "%s: %.3g multiply-adds, predicted to take %.1f s, took %.1f s",
            w->gptq.name, w->gptq.multiply_adds, w->gptq.predicted_s, w->gptq.seconds);
    finish_store(w, w->gptq.name, "codes", &w->gptq.resumed, &w->gptq.store);
    nib__scales_note(&w->scales);
    finish_store(w, w->scales.name, "scales", &w->scales.resumed, &w->scales.store);
}

/* Whether codes or the choice between them and rounding's depend on a text. */
static bool uses_text(const work *w)
{
    bool uses = nib__recipe_needs_calibration(w->recipe);
    for (int m = 0; m < NIB_PTQ_COUNT; m++)
        uses = uses || (m != NIB_PTQ_RTN && nib__methods_count(w, (nib_ptq_method)m) > 0);
    return uses;
}

/* Refuses options that have no effect, and methods without the text that they need. */
static nib_status check_options(const work *w, nib_err *err)
{
    const char *text = w->options->calibrate, *imatrix = w->options->imatrix;
    const size_t learned = nib__methods_count(w, NIB_PTQ_LEARN),
                 qronos = nib__methods_count(w, NIB_PTQ_QRONOS);
    const nib_ptq_method coding = learned > 0  ? NIB_PTQ_LEARN
                                  : qronos > 0 ? NIB_PTQ_QRONOS
                                               : NIB_PTQ_GPTQ;
    if (nib__methods_count(w, coding) > 0 && !text)
        return nib__fail(err, NIB_USAGE,
                         "the method %s needs a text to calibrate with; give --calibrate TEXT",
                         nib__ptq_names[coding]);
    if (imatrix && count_searched(w) == 0)
        return nib__fail(err, NIB_USAGE,
                         "--imatrix %s has no effect: no layer is quantized by --method search",
                         imatrix);
    if (imatrix && nib__methods_count(w, NIB_PTQ_ROTATE) > 0)
        return nib__fail(err, NIB_USAGE,
                         "--imatrix %s has no effect: the method rotate mixes the inputs, and an "
                         "imatrix has the squares of each as stored; give --calibrate TEXT",
                         imatrix);
    if (text && !uses_text(w) && w->mixed == NULL)
        return nib__fail(err, NIB_USAGE,
                         "--calibrate %s has no effect: the recipe has no static activation "
                         "scales, and no method that uses a text",
                         text);
    if (nib__recipe_needs_calibration(w->recipe) && !text)
        return nib__fail(
            err, NIB_USAGE,
            "the recipe has static activation scales; give a text to calibrate them with "
            "--calibrate TEXT");
    return nib__scales_check(w->layers, w->model->net.site_count, text, err);
}

/* Runs the methods that need the text, or what an imatrix says of it. */
static nib_status run_on_text(work *w, nib_err *err)
{
    const char *text = w->options->calibrate;
    const size_t smooth = nib__methods_count(w, NIB_PTQ_SMOOTH),
                 scaled = nib__methods_count(w, NIB_PTQ_AWQ) + smooth,
                 coded = nib__methods_count(w, NIB_PTQ_GPTQ) +
                         nib__methods_count(w, NIB_PTQ_QRONOS) +
                         nib__methods_count(w, NIB_PTQ_LEARN);
    if (nib__recipe_needs_calibration(w->recipe) || smooth > 0 ||
        (count_searched(w) > 0 && w->options->imatrix == NULL))
        NIB_TRY(run_calibration(w, text, err));
    if (w->unrotated != NULL)
        NIB_TRY(finish_rotate(w, err));
    if (scaled > 0)
        NIB_TRY(run_scales(w, err));
    if (coded > 0)
        NIB_TRY(run_gptq(w, text, err));
    return check_searches(w, err); /* also the layers that gptq leaves to search */
}

nib_status nib__methods_run(work *w, nib_err *err)
{
    const char *text = w->options->calibrate, *imatrix = w->options->imatrix;
    NIB_TRY(check_options(w, err));
    if (count_searched(w) > 0 && !text && !imatrix)
        nib__ledger_add_note(&w->ledger, "method",
                             "search: all inputs count the same; with --calibrate TEXT each counts "
                             "by the mean of its squares");
    if (!w->options->dry_run)
        NIB_TRY(nib__asked_inputs(&w->asked, uses_text(w) ? text : NULL, imatrix,
                                  w->model->tokenizer_path, &w->arena, err));
    if (nib__methods_count(w, NIB_PTQ_ROTATE) > 0)
        NIB_TRY(run_rotate(w, err));
    if (imatrix)
        NIB_TRY(use_imatrix(w, err));
    if (text && w->options->dry_run && nib__path_kind(text) != NIB_PATH_FILE)
        return nib__fail(err, NIB_IO, "%s: file not found", text);
    if (text && !w->options->dry_run)
        return run_on_text(w, err);
    /* sizes and ledger do not depend on the text */
    if (!text && name_unchecked(w) != NULL)
        note_uncompared(w, name_unchecked(w));
    return w->unrotated != NULL ? finish_rotate(w, err) : NIB_OK;
}
