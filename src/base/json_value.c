/* SPDX-License-Identifier: Apache-2.0
 *
 * Decodes the reader's tokens, strings and numbers, and has helpers that read one value of an
 * expected kind. Stateless; json_read.c has checked the grammar.
 */
#include "json.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- strings ---- */

static uint32_t hex4(const char *at)
{
    uint32_t value = 0;
    for (int i = 0; i < 4; i++) {
        const char c = at[i];
        const int digit = c <= '9' ? c - '0' : (c | 0x20) - 'a' + 10;
        value = value << 4 | (uint32_t)digit;
    }
    return value;
}

static bool is_high(uint32_t unit) { return unit >= 0xd800 && unit <= 0xdbff; }

static bool is_low(uint32_t unit) { return unit >= 0xdc00 && unit <= 0xdfff; }

/* Decodes the \u escape, or surrogate pair, at *at and advances; false for a lone surrogate. */
static bool unicode_escape(const char **at, const char *end, uint32_t *point)
{
    const char *c = *at;
    const uint32_t unit = hex4(c + 2);
    *at = c + 6;
    *point = unit;
    if (!is_high(unit))
        return !is_low(unit);
    if (end - c < 12 || c[6] != '\\' || c[7] != 'u' || !is_low(hex4(c + 8)))
        return false;
    *point = 0x10000 + ((unit - 0xd800) << 10) + (hex4(c + 8) - 0xdc00);
    *at = c + 12;
    return true;
}

/* Decodes one escape at *at into 1 to 4 bytes; 0 for a lone surrogate. */
static int decode_escape(const char **at, const char *end, char out[4])
{
    static const char from[] = "bfnrt", to[] = "\b\f\n\r\t";
    uint32_t point;
    const char letter = (*at)[1];
    if (letter == 'u')
        return unicode_escape(at, end, &point) ? nib__utf8_put(out, point) : 0;
    *at += 2;
    const char *found = strchr(from, letter);
    out[0] = found == NULL ? letter : to[found - from]; /* \" \\ \/ mean themselves */
    return 1;
}

char *nib__json_string(nib_json *json, nib_arena *arena, size_t *size)
{
    if (json->event != NIB_JSON_KEY && json->event != NIB_JSON_STRING) {
        nib__json_fail(json, "expected a string");
        return NULL;
    }
    char *out = nib__arena_copy(arena, json->token, json->token_size);
    if (out == NULL) {
        nib__json_fail_memory(json, json->token_size);
        return NULL;
    }
    size_t used = json->token_size;
    if (json->escaped) {
        const char *at = json->token, *const end = at + json->token_size;
        used = 0;
        while (at < end) {
            if (*at != '\\') {
                out[used++] = *at++;
                continue;
            }
            char bytes[4];
            const char *const escape = at;
            const int length = decode_escape(&at, end, bytes);
            if (length == 0) {
                json->from = escape;
                nib__json_fail(json, "%.6s is half of a surrogate pair", escape);
                return NULL;
            }
            memcpy(out + used, bytes, (size_t)length);
            used += (size_t)length;
        }
        out[used] = 0;
    }
    if (size != NULL) {
        *size = used;
    } else if (strlen(out) != used) {
        nib__json_fail(json, "the string contains \\u0000, which is not allowed here");
        return NULL;
    }
    return out;
}

bool nib__json_is(const nib_json *json, const char *text)
{
    if (json->event != NIB_JSON_KEY && json->event != NIB_JSON_STRING)
        return false;
    const size_t size = strlen(text);
    if (!json->escaped)
        return size == json->token_size && memcmp(text, json->token, size) == 0;
    const char *at = json->token, *const end = at + json->token_size;
    const char *want = text, *const want_end = text + size;
    while (at < end) {
        char bytes[4] = {*at};
        int length = 1;
        if (*at == '\\')
            length = decode_escape(&at, end, bytes);
        else
            at++;
        if (length == 0 || want_end - want < length || memcmp(want, bytes, (size_t)length) != 0)
            return false;
        want += length;
    }
    return want == want_end;
}

/* ---- numbers ---- */

static void fail_number(nib_json *json, const char *problem)
{
    char shown[48];
    nib__json_fail(json, "%s %s",
                   nib__escape_name(shown, sizeof shown, json->token, json->token_size), problem);
}

static const char *event_name(nib_json_event event)
{
    switch (event) {
    case NIB_JSON_OBJECT: return "an object";
    case NIB_JSON_OBJECT_END: return "the end of the object";
    case NIB_JSON_ARRAY: return "an array";
    case NIB_JSON_ARRAY_END: return "the end of the array";
    case NIB_JSON_KEY: return "a key";
    case NIB_JSON_STRING: return "a string";
    case NIB_JSON_NUMBER: return "a number";
    case NIB_JSON_TRUE: return "true";
    case NIB_JSON_FALSE: return "false";
    case NIB_JSON_NULL: return "null";
    case NIB_JSON_END: return "the end of the text";
    default: return "an error";
    }
}

static bool is_number(nib_json *json)
{
    if (json->event == NIB_JSON_NUMBER)
        return true;
    nib__json_fail(json, "expected a number, found %s", event_name(json->event));
    return false;
}

bool nib__json_int64(nib_json *json, int64_t *out)
{
    if (!is_number(json))
        return false;
    const char *at = json->token, *const end = at + json->token_size;
    const bool negative = *at == '-';
    const uint64_t most = (uint64_t)INT64_MAX + negative;
    uint64_t value = 0;
    for (at += negative; at < end; at++) {
        if (*at < '0' || *at > '9') {
            fail_number(json, "is not a whole number");
            return false;
        }
        const uint64_t digit = (uint64_t)(*at - '0');
        if (value > (most - digit) / 10) {
            fail_number(json, "does not fit in 64 bits");
            return false;
        }
        value = 10 * value + digit;
    }
    /* Negated without passing through -INT64_MIN. */
    *out = !negative ? (int64_t)value : value == 0 ? 0 : -(int64_t)(value - 1) - 1;
    return true;
}

/* 768 digits decide the rounding of any double; digits after them only break ties. */
enum { MOST_DIGITS = 800 };

/* An unsigned number: the integer of its digits, without leading zeros, times 10^exponent. */
typedef struct decimal {
    char digits[MOST_DIGITS + 16]; /* and room for the exponent's text */
    int count;
    int64_t exponent; /* of the last digit kept */
} decimal;

static void scan_decimal(decimal *d, const char *at, const char *end)
{
    bool fraction = false, rest = false;
    d->count = 0;
    d->exponent = 0;
    for (; at < end && *at != 'e' && *at != 'E'; at++) {
        if (*at == '.') {
            fraction = true;
            continue;
        }
        if (d->count == MOST_DIGITS) {
            rest = rest || *at != '0';
            d->exponent += !fraction;
            continue;
        }
        if (d->count != 0 || *at != '0')
            d->digits[d->count++] = *at;
        d->exponent -= fraction;
    }
    if (rest) { /* the digits left out are worth less than 1 here; only their being there matters */
        d->digits[d->count++] = '1';
        d->exponent--;
    }
    if (at == end)
        return;
    at++;
    const bool negative = *at == '-';
    int64_t written = 0;
    for (at += *at == '-' || *at == '+'; at < end; at++)
        if (written < INT64_MAX / 100) /* above that, no number of digits can compensate */
            written = 10 * written + (*at - '0');
    d->exponent += negative ? -written : written;
}

/* Correctly rounded. Few digits and a small power of ten are both exact in a double, so one product
 * or quotient rounds once; else strtod, which reads integers and exponents the same in any
 * locale. */
static double decimal_value(decimal *d)
{
    static const double tens[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,
                                  1e8,  1e9,  1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
                                  1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    if (d->count == 0)
        return 0;
    if (d->count <= 15 && d->exponent >= -22 && d->exponent <= 22) {
        int64_t whole = 0;
        for (int i = 0; i < d->count; i++)
            whole = 10 * whole + (d->digits[i] - '0');
        const double value = (double)whole;
        return d->exponent < 0 ? value / tens[-d->exponent] : value * tens[d->exponent];
    }
    const int64_t exponent = nib__max(-100000, nib__min(d->exponent, 100000));
    snprintf(d->digits + d->count, sizeof d->digits - (size_t)d->count, "e%d", (int)exponent);
    return strtod(d->digits, NULL);
}

bool nib__json_double(nib_json *json, double *out)
{
    if (!is_number(json))
        return false;
    const char *at = json->token, *const end = at + json->token_size;
    const bool negative = *at == '-';
    at += negative;
    double value;
    if (*at == 'N') {
        value = NAN;
    } else if (*at == 'I') {
        value = INFINITY;
    } else {
        decimal d;
        scan_decimal(&d, at, end);
        value = decimal_value(&d);
        if (isinf(value)) {
            fail_number(json, "is too large for a double");
            return false;
        }
    }
    *out = negative ? -value : value;
    return true;
}

/* ---- reading helpers ---- */

bool nib__json_any(nib_json *json, nib_json_value *out)
{
    *out = (nib_json_value){.event = nib__json_next(json), .number = NAN};
    const int depth = json->depth;
    out->shown = nib__json_shown(json, out->text);
    if (out->event == NIB_JSON_NUMBER && !nib__json_double(json, &out->number))
        return false;
    if (out->event != NIB_JSON_OBJECT && out->event != NIB_JSON_ARRAY)
        return out->event != NIB_JSON_ERROR;
    nib__json_next(json);
    out->empty = json->depth < depth;
    while (json->depth >= depth && json->event != NIB_JSON_ERROR)
        nib__json_next(json);
    return json->event != NIB_JSON_ERROR;
}

bool nib__json_expect(nib_json *json, nib_json_event event)
{
    const nib_json_event found = nib__json_next(json);
    if (found == event)
        return true;
    nib__json_fail(json, "expected %s, found %s", event_name(event), event_name(found));
    return false;
}

bool nib__json_read_int64(nib_json *json, int64_t min, int64_t max, int64_t *out)
{
    int64_t value;
    if (!nib__json_expect(json, NIB_JSON_NUMBER) || !nib__json_int64(json, &value))
        return false;
    if (value < min || value > max) {
        if (min == max)
            nib__json_fail(json, "%lld is not supported, only %lld is", (long long)value,
                           (long long)min);
        else
            nib__json_fail(json, "%lld is outside of %lld to %lld", (long long)value,
                           (long long)min, (long long)max);
        return false;
    }
    *out = value;
    return true;
}

bool nib__json_read_double(nib_json *json, double *out)
{
    return nib__json_expect(json, NIB_JSON_NUMBER) && nib__json_double(json, out);
}

bool nib__json_read_bool(nib_json *json, bool *out)
{
    const nib_json_event found = nib__json_next(json);
    if (found != NIB_JSON_TRUE && found != NIB_JSON_FALSE) {
        nib__json_fail(json, "expected true or false, found %s", event_name(found));
        return false;
    }
    *out = found == NIB_JSON_TRUE;
    return true;
}

char *nib__json_read_string(nib_json *json, nib_arena *arena, size_t *size)
{
    return nib__json_expect(json, NIB_JSON_STRING) ? nib__json_string(json, arena, size) : NULL;
}

/* The keys and values of an object that has begun. */
static bool read_members(nib_json *json, nib_json_member member, void *ctx)
{
    bool ok = true;
    while (ok && nib__json_next(json) == NIB_JSON_KEY)
        ok = member(ctx);
    return ok && json->event == NIB_JSON_OBJECT_END;
}

bool nib__json_read_object(nib_json *json, nib_json_member member, void *ctx)
{
    return nib__json_expect(json, NIB_JSON_OBJECT) && read_members(json, member, ctx);
}

bool nib__json_read_objects(nib_json *json, nib_json_member member, void *ctx, size_t *count)
{
    bool ok = nib__json_expect(json, NIB_JSON_ARRAY);
    while (ok && nib__json_next(json) == NIB_JSON_OBJECT) {
        ++*count;
        ok = read_members(json, member, ctx);
    }
    return ok && json->event == NIB_JSON_ARRAY_END;
}
