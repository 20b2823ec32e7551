/* SPDX-License-Identifier: Apache-2.0
 *
 * libxxhash's own code, compiled from its header for AVX-512: the installed library is built for
 * any x86-64, where hashing is slower than reading.
 */
#include "hash_x86.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

nib_hash nib__hash_bytes_avx512(const void *bytes, uint64_t size)
{
    const XXH128_hash_t hash = XXH3_128bits(bytes, (size_t)size);
    return (nib_hash){.low = hash.low64, .high = hash.high64};
}
