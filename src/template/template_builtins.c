/* SPDX-License-Identifier: Apache-2.0
 *
 * Jinja's tests ("x is defined") and global functions (range, dict, namespace, ...).
 */
#include "template_parts.h"

#include <stdio.h>

static nib_status set_bool(bool holds, nib_value *out)
{
    *out = nib__v_bool(holds);
    return NIB_OK;
}

static NIB_BUILTIN(test_true)
{
    (void)r, (void)args, (void)bound;
    return set_bool(self.kind == NIB_V_BOOL && self.as.boolean, out);
}

static NIB_BUILTIN(test_false)
{
    (void)r, (void)args, (void)bound;
    return set_bool(self.kind == NIB_V_BOOL && !self.as.boolean, out);
}

static NIB_BUILTIN(test_escaped)
{
    (void)r, (void)args, (void)bound;
    return set_bool(self.kind == NIB_V_STRING && self.markup, out);
}

static nib_status has_remainder(nib_render *r, nib_value a, nib_value b, int64_t rest,
                                nib_value *out)
{
    nib_value left;
    NIB_TRY(nib__run_binary(r, NIB_OPERATOR_MOD, a, b, &left));
    bool equal;
    NIB_TRY(nib__equal(r, left, nib__v_int(rest), &equal));
    return set_bool(equal, out);
}

static NIB_BUILTIN(test_odd)
{
    return (void)args, (void)bound, has_remainder(r, self, nib__v_int(2), 1, out);
}
static NIB_BUILTIN(test_even)
{
    return (void)args, (void)bound, has_remainder(r, self, nib__v_int(2), 0, out);
}
static NIB_BUILTIN(test_divisibleby)
{
    return (void)args, has_remainder(r, self, bound[0], 0, out);
}

static nib_status compare(nib_render *r, nib_operator op, nib_value a, nib_value b, nib_value *out)
{
    bool holds;
    NIB_TRY(nib__run_compare(r, op, a, b, &holds));
    return set_bool(holds, out);
}

static NIB_BUILTIN(test_eq) { return (void)args, compare(r, NIB_OPERATOR_EQ, self, bound[0], out); }
static NIB_BUILTIN(test_ne) { return (void)args, compare(r, NIB_OPERATOR_NE, self, bound[0], out); }
static NIB_BUILTIN(test_lt) { return (void)args, compare(r, NIB_OPERATOR_LT, self, bound[0], out); }
static NIB_BUILTIN(test_le) { return (void)args, compare(r, NIB_OPERATOR_LE, self, bound[0], out); }
static NIB_BUILTIN(test_gt) { return (void)args, compare(r, NIB_OPERATOR_GT, self, bound[0], out); }
static NIB_BUILTIN(test_ge) { return (void)args, compare(r, NIB_OPERATOR_GE, self, bound[0], out); }
static NIB_BUILTIN(test_in) { return (void)args, compare(r, NIB_OPERATOR_IN, self, bound[0], out); }

/* Python's `is`. Strings and numbers, which Python may or may not intern, are the same if they are
 * equal and have the same type. */
static NIB_BUILTIN(test_sameas)
{
    bool equal = false;
    (void)args;
    if (self.kind == bound[0].kind && !nib__is_items(self) && self.kind != NIB_V_DICT)
        NIB_TRY(nib__equal(r, self, bound[0], &equal));
    else if (self.kind == bound[0].kind)
        equal = self.as.items == bound[0].as.items;
    return set_bool(equal, out);
}

/* Has letters of that case and none of the other. */
static nib_status has_case(nib_render *r, nib_value self, bool upper, nib_value *out)
{
    nib_value text;
    bool found = false, other = false;
    NIB_TRY(nib__to_string(r, self, &text));
    const char *c = text.as.string->at, *const end = c + text.as.string->size;
    NIB_TRY(nib__run_steps(r, text.as.string->size / 16));
    while (c < end) {
        const uint32_t point = nib__utf8_next(&c);
        const bool is_upper = nib__point_is_upper(point), is_lower = nib__point_is_lower(point);
        found |= upper ? is_upper : is_lower;
        other |= nib__point_is_title(point) || (upper ? is_lower : is_upper);
    }
    return set_bool(found && !other, out);
}

NIB_BUILTIN(nib__is_upper) { return (void)args, (void)bound, has_case(r, self, true, out); }
NIB_BUILTIN(nib__is_lower) { return (void)args, (void)bound, has_case(r, self, false, out); }

static NIB_BUILTIN(test_filter)
{
    (void)r, (void)args, (void)bound;
    return set_bool(self.kind == NIB_V_STRING &&
                        nib__filter_find(self.as.string->at, self.as.string->size) != NULL,
                    out);
}

static NIB_BUILTIN(test_test)
{
    (void)r, (void)args, (void)bound;
    return set_bool(self.kind == NIB_V_STRING &&
                        nib__test_find(self.as.string->at, self.as.string->size) != NULL,
                    out);
}

enum {
    UNDEFINED = 1 << NIB_V_UNDEFINED,
    NONE = 1 << NIB_V_NONE,
    BOOLEAN = 1 << NIB_V_BOOL,
    INTEGERS = 1 << NIB_V_INT | 1 << NIB_V_BIG,
    REAL = 1 << NIB_V_FLOAT,
    TEXT = 1 << NIB_V_STRING,
    DICT = 1 << NIB_V_DICT,
    LOOP = 1 << NIB_V_LOOP,
    SEQUENCES = 1 << NIB_V_LIST | 1 << NIB_V_TUPLE | 1 << NIB_V_RANGE,
    VIEWS = 1 << NIB_V_KEYS | 1 << NIB_V_VALUES | 1 << NIB_V_ITEMS | 1 << NIB_V_STREAM,
    CALLABLES = 1 << NIB_V_MACRO | 1 << NIB_V_METHOD | 1 << NIB_V_GLOBAL,
};

/* Jinja's Undefined defines every method (each raises an error), so it counts as callable. */
static const nib_call_row tests[] = {
    {"!=", test_ne, "other", 1, 0},
    {"<", test_lt, "other", 1, 0},
    {"<=", test_le, "other", 1, 0},
    {"==", test_eq, "other", 1, 0},
    {">", test_gt, "other", 1, 0},
    {">=", test_ge, "other", 1, 0},
    {"boolean", NULL, "", 0, BOOLEAN},
    {"callable", NULL, "", 0, UNDEFINED | CALLABLES | LOOP},
    {"defined", NULL, "", 0, ~(unsigned)UNDEFINED},
    {"divisibleby", test_divisibleby, "num", 1, 0},
    {"eq", test_eq, "other", 1, 0},
    {"equalto", test_eq, "other", 1, 0},
    {"escaped", test_escaped, "", 0, 0},
    {"even", test_even, "", 0, 0},
    {"false", test_false, "", 0, 0},
    {"filter", test_filter, "", 0, 0},
    {"float", NULL, "", 0, REAL},
    {"ge", test_ge, "other", 1, 0},
    {"greaterthan", test_gt, "other", 1, 0},
    {"gt", test_gt, "other", 1, 0},
    {"in", test_in, "seq", 1, 0},
    {"integer", NULL, "", 0, INTEGERS},
    {"iterable", NULL, "", 0, UNDEFINED | TEXT | DICT | LOOP | SEQUENCES | VIEWS},
    {"le", test_le, "other", 1, 0},
    {"lessthan", test_lt, "other", 1, 0},
    {"lower", nib__is_lower, "", 0, 0},
    {"lt", test_lt, "other", 1, 0},
    {"mapping", NULL, "", 0, DICT},
    {"ne", test_ne, "other", 1, 0},
    {"none", NULL, "", 0, NONE},
    {"number", NULL, "", 0, BOOLEAN | INTEGERS | REAL},
    {"odd", test_odd, "", 0, 0},
    {"sameas", test_sameas, "other", 1, 0},
    {"sequence", NULL, "", 0, UNDEFINED | TEXT | DICT | SEQUENCES},
    {"string", NULL, "", 0, TEXT},
    {"test", test_test, "", 0, 0},
    {"true", test_true, "", 0, 0},
    {"undefined", NULL, "", 0, UNDEFINED},
    {"upper", nib__is_upper, "", 0, 0},
};

const nib_call_row *nib__test_find(const char *name, size_t size)
{
    for (size_t i = 0; i < COUNT(tests); i++) {
        if (strlen(tests[i].name) == size && memcmp(tests[i].name, name, size) == 0)
            return &tests[i];
    }
    return NULL;
}

/* ---- functions ---- */

static NIB_BUILTIN(call_range)
{
    int64_t start = 0, stop = 0, step = 1;
    (void)self, (void)args;
    const bool has_stop = nib__is_given(&bound[1]), has_step = nib__is_given(&bound[2]);
    int64_t *const to[] = {has_stop ? &start : &stop, &stop, &step};
    for (int i = 0; i < 1 + has_stop + has_step; i++)
        if (!nib__integer(bound[i], to[i]))
            return nib__run_type_error(r, "range", bound[i], bound[i]);
    if (step == 0)
        return nib__run_fail(r, NIB_BAD_INPUT, "range: the step is 0");
    const bool down = step < 0, is_empty = down ? start <= stop : start >= stop;
    const uint64_t width = down ? 0 - (uint64_t)step : (uint64_t)step,
                   span =
                       down ? (uint64_t)start - (uint64_t)stop : (uint64_t)stop - (uint64_t)start;
    const uint64_t count = is_empty ? 0 : (span - 1) / width + 1;
    if (count > NIB_TEMPLATE_RANGE)
        return nib__run_fail(r, NIB_BAD_INPUT, "range has %llu elements; the limit is %d",
                             (unsigned long long)count, NIB_TEMPLATE_RANGE);
    NIB_TRY(nib__v_items(r, out, NIB_V_RANGE, (size_t)count));
    for (uint64_t i = 0; i < count; i++)
        NIB_TRY(nib__items_push(r, out, nib__v_int(start + (int64_t)i * step)));
    out->as.items->start = start;
    out->as.items->stop = stop;
    out->as.items->step = step;
    return NIB_OK;
}

/* Makes a dict from a dict or an iterable of pairs, then the named arguments. */
static nib_status make_dict(nib_render *r, const nib_arguments *args, nib_value_kind kind,
                            nib_value *out)
{
    const char *name = kind == NIB_V_DICT ? "dict" : "namespace";
    if (args->count > 1)
        return nib__run_fail(r, NIB_BAD_INPUT, "%s takes at most one positional argument, not %zu",
                             name, args->count);
    NIB_TRY(nib__v_dict(r, out, kind));
    const bool from_dict = args->count == 1 && args->at[0].kind == NIB_V_DICT;
    for (size_t i = 0; from_dict && i < args->at[0].as.dict->count; i++) {
        const nib_pair *p = &args->at[0].as.dict->pairs[i];
        NIB_TRY(nib__dict_put(r, out->as.dict, p->key, p->value));
    }
    if (args->count == 1 && !from_dict) {
        const nib_value *items, *pair;
        size_t count, pair_size;
        NIB_TRY(nib__iterate(r, args->at[0], &items, &count));
        for (size_t i = 0; i < count; i++) {
            NIB_TRY(nib__iterate(r, items[i], &pair, &pair_size));
            if (pair_size != 2)
                return nib__run_fail(r, NIB_BAD_INPUT,
                                     "%s: element %zu has %zu items, not 2 (key and value)", name,
                                     i, pair_size);
            NIB_TRY(nib__dict_put(r, out->as.dict, pair[0], pair[1]));
        }
    }
    for (size_t i = 0; i < args->named_count; i++) {
        const nib_value key = {.kind = NIB_V_STRING, .as.string = args->named[i].name};
        NIB_TRY(nib__dict_put(r, out->as.dict, key, args->named[i].value));
    }
    return NIB_OK;
}

static NIB_BUILTIN(call_dict)
{
    return (void)self, (void)bound, make_dict(r, args, NIB_V_DICT, out);
}
static NIB_BUILTIN(call_namespace)
{
    return (void)self, (void)bound, make_dict(r, args, NIB_V_NAMESPACE, out);
}

/* Fails with the template's own text, without file and line: the template refuses the conversation.
 */
static NIB_BUILTIN(call_raise)
{
    nib_value text;
    (void)self, (void)args, (void)out;
    NIB_TRY(nib__to_string(r, bound[0], &text));
    const nib_string *s = text.as.string;
    const char *nul = memchr(s->at, 0, s->size); /* an error text ends there */
    const int64_t size = nul == NULL ? (int64_t)s->size : nul - s->at;
    return nib__fail(r->err, NIB_BAD_INPUT, "%.*s", (int)nib__min(size, 1000), s->at);
}

static NIB_BUILTIN(call_strftime)
{
    nib_builder b = {.size = 0};
    (void)self, (void)args;
    if (bound[0].kind != NIB_V_STRING)
        return nib__run_type_error(r, "strftime_now", bound[0],
                                   (nib_value){.kind = NIB_V_UNDEFINED});
    NIB_TRY(nib__put_time(r, &b, bound[0].as.string, r->input->now));
    return nib__finish_string(r, &b, out);
}

static const nib_call_row globals[] = {
    {"range", call_range, "0,1,2", 1, 0},
    {"dict", call_dict, NULL, 0, 0},
    {"namespace", call_namespace, NULL, 0, 0},
    {"raise_exception", call_raise, "message", 1, 0},
    {"strftime_now", call_strftime, "format", 1, 0},
};

const nib_call_row *nib__global_at(int i)
{
    return i >= 0 && (size_t)i < COUNT(globals) ? &globals[i] : NULL;
}
