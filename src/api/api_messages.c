/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the input of a request: the messages of a chat, rewritten in the form that templates take,
 * or prompts as text or token ids.
 */
#include "api_request.h"

#include <inttypes.h>
#include <stdlib.h>

/* A message while its members, in any order, are read. */
typedef struct message {
    const char *role, *content, *name, *call_id;
    const char *calls[2]; /* JSON, with arguments as objects and as text */
    size_t content_size;
    bool content_given;
} message;

/* ---- messages ---- */

/* Reads {"type": "text", "text": "..."} and appends the text. The other known members belong to
 * types that are refused. */
static bool read_part(nib_api_reader *r, const char *param, nib_text *all)
{
    enum { TYPE, TEXT };
    static const char *const names[] = {"type",        "text", "image_url",
                                        "input_audio", "file", "refusal"};
    nib_api_object o = {.param = param, .names = names, .count = COUNT(names)};
    const char *type = NULL, *text = NULL;
    size_t size, type_size;
    char shown[NIB_SHOWN];
    int at;
    if (r->json.event != NIB_JSON_OBJECT)
        return nib__api_refuse(r, param, "%s has %s, but its parts must be objects", param,
                               nib__api_describe_event(r));
    while ((at = nib__api_next_member(r, &o)) >= 0) {
        if (at > TEXT && !nib__json_skip(&r->json))
            return nib__api_fail_json(r);
        if (at <= TEXT && !nib__api_read_text(r, param, at == TYPE ? &type : &text,
                                              at == TYPE ? &type_size : &size))
            return false;
    }
    if (at == NIB_API_ERROR)
        return false;
    if (type == NULL || strcmp(type, "text") != 0)
        return nib__api_refuse(r, param, "%s has a part of type '%s'; only text is supported",
                               param, type ? nib__escape_string(shown, type) : "");
    if (text == NULL)
        return nib__api_refuse(r, param, "%s has a part without a text", param);
    if (o.seen >> (TEXT + 1) != 0)
        return nib__api_refuse(r, param,
                               "%s has a part of type 'text' with a member of another type", param);
    nib__text_put(all, text, size);
    return true;
}

static bool read_parts(nib_api_reader *r, const char *param, message *m)
{
    nib_text all;
    bool good = true;
    nib__text_init(&all, r->arena->allocator);
    while (good && nib__json_next(&r->json) != NIB_JSON_ARRAY_END)
        good = r->json.event == NIB_JSON_ERROR ? nib__api_fail_json(r) : read_part(r, param, &all);
    if (good) {
        m->content = nib__arena_copy(r->arena, all.size > 0 ? all.at : "", all.size);
        m->content_size = all.size;
        good = (m->content != NULL && !all.failed) || nib__api_no_memory(r);
    }
    nib__text_free(&all);
    return good;
}

static bool read_content(nib_api_reader *r, const char *param, message *m)
{
    m->content_given = true;
    if (r->json.event == NIB_JSON_ARRAY)
        return read_parts(r, param, m);
    return r->json.event == NIB_JSON_NULL ||
           nib__api_read_text(r, param, &m->content, &m->content_size);
}

enum { ROLE, CONTENT, NAME, CALL_ID, CALLS, MEMBERS };

static const char *const members[] = {"role", "content", "name", "tool_call_id", "tool_calls"};

static bool read_member(nib_api_reader *r, const char *of, int at, message *m)
{
    char param[NIB_API_PARAM];
    size_t size;
    nib__api_param(param, "%s.%s", of, members[at]);
    if (at == CONTENT)
        return read_content(r, param, m);
    if (r->json.event == NIB_JSON_NULL && at != ROLE)
        return true;
    if (at == CALLS)
        return nib__api_read_calls(r, param, m->calls);
    return nib__api_read_text(r, param,
                              at == ROLE   ? &m->role
                              : at == NAME ? &m->name
                                           : &m->call_id,
                              &size);
}

/* Renames "developer", the newer name of "system", because templates know only the latter. */
static bool check_role(nib_api_reader *r, size_t index, message *m)
{
    static const char *const roles[] = {"system", "user", "assistant", "tool", "function"};
    char param[NIB_API_PARAM], shown[NIB_SHOWN];
    nib__api_param(param, "messages[%zu].role", index);
    if (m->role == NULL)
        return nib__api_refuse(r, param, "%s is missing", param);
    if (strcmp(m->role, "developer") == 0)
        m->role = "system";
    for (size_t i = 0; i < COUNT(roles); i++)
        if (strcmp(m->role, roles[i]) == 0)
            return true;
    return nib__api_refuse(r, param,
                           "%s is '%s', but must be system, developer, user, assistant, "
                           "tool or function",
                           param, nib__escape_string(shown, m->role));
}

static bool check_content(nib_api_reader *r, size_t index, const message *m)
{
    char param[NIB_API_PARAM];
    nib__api_param(param, "messages[%zu].content", index);
    if (m->content != NULL || (strcmp(m->role, "assistant") == 0 && m->calls[0] != NULL))
        return true;
    return nib__api_refuse(r, param, "%s is %s", param, m->content_given ? "null" : "missing");
}

/* Only the assistant makes calls, and a tool message names the call that it answers
 * (check_answers). */
static bool check_calls(nib_api_reader *r, size_t index, const message *m)
{
    char param[NIB_API_PARAM];
    const bool tool = strcmp(m->role, "tool") == 0;
    if (m->calls[0] != NULL && strcmp(m->role, "assistant") != 0) {
        nib__api_param(param, "messages[%zu].tool_calls", index);
        return nib__api_refuse(r, param,
                               "%s are in a message with the role '%s', but only the assistant "
                               "makes calls",
                               param, m->role);
    }
    nib__api_param(param, "messages[%zu].tool_call_id", index);
    if (tool && m->call_id == NULL)
        return nib__api_refuse(r, param, "%s is missing", param);
    if (!tool && m->call_id != NULL)
        return nib__api_refuse(r, param, "%s is only for messages with the role 'tool'", param);
    return !tool || nib__api_note_id(r, &r->answers, m->call_id);
}

static int by_id(const void *left, const void *right)
{
    const nib_api_id *a = left, *b = right;
    const int order = strcmp(a->text, b->text);
    return order != 0 ? order : (a->message > b->message) - (a->message < b->message);
}

/* Whether an earlier message has a call with the answer's id. `calls` is sorted by id. */
static bool is_answer(const nib_api_ids *calls, const nib_api_id *answer)
{
    size_t low = 0, high = calls->count;
    while (low < high) {
        const size_t middle = low + (high - low) / 2;
        if (strcmp(calls->at[middle].text, answer->text) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < calls->count && strcmp(calls->at[low].text, answer->text) == 0 &&
           calls->at[low].message < answer->message;
}

/* Sorts the calls once, because a body may have very many calls and answers. */
static bool check_answers(nib_api_reader *r)
{
    char param[NIB_API_PARAM], shown[NIB_SHOWN];
    if (r->calls.count > 0)
        qsort(r->calls.at, r->calls.count, sizeof *r->calls.at, by_id);
    for (size_t i = 0; i < r->answers.count; i++) {
        const nib_api_id *answer = &r->answers.at[i];
        nib__api_param(param, "messages[%zu].tool_call_id", answer->message);
        if (!is_answer(&r->calls, answer))
            return nib__api_refuse(r, param,
                                   "%s is '%s', but no earlier message has a call with this id",
                                   param, nib__escape_string(shown, answer->text));
    }
    return true;
}

/* Stops reading messages that cannot fit the context even if every token were the longest. */
static bool check_bytes(nib_api_reader *r, size_t size)
{
    const nib_api_limits *limits = r->limits;
    if (limits->token_longest == 0 || size / limits->token_longest <= limits->context)
        return true;
    nib__api_refuse(r, "messages",
                    "the messages have over %zu bytes, but the model's context here is %zu tokens, "
                    "of %zu bytes at most; shorten them",
                    limits->context * limits->token_longest, limits->context,
                    limits->token_longest);
    r->error->code = "context_length_exceeded";
    return false;
}

static void write_message(nib_jsonw *w, const message *m, bool as_text)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "role", m->role);
    nib__jsonw_key(w, "content");
    if (m->content != NULL)
        nib__jsonw_string_n(w, m->content, m->content_size);
    else
        nib__jsonw_null(w);
    if (m->name != NULL)
        nib__jsonw_pair_string(w, "name", m->name);
    if (m->call_id != NULL)
        nib__jsonw_pair_string(w, "tool_call_id", m->call_id);
    if (m->calls[0] != NULL) {
        nib__jsonw_key(w, "tool_calls");
        nib__jsonw_number(w, m->calls[as_text]);
    }
    nib__jsonw_object_end(w);
}

static bool read_message(nib_api_reader *r, size_t index, nib_jsonw w[2])
{
    message m = {0};
    char param[NIB_API_PARAM];
    nib_api_object o = {.param = param, .names = members, .count = MEMBERS};
    int at;
    nib__api_param(param, "messages[%zu]", index);
    if (r->json.event == NIB_JSON_ERROR)
        return nib__api_fail_json(r);
    if (r->json.event != NIB_JSON_OBJECT)
        return nib__api_refuse(r, "messages", "%s is %s, but must be an object", param,
                               nib__api_describe_event(r));
    while ((at = nib__api_next_member(r, &o)) >= 0)
        if (!read_member(r, param, at, &m))
            return false;
    if (at == NIB_API_ERROR || !check_role(r, index, &m) || !check_content(r, index, &m) ||
        !check_calls(r, index, &m))
        return false;
    write_message(&w[0], &m, false);
    write_message(&w[1], &m, true);
    return true;
}

bool nib__api_read_messages(nib_api_reader *r)
{
    nib_api_request *q = r->to;
    const char *copies[2] = {NULL, NULL};
    nib_text all[2];
    nib_jsonw w[2];
    size_t count = 0;
    bool good = true;
    for (int i = 0; i < 2; i++) {
        nib__text_init(&all[i], r->arena->allocator);
        nib__jsonw_init(&w[i], &all[i], 0);
        nib__jsonw_array(&w[i]);
    }
    for (; good && nib__json_next(&r->json) != NIB_JSON_ARRAY_END; count++) {
        r->message = count;
        good = read_message(r, count, w) && check_bytes(r, all[0].size);
    }
    if (good && count == 0)
        good = nib__api_refuse(r, "messages", "messages is empty; give at least one message");
    good = good && check_answers(r);
    for (int i = 0; i < 2; i++) {
        nib__jsonw_array_end(&w[i]);
        if (good && (i == 0 || r->calls.count > 0)) {
            copies[i] = nib__arena_copy(r->arena, all[i].size > 0 ? all[i].at : "", all[i].size);
            good = (copies[i] != NULL && !all[i].failed) || nib__api_no_memory(r);
        }
    }
    q->messages = copies[0];
    q->messages_size = all[0].size;
    q->messages_text = copies[1];
    q->messages_text_size = all[1].size;
    nib__text_free(&all[0]);
    nib__text_free(&all[1]);
    nib__release(r->arena->allocator, r->calls.at);
    nib__release(r->arena->allocator, r->answers.at);
    return good;
}

/* ---- prompts ---- */

static bool read_id(nib_api_reader *r, int32_t *out)
{
    int64_t id;
    if (!nib__json_int64(&r->json, &id) || id < 0 || id >= r->limits->vocab)
        return nib__api_refuse(r, "prompt",
                               "prompt has the token %s, but ids are whole numbers from 0 to "
                               "%" PRId64,
                               nib__api_token((char[NIB_API_SHOWN]){0}, r), r->limits->vocab - 1);
    *out = (int32_t)id;
    return true;
}

/* Reads an array of ids whose first number was just read. */
static bool read_ids(nib_api_reader *r, nib_api_prompt *prompt)
{
    const nib_allocator *a = r->arena->allocator;
    void *ids = NULL;
    size_t capacity = 0, count = 0;
    bool good = true;
    for (; good && r->json.event != NIB_JSON_ARRAY_END; good = good && nib__json_next(&r->json)) {
        if (r->json.event != NIB_JSON_NUMBER)
            good = nib__api_refuse(r, "prompt", "prompt has %s among token ids",
                                   nib__api_describe_event(r));
        else if (!nib__reserve(a, &ids, &capacity, count + 1, sizeof(int32_t)))
            good = nib__api_no_memory(r);
        else
            good = read_id(r, (int32_t *)ids + count++);
    }
    if (good) {
        int32_t *kept = nib__arena_take(r->arena, count, sizeof *kept);
        if (kept != NULL)
            memcpy(kept, ids, count * sizeof *kept);
        *prompt = (nib_api_prompt){.ids = kept, .count = count};
        good = kept != NULL || nib__api_no_memory(r);
    } else if (r->error->http == 0) {
        nib__api_fail_json(r);
    }
    nib__release(a, ids);
    return good;
}

static bool read_one(nib_api_reader *r, nib_api_prompt *prompt)
{
    if (r->json.event == NIB_JSON_STRING) {
        prompt->text = nib__api_parse_string(r, "prompt", &prompt->size);
        return prompt->text != NULL;
    }
    if (r->json.event != NIB_JSON_ARRAY)
        return nib__api_refuse(r, "prompt",
                               "prompt has %s; give text or token ids, or an array of either",
                               nib__api_describe_event(r));
    if (nib__json_next(&r->json) == NIB_JSON_ARRAY_END)
        return nib__api_refuse(r, "prompt", "prompt has an empty array of token ids");
    return r->json.event == NIB_JSON_ERROR ? nib__api_fail_json(r) : read_ids(r, prompt);
}

bool nib__api_read_prompt(nib_api_reader *r)
{
    nib_api_request *q = r->to;
    q->prompts = nib__arena_take(r->arena, NIB_API_PROMPTS, sizeof *q->prompts);
    if (q->prompts == NULL)
        return nib__api_no_memory(r);
    if (r->json.event != NIB_JSON_ARRAY)
        return read_one(r, &q->prompts[q->prompt_count++]);
    while (nib__json_next(&r->json) != NIB_JSON_ARRAY_END) {
        if (r->json.event == NIB_JSON_ERROR)
            return nib__api_fail_json(r);
        if (r->json.event == NIB_JSON_NUMBER && q->prompt_count == 0)
            return read_ids(r, &q->prompts[q->prompt_count++]);
        if (q->prompt_count == NIB_API_PROMPTS)
            return nib__api_refuse(r, "prompt", "prompt has more than %d texts", NIB_API_PROMPTS);
        if (!read_one(r, &q->prompts[q->prompt_count++]))
            return false;
    }
    return q->prompt_count > 0 || nib__api_refuse(r, "prompt", "prompt is an empty array");
}
