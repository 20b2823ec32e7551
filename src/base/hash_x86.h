/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-128 with AVX-512, for long inputs on processors that have it; the same hash.
 */
#ifndef NIB_HASH_X86_H
#define NIB_HASH_X86_H

#include "hash.h"

nib_hash nib__hash_bytes_avx512(const void *bytes, uint64_t size);

#endif
