/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: opens a checkpoint, or fails the test with the error.
 */
#ifndef NIB_TESTS_OPENING_H
#define NIB_TESTS_OPENING_H

#include "checkpoint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static inline nib_checkpoint *open_ok(const char *path)
{
    const nib_allocator a = nib__allocator_default();
    nib_checkpoint *cp = NULL;
    nib_err err = {NIB_OK, ""};
    if (nib__checkpoint_open(&cp, path, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    return cp;
}

#endif
