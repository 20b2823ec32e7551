/* SPDX-License-Identifier: Apache-2.0
 *
 * Jinja's filters of strings, numbers and JSON, and the table of all filters. Filters of
 * collections are in template_lists.c.
 */
#include "template_parts.h"

#include <math.h>
#include <stdio.h>

/* ---- strings ---- */

static nib_status change_case(nib_render *r, nib_value self, nib_case as, nib_value *out)
{
    nib_builder b = {.size = 0};
    nib_value text;
    NIB_TRY(nib__to_string(r, self, &text));
    NIB_TRY(nib__put_case(r, &b, text.as.string, as));
    NIB_TRY(nib__finish_string(r, &b, out));
    out->markup = text.markup && as != NIB_JINJA_TITLE;
    return NIB_OK;
}

static NIB_BUILTIN(filter_upper)
{
    return (void)args, (void)bound, change_case(r, self, NIB_UPPER, out);
}
static NIB_BUILTIN(filter_lower)
{
    return (void)args, (void)bound, change_case(r, self, NIB_LOWER, out);
}
static NIB_BUILTIN(filter_title)
{
    return (void)args, (void)bound, change_case(r, self, NIB_JINJA_TITLE, out);
}
static NIB_BUILTIN(filter_capitalize)
{
    return (void)args, (void)bound, change_case(r, self, NIB_CAPITALIZE, out);
}
static NIB_BUILTIN(filter_string) { return (void)args, (void)bound, nib__to_string(r, self, out); }

static NIB_BUILTIN(filter_trim)
{
    nib_value text, chars;
    (void)args;
    NIB_TRY(nib__to_string(r, self, &text));
    const bool given = nib__is_given(&bound[0]) && bound[0].kind != NIB_V_NONE;
    if (given && bound[0].kind != NIB_V_STRING)
        return nib__run_type_error(r, "trim", text, bound[0]);
    chars = bound[0];
    return nib__strip(r, out, text, given ? chars.as.string : NULL, true, true);
}

static NIB_BUILTIN(filter_replace)
{
    nib_value text, from, to;
    int64_t most = -1;
    (void)args;
    NIB_TRY(nib__to_string(r, self, &text));
    NIB_TRY(nib__to_string(r, bound[0], &from));
    NIB_TRY(nib__to_string(r, bound[1], &to));
    if (nib__is_given(&bound[2]) && bound[2].kind != NIB_V_NONE && !nib__integer(bound[2], &most))
        return nib__run_type_error(r, "replace", text, bound[2]);
    text.markup = false;
    return nib__replace(r, out, text, from.as.string, to.as.string, most);
}

static NIB_BUILTIN(filter_safe)
{
    (void)args, (void)bound;
    NIB_TRY(nib__to_string(r, self, out));
    out->markup = true;
    return NIB_OK;
}

static NIB_BUILTIN(filter_escape)
{
    nib_builder b = {.size = 0};
    (void)args, (void)bound;
    NIB_TRY(nib__put_escaped(r, &b, self));
    NIB_TRY(nib__finish_string(r, &b, out));
    out->markup = true;
    return NIB_OK;
}

static NIB_BUILTIN(filter_format)
{
    nib_value text, values;
    (void)bound;
    NIB_TRY(nib__to_string(r, self, &text));
    if (args->count != 0 && args->named_count != 0)
        return nib__run_fail(r, NIB_BAD_INPUT, "format takes positional or named values, not both");
    if (args->named_count == 0) {
        NIB_TRY(nib__v_items(r, &values, NIB_V_TUPLE, args->count));
        for (size_t i = 0; i < args->count; i++)
            NIB_TRY(nib__items_push(r, &values, args->at[i]));
        return nib__format_percent(r, out, text, values);
    }
    NIB_TRY(nib__v_dict(r, &values, NIB_V_DICT));
    for (size_t i = 0; i < args->named_count; i++) {
        const nib_value key = {.kind = NIB_V_STRING, .as.string = args->named[i].name};
        NIB_TRY(nib__dict_put(r, values.as.dict, key, args->named[i].value));
    }
    return nib__format_percent(r, out, text, values);
}

/* The string itself, or so many spaces. */
static nib_status make_indent(nib_render *r, nib_value width, int64_t fallback, nib_value *out)
{
    nib_builder b = {.size = 0};
    int64_t count = fallback;
    if (width.kind == NIB_V_STRING) {
        *out = width;
        return NIB_OK;
    }
    if (nib__is_given(&width) && !nib__integer(width, &count))
        return nib__run_type_error(r, "indent", width, width);
    for (int64_t i = 0; i < count; i++) {
        NIB_TRY(nib__run_steps(r, 1));
        NIB_TRY(nib__put_text(r, &b, " ", false));
    }
    return nib__finish_string(r, &b, out);
}

static NIB_BUILTIN(filter_indent)
{
    nib_builder b = {.size = 0};
    nib_value width;
    const nib_value *lines;
    size_t count;
    const bool first = nib__truth(bound[1]), blank = nib__truth(bound[2]);
    (void)args;
    if (self.kind != NIB_V_STRING)
        return nib__run_type_error(r, "indent", self, self);
    NIB_TRY(make_indent(r, bound[0], 4, &width));
    NIB_TRY(nib__split_lines(r, self, false, true, &lines, &count));
    for (size_t i = 0; i < count; i++) {
        if (i != 0)
            NIB_TRY(nib__put_text(r, &b, "\n", false));
        if (i == 0 ? first : blank || lines[i].as.string->size != 0)
            NIB_TRY(nib__put_string(r, &b, width.as.string));
        NIB_TRY(nib__put_string(r, &b, lines[i].as.string));
    }
    NIB_TRY(nib__finish_string(r, &b, out));
    out->markup = self.markup;
    return NIB_OK;
}

static NIB_BUILTIN(filter_center)
{
    nib_builder b = {.size = 0};
    nib_value text;
    int64_t width = 80;
    (void)args;
    NIB_TRY(nib__to_string(r, self, &text));
    if (nib__is_given(&bound[0]) && !nib__integer(bound[0], &width))
        return nib__run_type_error(r, "center", text, bound[0]);
    const int64_t size = (int64_t)nib__count_points(text.as.string->at, text.as.string->size);
    const int64_t missing = width > size ? width - size : 0;
    const int64_t left = missing / 2 + (missing & width & 1);
    NIB_TRY(nib__run_steps(r, (uint64_t)missing));
    for (int64_t i = 0; i < missing; i++) {
        if (i == left)
            NIB_TRY(nib__put_string(r, &b, text.as.string));
        NIB_TRY(nib__put_text(r, &b, " ", false));
    }
    if (missing == left)
        NIB_TRY(nib__put_string(r, &b, text.as.string));
    return nib__finish_string(r, &b, out);
}

/* ---- numbers ---- */

static NIB_BUILTIN(filter_abs)
{
    int64_t i;
    (void)args, (void)bound;
    if (nib__integer(self, &i) && i == INT64_MIN)
        return nib__run_fail(r, NIB_UNSUPPORTED, "integer overflow: more than 64 bits");
    if (nib__integer(self, &i)) {
        *out = nib__v_int(i < 0 ? -i : i);
    } else if (self.kind == NIB_V_FLOAT) {
        *out = nib__v_real(fabs(self.as.real));
    } else if (self.kind == NIB_V_BIG) {
        const bool minus = self.as.string->at[0] == '-';
        NIB_TRY(nib__slice_string(r, out, self, minus, self.as.string->size));
        out->kind = NIB_V_BIG;
    } else {
        return nib__run_type_error(r, "abs", self, self);
    }
    out->user = self.user;
    return NIB_OK;
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Reads a string as Python's float() does. *found: it is a number. */
static nib_status read_real(nib_render *r, nib_value text, double *out, bool *found)
{
    static const char *const words[] = {"nan", "inf", "infinity"};
    size_t size = 0, used = 0, from = 0;
    nib_value bare;
    nib_json json;
    *found = false;
    NIB_TRY(nib__strip(r, &bare, text, NULL, true, true));
    const nib_string *s = bare.as.string;
    NIB_TRY(nib__run_steps(r, s->size / 16));
    char *digits = nib__run_alloc(r, s->size + 1, 1);
    /* one more before the first digit, and one after each point */
    char *number = digits != NULL ? nib__run_alloc(r, 2 * s->size + 1, 1) : NULL;
    if (number == NULL)
        return NIB_NO_MEMORY;
    const bool sign = s->size > 0 && (s->at[0] == '-' || s->at[0] == '+');
    for (size_t i = sign; i < s->size; i++) {
        const char c = s->at[i];
        if (c == '_' && i > sign && i + 1 < s->size && is_digit(s->at[i - 1]) &&
            is_digit(s->at[i + 1]))
            continue;
        digits[size++] = c >= 'A' && c <= 'Z' ? (char)(c | 32) : c;
    }
    const double one = sign && s->at[0] == '-' ? -1.0 : 1.0;
    for (size_t i = 0; i < COUNT(words); i++) {
        if (size == strlen(words[i]) && memcmp(digits, words[i], size) == 0) {
            *out = copysign(i == 0 ? NAN : INFINITY, one);
            *found = true;
            return NIB_OK;
        }
    }
    /* JSON requires a digit on both sides of the point, and no leading zeros. */
    while (from + 1 < size && digits[from] == '0' && is_digit(digits[from + 1]))
        from++;
    if (size > 1 && digits[from] == '.')
        number[used++] = '0';
    for (size_t i = from; i < size; i++) {
        number[used++] = digits[i];
        if (digits[i] == '.' && i > from && (i + 1 == size || digits[i + 1] == 'e'))
            number[used++] = '0';
    }
    nib__json_init(&json, "", number, used, NULL);
    if (used > 0 && number[0] != '-' && nib__json_expect(&json, NIB_JSON_NUMBER) &&
        json.token_size == used) {
        double value;
        *out = copysign(nib__json_double(&json, &value) ? value : INFINITY, one);
        *found = true;
    }
    return NIB_OK;
}

/* Reads a string as Python's int() does. *found: it is an integer of 64 bits. */
static nib_status read_integer(nib_render *r, nib_value text, int64_t base, int64_t *out,
                               bool *found)
{
    static const struct {
        char letter;
        int base;
    } prefixes[] = {{'x', 16}, {'o', 8}, {'b', 2}};
    nib_value bare;
    uint64_t value = 0;
    *found = false;
    if (base != 0 && (base < 2 || base > 36))
        return NIB_OK;
    NIB_TRY(nib__strip(r, &bare, text, NULL, true, true));
    NIB_TRY(nib__run_steps(r, bare.as.string->size / 16));
    const nib_string *s = bare.as.string;
    size_t i = s->size > 0 && (s->at[0] == '-' || s->at[0] == '+');
    const bool minus = i == 1 && s->at[0] == '-';
    bool digit = false; /* an underscore may follow */
    if (i + 2 < s->size && s->at[i] == '0') {
        for (size_t k = 0; k < COUNT(prefixes) && !digit; k++)
            if ((s->at[i + 1] | 32) == prefixes[k].letter &&
                (base == prefixes[k].base || base == 0)) {
                base = prefixes[k].base;
                digit = true;
            }
        i += digit ? 2 : 0;
    }
    base = base == 0 ? 10 : base;
    for (; i < s->size; i++) {
        const char c = s->at[i];
        const int d = is_digit(c)                          ? c - '0'
                      : (c | 32) >= 'a' && (c | 32) <= 'z' ? (c | 32) - 'a' + 10
                                                           : 99;
        if (c == '_' && digit && i + 1 < s->size) {
            digit = false;
            continue;
        }
        if (d >= base || !nib__append_digit(&value, (int)base, d))
            return NIB_OK;
        digit = true;
    }
    *out = minus ? -(int64_t)value : (int64_t)value;
    *found = digit;
    return NIB_OK;
}

static NIB_BUILTIN(filter_int)
{
    int64_t base = 10, integer;
    double real = self.kind == NIB_V_FLOAT ? self.as.real : 0;
    const bool text = self.kind == NIB_V_STRING;
    (void)args;
    if (nib__is_given(&bound[1]) && !nib__integer(bound[1], &base))
        return nib__run_type_error(r, "int", self, bound[1]);
    if (self.kind == NIB_V_UNDEFINED)
        return nib__run_type_error(r, "int", self, self);
    if (self.kind == NIB_V_FLOAT && isinf(real))
        return nib__run_fail(r, NIB_BAD_INPUT, "int: infinity is not an integer");
    bool found = nib__integer(self, &integer);
    if (text)
        NIB_TRY(read_integer(r, self, base, &integer, &found));
    if (self.kind == NIB_V_BIG) {
        *out = self;
    } else if (found) {
        *out = nib__v_int(integer);
    } else {
        found = self.kind == NIB_V_FLOAT;
        if (text)
            NIB_TRY(read_real(r, self, &real, &found));
        if (!found || !isfinite(real)) {
            *out = nib__is_given(&bound[0]) ? bound[0] : nib__v_int(0);
            return NIB_OK;
        }
        if (fabs(real) >= 0x1p63)
            return nib__run_fail(r, NIB_UNSUPPORTED, "integer overflow: more than 64 bits");
        *out = nib__v_int((int64_t)real);
    }
    out->user = self.user;
    return NIB_OK;
}

static NIB_BUILTIN(filter_float)
{
    double real;
    (void)args;
    if (self.kind == NIB_V_UNDEFINED)
        return nib__run_type_error(r, "float", self, self);
    bool found = nib__number(self, &real);
    if (self.kind == NIB_V_STRING || self.kind == NIB_V_BIG)
        NIB_TRY(read_real(r, self, &real, &found));
    if (found) {
        *out = nib__v_real(real);
        out->user = self.user;
    } else {
        *out = nib__is_given(&bound[0]) ? bound[0] : nib__v_real(0);
    }
    return NIB_OK;
}

/* Rounds to so many decimals by the exact decimal value: to nearest, ties to even. */
static double round_real(double value, int digits)
{
    char text[400];
    nib_json json;
    double result = value;
    if (!isfinite(value) || digits > 300)
        return value;
    if (digits < 0) {
        const double scale = pow(10, -digits);
        return isinf(scale) ? 0 * value : nearbyint(value / scale) * scale;
    }
    nib__format(text, sizeof text, "%.*f", digits, fabs(value));
    nib__json_init(&json, "", text, strlen(text), NULL);
    (void)nib__json_read_double(&json, &result);
    return copysign(result, value);
}

/* Rounds to a multiple of 10^places, ties to even. */
static nib_status round_integer(nib_render *r, int64_t value, int64_t places, nib_value *out)
{
    const bool minus = value < 0;
    uint64_t scale = 1, size = minus ? 0 - (uint64_t)value : (uint64_t)value;
    if (places > 19) { /* half of 10^20 exceeds every 64-bit integer */
        *out = nib__v_int(0);
        return NIB_OK;
    }
    for (int64_t i = 0; i < places; i++)
        scale *= 10;
    const uint64_t rest = size % scale, missing = scale - rest;
    const bool up = rest > missing || (rest == missing && size / scale % 2 == 1);
    size += (up ? scale : 0) - rest; /* below 2^64: at most 10^19, or 10^18 more than 2^63 */
    if (size > (uint64_t)INT64_MAX + minus)
        return nib__run_fail(r, NIB_UNSUPPORTED, "integer overflow: more than 64 bits");
    *out = nib__v_int(minus && size != 0 ? -(int64_t)(size - 1) - 1 : (int64_t)size);
    return NIB_OK;
}

static NIB_BUILTIN(filter_round)
{
    int64_t precision = 0, integer;
    double real;
    const nib_value method = bound[1];
    const bool common = !nib__is_given(&method) || nib__is_text(method, "common");
    const bool ceil_it = nib__is_text(method, "ceil");
    (void)args;
    if (!common && !ceil_it && !nib__is_text(method, "floor"))
        return nib__run_fail(r, NIB_BAD_INPUT, "round: the method must be common, ceil or floor");
    if (!nib__number(self, &real) ||
        (nib__is_given(&bound[0]) && !nib__integer(bound[0], &precision)))
        return nib__run_type_error(r, "round", self, bound[0]);
    precision = nib__max(-400, nib__min(precision, 400));
    if (common && nib__integer(self, &integer)) {
        NIB_TRY(round_integer(r, integer, -precision, out));
    } else if (common) {
        *out = nib__v_real(round_real(real, (int)precision));
    } else {
        const double scale = pow(10, (double)precision), scaled = real * scale;
        if (!isfinite(scaled))
            return nib__run_fail(r, NIB_BAD_INPUT, "round: infinity and NaN have no integer part");
        /* Python's floor and ceil return an integer, which has no -0 */
        *out = nib__v_real(((ceil_it ? ceil(scaled) : floor(scaled)) + 0.0) / scale);
    }
    out->user = self.user;
    return NIB_OK;
}

/* ---- other filters ---- */

static NIB_BUILTIN(filter_default)
{
    (void)args;
    const bool replaced =
        self.kind == NIB_V_UNDEFINED || (nib__truth(bound[1]) && !nib__truth(self));
    *out = self;
    if (!replaced)
        return NIB_OK;
    if (!nib__is_given(&bound[0]))
        return nib__v_text(r, out, "", 0, false);
    *out = bound[0];
    return NIB_OK;
}

static NIB_BUILTIN(filter_length)
{
    (void)args, (void)bound;
    switch (self.kind) {
    case NIB_V_UNDEFINED: *out = nib__v_int(0); return NIB_OK;
    case NIB_V_STRING:
        NIB_TRY(nib__run_steps(r, self.as.string->size / 64));
        *out = nib__v_int((int64_t)nib__count_points(self.as.string->at, self.as.string->size));
        return NIB_OK;
    case NIB_V_DICT: *out = nib__v_int((int64_t)self.as.dict->count); return NIB_OK;
    case NIB_V_LOOP:
        NIB_TRY(nib__run_loop_fill(r, self.as.loop, SIZE_MAX));
        *out = nib__v_int((int64_t)self.as.loop->seen.as.items->count);
        return NIB_OK;
    default:
        if (!nib__is_items(self) || self.kind == NIB_V_STREAM)
            return nib__run_fail(r, NIB_BAD_INPUT, "a %s has no length", nib__kind_name(self));
        *out = nib__v_int((int64_t)self.as.items->count);
        return NIB_OK;
    }
}

/* json.dumps with transformers' defaults: non-ASCII characters are not escaped. */
static NIB_BUILTIN(filter_tojson)
{
    nib_dump d = {.ascii = nib__truth(bound[0]), .sorted = nib__truth(bound[3])};
    const bool indents = nib__is_given(&bound[1]) && bound[1].kind != NIB_V_NONE;
    nib_value indent, item, key;
    nib_builder b = {.size = 0};
    (void)args;
    NIB_TRY(make_indent(r, bound[1].kind == NIB_V_NONE ? nib__v_int(0) : bound[1], 0, &indent));
    NIB_TRY(nib__v_text(r, &item, indents ? "," : ", ", indents ? 1 : 2, false));
    NIB_TRY(nib__v_text(r, &key, ": ", 2, false));
    if (nib__is_given(&bound[2]) && bound[2].kind != NIB_V_NONE) {
        const nib_items *pair = nib__is_items(bound[2]) ? bound[2].as.items : NULL;
        if (pair == NULL || pair->count != 2 || pair->at[0].kind != NIB_V_STRING ||
            pair->at[1].kind != NIB_V_STRING)
            return nib__run_fail(r, NIB_BAD_INPUT, "tojson: separators must be two strings");
        item = pair->at[0];
        key = pair->at[1];
    }
    d.lines = indents;
    d.indent = indent.as.string;
    d.item = item.as.string;
    d.key = key.as.string;
    NIB_TRY(nib__put_json(r, &b, self, &d));
    return nib__finish_string(r, &b, out);
}

static const nib_call_row filters[] = {
    {"abs", filter_abs, "", 0, 0},
    {"batch", nib__filter_batch, "linecount,fill_with", 1, 0},
    {"capitalize", filter_capitalize, "", 0, 0},
    {"center", filter_center, "width", 0, 0},
    {"count", filter_length, "", 0, 0},
    {"d", filter_default, "default_value,boolean", 0, 0},
    {"default", filter_default, "default_value,boolean", 0, 0},
    {"dictsort", nib__filter_dictsort, "case_sensitive,by,reverse", 0, 0},
    {"e", filter_escape, "", 0, 0},
    {"escape", filter_escape, "", 0, 0},
    {"first", nib__filter_first, "", 0, 0},
    {"float", filter_float, "default", 0, 0},
    {"format", filter_format, NULL, 0, 0},
    {"groupby", nib__filter_groupby, "attribute,default,case_sensitive", 1, 0},
    {"indent", filter_indent, "width,first,blank", 0, 0},
    {"int", filter_int, "default,base", 0, 0},
    {"items", nib__filter_items, "", 0, 0},
    {"join", nib__filter_join, "d,attribute", 0, 0},
    {"last", nib__filter_last, "", 0, 0},
    {"length", filter_length, "", 0, 0},
    {"list", nib__filter_list, "", 0, 0},
    {"lower", filter_lower, "", 0, 0},
    {"map", nib__filter_map, NULL, 0, 0},
    {"max", nib__filter_max, "case_sensitive,attribute", 0, 0},
    {"min", nib__filter_min, "case_sensitive,attribute", 0, 0},
    {"reject", nib__filter_reject, NULL, 0, 0},
    {"rejectattr", nib__filter_rejectattr, NULL, 0, 0},
    {"replace", filter_replace, "old,new,count", 2, 0},
    {"reverse", nib__filter_reverse, "", 0, 0},
    {"round", filter_round, "precision,method", 0, 0},
    {"safe", filter_safe, "", 0, 0},
    {"select", nib__filter_select, NULL, 0, 0},
    {"selectattr", nib__filter_selectattr, NULL, 0, 0},
    {"slice", nib__filter_slice, "slices,fill_with", 1, 0},
    {"sort", nib__filter_sort, "reverse,case_sensitive,attribute", 0, 0},
    {"string", filter_string, "", 0, 0},
    {"sum", nib__filter_sum, "attribute,start", 0, 0},
    {"title", filter_title, "", 0, 0},
    {"tojson", filter_tojson, "ensure_ascii,indent,separators,sort_keys", 0, 0},
    {"trim", filter_trim, "chars", 0, 0},
    {"unique", nib__filter_unique, "case_sensitive,attribute", 0, 0},
    {"upper", filter_upper, "", 0, 0},
};

const nib_call_row *nib__filter_find(const char *name, size_t size)
{
    for (size_t i = 0; i < COUNT(filters); i++) {
        if (strlen(filters[i].name) == size && memcmp(filters[i].name, name, size) == 0)
            return &filters[i];
    }
    return NULL;
}
