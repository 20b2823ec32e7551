/* SPDX-License-Identifier: Apache-2.0
 *
 * Training's casts for AVX-512: see cast_body.h.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "cast_rows.h"

#include <immintrin.h>

#define LANES 16
#define NIB_CAST(name) nib__##name##__avx512

typedef __m512i vec;

NIB_INLINE __m512 as_f(vec a) { return _mm512_castsi512_ps(a); }
NIB_INLINE vec as_i(__m512 a) { return _mm512_castps_si512(a); }

NIB_INLINE vec vec_load(const float *p) { return _mm512_loadu_si512(p); }
NIB_INLINE void vec_store(float *p, vec a) { _mm512_storeu_si512(p, a); }
NIB_INLINE void vec_store_16(void *p, vec a) { _mm256_storeu_si256(p, _mm512_cvtepi32_epi16(a)); }
NIB_INLINE void vec_store_8(void *p, vec a) { _mm_storeu_si128(p, _mm512_cvtepi32_epi8(a)); }
NIB_INLINE vec vec_set(int32_t x) { return _mm512_set1_epi32(x); }
NIB_INLINE vec vec_add(vec a, vec b) { return _mm512_add_epi32(a, b); }
NIB_INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_epi32(a, b); }
NIB_INLINE vec vec_and(vec a, vec b) { return _mm512_and_si512(a, b); }
NIB_INLINE vec vec_or(vec a, vec b) { return _mm512_or_si512(a, b); }
NIB_INLINE vec vec_min(vec a, vec b) { return _mm512_min_epi32(a, b); }
NIB_INLINE vec vec_max(vec a, vec b) { return _mm512_max_epi32(a, b); }
NIB_INLINE vec vec_right(vec a, int n) { return _mm512_srli_epi32(a, (unsigned)n); }
NIB_INLINE vec vec_left(vec a, int n) { return _mm512_slli_epi32(a, (unsigned)n); }
NIB_INLINE vec vec_less(vec a, vec b, vec yes, vec no)
{
    return _mm512_mask_mov_epi32(no, _mm512_cmplt_epi32_mask(a, b), yes);
}
NIB_INLINE vec vec_equal(vec a, vec b, vec yes, vec no)
{
    return _mm512_mask_mov_epi32(no, _mm512_cmpeq_epi32_mask(a, b), yes);
}
NIB_INLINE bool vec_any_less(vec a, vec b) { return _mm512_cmplt_epi32_mask(a, b) != 0; }
NIB_INLINE int32_t vec_largest(vec a) { return _mm512_reduce_max_epi32(a); }
NIB_INLINE vec vec_mul_f(vec a, vec b) { return as_i(_mm512_mul_ps(as_f(a), as_f(b))); }
NIB_INLINE vec vec_add_f(vec a, vec b) { return as_i(_mm512_add_ps(as_f(a), as_f(b))); }
NIB_INLINE vec vec_sub_f(vec a, vec b) { return as_i(_mm512_sub_ps(as_f(a), as_f(b))); }
NIB_INLINE vec vec_div_f(vec a, vec b) { return as_i(_mm512_div_ps(as_f(a), as_f(b))); }

/* Pairs, fours, eights of lanes, halves: each step doubles how much of a column is together. */
NIB_INLINE void vec_transpose(vec r[LANES])
{
    vec t[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i += 2) {
        t[i] = _mm512_unpacklo_epi32(r[i], r[i + 1]);
        t[i + 1] = _mm512_unpackhi_epi32(r[i], r[i + 1]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i += 4) {
        r[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
        r[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
        r[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
        r[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#include "cast_body.h"

#endif
