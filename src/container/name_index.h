/* SPDX-License-Identifier: Apache-2.0
 *
 * A hash index of names: open addressing over pointers to structs whose first member is the name.
 * Owns only its slots.
 */
#ifndef NIB_NAME_INDEX_H
#define NIB_NAME_INDEX_H

#include "memory.h"

typedef struct nib_name_index {
    uint32_t *slots; /* [mask + 1]: position in items + 1, or 0 */
    uint32_t mask;
} nib_name_index;

/* Allocates slots for `count` names; false: out of memory, or more than 2^30 names. */
bool nib__name_index_init(nib_name_index *names, nib_arena *arena, size_t count);
/* Adds items[i] and returns NULL; if an item with its name exists, returns that one instead. */
const void *nib__name_index_add(nib_name_index *names, const void *const *items, size_t i);
/* The position of a name, or SIZE_MAX. */
size_t nib__name_index_find(const nib_name_index *names, const void *const *items,
                            const char *name);

#endif
