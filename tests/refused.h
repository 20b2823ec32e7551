/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: a call that must be refused. A unit test asserts the status; the sentence is in
 * tests/cli/messages_*.out. Include it after cmocka.h.
 */
#ifndef NIB_TESTS_REFUSED_H
#define NIB_TESTS_REFUSED_H

#include "base.h"

#include <stdio.h>
#include <stdlib.h>

/* Fails unless the call returned `wanted` and filled *err. With NIBBLE_MESSAGES=FILE, appends the
 * status and the sentence to that file; both must be the same on every machine. */
#define refused(wanted, call, err) refused_at(wanted, call, err, __FILE__, __LINE__)

/* True if the program runs for its refusals alone: with NIBBLE_ONLY_MESSAGES. */
static inline bool only_messages(void) { return getenv("NIBBLE_ONLY_MESSAGES") != NULL; }

static inline void refused_at(nib_status wanted, nib_status got, const nib_err *err,
                              const char *file, int line)
{
    if (got != wanted || err->status != wanted || err->text[0] == '\0') {
        print_error("wanted %s, got %s: %s\n", nib_status_name(wanted), nib_status_name(got),
                    got == NIB_OK ? "" : err->text);
        _fail(file, line);
    }
    const char *path = getenv("NIBBLE_MESSAGES");
    if (path == NULL)
        return;
    FILE *messages = fopen(path, "a");
    assert_non_null(messages);
    assert_true(fprintf(messages, "%s: %s\n", nib_status_name(wanted), err->text) > 0);
    assert_int_equal(fclose(messages), 0);
}

#endif
