/* SPDX-License-Identifier: Apache-2.0
 *
 * What quantizing loses: the KL divergence from the model as stored on a text, whose logits stay in
 * memory; or, without a text, the relative error of a weight.
 */
#include "mixed.h"
#include "portable_math.h"
#include "quantizer.h"
#include "sample.h"

#include <math.h>

enum {
    TOKENS = 8192,
    WINDOW = 512,
    TEXT_MAX = 64 << 20,
    LOGITS_MAX = 1 << 28,  /* floats: 1 GiB */
    LOGITS_STEP = 1 << 24, /* floats per pass: 64 MiB */
    ERROR_ROWS = 512,
};

struct nib_mixed_text {
    nib_model *model;
    int32_t *ids; /* [count] windows, one after the other */
    int64_t count, window, vocab;
    float *logits; /* [count][vocab] */
    double *kl;    /* [count] of the last session */
};

/* The KL divergence of rows of logits from those of the model as stored. */
typedef struct comparing {
    const float *from, *logits; /* [count][vocab] */
    int64_t vocab;
    double *kl;
} comparing;

static void compare_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const comparing *c = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *p = c->from + i * c->vocab, *q = c->logits + i * c->vocab;
        int64_t best;
        const double all_p = nib__log_sum(p, c->vocab, &best),
                     all_q = nib__log_sum(q, c->vocab, &best);
        double sum = 0;
        for (int64_t v = 0; v < c->vocab; v++) {
            const double log_p = (double)p[v] - all_p;
            sum += nib__exp(log_p) * (log_p - ((double)q[v] - all_q));
        }
        c->kl[i] = sum;
    }
}

/* Runs `count` tokens from the text's token `first` on; *logits of all of them. */
static nib_status run_tokens(const nib_mixed_text *t, nib_session *session, int64_t first,
                             int64_t count, const float **logits, nib_err *err)
{
    nib_slot slots[NIB_CHUNK];
    for (int64_t i = 0; i < count; i++)
        slots[i] = (nib_slot){.position = (int32_t)((first + i) % t->window),
                              .token = t->ids[first + i],
                              .outputs = NIB_SLOT_LOGITS};
    if (first % t->window == 0)
        nib__kv_truncate(&session->runner.kv, 0, 0);
    return nib__runner_step(&session->runner, slots, (size_t)count, logits, err);
}

/* Calls run_tokens on the text and keeps the logits (kl NULL), or compares them. */
static nib_status run_text(const nib_mixed_text *t, nib_session *session, uint64_t step,
                           uint64_t steps, double *kl, nib_err *err)
{
    nib_engine *engine = session->model->engine;
    const int64_t chunk = nib__max(1, nib__min(NIB_CHUNK, LOGITS_STEP / t->vocab));
    const float *logits;
    for (int64_t done = 0; done < t->count;) {
        const int64_t part =
            nib__min(nib__min(chunk, t->window - done % t->window), t->count - done);
        if (!nib__engine_progress(engine, "sensitivity", step * (uint64_t)t->count + (uint64_t)done,
                                  steps * (uint64_t)t->count))
            return nib__fail(err, NIB_CANCELLED, "measuring what layers lose was cancelled");
        NIB_TRY(run_tokens(t, session, done, part, &logits, err));
        comparing c = {t->logits + done * t->vocab, logits, t->vocab,
                       kl == NULL ? NULL : kl + done};
        if (kl == NULL)
            memcpy(t->logits + done * t->vocab, logits,
                   (size_t)part * (size_t)t->vocab * sizeof *logits);
        else
            nib__pool_run(engine->pool, part, 4, false, compare_rows, &c);
        done += part;
    }
    return NIB_OK;
}

nib_status nib__mixed_text_kl(double *kl, const nib_mixed_text *t, nib_session *session,
                              uint64_t step, uint64_t steps, nib_err *err)
{
    double sum = 0;
    NIB_TRY(run_text(t, session, step, steps, t->kl, err));
    for (int64_t i = 0; i < t->count; i++)
        sum += t->kl[i];
    *kl = sum / (double)t->count;
    if (!isfinite(*kl))
        return nib__fail(err, NIB_CHECK_FAILED,
                         "the logits on the calibration text are not finite; `nibble verify` finds "
                         "the tensor that holds NaN or Inf");
    return NIB_OK;
}

int64_t nib__mixed_text_tokens(const nib_mixed_text *text) { return text->count; }

void nib__mixed_text_close(nib_mixed_text *t)
{
    if (!t)
        return;
    const nib_allocator *a = &t->model->engine->allocator;
    nib__release(a, t->ids);
    nib__release(a, t->logits);
    nib__release(a, t->kl);
    nib__release(a, t);
}

/* Takes windows that are spread evenly over the ids of the whole text; a shorter text is one
 * window, or several without its end. */
static nib_status take_windows(nib_mixed_text *t, const int32_t *ids, int64_t count, nib_err *err)
{
    const nib_allocator *a = &t->model->engine->allocator;
    const int64_t most = nib__max(1, nib__min(TOKENS, LOGITS_MAX / t->vocab));
    t->window = nib__min(nib__min(t->window, count), most);
    const int64_t windows = nib__min(count, most) / t->window;
    t->count = windows * t->window;
    t->ids = nib__calloc(a, (uint64_t)t->count, sizeof *t->ids);
    t->logits = nib__calloc(a, (uint64_t)t->count * (uint64_t)t->vocab, sizeof *t->logits);
    t->kl = nib__calloc(a, (uint64_t)t->count, sizeof *t->kl);
    if (!t->ids || !t->logits || !t->kl)
        return nib__fail_memory(err, (uint64_t)t->count * (uint64_t)t->vocab * sizeof *t->logits,
                                "the logits of a text");
    for (int64_t i = 0; i < windows; i++) {
        const int64_t from = windows > 1 ? i * (count - t->window) / (windows - 1) : 0;
        memcpy(t->ids + i * t->window, ids + from, (size_t)t->window * sizeof *ids);
    }
    return NIB_OK;
}

static nib_status read_text(nib_mixed_text *t, const char *path, nib_err *err)
{
    const nib_allocator *a = &t->model->engine->allocator;
    const nib_tokenizer *tokenizer;
    char shown[NIB_SHOWN], *text;
    size_t size, count;
    int32_t *ids;
    NIB_TRY(nib_model_tokenizer(&tokenizer, t->model, err));
    NIB_TRY(nib__file_read(&text, &size, path, TEXT_MAX, a, err));
    nib_status status =
        nib__tokenizer_encode(tokenizer, text, size, NIB_ENCODE_ADD_SPECIAL, &ids, &count, err);
    nib__release(a, text);
    NIB_TRY(status);
    status = count >= 2 ? take_windows(t, ids, (int64_t)count, err)
                        : nib__fail(err, NIB_BAD_INPUT,
                                    "%s: the calibration text has %zu tokens; give a few thousand",
                                    nib__escape_string(shown, path), count);
    nib__tokenizer_ids_free(tokenizer, ids);
    return status;
}

static nib_status run_stored(nib_mixed_text *t, const nib_request *request, const char *path,
                             nib_err *err)
{
    const nib_request as_stored = {.dtype = request->dtype, .context = request->context};
    nib_plan *plan = NULL;
    nib_session *session = NULL;
    nib_status status = nib_plan_open(&plan, t->model, &as_stored, err);
    if (status == NIB_OK)
        status = nib_session_open(&session, t->model, plan, 1, err);
    if (status == NIB_OK) {
        t->vocab = nib_session_vocab(session);
        t->window = nib__min(plan->context, WINDOW);
        status = read_text(t, path, err);
    }
    if (status == NIB_OK)
        status = run_text(t, session, 0, 1, NULL, err);
    nib_session_close(session);
    nib_plan_close(plan);
    return status;
}

nib_status nib__mixed_text_open(nib_mixed_text **out, nib_model *model, const nib_request *request,
                                const char *path, nib_err *err)
{
    nib_mixed_text *t = nib__calloc(&model->engine->allocator, 1, sizeof *t);
    if (!t)
        return nib__fail_memory(err, sizeof *t, "a text");
    t->model = model;
    const nib_status status = run_stored(t, request, path, err);
    if (status == NIB_OK)
        *out = t;
    else
        nib__mixed_text_close(t);
    return status;
}

/* ---- without a text ---- */

static nib_status quantize_rows(double *error, nib_quantizer *q, const float *rows, int64_t count,
                                nib_quantized *to, nib_err *err)
{
    float range[2] = {0, 0};
    if (nib__quantizer_needs_scan(q)) {
        NIB_TRY(nib__quantizer_scan(q, rows, 0, count, range, err));
        NIB_TRY(nib__quantizer_set_range(q, range, err));
    }
    NIB_TRY(nib__quantizer_quantize_rows(q, rows, 0, count, to, err));
    *error = to->signal > 0 ? to->error / to->signal : 0;
    return NIB_OK;
}

nib_status nib__mixed_weight_error(double *error, const nib_site *site, const nib_scheme *scheme,
                                   const nib_allocator *a, nib_err *err)
{
    const int64_t k = site->k, count = nib__min(ERROR_ROWS, site->n);
    const uint64_t values = (uint64_t)count * (uint64_t)k;
    nib_quantizer q;
    nib_arena arena;
    NIB_TRY(nib__quantizer_init(&q, scheme, nib__float_type(site->stored.code), k, err));
    nib__arena_init(&arena, a, 0);
    float *rows = nib__arena_take(&arena, values, sizeof *rows);
    nib_quantized to = {.codes = nib__arena_take(&arena, values, 1),
                        .scales = nib__arena_take(&arena, values, sizeof(float)),
                        .zeros = nib__arena_take(&arena, values, sizeof(float))};
    nib_status status = rows && to.codes && to.scales && to.zeros
                            ? NIB_OK
                            : nib__fail_memory(err, values * 13, "rows of a weight");
    for (int64_t i = 0; i < count && status == NIB_OK; i++)
        nib__weight_row(&site->weight, i * site->n / count, rows + i * k);
    if (status == NIB_OK)
        status = quantize_rows(error, &q, rows, count, &to, err);
    nib__arena_free(&arena);
    return status;
}
