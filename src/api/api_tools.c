/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the tools of a request, which of them the model may or must call, and the calls of earlier
 * messages, whose arguments templates take as objects.
 */
#include "api_request.h"

enum { NAME_LONGEST = 64, ARGUMENTS_DEPTH = 64 };

/* ---- parts ---- */

static bool has_name_letters(const char *name, size_t size)
{
    for (size_t i = 0; i < size; i++) {
        const char c = name[i], letter = (char)(c | 0x20);
        if (!(letter >= 'a' && letter <= 'z') && !(c >= '0' && c <= '9') && c != '_' && c != '-')
            return false;
    }
    return size > 0;
}

static bool read_name(nib_api_reader *r, const char *param, const char **out)
{
    size_t size;
    char shown[NIB_API_SHOWN];
    if (!nib__api_read_text(r, param, out, &size))
        return false;
    if (size <= NAME_LONGEST && has_name_letters(*out, size))
        return true;
    return nib__api_refuse(r, param,
                           "%s is '%s'; a name has 1 to %d letters, digits, underscores and "
                           "dashes",
                           param, nib__escape_name(shown, sizeof shown, *out, size), NAME_LONGEST);
}

/* Refuses a value whose first event, just read, does not open an object. */
static bool expect_object(nib_api_reader *r, const char *param)
{
    if (r->json.event == NIB_JSON_OBJECT)
        return true;
    return r->json.event == NIB_JSON_ERROR
               ? nib__api_fail_json(r)
               : nib__api_refuse(r, param, "%s is %s, but must be an object", param,
                                 nib__api_describe_event(r));
}

/* The value of a member `type`, which must be "function". */
static bool read_type(nib_api_reader *r, const char *of)
{
    char param[NIB_API_PARAM];
    nib__api_param(param, "%s.type", of);
    return (r->json.event == NIB_JSON_STRING && nib__json_is(&r->json, "function")) ||
           nib__api_refuse(r, param, "%s must be \"function\"; other kinds are not supported",
                           param);
}

/* Refuses an object that lacks a member; `need`: bits of the required members. */
static bool has_all(nib_api_reader *r, const nib_api_object *o, unsigned need)
{
    char param[NIB_API_PARAM];
    for (int i = 0; i < o->count; i++) {
        nib__api_param(param, "%s.%s", o->param, o->names[i]);
        if ((need & ~o->seen) >> i & 1)
            return nib__api_refuse(r, param, "%s is missing", param);
    }
    return true;
}

/* ---- tools ---- */

static bool read_function(nib_api_reader *r, const char *of, nib_api_tool *tool)
{
    enum { NAME, DESCRIPTION, PARAMETERS, STRICT };
    static const char *const names[] = {"name", "description", "parameters", "strict"};
    nib_api_object o = {.param = of, .names = names, .count = COUNT(names)};
    int at;
    if (!expect_object(r, of))
        return false;
    while ((at = nib__api_next_member(r, &o)) >= 0) {
        const bool null = r->json.event == NIB_JSON_NULL;
        const char *words;
        char param[NIB_API_PARAM];
        size_t size;
        bool good;
        nib__api_param(param, "%s.%s", of, names[at]);
        if (at == NAME)
            good = read_name(r, param, &tool->name);
        else if (at == DESCRIPTION)
            good = null || nib__api_read_text(r, param, &words, &size);
        else if (at == PARAMETERS)
            good = null || (expect_object(r, param) &&
                            nib__api_raw_object(r, &tool->parameters, &tool->parameters_size));
        else /* parameters are always followed exactly */
            good = null || r->json.event == NIB_JSON_TRUE || r->json.event == NIB_JSON_FALSE ||
                   nib__api_refuse(r, param, "%s is %s, but must be true or false", param,
                                   nib__api_describe_event(r));
        if (!good)
            return false;
    }
    return at == NIB_API_LAST && has_all(r, &o, 1u << NAME);
}

static bool read_tool(nib_api_reader *r, size_t index, nib_api_tool *tool)
{
    enum { TYPE, FUNCTION };
    static const char *const names[] = {"type", "function"};
    char of[NIB_API_PARAM], param[NIB_API_PARAM];
    nib_api_object o = {.param = of, .names = names, .count = COUNT(names)};
    int at;
    nib__api_param(of, "tools[%zu]", index);
    nib__api_param(param, "%s.function", of);
    if (!expect_object(r, of))
        return false;
    while ((at = nib__api_next_member(r, &o)) >= 0)
        if (!(at == TYPE ? read_type(r, of) : read_function(r, param, tool)))
            return false;
    return at == NIB_API_LAST && has_all(r, &o, 1u << TYPE | 1u << FUNCTION);
}

bool nib__api_read_tools(nib_api_reader *r)
{
    nib_api_request *q = r->to;
    const char *from = r->json.from;
    q->tool_list = nib__arena_take(r->arena, NIB_API_TOOLS, sizeof *q->tool_list);
    if (q->tool_list == NULL)
        return nib__api_no_memory(r);
    while (nib__json_next(&r->json) != NIB_JSON_ARRAY_END) {
        char param[NIB_API_PARAM];
        if (q->tool_count == NIB_API_TOOLS)
            return nib__api_refuse(r, "tools", "tools has more than %d tools", NIB_API_TOOLS);
        nib_api_tool *tool = &q->tool_list[q->tool_count];
        if (!read_tool(r, q->tool_count++, tool))
            return false;
        nib__api_param(param, "tools[%zu].function.name", q->tool_count - 1);
        for (const nib_api_tool *other = q->tool_list; other < tool; other++)
            if (strcmp(other->name, tool->name) == 0)
                return nib__api_refuse(r, param, "%s is '%s', the name of another tool", param,
                                       tool->name);
    }
    if (q->tool_count == 0)
        return true;
    q->tools = from;
    q->tools_size = (size_t)(r->json.at - from);
    if (q->tools_size <= NIB_API_TOOLS_BYTES)
        return true;
    return nib__api_refuse(r, "tools", "tools has %zu bytes, over the limit of %d", q->tools_size,
                           NIB_API_TOOLS_BYTES);
}

/* ---- tool_choice ---- */

static bool read_chosen(nib_api_reader *r)
{
    static const char *const names[] = {"name"};
    nib_api_object o = {.param = "tool_choice.function", .names = names, .count = COUNT(names)};
    int at;
    if (!expect_object(r, o.param))
        return false;
    while ((at = nib__api_next_member(r, &o)) >= 0)
        if (!read_name(r, "tool_choice.function.name", &r->tool_named))
            return false;
    return at == NIB_API_LAST && has_all(r, &o, 1);
}

/* {"type": "function", "function": {"name": "..."}} */
static bool read_named_choice(nib_api_reader *r)
{
    enum { TYPE, FUNCTION };
    static const char *const names[] = {"type", "function"};
    nib_api_object o = {.param = "tool_choice", .names = names, .count = COUNT(names)};
    int at;
    r->to->tool_choice = NIB_TOOLS_NAMED;
    while ((at = nib__api_next_member(r, &o)) >= 0)
        if (!(at == TYPE ? read_type(r, o.param) : read_chosen(r)))
            return false;
    return at == NIB_API_LAST && has_all(r, &o, 1u << TYPE | 1u << FUNCTION);
}

bool nib__api_read_tool_choice(nib_api_reader *r)
{
    static const char *const names[] = {"auto", "none", "required"};
    if (r->json.event == NIB_JSON_OBJECT)
        return read_named_choice(r);
    for (int i = 0; i < (int)COUNT(names) && r->json.event == NIB_JSON_STRING; i++)
        if (nib__json_is(&r->json, names[i])) {
            r->to->tool_choice = (nib_tool_choice)i;
            return true;
        }
    return nib__api_refuse(r, "tool_choice",
                           "tool_choice must be \"auto\", \"none\", \"required\" or an object that "
                           "names a function");
}

bool nib__api_settle_tools(nib_api_reader *r)
{
    nib_api_request *q = r->to;
    char shown[NIB_SHOWN];
    if (q->tool_count == 0)
        return q->tool_choice == NIB_TOOLS_NONE || q->tool_choice == NIB_TOOLS_UNSET ||
               nib__api_refuse(r, "tool_choice",
                               "tool_choice asks for a call, but there are no tools");
    if (q->tool_choice == NIB_TOOLS_UNSET)
        q->tool_choice = NIB_TOOLS_AUTO;
    if (q->format != NIB_API_TEXT && nib__api_may_call(q))
        return nib__api_refuse(r, "response_format",
                               "response_format constrains text, but with tools an answer may be a "
                               "call; leave one out, or set tool_choice to \"none\"");
    if (q->ignore_eos && nib__api_may_call(q))
        return nib__api_refuse(r, "ignore_eos",
                               "ignore_eos continues past the end of an answer, which with tools "
                               "ends the calls; leave one out, or set tool_choice to \"none\"");
    if (q->tool_choice == NIB_TOOLS_NAMED) {
        while (q->tool_named < q->tool_count &&
               strcmp(q->tool_list[q->tool_named].name, r->tool_named) != 0)
            q->tool_named++;
        if (q->tool_named == q->tool_count)
            return nib__api_refuse(r, "tool_choice.function.name",
                                   "tool_choice names '%s', which is not one of the tools",
                                   nib__escape_string(shown, r->tool_named));
    }
    return true;
}

/* ---- calls of earlier messages ---- */

static bool put_name(nib_api_reader *r, const char *param, nib_json *json, nib_jsonw *w)
{
    size_t size;
    const bool key = json->event == NIB_JSON_KEY;
    const char *text = nib__json_string(json, r->arena, &size);
    if (text == NULL)
        return false;
    if (key && memchr(text, 0, size) != NULL)
        return nib__api_refuse(r, param, "%s has a name with U+0000, which is not allowed", param);
    if (key)
        nib__jsonw_key(w, text);
    else
        nib__jsonw_string_n(w, text, size);
    return true;
}

/* Copies a number. Templates hold whole numbers of any size and all others as doubles, so others
 * beyond the range of a double are refused. */
static bool put_number(nib_api_reader *r, nib_json *json, nib_jsonw *w)
{
    const char *number;
    double real;
    bool whole = true;
    for (size_t i = 0; i < json->token_size; i++)
        whole = whole && json->token[i] != '.' && (json->token[i] | 0x20) != 'e';
    if (!whole && !nib__json_double(json, &real))
        return false;
    number = nib__arena_copy(r->arena, json->token, json->token_size);
    if (number != NULL)
        nib__jsonw_number(w, number);
    return number != NULL || nib__api_no_memory(r);
}

/* Writes the event just read. */
static bool put_event(nib_api_reader *r, const char *param, nib_json *json, nib_jsonw *w)
{
    switch (json->event) {
    case NIB_JSON_OBJECT: nib__jsonw_object(w); return true;
    case NIB_JSON_OBJECT_END: nib__jsonw_object_end(w); return true;
    case NIB_JSON_ARRAY: nib__jsonw_array(w); return true;
    case NIB_JSON_ARRAY_END: nib__jsonw_array_end(w); return true;
    case NIB_JSON_KEY:
    case NIB_JSON_STRING: return put_name(r, param, json, w);
    case NIB_JSON_TRUE:
    case NIB_JSON_FALSE: nib__jsonw_bool(w, json->event == NIB_JSON_TRUE); return true;
    case NIB_JSON_NULL: nib__jsonw_null(w); return true;
    case NIB_JSON_NUMBER: return put_number(r, json, w);
    default: return false;
    }
}

/* Arguments are a string that holds a JSON object. It is rewritten the way templates write objects,
 * also for templates that take the string itself. */
static bool read_arguments(nib_api_reader *r, const char *param, const char **out, size_t *size)
{
    const nib_json_limits limits = {.depth = ARGUMENTS_DEPTH};
    const char *given;
    nib_json json;
    nib_text all;
    nib_jsonw w;
    if (!nib__api_read_text(r, param, &given, size))
        return false;
    nib__text_init(&all, r->arena->allocator);
    nib__jsonw_init(&w, &all, 0);
    nib__json_init(&json, "the string", given, *size, &limits);
    bool good = nib__json_next(&json) == NIB_JSON_OBJECT;
    while (good && json.event != NIB_JSON_END)
        good = put_event(r, param, &json, &w) && nib__json_next(&json) != NIB_JSON_ERROR;
    *size = all.size;
    *out = good && !all.failed ? nib__arena_copy(r->arena, all.at, all.size) : NULL;
    nib__text_free(&all);
    if (*out != NULL || r->error->http != 0)
        return *out != NULL;
    if (good || json.err.status == NIB_NO_MEMORY)
        return nib__api_no_memory(r);
    return nib__api_refuse(r, param, "%s must be a string that holds a JSON object%s%s", param,
                           json.event == NIB_JSON_ERROR ? "; " : "",
                           json.event == NIB_JSON_ERROR ? json.err.text : "");
}

/* Writes to both writers, which differ only in the form of the arguments. */
static bool read_called(nib_api_reader *r, const char *of, nib_jsonw w[2])
{
    enum { NAME, ARGUMENTS };
    static const char *const names[] = {"name", "arguments"};
    nib_api_object o = {.param = of, .names = names, .count = COUNT(names)};
    const char *name = NULL, *arguments = NULL;
    size_t size = 0;
    int at;
    if (!expect_object(r, of))
        return false;
    while ((at = nib__api_next_member(r, &o)) >= 0) {
        char param[NIB_API_PARAM];
        nib__api_param(param, "%s.%s", of, names[at]);
        if (!(at == NAME ? read_name(r, param, &name)
                         : read_arguments(r, param, &arguments, &size)))
            return false;
    }
    if (at == NIB_API_ERROR || !has_all(r, &o, 1u << NAME | 1u << ARGUMENTS))
        return false;
    for (int as_text = 0; as_text < 2; as_text++) {
        nib__jsonw_key(&w[as_text], "function");
        nib__jsonw_object(&w[as_text]);
        nib__jsonw_pair_string(&w[as_text], "name", name);
        nib__jsonw_key(&w[as_text], "arguments");
        if (as_text)
            nib__jsonw_string_n(&w[as_text], arguments, size);
        else
            nib__jsonw_number(&w[as_text], arguments);
        nib__jsonw_object_end(&w[as_text]);
    }
    return true;
}

static bool read_call_id(nib_api_reader *r, const char *of, nib_jsonw w[2])
{
    char param[NIB_API_PARAM];
    const char *id;
    size_t size;
    nib__api_param(param, "%s.id", of);
    if (!nib__api_read_text(r, param, &id, &size) || !nib__api_note_id(r, &r->calls, id))
        return false;
    nib__jsonw_pair_string(&w[0], "id", id);
    nib__jsonw_pair_string(&w[1], "id", id);
    return true;
}

static bool read_call(nib_api_reader *r, const char *of, nib_jsonw w[2])
{
    enum { ID, TYPE, FUNCTION };
    static const char *const names[] = {"id", "type", "function"};
    nib_api_object o = {.param = of, .names = names, .count = COUNT(names)};
    char param[NIB_API_PARAM];
    int at;
    if (!expect_object(r, of))
        return false;
    nib__api_param(param, "%s.function", of);
    for (int i = 0; i < 2; i++) {
        nib__jsonw_object(&w[i]);
        nib__jsonw_pair_string(&w[i], "type", "function");
    }
    while ((at = nib__api_next_member(r, &o)) >= 0)
        if (!(at == ID     ? read_call_id(r, of, w)
              : at == TYPE ? read_type(r, of)
                           : read_called(r, param, w)))
            return false;
    nib__jsonw_object_end(&w[0]);
    nib__jsonw_object_end(&w[1]);
    return at == NIB_API_LAST && has_all(r, &o, 1u << ID | 1u << TYPE | 1u << FUNCTION);
}

bool nib__api_read_calls(nib_api_reader *r, const char *param, const char *out[2])
{
    nib_text all[2];
    nib_jsonw w[2];
    size_t count = 0;
    bool good = true;
    if (r->json.event != NIB_JSON_ARRAY)
        return nib__api_refuse(r, param, "%s is %s, but must be an array", param,
                               nib__api_describe_event(r));
    for (int i = 0; i < 2; i++) {
        nib__text_init(&all[i], r->arena->allocator);
        nib__jsonw_init(&w[i], &all[i], 0);
        nib__jsonw_array(&w[i]);
    }
    for (; good && nib__json_next(&r->json) != NIB_JSON_ARRAY_END; count++) {
        char of[NIB_API_PARAM];
        nib__api_param(of, "%s[%zu]", param, count);
        good = read_call(r, of, w);
    }
    if (good && count == 0)
        good = nib__api_refuse(r, param, "%s is empty; leave it out", param);
    for (int i = 0; i < 2; i++) {
        nib__jsonw_array_end(&w[i]);
        if (good) {
            out[i] = nib__arena_copy(r->arena, all[i].size > 0 ? all[i].at : "", all[i].size);
            good = (out[i] != NULL && !all[i].failed) || nib__api_no_memory(r);
        }
        nib__text_free(&all[i]);
    }
    return good;
}
