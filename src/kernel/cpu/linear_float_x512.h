/* SPDX-License-Identifier: Apache-2.0
 *
 * The AVX-512 operations of linear_float_body.h that do not depend on how products are formed.
 */
#include "e8m0_lanes.h"

#include <immintrin.h>

typedef __m512 vec;
typedef __m512i ivec;

/* A step's codes: int4's words in `low`, or the bytes of wider odd integers in both. */
typedef struct raw {
    __m512i low, high;
} raw;

NIB_INLINE vec vec_zero(void) { return _mm512_setzero_ps(); }
NIB_INLINE vec vec_set(float x) { return _mm512_set1_ps(x); }
NIB_INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
NIB_INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
NIB_INLINE vec vec_fma(vec a, vec b, vec c) { return _mm512_fmadd_ps(a, b, c); }

NIB_INLINE vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
NIB_INLINE void vec_store(float *p, vec a) { _mm512_storeu_ps(p, a); }

NIB_INLINE vec vec_load_part(const float *p, int count)
{
    return _mm512_maskz_loadu_ps((__mmask16)((1U << count) - 1), p);
}

NIB_INLINE void vec_store_part(float *p, vec a, int count)
{
    _mm512_mask_storeu_ps(p, (__mmask16)((1U << count) - 1), a);
}

NIB_INLINE vec vec_values(const uint8_t *p, nib_type type)
{
    if (type == NIB_TYPE_F32)
        return _mm512_loadu_ps(p);
    if (type == NIB_TYPE_E8M0)
        return nib__e8m0_16(p);
    const __m256i halves = _mm256_loadu_si256((const void *)p);
    if (type == NIB_TYPE_F16)
        return _mm512_cvtph_ps(halves);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/* 16 int8 values; zeros for NULL. */
NIB_INLINE ivec ivec_load_i8(const uint8_t *p)
{
    return p != NULL ? _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p))
                     : _mm512_setzero_si512();
}

/* The bits above the fourth, or all of up to three, in int4's places. */
NIB_INLINE __m512i odd_tops(const int bits, const uint8_t *p)
{
    __m512i tops = _mm512_setzero_si512();
    if ((bits & 2) != 0) {
        const __m512i two = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
        tops = _mm512_and_si512(_mm512_or_si512(two, _mm512_slli_epi32(two, 14)),
                                _mm512_set1_epi32(0x33333333));
        p += 32;
    }
    if ((bits & 1) != 0) {
        __m512i one = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
        one = _mm512_and_si512(_mm512_or_si512(one, _mm512_slli_epi32(one, 15)),
                               _mm512_set1_epi32(0x00550055));
        one = _mm512_and_si512(_mm512_or_si512(one, _mm512_slli_epi32(one, 4)),
                               _mm512_set1_epi32(0x05050505));
        one = _mm512_and_si512(_mm512_or_si512(one, _mm512_slli_epi32(one, 2)),
                               _mm512_set1_epi32(0x11111111));
        tops = _mm512_or_si512(tops, (bits & 2) != 0 ? _mm512_slli_epi32(one, 2) : one);
    }
    return tops;
}

NIB_INLINE raw odd_load(const nib_element f, const uint8_t *p)
{
    const int bits = odd_bits(f);
    const __m512i offset = _mm512_set1_epi32((int)odd_offset(f)),
                  low = _mm512_set1_epi32(0x0f0f0f0f), signs = _mm512_set1_epi8((char)0x80);
    const __m512i tops = odd_tops(bits, bits > 4 ? p + 64 : p);
    if (bits < 4)
        return (raw){
            _mm512_xor_si512(_mm512_add_epi32(tops, offset), _mm512_set1_epi32((int)0x88888888)),
            tops};
    const __m512i codes = _mm512_loadu_si512(p);
    const __m512i even = _mm512_or_si512(_mm512_and_si512(codes, low),
                                         _mm512_slli_epi32(_mm512_and_si512(tops, low), 4)),
                  odd = _mm512_or_si512(_mm512_and_si512(_mm512_srli_epi32(codes, 4), low),
                                        _mm512_andnot_si512(low, tops));
    return (raw){_mm512_xor_si512(_mm512_add_epi32(even, offset), signs),
                 _mm512_xor_si512(_mm512_add_epi32(odd, offset), signs)};
}

NIB_INLINE raw raw_load(const nib_element f, const uint8_t *p)
{
    raw held = {_mm512_setzero_si512(), _mm512_setzero_si512()};
    if (is_odd(f))
        return odd_load(f, p);
    if (is_nibble(f))
        held.low = _mm512_loadu_si512(p);
    __asm__("" : "+v"(held.low)); /* otherwise each use becomes a load */
    return held;
}

/* A pair of k of 5 or 6 bits as bf16. */
NIB_INLINE __m512i odd_words(const nib_element f, raw held, const int i)
{
    const __m512i codes =
        _mm512_srli_epi16(i % 2 == 0 ? held.low : held.high, (unsigned)(i / 2 * 8));
    if (f == NIB_ELEMENT_I6)
        return _mm512_permutex2var_epi16(_mm512_loadu_si512(nib__bf16_ints), codes,
                                         _mm512_loadu_si512(nib__bf16_ints + 32));
    const __m512i table =
        _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256((const void *)nib__bf16_ints)),
                           _mm256_loadu_si256((const void *)(nib__bf16_ints + 48)), 1);
    return _mm512_permutexvar_epi16(codes, table);
}

/* 32 recoded f8 codes (see nib__e4m3_small) as bf16. */
NIB_INLINE __m512i f8_words(const nib_element f, const uint8_t *p)
{
    const bool is_e4m3 = f == NIB_ELEMENT_E4M3;
    const __m512i code = _mm512_cvtepu8_epi16(_mm256_loadu_si256((const void *)p));
    const __m512i sign = _mm512_slli_epi16(code, 15);
    const __m512i shifted = is_e4m3 ? _mm512_slli_epi16(code, 3) : _mm512_slli_epi16(code, 4);
    const __m512i biased =
        _mm512_add_epi16(shifted, _mm512_set1_epi16(is_e4m3 ? 120 << 7 : 111 << 7));
    /* (biased & ~stray sign bit) | sign */
    const __m512i keep = _mm512_set1_epi16(is_e4m3 ? ~(1 << 3) : ~(1 << 4));
    const __m512i normal = _mm512_ternarylogic_epi32(biased, keep, sign, 0xea);
    const __mmask32 small = _mm512_testn_epi16_mask(code, _mm512_set1_epi16(0xf0));
    const __m512i table = _mm512_loadu_si512(is_e4m3 ? nib__e4m3_small : nib__e5m2_small);
    return _mm512_mask_permutexvar_epi16(normal, small, code, table);
}

/* int8 values, or int4 values of a step (k = 2i + odd), less their zero points, as f32. */
NIB_INLINE vec load_i8(const uint8_t *p, ivec zero, const bool has_zeros)
{
    const __m512i code = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p));
    return _mm512_cvtepi32_ps(has_zeros ? _mm512_sub_epi32(code, zero) : code);
}

NIB_INLINE vec i4_shifted_values(raw held, const int i, const int odd, ivec zero)
{
    const __m512i top = _mm512_slli_epi32(held.low, (unsigned)(28 - 16 * odd - 4 * i));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srai_epi32(top, 28), zero));
}

/* The same of the bytes of odd integers with more than four bits. */
NIB_INLINE vec byte_values(raw held, const int i, const int odd, ivec zero)
{
    const __m512i top =
        _mm512_slli_epi32(i % 2 == 0 ? held.low : held.high, (unsigned)(24 - 16 * odd - i / 2 * 8));
    return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_srai_epi32(top, 24), zero));
}
