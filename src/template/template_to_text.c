/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes values as text, byte for byte as Python: str(), repr(), json.dumps(). Also the builder,
 * which records for every byte whether it came from a user.
 */
#include "template_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <utf8proc.h>

/* ---- the builder ---- */

static nib_status reserve(nib_render *r, nib_builder *b, size_t more)
{
    if (more <= b->capacity - b->size)
        return NIB_OK;
    const size_t want = b->size + more, capacity = want < 2 * b->capacity ? 2 * b->capacity : want;
    char *at = nib__run_alloc(r, capacity, 1);
    uint8_t *marks = b->marks == NULL ? NULL : nib__run_alloc(r, capacity, 1);
    if (at == NULL || (marks == NULL && b->marks != NULL))
        return NIB_NO_MEMORY;
    if (b->size != 0)
        memcpy(at, b->at, b->size);
    if (b->marks != NULL)
        memcpy(marks, b->marks, b->size);
    b->at = at;
    b->marks = marks;
    b->capacity = capacity;
    return NIB_OK;
}

/* Switches to one mark per byte. */
static nib_status split_marks(nib_render *r, nib_builder *b)
{
    uint8_t *marks = nib__run_alloc(r, b->capacity, 1);
    if (marks == NULL)
        return NIB_NO_MEMORY;
    memset(marks, b->user, b->size);
    b->marks = marks;
    return NIB_OK;
}

nib_status nib__put(nib_render *r, nib_builder *b, const char *at, size_t size, bool user)
{
    if (size == 0)
        return NIB_OK;
    NIB_TRY(nib__run_steps(r, size / 256));
    NIB_TRY(reserve(r, b, size));
    if (b->size == 0)
        b->user = user;
    if (b->marks == NULL && b->user != user)
        NIB_TRY(split_marks(r, b));
    memcpy(b->at + b->size, at, size);
    if (b->marks != NULL)
        memset(b->marks + b->size, user, size);
    b->size += size;
    return NIB_OK;
}

nib_status nib__put_text(nib_render *r, nib_builder *b, const char *text, bool user)
{
    return nib__put(r, b, text, strlen(text), user);
}

nib_status nib__put_part(nib_render *r, nib_builder *b, const nib_string *s, size_t from, size_t to)
{
    if (s->marks == NULL || from == to)
        return nib__put(r, b, s->at + from, to - from, s->user);
    const size_t before = b->size;
    NIB_TRY(reserve(r, b, to - from));
    if (b->marks == NULL)
        NIB_TRY(split_marks(r, b));
    NIB_TRY(nib__put(r, b, s->at + from, to - from, false));
    memcpy(b->marks + before, s->marks + from, to - from);
    return NIB_OK;
}

nib_status nib__put_string(nib_render *r, nib_builder *b, const nib_string *s)
{
    return nib__put_part(r, b, s, 0, s->size);
}

nib_status nib__finish_string(nib_render *r, const nib_builder *b, nib_value *out)
{
    nib_string *s = nib__run_alloc(r, 1, sizeof *s);
    if (s == NULL)
        return NIB_NO_MEMORY;
    *s = (nib_string){b->at == NULL ? "" : b->at, b->marks, b->size, NULL, b->user};
    *out = (nib_value){.kind = NIB_V_STRING, .as.string = s};
    return NIB_OK;
}

/* ---- numbers ---- */

/* Python's repr uses the fewest digits that read back equal (found by base/text.c), but its own
 * form: an exponent from 1e16 on and below 1e-4, and ".0" after whole numbers. */
void nib__real_text(char out[40], double value)
{
    char digits[40];
    int count = 0, point = 0, exponent = 0;
    bool past = false;
    if (isnan(value) || isinf(value)) {
        snprintf(out, 40, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    char written[32];
    nib__format_double_exact(written, fabs(value));
    for (const char *c = written; *c != 0; c++) {
        if (*c == '.') {
            past = true;
        } else if (*c == 'e') {
            exponent = (int)strtol(c + 1, NULL, 10);
            break;
        } else if (count > 0 || *c != '0') {
            digits[count++] = *c;
            point += !past;
        } else {
            point -= past;
        }
    }
    while (count > 1 && digits[count - 1] == '0')
        count--; /* `point` already counts them */
    if (count == 0) {
        digits[count++] = '0';
        point = 1;
        exponent = 0;
    }
    point += exponent; /* the number of digits before the decimal point */
    char *to = out;
    if (signbit(value))
        *to++ = '-';
    if (point > 16 || point < -3) {
        *to++ = digits[0];
        if (count > 1)
            *to++ = '.';
        for (int i = 1; i < count; i++)
            *to++ = digits[i];
        snprintf(to, 8, "e%c%02d", point < 1 ? '-' : '+', abs(point - 1) % 1000);
        return;
    }
    if (point <= 0)
        *to++ = '0';
    for (int i = 0; i < point; i++)
        *to++ = i < count ? digits[i] : '0';
    *to++ = '.';
    for (int i = point; i < 0; i++)
        *to++ = '0';
    for (int i = point < 0 ? 0 : point; i < count; i++)
        *to++ = digits[i];
    if (point >= count)
        *to++ = '0';
    *to = 0;
}

/* ---- str and repr ---- */

static nib_status put_point(nib_render *r, nib_builder *b, const char *format, uint32_t point,
                            bool user)
{
    char code[16];
    snprintf(code, sizeof code, format, (unsigned)point);
    return nib__put_text(r, b, code, user);
}

static bool is_printable(uint32_t point)
{
    if (point < 0x7f)
        return point >= 0x20;
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)point);
    return c != UTF8PROC_CATEGORY_CN && c != UTF8PROC_CATEGORY_CC && c != UTF8PROC_CATEGORY_CF &&
           c != UTF8PROC_CATEGORY_CS && c != UTF8PROC_CATEGORY_CO && c != UTF8PROC_CATEGORY_ZL &&
           c != UTF8PROC_CATEGORY_ZP && c != UTF8PROC_CATEGORY_ZS;
}

static bool mark_at(const nib_string *s, size_t i) { return s->marks ? s->marks[i] != 0 : s->user; }

static nib_status put_quoted(nib_render *r, nib_builder *b, const nib_string *s)
{
    static const char named[] = "\n\r\t\\", names[] = "nrt\\";
    const bool single = s->size != 0 && memchr(s->at, '\'', s->size) != NULL;
    const char quote = single && memchr(s->at, '"', s->size) == NULL ? '"' : '\'';
    const bool user = s->size != 0 && mark_at(s, 0);
    NIB_TRY(nib__put(r, b, &quote, 1, user));
    for (size_t i = 0; i < s->size;) {
        const char *next = s->at + i;
        const uint32_t point = nib__utf8_next(&next);
        const size_t end = (size_t)(next - s->at);
        const bool mark = mark_at(s, i);
        const char *name = point == 0 || point > 0x7f ? NULL : strchr(named, (int)point);
        if (name != NULL || point == (unsigned char)quote) {
            NIB_TRY(nib__put(r, b, "\\", 1, mark));
            NIB_TRY(nib__put(r, b, name != NULL ? &names[name - named] : &quote, 1, mark));
        } else if (is_printable(point)) {
            NIB_TRY(nib__put_part(r, b, s, i, end));
        } else {
            NIB_TRY(put_point(r, b,
                              point < 0x100     ? "\\x%02x"
                              : point < 0x10000 ? "\\u%04x"
                                                : "\\U%08x",
                              point, mark));
        }
        i = end;
    }
    return nib__put(r, b, &quote, 1, user);
}

static nib_status put_pairs(nib_render *r, nib_builder *b, const nib_dict *dict, bool user)
{
    NIB_TRY(nib__put_text(r, b, "{", user));
    for (size_t i = 0; i < dict->count; i++) {
        NIB_TRY(nib__put_text(r, b, i == 0 ? "" : ", ", user));
        NIB_TRY(nib__put_repr(r, b, dict->pairs[i].key));
        NIB_TRY(nib__put_text(r, b, ": ", user));
        NIB_TRY(nib__put_repr(r, b, dict->pairs[i].value));
    }
    return nib__put_text(r, b, "}", user);
}

static nib_status put_items(nib_render *r, nib_builder *b, nib_value v)
{
    const nib_items *items = v.as.items;
    const bool tuple = v.kind == NIB_V_TUPLE;
    if (v.kind >= NIB_V_KEYS && v.kind <= NIB_V_ITEMS) {
        NIB_TRY(nib__put_text(r, b, nib__kind_name(v), v.user));
        NIB_TRY(nib__put_text(r, b, "(", v.user));
    }
    NIB_TRY(nib__put_text(r, b, tuple ? "(" : "[", v.user));
    for (size_t i = 0; i < items->count; i++) {
        NIB_TRY(nib__put_text(r, b, i == 0 ? "" : ", ", v.user));
        NIB_TRY(nib__put_repr(r, b, items->at[i]));
    }
    NIB_TRY(nib__put_text(r, b, tuple && items->count == 1 ? "," : "", v.user));
    NIB_TRY(nib__put_text(r, b, tuple ? ")" : "]", v.user));
    return nib__put_text(r, b, v.kind >= NIB_V_KEYS && v.kind <= NIB_V_ITEMS ? ")" : "", v.user);
}

static nib_status put_parts(nib_render *r, nib_builder *b, nib_value v)
{
    NIB_TRY(nib__run_enter(r));
    if (v.kind == NIB_V_NAMESPACE)
        NIB_TRY(nib__put_text(r, b, "<Namespace ", v.user));
    NIB_TRY(nib__is_items(v) ? put_items(r, b, v) : put_pairs(r, b, v.as.dict, v.user));
    if (v.kind == NIB_V_NAMESPACE)
        NIB_TRY(nib__put_text(r, b, ">", v.user));
    r->depth--;
    return NIB_OK;
}

static nib_status put_range(nib_render *r, nib_builder *b, nib_value v)
{
    char text[100];
    const nib_items *i = v.as.items;
    snprintf(text, sizeof text, i->step == 1 ? "range(%lld, %lld)" : "range(%lld, %lld, %lld)",
             (long long)i->start, (long long)i->stop, (long long)i->step);
    return nib__put_text(r, b, text, v.user);
}

/* Objects that Python prints with an address, which is left out here. */
static nib_status put_object(nib_render *r, nib_builder *b, nib_value v)
{
    NIB_TRY(nib__put_text(r, b, "<", false));
    NIB_TRY(nib__put_text(r, b, nib__kind_name(v), false));
    if (v.kind == NIB_V_LOOP) {
        char text[60];
        NIB_TRY(nib__run_loop_fill(r, v.as.loop, SIZE_MAX));
        snprintf(text, sizeof text, " %zu/%zu", v.as.loop->at + 1, v.as.loop->seen.as.items->count);
        NIB_TRY(nib__put_text(r, b, text, false));
    } else if (v.kind == NIB_V_MACRO) {
        NIB_TRY(nib__put_text(r, b, v.as.macro->node->flag ? " anonymous" : " ", false));
        if (!v.as.macro->node->flag)
            NIB_TRY(put_quoted(r, b, v.as.macro->node->value.as.string));
    }
    return nib__put_text(r, b, ">", false);
}

nib_status nib__put_repr(nib_render *r, nib_builder *b, nib_value v)
{
    char number[40];
    NIB_TRY(nib__run_steps(r, 1));
    switch (v.kind) {
    case NIB_V_UNDEFINED: return nib__put_text(r, b, "Undefined", false);
    case NIB_V_NONE: return nib__put_text(r, b, "None", v.user);
    case NIB_V_BOOL: return nib__put_text(r, b, v.as.boolean ? "True" : "False", v.user);
    case NIB_V_INT:
        snprintf(number, sizeof number, "%lld", (long long)v.as.integer);
        return nib__put_text(r, b, number, v.user);
    case NIB_V_FLOAT: nib__real_text(number, v.as.real); return nib__put_text(r, b, number, v.user);
    case NIB_V_BIG: return nib__put_string(r, b, v.as.string);
    case NIB_V_STRING:
        if (v.markup)
            NIB_TRY(nib__put_text(r, b, "Markup(", false));
        NIB_TRY(put_quoted(r, b, v.as.string));
        return nib__put_text(r, b, v.markup ? ")" : "", false);
    case NIB_V_LIST:
    case NIB_V_TUPLE:
    case NIB_V_KEYS:
    case NIB_V_VALUES:
    case NIB_V_ITEMS:
    case NIB_V_DICT:
    case NIB_V_NAMESPACE: return put_parts(r, b, v);
    case NIB_V_RANGE: return put_range(r, b, v);
    default: return put_object(r, b, v);
    }
}

nib_status nib__put_value(nib_render *r, nib_builder *b, nib_value v)
{
    if (v.kind == NIB_V_STRING)
        return nib__put_string(r, b, v.as.string);
    return v.kind == NIB_V_UNDEFINED ? NIB_OK : nib__put_repr(r, b, v);
}

nib_status nib__to_string(nib_render *r, nib_value v, nib_value *out)
{
    nib_builder b = {.size = 0};
    if (v.kind == NIB_V_STRING) {
        *out = v;
        return NIB_OK;
    }
    NIB_TRY(nib__put_value(r, &b, v));
    return nib__finish_string(r, &b, out);
}

nib_status nib__put_escaped(nib_render *r, nib_builder *b, nib_value v)
{
    static const char special[] = "&<>'\"";
    static const char *const written[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    nib_value text;
    NIB_TRY(nib__to_string(r, v, &text));
    const nib_string *s = text.as.string;
    if (v.markup)
        return nib__put_string(r, b, s);
    size_t from = 0;
    for (size_t i = 0; i < s->size; i++) {
        const char *found = s->at[i] == 0 ? NULL : strchr(special, s->at[i]);
        if (found == NULL)
            continue;
        NIB_TRY(nib__put_part(r, b, s, from, i));
        NIB_TRY(nib__put_text(r, b, written[found - special], mark_at(s, i)));
        from = i + 1;
    }
    return nib__put_part(r, b, s, from, s->size);
}

/* ---- JSON, as Python's json.dumps writes it ---- */

static nib_status put_json_string(nib_render *r, nib_builder *b, const nib_string *s, bool ascii)
{
    static const char named[] = "\"\\\n\r\t\f\b", names[] = "\"\\nrtfb";
    const bool user = s->size != 0 && mark_at(s, 0);
    size_t from = 0;
    NIB_TRY(nib__put(r, b, "\"", 1, user));
    for (size_t i = 0; i < s->size;) {
        const char *next = s->at + i;
        const uint32_t point = nib__utf8_next(&next);
        const char *name = point == 0 || point > 0x7f ? NULL : strchr(named, (int)point);
        const bool code = point < 0x20 || (ascii && point >= 0x7f);
        const size_t end = (size_t)(next - s->at);
        if (name != NULL || code) {
            const bool mark = mark_at(s, i);
            NIB_TRY(nib__put_part(r, b, s, from, i));
            if (name != NULL) {
                const char escape[2] = {'\\', names[name - named]};
                NIB_TRY(nib__put(r, b, escape, 2, mark));
            } else if (point >= 0x10000) {
                NIB_TRY(put_point(r, b, "\\u%04x", 0xd7c0 + (point >> 10), mark));
                NIB_TRY(put_point(r, b, "\\u%04x", 0xdc00 | (point & 0x3ff), mark));
            } else {
                NIB_TRY(put_point(r, b, "\\u%04x", point, mark));
            }
            from = end;
        }
        i = end;
    }
    NIB_TRY(nib__put_part(r, b, s, from, s->size));
    return nib__put(r, b, "\"", 1, user);
}

static nib_status put_line(nib_render *r, nib_builder *b, const nib_dump *d, int level, bool user)
{
    if (!d->lines)
        return NIB_OK;
    NIB_TRY(nib__put_text(r, b, "\n", user));
    for (int i = 0; i < level; i++)
        NIB_TRY(nib__put_string(r, b, d->indent));
    return NIB_OK;
}

static nib_status put_json(nib_render *r, nib_builder *b, nib_value v, const nib_dump *d,
                           int level);

static nib_status put_json_number(nib_render *r, nib_builder *b, nib_value v)
{
    const bool inf = v.kind == NIB_V_FLOAT && isinf(v.as.real);
    if (inf || (v.kind == NIB_V_FLOAT && isnan(v.as.real)))
        return nib__put_text(r, b, !inf ? "NaN" : v.as.real < 0 ? "-Infinity" : "Infinity", v.user);
    if (v.kind == NIB_V_BOOL)
        return nib__put_text(r, b, v.as.boolean ? "true" : "false", v.user);
    return v.kind == NIB_V_NONE ? nib__put_text(r, b, "null", v.user) : nib__put_repr(r, b, v);
}

static nib_status put_json_key(nib_render *r, nib_builder *b, nib_value key, const nib_dump *d)
{
    if (key.kind == NIB_V_STRING)
        return put_json_string(r, b, key.as.string, d->ascii);
    if (key.kind < NIB_V_NONE || key.kind > NIB_V_FLOAT)
        return nib__run_fail(r, NIB_BAD_INPUT, "tojson: a %s cannot be a key", nib__kind_name(key));
    NIB_TRY(nib__put_text(r, b, "\"", key.user));
    NIB_TRY(put_json_number(r, b, key));
    return nib__put_text(r, b, "\"", key.user);
}

static nib_status put_json_object(nib_render *r, nib_builder *b, nib_value v, const nib_dump *d,
                                  int level)
{
    nib_pair *pairs = v.as.dict->pairs;
    const size_t count = v.as.dict->count;
    if (d->sorted) {
        pairs = nib__run_alloc(r, count == 0 ? 1 : count, sizeof *pairs);
        if (pairs == NULL)
            return NIB_NO_MEMORY;
        memcpy(pairs, v.as.dict->pairs, count * sizeof *pairs);
        NIB_TRY(nib__sort_pairs(r, pairs, count, false));
    }
    NIB_TRY(nib__put_text(r, b, "{", v.user));
    for (size_t i = 0; i < count; i++) {
        if (i != 0)
            NIB_TRY(nib__put(r, b, d->item->at, d->item->size, v.user));
        NIB_TRY(put_line(r, b, d, level + 1, v.user));
        NIB_TRY(put_json_key(r, b, pairs[i].key, d));
        NIB_TRY(nib__put(r, b, d->key->at, d->key->size, v.user));
        NIB_TRY(put_json(r, b, pairs[i].value, d, level + 1));
    }
    if (count != 0)
        NIB_TRY(put_line(r, b, d, level, v.user));
    return nib__put_text(r, b, "}", v.user);
}

static nib_status put_json_array(nib_render *r, nib_builder *b, nib_value v, const nib_dump *d,
                                 int level)
{
    const nib_items *items = v.as.items;
    NIB_TRY(nib__put_text(r, b, "[", v.user));
    for (size_t i = 0; i < items->count; i++) {
        if (i != 0)
            NIB_TRY(nib__put(r, b, d->item->at, d->item->size, v.user));
        NIB_TRY(put_line(r, b, d, level + 1, v.user));
        NIB_TRY(put_json(r, b, items->at[i], d, level + 1));
    }
    if (items->count != 0)
        NIB_TRY(put_line(r, b, d, level, v.user));
    return nib__put_text(r, b, "]", v.user);
}

static nib_status put_json(nib_render *r, nib_builder *b, nib_value v, const nib_dump *d, int level)
{
    NIB_TRY(nib__run_steps(r, 1));
    if (v.kind == NIB_V_STRING)
        return put_json_string(r, b, v.as.string, d->ascii);
    if (v.kind >= NIB_V_NONE && v.kind <= NIB_V_FLOAT)
        return put_json_number(r, b, v);
    if (v.kind != NIB_V_DICT && v.kind != NIB_V_LIST && v.kind != NIB_V_TUPLE)
        return nib__run_fail(r, NIB_BAD_INPUT, "tojson: JSON cannot express a value of type %s",
                             v.kind == NIB_V_UNDEFINED ? "undefined" : nib__kind_name(v));
    NIB_TRY(nib__run_enter(r));
    NIB_TRY(v.kind == NIB_V_DICT ? put_json_object(r, b, v, d, level)
                                 : put_json_array(r, b, v, d, level));
    r->depth--;
    return NIB_OK;
}

nib_status nib__put_json(nib_render *r, nib_builder *b, nib_value v, const nib_dump *dump)
{
    return put_json(r, b, v, dump, 0);
}
