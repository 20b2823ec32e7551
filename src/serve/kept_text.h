/* SPDX-License-Identifier: Apache-2.0
 *
 * Text that the library writes and the program keeps until it is whole.
 */
#ifndef NIB_KEPT_TEXT_H
#define NIB_KEPT_TEXT_H

#include "nibble.h"

typedef struct kept_text {
    char *text; /* [size], from malloc; the owner frees it */
    size_t size, capacity;
} kept_text;

/* Of a nib_sink whose ctx is a kept_text. NIB_NO_MEMORY: what was there stays. */
nib_status kept_write(void *ctx, const char *bytes, size_t size);

#endif
