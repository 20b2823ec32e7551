/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds a name among many in constant time: open addressing over pointers to structs whose first
 * member is the name. Owns its slots only.
 */
#ifndef NIB_NAMES_H
#define NIB_NAMES_H

#include "memory.h"

typedef struct nib_name_index {
    uint32_t *slots; /* [mask + 1]: position in items + 1, or 0 */
    uint32_t mask;
} nib_name_index;

/* Room for `count` names; false: no memory, or more than 2^30 of them. */
bool nib__name_index_init(nib_name_index *names, nib_arena *arena, size_t count);
/* Adds items[i], unless an item with its name is there already; gives that one, or NULL. */
const void *nib__name_index_add(nib_name_index *names, const void *const *items, size_t i);
/* The position of a name, or SIZE_MAX. */
size_t nib__name_index_find(const nib_name_index *names, const void *const *items,
                            const char *name);

#endif
