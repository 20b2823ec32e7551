/* SPDX-License-Identifier: Apache-2.0
 *
 * A conversation: its messages, and how one more turn of it is made. The batch of one sequence
 * keeps the cache: a turn reads what is new in it.
 */
#include "batch.h"
#include "text_out.h"

#include <inttypes.h>
#include <math.h>

typedef struct message {
    const char *role; /* one of `roles` */
    char *text;       /* [size + 1] */
    size_t size;
} message;

static const char *const roles[] = {"system", "user", "assistant"};

struct nib_talk {
    nib_session *session;
    nib_batch *batch;
    const char *template_text;
    const nib_tokenizer *tokenizer;
    message *items; /* the system's words first, if there are any */
    size_t count, capacity;
    nib_ledger said; /* what the template leaves out, each once */
};

/* ---- messages ---- */

static const nib_allocator *allocator_of(const nib_talk *c)
{
    return &c->session->model->engine->allocator;
}

static bool has_system(const nib_talk *c)
{
    return c->count > 0 && strcmp(c->items[0].role, "system") == 0;
}

static void cut(nib_talk *c, size_t count)
{
    while (c->count > count)
        nib__release(allocator_of(c), c->items[--c->count].text);
}

static nib_status add(nib_talk *c, const char *role, const char *text, size_t size, nib_err *err)
{
    const nib_allocator *a = allocator_of(c);
    void *items = c->items;
    if (!nib__reserve(a, &items, &c->capacity, c->count + 1, sizeof *c->items))
        return nib__fail_memory(err, (c->count + 1) * sizeof *c->items, "a conversation");
    c->items = items;
    message *m = &c->items[c->count];
    *m = (message){.role = role, .text = nib__calloc(a, size + 1, 1), .size = size};
    if (m->text == NULL)
        return nib__fail_memory(err, size, "a conversation");
    memcpy(m->text, text, size);
    c->count++;
    return NIB_OK;
}

static void write_messages(const nib_talk *c, nib_text *out, int indent)
{
    nib_jsonw w;
    nib__jsonw_init(&w, out, indent);
    nib__jsonw_array(&w);
    for (size_t i = 0; i < c->count; i++) {
        nib__jsonw_object(&w);
        nib__jsonw_pair_string(&w, "role", c->items[i].role);
        nib__jsonw_key(&w, "content");
        nib__jsonw_string_n(&w, c->items[i].text, c->items[i].size);
        nib__jsonw_object_end(&w);
    }
    nib__jsonw_array_end(&w);
}

/* ---- a turn ---- */

/* Before the answer is made. */
static nib_status say_settings(nib_talk *c, const nib_chat_options *prompt, nib_err *err)
{
    const nib_request *request = &c->session->plan->request;
    const size_t before = c->said.setting_count;
    nib_ledger found;
    nib__ledger_init(&found, allocator_of(c));
    nib_status status = nib__chat_settings(&found, c->session->model, prompt, NIB_BY_OPTION, err);
    nib__ledger_allow(&found, &request->allow);
    if (status == NIB_OK && request->strict)
        status = nib__ledger_strict(&found, err);
    if (status == NIB_OK)
        nib__ledger_merge_settings(&c->said, &found);
    if (status == NIB_OK && c->said.failed)
        status = nib__fail_memory(err, 0, "the settings of a conversation");
    if (status == NIB_OK)
        nib__log_settings(c->session->model->engine, &c->said, before);
    nib__ledger_free(&found);
    return status;
}

static nib_status encode(nib_talk *c, int64_t now, int32_t **ids, size_t *count, nib_err *err)
{
    nib_text json;
    nib__text_init(&json, allocator_of(c));
    write_messages(c, &json, 0);
    const nib_chat_options prompt = {.messages = json.at,
                                     .messages_size = json.size,
                                     .template_text = c->template_text,
                                     .now = now};
    nib_status status = json.failed ? nib__fail_memory(err, json.size, "a conversation")
                                    : nib_chat_encode(c->session->model, &prompt, ids, count, err);
    if (status == NIB_OK && (status = say_settings(c, &prompt, err)) != NIB_OK)
        nib_tokens_free(c->session->model, *ids);
    nib__text_free(&json);
    NIB_TRY(status);
    const int64_t context = c->session->plan->context;
    if ((int64_t)*count < context)
        return NIB_OK;
    const size_t found = *count;
    nib_tokens_free(c->session->model, *ids);
    return nib__fail(err, NIB_USAGE,
                     "the conversation has %zu tokens, but the context is %" PRId64
                     "; begin anew (/reset), or ask for a longer --context",
                     found, context);
}

typedef struct turn {
    nib_talk *chat;
    const nib_generate_options *options;
    const nib_sink *sink;
    nib_generate_stats *stats;
    nib_text_out out;
    nib_text answer;
    nib_status status; /* of writing */
    nib_err err;
    uint64_t start, first;
    bool over, cancelled, failed;
    nib_finish finish;
} turn;

static void give(turn *t, bool all)
{
    if (t->status != NIB_OK)
        return;
    const size_t ready = nib__text_out_ready(&t->out, all);
    nib__text_put(&t->answer, t->out.held.at, ready);
    if (ready > 0)
        t->status = t->sink->write(t->sink->ctx, t->out.held.at, ready);
    nib__text_out_take(&t->out, ready);
    if (t->status != NIB_OK)
        nib__fail(&t->err, t->status, "the answer could not be written");
    if (t->status == NIB_OK && (t->answer.failed || t->out.held.failed))
        t->status = nib__fail_memory(&t->err, t->answer.size, "an answer");
}

static bool take_token(void *ctx, const nib_new_token *token)
{
    turn *t = ctx;
    if (t->first == 0)
        t->first = nib__now_ns();
    t->stats->new_tokens += !token->end;
    if (token->end)
        return true;
    nib__text_out_put(&t->out, token->id);
    give(t, false);
    return t->status == NIB_OK && !t->out.stopped;
}

static void end_turn(void *ctx, nib_finish finish, const nib_err *err)
{
    turn *t = ctx;
    t->over = true;
    t->finish = finish;
    t->failed = err != NULL;
    if (err != NULL)
        t->err = *err;
}

/* Steps until the answer is there, or nobody wants it any more. */
static nib_status run(turn *t, nib_job *job, nib_err *err)
{
    const nib_engine *engine = t->chat->session->model->engine;
    t->start = nib__now_ns();
    nib__batch_add(t->chat->batch, job);
    while (!t->over) {
        const bool first = t->first == 0;
        NIB_TRY(nib__batch_step(t->chat->batch, err));
        t->stats->steps += !first;
        const bool reading = t->first == 0; /* still: nothing was written yet */
        if (t->over ||
            nib__engine_progress(engine, reading ? "prompt" : "generate",
                                 (uint64_t)(reading ? job->done : job->made),
                                 reading                       ? (uint64_t)job->prompt_count
                                 : job->max_tokens < INT64_MAX ? (uint64_t)job->max_tokens
                                                               : 0))
            continue;
        nib__batch_remove(t->chat->batch, job);
        t->finish = NIB_FINISH_CANCELLED;
        t->over = true;
    }
    if (t->failed || t->status != NIB_OK) {
        if (err != NULL)
            *err = t->err;
        return t->err.status;
    }
    nib__text_out_finish(&t->out);
    give(t, true);
    return t->status;
}

static void fill_stats(turn *t, const nib_job *job)
{
    nib_generate_stats *s = t->stats;
    const uint64_t now = nib__now_ns(), first = t->first != 0 ? t->first : now;
    const nib_plan *plan = t->chat->session->plan;
    s->prompt_tokens = job->prompt_count;
    s->cached_tokens = job->cached;
    s->first_token_s = s->prefill_s = (double)(first - t->start) * 1e-9;
    s->decode_s = (double)(now - first) * 1e-9;
    s->token_s = s->new_tokens > 1 ? s->decode_s / (double)(s->new_tokens - 1) : NAN;
    s->predicted_token_s = nib__plan_step_seconds(&plan->plan, &plan->policy, 1, 1,
                                                  (double)(job->prompt_count + job->made / 2));
    s->weight_bytes = t->chat->session->runner.weight_bytes;
    s->cache_bytes = nib__kv_used_bytes(&t->chat->session->runner.kv);
    s->peak_bytes = nib__peak_bytes();
    s->finish = t->finish;
    s->temperature = job->sampling.temperature, s->top_p = job->sampling.top_p;
    s->min_p = job->sampling.min_p, s->repeat_penalty = job->sampling.repeat_penalty;
    s->top_k = job->sampling.top_k, s->seed = job->sampling.seed;
}

static nib_status answer(nib_talk *c, turn *t, int32_t *ids, size_t count, nib_err *err)
{
    nib_job job = {.prompt = ids,
                   .prompt_count = (int64_t)count,
                   .sampling = nib__model_sampling(c->session->model, t->options),
                   .top = -1,
                   .ignore_ends = t->options->ignore_eos,
                   .calls = {take_token, end_turn},
                   .ctx = t};
    NIB_TRY(nib__model_max_tokens(&job.max_tokens, c->session->model, t->options->max_tokens,
                                  job.prompt_count, err));
    NIB_TRY(nib__sampling_check(&job.sampling, err));
    const nib_status status = run(t, &job, err);
    fill_stats(t, &job);
    NIB_TRY(status);
    return add(c, "assistant", t->answer.size > 0 ? t->answer.at : "", t->answer.size, err);
}

nib_status nib_talk_say(nib_talk *c, const char *text, const nib_generate_options *options,
                        int64_t now, const nib_sink *sink, nib_generate_stats *stats, nib_err *err)
{
    nib_generate_stats unused;
    turn t = {.chat = c, .options = options, .sink = sink, .stats = stats ? stats : &unused};
    const size_t before = c->count;
    int32_t *ids = NULL;
    size_t count;
    *t.stats = (nib_generate_stats){0};
    NIB_TRY(nib__text_out_check(&options->stop, err));
    NIB_TRY(add(c, "user", text, strlen(text), err));
    nib_status status = encode(c, now, &ids, &count, err);
    if (status == NIB_OK) {
        nib__text_out_open(&t.out, c->tokenizer, options->stop, allocator_of(c));
        nib__text_init(&t.answer, allocator_of(c));
        status = answer(c, &t, ids, count, err);
        nib__text_free(&t.answer);
        nib__text_out_close(&t.out);
        nib_tokens_free(c->session->model, ids);
    }
    if (status != NIB_OK)
        cut(c, before);
    return status;
}

/* ---- the conversation ---- */

nib_status nib_talk_open(nib_talk **out, nib_session *session, const char *template_text,
                         nib_err *err)
{
    const nib_allocator *a = &session->model->engine->allocator;
    nib_talk *c = nib__calloc(a, 1, sizeof *c);
    if (c == NULL)
        return nib__fail_memory(err, sizeof *c, "a conversation");
    nib__ledger_init(&c->said, a);
    c->session = session;
    c->template_text = template_text;
    nib_status status = nib__model_tokenizer(session->model, &c->tokenizer, err);
    if (status == NIB_OK && template_text == NULL)
        status = nib__chat_check(session->model, err);
    if (status == NIB_OK)
        status = nib__batch_open(&c->batch, session, err);
    if (status != NIB_OK) {
        nib_talk_close(c);
        return status;
    }
    *out = c;
    return NIB_OK;
}

void nib_talk_close(nib_talk *c)
{
    if (c == NULL)
        return;
    cut(c, 0);
    nib__batch_close(c->batch);
    nib__ledger_free(&c->said);
    nib__release(allocator_of(c), c->items);
    nib__release(allocator_of(c), c);
}

void nib_talk_reset(nib_talk *c) { cut(c, has_system(c)); }

nib_status nib_talk_system(nib_talk *c, const char *text, nib_err *err)
{
    const size_t at = c->count;
    if (text != NULL)
        NIB_TRY(add(c, "system", text, strlen(text), err));
    const message added = text != NULL ? c->items[at] : (message){.text = NULL};
    const size_t old = at > 0 && strcmp(c->items[0].role, "system") == 0;
    if (old > 0)
        nib__release(allocator_of(c), c->items[0].text);
    const size_t first = text != NULL;
    memmove(c->items + first, c->items + old, (at - old) * sizeof *c->items);
    if (text != NULL)
        c->items[0] = added;
    c->count = first + at - old;
    return NIB_OK;
}

nib_status nib_talk_save(nib_talk *c, const nib_sink *sink, nib_err *err)
{
    nib_text text;
    nib__text_init(&text, allocator_of(c));
    write_messages(c, &text, 2);
    nib__text_str(&text, "\n");
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

/* One {"role", "content"}; false: json->err says why. */
static bool load_message(nib_talk *c, nib_json *json, nib_arena *arena, nib_err *err)
{
    const char *role = NULL, *text = NULL, *known = NULL;
    size_t size = 0, role_size;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        if (nib__json_is(json, "role"))
            role = nib__json_read_string(json, arena, &role_size);
        else if (nib__json_is(json, "content"))
            text = nib__json_read_string(json, arena, &size);
        else
            nib__json_fail(json, "a message has a role and a content, and nothing else");
    }
    if (json->event != NIB_JSON_OBJECT_END)
        return false;
    for (size_t i = 0; i < COUNT(roles) && role != NULL; i++)
        if (strcmp(role, roles[i]) == 0 && (i > 0 || c->count == 0))
            known = roles[i];
    if (known == NULL || text == NULL) {
        nib__json_fail(json,
                       "a message has a content and a role: system, the first one alone, user "
                       "or assistant");
        return false;
    }
    if (add(c, known, text, size, err) == NIB_OK)
        return true;
    nib__json_fail_memory(json, size);
    return false;
}

nib_status nib_talk_load(nib_talk *c, const char *name, const char *text, size_t size, nib_err *err)
{
    nib_json json;
    nib_arena arena;
    nib_talk loaded = *c;
    loaded.items = NULL;
    loaded.count = loaded.capacity = 0;
    nib__arena_init(&arena, allocator_of(c), 0);
    nib__json_init(&json, name, text, size, NULL);
    bool good = nib__json_expect(&json, NIB_JSON_ARRAY);
    while (good && nib__json_next(&json) == NIB_JSON_OBJECT)
        good = load_message(&loaded, &json, &arena, err);
    if (good && json.event != NIB_JSON_ARRAY_END && json.event != NIB_JSON_ERROR)
        nib__json_fail(&json, "a conversation is an array of messages");
    if (good && json.event == NIB_JSON_ARRAY_END)
        nib__json_next(&json);
    nib__arena_free(&arena);
    good = good && json.event == NIB_JSON_END;
    nib_talk *gone = good ? c : &loaded;
    cut(gone, 0);
    nib__release(allocator_of(c), gone->items);
    if (!good)
        return nib__json_status(&json, err);
    c->items = loaded.items;
    c->count = loaded.count;
    c->capacity = loaded.capacity;
    return NIB_OK;
}
