/* SPDX-License-Identifier: Apache-2.0
 *
 * Turns the bytes of a request into choices that can run. A thread of its own does this, because
 * tokenizing megabytes of text takes long.
 */
#include "service.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- refusing ---- */

bool nib__call_refuse(nib_call *call, int http, const char *param, const char *code,
                      const char *text)
{
    call->error = (nib_api_error){.http = http, .code = code};
    snprintf(call->error.param, sizeof call->error.param, "%s", param);
    snprintf(call->error.text, sizeof call->error.text, "%s", text);
    return false;
}

bool nib__call_refuse_status(nib_call *call, const char *param, const nib_err *err)
{
    const bool is_client_error =
        err->status == NIB_USAGE || err->status == NIB_BAD_INPUT || err->status == NIB_UNSUPPORTED;
    return nib__call_refuse(call,
                            is_client_error                ? 400
                            : err->status == NIB_NO_MEMORY ? 503
                                                           : 500,
                            param, NULL, err->text);
}

bool nib__call_no_memory(nib_call *call)
{
    return nib__call_refuse(call, 503, "", NULL,
                            "out of memory for this request; send a shorter one, or retry later");
}

/* ---- from a request to choices ---- */

/* Limits the memory for one prompt. Counting continues past the context, so that the error can say
 * how long the prompt is. */
static nib_encoding text_limits(const nib_call *call, unsigned flags)
{
    enum { MAX_WORD = 512 * 1024, CONTEXTS = 4 };
    const size_t context = (size_t)call->service->session->plan->context;
    return (nib_encoding){.flags = flags, .max_ids = CONTEXTS * context, .max_word = MAX_WORD};
}

static bool check_length(nib_call *call, size_t count)
{
    const int64_t context = call->service->session->plan->context;
    const size_t most = text_limits(call, 0).max_ids;
    char text[256];
    if ((int64_t)count <= context)
        return true;
    snprintf(text, sizeof text,
             "the prompt has %s%zu tokens, but the model's context here is %" PRId64 "; shorten it",
             count > most ? "over " : "", count > most ? most : count, context);
    return nib__call_refuse(call, 400,
                            call->request.route == NIB_ROUTE_CHAT ? "messages" : "prompt",
                            "context_length_exceeded", text);
}

static bool find_limit(nib_call *call, nib_call_prompt *prompt)
{
    nib_err err;
    const int64_t asked = call->request.max_tokens;
    prompt->max_tokens = asked;
    return asked >= 0 ||
           nib__model_max_tokens(&prompt->max_tokens, call->service->session->model, 0,
                                 (int64_t)prompt->count, &err) == NIB_OK ||
           nib__call_refuse(call, 400, "max_completion_tokens", NULL, err.text);
}

/* Refuses, before tokenizing, a text that cannot fit even if every token were the longest. */
static bool check_bytes(nib_call *call, size_t size)
{
    const nib_service *s = call->service;
    const int64_t context = s->session->plan->context;
    char text[256];
    if (size / s->longest <= (size_t)context)
        return true;
    snprintf(text, sizeof text,
             "the prompt has %zu bytes, but the model's context here is %" PRId64
             " tokens, of %zu bytes at most; shorten it",
             size, context, s->longest);
    return nib__call_refuse(call, 400, "prompt", "context_length_exceeded", text);
}

static bool encode_text(nib_call *call, const nib_api_prompt *from, nib_call_prompt *to)
{
    const nib_service *s = call->service;
    const nib_encoding how = text_limits(call, NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL);
    nib_err err;
    if (nib__tokenizer_encode_as(s->tokenizer, from->text, from->size, &how, &to->ids, &to->count,
                                 &err) != NIB_OK)
        return nib__call_refuse_status(call, "prompt", &err);
    to->owned = true;
    to->added = nib__tokenizer_adds_before(s->tokenizer);
    const int32_t bos = s->session->model->net.config.bos;
    if (to->count > 0)
        return true;
    if (bos < 0)
        return nib__call_refuse(
            call, 400, "prompt", NULL,
            "the prompt is empty, and the model has no BOS token to start from");
    to->owned = false;
    nib__tokenizer_ids_free(s->tokenizer, to->ids);
    to->ids = nib__arena_take(&call->arena, 1, sizeof *to->ids);
    if (to->ids == NULL)
        return nib__call_no_memory(call);
    to->ids[0] = bos;
    to->count = to->added = 1;
    return true;
}

nib_chat_options nib__call_chat_options(const nib_call *call)
{
    const nib_api_request *q = &call->request;
    return (nib_chat_options){.messages = q->messages,
                              .messages_size = q->messages_size,
                              .tools = q->tools,
                              .tools_size = q->tools_size,
                              .variables = q->variables,
                              .variables_size = q->variables_size,
                              .template_text = call->service->options.chat_template,
                              .now = call->options.now};
}

static bool encode_chat(nib_call *call, nib_call_prompt *to)
{
    const nib_chat_options options = nib__call_chat_options(call);
    const nib_encoding limits = text_limits(call, 0);
    nib_err err;
    if (nib__chat_encode(call->service->session->model, &options, &limits, &to->ids, &to->count,
                         &err) != NIB_OK)
        return nib__call_refuse_status(call, "messages", &err);
    to->owned = true;
    return to->count > 0 || nib__call_refuse(call, 400, "messages", NULL, "the prompt is empty");
}

/* Checked between steps of preparation: the call may be closed or its time up, or the server may be
 * stopping. */
static bool may_continue(nib_call *call)
{
    nib_service *s = call->service;
    pthread_mutex_lock(&s->lock);
    const bool on = nib__service_goes_on(s, call) && !call->closed;
    pthread_mutex_unlock(&s->lock);
    return on;
}

static bool make_prompts(nib_call *call)
{
    const nib_api_request *q = &call->request;
    const size_t count = q->route == NIB_ROUTE_CHAT ? 1 : q->prompt_count;
    call->prompts = nib__arena_take(&call->arena, count, sizeof *call->prompts);
    if (call->prompts == NULL)
        return nib__call_no_memory(call);
    call->prompt_count = (int64_t)count;
    for (int64_t i = 0; i < call->prompt_count; i++) {
        nib_call_prompt *to = &call->prompts[i];
        bool good = true;
        if (!may_continue(call))
            return false;
        if (q->route == NIB_ROUTE_CHAT) {
            good = encode_chat(call, to); /* the size of messages was checked while reading them */
        } else if (q->prompts[i].text != NULL) {
            good = check_bytes(call, q->prompts[i].size) && encode_text(call, &q->prompts[i], to);
        } else {
            to->count = q->prompts[i].count;
            to->ids = nib__arena_take(&call->arena, to->count, sizeof *to->ids);
            good = to->ids != NULL || nib__call_no_memory(call);
            if (good)
                memcpy(to->ids, q->prompts[i].ids, to->count * sizeof *to->ids);
        }
        if (!good || !check_length(call, to->count) || !find_limit(call, to))
            return false;
    }
    return true;
}

/* A completion continues its prompt; a chat's answer is a separate text. */
bool nib__answer_continues(const nib_answer *c)
{
    const nib_call_prompt *prompt = &c->call->prompts[c->prompt];
    return c->call->request.route != NIB_ROUTE_CHAT && prompt->count > prompt->added;
}

static void fill_choice(nib_call *call, nib_answer *c, int64_t index)
{
    const nib_service *s = call->service;
    const nib_api_request *q = &call->request;
    const nib_allocator *a = &s->session->model->engine->allocator;
    nib_sampling asked = q->sampling;
    asked.seed = call->seed;
    if (asked.top_p == 0)
        asked.top_p = 1e-9; /* 0 means only the most likely token, as does any share that small */
    *c = (nib_answer){.call = call, .index = index, .prompt = index / q->n};
    nib__text_out_open(&c->text, s->tokenizer, (nib_strings){q->stops, q->stop_count}, a);
    nib__text_init(&c->whole, a);
    nib__detok_init(&c->told, s->tokenizer, !q->echo);
    if (nib__answer_continues(c))
        nib__detok_continue(&c->text.detok);
    if (nib__answer_continues(c) && !q->echo)
        nib__detok_continue(&c->told);
    nib_text *const parts[] = {&c->logprobs.tokens,  &c->logprobs.values, &c->logprobs.tops,
                               &c->logprobs.offsets, &c->calls.name,      &c->calls.arguments,
                               &c->calls.done};
    for (size_t i = 0; i < COUNT(parts); i++)
        nib__text_init(parts[i], a);
    c->job = (nib_job){.prompt = call->prompts[c->prompt].ids,
                       .prompt_count = (int64_t)call->prompts[c->prompt].count,
                       .max_tokens = call->prompts[c->prompt].max_tokens,
                       .sampling = nib__model_sampling(s->session->model, &asked),
                       .adjust = {.bias = q->bias,
                                  .bias_count = q->bias_count,
                                  .presence_penalty = q->presence_penalty,
                                  .frequency_penalty = q->frequency_penalty},
                       .top = q->top,
                       .prompt_logprobs = q->echo && q->top >= 0,
                       .ignore_ends = q->ignore_eos,
                       .lookup = s->session->plan->lookup,
                       .choice = index % q->n,
                       .tenant = call->options.tenant,
                       .calls = nib__answer_calls,
                       .ctx = c};
}

/* The constraint that all answers of the call share. */
static bool make_constraint(nib_call *call)
{
    const nib_service *s = call->service;
    const nib_api_request *q = &call->request;
    const nib_allocator *a = &s->session->model->engine->allocator;
    const nib_named_text schema = {"response_format.json_schema.schema", q->schema, q->schema_size};
    nib_err err;
    if (nib__api_may_call(q))
        return nib__call_constrain_tools(call);
    if (q->format == NIB_API_TEXT)
        return true;
    if (nib__constraint_open(&call->constraint, s->trie, &schema, a, &err) != NIB_OK)
        return nib__call_refuse_status(
            call, q->format == NIB_API_JSON ? "response_format" : schema.name, &err);
    return true;
}

static bool make_choices(nib_call *call)
{
    const int64_t count = call->prompt_count * call->request.n;
    nib_err err;
    call->choices = nib__arena_take(&call->arena, (uint64_t)count, sizeof *call->choices);
    if (call->choices == NULL)
        return nib__call_no_memory(call);
    for (; call->choice_count < count; call->choice_count++)
        fill_choice(call, &call->choices[call->choice_count], call->choice_count);
    if (nib__sampling_check(&call->choices[0].job.sampling, &err) != NIB_OK)
        return nib__call_refuse_status(call, "", &err);
    return true;
}

/* Copies what the running request needs out of its body, which is freed after preparation. */
static bool copy_from_body(nib_call *call)
{
    nib_api_request *q = &call->request;
    nib_arena *arena = &call->arena;
    const size_t count = q->echo ? q->prompt_count : 0;
    nib_logit_bias *bias = nib__arena_take(arena, q->bias_count, sizeof *bias);
    nib_api_prompt *prompts = nib__arena_take(arena, count, sizeof *prompts);
    bool good = bias != NULL && prompts != NULL;
    if (good && q->bias_count > 0)
        memcpy(bias, q->bias, q->bias_count * sizeof *bias);
    for (size_t i = 0; i < q->stop_count && good; i++) {
        q->stops[i] = nib__arena_copy(arena, q->stops[i], strlen(q->stops[i]));
        good = q->stops[i] != NULL;
    }
    for (size_t i = 0; i < count && good; i++) {
        const nib_api_prompt *from = &q->prompts[i];
        prompts[i] = (nib_api_prompt){.size = from->size, .count = from->count};
        if (from->text != NULL)
            prompts[i].text = nib__arena_copy(arena, from->text, from->size);
        else
            prompts[i].ids = call->prompts[i].ids; /* as they were given */
        good = prompts[i].text != NULL || prompts[i].ids != NULL;
    }
    q->bias = bias;
    q->prompts = prompts;
    return good || nib__call_no_memory(call);
}

static bool prepare(nib_call *call)
{
    const nib_call_options *o = &call->options;
    const nib_service *s = call->service;
    const nib_api_limits limits = {.model = s->name,
                                   .vocab = nib_session_vocab(s->session),
                                   .context = (size_t)s->session->plan->context,
                                   .token_longest = s->longest};
    if (!nib__api_request_read(&call->request, o->route, o->body, o->body_size, &limits,
                               &call->said, &call->error))
        return false;
    if (call->request.seed_given)
        call->seed = call->request.seed;
    return may_continue(call) && nib__call_find_tools(call) && may_continue(call) &&
           make_constraint(call) && make_prompts(call) && nib__call_settings(call) &&
           copy_from_body(call) && make_choices(call);
}

/* ---- the thread ---- */

/* Pops the oldest call of the next turn. Clients take turns, so that a client with many long texts
 * delays others by at most one of them. The number of running calls does not count here, because
 * calls that end up refused take as long to prepare. */
static nib_call *pop_next(nib_service *s)
{
    nib_call **best = &s->unprepared, *call;
    for (nib_call **at = best; *at != NULL; at = &(*at)->next)
        if ((*at)->turn < (*best)->turn)
            best = at;
    call = *best;
    if (call != NULL) {
        *best = call->next;
        s->turn = call->turn;
    }
    return call;
}

/* Called under the lock, which it releases while it works. */
static void prepare_one(nib_service *s, nib_call *call)
{
    s->preparing = call;
    bool good = nib__service_goes_on(s, call);
    if (good) {
        pthread_mutex_unlock(&s->lock);
        good = prepare(call);
        pthread_mutex_lock(&s->lock);
    }
    s->preparing = NULL;
    nib__call_join(call, good);
}

static void *run_preparer(void *ctx)
{
    nib_service *s = ctx;
    pthread_mutex_lock(&s->lock);
    while (!s->closing) {
        nib_call *call = pop_next(s);
        if (call != NULL)
            prepare_one(s, call);
        else
            pthread_cond_wait(&s->fresh, &s->lock);
    }
    pthread_mutex_unlock(&s->lock);
    return NULL;
}

void nib__prepare_later(nib_service *s, nib_call *call)
{
    nib_call **last = &s->unprepared;
    const nib_call *now = s->preparing;
    const uint64_t client = call->options.client;
    call->turn = s->turn + (now != NULL && now->options.client == client);
    for (; *last != NULL; last = &(*last)->next)
        if ((*last)->options.client == client)
            call->turn = (*last)->turn + 1;
    *last = call;
    call->next = NULL;
    s->waiting++;
    pthread_cond_signal(&s->fresh);
    if (s->options.limit_s > 0) /* the running thread checks its time limit from now on */
        pthread_cond_signal(&s->wake);
}

void nib__prepare_cut(nib_service *s)
{
    for (nib_call **at = &s->unprepared; *at != NULL;) {
        nib_call *call = *at;
        if (nib__service_goes_on(s, call)) {
            at = &call->next;
            continue;
        }
        *at = call->next;
        nib__call_join(call, false);
    }
}

bool nib__prepare_drop(nib_service *s, const nib_call *call)
{
    nib_call **at = &s->unprepared;
    while (*at != NULL && *at != call)
        at = &(*at)->next;
    if (*at == NULL)
        return false;
    *at = call->next;
    s->waiting--;
    pthread_cond_signal(&s->wake); /* stopping may have waited for it */
    return true;
}

/* Bytes of the longest token as the tokenizer's file spells it, which is never shorter than the
 * text it stands for. */
static size_t find_longest(const nib_tokenizer *t)
{
    const int64_t count = nib__tokenizer_vocab_size(t);
    size_t longest = 1, size = 0;
    for (int64_t id = 0; id < count; id++)
        if (nib__tokenizer_token(t, (int32_t)id, &size) != NULL && size > longest)
            longest = size;
    return longest;
}

/* Starts a thread with enough stack for recursive templates (some recurse over tools): 500 levels
 * take up to 200 kB, and the system's default may be less. */
static bool start_preparer(nib_service *s)
{
    enum { STACK = 4 << 20 };
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0)
        return false;
    const bool started = pthread_attr_setstacksize(&attributes, STACK) == 0 &&
                         pthread_create(&s->preparer, &attributes, run_preparer, s) == 0;
    pthread_attr_destroy(&attributes);
    return started;
}

nib_status nib__preparer_open(nib_service *s, nib_err *err)
{
    s->longest = find_longest(s->tokenizer);
    s->has_preparer = start_preparer(s);
    return s->has_preparer
               ? NIB_OK
               : nib__fail(err, NIB_NO_MEMORY, "cannot create a thread for the service");
}

void nib__preparer_close(nib_service *s)
{
    if (!s->has_preparer)
        return;
    pthread_mutex_lock(&s->lock);
    s->closing = true;
    pthread_cond_signal(&s->fresh);
    pthread_mutex_unlock(&s->lock);
    pthread_join(s->preparer, NULL);
}
