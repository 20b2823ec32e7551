/* SPDX-License-Identifier: Apache-2.0
 *
 * XXH3-128 through libxxhash. As text: the canonical big-endian form, as xxhsum -H2 prints it.
 */
#include "hash_x86.h"

#include <xxhash.h>

static nib_hash from_xxh(XXH128_hash_t hash)
{
    return (nib_hash){.low = hash.low64, .high = hash.high64};
}

nib_hash nib__hash_bytes(const void *bytes, uint64_t size)
{
#if defined(__x86_64__)
    enum { LONG = 64 << 10 };
    if (size >= LONG && __builtin_cpu_supports("avx512f"))
        return nib__hash_bytes_avx512(bytes, size);
#endif
    return from_xxh(XXH3_128bits(bytes, (size_t)size));
}

bool nib__hash_equal(nib_hash a, nib_hash b) { return a.low == b.low && a.high == b.high; }

const char *nib__hash_text(char out[33], nib_hash hash)
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        out[i] = digits[hash.high >> (60 - 4 * i) & 15];
        out[16 + i] = digits[hash.low >> (60 - 4 * i) & 15];
    }
    out[32] = 0;
    return out;
}

bool nib__hash_parse(nib_hash *out, const char *text, size_t size)
{
    uint64_t half[2] = {0, 0};
    if (size != 32)
        return false;
    for (size_t i = 0; i < size; i++) {
        const char c = text[i];
        int digit;
        if (c >= '0' && c <= '9')
            digit = c - '0';
        else if (c >= 'a' && c <= 'f')
            digit = c - 'a' + 10;
        else if (c >= 'A' && c <= 'F')
            digit = c - 'A' + 10;
        else
            return false;
        half[i / 16] = half[i / 16] << 4 | (uint64_t)digit;
    }
    *out = (nib_hash){.high = half[0], .low = half[1]};
    return true;
}

/* A nib_hasher is libxxhash's state, which the library allocates aligned to 64 bytes. */
nib_hasher *nib__hasher_open(void)
{
    XXH3_state_t *state = XXH3_createState();
    if (state != NULL && XXH3_128bits_reset(state) != XXH_OK) {
        XXH3_freeState(state);
        state = NULL;
    }
    return (nib_hasher *)state;
}

void nib__hasher_add(nib_hasher *hasher, const void *bytes, size_t size)
{
    if (size != 0) /* fails for NULL bytes only */
        (void)XXH3_128bits_update((XXH3_state_t *)hasher, bytes, size);
}

nib_hash nib__hasher_finish(nib_hasher *hasher)
{
    const nib_hash hash = from_xxh(XXH3_128bits_digest((XXH3_state_t *)hasher));
    XXH3_freeState((XXH3_state_t *)hasher);
    return hash;
}
