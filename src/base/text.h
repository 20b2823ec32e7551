/* SPDX-License-Identifier: Apache-2.0
 *
 * Text: a growing buffer for rendering, UTF-8 checks, escaping for messages, name suggestions.
 */
#ifndef NIB_TEXT_H
#define NIB_TEXT_H

#include "memory.h"

#include <stdarg.h>

/* Failure is sticky: after memory runs out, every call does nothing and `failed` stays set. */
typedef struct nib_text {
    const nib_allocator *allocator;
    char *at; /* NUL-terminated once something was written */
    size_t size, capacity;
    bool failed;
} nib_text;

void nib__text_init(nib_text *text, const nib_allocator *a);
void nib__text_free(nib_text *text);
void nib__text_clear(nib_text *text);
void nib__text_put(nib_text *text, const char *bytes, size_t size);
void nib__text_str(nib_text *text, const char *string);
void nib__text_format(nib_text *text, const char *format, ...) NIB_PRINTF(2, 3);
/* Writes the text to the sink and clears it; NIB_NO_MEMORY if the text has failed. */
nib_status nib__text_flush(nib_text *text, const nib_sink *sink, nib_err *err);

/* snprintf and vsnprintf, but with a decimal point in any locale that the application has set. */
int nib__format(char *out, size_t size, const char *format, ...) NIB_PRINTF(3, 4);
int nib__vformat(char *out, size_t size, const char *format, va_list args);

/* Format 1,234,567 and 1.2 GB (decimal units) into out, and return it for use as an argument. */
const char *nib__format_count(char out[32], uint64_t value);
const char *nib__format_bytes(char out[32], uint64_t bytes);
const char *nib__format_seconds(char out[32], double seconds); /* "12.3 us", "4.56 ms" */
/* A name from a file, safe for a terminal: control characters, quotes and bad UTF-8 as \xNN, cut
 * with "..." when longer than fits. */
const char *nib__escape_name(char *out, size_t out_size, const char *name, size_t size);
/* The same for a NUL-terminated name, cut to the length of names in messages. */
enum { NIB_SHOWN = 160 };
const char *nib__escape_string(char out[NIB_SHOWN], const char *name);
/* Equal but for the case of ASCII letters; the second compares the first `size` bytes, as strncmp
 * does. strcasecmp depends on the locale: in Turkish, I is not the upper case of i. */
bool nib__same_ignoring_case(const char *a, const char *b);
bool nib__same_start_ignoring_case(const char *a, const char *b, size_t size);
bool nib__ends_with(const char *text, const char *end);
bool nib__strings_hold(const nib_strings *strings, const char *text);
/* Finds the first occurrence of bytes in others; NULL: none. */
const char *nib__find_bytes(const char *in, size_t in_size, const char *bytes, size_t size);

/* Length of the valid UTF-8 sequence at s (1..4), or 0. No overlong forms, no surrogates, <=
 * U+10FFFF. */
int nib__utf8_length(const char *s, size_t size);
/* Reads one code point and advances; s must hold a valid sequence. */
uint32_t nib__utf8_next(const char **s);
int nib__utf8_put(char out[4], uint32_t point);
/* Offset of the first invalid byte, or size. */
size_t nib__utf8_check(const char *s, size_t size);

/* Decimal, independent of the locale: the shortest form that reads back equal (%.9g or less for
 * floats). */
void nib__text_double(nib_text *text, double value);
const char *nib__format_double(char out[32], double value);
/* The same, but a value that fits a float also reads back equal as a double (0.1f as
 * 0.10000000149011612). */
void nib__text_double_exact(nib_text *text, double value);
const char *nib__format_double_exact(char out[32], double value);

/* Writes up to three of `names` most similar to `wanted`, as "a, b or c"; nothing if none is
 * similar. */
void nib__near_names(nib_text *out, const char *wanted, const char *const *names, size_t count);

#endif
