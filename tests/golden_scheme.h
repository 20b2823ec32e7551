/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: parses a scheme name from torchao's golden files, "8da4w-g32", or "8da4w-g32:f32" if
 * a config sets the scale type. A suffix after a dot is the weight's type.
 */
#ifndef NIB_TEST_GOLDEN_SCHEME_H
#define NIB_TEST_GOLDEN_SCHEME_H

#include "scheme.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

static inline nib_type golden_type(const char *name)
{
    return strncmp(name, "f32", 3) == 0   ? NIB_TYPE_F32
           : strncmp(name, "f16", 3) == 0 ? NIB_TYPE_F16
                                          : NIB_TYPE_BF16;
}

/* The requested scale type; NONE if the name has none. */
static inline nib_type golden_scales(const char *name)
{
    const char *end = name + strcspn(name, ":.\t");
    return *end == ':' ? golden_type(end + 1) : NIB_TYPE_NONE;
}

static inline nib_scheme golden_scheme(const char *name)
{
    nib_scheme s;
    nib_err err = {0};
    if (nib__scheme_parse(&s, name, strcspn(name, ":.\t"), &err) != NIB_OK)
        fail_msg("%s", err.text);
    return s;
}

#endif
