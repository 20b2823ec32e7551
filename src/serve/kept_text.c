/* SPDX-License-Identifier: Apache-2.0
 *
 * A sink that collects text in memory.
 */
#include "kept_text.h"

#include <stdlib.h>
#include <string.h>

nib_status kept_write(void *ctx, const char *bytes, size_t size)
{
    kept_text *k = ctx;
    if (size > k->capacity - k->size) {
        const size_t capacity = 2 * (k->size + size);
        char *more = realloc(k->text, capacity);
        if (more == NULL)
            return NIB_NO_MEMORY;
        k->text = more;
        k->capacity = capacity;
    }
    if (size > 0)
        memcpy(k->text + k->size, bytes, size);
    k->size += size;
    return NIB_OK;
}
