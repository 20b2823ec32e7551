/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes metrics, and finds where the file of an interrupted run continues.
 */
#include "metrics.h"

#include "train_settings.h"

#include <stdio.h>

enum { METRICS_MAX = 1 << 30 };

/* ---- what to keep of an existing file ---- */

/* The step of a line; 0: a line without a step; negative: not a line of metrics. */
static int64_t step_of(const char *line, size_t size)
{
    nib_json json;
    int64_t step = 0;
    nib__json_init(&json, "", line, size, NULL);
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY)
        ok = nib__json_is(&json, "step") ? nib__json_read_int64(&json, 1, INT64_MAX, &step)
                                         : nib__json_skip(&json);
    ok = ok && json.event == NIB_JSON_OBJECT_END && nib__json_next(&json) == NIB_JSON_END;
    return ok ? step : -1;
}

/* Bytes up to the end of the last line that is not past the step. */
static uint64_t kept_bytes(const char *text, size_t size, int64_t step)
{
    size_t kept = 0;
    for (size_t at = 0; at < size;) {
        const char *end = memchr(text + at, '\n', size - at);
        if (!end)
            break;
        const int64_t found = step_of(text + at, (size_t)(end - (text + at)));
        if (found < 0 || found > step)
            break;
        at = (size_t)(end + 1 - text);
        if (found > 0 || kept == 0) /* a line without a step is kept only if a step follows */
            kept = at;
    }
    return kept;
}

static nib_status find_end(uint64_t *out, const nib_metrics *m, nib_err *err)
{
    const nib_allocator *a = &m->trainer->engine->allocator;
    char *text;
    size_t size;
    *out = 0;
    if (m->trainer->optimizer.steps == 0 || nib__path_kind(m->path) != NIB_PATH_FILE)
        return NIB_OK;
    NIB_TRY(nib__file_read(&text, &size, m->path, METRICS_MAX, a, err));
    *out = kept_bytes(text, size, m->trainer->optimizer.steps);
    nib__release(a, text);
    return NIB_OK;
}

/* ---- writing ---- */

static nib_status write_line(nib_metrics *m, nib_err *err)
{
    nib__text_str(&m->line, "\n");
    const nib_status status = m->line.failed
                                  ? nib__fail_memory(err, m->line.size, "a line of metrics")
                                  : nib__append(m->fd, m->path, m->line.at, m->line.size, err);
    nib__text_clear(&m->line);
    return status;
}

static nib_status write_head(nib_metrics *m, nib_err *err)
{
    const nib_trainer *t = m->trainer;
    nib_jsonw w;
    nib__jsonw_init(&w, &m->line, 0);
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "tool", "nibble " NIB_VERSION);
    if (t->optimizer.steps > 0)
        nib__jsonw_pair_int(&w, "resumed_from", t->optimizer.steps);
    nib__jsonw_pair_int(&w, "ranks", nib_ranks_count(t->ranks));
    nib__jsonw_pair_int(&w, "threads", nib__pool_threads(t->engine->pool));
    nib__jsonw_pair_string(&w, "device", t->plan->machine.name);
    nib__jsonw_pair_int(&w, "parameters", (int64_t)t->params.values);
    nib__jsonw_key(&w, "config");
    nib__trainer_settings(&w, t);
    nib__jsonw_object_end(&w);
    return write_line(m, err);
}

/* Begins the line of a step; false: no metrics are written. */
static bool begin_line(nib_metrics *m, nib_jsonw *w, int64_t step)
{
    if (!m->trainer)
        return false;
    nib__jsonw_init(w, &m->line, 0);
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "step", step);
    return true;
}

/* Tokens of each expert, layer by layer, and the loss that balances them. */
static void put_load(nib_jsonw *w, const nib_load *load, const nib_step_report *r)
{
    if (load->balances)
        nib__jsonw_pair_double(w, "balance_loss", r->balance);
    nib__jsonw_key(w, "expert_counts");
    nib__jsonw_array(w);
    for (int64_t i = 0; i < load->layers; i++) {
        const float *counts = nib__load_counts(load, r->load, i);
        nib__jsonw_array(w);
        for (int64_t e = 0; e < load->route[i]->routing->experts; e++)
            nib__jsonw_int(w, (int64_t)counts[e]);
        nib__jsonw_array_end(w);
    }
    nib__jsonw_array_end(w);
}

nib_status nib__metrics_step(nib_metrics *m, const nib_step_report *r, const nib_speed *speed,
                             nib_err *err)
{
    nib_jsonw w;
    if (!begin_line(m, &w, r->step))
        return NIB_OK;
    nib__jsonw_pair_double(&w, "loss", r->loss);
    if (m->trainer->config->draft_weight > 0)
        nib__jsonw_pair_double(&w, "draft_loss", r->draft_loss);
    nib__jsonw_pair_double(&w, "grad_norm", r->norm);
    nib__jsonw_pair_double(&w, "rate", r->rate);
    nib__jsonw_pair_int(&w, "tokens", r->step * r->tokens);
    nib__jsonw_pair_double(&w, "tps", speed->tokens_per_s);
    nib__jsonw_pair_double(&w, "tflops", speed->flops * 1e-12);
    nib__jsonw_pair_double(&w, "mfu", speed->share);
    nib__jsonw_pair_int(&w, "memory_bytes", (int64_t)speed->memory);
    nib__jsonw_pair_double(&w, "seconds", r->seconds);
    nib__jsonw_pair_bool(&w, "skipped", r->skipped);
    if (r->load != NULL)
        put_load(&w, &m->trainer->params.load, r);
    nib__jsonw_object_end(&w);
    return write_line(m, err);
}

nib_status nib__metrics_validation(nib_metrics *m, const nib_validation_report *r, nib_err *err)
{
    nib_jsonw w;
    if (!begin_line(m, &w, r->step))
        return NIB_OK;
    nib__jsonw_pair_double(&w, "validation_loss", r->loss);
    if (m->trainer->config->draft_weight > 0)
        nib__jsonw_pair_double(&w, "validation_draft_loss", r->draft_loss);
    nib__jsonw_pair_int(&w, "validation_tokens", r->tokens);
    nib__jsonw_pair_double(&w, "seconds", r->seconds);
    nib__jsonw_object_end(&w);
    return write_line(m, err);
}

static void put_cast(nib_jsonw *w, const nib_cast_line *line)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "layer", line->layer);
    nib__jsonw_pair_string(w, "product", line->product);
    nib__jsonw_pair_string(w, "operand", line->operand);
    nib__jsonw_pair_string(w, "code", line->code);
    nib__jsonw_pair_int(w, "values", (int64_t)line->values);
    nib__jsonw_pair_int(w, "nonzero", (int64_t)line->counts.nonzero);
    nib__jsonw_pair_int(w, "saturated", (int64_t)line->counts.saturated);
    nib__jsonw_pair_int(w, "underflowed", (int64_t)line->counts.underflowed);
    nib__jsonw_object_end(w);
}

nib_status nib__metrics_casts(nib_metrics *m, const nib_cast_losses *losses, int64_t step,
                              nib_err *err)
{
    nib_jsonw w;
    nib_cast_line line;
    if (!m->trainer)
        return NIB_OK;
    nib__jsonw_init(&w, &m->line, 0);
    nib__jsonw_object(&w);
    nib__jsonw_pair_int(&w, "step", step);
    nib__jsonw_key(&w, "casts");
    nib__jsonw_array(&w);
    for (size_t i = 1; i < m->trainer->model->net.site_count; i++)
        for (int p = 0; p < NIB_PRODUCTS; p++)
            for (int side = 0; side < 2; side++)
                if (nib__cast_losses_line(&line, losses, i, p, side))
                    put_cast(&w, &line);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
    return write_line(m, err);
}

/* ---- opening ---- */

static nib_status make_folder(const char *path, nib_arena *arena, nib_err *err)
{
    const size_t head = (size_t)(nib__path_name(path) - path);
    char *folder = nib__arena_copy(arena, path, head > 1 ? head - 1 : head);
    if (!folder)
        return nib__fail_memory(err, head, "a path");
    return head > 1 ? nib__directories_make(folder, err) : NIB_OK;
}

nib_status nib__metrics_open(nib_metrics *out, nib_trainer *t, nib_err *err)
{
    uint64_t keep;
    *out = (nib_metrics){.fd = -1};
    if (!t->config->metrics || nib_ranks_rank(t->ranks) != 0)
        return NIB_OK;
    out->trainer = t;
    out->path = t->config->metrics;
    nib__text_init(&out->line, &t->engine->allocator);
    nib_status status = make_folder(out->path, &t->arena, err);
    if (status == NIB_OK)
        status = find_end(&keep, out, err);
    if (status == NIB_OK)
        status = nib__append_open(&out->fd, out->path, keep, err);
    if (status == NIB_OK)
        status = write_head(out, err);
    if (status != NIB_OK)
        nib__metrics_close(out);
    return status;
}

nib_status nib__metrics_sync(const nib_metrics *m, nib_err *err)
{
    return m->trainer ? nib__append_sync(m->fd, m->path, err) : NIB_OK;
}

void nib__metrics_close(nib_metrics *m)
{
    if (!m->trainer)
        return;
    nib__append_close(m->fd);
    nib__text_free(&m->line);
    *m = (nib_metrics){.fd = -1};
}
