/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by filters and methods of strings: stripping, replacing, formatting. Parts of a string
 * keep their marks.
 */
#include "template_parts.h"

#include <math.h>
#include <stdio.h>

/* ---- stripping and replacing ---- */

static bool is_among(const nib_string *chars, const char *at, size_t size)
{
    for (size_t i = 0; i < chars->size;) {
        const size_t other = (size_t)nib__utf8_length(chars->at + i, chars->size - i);
        if (other == size && memcmp(chars->at + i, at, size) == 0)
            return true;
        i += other;
    }
    return false;
}

/* Is the character stripped? chars NULL: white space is. */
static nib_status is_stripped(nib_render *r, const nib_string *chars, const char *at, size_t size,
                              bool *out)
{
    const char *next = at;
    *out = chars != NULL ? is_among(chars, at, size) : nib__template_space(nib__utf8_next(&next));
    return nib__run_steps(r, chars == NULL ? 0 : chars->size / 16);
}

nib_status nib__strip(nib_render *r, nib_value *out, nib_value s, const nib_string *chars,
                      bool left, bool right)
{
    const nib_string *text = s.as.string;
    size_t from = 0, to = text->size;
    while (left && from < to) {
        const size_t size = (size_t)nib__utf8_length(text->at + from, to - from);
        NIB_TRY(is_stripped(r, chars, text->at + from, size, &left));
        from += left ? size : 0;
    }
    while (right && to > from) {
        size_t last = to - 1;
        while (((unsigned char)text->at[last] & 0xc0) == 0x80)
            last--;
        NIB_TRY(is_stripped(r, chars, text->at + last, to - last, &right));
        to = right ? last : to;
    }
    NIB_TRY(nib__run_steps(r, (text->size - (to - from)) / 16));
    return nib__slice_string(r, out, s, from, to);
}

/* An empty `from` matches before every character and at the end. */
nib_status nib__replace(nib_render *r, nib_value *out, nib_value s, const nib_string *from,
                        const nib_string *to, int64_t most)
{
    const nib_string *text = s.as.string;
    nib_builder b = {.size = 0};
    size_t at = 0;
    NIB_TRY(nib__run_steps(r, text->size / 64));
    for (int64_t count = 0; most < 0 || count < most; count++) {
        const char *found = nib__find_bytes(text->at + at, text->size - at, from->at, from->size);
        if (from->size == 0)
            found = text->at + at;
        if (found == NULL)
            break;
        NIB_TRY(nib__run_steps(r, 1));
        NIB_TRY(nib__put_part(r, &b, text, at, (size_t)(found - text->at)));
        NIB_TRY(nib__put_string(r, &b, to));
        at = (size_t)(found - text->at) + from->size;
        if (from->size == 0) {
            if (at == text->size)
                break;
            const size_t size = (size_t)nib__utf8_length(text->at + at, text->size - at);
            NIB_TRY(nib__put_part(r, &b, text, at, at + size));
            at += size;
        }
    }
    NIB_TRY(nib__put_part(r, &b, text, at, text->size));
    NIB_TRY(nib__finish_string(r, &b, out));
    out->markup = s.markup;
    return NIB_OK;
}

/* ---- "%s" % values ---- */

typedef struct directive {
    bool left, zero, plus, space, alternate;
    int64_t width, precision; /* -1: none */
    char kind;
} directive;

enum { WIDEST = 1 << 20, PRECISION = 300, DIGITS = 400 };

static nib_status put_times(nib_render *r, nib_builder *b, const char *text, int64_t times)
{
    if (times > 0)
        NIB_TRY(nib__run_steps(r, (uint64_t)times));
    for (int64_t i = 0; i < times; i++)
        NIB_TRY(nib__put_text(r, b, text, false));
    return NIB_OK;
}

static nib_status put_padded(nib_render *r, nib_builder *b, nib_value text, const directive *d)
{
    const nib_string *s = text.as.string;
    const int64_t missing = d->width - (int64_t)nib__count_points(s->at, s->size);
    NIB_TRY(put_times(r, b, " ", d->left ? 0 : missing));
    NIB_TRY(nib__put_string(r, b, s));
    return put_times(r, b, " ", d->left ? missing : 0);
}

static nib_status put_digits(nib_render *r, nib_builder *b, const char *digits, bool user,
                             const directive *d)
{
    size_t sign = digits[0] == '-' || digits[0] == '+' || digits[0] == ' '; /* and prefix */
    if (strchr("xXo", d->kind) != NULL && d->alternate)
        sign += 2;
    const int64_t missing = d->width - (int64_t)strlen(digits);
    const bool zero = d->zero && !d->left;
    NIB_TRY(put_times(r, b, " ", d->left || zero ? 0 : missing));
    NIB_TRY(nib__put(r, b, digits, sign, user));
    NIB_TRY(put_times(r, b, "0", zero ? missing : 0));
    NIB_TRY(nib__put_text(r, b, digits + sign, user));
    return put_times(r, b, " ", d->left ? missing : 0);
}

static nib_status put_integer(nib_render *r, nib_builder *b, nib_value v, const directive *d)
{
    char digits[DIGITS];
    int64_t i = 0;
    const char *sign = d->plus ? "+" : d->space ? " " : "";
    if (v.kind == NIB_V_FLOAT && fabs(v.as.real) < 9e18 && strchr("diu", d->kind) != NULL)
        i = (int64_t)v.as.real;
    else if (!nib__integer(v, &i))
        return nib__run_fail(r, NIB_BAD_INPUT, "%%%c needs an integer, not a %s", d->kind,
                             nib__kind_name(v));
    const unsigned long long size = i < 0 ? 0 - (unsigned long long)i : (unsigned long long)i;
    const char *prefix = !d->alternate    ? ""
                         : d->kind == 'x' ? "0x"
                         : d->kind == 'X' ? "0X"
                         : d->kind == 'o' ? "0o"
                                          : "";
    const int precision = (int)(d->precision < 0 ? 1 : d->precision);
    char body[340];
    snprintf(body, sizeof body,
             d->kind == 'x'   ? "%.*llx"
             : d->kind == 'X' ? "%.*llX"
             : d->kind == 'o' ? "%.*llo"
                              : "%.*llu",
             precision, size);
    snprintf(digits, sizeof digits, "%s%s%s", i < 0 ? "-" : sign, prefix,
             size == 0 && d->precision == 0 ? "0" : body);
    return put_digits(r, b, digits, v.user, d);
}

static nib_status put_real(nib_render *r, nib_builder *b, nib_value v, const directive *d)
{
    char digits[DIGITS + 340], form[8];
    double real;
    const int precision = (int)(d->precision < 0 ? 6 : d->precision);
    if (!nib__number(v, &real))
        return nib__run_fail(r, NIB_BAD_INPUT, "%%%c needs a number, not a %s", d->kind,
                             nib__kind_name(v));
    snprintf(form, sizeof form, "%%%s%s.*%c",
             d->plus    ? "+"
             : d->space ? " "
                        : "",
             d->alternate ? "#" : "", d->kind);
    snprintf(digits, sizeof digits, form, precision, real);
    for (char *c = digits; *c != 0; c++) { /* the locale's decimal point */
        if (strchr("+- 0123456789", *c) == NULL && (*c | 32) < 'a')
            *c = '.';
    }
    return put_digits(r, b, digits, v.user, d);
}

static nib_status put_directive(nib_render *r, nib_builder *b, nib_value v, const directive *d)
{
    nib_value text;
    char shown[8];
    if (d->precision > PRECISION && d->kind != 's' && d->kind != 'r')
        return nib__run_fail(r, NIB_UNSUPPORTED, "a format has more than %d digits", PRECISION);
    switch (d->kind) {
    case 's':
    case 'r':
        if (d->kind == 's') {
            NIB_TRY(nib__to_string(r, v, &text));
        } else {
            nib_builder repr = {.size = 0};
            NIB_TRY(nib__put_repr(r, &repr, v));
            NIB_TRY(nib__finish_string(r, &repr, &text));
        }
        if (d->precision >= 0) {
            size_t end = 0;
            const nib_string *s = text.as.string;
            for (int64_t i = 0; i < d->precision && end < s->size; i++)
                end += (size_t)nib__utf8_length(s->at + end, s->size - end);
            NIB_TRY(nib__slice_string(r, &text, text, 0, end));
        }
        return put_padded(r, b, text, d);
    case 'd':
    case 'i':
    case 'u':
    case 'x':
    case 'X':
    case 'o': return put_integer(r, b, v, d);
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G': return put_real(r, b, v, d);
    case 'a':
    case 'c':
        return nib__run_fail(r, NIB_UNSUPPORTED, "%%%c in a format is not supported", d->kind);
    default:
        return nib__run_fail(r, NIB_BAD_INPUT, "unknown %%%s in a format",
                             nib__escape_name(shown, sizeof shown, &d->kind, 1));
    }
}

typedef struct format_state {
    const nib_string *text;
    size_t at;
    nib_value values; /* a tuple, a dict, or one value */
    size_t used;
    bool named;
} format_state;

static nib_status next_value(nib_render *r, format_state *f, nib_value *out)
{
    const bool tuple = f->values.kind == NIB_V_TUPLE;
    if (f->named || f->used >= (tuple ? f->values.as.items->count : 1))
        return nib__run_fail(r, NIB_BAD_INPUT, "a format needs more values than it has");
    *out = tuple ? f->values.as.items->at[f->used] : f->values;
    f->used++;
    return NIB_OK;
}

/* Reads digits, or *, which uses the next value. */
static nib_status read_width(nib_render *r, format_state *f, int64_t *out)
{
    nib_value v;
    int64_t width = 0;
    if (f->at < f->text->size && f->text->at[f->at] == '*') {
        f->at++;
        NIB_TRY(next_value(r, f, &v));
        if (!nib__integer(v, &width) || width < 0)
            return nib__run_fail(r, NIB_BAD_INPUT,
                                 "* in a format needs an integer that is not negative");
    } else {
        while (f->at < f->text->size && f->text->at[f->at] >= '0' && f->text->at[f->at] <= '9' &&
               width <= WIDEST)
            width = 10 * width + (f->text->at[f->at++] - '0');
    }
    if (width > WIDEST)
        return nib__run_fail(r, NIB_BAD_INPUT, "a format is wider than %d", WIDEST);
    *out = width;
    return NIB_OK;
}

static nib_status read_directive(nib_render *r, format_state *f, directive *d, nib_value *named)
{
    const nib_string *s = f->text;
    *d = (directive){.precision = -1};
    *named = (nib_value){.kind = NIB_V_UNDEFINED};
    if (f->at < s->size && s->at[f->at] == '(') {
        const char *end = memchr(s->at + f->at, ')', s->size - f->at);
        nib_value key, *found;
        if (end == NULL || f->values.kind != NIB_V_DICT)
            return nib__run_fail(r, NIB_BAD_INPUT, "%%(name) in a format needs a dict");
        NIB_TRY(nib__v_text(r, &key, s->at + f->at + 1, (size_t)(end - s->at) - f->at - 1, false));
        NIB_TRY(nib__dict_get(r, f->values.as.dict, key, &found));
        if (found == NULL)
            return nib__run_fail(r, NIB_BAD_INPUT, "a format names a key that the dict lacks");
        *named = *found;
        f->named = true;
        f->at = (size_t)(end - s->at) + 1;
    }
    for (; f->at < s->size && s->at[f->at] != 0 && strchr("-+ 0#", s->at[f->at]) != NULL; f->at++) {
        d->left |= s->at[f->at] == '-';
        d->zero |= s->at[f->at] == '0';
        d->plus |= s->at[f->at] == '+';
        d->space |= s->at[f->at] == ' ';
        d->alternate |= s->at[f->at] == '#';
    }
    NIB_TRY(read_width(r, f, &d->width));
    if (f->at < s->size && s->at[f->at] == '.') {
        f->at++;
        NIB_TRY(read_width(r, f, &d->precision));
    }
    if (f->at == s->size)
        return nib__run_fail(r, NIB_BAD_INPUT, "a format ends within a directive");
    d->kind = s->at[f->at++];
    return NIB_OK;
}

nib_status nib__format_percent(nib_render *r, nib_value *out, nib_value format, nib_value args)
{
    format_state f = {.text = format.as.string, .values = args};
    nib_builder b = {.size = 0};
    if (format.markup)
        return nib__run_fail(r, NIB_UNSUPPORTED, "a format that is marked safe is not supported");
    while (f.at < f.text->size) {
        const char *percent = memchr(f.text->at + f.at, '%', f.text->size - f.at);
        const size_t to = percent == NULL ? f.text->size : (size_t)(percent - f.text->at);
        NIB_TRY(nib__put_part(r, &b, f.text, f.at, to));
        f.at = to;
        if (percent == NULL)
            break;
        f.at++;
        if (f.at < f.text->size && f.text->at[f.at] == '%') {
            NIB_TRY(nib__put_part(r, &b, f.text, f.at, f.at + 1));
            f.at++;
            continue;
        }
        directive d;
        nib_value v;
        NIB_TRY(nib__run_steps(r, 1));
        NIB_TRY(read_directive(r, &f, &d, &v));
        if (!nib__is_given(&v))
            NIB_TRY(next_value(r, &f, &v));
        NIB_TRY(put_directive(r, &b, v, &d));
    }
    /* Python treats any subscriptable value as a mapping, which may have unused values. */
    const bool subscripted = args.kind == NIB_V_DICT || args.kind == NIB_V_LIST ||
                             args.kind == NIB_V_RANGE || args.kind == NIB_V_UNDEFINED;
    const bool rest =
        args.kind == NIB_V_TUPLE ? f.used < args.as.items->count : f.used == 0 && !subscripted;
    if (rest && !f.named)
        return nib__run_fail(r, NIB_BAD_INPUT, "a format has more values than it needs");
    return nib__finish_string(r, &b, out);
}
