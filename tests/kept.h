/* SPDX-License-Identifier: Apache-2.0
 *
 * Test helper: a sink that stores everything written to it. Include it after cmocka.h.
 */
#ifndef NIB_TESTS_KEPT_H
#define NIB_TESTS_KEPT_H

#include "nibble.h"

#include <string.h>

typedef struct kept {
    char text[1 << 16]; /* ends with a zero byte */
    size_t size;
} kept;

static inline nib_status keep(void *ctx, const char *bytes, size_t size)
{
    kept *k = ctx;
    assert_true(size < sizeof k->text - k->size);
    memcpy(k->text + k->size, bytes, size);
    k->size += size;
    k->text[k->size] = '\0';
    return NIB_OK;
}

#endif
