/* SPDX-License-Identifier: Apache-2.0
 *
 * A sink that collects what the library writes, for callers that need the whole text.
 */
#ifndef NIB_KEPT_TEXT_H
#define NIB_KEPT_TEXT_H

#include "nibble_tools.h"

typedef struct kept_text {
    char *text; /* [size], from malloc; the owner frees it */
    size_t size, capacity;
} kept_text;

/* The write function of a nib_sink whose ctx is a kept_text. NIB_NO_MEMORY: text is unchanged. */
nib_status kept_write(void *ctx, const char *bytes, size_t size);

#endif
