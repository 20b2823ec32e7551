/* SPDX-License-Identifier: Apache-2.0
 *
 * SHA-256's compression with the SHA extensions of x86. The instructions hold the working variables
 * as the registers ABEF and CDGH, highest lane first; two rounds at a time take K + W in the low
 * half of a register.
 */
#include "sha256.h"

#include <immintrin.h>

enum { LANES = 4, QUADS = 16 /* of rounds */ };

/* Four words of the schedule from the 16 before: w[0] is the oldest. */
static __m128i next_words(const __m128i w[4])
{
    const __m128i middle = _mm_alignr_epi8(w[3], w[2], 4); /* W[t-7] */
    return _mm_sha256msg2_epu32(_mm_add_epi32(_mm_sha256msg1_epu32(w[0], w[1]), middle), w[3]);
}

static __m128i load(const void *at) { return _mm_loadu_si128((const __m128i *)at); }

static void compress(__m128i *abef, __m128i *cdgh, const uint8_t *block)
{
    const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0b, 0x0405060700010203);
    const __m128i abef0 = *abef, cdgh0 = *cdgh;
    __m128i w[QUADS];
#pragma GCC unroll 16
    for (int i = 0; i < QUADS; i++) {
        w[i] = i < LANES ? _mm_shuffle_epi8(load(block + 16 * i), swap) : next_words(w + i - LANES);
        const __m128i k = load(nib__sha256_constants + LANES * i);
        const __m128i sum = _mm_add_epi32(w[i], k);
        *cdgh = _mm_sha256rnds2_epu32(*cdgh, *abef, sum);
        *abef = _mm_sha256rnds2_epu32(*abef, *cdgh, _mm_shuffle_epi32(sum, 0x0e));
    }
    *abef = _mm_add_epi32(*abef, abef0);
    *cdgh = _mm_add_epi32(*cdgh, cdgh0);
}

void nib__sha256_blocks_shani(uint32_t state[8], const uint8_t *blocks, size_t count)
{
    __m128i abef = _mm_set_epi32((int)state[0], (int)state[1], (int)state[4], (int)state[5]);
    __m128i cdgh = _mm_set_epi32((int)state[2], (int)state[3], (int)state[6], (int)state[7]);
    for (size_t i = 0; i < count; i++)
        compress(&abef, &cdgh, blocks + 64 * i);
    uint32_t first[LANES], second[LANES];
    _mm_storeu_si128((__m128i *)(void *)first, abef);
    _mm_storeu_si128((__m128i *)(void *)second, cdgh);
    for (int i = 0; i < 2; i++) {
        state[i] = first[3 - i];
        state[4 + i] = first[1 - i];
        state[2 + i] = second[3 - i];
        state[6 + i] = second[1 - i];
    }
}
