/* SPDX-License-Identifier: Apache-2.0
 *
 * The members of a zip file as views into it. Only what is stored as it stands: no compression, no
 * encryption, no parts, no holes. Central directory and local headers must say the same, and
 * members must not overlap, so that no two readers can see two different files. Check sums are not
 * compared: PyTorch has an option to leave them out.
 */
#ifndef NIB_ZIP_H
#define NIB_ZIP_H

#include "name_index.h"

typedef struct nib_zip_member {
    const char *name; /* a relative path without "..", NUL-terminated */
    const uint8_t *data;
    uint64_t size;
    uint64_t begin, end; /* from the local header to the end of the descriptor, in the file */
} nib_zip_member;

typedef struct nib_zip {
    nib_zip_member **members; /* [count] in the order of the central directory */
    size_t count;
    nib_name_index by_name;
} nib_zip;

/* bytes: the whole file, which outlives the members; name: safe for messages. */
nib_status nib__zip_read(nib_zip *out, const uint8_t *bytes, uint64_t size, const char *name,
                         nib_arena *arena, nib_err *err);
/* NULL: there is none of this name. */
const nib_zip_member *nib__zip_find(const nib_zip *zip, const char *name);

#endif
