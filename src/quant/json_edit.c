/* SPDX-License-Identifier: Apache-2.0
 *
 * The copy: the reader finds where the members' values begin and end, the bytes between are copied.
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

/* Members that the object did not have, behind its last. */
static void add_missing(nib_text *out, const nib_json_edit *edits, const bool *done, size_t count,
                        bool empty)
{
    for (size_t i = 0; i < count; i++) {
        if (done[i] || edits[i].value == NULL)
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
    const char *copied = text, *last;
    bool empty = true;
    if (count > EDIT_MAX)
        return nib__fail(err, NIB_FAILED, "%s: too many members to change", name);
    nib__json_init(&json, name, text, size, &limits);
    nib__json_expect(&json, NIB_JSON_OBJECT);
    last = json.at;
    while (nib__json_next(&json) == NIB_JSON_KEY) {
        const size_t edit = find_edit(&json, edits, count);
        nib__json_next(&json);
        const char *begin = json.from;
        if (!nib__json_skip(&json))
            break;
        last = json.at;
        empty = false;
        if (edit == count)
            continue;
        nib__text_put(out, copied, (size_t)(begin - copied));
        nib__text_str(out, edits[edit].value != NULL ? edits[edit].value : "null");
        copied = last;
        done[edit] = true;
    }
    if (json.event == NIB_JSON_OBJECT_END)
        nib__json_next(&json);
    NIB_TRY(nib__json_status(&json, err));
    nib__text_put(out, copied, (size_t)(last - copied));
    add_missing(out, edits, done, count, empty);
    nib__text_put(out, last, (size_t)(text + size - last));
    return out->failed ? nib__fail_memory(err, size, name) : NIB_OK;
}
