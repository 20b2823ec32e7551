/* SPDX-License-Identifier: Apache-2.0
 *
 * The variables of a rendering: values of users out of JSON, each marked as theirs, and tokens of
 * the model. The JSON is read into values without recursion.
 */
#include "template_parts.h"

#include <stdlib.h>

/* Templates write special tokens around these words, or out of them: "<|" + role + "|>". Any other
 * role stays a user's text. */
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

typedef struct reading {
    nib_run *r;
    nib_json json;
    bool messages;                     /* the value is the conversation */
    nib_value open[NIB_TEMPLATE_JSON]; /* collections around the value that comes */
    nib_value keys[NIB_TEMPLATE_JSON]; /* of those that are dicts: the key that waits */
    int depth;
} reading;

static bool fits(const char *digits, size_t size, int64_t *out)
{
    const bool minus = digits[0] == '-';
    uint64_t value = 0;
    for (size_t i = minus; i < size; i++) {
        if (!nib__mul(&value, value, 10) || !nib__add(&value, value, (uint64_t)(digits[i] - '0')) ||
            value > INT64_MAX)
            return false;
    }
    *out = minus ? -(int64_t)value : (int64_t)value;
    return true;
}

static nib_status read_number(reading *g, nib_value *out)
{
    nib_json *json = &g->json;
    int64_t integer;
    double real;
    bool whole = true;
    for (size_t i = 0; i < json->token_size; i++)
        whole =
            whole && (json->token[i] == '-' || (json->token[i] >= '0' && json->token[i] <= '9'));
    if (whole && fits(json->token, json->token_size, &integer)) {
        *out = nib__v_int(integer);
    } else if (whole) {
        char *digits = nib__run_take(g->r, json->token_size + 1, 1);
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

static nib_status read_text(reading *g, nib_value *out)
{
    size_t size;
    /* Of the rendering's arena, so its limit counts it. */
    const char *at = nib__json_string(&g->json, &g->r->arena, &size);
    if (at == NULL)
        return nib__json_status(&g->json, g->r->err);
    const bool role = g->json.event == NIB_JSON_STRING && g->messages && g->depth == 2 &&
                      g->open[1].kind == NIB_V_DICT && nib__is_text(g->keys[1], "role") &&
                      is_role(at, size);
    return nib__v_text(g->r, out, at, size, !role);
}

/* A value that is whole goes where it belongs: into what is open, or it is the result. */
static nib_status place(reading *g, nib_value value, nib_value *out)
{
    if (g->depth == 0) {
        *out = value;
        return NIB_OK;
    }
    nib_value *in = &g->open[g->depth - 1];
    return in->kind == NIB_V_DICT ? nib__dict_put(g->r, in->as.dict, g->keys[g->depth - 1], value)
                                  : nib__items_push(g->r, in, value);
}

static nib_status open_collection(reading *g, bool object)
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

static nib_status read_event(reading *g, nib_value *out)
{
    nib_value value = nib__v_none();
    switch (g->json.event) {
    case NIB_JSON_OBJECT:
    case NIB_JSON_ARRAY: return open_collection(g, g->json.event == NIB_JSON_OBJECT);
    case NIB_JSON_OBJECT_END:
    case NIB_JSON_ARRAY_END: g->depth--; return place(g, g->open[g->depth], out);
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
    return place(g, value, out);
}

static nib_status read_value(nib_run *r, const nib_template_value *from, nib_value *out)
{
    const nib_json_limits limits = {.depth = NIB_TEMPLATE_JSON, .literals = true};
    reading g = {.r = r, .messages = from->name != NULL && strcmp(from->name, "messages") == 0};
    *out = nib__v_none();
    nib__json_init(&g.json, from->name != NULL ? from->name : "the template's variables",
                   from->json, from->size, &limits);
    while (nib__json_next(&g.json) != NIB_JSON_END)
        NIB_TRY(read_event(&g, out));
    return NIB_OK;
}

static void set_global(nib_run *r, const char *name, size_t size, nib_value value)
{
    size_t slot;
    if (nib__symbol_find(r->t, name, size, &slot))
        r->globals[r->t->symbol_slots[slot] - 1] = value;
}

nib_status nib__run_input(nib_run *r)
{
    const nib_template_input *in = r->input;
    nib_value value;
    for (size_t i = 0; i < in->token_count; i++) {
        if (nib__utf8_check(in->tokens[i].text, in->tokens[i].size) != in->tokens[i].size)
            return nib__fail(r->err, NIB_BAD_INPUT,
                             "the token that templates know as %s is not valid UTF-8",
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
                             "the template's variables are a %s; a JSON object is wanted",
                             nib__kind_name(value));
        for (size_t k = 0; k < value.as.dict->count; k++)
            set_global(r, value.as.dict->pairs[k].key.as.string->at,
                       value.as.dict->pairs[k].key.as.string->size, value.as.dict->pairs[k].value);
    }
    return NIB_OK;
}
