/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds what a chat template leaves out of the prompt. Replaces every text of a message and the
 * function of every call by a marker; parts whose marker is not in the prompt are suspects. Then
 * renders the real prompt again with only the suspects replaced: if the prompt is the same, the
 * model does not see them.
 */
#include "model_handle.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define MARKER "nibblemarker" /* then a number and "q", so that no marker is a prefix of another */

typedef enum part_kind { PART_CONTENT, PART_NAME, PART_CALL } part_kind;
static const char *const kind_names[] = {"content", "name", "tool_calls"};

/* A message's content, its name, or the function of one of its calls. */
typedef struct part {
    size_t message;
    part_kind kind;
    bool seen;
    const char *role, *text;
    const char *from, *end; /* in the JSON, with its quotes */
} part;

typedef struct parts {
    nib_arena arena;
    part *at; /* [count] */
    size_t count, capacity;
} parts;

static const nib_json_limits limits = {.depth = NIB_TEMPLATE_JSON, .literals = true};

/* ---- the parts of the messages ---- */

/* Adds the string that `json` has just read. */
static bool add_part(parts *p, size_t message, part_kind kind, const char *text,
                     const nib_json *json)
{
    void *at = p->at;
    if (text[strspn(text, " \t\r\n")] == '\0') /* blank: nothing is lost if it is left out */
        return true;
    if (!nib__reserve(p->arena.allocator, &at, &p->capacity, p->count + 1, sizeof *p->at))
        return false;
    p->at = at;
    p->at[p->count++] = (part){.message = message,
                               .kind = kind,
                               .text = text,
                               .from = json->token - 1,
                               .end = json->token + json->token_size + 1};
    return true;
}

/* The value after "tool_calls": [{"function": {"name": ..., "arguments": ...}}, ...]. */
static bool list_calls(parts *p, nib_json *json, size_t message)
{
    enum { FUNCTION = 3 }; /* levels below the message */
    const int depth = json->depth;
    nib__json_next(json);
    while (json->depth > depth && json->event != NIB_JSON_ERROR) {
        const bool is_name = json->event == NIB_JSON_KEY && json->depth == depth + FUNCTION &&
                             nib__json_is(json, "name");
        if (nib__json_next(json) != NIB_JSON_STRING || !is_name)
            continue;
        const char *text = nib__json_string(json, &p->arena, NULL);
        if (text == NULL || !add_part(p, message, PART_CALL, text, json))
            return false;
    }
    return json->event != NIB_JSON_ERROR;
}

/* The members of the message object just opened. */
static bool list_message(parts *p, nib_json *json, size_t message)
{
    const char *role = "";
    const size_t first = p->count;
    size_t size;
    while (nib__json_next(json) == NIB_JSON_KEY) {
        const bool is_role = nib__json_is(json, "role"), is_name = nib__json_is(json, "name"),
                   is_content = nib__json_is(json, "content");
        if (nib__json_is(json, "tool_calls")) {
            if (!list_calls(p, json, message))
                return false;
            continue;
        }
        if (nib__json_next(json) != NIB_JSON_STRING || (!is_role && !is_name && !is_content)) {
            if (!nib__json_skip(json))
                return false;
            continue;
        }
        const char *text = nib__json_string(json, &p->arena, &size);
        if (text == NULL)
            return false;
        if (is_role)
            role = text;
        else if (!add_part(p, message, is_name ? PART_NAME : PART_CONTENT, text, json))
            return false;
    }
    for (size_t i = first; i < p->count; i++)
        p->at[i].role = role;
    return json->event == NIB_JSON_OBJECT_END;
}

/* False: out of memory. The messages are valid: they have been rendered before. */
static bool list_parts(parts *p, const nib_chat_options *o)
{
    nib_json json;
    size_t message = 0;
    nib__json_init(&json, "messages", o->messages, o->messages_size, &limits);
    bool good = nib__json_next(&json) == NIB_JSON_ARRAY;
    while (good && nib__json_next(&json) == NIB_JSON_OBJECT)
        good = list_message(p, &json, message++);
    return good && json.event == NIB_JSON_ARRAY_END;
}

/* ---- prompts with markers ---- */

/* Renders with a marker for every part, or only for the unseen ones. */
static nib_status render(nib_template_output *out, const parts *p, nib_model *m,
                         const nib_chat_options *o, bool all, nib_err *err)
{
    nib_chat_options marked = *o;
    const char *at = o->messages;
    nib_text json;
    nib__text_init(&json, &m->engine->allocator);
    for (size_t i = 0; i < p->count; i++) {
        if (!all && p->at[i].seen)
            continue;
        nib__text_put(&json, at, (size_t)(p->at[i].from - at));
        nib__text_format(&json, "\"" MARKER "%zuq\"", i);
        at = p->at[i].end;
    }
    nib__text_put(&json, at, (size_t)(o->messages + o->messages_size - at));
    marked.messages = json.at;
    marked.messages_size = json.size;
    const nib_status status = json.failed ? nib__fail_memory(err, json.size, "the messages")
                                          : nib__chat_render(m, &marked, out, err);
    nib__text_free(&json);
    return status;
}

static void find_markers(parts *p, const nib_text *prompt)
{
    const char *at = prompt->at, *end = at + prompt->size;
    const size_t size = strlen(MARKER);
    while (at != NULL && (at = nib__find_bytes(at, (size_t)(end - at), MARKER, size)) != NULL) {
        char *end_of_number;
        at += size;
        const unsigned long long i = strtoull(at, &end_of_number, 10);
        if (*end_of_number == 'q' && i < p->count)
            p->at[i].seen = true;
    }
}

/* Marks as seen every part that changes the prompt. If the prompt cannot be rendered with markers,
 * nothing is known, and all parts count as seen. */
static nib_status find_seen(parts *p, nib_model *m, const nib_chat_options *o, nib_err *err)
{
    nib_template_output marked, real;
    nib_err ignored;
    bool left_out = false;
    nib__template_output_init(&marked, &m->engine->allocator);
    nib__template_output_init(&real, &m->engine->allocator);
    nib_status status = nib__chat_render(m, o, &real, err);
    if (status == NIB_OK && render(&marked, p, m, o, true, &ignored) == NIB_OK) {
        find_markers(p, &marked.text);
        nib__template_output_free(&marked);
        left_out =
            render(&marked, p, m, o, false, &ignored) == NIB_OK &&
            marked.text.size == real.text.size &&
            (real.text.size == 0 || memcmp(marked.text.at, real.text.at, real.text.size) == 0);
    }
    for (size_t i = 0; i < p->count; i++)
        p->at[i].seen = p->at[i].seen || !left_out;
    nib__template_output_free(&marked);
    nib__template_output_free(&real);
    return status;
}

/* ---- ledger lines ---- */

static void add_setting(nib_ledger *ledger, const char *name, const char *asked, nib_asker by,
                        const char *text)
{
    char shown[NIB_SHOWN];
    nib__ledger_add_setting(ledger,
                            &(nib_ledger_setting){.code = "template",
                                                  .name = name,
                                                  .asked = nib__escape_string(shown, asked),
                                                  .by = by,
                                                  .relation = NIB_SETTING_NONE},
                            "%s", text);
}

static void tell_part(nib_ledger *ledger, const part *first, bool more, nib_asker by)
{
    char name[64];
    snprintf(name, sizeof name, "messages[%zu].%s", first->message, kind_names[first->kind]);
    add_setting(
        ledger, name, first->text, by,
        more ? "the chat template leaves it out, and others of this role: the prompt is the same "
               "without them"
             : "the chat template leaves it out: the prompt is the same without it");
}

/* Only the first part of each role and kind: a conversation may have thousands. */
static void tell_parts(nib_ledger *ledger, const parts *p, nib_asker by)
{
    enum { MOST = 16 }; /* five roles, with at most three kinds each */
    const part *firsts[MOST];
    bool more[MOST] = {false};
    size_t count = 0;
    for (size_t i = 0; i < p->count; i++) {
        const part *this = &p->at[i];
        size_t j = 0;
        if (this->seen)
            continue;
        while (j < count &&
               (firsts[j]->kind != this->kind || strcmp(firsts[j]->role, this->role) != 0))
            j++;
        if (j < count)
            more[j] = true;
        else if (count < MOST)
            firsts[count++] = this;
    }
    for (size_t j = 0; j < count; j++)
        tell_part(ledger, firsts[j], more[j], by);
}

static nib_status tell_messages(nib_ledger *ledger, nib_model *m, const nib_chat_options *o,
                                nib_asker by, nib_err *err)
{
    parts p = {.at = NULL};
    nib__arena_init(&p.arena, &m->engine->allocator, 0);
    nib_status status = list_parts(&p, o) ? NIB_OK : nib__fail_memory(err, 0, "the messages");
    if (status == NIB_OK && p.count > 0)
        status = find_seen(&p, m, o, err);
    if (status == NIB_OK)
        tell_parts(ledger, &p, by);
    nib__release(p.arena.allocator, p.at);
    nib__arena_free(&p.arena);
    return status;
}

static nib_status tell_variables(nib_ledger *ledger, nib_model *m, const nib_chat_options *o,
                                 nib_asker by, nib_err *err)
{
    const nib_template *t;
    nib_template *own;
    nib_arena arena;
    nib_json json;
    size_t size;
    NIB_TRY(nib__chat_template(&t, &own, m, o, err));
    nib__arena_init(&arena, &m->engine->allocator, 0);
    nib__json_init(&json, "the variables", o->variables, o->variables_size, &limits);
    bool good = nib__json_next(&json) == NIB_JSON_OBJECT;
    while (good && nib__json_next(&json) == NIB_JSON_KEY) {
        const char *key = nib__json_string(&json, &arena, &size);
        const char *value = key != NULL ? nib__json_raw(&json, &arena) : NULL;
        char name[128];
        good = value != NULL;
        if (!good || nib__template_reads(t, key, size))
            continue;
        snprintf(name, sizeof name, "chat_template_kwargs.%.100s", key);
        add_setting(ledger, name, value, by, "the chat template does not read it");
    }
    nib__arena_free(&arena);
    nib__template_close(own);
    return good ? NIB_OK : nib__json_status(&json, err);
}

nib_status nib__chat_settings(nib_ledger *ledger, nib_model *model, const nib_chat_options *options,
                              nib_asker by, nib_err *err)
{
    NIB_TRY(tell_messages(ledger, model, options, by, err));
    return options->variables == NULL ? NIB_OK : tell_variables(ledger, model, options, by, err);
}
