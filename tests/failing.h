/* SPDX-License-Identifier: Apache-2.0
 *
 * An allocator for tests that fails from the nth request on and counts live allocations.
 */
#ifndef NIB_TESTS_FAILING_H
#define NIB_TESTS_FAILING_H

#include "memory.h"

#include <stdlib.h>

typedef struct failing {
    int left; /* requests that still succeed; negative: all */
    int live; /* allocations not freed */
} failing;

static inline void *failing_resize(void *ctx, void *old, size_t size)
{
    failing *f = ctx;
    if (size == 0) {
        f->live -= old != NULL;
        free(old);
        return NULL;
    }
    if (f->left == 0)
        return NULL;
    if (f->left > 0)
        f->left--;
    void *p = realloc(old, size);
    f->live += old == NULL && p != NULL;
    return p;
}

static inline nib_allocator failing_allocator(failing *f)
{
    return (nib_allocator){failing_resize, f};
}

#endif
