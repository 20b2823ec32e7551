/* SPDX-License-Identifier: Apache-2.0
 *
 * Python's str.format, as Jinja's sandbox allows it: fields by position or name, attributes and
 * items of values, conversions, and the format specification of strings, integers and floats.
 */
#include "template_parts.h"

#include "text.h"

#include <math.h>
#include <stdio.h>

enum { WIDEST = 1 << 20, PRECISION = 300, NUMBER_TEXT = 1024, NESTED = 2 };

typedef struct formatter {
    const nib_arguments *args;
    size_t next; /* position of the next field without a number */
    bool counts, numbered;
} formatter;

/* A format specification. */
typedef struct spec {
    char fill[8]; /* one character */
    char align;   /* one of <>=^; 0: the usual one */
    char sign;    /* one of "+- " */
    bool alternate;
    char grouping; /* , or _; 0: none */
    int64_t width, precision;
    char type; /* 0: none */
} spec;

static nib_status fail_format(nib_render *r, const char *what)
{
    return nib__run_fail(r, NIB_BAD_INPUT, "format: %s", what);
}

/* ---- specifications ---- */

static nib_status read_size(nib_render *r, const nib_string *s, size_t *at, int64_t most,
                            int64_t *out)
{
    for (*out = 0; *at < s->size && s->at[*at] >= '0' && s->at[*at] <= '9'; ++*at) {
        *out = 10 * *out + (s->at[*at] - '0');
        if (*out > most)
            return nib__run_fail(r, NIB_UNSUPPORTED, "format: a width or precision is over %lld",
                                 (long long)most);
    }
    return NIB_OK;
}

static bool is_one_of(const nib_string *s, size_t at, const char *chars)
{
    return at < s->size && s->at[at] != 0 && strchr(chars, s->at[at]) != NULL;
}

static nib_status read_spec(nib_render *r, const nib_string *s, spec *out)
{
    size_t at = 0;
    *out = (spec){.fill = " ", .sign = '-', .precision = -1};
    const size_t first = s->size > 0 ? (size_t)nib__utf8_length(s->at, s->size) : 0;
    const bool filled = first > 0 && is_one_of(s, first, "<>=^");
    if (filled) {
        memcpy(out->fill, s->at, first);
        out->fill[first] = 0;
        at = first;
    }
    if (is_one_of(s, at, "<>=^"))
        out->align = s->at[at++];
    if (is_one_of(s, at, "+- "))
        out->sign = s->at[at++];
    if (is_one_of(s, at, "#"))
        out->alternate = s->at[at++] == '#';
    if (is_one_of(s, at, "0")) {
        at++;
        if (!filled)
            snprintf(out->fill, sizeof out->fill, "0");
        out->align = out->align != 0 ? out->align : '0'; /* '=' for numbers */
    }
    NIB_TRY(read_size(r, s, &at, WIDEST, &out->width));
    if (is_one_of(s, at, ",_"))
        out->grouping = s->at[at++];
    if (is_one_of(s, at, ".")) {
        const size_t digits = ++at;
        NIB_TRY(read_size(r, s, &at, WIDEST, &out->precision));
        if (at == digits)
            return fail_format(r, "a precision is missing");
    }
    if (at < s->size)
        out->type = s->at[at++];
    return at == s->size ? NIB_OK : fail_format(r, "a format specification is not valid");
}

/* ---- values ---- */

static nib_status put_fill(nib_render *r, nib_builder *b, const spec *f, int64_t times)
{
    if (times > 0)
        NIB_TRY(nib__run_steps(r, (uint64_t)times));
    for (int64_t i = 0; i < times; i++)
        NIB_TRY(nib__put_text(r, b, f->fill, false));
    return NIB_OK;
}

/* Pads a text to the left of its first `lead` bytes, to the right, around, or after them. */
static nib_status put_aligned(nib_render *r, nib_builder *b, const nib_string *s, size_t lead,
                              const spec *f, char align)
{
    const int64_t missing = f->width - (int64_t)nib__count_points(s->at, s->size),
                  pad = missing > 0 ? missing : 0,
                  left = align == '>'   ? pad
                         : align == '^' ? pad / 2
                                        : 0,
                  inside = align == '=' ? pad : 0;
    NIB_TRY(put_fill(r, b, f, left));
    NIB_TRY(nib__put_part(r, b, s, 0, lead));
    NIB_TRY(put_fill(r, b, f, inside));
    NIB_TRY(nib__put_part(r, b, s, lead, s->size));
    return put_fill(r, b, f, pad - left - inside);
}

static nib_status format_text(nib_render *r, nib_builder *b, nib_value v, const spec *f)
{
    const nib_string *s = v.as.string;
    size_t end = s->size;
    if ((f->type != 0 && f->type != 's') || f->sign != '-' || f->alternate || f->grouping != 0 ||
        f->align == '=')
        return fail_format(r, "a string has a format specification of numbers");
    if (f->precision >= 0) {
        end = 0;
        for (int64_t i = 0; i < f->precision && end < s->size; i++)
            end += (size_t)nib__utf8_length(s->at + end, s->size - end);
        NIB_TRY(nib__slice_string(r, &v, v, 0, end));
    }
    return put_aligned(r, b, v.as.string, 0, f, f->align == 0 || f->align == '0' ? '<' : f->align);
}

/* Copies digits with a separator before every `every` of them. */
static void put_groups(char *to, const char *digits, size_t count, size_t every, char separator)
{
    for (size_t i = 0; i < count; i++) {
        if (i > 0 && (count - i) % every == 0 && separator != 0)
            *to++ = separator;
        *to++ = digits[i];
    }
    *to = 0;
}

/* sign: of the number; prefix: "0x"; digits: `whole` of them before the point. */
static nib_status put_number(nib_render *r, nib_builder *b, nib_value v, const spec *f,
                             bool negative, const char *prefix, const char *digits, size_t whole,
                             size_t every)
{
    char text[2 * NUMBER_TEXT], sign[2] = {negative ? '-' : f->sign == '-' ? 0 : f->sign, 0};
    nib_value value;
    const char align = f->align == 0 ? '>' : f->align == '0' ? '=' : f->align;
    if (f->grouping != 0 && align == '=' && f->fill[0] == '0')
        return nib__run_fail(r, NIB_UNSUPPORTED,
                             "format: leading zeros with separators are not supported");
    snprintf(text, sizeof text, "%s%s", sign, prefix);
    const size_t lead = strlen(text);
    put_groups(text + lead, digits, whole, every, f->grouping);
    snprintf(text + strlen(text), sizeof text - strlen(text), "%s", digits + whole);
    NIB_TRY(nib__v_text(r, &value, text, strlen(text), v.user));
    return put_aligned(r, b, value.as.string, lead, f, align);
}

static nib_status format_integer(nib_render *r, nib_builder *b, nib_value v, int64_t i,
                                 const spec *f)
{
    uint64_t size = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    char digits[80] = "", *at = digits + sizeof digits - 1;
    const char type = f->type == 0 || f->type == 'n' ? 'd' : f->type;
    const unsigned base = type == 'b' ? 2 : type == 'o' ? 8 : type == 'd' ? 10 : 16;
    const char *names = type == 'X' ? "0123456789ABCDEF" : "0123456789abcdef";
    char prefix[3] = {'0', type, 0};
    if (f->precision >= 0)
        return fail_format(r, "an integer has no precision");
    if (f->grouping == ',' && base != 10)
        return fail_format(r, "only _ separates digits of this base");
    for (*at = 0; size > 0 || at[0] == 0; size /= base)
        *--at = names[size % base];
    return put_number(r, b, v, f, i < 0, f->alternate && base != 10 ? prefix : "", at, strlen(at),
                      base == 10 ? 3 : 4);
}

static nib_status format_real(nib_render *r, nib_builder *b, nib_value v, double x, const spec *f)
{
    char text[NUMBER_TEXT];
    const bool percent = f->type == '%';
    const char form[] = {'%', '.', '*', percent ? 'f' : f->type, 0};
    if (f->precision > PRECISION || f->alternate || (f->type == 0 && f->precision >= 0))
        return nib__run_fail(r, NIB_UNSUPPORTED, "format: %s is not supported for floats",
                             f->alternate               ? "#"
                             : f->precision > PRECISION ? "such a precision"
                                                        : "a precision without a type");
    if (f->type == 0)
        nib__real_text(text, fabs(x));
    else
        nib__format(text, sizeof text - 1, form, (int)(f->precision < 0 ? 6 : f->precision),
                    fabs(percent ? 100 * x : x));
    if (percent)
        snprintf(text + strlen(text), 2, "%%");
    return put_number(r, b, v, f, signbit(x) && !isnan(x), "", text, strspn(text, "0123456789"), 3);
}

/* format(value, specification) */
static nib_status put_formatted(nib_render *r, nib_builder *b, nib_value v, const nib_string *text)
{
    spec f;
    int64_t i = 0;
    double x = 0;
    char shown[8];
    if (text->size == 0)
        return nib__put_value(r, b, v);
    NIB_TRY(read_spec(r, text, &f));
    if (v.kind == NIB_V_STRING)
        return format_text(r, b, v, &f);
    const bool whole = nib__integer(v, &i) && v.kind != NIB_V_FLOAT;
    if (whole && (f.type == 0 || strchr("dnboxX", f.type) != NULL))
        return format_integer(r, b, v, i, &f);
    if (f.type == 'c')
        return nib__run_fail(r, NIB_UNSUPPORTED, "format: the type c is not supported");
    if (nib__number(v, &x) && (f.type == 0 || strchr("fFeEgG%", f.type) != NULL))
        return format_real(r, b, v, x, &f);
    return nib__run_fail(r, NIB_BAD_INPUT, "format: a %s has no format specification \"%s\"",
                         nib__kind_name(v), nib__escape_name(shown, sizeof shown, text->at, 1));
}

/* ---- fields ---- */

static nib_status find_argument(nib_render *r, formatter *f, const nib_string *s, size_t from,
                                size_t to, nib_value *out)
{
    uint64_t at = 0;
    size_t digits = from;
    while (digits < to && s->at[digits] >= '0' && s->at[digits] <= '9' &&
           nib__append_digit(&at, 10, s->at[digits] - '0'))
        digits++;
    if (digits == to) {
        f->counts = f->counts || from == to;
        f->numbered = f->numbered || from < to;
        if (f->counts && f->numbered)
            return fail_format(r, "some fields have numbers and others have none");
        at = from == to ? f->next++ : at;
        if (at >= f->args->count)
            return fail_format(r, "a field has no value");
        *out = f->args->at[at];
        return NIB_OK;
    }
    for (size_t i = 0; i < f->args->named_count; i++) {
        const nib_string *name = f->args->named[i].name;
        if (name->size == to - from && memcmp(name->at, s->at + from, to - from) == 0) {
            *out = f->args->named[i].value;
            return NIB_OK;
        }
    }
    return fail_format(r, "a field names a value that is not given");
}

/* "name.attribute[key]" */
static nib_status find_value(nib_render *r, formatter *f, const nib_string *s, size_t from,
                             size_t to, nib_value *out)
{
    size_t at = from;
    while (at < to && s->at[at] != '.' && s->at[at] != '[')
        at++;
    NIB_TRY(find_argument(r, f, s, from, at, out));
    while (at < to) {
        const bool item = s->at[at] == '[';
        const size_t start = ++at;
        while (at < to && (item ? s->at[at] != ']' : s->at[at] != '.' && s->at[at] != '['))
            at++;
        if (at == start || (item && at == to) ||
            (item && at + 1 < to && s->at[at + 1] != '.' && s->at[at + 1] != '['))
            return fail_format(r, "the name of a field is not valid");
        uint64_t number = 0;
        size_t digits = start;
        while (item && digits < at && s->at[digits] >= '0' && s->at[digits] <= '9' &&
               nib__append_digit(&number, 10, s->at[digits] - '0'))
            digits++;
        nib_value key = nib__v_int((int64_t)number);
        if (digits != at)
            NIB_TRY(nib__v_text(r, &key, s->at + start, at - start, false));
        NIB_TRY(item ? nib__run_item(r, *out, key, out) : nib__run_attribute(r, *out, key, out));
        at += item;
    }
    return NIB_OK;
}

static nib_status convert(nib_render *r, nib_value *v, char how)
{
    nib_builder b = {.size = 0};
    if (how == 's')
        return nib__to_string(r, *v, v);
    if (how != 'r')
        return nib__run_fail(r, how == 'a' ? NIB_UNSUPPORTED : NIB_BAD_INPUT,
                             "format: only the conversions !s and !r are supported");
    NIB_TRY(nib__put_repr(r, &b, *v));
    return nib__finish_string(r, &b, v);
}

static nib_status put_all(nib_render *r, formatter *f, const nib_string *s, int depth,
                          nib_builder *b);

/* The field that begins after a brace, at *at; leaves *at after its closing brace. */
static nib_status put_field(nib_render *r, formatter *f, const nib_string *s, size_t *at, int depth,
                            nib_builder *b)
{
    static const char unclosed[] = "a field has no closing brace";
    nib_value v, text;
    nib_builder inner = {.size = 0};
    size_t end = *at, braces = 1;
    char how = 0;
    for (bool item = false; end < s->size && (item || strchr("!:}", s->at[end]) == NULL); end++) {
        if (s->at[end] == '{')
            return fail_format(r, "a brace is in the name of a field");
        item = s->at[end] == '[' || (item && s->at[end] != ']');
    }
    if (end == s->size)
        return fail_format(r, unclosed);
    NIB_TRY(nib__run_steps(r, 1));
    NIB_TRY(find_value(r, f, s, *at, end, &v));
    if (s->at[end] == '!') {
        if (end + 2 >= s->size || strchr(":}", s->at[end + 2]) == NULL)
            return fail_format(r, "a conversion is not valid");
        how = s->at[end + 1];
        end += 2;
    }
    const size_t start = s->at[end] == ':' ? end + 1 : end;
    for (end = start; end < s->size && braces > 0; end++)
        braces = s->at[end] == '{' ? braces + 1 : s->at[end] == '}' ? braces - 1 : braces;
    if (braces > 0)
        return fail_format(r, unclosed);
    *at = end;
    if (how != 0)
        NIB_TRY(convert(r, &v, how));
    NIB_TRY(nib__v_text(r, &text, s->at + start, end - 1 - start, false));
    if (memchr(s->at + start, '{', end - 1 - start) != NULL) {
        if (depth == NESTED)
            return fail_format(r, "fields are nested too deeply");
        NIB_TRY(put_all(r, f, text.as.string, depth + 1, &inner));
        NIB_TRY(nib__finish_string(r, &inner, &text));
    }
    return put_formatted(r, b, v, text.as.string);
}

static nib_status put_all(nib_render *r, formatter *f, const nib_string *s, int depth,
                          nib_builder *b)
{
    for (size_t at = 0; at < s->size;) {
        size_t end = at;
        while (end < s->size && s->at[end] != '{' && s->at[end] != '}')
            end++;
        NIB_TRY(nib__run_steps(r, (end - at) / 64 + 1));
        NIB_TRY(nib__put_part(r, b, s, at, end));
        if (end == s->size)
            return NIB_OK;
        at = end + 1;
        if (at < s->size && s->at[at] == s->at[end]) { /* a doubled brace is one */
            NIB_TRY(nib__put_part(r, b, s, end, at++));
            continue;
        }
        if (s->at[end] == '}')
            return fail_format(r, "a closing brace has no field");
        NIB_TRY(put_field(r, f, s, &at, depth, b));
    }
    return NIB_OK;
}

NIB_BUILTIN(nib__str_format)
{
    formatter f = {.args = args};
    nib_builder b = {.size = 0};
    (void)bound;
    if (self.markup)
        return nib__run_fail(r, NIB_UNSUPPORTED, "a format that is marked safe is not supported");
    NIB_TRY(put_all(r, &f, self.as.string, 1, &b));
    return nib__finish_string(r, &b, out);
}
