/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON writer: commas, line breaks, escapes. Owns no memory; fails as its nib_text does.
 */
#include "json.h"

#include <math.h>

void nib__jsonw_init(nib_jsonw *w, nib_text *text, int indent)
{
    *w = (nib_jsonw){.text = text, .indent = indent};
}

static void new_line(nib_jsonw *w)
{
    if (w->indent <= 0)
        return;
    nib__text_str(w->text, "\n");
    for (int i = 0; i < w->depth * w->indent; i++)
        nib__text_put(w->text, " ", 1);
}

/* Writes what precedes a value or key: nothing after a key, else a comma if another came before. */
static void begin(nib_jsonw *w)
{
    if (w->after_key) {
        w->after_key = false;
        return;
    }
    if (w->need_comma)
        nib__text_str(w->text, w->indent > 0 ? "," : ", ");
    if (w->depth > 0)
        new_line(w);
}

static void open_with(nib_jsonw *w, const char *bracket)
{
    begin(w);
    nib__text_str(w->text, bracket);
    w->depth++;
    w->need_comma = false;
}

static void close_with(nib_jsonw *w, const char *bracket)
{
    w->depth--;
    if (w->need_comma) /* an empty container stays on its line */
        new_line(w);
    nib__text_str(w->text, bracket);
    w->need_comma = true;
}

void nib__jsonw_object(nib_jsonw *w) { open_with(w, "{"); }

void nib__jsonw_object_end(nib_jsonw *w) { close_with(w, "}"); }

void nib__jsonw_array(nib_jsonw *w) { open_with(w, "["); }

void nib__jsonw_array_end(nib_jsonw *w) { close_with(w, "]"); }

/* The number of bytes from s on that need no escape. */
static size_t plain_run(const char *s, size_t size)
{
    size_t n = 0;
    while (n < size) {
        const unsigned char c = (unsigned char)s[n];
        if (c < 0x20 || c == '"' || c == '\\' || c == 0x7f)
            break;
        const int length = nib__utf8_length(s + n, size - n);
        if (length == 0)
            break;
        n += (size_t)length;
    }
    return n;
}

static void put_escaped(nib_text *text, unsigned char c)
{
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt", hex[] = "0123456789abcdef";
    const char *found = c == 0 ? NULL : strchr(from, c);
    if (c >= 0x80) {
        nib__text_str(text, "\xef\xbf\xbd"); /* U+FFFD for a byte that is not UTF-8 */
    } else if (found != NULL) {
        nib__text_put(text, (char[]){'\\', to[found - from]}, 2);
    } else {
        nib__text_put(text, (char[]){'\\', 'u', '0', '0', hex[c >> 4], hex[c & 15]}, 6);
    }
}

static void put_string(nib_text *text, const char *string, size_t size)
{
    nib__text_put(text, "\"", 1);
    for (size_t i = 0; i < size;) {
        const size_t run = plain_run(string + i, size - i);
        nib__text_put(text, string + i, run);
        i += run;
        if (i < size)
            put_escaped(text, (unsigned char)string[i++]);
    }
    nib__text_put(text, "\"", 1);
}

void nib__jsonw_key(nib_jsonw *w, const char *key) { nib__jsonw_key_n(w, key, strlen(key)); }

void nib__jsonw_key_n(nib_jsonw *w, const char *key, size_t size)
{
    begin(w);
    put_string(w->text, key, size);
    nib__text_str(w->text, ": ");
    w->need_comma = true;
    w->after_key = true;
}

void nib__jsonw_string(nib_jsonw *w, const char *string)
{
    nib__jsonw_string_n(w, string, strlen(string));
}

void nib__jsonw_string_n(nib_jsonw *w, const char *string, size_t size)
{
    begin(w);
    put_string(w->text, string, size);
    w->need_comma = true;
}

void nib__jsonw_int(nib_jsonw *w, int64_t value)
{
    begin(w);
    nib__text_format(w->text, "%lld", (long long)value);
    w->need_comma = true;
}

void nib__jsonw_double(nib_jsonw *w, double value)
{
    if (!isfinite(value)) {
        nib__jsonw_null(w);
        return;
    }
    begin(w);
    nib__text_double_exact(w->text, value);
    w->need_comma = true;
}

void nib__jsonw_pair_float(nib_jsonw *w, const char *key, double value)
{
    char number[32];
    nib__jsonw_key(w, key);
    nib__jsonw_number(w, isfinite(value) ? nib__format_double(number, value) : "null");
    if (isfinite(value) && strpbrk(number, ".e") == NULL)
        nib__text_str(w->text, ".0");
}

static void put_word(nib_jsonw *w, const char *word)
{
    begin(w);
    nib__text_str(w->text, word);
    w->need_comma = true;
}

void nib__jsonw_number(nib_jsonw *w, const char *number) { put_word(w, number); }

void nib__jsonw_bool(nib_jsonw *w, bool value) { put_word(w, value ? "true" : "false"); }

void nib__jsonw_null(nib_jsonw *w) { put_word(w, "null"); }

void nib__jsonw_pair_string(nib_jsonw *w, const char *key, const char *value)
{
    nib__jsonw_key(w, key);
    if (value == NULL)
        nib__jsonw_null(w);
    else
        nib__jsonw_string(w, value);
}

void nib__jsonw_pair_int(nib_jsonw *w, const char *key, int64_t value)
{
    nib__jsonw_key(w, key);
    nib__jsonw_int(w, value);
}

void nib__jsonw_report(nib_jsonw *w, nib_text *text)
{
    nib__jsonw_init(w, text, 2);
    nib__jsonw_object(w);
    nib__jsonw_pair_int(w, "schema", 1);
}

void nib__jsonw_report_end(nib_jsonw *w)
{
    nib__jsonw_object_end(w);
    nib__text_str(w->text, "\n");
}

void nib__jsonw_pair_double(nib_jsonw *w, const char *key, double value)
{
    nib__jsonw_key(w, key);
    nib__jsonw_double(w, value);
}

void nib__jsonw_pair_bool(nib_jsonw *w, const char *key, bool value)
{
    nib__jsonw_key(w, key);
    nib__jsonw_bool(w, value);
}

void nib__jsonw_pair_doubles(nib_jsonw *w, const char *key, const double *values, int count)
{
    nib__jsonw_key(w, key);
    nib__jsonw_array(w);
    for (int i = 0; i < count; i++)
        nib__jsonw_double(w, values[i]);
    nib__jsonw_array_end(w);
}
