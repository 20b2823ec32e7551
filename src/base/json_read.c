/* SPDX-License-Identifier: Apache-2.0
 *
 * The JSON reader: text to events. Owns the grammar, the limits and the place of an error;
 * json_value.c decodes tokens (numbers, strings).
 *
 * A level of depth costs one bit. A key's colon is read with the key, so that after every event one
 * state says what may come next.
 */
#include "json.h"

#include <stdarg.h>
#include <stdio.h>

enum { DEFAULT_DEPTH = 64 };

enum state {
    AT_VALUE,      /* a value must come: at the start, after a key, after a comma in an array */
    AT_FIRST_KEY,  /* after {: a key or } */
    AT_FIRST_ITEM, /* after [: a value or ] */
    AT_NEXT,       /* after a value: a comma, the container's end, or the end of the text */
    AT_END,
    AT_ERROR,
};

void nib__json_init(nib_json *json, const char *name, const char *text, size_t size,
                    const nib_json_limits *limits)
{
    static const char mark[] = "\xef\xbb\xbf";
    static const nib_json_limits none;
    json->name = name;
    json->line = 1;
    json->start = json->at = json->from = text;
    json->end = size == 0 ? text : text + size;
    if (size >= 3 && memcmp(text, mark, 3) == 0)
        json->at += 3;
    json->limits = limits == NULL ? none : *limits;
    if (json->limits.depth <= 0)
        json->limits.depth = DEFAULT_DEPTH;
    if (json->limits.depth > NIB_JSON_DEPTH)
        json->limits.depth = NIB_JSON_DEPTH;
    json->events = 0;
    json->depth = 0;
    json->state = AT_VALUE;
    json->event = NIB_JSON_END;
    json->token = NULL;
    json->token_size = 0;
    json->escaped = false;
    json->err.status = NIB_OK;
    json->err.text[0] = 0;
}

/* ---- errors ---- */

static void set_error(nib_json *json, nib_status status, const char *sentence)
{
    uint64_t line = json->line;
    const char *line_start = json->start;
    for (const char *c = json->start; c < json->from; c++) {
        if (*c == '\n') {
            line++;
            line_start = c + 1;
        }
    }
    nib__fail(&json->err, status, "%s: line %llu, column %llu: %s", json->name,
              (unsigned long long)line, (unsigned long long)(json->from - line_start) + 1,
              sentence);
    json->state = AT_ERROR;
    json->event = NIB_JSON_ERROR;
}

void nib__json_fail(nib_json *json, const char *format, ...)
{
    char sentence[sizeof json->err.text];
    if (json->state == AT_ERROR)
        return; /* keep the first error */
    va_list args;
    va_start(args, format);
    nib__vformat(sentence, sizeof sentence, format, args);
    va_end(args);
    set_error(json, NIB_BAD_INPUT, sentence);
}

void nib__json_fail_memory(nib_json *json, size_t bytes)
{
    char sentence[96], size[32];
    if (json->state == AT_ERROR)
        return;
    snprintf(sentence, sizeof sentence, "out of memory: cannot allocate %s for a string",
             nib__format_bytes(size, bytes));
    set_error(json, NIB_NO_MEMORY, sentence);
}

nib_status nib__json_status(const nib_json *json, nib_err *err)
{
    if (err != NULL && json->err.status != NIB_OK)
        *err = json->err;
    return json->err.status;
}

/* A syntax error at a place. */
static nib_json_event fail_at(nib_json *json, const char *at, const char *sentence)
{
    json->from = at;
    set_error(json, NIB_BAD_INPUT, sentence);
    return NIB_JSON_ERROR;
}

static nib_json_event fail_wanted(nib_json *json, const char *at, const char *wanted)
{
    char sentence[128];
    const unsigned char c = at < json->end ? (unsigned char)*at : 0;
    if (at >= json->end)
        snprintf(sentence, sizeof sentence, "expected %s, found the end of the text", wanted);
    else if (c > ' ' && c < 0x7f)
        snprintf(sentence, sizeof sentence, "expected %s, found `%c`", wanted, c);
    else
        snprintf(sentence, sizeof sentence, "expected %s, found byte 0x%02x", wanted, c);
    return fail_at(json, at, sentence);
}

/* ---- tokens ---- */

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\r' || *at == '\t'))
        at++;
    return at;
}

/* Skips bytes of a string that need no decoding or check: no quote, backslash or control, ASCII
 * only. */
static const char *skip_plain(const char *at, const char *end)
{
    static const uint64_t ones = UINT64_C(0x0101010101010101), highs = UINT64_C(0x8080808080808080);
    uint64_t eight;
    while (end - at >= (ptrdiff_t)sizeof eight) {
        memcpy(&eight, at, sizeof eight);
        /* The high bit of a byte of (x - ones * c) & ~x is set if the byte is below c, and for the
         * lowest such byte only then: enough to know whether any byte is. */
        const uint64_t quote = eight ^ (ones * '"'), slash = eight ^ (ones * '\\');
        const uint64_t found = ((eight - ones * 0x20) & ~eight) | ((quote - ones) & ~quote) |
                               ((slash - ones) & ~slash) | eight;
        if (found & highs)
            break;
        at += sizeof eight;
    }
    while (at < end && (unsigned char)*at >= 0x20 && (unsigned char)*at < 0x80 && *at != '"' &&
           *at != '\\')
        at++;
    return at;
}

static bool is_hex(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* The end of the escape whose backslash is at `at`, or NULL. */
static const char *skip_escape(const char *at, const char *end)
{
    switch (end - at < 2 ? 0 : at[1]) {
    case '"':
    case '\\':
    case '/':
    case 'b':
    case 'f':
    case 'n':
    case 'r':
    case 't': return at + 2;
    case 'u':
        return end - at >= 6 && is_hex(at[2]) && is_hex(at[3]) && is_hex(at[4]) && is_hex(at[5])
                   ? at + 6
                   : NULL;
    default: return NULL;
    }
}

/* Reads the string whose opening quote is at `at`; false: failed. */
static bool read_string(nib_json *json, const char *at)
{
    const char *const end = json->end, *const open = at++;
    bool escaped = false;
    for (;;) {
        at = skip_plain(at, end);
        if (at == end) {
            fail_at(json, open, "this string has no closing quote");
            return false;
        }
        if (*at == '"')
            break;
        if (*at == '\\') {
            const char *past = skip_escape(at, end);
            if (past == NULL) {
                fail_at(json, at,
                        "invalid escape; JSON has \\\" \\\\ \\/ \\b \\f \\n \\r \\t \\uXXXX");
                return false;
            }
            escaped = true;
            at = past;
        } else if ((unsigned char)*at < 0x20) {
            fail_at(json, at, "a control character must be escaped inside a string");
            return false;
        } else {
            const int length = nib__utf8_length(at, (size_t)(end - at));
            if (length == 0) {
                fail_at(json, at, "this byte is not valid UTF-8");
                return false;
            }
            at += length;
        }
    }
    json->from = open;
    json->token = open + 1;
    json->token_size = (size_t)(at - open) - 1;
    json->escaped = escaped;
    json->at = at + 1;
    return true;
}

static const char *skip_digits(const char *at, const char *end)
{
    while (at < end && *at >= '0' && *at <= '9')
        at++;
    return at;
}

static bool begins(const char *at, const char *end, const char *word, size_t size)
{
    return (size_t)(end - at) >= size && memcmp(at, word, size) == 0;
}

static nib_json_event accept_token(nib_json *json, const char *at, size_t size,
                                   nib_json_event event)
{
    json->from = json->token = at;
    json->token_size = size;
    json->at = at + size;
    json->state = AT_NEXT;
    return json->event = event;
}

static nib_json_event read_number(nib_json *json, const char *at)
{
    const char *const end = json->end, *c = at + (*at == '-');
    if (json->limits.literals && begins(c, end, "Infinity", 8))
        return accept_token(json, at, (size_t)(c - at) + 8, NIB_JSON_NUMBER);
    const char *digits = c;
    c = skip_digits(c, end);
    if (c == digits)
        return fail_wanted(json, c, "a digit");
    if (*digits == '0' && c - digits > 1)
        return fail_at(json, at, "a number may not have a leading 0");
    if (c < end && *c == '.') {
        digits = ++c;
        c = skip_digits(c, end);
        if (c == digits)
            return fail_wanted(json, c, "a digit after the decimal point");
    }
    if (c < end && (*c == 'e' || *c == 'E')) {
        c++;
        c += c < end && (*c == '+' || *c == '-');
        digits = c;
        c = skip_digits(c, end);
        if (c == digits)
            return fail_wanted(json, c, "a digit in the exponent");
    }
    return accept_token(json, at, (size_t)(c - at), NIB_JSON_NUMBER);
}

/* ---- events ---- */

static nib_json_event open_container(nib_json *json, const char *at, bool object)
{
    json->from = at;
    if (json->depth >= json->limits.depth) {
        nib__json_fail(json, "values are nested deeper than %d", json->limits.depth);
        return NIB_JSON_ERROR;
    }
    uint8_t *bits = &json->is_object[json->depth / 8];
    const unsigned bit = 1u << (json->depth % 8);
    *bits = (uint8_t)(object ? *bits | bit : *bits & ~bit);
    json->depth++;
    json->at = at + 1;
    json->state = object ? AT_FIRST_KEY : AT_FIRST_ITEM;
    return json->event = object ? NIB_JSON_OBJECT : NIB_JSON_ARRAY;
}

static nib_json_event close_container(nib_json *json, const char *at, bool object)
{
    json->from = at;
    json->depth--;
    json->at = at + 1;
    json->state = AT_NEXT;
    return json->event = object ? NIB_JSON_OBJECT_END : NIB_JSON_ARRAY_END;
}

static nib_json_event read_key(nib_json *json, const char *at)
{
    if (at == json->end || *at != '"')
        return fail_wanted(json, at, "a key in double quotes");
    if (!read_string(json, at))
        return NIB_JSON_ERROR;
    at = skip_space(json->at, json->end);
    if (at == json->end || *at != ':')
        return fail_wanted(json, at, "`:` after the key");
    json->at = at + 1;
    json->state = AT_VALUE;
    return json->event = NIB_JSON_KEY;
}

static nib_json_event read_value(nib_json *json, const char *at)
{
    const char *const end = json->end;
    if (at == end)
        return fail_wanted(json, at, "a value");
    switch (*at) {
    case '"':
        if (!read_string(json, at))
            return NIB_JSON_ERROR;
        json->state = AT_NEXT;
        return json->event = NIB_JSON_STRING;
    case '{':
    case '[': return open_container(json, at, *at == '{');
    case 't':
        if (begins(at, end, "true", 4))
            return accept_token(json, at, 4, NIB_JSON_TRUE);
        break;
    case 'f':
        if (begins(at, end, "false", 5))
            return accept_token(json, at, 5, NIB_JSON_FALSE);
        break;
    case 'n':
        if (begins(at, end, "null", 4))
            return accept_token(json, at, 4, NIB_JSON_NULL);
        break;
    case 'N':
        if (json->limits.literals && begins(at, end, "NaN", 3))
            return accept_token(json, at, 3, NIB_JSON_NUMBER);
        break;
    case 'I':
        if (json->limits.literals && begins(at, end, "Infinity", 8))
            return accept_token(json, at, 8, NIB_JSON_NUMBER);
        break;
    default:
        if (*at == '-' || (*at >= '0' && *at <= '9'))
            return read_number(json, at);
        break;
    }
    return fail_wanted(json, at, "a value");
}

static nib_json_event read_next(nib_json *json, const char *at)
{
    if (json->depth == 0) {
        if (at != json->end)
            return fail_wanted(json, at, "nothing after the value");
        json->from = at;
        json->state = AT_END;
        return json->event = NIB_JSON_END;
    }
    const int top = json->depth - 1;
    const bool object = json->is_object[top / 8] >> (top % 8) & 1;
    if (at < json->end && *at == ',') {
        at = skip_space(at + 1, json->end);
        return object ? read_key(json, at) : read_value(json, at);
    }
    if (at < json->end && *at == (object ? '}' : ']'))
        return close_container(json, at, object);
    return fail_wanted(json, at, object ? "`,` or `}`" : "`,` or `]`");
}

nib_json_event nib__json_next(nib_json *json)
{
    if (json->state == AT_ERROR)
        return NIB_JSON_ERROR;
    if (json->state == AT_END)
        return json->event = NIB_JSON_END;
    const char *at = skip_space(json->at, json->end);
    json->events++;
    if (json->limits.events != 0 && json->events > json->limits.events) {
        json->from = at;
        nib__json_fail(json, "there are more than %llu keys and values",
                       (unsigned long long)json->limits.events);
        return NIB_JSON_ERROR;
    }
    switch (json->state) {
    case AT_FIRST_KEY:
        return at < json->end && *at == '}' ? close_container(json, at, true) : read_key(json, at);
    case AT_FIRST_ITEM:
        return at < json->end && *at == ']' ? close_container(json, at, false)
                                            : read_value(json, at);
    case AT_NEXT: return read_next(json, at);
    default: return read_value(json, at);
    }
}

char *nib__json_raw(nib_json *json, nib_arena *arena)
{
    if (nib__json_next(json) == NIB_JSON_ERROR)
        return NULL;
    const char *start = json->from;
    if (!nib__json_skip(json))
        return NULL;
    char *text = nib__arena_copy(arena, start, (size_t)(json->at - start));
    if (text == NULL)
        nib__json_fail_memory(json, (size_t)(json->at - start));
    return text;
}

const char *nib__json_shown(const nib_json *json, char out[NIB_SHOWN])
{
    switch (json->event) {
    case NIB_JSON_TRUE: return "true";
    case NIB_JSON_FALSE: return "false";
    case NIB_JSON_NULL: return "null";
    case NIB_JSON_NUMBER:
    case NIB_JSON_STRING: return nib__escape_name(out, NIB_SHOWN, json->token, json->token_size);
    default: return NULL;
    }
}

bool nib__json_skip(nib_json *json)
{
    if (json->event == NIB_JSON_KEY)
        nib__json_next(json);
    if (json->event != NIB_JSON_OBJECT && json->event != NIB_JSON_ARRAY)
        return json->event != NIB_JSON_ERROR;
    for (const int depth = json->depth; json->depth >= depth;)
        if (nib__json_next(json) == NIB_JSON_ERROR)
            return false;
    return true;
}
