/* SPDX-License-Identifier: Apache-2.0
 *
 * The thread that runs requests: selects the next choice to start, runs the batch, and lets calls
 * come and go between steps.
 */
#include "service.h"
#include "public_struct.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

/* ---- opening ---- */

/* The given name, or the last part of the model's path. */
static void choose_name(nib_service *s, const char *asked)
{
    const char *path = s->session->model->net.directory;
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    if (asked != NULL)
        path = asked, begin = 0, end = strlen(asked);
    snprintf(s->name, sizeof s->name, "%.*s", (int)(end - begin), path + begin);
}

static nib_status text_write(void *ctx, const char *bytes, size_t size)
{
    nib_text *text = ctx;
    nib__text_put(text, bytes, size);
    return text->failed ? NIB_NO_MEMORY : NIB_OK;
}

/* Opens what requests read, and enters the sandbox. No thread of the service runs yet: they inherit
 * it. */
static nib_status open_last_files(nib_service *s, nib_err *err)
{
    nib_model *model = s->session->model;
    char note[NIB_SANDBOX_TEXT];
    nib_err why; /* chats will get it, and other requests need no template */
    if (nib_chat_open(model, &why) == NIB_NO_MEMORY)
        return nib__fail(err, NIB_NO_MEMORY, "%s", why.text);
    s->statm = nib__resident_open();
    if (s->options.state_cache != NULL)
        NIB_TRY(nib__state_cache_open(&s->states, s->session, s->options.state_cache,
                                      s->options.state_cache_bytes, err));
    s->options.state_cache = NULL; /* the caller's */
    NIB_TRY(nib__engine_sandbox(model->engine, NIB_SANDBOX_SERVER, note, err));
    if (note[0] == '\0')
        return NIB_OK;
    nib__session_note_sandbox(s->session, note);
    const nib_callbacks *back = &model->engine->callbacks;
    if (back->log != NULL) {
        char line[NIB_SANDBOX_TEXT + sizeof "sandbox: "];
        snprintf(line, sizeof line, "sandbox: %s", note);
        back->log(back->ctx, line);
    }
    return NIB_OK;
}

static nib_status open_parts(nib_service *s, const nib_service_options *options, nib_err *err)
{
    const nib_sink sink = {text_write, &s->plan};
    s->options = options ? *options : (nib_service_options){0};
    NIB_TRY(nib__number_check("nib_service_options.queue", s->options.queue, err));
    if (!(s->options.limit_s >= 0))
        return nib__fail(err, NIB_USAGE,
                         "nib_service_options.limit_s is %g; 0 or more seconds are possible",
                         s->options.limit_s);
    if (s->options.queue == 0)
        s->options.queue = 64;
    choose_name(s, s->options.name);
    s->options.name = s->name;
    s->lock_made = pthread_mutex_init(&s->lock, NULL) == 0;
    s->wake_made = pthread_cond_init(&s->wake, NULL) == 0;
    s->fresh_made = pthread_cond_init(&s->fresh, NULL) == 0;
    if (!s->lock_made || !s->wake_made || !s->fresh_made)
        return nib__fail(err, NIB_NO_MEMORY, "cannot create a lock for the service");
    nib_model *model = s->session->model;
    NIB_TRY(nib_model_tokenizer(&s->tokenizer, model, err));
    NIB_TRY(nib__token_trie_open(&s->trie, s->tokenizer, &model->engine->allocator, err));
    NIB_TRY(open_last_files(s, err));
    NIB_TRY(nib_plan_write(nib_session_plan(s->session), NIB_FORM_JSON, &sink, err));
    NIB_TRY(nib__batch_open(&s->batch, s->session, s->session->runner.kv.sequences, err));
    nib__batch_use_disk(s->batch, s->states);
    return nib__preparer_open(s, err);
}

nib_status nib_service_open(nib_service **out, nib_session *session,
                            const nib_service_options *options, nib_err *err)
{
    NIB_NEED(err, "out, session", out, session);
    NIB_OPTIONS(nib_service_options, o, options, err);
    NIB_TRY(nib__session_check_idle(session, err));
    const nib_allocator *a = &session->model->engine->allocator;
    nib_service *s = nib__calloc(a, 1, sizeof *s);
    if (s == NULL)
        return nib__fail_memory(err, sizeof *s, "a service");
    s->session = session;
    nib__session_hold(session);
    s->statm = -1;
    nib__text_init(&s->plan, a);
    nib__arena_init(&s->tools.arena, a, 0);
    const nib_status status = open_parts(s, &o, err);
    if (status != NIB_OK) {
        nib_service_close(s);
        return status;
    }
    *out = s;
    return NIB_OK;
}

nib_status nib__service_check(const nib_service *s, nib_err *err)
{
    return nib__engine_check(s->session->model->engine, err);
}

/* Ends the service's thread and what it waits with. */
static void close_thread(nib_service *s)
{
    nib__preparer_close(s);
    if (s->fresh_made)
        pthread_cond_destroy(&s->fresh);
    if (s->wake_made)
        pthread_cond_destroy(&s->wake);
    if (s->lock_made)
        pthread_mutex_destroy(&s->lock);
}

void nib_service_close(nib_service *s)
{
    if (s == NULL || !nib__holders_leave(&s->holders))
        return;
    nib_session *session = s->session;
    if (nib__service_check(s, NULL) == NIB_OK)
        close_thread(s);
    if (s->statm >= 0)
        close(s->statm);
    nib__batch_close(s->batch);
    nib__state_cache_close(s->states);
    nib__token_trie_close(s->trie);
    nib__text_free(&s->plan);
    nib__arena_free(&s->tools.arena);
    nib__release(&session->model->engine->allocator, s);
    nib_session_close(session);
}

const char *nib_service_name(const nib_service *s)
{
    if (s == NULL)
        return NULL;
    return s->name;
}

/* ---- ending calls ---- */

static void remove_from_batch(nib_service *s, nib_call *call)
{
    for (int64_t i = 0; i < call->choice_count; i++) {
        nib_answer *choice = &call->choices[i];
        if (choice->begun && !choice->ended)
            nib__batch_remove(s->batch, &choice->job);
        nib__answer_release(choice);
        nib__answer_note_cache(choice);
        choice->ended = true;
    }
    s->waiting -= call->begun < call->choice_count;
    call->begun = call->ended = call->choice_count;
}

/* Ends a call with its error. */
static void abort_call(nib_service *s, nib_call *call)
{
    remove_from_batch(s, call);
    nib__answer_over(call);
    nib__call_tell(call);
}

static void unlink_call(nib_service *s, const nib_call *call)
{
    nib_call **at = &s->calls;
    while (*at != call)
        at = &(*at)->next;
    *at = call->next;
}

bool nib__service_has(const nib_service *s, const nib_call *call)
{
    const nib_call *at = s->calls;
    while (at != NULL && at != call)
        at = at->next;
    return at != NULL;
}

void nib__service_drop(nib_service *s, nib_call *call)
{
    remove_from_batch(s, call);
    unlink_call(s, call);
    if (!call->over)
        nib__call_count(call);
    nib__call_free(call);
}

static bool is_late(const nib_service *s, const nib_call *call)
{
    return s->options.limit_s > 0 &&
           (double)(nib__now_ns() - call->came_ns) * 1e-9 > s->options.limit_s;
}

bool nib__service_goes_on(const nib_service *s, nib_call *call)
{
    char text[128];
    if (s->lost.status != NIB_OK)
        return nib__call_refuse(call, 503, "", "model_changed", s->lost.text);
    if (s->stopping > 1)
        return nib__call_refuse(call, 503, "", "stopping", "the server is stopping");
    if (!is_late(s, call))
        return true;
    nib__format(text, sizeof text, "the request exceeded the time limit of %g seconds",
                s->options.limit_s);
    return nib__call_refuse(call, 503, "", "timeout", text);
}

/* Removes finished calls from the list. Calls that were closed, have failed or may not continue are
 * first removed from the batch. */
static void end_calls(nib_service *s)
{
    nib__prepare_cut(s);
    for (nib_call *call = s->calls, *next; call != NULL; call = next) {
        next = call->next;
        if (call->closed) {
            nib__service_drop(s, call);
            continue;
        }
        if (!call->over && (call->error.http != 0 || !nib__service_goes_on(s, call)))
            abort_call(s, call);
        if (call->over)
            unlink_call(s, call);
    }
}

/* ---- starting choices ---- */

/* Running choices. */
typedef struct share {
    int64_t client, user; /* of a client; of one of its users */
} share;

static share share_of(const nib_service *s, const nib_call *call)
{
    share sum = {0, 0};
    for (const nib_call *c = s->calls; c != NULL; c = c->next) {
        if (c->options.client != call->options.client)
            continue;
        sum.client += c->begun - c->ended;
        sum.user += c->user == call->user ? c->begun - c->ended : 0;
    }
    return sum;
}

/* The call whose next choice starts: of the client with the fewest running choices, then of its
 * user with the fewest, then the oldest. So a client gains nothing by naming many users. */
static nib_call *find_next(const nib_service *s)
{
    nib_call *best = NULL;
    share least = {INT64_MAX, INT64_MAX};
    for (nib_call *c = s->calls; c != NULL; c = c->next) {
        if (c->begun == c->choice_count || c->over)
            continue;
        const share has = share_of(s, c);
        if (has.client < least.client || (has.client == least.client && has.user < least.user)) {
            least = has;
            best = c;
        }
    }
    return best;
}

static void begin_choices(nib_service *s)
{
    nib_call *call;
    while (nib__batch_room(s->batch) > 0 && (call = find_next(s)) != NULL) {
        nib_answer *choice = &call->choices[call->begun];
        if (!nib__answer_constrain(choice)) {
            nib__call_no_memory(call);
            abort_call(s, call);
            unlink_call(s, call);
            continue;
        }
        call->begun++;
        choice->begun = true;
        if (call->begun_ns == 0) {
            call->begun_ns = nib__now_ns();
            nib__histogram_add(&s->counts.queued, (double)(call->begun_ns - call->came_ns) * 1e-9);
        }
        s->waiting -= call->begun == call->choice_count;
        nib__answer_echo(choice);
        nib__batch_add(s->batch, &choice->job);
    }
}

/* ---- the loop ---- */

/* Waits until something changes; at most a second if requests have a time limit. */
static void wait_for_work(nib_service *s)
{
    struct timespec until;
    if (s->options.limit_s == 0 || (s->calls == NULL && s->unprepared == NULL)) {
        pthread_cond_wait(&s->wake, &s->lock);
        return;
    }
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec++;
    pthread_cond_timedwait(&s->wake, &s->lock, &until);
}

/* Runs a step of the batch and notifies the calls that have something to read. */
static void run_step(nib_service *s)
{
    const nib_callbacks *back = &s->session->model->engine->callbacks;
    nib_err err;
    pthread_mutex_unlock(&s->lock);
    const nib_status status = nib__batch_step(s->batch, &err);
    if (status != NIB_OK && back->log != NULL)
        back->log(back->ctx, err.text);
    pthread_mutex_lock(&s->lock);
    if (status == NIB_IO)
        s->lost = err;
    for (nib_call *call = s->calls; call != NULL; call = call->next)
        nib__call_tell(call);
}

void nib_service_run(nib_service *s)
{
    if (s == NULL)
        return;
    if (nib__service_check(s, NULL) != NIB_OK)
        return;
    pthread_mutex_lock(&s->lock);
    s->running = true;
    for (;;) {
        end_calls(s);
        begin_choices(s);
        s->batch_counts = nib__batch_counts(s->batch);
        if (s->batch_counts.jobs > 0)
            run_step(s);
        else if (s->stopping > 0 && !s->calls && !s->unprepared && !s->preparing)
            break;
        else
            wait_for_work(s);
    }
    s->running = false;
    pthread_mutex_unlock(&s->lock);
}

nib_status nib_service_status(nib_service *s, nib_err *err)
{
    NIB_NEED(err, "service", s);
    NIB_TRY(nib__service_check(s, err));
    pthread_mutex_lock(&s->lock);
    const nib_err lost = s->lost;
    pthread_mutex_unlock(&s->lock);
    return lost.status == NIB_OK ? NIB_OK : nib__fail(err, lost.status, "%s", lost.text);
}

void nib_service_stop(nib_service *s)
{
    if (s == NULL)
        return;
    if (nib__service_check(s, NULL) != NIB_OK)
        return;
    pthread_mutex_lock(&s->lock);
    s->stopping++;
    pthread_cond_signal(&s->wake);
    pthread_mutex_unlock(&s->lock);
}
