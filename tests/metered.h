/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocator for tests that tracks current and peak bytes.
 */
#ifndef NIB_TESTS_METERED_H
#define NIB_TESTS_METERED_H

#include "memory.h"

#include <stdlib.h>
#include <string.h>

typedef struct meter {
    size_t now, peak; /* bytes */
} meter;

static inline void *metered_resize(void *ctx, void *old, size_t size)
{
    enum { HEADER = 16 };
    meter *m = ctx;
    char *base = old == NULL ? NULL : (char *)old - HEADER;
    size_t before = 0;
    if (base != NULL)
        memcpy(&before, base, sizeof before);
    m->now -= before;
    if (size == 0) {
        free(base);
        return NULL;
    }
    base = realloc(base, size + HEADER);
    if (base == NULL)
        abort();
    memcpy(base, &size, sizeof size);
    m->now += size;
    /* Reallocation may briefly hold both blocks. */
    m->peak = m->now + before > m->peak ? m->now + before : m->peak;
    return base + HEADER;
}

static inline nib_allocator metered_allocator(meter *m)
{
    return (nib_allocator){metered_resize, m};
}

#endif
