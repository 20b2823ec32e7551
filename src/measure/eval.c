/* SPDX-License-Identifier: Apache-2.0
 *
 * Loss and perplexity of a text, and the distance between two models on it. A text is cut into
 * windows that do not overlap; each JSON line is a document. Every id of a window except the first
 * is predicted.
 */
#include "documents.h"
#include "bench.h"
#include "public_struct.h"
#include "portable_math.h"

#include <inttypes.h>
#include <math.h>

enum { LOGITS_LIMIT = 1 << 24 /* floats per pass: 64 MiB */ };

/* What one predicted token adds. */
typedef struct token_score {
    double loss, kl;
    bool agreed;
} token_score;

typedef struct evaluation {
    nib_session *session, *against;
    const nib_eval_options *options;
    const nib_tokenizer *tokenizer;
    int64_t window;
    double loss, kl; /* sums */
    int64_t predicted, agreed;
    token_score *scores;  /* [NIB_CHUNK] */
    uint64_t done, total; /* bytes, for progress */
    nib_err *err;
} evaluation;

typedef struct scoring {
    const float *logits, *other; /* [count][vocab]; other NULL: none */
    const int32_t *targets;
    int64_t vocab;
    token_score *scores;
} scoring;

static void job_score(void *ctx, int worker, int64_t begin, int64_t end)
{
    const scoring *s = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *logits = s->logits + i * s->vocab;
        int64_t best, other_best;
        const double all = nib__log_sum(logits, s->vocab, &best);
        token_score *score = &s->scores[i];
        *score = (token_score){.loss = all - (double)logits[s->targets[i]]};
        if (!s->other)
            continue;
        const float *other = s->other + i * s->vocab;
        const double other_all = nib__log_sum(other, s->vocab, &other_best);
        for (int64_t v = 0; v < s->vocab; v++) {
            const double log_p = (double)other[v] - other_all;
            score->kl += nib__exp(log_p) * (log_p - ((double)logits[v] - all));
        }
        score->agreed = best == other_best;
    }
}

static nib_status run_slots(nib_session *session, const int32_t *ids, int64_t first, int64_t count,
                            int64_t last, const float **logits, nib_err *err)
{
    nib_slot slots[NIB_CHUNK];
    for (int64_t i = 0; i < count; i++)
        slots[i] = (nib_slot){.position = (int32_t)(first + i),
                              .token = ids[first + i],
                              .outputs = first + i < last ? NIB_SLOT_LOGITS : 0};
    return nib__runner_step(&session->runner, slots, (size_t)count, logits, err);
}

/* One window: ids[0..count). */
static nib_status eval_window(evaluation *e, const int32_t *ids, int64_t count)
{
    const int64_t vocab = nib_session_vocab(e->session);
    const int64_t chunk = nib__max(1, nib__min(NIB_CHUNK, LOGITS_LIMIT / vocab));
    nib__kv_truncate(&e->session->runner.kv, 0, 0);
    if (e->against)
        nib__kv_truncate(&e->against->runner.kv, 0, 0);
    for (int64_t first = 0; first < count - 1; first += chunk) {
        const int64_t part = nib__min(chunk, count - first),
                      scored = nib__min(part, count - 1 - first);
        scoring s = {.vocab = vocab, .targets = ids + first + 1, .scores = e->scores};
        NIB_TRY(run_slots(e->session, ids, first, part, count - 1, &s.logits, e->err));
        if (e->against)
            NIB_TRY(run_slots(e->against, ids, first, part, count - 1, &s.other, e->err));
        nib__pool_run(e->session->model->engine->pool, scored, 4, false, job_score, &s);
        for (int64_t i = 0; i < scored; i++) {
            const bool lost = !isfinite(s.scores[i].loss);
            if (lost || !isfinite(s.scores[i].kl))
                return nib__fail(e->err, NIB_CHECK_FAILED,
                                 "the %s of predicted token %" PRId64
                                 " is not finite; `nibble verify` of %s model finds the tensor "
                                 "that holds NaN or Inf",
                                 lost ? "loss" : "distance to the other model", e->predicted + i,
                                 lost ? "the" : "that");
            e->loss += s.scores[i].loss;
            e->kl += s.scores[i].kl;
            e->agreed += s.scores[i].agreed;
        }
        e->predicted += scored;
    }
    return NIB_OK;
}

/* Splits the ids of one text into windows; each starts with BOS if the tokenizer adds it. */
static nib_status eval_ids(evaluation *e, const int32_t *ids, int64_t count, bool one_window)
{
    const nib_allocator *a = &e->session->model->engine->allocator;
    const bool bos = nib__tokenizer_adds_bos(e->tokenizer);
    const int64_t body = e->window - bos;
    int32_t *window = nib__calloc(a, (uint64_t)e->window, sizeof *window);
    if (!window)
        return nib__fail_memory(e->err, (uint64_t)e->window * sizeof *window, "a window");
    window[0] = nib__tokenizer_bos(e->tokenizer);
    nib_status status = NIB_OK;
    for (int64_t at = 0; at < count && status == NIB_OK; at += body) {
        const int64_t part = nib__min(body, count - at);
        memcpy(window + bos, ids + at, (size_t)part * sizeof *ids);
        if (!nib__engine_progress(e->session->model->engine, "evaluate",
                                  e->done + (one_window ? 0 : (uint64_t)at),
                                  one_window ? e->total : (uint64_t)count))
            status = nib__fail(e->err, NIB_CANCELLED, "the evaluation was cancelled");
        else
            status = eval_window(e, window, part + bos);
        if (one_window)
            break;
    }
    nib__release(a, window);
    return status;
}

/* name: of the text, for messages. */
static nib_status eval_text(evaluation *e, const char *name, const char *text, size_t size,
                            bool document)
{
    int32_t *ids;
    size_t count;
    const nib_status encoded =
        nib__tokenizer_encode(e->tokenizer, text, size, 0, &ids, &count, e->err);
    if (encoded != NIB_OK)
        return nib__fail_in(e->err, encoded, name);
    const nib_status status = eval_ids(e, ids, (int64_t)count, document);
    nib__tokenizer_ids_free(e->tokenizer, ids);
    return status;
}

static nib_status eval_documents(evaluation *e, nib_documents *documents)
{
    nib_document doc;
    bool found;
    for (;;) {
        NIB_TRY(nib__documents_next(documents, &doc, &found, e->err));
        if (!found)
            return NIB_OK;
        e->done = doc.begin;
        NIB_TRY(eval_text(e, doc.name, doc.text, doc.size, documents->lines));
    }
}

static nib_status eval_file(evaluation *e)
{
    nib_documents documents;
    const char *path = e->options->text_path;
    NIB_TRY(nib__documents_open(&documents, path, &e->session->model->engine->allocator, e->err));
    e->total = documents.size;
    const nib_status status = eval_documents(e, &documents);
    nib__documents_close(&documents);
    if (status == NIB_OK && e->predicted == 0)
        return nib__fail(
            e->err, NIB_BAD_INPUT,
            "%s: the text is too short to predict a token; it needs at least two tokens", path);
    return status;
}

static nib_status check_options(evaluation *e)
{
    const int64_t context = e->session->plan->context;
    e->window = e->options->window > 0 ? e->options->window : nib__min(context, 4096);
    if (e->window < 2 || e->window > context)
        return nib__fail(e->err, NIB_USAGE,
                         "a window of %" PRId64 " is not between 2 and the context of %" PRId64,
                         e->window, context);
    if (e->against && nib_session_vocab(e->against) != nib_session_vocab(e->session))
        return nib__fail(e->err, NIB_USAGE,
                         "the two models cannot be compared: their vocabularies have %" PRId64
                         " and %" PRId64 " tokens",
                         nib_session_vocab(e->session), nib_session_vocab(e->against));
    if (e->against && e->against->plan->context < e->window)
        return nib__fail(e->err, NIB_USAGE,
                         "a window of %" PRId64 " is over the other model's context of %" PRId64,
                         e->window, e->against->plan->context);
    return NIB_OK;
}

static void store_result(const evaluation *e, nib_eval_result *result, double seconds)
{
    const double count = (double)e->predicted;
    *result = (nib_eval_result){.loss = e->loss / count,
                                .perplexity = nib__exp(e->loss / count),
                                .predicted = e->predicted,
                                .seconds = seconds};
    if (e->against) {
        result->kl = e->kl / count;
        result->top1_agreement = (double)e->agreed / count;
    }
}

nib_status nib_eval(nib_session *session, nib_session *against, const nib_eval_options *options,
                    nib_eval_result *result, nib_err *err)
{
    NIB_NEED(err, "session, result", session, result);
    NIB_OPTIONS(nib_eval_options, o, options, err);
    NIB_TRY(nib__number_check("nib_eval_options.window", o.window, err));
    evaluation e = {.session = session, .against = against, .options = &o, .err = err};
    const nib_allocator *a = &session->model->engine->allocator;
    NIB_TRY(nib__session_check_idle(session, err));
    if (against)
        NIB_TRY(nib__session_check_idle(against, err));
    if (!o.text_path)
        return nib__fail(err, NIB_USAGE, "no text is given to measure the loss of");
    NIB_TRY(check_options(&e));
    NIB_TRY(nib_model_tokenizer(&e.tokenizer, session->model, err));
    e.scores = nib__calloc(a, NIB_CHUNK, sizeof *e.scores);
    if (!e.scores)
        return nib__fail_memory(err, NIB_CHUNK * sizeof *e.scores, "scores");
    const uint64_t start = nib__now_ns();
    nib_status status = nib__model_check_files(session->model, eval_file(&e), err);
    if (against)
        status = nib__model_check_files(against->model, status, err);
    nib__release(a, e.scores);
    NIB_TRY(status);
    nib_eval_result r;
    store_result(&e, &r, (double)(nib__now_ns() - start) * 1e-9);
    NIB_RESULT(result, r);
    return NIB_OK;
}

nib_status nib__eval_ids(nib_session *session, nib_session *against, const int32_t *ids,
                         int64_t count, nib_eval_result *result, nib_err *err)
{
    const nib_eval_options options = {.window = count};
    const nib_allocator *a = &session->model->engine->allocator;
    evaluation e = {.session = session, .against = against, .options = &options, .err = err};
    NIB_TRY(check_options(&e));
    e.scores = nib__calloc(a, NIB_CHUNK, sizeof *e.scores);
    if (!e.scores)
        return nib__fail_memory(err, NIB_CHUNK * sizeof *e.scores, "scores");
    const nib_status status = eval_window(&e, ids, count);
    nib__release(a, e.scores);
    if (status == NIB_OK)
        store_result(&e, result, 0);
    return status;
}
