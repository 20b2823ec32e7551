/* SPDX-License-Identifier: Apache-2.0
 *
 * Attributes, subscripts and slices, as in Jinja's sandbox: a.b looks for a method or member first
 * and then for an element of that name; a["b"] the other way round.
 */
#include "template_parts.h"

#include <stdio.h>

static nib_status find_method(nib_render *r, nib_value of, const nib_string *name, nib_value *out,
                              bool *found)
{
    bool unsafe = false;
    const nib_method_row *row = nib__method_find(of.kind, name, &unsafe);
    char shown[80];
    *found = row != NULL || unsafe;
    snprintf(shown, sizeof shown, "%.40s (which the sandbox forbids)", name->at);
    if (unsafe)
        return nib__v_undefined(r, out, shown);
    if (row == NULL)
        return NIB_OK;
    nib_template_method *method = nib__run_alloc(r, 1, sizeof *method);
    if (method == NULL)
        return NIB_NO_MEMORY;
    *method = (nib_template_method){of, row};
    *out = (nib_value){.kind = NIB_V_METHOD, .as.method = method};
    return NIB_OK;
}

static nib_status undefined_member(nib_render *r, nib_value *out, nib_value name)
{
    const char *text = "element";
    if (name.kind != NIB_V_STRING)
        return nib__v_undefined(r, out, text);
    *out = (nib_value){.kind = NIB_V_UNDEFINED, .as.string = name.as.string};
    return NIB_OK;
}

static nib_status loop_member(nib_render *r, nib_loop *loop, nib_value name, nib_value *out,
                              bool *found)
{
    static const char *const whole[] = {"revindex", "revindex0", "length"};
    size_t wanted = nib__is_text(name, "last") || nib__is_text(name, "nextitem") ? loop->at + 2 : 0;
    for (size_t i = 0; i < COUNT(whole); i++)
        wanted = nib__is_text(name, whole[i]) ? SIZE_MAX : wanted;
    NIB_TRY(nib__run_loop_fill(r, loop, wanted));
    const int64_t at = (int64_t)loop->at, count = (int64_t)loop->seen.as.items->count;
    const struct {
        const char *name;
        nib_value value;
    } members[] = {
        {"index", nib__v_int(at + 1)},        {"index0", nib__v_int(at)},
        {"revindex", nib__v_int(count - at)}, {"revindex0", nib__v_int(count - at - 1)},
        {"first", nib__v_bool(at == 0)},      {"last", nib__v_bool(at + 1 == count)},
        {"length", nib__v_int(count)},        {"depth", nib__v_int(loop->depth + 1)},
        {"depth0", nib__v_int(loop->depth)},
    };
    *found = true;
    for (size_t i = 0; i < COUNT(members); i++) {
        if (nib__is_text(name, members[i].name)) {
            *out = members[i].value;
            return NIB_OK;
        }
    }
    const bool before = nib__is_text(name, "previtem"), after = nib__is_text(name, "nextitem");
    if (before || after) {
        if (before ? at == 0 : at + 1 == count)
            return undefined_member(r, out, name);
        *out = loop->seen.as.items->at[before ? at - 1 : at + 1];
        return NIB_OK;
    }
    *found = false;
    return NIB_OK;
}

static nib_status macro_member(nib_render *r, const nib_template_node *macro, nib_value name,
                               nib_value *out, bool *found)
{
    bool takes_caller = false;
    nib_value names;
    NIB_TRY(nib__v_items(r, &names, NIB_V_TUPLE, 4));
    for (const nib_template_node *p = macro->a; p != NULL; p = p->next) {
        const nib_value parameter = {.kind = NIB_V_STRING, .as.string = &r->t->symbols[p->name]};
        takes_caller |= p->name == r->t->caller_symbol;
        NIB_TRY(nib__items_push(r, &names, parameter));
    }
    const struct {
        const char *name;
        nib_value value;
    } members[] = {
        {"name", macro->flag ? nib__v_none() : macro->value}, /* a call block has no name */
        {"arguments", names},
        {"catch_kwargs", nib__v_bool(macro->op & NIB_USES_KWARGS)},
        {"catch_varargs", nib__v_bool(macro->op & NIB_USES_VARARGS)},
        {"caller", nib__v_bool(macro->op & NIB_USES_CALLER)},
        {"explicit_caller", nib__v_bool(takes_caller)},
    };
    *found = false;
    for (size_t i = 0; i < COUNT(members) && !*found; i++) {
        *found = nib__is_text(name, members[i].name);
        *out = members[i].value;
    }
    return NIB_OK;
}

/* The attributes of Python's int and float. */
static void number_member(nib_value of, nib_value name, nib_value *out, bool *found)
{
    const bool real = of.kind == NIB_V_FLOAT;
    int64_t integer;
    *found = true;
    *out = of;
    if (nib__is_text(name, "imag"))
        *out = real ? nib__v_real(0) : nib__v_int(0);
    else if (!real && nib__is_text(name, "denominator"))
        *out = nib__v_int(1);
    else if (nib__is_text(name, "real") || (!real && nib__is_text(name, "numerator")))
        *out = nib__integer(of, &integer) ? nib__v_int(integer) : of;
    else
        *found = false;
    out->user = of.user;
}

static void range_member(nib_value of, nib_value name, nib_value *out, bool *found)
{
    const nib_items *items = of.as.items;
    const bool start = nib__is_text(name, "start"), stop = nib__is_text(name, "stop");
    *found = start || stop || nib__is_text(name, "step");
    *out = nib__v_int(start ? items->start : stop ? items->stop : items->step);
}

/* Looks up what a.b finds first: methods and members; not elements. */
static nib_status find_member(nib_render *r, nib_value of, nib_value name, nib_value *out,
                              bool *found)
{
    *found = false;
    if (of.kind == NIB_V_LOOP) {
        NIB_TRY(loop_member(r, of.as.loop, name, out, found));
        if (*found)
            return NIB_OK;
    }
    if (of.kind == NIB_V_MACRO)
        return macro_member(r, of.as.macro->node, name, out, found);
    if (of.kind >= NIB_V_BOOL && of.kind <= NIB_V_FLOAT)
        return number_member(of, name, out, found), NIB_OK;
    if (of.kind == NIB_V_RANGE) {
        range_member(of, name, out, found);
        if (*found)
            return NIB_OK;
    }
    if (of.kind == NIB_V_TUPLE && of.as.items->group) {
        const bool grouper = nib__is_text(name, "grouper");
        *found = grouper || nib__is_text(name, "list");
        if (*found)
            *out = of.as.items->at[grouper ? 0 : 1];
        if (*found)
            return NIB_OK;
    }
    if (of.kind == NIB_V_NAMESPACE) {
        nib_value *value;
        NIB_TRY(nib__dict_get(r, of.as.dict, name, &value));
        *found = value != NULL;
        if (value != NULL)
            *out = *value;
        return NIB_OK;
    }
    return find_method(r, of, name.as.string, out, found);
}

typedef struct slice {
    int64_t start, stop, step, count; /* resolved; start is a valid index if count > 0 */
} slice;

/* base + times * step */
static nib_status range_value(nib_render *r, int64_t base, int64_t times, int64_t step,
                              int64_t *out)
{
    nib_value value;
    NIB_TRY(nib__run_binary(r, NIB_OPERATOR_MUL, nib__v_int(times), nib__v_int(step), &value));
    NIB_TRY(nib__run_binary(r, NIB_OPERATOR_ADD, nib__v_int(base), value, &value));
    *out = value.as.integer;
    return NIB_OK;
}

static nib_status slice_items(nib_render *r, nib_value of, const slice *s, nib_value *out)
{
    const nib_items *items = of.as.items;
    NIB_TRY(nib__v_items(r, out, of.kind, (size_t)s->count));
    nib_items *made = out->as.items;
    out->user = of.user;
    for (int64_t i = 0; i < s->count; i++)
        NIB_TRY(nib__items_push(r, out, items->at[s->start + i * s->step]));
    if (of.kind != NIB_V_RANGE)
        return NIB_OK;
    NIB_TRY(range_value(r, items->start, s->start, items->step, &made->start));
    NIB_TRY(range_value(r, items->start, s->stop, items->step, &made->stop));
    return range_value(r, 0, s->step, items->step, &made->step);
}

/* The byte offset of the index-th character, or the end. */
static size_t point_at(const nib_string *s, int64_t index)
{
    size_t at = 0;
    while (at < s->size && (index > 0 || ((unsigned char)s->at[at] & 0xc0) == 0x80)) {
        at++;
        index -= at == s->size || ((unsigned char)s->at[at] & 0xc0) != 0x80;
    }
    return at;
}

static nib_status slice_string(nib_render *r, nib_value of, const slice *part, nib_value *out)
{
    const nib_string *s = of.as.string;
    const int64_t count = part->count, start = count == 0 ? 0 : part->start, step = part->step;
    if (step == 1 || count == 0) {
        const size_t from = point_at(s, start);
        const nib_string rest = {.at = s->at + from, .size = s->size - from};
        return nib__slice_string(r, out, of, from,
                                 from + (count == 0 ? 0 : point_at(&rest, count)));
    }
    nib_builder b = {.size = 0};
    size_t at = point_at(s, start);
    for (int64_t i = 0; i < count; i++) {
        const size_t size = (size_t)nib__utf8_length(s->at + at, s->size - at);
        NIB_TRY(nib__run_steps(r, (uint64_t)(step < 0 ? -step : step) / 8));
        NIB_TRY(nib__put_part(r, &b, s, at, at + size));
        for (int64_t k = 0; i + 1 < count && k < (step < 0 ? -step : step); k++) {
            if (step > 0) {
                at += (size_t)nib__utf8_length(s->at + at, s->size - at);
            } else {
                at--;
                while (((unsigned char)s->at[at] & 0xc0) == 0x80)
                    at--;
            }
        }
    }
    NIB_TRY(nib__finish_string(r, &b, out));
    out->markup = of.markup;
    return NIB_OK;
}

static nib_status slice_part(nib_render *r, const nib_template_node *node, bool *given,
                             int64_t *out)
{
    nib_value v;
    *given = false;
    if (node == NULL)
        return NIB_OK;
    NIB_TRY(nib__eval(r, node, &v));
    if (v.kind == NIB_V_NONE)
        return NIB_OK;
    *given = true;
    if (!nib__integer(v, out))
        return nib__run_fail(r, NIB_BAD_INPUT, "the parts of a slice must be integers, not a %s",
                             nib__kind_name(v));
    return NIB_OK;
}

static int64_t clamp(int64_t value, int64_t count, int64_t least, int64_t most)
{
    if (value < 0)
        value = value < -count ? -1 : value + count;
    return value < least ? least : value > most ? most : value;
}

nib_status nib__run_slice(nib_render *r, nib_value of, const nib_template_node *node,
                          nib_value *out)
{
    int64_t start = 0, stop = 0, step = 1;
    bool has_start, has_stop, has_step;
    const bool text = of.kind == NIB_V_STRING;
    NIB_TRY(slice_part(r, node->a, &has_start, &start));
    NIB_TRY(slice_part(r, node->b, &has_stop, &stop));
    NIB_TRY(slice_part(r, node->c, &has_step, &step));
    if (!has_step)
        step = 1;
    if (of.kind == NIB_V_UNDEFINED)
        return nib__run_type_error(r, "a slice", of, of);
    if (!text && of.kind != NIB_V_LIST && of.kind != NIB_V_TUPLE && of.kind != NIB_V_RANGE)
        return nib__run_type_error(r, "a slice", of, of);
    if (has_step && step == 0)
        return nib__run_fail(r, NIB_BAD_INPUT, "the step of a slice is 0");
    NIB_TRY(nib__run_steps(r, text ? of.as.string->size / 64 : 0));
    const int64_t size = (int64_t)(text ? nib__count_points(of.as.string->at, of.as.string->size)
                                        : of.as.items->count);
    if (step < -size - 1 || step > size + 1)
        step = step < 0 ? -size - 1 : size + 1; /* any larger step also takes one element */
    const bool down = step < 0;
    start = !has_start ? (down ? size - 1 : 0)
                       : clamp(start, size, down ? -1 : 0, down ? size - 1 : size);
    stop =
        !has_stop ? (down ? -1 : size) : clamp(stop, size, down ? -1 : 0, down ? size - 1 : size);
    const int64_t span = down ? start - stop : stop - start, width = down ? -step : step;
    const slice part = {start, stop, step, span <= 0 ? 0 : nib__ceil_div(span, width)};
    return text ? slice_string(r, of, &part, out) : slice_items(r, of, &part, out);
}

static nib_status index_item(nib_render *r, nib_value of, int64_t index, nib_value *out)
{
    const bool text = of.kind == NIB_V_STRING;
    NIB_TRY(nib__run_steps(r, text ? of.as.string->size / 64 : 0));
    const int64_t size = (int64_t)(text ? nib__count_points(of.as.string->at, of.as.string->size)
                                        : of.as.items->count);
    if (index < -size || index >= size)
        return nib__v_undefined(r, out, "an element past the end");
    if (index < 0)
        index += size;
    if (text)
        return slice_string(r, of, &(slice){index, index + 1, 1, 1}, out);
    *out = of.as.items->at[index];
    return NIB_OK;
}

/* Looks up what a[b] finds first: an element; not methods or members. */
static nib_status find_element(nib_render *r, nib_value of, nib_value index, nib_value *out,
                               bool *found)
{
    int64_t integer;
    *found = false;
    if (of.kind == NIB_V_DICT && index.kind != NIB_V_LIST && index.kind != NIB_V_DICT) {
        nib_value *value;
        NIB_TRY(nib__dict_get(r, of.as.dict, index, &value));
        *found = value != NULL;
        if (value != NULL)
            *out = *value;
        return NIB_OK;
    }
    if ((of.kind == NIB_V_STRING || of.kind == NIB_V_LIST || of.kind == NIB_V_TUPLE ||
         of.kind == NIB_V_RANGE) &&
        nib__integer(index, &integer)) {
        *found = true;
        return index_item(r, of, integer, out);
    }
    return NIB_OK;
}

nib_status nib__run_item(nib_render *r, nib_value of, nib_value index, nib_value *out)
{
    bool found;
    if (of.kind == NIB_V_UNDEFINED)
        return nib__run_type_error(r, "an element", of, of);
    NIB_TRY(find_element(r, of, index, out, &found));
    if (!found && index.kind == NIB_V_STRING)
        NIB_TRY(find_member(r, of, index, out, &found));
    return found ? NIB_OK : undefined_member(r, out, index);
}

nib_status nib__run_attribute(nib_render *r, nib_value of, nib_value name, nib_value *out)
{
    bool found;
    if (of.kind == NIB_V_UNDEFINED)
        return nib__run_type_error(r, "an attribute", of, of);
    NIB_TRY(find_member(r, of, name, out, &found));
    if (!found)
        NIB_TRY(find_element(r, of, name, out, &found));
    return found ? NIB_OK : undefined_member(r, out, name);
}
