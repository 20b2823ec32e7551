/* SPDX-License-Identifier: Apache-2.0
 *
 * nib_tune: for each shape of a model and each range of tokens, times the kernels that could run a
 * layer's products on this CPU, and saves their order. Compares only kernels of one arithmetic
 * contract, so a plan may take any of them.
 */
#include "bench.h"
#include "public_struct.h"
#include "timing.h"
#include "tuned.h"
#include "variant.h"

#include <inttypes.h>
#include <stdio.h>

enum { TURNS = 3 };

/* The number of tokens to time for the range that begins with m_min. */
static int64_t timed_tokens(int64_t m_min) { return m_min == 1 ? 1 : m_min == 2 ? 8 : 64; }

typedef struct tuning {
    nib_engine *engine;
    const nib_plan *plan;
    nib_timed timed;
    nib_tuned found; /* what to save: earlier results and new ones */
    nib_text *out;
    nib_form form;
    bool far; /* the model's weights exceed the caches */
    size_t shapes, changed;
} tuning;

/* ---- one shape and one range ---- */

static nib_query query_of(const tuning *t, const nib_layer_plan *layer, int64_t m)
{
    nib_query q;
    nib__plan_query(&q, layer->layer, &layer->done, &t->plan->machine, &t->plan->policy,
                    NIB_OP_LINEAR, NIB_PHASE_INFER, m);
    return q;
}

/* Lists the rows of the contract that could run it; a reference row only if it was chosen. */
static void list_rows(nib_tuned_line *line, const nib_query *q, nib_arithmetic arithmetic,
                      const nib_kernel *chosen)
{
    line->count = 0;
    for (size_t i = 0; i < NIB_TUNED_KEY; i++)
        line->key[i] = q->fact[nib__tuned_facts[i]];
    for (size_t i = 0; i < nib__kernel_count() && line->count < NIB_TUNED_ROWS; i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->peer == NULL && row->arithmetic == arithmetic && nib__kernel_keyed(row, q) &&
            nib__kernel_holds(row, q, true) && (row == chosen || !nib__kernel_is_ref(row)))
            line->rows[line->count++] = (nib_tuned_row){.kernel = row};
    }
}

static void sort_rows(nib_tuned_line *line)
{
    for (int i = 1; i < line->count; i++)
        for (int j = i; j > 0 && line->rows[j].seconds < line->rows[j - 1].seconds; j--) {
            const nib_tuned_row row = line->rows[j];
            line->rows[j] = line->rows[j - 1];
            line->rows[j - 1] = row;
        }
}

/* Times every row in each of a few turns, takes medians and sorts. */
static nib_status time_rows(tuning *t, nib_tuned_line *line, const nib_layer_plan *layer, int64_t m,
                            nib_err *err)
{
    double seconds[NIB_TUNED_ROWS][TURNS];
    const nib_layer *l = layer->layer;
    NIB_TRY(nib__timed_set(&t->timed, l, &layer->done, t->plan->policy.dtype, l->n, m, err));
    for (int turn = 0; turn < TURNS; turn++)
        for (int i = 0; i < line->count; i++)
            NIB_TRY(nib__timed_linear(&t->timed, line->rows[i].kernel, l->n, m, t->far && m == 1,
                                      &seconds[i][turn], err));
    for (int i = 0; i < line->count; i++)
        line->rows[i].seconds = nib__median(seconds[i], TURNS);
    sort_rows(line);
    return NIB_OK;
}

/* ---- output ---- */

static void write_line(tuning *t, const nib_tuned_line *line, const char *name, int64_t m,
                       const nib_kernel *chosen)
{
    const int64_t n = line->key[3], k = line->key[4]; /* N and K of nib__tuned_facts */
    for (int i = 0; i < line->count; i++) {
        const nib_tuned_row *row = &line->rows[i];
        if (t->form == NIB_FORM_JSON)
            nib__text_format(t->out,
                             "%s\n    {\"layer\": \"%s\", \"n\": %" PRId64 ", \"k\": %" PRId64
                             ", \"m\": %" PRId64
                             ", \"kernel\": \"%s\", \"us\": %.4g, \"ranks_first\": %s}",
                             t->shapes == 0 && i == 0 ? "" : ",", name, n, k, m, row->kernel->name,
                             row->seconds * 1e6, row->kernel == chosen ? "true" : "false");
        else
            nib__text_format(t->out,
                             t->form == NIB_FORM_MARKDOWN ? "| %s | %" PRId64 "x%" PRId64
                                                            " | %" PRId64 " | %s | %.1f | %s |\n"
                                                          : "%-36s %8" PRId64 "x%-8" PRId64
                                                            " %5" PRId64 "  %-44s %10.1f%s\n",
                             i == 0 ? name : "", n, k, m, row->kernel->name, row->seconds * 1e6,
                             row->kernel == chosen ? "  ranks first" : "");
    }
    t->shapes++;
    t->changed += line->rows[0].kernel != chosen;
}

static void write_head(tuning *t)
{
    const nib_machine *m = &t->plan->machine;
    if (t->form == NIB_FORM_JSON)
        nib__text_format(t->out, "{\n  \"schema\": 1, \"threads\": %d,\n  \"kernels\": [",
                         m->threads);
    else if (t->form == NIB_FORM_MARKDOWN)
        nib__text_str(t->out,
                      "| layer | n x k | tokens | kernel | us | |\n|---|---|---|---|---|---|\n");
    else
        nib__text_format(t->out, "%s, %d thread%s\n%-36s %17s %5s  %-44s %10s\n",
                         nib__machine_title(m), m->threads, m->threads == 1 ? "" : "s", "layer",
                         "n x k", "m", "kernel", "us");
}

static void write_settings(tuning *t)
{
    nib_jsonw w;
    nib__text_str(t->out, "\n  ],\n  ");
    nib__jsonw_init(&w, t->out, 0);
    nib__ledger_settings_json(&t->plan->assignment.ledger, &w);
    nib__text_str(t->out, "\n}\n");
}

static void write_end(tuning *t)
{
    if (t->form == NIB_FORM_JSON)
        write_settings(t);
    else if (t->shapes == 0)
        nib__text_str(t->out, "no layer has more than one kernel of the same arithmetic here\n");
    else if (t->form == NIB_FORM_TEXT)
        nib__text_format(
            t->out,
            "for %zu of %zu shapes and ranges another kernel is faster than the first of the "
            "table; results do not change by a bit\n",
            t->changed, t->shapes);
}

/* ---- a model ---- */

/* Whether an earlier layer has the same key. */
static bool was_tuned(const tuning *t, size_t layer)
{
    const nib_assignment *plan = &t->plan->assignment;
    const nib_query q = query_of(t, &plan->layers[layer], 1);
    for (size_t i = 0; i < layer; i++) {
        const nib_query other = query_of(t, &plan->layers[i], 1);
        bool same = plan->layers[i].layer->role != NIB_ROLE_EMBED;
        for (size_t j = 0; j < NIB_TUNED_KEY && same; j++)
            same = q.fact[nib__tuned_facts[j]] == other.fact[nib__tuned_facts[j]];
        if (same)
            return true;
    }
    return false;
}

static nib_status tune_layer(tuning *t, const nib_layer_plan *layer, nib_err *err)
{
    for (int i = 0; i < layer->use_count; i++) {
        const nib_use *use = &layer->uses[i];
        const nib_query q = query_of(t, layer, use->m_min);
        nib_tuned_line line;
        list_rows(&line, &q, use->kernel->arithmetic, use->kernel);
        if (line.count < 2)
            continue;
        const int64_t m = timed_tokens(use->m_min);
        NIB_TRY(time_rows(t, &line, layer, m, err));
        if (!nib__tuned_add(&t->found, &line))
            return nib__fail_memory(err, sizeof line, "the measurements");
        write_line(t, &line, layer->layer->name, m, use->kernel);
    }
    return NIB_OK;
}

static nib_status tune_layers(tuning *t, nib_err *err)
{
    const nib_assignment *plan = &t->plan->assignment;
    for (size_t i = 0; i < plan->count; i++) {
        const nib_layer_plan *layer = &plan->layers[i];
        if (!nib__engine_progress(t->engine, "tune", i, plan->count))
            return nib__fail(err, NIB_CANCELLED, "tuning was cancelled");
        if (layer->layer->role != NIB_ROLE_EMBED && !layer->denied && !was_tuned(t, i))
            NIB_TRY(tune_layer(t, layer, err));
    }
    return NIB_OK;
}

static nib_status save_found(tuning *t, nib_err *err)
{
    nib_engine *engine = t->engine;
    nib_arena arena;
    nib__today(t->found.measured_on);
    nib__arena_init(&arena, &engine->allocator, 0);
    const char *path = nib__tuned_path(&arena, engine->cache_path);
    nib_status status =
        path != NULL ? nib__tuned_keep(&t->found, &engine->here, path, &engine->allocator, err)
                     : nib__fail_memory(err, strlen(engine->cache_path), "a path");
    nib__arena_free(&arena);
    if (status != NIB_OK)
        return nib__fail_in(err, status, "the measurements could not be saved");
    nib__tuned_free(&engine->tuned);
    engine->tuned = t->found;
    nib__tuned_init(&t->found, &engine->allocator);
    return NIB_OK;
}

/* Copies earlier results, to be replaced by new ones. */
static nib_status copy_saved(tuning *t, nib_err *err)
{
    const nib_tuned *kept = &t->engine->tuned;
    nib__tuned_init(&t->found, &t->engine->allocator);
    for (size_t i = 0; i < kept->count; i++)
        if (!nib__tuned_add(&t->found, &kept->lines[i]))
            return nib__fail_memory(err, sizeof kept->lines[i], "the measurements");
    return NIB_OK;
}

static nib_status tune_model(tuning *t, nib_err *err)
{
    const nib_machine *here = &t->engine->here;
    t->far = here->cache_bytes > 0 && (double)t->plan->weight_bytes > here->cache_bytes;
    NIB_TRY(copy_saved(t, err));
    NIB_TRY(nib__timed_open(&t->timed, t->engine, NULL, nib__timed_weights(here), err));
    t->timed.in_turns = true;
    write_head(t);
    NIB_TRY(tune_layers(t, err));
    write_end(t);
    return t->shapes > 0 ? save_found(t, err) : NIB_OK;
}

static nib_status check_request(const nib_engine *engine, const nib_plan *plan, nib_err *err)
{
    NIB_TRY(nib_plan_status(plan, err));
    if (plan->assignment.machine->facts.fact[NIB_FACT_DEVICE] != NIB_DEVICE_CPU ||
        !plan->machine.here)
        return nib__fail(
            err, NIB_USAGE,
            "%s is not this machine's CPU; only CPU kernels have alternatives with the "
            "same bits",
            plan->machine.name);
    if (engine->cache_path == NULL)
        return nib__fail(err, NIB_USAGE,
                         "no directory to save measurements in: set HOME or XDG_CACHE_HOME");
    return NIB_OK;
}

nib_status nib_tune(nib_model *model, const nib_request *request, nib_form form,
                    const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "model", model);
    NIB_TRY(nib__report_check(form, sink, err));
    nib_engine *engine = model->engine;
    nib_plan *plan;
    nib_text text;
    NIB_TRY(nib__engine_measure(engine, err));
    engine->here.tuned = NULL; /* plan with the ranks of the table */
    nib_status status = nib_plan_open(&plan, model, request, err);
    engine->here.tuned = &engine->tuned;
    NIB_TRY(status);
    nib__text_init(&text, &engine->allocator);
    tuning t = {.engine = engine, .plan = plan, .out = &text, .form = form};
    status = check_request(engine, plan, err);
    if (status == NIB_OK) {
        nib__log_settings(engine, &plan->assignment.ledger, 0);
        status = tune_model(&t, err);
        nib__timed_close(&t.timed);
        nib__tuned_free(&t.found);
    }
    if (status == NIB_OK)
        status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    nib_plan_close(plan);
    return status;
}

/* ---- saved results ---- */

static void show_text(const nib_engine *engine, nib_text *out)
{
    const nib_tuned *t = &engine->tuned;
    if (t->why[0] != 0)
        nib__text_format(out, "%s\n", t->why);
    else if (t->count == 0)
        nib__text_str(out, "nothing was tuned here yet; run `nibble tune MODEL`\n");
    for (size_t i = 0; i < t->count; i++) {
        const nib_tuned_line *line = &t->lines[i];
        if (i == 0)
            nib__text_format(out, "%s, %d thread%s, %s\n%17s %5s  %-44s %10s\n",
                             nib__machine_title(&engine->here), engine->here.threads,
                             engine->here.threads == 1 ? "" : "s", t->measured_on, "n x k", "m",
                             "kernel", "us");
        for (int j = 0; j < line->count; j++)
            nib__text_format(out, "%8" PRId64 "x%-8" PRId64 " %5" PRId64 "  %-44s %10.1f\n",
                             line->key[3], line->key[4], line->key[NIB_TUNED_KEY - 1],
                             line->rows[j].kernel->name, line->rows[j].seconds * 1e6);
    }
}

static void show_json(const nib_engine *engine, nib_text *out)
{
    const nib_tuned *t = &engine->tuned;
    nib_jsonw w;
    nib__jsonw_report(&w, out);
    nib__jsonw_pair_string(&w, "why", t->why[0] != 0 ? t->why : NULL);
    nib__jsonw_pair_string(&w, "measured", t->count > 0 ? t->measured_on : NULL);
    nib__jsonw_key(&w, "kernels");
    nib__jsonw_array(&w);
    for (size_t i = 0; i < t->count; i++)
        for (int j = 0; j < t->lines[i].count; j++) {
            nib__jsonw_object(&w);
            nib__jsonw_pair_int(&w, "n", t->lines[i].key[3]);
            nib__jsonw_pair_int(&w, "k", t->lines[i].key[4]);
            nib__jsonw_pair_int(&w, "m", t->lines[i].key[NIB_TUNED_KEY - 1]);
            nib__jsonw_pair_string(&w, "kernel", t->lines[i].rows[j].kernel->name);
            nib__jsonw_pair_double(&w, "us", t->lines[i].rows[j].seconds * 1e6);
            nib__jsonw_object_end(&w);
        }
    nib__jsonw_array_end(&w);
    nib__jsonw_report_end(&w);
}

nib_status nib_tune_show(nib_engine *engine, nib_form form, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "engine", engine);
    NIB_TRY(nib__report_check(form, sink, err));
    nib_text text;
    NIB_TRY(nib__engine_measure(engine, err));
    nib__text_init(&text, &engine->allocator);
    if (form == NIB_FORM_JSON)
        show_json(engine, &text);
    else
        show_text(engine, &text);
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

nib_status nib_tune_clear(nib_engine *engine, bool *found, nib_err *err)
{
    NIB_NEED(err, "engine, found", engine, found);
    nib_arena arena;
    *found = false;
    if (engine->cache_path == NULL)
        return NIB_OK;
    nib__arena_init(&arena, &engine->allocator, 0);
    const char *path = nib__tuned_path(&arena, engine->cache_path);
    const nib_status status =
        path != NULL ? nib__tuned_forget(found, &engine->here, path, &engine->allocator, err)
                     : nib__fail_memory(err, strlen(engine->cache_path), "a path");
    nib__arena_free(&arena);
    if (status == NIB_OK)
        nib__tuned_free(&engine->tuned);
    return status;
}
