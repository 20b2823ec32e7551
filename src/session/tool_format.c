/* SPDX-License-Identifier: Apache-2.0
 *
 * Probes of a template. Renders a call of a known function with a known argument, and cuts the text
 * after the generation prompt at the name, at the argument object and where the answer ends. A
 * second call shows the text between two calls; a text before the call shows the text between
 * these.
 */
#include "tool_format.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const names[] = {"nibble_probe_first", "nibble_probe_second"};
static const char *const keys[] = {"nibble_key_first", "nibble_key_second"};
static const char *const values[] = {"nibble_value_first", "nibble_value_second"};
static const char *const ids[2][2] = {{"call_7a1e5c0b9d3f2468", "call_7a1e5c0b9d3f2469"},
                                      {"nIb1ePr0b", "nIb1ePr0c"}};
static const char sample_text[] = "nibble_probe_text";
static const char user_message[] = "{\"role\": \"user\", \"content\": \"nibble_probe_user\"}";

typedef struct probe {
    const nib_tool_prober *p;
    nib_arena *arena;
    nib_text tools, prompt;
    /* the current attempt */
    int style;           /* of ids */
    const char *content; /* of the message that has calls, as JSON */
    bool answered;       /* tool results follow the calls */
    bool text;           /* arguments are passed as text that contains the object */
    nib_err why;         /* why the last attempt failed */
} probe;

/* Offsets of the parts of one call. */
typedef struct call_offsets {
    size_t name, name_end, arguments, arguments_end;
} call_offsets;

static bool refuse(probe *g, const char *format, ...) NIB_PRINTF(2, 3);

static bool refuse(probe *g, const char *format, ...)
{
    va_list args;
    char text[sizeof g->why.text];
    va_start(args, format);
    nib__vformat(text, sizeof text, format, args);
    va_end(args);
    nib__fail(&g->why, NIB_UNSUPPORTED, "%s", text);
    return false;
}

/* ---- conversations ---- */

static void write_tools(nib_text *out)
{
    nib__text_str(out, "[");
    for (int i = 0; i < 2; i++)
        nib__text_format(out,
                         "%s{\"type\": \"function\", \"function\": {\"name\": \"%s\", "
                         "\"description\": \"d\", \"parameters\": {\"type\": \"object\", "
                         "\"properties\": {\"%s\": {\"type\": \"string\", \"description\": "
                         "\"d\"}}, \"required\": [\"%s\"]}}}",
                         i > 0 ? ", " : "", names[i], keys[i], keys[i]);
    nib__text_str(out, "]");
}

static void write_calls(nib_text *out, const probe *g, int count)
{
    nib__text_format(out, "{\"role\": \"assistant\", \"content\": %s, \"tool_calls\": [",
                     g->content);
    const char *open = g->text ? "\"{" : "{", *quote = g->text ? "\\\"" : "\"",
               *close = g->text ? "}\"" : "}";
    for (int i = 0; i < count; i++) {
        nib__text_format(out,
                         "%s{\"id\": \"%s\", \"type\": \"function\", \"function\": {\"name\": "
                         "\"%s\", \"arguments\": ",
                         i > 0 ? ", " : "", ids[g->style][i], names[i]);
        nib__text_format(out, "%s%s%s%s: %s%s%s%s}}", open, quote, keys[i], quote, quote, values[i],
                         quote, close);
    }
    nib__text_str(out, "]}");
    for (int i = 0; i < count && g->answered; i++)
        nib__text_format(out,
                         ", {\"role\": \"tool\", \"content\": \"r\", \"name\": \"%s\", "
                         "\"tool_call_id\": \"%s\"}",
                         names[i], ids[g->style][i]);
}

static bool render(probe *g, const char *messages, const char *tools, bool prompt, nib_text *out)
{
    nib_err err;
    nib__text_clear(out);
    const nib_status status = g->p->render(g->p->ctx, messages, tools, prompt, out, &err);
    if (status == NIB_OK && !out->failed)
        return true;
    if (status == NIB_OK || status == NIB_NO_MEMORY)
        nib__fail_memory(&g->why, out->size, "a probe of the chat template");
    else
        refuse(g, "the template says: %s", err.text);
    return false;
}

/* Renders the conversation with `count` calls, or for 0 with a text instead. */
static bool render_answer(probe *g, int count, nib_text *out)
{
    nib_text messages;
    nib__text_init(&messages, g->p->allocator);
    nib__text_format(&messages, "[%s, ", user_message);
    if (count > 0)
        write_calls(&messages, g, count);
    else
        nib__text_format(&messages, "{\"role\": \"assistant\", \"content\": \"%s\"}", sample_text);
    nib__text_str(&messages, "]");
    const bool ok = messages.failed ? nib__fail_memory(&g->why, messages.size, "a probe") == NIB_OK
                                    : render(g, messages.at, g->tools.at, false, out);
    nib__text_free(&messages);
    return ok;
}

/* ---- finding the parts ---- */

static size_t find(const nib_text *in, size_t from, size_t end, const char *what)
{
    const char *at = nib__find_bytes(in->at + from, end - from, what, strlen(what));
    return at == NULL ? SIZE_MAX : (size_t)(at - in->at);
}

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Where the answer starts: after the generation prompt, of which white space may be missing. */
static bool find_start(probe *g, const nib_text *all, size_t *start)
{
    size_t at = 0;
    while (at < g->prompt.size && at < all->size && g->prompt.at[at] == all->at[at])
        at++;
    *start = at;
    for (; at < g->prompt.size; at++)
        if (!is_blank(g->prompt.at[at]))
            return refuse(g, "the text before a call does not start like an answer");
    return true;
}

static size_t skip_blanks(const nib_text *in, size_t at)
{
    while (at < in->size && is_blank(in->at[at]))
        at++;
    return at;
}

/* Finds {"KEY": "VALUE"} around a key. */
static bool find_arguments(const nib_text *in, size_t from, size_t key, int i, call_offsets *out)
{
    size_t at = key, end = key + strlen(keys[i]);
    if (at == from || in->at[--at] != '"')
        return false;
    while (at > from && is_blank(in->at[at - 1]))
        at--;
    if (at == from || in->at[--at] != '{')
        return false;
    out->arguments = at;
    for (const char *mark = "\":\""; *mark != 0; mark++, end++) {
        end = *mark == '"' && mark[1] != 0 ? end : skip_blanks(in, end);
        if (end >= in->size || in->at[end] != *mark)
            return false;
    }
    if (in->size - end < strlen(values[i]) ||
        memcmp(in->at + end, values[i], strlen(values[i])) != 0)
        return false;
    end += strlen(values[i]);
    if (end == in->size || in->at[end] != '"')
        return false;
    end = skip_blanks(in, end + 1);
    out->arguments_end = end + 1;
    return end < in->size && in->at[end] == '}';
}

static bool find_call(probe *g, const nib_text *in, size_t from, int i, call_offsets *out)
{
    const size_t name = find(in, from, in->size, names[i]), key = find(in, from, in->size, keys[i]);
    if (name == SIZE_MAX || key == SIZE_MAX)
        return refuse(g, "it does not write %s", name == SIZE_MAX ? "them" : "their arguments");
    if (key < name)
        return refuse(g, "their arguments come before the name");
    out->name = name;
    out->name_end = name + strlen(names[i]);
    return find_arguments(in, out->name_end, key, i, out) ||
           refuse(g, "their arguments are not written as a JSON object");
}

/* Where the answer ends: before a token that ends answers, or before the text that follows a plain
 * answer. */
static bool find_end(probe *g, const nib_text *in, size_t from, size_t *end)
{
    nib_text plain;
    *end = SIZE_MAX;
    for (size_t i = 0; i < g->p->end_count; i++) {
        const size_t at = find(in, from, in->size, g->p->ends[i]);
        *end = at < *end ? at : *end;
    }
    if (*end != SIZE_MAX)
        return true;
    if (g->answered)
        return refuse(g, "no token that ends an answer follows them");
    nib__text_init(&plain, g->p->allocator);
    bool ok = render_answer(g, 0, &plain);
    if (ok) {
        size_t text = find(&plain, 0, plain.size, sample_text);
        text = text == SIZE_MAX ? plain.size : text + strlen(sample_text);
        const size_t size = plain.size - text;
        ok = (size <= in->size - from &&
              memcmp(in->at + in->size - size, plain.at + text, size) == 0) ||
             refuse(g, "they end differently from text answers, without a token that ends answers");
        *end = in->size - size;
    }
    nib__text_free(&plain);
    return ok;
}

/* ---- texts ---- */

/* Copies [from, to) and notes the position of call i's id in it. */
static bool copy_text(probe *g, const nib_text *in, size_t from, size_t to, int i,
                      nib_call_text *out)
{
    const char *id = ids[g->style][i];
    const size_t at = find(in, from, to, id), size = strlen(id);
    *out = (nib_call_text){.at = nib__arena_copy(g->arena, in->at + from, to - from),
                           .size = to - from};
    if (out->at == NULL)
        return nib__fail_memory(&g->why, to - from, "a format of calls") == NIB_OK;
    for (int other = 0; other < 2; other++)
        if (find(in, from, to, names[other]) != SIZE_MAX ||
            find(in, from, to, keys[other]) != SIZE_MAX)
            return refuse(g, "a name or its arguments are written more than once");
    if (find(in, from, to, "&#34;") !=
        SIZE_MAX) /* Jinja escapes text that is joined with text marked safe */
        return refuse(g, "quotes around them are escaped as in HTML");
    if (at == SIZE_MAX)
        return true;
    out->id_at = at - from;
    out->id_size = size;
    if (g->style == 0)
        return refuse(
            g, "the model writes ids of its calls that are not the usual 9 letters and digits");
    return find(in, at + size, to, id) == SIZE_MAX || refuse(g, "an id is written more than once");
}

static bool same_text(const nib_call_text *a, const nib_call_text *b)
{
    if (a->size != b->size || a->id_at != b->id_at || a->id_size != b->id_size)
        return false;
    for (size_t i = 0; i < a->size; i++)
        if (a->at[i] != b->at[i] && !(i >= a->id_at && i - a->id_at < a->id_size))
            return false;
    return true;
}

static bool read_one_call(probe *g, const nib_text *all, nib_call_format *out)
{
    size_t start, end;
    call_offsets call;
    return find_start(g, all, &start) && find_call(g, all, start, 0, &call) &&
           find_end(g, all, call.arguments_end, &end) &&
           copy_text(g, all, start, call.name, 0, &out->before) &&
           copy_text(g, all, call.name_end, call.arguments, 0, &out->middle) &&
           copy_text(g, all, call.arguments_end, end, 0, &out->last);
}

/* Reads the text between two calls, if each is otherwise written like a single call. */
static bool read_next_call(probe *g, const nib_text *all, nib_call_format *out)
{
    size_t start, end;
    call_offsets first, second;
    nib_call_text before, middle, next, last;
    if (!find_start(g, all, &start) || !find_call(g, all, start, 0, &first) ||
        !find_call(g, all, first.arguments_end, 1, &second) ||
        !find_end(g, all, second.arguments_end, &end))
        return false;
    if (!copy_text(g, all, start, first.name, 0, &before) ||
        !copy_text(g, all, second.name_end, second.arguments, 1, &middle) ||
        !copy_text(g, all, second.arguments_end, end, 1, &last))
        return false;
    /* an id between the calls may belong to the first or the second */
    const bool late = find(all, first.arguments_end, second.name, ids[g->style][1]) != SIZE_MAX;
    if (!copy_text(g, all, first.arguments_end, second.name, late, &next) ||
        !same_text(&before, &out->before) || !same_text(&middle, &out->middle) ||
        !same_text(&last, &out->last))
        return false;
    out->next = next;
    return true;
}

/* Reads the text between a text and the first call, if the call is otherwise written as without a
 * text. */
static void read_gap(probe *g, const nib_text *all, nib_call_format *out)
{
    const size_t at = find(all, 0, all->size, sample_text);
    call_offsets call;
    if (at == SIZE_MAX || !find_call(g, all, at, 0, &call))
        return;
    const size_t from = at + strlen(sample_text), size = out->before.size;
    if (call.name - from < size || memcmp(all->at + call.name - size, out->before.at, size) != 0)
        return;
    const char *gap = nib__arena_copy(g->arena, all->at + from, call.name - from - size);
    if (gap == NULL) {
        nib__fail_memory(&g->why, call.name - from, "a format of calls");
        return;
    }
    out->gap = gap;
    out->gap_size = call.name - from - size;
}

/* ---- trying forms of calls ---- */

static bool try_one(probe *g, nib_tool_format *out)
{
    nib_text all;
    nib__text_init(&all, g->p->allocator);
    *out = (nib_tool_format){
        .short_ids = g->style == 1, .text_arguments = g->text, .calls = {.gap = ""}};
    bool ok = render_answer(g, 1, &all) && read_one_call(g, &all, &out->calls);
    if (ok) {
        g->why = (nib_err){.status = NIB_OK};
        (void)(render_answer(g, 2, &all) && read_next_call(g, &all, &out->calls));
        ok = g->why.status != NIB_NO_MEMORY;
        g->content = "\"nibble_probe_text\"";
        if (ok && render_answer(g, 1, &all))
            read_gap(g, &all, &out->calls);
        ok = g->why.status != NIB_NO_MEMORY;
    }
    nib__text_free(&all);
    return ok;
}

static bool try_all(probe *g, nib_tool_format *out)
{
    static const char *const contents[] = {"null", "\"\""};
    nib_err first = {.status = NIB_OK};
    for (int i = 0; i < 16; i++) {
        g->text = i >> 3;
        g->style = i >> 2 & 1;
        g->content = contents[i >> 1 & 1];
        g->answered = (i & 1) == 0;
        if (try_one(g, out))
            return true;
        if (g->why.status == NIB_NO_MEMORY)
            return false;
        if (i == 7)
            first = g->why;
    }
    g->why = first;
    return false;
}

nib_status nib__tool_format_find(nib_tool_format *out, const nib_tool_prober *p, nib_arena *arena,
                                 nib_err *err)
{
    probe g = {.p = p, .arena = arena};
    char messages[128];
    nib__text_init(&g.tools, p->allocator);
    nib__text_init(&g.prompt, p->allocator);
    write_tools(&g.tools);
    snprintf(messages, sizeof messages, "[%s]", user_message);
    const bool ok =
        (!g.tools.failed || nib__fail_memory(&g.why, g.tools.size, "a probe") == NIB_OK) &&
        render(&g, messages, g.tools.at, true, &g.prompt) && try_all(&g, out);
    nib__text_free(&g.tools);
    nib__text_free(&g.prompt);
    if (ok)
        return NIB_OK;
    if (g.why.status == NIB_NO_MEMORY)
        return nib__fail(err, NIB_NO_MEMORY, "%s", g.why.text);
    return nib__fail(err, NIB_UNSUPPORTED,
                     "cannot read how this model's template writes tool calls: %s; with "
                     "tool_choice \"none\" the tools are shown and the answer is text",
                     g.why.text);
}

/* Some templates show tools only beside a system message, others have no such role. */
nib_status nib__tool_format_shows(const nib_tool_prober *p, nib_err *err)
{
    probe g = {.p = p};
    char messages[256];
    nib_text with, without;
    bool rendered = false, shown = false;
    nib__text_init(&g.tools, p->allocator);
    nib__text_init(&with, p->allocator);
    nib__text_init(&without, p->allocator);
    write_tools(&g.tools);
    for (int system = 0; system < 2 && !shown && !g.tools.failed; system++) {
        snprintf(messages, sizeof messages, "[%s%s]",
                 system ? "{\"role\": \"system\", \"content\": \"s\"}, " : "", user_message);
        if (render(&g, messages, g.tools.at, true, &with) &&
            render(&g, messages, NULL, true, &without)) {
            rendered = true;
            shown = with.size != without.size || memcmp(with.at, without.at, with.size) != 0;
        }
    }
    const bool failed = g.tools.failed || g.why.status == NIB_NO_MEMORY;
    nib__text_free(&g.tools);
    nib__text_free(&with);
    nib__text_free(&without);
    if (failed)
        return nib__fail_memory(err, 0, "a probe of the chat template");
    if (!rendered)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "for a short conversation with tools %s; so tools cannot be used with it",
                         g.why.text);
    return shown ? NIB_OK
                 : nib__fail(err, NIB_UNSUPPORTED,
                             "the chat template renders the same prompt with tools and without, so "
                             "the model would not see them; use another model or --chat-template, "
                             "or leave them out");
}
