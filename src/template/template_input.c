/* SPDX-License-Identifier: Apache-2.0
 *
 * The variables of a rendering: JSON values from users, marked as user text, and tokens of the
 * model. Reads the JSON into values without recursion.
 */
#include "template_parts.h"

#include <stdlib.h>

/* Templates build special tokens with these words, such as "<|" + role + "|>". Any other role is
 * user text. */
static const char *const roles[] = {
    "user",    "assistant",   "system", "tool",          "developer",           "function",
    "ipython", "observation", "model",  "tool_response", "assistant_tool_call", "context",
};

static bool is_role(const char *at, size_t size)
{
    for (size_t i = 0; i < COUNT(roles); i++) {
        if (strlen(roles[i]) == size && memcmp(roles[i], at, size) == 0)
            return true;
    }
    return false;
}

typedef struct json_reader {
    nib_render *r;
    nib_json json;
    bool messages;                     /* the value is the conversation */
    nib_value open[NIB_TEMPLATE_JSON]; /* collections that enclose the next value */
    nib_value keys[NIB_TEMPLATE_JSON]; /* the current key of each one that is a dict */
    int depth;
} json_reader;

/* False: the integer does not fit into 64 bits. */
static bool parse_int64(const char *digits, size_t size, int64_t *out)
{
    const bool minus = digits[0] == '-';
    uint64_t value = 0;
    for (size_t i = minus; i < size; i++) {
        if (!nib__append_digit(&value, 10, digits[i] - '0'))
            return false;
    }
    *out = minus ? -(int64_t)value : (int64_t)value;
    return true;
}

static nib_status read_number(json_reader *g, nib_value *out)
{
    nib_json *json = &g->json;
    int64_t integer;
    double real;
    bool whole = true;
    for (size_t i = 0; i < json->token_size; i++)
        whole =
            whole && (json->token[i] == '-' || (json->token[i] >= '0' && json->token[i] <= '9'));
    if (whole && parse_int64(json->token, json->token_size, &integer)) {
        *out = nib__v_int(integer);
    } else if (whole) {
        char *digits = nib__run_alloc(g->r, json->token_size + 1, 1);
        if (digits == NULL)
            return NIB_NO_MEMORY;
        memcpy(digits, json->token, json->token_size);
        NIB_TRY(nib__v_text(g->r, out, digits, json->token_size, true));
        out->kind = NIB_V_BIG;
    } else if (nib__json_double(json, &real)) {
        *out = nib__v_real(real);
    } else {
        return nib__json_status(json, g->r->err);
    }
    out->user = true;
    return NIB_OK;
}

static nib_status read_text(json_reader *g, nib_value *out)
{
    size_t size;
    /* In the rendering's arena, so that it counts towards the limit. */
    const char *at = nib__json_string(&g->json, &g->r->arena, &size);
    if (at == NULL)
        return nib__json_status(&g->json, g->r->err);
    const bool role = g->json.event == NIB_JSON_STRING && g->messages && g->depth == 2 &&
                      g->open[1].kind == NIB_V_DICT && nib__is_text(g->keys[1], "role") &&
                      is_role(at, size);
    return nib__v_text(g->r, out, at, size, !role);
}

/* Stores a complete value in the innermost open collection, or as the result. */
static nib_status store_value(json_reader *g, nib_value value, nib_value *out)
{
    if (g->depth == 0) {
        *out = value;
        return NIB_OK;
    }
    nib_value *in = &g->open[g->depth - 1];
    return in->kind == NIB_V_DICT ? nib__dict_put(g->r, in->as.dict, g->keys[g->depth - 1], value)
                                  : nib__items_push(g->r, in, value);
}

static nib_status open_collection(json_reader *g, bool object)
{
    nib_value *in = &g->open[g->depth];
    if (g->depth == NIB_TEMPLATE_JSON) {
        nib__json_fail(&g->json, "the value is nested deeper than %d", NIB_TEMPLATE_JSON);
        return nib__json_status(&g->json, g->r->err);
    }
    NIB_TRY(object ? nib__v_dict(g->r, in, NIB_V_DICT) : nib__v_items(g->r, in, NIB_V_LIST, 4));
    in->user = true;
    g->depth++;
    return NIB_OK;
}

static nib_status read_event(json_reader *g, nib_value *out)
{
    nib_value value = nib__v_none();
    switch (g->json.event) {
    case NIB_JSON_OBJECT:
    case NIB_JSON_ARRAY: return open_collection(g, g->json.event == NIB_JSON_OBJECT);
    case NIB_JSON_OBJECT_END:
    case NIB_JSON_ARRAY_END: g->depth--; return store_value(g, g->open[g->depth], out);
    case NIB_JSON_KEY: return read_text(g, &g->keys[g->depth - 1]);
    case NIB_JSON_STRING: NIB_TRY(read_text(g, &value)); break;
    case NIB_JSON_NUMBER: NIB_TRY(read_number(g, &value)); break;
    case NIB_JSON_TRUE:
    case NIB_JSON_FALSE:
        value = nib__v_bool(g->json.event == NIB_JSON_TRUE);
        value.user = true;
        break;
    case NIB_JSON_NULL: value.user = true; break;
    default: return nib__json_status(&g->json, g->r->err);
    }
    return store_value(g, value, out);
}

static nib_status read_value(nib_render *r, const nib_template_value *from, nib_value *out)
{
    const nib_json_limits limits = {.depth = NIB_TEMPLATE_JSON, .literals = true};
    json_reader g = {.r = r, .messages = from->name != NULL && strcmp(from->name, "messages") == 0};
    *out = nib__v_none();
    nib__json_init(&g.json, from->name != NULL ? from->name : "the template's variables",
                   from->json, from->size, &limits);
    while (nib__json_next(&g.json) != NIB_JSON_END)
        NIB_TRY(read_event(&g, out));
    return NIB_OK;
}

static void set_global(nib_render *r, const char *name, size_t size, nib_value value)
{
    size_t slot;
    if (nib__symbol_find(r->t, name, size, &slot))
        r->globals[r->t->symbol_slots[slot] - 1] = value;
}

nib_status nib__run_input(nib_render *r)
{
    const nib_template_input *in = r->input;
    nib_value value;
    for (size_t i = 0; i < in->token_count; i++) {
        if (nib__utf8_check(in->tokens[i].text, in->tokens[i].size) != in->tokens[i].size)
            return nib__fail(r->err, NIB_BAD_INPUT,
                             "the token for the template variable %s is not valid UTF-8",
                             in->tokens[i].name);
        NIB_TRY(nib__v_text(r, &value, in->tokens[i].text, in->tokens[i].size, false));
        set_global(r, in->tokens[i].name, strlen(in->tokens[i].name), value);
    }
    set_global(r, "add_generation_prompt", 21, nib__v_bool(in->add_generation_prompt));
    for (size_t i = 0; i < in->value_count; i++) {
        const nib_template_value *from = &in->values[i];
        NIB_TRY(read_value(r, from, &value));
        if (from->name != NULL) {
            set_global(r, from->name, strlen(from->name), value);
            continue;
        }
        if (value.kind != NIB_V_DICT)
            return nib__fail(r->err, NIB_BAD_INPUT,
                             "the template's variables are a %s, not a JSON object",
                             nib__kind_name(value));
        for (size_t k = 0; k < value.as.dict->count; k++)
            set_global(r, value.as.dict->pairs[k].key.as.string->at,
                       value.as.dict->pairs[k].key.as.string->size, value.as.dict->pairs[k].value);
    }
    return NIB_OK;
}
