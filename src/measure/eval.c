/* SPDX-License-Identifier: Apache-2.0
 *
 * Loss and perplexity of a text, the distance between two models on it, or to a file of logits, and
 * how often the model's draft head is right on it.
 * A text is cut into windows that do not overlap; each JSON line is a document. Every id of a
 * window except the first is predicted; with llama.cpp's files, those of its second half, as there.
 */
#include "documents.h"
#include "bench.h"
#include "divergence.h"
#include "logits_file.h"
#include "public_struct.h"
#include "portable_math.h"

#include <inttypes.h>
#include <math.h>

enum { LOGITS_LIMIT = 1 << 24 /* floats per pass: 64 MiB */ };

typedef struct evaluation evaluation;
struct evaluation {
    nib_session *session, *against;
    const nib_eval_options *options;
    const nib_tokenizer *tokenizer;
    nib_status (*each)(evaluation *e, const nib_token_window *window);
    nib_logits_file reference; /* path NULL: none */
    nib_logits_writer *writer; /* NULL: none */
    nib_logits_format format;  /* says how the text is cut, and what of a window counts */
    int64_t window, first_scored;
    double loss; /* sum */
    int64_t predicted;
    /* of the draft head: the most likely token after each of a window, by the model, and after the
     * next one, by the head, [window]; NULL: the session has no head */
    int32_t *best, *drafted;
    int64_t drafts, right;
    nib_divergence *divergence;   /* NULL: nothing to compare with */
    nib_token_divergence *scores; /* [NIB_CHUNK] */
    float *space;                 /* [threads][vocab]: rows of the reference */
    bool documents;
    uint64_t done, total; /* bytes, for progress */
    nib_err *err;
};

typedef struct scoring {
    const float *logits, *other;      /* [count][vocab]; other NULL: no other session */
    const nib_logits_file *reference; /* NULL: none */
    float *space;                     /* [threads][vocab] */
    const int32_t *targets;
    int64_t vocab, position, unit, row; /* position, row: of the first logits; of the reference */
    nib_token_divergence *scores;
    int32_t *best; /* the most likely tokens; NULL: not wanted */
} scoring;

/* The reference's log-probabilities of a token: logits - all. */
typedef struct reference_row {
    const float *logits;
    double all, least; /* least: tokens up to this log-probability are left out */
    int64_t best;
} reference_row;

static reference_row find_reference(const scoring *s, int worker, int64_t i)
{
    reference_row r = {.least = -INFINITY};
    r.logits = s->reference
                   ? nib__logits_row(s->reference, s->row + i, s->space + worker * s->vocab)
                   : s->other + i * s->vocab;
    r.all = nib__log_sum(r.logits, s->vocab, &r.best);
    /* llama.cpp's codes are log-probabilities, whose clamped tail adds up to more than 1 */
    if (s->reference && s->reference->format == NIB_LOGITS_LLAMA_CPP) {
        r.all = 0;
        r.least = NIB_LLAMA_CPP_LEAST;
    }
    return r;
}

static void job_score(void *ctx, int worker, int64_t begin, int64_t end)
{
    const scoring *s = ctx;
    for (int64_t i = begin; i < end; i++) {
        const float *logits = s->logits + i * s->vocab;
        int64_t best;
        const double all = nib__log_sum(logits, s->vocab, &best);
        nib_token_divergence *score = &s->scores[i];
        if (s->best != NULL)
            s->best[i] = (int32_t)best;
        *score = (nib_token_divergence){.loss = all - (double)logits[s->targets[i]],
                                        .token = s->targets[i],
                                        .position = s->position + i,
                                        .unit = s->unit};
        if (!s->other && !s->reference)
            continue;
        const reference_row other = find_reference(s, worker, i);
        score->kl = nib__divergence_of(logits, all, other.logits, other.all, other.least, s->vocab);
        score->reference_loss = other.all - (double)other.logits[s->targets[i]];
        score->same_top = best == other.best;
    }
}

/* Logits of the positions from `from` to before `last`. outputs: what all positions give besides.
 */
static nib_status run_slots(nib_session *session, const int32_t *ids, int64_t first, int64_t count,
                            int64_t from, int64_t last, uint32_t outputs, const float **logits,
                            nib_err *err)
{
    nib_slot slots[NIB_CHUNK];
    for (int64_t i = 0; i < count; i++)
        slots[i] = (nib_slot){
            .position = (int32_t)(first + i),
            .token = ids[first + i],
            .outputs =
                outputs | (first + i >= from && first + i < last ? (uint32_t)NIB_SLOT_LOGITS : 0)};
    return nib__runner_step(&session->runner, slots, (size_t)count, logits, err);
}

static nib_status fail_not_finite(const evaluation *e, bool lost, int64_t token)
{
    if (!lost && e->reference.path)
        return nib__fail(e->err, NIB_BAD_INPUT,
                         "%s: row %" PRId64 " gives no finite distance; it holds NaN or Inf",
                         e->reference.path, token);
    return nib__fail(e->err, NIB_CHECK_FAILED,
                     "the %s of predicted token %" PRId64 " is not finite; `nibble verify` of %s "
                     "model finds the tensor that holds NaN or Inf",
                     lost ? "loss" : "distance to the other model", token, lost ? "the" : "that");
}

static nib_status add_scores(evaluation *e, const scoring *s, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        const bool lost = !isfinite(s->scores[i].loss);
        if (lost || !isfinite(s->scores[i].kl) || !isfinite(s->scores[i].reference_loss))
            return fail_not_finite(e, lost, e->predicted + i);
        e->loss += s->scores[i].loss;
        if (e->divergence)
            NIB_TRY(nib__divergence_add(e->divergence, &s->scores[i], e->err));
    }
    e->predicted += count;
    return NIB_OK;
}

/* Scores the logits of `count` positions, the first of which s has. */
static nib_status score_rows(evaluation *e, scoring *s, int64_t count)
{
    nib_pool *pool = e->session->model->engine->pool;
    if (e->reference.path) {
        s->reference = &e->reference;
        NIB_TRY(nib__logits_check(&e->reference, s->row, count, e->err));
    }
    nib__pool_run(pool, count, 4, false, job_score, s);
    NIB_TRY(add_scores(e, s, count));
    return e->writer ? nib__logits_writer_add(e->writer, s->logits, count, pool, e->err) : NIB_OK;
}

/* ---- the draft head ---- */

typedef struct guessing {
    const float *logits; /* [count][vocab] */
    int64_t vocab;
    int32_t *drafted;
} guessing;

static void job_guess(void *ctx, int worker, int64_t begin, int64_t end)
{
    const guessing *g = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t best;
        (void)nib__log_sum(g->logits + i * g->vocab, g->vocab, &best);
        g->drafted[i] = (int32_t)best;
    }
}

/* The head's guesses after `count` positions, whose hidden states the model has just given: each
 * reads the token after its position. */
static nib_status draft_slots(evaluation *e, const int32_t *ids, int64_t first, int64_t count)
{
    nib_session *head = e->session->draft;
    guessing g = {.vocab = nib_session_vocab(head), .drafted = e->drafted + first};
    head->runner.given = e->session->runner.hidden;
    if (count == 0)
        return NIB_OK;
    NIB_TRY(run_slots(head, ids + 1, first, count, first, first + count, 0, &g.logits, e->err));
    nib__pool_run(head->model->engine->pool, count, 4, false, job_guess, &g);
    return NIB_OK;
}

/* Counts the guesses of a window for which the model's own is known. */
static void count_right(evaluation *e, int64_t last)
{
    for (int64_t i = e->first_scored; i + 1 < last; i++) {
        e->drafts++;
        e->right += e->drafted[i] == e->best[i + 1];
    }
}

static nib_status open_drafts(evaluation *e)
{
    const nib_session *head = e->session->draft;
    const nib_allocator *a = &e->session->model->engine->allocator;
    if (head == NULL || !head->model->net.draft_head)
        return NIB_OK;
    if (head->plan->context < e->window)
        return nib__fail(e->err, NIB_USAGE,
                         "a window of %" PRId64 " is over the draft head's context of %" PRId64,
                         e->window, head->plan->context);
    e->best = nib__calloc(a, (uint64_t)e->window, sizeof *e->best);
    e->drafted = nib__calloc(a, (uint64_t)e->window, sizeof *e->drafted);
    return e->best && e->drafted
               ? NIB_OK
               : nib__fail_memory(e->err, 2 * (uint64_t)e->window * sizeof *e->best, "guesses");
}

/* ---- windows ---- */

static nib_status eval_window(evaluation *e, const nib_token_window *w)
{
    const int64_t vocab = nib_session_vocab(e->session);
    const int64_t chunk = nib__max(1, nib__min(NIB_CHUNK, LOGITS_LIMIT / vocab));
    const int64_t last = w->count - 1, from = e->first_scored;
    nib__kv_truncate(&e->session->runner.kv, 0, 0);
    if (e->against)
        nib__kv_truncate(&e->against->runner.kv, 0, 0);
    if (e->drafted)
        nib__kv_truncate(&e->session->draft->runner.kv, 0, 0);
    for (int64_t first = 0; first < last; first += chunk) {
        const int64_t part = nib__min(chunk, w->count - first), begin = nib__max(first, from);
        scoring s = {.targets = w->ids + begin + 1,
                     .vocab = vocab,
                     .position = begin,
                     .unit = w->number,
                     .row = e->predicted,
                     .space = e->space,
                     .scores = e->scores,
                     .best = e->best ? e->best + begin : NULL};
        NIB_TRY(run_slots(e->session, w->ids, first, part, from, last,
                          e->drafted ? NIB_SLOT_HIDDEN : 0, &s.logits, e->err));
        if (e->against)
            NIB_TRY(run_slots(e->against, w->ids, first, part, from, last, 0, &s.other, e->err));
        if (e->drafted)
            NIB_TRY(draft_slots(e, w->ids, first, nib__min(part, last - first)));
        const int64_t scored = nib__min(first + part, last) - begin;
        if (scored > 0)
            NIB_TRY(score_rows(e, &s, scored));
    }
    if (e->drafted)
        count_right(e, last);
    return NIB_OK;
}

/* Shows a window to the files of logits, before any is evaluated. */
static nib_status see_window(evaluation *e, const nib_token_window *w)
{
    if (e->reference.path)
        NIB_TRY(nib__logits_see(&e->reference, w, e->err));
    return e->writer ? nib__logits_writer_see(e->writer, w, e->err) : NIB_OK;
}

static void print_log(const evaluation *e, const char *line)
{
    const nib_callbacks *to = &e->session->model->engine->callbacks;
    if (to->log)
        to->log(to->ctx, line);
}

static nib_status see_end(evaluation *e)
{
    char line[512], size[32], tokens[32], vocab[32];
    uint64_t bytes;
    int64_t rows;
    if (e->reference.path)
        NIB_TRY(nib__logits_see_end(&e->reference, e->err));
    if (!e->writer)
        return NIB_OK;
    NIB_TRY(nib__logits_writer_see_end(e->writer, &bytes, &rows, e->err));
    nib__format(line, sizeof line, "%s: %s for %s predicted tokens and a vocabulary of %s",
                e->options->save_logits, nib__format_bytes(size, bytes),
                nib__format_count(tokens, (uint64_t)rows),
                nib__format_count(vocab, (uint64_t)nib_session_vocab(e->session)));
    print_log(e, line);
    return NIB_OK;
}

/* A file of llama.cpp may have fewer windows than the text (its option --chunks). */
static int64_t count_windows(evaluation *e, int64_t in_text)
{
    const int64_t in_file = e->reference.path ? e->reference.windows : in_text;
    char line[512];
    if (in_file < in_text && e->each == see_window) {
        nib__format(line, sizeof line,
                    "%s has the first %" PRId64 " of the text's %" PRId64
                    " windows; only these are compared",
                    e->reference.path, in_file, in_text);
        print_log(e, line);
    }
    return nib__min(in_file, in_text);
}

/* How a text of `count` ids is cut: the ids of window i begin at i * step, and there are `body` of
 * them, but for the end of the text. */
typedef struct cut {
    int64_t step, body, windows;
    bool bos; /* each window begins with BOS */
} cut;

/* line: of a document, which is cut after one window; 0: the whole file is the text. llama.cpp puts
 * one BOS before the text, cuts it into whole windows, and replaces their first ids by BOS. */
static cut cut_text(evaluation *e, int64_t count, int64_t line)
{
    const bool bos = nib__tokenizer_adds_bos(e->tokenizer);
    cut c = {.step = e->window - bos, .body = e->window - bos, .bos = bos};
    c.windows = line && count > 0 ? 1 : nib__ceil_div(count, c.step);
    if (e->format == NIB_LOGITS_LLAMA_CPP) {
        c.step = e->window;
        c.windows = count_windows(e, (count + bos) / e->window);
    }
    return c;
}

static nib_status eval_ids(evaluation *e, const int32_t *ids, int64_t count, int64_t line)
{
    const nib_engine *engine = e->session->model->engine;
    const cut c = cut_text(e, count, line);
    int32_t *window = nib__calloc(&engine->allocator, (uint64_t)e->window, sizeof *window);
    if (!window)
        return nib__fail_memory(e->err, (uint64_t)e->window * sizeof *window, "a window");
    window[0] = nib__tokenizer_bos(e->tokenizer);
    nib_status status = NIB_OK;
    for (int64_t i = 0; i < c.windows && status == NIB_OK; i++) {
        const int64_t at = i * c.step, part = nib__min(c.body, count - at);
        const nib_token_window w = {.ids = window,
                                    .count = part + c.bos,
                                    .number = line ? line : i + 1,
                                    .bos = c.bos,
                                    .replaced = i > 0 ? ids[at - 1] : window[0]};
        memcpy(window + c.bos, ids + at, (size_t)part * sizeof *ids);
        if (!nib__engine_progress(engine, "evaluate", e->done + (line ? 0 : (uint64_t)at),
                                  line ? e->total : (uint64_t)count))
            status = nib__fail(e->err, NIB_CANCELLED, "the evaluation was cancelled");
        else
            status = e->each(e, &w);
    }
    nib__release(&engine->allocator, window);
    return status;
}

/* name: of the text, for messages. */
static nib_status eval_text(evaluation *e, const char *name, const char *text, size_t size,
                            int64_t line)
{
    int32_t *ids;
    size_t count;
    const nib_status encoded =
        nib__tokenizer_encode(e->tokenizer, text, size, 0, &ids, &count, e->err);
    if (encoded != NIB_OK)
        return nib__fail_in(e->err, encoded, name);
    const nib_status status = eval_ids(e, ids, (int64_t)count, line);
    nib__tokenizer_ids_free(e->tokenizer, ids);
    return status;
}

/* Calls `each` for every window of the text. */
static nib_status pass(evaluation *e, nib_documents *documents,
                       nib_status (*each)(evaluation *e, const nib_token_window *window))
{
    nib_document doc;
    bool found;
    e->each = each;
    nib__documents_seek(documents, 0, 1);
    for (;;) {
        NIB_TRY(nib__documents_next(documents, &doc, &found, e->err));
        if (!found)
            return NIB_OK;
        e->done = doc.begin;
        NIB_TRY(
            eval_text(e, doc.name, doc.text, doc.size, documents->lines ? documents->number : 0));
    }
}

static nib_status eval_documents(evaluation *e, nib_documents *documents)
{
    if (e->format == NIB_LOGITS_LLAMA_CPP && documents->lines)
        return nib__fail(e->err, NIB_USAGE,
                         "%s has documents, but llama.cpp's files of logits are of one text",
                         documents->path);
    if (e->reference.path || e->writer) {
        NIB_TRY(pass(e, documents, see_window));
        NIB_TRY(see_end(e));
    }
    NIB_TRY(pass(e, documents, eval_window));
    if (e->predicted == 0)
        return nib__fail(e->err, NIB_BAD_INPUT,
                         "%s: the text is too short to predict a token; it needs at least %s",
                         documents->path,
                         e->format == NIB_LOGITS_LLAMA_CPP ? "one whole window" : "two tokens");
    return NIB_OK;
}

static nib_status eval_file(evaluation *e)
{
    nib_documents documents;
    const char *path = e->options->text_path;
    NIB_TRY(nib__documents_open(&documents, path, &e->session->model->engine->allocator, e->err));
    e->total = documents.size;
    e->documents = documents.lines;
    const nib_status status = eval_documents(e, &documents);
    nib__documents_close(&documents);
    return status;
}

static nib_status check_options(evaluation *e)
{
    const int64_t context = e->session->plan->context;
    e->window = e->options->window > 0 ? e->options->window
                : e->reference.path    ? e->reference.window
                                       : nib__min(context, 4096);
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

static nib_status check_reference(const evaluation *e)
{
    const nib_logits_file *f = &e->reference;
    if (f->vocab != nib_session_vocab(e->session))
        return nib__fail(e->err, NIB_BAD_INPUT,
                         "%s was written with a vocabulary of %" PRId64
                         " tokens, but the model has %" PRId64,
                         f->path, f->vocab, nib_session_vocab(e->session));
    if (f->window != e->window)
        return nib__fail(e->err, NIB_BAD_INPUT,
                         "%s was written with windows of %" PRId64 " tokens, not %" PRId64, f->path,
                         f->window, e->window);
    return NIB_OK;
}

/* Opens the files of logits; closed by close_scores, also on failure. */
static nib_status open_logits(evaluation *e)
{
    const nib_eval_options *o = e->options;
    nib_logits_format save;
    NIB_TRY(nib__logits_format_parse(&save, o->logits_format, e->err));
    if (o->logits_format && !o->save_logits)
        return nib__fail(e->err, NIB_USAGE,
                         "a format of logits needs a file to save them in; files to compare with "
                         "are recognized by their first bytes");
    if (e->against && o->against_logits)
        return nib__fail(e->err, NIB_USAGE,
                         "a model and a file of logits to compare with; choose one");
    if (o->against_logits)
        NIB_TRY(nib__logits_open(&e->reference, o->against_logits, e->err));
    NIB_TRY(check_options(e));
    if (o->against_logits)
        NIB_TRY(check_reference(e));
    if (o->against_logits && o->save_logits && save != e->reference.format)
        return nib__fail(e->err, NIB_USAGE,
                         "%s has the other format of logits, which cuts the text in another way; "
                         "save in the same format, or in a run of its own",
                         o->against_logits);
    e->format = o->against_logits ? e->reference.format : save;
    e->first_scored = nib__logits_first(e->format, e->window);
    return o->save_logits ? nib__logits_writer_open(&e->writer, o->save_logits, save,
                                                    nib_session_vocab(e->session), e->window,
                                                    &e->session->model->engine->allocator, e->err)
                          : NIB_OK;
}

static nib_status store_result(const evaluation *e, nib_eval_result *result, double seconds)
{
    const double count = (double)e->predicted;
    *result = (nib_eval_result){.loss = e->loss / count,
                                .perplexity = nib__exp(e->loss / count),
                                .predicted = e->predicted,
                                .seconds = seconds,
                                .first_scored = e->first_scored,
                                .documents = e->documents,
                                .draft_guesses = e->drafts};
    if (e->drafts > 0)
        result->draft_right = (double)e->right / (double)e->drafts;
    return e->divergence ? nib__divergence_report(e->divergence, result, e->err) : NIB_OK;
}

/* What collects the scores; close_scores frees it, also on failure. */
static nib_status open_scores(evaluation *e)
{
    const nib_engine *engine = e->session->model->engine;
    const nib_allocator *a = &engine->allocator;
    const uint64_t space = (uint64_t)nib__pool_threads(engine->pool) * sizeof(float);
    NIB_TRY(open_drafts(e));
    e->scores = nib__calloc(a, NIB_CHUNK, sizeof *e->scores);
    if (!e->scores)
        return nib__fail_memory(e->err, NIB_CHUNK * sizeof *e->scores, "scores");
    if (e->reference.path) {
        e->space = nib__calloc(a, (uint64_t)e->reference.vocab, space);
        if (!e->space)
            return nib__fail_memory(e->err, (uint64_t)e->reference.vocab * space, "logits");
    }
    return e->against || e->reference.path ? nib__divergence_open(&e->divergence, a, e->err)
                                           : NIB_OK;
}

static void close_scores(evaluation *e)
{
    const nib_allocator *a = &e->session->model->engine->allocator;
    nib__divergence_close(e->divergence);
    nib__logits_close(&e->reference);
    nib__logits_writer_abandon(e->writer);
    nib__release(a, e->space);
    nib__release(a, e->scores);
    nib__release(a, e->best);
    nib__release(a, e->drafted);
}

/* Everything of nib_eval that needs closing. */
static nib_status evaluate(evaluation *e, nib_eval_result *result)
{
    const uint64_t start = nib__now_ns();
    NIB_TRY(open_logits(e));
    NIB_TRY(open_scores(e));
    nib_status status = nib__model_check_files(e->session->model, eval_file(e), e->err);
    if (e->against)
        status = nib__model_check_files(e->against->model, status, e->err);
    if (e->reference.path)
        status = nib__map_read(&e->reference.map, e->reference.path, status, e->err);
    NIB_TRY(status);
    NIB_TRY(store_result(e, result, (double)(nib__now_ns() - start) * 1e-9));
    nib_logits_writer *writer = e->writer;
    e->writer = NULL;
    return writer ? nib__logits_writer_finish(writer, e->err) : NIB_OK;
}

nib_status nib_eval(nib_session *session, nib_session *against, const nib_eval_options *options,
                    nib_eval_result *result, nib_err *err)
{
    NIB_NEED(err, "session, result", session, result);
    NIB_OPTIONS(nib_eval_options, o, options, err);
    NIB_TRY(nib__number_check("nib_eval_options.window", o.window, err));
    evaluation e = {.session = session, .against = against, .options = &o, .err = err};
    NIB_TRY(nib__session_check_idle(session, err));
    if (against)
        NIB_TRY(nib__session_check_idle(against, err));
    if (!o.text_path)
        return nib__fail(err, NIB_USAGE, "no text is given to measure the loss of");
    NIB_TRY(nib_model_tokenizer(&e.tokenizer, session->model, err));
    nib_eval_result r;
    const nib_status status = evaluate(&e, &r);
    close_scores(&e);
    NIB_TRY(status);
    NIB_RESULT(result, r);
    return NIB_OK;
}

nib_status nib__eval_ids(nib_session *session, nib_session *against, const int32_t *ids,
                         int64_t count, nib_eval_result *result, nib_err *err)
{
    const nib_eval_options options = {.window = count};
    const nib_token_window window = {.ids = ids, .count = count, .number = 1};
    evaluation e = {.session = session, .against = against, .options = &options, .err = err};
    NIB_TRY(check_options(&e));
    nib_status status = open_scores(&e);
    if (status == NIB_OK)
        status = eval_window(&e, &window);
    if (status == NIB_OK)
        status = store_result(&e, result, 0);
    close_scores(&e);
    return status;
}
