/* SPDX-License-Identifier: Apache-2.0
 *
 * Validates JSON against a schema without src/constrain, on trees. Supports the keywords listed in
 * docs/schemas.md. Compares numbers as doubles, accepts keys in any order, rejects duplicates.
 */
#ifndef NIB_TESTS_VALIDATING_H
#define NIB_TESTS_VALIDATING_H

#include "json.h"

#include <math.h>
#include <stdlib.h>

typedef struct json_tree json_tree;
struct json_tree {
    nib_json_event kind;
    const char *text; /* decoded, if a string */
    size_t size;
    double number;
    const char *key; /* if a member of an object */
    size_t key_size;
    json_tree *first, *next; /* first child and next sibling */
    size_t count;            /* children */
};

/* Builds the value whose first event was just read; NULL: not JSON. */
static inline json_tree *grow_tree(nib_json *json, nib_arena *arena)
{
    json_tree *tree = nib__arena_take(arena, 1, sizeof *tree), **last;
    tree->kind = json->event;
    last = &tree->first;
    if (tree->kind == NIB_JSON_ERROR ||
        (tree->kind == NIB_JSON_NUMBER && !nib__json_double(json, &tree->number)))
        return NULL;
    if (tree->kind == NIB_JSON_STRING)
        return (tree->text = nib__json_string(json, arena, &tree->size)) == NULL ? NULL : tree;
    if (tree->kind != NIB_JSON_OBJECT && tree->kind != NIB_JSON_ARRAY)
        return tree;
    for (;; tree->count++) {
        const char *key = NULL;
        size_t key_size = 0;
        nib_json_event event = nib__json_next(json);
        if (event == NIB_JSON_OBJECT_END || event == NIB_JSON_ARRAY_END)
            return tree;
        if (event == NIB_JSON_KEY) {
            key = nib__json_string(json, arena, &key_size);
            nib__json_next(json);
        }
        *last = grow_tree(json, arena);
        if (*last == NULL || (tree->kind == NIB_JSON_OBJECT && key == NULL))
            return NULL;
        (*last)->key = key;
        (*last)->key_size = key_size;
        last = &(*last)->next;
    }
}

static inline json_tree *read_tree(nib_arena *arena, const char *text, size_t size)
{
    static const nib_json_limits limits = {.depth = 400};
    nib_json json;
    nib__json_init(&json, "text", text, size, &limits);
    nib__json_next(&json);
    json_tree *tree = grow_tree(&json, arena);
    return tree != NULL && nib__json_next(&json) == NIB_JSON_END ? tree : NULL;
}

static inline const json_tree *member(const json_tree *object, const char *name, size_t size)
{
    for (const json_tree *m = object == NULL ? NULL : object->first; m != NULL; m = m->next)
        if (m->key != NULL && m->key_size == size && memcmp(m->key, name, size) == 0)
            return m;
    return NULL;
}

static inline const json_tree *named(const json_tree *object, const char *name)
{
    return member(object, name, strlen(name));
}

static inline bool same_value(const json_tree *a, const json_tree *b)
{
    if (a->kind != b->kind || a->count != b->count)
        return false;
    if (a->kind == NIB_JSON_NUMBER)
        return a->number == b->number;
    if (a->kind == NIB_JSON_STRING)
        return a->size == b->size && memcmp(a->text, b->text, a->size) == 0;
    const json_tree *y = b->first;
    for (const json_tree *x = a->first; x != NULL; x = x->next, y = y->next) {
        const json_tree *other = x->key == NULL ? y : member(b, x->key, x->key_size);
        if (other == NULL || !same_value(x, other))
            return false;
    }
    return true;
}

static inline bool is_type(const json_tree *value, const json_tree *name)
{
    static const struct {
        nib_json_event kind;
        const char *name;
    } types[] = {{NIB_JSON_OBJECT, "object"}, {NIB_JSON_ARRAY, "array"},
                 {NIB_JSON_STRING, "string"}, {NIB_JSON_NUMBER, "number"},
                 {NIB_JSON_TRUE, "boolean"},  {NIB_JSON_FALSE, "boolean"},
                 {NIB_JSON_NULL, "null"}};
    for (size_t i = 0; i < COUNT(types); i++)
        if (types[i].kind == value->kind && strcmp(types[i].name, name->text) == 0)
            return true;
    return strcmp(name->text, "integer") == 0 && value->kind == NIB_JSON_NUMBER &&
           floor(value->number) == value->number;
}

static inline double limit(const json_tree *schema, const char *name, double otherwise)
{
    const json_tree *found = named(schema, name);
    return found == NULL ? otherwise : found->number;
}

static inline bool is_of(const json_tree *value, const json_tree *schema, const json_tree *root);

static inline bool object_is_of(const json_tree *value, const json_tree *schema,
                                const json_tree *root)
{
    const json_tree *required = named(schema, "required");
    const json_tree *properties = named(schema, "properties");
    const json_tree *other = named(schema, "additionalProperties");
    for (const json_tree *r = required == NULL ? NULL : required->first; r != NULL; r = r->next)
        if (member(value, r->text, r->size) == NULL)
            return false;
    for (const json_tree *m = value->first; m != NULL; m = m->next) {
        const json_tree *own = member(properties, m->key, m->key_size);
        /* member() finds the first, so this is a duplicate name. */
        if (own != NULL && member(value, m->key, m->key_size) != m)
            return false;
        own = own != NULL ? own : other;
        if (own != NULL && !is_of(m, own, root))
            return false;
    }
    return true;
}

static inline bool array_is_of(const json_tree *value, const json_tree *schema,
                               const json_tree *root)
{
    const json_tree *items = named(schema, "items"), *prefix = named(schema, "prefixItems");
    const json_tree *own = prefix == NULL ? NULL : prefix->first;
    for (const json_tree *i = value->first; i != NULL; i = i->next) {
        const json_tree *of = own != NULL ? own : items;
        if (of != NULL && !is_of(i, of, root))
            return false;
        own = own == NULL ? NULL : own->next;
    }
    return (double)value->count >= limit(schema, "minItems", 0) &&
           (double)value->count <= limit(schema, "maxItems", HUGE_VAL);
}

static inline bool string_is_of(const json_tree *value, const json_tree *schema)
{
    size_t characters = 0;
    for (size_t i = 0; i < value->size; i++)
        characters += ((unsigned char)value->text[i] & 0xc0) != 0x80;
    return (double)characters >= limit(schema, "minLength", 0) &&
           (double)characters <= limit(schema, "maxLength", HUGE_VAL);
}

/* Counts the schemas of a list that accept the value. */
static inline size_t of_how_many(const json_tree *value, const json_tree *list,
                                 const json_tree *root)
{
    size_t n = 0;
    for (const json_tree *s = list->first; s != NULL; s = s->next)
        n += is_of(value, s, root);
    return n;
}

static inline const json_tree *referred(const json_tree *root, const json_tree *target)
{
    static const char *const places[] = {"$defs", "definitions"};
    for (size_t i = 0; i < COUNT(places); i++) {
        const size_t size = strlen(places[i]) + 3;
        if (target->size > size && memcmp(target->text + 2, places[i], size - 3) == 0)
            return member(named(root, places[i]), target->text + size, target->size - size);
    }
    return root;
}

static inline bool is_of(const json_tree *value, const json_tree *schema, const json_tree *root)
{
    const json_tree *k;
    if (schema->kind != NIB_JSON_OBJECT)
        return schema->kind == NIB_JSON_TRUE;
    if ((k = named(schema, "$ref")) != NULL && !is_of(value, referred(root, k), root))
        return false;
    if ((k = named(schema, "type")) != NULL) {
        bool some = k->kind == NIB_JSON_STRING && is_type(value, k);
        for (const json_tree *t = k->first; t != NULL; t = t->next)
            some |= is_type(value, t);
        if (!some)
            return false;
    }
    if ((k = named(schema, "const")) != NULL && !same_value(value, k))
        return false;
    if ((k = named(schema, "enum")) != NULL) {
        bool some = false;
        for (const json_tree *v = k->first; v != NULL; v = v->next)
            some |= same_value(value, v);
        if (!some)
            return false;
    }
    if ((k = named(schema, "anyOf")) != NULL && of_how_many(value, k, root) == 0)
        return false;
    if ((k = named(schema, "oneOf")) != NULL && of_how_many(value, k, root) != 1)
        return false;
    if ((k = named(schema, "allOf")) != NULL && of_how_many(value, k, root) != k->count)
        return false;
    switch (value->kind) {
    case NIB_JSON_OBJECT: return object_is_of(value, schema, root);
    case NIB_JSON_ARRAY: return array_is_of(value, schema, root);
    case NIB_JSON_STRING: return string_is_of(value, schema);
    case NIB_JSON_NUMBER:
        return value->number >= limit(schema, "minimum", -HUGE_VAL) &&
               value->number <= limit(schema, "maximum", HUGE_VAL) &&
               value->number > limit(schema, "exclusiveMinimum", -HUGE_VAL) &&
               value->number < limit(schema, "exclusiveMaximum", HUGE_VAL);
    default: return true;
    }
}

#endif
