/* SPDX-License-Identifier: Apache-2.0
 *
 * The ledger's settings: what was asked besides schemes and devices of layers, and is not done just
 * so.
 */
#include "ledger.h"

#include <stdarg.h>
#include <stdio.h>

const char *const nib__setting_relation_names[] = {"equivalent", "narrower", "other",
                                                   "without effect", NULL};
const char *const nib__asker_names[] = {"option",  "recipe",  "checkpoint", "config",
                                        "default", "request", NULL};

/* A copy in the ledger; NULL stays NULL. */
static const char *copy(nib_ledger *ledger, const char *text)
{
    return text == NULL ? NULL : nib__ledger_text(ledger, "%s", text);
}

static void add(nib_ledger *ledger, const nib_ledger_setting *from, const char *text)
{
    nib_ledger_setting line = *from;
    line.code = copy(ledger, from->code);
    line.name = copy(ledger, from->name);
    line.asked = copy(ledger, from->asked);
    line.done = copy(ledger, from->done);
    line.text = text;
    nib_ledger_setting *grown =
        nib__ledger_grow(ledger, ledger->settings, ledger->setting_count, sizeof *grown);
    if (grown == NULL)
        return;
    ledger->settings = grown;
    grown[ledger->setting_count++] = line;
}

static void add_with(nib_ledger *ledger, const nib_ledger_setting *setting, const char *format,
                     va_list args)
{
    if (ledger != NULL)
        add(ledger, setting, nib__ledger_text_v(ledger, format, args));
}

void nib__ledger_add_setting(nib_ledger *ledger, const nib_ledger_setting *setting,
                             const char *format, ...)
{
    va_list args;
    va_start(args, format);
    add_with(ledger, setting, format, args);
    va_end(args);
}

void nib__ledger_add_overruled(nib_ledger *ledger, const char *code, const char *key,
                               const char *asked, const char *done, const char *format, ...)
{
    const nib_ledger_setting setting = {
        .code = code,
        .name = key,
        .asked = asked,
        .done = done,
        .by = NIB_BY_CONFIG,
        .relation = done != NULL ? NIB_SETTING_OTHER : NIB_SETTING_NONE};
    va_list args;
    va_start(args, format);
    add_with(ledger, &setting, format, args);
    va_end(args);
}

void nib__ledger_add_unread(nib_ledger *ledger, const char *code, const char *file, const char *key,
                            const char *value)
{
    nib__ledger_add_overruled(ledger, code, key, value, NULL,
                              "%s has this key, and Nibble does not read it", file);
}

void nib__ledger_append(nib_ledger *ledger, const nib_ledger *from)
{
    ledger->failed = ledger->failed || from->failed;
    for (size_t i = 0; i < from->setting_count; i++)
        add(ledger, &from->settings[i], copy(ledger, from->settings[i].text));
    for (size_t i = 0; i < from->note_count; i++)
        nib__ledger_add_note(ledger, from->notes[i].code, "%s", from->notes[i].text);
}

static bool same(const char *a, const char *b)
{
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

void nib__ledger_merge_settings(nib_ledger *ledger, const nib_ledger *from)
{
    ledger->failed = ledger->failed || from->failed;
    for (size_t i = 0; i < from->setting_count; i++) {
        const nib_ledger_setting *s = &from->settings[i];
        bool known = false;
        for (size_t j = 0; j < ledger->setting_count && !known; j++) {
            const nib_ledger_setting *t = &ledger->settings[j];
            known = same(s->code, t->code) && same(s->name, t->name) && same(s->asked, t->asked) &&
                    same(s->text, t->text);
        }
        if (!known)
            add(ledger, s, copy(ledger, s->text));
    }
}

void nib__ledger_allow(nib_ledger *ledger, const nib_strings *allow)
{
    for (size_t i = 0; i < ledger->setting_count; i++)
        for (size_t j = 0; j < allow->count; j++)
            if (strcmp(ledger->settings[i].code, allow->items[j]) == 0)
                ledger->settings[i].allowed = true;
}

void nib__ledger_setting_sentence(const nib_ledger_setting *s, nib_text *out)
{
    nib__text_format(out, "%s%s%s (%s): %s", s->name, s->asked != NULL ? " " : "",
                     s->asked != NULL ? s->asked : "", nib__asker_names[s->by], s->text);
}

nib_status nib__ledger_strict(const nib_ledger *ledger, nib_err *err)
{
    const nib_ledger_setting *first = NULL;
    size_t count = 0;
    for (size_t i = 0; i < ledger->setting_count; i++) {
        const nib_ledger_setting *s = &ledger->settings[i];
        if (s->relation < NIB_SETTING_OTHER || s->allowed)
            continue;
        first = count++ == 0 ? s : first;
    }
    if (count == 0)
        return NIB_OK;
    char others[64] = "";
    nib_text sentence;
    nib__text_init(&sentence, ledger->arena.allocator);
    nib__ledger_setting_sentence(first, &sentence);
    if (count > 1)
        snprintf(others, sizeof others, "; %zu more are not as asked", count - 1);
    const nib_status status =
        sentence.failed ? nib__fail_memory(err, 256, "a sentence")
                        : nib__fail(err, NIB_NOT_AS_ASKED, "--strict: %s; --allow %s accepts it%s",
                                    sentence.at, first->code, others);
    nib__text_free(&sentence);
    return status;
}
