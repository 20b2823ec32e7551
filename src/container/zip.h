/* SPDX-License-Identifier: Apache-2.0
 *
 * The members of a zip file as views into it. Supports only stored members: no compression, no
 * encryption, no multi-part archives, no holes. Central directory and local headers must agree, and
 * members must not overlap, so that no two readers can see different contents. Checksums are not
 * verified: PyTorch has an option to omit them.
 */
#ifndef NIB_ZIP_H
#define NIB_ZIP_H

#include "name_index.h"

typedef struct nib_zip_member {
    const char *name; /* a relative path without "..", NUL-terminated */
    const uint8_t *data;
    uint64_t size;
    uint64_t begin, end; /* file offsets: local header, end of the data */
} nib_zip_member;

typedef struct nib_zip {
    nib_zip_member **members; /* [count] in the order of the central directory */
    size_t count;
    nib_name_index by_name;
} nib_zip;

/* bytes: the whole file, which must outlive the members. name: file name, escaped for messages. */
nib_status nib__zip_read(nib_zip *out, const uint8_t *bytes, uint64_t size, const char *name,
                         nib_arena *arena, nib_err *err);
/* NULL: no such member. */
const nib_zip_member *nib__zip_find(const nib_zip *zip, const char *name);

#endif
