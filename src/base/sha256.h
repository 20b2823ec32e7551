/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256 (FIPS 180-4), written as 64 hexadecimal digits, as sha256sum prints it. Receipts name
 * bytes by it, because XXH3 protects against accidents only. On x86 processors with SHA extensions
 * it uses them.
 */
#ifndef NIB_SHA256_H
#define NIB_SHA256_H

#include "base.h"

typedef struct nib_digest {
    uint8_t bytes[32];
} nib_digest;

/* Bytes added so far. */
typedef struct nib_sha256 {
    uint32_t state[8];
    uint64_t size;
    uint8_t pending[64]; /* the first size % 64 of them wait for a whole block */
} nib_sha256;

void nib__sha256_init(nib_sha256 *s);
void nib__sha256_add(nib_sha256 *s, const void *bytes, size_t size);
nib_digest nib__sha256_finish(const nib_sha256 *s); /* of what was added; s is unchanged */
nib_digest nib__sha256_bytes(const void *bytes, size_t size);

enum { NIB_DIGEST_TEXT = 65 };
const char *nib__digest_text(char out[NIB_DIGEST_TEXT], const nib_digest *digest);
bool nib__digest_parse(nib_digest *out, const char *text, size_t size);
bool nib__digest_equal(const nib_digest *a, const nib_digest *b);

/* The compression function on whole blocks of 64 bytes: in plain C, and with SHA extensions. */
void nib__sha256_blocks(uint32_t state[8], const uint8_t *blocks, size_t count);
void nib__sha256_blocks_shani(uint32_t state[8], const uint8_t *blocks, size_t count);
extern const uint32_t nib__sha256_constants[64];

#endif
