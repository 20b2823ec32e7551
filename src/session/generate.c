/* SPDX-License-Identifier: Apache-2.0
 *
 * One text by one job of a batch, piece by piece: a piece is a token and the whole code points that
 * it completes, with possible starts of stop strings held back. A caller takes the pieces one by
 * one (nib_generator_next), or has each written as it is made (nib_generate); and its statistics.
 */
#include "generate.h"
#include "public_struct.h"
#include "stream_text.h"
#include "variant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* A piece that waits to be taken, with what it points to, in one allocation. */
typedef struct kept_piece kept_piece;
struct kept_piece {
    kept_piece *next;
    nib_piece piece;
};

struct nib_generator {
    nib_session *session;
    nib_generate_options options;
    nib_prompt prompt;
    int32_t *ids; /* the prompt's, if the generator owns them */
    nib_batch *batch, *own_batch;
    const nib_sink *sink; /* pieces are written there; NULL: kept */
    kept_piece *first_kept, **last_kept, *taken;
    nib_generate_stats stats;
    nib_job job;
    nib_draw_plan draw;
    nib_batch_counts before;            /* of the batch, before this text */
    int64_t steps[NIB_LOOKUP_MOST + 2]; /* steps after the prompt, by their number of tokens */
    const nib_tokenizer *tokenizer;
    nib_text_out text;
    nib_text names; /* texts of a token and of the likeliest ones */
    nib_token_trie *trie;
    nib_constraint *constraint; /* of the schema; NULL: none */
    uint64_t start, first;      /* time of the first token; 0: none yet */
    uint64_t left;              /* when the caller got the last piece; 0: the model runs */
    bool added, over, cancelled, finished;
    nib_err failed; /* status NIB_OK: not failed */
};

static const nib_allocator *allocator_of(const nib_generator *g)
{
    return &g->session->model->engine->allocator;
}

/* ---- pieces ---- */

static char *copy_to(char **at, const void *bytes, size_t size)
{
    char *to = *at;
    if (size > 0)
        memcpy(to, bytes, size);
    *at += size;
    return to;
}

static void keep_piece(nib_generator *g, const nib_piece *p)
{
    size_t names = 0;
    for (size_t i = 0; i < p->likeliest_count; i++)
        names += p->likeliest[i].text_size + 1;
    const size_t tops = p->likeliest_count * sizeof *p->likeliest;
    kept_piece *k = nib__calloc(allocator_of(g), 1, sizeof *k + tops + names + p->text_size + 1);
    if (k == NULL) {
        nib__fail_memory(&g->failed, sizeof *k + tops + names + p->text_size + 1, "a piece");
        return;
    }
    char *at = (char *)(k + 1);
    nib_token_logprob *likeliest = (nib_token_logprob *)(void *)copy_to(&at, p->likeliest, tops);
    for (size_t i = 0; i < p->likeliest_count; i++)
        likeliest[i].text = copy_to(&at, p->likeliest[i].text, p->likeliest[i].text_size + 1);
    k->piece = *p;
    k->piece.likeliest = p->likeliest_count > 0 ? likeliest : NULL;
    k->piece.text = copy_to(&at, p->text, p->text_size); /* the zero after it is there already */
    *g->last_kept = k;
    g->last_kept = &k->next;
}

static void write_piece(nib_generator *g, const nib_piece *p, const nib_token_logprob *token)
{
    if (token != NULL)
        g->options.on_logprobs(g->options.on_logprobs_ctx, token, p->likeliest, p->likeliest_count);
    const nib_status status =
        p->text_size > 0 ? g->sink->write(g->sink->ctx, p->text, p->text_size) : NIB_OK;
    if (status != NIB_OK)
        nib__fail(&g->failed, status, "the generated text could not be written");
}

/* Names the token and the likeliest ones at its position: all [1 + count]. */
static size_t name_tokens(nib_generator *g, const nib_new_token *t, nib_token_logprob *all)
{
    size_t starts[1 + NIB_LOGPROBS_MOST];
    const size_t count = 1 + (size_t)t->top_count;
    g->names.size = 0;
    all[0] = (nib_token_logprob){.id = t->id, .logprob = t->logprob};
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            all[i] = (nib_token_logprob){.id = t->top[i - 1].id, .logprob = t->top[i - 1].logprob};
        starts[i] = g->names.size;
        nib__token_text(g->tokenizer, all[i].id, &g->names);
        all[i].text_size = g->names.size - starts[i];
        nib__text_put(&g->names, "", 1);
    }
    if (g->names.failed) {
        nib__fail_memory(&g->failed, g->names.size, "the text of the tokens");
        return 0;
    }
    for (size_t i = 0; i < count; i++)
        all[i].text = g->names.at + starts[i];
    return count - 1;
}

/* Passes on a token, NULL after the last one, with the text that is ready. */
static void deliver(nib_generator *g, const nib_new_token *t)
{
    nib_token_logprob all[1 + NIB_LOGPROBS_MOST];
    nib_text_out *out = &g->text;
    const bool logprobs = t != NULL && g->job.top >= 0;
    nib_piece piece = {.size = sizeof piece,
                       .token = t != NULL ? t->id : -1,
                       .logprob = logprobs ? t->logprob : NAN,
                       .likeliest = all + 1};
    if (logprobs)
        piece.likeliest_count = name_tokens(g, t, all);
    const size_t ready = nib__text_out_ready(out, t == NULL);
    if (out->held.failed)
        nib__fail_memory(&g->failed, out->held.size, "generated text");
    if (g->failed.status != NIB_OK)
        return;
    piece.text = ready > 0 ? out->held.at : "";
    piece.text_size = ready;
    if (g->sink != NULL)
        write_piece(g, &piece, logprobs ? &all[0] : NULL);
    else if (t != NULL || ready > 0)
        keep_piece(g, &piece);
    nib__text_out_take(out, ready);
}

/* ---- the job's calls ---- */

/* Whether the batch ends the job after the current token. */
static bool is_full(const nib_generator *g)
{
    const nib_job *job = &g->job;
    const int64_t made = g->stats.new_tokens;
    return made >= job->max_tokens || job->prompt_count + made >= g->session->plan->context;
}

static bool on_token(void *ctx, const nib_new_token *t)
{
    nib_generator *g = ctx;
    const int64_t most = g->job.max_tokens;
    if (g->first == 0)
        g->first = nib__now_ns();
    if (t->end)
        return true;
    g->stats.new_tokens++;
    nib__text_out_put(&g->text, t->id);
    deliver(g, t);
    if (g->failed.status != NIB_OK || g->text.stopped)
        return false;
    g->cancelled =
        g->sink != NULL && !t->last && !is_full(g) &&
        !nib__engine_progress(g->session->model->engine, "generate", (uint64_t)g->stats.new_tokens,
                              most < INT64_MAX ? (uint64_t)most : 0);
    return !g->cancelled;
}

static void on_end(void *ctx, nib_finish finish, const nib_err *err)
{
    nib_generator *g = ctx;
    g->over = true;
    g->stats.finish = g->cancelled ? NIB_FINISH_CANCELLED : finish;
    if (err != NULL)
        g->failed = *err;
}

/* ---- the run ---- */

/* Fills in what draws the tokens, and why no row of the device with the logits does. */
static nib_status describe_sampler(nib_generator *g, nib_err *err)
{
    nib_generate_stats *stats = &g->stats;
    nib_text why;
    nib__text_init(&why, &g->session->model->engine->allocator);
    g->draw = nib__job_draw_plan(g->session->plan, &g->job, &why);
    const nib_kernel *row = g->draw.row;
    const bool failed = why.failed;
    stats->sampler = row != NULL && (row->gpu != NULL || why.size > 0) ? row->name : NULL;
    if (!failed && why.size > 0) {
        char bytes[32], time[32];
        nib__format_bytes(bytes, g->draw.bytes);
        nib__format_seconds(time, g->draw.move_s + g->draw.draw_s);
        snprintf(stats->sampler_why, sizeof stats->sampler_why,
                 "%s of logits copied per token, %s predicted: %s", bytes, time, why.at);
    }
    nib__text_free(&why);
    return failed ? nib__fail_memory(err, sizeof stats->sampler_why, "a reason") : NIB_OK;
}

/* Runs the next step; the one that ends the text, or is cancelled while the prompt is read, sets
 * g->over. */
static nib_status run_step(nib_generator *g, nib_err *err)
{
    nib_job *job = &g->job;
    if (!g->added) {
        g->start = nib__now_ns();
        g->before = nib__batch_counts(g->batch);
        nib__batch_add(g->batch, job);
        g->added = true;
    }
    const int64_t steps = job->steps;
    if (job->done < job->prompt_count &&
        !nib__engine_progress(g->session->model->engine, "prompt", (uint64_t)job->done,
                              (uint64_t)job->prompt_count)) {
        nib__batch_remove(g->batch, job);
        g->cancelled = true;
        on_end(g, NIB_FINISH_CANCELLED, NULL);
        return NIB_OK;
    }
    NIB_TRY(nib__batch_step(g->batch, err));
    if (job->steps > steps)
        g->steps[1 + job->draft]++;
    return NIB_OK;
}

/* Ends the text once: what was held back follows. */
static nib_status finish(nib_generator *g, nib_err *err)
{
    if (!g->finished) {
        g->finished = true;
        nib__text_out_finish(&g->text);
        if (g->failed.status == NIB_OK)
            deliver(g, NULL);
    }
    if (g->failed.status != NIB_OK && err != NULL)
        *err = g->failed;
    return g->failed.status;
}

/* Predicted seconds per token by the plan, for the steps that were run. */
static double predicted_token(const nib_generator *g)
{
    const nib_plan *plan = g->session->plan;
    const nib_draw_plan *usual = &plan->assignment.draw; /* a step's copies include this one */
    const double tokens = (double)nib__max(1, g->stats.new_tokens - 1);
    const double positions = (double)g->stats.prompt_tokens + tokens / 2;
    double sum = 0;
    for (int64_t m = 1; m < (int64_t)COUNT(g->steps); m++)
        if (g->steps[m] > 0)
            sum += (double)g->steps[m] *
                   nib__plan_step_seconds(&plan->assignment, &plan->policy, m, m, positions);
    if (g->stats.steps == 0)
        sum = nib__plan_step_seconds(&plan->assignment, &plan->policy, 1, 1, positions);
    return sum / tokens + g->draw.draw_s + g->draw.move_s - usual->move_s;
}

static void fill_stats(nib_generator *g)
{
    nib_generate_stats *s = &g->stats;
    const nib_runner *r = &g->session->runner;
    const nib_job *job = &g->job;
    const nib_sampling *sampling = &job->sampling;
    const uint64_t now = g->left != 0 ? g->left : nib__now_ns();
    const uint64_t first = g->first != 0 ? g->first : now;
    s->cached_tokens = job->cached;
    s->recomputed_tokens = job->recomputed;
    s->recomputed_why = job->recomputed > 0 ? nib__recompute_names[job->why] : NULL;
    s->first_token_s = s->prefill_s = (double)(first - g->start) * 1e-9;
    s->decode_s = (double)(now - first) * 1e-9;
    s->steps = job->steps, s->drafted = job->drafted, s->accepted = job->accepted;
    s->drafts = g->session->plan->drafts;
    s->model_drafted = job->guessed, s->model_accepted = job->guessed_right;
    const nib_batch_counts counts = nib__batch_counts(g->batch);
    s->model_s = counts.model_s - g->before.model_s;
    s->vain_s = counts.vain_s - g->before.vain_s;
    s->undrafted_s = counts.without_s - g->before.without_s;
    s->weight_bytes = r->weight_bytes;
    s->cache_bytes = nib__kv_used_bytes(&r->kv);
    s->peak_bytes = nib__peak_bytes();
    const double bytes = (double)s->steps * ((double)s->weight_bytes + (double)s->cache_bytes / 2);
    s->token_s = s->new_tokens > 1 ? s->decode_s / (double)(s->new_tokens - 1) : NAN;
    s->predicted_token_s = predicted_token(g);
    s->decode_gb_per_s = s->decode_s > 0 ? bytes / s->decode_s * 1e-9 : 0;
    s->temperature = sampling->temperature, s->top_p = sampling->top_p, s->min_p = sampling->min_p;
    s->repeat_penalty = sampling->repeat_penalty, s->top_k = sampling->top_k;
    s->seed = sampling->seed;
}

static nib_status check_options(const nib_generate_options *options, bool written, nib_err *err)
{
    if (options->logprobs < 0 || options->logprobs > NIB_LOGPROBS_MOST)
        return nib__fail(err, NIB_USAGE, "logprobs %" PRId64 " is not between 0 and %d",
                         options->logprobs, NIB_LOGPROBS_MOST);
    if (written && (options->logprobs > 0) != (options->on_logprobs != NULL))
        return nib__fail(err, NIB_USAGE, "logprobs and on_logprobs go together; one is missing");
    if (!written && options->on_logprobs != NULL)
        return nib__fail(err, NIB_USAGE,
                         "on_logprobs is for nib_generate; the pieces of a generator have the log "
                         "probabilities");
    if (options->schema != NULL && options->ignore_eos)
        return nib__fail(err, NIB_USAGE,
                         "ignore-eos continues past the end of the text, but a schema ends the "
                         "text when its value is complete; leave one of them out");
    return NIB_OK;
}

static nib_status constrain(nib_generator *g, nib_err *err)
{
    const nib_allocator *a = &g->session->model->engine->allocator;
    const nib_named_text schema = {"schema", g->options.schema, strlen(g->options.schema)};
    NIB_TRY(nib__token_trie_open(&g->trie, g->tokenizer, a, err));
    NIB_TRY(nib__constraint_open(&g->constraint, g->trie, &schema, a, err));
    return nib__job_constrain(&g->job, g->session, g->constraint, err);
}

static nib_status open_parts(nib_generator *g, nib_err *err)
{
    nib_session *session = g->session;
    const nib_sampling asked = nib__asked_sampling(&g->options);
    g->job = (nib_job){.prompt = g->prompt.ids,
                       .prompt_count = (int64_t)g->prompt.count,
                       .sampling = nib__model_sampling(session->model, &asked),
                       .top = g->options.logprobs > 0 ? (int)g->options.logprobs : -1,
                       .ignore_ends = g->options.ignore_eos,
                       .lookup = session->plan->lookup,
                       .calls = {on_token, on_end},
                       .ctx = g};
    g->stats.prompt_tokens = g->job.prompt_count;
    g->stats.lookup = g->job.lookup;
    NIB_TRY(check_options(&g->options, g->sink != NULL, err));
    NIB_TRY(nib__sampling_check(&g->job.sampling, err));
    NIB_TRY(nib__model_max_tokens(&g->job.max_tokens, session->model, g->options.max_tokens,
                                  g->job.prompt_count, err));
    NIB_TRY(nib_model_tokenizer(&g->tokenizer, session->model, err));
    nib__text_out_open(&g->text, g->tokenizer, g->options.stop, allocator_of(g));
    nib__text_init(&g->names, allocator_of(g));
    if (g->prompt.continues)
        nib__detok_continue(&g->text.detok);
    NIB_TRY(g->options.schema != NULL ? constrain(g, err) : NIB_OK);
    return describe_sampler(g, err);
}

static void close_parts(nib_generator *g)
{
    if (g->added && !g->over)
        nib__batch_remove(g->batch, &g->job);
    nib__job_release(&g->job, g->session);
    nib__constraint_close(g->constraint);
    nib__token_trie_close(g->trie);
    if (g->tokenizer != NULL) {
        nib__text_free(&g->names);
        nib__text_out_close(&g->text);
    }
}

nib_status nib__generate(nib_session *session, nib_batch *batch, const nib_prompt *prompt,
                         const nib_generate_options *options, const nib_sink *sink,
                         nib_generate_stats *stats, nib_ledger *ledger, nib_err *err)
{
    nib_generator g = {
        .session = session, .batch = batch, .prompt = *prompt, .options = *options, .sink = sink};
    nib_status status = open_parts(&g, err);
    const bool opened = status == NIB_OK;
    while (status == NIB_OK && !g.over)
        status = run_step(&g, err);
    if (status == NIB_OK)
        status = finish(&g, err);
    if (opened)
        fill_stats(&g);
    *stats = g.stats;
    if (opened && ledger != NULL)
        nib__note_recomputed(ledger, g.job.prompt_count, g.job.cached, g.job.recomputed, g.job.why);
    close_parts(&g);
    return status;
}

/* ---- a prompt as text, or as a conversation ---- */

static nib_status check_prompt(const nib_session *session, size_t count, nib_err *err)
{
    const nib_config *c = &session->model->net.config;
    const int64_t context = session->plan->context;
    if (count == 0)
        return nib__fail(err, NIB_USAGE,
                         "the prompt is empty and the model has no BOS token to start from; give a "
                         "prompt with -p");
    if ((int64_t)count > context)
        return nib__fail(err, NIB_USAGE,
                         "the prompt has %zu tokens, but the context is %" PRId64 "; shorten it%s",
                         count, context, context < c->context ? " or raise --context" : "");
    return NIB_OK;
}

/* *out: token ids of the text, or of BOS if it has none. */
static nib_status encode_text(nib_session *session, const char *text, nib_prompt *out,
                              int32_t **ids, nib_err *err)
{
    const int32_t *bos = &session->model->net.config.bos;
    const nib_tokenizer *tokenizer;
    *out = (nib_prompt){.continues = *text != 0};
    NIB_TRY(nib_model_tokenizer(&tokenizer, session->model, err));
    NIB_TRY(nib__tokenizer_encode(tokenizer, text, strlen(text),
                                  NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL, ids,
                                  &out->count, err));
    out->ids = *ids;
    if (out->count == 0 && *bos >= 0)
        out->ids = bos, out->count = 1;
    return NIB_OK;
}

/* The answer to a conversation is a separate text. */
static nib_status encode_chat(nib_session *session, const nib_chat_options *options,
                              nib_prompt *out, int32_t **ids, nib_err *err)
{
    NIB_OPTIONS(nib_chat_options, chat, options, err);
    nib_ledger said;
    *out = (nib_prompt){.continues = false};
    NIB_TRY(nib_chat_encode(session->model, &chat, ids, &out->count, err));
    out->ids = *ids;
    nib__ledger_init(&said, &session->model->engine->allocator);
    const nib_status status = nib__chat_log_settings(session, &said, &chat, err);
    nib__ledger_free(&said);
    if (status != NIB_OK)
        nib_tokens_free(session->model->engine, *ids);
    return status;
}

static nib_status encode_prompt(nib_session *session, const nib_generate_options *options,
                                nib_prompt *out, int32_t **ids, nib_err *err)
{
    if (options->chat != NULL && options->prompt != NULL)
        return nib__fail(err, NIB_USAGE, "a prompt and a conversation were given; choose one");
    if (options->chat != NULL)
        NIB_TRY(encode_chat(session, options->chat, out, ids, err));
    else
        NIB_TRY(
            encode_text(session, options->prompt != NULL ? options->prompt : "", out, ids, err));
    const nib_status status = check_prompt(session, out->count, err);
    if (status != NIB_OK)
        nib_tokens_free(session->model->engine, *ids);
    return status;
}

static nib_status fail_cancelled(nib_err *err)
{
    return nib__fail(err, NIB_CANCELLED, "cancelled while reading the prompt");
}

/* A batch of one: the session's sequence 0, from its start. */
static nib_status generate_alone(nib_session *session, const nib_prompt *prompt,
                                 const nib_generate_options *options, const nib_sink *sink,
                                 nib_generate_stats *stats, nib_err *err)
{
    nib_batch *batch;
    NIB_TRY(nib__batch_open(&batch, session, 1, err));
    nib_status status = nib__session_enter(session, err);
    if (status == NIB_OK) {
        status = nib__generate(session, batch, prompt, options, sink, stats, NULL, err);
        nib__session_leave(session);
    }
    if (status == NIB_OK && stats->finish == NIB_FINISH_CANCELLED && stats->new_tokens == 0)
        status = fail_cancelled(err);
    nib__batch_close(batch);
    return status;
}

nib_status nib_generate(nib_session *session, const nib_generate_options *options,
                        const nib_sink *sink, nib_generate_stats *stats, nib_err *err)
{
    NIB_NEED(err, "session", session);
    NIB_TRY(nib__sink_check(sink, err));
    NIB_OPTIONS(nib_generate_options, o, options, err);
    nib_generate_stats used = {0};
    nib_prompt prompt;
    int32_t *ids;
    NIB_RESULT(stats, used);
    NIB_TRY(nib__text_out_check(&o.stop, err));
    NIB_TRY(encode_prompt(session, &o, &prompt, &ids, err));
    const nib_status status = generate_alone(session, &prompt, &o, sink, &used, err);
    NIB_RESULT(stats, used);
    nib_tokens_free(session->model->engine, ids);
    return status;
}

/* ---- piece by piece ---- */

nib_status nib_generator_open(nib_generator **out, nib_session *session,
                              const nib_generate_options *options, nib_err *err)
{
    NIB_NEED(err, "out, session", out, session);
    NIB_OPTIONS(nib_generate_options, o, options, err);
    NIB_TRY(nib__text_out_check(&o.stop, err));
    nib_generator *g = nib__calloc(&session->model->engine->allocator, 1, sizeof *g);
    if (g == NULL)
        return nib__fail_memory(err, sizeof *g, "a generator");
    g->session = session;
    nib__session_hold(session);
    g->options = o;
    g->last_kept = &g->first_kept;
    nib_status status = encode_prompt(session, &o, &g->prompt, &g->ids, err);
    if (status != NIB_OK)
        g->ids = NULL;
    if (status == NIB_OK)
        status = nib__batch_open(&g->own_batch, session, 1, err);
    g->batch = g->own_batch;
    if (status == NIB_OK)
        status = open_parts(g, err);
    if (status == NIB_OK)
        *out = g;
    else
        nib_generator_close(g);
    return status;
}

static void drop_taken(nib_generator *g)
{
    nib__release(allocator_of(g), g->taken);
    g->taken = NULL;
}

/* Takes the time since the caller got the last piece out of the statistics. */
static void skip_pause(nib_generator *g)
{
    const uint64_t pause = g->left != 0 ? nib__now_ns() - g->left : 0;
    g->left = 0;
    g->start += pause;
    if (g->first != 0)
        g->first += pause;
}

/* Runs until a piece is kept or the text is over. */
static nib_status make_piece(nib_generator *g, nib_err *err)
{
    while (g->first_kept == NULL && !g->finished)
        NIB_TRY(g->over ? finish(g, err) : run_step(g, err));
    if (g->failed.status != NIB_OK)
        return finish(g, err);
    return g->cancelled ? fail_cancelled(err) : NIB_OK;
}

nib_status nib_generator_next(nib_generator *g, nib_piece *piece, nib_err *err)
{
    NIB_NEED(err, "generator, piece", g, piece);
    NIB_TRY(nib__session_enter(g->session, err));
    drop_taken(g);
    skip_pause(g);
    const nib_status status = make_piece(g, err);
    g->left = nib__now_ns();
    nib__session_leave(g->session);
    NIB_TRY(status);
    kept_piece *k = g->first_kept;
    if (k == NULL) {
        const nib_piece end = {
            .text = "", .token = -1, .logprob = NAN, .over = true, .finish = g->stats.finish};
        NIB_RESULT(piece, end);
        return NIB_OK;
    }
    g->first_kept = k->next;
    if (g->first_kept == NULL)
        g->last_kept = &g->first_kept;
    g->taken = k;
    NIB_RESULT(piece, k->piece);
    return NIB_OK;
}

void nib_generator_stats_get(nib_generator *g, nib_generate_stats *out)
{
    if (g == NULL)
        return;
    if (g->added)
        fill_stats(g);
    NIB_RESULT(out, g->stats);
}

void nib_generator_close(nib_generator *g)
{
    if (g == NULL)
        return;
    nib_session *session = g->session;
    nib_engine *engine = session->model->engine;
    close_parts(g);
    nib__batch_close(g->own_batch);
    drop_taken(g);
    while (g->first_kept != NULL) {
        kept_piece *k = g->first_kept;
        g->first_kept = k->next;
        nib__release(allocator_of(g), k);
    }
    nib_tokens_free(engine, g->ids);
    nib__release(&engine->allocator, g);
    nib_session_close(session);
}
