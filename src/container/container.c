/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the parsers of all formats: entry lists and sorting by address.
 */
#include "container.h"

#include <inttypes.h>
#include <stdio.h>

void *nib__container_items(nib_arena *arena, size_t count, size_t size)
{
    char *items = nib__arena_take(arena, count, size);
    void **pointers = nib__arena_take(arena, count, sizeof *pointers);
    if (items == NULL || pointers == NULL)
        return NULL;
    for (size_t i = 0; i < count; i++)
        pointers[i] = items + i * size;
    return pointers;
}

static bool comes_before(const nib_tensor *a, const nib_tensor *b)
{
    return a->data != b->data ? a->data < b->data : a->bytes < b->bytes;
}

bool nib__container_sort(nib_tensor **items, size_t count, nib_arena *arena)
{
    size_t sorted = 1;
    while (sorted < count && !comes_before(items[sorted], items[sorted - 1]))
        sorted++;
    if (sorted >= count)
        return true;
    nib_tensor **from = items, **to = nib__arena_take(arena, count, sizeof *to);
    if (to == NULL)
        return false;
    for (size_t width = 1; width < count; width *= 2) {
        for (size_t start = 0; start < count; start += 2 * width) {
            const size_t middle = start + width < count ? start + width : count;
            const size_t end = middle + width < count ? middle + width : count;
            size_t a = start, b = middle;
            for (size_t i = start; i < end; i++)
                to[i] = a < middle && (b == end || !comes_before(from[b], from[a])) ? from[a++]
                                                                                    : from[b++];
        }
        nib_tensor **swap = from;
        from = to;
        to = swap;
    }
    if (from != items)
        memcpy(items, from, count * sizeof *items);
    return true;
}

const char *nib__format_shape(char out[NIB_SHAPE_SHOWN], const int64_t *shape, int rank)
{
    size_t used = (size_t)snprintf(out, NIB_SHAPE_SHOWN, "[");
    for (int i = 0; i < rank; i++)
        used += (size_t)snprintf(out + used, NIB_SHAPE_SHOWN - used, "%s%" PRId64,
                                 i == 0 ? "" : ", ", shape[i]);
    snprintf(out + used, NIB_SHAPE_SHOWN - used, "]");
    return out;
}
