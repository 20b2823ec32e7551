/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of named digests, and the digest of a file.
 */
#include "digests.h"

#include "file.h"

#include <stdlib.h>

enum { PIECE = 8 << 20 };

void nib__digests_free(nib_digests *digests, const nib_allocator *a)
{
    nib__release(a, digests->items);
    *digests = (nib_digests){.items = NULL};
}

nib_status nib__digests_add(nib_digests *digests, const char *name, const nib_digest *digest,
                            const nib_allocator *a, nib_err *err)
{
    void *items = digests->items;
    if (!nib__reserve(a, &items, &digests->capacity, digests->count + 1, sizeof *digests->items))
        return nib__fail_memory(err, sizeof *digests->items, "a list of hashes");
    digests->items = items;
    digests->items[digests->count++] = (nib_named_digest){name, *digest};
    return NIB_OK;
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const nib_named_digest *)a)->name, ((const nib_named_digest *)b)->name);
}

void nib__digests_sort(nib_digests *digests)
{
    if (digests->count != 0)
        qsort(digests->items, digests->count, sizeof *digests->items, by_name);
}

const nib_named_digest *nib__digests_find(const nib_digests *digests, const char *name)
{
    const nib_named_digest wanted = {.name = name};
    return digests->count == 0
               ? NULL
               : bsearch(&wanted, digests->items, digests->count, sizeof *digests->items, by_name);
}

nib_status nib__digest_file(nib_digest *out, uint64_t *size, const char *path, nib_err *err)
{
    nib_map map;
    nib_sha256 hash;
    NIB_TRY(nib__map_open(&map, path, err));
    nib__sha256_init(&hash);
    for (uint64_t at = 0; at < map.size; at += PIECE) {
        const uint64_t left = map.size - at, some = left < PIECE ? left : PIECE;
        nib__sha256_add(&hash, map.at + at, (size_t)some);
        nib__map_release(map.at + at, some);
    }
    *out = nib__sha256_finish(&hash);
    *size = map.size;
    const nib_status status = nib__map_read(&map, path, NIB_OK, err);
    nib__map_close(&map);
    return status;
}
