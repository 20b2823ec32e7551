/* SPDX-License-Identifier: Apache-2.0
 *
 * Scales of MX blocks as f32, a vector at a time, for what the including file is compiled for. Code
 * 0 is 2^-127, a denormal, and becomes 0, as in all linear rows; 255 is NaN.
 */
#ifndef NIB_E8M0_LANES_H
#define NIB_E8M0_LANES_H

#include "base.h"

#ifdef __AVX2__
#include <immintrin.h>

/* 8 scales at p. */
NIB_INLINE __m256 nib__e8m0_8(const uint8_t *p)
{
    const __m256i codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
    const __m256i nan = _mm256_cmpeq_epi32(codes, _mm256_set1_epi32(255));
    const __m256i bits = _mm256_slli_epi32(codes, 23);
    return _mm256_castsi256_ps(_mm256_blendv_epi8(bits, _mm256_set1_epi32(0x7fc00000), nan));
}
#endif

#ifdef __AVX512F__
/* 16 scales at p. */
NIB_INLINE __m512 nib__e8m0_16(const uint8_t *p)
{
    const __m512i codes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    const __mmask16 nan = _mm512_cmpeq_epi32_mask(codes, _mm512_set1_epi32(255));
    const __m512i bits = _mm512_slli_epi32(codes, 23);
    return _mm512_castsi512_ps(_mm512_mask_mov_epi32(bits, nan, _mm512_set1_epi32(0x7fc00000)));
}
#endif

#ifdef __ARM_NEON
#include <arm_neon.h>

/* 4 scales, each code in 32 bits. */
NIB_INLINE float32x4_t nib__e8m0_4(uint32x4_t codes)
{
    const uint32x4_t nan = vceqq_u32(codes, vdupq_n_u32(255));
    return vreinterpretq_f32_u32(vbslq_u32(nan, vdupq_n_u32(0x7fc00000), vshlq_n_u32(codes, 23)));
}
#endif

#endif
