/* SPDX-License-Identifier: Apache-2.0
 *
 * Walks over the JSON, tracks the path of each value, and sets its field. Depth and path length are
 * bounded; allocates nothing.
 */
#include "json_fields.h"

#include <stdio.h>

enum { DEPTH = 8, PATH = 200 };

typedef struct walk {
    nib_json json;
    char path[PATH];
    size_t size;              /* of path */
    size_t start[DEPTH + 1];  /* [depth] size of the path of the open object or array */
    int64_t index[DEPTH + 1]; /* [depth] next item of an open array; -1: an object */
} walk;

static void push_path(walk *w, const char *text, size_t size)
{
    if (size >= PATH - w->size) {
        nib__json_fail(&w->json, "the path of this member is longer than %d bytes", PATH);
        return;
    }
    memcpy(w->path + w->size, text, size);
    w->size += size;
    w->path[w->size] = 0;
}

/* Sets the path if the value whose first event was just read is an array item. */
static void begin_item(walk *w)
{
    const int depth =
        w->json.depth - (w->json.event == NIB_JSON_OBJECT || w->json.event == NIB_JSON_ARRAY);
    if (w->index[depth] < 0)
        return;
    char item[32];
    w->size = w->start[depth];
    const int length = snprintf(item, sizeof item, "[%lld]", (long long)w->index[depth]++);
    push_path(w, item, (size_t)length);
}

static void begin_key(walk *w)
{
    w->size = w->start[w->json.depth];
    if (w->size > 0)
        push_path(w, ".", 1);
    push_path(w, w->json.token, w->json.token_size);
}

static void open_container(walk *w)
{
    w->start[w->json.depth] = w->size;
    w->index[w->json.depth] = w->json.event == NIB_JSON_ARRAY ? 0 : -1;
}

static void set_string(walk *w, char *out)
{
    if (w->json.event != NIB_JSON_STRING || w->json.escaped ||
        w->json.token_size >= NIB_FIELD_TEXT) {
        nib__json_fail(&w->json, "%s must be a plain string of at most %d bytes", w->path,
                       NIB_FIELD_TEXT - 1);
        return;
    }
    memcpy(out, w->json.token, w->json.token_size);
    out[w->json.token_size] = 0;
}

static void set_int(walk *w, int64_t *out)
{
    if (!nib__json_int64(&w->json, out))
        return;
    if (*out < 0)
        nib__json_fail(&w->json, "%s must not be negative", w->path);
}

static void set_bool(walk *w, bool *out)
{
    if (w->json.event != NIB_JSON_TRUE && w->json.event != NIB_JSON_FALSE)
        nib__json_fail(&w->json, "%s must be true or false", w->path);
    else
        *out = w->json.event == NIB_JSON_TRUE;
}

static void set_field(walk *w, char *out, const nib_field *fields, size_t count)
{
    char shown[PATH];
    size_t i = 0;
    if (w->json.event == NIB_JSON_NULL)
        return;
    while (i < count && strcmp(fields[i].path, w->path) != 0)
        i++;
    if (i == count) {
        nib__json_fail(&w->json, "unknown member \"%s\"",
                       nib__escape_name(shown, sizeof shown, w->path, w->size));
        return;
    }
    switch (fields[i].kind) {
    case NIB_FIELD_STRING: set_string(w, out + fields[i].offset); break;
    case NIB_FIELD_INT: set_int(w, (int64_t *)(void *)(out + fields[i].offset)); break;
    case NIB_FIELD_BOOL: set_bool(w, (bool *)(out + fields[i].offset)); break;
    case NIB_FIELD_ANY: break;
    }
}

nib_status nib__fields_read(void *out, const nib_field *fields, size_t count, const char *name,
                            const char *text, nib_err *err)
{
    static const nib_json_limits limits = {.depth = DEPTH, .events = 1000};
    walk w = {.index = {-1}};
    nib__json_init(&w.json, name, text, strlen(text), &limits);
    for (;;) {
        switch (nib__json_next(&w.json)) {
        case NIB_JSON_KEY: begin_key(&w); break;
        case NIB_JSON_OBJECT:
        case NIB_JSON_ARRAY:
            begin_item(&w);
            open_container(&w);
            break;
        case NIB_JSON_OBJECT_END:
        case NIB_JSON_ARRAY_END: break;
        case NIB_JSON_STRING:
        case NIB_JSON_NUMBER:
        case NIB_JSON_TRUE:
        case NIB_JSON_FALSE:
        case NIB_JSON_NULL:
            begin_item(&w);
            set_field(&w, out, fields, count);
            break;
        case NIB_JSON_ERROR:
        case NIB_JSON_END: return nib__json_status(&w.json, err);
        }
    }
}
