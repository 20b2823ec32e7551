/* SPDX-License-Identifier: Apache-2.0
 *
 * One text by one job of a batch: streamed as whole code points, with possible starts of stop
 * strings held back; and its statistics.
 */
#include "generate.h"
#include "public_struct.h"

#include "stream_text.h"
#include "variant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct generation {
    nib_session *session;
    const nib_generate_options *options;
    const nib_sink *sink;
    nib_generate_stats *stats;
    nib_job job;
    nib_draw_plan draw;
    int64_t steps[NIB_LOOKUP_MOST + 2]; /* steps after the prompt, counted by their number of tokens
                                           */
    const nib_tokenizer *tokenizer;
    nib_text_out text;
    nib_text names; /* text of the tokens passed to on_logprobs */
    nib_token_trie *trie;
    nib_constraint *constraint; /* of the schema; NULL: none */
    uint64_t start, first;      /* time of the first token; 0: none yet */
    bool over, cancelled;
    nib_err failed; /* status NIB_OK: not failed */
} generation;

/* ---- output ---- */

static void write_ready(generation *g, bool all)
{
    nib_text_out *t = &g->text;
    if (g->failed.status != NIB_OK)
        return;
    const size_t ready = nib__text_out_ready(t, all);
    if (t->held.failed) {
        nib__fail_memory(&g->failed, t->held.size, "generated text");
    } else if (ready > 0) {
        const nib_status status = g->sink->write(g->sink->ctx, t->held.at, ready);
        if (status != NIB_OK)
            nib__fail(&g->failed, status, "the generated text could not be written");
        nib__text_out_take(t, ready);
    }
}

/* Reports a token and the likeliest tokens at its position. */
static void report_logprobs(generation *g, const nib_new_token *t)
{
    nib_token_logprob all[1 + NIB_LOGPROBS_MOST] = {{.id = t->id, .logprob = t->logprob}};
    size_t starts[COUNT(all)];
    const size_t count = 1 + (size_t)t->top_count;
    g->names.size = 0;
    for (size_t i = 0; i < count; i++) {
        if (i > 0)
            all[i] = (nib_token_logprob){.id = t->top[i - 1].id, .logprob = t->top[i - 1].logprob};
        starts[i] = g->names.size;
        nib__token_text(g->tokenizer, all[i].id, &g->names);
        nib__text_put(&g->names, "", 1);
    }
    if (g->names.failed) {
        nib__fail_memory(&g->failed, g->names.size, "the text of the tokens");
        return;
    }
    for (size_t i = 0; i < count; i++)
        all[i].text = g->names.at + starts[i];
    g->options->on_logprobs(g->options->on_logprobs_ctx, &all[0], all + 1, count - 1);
}

/* ---- the job's calls ---- */

/* Whether the batch ends the job after the current token. */
static bool is_full(const generation *g)
{
    const nib_job *job = &g->job;
    const int64_t made = g->stats->new_tokens;
    return made >= job->max_tokens || job->prompt_count + made >= g->session->plan->context;
}

static bool on_token(void *ctx, const nib_new_token *t)
{
    generation *g = ctx;
    const int64_t most = g->job.max_tokens;
    if (g->first == 0)
        g->first = nib__now_ns();
    if (t->end)
        return true;
    g->stats->new_tokens++;
    if (g->job.top >= 0)
        report_logprobs(g, t);
    nib__text_out_put(&g->text, t->id);
    write_ready(g, false);
    if (g->failed.status != NIB_OK || g->text.stopped)
        return false;
    g->cancelled =
        !t->last && !is_full(g) &&
        !nib__engine_progress(g->session->model->engine, "generate", (uint64_t)g->stats->new_tokens,
                              most < INT64_MAX ? (uint64_t)most : 0);
    return !g->cancelled;
}

static void on_end(void *ctx, nib_finish finish, const nib_err *err)
{
    generation *g = ctx;
    g->over = true;
    g->stats->finish = g->cancelled ? NIB_FINISH_CANCELLED : finish;
    if (err != NULL)
        g->failed = *err;
}

/* ---- the run ---- */

/* Fills in what draws the tokens, and why no row of the device with the logits does. */
static nib_status describe_sampler(generation *g, nib_err *err)
{
    nib_generate_stats *stats = g->stats;
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

/* Runs steps until the text ends or is cancelled. */
static nib_status run_job(generation *g, nib_batch *batch, nib_err *err)
{
    nib_job *job = &g->job;
    g->start = nib__now_ns();
    nib__batch_add(batch, job);
    while (!g->over) {
        const int64_t steps = job->steps;
        if (job->done < job->prompt_count &&
            !nib__engine_progress(g->session->model->engine, "prompt", (uint64_t)job->done,
                                  (uint64_t)job->prompt_count)) {
            nib__batch_remove(batch, job);
            g->cancelled = true;
            on_end(g, NIB_FINISH_CANCELLED, NULL);
            break;
        }
        NIB_TRY(nib__batch_step(batch, err));
        if (job->steps > steps)
            g->steps[1 + job->draft]++;
    }
    nib__text_out_finish(&g->text);
    write_ready(g, true);
    if (g->failed.status != NIB_OK && err != NULL)
        *err = g->failed;
    return g->failed.status;
}

/* Predicted seconds per token by the plan, for the steps that were run. */
static double predicted_token(const generation *g)
{
    const nib_plan *plan = g->session->plan;
    const nib_draw_plan *usual = &plan->assignment.draw; /* a step's copies include this one */
    const double tokens = (double)nib__max(1, g->stats->new_tokens - 1);
    const double positions = (double)g->stats->prompt_tokens + tokens / 2;
    double sum = 0;
    for (int64_t m = 1; m < (int64_t)COUNT(g->steps); m++)
        if (g->steps[m] > 0)
            sum += (double)g->steps[m] *
                   nib__plan_step_seconds(&plan->assignment, &plan->policy, m, m, positions);
    if (g->stats->steps == 0)
        sum = nib__plan_step_seconds(&plan->assignment, &plan->policy, 1, 1, positions);
    return sum / tokens + g->draw.draw_s + g->draw.move_s - usual->move_s;
}

static void fill_stats(generation *g)
{
    nib_generate_stats *s = g->stats;
    const nib_runner *r = &g->session->runner;
    const nib_job *job = &g->job;
    const nib_sampling *sampling = &job->sampling;
    const uint64_t now = nib__now_ns(), first = g->first != 0 ? g->first : now;
    s->cached_tokens = job->cached;
    s->first_token_s = s->prefill_s = (double)(first - g->start) * 1e-9;
    s->decode_s = (double)(now - first) * 1e-9;
    s->steps = job->steps, s->drafted = job->drafted, s->accepted = job->accepted;
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

static nib_status check_options(const nib_generate_options *options, nib_err *err)
{
    if (options->logprobs < 0 || options->logprobs > NIB_LOGPROBS_MOST)
        return nib__fail(err, NIB_USAGE, "logprobs %" PRId64 " is not between 0 and %d",
                         options->logprobs, NIB_LOGPROBS_MOST);
    if ((options->logprobs > 0) != (options->on_logprobs != NULL))
        return nib__fail(err, NIB_USAGE, "logprobs and on_logprobs go together; one is missing");
    if (options->schema != NULL && options->ignore_eos)
        return nib__fail(err, NIB_USAGE,
                         "ignore-eos continues past the end of the text, but a schema ends the "
                         "text when its value is complete; leave one of them out");
    return NIB_OK;
}

static nib_status constrain(generation *g, nib_err *err)
{
    const nib_allocator *a = &g->session->model->engine->allocator;
    const nib_named_text schema = {"schema", g->options->schema, strlen(g->options->schema)};
    NIB_TRY(nib__token_trie_open(&g->trie, g->tokenizer, a, err));
    NIB_TRY(nib__constraint_open(&g->constraint, g->trie, &schema, a, err));
    return nib__job_constrain(&g->job, g->session, g->constraint, err);
}

nib_status nib__generate(nib_session *session, nib_batch *batch, const nib_prompt *prompt,
                         const nib_generate_options *options, const nib_sink *sink,
                         nib_generate_stats *stats, nib_err *err)
{
    const nib_allocator *a = &session->model->engine->allocator;
    generation g = {.session = session, .options = options, .sink = sink, .stats = stats};
    const nib_sampling asked = nib__asked_sampling(options);
    g.job = (nib_job){.prompt = prompt->ids,
                      .prompt_count = (int64_t)prompt->count,
                      .sampling = nib__model_sampling(session->model, &asked),
                      .top = options->logprobs > 0 ? (int)options->logprobs : -1,
                      .ignore_ends = options->ignore_eos,
                      .lookup = session->plan->lookup,
                      .calls = {on_token, on_end},
                      .ctx = &g};
    stats->prompt_tokens = g.job.prompt_count;
    stats->lookup = g.job.lookup;
    NIB_TRY(check_options(options, err));
    NIB_TRY(nib__sampling_check(&g.job.sampling, err));
    NIB_TRY(nib__model_max_tokens(&g.job.max_tokens, session->model, options->max_tokens,
                                  g.job.prompt_count, err));
    NIB_TRY(nib__model_tokenizer(session->model, &g.tokenizer, err));
    nib__text_out_open(&g.text, g.tokenizer, options->stop, a);
    nib__text_init(&g.names, a);
    if (prompt->continues)
        nib__detok_continue(&g.text.detok);
    nib_status status = options->schema != NULL ? constrain(&g, err) : NIB_OK;
    if (status == NIB_OK)
        status = describe_sampler(&g, err);
    if (status == NIB_OK) {
        status = run_job(&g, batch, err);
        fill_stats(&g);
    }
    nib__job_release(&g.job, session);
    nib__constraint_close(g.constraint);
    nib__token_trie_close(g.trie);
    nib__text_free(&g.names);
    nib__text_out_close(&g.text);
    return status;
}

/* ---- a prompt as text ---- */

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

/* A batch of one: the session's sequence 0, from its start. */
static nib_status generate_alone(nib_session *session, const nib_prompt *prompt,
                                 const nib_generate_options *options, const nib_sink *sink,
                                 nib_generate_stats *stats, nib_err *err)
{
    nib_batch *batch;
    NIB_TRY(check_prompt(session, prompt->count, err));
    NIB_TRY(nib__batch_open(&batch, session, 1, err));
    nib_status status = nib__generate(session, batch, prompt, options, sink, stats, err);
    if (status == NIB_OK && stats->finish == NIB_FINISH_CANCELLED && stats->new_tokens == 0)
        status = nib__fail(err, NIB_CANCELLED, "cancelled while reading the prompt");
    nib__batch_close(batch);
    return status;
}

nib_status nib_generate(nib_session *session, const nib_generate_options *options,
                        const nib_sink *sink, nib_generate_stats *stats, nib_err *err)
{
    NIB_OPTIONS(nib_generate_options, o, options, err);
    const char *text = o.prompt != NULL ? o.prompt : "";
    const int32_t bos = session->model->net.config.bos;
    const nib_tokenizer *tokenizer;
    nib_generate_stats used = {0};
    nib__result_write(stats, &used, sizeof used);
    nib_prompt prompt = {.continues = *text != 0};
    int32_t *ids;
    NIB_TRY(nib__text_out_check(&o.stop, err));
    NIB_TRY(nib__model_tokenizer(session->model, &tokenizer, err));
    NIB_TRY(nib__tokenizer_encode(tokenizer, text, strlen(text),
                                  NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL, &ids,
                                  &prompt.count, err));
    prompt.ids = ids;
    if (prompt.count == 0 && bos >= 0)
        prompt.ids = &bos, prompt.count = 1;
    const nib_status status = generate_alone(session, &prompt, &o, sink, &used, err);
    nib__result_write(stats, &used, sizeof used);
    nib__tokenizer_ids_free(tokenizer, ids);
    return status;
}
