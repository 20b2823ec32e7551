/* SPDX-License-Identifier: Apache-2.0
 *
 * Growing text, and numbers and names in readable form. name_suggest.c finds similar names, utf8.c
 * reads UTF-8.
 */
#include "text.h"

#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#ifdef __APPLE__
#include <xlocale.h>
#endif

void nib__text_init(nib_text *text, const nib_allocator *a) { *text = (nib_text){.allocator = a}; }

void nib__text_free(nib_text *text)
{
    nib__release(text->allocator, text->at);
    nib__text_init(text, text->allocator);
}

void nib__text_clear(nib_text *text)
{
    text->size = 0;
    if (text->at != NULL)
        text->at[0] = 0;
}

int nib__vformat(char *out, size_t size, const char *format, va_list args)
{
    const locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (plain == (locale_t)0)
        return vsnprintf(out, size, format, args);
    const locale_t before = uselocale(plain); /* of this thread only */
    const int length = vsnprintf(out, size, format, args);
    uselocale(before);
    freelocale(plain);
    return length;
}

int nib__format(char *out, size_t size, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    const int length = nib__vformat(out, size, format, args);
    va_end(args);
    return length;
}

/* Room for `more` bytes and the NUL. */
static bool make_room(nib_text *text, size_t more)
{
    if (text->failed)
        return false;
    void *at = text->at;
    if (more > SIZE_MAX / 2 || text->size > SIZE_MAX / 2 - more - 1 ||
        !nib__reserve(text->allocator, &at, &text->capacity, text->size + more + 1, 1)) {
        text->failed = true;
        return false;
    }
    text->at = at;
    return true;
}

void nib__text_put(nib_text *text, const char *bytes, size_t size)
{
    if (!make_room(text, size))
        return;
    if (size != 0)
        memcpy(text->at + text->size, bytes, size);
    text->size += size;
    text->at[text->size] = 0;
}

void nib__text_str(nib_text *text, const char *string)
{
    nib__text_put(text, string, strlen(string));
}

void nib__text_format(nib_text *text, const char *format, ...)
{
    if (!make_room(text, 0))
        return;
    va_list args, again;
    va_start(args, format);
    va_copy(again, args);
    const size_t space = text->capacity - text->size;
    const int length = nib__vformat(text->at + text->size, space, format, args);
    bool whole = length >= 0;
    if (!whole)
        text->failed = true;
    if (whole && (size_t)length >= space) {
        whole = make_room(text, (size_t)length);
        if (whole)
            nib__vformat(text->at + text->size, (size_t)length + 1, format, again);
    }
    if (whole)
        text->size += (size_t)length;
    else
        text->at[text->size] = 0; /* drop the partial text */
    va_end(again);
    va_end(args);
}

nib_status nib__text_flush(nib_text *text, const nib_sink *sink, nib_err *err)
{
    if (text->failed)
        return nib__fail(err, NIB_NO_MEMORY, "out of memory while writing the output");
    if (text->size == 0)
        return NIB_OK;
    const nib_status status = sink->write(sink->ctx, text->at, text->size);
    nib__text_clear(text);
    if (status != NIB_OK)
        return nib__fail(err, status, "cannot write the output: %s", nib_status_text(status));
    return NIB_OK;
}

/* ---- numbers ---- */

const char *nib__format_count(char out[32], uint64_t value)
{
    char digits[32];
    const int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)value);
    char *to = out;
    for (int i = 0; i < length; i++) {
        if (i != 0 && (length - i) % 3 == 0)
            *to++ = ',';
        *to++ = digits[i];
    }
    *to = 0;
    return out;
}

const char *nib__format_seconds(char out[32], double seconds)
{
    if (isnan(seconds))
        snprintf(out, 32, "unknown");
    else if (seconds < 1e-3)
        nib__format(out, 32, "%.3g us", seconds * 1e6);
    else if (seconds < 1)
        nib__format(out, 32, "%.3g ms", seconds * 1e3);
    else
        nib__format(out, 32, "%.3g s", seconds);
    return out;
}

const char *nib__format_bytes(char out[32], uint64_t bytes)
{
    static const char units[][3] = {"kB", "MB", "GB", "TB", "PB", "EB"};
    if (bytes < 1000) {
        snprintf(out, 32, "%d B", (int)bytes);
        return out;
    }
    /* In integers, to the nearest tenth: independent of the locale, and 999,999 is 1.0 MB, not
     * 1000.0 kB. */
    uint64_t tenth = 100;
    size_t unit = 0;
    while (unit + 1 < COUNT(units) && bytes / tenth + (bytes % tenth >= tenth / 2) >= 10000) {
        tenth *= 1000;
        unit++;
    }
    const uint64_t tenths = bytes / tenth + (bytes % tenth >= tenth / 2);
    snprintf(out, 32, "%d.%d %s", (int)(tenths / 10), (int)(tenths % 10), units[unit]);
    return out;
}

/* The fewest digits that read back equal. Any decimal of up to `safe_digits` digits survives
 * conversion to binary and back, so %g with `safe_digits` digits, which drops zeros, is the
 * shortest if it reads back equal. Denormals have fewer significant digits, so their search starts
 * at one. */
static void format_shortest(char out[32], double value, bool as_float)
{
    const int safe_digits = as_float ? 6 : 15, max_digits = as_float ? 9 : 17;
    const double smallest_normal = as_float ? 0x1p-126 : 0x1p-1022;
    for (int digits = fabs(value) < smallest_normal ? 1 : safe_digits; digits <= max_digits;
         digits++) {
        snprintf(out, 32, "%.*g", digits, value);
        /* Both calls see the same locale, so the text is read as it was written. */
        if (as_float ? strtof(out, NULL) == (float)value : strtod(out, NULL) == value)
            break;
    }
}

static const char *write_number(char out[32], double value, bool as_float)
{
    char written[32];
    if (isnan(value) || isinf(value)) {
        snprintf(out, 32, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return out;
    }
    if (fabs(value) < 1e15 && value == floor(value))
        snprintf(written, sizeof written, "%.0f", value);
    else
        format_shortest(written, value, as_float);
    /* Replace the locale's decimal point, of one byte or more, by a dot. */
    size_t size = 0;
    for (const char *c = written; *c != 0;) {
        const size_t plain = strspn(c, "0123456789+-e");
        memcpy(out + size, c, plain);
        size += plain;
        c += plain;
        if (*c != 0) {
            out[size++] = '.';
            c += strcspn(c, "0123456789+-e");
        }
    }
    out[size] = 0;
    return out;
}

const char *nib__format_double(char out[32], double value)
{
    return write_number(out, value, fabs(value) <= FLT_MAX && (double)(float)value == value);
}

void nib__text_double(nib_text *text, double value)
{
    char number[32];
    nib__text_str(text, nib__format_double(number, value));
}

const char *nib__format_double_exact(char out[32], double value)
{
    return write_number(out, value, false);
}

void nib__text_double_exact(nib_text *text, double value)
{
    char number[32];
    nib__text_str(text, nib__format_double_exact(number, value));
}

/* ---- names ---- */

/* May it go to a terminal unescaped? Direction marks and line separators could change how a message
 * reads, so they are escaped like control characters. */
static bool is_plain(uint32_t point)
{
    if (point < 0x20 || point == '"' || point == '\'' || point == '`')
        return false;
    if (point >= 0x7f && point < 0xa0)
        return false;
    return point != 0x61c && point != 0xfeff && !(point >= 0x200b && point <= 0x200f) &&
           !(point >= 0x2028 && point <= 0x202e) && !(point >= 0x2066 && point <= 0x2069);
}

const char *nib__escape_name(char *out, size_t out_size, const char *name, size_t size)
{
    static const char hex[] = "0123456789abcdef";
    if (out_size == 0)
        return "";
    size_t used = 0, cut = 0; /* cut: the last place where "..." would still fit */
    for (size_t i = 0; i < size;) {
        const int length = nib__utf8_length(name + i, size - i);
        const char *at = name + i;
        char piece[16];
        size_t piece_size = 0, taken = length == 0 ? 1 : (size_t)length;
        if (length != 0 && is_plain(nib__utf8_next(&at))) {
            memcpy(piece, name + i, taken);
            piece_size = taken;
        } else {
            for (size_t b = 0; b < taken; b++) {
                const unsigned char byte = (unsigned char)name[i + b];
                piece[piece_size++] = '\\';
                piece[piece_size++] = 'x';
                piece[piece_size++] = hex[byte >> 4];
                piece[piece_size++] = hex[byte & 15];
            }
        }
        if (used + piece_size >= out_size) {
            snprintf(out + cut, out_size - cut, "...");
            return out;
        }
        memcpy(out + used, piece, piece_size);
        used += piece_size;
        i += taken;
        if (used + sizeof "..." <= out_size)
            cut = used;
    }
    out[used] = 0;
    return out;
}

const char *nib__escape_string(char out[NIB_SHOWN], const char *name)
{
    return nib__escape_name(out, NIB_SHOWN, name, strlen(name));
}

bool nib__ends_with(const char *text, const char *end)
{
    const size_t size = strlen(text), end_size = strlen(end);
    return size >= end_size && strcmp(text + size - end_size, end) == 0;
}

bool nib__strings_hold(const nib_strings *strings, const char *text)
{
    for (size_t i = 0; i < strings->count; i++)
        if (strcmp(strings->items[i], text) == 0)
            return true;
    return false;
}

const char *nib__find_bytes(const char *in, size_t in_size, const char *bytes, size_t size)
{
    return memmem(in, in_size, bytes, size);
}
