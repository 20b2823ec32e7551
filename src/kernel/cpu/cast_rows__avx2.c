/* SPDX-License-Identifier: Apache-2.0
 *
 * Training's casts for AVX2: see cast_body.h.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "cast_rows.h"

#include <immintrin.h>

#define LANES 8
#define NIB_CAST(name) nib__##name##__avx2

typedef __m256i vec;

NIB_INLINE __m256 as_f(vec a) { return _mm256_castsi256_ps(a); }
NIB_INLINE vec as_i(__m256 a) { return _mm256_castps_si256(a); }

NIB_INLINE vec vec_load(const float *p) { return _mm256_loadu_si256((const void *)p); }
NIB_INLINE void vec_store(float *p, vec a) { _mm256_storeu_si256((void *)p, a); }
NIB_INLINE vec vec_set(int32_t x) { return _mm256_set1_epi32(x); }
NIB_INLINE vec vec_add(vec a, vec b) { return _mm256_add_epi32(a, b); }
NIB_INLINE vec vec_sub(vec a, vec b) { return _mm256_sub_epi32(a, b); }
NIB_INLINE vec vec_and(vec a, vec b) { return _mm256_and_si256(a, b); }
NIB_INLINE vec vec_or(vec a, vec b) { return _mm256_or_si256(a, b); }
NIB_INLINE vec vec_min(vec a, vec b) { return _mm256_min_epi32(a, b); }
NIB_INLINE vec vec_max(vec a, vec b) { return _mm256_max_epi32(a, b); }
NIB_INLINE vec vec_right(vec a, int n) { return _mm256_srli_epi32(a, n); }
NIB_INLINE vec vec_left(vec a, int n) { return _mm256_slli_epi32(a, n); }
NIB_INLINE vec vec_less(vec a, vec b, vec yes, vec no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_cmpgt_epi32(b, a));
}
NIB_INLINE vec vec_equal(vec a, vec b, vec yes, vec no)
{
    return _mm256_blendv_epi8(no, yes, _mm256_cmpeq_epi32(a, b));
}
NIB_INLINE bool vec_any_less(vec a, vec b)
{
    return _mm256_movemask_epi8(_mm256_cmpgt_epi32(b, a)) != 0;
}
NIB_INLINE int32_t vec_largest(vec a)
{
    const __m128i four = _mm_max_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    const __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}
NIB_INLINE vec vec_mul_f(vec a, vec b) { return as_i(_mm256_mul_ps(as_f(a), as_f(b))); }
NIB_INLINE vec vec_add_f(vec a, vec b) { return as_i(_mm256_add_ps(as_f(a), as_f(b))); }
NIB_INLINE vec vec_sub_f(vec a, vec b) { return as_i(_mm256_sub_ps(as_f(a), as_f(b))); }
NIB_INLINE vec vec_div_f(vec a, vec b) { return as_i(_mm256_div_ps(as_f(a), as_f(b))); }

/* The low halves of 8 lanes; each lane is at most 0xffff. */
NIB_INLINE __m128i low_halves(vec a)
{
    return _mm_packus_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
}
NIB_INLINE void vec_store_16(void *p, vec a) { _mm_storeu_si128(p, low_halves(a)); }
NIB_INLINE void vec_store_8(void *p, vec a)
{
    const __m128i halves = low_halves(a);
    _mm_storel_epi64(p, _mm_packus_epi16(halves, halves));
}

NIB_INLINE void vec_transpose(vec r[LANES])
{
    vec t[LANES];
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm256_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm256_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i += 4) {
        r[i] = _mm256_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm256_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm256_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm256_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 8
    for (int i = 0; i < 4; i++) {
        t[i] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x20);
        t[i + 4] = _mm256_permute2x128_si256(r[i], r[i + 4], 0x31);
    }
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++)
        r[i] = t[i];
}

#include "cast_body.h"

#endif
