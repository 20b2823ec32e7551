/* SPDX-License-Identifier: Apache-2.0
 *
 * A conversation: its messages, and generating one more turn. The batch of one sequence keeps the
 * KV cache, so a turn runs only the new tokens.
 */
#include "generate.h"
#include "public_struct.h"
#include "stream_text.h"

#include <inttypes.h>

typedef struct message {
    const char *role; /* one of `roles` */
    char *text;       /* [size + 1] */
    size_t size;
} message;

static const char *const roles[] = {"system", "user", "assistant"};

struct nib_chat_session {
    nib_session *session;
    nib_batch *batch;
    const char *template_text;
    const nib_tokenizer *tokenizer;
    message *items; /* the system message first, if there is one */
    size_t count, capacity;
    nib_ledger settings; /* settings for what the template leaves out, each once */
};

/* ---- messages ---- */

static const nib_allocator *allocator_of(const nib_chat_session *c)
{
    return &c->session->model->engine->allocator;
}

static bool has_system(const nib_chat_session *c)
{
    return c->count > 0 && strcmp(c->items[0].role, "system") == 0;
}

static void drop_messages(nib_chat_session *c, size_t count)
{
    while (c->count > count)
        nib__release(allocator_of(c), c->items[--c->count].text);
}

static nib_status add_message(nib_chat_session *c, const char *role, const char *text, size_t size,
                              nib_err *err)
{
    const nib_allocator *a = allocator_of(c);
    const size_t bad = nib__utf8_check(text, size);
    if (bad < size)
        return nib__fail(err, NIB_BAD_INPUT, "the %s message is not valid UTF-8 at byte %zu", role,
                         bad);
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

static void write_messages(const nib_chat_session *c, nib_text *out, int indent)
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

nib_status nib__chat_log_settings(nib_session *session, nib_ledger *said,
                                  const nib_chat_options *prompt, nib_err *err)
{
    const nib_request *request = &session->plan->request;
    const nib_engine *engine = session->model->engine;
    const size_t before = said->setting_count;
    nib_ledger found;
    nib__ledger_init(&found, &engine->allocator);
    nib_status status = nib__chat_settings(&found, session->model, prompt, NIB_BY_OPTION, err);
    nib__ledger_allow(&found, &request->allow);
    if (status == NIB_OK && request->strict)
        status = nib__ledger_strict(&found, err);
    if (status == NIB_OK)
        nib__ledger_merge_settings(said, &found);
    if (status == NIB_OK && said->failed)
        status = nib__fail_memory(err, 0, "the settings of a conversation");
    if (status == NIB_OK)
        nib__log_settings(engine, said, before);
    nib__ledger_free(&found);
    return status;
}

static nib_status encode(nib_chat_session *c, int64_t now, int32_t **ids, size_t *count,
                         nib_err *err)
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
    if (status == NIB_OK &&
        (status = nib__chat_log_settings(c->session, &c->settings, &prompt, err)) != NIB_OK)
        nib_tokens_free(c->session->model->engine, *ids);
    nib__text_free(&json);
    NIB_TRY(status);
    const int64_t context = c->session->plan->context;
    if (*count > 0 && (int64_t)*count < context)
        return NIB_OK;
    const size_t found = *count;
    nib_tokens_free(c->session->model->engine, *ids);
    if (found == 0)
        return nib__fail(err, NIB_USAGE, "the chat template writes nothing for this conversation");
    return nib__fail(err, NIB_USAGE,
                     "the conversation has %zu tokens, but the context is %" PRId64
                     "; start over (/reset), or raise --context",
                     found, context);
}

/* The answer goes to the sink as it arrives, and is kept. */
typedef struct answer {
    const nib_sink *sink;
    nib_text text;
} answer;

static nib_status put_answer(void *ctx, const char *bytes, size_t size)
{
    answer *a = ctx;
    nib__text_put(&a->text, bytes, size);
    return a->text.failed ? NIB_NO_MEMORY : a->sink->write(a->sink->ctx, bytes, size);
}

/* Says once in a conversation that cached tokens are computed again. */
static nib_status generate(nib_chat_session *c, const nib_prompt *prompt,
                           const nib_generate_options *o, const nib_sink *sink,
                           nib_generate_stats *stats, nib_err *err)
{
    const nib_callbacks *to = &c->session->model->engine->callbacks;
    const bool said = nib__ledger_has_note(&c->settings, "recomputed");
    const nib_status status = nib__generate(c->session, c->batch, prompt, o, sink, stats,
                                            said ? NULL : &c->settings, err);
    if (!said && nib__ledger_has_note(&c->settings, "recomputed") && to->log != NULL)
        to->log(to->ctx, c->settings.notes[c->settings.note_count - 1].text);
    return status;
}

/* Adds the user's message and the answer; on failure the caller drops them. */
static nib_status add_turn(nib_chat_session *c, const char *text, const nib_generate_options *o,
                           int64_t now, const nib_sink *sink, nib_generate_stats *stats,
                           nib_err *err)
{
    answer a = {.sink = sink};
    const nib_sink kept = {put_answer, &a};
    int32_t *ids = NULL;
    nib_prompt prompt = {0};
    NIB_TRY(add_message(c, "user", text, strlen(text), err));
    NIB_TRY(encode(c, now, &ids, &prompt.count, err));
    prompt.ids = ids;
    nib__text_init(&a.text, allocator_of(c));
    nib_status status = generate(c, &prompt, o, &kept, stats, err);
    if (status == NIB_OK)
        status = add_message(c, "assistant", a.text.size > 0 ? a.text.at : "", a.text.size, err);
    nib__text_free(&a.text);
    nib_tokens_free(c->session->model->engine, ids);
    return status;
}

nib_status nib_chat_session_say(nib_chat_session *c, const char *text,
                                const nib_generate_options *options, int64_t now,
                                const nib_sink *sink, nib_generate_stats *stats, nib_err *err)
{
    NIB_NEED(err, "chat, text", c, text);
    NIB_TRY(nib__sink_check(sink, err));
    NIB_OPTIONS(nib_generate_options, o, options, err);
    nib_generate_stats used = {0};
    const size_t before = c->count;
    NIB_RESULT(stats, used);
    if (o.prompt != NULL || o.chat != NULL)
        return nib__fail(err, NIB_USAGE,
                         "the option %s was given to a conversation, which has its own messages",
                         o.prompt != NULL ? "prompt" : "chat");
    NIB_TRY(nib__text_out_check(&o.stop, err));
    NIB_TRY(nib__session_enter(c->session, err));
    const nib_status status = add_turn(c, text, &o, now, sink, &used, err);
    nib__session_leave(c->session);
    NIB_RESULT(stats, used);
    if (status != NIB_OK)
        drop_messages(c, before);
    return status;
}

/* ---- the conversation ---- */

nib_status nib_chat_session_open(nib_chat_session **out, nib_session *session,
                                 const char *template_text, nib_err *err)
{
    NIB_NEED(err, "out, session", out, session);
    const nib_allocator *a = &session->model->engine->allocator;
    nib_chat_session *c = nib__calloc(a, 1, sizeof *c);
    if (c == NULL)
        return nib__fail_memory(err, sizeof *c, "a conversation");
    nib__ledger_init(&c->settings, a);
    c->session = session;
    nib__session_hold(session);
    c->template_text = template_text;
    nib_status status = nib_model_tokenizer(&c->tokenizer, session->model, err);
    if (status == NIB_OK && template_text == NULL)
        status = nib__chat_check(session->model, err);
    if (status == NIB_OK)
        status = nib__batch_open(&c->batch, session, session->runner.kv.sequences, err);
    if (status != NIB_OK) {
        nib_chat_session_close(c);
        return status;
    }
    *out = c;
    return NIB_OK;
}

void nib_chat_session_close(nib_chat_session *c)
{
    if (c == NULL)
        return;
    nib_session *session = c->session;
    drop_messages(c, 0);
    nib__batch_close(c->batch);
    nib__ledger_free(&c->settings);
    nib__release(allocator_of(c), c->items);
    nib__release(allocator_of(c), c);
    nib_session_close(session);
}

void nib_chat_session_reset(nib_chat_session *c)
{
    if (c == NULL)
        return;
    drop_messages(c, has_system(c));
}

nib_status nib_chat_session_system(nib_chat_session *c, const char *text, nib_err *err)
{
    NIB_NEED(err, "chat", c);
    const size_t at = c->count;
    if (text != NULL)
        NIB_TRY(add_message(c, "system", text, strlen(text), err));
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

nib_status nib_chat_session_save(nib_chat_session *c, const nib_sink *sink, nib_err *err)
{
    NIB_NEED(err, "chat", c);
    NIB_TRY(nib__sink_check(sink, err));
    nib_text text;
    nib__text_init(&text, allocator_of(c));
    write_messages(c, &text, 2);
    nib__text_str(&text, "\n");
    const nib_status status = nib__text_flush(&text, sink, err);
    nib__text_free(&text);
    return status;
}

/* Loads one {"role", "content"}; false: json->err says why. */
static bool load_message(nib_chat_session *c, nib_json *json, nib_arena *arena, nib_err *err)
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
                       "a message needs \"content\" and a \"role\": \"user\", \"assistant\" or, in "
                       "the first message only, \"system\"");
        return false;
    }
    if (add_message(c, known, text, size, err) == NIB_OK)
        return true;
    nib__json_fail_memory(json, size);
    return false;
}

nib_status nib_chat_session_load(nib_chat_session *c, const char *name, const char *text,
                                 size_t size, nib_err *err)
{
    NIB_NEED(err, "chat, name, text", c, name, size > 0 ? (const void *)text : "");
    nib_json json;
    nib_arena arena;
    nib_chat_session loaded = *c;
    loaded.items = NULL;
    loaded.count = loaded.capacity = 0;
    nib__arena_init(&arena, allocator_of(c), 0);
    nib__json_init(&json, name, text, size, NULL);
    bool ok = nib__json_expect(&json, NIB_JSON_ARRAY);
    while (ok && nib__json_next(&json) == NIB_JSON_OBJECT)
        ok = load_message(&loaded, &json, &arena, err);
    if (ok && json.event != NIB_JSON_ARRAY_END && json.event != NIB_JSON_ERROR)
        nib__json_fail(&json, "a conversation is an array of messages");
    if (ok && json.event == NIB_JSON_ARRAY_END)
        nib__json_next(&json);
    nib__arena_free(&arena);
    ok = ok && json.event == NIB_JSON_END;
    nib_chat_session *discarded = ok ? c : &loaded;
    drop_messages(discarded, 0);
    nib__release(allocator_of(c), discarded->items);
    if (!ok)
        return nib__json_status(&json, err);
    c->items = loaded.items;
    c->count = loaded.count;
    c->capacity = loaded.capacity;
    return NIB_OK;
}
