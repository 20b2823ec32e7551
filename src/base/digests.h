/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 of files, and lists of names with their hashes.
 */
#ifndef NIB_DIGESTS_H
#define NIB_DIGESTS_H

#include "memory.h"
#include "sha256.h"

typedef struct nib_named_digest {
    const char *name;
    nib_digest digest;
} nib_named_digest;

typedef struct nib_digests {
    nib_named_digest *items; /* [count], from the allocator */
    size_t count, capacity;
} nib_digests;

void nib__digests_free(nib_digests *digests, const nib_allocator *a);
/* The name is not copied. */
nib_status nib__digests_add(nib_digests *digests, const char *name, const nib_digest *digest,
                            const nib_allocator *a, nib_err *err);
/* Sorts by the bytes of the names. */
void nib__digests_sort(nib_digests *digests);
/* Finds a name in a sorted list; NULL: it is not there. */
const nib_named_digest *nib__digests_find(const nib_digests *digests, const char *name);

/* Hashes a file in pieces, whose pages it releases. */
nib_status nib__digest_file(nib_digest *out, uint64_t *size, const char *path, nib_err *err);

#endif
