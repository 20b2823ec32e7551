/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads the text of a JSON schema into nodes. Every keyword is enforced, an annotation, or an error
 * with its path. A keyword that would have no effect beside the others is an error too, so that
 * none is ignored. Recursion is at most NIB_SCHEMA_DEPTH deep.
 */
#include "schema_parts.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

enum {
    /* The keyword describes the whole value; only `type` may stand beside some of them. */
    WHOLE = NIB_IS_NULL << 1,
    EVENTS_MAX = 4 * 1024 * 1024,
    ABSENT = -2,
    NEVER = -1, /* false: no value */
};

static const char *const type_names[] = {"object",  "array",   "string", "number",
                                         "integer", "boolean", "null"};

typedef enum keyword {
    K_TYPE,
    K_PROPERTIES,
    K_REQUIRED,
    K_ADDITIONAL,
    K_ITEMS,
    K_PREFIX_ITEMS,
    K_MIN_ITEMS,
    K_MAX_ITEMS,
    K_MIN_LENGTH,
    K_MAX_LENGTH,
    K_FORMAT,
    K_MINIMUM,
    K_MAXIMUM,
    K_EXCLUSIVE_MINIMUM,
    K_EXCLUSIVE_MAXIMUM,
    K_ENUM,
    K_CONST,
    K_ANY_OF,
    K_ONE_OF,
    K_ALL_OF,
    K_REF,
    K_DEFS,
    K_DEFINITIONS,
    K_ID,
    K_COUNT,
} keyword;

static const struct {
    const char *name;
    unsigned types;
} keywords[K_COUNT] = {
    [K_TYPE] = {"type", 0},
    [K_PROPERTIES] = {"properties", NIB_IS_OBJECT},
    [K_REQUIRED] = {"required", NIB_IS_OBJECT},
    [K_ADDITIONAL] = {"additionalProperties", NIB_IS_OBJECT},
    [K_ITEMS] = {"items", NIB_IS_ARRAY},
    [K_PREFIX_ITEMS] = {"prefixItems", NIB_IS_ARRAY},
    [K_MIN_ITEMS] = {"minItems", NIB_IS_ARRAY},
    [K_MAX_ITEMS] = {"maxItems", NIB_IS_ARRAY},
    [K_MIN_LENGTH] = {"minLength", NIB_IS_STRING},
    [K_MAX_LENGTH] = {"maxLength", NIB_IS_STRING},
    [K_FORMAT] = {"format", NIB_IS_STRING},
    [K_MINIMUM] = {"minimum", NIB_IS_NUMBER | NIB_IS_INTEGER},
    [K_MAXIMUM] = {"maximum", NIB_IS_NUMBER | NIB_IS_INTEGER},
    [K_EXCLUSIVE_MINIMUM] = {"exclusiveMinimum", NIB_IS_NUMBER | NIB_IS_INTEGER},
    [K_EXCLUSIVE_MAXIMUM] = {"exclusiveMaximum", NIB_IS_NUMBER | NIB_IS_INTEGER},
    [K_ENUM] = {"enum", WHOLE},
    [K_CONST] = {"const", WHOLE},
    [K_ANY_OF] = {"anyOf", WHOLE},
    [K_ONE_OF] = {"oneOf", WHOLE},
    [K_ALL_OF] = {"allOf", WHOLE},
    [K_REF] = {"$ref", WHOLE},
    [K_DEFS] = {"$defs", 0},
    [K_DEFINITIONS] = {"definitions", 0},
    [K_ID] = {"$id", 0},
};

static const char *const annotations[] = {"title",      "description", "default",
                                          "examples",   "$schema",     "$comment",
                                          "deprecated", "readOnly",    "writeOnly"};

static const char *const formats[] = {
    [NIB_FORMAT_DATE] = "date",
    [NIB_FORMAT_TIME] = "time",
    [NIB_FORMAT_DATE_TIME] = "date-time",
    [NIB_FORMAT_UUID] = "uuid",
};

const char *nib__schema_keyword(size_t i, bool *annotation)
{
    *annotation = i >= K_COUNT;
    if (i < K_COUNT)
        return keywords[i].name;
    return i - K_COUNT < COUNT(annotations) ? annotations[i - K_COUNT] : NULL;
}

/* The keywords of one schema. */
typedef struct fields {
    uint32_t seen;  /* a bit per keyword */
    unsigned types; /* 0: not given */
    nib_schema_list properties, required, members, prefix;
    int32_t other, items; /* a node, ABSENT or NEVER */
    int64_t range[4];     /* minItems, maxItems, minLength, maxLength; -1: not given */
    nib_schema_text bounds[4];
    nib_schema_format format;
    nib_schema_list scalars; /* of an enum or const; objects and arrays are in members */
    unsigned value_types;
    const char *target;
    size_t target_size;
} fields;

static bool has(const fields *f, keyword k) { return f->seen >> k & 1; }

/* ---- reading each keyword ---- */

static nib_status read_schema(nib_schema_reader *r, uint16_t *node);

static nib_status read_type(nib_schema_reader *r, fields *f)
{
    nib_json *json = &r->json;
    const bool list = nib__json_next(json) == NIB_JSON_ARRAY;
    if (list)
        nib__json_next(json);
    do {
        size_t t = 0;
        if (json->event != NIB_JSON_STRING)
            return json->event == NIB_JSON_ERROR
                       ? nib__json_status(json, r->err)
                       : nib__schema_refuse(r, NIB_BAD_INPUT,
                                            "expected the name of a type, or a list of them");
        while (t < COUNT(type_names) && !nib__json_is(json, type_names[t]))
            t++;
        char shown[NIB_SHOWN];
        if (t == COUNT(type_names))
            return nib__schema_refuse(
                r, NIB_BAD_INPUT,
                "\"%s\" is not a type; the types are object, array, string, number, integer, "
                "boolean and null",
                nib__escape_name(shown, sizeof shown, json->token, json->token_size));
        if (f->types >> t & 1)
            return nib__schema_refuse(r, NIB_BAD_INPUT, "\"%s\" is given twice", type_names[t]);
        f->types |= 1u << t;
    } while (list && nib__json_next(json) != NIB_JSON_ARRAY_END);
    return NIB_OK;
}

static nib_status read_named(nib_schema_reader *r, nib_schema_list *list)
{
    nib_json *json = &r->json;
    NIB_TRY(nib__schema_expect(r, NIB_JSON_OBJECT, "an object of schemas"));
    while (nib__json_next(json) == NIB_JSON_KEY) {
        nib_schema_item *item;
        NIB_TRY(nib__schema_name(r, list, &item));
        const size_t before = nib__schema_enter(r, ".", json->token, json->token_size);
        NIB_TRY(read_schema(r, &item->node));
        nib__schema_leave(r, before);
    }
    return json->event == NIB_JSON_OBJECT_END ? NIB_OK : nib__json_status(json, r->err);
}

static nib_status read_members(nib_schema_reader *r, nib_schema_list *list)
{
    nib_json *json = &r->json;
    NIB_TRY(nib__schema_expect(r, NIB_JSON_ARRAY, "a list of schemas"));
    for (size_t i = 0;; i++) {
        nib_schema_item *item;
        /* Looks ahead for the end of the list, as read_schema reads its own first event. */
        nib_json ahead = *json;
        if (nib__json_next(&ahead) == NIB_JSON_ARRAY_END) {
            *json = ahead;
            break;
        }
        char place[32];
        if (i == NIB_SCHEMA_NODES)
            return nib__schema_refuse(r, NIB_BAD_INPUT, "the list has more than %d schemas",
                                      NIB_SCHEMA_NODES);
        NIB_TRY(nib__schema_append(r, list, &item));
        const int size = snprintf(place, sizeof place, "%zu", i);
        const size_t before = nib__schema_enter(r, ".", place, (size_t)size);
        NIB_TRY(read_schema(r, &item->node));
        nib__schema_leave(r, before);
    }
    return list->count != 0 ? NIB_OK
                            : nib__schema_refuse(r, NIB_BAD_INPUT, "the list of schemas is empty");
}

static nib_status read_required(nib_schema_reader *r, fields *f)
{
    nib_json *json = &r->json;
    NIB_TRY(nib__schema_expect(r, NIB_JSON_ARRAY, "a list of names"));
    while (nib__json_next(json) == NIB_JSON_STRING) {
        nib_schema_item *item;
        NIB_TRY(nib__schema_name(r, &f->required, &item));
    }
    if (json->event == NIB_JSON_ERROR)
        return nib__json_status(json, r->err);
    return json->event == NIB_JSON_ARRAY_END
               ? NIB_OK
               : nib__schema_refuse(r, NIB_BAD_INPUT, "expected a list of names");
}

static nib_status read_enum(nib_schema_reader *r, fields *f)
{
    nib_json *json = &r->json;
    NIB_TRY(nib__schema_expect(r, NIB_JSON_ARRAY, "a list of values"));
    while (nib__json_next(json) != NIB_JSON_ARRAY_END)
        NIB_TRY(nib__schema_value(r, &f->scalars, &f->members, &f->value_types));
    return f->scalars.count + f->members.count != 0
               ? NIB_OK
               : nib__schema_refuse(r, NIB_BAD_INPUT, "the enum is empty: no value is allowed");
}

/* additionalProperties and items: a schema, or false for none. */
static nib_status read_schema_or_false(nib_schema_reader *r, int32_t *out)
{
    nib_json ahead = r->json;
    if (nib__json_next(&ahead) == NIB_JSON_FALSE) {
        r->json = ahead;
        *out = NEVER;
        return NIB_OK;
    }
    if (ahead.event == NIB_JSON_ARRAY)
        return nib__schema_refuse(r, NIB_UNSUPPORTED,
                                  "write a list of schemas, one per item, as \"prefixItems\"");
    uint16_t node;
    NIB_TRY(read_schema(r, &node));
    *out = node;
    return NIB_OK;
}

static nib_status read_count(nib_schema_reader *r, int64_t most, int64_t *out)
{
    nib_json *json = &r->json;
    char shown[NIB_SHOWN];
    int64_t value = 0;
    NIB_TRY(nib__schema_expect(r, NIB_JSON_NUMBER, "a whole number"));
    nib_json probe = *json;
    const bool whole = nib__json_int64(&probe, &value);
    if (whole && value >= 0 && value <= most) {
        *out = value;
        return NIB_OK;
    }
    return nib__schema_refuse(r, NIB_BAD_INPUT, "%s is not a whole number from 0 to %lld",
                              nib__escape_name(shown, sizeof shown, json->token, json->token_size),
                              (long long)most);
}

static nib_status read_format(nib_schema_reader *r, fields *f)
{
    nib_json *json = &r->json;
    char shown[NIB_SHOWN];
    NIB_TRY(nib__schema_expect(r, NIB_JSON_STRING, "the name of a format"));
    for (size_t i = 1; i < COUNT(formats); i++) {
        if (nib__json_is(json, formats[i])) {
            f->format = (nib_schema_format)i;
            return NIB_OK;
        }
    }
    return nib__schema_refuse(
        r, NIB_UNSUPPORTED,
        "\"%s\" cannot be enforced; date, time, date-time and uuid can; remove it, or describe it "
        "in the description",
        nib__escape_name(shown, sizeof shown, json->token, json->token_size));
}

static nib_status read_bound(nib_schema_reader *r, nib_schema_text *out)
{
    NIB_TRY(nib__schema_expect(r, NIB_JSON_NUMBER, "a number"));
    out->at = r->json.token;
    out->size = (uint32_t)r->json.token_size;
    return NIB_OK;
}

static nib_status read_target(nib_schema_reader *r, fields *f)
{
    NIB_TRY(nib__schema_expect(r, NIB_JSON_STRING, "a reference"));
    f->target = nib__json_string(&r->json, &r->scratch, &f->target_size);
    return f->target != NULL ? NIB_OK : nib__json_status(&r->json, r->err);
}

/* $defs, definitions and $id apply to the whole text, so they are only allowed at its root. */
static nib_status read_at_root(nib_schema_reader *r, keyword k)
{
    if (r->depth != 1)
        return nib__schema_refuse(r, NIB_UNSUPPORTED,
                                  "it is only allowed at the root of the schema; move it there");
    if (k == K_ID)
        return nib__schema_expect(r, NIB_JSON_STRING, "a text");
    return read_named(r, &r->definitions[k == K_DEFINITIONS]);
}

static nib_status read_keyword(nib_schema_reader *r, keyword k, fields *f)
{
    switch (k) {
    case K_TYPE: return read_type(r, f);
    case K_PROPERTIES: return read_named(r, &f->properties);
    case K_REQUIRED: return read_required(r, f);
    case K_ADDITIONAL: return read_schema_or_false(r, &f->other);
    case K_ITEMS: return read_schema_or_false(r, &f->items);
    case K_PREFIX_ITEMS: return read_members(r, &f->prefix);
    case K_MIN_ITEMS:
    case K_MAX_ITEMS: return read_count(r, NIB_SCHEMA_ITEMS, &f->range[k - K_MIN_ITEMS]);
    case K_MIN_LENGTH:
    case K_MAX_LENGTH: return read_count(r, NIB_SCHEMA_LENGTH, &f->range[k - K_MIN_ITEMS]);
    case K_FORMAT: return read_format(r, f);
    case K_MINIMUM:
    case K_MAXIMUM:
    case K_EXCLUSIVE_MINIMUM:
    case K_EXCLUSIVE_MAXIMUM: return read_bound(r, &f->bounds[k - K_MINIMUM]);
    case K_ENUM: return read_enum(r, f);
    case K_CONST:
        nib__json_next(&r->json);
        return nib__schema_value(r, &f->scalars, &f->members, &f->value_types);
    case K_ANY_OF:
    case K_ONE_OF:
    case K_ALL_OF: return read_members(r, &f->members);
    case K_REF: return read_target(r, f);
    default: return read_at_root(r, k);
    }
}

/* ---- the keywords together ---- */

/* Finds the types that the keywords apply to, and checks that each keyword has an effect. */
static nib_status find_types(nib_schema_reader *r, fields *f)
{
    unsigned spoken = 0;
    for (size_t k = 0; k < K_COUNT; k++) {
        const unsigned types = keywords[k].types;
        if (!has(f, (keyword)k) || types == 0)
            continue;
        if (spoken != 0 && types == WHOLE)
            return nib__schema_refuse(r, NIB_UNSUPPORTED,
                                      "\"%s\" beside other keywords cannot be enforced; combine "
                                      "them into one schema",
                                      keywords[k].name);
        if (spoken != 0 && f->types == 0 && spoken != types)
            return nib__schema_refuse(r, NIB_BAD_INPUT,
                                      "\"%s\" and the keywords beside it apply to several types; "
                                      "choose with \"type\"",
                                      keywords[k].name);
        if (types != WHOLE && f->types != 0 && (types & f->types) == 0)
            return nib__schema_refuse(r, NIB_BAD_INPUT,
                                      "\"%s\" does not apply to the \"type\" beside it",
                                      keywords[k].name);
        spoken |= types;
    }
    if (f->types == 0 && !(spoken & WHOLE))
        f->types = spoken & NIB_IS_NUMBER ? NIB_IS_NUMBER : spoken;
    return NIB_OK;
}

static nib_status add_member(nib_schema_reader *r, nib_schema_list *list,
                             const nib_schema_node *node)
{
    nib_schema_item *item;
    NIB_TRY(nib__schema_append(r, list, &item));
    return nib__schema_add(r->s, node, &item->node, r->err);
}

static nib_status make_object(nib_schema_reader *r, fields *f, nib_schema_list *out)
{
    nib_schema_node node = {.kind = NIB_SCHEMA_OBJECT, .other = NIB_SCHEMA_NONE};
    /* Without additionalProperties, other keys are allowed only if no property is named. */
    const bool open = f->other == ABSENT && f->properties.count == 0;
    uint16_t any = NIB_SCHEMA_NONE;
    if (open || (f->other == ABSENT && f->required.count != 0))
        NIB_TRY(nib__schema_any(r, &any));
    if (f->other >= 0)
        node.other = (uint16_t)f->other;
    else if (open)
        node.other = any;
    NIB_TRY(nib__schema_require(r, &f->properties, &f->required, f->other >= 0 ? node.other : any));
    NIB_TRY(nib__schema_properties(r, &f->properties, &node));
    return add_member(r, out, &node);
}

static nib_status make_array(nib_schema_reader *r, fields *f, nib_schema_list *out)
{
    nib_schema_node node = {.kind = NIB_SCHEMA_ARRAY, .items = NIB_SCHEMA_NONE};
    node.count = (uint16_t)f->prefix.count;
    node.min = f->range[0] < 0 ? 0 : (uint32_t)f->range[0];
    node.max = f->range[1] < 0 ? UINT32_MAX : (uint32_t)f->range[1];
    if (node.min > node.max)
        return nib__schema_refuse(r, NIB_BAD_INPUT, "minItems %u is over maxItems %u", node.min,
                                  node.max);
    if (f->items == NEVER && node.max > node.count)
        node.max = node.count;
    if (node.min > node.max)
        return nib__schema_refuse(r, NIB_BAD_INPUT,
                                  "minItems %u is over %u, the most that \"items\" false allows",
                                  node.min, node.max);
    if (f->items >= 0)
        node.items = (uint16_t)f->items;
    else if (f->items == ABSENT)
        NIB_TRY(nib__schema_any(r, &node.items));
    NIB_TRY(nib__schema_members(r, &f->prefix, &node.members));
    return add_member(r, out, &node);
}

static nib_status make_string(nib_schema_reader *r, const fields *f, nib_schema_list *out)
{
    nib_schema_node node = {.kind = NIB_SCHEMA_STRING, .format = (uint8_t)f->format};
    node.min = f->range[2] < 0 ? 0 : (uint32_t)f->range[2];
    node.max = f->range[3] < 0 ? UINT32_MAX : (uint32_t)f->range[3];
    if (node.min > node.max)
        return nib__schema_refuse(r, NIB_BAD_INPUT, "minLength %u is over maxLength %u", node.min,
                                  node.max);
    if (f->format != NIB_FORMAT_NONE && (f->range[2] >= 0 || f->range[3] >= 0))
        return nib__schema_refuse(r, NIB_UNSUPPORTED,
                                  "\"format\" has its own length; leave minLength and maxLength "
                                  "out");
    return add_member(r, out, &node);
}

static nib_status make_number(nib_schema_reader *r, const fields *f, bool integer,
                              nib_schema_list *out)
{
    nib_schema_node node = {.kind = NIB_SCHEMA_NUMBER, .integer = integer};
    node.most = 1;
    for (int i = 0; i < (integer ? NIB_INTEGER_DIGITS : 2 * NIB_BOUNDED_DIGITS); i++)
        node.most *= 10;
    node.most--;
    node.least = -node.most;
    node.bounded = integer;
    for (keyword k = K_MINIMUM; k <= K_EXCLUSIVE_MAXIMUM; k++) {
        const nib_schema_text *text = &f->bounds[k - K_MINIMUM];
        int64_t value;
        if (!has(f, k))
            continue;
        NIB_TRY(nib__schema_bound(r, keywords[k].name, text, integer, &value));
        node.bounded = true;
        if (k == K_MINIMUM || k == K_EXCLUSIVE_MINIMUM)
            node.least = nib__max(node.least, value + (k == K_EXCLUSIVE_MINIMUM));
        else
            node.most = nib__min(node.most, value - (k == K_EXCLUSIVE_MAXIMUM));
    }
    if (node.least > node.most)
        return nib__schema_refuse(r, NIB_BAD_INPUT, "no number%s lies between the bounds",
                                  integer ? "" : " with at most 9 digits after the point");
    return add_member(r, out, &node);
}

static nib_status make_types(nib_schema_reader *r, fields *f, nib_schema_list *out)
{
    static const char *const words[] = {"false", "true", "null"};
    nib_schema_list literals = {0};
    if (f->types & NIB_IS_OBJECT)
        NIB_TRY(make_object(r, f, out));
    if (f->types & NIB_IS_ARRAY)
        NIB_TRY(make_array(r, f, out));
    if (f->types & NIB_IS_STRING)
        NIB_TRY(make_string(r, f, out));
    if (f->types & (NIB_IS_NUMBER | NIB_IS_INTEGER))
        NIB_TRY(make_number(r, f, (f->types & NIB_IS_NUMBER) == 0, out));
    for (int i = 0; i < 3; i++)
        if (f->types & (i < 2 ? NIB_IS_BOOLEAN : NIB_IS_NULL))
            NIB_TRY(nib__schema_word(r, words[i], &literals));
    return literals.count == 0 ? NIB_OK : nib__schema_literals(r, &literals, out);
}

static nib_status make_values(nib_schema_reader *r, fields *f)
{
    if (f->types & NIB_IS_NUMBER)
        f->types |= NIB_IS_INTEGER;
    const unsigned others = f->value_types & ~f->types;
    for (size_t t = 0; f->types != 0 && t < COUNT(type_names); t++)
        if (others >> t & 1)
            return nib__schema_refuse(r, NIB_BAD_INPUT,
                                      "%s is one of the values, but \"type\" does not allow it",
                                      type_names[t]);
    return f->scalars.count == 0 ? NIB_OK : nib__schema_literals(r, &f->scalars, &f->members);
}

/* Makes one node from the keywords of a schema. */
static nib_status make_schema(nib_schema_reader *r, fields *f, uint16_t *out)
{
    NIB_TRY(find_types(r, f));
    const bool whole = f->target != NULL || f->members.count != 0 || f->scalars.count != 0;
    if (f->types == 0 && !whole)
        return nib__schema_any(r, out);
    if (f->target != NULL || (whole && !has(f, K_ENUM) && !has(f, K_CONST))) {
        if (f->types != 0)
            return nib__schema_refuse(r, NIB_UNSUPPORTED,
                                      "\"type\" beside a reference or alternatives cannot be "
                                      "enforced; write it inside them");
        if (f->target != NULL)
            return nib__schema_reference(r, f->target, f->target_size, out);
        if (has(f, K_ALL_OF) && f->members.count != 1)
            return nib__schema_refuse(r, NIB_UNSUPPORTED,
                                      "allOf of %zu schemas cannot be enforced; combine them into "
                                      "one schema",
                                      f->members.count);
    } else if (whole) {
        NIB_TRY(make_values(r, f));
    } else {
        NIB_TRY(make_types(r, f, &f->members));
    }
    if (f->members.count == 1) {
        *out = f->members.first->node;
        return NIB_OK;
    }
    nib_schema_node node = {
        .kind = NIB_SCHEMA_ANY_OF, .one_of = has(f, K_ONE_OF), .count = (uint16_t)f->members.count};
    NIB_TRY(nib__schema_members(r, &f->members, &node.members));
    return nib__schema_add_placed(r, &node, out);
}

/* ---- one schema ---- */

static nib_status refuse_keyword(nib_schema_reader *r)
{
    char shown[NIB_SHOWN];
    nib__escape_name(shown, sizeof shown, r->json.token, r->json.token_size);
    const size_t before = nib__schema_enter(r, ".", r->json.token, r->json.token_size);
    const nib_status status = nib__schema_refuse(
        r, NIB_UNSUPPORTED,
        "\"%s\" cannot be enforced, and no keyword is ignored; supported are type, properties, "
        "required, additionalProperties, items, prefixItems, minItems, maxItems, minLength, "
        "maxLength, format, minimum, maximum, exclusiveMinimum, exclusiveMaximum, enum, const, "
        "anyOf, oneOf, allOf, $ref and $defs",
        shown);
    nib__schema_leave(r, before);
    return status;
}

static nib_status read_member(nib_schema_reader *r, fields *f)
{
    nib_json *json = &r->json;
    size_t k = 0;
    for (size_t i = 0; i < COUNT(annotations); i++)
        if (nib__json_is(json, annotations[i]))
            return nib__json_skip(json) ? NIB_OK : nib__json_status(json, r->err);
    while (k < K_COUNT && !nib__json_is(json, keywords[k].name))
        k++;
    if (k == K_COUNT)
        return refuse_keyword(r);
    const size_t before = nib__schema_enter(r, ".", keywords[k].name, strlen(keywords[k].name));
    if (has(f, (keyword)k))
        return nib__schema_refuse(r, NIB_BAD_INPUT, "it is given twice");
    f->seen |= 1u << k;
    NIB_TRY(read_keyword(r, (keyword)k, f));
    nib__schema_leave(r, before);
    return NIB_OK;
}

static nib_status read_schema(nib_schema_reader *r, uint16_t *node)
{
    nib_json *json = &r->json;
    fields f = {.other = ABSENT, .items = ABSENT, .range = {-1, -1, -1, -1}};
    const nib_json_event event = nib__json_next(json);
    if (event == NIB_JSON_ERROR)
        return nib__json_status(json, r->err);
    if (event == NIB_JSON_TRUE)
        return nib__schema_any(r, node);
    if (event == NIB_JSON_FALSE)
        return nib__schema_refuse(r, NIB_BAD_INPUT, "false allows no value");
    if (event != NIB_JSON_OBJECT)
        return nib__schema_refuse(r, NIB_BAD_INPUT, "expected a schema, which is an object");
    if (++r->depth > NIB_SCHEMA_DEPTH)
        return nib__schema_refuse(r, NIB_BAD_INPUT, "schemas are nested deeper than %d",
                                  NIB_SCHEMA_DEPTH);
    while (nib__json_next(json) == NIB_JSON_KEY)
        NIB_TRY(read_member(r, &f));
    if (json->event != NIB_JSON_OBJECT_END)
        return nib__json_status(json, r->err);
    r->depth--;
    return make_schema(r, &f, node);
}

static nib_status read_text(nib_schema_reader *r, const nib_named_text *text, uint16_t *root)
{
    char shown[32];
    if (text->size > NIB_SCHEMA_BYTES)
        return nib__schema_refuse(r, NIB_BAD_INPUT, "the schema has %s bytes, over the limit of %d",
                                  nib__format_count(shown, text->size), NIB_SCHEMA_BYTES);
    NIB_TRY(read_schema(r, root));
    return nib__json_next(&r->json) == NIB_JSON_END ? NIB_OK : nib__json_status(&r->json, r->err);
}

/* Makes the schema of any JSON object. */
static nib_status make_any_object(nib_schema_reader *r, uint16_t *root)
{
    nib_schema_node object = {.kind = NIB_SCHEMA_OBJECT};
    NIB_TRY(nib__schema_any(r, &object.other));
    return nib__schema_add(r->s, &object, root, r->err);
}

static nib_status read_all(nib_schema_reader *r, const nib_named_text *text)
{
    nib_schema_list root = {0};
    nib_schema_item *item;
    nib_schema_node whole = {
        .kind = NIB_SCHEMA_ARRAY, .items = NIB_SCHEMA_NONE, .count = 1, .min = 1, .max = 1};
    NIB_TRY(nib__schema_append(r, &root, &item));
    NIB_TRY(text->text == NULL ? make_any_object(r, &item->node) : read_text(r, text, &item->node));
    whole.path = text->name;
    NIB_TRY(nib__schema_members(r, &root, &whole.members));
    NIB_TRY(nib__schema_add(r->s, &whole, &r->s->root, r->err));
    return nib__schema_finish(r);
}

nib_status nib__schema_read(nib_schema *out, const nib_named_text *text, const nib_allocator *a,
                            nib_err *err)
{
    static const nib_json_limits limits = {.depth = 3 * NIB_SCHEMA_DEPTH, .events = EVENTS_MAX};
    nib_schema_reader r = {.s = out, .err = err};
    *out = (nib_schema){.allocator = a, .name = text->name, .any = NIB_SCHEMA_NONE};
    nib__arena_init(&out->arena, a, 0);
    nib__arena_init(&r.scratch, a, 0);
    nib__text_init(&r.path, a);
    nib__text_init(&r.spelled, a);
    nib__text_str(&r.path, text->name);
    nib__json_init(&r.json, text->name, text->text, text->size, &limits);
    const nib_status status = read_all(&r, text);
    nib__text_free(&r.path);
    nib__text_free(&r.spelled);
    nib__arena_free(&r.scratch);
    if (status != NIB_OK)
        nib__schema_close(out);
    return status;
}

void nib__schema_close(nib_schema *schema)
{
    const nib_allocator *a = schema->allocator;
    nib__arena_free(&schema->arena);
    nib__release(a, schema->nodes);
    nib__release(a, schema->leaves);
    schema->nodes = NULL;
    schema->leaves = NULL;
}
