/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-128 of bytes (libxxhash), written as 32 hexadecimal digits. Manifests and `verify` compare
 * it.
 */
#ifndef NIB_HASH_H
#define NIB_HASH_H

#include "base.h"

typedef struct nib_hash {
    uint64_t low, high;
} nib_hash;

nib_hash nib__hash_bytes(const void *bytes, uint64_t size);
bool nib__hash_equal(nib_hash a, nib_hash b);
const char *nib__hash_text(char out[33], nib_hash hash);
bool nib__hash_parse(nib_hash *out, const char *text, size_t size);

/* In pieces; the state is 64-byte aligned inside. NULL: no memory. */
typedef struct nib_hasher nib_hasher;
nib_hasher *nib__hasher_open(void);
void nib__hasher_add(nib_hasher *hasher, const void *bytes, size_t size);
nib_hash nib__hasher_finish(nib_hasher *hasher); /* frees */

#endif
