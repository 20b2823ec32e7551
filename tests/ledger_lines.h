/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: searches the lines of a ledger.
 */
#ifndef NIB_TESTS_LEDGER_LINES_H
#define NIB_TESTS_LEDGER_LINES_H

#include "ledger.h"

#include <string.h>

/* Counts settings that have the code (NULL: any) and contain `words` in "NAME ASKED: TEXT". */
static inline size_t count_settings(const nib_ledger *ledger, const char *code, const char *words)
{
    size_t count = 0;
    for (size_t i = 0; i < ledger->setting_count; i++) {
        const nib_ledger_setting *s = &ledger->settings[i];
        nib_text sentence;
        nib__text_init(&sentence, ledger->arena.allocator);
        nib__ledger_setting_sentence(s, &sentence);
        count += (code == NULL || strcmp(s->code, code) == 0) && !sentence.failed &&
                 strstr(sentence.at, words) != NULL;
        nib__text_free(&sentence);
    }
    return count;
}

#endif
