/* SPDX-License-Identifier: Apache-2.0
 *
 * The table is at most half full to keep probes short. Hash: XXH3.
 */
#include "name_index.h"

#include "hash.h"

static const char *name_of(const void *item)
{
    const char *name;
    memcpy(&name, item, sizeof name);
    return name;
}

bool nib__name_index_init(nib_name_index *names, nib_arena *arena, size_t count)
{
    uint32_t size = 8;
    if (count > UINT32_C(1) << 30)
        return false;
    while (size < 2 * count)
        size *= 2;
    names->slots = nib__arena_take(arena, size, sizeof *names->slots);
    names->mask = size - 1;
    return names->slots != NULL;
}

/* The slot that holds the name, or the free slot for it. */
static uint32_t *find_slot(const nib_name_index *names, const void *const *items, const char *name)
{
    uint32_t at = (uint32_t)nib__hash_bytes(name, strlen(name)).low & names->mask;
    while (names->slots[at] != 0 && strcmp(name_of(items[names->slots[at] - 1]), name) != 0)
        at = (at + 1) & names->mask;
    return &names->slots[at];
}

const void *nib__name_index_add(nib_name_index *names, const void *const *items, size_t i)
{
    uint32_t *slot = find_slot(names, items, name_of(items[i]));
    if (*slot != 0)
        return items[*slot - 1];
    *slot = (uint32_t)i + 1;
    return NULL;
}

size_t nib__name_index_find(const nib_name_index *names, const void *const *items, const char *name)
{
    const uint32_t *slot = find_slot(names, items, name);
    return *slot == 0 ? SIZE_MAX : *slot - 1;
}
