/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of findings as text and JSON.
 */
#include "findings.h"

#include <stdarg.h>
#include <stdio.h>

enum { FINDING_TEXT = 1000 };

nib_status nib__findings_add(nib_findings *f, const char *code, const char *name,
                             const char *format, ...)
{
    char text[FINDING_TEXT], shown[160];
    va_list args;
    if (f->count++ >= NIB_FINDINGS_MAX)
        return NIB_OK;
    va_start(args, format);
    nib__vformat(text, sizeof text, format, args);
    va_end(args);
    nib__escape_name(shown, sizeof shown, name, strlen(name));
    const nib_finding item = {code, nib__arena_copy(f->arena, shown, strlen(shown)),
                              nib__arena_copy(f->arena, text, strlen(text))};
    if (item.name == NULL || item.text == NULL)
        return nib__fail_memory(f->err, sizeof text, "the list of findings");
    f->items[f->count - 1] = item;
    return NIB_OK;
}

nib_status nib__findings_report(void *ctx, const char *code, const char *name, const char *text)
{
    return nib__findings_add(ctx, code, name, "%s", text);
}

static void json_note(nib_jsonw *w, const nib_reason *note)
{
    nib__jsonw_object(w);
    nib__jsonw_pair_string(w, "code", note->code);
    nib__jsonw_pair_string(w, "text", note->text);
    nib__jsonw_object_end(w);
}

void nib__findings_json(const nib_findings *f, const nib_ledger *notes, nib_jsonw *w)
{
    nib__jsonw_key(w, "findings");
    nib__jsonw_array(w);
    for (size_t i = 0; i < f->count && i < NIB_FINDINGS_MAX; i++) {
        nib__jsonw_object(w);
        nib__jsonw_pair_string(w, "code", f->items[i].code);
        nib__jsonw_pair_string(w, "name", f->items[i].name);
        nib__jsonw_pair_string(w, "text", f->items[i].text);
        nib__jsonw_object_end(w);
    }
    nib__jsonw_array_end(w);
    nib__jsonw_pair_int(w, "problems", (int64_t)f->count);
    nib__jsonw_key(w, "notes");
    nib__jsonw_array(w);
    for (size_t i = 0; i < notes->note_count; i++)
        json_note(w, &notes->notes[i]);
    nib__jsonw_array_end(w);
}

void nib__findings_text(const nib_findings *f, const nib_ledger *notes, nib_text *out)
{
    char head[256];
    for (size_t i = 0; i < f->count && i < NIB_FINDINGS_MAX; i++) {
        snprintf(head, sizeof head, "%s: %s: ", f->items[i].code, f->items[i].name);
        nib__ledger_wrap(out, head, "    ", 100, f->items[i].text);
    }
    for (size_t i = 0; i < notes->note_count; i++)
        nib__ledger_wrap(out, "note: ", "    ", 100, notes->notes[i].text);
}
