/* SPDX-License-Identifier: Apache-2.0
 *
 * Values of a rendering: making them, and Python's rules for true, equal and less. The cost of
 * lists and dicts is counted in steps.
 */
#include "template_parts.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>

/* ---- the rendering's limits ---- */

nib_status nib__run_fail(nib_render *r, nib_status status, const char *format, ...)
{
    char sentence[512], name[NIB_SHOWN];
    va_list args;
    va_start(args, format);
    nib__vformat(sentence, sizeof sentence, format, args);
    va_end(args);
    return nib__fail(r->err, status, "%s: line %d: %s", nib__escape_string(name, r->t->name),
                     r->line, sentence);
}

nib_status nib__run_steps(nib_render *r, uint64_t steps)
{
    char count[32];
    r->steps += steps;
    if (r->steps <= r->steps_limit)
        return NIB_OK;
    return nib__run_fail(r, NIB_NO_MEMORY,
                         "the template takes more than %s steps; it loops too long on this input",
                         nib__format_count(count, r->steps_limit));
}

nib_status nib__run_enter(nib_render *r)
{
    if (r->depth >= r->depth_limit)
        return nib__run_fail(r, NIB_NO_MEMORY,
                             "calls, loops, expressions or values are nested deeper than %d",
                             r->depth_limit);
    r->depth++;
    return NIB_OK;
}

void *nib__run_alloc(nib_render *r, size_t count, size_t size)
{
    char limit[32];
    uint64_t bytes = 0;
    void *p = nib__arena_take(&r->arena, count, size);
    if (p != NULL)
        return p;
    if (!nib__mul(&bytes, count, size) || bytes > r->arena.limit - r->arena.total)
        (void)nib__run_fail(r, NIB_NO_MEMORY,
                            "the template takes more than %s of memory; its output is too long",
                            nib__format_bytes(limit, r->arena.limit));
    else
        (void)nib__fail_memory(r->err, bytes, "rendering a chat template");
    return NULL;
}

/* ---- making ---- */

nib_status nib__v_text(nib_render *r, nib_value *out, const char *at, size_t size, bool user)
{
    nib_string *s = nib__run_alloc(r, 1, sizeof *s);
    if (s == NULL)
        return NIB_NO_MEMORY;
    *s = (nib_string){.at = at, .size = size, .user = user};
    *out = (nib_value){.kind = NIB_V_STRING, .as.string = s};
    return NIB_OK;
}

nib_status nib__v_undefined(nib_render *r, nib_value *out, const char *name)
{
    NIB_TRY(nib__v_text(r, out, name, strlen(name), false));
    out->kind = NIB_V_UNDEFINED;
    return NIB_OK;
}

nib_status nib__v_items(nib_render *r, nib_value *out, nib_value_kind kind, size_t capacity)
{
    nib_items *items = nib__run_alloc(r, 1, sizeof *items);
    nib_item_buffer *buffer = nib__run_alloc(r, 1, sizeof *buffer);
    nib_value *at = nib__run_alloc(r, capacity == 0 ? 1 : capacity, sizeof *at);
    if (items == NULL || buffer == NULL || at == NULL)
        return NIB_NO_MEMORY;
    *buffer = (nib_item_buffer){at, 0, capacity == 0 ? 1 : capacity};
    *items = (nib_items){.at = at, .buffer = buffer};
    *out = (nib_value){.kind = (uint8_t)kind, .as.items = items};
    return nib__run_steps(r, capacity / 16);
}

nib_status nib__items_push(nib_render *r, nib_value *list, nib_value item)
{
    nib_items *items = list->as.items;
    nib_item_buffer *buffer = items->buffer;
    if (buffer->used == buffer->capacity) {
        nib_value *at = nib__run_alloc(r, 2 * buffer->capacity, sizeof *at);
        if (at == NULL)
            return NIB_NO_MEMORY;
        memcpy(at, buffer->at, buffer->used * sizeof *at);
        const size_t start = (size_t)(items->at - buffer->at);
        buffer->at = at;
        buffer->capacity *= 2;
        items->at = at + start;
    }
    buffer->at[buffer->used++] = item;
    items->count++;
    return nib__run_steps(r, 1);
}

nib_status nib__v_dict(nib_render *r, nib_value *out, nib_value_kind kind)
{
    enum { FIRST = 4 }; /* a power of two, like all capacities */
    nib_dict *dict = nib__run_alloc(r, 1, sizeof *dict);
    nib_pair *pairs = nib__run_alloc(r, FIRST, sizeof *pairs);
    if (dict == NULL || pairs == NULL)
        return NIB_NO_MEMORY;
    *dict = (nib_dict){.pairs = pairs, .capacity = FIRST};
    *out = (nib_value){.kind = (uint8_t)kind, .as.dict = dict};
    return NIB_OK;
}

/* Equal keys, such as 1, 1.0 and true, have equal hashes. */
static uint32_t hash_of(nib_value key)
{
    double number;
    if (key.kind == NIB_V_STRING)
        return nib__name_hash(key.as.string->at, key.as.string->size);
    if (nib__number(key, &number)) {
        number += 0.0; /* turns -0.0 into 0.0 */
        char bytes[sizeof number];
        memcpy(bytes, &number, sizeof number);
        return nib__name_hash(bytes, sizeof bytes);
    }
    return key.kind;
}

static uint64_t hash_cost(nib_value key)
{
    return key.kind == NIB_V_STRING ? key.as.string->size / 64 : 0;
}

/* *found: the index of the key + 1; 0 if missing, with *slot its empty slot. */
static nib_status find_key(nib_render *r, const nib_dict *dict, nib_value key, size_t *found,
                           size_t *slot)
{
    bool equal = false;
    *found = 0;
    *slot = 0;
    for (size_t i = 0; dict->slots == NULL && i < dict->count; i++) {
        NIB_TRY(nib__equal(r, dict->pairs[i].key, key, &equal));
        if (equal) {
            *found = i + 1;
            return NIB_OK;
        }
    }
    if (dict->slots == NULL)
        return NIB_OK;
    NIB_TRY(nib__run_steps(r, hash_cost(key)));
    size_t at = hash_of(key) & (dict->slot_count - 1);
    for (; dict->slots[at] != 0; at = (at + 1) & (dict->slot_count - 1)) {
        NIB_TRY(nib__run_steps(r, 1));
        NIB_TRY(nib__equal(r, dict->pairs[dict->slots[at] - 1].key, key, &equal));
        if (equal) {
            *found = dict->slots[at];
            return NIB_OK;
        }
    }
    *slot = at;
    return NIB_OK;
}

static nib_status grow_dict(nib_render *r, nib_dict *dict)
{
    enum { FEW = 8 }; /* up to so many pairs: linear search, no slots */
    const size_t capacity = 2 * dict->capacity, slot_count = 2 * capacity;
    nib_pair *pairs = nib__run_alloc(r, capacity, sizeof *pairs);
    uint32_t *slots = capacity <= FEW ? NULL : nib__run_alloc(r, slot_count, sizeof *slots);
    if (pairs == NULL || (slots == NULL && capacity > FEW))
        return NIB_NO_MEMORY;
    memcpy(pairs, dict->pairs, dict->count * sizeof *pairs);
    dict->pairs = pairs;
    dict->capacity = capacity;
    if (slots == NULL)
        return NIB_OK;
    dict->slots = slots;
    dict->slot_count = slot_count;
    for (size_t i = 0; i < dict->count; i++) {
        NIB_TRY(nib__run_steps(r, hash_cost(pairs[i].key)));
        size_t at = hash_of(pairs[i].key) & (slot_count - 1);
        for (; slots[at] != 0; at = (at + 1) & (slot_count - 1))
            NIB_TRY(nib__run_steps(r, 1));
        slots[at] = (uint32_t)i + 1;
    }
    return NIB_OK;
}

nib_status nib__dict_put(nib_render *r, nib_dict *dict, nib_value key, nib_value value)
{
    size_t found, slot;
    NIB_TRY(nib__run_steps(r, 1));
    NIB_TRY(nib__hashable(r, key));
    NIB_TRY(find_key(r, dict, key, &found, &slot));
    if (found != 0) {
        dict->pairs[found - 1].value = value;
        return NIB_OK;
    }
    if (dict->count == dict->capacity) {
        NIB_TRY(grow_dict(r, dict));
        NIB_TRY(find_key(r, dict, key, &found, &slot));
    }
    dict->pairs[dict->count++] = (nib_pair){key, value};
    if (dict->slots != NULL)
        dict->slots[slot] = (uint32_t)dict->count;
    return NIB_OK;
}

nib_status nib__dict_get(nib_render *r, const nib_dict *dict, nib_value key, nib_value **out)
{
    size_t found, slot;
    NIB_TRY(find_key(r, dict, key, &found, &slot));
    *out = found == 0 ? NULL : &dict->pairs[found - 1].value;
    return NIB_OK;
}

nib_status nib__slice_string(nib_render *r, nib_value *out, nib_value of, size_t from, size_t to)
{
    const nib_string *s = of.as.string;
    if (from == 0 && to == s->size) {
        *out = of;
        return NIB_OK;
    }
    nib_string *made = nib__run_alloc(r, 1, sizeof *made);
    if (made == NULL)
        return NIB_NO_MEMORY;
    *made = (nib_string){s->at + from, s->marks == NULL ? NULL : s->marks + from, to - from, NULL,
                         s->user};
    *out = (nib_value){.kind = NIB_V_STRING, .markup = of.markup, .as.string = made};
    return NIB_OK;
}

/* ---- reading ---- */

bool nib__is_text(nib_value v, const char *text)
{
    return v.kind == NIB_V_STRING && v.as.string->size == strlen(text) &&
           memcmp(v.as.string->at, text, v.as.string->size) == 0;
}

bool nib__truth(nib_value v)
{
    switch (v.kind) {
    case NIB_V_UNDEFINED:
    case NIB_V_NONE: return false;
    case NIB_V_BOOL: return v.as.boolean;
    case NIB_V_INT: return v.as.integer != 0;
    case NIB_V_FLOAT: return v.as.real != 0;
    case NIB_V_STRING: return v.as.string->size != 0;
    case NIB_V_DICT: return v.as.dict->count != 0;
    case NIB_V_LIST:
    case NIB_V_TUPLE:
    case NIB_V_RANGE:
    case NIB_V_KEYS:
    case NIB_V_VALUES:
    case NIB_V_ITEMS: return v.as.items->count != 0;
    default: return true;
    }
}

const char *nib__kind_name(nib_value v)
{
    static const char *const names[] = {
        [NIB_V_UNDEFINED] = "Undefined",
        [NIB_V_NONE] = "NoneType",
        [NIB_V_BOOL] = "bool",
        [NIB_V_INT] = "int",
        [NIB_V_BIG] = "int",
        [NIB_V_FLOAT] = "float",
        [NIB_V_STRING] = "str",
        [NIB_V_LIST] = "list",
        [NIB_V_TUPLE] = "tuple",
        [NIB_V_RANGE] = "range",
        [NIB_V_KEYS] = "dict_keys",
        [NIB_V_VALUES] = "dict_values",
        [NIB_V_ITEMS] = "dict_items",
        [NIB_V_STREAM] = "generator",
        [NIB_V_DICT] = "dict",
        [NIB_V_NAMESPACE] = "Namespace",
        [NIB_V_LOOP] = "LoopContext",
        [NIB_V_MACRO] = "Macro",
        [NIB_V_METHOD] = "method",
        [NIB_V_GLOBAL] = "function",
    };
    return names[v.kind];
}

bool nib__integer(nib_value v, int64_t *out)
{
    *out = v.kind == NIB_V_BOOL ? v.as.boolean : v.kind == NIB_V_INT ? v.as.integer : 0;
    return v.kind == NIB_V_BOOL || v.kind == NIB_V_INT;
}

bool nib__number(nib_value v, double *out)
{
    int64_t integer;
    if (nib__integer(v, &integer))
        *out = (double)integer;
    else if (v.kind == NIB_V_FLOAT)
        *out = v.as.real;
    else
        return false;
    return true;
}

size_t nib__count_points(const char *at, size_t size)
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++)
        count += ((unsigned char)at[i] & 0xc0) != 0x80;
    return count;
}

nib_status nib__hashable(nib_render *r, nib_value v)
{
    if (v.kind == NIB_V_LIST || v.kind == NIB_V_DICT || v.kind == NIB_V_KEYS ||
        v.kind == NIB_V_ITEMS)
        return nib__run_fail(r, NIB_BAD_INPUT, "a %s cannot be a key", nib__kind_name(v));
    for (size_t i = 0; v.kind == NIB_V_TUPLE && i < v.as.items->count; i++) {
        NIB_TRY(nib__run_enter(r));
        NIB_TRY(nib__hashable(r, v.as.items->at[i]));
        r->depth--;
    }
    return NIB_OK;
}

nib_status nib__iterate(nib_render *r, nib_value v, const nib_value **out, size_t *count)
{
    nib_value list;
    *out = NULL;
    *count = 0;
    if (v.kind == NIB_V_UNDEFINED)
        return NIB_OK;
    if (nib__is_items(v)) {
        nib_items *items = v.as.items;
        *out = items->at;
        *count = items->count;
        if (v.kind == NIB_V_STREAM)
            items->count = 0;
        return NIB_OK;
    }
    if (v.kind == NIB_V_DICT) {
        NIB_TRY(nib__v_items(r, &list, NIB_V_LIST, v.as.dict->count));
        for (size_t i = 0; i < v.as.dict->count; i++)
            NIB_TRY(nib__items_push(r, &list, v.as.dict->pairs[i].key));
    } else if (v.kind == NIB_V_STRING) {
        const nib_string *s = v.as.string;
        NIB_TRY(nib__v_items(r, &list, NIB_V_LIST, s->size));
        for (size_t at = 0; at < s->size;) {
            nib_value one;
            const size_t size = (size_t)nib__utf8_length(s->at + at, s->size - at);
            NIB_TRY(nib__slice_string(r, &one, v, at, at + size));
            one.markup = false;
            NIB_TRY(nib__items_push(r, &list, one));
            at += size;
        }
    } else {
        return nib__run_fail(r, NIB_BAD_INPUT, "%s is not iterable", nib__kind_name(v));
    }
    *out = list.as.items->at;
    *count = list.as.items->count;
    return NIB_OK;
}

/* ---- comparing ---- */

static nib_status equal_items(nib_render *r, const nib_items *a, const nib_items *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++)
        NIB_TRY(nib__equal(r, a->at[i], b->at[i], out));
    return NIB_OK;
}

static nib_status equal_dicts(nib_render *r, const nib_dict *a, const nib_dict *b, bool *out)
{
    *out = a->count == b->count;
    for (size_t i = 0; *out && i < a->count; i++) {
        nib_value *other;
        NIB_TRY(nib__dict_get(r, b, a->pairs[i].key, &other));
        *out = other != NULL;
        if (other != NULL)
            NIB_TRY(nib__equal(r, a->pairs[i].value, *other, out));
    }
    return NIB_OK;
}

static nib_status equal_parts(nib_render *r, nib_value a, nib_value b, bool *out)
{
    NIB_TRY(nib__run_enter(r));
    NIB_TRY(a.kind == NIB_V_DICT ? equal_dicts(r, a.as.dict, b.as.dict, out)
                                 : equal_items(r, a.as.items, b.as.items, out));
    r->depth--;
    return NIB_OK;
}

/* -1, 0 or 1: a is less than, equal to or greater than b, without rounding; 2: b is NaN. */
static int compare_int_real(int64_t a, double b)
{
    if (isnan(b))
        return 2;
    if (b >= 0x1p63 || b < -0x1p63)
        return b > 0 ? -1 : 1;
    const int64_t whole = (int64_t)b;
    const double rest = b - (double)whole;
    return a != whole ? (a < whole ? -1 : 1) : rest > 0 ? -1 : rest < 0;
}

/* False: not both are numbers. */
static bool compare_numbers(nib_value a, nib_value b, int *order)
{
    int64_t i, j;
    double x, y;
    const bool first = nib__integer(a, &i), second = nib__integer(b, &j);
    if (!nib__number(a, &x) || !nib__number(b, &y))
        return false;
    if (first && second) {
        *order = i < j ? -1 : i > j;
    } else if (first) {
        *order = compare_int_real(i, y);
    } else if (second) {
        *order = compare_int_real(j, x);
        *order = *order == 2 ? 2 : -*order;
    } else {
        *order = isnan(x) || isnan(y) ? 2 : x < y ? -1 : x > y;
    }
    return true;
}

static bool equal_numbers(nib_value a, nib_value b)
{
    int order;
    return compare_numbers(a, b, &order) && order == 0;
}

nib_status nib__equal(nib_render *r, nib_value a, nib_value b, bool *out)
{
    *out = false;
    NIB_TRY(nib__run_steps(r, 1));
    if (a.kind != b.kind) {
        *out = equal_numbers(a, b);
        return NIB_OK;
    }
    switch (a.kind) {
    case NIB_V_UNDEFINED:
    case NIB_V_NONE: *out = true; return NIB_OK;
    case NIB_V_STRING:
    case NIB_V_BIG:
        if (a.as.string->size != b.as.string->size)
            return NIB_OK;
        *out = memcmp(a.as.string->at, b.as.string->at, a.as.string->size) == 0;
        return nib__run_steps(r, a.as.string->size / 256);
    case NIB_V_LIST:
    case NIB_V_TUPLE:
    case NIB_V_RANGE:
    case NIB_V_KEYS:
    case NIB_V_ITEMS:
    case NIB_V_DICT: return equal_parts(r, a, b, out);
    case NIB_V_BOOL:
    case NIB_V_INT:
    case NIB_V_FLOAT: *out = equal_numbers(a, b); return NIB_OK;
    case NIB_V_GLOBAL: *out = a.as.global == b.as.global; return NIB_OK;
    default: *out = (const void *)a.as.items == (const void *)b.as.items; return NIB_OK;
    }
}

static nib_status less_items(nib_render *r, const nib_items *a, const nib_items *b, bool *out)
{
    NIB_TRY(nib__run_enter(r));
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        bool equal;
        NIB_TRY(nib__equal(r, a->at[i], b->at[i], &equal));
        if (!equal) {
            NIB_TRY(nib__less(r, a->at[i], b->at[i], out));
            r->depth--;
            return NIB_OK;
        }
    }
    r->depth--;
    *out = a->count < b->count;
    return NIB_OK;
}

nib_status nib__less(nib_render *r, nib_value a, nib_value b, bool *out)
{
    int order;
    NIB_TRY(nib__run_steps(r, 1));
    if (compare_numbers(a, b, &order)) {
        *out = order < 0;
    } else if (a.kind == NIB_V_STRING && b.kind == NIB_V_STRING) {
        const nib_string *s = a.as.string, *t = b.as.string;
        order = memcmp(s->at, t->at, s->size < t->size ? s->size : t->size);
        *out = order < 0 || (order == 0 && s->size < t->size);
        return nib__run_steps(r, (s->size < t->size ? s->size : t->size) / 256);
    } else if (a.kind == b.kind && (a.kind == NIB_V_LIST || a.kind == NIB_V_TUPLE)) {
        return less_items(r, a.as.items, b.as.items, out);
    } else {
        return nib__run_fail(r, NIB_BAD_INPUT, "cannot order a %s and a %s", nib__kind_name(a),
                             nib__kind_name(b));
    }
    return NIB_OK;
}

/* A merge sort: merges runs of 1, 2, 4 ... */
nib_status nib__sort_pairs(nib_render *r, nib_pair *pairs, size_t count, bool reverse)
{
    nib_pair *other = nib__run_alloc(r, count == 0 ? 1 : count, sizeof *other), *from = pairs;
    if (other == NULL)
        return NIB_NO_MEMORY;
    for (size_t run = 1; run < count; run *= 2) {
        nib_pair *to = from == pairs ? other : pairs;
        for (size_t start = 0; start < count; start += 2 * run) {
            const size_t middle = start + run < count ? start + run : count;
            const size_t end = middle + run < count ? middle + run : count;
            size_t i = start, j = middle;
            for (size_t k = start; k < end; k++) {
                bool later = j < end;
                if (i < middle && j < end)
                    NIB_TRY(reverse ? nib__less(r, from[i].key, from[j].key, &later)
                                    : nib__less(r, from[j].key, from[i].key, &later));
                else
                    later = i >= middle;
                to[k] = later ? from[j++] : from[i++];
            }
        }
        from = to;
    }
    if (from != pairs)
        memcpy(pairs, from, count * sizeof *pairs);
    return NIB_OK;
}
