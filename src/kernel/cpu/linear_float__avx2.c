/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with float accumulators for AVX2: two registers make 16 lanes.
 */
#include "e8m0_lanes.h"
#include "linear_float.h"

#if NIB_BUILT_X86

#include <immintrin.h>

#define NATIVE NIB_ELEMENT_F32
enum { TILE_M = 6, GROUP_M = 6, TILE_P = 1, WIDE_M = 2, WIDE_P = 2, WIDE_MAX_M = 2 };
enum { SWAPS = true, HOLDS = false, SPAN = 128, WIDE_SPAN = 128 };

typedef struct vec {
    __m256 low, high;
} vec;

typedef struct ivec {
    __m256i low, high;
} ivec;

/* A step's codes: int4's words in `codes`, or the bytes of wider odd integers in both. */
typedef struct raw {
    ivec codes, more;
} raw;

/* In summing order: even k first for F32 sums, odd k first for BF16 sums. */
typedef struct pair {
    vec first, second;
} pair;

typedef struct x_pair {
    float first, second;
} x_pair;

typedef struct x_value {
    __m256 first, second;
} x_value;

NIB_INLINE vec vec_zero(void) { return (vec){_mm256_setzero_ps(), _mm256_setzero_ps()}; }
NIB_INLINE vec vec_set(float x) { return (vec){_mm256_set1_ps(x), _mm256_set1_ps(x)}; }
NIB_INLINE vec vec_load(const float *p)
{
    return (vec){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}

NIB_INLINE void vec_store(float *p, vec a)
{
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}

NIB_INLINE vec vec_add(vec a, vec b)
{
    return (vec){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

NIB_INLINE vec vec_mul(vec a, vec b)
{
    return (vec){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

NIB_INLINE vec vec_fma(vec a, vec b, vec c)
{
    return (vec){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

/* A mask of the first `count` of 16 lanes. */
NIB_INLINE ivec lane_mask(int count)
{
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return (ivec){_mm256_cmpgt_epi32(_mm256_set1_epi32(count), lanes),
                  _mm256_cmpgt_epi32(_mm256_set1_epi32(count - 8), lanes)};
}

NIB_INLINE vec vec_load_part(const float *p, int count)
{
    if (count == NIB_FLOAT_PANEL)
        return vec_load(p);
    const ivec mask = lane_mask(count);
    return (vec){_mm256_maskload_ps(p, mask.low), _mm256_maskload_ps(p + 8, mask.high)};
}

NIB_INLINE void vec_store_part(float *p, vec a, int count)
{
    const ivec mask = lane_mask(count);
    _mm256_maskstore_ps(p, mask.low, a.low);
    _mm256_maskstore_ps(p + 8, mask.high, a.high);
}

NIB_INLINE __m256 load_f16(const uint8_t *p)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const void *)p));
}

NIB_INLINE vec load_f16_vec(const uint8_t *p) { return (vec){load_f16(p), load_f16(p + 16)}; }

NIB_INLINE __m256 load_bf16(const uint8_t *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}

NIB_INLINE vec vec_values(const uint8_t *p, nib_type type)
{
    switch (type) {
    case NIB_TYPE_F32: return vec_load((const float *)(const void *)p);
    case NIB_TYPE_E8M0: return (vec){nib__e8m0_8(p), nib__e8m0_8(p + 8)};
    case NIB_TYPE_F16: return load_f16_vec(p);
    default: return (vec){load_bf16(p), load_bf16(p + 16)};
    }
}

/* 16 int8 values; zeros for NULL. */
NIB_INLINE ivec ivec_load_i8(const uint8_t *p)
{
    if (p == NULL)
        return (ivec){_mm256_setzero_si256(), _mm256_setzero_si256()};
    return (ivec){_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)),
                  _mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)(p + 8)))};
}

/* (v | v << shift) & mask */
NIB_INLINE __m256i spread(__m256i v, const int shift, const uint32_t mask)
{
    return _mm256_and_si256(_mm256_or_si256(v, _mm256_slli_epi32(v, shift)),
                            _mm256_set1_epi32((int)mask));
}

/* Of 8 outputs, the bits above the fourth, or all of up to three, in int4's places. */
NIB_INLINE __m256i odd_tops(const int bits, const uint8_t *p, const int half)
{
    __m256i tops = _mm256_setzero_si256();
    if ((bits & 2) != 0) {
        tops = spread(_mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)(p + 16 * half))), 14,
                      0x33333333);
        p += 32;
    }
    if ((bits & 1) != 0) {
        const __m256i one = spread(
            _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)(p + 8 * half))), 15, 0x00550055);
        const __m256i four = spread(spread(one, 4, 0x05050505), 2, 0x11111111);
        tops = _mm256_or_si256(tops, (bits & 2) != 0 ? _mm256_slli_epi32(four, 2) : four);
    }
    return tops;
}

/* Adds the offset of unsigned codes, and inverts the top bits. */
NIB_INLINE __m256i odd_signed(const nib_element f, __m256i codes)
{
    const int signs = odd_bits(f) < 4 ? (int)0x88888888 : (int)0x80808080;
    return _mm256_xor_si256(_mm256_add_epi32(codes, _mm256_set1_epi32((int)odd_offset(f))),
                            _mm256_set1_epi32(signs));
}

NIB_INLINE raw odd_load(const nib_element f, const uint8_t *p)
{
    const int bits = odd_bits(f);
    const uint8_t *at = bits > 4 ? p + 64 : p;
    const ivec tops = {odd_tops(bits, at, 0), odd_tops(bits, at, 1)};
    if (bits < 4)
        return (raw){{odd_signed(f, tops.low), odd_signed(f, tops.high)}, tops};
    const __m256i low = _mm256_set1_epi8(15);
    raw r;
    for (int half = 0; half < 2; half++) {
        const __m256i codes = _mm256_loadu_si256((const void *)(p + 32 * half)),
                      top = half == 0 ? tops.low : tops.high;
        const __m256i even =
            odd_signed(f, _mm256_or_si256(_mm256_and_si256(codes, low),
                                          _mm256_slli_epi32(_mm256_and_si256(top, low), 4)));
        const __m256i odd =
            odd_signed(f, _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi32(codes, 4), low),
                                          _mm256_andnot_si256(low, top)));
        *(half == 0 ? &r.codes.low : &r.codes.high) = even;
        *(half == 0 ? &r.more.low : &r.more.high) = odd;
    }
    return r;
}

NIB_INLINE raw raw_load(const nib_element f, const uint8_t *p)
{
    const ivec none = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    if (is_odd(f))
        return odd_load(f, p);
    if (!is_nibble(f))
        return (raw){none, none};
    return (raw){{_mm256_loadu_si256((const void *)p), _mm256_loadu_si256((const void *)(p + 32))},
                 none};
}

/* 16 recoded f8 codes (see nib__e4m3_small) as bf16: 8 outputs by 2 k. */
NIB_INLINE __m256i f8_words(const nib_element f, const uint8_t *p)
{
    const bool is_e4m3 = f == NIB_ELEMENT_E4M3;
    const uint16_t *table = is_e4m3 ? nib__e4m3_small : nib__e5m2_small;
    const __m256i code = _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)p));
    const __m256i shifted = is_e4m3 ? _mm256_slli_epi16(code, 3) : _mm256_slli_epi16(code, 4);
    const __m256i biased =
        _mm256_add_epi16(shifted, _mm256_set1_epi16(is_e4m3 ? 120 << 7 : 111 << 7));
    const __m256i keep = _mm256_set1_epi16(is_e4m3 ? ~(1 << 3) : ~(1 << 4));
    const __m256i normal =
        _mm256_or_si256(_mm256_and_si256(biased, keep), _mm256_slli_epi16(code, 15));
    /* The table's 16 words as 16 low and 16 high bytes, for vpshufb. */
    const __m256i words = _mm256_loadu_si256((const void *)table);
    const __m256i split = _mm256_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15, 0,
                                           2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    const __m256i bytes = _mm256_shuffle_epi8(words, split);
    const __m256i low = _mm256_permute4x64_epi64(bytes, 0x88),
                  high = _mm256_permute4x64_epi64(bytes, 0xdd);
    const __m256i index = _mm256_and_si256(code, _mm256_set1_epi16(15));
    const __m256i low_bytes =
        _mm256_and_si256(_mm256_shuffle_epi8(low, index), _mm256_set1_epi16(255));
    const __m256i high_bytes = _mm256_slli_epi16(_mm256_shuffle_epi8(high, index), 8);
    const __m256i upper = _mm256_and_si256(code, _mm256_set1_epi16(0xf0));
    const __m256i small = _mm256_cmpeq_epi16(upper, _mm256_setzero_si256());
    return _mm256_blendv_epi8(normal, _mm256_or_si256(low_bytes, high_bytes), small);
}

NIB_INLINE __m256 even_values(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

NIB_INLINE __m256 odd_values(__m256i words)
{
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
}

NIB_INLINE pair pair_of_bf16(__m256i low, __m256i high)
{
    return (pair){{even_values(low), even_values(high)}, {odd_values(low), odd_values(high)}};
}

NIB_INLINE vec load_i8(const uint8_t *p, ivec zero, const bool has_zeros)
{
    ivec code = ivec_load_i8(p);
    if (has_zeros)
        code = (ivec){_mm256_sub_epi32(code.low, zero.low), _mm256_sub_epi32(code.high, zero.high)};
    return (vec){_mm256_cvtepi32_ps(code.low), _mm256_cvtepi32_ps(code.high)};
}

NIB_INLINE __m256 i4_half(__m256i held, const int left, __m256i zero)
{
    const __m256i code = _mm256_srai_epi32(_mm256_slli_epi32(held, left), 28);
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, zero));
}

NIB_INLINE vec i4_values(raw held, const int i, const int odd, ivec zero)
{
    const int left = 28 - 16 * odd - 4 * i;
    return (vec){i4_half(held.codes.low, left, zero.low),
                 i4_half(held.codes.high, left, zero.high)};
}

NIB_INLINE __m256 byte_half(__m256i held, const int left, __m256i zero)
{
    const __m256i code = _mm256_srai_epi32(_mm256_slli_epi32(held, left), 24);
    return _mm256_cvtepi32_ps(_mm256_sub_epi32(code, zero));
}

/* The same of the bytes of odd integers with more than four bits. */
NIB_INLINE vec byte_values(raw held, const int i, const int odd, ivec zero)
{
    const int left = 24 - 16 * odd - i / 2 * 8;
    const ivec of = i % 2 == 0 ? held.codes : held.more;
    return (vec){byte_half(of.low, left, zero.low), byte_half(of.high, left, zero.high)};
}

/* Pair i of 8 outputs as bf16, even k in the low half of a lane: its nibbles are in the same places
 * of two bytes, and a table each gives the upper and the lower byte of a value. */
NIB_INLINE __m256i e2m1_words(__m256i held, const int i)
{
    const __m256i upper =
        _mm256_setr_epi8(0, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, (char)0x80, (char)0xbf,
                         (char)0xbf, (char)0xbf, (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0, 0,
                         0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40, (char)0x80, (char)0xbf,
                         (char)0xbf, (char)0xbf, (char)0xc0, (char)0xc0, (char)0xc0, (char)0xc0);
    const __m256i lower = _mm256_setr_epi8(
        0, 0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0, 0, 0, (char)0x80, (char)0xc0,
        0, 0x40, (char)0x80, (char)0xc0, 0, 0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80,
        (char)0xc0, 0, 0, (char)0x80, (char)0xc0, 0, 0x40, (char)0x80, (char)0xc0);
    const __m256i nibbles =
        _mm256_and_si256(i % 2 ? _mm256_srli_epi16(held, 4) : held, _mm256_set1_epi8(15));
    const __m256i up = _mm256_shuffle_epi8(upper, nibbles),
                  low = _mm256_shuffle_epi8(lower, nibbles);
    if (i < 2)
        return _mm256_or_si256(_mm256_slli_epi16(up, 8),
                               _mm256_and_si256(low, _mm256_set1_epi16(255)));
    return _mm256_or_si256(_mm256_and_si256(up, _mm256_set1_epi16((short)0xff00)),
                           _mm256_srli_epi16(low, 8));
}

/* Even k, then odd k. */
NIB_INLINE pair pair_decode(const nib_element f, const bool has_zeros, const uint8_t *p, raw held,
                            const int i, ivec zero)
{
    const float *floats = (const float *)(const void *)p + 32 * i;
    switch (f) {
    case NIB_ELEMENT_F32: return (pair){vec_load(floats), vec_load(floats + 16)};
    case NIB_ELEMENT_F16: return (pair){load_f16_vec(p + 64 * i), load_f16_vec(p + 64 * i + 32)};
    case NIB_ELEMENT_BF16:
        return pair_of_bf16(_mm256_loadu_si256((const void *)(p + 64 * i)),
                            _mm256_loadu_si256((const void *)(p + 64 * i + 32)));
    case NIB_ELEMENT_I8:
        return (pair){load_i8(p + 32 * i, zero, has_zeros),
                      load_i8(p + 32 * i + 16, zero, has_zeros)};
    case NIB_ELEMENT_I1:
    case NIB_ELEMENT_I2:
    case NIB_ELEMENT_I3:
    case NIB_ELEMENT_I4: return (pair){i4_values(held, i, 0, zero), i4_values(held, i, 1, zero)};
    case NIB_ELEMENT_I5:
    case NIB_ELEMENT_I6:
    case NIB_ELEMENT_I7:
        return (pair){byte_values(held, i, 0, zero), byte_values(held, i, 1, zero)};
    case NIB_ELEMENT_E2M1:
        return pair_of_bf16(e2m1_words(held.codes.low, i), e2m1_words(held.codes.high, i));
    default: return pair_of_bf16(f8_words(f, p + 32 * i), f8_words(f, p + 32 * i + 16));
    }
}

NIB_INLINE x_value x_get(const x_pair *x)
{
    return (x_value){_mm256_set1_ps(x->first), _mm256_set1_ps(x->second)};
}

NIB_INLINE vec half_fma(vec w, __m256 x, vec sum)
{
    return (vec){_mm256_fmadd_ps(x, w.low, sum.low), _mm256_fmadd_ps(x, w.high, sum.high)};
}

NIB_INLINE vec pair_fma(pair w, x_value x, vec sum)
{
    return half_fma(w.second, x.second, half_fma(w.first, x.first, sum));
}

#include "linear_float_stage.h"
#include "linear_float_body.h"

void nib__linear_f32_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, false);
}

void nib__linear_bf16_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, true);
}

#endif
