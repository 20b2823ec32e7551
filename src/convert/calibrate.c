/* SPDX-License-Identifier: Apache-2.0
 *
 * Calibration: runs the model as stored over a text and records the range and the squares of the
 * inputs of every linear layer.
 */
#include "convert.h"
#include "rotation.h"

#include <float.h>
#include <math.h>

enum { CALIBRATE_TEXT_MAX = 64 << 20, CALIBRATE_WINDOW = 2048, HELD_OUT_MAX = 4096 };

typedef struct recorder {
    nib_input_stats *stats;
    double *room;    /* of nib__turn_input, and */
    float *row;      /* [widest] an input that it turned */
    bool wants_head; /* the squares of the output layer's inputs */
    bool in_parts;   /* some stats are */
    nib_text_parts parts;
    int part; /* of the text, from 0, that this step is in */
    bool bad;
    size_t bad_site;
} recorder;

static void widen(float range[2], const float *x, int64_t k)
{
    for (int64_t j = 0; j < k; j++) {
        range[0] = x[j] < range[0] ? x[j] : range[0];
        range[1] = x[j] > range[1] ? x[j] : range[1];
    }
}

static void record_row(recorder *w, size_t site, const float *x, int64_t k)
{
    nib_input_stats *s = &w->stats[site];
    const int part = s->in_parts ? w->part : 0;
    for (int64_t j = 0; j < k; j++)
        if (!isfinite(x[j]) && !w->bad) {
            w->bad = true;
            w->bad_site = site;
        }
    widen(s->range, x, k);
    for (int64_t j = 0; j < k && part < 2 && s->squares != NULL; j++)
        s->squares[j] += (double)x[j] * (double)x[j];
    for (int64_t j = 0; j < k && part < 1 && s->extremes != NULL; j++) {
        s->extremes[j] = fminf(s->extremes[j], x[j]);
        s->extremes[k + j] = fmaxf(s->extremes[k + j], x[j]);
    }
}

static void record(void *ctx, size_t site, const float *x, int64_t ld, int64_t m, int64_t k)
{
    recorder *w = ctx;
    const nib_turn *turn = w->stats[site].turn;
    w->stats[site].tokens += m;
    for (int64_t i = 0; i < m; i++) {
        widen(w->stats[site].stored_range, x + i * ld, k);
        if (turn != NULL)
            nib__turn_input(w->row, turn, x + i * ld, w->room);
        record_row(w, site, turn != NULL ? w->row : x + i * ld, k);
    }
}

int64_t nib__text_end(int64_t tokens)
{
    return nib__min(nib__max(tokens / 4, 1), HELD_OUT_MAX);
}

nib_status nib__text_parts(nib_text_parts *out, int64_t held_out, int64_t tokens, nib_err *err)
{
    const int64_t third = held_out != NIB_HELD_OUT_DEFAULT ? held_out : nib__text_end(tokens);
    if (third > (tokens - 1) / 2)
        return nib__fail(err, NIB_BAD_INPUT,
                         "the calibration text has %lld tokens; the last %lld check the whole "
                         "model, the %lld before them choose, and the method needs at least one "
                         "more",
                         (long long)tokens, (long long)third, (long long)third);
    *out = (nib_text_parts){.first = tokens - 2 * third, .second = third, .third = third};
    return NIB_OK;
}

/* Where the part of the text that holds token `done` ends. */
static int64_t part_end(recorder *w, int64_t done, int64_t count)
{
    const int64_t ends[] = {w->parts.first, w->parts.first + w->parts.second, count};
    if (!w->in_parts)
        return count;
    while (done >= ends[w->part])
        w->part++;
    return ends[w->part];
}

static nib_status run_tokens(nib_session *session, const int32_t *ids, const nib_calibration *run,
                             recorder *w, nib_err *err)
{
    const int64_t window = run->window;
    const size_t count = (size_t)run->tokens;
    nib_slot slots[NIB_CHUNK];
    const float *logits;
    for (size_t done = 0; done < count;) {
        const int64_t at = (int64_t)done % window;
        if (at == 0)
            nib__kv_truncate(&session->runner.kv, 0, 0);
        if (!nib__engine_progress(session->model->engine, "calibrate", done, count))
            return nib__fail(err, NIB_CANCELLED, "the calibration was cancelled");
        const int64_t left = part_end(w, (int64_t)done, run->tokens) - (int64_t)done;
        const int64_t part = nib__min(nib__min(NIB_CHUNK, window - at), left);
        for (int64_t i = 0; i < part; i++) {
            const int64_t position = at + i;
            /* the head has an input only where logits are wanted */
            const bool wanted =
                w->wants_head ? position % NIB_HEAD_EVERY == NIB_HEAD_EVERY - 1 : i + 1 == part;
            slots[i] = (nib_slot){.position = (int32_t)position,
                                  .token = ids[done + (size_t)i],
                                  .outputs = wanted ? NIB_SLOT_LOGITS : 0};
        }
        NIB_TRY(nib__runner_step(&session->runner, slots, (size_t)part, &logits, err));
        done += (size_t)part;
    }
    return NIB_OK;
}

static nib_status calibrate_on_text(nib_session *session, const char *text_path, recorder *w,
                                    nib_calibration *run, nib_err *err)
{
    nib_model *model = session->model;
    const nib_allocator *a = &model->engine->allocator;
    const nib_tokenizer *tokenizer;
    char *text;
    size_t size, count;
    int32_t *ids;
    NIB_TRY(nib_model_tokenizer(&tokenizer, model, err));
    NIB_TRY(nib__file_read(&text, &size, text_path, CALIBRATE_TEXT_MAX, a, err));
    nib_status status =
        nib__tokenizer_encode(tokenizer, text, size, NIB_ENCODE_ADD_SPECIAL, &ids, &count, err);
    nib__release(a, text);
    NIB_TRY(status);
    if (count == 0)
        status = nib__fail(err, NIB_BAD_INPUT, "%s: the calibration text is empty", text_path);
    session->runner.observer = (nib_observer){.see = record, .ctx = w};
    run->tokens = (int64_t)count;
    run->window = nib__min(nib__min(session->plan->context, CALIBRATE_WINDOW), run->tokens);
    if (status == NIB_OK && w->in_parts)
        status = nib__text_parts(&w->parts, run->held_out, run->tokens, err);
    if (status == NIB_OK)
        status = run_tokens(session, ids, run, w, err);
    nib__tokenizer_ids_free(tokenizer, ids);
    return status;
}

nib_status nib__calibrate(nib_input_stats *stats, nib_calibration *run, nib_model *model,
                          const nib_request *request, const char *text_path, nib_err *err)
{
    const nib_request as_stored = {.dtype = request->dtype, .context = request->context};
    nib_plan *plan = NULL;
    nib_session *session = NULL;
    const nib_allocator *a = &model->engine->allocator;
    recorder w = {.stats = stats};
    int64_t widest = 0;
    for (size_t i = 0; i < model->net.site_count; i++) {
        w.in_parts = w.in_parts || stats[i].in_parts;
        if (model->net.sites[i].role == NIB_ROLE_HEAD && stats[i].squares != NULL)
            w.wants_head = true;
        widest = nib__max(widest, model->net.sites[i].k);
    }
    w.room = nib__calloc(a, (uint64_t)widest + NIB_ROTATION_BASE, sizeof *w.room);
    w.row = nib__calloc(a, (uint64_t)widest, sizeof *w.row);
    nib_status status = w.room != NULL && w.row != NULL
                            ? nib_plan_open(&plan, model, &as_stored, err)
                            : nib__fail_memory(err, (uint64_t)widest, "the calibration");
    if (status == NIB_OK)
        status = nib_session_open(&session, model, plan, 1, err);
    if (status == NIB_OK)
        status = calibrate_on_text(session, text_path, &w, run, err);
    nib_session_close(session);
    nib_plan_close(plan);
    nib__release(a, w.room);
    nib__release(a, w.row);
    if (status == NIB_OK && w.bad)
        return nib__fail(
            err, NIB_CHECK_FAILED,
            "%s: its input is not finite on the calibration text; `nibble verify` finds the "
            "tensor that holds NaN or Inf",
            model->net.sites[w.bad_site].name);
    return status;
}

/* As an imatrix stores it, so that codes do not depend on whether squares were in one. */
static double stored_square(double square)
{
    return square > (double)FLT_MAX ? square : (double)(float)square;
}

nib_status nib__importance(const float **out, const double *squares, int64_t k, nib_arena *arena,
                           nib_err *err)
{
    double sum = 0;
    *out = NULL;
    for (int64_t j = 0; j < k; j++)
        sum += stored_square(squares[j]);
    if (!(sum > 0))
        return NIB_OK;
    float *importance = nib__arena_take(arena, (uint64_t)k, sizeof *importance);
    if (importance == NULL)
        return nib__fail_memory(err, (uint64_t)k * sizeof *importance, "the calibration");
    for (int64_t j = 0; j < k; j++)
        importance[j] = (float)fmax(stored_square(squares[j]) / (sum / (double)k), 0x1p-20);
    *out = importance;
    return NIB_OK;
}
