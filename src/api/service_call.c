/* SPDX-License-Identifier: Apache-2.0
 *
 * A call: from the bytes of a request to choices that can run, what each token adds to its answer,
 * and how the answer is read.
 */
#include "service.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- from a request to choices ---- */

static bool refuse(nib_call *call, int http, const char *param, const char *code, const char *text)
{
    call->error = (nib_api_error){.http = http, .code = code};
    snprintf(call->error.param, sizeof call->error.param, "%s", param);
    snprintf(call->error.text, sizeof call->error.text, "%s", text);
    return false;
}

/* A failure of the library as an answer: what the caller can mend is his. */
static bool refuse_status(nib_call *call, const char *param, const nib_err *err)
{
    const bool his =
        err->status == NIB_USAGE || err->status == NIB_BAD_INPUT || err->status == NIB_UNSUPPORTED;
    return refuse(call,
                  his                            ? 400
                  : err->status == NIB_NO_MEMORY ? 503
                                                 : 500,
                  param, NULL, err->text);
}

static bool no_memory(nib_call *call)
{
    return refuse(call, 503, "", NULL, "memory ran out for this request");
}

static bool check_length(nib_call *call, size_t count)
{
    const int64_t context = call->service->session->plan->context;
    char text[256];
    if ((int64_t)count <= context)
        return true;
    snprintf(text, sizeof text,
             "the prompt has %zu tokens, but the model's context here is %" PRId64 "; shorten it",
             count, context);
    return refuse(call, 400, call->request.route == NIB_ROUTE_CHAT ? "messages" : "prompt",
                  "context_length_exceeded", text);
}

static bool encode_text(nib_call *call, const nib_api_prompt *from, nib_call_prompt *to)
{
    const nib_service *s = call->service;
    nib_err err;
    if (nib__tokenizer_encode(s->tokenizer, from->text, from->size,
                              NIB_ENCODE_ADD_SPECIAL | NIB_ENCODE_PARSE_SPECIAL, &to->ids,
                              &to->count, &err) != NIB_OK)
        return refuse_status(call, "prompt", &err);
    to->owned = true;
    const int32_t bos = s->session->model->net.config.bos;
    if (to->count > 0)
        return true;
    if (bos < 0)
        return refuse(call, 400, "prompt", NULL,
                      "the prompt is empty, and the model has no BOS token to start from");
    to->owned = false;
    nib__tokenizer_ids_free(s->tokenizer, to->ids);
    to->ids = nib__arena_take(&call->arena, 1, sizeof *to->ids);
    if (to->ids == NULL)
        return no_memory(call);
    to->ids[0] = bos;
    to->count = 1;
    return true;
}

static bool encode_chat(nib_call *call, nib_call_prompt *to)
{
    const nib_api_request *q = &call->request;
    const nib_chat_options options = {.messages = q->messages,
                                      .messages_size = q->messages_size,
                                      .variables = q->variables,
                                      .variables_size = q->variables_size,
                                      .template_text = call->service->options.chat_template,
                                      .now = call->options.now};
    nib_err err;
    if (nib_chat_encode(call->service->session->model, &options, &to->ids, &to->count, &err) !=
        NIB_OK)
        return refuse_status(call, "messages", &err);
    to->owned = true;
    return to->count > 0 || refuse(call, 400, "messages", NULL, "the prompt is empty");
}

static bool make_prompts(nib_call *call)
{
    const nib_api_request *q = &call->request;
    call->prompt_count = q->route == NIB_ROUTE_CHAT ? 1 : (int64_t)q->prompt_count;
    call->prompts =
        nib__arena_take(&call->arena, (size_t)call->prompt_count, sizeof *call->prompts);
    if (call->prompts == NULL)
        return no_memory(call);
    for (int64_t i = 0; i < call->prompt_count; i++) {
        nib_call_prompt *to = &call->prompts[i];
        bool good = true;
        if (q->route == NIB_ROUTE_CHAT) {
            good = encode_chat(call, to);
        } else if (q->prompts[i].text != NULL) {
            good = encode_text(call, &q->prompts[i], to);
        } else {
            to->count = q->prompts[i].count;
            to->ids = nib__arena_take(&call->arena, to->count, sizeof *to->ids);
            good = to->ids != NULL || no_memory(call);
            if (good)
                memcpy(to->ids, q->prompts[i].ids, to->count * sizeof *to->ids);
        }
        if (!good || !check_length(call, to->count))
            return false;
    }
    return true;
}

static bool token_came(void *ctx, const nib_new_token *token);
static void choice_ended(void *ctx, nib_finish finish, const nib_err *err);

static void fill_choice(nib_call *call, nib_answer *c, int64_t index)
{
    const nib_service *s = call->service;
    const nib_api_request *q = &call->request;
    const nib_allocator *a = &s->session->model->engine->allocator;
    /* 0 is the likeliest token alone, which is what any share that small is */
    const double top_p = q->top_p == 0 ? 1e-9 : q->top_p;
    const nib_generate_options options = {.temperature = q->temperature,
                                          .top_k = q->top_k,
                                          .top_p = top_p,
                                          .min_p = q->min_p,
                                          .repeat_penalty = q->repeat_penalty,
                                          .seed = call->seed};
    *c = (nib_answer){.call = call, .index = index, .prompt = index / q->n};
    nib__text_out_open(&c->text, s->tokenizer, (nib_strings){q->stops, q->stop_count}, a);
    nib__text_init(&c->whole, a);
    nib__detok_init(&c->told, s->tokenizer, false);
    nib_text *const parts[] = {&c->logprobs.tokens, &c->logprobs.values, &c->logprobs.tops,
                               &c->logprobs.offsets};
    for (size_t i = 0; i < COUNT(parts); i++)
        nib__text_init(parts[i], a);
    c->job = (nib_job){.prompt = call->prompts[c->prompt].ids,
                       .prompt_count = (int64_t)call->prompts[c->prompt].count,
                       .max_tokens = q->max_tokens < 0 ? INT64_MAX : q->max_tokens,
                       .sampling = nib__model_sampling(s->session->model, &options),
                       .adjust = {.bias = q->bias,
                                  .bias_count = q->bias_count,
                                  .presence_penalty = q->presence_penalty,
                                  .frequency_penalty = q->frequency_penalty},
                       .top = q->top,
                       .prompt_logprobs = q->echo && q->top >= 0,
                       .ignore_ends = q->ignore_eos,
                       .choice = index % q->n,
                       .calls = {token_came, choice_ended},
                       .ctx = c};
}

/* What the answers must be, before any of them is made. */
static bool make_constraint(nib_call *call)
{
    const nib_service *s = call->service;
    const nib_api_request *q = &call->request;
    const nib_allocator *a = &s->session->model->engine->allocator;
    const nib_named_text schema = {"response_format.json_schema.schema", q->schema, q->schema_size};
    nib_err err;
    if (q->format == NIB_API_TEXT)
        return true;
    if (nib__constraint_open(&call->constraint, s->trie, &schema, a, &err) != NIB_OK)
        return refuse_status(call, q->format == NIB_API_JSON ? "response_format" : schema.name,
                             &err);
    return true;
}

static bool constrain(nib_call *call, nib_answer *c)
{
    const nib_service *s = call->service;
    const size_t words = ((size_t)nib_session_vocab(s->session) + 31) / 32;
    nib_err err;
    if (call->constraint == NULL)
        return true;
    c->state = nib__arena_take(&call->arena, 1, sizeof *c->state);
    c->job.allowed = nib__arena_take(&call->arena, words, sizeof *c->job.allowed);
    if (c->state == NULL || c->job.allowed == NULL)
        return no_memory(call);
    if (nib__masks_open(&c->masks, call->constraint, &s->session->model->engine->allocator, &err) !=
        NIB_OK)
        return refuse_status(call, "response_format", &err);
    nib__constraint_start(c->state, call->constraint);
    c->job.state = c->state;
    c->job.masks = c->masks;
    return true;
}

static bool make_choices(nib_call *call)
{
    const int64_t count = call->prompt_count * call->request.n;
    nib_err err;
    call->choices = nib__arena_take(&call->arena, (size_t)count, sizeof *call->choices);
    if (call->choices == NULL)
        return no_memory(call);
    for (; call->choice_count < count; call->choice_count++)
        fill_choice(call, &call->choices[call->choice_count], call->choice_count);
    for (int64_t i = 0; i < count; i++)
        if (!constrain(call, &call->choices[i]))
            return false;
    if (nib__sampling_check(&call->choices[0].job.sampling, &err) != NIB_OK)
        return refuse_status(call, "", &err);
    return true;
}

static bool prepare(nib_call *call, const nib_call_options *o)
{
    const nib_service *s = call->service;
    const nib_api_limits limits = {.model = s->name, .vocab = nib_session_vocab(s->session)};
    if (!nib__api_request_read(&call->request, o->route, o->body, o->size, &limits, &call->arena,
                               &call->error))
        return false;
    if (call->request.seed_given)
        call->seed = call->request.seed;
    return make_constraint(call) && make_prompts(call) && make_choices(call);
}

/* ---- coming ---- */

/* Mixes a number into another, both of 64 bits (Steele, Lea, Flood: "Fast splittable pseudorandom
 * number generators", 2014). */
static uint64_t mix(uint64_t a, uint64_t b)
{
    uint64_t z = a + (b + 1) * UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static void give_number(nib_call *call)
{
    nib_service *s = call->service;
    pthread_mutex_lock(&s->lock);
    const uint64_t number = s->number++;
    if (s->created == 0)
        s->created = call->options.now;
    pthread_mutex_unlock(&s->lock);
    call->seed = mix(s->options.seed, number);
    snprintf(call->id, sizeof call->id, "%s-%016" PRIx64,
             call->options.route == NIB_ROUTE_CHAT ? "chatcmpl" : "cmpl", mix(call->seed, number));
}

/* Behind the others, if there is room. */
static bool join(nib_call *call)
{
    nib_service *s = call->service;
    if (s->stopping > 0)
        return refuse(call, 503, "", "stopping", "the server stops");
    if (s->waiting >= s->options.queue) {
        char text[128];
        call->retry_s = 1;
        snprintf(text, sizeof text, "%" PRId64 " requests wait already; try again later",
                 s->waiting);
        return refuse(call, 429, "", "queue_full", text);
    }
    nib_call **last = &s->calls;
    while (*last != NULL)
        last = &(*last)->next;
    *last = call;
    s->waiting++;
    pthread_cond_signal(&s->wake);
    return true;
}

nib_status nib_call_open(nib_call **out, nib_service *s, const nib_call_options *options,
                         nib_err *err)
{
    const nib_allocator *a = &s->session->model->engine->allocator;
    nib_call *call = nib__calloc(a, 1, sizeof *call);
    if (call == NULL)
        return nib__fail_memory(err, sizeof *call, "a request");
    call->service = s;
    call->options = *options;
    call->options.body = NULL;
    call->came_ns = nib__now_ns();
    nib__arena_init(&call->arena, a, 0);
    nib__text_init(&call->out, a);
    give_number(call);
    const bool good = prepare(call, options);
    /* what lies in the body was used, and the body may go */
    call->request.variables = call->request.schema = NULL;
    pthread_mutex_lock(&s->lock);
    call->stream = good && call->request.stream;
    if (good && join(call))
        nib__answer_begin(call);
    else
        nib__answer_over(call);
    pthread_mutex_unlock(&s->lock);
    *out = call;
    return NIB_OK;
}

/* ---- tokens ---- */

static double since(uint64_t from) { return (double)(nib__now_ns() - from) * 1e-9; }

static void note_time(nib_call *call)
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

static void give_text(nib_answer *c, bool all)
{
    const size_t ready = nib__text_out_ready(&c->text, all);
    nib__answer_text(c, c->text.held.at, ready);
    nib__text_out_take(&c->text, ready);
}

static bool token_came(void *ctx, const nib_new_token *token)
{
    nib_answer *c = ctx;
    nib_service *s = c->call->service;
    pthread_mutex_lock(&s->lock);
    if (!token->of_prompt) {
        note_time(c->call);
        s->counts.new_tokens++;
    }
    if (!token->end && c->job.top >= 0)
        nib__answer_token(c, token);
    if (!token->end && !token->of_prompt) {
        nib__text_out_put(&c->text, token->id);
        give_text(c, false);
    }
    const bool on = !c->text.stopped && !c->text.held.failed;
    pthread_mutex_unlock(&s->lock);
    return on;
}

static void choice_ended(void *ctx, nib_finish finish, const nib_err *err)
{
    nib_answer *c = ctx;
    nib_call *call = c->call;
    nib_service *s = call->service;
    pthread_mutex_lock(&s->lock);
    c->ended = true;
    c->finish = finish;
    call->ended++;
    if (err != NULL && call->error.http == 0)
        refuse_status(call, "", err);
    if (err == NULL && !c->text.stopped) {
        nib__text_out_finish(&c->text);
        give_text(c, true);
    }
    if (c->text.held.failed && call->error.http == 0)
        no_memory(call);
    nib__answer_end(c);
    if (call->ended == call->choice_count)
        nib__answer_over(call);
    pthread_mutex_unlock(&s->lock);
}

/* ---- reading, and going ---- */

void nib__call_tell(nib_call *call)
{
    const bool more = call->over || call->read < call->out.size;
    if (!more || call->told || call->closed)
        return;
    call->told = true;
    if (call->options.ready != NULL)
        call->options.ready(call->options.ctx);
}

nib_call_state nib_call_look(nib_call *call)
{
    pthread_mutex_lock(&call->service->lock);
    const nib_call_state state = {.http = call->http,
                                  .stream = call->stream,
                                  .retry_s = call->retry_s,
                                  .left = call->out.size - call->read,
                                  .over = call->over};
    pthread_mutex_unlock(&call->service->lock);
    return state;
}

size_t nib_call_read(nib_call *call, char *out, size_t size)
{
    pthread_mutex_lock(&call->service->lock);
    const size_t left = call->out.size - call->read, count = size < left ? size : left;
    if (count > 0)
        memcpy(out, call->out.at + call->read, count);
    call->read += count;
    if (call->read == call->out.size) {
        nib__text_clear(&call->out);
        call->read = 0;
        call->told = false;
    }
    pthread_mutex_unlock(&call->service->lock);
    return count;
}

void nib_call_stats_get(nib_call *call, nib_call_stats *out)
{
    pthread_mutex_lock(&call->service->lock);
    *out = (nib_call_stats){.id = call->id,
                            .finish = "error",
                            .seed = call->seed,
                            .queued_s = NAN,
                            .first_token_s = NAN,
                            .total_s = (double)(call->over_ns - call->came_ns) * 1e-9};
    if (call->error.http == 0 && call->choice_count > 0)
        out->finish = nib__answer_finish(&call->choices[0]);
    if (call->begun_ns != 0)
        out->queued_s = (double)(call->begun_ns - call->came_ns) * 1e-9;
    if (call->first_ns != 0)
        out->first_token_s = (double)(call->first_ns - call->came_ns) * 1e-9;
    nib__call_tokens(call, &out->prompt_tokens, &out->cached_tokens, &out->new_tokens);
    pthread_mutex_unlock(&call->service->lock);
}

void nib__call_tokens(const nib_call *call, int64_t *prompt, int64_t *cached, int64_t *made)
{
    *prompt = *cached = *made = 0;
    for (int64_t i = 0; i < call->choice_count; i++) {
        const nib_answer *c = &call->choices[i];
        *made += c->job.made;
        if (i % call->request.n == 0) { /* a prompt counts once, however many answers it has */
            *prompt += c->job.prompt_count;
            *cached += c->job.cached;
        }
    }
}

void nib__call_free(nib_call *call)
{
    const nib_service *s = call->service;
    for (int64_t i = 0; i < call->choice_count; i++) {
        nib_answer *c = &call->choices[i];
        nib__text_out_close(&c->text);
        nib__text_free(&c->whole);
        nib__detok_free(&c->told);
        nib__masks_close(c->masks);
        nib__text_free(&c->logprobs.tokens);
        nib__text_free(&c->logprobs.values);
        nib__text_free(&c->logprobs.tops);
        nib__text_free(&c->logprobs.offsets);
    }
    for (int64_t i = 0; i < call->prompt_count; i++)
        if (call->prompts[i].owned)
            nib__tokenizer_ids_free(s->tokenizer, call->prompts[i].ids);
    nib__constraint_close(call->constraint);
    nib__text_free(&call->out);
    nib__arena_free(&call->arena);
    nib__release(&s->session->model->engine->allocator, call);
}

void nib_call_close(nib_call *call)
{
    if (call == NULL)
        return;
    nib_service *s = call->service;
    pthread_mutex_lock(&s->lock);
    call->closed = true;
    const bool listed = nib__service_has(s, call); /* then the running thread frees it */
    if (listed && s->running)
        pthread_cond_signal(&s->wake);
    else if (listed)
        nib__service_drop(s, call);
    else
        nib__call_free(call);
    pthread_mutex_unlock(&s->lock);
}
