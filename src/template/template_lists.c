/* SPDX-License-Identifier: Apache-2.0
 *
 * Jinja's filters of collections. A filter that returns a generator in Jinja returns a stream here:
 * it can be iterated once, but is computed at once.
 */
#include "template_parts.h"

/* ---- attribute= arguments ---- */

/* An element; if undefined, `fallback`, unless that is none. */
static nib_status element_or(nib_render *r, nib_value of, nib_value index, nib_value fallback,
                             nib_value *out)
{
    NIB_TRY(nib__run_item(r, of, index, out));
    if (out->kind == NIB_V_UNDEFINED && fallback.kind != NIB_V_NONE)
        *out = fallback;
    return NIB_OK;
}

/* The attribute of an item; the item itself if attribute is NONE or not given. A dotted name is
 * looked up part by part; digits are indices. */
static nib_status lookup_or(nib_render *r, nib_value item, nib_value attribute, nib_value fallback,
                            nib_value *out)
{
    *out = item;
    if (!nib__is_given(&attribute) || attribute.kind == NIB_V_NONE)
        return NIB_OK;
    if (attribute.kind != NIB_V_STRING)
        return element_or(r, item, attribute, fallback, out);
    const nib_string *s = attribute.as.string;
    for (size_t from = 0; from <= s->size;) {
        const char *dot = memchr(s->at + from, '.', s->size - from);
        const size_t to = dot == NULL ? s->size : (size_t)(dot - s->at);
        nib_value part;
        int64_t index = 0;
        size_t digits = from;
        while (digits < to && digits - from < 9 && s->at[digits] >= '0' && s->at[digits] <= '9')
            index = 10 * index + (s->at[digits++] - '0');
        if (digits == to && to > from)
            part = nib__v_int(index);
        else
            NIB_TRY(nib__slice_string(r, &part, attribute, from, to));
        NIB_TRY(element_or(r, *out, part, fallback, out));
        from = to + 1;
    }
    return NIB_OK;
}

static nib_status lookup(nib_render *r, nib_value item, nib_value attribute, nib_value *out)
{
    return lookup_or(r, item, attribute, nib__v_none(), out);
}

/* The key that items are compared by: strings in lower case, unless case_sensitive. */
static nib_status sort_key_or(nib_render *r, nib_value item, nib_value attribute,
                              nib_value fallback, bool case_sensitive, nib_value *out)
{
    nib_builder b = {.size = 0};
    NIB_TRY(lookup_or(r, item, attribute, fallback, out));
    if (case_sensitive || out->kind != NIB_V_STRING)
        return NIB_OK;
    NIB_TRY(nib__put_case(r, &b, out->as.string, NIB_LOWER));
    return nib__finish_string(r, &b, out);
}

static nib_status sort_key(nib_render *r, nib_value item, nib_value attribute, bool case_sensitive,
                           nib_value *out)
{
    return sort_key_or(r, item, attribute, nib__v_none(), case_sensitive, out);
}

static nib_status new_stream(nib_render *r, nib_value *out, size_t capacity)
{
    return nib__v_items(r, out, NIB_V_STREAM, capacity);
}

/* ---- choosing ---- */

/* map(filter, ...) or map(attribute=name, default=value) */
NIB_BUILTIN(nib__filter_map)
{
    const nib_value *items;
    nib_value attribute = {.kind = NIB_V_UNDEFINED}, fallback = nib__v_none();
    const nib_call_row *row = NULL;
    nib_arguments rest = *args;
    size_t count;
    (void)bound;
    if (!nib__truth(self))
        return new_stream(r, out, 0); /* for any false value, none included */
    if (args->count == 0) {
        for (size_t i = 0; i < args->named_count; i++) {
            const nib_value name = {.kind = NIB_V_STRING, .as.string = args->named[i].name};
            if (nib__is_text(name, "attribute"))
                attribute = args->named[i].value;
            else if (nib__is_text(name, "default"))
                fallback = args->named[i].value;
            else
                return nib__run_fail(r, NIB_BAD_INPUT, "map has no argument \"%.60s\"",
                                     name.as.string->at);
        }
        if (!nib__is_given(&attribute))
            return nib__run_fail(r, NIB_BAD_INPUT, "map needs a filter or attribute=");
    } else {
        const nib_value name = args->at[0];
        if (name.kind == NIB_V_STRING)
            row = nib__filter_find(name.as.string->at, name.as.string->size);
        if (row == NULL)
            return nib__run_fail(r, NIB_UNSUPPORTED, "map: there is no filter of this name");
        rest.at++;
        rest.count--;
    }
    NIB_TRY(nib__iterate(r, self, &items, &count));
    NIB_TRY(new_stream(r, out, count));
    for (size_t i = 0; i < count; i++) {
        nib_value made;
        NIB_TRY(row != NULL ? nib__call_row(r, row, "the filter", items[i], &rest, &made)
                            : lookup_or(r, items[i], attribute, fallback, &made));
        NIB_TRY(nib__items_push(r, out, made));
    }
    return NIB_OK;
}

static nib_status filter_items_by(nib_render *r, nib_value self, const nib_arguments *args,
                                  bool by_attribute, bool wanted, nib_value *out)
{
    const nib_value *items;
    const nib_call_row *row = NULL;
    nib_arguments rest = *args;
    nib_value attribute = {.kind = NIB_V_UNDEFINED};
    size_t count;
    if (!nib__truth(self))
        return new_stream(r, out, 0);
    if (by_attribute) {
        if (rest.count == 0)
            return nib__run_fail(r, NIB_BAD_INPUT,
                                 "selectattr or rejectattr: the attribute's name is missing");
        attribute = *rest.at++;
        rest.count--;
    }
    if (rest.count != 0) {
        const nib_value name = *rest.at++;
        rest.count--;
        if (name.kind == NIB_V_STRING)
            row = nib__test_find(name.as.string->at, name.as.string->size);
        if (row == NULL)
            return nib__run_fail(r, NIB_UNSUPPORTED, "select or reject: unknown test");
    }
    NIB_TRY(nib__iterate(r, self, &items, &count));
    NIB_TRY(new_stream(r, out, count));
    for (size_t i = 0; i < count; i++) {
        nib_value value, holds;
        NIB_TRY(lookup(r, items[i], attribute, &value));
        holds = value;
        if (row != NULL)
            NIB_TRY(nib__call_row(r, row, "the test", value, &rest, &holds));
        if (nib__truth(holds) == wanted)
            NIB_TRY(nib__items_push(r, out, items[i]));
    }
    return NIB_OK;
}

NIB_BUILTIN(nib__filter_select)
{
    return (void)bound, filter_items_by(r, self, args, false, true, out);
}
NIB_BUILTIN(nib__filter_reject)
{
    return (void)bound, filter_items_by(r, self, args, false, false, out);
}
NIB_BUILTIN(nib__filter_selectattr)
{
    return (void)bound, filter_items_by(r, self, args, true, true, out);
}
NIB_BUILTIN(nib__filter_rejectattr)
{
    return (void)bound, filter_items_by(r, self, args, true, false, out);
}

NIB_BUILTIN(nib__filter_unique)
{
    const nib_value *items;
    nib_value seen, key, *found;
    size_t count;
    (void)args;
    NIB_TRY(nib__iterate(r, self, &items, &count));
    NIB_TRY(new_stream(r, out, count));
    NIB_TRY(nib__v_dict(r, &seen, NIB_V_DICT));
    for (size_t i = 0; i < count; i++) {
        NIB_TRY(sort_key(r, items[i], bound[1], nib__truth(bound[0]), &key));
        NIB_TRY(nib__dict_get(r, seen.as.dict, key, &found));
        if (found != NULL)
            continue;
        NIB_TRY(nib__dict_put(r, seen.as.dict, key, nib__v_none()));
        NIB_TRY(nib__items_push(r, out, items[i]));
    }
    return NIB_OK;
}

/* ---- one of many ---- */

NIB_BUILTIN(nib__filter_first)
{
    const nib_value *items;
    size_t count;
    (void)args, (void)bound;
    if (self.kind == NIB_V_STREAM && nib__pull(self.as.items, out))
        return NIB_OK; /* the other elements stay in the stream */
    NIB_TRY(nib__iterate(r, self, &items, &count));
    if (count == 0)
        return nib__v_undefined(r, out, "the first element of an empty list");
    *out = items[0];
    return NIB_OK;
}

NIB_BUILTIN(nib__filter_last)
{
    const nib_value *items;
    size_t count;
    (void)args, (void)bound;
    if (self.kind == NIB_V_STREAM)
        return nib__run_type_error(r, "last", self, self);
    NIB_TRY(nib__iterate(r, self, &items, &count));
    if (count == 0)
        return nib__v_undefined(r, out, "the last element of an empty list");
    *out = items[count - 1];
    return NIB_OK;
}

static nib_status find_extreme(nib_render *r, nib_value self, const nib_value *bound, bool greatest,
                               nib_value *out)
{
    const nib_value *items;
    nib_value best, key;
    size_t count;
    NIB_TRY(nib__iterate(r, self, &items, &count));
    if (count == 0)
        return nib__v_undefined(r, out, "the minimum or maximum of an empty list");
    *out = items[0];
    NIB_TRY(sort_key(r, items[0], bound[1], nib__truth(bound[0]), &best));
    for (size_t i = 1; i < count; i++) {
        bool better;
        NIB_TRY(sort_key(r, items[i], bound[1], nib__truth(bound[0]), &key));
        NIB_TRY(greatest ? nib__less(r, best, key, &better) : nib__less(r, key, best, &better));
        if (!better)
            continue;
        best = key;
        *out = items[i];
    }
    return NIB_OK;
}

NIB_BUILTIN(nib__filter_min) { return (void)args, find_extreme(r, self, bound, false, out); }
NIB_BUILTIN(nib__filter_max) { return (void)args, find_extreme(r, self, bound, true, out); }

NIB_BUILTIN(nib__filter_sum)
{
    const nib_value *items;
    nib_value item;
    size_t count;
    (void)args;
    NIB_TRY(nib__iterate(r, self, &items, &count));
    *out = nib__is_given(&bound[1]) ? bound[1] : nib__v_int(0);
    if (out->kind == NIB_V_STRING)
        return nib__run_type_error(r, "sum", *out, *out);
    for (size_t i = 0; i < count; i++) {
        NIB_TRY(lookup(r, items[i], bound[0], &item));
        NIB_TRY(nib__run_binary(r, NIB_OPERATOR_ADD, *out, item, out));
    }
    return NIB_OK;
}

NIB_BUILTIN(nib__filter_join)
{
    const nib_value *items;
    nib_builder b = {.size = 0};
    nib_value between, item;
    size_t count;
    (void)args;
    NIB_TRY(nib__v_text(r, &between, "", 0, false));
    if (nib__is_given(&bound[0]))
        NIB_TRY(nib__to_string(r, bound[0], &between));
    NIB_TRY(nib__iterate(r, self, &items, &count));
    for (size_t i = 0; i < count; i++) {
        NIB_TRY(nib__run_steps(r, 1));
        NIB_TRY(lookup(r, items[i], bound[1], &item));
        if (i != 0)
            NIB_TRY(nib__put_string(r, &b, between.as.string));
        NIB_TRY(nib__put_value(r, &b, item));
    }
    return nib__finish_string(r, &b, out);
}

/* ---- order ---- */

NIB_BUILTIN(nib__filter_list)
{
    const nib_value *items;
    size_t count;
    (void)args, (void)bound;
    NIB_TRY(nib__iterate(r, self, &items, &count));
    NIB_TRY(nib__v_items(r, out, NIB_V_LIST, count));
    out->user = self.user;
    for (size_t i = 0; i < count; i++)
        NIB_TRY(nib__items_push(r, out, items[i]));
    return NIB_OK;
}

NIB_BUILTIN(nib__filter_reverse)
{
    const nib_value *items;
    nib_builder b = {.size = 0};
    size_t count;
    (void)args, (void)bound;
    NIB_TRY(nib__iterate(r, self, &items, &count));
    if (self.kind == NIB_V_STRING) {
        for (size_t i = count; i-- > 0;)
            NIB_TRY(nib__put_string(r, &b, items[i].as.string));
        NIB_TRY(nib__finish_string(r, &b, out));
        out->markup = self.markup;
        return NIB_OK;
    }
    NIB_TRY(nib__v_items(r, out, self.kind == NIB_V_STREAM ? NIB_V_LIST : NIB_V_STREAM, count));
    for (size_t i = count; i-- > 0;)
        NIB_TRY(nib__items_push(r, out, items[i]));
    return NIB_OK;
}

/* A tuple to sort by, with a key for each of the comma-separated attributes. Tuples compare equal
 * elements without ordering them, so several nones can be sorted. */
static nib_status sort_tuple(nib_render *r, nib_value item, nib_value attribute,
                             bool case_sensitive, nib_value *out)
{
    const nib_string *s = attribute.kind == NIB_V_STRING ? attribute.as.string : NULL;
    const size_t size = s == NULL ? 0 : s->size;
    NIB_TRY(nib__v_items(r, out, NIB_V_TUPLE, 1));
    for (size_t from = 0; from <= size;) {
        const char *comma = size == 0 ? NULL : memchr(s->at + from, ',', size - from);
        const size_t to = comma == NULL ? size : (size_t)(comma - s->at);
        nib_value part = attribute, key;
        if (s != NULL)
            NIB_TRY(nib__slice_string(r, &part, attribute, from, to));
        NIB_TRY(sort_key(r, item, part, case_sensitive, &key));
        NIB_TRY(nib__items_push(r, out, key));
        from = to + 1;
    }
    return NIB_OK;
}

/* Makes pairs with the elements as values; the caller sets the keys. */
static nib_status open_pairs(nib_render *r, nib_value self, nib_pair **out, size_t *count)
{
    const nib_value *items;
    NIB_TRY(nib__iterate(r, self, &items, count));
    *out = nib__run_alloc(r, *count == 0 ? 1 : *count, sizeof **out);
    if (*out == NULL)
        return NIB_NO_MEMORY;
    for (size_t i = 0; i < *count; i++)
        (*out)[i].value = items[i];
    return NIB_OK;
}

NIB_BUILTIN(nib__filter_sort)
{
    nib_pair *pairs;
    size_t count;
    (void)args;
    NIB_TRY(open_pairs(r, self, &pairs, &count));
    for (size_t i = 0; i < count; i++)
        NIB_TRY(sort_tuple(r, pairs[i].value, bound[2], nib__truth(bound[1]), &pairs[i].key));
    NIB_TRY(nib__sort_pairs(r, pairs, count, nib__truth(bound[0])));
    NIB_TRY(nib__v_items(r, out, NIB_V_LIST, count));
    for (size_t i = 0; i < count; i++)
        NIB_TRY(nib__items_push(r, out, pairs[i].value));
    return NIB_OK;
}

static nib_status make_pair(nib_render *r, nib_value a, nib_value b, nib_value *out)
{
    NIB_TRY(nib__v_items(r, out, NIB_V_TUPLE, 2));
    NIB_TRY(nib__items_push(r, out, a));
    return nib__items_push(r, out, b);
}

static nib_status push_pair(nib_render *r, nib_value *list, nib_value a, nib_value b)
{
    nib_value tuple;
    NIB_TRY(make_pair(r, a, b, &tuple));
    return nib__items_push(r, list, tuple);
}

/* Groups in the order of their keys. */
NIB_BUILTIN(nib__filter_groupby)
{
    nib_pair *pairs;
    nib_value group = {.kind = NIB_V_NONE}, shown, pair;
    size_t count;
    (void)args;
    const nib_value fallback = nib__is_given(&bound[1]) ? bound[1] : nib__v_none();
    NIB_TRY(open_pairs(r, self, &pairs, &count));
    for (size_t i = 0; i < count; i++)
        NIB_TRY(sort_key_or(r, pairs[i].value, bound[0], fallback, nib__truth(bound[2]),
                            &pairs[i].key));
    NIB_TRY(nib__sort_pairs(r, pairs, count, false));
    NIB_TRY(nib__v_items(r, out, NIB_V_LIST, count));
    for (size_t i = 0; i < count; i++) {
        bool same = false;
        if (i != 0)
            NIB_TRY(nib__equal(r, pairs[i - 1].key, pairs[i].key, &same));
        if (!same) {
            NIB_TRY(nib__v_items(r, &group, NIB_V_LIST, 4));
            NIB_TRY(lookup_or(r, pairs[i].value, bound[0], fallback, &shown));
            NIB_TRY(make_pair(r, shown, group, &pair));
            pair.as.items->group = true;
            NIB_TRY(nib__items_push(r, out, pair));
        }
        NIB_TRY(nib__items_push(r, &group, pairs[i].value));
    }
    return NIB_OK;
}

nib_status nib__dict_view(nib_render *r, nib_value dict, nib_value_kind kind, nib_value *out)
{
    const nib_dict *d = dict.as.dict;
    NIB_TRY(nib__v_items(r, out, kind, d->count));
    out->user = dict.user;
    for (size_t i = 0; i < d->count; i++) {
        if (kind == NIB_V_KEYS || kind == NIB_V_VALUES)
            NIB_TRY(
                nib__items_push(r, out, kind == NIB_V_KEYS ? d->pairs[i].key : d->pairs[i].value));
        else
            NIB_TRY(push_pair(r, out, d->pairs[i].key, d->pairs[i].value));
    }
    return NIB_OK;
}

NIB_BUILTIN(nib__filter_items)
{
    (void)args, (void)bound;
    if (self.kind == NIB_V_UNDEFINED)
        return new_stream(r, out, 0);
    if (self.kind != NIB_V_DICT)
        return nib__run_fail(r, NIB_BAD_INPUT, "items needs a dict, not a %s",
                             nib__kind_name(self));
    return nib__dict_view(r, self, NIB_V_STREAM, out);
}

NIB_BUILTIN(nib__filter_dictsort)
{
    const bool by_value = nib__is_text(bound[1], "value");
    (void)args;
    if (self.kind != NIB_V_DICT)
        return nib__run_type_error(r, "dictsort", self, self);
    if (nib__is_given(&bound[1]) && !by_value && !nib__is_text(bound[1], "key"))
        return nib__run_fail(r, NIB_BAD_INPUT, "dictsort: by must be key or value");
    nib_pair *pairs = nib__run_alloc(r, self.as.dict->count + 1, sizeof *pairs);
    if (pairs == NULL)
        return NIB_NO_MEMORY;
    const nib_value none = {.kind = NIB_V_UNDEFINED};
    const size_t count = self.as.dict->count;
    for (size_t i = 0; i < count; i++) {
        const nib_pair *p = &self.as.dict->pairs[i];
        NIB_TRY(make_pair(r, p->key, p->value, &pairs[i].value));
        NIB_TRY(
            sort_key(r, by_value ? p->value : p->key, none, nib__truth(bound[0]), &pairs[i].key));
    }
    NIB_TRY(nib__sort_pairs(r, pairs, count, nib__truth(bound[2])));
    NIB_TRY(nib__v_items(r, out, NIB_V_LIST, count));
    for (size_t i = 0; i < count; i++)
        NIB_TRY(nib__items_push(r, out, pairs[i].value));
    return NIB_OK;
}

/* ---- splitting ---- */

static nib_status begin_batch(nib_render *r, nib_value *part, nib_value *out)
{
    NIB_TRY(nib__v_items(r, part, NIB_V_LIST, 4));
    return nib__items_push(r, out, *part);
}

NIB_BUILTIN(nib__filter_batch)
{
    const nib_value *items;
    nib_value part = {.kind = NIB_V_NONE};
    int64_t size;
    size_t count;
    (void)args;
    if (!nib__integer(bound[0], &size))
        return nib__run_type_error(r, "batch", self, bound[0]);
    NIB_TRY(nib__iterate(r, self, &items, &count));
    NIB_TRY(new_stream(r, out, 4));
    if (count > 0)
        NIB_TRY(begin_batch(r, &part, out));
    for (size_t i = 0; i < count; i++) {
        if ((int64_t)part.as.items->count == size)
            NIB_TRY(begin_batch(r, &part, out));
        NIB_TRY(nib__items_push(r, &part, items[i]));
    }
    const bool fills = nib__is_given(&bound[1]) && bound[1].kind != NIB_V_NONE;
    while (fills && part.kind != NIB_V_NONE && (int64_t)part.as.items->count < size)
        NIB_TRY(nib__items_push(r, &part, bound[1]));
    return NIB_OK;
}

NIB_BUILTIN(nib__filter_slice)
{
    const nib_value *items;
    int64_t slices;
    size_t count, at = 0;
    (void)args;
    if (!nib__integer(bound[0], &slices))
        return nib__run_type_error(r, "slice", self, bound[0]);
    NIB_TRY(nib__iterate(r, self, &items, &count));
    NIB_TRY(new_stream(r, out, 4));
    if (slices == 0)
        return nib__run_fail(r, NIB_BAD_INPUT, "slice: the number of slices is 0");
    for (int64_t i = 0; i < slices; i++) {
        const bool longer = i < (int64_t)count % slices;
        nib_value part;
        NIB_TRY(nib__v_items(r, &part, NIB_V_LIST, 4));
        for (int64_t k = 0; k < (int64_t)count / slices + longer; k++)
            NIB_TRY(nib__items_push(r, &part, items[at++]));
        if (!longer && nib__is_given(&bound[1]) && bound[1].kind != NIB_V_NONE)
            NIB_TRY(nib__items_push(r, &part, bound[1]));
        NIB_TRY(nib__items_push(r, out, part));
    }
    return NIB_OK;
}
