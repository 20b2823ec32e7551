/* SPDX-License-Identifier: Apache-2.0
 *
 * A call: opening it, adding tokens to its answer, reading the answer, closing it.
 */
#include "service.h"
#include "public_struct.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum { UNREAD_MOST = 4 << 20 /* bytes of a stream that wait for its reader */ };

/* ---- opening ---- */

/* SplitMix64. Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014. */
uint64_t nib__mix(uint64_t a, uint64_t b)
{
    uint64_t z = a + (b + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void assign_id(nib_call *call)
{
    nib_service *s = call->service;
    pthread_mutex_lock(&s->lock);
    const uint64_t number = s->number++;
    if (s->created == 0)
        s->created = call->options.now;
    pthread_mutex_unlock(&s->lock);
    call->seed = nib__mix(s->options.seed, number) >> 1; /* in the range of a request's seed */
    call->unique = nib__mix(call->seed, number);
    snprintf(call->id, sizeof call->id, "%s-%016" PRIx64,
             call->options.route == NIB_ROUTE_CHAT ? "chatcmpl" : "cmpl", call->unique);
}

static void hash_user(nib_call *call)
{
    for (const char *p = call->request.user; p != NULL && *p != 0; p++)
        call->user = nib__mix(call->user, (unsigned char)*p);
}

static bool has_waiting(const nib_service *s, uint64_t client)
{
    for (const nib_call *c = s->unprepared; c != NULL; c = c->next)
        if (c->options.client == client)
            return true;
    for (const nib_call *c = s->calls; c != NULL; c = c->next)
        if (c->options.client == client && c->begun < c->choice_count)
            return true;
    return s->preparing != NULL && !s->preparing->closed && s->preparing->options.client == client;
}

/* Refuses a call if the queue is full. A few extra places are for clients with no call in the
 * queue, so that one client cannot shut the others out. */
static bool check_admission(nib_call *call)
{
    const nib_service *s = call->service;
    const int64_t queue = s->options.queue, spare = queue < 4 ? 1 : queue / 4;
    char text[128];
    if (s->lost.status != NIB_OK)
        return nib__call_refuse(call, 503, "", "model_changed", s->lost.text);
    if (s->stopping > 0)
        return nib__call_refuse(call, 503, "", "stopping", "the server is stopping");
    if (s->waiting < queue || (s->waiting < queue + spare && !has_waiting(s, call->options.client)))
        return true;
    call->retry_s = 1;
    snprintf(text, sizeof text, "%" PRId64 " requests are already waiting; try again later",
             s->waiting);
    return nib__call_refuse(call, 429, "", "queue_full", text);
}

static void notify(nib_call *call)
{
    if (call->notified || call->closed)
        return;
    call->notified = true;
    if (call->options.ready != NULL)
        call->options.ready(call->options.ctx);
}

/* Frees the body, possibly megabytes, once the request is prepared or refused, and clears the
 * pointers into it. */
static void free_body(nib_call *call)
{
    nib_api_request *q = &call->request;
    nib__release(&call->service->session->model->engine->allocator, call->body);
    call->options.body = call->body = NULL;
    call->options.body_size = 0;
    nib__arena_free(&call->said);
    q->messages = q->messages_text = q->variables = q->schema = q->tools = q->user = NULL;
    q->tool_list = NULL;
}

void nib__call_join(nib_call *call, bool good)
{
    nib_service *s = call->service;
    nib_call **last = &s->calls;
    if (good)
        hash_user(call);
    free_body(call);
    pthread_cond_signal(&s->wake);
    if (call->closed) { /* nib_call_close already gave up its place in the queue */
        nib__call_count(call);
        nib__call_free(call);
        return;
    }
    call->stream = good && call->request.stream;
    if (good) {
        while (*last != NULL)
            last = &(*last)->next;
        *last = call;
        call->next = NULL;
        nib__answer_begin(call);
    } else {
        s->waiting--;
        nib__answer_over(call);
    }
    if (call->http != 0) /* a waiting stream, too: it sends its status, then pings */
        notify(call);
}

nib_status nib_call_open(nib_call **out, nib_service *s, const nib_call_options *options,
                         nib_err *err)
{
    NIB_NEED(err, "out, service", out, s);
    NIB_OPTIONS(nib_call_options, o, options, err);
    NIB_TRY(nib__service_check(s, err));
    if (o.route != NIB_ROUTE_CHAT && o.route != NIB_ROUTE_COMPLETIONS)
        return nib__fail(err, NIB_USAGE, "nib_call_options.route is %d, which is not a nib_route",
                         (int)o.route);
    if (o.body == NULL && o.body_size > 0)
        return nib__fail(err, NIB_USAGE, "nib_call_options.body is NULL, but body_size is %zu",
                         o.body_size);
    const nib_allocator *a = &s->session->model->engine->allocator;
    nib_call *call = nib__calloc(a, 1, sizeof *call);
    if (call == NULL)
        return nib__fail_memory(err, sizeof *call, "a request");
    call->service = s;
    nib__holders_add(&s->holders);
    call->options = o;
    call->came_ns = nib__now_ns();
    nib__arena_init(&call->arena, a, 0);
    nib__arena_init(&call->said, a, 0);
    nib__ledger_init(&call->settings, a);
    nib__text_init(&call->out, a);
    assign_id(call);
    call->options.body = call->body = nib__calloc(a, o.body_size + 1, 1);
    if (call->body == NULL)
        nib__call_no_memory(call);
    else if (o.body_size > 0)
        memcpy(call->body, o.body, o.body_size);
    pthread_mutex_lock(&s->lock);
    if (call->body != NULL && check_admission(call)) {
        nib__prepare_later(s, call);
    } else {
        free_body(call);
        nib__answer_over(call);
    }
    pthread_mutex_unlock(&s->lock);
    *out = call;
    return NIB_OK;
}

/* ---- constraints ---- */

/* Waiting choices have no state: with a large vocabulary it takes half a megabyte. */
bool nib__answer_constrain(nib_answer *c)
{
    const nib_call *call = c->call;
    const nib_session *session = call->service->session;
    nib_err err;
    if (call->constraint == NULL)
        return true;
    if (nib__job_constrain(&c->job, session, call->constraint, &err) != NIB_OK)
        return false;
    if (!nib__api_may_call(&call->request))
        return true;
    c->calls.state = nib__calloc(&session->model->engine->allocator, 1, sizeof *c->calls.state);
    if (c->calls.state == NULL) {
        nib__answer_release(c);
        return false;
    }
    nib__constraint_start(c->calls.state, call->constraint);
    return true;
}

void nib__answer_release(nib_answer *c)
{
    const nib_session *session = c->call->service->session;
    nib__job_release(&c->job, session);
    nib__release(&session->model->engine->allocator, c->calls.state);
    c->calls.state = NULL;
}

/* ---- tokens ---- */

static double since(uint64_t from) { return (double)(nib__now_ns() - from) * 1e-9; }

/* Ends a stream whose client reads too slowly, because unread bytes are limited and steps do not
 * wait. */
static bool is_unread(nib_call *call)
{
    if (!call->stream || call->out.size - call->read <= UNREAD_MOST)
        return false;
    if (call->error.http == 0)
        nib__call_refuse(call, 503, "", "unread",
                         "more than 4 MiB of the stream are unread; it ends here");
    return true;
}

static void record_token_time(nib_call *call)
{
    nib_service_counts *counts = &call->service->counts;
    if (call->first_ns == 0)
        nib__histogram_add(&counts->first_token, since(call->came_ns));
    else
        nib__histogram_add(&counts->next_token, since(call->last_ns));
    call->last_ns = nib__now_ns();
    if (call->first_ns == 0)
        call->first_ns = call->last_ns;
}

void nib__call_give_text(nib_answer *c, bool all, size_t held)
{
    size_t ready = nib__text_out_ready(&c->text, all);
    if (!c->text.stopped && ready > c->text.held.size - held)
        ready = c->text.held.size - held;
    nib__answer_text(c, c->text.held.at, ready);
    nib__text_out_take(&c->text, ready);
}

static bool on_token(void *ctx, const nib_new_token *token)
{
    nib_answer *c = ctx;
    nib_service *s = c->call->service;
    pthread_mutex_lock(&s->lock);
    nib__answer_note_cache(c);
    if (!token->of_prompt) {
        record_token_time(c->call);
        s->counts.new_tokens++;
        c->tokens.made++;
    }
    if (c->job.top >= 0)
        nib__answer_token(c, token);
    if (!token->end && !token->of_prompt) {
        if (c->calls.state != NULL) {
            nib__answer_take(c, token->id);
        } else {
            nib__text_out_put(&c->text, token->id);
            nib__call_give_text(c, false, 0);
        }
    }
    const bool on = !c->text.stopped && !c->text.held.failed && !is_unread(c->call);
    pthread_mutex_unlock(&s->lock);
    return on;
}

static void on_finish(void *ctx, nib_finish finish, const nib_err *err)
{
    nib_answer *c = ctx;
    nib_call *call = c->call;
    nib_service *s = call->service;
    pthread_mutex_lock(&s->lock);
    c->ended = true;
    c->finish = finish;
    nib__answer_note_cache(c);
    call->ended++;
    if (err != NULL && call->error.http == 0)
        nib__call_refuse_status(call, "", err);
    if (err == NULL && !c->text.stopped) {
        nib__text_out_finish(&c->text);
        nib__call_give_text(c, true, 0);
        nib__answer_calls_end(c);
    }
    if (c->text.held.failed && call->error.http == 0)
        nib__call_no_memory(call);
    if (call->ended == call->choice_count)
        nib__call_note_cache(call);
    nib__answer_end(c);
    nib__answer_release(c);
    if (call->ended == call->choice_count)
        nib__answer_over(call);
    pthread_mutex_unlock(&s->lock);
}

const nib_job_calls nib__answer_calls = {on_token, on_finish};

/* ---- reading and closing ---- */

void nib__call_tell(nib_call *call)
{
    if (call->over || call->read < call->out.size)
        notify(call);
}

void nib_call_look(nib_call *call, nib_call_state *out)
{
    if (call == NULL)
        return;
    if (nib__service_check(call->service, NULL) != NIB_OK) {
        NIB_RESULT(out, (nib_call_state){.over = true});
        return;
    }
    pthread_mutex_lock(&call->service->lock);
    const nib_call_state state = {.http = call->http,
                                  .stream = call->stream,
                                  .retry_s = call->retry_s,
                                  .left = call->out.size - call->read,
                                  .over = call->over};
    pthread_mutex_unlock(&call->service->lock);
    NIB_RESULT(out, state);
}

/* Drops the bytes that were read. */
static void discard_read(nib_call *call)
{
    nib_text *out = &call->out;
    if (out->size > call->read)
        memmove(out->at, out->at + call->read, out->size - call->read);
    out->size -= call->read;
    call->read = 0;
}

size_t nib_call_read(nib_call *call, char *out, size_t size)
{
    if (call == NULL || out == NULL || nib__service_check(call->service, NULL) != NIB_OK)
        return 0;
    pthread_mutex_lock(&call->service->lock);
    const size_t left = call->out.size - call->read, count = size < left ? size : left;
    if (count > 0)
        memcpy(out, call->out.at + call->read, count);
    call->read += count;
    if (call->read == call->out.size)
        call->notified = false;
    if (2 * call->read >= call->out.size)
        discard_read(call);
    pthread_mutex_unlock(&call->service->lock);
    return count;
}

void nib_call_stats_get(nib_call *call, nib_call_stats *out)
{
    if (call == NULL || nib__service_check(call->service, NULL) != NIB_OK)
        return;
    pthread_mutex_lock(&call->service->lock);
    const uint64_t until = call->over_ns != 0 ? call->over_ns : nib__now_ns();
    /* during preparation the request belongs to the preparer's thread */
    const bool known = call->service->preparing != call;
    nib_call_stats s = {.id = call->id,
                        .finish = "error",
                        .seed = known ? (int64_t)call->seed : 0,
                        .queued_s = NAN,
                        .first_token_s = NAN,
                        .total_s = (double)(until - call->came_ns) * 1e-9};
    if (known && call->error.http == 0 && call->choice_count > 0)
        s.finish = nib__answer_finish(&call->choices[0]);
    if (call->begun_ns != 0)
        s.queued_s = (double)(call->begun_ns - call->came_ns) * 1e-9;
    if (call->first_ns != 0)
        s.first_token_s = (double)(call->first_ns - call->came_ns) * 1e-9;
    if (known) {
        const nib_ledger_counts counts = nib__ledger_count(&call->settings);
        s.settings =
            (int64_t)(counts.settings[NIB_SETTING_OTHER] + counts.settings[NIB_SETTING_NONE]);
    }
    if (known) {
        const nib_token_counts tokens = nib__call_tokens(call);
        s.prompt_tokens = tokens.prompt, s.cached_tokens = tokens.cached;
        s.new_tokens = tokens.made;
        s.recomputed_tokens = tokens.recomputed;
        s.recomputed_why = tokens.recomputed > 0 ? nib__recompute_names[tokens.why] : NULL;
    }
    pthread_mutex_unlock(&call->service->lock);
    NIB_RESULT(out, s);
}

void nib__answer_note_cache(nib_answer *c)
{
    c->tokens.cached = c->job.cached;
    c->tokens.recomputed = c->job.recomputed;
    c->tokens.why = c->job.why;
}

nib_token_counts nib__call_tokens(const nib_call *call)
{
    nib_token_counts sum = {0};
    for (int64_t i = 0; i < call->choice_count; i++) {
        const nib_answer *c = &call->choices[i];
        sum.made += c->tokens.made;
        if (i % call->request.n != 0) /* count each prompt once */
            continue;
        sum.prompt += c->job.prompt_count;
        sum.cached += c->tokens.cached;
        sum.recomputed += c->tokens.recomputed;
        if (c->tokens.recomputed > 0)
            sum.why = c->tokens.why;
    }
    return sum;
}

void nib__call_free(nib_call *call)
{
    const nib_service *s = call->service;
    for (int64_t i = 0; i < call->choice_count; i++) {
        nib_answer *c = &call->choices[i];
        nib__text_out_close(&c->text);
        nib__text_free(&c->whole);
        nib__text_free(&c->calls.name);
        nib__text_free(&c->calls.arguments);
        nib__text_free(&c->calls.done);
        nib__detok_free(&c->told);
        nib__answer_release(c);
        nib__text_free(&c->logprobs.tokens);
        nib__text_free(&c->logprobs.values);
        nib__text_free(&c->logprobs.tops);
        nib__text_free(&c->logprobs.offsets);
    }
    for (int64_t i = 0; i < call->prompt_count; i++)
        if (call->prompts[i].owned)
            nib__tokenizer_ids_free(s->tokenizer, call->prompts[i].ids);
    nib__constraint_close(call->constraint);
    nib__ledger_free(&call->settings);
    nib__text_free(&call->out);
    nib__release(&s->session->model->engine->allocator, call->body);
    nib__arena_free(&call->said);
    nib__arena_free(&call->arena);
    nib__release(&s->session->model->engine->allocator, call);
}

/* Frees the call, unless a thread works with it, which then frees it. */
static void let_go(nib_call *call)
{
    nib_service *s = call->service;
    call->closed = true;
    const bool listed = nib__service_has(s, call); /* if running, that thread frees it */
    if (listed && s->running) {
        pthread_cond_signal(&s->wake);
    } else if (listed) {
        nib__service_drop(s, call);
    } else if (s->preparing == call) {
        s->waiting--; /* the preparer frees it */
    } else {
        if (nib__prepare_drop(s, call))
            nib__call_count(call);
        nib__call_free(call);
    }
}

void nib_call_close(nib_call *call)
{
    if (call == NULL)
        return;
    nib_service *s = call->service;
    if (nib__service_check(s, NULL) == NIB_OK) {
        pthread_mutex_lock(&s->lock);
        let_go(call);
        pthread_mutex_unlock(&s->lock);
    } /* else the threads that had it and the lock are in another process */
    nib_service_close(s);
}
