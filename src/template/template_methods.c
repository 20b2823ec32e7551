/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods of Python's str, list, tuple and dict that do not mutate their value, and those of a
 * loop. Jinja's sandbox forbids the mutating ones, which `forbidden` lists.
 */
#include "template_parts.h"

#include <utf8proc.h>

/* ---- arguments ---- */

static nib_status require_string(nib_render *r, const char *what, nib_value v,
                                 const nib_string **out)
{
    *out = v.as.string;
    return v.kind == NIB_V_STRING
               ? NIB_OK
               : nib__run_type_error(r, what, v, (nib_value){.kind = NIB_V_UNDEFINED});
}

static nib_status get_integer_or(nib_render *r, const char *what, nib_value v, int64_t fallback,
                                 int64_t *out)
{
    *out = fallback;
    if (!nib__is_given(&v))
        return NIB_OK;
    return nib__integer(v, out)
               ? NIB_OK
               : nib__run_type_error(r, what, v, (nib_value){.kind = NIB_V_UNDEFINED});
}

/* ---- str: stripping, cases ---- */

static nib_status strip(nib_render *r, const char *name, nib_value self, const nib_value *bound,
                        bool left, bool right, nib_value *out)
{
    const nib_string *chars = NULL;
    if (nib__is_given(&bound[0]) && bound[0].kind != NIB_V_NONE)
        NIB_TRY(require_string(r, name, bound[0], &chars));
    return nib__strip(r, out, self, chars, left, right);
}

static NIB_BUILTIN(str_strip)
{
    return (void)args, strip(r, "strip", self, bound, true, true, out);
}
static NIB_BUILTIN(str_lstrip)
{
    return (void)args, strip(r, "lstrip", self, bound, true, false, out);
}
static NIB_BUILTIN(str_rstrip)
{
    return (void)args, strip(r, "rstrip", self, bound, false, true, out);
}

static nib_status change_case(nib_render *r, nib_value self, nib_case as, nib_value *out)
{
    nib_builder b = {.size = 0};
    NIB_TRY(nib__put_case(r, &b, self.as.string, as));
    NIB_TRY(nib__finish_string(r, &b, out));
    out->markup = self.markup;
    return NIB_OK;
}

static NIB_BUILTIN(str_upper)
{
    return (void)args, (void)bound, change_case(r, self, NIB_UPPER, out);
}
static NIB_BUILTIN(str_lower)
{
    return (void)args, (void)bound, change_case(r, self, NIB_LOWER, out);
}
static NIB_BUILTIN(str_title)
{
    return (void)args, (void)bound, change_case(r, self, NIB_STR_TITLE, out);
}
static NIB_BUILTIN(str_capitalize)
{
    return (void)args, (void)bound, change_case(r, self, NIB_CAPITALIZE, out);
}

/* ---- str: prefixes, suffixes, searching ---- */

static bool starts_with(const nib_string *s, const nib_string *affix)
{
    return affix->size <= s->size && memcmp(s->at, affix->at, affix->size) == 0;
}

static bool ends_with(const nib_string *s, const nib_string *affix)
{
    return affix->size <= s->size &&
           memcmp(s->at + s->size - affix->size, affix->at, affix->size) == 0;
}

/* affix: a string, or a tuple of strings. */
static nib_status any_matches(nib_render *r, const char *name, nib_value self, nib_value affix,
                              bool (*matches)(const nib_string *s, const nib_string *affix),
                              nib_value *out)
{
    const nib_string *text;
    const bool several = affix.kind == NIB_V_TUPLE;
    const size_t count = several ? affix.as.items->count : 1;
    *out = nib__v_bool(false);
    for (size_t i = 0; i < count && !out->as.boolean; i++) {
        NIB_TRY(require_string(r, name, several ? affix.as.items->at[i] : affix, &text));
        NIB_TRY(nib__run_steps(r, 1 + text->size / 256));
        *out = nib__v_bool(matches(self.as.string, text));
    }
    return NIB_OK;
}

static NIB_BUILTIN(str_startswith)
{
    return (void)args, any_matches(r, "startswith", self, bound[0], starts_with, out);
}
static NIB_BUILTIN(str_endswith)
{
    return (void)args, any_matches(r, "endswith", self, bound[0], ends_with, out);
}

static NIB_BUILTIN(str_removeprefix)
{
    const nib_string *affix;
    (void)args;
    NIB_TRY(require_string(r, "removeprefix", bound[0], &affix));
    return nib__slice_string(r, out, self, starts_with(self.as.string, affix) ? affix->size : 0,
                             self.as.string->size);
}

static NIB_BUILTIN(str_removesuffix)
{
    const nib_string *affix, *s = self.as.string;
    (void)args;
    NIB_TRY(require_string(r, "removesuffix", bound[0], &affix));
    return nib__slice_string(r, out, self, 0, s->size - (ends_with(s, affix) ? affix->size : 0));
}

/* The first match at or after `from`; SIZE_MAX: none. */
static size_t find_in(const nib_string *s, size_t from, const nib_string *what)
{
    const char *at = nib__find_bytes(s->at + from, s->size - from, what->at, what->size);
    return what->size == 0 ? from : at == NULL ? SIZE_MAX : (size_t)(at - s->at);
}

/* The last match that ends at or before `to`. Counts the steps of comparing; the caller counts the
 * scan over the bytes. */
static nib_status find_last(nib_render *r, const nib_string *s, size_t to, const nib_string *what,
                            size_t *out)
{
    *out = SIZE_MAX;
    if (what->size > to)
        return NIB_OK;
    for (size_t at = to - what->size;; at--) {
        if (what->size == 0 || s->at[at] == what->at[0]) {
            NIB_TRY(nib__run_steps(r, 1 + what->size / 64));
            if (memcmp(s->at + at, what->at, what->size) == 0) {
                *out = at;
                return NIB_OK;
            }
        }
        if (at == 0)
            return NIB_OK;
    }
}

static nib_status find_first_or_last(nib_render *r, const nib_string *s, const nib_string *what,
                                     bool last, size_t *out)
{
    NIB_TRY(nib__run_steps(r, s->size / 16));
    if (last)
        return find_last(r, s, s->size, what, out);
    *out = find_in(s, 0, what);
    return NIB_OK;
}

static nib_status find_index(nib_render *r, const char *name, nib_value self,
                             const nib_value *bound, bool last, bool required, nib_value *out)
{
    char shown[80];
    const nib_string *what, *s = self.as.string;
    NIB_TRY(require_string(r, name, bound[0], &what));
    if (nib__is_given(&bound[1]))
        return nib__run_fail(r, NIB_UNSUPPORTED,
                             "%s with a start or end is not supported; slice the string first",
                             name);
    size_t at;
    NIB_TRY(find_first_or_last(r, s, what, last, &at));
    if (at == SIZE_MAX && required)
        return nib__run_fail(r, NIB_BAD_INPUT, "%s: the string does not contain \"%s\"", name,
                             nib__escape_name(shown, sizeof shown, what->at, what->size));
    *out = nib__v_int(at == SIZE_MAX ? -1 : (int64_t)nib__count_points(s->at, at));
    return NIB_OK;
}

static NIB_BUILTIN(str_find)
{
    return (void)args, find_index(r, "find", self, bound, false, false, out);
}
static NIB_BUILTIN(str_rfind)
{
    return (void)args, find_index(r, "rfind", self, bound, true, false, out);
}
static NIB_BUILTIN(str_index)
{
    return (void)args, find_index(r, "index", self, bound, false, true, out);
}
static NIB_BUILTIN(str_rindex)
{
    return (void)args, find_index(r, "rindex", self, bound, true, true, out);
}

static NIB_BUILTIN(str_count)
{
    const nib_string *what, *s = self.as.string;
    int64_t count = 0;
    (void)args;
    NIB_TRY(require_string(r, "count", bound[0], &what));
    NIB_TRY(nib__run_steps(r, s->size / 16));
    if (what->size == 0)
        count = (int64_t)nib__count_points(s->at, s->size) + 1;
    for (size_t at = 0; what->size != 0 && (at = find_in(s, at, what)) != SIZE_MAX;) {
        at += what->size;
        count++;
    }
    *out = nib__v_int(count);
    return NIB_OK;
}

static NIB_BUILTIN(str_replace)
{
    const nib_string *from, *to;
    int64_t max_count;
    (void)args;
    NIB_TRY(require_string(r, "replace", bound[0], &from));
    NIB_TRY(require_string(r, "replace", bound[1], &to));
    NIB_TRY(get_integer_or(r, "replace", bound[2], -1, &max_count));
    if (self.markup) {
        nib_builder escaped[2] = {{.size = 0}, {.size = 0}};
        nib_value first, second;
        NIB_TRY(nib__put_escaped(r, &escaped[0], bound[0]));
        NIB_TRY(nib__put_escaped(r, &escaped[1], bound[1]));
        NIB_TRY(nib__finish_string(r, &escaped[0], &first));
        NIB_TRY(nib__finish_string(r, &escaped[1], &second));
        return nib__replace(r, out, self, first.as.string, second.as.string, max_count);
    }
    return nib__replace(r, out, self, from, to, max_count);
}

/* ---- str: splitting and joining ---- */

static nib_status push_part(nib_render *r, nib_value *list, nib_value of, size_t from, size_t to)
{
    nib_value part;
    NIB_TRY(nib__slice_string(r, &part, of, from, to));
    return nib__items_push(r, list, part);
}

/* The size of the white space character at `at`; 0 if it is another character. */
static size_t space_size(const nib_string *s, size_t at)
{
    const char *c = s->at + at;
    const bool space = at < s->size && nib__template_space(nib__utf8_next(&c));
    return space ? (size_t)(c - s->at) - at : 0;
}

static nib_status split_words(nib_render *r, nib_value self, int64_t max_count, nib_value *out)
{
    const nib_string *s = self.as.string;
    size_t at = 0, size;
    for (;;) {
        while ((size = space_size(s, at)) != 0)
            at += size;
        if (at == s->size)
            return NIB_OK;
        if (max_count >= 0 && (int64_t)out->as.items->count == max_count) {
            nib_value rest;
            NIB_TRY(nib__slice_string(r, &rest, self, at, s->size));
            return nib__items_push(r, out, rest);
        }
        const size_t from = at;
        while (at < s->size && space_size(s, at) == 0)
            at += (size_t)nib__utf8_length(s->at + at, s->size - at);
        NIB_TRY(push_part(r, out, self, from, at));
    }
}

static NIB_BUILTIN(str_split)
{
    const nib_string *by, *s = self.as.string;
    int64_t max_count;
    (void)args;
    NIB_TRY(nib__v_items(r, out, NIB_V_LIST, 4));
    NIB_TRY(nib__run_steps(r, s->size / 16));
    NIB_TRY(get_integer_or(r, "split", bound[1], -1, &max_count));
    if (!nib__is_given(&bound[0]) || bound[0].kind == NIB_V_NONE)
        return split_words(r, self, max_count, out);
    NIB_TRY(require_string(r, "split", bound[0], &by));
    if (by->size == 0)
        return nib__run_fail(r, NIB_BAD_INPUT, "split: the separator is empty");
    size_t from = 0;
    while (max_count < 0 || (int64_t)out->as.items->count < max_count) {
        const size_t at = find_in(s, from, by);
        if (at == SIZE_MAX)
            break;
        NIB_TRY(push_part(r, out, self, from, at));
        from = at + by->size;
    }
    return push_part(r, out, self, from, s->size);
}

/* Splits from the end; the parts are in reverse order. */
static nib_status split_from_end(nib_render *r, nib_value self, const nib_string *by,
                                 int64_t max_count, nib_value *parts)
{
    const nib_string *s = self.as.string;
    size_t to = s->size;
    while (max_count < 0 || (int64_t)parts->as.items->count < max_count) {
        size_t from = to, at;
        if (by != NULL) {
            NIB_TRY(find_last(r, s, to, by, &at));
            if (at == SIZE_MAX)
                break;
            NIB_TRY(push_part(r, parts, self, at + by->size, to));
            to = at;
            continue;
        }
        nib_value rest;
        NIB_TRY(nib__slice_string(r, &rest, self, 0, to));
        NIB_TRY(nib__strip(r, &rest, rest, NULL, false, true));
        to = rest.as.string->size;
        if (to == 0)
            return NIB_OK;
        for (from = at = to; at > 0; from = at) {
            at--;
            while (((unsigned char)s->at[at] & 0xc0) == 0x80)
                at--;
            if (space_size(s, at) != 0)
                break;
        }
        if (at == 0 && space_size(s, 0) == 0)
            from = 0;
        NIB_TRY(push_part(r, parts, self, from, to));
        to = from;
    }
    nib_value rest;
    NIB_TRY(nib__slice_string(r, &rest, self, 0, to));
    if (by == NULL)
        NIB_TRY(nib__strip(r, &rest, rest, NULL, false, true));
    return by == NULL && rest.as.string->size == 0 ? NIB_OK : nib__items_push(r, parts, rest);
}

static NIB_BUILTIN(str_rsplit)
{
    const nib_string *by = NULL;
    nib_value parts;
    int64_t max_count;
    (void)args;
    NIB_TRY(nib__v_items(r, &parts, NIB_V_LIST, 4));
    NIB_TRY(nib__run_steps(r, self.as.string->size / 16));
    NIB_TRY(get_integer_or(r, "rsplit", bound[1], -1, &max_count));
    if (nib__is_given(&bound[0]) && bound[0].kind != NIB_V_NONE)
        NIB_TRY(require_string(r, "rsplit", bound[0], &by));
    if (by != NULL && by->size == 0)
        return nib__run_fail(r, NIB_BAD_INPUT, "rsplit: the separator is empty");
    NIB_TRY(split_from_end(r, self, by, max_count, &parts));
    NIB_TRY(nib__v_items(r, out, NIB_V_LIST, parts.as.items->count));
    for (size_t i = parts.as.items->count; i-- > 0;)
        NIB_TRY(nib__items_push(r, out, parts.as.items->at[i]));
    return NIB_OK;
}

/* The size of the line end at `at`; 0: none. */
static size_t line_end_size(const nib_string *s, size_t at)
{
    const char *c = s->at + at;
    const uint32_t point = nib__utf8_next(&c);
    if (point == '\r' && at + 1 < s->size && s->at[at + 1] == '\n')
        return 2;
    const bool ends_line = (point >= 10 && point <= 13) || (point >= 0x1c && point <= 0x1e) ||
                           point == 0x85 || point == 0x2028 || point == 0x2029;
    return ends_line ? (size_t)(c - s->at) - at : 0;
}

nib_status nib__split_lines(nib_render *r, nib_value self, bool keep_ends, bool trailing,
                            const nib_value **out, size_t *count)
{
    const nib_string *s = self.as.string;
    nib_value list;
    size_t from = 0;
    NIB_TRY(nib__v_items(r, &list, NIB_V_LIST, 4));
    NIB_TRY(nib__run_steps(r, s->size / 16));
    for (size_t at = 0; at < s->size;) {
        const size_t size = line_end_size(s, at);
        if (size == 0) {
            at += (size_t)nib__utf8_length(s->at + at, s->size - at);
            continue;
        }
        NIB_TRY(push_part(r, &list, self, from, keep_ends ? at + size : at));
        from = at += size;
    }
    const bool joins = s->size > 0 && s->at[s->size - 1] == '\r'; /* with a \n that follows */
    if (from < s->size || (trailing && !joins))
        NIB_TRY(push_part(r, &list, self, from, s->size));
    *out = list.as.items->at;
    *count = list.as.items->count;
    return NIB_OK;
}

static NIB_BUILTIN(str_splitlines)
{
    const nib_value *lines;
    size_t count;
    (void)args;
    NIB_TRY(nib__split_lines(r, self, nib__truth(bound[0]), false, &lines, &count));
    NIB_TRY(nib__v_items(r, out, NIB_V_LIST, count));
    for (size_t i = 0; i < count; i++)
        NIB_TRY(nib__items_push(r, out, lines[i]));
    return NIB_OK;
}

static nib_status partition(nib_render *r, const char *name, nib_value self, nib_value by,
                            bool last, nib_value *out)
{
    const nib_string *text, *s = self.as.string;
    NIB_TRY(require_string(r, name, by, &text));
    if (text->size == 0)
        return nib__run_fail(r, NIB_BAD_INPUT, "%s: the separator is empty", name);
    size_t at;
    NIB_TRY(find_first_or_last(r, s, text, last, &at));
    const size_t found = at == SIZE_MAX ? 0 : text->size;
    const size_t from = at != SIZE_MAX ? at : last ? 0 : s->size;
    NIB_TRY(nib__v_items(r, out, NIB_V_TUPLE, 3));
    NIB_TRY(push_part(r, out, self, 0, from));
    NIB_TRY(push_part(r, out, self, from, from + found));
    return push_part(r, out, self, from + found, s->size);
}

static NIB_BUILTIN(str_partition)
{
    return (void)args, partition(r, "partition", self, bound[0], false, out);
}
static NIB_BUILTIN(str_rpartition)
{
    return (void)args, partition(r, "rpartition", self, bound[0], true, out);
}

static NIB_BUILTIN(str_join)
{
    const nib_value *items;
    nib_builder b = {.size = 0};
    size_t count;
    (void)args;
    NIB_TRY(nib__iterate(r, bound[0], &items, &count));
    for (size_t i = 0; i < count; i++) {
        if (items[i].kind != NIB_V_STRING)
            return nib__run_fail(r, NIB_BAD_INPUT, "join: element %zu is a %s, not a str", i,
                                 nib__kind_name(items[i]));
        NIB_TRY(nib__run_steps(r, 1));
        if (i != 0)
            NIB_TRY(nib__put_string(r, &b, self.as.string));
        NIB_TRY(nib__put_string(r, &b, items[i].as.string));
    }
    return nib__finish_string(r, &b, out);
}

/* ---- str: character classes and padding ---- */

static bool is_alpha(uint32_t point)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)point);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

static bool is_alnum(uint32_t point)
{
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)point);
    return is_alpha(point) || (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

static nib_status all_characters(nib_render *r, nib_value self, bool (*matches)(uint32_t point),
                                 nib_value *out)
{
    const nib_string *s = self.as.string;
    bool all = s->size != 0;
    NIB_TRY(nib__run_steps(r, s->size / 16));
    for (const char *c = s->at; all && c < s->at + s->size;)
        all = matches(nib__utf8_next(&c));
    *out = nib__v_bool(all);
    return NIB_OK;
}

static NIB_BUILTIN(str_isalpha)
{
    return (void)args, (void)bound, all_characters(r, self, is_alpha, out);
}
static NIB_BUILTIN(str_isalnum)
{
    return (void)args, (void)bound, all_characters(r, self, is_alnum, out);
}
static NIB_BUILTIN(str_isdigit)
{
    return (void)args, (void)bound, all_characters(r, self, nib__point_is_digit, out);
}

static NIB_BUILTIN(str_isspace)
{
    const nib_string *s = self.as.string;
    size_t at = 0, size;
    (void)args, (void)bound;
    NIB_TRY(nib__run_steps(r, s->size / 16));
    while (at < s->size && (size = space_size(s, at)) != 0)
        at += size;
    *out = nib__v_bool(s->size != 0 && at == s->size);
    return NIB_OK;
}

static nib_status pad(nib_render *r, const char *name, nib_value self, const nib_value *bound,
                      bool left, nib_value *out)
{
    nib_builder b = {.size = 0};
    const nib_string *fill = NULL, *s = self.as.string;
    int64_t width;
    NIB_TRY(get_integer_or(r, name, bound[0], 0, &width));
    if (nib__is_given(&bound[1]))
        NIB_TRY(require_string(r, name, bound[1], &fill));
    if (fill != NULL && nib__count_points(fill->at, fill->size) != 1)
        return nib__run_fail(r, NIB_BAD_INPUT, "%s: fillchar must be one character", name);
    if (!left)
        NIB_TRY(nib__put_string(r, &b, s));
    for (int64_t i = (int64_t)nib__count_points(s->at, s->size); i < width; i++) {
        NIB_TRY(nib__run_steps(r, 1));
        NIB_TRY(fill != NULL ? nib__put_string(r, &b, fill) : nib__put_text(r, &b, " ", false));
    }
    if (left)
        NIB_TRY(nib__put_string(r, &b, s));
    return nib__finish_string(r, &b, out);
}

static NIB_BUILTIN(str_ljust) { return (void)args, pad(r, "ljust", self, bound, false, out); }
static NIB_BUILTIN(str_rjust) { return (void)args, pad(r, "rjust", self, bound, true, out); }

/* ---- list and tuple ---- */

static NIB_BUILTIN(list_count)
{
    int64_t count = 0;
    (void)args;
    for (size_t i = 0; i < self.as.items->count; i++) {
        bool equal;
        NIB_TRY(nib__equal(r, self.as.items->at[i], bound[0], &equal));
        count += equal;
    }
    *out = nib__v_int(count);
    return NIB_OK;
}

static NIB_BUILTIN(list_index)
{
    (void)args;
    for (size_t i = 0; i < self.as.items->count; i++) {
        bool equal;
        NIB_TRY(nib__equal(r, self.as.items->at[i], bound[0], &equal));
        *out = nib__v_int((int64_t)i);
        if (equal)
            return NIB_OK;
    }
    return nib__run_fail(r, NIB_BAD_INPUT, "index: the %s does not contain this %s",
                         nib__kind_name(self), nib__kind_name(bound[0]));
}

/* Values are immutable, so a value is its own copy. */
static NIB_BUILTIN(any_copy)
{
    (void)r, (void)args, (void)bound;
    *out = self;
    return NIB_OK;
}

/* ---- dict ---- */

static NIB_BUILTIN(dict_get)
{
    nib_value *found;
    (void)args;
    NIB_TRY(nib__hashable(r, bound[0]));
    NIB_TRY(nib__dict_get(r, self.as.dict, bound[0], &found));
    *out = found != NULL ? *found : nib__is_given(&bound[1]) ? bound[1] : nib__v_none();
    return NIB_OK;
}

static NIB_BUILTIN(dict_items)
{
    return (void)args, (void)bound, nib__dict_view(r, self, NIB_V_ITEMS, out);
}
static NIB_BUILTIN(dict_keys)
{
    return (void)args, (void)bound, nib__dict_view(r, self, NIB_V_KEYS, out);
}
static NIB_BUILTIN(dict_values)
{
    return (void)args, (void)bound, nib__dict_view(r, self, NIB_V_VALUES, out);
}

/* ---- loop ---- */

static NIB_BUILTIN(loop_cycle)
{
    (void)bound;
    if (args->count == 0)
        return nib__run_fail(r, NIB_BAD_INPUT, "cycle needs at least one value");
    *out = args->at[self.as.loop->at % args->count];
    return NIB_OK;
}

static NIB_BUILTIN(loop_changed)
{
    nib_value now;
    bool equal = false;
    (void)bound;
    NIB_TRY(nib__v_items(r, &now, NIB_V_TUPLE, args->count));
    for (size_t i = 0; i < args->count; i++)
        NIB_TRY(nib__items_push(r, &now, args->at[i]));
    if (self.as.loop->changed.kind == NIB_V_TUPLE)
        NIB_TRY(nib__equal(r, self.as.loop->changed, now, &equal));
    self.as.loop->changed = now;
    *out = nib__v_bool(!equal);
    return NIB_OK;
}

/* ---- the table ---- */

enum {
    STR = 1 << NIB_V_STRING,
    LISTS = 1 << NIB_V_LIST | 1 << NIB_V_TUPLE,
    DICT = 1 << NIB_V_DICT,
    LOOP = 1 << NIB_V_LOOP,
};

/* "0,1": positional parameters only, as no keyword argument can be named by a number. */
static const nib_method_row methods[] = {
    {STR, {"capitalize", str_capitalize, "", 0, 0}},
    {STR, {"count", str_count, "0", 1, 0}},
    {STR, {"endswith", str_endswith, "0", 1, 0}},
    {STR, {"find", str_find, "0,1,2", 1, 0}},
    {STR, {"format", nib__str_format, NULL, 0, 0}},
    {STR, {"index", str_index, "0,1,2", 1, 0}},
    {STR, {"isalnum", str_isalnum, "", 0, 0}},
    {STR, {"isalpha", str_isalpha, "", 0, 0}},
    {STR, {"isdigit", str_isdigit, "", 0, 0}},
    {STR, {"islower", nib__is_lower, "", 0, 0}},
    {STR, {"isspace", str_isspace, "", 0, 0}},
    {STR, {"isupper", nib__is_upper, "", 0, 0}},
    {STR, {"join", str_join, "0", 1, 0}},
    {STR, {"ljust", str_ljust, "0,1", 1, 0}},
    {STR, {"lower", str_lower, "", 0, 0}},
    {STR, {"lstrip", str_lstrip, "0", 0, 0}},
    {STR, {"partition", str_partition, "0", 1, 0}},
    {STR, {"removeprefix", str_removeprefix, "0", 1, 0}},
    {STR, {"removesuffix", str_removesuffix, "0", 1, 0}},
    {STR, {"replace", str_replace, "0,1,2", 2, 0}},
    {STR, {"rfind", str_rfind, "0,1,2", 1, 0}},
    {STR, {"rindex", str_rindex, "0,1,2", 1, 0}},
    {STR, {"rjust", str_rjust, "0,1", 1, 0}},
    {STR, {"rpartition", str_rpartition, "0", 1, 0}},
    {STR, {"rsplit", str_rsplit, "sep,maxsplit", 0, 0}},
    {STR, {"rstrip", str_rstrip, "0", 0, 0}},
    {STR, {"split", str_split, "sep,maxsplit", 0, 0}},
    {STR, {"splitlines", str_splitlines, "keepends", 0, 0}},
    {STR, {"startswith", str_startswith, "0", 1, 0}},
    {STR, {"strip", str_strip, "0", 0, 0}},
    {STR, {"title", str_title, "", 0, 0}},
    {STR, {"upper", str_upper, "", 0, 0}},
    {LISTS, {"count", list_count, "0", 1, 0}},
    {LISTS, {"index", list_index, "0", 1, 0}},
    {1 << NIB_V_LIST, {"copy", any_copy, "", 0, 0}},
    {DICT, {"copy", any_copy, "", 0, 0}},
    {DICT, {"get", dict_get, "0,1", 1, 0}},
    {DICT, {"items", dict_items, "", 0, 0}},
    {DICT, {"keys", dict_keys, "", 0, 0}},
    {DICT, {"values", dict_values, "", 0, 0}},
    {LOOP, {"cycle", loop_cycle, NULL, 0, 0}},
    {LOOP, {"changed", loop_changed, NULL, 0, 0}},
};

static const struct {
    unsigned kinds;
    const char *name;
} forbidden[] = {
    {1 << NIB_V_LIST, "append"},
    {1 << NIB_V_LIST, "clear"},
    {1 << NIB_V_LIST, "extend"},
    {1 << NIB_V_LIST, "insert"},
    {1 << NIB_V_LIST, "pop"},
    {1 << NIB_V_LIST, "remove"},
    {1 << NIB_V_LIST, "reverse"},
    {1 << NIB_V_LIST, "sort"},
    {DICT, "clear"},
    {DICT, "pop"},
    {DICT, "popitem"},
    {DICT, "setdefault"},
    {DICT, "update"},
};

static bool is_name(const nib_string *name, const char *text)
{
    return name->size == strlen(text) && memcmp(name->at, text, name->size) == 0;
}

const nib_method_row *nib__method_find(nib_value_kind kind, const nib_string *name, bool *unsafe)
{
    *unsafe = false;
    for (size_t i = 0; i < COUNT(methods); i++) {
        if ((methods[i].kinds >> kind & 1) && is_name(name, methods[i].call.name))
            return &methods[i];
    }
    for (size_t i = 0; i < COUNT(forbidden); i++)
        *unsafe |= (forbidden[i].kinds >> kind & 1) && is_name(name, forbidden[i].name);
    return NULL;
}
