/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads documents one by one.
 */
#include "documents.h"

#include "json.h"

#include <inttypes.h>
#include <stdio.h>

enum { TEXT_LIMIT = 1 << 30 };

/* Includes .json, as some data sets are published so (torchtitan's c4_test). */
static bool is_json_lines(const char *path)
{
    static const char *const ends[] = {".jsonl", ".JSONL", ".json", ".JSON"};
    for (size_t i = 0; i < COUNT(ends); i++)
        if (nib__ends_with(path, ends[i]))
            return true;
    return false;
}

nib_status nib__documents_open(nib_documents *out, const char *path, const nib_allocator *a,
                               nib_err *err)
{
    *out = (nib_documents){.path = path, .allocator = a};
    NIB_TRY(nib__file_read(&out->text, &out->size, path, TEXT_LIMIT, a, err));
    out->lines = is_json_lines(path);
    nib__arena_init(&out->arena, a, 0);
    return NIB_OK;
}

void nib__documents_close(nib_documents *d)
{
    if (!d->allocator)
        return;
    nib__arena_free(&d->arena);
    nib__release(d->allocator, d->text);
    *d = (nib_documents){0};
}

void nib__documents_seek(nib_documents *d, size_t begin, int64_t line)
{
    d->next = begin < d->size ? begin : d->size;
    d->number = line > 0 ? line - 1 : 0;
}

/* Only JSON white space? A line may hold just a carriage return. */
static bool is_blank(const char *line, size_t size)
{
    while (size > 0 && strchr(" \t\r", line[size - 1]) && line[size - 1] != '\0')
        size--;
    return size == 0;
}

/* Reads the `text` member of one JSON line; path: for messages. */
static nib_status read_line(nib_documents *d, const char *path, const char *line, size_t size,
                            nib_document *out, nib_err *err)
{
    nib__arena_free(&d->arena);
    nib__arena_init(&d->arena, d->allocator, 0);
    nib_json json;
    nib__json_init(&json, path, line, size, NULL);
    json.line = (uint64_t)d->number;
    out->text = NULL;
    bool ok = nib__json_expect(&json, NIB_JSON_OBJECT);
    while (ok && nib__json_next(&json) == NIB_JSON_KEY) {
        if (nib__json_is(&json, "text"))
            ok = (out->text = nib__json_read_string(&json, &d->arena, &out->size)) != NULL;
        else
            ok = nib__json_skip(&json);
    }
    ok = ok && json.event == NIB_JSON_OBJECT_END && nib__json_next(&json) == NIB_JSON_END;
    if (!ok)
        return nib__json_status(&json, err);
    return out->text ? NIB_OK : nib__fail(err, NIB_BAD_INPUT, "%s has no \"text\"", out->name);
}

nib_status nib__documents_next(nib_documents *d, nib_document *out, bool *found, nib_err *err)
{
    char shown[NIB_SHOWN];
    *found = false;
    if (!d->lines && d->next < d->size) {
        *out = (nib_document){.text = d->text, .size = d->size};
        snprintf(out->name, sizeof out->name, "%s", nib__escape_string(shown, d->path));
        d->next = d->size;
        *found = true;
        return NIB_OK;
    }
    while (d->next < d->size) {
        const char *line = d->text + d->next;
        const char *end = memchr(line, '\n', d->size - d->next);
        const size_t size = (size_t)((end ? end : d->text + d->size) - line);
        out->begin = d->next;
        d->next += size + (end != NULL);
        d->number++;
        if (is_blank(line, size))
            continue;
        const char *path = nib__escape_string(shown, d->path);
        snprintf(out->name, sizeof out->name, "%s, line %" PRId64, path, d->number);
        NIB_TRY(read_line(d, path, line, size, out, err));
        *found = true;
        return NIB_OK;
    }
    return NIB_OK;
}
