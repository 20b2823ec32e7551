/* SPDX-License-Identifier: Apache-2.0
 *
 * Text from a prompt: prefill, then a token per step, or several where a draft of them was right;
 * streamed as whole code points, with stop strings held back until it is sure that they do not
 * begin.
 */
#include "library.h"
#include "lookup.h"
#include "sample.h"
#include "text_out.h"
#include "way.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef struct generation {
    nib_session *session;
    const nib_generate_options *options;
    const nib_sink *sink;
    nib_sampling sampling;
    const nib_tokenizer *tokenizer;
    nib_sampler sampler;
    nib_draw_plan draw;
    const nib_kernel *there; /* draws tokens where the logits are; NULL: the sampler does */
    int32_t *ids;            /* prompt and new tokens, and behind them a draft */
    size_t count, capacity, drafted;
    nib_lookup lookup;
    nib_step_times times;
    int64_t steps[NIB_LOOKUP_MOST + 2]; /* after the prompt, by their tokens */
    uint64_t start;
    int64_t max_tokens;        /* new ones; INT64_MAX: until the context is full */
    int32_t ends[NIB_EOS_MAX]; /* tokens that end the text */
    int end_count;
    nib_text_out text;
    nib_generate_stats *stats;
} generation;

/* ---- output ---- */

static nib_status write_ready(generation *g, bool all, nib_err *err)
{
    nib_text_out *t = &g->text;
    if (t->held.failed)
        return nib__fail_memory(err, t->held.size, "generated text");
    const size_t ready = nib__text_out_ready(t, all);
    if (ready > 0) {
        const nib_status status = g->sink->write(g->sink->ctx, t->held.at, ready);
        if (status != NIB_OK)
            return nib__fail(err, status, "the generated text could not be written");
        nib__text_out_take(t, ready);
    }
    return NIB_OK;
}

/* ---- steps ---- */

static nib_status reserve_ids(generation *g, size_t more, nib_err *err)
{
    void *ids = g->ids;
    if (!nib__reserve(&g->session->model->engine->allocator, &ids, &g->capacity, g->count + more,
                      sizeof *g->ids))
        return nib__fail_memory(err, (g->count + more) * sizeof *g->ids, "token ids");
    g->ids = ids;
    return NIB_OK;
}

static nib_status keep_id(generation *g, int32_t id, nib_err *err)
{
    NIB_TRY(reserve_ids(g, 1, err));
    g->ids[g->count++] = id;
    return NIB_OK;
}

/* Runs ids from `from` on, draft included, and gives the logits of the last token and of each
 * drafted one. Long prompts go in chunks, so that they can be cancelled between. */
static nib_status forward(generation *g, size_t from, const float **logits, nib_err *err)
{
    enum { CHUNK = NIB_CHUNK };
    nib_slot slots[CHUNK];
    const size_t end = g->count + g->drafted;
    while (from < end) {
        const size_t part = end - from < CHUNK ? end - from : CHUNK;
        for (size_t i = 0; i < part; i++)
            slots[i] = (nib_slot){.sequence = 0,
                                  .position = (int32_t)(from + i),
                                  .token = g->ids[from + i],
                                  .logits = from + i + 1 >= g->count};
        if (!nib__engine_progress(g->session->model->engine, "prompt", from, g->count))
            return nib__fail(err, NIB_CANCELLED, "cancelled while reading the prompt");
        NIB_TRY(nib__runner_step(&g->session->runner, slots, part, logits, err));
        from += part;
    }
    return NIB_OK;
}

/* What a draft may have besides the token that comes after it in any case. */
static int64_t draft_room(const generation *g)
{
    const int64_t context = g->session->plan->context - (int64_t)g->count - 1;
    const int64_t wanted = g->max_tokens - g->stats->new_tokens - 1;
    return nib__min(g->stats->lookup, nib__min(context, wanted));
}

/* As many tokens of a draft as pay; none before a step of one was timed. */
static nib_status choose_draft(generation *g, nib_err *err)
{
    const nib_plan *plan = g->session->plan;
    const int64_t room = draft_room(g);
    double seconds[COUNT(g->times.measured)];
    g->drafted = 0;
    if (g->stats->lookup == 0)
        return NIB_OK;
    NIB_TRY(nib__lookup_put(&g->lookup, g->ids, g->count, err));
    if (room <= 0 || g->lookup.next == 0 || g->times.measured[1] == 0)
        return NIB_OK;
    for (int64_t m = 1; g->times.predicted[g->stats->lookup + 1] == 0; m++)
        g->times.predicted[m] =
            nib__plan_step_seconds(&plan->plan, &plan->policy, m, m, (double)g->count);
    NIB_TRY(reserve_ids(g, (size_t)room, err));
    nib__step_times_fill(&g->times, (size_t)room + 1, seconds);
    g->drafted = nib__lookup_draft(&g->lookup, g->ids, seconds, (size_t)room);
    return NIB_OK;
}

/* The last token and a draft. */
static nib_status step(generation *g, const float **logits, nib_err *err)
{
    NIB_TRY(choose_draft(g, err));
    const uint64_t start = nib__now_ns();
    NIB_TRY(forward(g, g->count - 1, logits, err));
    nib__step_times_add(&g->times, 1 + g->drafted, (double)(nib__now_ns() - start) * 1e-9);
    g->steps[1 + g->drafted]++;
    g->stats->steps++;
    g->stats->drafted += (int64_t)g->drafted;
    return NIB_OK;
}

static nib_status read_prompt(generation *g, nib_err *err)
{
    int32_t *ids;
    size_t count;
    const char *prompt = g->options->prompt ? g->options->prompt : "";
    NIB_TRY(nib__tokenizer_encode(g->tokenizer, prompt, strlen(prompt),
                                  NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL, &ids, &count,
                                  err));
    nib_status status = NIB_OK;
    for (size_t i = 0; i < count && status == NIB_OK; i++)
        status = keep_id(g, ids[i], err);
    nib__tokenizer_ids_free(g->tokenizer, ids);
    NIB_TRY(status);
    const nib_config *c = &g->session->model->net.config;
    if (*prompt != 0)
        nib__detok_continue(&g->text.detok);
    if (g->count == 0 && c->bos >= 0)
        NIB_TRY(keep_id(g, c->bos, err));
    if (g->count == 0)
        return nib__fail(err, NIB_USAGE,
                         "the prompt is empty and the model has no BOS token to start from; give a "
                         "prompt with -p");
    const int64_t context = g->session->plan->context;
    if ((int64_t)g->count > context)
        return nib__fail(err, NIB_USAGE,
                         "the prompt has %zu tokens, but the context is %" PRId64 "; shorten it%s",
                         g->count, context, context < c->context ? " or raise --context" : "");
    g->stats->prompt_tokens = (int64_t)g->count;
    return NIB_OK;
}

static nib_status put_token(generation *g, int32_t id, nib_err *err)
{
    nib__text_out_put(&g->text, id);
    return write_ready(g, false, err);
}

/* ---- drawing ---- */

/* A row of the device that takes the request, or why there is none. */
static nib_status choose_sampler(generation *g, nib_err *err)
{
    const nib_plan *plan = g->session->plan;
    nib_generate_stats *stats = g->stats;
    nib_text why;
    nib__text_init(&why, &g->session->model->engine->allocator);
    g->draw = nib__plan_draw(&plan->plan, &plan->policy, nib__sampling_top_k(&g->sampling),
                             g->sampling.repeat_penalty != 1.0, &why);
    g->there = g->draw.row != NULL && g->draw.row->gpu != NULL ? g->draw.row : NULL;
    const bool failed = why.failed;
    stats->sampler = g->there != NULL ? g->there->name : why.size > 0 ? g->sampler.row->name : NULL;
    if (!failed && why.size > 0) {
        char bytes[32], time[32];
        nib__say_bytes(bytes, g->draw.bytes);
        nib__say_seconds(time, g->draw.move_s + g->draw.draw_s);
        snprintf(stats->sampler_why, sizeof stats->sampler_why,
                 "%s of logits move per token, %s predicted: %s", bytes, time, why.at);
    }
    nib__text_free(&why);
    g->session->runner.keeps_logits = g->there != NULL;
    return failed ? nib__fail_memory(err, sizeof stats->sampler_why, "a reason") : NIB_OK;
}

static nib_status draw(generation *g, const float *logits, int32_t *id, nib_err *err)
{
    const int64_t position = (int64_t)g->count;
    int32_t drawn;
    if (g->there == NULL)
        return nib__sample(id, &g->sampler, logits, &g->sampling, g->ids, g->count, 0, position,
                           err);
    NIB_TRY(nib__runner_draw(&g->session->runner, g->there,
                             nib__sampling_draw(&g->sampling, g->sampler.vocab, 0, position),
                             &drawn, err));
    return nib__sampling_token(id, drawn, position, err);
}

static bool ends(const generation *g, int32_t id)
{
    for (int i = 0; i < g->end_count; i++)
        if (g->ends[i] == id)
            return true;
    return false;
}

/* Writes a drawn token, unless it ends the text. */
static nib_status take(generation *g, int32_t id, bool *over, nib_err *err)
{
    nib_generate_stats *stats = g->stats;
    *over = true;
    if (stats->new_tokens == 0)
        stats->first_token_s = (double)(nib__now_ns() - g->start) * 1e-9;
    if (ends(g, id)) {
        stats->finish = NIB_FINISH_STOP;
        return NIB_OK;
    }
    stats->new_tokens++;
    NIB_TRY(keep_id(g, id, err));
    NIB_TRY(put_token(g, id, err));
    if (g->text.stopped) {
        stats->finish = NIB_FINISH_STOP;
    } else if (stats->new_tokens >= g->max_tokens) {
        stats->finish = NIB_FINISH_LENGTH;
    } else if ((int64_t)g->count > g->session->plan->context - 1) {
        stats->finish = NIB_FINISH_CONTEXT;
    } else if (!nib__engine_progress(g->session->model->engine, "generate",
                                     (uint64_t)stats->new_tokens,
                                     g->max_tokens < INT64_MAX ? (uint64_t)g->max_tokens : 0)) {
        stats->finish = NIB_FINISH_CANCELLED;
    } else {
        *over = false;
    }
    return NIB_OK;
}

/* Draws the tokens of a step, each from logits that only right ones are before: the first, and as
 * long as it is what was drafted, the next. The cache then holds what it holds without a draft. */
static nib_status draw_all(generation *g, const float *logits, bool *over, nib_err *err)
{
    const int64_t vocab = nib_session_vocab(g->session), first = (int64_t)g->count - 1;
    nib_status status = NIB_OK;
    int64_t row = 0;
    bool right = true;
    *over = false;
    for (; right && !*over && status == NIB_OK; row++) {
        int32_t id = 0;
        status = draw(g, logits + row * vocab, &id, err);
        right = row < (int64_t)g->drafted && g->ids[g->count] == id;
        if (status == NIB_OK)
            status = take(g, id, over, err);
        g->stats->accepted += right;
    }
    nib__kv_truncate(&g->session->runner.kv, 0, first + row);
    return status;
}

/* The loop: sample, write, step. */
static nib_status run(generation *g, nib_err *err)
{
    const float *logits;
    bool over;
    g->start = nib__now_ns();
    NIB_TRY(forward(g, 0, &logits, err));
    const uint64_t prefilled = nib__now_ns();
    g->stats->prefill_s = (double)(prefilled - g->start) * 1e-9;
    NIB_TRY(draw_all(g, logits, &over, err));
    while (!over) {
        NIB_TRY(step(g, &logits, err));
        NIB_TRY(draw_all(g, logits, &over, err));
    }
    g->stats->decode_s = (double)(nib__now_ns() - prefilled) * 1e-9;
    if (!g->text.stopped) {
        nib__text_out_finish(&g->text);
        NIB_TRY(write_ready(g, true, err));
    }
    return NIB_OK;
}

/* Of one token by the plan, with the steps that were taken. */
static double predicted_token(const generation *g)
{
    const nib_plan *plan = g->session->plan;
    const nib_draw_plan *usual = &plan->plan.draw; /* whose move is among those of a step */
    const double tokens = (double)nib__max(1, g->stats->new_tokens - 1);
    const double positions = (double)g->stats->prompt_tokens + tokens / 2;
    double sum = 0;
    for (int64_t m = 1; m < (int64_t)COUNT(g->steps); m++)
        if (g->steps[m] > 0)
            sum += (double)g->steps[m] *
                   nib__plan_step_seconds(&plan->plan, &plan->policy, m, m, positions);
    if (g->stats->steps == 0)
        sum = nib__plan_step_seconds(&plan->plan, &plan->policy, 1, 1, positions);
    return sum / tokens + g->draw.draw_s + g->draw.move_s - usual->move_s;
}

static void fill_stats(generation *g)
{
    nib_generate_stats *s = g->stats;
    const nib_runner *r = &g->session->runner;
    s->weight_bytes = r->weight_bytes;
    s->cache_bytes = nib__kv_used_bytes(&r->kv);
    s->peak_bytes = nib__peak_bytes();
    const double bytes = (double)s->steps * ((double)s->weight_bytes + (double)s->cache_bytes / 2);
    /* the first token comes out of the prefill */
    s->token_s = s->new_tokens > 1 ? s->decode_s / (double)(s->new_tokens - 1) : NAN;
    s->predicted_token_s = predicted_token(g);
    s->decode_gb_per_s = s->decode_s > 0 ? bytes / s->decode_s * 1e-9 : 0;
    s->temperature = g->sampling.temperature, s->top_p = g->sampling.top_p,
    s->min_p = g->sampling.min_p;
    s->repeat_penalty = g->sampling.repeat_penalty, s->top_k = g->sampling.top_k,
    s->seed = g->sampling.seed;
}

nib_status nib_generate(nib_session *session, const nib_generate_options *options,
                        const nib_sink *sink, nib_generate_stats *stats, nib_err *err)
{
    const nib_allocator *a = &session->model->engine->allocator;
    nib_generate_stats unused;
    generation g = {
        .session = session, .options = options, .sink = sink, .stats = stats ? stats : &unused};
    *g.stats = (nib_generate_stats){0};
    NIB_TRY(nib__text_out_check(&options->stop, err));
    NIB_TRY(nib__model_tokenizer(session->model, &g.tokenizer, err));
    g.sampling = nib__model_sampling(session->model, options);
    g.end_count = options->ignore_eos ? 0 : nib__model_ends(session->model, g.ends);
    NIB_TRY(nib__sampling_check(&g.sampling, err));
    NIB_TRY(nib__sampler_open(&g.sampler, nib_session_vocab(session), a, err));
    nib__text_out_open(&g.text, g.tokenizer, options->stop, a);
    nib__lookup_open(&g.lookup, a);
    g.stats->lookup = session->plan->lookup;
    nib__kv_truncate(&session->runner.kv, 0, 0);
    nib_status status = choose_sampler(&g, err);
    if (status == NIB_OK)
        status = read_prompt(&g, err);
    if (status == NIB_OK)
        status = nib__model_max_tokens(&g.max_tokens, session->model, options->max_tokens,
                                       (int64_t)g.count, err);
    if (status == NIB_OK)
        status = nib__model_read(session->model, run(&g, err), err);
    session->runner.keeps_logits = false;
    fill_stats(&g);
    nib__release(a, g.ids);
    nib__lookup_close(&g.lookup);
    nib__text_out_close(&g.text);
    nib__sampler_close(&g.sampler);
    return status;
}
