/* SPDX-License-Identifier: Apache-2.0
 *
 * The parser finds where the values of edited members begin and end; the bytes between are copied.
 */
#include "json_edit.h"

enum { EDIT_MAX = 16 };

static size_t find_edit(const nib_json *json, const nib_json_edit *edits, size_t count)
{
    size_t i = 0;
    while (i < count && !nib__json_is(json, edits[i].key))
        i++;
    return i;
}

/* The copy so far. */
typedef struct copy {
    nib_text *out;
    const char *copied; /* bytes copied so far */
    const char *last;   /* end of the previous member, or of the opening brace */
    bool empty;         /* no member copied yet */
    bool front;         /* the member removed was the first, so skip its comma */
} copy;

/* Removes a member, from its key to the end of its value. */
static void remove_member(copy *c, const char *key, const char *end)
{
    const char *begin = c->empty ? key : c->last;
    if (c->copied < begin)
        nib__text_put(c->out, c->copied, (size_t)(begin - c->copied));
    c->copied = end;
    c->front = c->empty;
}

static void replace_value(copy *c, const char *begin, const char *end, const char *value)
{
    nib__text_put(c->out, c->copied, (size_t)(begin - c->copied));
    nib__text_str(c->out, value);
    c->copied = end;
}

/* Adds members that the object did not have, after its last. */
static void add_missing(nib_text *out, const nib_json_edit *edits, const bool *done, size_t count,
                        bool empty)
{
    for (size_t i = 0; i < count; i++) {
        if (done[i] || edits[i].value == NULL || edits[i].only_if_present)
            continue;
        nib__text_format(out, "%s\n  \"%s\": %s", empty ? "" : ",", edits[i].key, edits[i].value);
        empty = false;
    }
}

nib_status nib__json_edit(nib_text *out, const char *name, const char *text, size_t size,
                          const nib_json_edit *edits, size_t count, nib_err *err)
{
    static const nib_json_limits limits = {.literals = true};
    bool done[EDIT_MAX] = {false};
    nib_json json;
    if (count > EDIT_MAX)
        return nib__fail(err, NIB_FAILED, "%s: too many members to change", name);
    nib__json_init(&json, name, text, size, &limits);
    nib__json_expect(&json, NIB_JSON_OBJECT);
    copy c = {.out = out, .copied = text, .last = json.at, .empty = true};
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        const size_t edit = find_edit(&json, edits, count);
        const char *key = json.from;
        if (c.front)
            c.copied = key;
        c.front = false;
        nib__json_next(&json);
        const char *begin = json.from;
        if (!nib__json_skip(&json))
            break;
        if (edit != count && edits[edit].value == NULL)
            remove_member(&c, key, json.at);
        else if (edit != count)
            replace_value(&c, begin, json.at, edits[edit].value);
        c.last = json.at;
        c.empty = c.empty && edit != count && edits[edit].value == NULL;
        if (edit != count)
            done[edit] = true;
    }
    if (json.event == NIB_JSON_OBJECT_END)
        nib__json_next(&json);
    NIB_TRY(nib__json_status(&json, err));
    nib__text_put(out, c.copied, (size_t)(c.last - c.copied));
    add_missing(out, edits, done, count, c.empty);
    nib__text_put(out, c.last, (size_t)(text + size - c.last));
    return out->failed ? nib__fail_memory(err, size, name) : NIB_OK;
}
