/* SPDX-License-Identifier: Apache-2.0
 *
 * Probes of a template. A call of a known function with a known argument is rendered; the text
 * behind the generation prompt is cut at the name, at the argument's object and where the answer
 * ends. A second call shows what stands between two, a text before the call what stands there.
 */
#include "tool_format.h"

#include <stdarg.h>
#include <stdio.h>

static const char *const names[] = {"nibble_probe_first", "nibble_probe_second"};
static const char *const keys[] = {"nibble_key_first", "nibble_key_second"};
static const char *const values[] = {"nibble_value_first", "nibble_value_second"};
static const char *const ids[2][2] = {{"call_7a1e5c0b9d3f2468", "call_7a1e5c0b9d3f2469"},
                                      {"nIb1ePr0b", "nIb1ePr0c"}};
static const char said[] = "nibble_probe_text";
static const char user[] = "{\"role\": \"user\", \"content\": \"nibble_probe_user\"}";

typedef struct probe {
    const nib_tool_prober *p;
    nib_arena *arena;
    nib_text tools, prompt;
    /* what is tried */
    int style;           /* of ids */
    const char *content; /* of the message that has calls, as JSON */
    bool answered;       /* results follow the calls */
    bool text;           /* arguments are a text that holds the object */
    nib_err why;         /* the last thing that was not as it should */
} probe;

/* Where the parts of one call stand. */
typedef struct call_place {
    size_t name, name_end, arguments, arguments_end;
} call_place;

static bool refuse(probe *g, const char *format, ...) NIB_PRINTF(2, 3);

static bool refuse(probe *g, const char *format, ...)
{
    va_list args;
    char text[sizeof g->why.text];
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    nib__fail(&g->why, NIB_UNSUPPORTED, "%s", text);
    return false;
}

/* ---- conversations ---- */

static void put_tools(nib_text *out)
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

static void put_calls(nib_text *out, const probe *g, int count)
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

/* The conversation with calls, or with a text in their place. */
static bool render_answer(probe *g, int count, nib_text *out)
{
    nib_text messages;
    nib__text_init(&messages, g->p->allocator);
    nib__text_format(&messages, "[%s, ", user);
    if (count > 0)
        put_calls(&messages, g, count);
    else
        nib__text_format(&messages, "{\"role\": \"assistant\", \"content\": \"%s\"}", said);
    nib__text_str(&messages, "]");
    const bool good = messages.failed
                          ? nib__fail_memory(&g->why, messages.size, "a probe") == NIB_OK
                          : render(g, messages.at, g->tools.at, false, out);
    nib__text_free(&messages);
    return good;
}

/* ---- places ---- */

static size_t find(const nib_text *in, size_t from, size_t end, const char *what)
{
    const char *at = nib__find_bytes(in->at + from, end - from, what, strlen(what));
    return at == NULL ? SIZE_MAX : (size_t)(at - in->at);
}

static bool is_blank(char c) { return c == ' ' || c == '\n' || c == '\t' || c == '\r'; }

/* Where the answer begins: behind the generation prompt, of which white space may be missing. */
static bool find_start(probe *g, const nib_text *all, size_t *start)
{
    size_t at = 0;
    while (at < g->prompt.size && at < all->size && g->prompt.at[at] == all->at[at])
        at++;
    *start = at;
    for (; at < g->prompt.size; at++)
        if (!is_blank(g->prompt.at[at]))
            return refuse(g, "what stands before a call is not what an answer begins with");
    return true;
}

static size_t skip_blanks(const nib_text *in, size_t at)
{
    while (at < in->size && is_blank(in->at[at]))
        at++;
    return at;
}

/* {"KEY": "VALUE"} around a key. */
static bool find_arguments(const nib_text *in, size_t from, size_t key, int i, call_place *out)
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

static bool find_call(probe *g, const nib_text *in, size_t from, int i, call_place *out)
{
    const size_t name = find(in, from, in->size, names[i]), key = find(in, from, in->size, keys[i]);
    if (name == SIZE_MAX || key == SIZE_MAX)
        return refuse(g, "it does not write %s", name == SIZE_MAX ? "them" : "their arguments");
    if (key < name)
        return refuse(g, "their arguments stand before the name");
    out->name = name;
    out->name_end = name + strlen(names[i]);
    return find_arguments(in, out->name_end, key, i, out) ||
           refuse(g, "their arguments are not written as a JSON object");
}

/* Where the answer ends: before a token that ends answers, or before what stands behind a text. */
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
        return refuse(g, "no token that ends an answer stands behind them");
    nib__text_init(&plain, g->p->allocator);
    bool good = render_answer(g, 0, &plain);
    if (good) {
        size_t text = find(&plain, 0, plain.size, said);
        text = text == SIZE_MAX ? plain.size : text + strlen(said);
        const size_t size = plain.size - text;
        good = (size <= in->size - from &&
                memcmp(in->at + in->size - size, plain.at + text, size) == 0) ||
               refuse(g, "they end in another way than texts, without a token that ends answers");
        *end = in->size - size;
    }
    nib__text_free(&plain);
    return good;
}

/* ---- texts ---- */

/* A copy of [from, to) with the place of the id of call i. */
static bool take_text(probe *g, const nib_text *in, size_t from, size_t to, int i,
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
        SIZE_MAX) /* Jinja's answer to text beside text marked safe */
        return refuse(g, "quotes around them are escaped as in HTML");
    if (at == SIZE_MAX)
        return true;
    out->id_at = at - from;
    out->id_size = size;
    if (g->style == 0)
        return refuse(g, "the model writes ids of its calls, which are not the usual 9 letters and "
                         "digits");
    return find(in, at + size, to, id) == SIZE_MAX || refuse(g, "an id is written more than once");
}

static bool same(const nib_call_text *a, const nib_call_text *b)
{
    if (a->size != b->size || a->id_at != b->id_at || a->id_size != b->id_size)
        return false;
    for (size_t i = 0; i < a->size; i++)
        if (a->at[i] != b->at[i] && !(i >= a->id_at && i - a->id_at < a->id_size))
            return false;
    return true;
}

static bool take_one(probe *g, const nib_text *all, nib_call_format *out)
{
    size_t start, end;
    call_place call;
    return find_start(g, all, &start) && find_call(g, all, start, 0, &call) &&
           find_end(g, all, call.arguments_end, &end) &&
           take_text(g, all, start, call.name, 0, &out->before) &&
           take_text(g, all, call.name_end, call.arguments, 0, &out->middle) &&
           take_text(g, all, call.arguments_end, end, 0, &out->last);
}

/* What stands between two calls, if these are otherwise as one is. */
static bool take_next(probe *g, const nib_text *all, nib_call_format *out)
{
    size_t start, end;
    call_place first, second;
    nib_call_text before, middle, next, last;
    if (!find_start(g, all, &start) || !find_call(g, all, start, 0, &first) ||
        !find_call(g, all, first.arguments_end, 1, &second) ||
        !find_end(g, all, second.arguments_end, &end))
        return false;
    if (!take_text(g, all, start, first.name, 0, &before) ||
        !take_text(g, all, second.name_end, second.arguments, 1, &middle) ||
        !take_text(g, all, second.arguments_end, end, 1, &last))
        return false;
    /* the id between two is of the first or of the second */
    const bool late = find(all, first.arguments_end, second.name, ids[g->style][1]) != SIZE_MAX;
    if (!take_text(g, all, first.arguments_end, second.name, late, &next) ||
        !same(&before, &out->before) || !same(&middle, &out->middle) || !same(&last, &out->last))
        return false;
    out->next = next;
    return true;
}

/* What stands between a text and the first call, if the call is otherwise as without one. */
static void take_gap(probe *g, const nib_text *all, nib_call_format *out)
{
    const size_t at = find(all, 0, all->size, said);
    call_place call;
    if (at == SIZE_MAX || !find_call(g, all, at, 0, &call))
        return;
    const size_t from = at + strlen(said), size = out->before.size;
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

/* ---- the whole ---- */

static bool try_one(probe *g, nib_tool_format *out)
{
    nib_text all;
    nib__text_init(&all, g->p->allocator);
    *out = (nib_tool_format){
        .short_ids = g->style == 1, .text_arguments = g->text, .calls = {.gap = ""}};
    bool good = render_answer(g, 1, &all) && take_one(g, &all, &out->calls);
    if (good) {
        g->why = (nib_err){.status = NIB_OK};
        (void)(render_answer(g, 2, &all) && take_next(g, &all, &out->calls));
        good = g->why.status != NIB_NO_MEMORY;
        g->content = "\"nibble_probe_text\"";
        if (good && render_answer(g, 1, &all))
            take_gap(g, &all, &out->calls);
        good = g->why.status != NIB_NO_MEMORY;
    }
    nib__text_free(&all);
    return good;
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
    put_tools(&g.tools);
    snprintf(messages, sizeof messages, "[%s]", user);
    const bool good =
        (!g.tools.failed || nib__fail_memory(&g.why, g.tools.size, "a probe") == NIB_OK) &&
        render(&g, messages, g.tools.at, true, &g.prompt) && try_all(&g, out);
    nib__text_free(&g.tools);
    nib__text_free(&g.prompt);
    if (good)
        return NIB_OK;
    if (g.why.status == NIB_NO_MEMORY)
        return nib__fail(err, NIB_NO_MEMORY, "%s", g.why.text);
    return nib__fail(err, NIB_UNSUPPORTED,
                     "this model's template writes calls in a way that is not read: %s; with "
                     "tool_choice \"none\" the tools are shown and the answer is text",
                     g.why.text);
}

/* Some templates show tools beside a system message only, others know no such role. */
nib_status nib__tool_format_shows(const nib_tool_prober *p, nib_err *err)
{
    probe g = {.p = p};
    char messages[256];
    nib_text with, without;
    bool rendered = false, shown = false;
    nib__text_init(&g.tools, p->allocator);
    nib__text_init(&with, p->allocator);
    nib__text_init(&without, p->allocator);
    put_tools(&g.tools);
    for (int system = 0; system < 2 && !shown && !g.tools.failed; system++) {
        snprintf(messages, sizeof messages, "[%s%s]",
                 system ? "{\"role\": \"system\", \"content\": \"s\"}, " : "", user);
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
                         "of a short conversation with tools %s; so these cannot be shown with it",
                         g.why.text);
    return shown ? NIB_OK
                 : nib__fail(err, NIB_UNSUPPORTED,
                             "the chat template makes the same prompt with tools and without, so "
                             "the model would not see them; take another model or "
                             "--chat-template, or leave them out");
}
