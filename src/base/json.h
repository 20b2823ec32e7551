/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads JSON (RFC 8259) as a stream of events, with limits and without a tree, and writes it. The
 * input stays in the caller's buffer, which need not end in a NUL. No recursion: a level of depth
 * costs one bit.
 */
#ifndef NIB_JSON_H
#define NIB_JSON_H

#include "text.h"

typedef enum nib_json_event {
    NIB_JSON_ERROR, /* err holds the sentence; every later call gives ERROR again */
    NIB_JSON_OBJECT,
    NIB_JSON_OBJECT_END,
    NIB_JSON_ARRAY,
    NIB_JSON_ARRAY_END,
    NIB_JSON_KEY,
    NIB_JSON_STRING,
    NIB_JSON_NUMBER,
    NIB_JSON_TRUE,
    NIB_JSON_FALSE,
    NIB_JSON_NULL,
    NIB_JSON_END /* the value is complete and nothing but white space follows */
} nib_json_event;

enum { NIB_JSON_DEPTH = 512 };

typedef struct nib_json_limits {
    int depth;       /* 0: 64; at most NIB_JSON_DEPTH */
    uint64_t events; /* 0: no limit */
    bool literals;   /* accept NaN, Infinity and -Infinity as numbers, as Python writes them */
} nib_json_limits;

typedef struct nib_json {
    const char *name; /* of the file, for messages */
    uint64_t line;    /* on which the text begins, for messages: 1 unless set after init */
    const char *start, *at, *end;
    const char *from; /* where the last event began; errors name this place */
    nib_json_limits limits;
    uint64_t events;
    int depth;
    uint8_t is_object[NIB_JSON_DEPTH / 8]; /* a bit per open container */
    int state;                             /* what may come next; private */
    nib_json_event event;                  /* the last one */
    const char *token; /* KEY, STRING: the raw text between the quotes; NUMBER: its text */
    size_t token_size;
    bool escaped; /* the raw text holds a backslash */
    nib_err err;
} nib_json;

/* Skips a leading UTF-8 byte order mark. Reading checks that the text is valid UTF-8. */
void nib__json_init(nib_json *json, const char *name, const char *text, size_t size,
                    const nib_json_limits *limits);
nib_json_event nib__json_next(nib_json *json);
/* Skips the value whose first event was just read, or after KEY the value that follows. */
bool nib__json_skip(nib_json *json);
/* The value just read, safe to print in a message, with its escapes as written; NULL: not a
 * scalar. */
const char *nib__json_shown(const nib_json *json, char out[NIB_SHOWN]);

/* The next value, of any kind, read to its end. */
typedef struct nib_json_value {
    nib_json_event event; /* its first event */
    double number;        /* NaN: not a number */
    bool empty;           /* a list or an object without members */
    const char *shown;    /* as a message prints it; NULL: a list or an object */
    char text[NIB_SHOWN]; /* storage of `shown` */
} nib_json_value;
bool nib__json_any(nib_json *json, nib_json_value *out);

/* The raw text of the value that follows the KEY just read; "null" like any other. NULL: json->err
 * says why. */
char *nib__json_raw(nib_json *json, nib_arena *arena);

/* The KEY or STRING just read, decoded and NUL-terminated, in the arena. size: its bytes, which may
 * be NULs; if it is NULL, a NUL is an error. So is a lone surrogate escape. NULL: json->err says
 * why. */
char *nib__json_string(nib_json *json, nib_arena *arena, size_t *size);
/* True if the KEY or STRING just read equals the C string. */
bool nib__json_is(const nib_json *json, const char *text);
/* The NUMBER just read. int64 takes only the integer form without fraction or exponent. */
bool nib__json_int64(nib_json *json, int64_t *out);
bool nib__json_double(nib_json *json, double *out); /* correctly rounded, in any locale */

/* Sets json->err to "NAME: line L, column C: <sentence>"; every later event is NIB_JSON_ERROR. */
void nib__json_fail(nib_json *json, const char *format, ...) NIB_PRINTF(2, 3);
/* The error as a status: copies json->err to err. */
nib_status nib__json_status(const nib_json *json, nib_err *err);

/* The same with NIB_NO_MEMORY. */
void nib__json_fail_memory(nib_json *json, size_t bytes);

/* ---- reading helpers ---- */

/* Each reads the next event, which must match; else json->err says what was found. */

bool nib__json_expect(nib_json *json, nib_json_event event);
bool nib__json_read_int64(nib_json *json, int64_t min, int64_t max, int64_t *out);
bool nib__json_read_double(nib_json *json, double *out);
bool nib__json_read_bool(nib_json *json, bool *out);
char *nib__json_read_string(nib_json *json, nib_arena *arena, size_t *size);

/* Reads the value of the KEY just read. False: json->err says why not. */
typedef bool (*nib_json_member)(void *ctx);
/* An object: calls `member` for each KEY of it. */
bool nib__json_read_object(nib_json *json, nib_json_member member, void *ctx);
/* An array of objects, of each of them. Adds their number to *count. */
bool nib__json_read_objects(nib_json *json, nib_json_member member, void *ctx, size_t *count);

/* ---- writer: commas, escapes and indentation; fails as its nib_text does ---- */

typedef struct nib_jsonw {
    nib_text *text;
    int indent; /* spaces per level; 0: one line */
    int depth;
    bool need_comma, after_key;
} nib_jsonw;

void nib__jsonw_init(nib_jsonw *w, nib_text *text, int indent);
/* The object of a --json report: begins with "schema", ends with a line feed. */
void nib__jsonw_report(nib_jsonw *w, nib_text *text);
void nib__jsonw_report_end(nib_jsonw *w);
void nib__jsonw_object(nib_jsonw *w);
void nib__jsonw_object_end(nib_jsonw *w);
void nib__jsonw_array(nib_jsonw *w);
void nib__jsonw_array_end(nib_jsonw *w);
void nib__jsonw_key(nib_jsonw *w, const char *key);
void nib__jsonw_key_n(nib_jsonw *w, const char *key, size_t size);
void nib__jsonw_string(nib_jsonw *w, const char *string); /* bad UTF-8 becomes U+FFFD */
void nib__jsonw_string_n(nib_jsonw *w, const char *string, size_t size);
void nib__jsonw_int(nib_jsonw *w, int64_t value);
void nib__jsonw_double(nib_jsonw *w, double value);       /* NaN and infinities become null */
void nib__jsonw_number(nib_jsonw *w, const char *number); /* verbatim: "1.5e12" */
void nib__jsonw_bool(nib_jsonw *w, bool value);
void nib__jsonw_null(nib_jsonw *w);
/* a key and its value in one call */
void nib__jsonw_pair_string(nib_jsonw *w, const char *key, const char *value); /* NULL: null */
void nib__jsonw_pair_int(nib_jsonw *w, const char *key, int64_t value);
void nib__jsonw_pair_double(nib_jsonw *w, const char *key, double value);
/* As above, but never without a point or an exponent, for readers that tell 7.0 from 7; a value
 * that is a float has the fewest digits that read back as that float. */
void nib__jsonw_pair_float(nib_jsonw *w, const char *key, double value);
void nib__jsonw_pair_bool(nib_jsonw *w, const char *key, bool value);
void nib__jsonw_pair_doubles(nib_jsonw *w, const char *key, const double *values, int count);

#endif
