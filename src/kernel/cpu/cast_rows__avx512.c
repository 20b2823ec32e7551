/* SPDX-License-Identifier: Apache-2.0
 *
 * Training's casts for AVX-512: see cast_body.h.
 */
#include "x86.h"

#if NIB_BUILT_X86
#include "cast_rows.h"
#include "transpose_x512.h"

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

NIB_INLINE void vec_transpose(vec r[LANES]) { nib__transpose_x512(r); }

#include "cast_body.h"

#endif
