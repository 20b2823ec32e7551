/* SPDX-License-Identifier: Apache-2.0
 *
 * Binary operators as in Python, with integers of up to 64 bits.
 */
#include "template_parts.h"

#include <math.h>

nib_status nib__run_type_error(nib_render *r, const char *op, nib_value a, nib_value b)
{
    const nib_value *undefined = a.kind == NIB_V_UNDEFINED ? &a : &b;
    char name[80];
    if (undefined->kind == NIB_V_UNDEFINED && nib__is_given(undefined))
        return nib__run_fail(r, NIB_BAD_INPUT, "%s: \"%s\" is undefined", op,
                             nib__escape_name(name, sizeof name, undefined->as.string->at,
                                              undefined->as.string->size));
    if (!nib__is_given(&b))
        return nib__run_fail(r, NIB_BAD_INPUT, "%s does not support %s", op, nib__kind_name(a));
    return nib__run_fail(r, NIB_BAD_INPUT, "%s does not support %s and %s", op, nib__kind_name(a),
                         nib__kind_name(b));
}

static nib_status fail_overflow(nib_render *r)
{
    return nib__run_fail(r, NIB_UNSUPPORTED, "integer overflow: more than 64 bits");
}

static bool integer_product(int64_t a, int64_t b, int64_t *out)
{
    const uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a,
                   y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    const bool minus = (a < 0) != (b < 0);
    uint64_t product;
    if (!nib__mul(&product, x, y) || product > (uint64_t)INT64_MAX + minus)
        return false;
    *out = minus && product != 0 ? -(int64_t)(product - 1) - 1 : (int64_t)product;
    return true;
}

static nib_status integer_power(nib_render *r, int64_t a, int64_t b, nib_value *out)
{
    int64_t product = 1;
    if (b < 0 && a == 0)
        return nib__run_fail(r, NIB_BAD_INPUT, "0 cannot be raised to a negative power");
    if (b < 0) {
        *out = nib__v_real(pow((double)a, (double)b));
        return NIB_OK;
    }
    if (a == 0 || a == 1 || a == -1) {
        *out = nib__v_int(b == 0 ? 1 : a == -1 && b % 2 == 0 ? 1 : a);
        return NIB_OK;
    }
    for (int64_t i = 0; i < b; i++) {
        if (!integer_product(product, a, &product))
            return fail_overflow(r);
    }
    *out = nib__v_int(product);
    return NIB_OK;
}

static int shift_to_top_bit(uint64_t *value)
{
    int shift = 0;
    for (; *value >> 63 == 0; shift++)
        *value <<= 1;
    return shift;
}

/* a / b, rounded once; converting a and b first would round three times. Computes 63 or 64 bits of
 * the quotient by long division, and sets the lowest bit if there is a remainder. */
static double divide_integers(int64_t a, int64_t b)
{
    enum { BITS = 64, EXACT = 53 };
    uint64_t x = a < 0 ? 0 - (uint64_t)a : (uint64_t)a, y = b < 0 ? 0 - (uint64_t)b : (uint64_t)b;
    uint64_t bits = 0;
    if (x == 0 || (x >> EXACT == 0 && y >> EXACT == 0))
        return (double)a / (double)b;
    const int shift = shift_to_top_bit(&y) - shift_to_top_bit(&x);
    bool carry = false;
    for (int i = 0; i < BITS; i++) {
        const bool fits = carry || x >= y;
        x -= fits ? y : 0;
        bits = bits << 1 | fits;
        carry = x >> 63 != 0;
        x <<= 1;
    }
    const double size = ldexp((double)(bits | (x != 0 || carry)), shift - BITS + 1);
    return (a < 0) != (b < 0) ? -size : size;
}

static nib_status integer_binary(nib_render *r, nib_operator op, int64_t a, int64_t b,
                                 nib_value *out)
{
    int64_t result = 0;
    bool fits = true;
    if (b == 0 && (op == NIB_OPERATOR_DIV || op == NIB_OPERATOR_FLOORDIV || op == NIB_OPERATOR_MOD))
        return nib__run_fail(r, NIB_BAD_INPUT, "division by 0");
    switch (op) {
    case NIB_OPERATOR_ADD:
        fits = b > 0 ? a <= INT64_MAX - b : a >= INT64_MIN - b;
        result = fits ? a + b : 0;
        break;
    case NIB_OPERATOR_SUB:
        fits = b < 0 ? a <= INT64_MAX + b : a >= INT64_MIN + b;
        result = fits ? a - b : 0;
        break;
    case NIB_OPERATOR_MUL: fits = integer_product(a, b, &result); break;
    case NIB_OPERATOR_DIV: *out = nib__v_real(divide_integers(a, b)); return NIB_OK;
    case NIB_OPERATOR_POW: return integer_power(r, a, b, out);
    default: /* floored: the remainder has the sign of b */
        fits = a != INT64_MIN || b != -1;
        result = !fits ? 0 : op == NIB_OPERATOR_MOD ? a % b : a / b;
        if (fits && a % b != 0 && (a < 0) != (b < 0))
            result += op == NIB_OPERATOR_MOD ? b : -1;
    }
    *out = nib__v_int(result);
    return fits ? NIB_OK : fail_overflow(r);
}

static nib_status real_binary(nib_render *r, nib_operator op, double a, double b, nib_value *out)
{
    double result;
    if (b == 0 && (op == NIB_OPERATOR_DIV || op == NIB_OPERATOR_FLOORDIV || op == NIB_OPERATOR_MOD))
        return nib__run_fail(r, NIB_BAD_INPUT, "division by 0");
    double rest = 0, whole = 0;
    if (op == NIB_OPERATOR_MOD || op == NIB_OPERATOR_FLOORDIV) {
        rest = fmod(a, b);
        const bool other_sign = rest != 0 && (rest < 0) != (b < 0);
        whole = (a - rest) / b - other_sign; /* an integer, except for rounding errors */
        rest = rest == 0 ? copysign(0, b) : other_sign ? rest + b : rest;
    }
    switch (op) {
    case NIB_OPERATOR_ADD: result = a + b; break;
    case NIB_OPERATOR_SUB: result = a - b; break;
    case NIB_OPERATOR_MUL: result = a * b; break;
    case NIB_OPERATOR_DIV: result = a / b; break;
    case NIB_OPERATOR_MOD: result = rest; break;
    case NIB_OPERATOR_FLOORDIV:
        result = floor(whole);
        result = whole == 0 ? copysign(0, a / b) : whole - result > 0.5 ? result + 1 : result;
        break;
    default:
        result = pow(a, b);
        if ((a == 0 && b < 0) || (isinf(result) && isfinite(a) && isfinite(b)) ||
            (isnan(result) && !isnan(a) && !isnan(b)))
            return nib__run_fail(r, NIB_BAD_INPUT, "the result of ** is not a number");
    }
    *out = nib__v_real(result);
    return NIB_OK;
}

/* Strings and lists append in place if nothing was appended to the left one yet, so that a loop
 * costs only what it appends. */
static nib_status join_strings(nib_render *r, nib_value a, nib_value b, nib_value *out)
{
    const nib_string *s = a.as.string;
    nib_builder *builder = s->builder;
    if (a.markup || b.markup) {
        nib_builder escaped = {.size = 0};
        NIB_TRY(nib__put_escaped(r, &escaped, a));
        NIB_TRY(nib__put_escaped(r, &escaped, b));
        NIB_TRY(nib__finish_string(r, &escaped, out));
        out->markup = true;
        return NIB_OK;
    }
    if (builder == NULL || builder->size != s->size || builder->at != s->at) {
        builder = nib__run_alloc(r, 1, sizeof *builder);
        if (builder == NULL)
            return NIB_NO_MEMORY;
        NIB_TRY(nib__put_string(r, builder, s));
    }
    NIB_TRY(nib__put_string(r, builder, b.as.string));
    NIB_TRY(nib__finish_string(r, builder, out));
    nib_string *made = nib__run_alloc(r, 1, sizeof *made);
    if (made == NULL)
        return NIB_NO_MEMORY;
    *made = *out->as.string;
    made->builder = builder;
    out->as.string = made;
    return NIB_OK;
}

static nib_status join_items(nib_render *r, nib_value a, nib_value b, nib_value *out)
{
    const nib_items *first = a.as.items, *second = b.as.items;
    const nib_item_buffer *buffer = first->buffer;
    if (buffer != NULL && first->at + first->count == buffer->at + buffer->used) {
        nib_items *items = nib__run_alloc(r, 1, sizeof *items);
        if (items == NULL)
            return NIB_NO_MEMORY;
        *items = *first;
        items->group = false;
        *out = (nib_value){.kind = a.kind, .as.items = items};
    } else {
        NIB_TRY(nib__v_items(r, out, a.kind, first->count + second->count));
        for (size_t i = 0; i < first->count; i++)
            NIB_TRY(nib__items_push(r, out, first->at[i]));
    }
    out->user = a.user || b.user;
    const size_t count = second->count; /* read first, as both may be the same list */
    for (size_t i = 0; i < count; i++)
        NIB_TRY(nib__items_push(r, out, second->at[i]));
    return NIB_OK;
}

static nib_status repeat(nib_render *r, nib_value v, int64_t times, nib_value *out)
{
    if (v.kind == NIB_V_STRING) {
        nib_builder b = {.size = 0};
        for (int64_t i = 0; i < times && v.as.string->size != 0; i++) {
            NIB_TRY(nib__run_steps(r, 1));
            NIB_TRY(nib__put_string(r, &b, v.as.string));
        }
        NIB_TRY(nib__finish_string(r, &b, out));
        out->markup = v.markup;
        return NIB_OK;
    }
    NIB_TRY(nib__v_items(r, out, v.kind, v.as.items->count));
    out->user = v.user;
    for (int64_t i = 0; i < times && v.as.items->count != 0; i++) {
        for (size_t k = 0; k < v.as.items->count; k++)
            NIB_TRY(nib__items_push(r, out, v.as.items->at[k]));
    }
    return NIB_OK;
}

static bool is_repeatable(nib_value v)
{
    return v.kind == NIB_V_STRING || v.kind == NIB_V_LIST || v.kind == NIB_V_TUPLE;
}

nib_status nib__run_binary(nib_render *r, nib_operator op, nib_value a, nib_value b, nib_value *out)
{
    static const char *const names[] = {
        [NIB_OPERATOR_ADD] = "+",  [NIB_OPERATOR_SUB] = "-",       [NIB_OPERATOR_MUL] = "*",
        [NIB_OPERATOR_DIV] = "/",  [NIB_OPERATOR_FLOORDIV] = "//", [NIB_OPERATOR_MOD] = "%",
        [NIB_OPERATOR_POW] = "**",
    };
    int64_t i, j;
    double x, y;
    nib_status status;
    if (nib__integer(a, &i) && nib__integer(b, &j))
        status = integer_binary(r, op, i, j, out);
    else if (nib__number(a, &x) && nib__number(b, &y))
        status = real_binary(r, op, x, y, out);
    else if (op == NIB_OPERATOR_ADD && a.kind == NIB_V_STRING && b.kind == NIB_V_STRING)
        return join_strings(r, a, b, out);
    else if (op == NIB_OPERATOR_ADD && a.kind == b.kind &&
             (a.kind == NIB_V_LIST || a.kind == NIB_V_TUPLE))
        return join_items(r, a, b, out);
    else if (op == NIB_OPERATOR_MOD && a.kind == NIB_V_STRING)
        return nib__format_percent(r, out, a, b);
    else if (op == NIB_OPERATOR_MUL && is_repeatable(a) && nib__integer(b, &j))
        return repeat(r, a, j, out);
    else if (op == NIB_OPERATOR_MUL && nib__integer(a, &i) && is_repeatable(b))
        return repeat(r, b, i, out);
    else
        return nib__run_type_error(r, names[op], a, b);
    if (status == NIB_OK)
        out->user = a.user || b.user;
    return status;
}

nib_status nib__run_contains(nib_render *r, nib_value in, nib_value item, bool *out)
{
    const nib_value *items;
    size_t count;
    *out = false;
    if (in.kind == NIB_V_STRING) {
        if (item.kind != NIB_V_STRING)
            return nib__run_type_error(r, "in", item, in);
        const nib_string *s = in.as.string, *t = item.as.string;
        NIB_TRY(nib__run_steps(r, s->size / 64));
        *out = t->size == 0 || nib__find_bytes(s->at, s->size, t->at, t->size) != NULL;
        return NIB_OK;
    }
    if (in.kind == NIB_V_DICT) {
        nib_value *value;
        NIB_TRY(nib__hashable(r, item));
        NIB_TRY(nib__dict_get(r, in.as.dict, item, &value));
        *out = value != NULL;
        return NIB_OK;
    }
    if (in.kind == NIB_V_STREAM) { /* elements after the match stay in the stream */
        nib_value next;
        while (!*out && nib__pull(in.as.items, &next))
            NIB_TRY(nib__equal(r, next, item, out));
        return NIB_OK;
    }
    NIB_TRY(nib__iterate(r, in, &items, &count));
    for (size_t i = 0; i < count && !*out; i++)
        NIB_TRY(nib__equal(r, items[i], item, out));
    return NIB_OK;
}

nib_status nib__run_compare(nib_render *r, nib_operator op, nib_value a, nib_value b, bool *out)
{
    double x, y;
    switch (op) {
    case NIB_OPERATOR_EQ:
    case NIB_OPERATOR_NE:
        NIB_TRY(nib__equal(r, a, b, out));
        *out = *out == (op == NIB_OPERATOR_EQ);
        return NIB_OK;
    case NIB_OPERATOR_IN:
    case NIB_OPERATOR_NOT_IN:
        NIB_TRY(nib__run_contains(r, b, a, out));
        *out = *out == (op == NIB_OPERATOR_IN);
        return NIB_OK;
    default: break;
    }
    if (a.kind == NIB_V_UNDEFINED || b.kind == NIB_V_UNDEFINED)
        return nib__run_type_error(r, "a comparison", a, b);
    if (nib__number(a, &x) && nib__number(b, &y) && (isnan(x) || isnan(y))) {
        *out = false;
        return NIB_OK;
    }
    const bool swapped = op == NIB_OPERATOR_GT || op == NIB_OPERATOR_LE;
    NIB_TRY(swapped ? nib__less(r, b, a, out) : nib__less(r, a, b, out));
    *out = *out != (op == NIB_OPERATOR_LE || op == NIB_OPERATOR_GE);
    return NIB_OK;
}
