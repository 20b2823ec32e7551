/* SPDX-License-Identifier: Apache-2.0
 *
 * The members of a request, one row each: the routes that have it and the function that reads it.
 * Members that Nibble does not support have a row, too, which accepts values that ask for nothing.
 */
#include "api_request.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

/* ---- kinds of values ---- */

typedef struct member member;
struct member {
    const char *name;
    unsigned on;                                      /* a bit per route */
    bool (*read)(nib_api_reader *r, const member *m); /* after the first event, which is not null */
    size_t place;                                     /* offset in nib_api_request */
    double least, most;
    const char *why; /* reason for refusing it; NULL: supported */
};

enum { CHAT = 1 << NIB_ROUTE_CHAT, TEXT = 1 << NIB_ROUTE_COMPLETIONS, BOTH = CHAT | TEXT };

static bool require_event(nib_api_reader *r, const char *param, nib_json_event event,
                          const char *what)
{
    return r->json.event == event || nib__api_refuse(r, param, "%s is %s, but must be %s", param,
                                                     nib__api_describe_event(r), what);
}

static bool expect(nib_api_reader *r, const member *m, nib_json_event event, const char *what)
{
    return require_event(r, m->name, event, what);
}

static void *member_field(const nib_api_reader *r, const member *m)
{
    return (char *)r->to + m->place;
}

static bool read_double(nib_api_reader *r, const member *m)
{
    double value;
    if (!expect(r, m, NIB_JSON_NUMBER, "a number"))
        return false;
    if (!nib__json_double(&r->json, &value))
        return nib__api_fail_json(r);
    if (!(value >= m->least && value <= m->most))
        return nib__api_refuse(r, m->name, "%s is %g, but must be between %g and %g", m->name,
                               value, m->least, m->most);
    *(double *)member_field(r, m) = value;
    return true;
}

static bool parse_int(nib_api_reader *r, const member *m, int64_t *out)
{
    if (!expect(r, m, NIB_JSON_NUMBER, "a whole number"))
        return false;
    if (!nib__json_int64(&r->json, out))
        return nib__api_refuse(r, m->name, "%s is %s, but must be a whole number of 64 bits",
                               m->name, nib__api_token((char[NIB_API_SHOWN]){0}, r));
    if ((double)*out < m->least || (double)*out > m->most)
        return nib__api_refuse(r, m->name, "%s is %" PRId64 ", but must be between %.0f and %.0f",
                               m->name, *out, m->least, m->most);
    return true;
}

static bool read_int(nib_api_reader *r, const member *m)
{
    return parse_int(r, m, (int64_t *)member_field(r, m));
}

static bool parse_bool(nib_api_reader *r, const char *name, bool *out)
{
    *out = r->json.event == NIB_JSON_TRUE;
    return *out || r->json.event == NIB_JSON_FALSE ||
           nib__api_refuse(r, name, "%s is %s, but must be true or false", name,
                           nib__api_describe_event(r));
}

static bool read_bool(nib_api_reader *r, const member *m)
{
    return parse_bool(r, m->name, (bool *)member_field(r, m));
}

/* ---- members of their own kind ---- */

static bool read_model(nib_api_reader *r, const member *m)
{
    size_t size;
    if (!expect(r, m, NIB_JSON_STRING, "a string"))
        return false;
    const char *name = nib__api_parse_string(r, m->name, &size);
    if (name == NULL)
        return false;
    if (strcmp(name, r->limits->model) == 0)
        return true;
    char shown[NIB_SHOWN];
    nib__api_refuse(r, m->name, "the model '%s' does not exist; '%s' is served here",
                    nib__escape_string(shown, name), r->limits->model);
    r->error->http = 404;
    r->error->code = "model_not_found";
    return false;
}

static bool read_seed(nib_api_reader *r, const member *m)
{
    int64_t seed;
    if (!parse_int(r, m, &seed))
        return false;
    r->to->seed = (uint64_t)seed;
    r->to->seed_given = true;
    return true;
}

static bool read_messages(nib_api_reader *r, const member *m)
{
    return expect(r, m, NIB_JSON_ARRAY, "an array of messages") && nib__api_read_messages(r);
}

static bool read_prompt(nib_api_reader *r, const member *m)
{
    (void)m;
    return nib__api_read_prompt(r);
}

static bool add_stop(nib_api_reader *r, const member *m)
{
    size_t size;
    if (r->to->stop_count == NIB_API_STOPS)
        return nib__api_refuse(r, m->name, "stop has more than %d strings", NIB_API_STOPS);
    const char *stop = nib__api_parse_string(r, m->name, &size);
    if (stop == NULL)
        return false;
    if (size == 0)
        return nib__api_refuse(r, m->name, "stop has an empty string; leave it out");
    r->to->stops[r->to->stop_count++] = stop;
    return true;
}

static bool read_stop(nib_api_reader *r, const member *m)
{
    if (r->json.event == NIB_JSON_STRING)
        return add_stop(r, m);
    if (!expect(r, m, NIB_JSON_ARRAY, "a string or an array of strings"))
        return false;
    while (nib__json_next(&r->json) != NIB_JSON_ARRAY_END) {
        if (r->json.event == NIB_JSON_ERROR)
            return nib__api_fail_json(r);
        if (!expect(r, m, NIB_JSON_STRING, "an array of strings") || !add_stop(r, m))
            return false;
    }
    return true;
}

/* "id": bias, with the id as a string. */
static bool read_one_bias(nib_api_reader *r, const member *m, nib_logit_bias *out)
{
    nib_json digits;
    int64_t id = -1;
    double bias;
    char key[NIB_API_SHOWN];
    nib__api_token(key, r);
    nib__json_init(&digits, m->name, key, strlen(key), NULL);
    if (nib__json_next(&digits) != NIB_JSON_NUMBER || !nib__json_int64(&digits, &id) || id < 0 ||
        id >= r->limits->vocab)
        return nib__api_refuse(r, m->name,
                               "logit_bias names the token '%s', but ids are whole numbers from 0 "
                               "to %" PRId64,
                               key, r->limits->vocab - 1);
    if (nib__json_next(&r->json) != NIB_JSON_NUMBER || !nib__json_double(&r->json, &bias) ||
        !(bias >= -100 && bias <= 100))
        return r->json.event == NIB_JSON_ERROR
                   ? nib__api_fail_json(r)
                   : nib__api_refuse(r, m->name,
                                     "the logit_bias of token %s must be a number between -100 and "
                                     "100",
                                     key);
    *out = (nib_logit_bias){.id = (int32_t)id, .bias = (float)bias};
    return true;
}

static bool read_bias(nib_api_reader *r, const member *m)
{
    if (!expect(r, m, NIB_JSON_OBJECT, "an object"))
        return false;
    r->to->bias = nib__arena_take(r->arena, NIB_API_BIASES, sizeof *r->to->bias);
    if (r->to->bias == NULL)
        return nib__api_no_memory(r);
    while (nib__json_next(&r->json) == NIB_JSON_KEY) {
        if (r->to->bias_count == NIB_API_BIASES)
            return nib__api_refuse(r, m->name, "logit_bias has more than %d tokens",
                                   NIB_API_BIASES);
        nib_logit_bias *bias = &r->to->bias[r->to->bias_count++];
        if (!read_one_bias(r, m, bias))
            return false;
        for (const nib_logit_bias *other = r->to->bias; other < bias; other++)
            if (other->id == bias->id)
                return nib__api_refuse(r, m->name, "logit_bias names token %d twice", bias->id);
    }
    return r->json.event == NIB_JSON_OBJECT_END || nib__api_fail_json(r);
}

/* In a chat a switch (the count is top_logprobs), in a completion the count. */
static bool read_logprobs(nib_api_reader *r, const member *m)
{
    if (r->to->route == NIB_ROUTE_CHAT)
        return parse_bool(r, m->name, &r->logprobs);
    r->top_given = true;
    return parse_int(r, m, &r->top);
}

static bool read_top(nib_api_reader *r, const member *m)
{
    r->top_given = true;
    return parse_int(r, m, &r->top);
}

static bool read_best_of(nib_api_reader *r, const member *m)
{
    return parse_int(r, m, &r->best_of);
}

static bool read_old_max(nib_api_reader *r, const member *m)
{
    return parse_int(r, m, &r->old_max);
}

static bool read_stream_options(nib_api_reader *r, const member *m)
{
    enum { USAGE, PADDING };
    static const char *const names[] = {"include_usage", "include_obfuscation"};
    nib_api_object o = {.param = m->name, .names = names, .count = COUNT(names)};
    int at;
    if (!expect(r, m, NIB_JSON_OBJECT, "an object"))
        return false;
    while ((at = nib__api_next_member(r, &o)) >= 0) {
        bool on;
        if (!parse_bool(r,
                        at == USAGE ? "stream_options.include_usage"
                                    : "stream_options.include_obfuscation",
                        &on))
            return false;
        if (at == USAGE)
            r->to->include_usage = on;
        else if (on)
            return nib__api_refuse(r, "stream_options.include_obfuscation",
                                   "padding of stream chunks is not supported; leave out "
                                   "include_obfuscation");
    }
    return at == NIB_API_LAST;
}

bool nib__api_raw_object(nib_api_reader *r, const char **out, size_t *size)
{
    const char *from = r->json.from;
    if (!nib__json_skip(&r->json))
        return nib__api_fail_json(r);
    *out = from;
    *size = (size_t)(r->json.at - from);
    return true;
}

/* Members of any name, each at most once. */
static bool read_variables(nib_api_reader *r, const member *m)
{
    const char *names[NIB_API_VARIABLES], *from = r->json.from;
    int count = 0;
    if (!expect(r, m, NIB_JSON_OBJECT, "an object"))
        return false;
    for (; nib__json_next(&r->json) == NIB_JSON_KEY; count++) {
        char shown[NIB_API_SHOWN];
        size_t size;
        if (count == NIB_API_VARIABLES)
            return nib__api_refuse(r, m->name, "%s has more than %d members", m->name,
                                   NIB_API_VARIABLES);
        names[count] = nib__api_parse_string(r, m->name, &size);
        if (names[count] == NULL)
            return false;
        for (int i = 0; i < count; i++)
            if (strcmp(names[i], names[count]) == 0)
                return nib__api_refuse(r, m->name, "%s.%s is given twice", m->name,
                                       nib__escape_name(shown, sizeof shown, names[i], size));
        if (strcmp(names[count], "messages") == 0 || strcmp(names[count], "tools") == 0)
            return nib__api_refuse(r, m->name,
                                   "%s.%s is not allowed; give %s as a member of the request",
                                   m->name, names[count], names[count]);
        if (!nib__json_skip(&r->json))
            return nib__api_fail_json(r);
    }
    r->to->variables = from;
    r->to->variables_size = (size_t)(r->json.at - from);
    return r->json.event == NIB_JSON_OBJECT_END || nib__api_fail_json(r);
}

static bool read_json_schema(nib_api_reader *r)
{
    enum { NAME, DESCRIPTION, STRICT, SCHEMA };
    static const char *const names[] = {"name", "description", "strict", "schema"};
    static const char param[] = "response_format.json_schema";
    nib_api_object o = {.param = param, .names = names, .count = COUNT(names)};
    int at;
    if (!require_event(r, param, NIB_JSON_OBJECT, "an object"))
        return false;
    while ((at = nib__api_next_member(r, &o)) >= 0) {
        const bool null = r->json.event == NIB_JSON_NULL;
        bool good, on;
        if (at == NAME)
            good =
                require_event(r, "response_format.json_schema.name", NIB_JSON_STRING, "a string");
        else if (at == DESCRIPTION)
            good = null || require_event(r, "response_format.json_schema.description",
                                         NIB_JSON_STRING, "a string or null");
        else if (at == STRICT) /* a schema is always followed exactly */
            good = null || parse_bool(r, "response_format.json_schema.strict", &on);
        else
            good = require_event(r, "response_format.json_schema.schema", NIB_JSON_OBJECT,
                                 "an object") &&
                   nib__api_raw_object(r, &r->to->schema, &r->to->schema_size);
        if (!good)
            return false;
    }
    return at == NIB_API_LAST;
}

static bool read_format_type(nib_api_reader *r)
{
    static const char *const names[] = {"text", "json_object", "json_schema"};
    for (int i = 0; i < (int)COUNT(names) && r->json.event == NIB_JSON_STRING; i++)
        if (nib__json_is(&r->json, names[i])) {
            r->to->format = (nib_api_format)i;
            return true;
        }
    return nib__api_refuse(r, "response_format.type",
                           "response_format.type must be \"text\", \"json_object\" or "
                           "\"json_schema\"");
}

static bool read_format(nib_api_reader *r, const member *m)
{
    enum { TYPE, JSON_SCHEMA };
    static const char *const names[] = {"type", "json_schema"};
    nib_api_object o = {.param = m->name, .names = names, .count = COUNT(names)};
    int at;
    if (!expect(r, m, NIB_JSON_OBJECT, "an object"))
        return false;
    while ((at = nib__api_next_member(r, &o)) >= 0)
        if (!(at == TYPE ? read_format_type(r) : read_json_schema(r)))
            return false;
    if (at == NIB_API_ERROR)
        return false;
    if ((o.seen & 1u << TYPE) == 0)
        return nib__api_refuse(r, "response_format.type", "response_format has no type");
    if ((r->to->format == NIB_API_SCHEMA) != (r->to->schema != NULL))
        return nib__api_refuse(r, "response_format.json_schema",
                               r->to->schema ? "response_format has a json_schema, but its type is "
                                               "not \"json_schema\""
                                             : "response_format has no json_schema.schema");
    return true;
}

static bool read_tools(nib_api_reader *r, const member *m)
{
    return expect(r, m, NIB_JSON_ARRAY, "an array of tools") && nib__api_read_tools(r);
}

static bool read_tool_choice(nib_api_reader *r, const member *m)
{
    (void)m;
    return nib__api_read_tool_choice(r);
}

static bool parse_string(nib_api_reader *r, const member *m, const char **out)
{
    size_t size;
    if (!expect(r, m, NIB_JSON_STRING, "a string"))
        return false;
    *out = nib__api_parse_string(r, m->name, &size);
    return *out != NULL;
}

static bool read_user(nib_api_reader *r, const member *m)
{
    return parse_string(r, m, &r->to->user);
}

static bool read_old_user(nib_api_reader *r, const member *m)
{
    return parse_string(r, m, &r->old_user);
}

/* prompt_cache_key has no effect: common prefixes are shared with or without it. */
static bool read_name(nib_api_reader *r, const member *m)
{
    return expect(r, m, NIB_JSON_STRING, "a string");
}

/* ---- members that are refused unless their value asks for nothing ---- */

static bool refuse(nib_api_reader *r, const member *m)
{
    return nib__api_refuse(r, m->name, "%s is not supported: %s", m->name, m->why);
}

static bool refuse_true(nib_api_reader *r, const member *m)
{
    bool on;
    return parse_bool(r, m->name, &on) && (!on || refuse(r, m));
}

static bool refuse_filled(nib_api_reader *r, const member *m)
{
    const bool empty = r->json.event == NIB_JSON_ARRAY;
    return empty && nib__json_next(&r->json) == NIB_JSON_ARRAY_END ? true : refuse(r, m);
}

static bool refuse_but(nib_api_reader *r, const member *m, const char *one, const char *other)
{
    return (r->json.event == NIB_JSON_STRING &&
            (nib__json_is(&r->json, one) || nib__json_is(&r->json, other))) ||
           refuse(r, m);
}

static bool refuse_choice(nib_api_reader *r, const member *m)
{
    return refuse_but(r, m, "none", "none");
}

static bool refuse_tier(nib_api_reader *r, const member *m)
{
    return refuse_but(r, m, "auto", "default");
}

static bool refuse_modalities(nib_api_reader *r, const member *m)
{
    const bool one = r->json.event == NIB_JSON_ARRAY &&
                     nib__json_next(&r->json) == NIB_JSON_STRING && nib__json_is(&r->json, "text");
    return one && nib__json_next(&r->json) == NIB_JSON_ARRAY_END ? true : refuse(r, m);
}

#define PLACE(member) offsetof(nib_api_request, member)
#define TOKENS 1e15 /* more than any context; the model's limit is checked later */

static const member members[] = {
    {"model", BOTH, read_model, 0, 0, 0, NULL},
    {"messages", CHAT, read_messages, 0, 0, 0, NULL},
    {"prompt", TEXT, read_prompt, 0, 0, 0, NULL},
    {"max_completion_tokens", CHAT, read_int, PLACE(max_tokens), 1, TOKENS, NULL},
    {"max_tokens", BOTH, read_old_max, 0, 0, TOKENS, NULL},
    {"temperature", BOTH, read_double, PLACE(sampling.temperature), 0, 2, NULL},
    {"top_p", BOTH, read_double, PLACE(sampling.top_p), 0, 1, NULL},
    {"n", BOTH, read_int, PLACE(n), 1, NIB_API_CHOICES, NULL},
    {"best_of", TEXT, read_best_of, 0, 1, NIB_API_CHOICES, NULL},
    {"stop", BOTH, read_stop, 0, 0, 0, NULL},
    {"seed", BOTH, read_seed, 0, -0x1p63, 0x1p63, NULL},
    {"stream", BOTH, read_bool, PLACE(stream), 0, 0, NULL},
    {"stream_options", BOTH, read_stream_options, 0, 0, 0, NULL},
    {"presence_penalty", BOTH, read_double, PLACE(presence_penalty), -2, 2, NULL},
    {"frequency_penalty", BOTH, read_double, PLACE(frequency_penalty), -2, 2, NULL},
    {"logit_bias", BOTH, read_bias, 0, 0, 0, NULL},
    {"logprobs", BOTH, read_logprobs, 0, 0, 5, NULL},
    {"top_logprobs", CHAT, read_top, 0, 0, NIB_LOGPROBS_MOST, NULL},
    {"echo", TEXT, read_bool, PLACE(echo), 0, 0, NULL},
    {"response_format", CHAT, read_format, 0, 0, 0, NULL},
    {"tools", CHAT, read_tools, 0, 0, 0, NULL},
    {"tool_choice", CHAT, read_tool_choice, 0, 0, 0, NULL},
    {"parallel_tool_calls", CHAT, read_bool, PLACE(parallel_calls), 0, 0, NULL},
    {"user", BOTH, read_old_user, 0, 0, 0, NULL},
    {"safety_identifier", CHAT, read_user, 0, 0, 0, NULL},
    {"prompt_cache_key", CHAT, read_name, 0, 0, 0, NULL},
    /* not OpenAI's: names of llama.cpp and vLLM */
    {"top_k", BOTH, read_int, PLACE(sampling.top_k), 0, TOKENS, NULL},
    {"min_p", BOTH, read_double, PLACE(sampling.min_p), 0, 1, NULL},
    {"repetition_penalty", BOTH, read_double, PLACE(sampling.repeat_penalty), 0.01, 100, NULL},
    {"ignore_eos", BOTH, read_bool, PLACE(ignore_eos), 0, 0, NULL},
    {"chat_template_kwargs", CHAT, read_variables, 0, 0, 0, NULL},
    /* refused */
    {"suffix", TEXT, refuse, 0, 0, 0, "fill-in-the-middle is not supported"},
    {"store", CHAT, refuse_true, 0, 0, 0, "nothing is stored"},
    {"metadata", CHAT, refuse, 0, 0, 0, "nothing is stored"},
    {"service_tier", CHAT, refuse_tier, 0, 0, 0, "there is one tier, \"default\""},
    {"modalities", CHAT, refuse_modalities, 0, 0, 0, "answers are text, [\"text\"]"},
    {"audio", CHAT, refuse, 0, 0, 0, "answers are text"},
    {"functions", CHAT, refuse_filled, 0, 0, 0, "use tools instead"},
    {"function_call", CHAT, refuse_choice, 0, 0, 0, "use tool_choice instead"},
    {"prediction", CHAT, refuse, 0, 0, 0, "drafts from a request are not used"},
    {"reasoning_effort", CHAT, refuse, 0, 0, 0, "use chat_template_kwargs for a model's switches"},
    {"verbosity", CHAT, refuse, 0, 0, 0, "use chat_template_kwargs for a model's switches"},
    {"web_search_options", CHAT, refuse, 0, 0, 0, "web search is not supported"},
    {"prompt_cache_retention", CHAT, refuse, 0, 0, 0, "prompts are kept while there is room"},
};

/* ---- the whole ---- */

static const member *find_member(const nib_api_reader *r)
{
    for (size_t i = 0; i < COUNT(members); i++)
        if (nib__json_is(&r->json, members[i].name) && (members[i].on >> r->to->route & 1) != 0)
            return &members[i];
    return NULL;
}

static bool refuse_unknown(nib_api_reader *r)
{
    const char *names[COUNT(members)];
    char shown[64];
    size_t count = 0;
    nib_text near;
    nib__escape_name(shown, sizeof shown, r->json.token, r->json.token_size);
    for (size_t i = 0; i < COUNT(members); i++)
        if ((members[i].on >> r->to->route & 1) != 0)
            names[count++] = members[i].name;
    nib__text_init(&near, r->arena->allocator);
    nib__near_names(&near, shown, names, count);
    nib__api_refuse(r, shown, "unknown member '%s'%s%s%s", shown,
                    near.size > 0 ? "; did you mean " : "", near.size > 0 ? near.at : "",
                    near.size > 0 ? "?" : "");
    nib__text_free(&near);
    return false;
}

static bool read_members(nib_api_reader *r)
{
    bool seen[COUNT(members)] = {false};
    if (nib__json_next(&r->json) != NIB_JSON_OBJECT)
        return r->json.event == NIB_JSON_ERROR
                   ? nib__api_fail_json(r)
                   : nib__api_refuse(r, "", "the body is %s, but must be an object",
                                     nib__api_describe_event(r));
    while (nib__json_next(&r->json) == NIB_JSON_KEY) {
        const member *m = find_member(r);
        if (m == NULL)
            return refuse_unknown(r);
        if (seen[m - members])
            return nib__api_refuse(r, m->name, "%s is given twice", m->name);
        seen[m - members] = true;
        if (nib__json_next(&r->json) == NIB_JSON_ERROR)
            return nib__api_fail_json(r);
        if (r->json.event != NIB_JSON_NULL && !m->read(r, m))
            return false;
    }
    if (r->json.event != NIB_JSON_OBJECT_END || nib__json_next(&r->json) != NIB_JSON_END)
        return nib__api_fail_json(r);
    return true;
}

/* Checks members against each other and fills in defaults. */
static bool check_members(nib_api_reader *r)
{
    nib_api_request *q = r->to;
    const bool chat = q->route == NIB_ROUTE_CHAT;
    if (chat && q->messages == NULL)
        return nib__api_refuse(r, "messages", "messages is missing");
    if (!chat && q->prompt_count == 0)
        return nib__api_refuse(r, "prompt", "prompt is missing");
    if (chat && r->top_given && !r->logprobs)
        return nib__api_refuse(r, "top_logprobs", "top_logprobs needs logprobs to be true");
    if (q->max_tokens >= 0 && r->old_max >= 0 && q->max_tokens != r->old_max)
        return nib__api_refuse(r, "max_tokens",
                               "max_tokens and max_completion_tokens have different values");
    if (q->user == NULL)
        q->user = r->old_user;
    q->max_name = q->max_tokens >= 0 ? "max_completion_tokens"
                  : r->old_max >= 0  ? "max_tokens"
                                     : NULL;
    if (q->max_tokens < 0)
        q->max_tokens = r->old_max >= 0 ? r->old_max : chat ? -1 : 16;
    if (chat && q->max_tokens == 0)
        return nib__api_refuse(r, "max_tokens", "max_tokens is 0, but must be at least 1");
    if (!chat && q->max_tokens == 0 && !q->echo)
        return nib__api_refuse(r, "max_tokens", "max_tokens is 0, which needs echo");
    if (r->best_of >= 0 && r->best_of != q->n)
        return nib__api_refuse(r, "best_of",
                               "best_of is %" PRId64 ", but must equal n, which is %" PRId64,
                               r->best_of, q->n);
    if (nib__max((int64_t)q->prompt_count, 1) * q->n > NIB_API_CHOICES)
        return nib__api_refuse(r, "n", "%zu prompts with n %" PRId64 " exceed %d choices",
                               q->prompt_count, q->n, NIB_API_CHOICES);
    if (q->include_usage && !q->stream)
        return nib__api_refuse(r, "stream_options", "stream_options needs stream to be true");
    if (q->ignore_eos && q->format != NIB_API_TEXT)
        return nib__api_refuse(r, "ignore_eos",
                               "ignore_eos continues past the end of an answer, where "
                               "response_format ends its value; leave one out");
    if (!nib__api_settle_tools(r))
        return false;
    q->top = chat ? (r->logprobs ? (int)r->top : -1) : (r->top_given ? (int)r->top : -1);
    return true;
}

bool nib__api_request_read(nib_api_request *out, nib_route route, const char *body, size_t size,
                           const nib_api_limits *limits, nib_arena *arena, nib_api_error *error)
{
    nib_api_reader r = {
        .to = out, .limits = limits, .arena = arena, .error = error, .best_of = -1, .old_max = -1};
    *out = (nib_api_request){.route = route,
                             .sampling = {-1, -1, -1, -1, .top_k = -1},
                             .max_tokens = -1,
                             .n = 1,
                             .top = -1,
                             .tool_choice = NIB_TOOLS_UNSET,
                             .parallel_calls = true};
    *error = (nib_api_error){0};
    nib__json_init(&r.json, "the body", body, size, NULL);
    return read_members(&r) && check_members(&r);
}
