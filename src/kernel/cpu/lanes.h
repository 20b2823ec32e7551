/* SPDX-License-Identifier: Apache-2.0
 *
 * Sixteen virtual lanes of f32: the unit of every float reduction outside linear rows. The same
 * source is compiled for plain C, AVX2, AVX-512 and NEON and gives the same bits, because each
 * operation below is one IEEE operation per lane and the tree of nib__lanes_sum is fixed. Also
 * here: exp for softmax, silu and gelu; tanh for soft-capping; sixteen lanes of f64 for sums of
 * squares; and f32 to bf16.
 */
#ifndef NIB_LANES_H
#define NIB_LANES_H

#include "base.h"
#include "type.h"

#include <math.h>

#if defined(__AVX512F__)
#include <immintrin.h>

typedef struct nib_lanes {
    __m512 v;
} nib_lanes;

#define NIB_LANES_OP(op, a, b) ((nib_lanes){op((a).v, (b).v)})
#define NIB_LANES_PS(name) _mm512_##name##_ps

NIB_INLINE nib_lanes nib__lanes_set(float x) { return (nib_lanes){_mm512_set1_ps(x)}; }
NIB_INLINE nib_lanes nib__lanes_load(const float *p) { return (nib_lanes){_mm512_loadu_ps(p)}; }
NIB_INLINE void nib__lanes_store(float *p, nib_lanes a) { _mm512_storeu_ps(p, a.v); }
NIB_INLINE nib_lanes nib__lanes_fma(nib_lanes a, nib_lanes b, nib_lanes c)
{
    return (nib_lanes){_mm512_fmadd_ps(a.v, b.v, c.v)};
}
NIB_INLINE nib_lanes nib__lanes_sqrt(nib_lanes a) { return (nib_lanes){_mm512_sqrt_ps(a.v)}; }
NIB_INLINE nib_lanes nib__lanes_scale(nib_lanes p, nib_lanes n)
{
    return (nib_lanes){_mm512_scalef_ps(p.v, n.v)};
}

/* A division faster than vdivps, with the same bits. nib__lanes_invert rounds 1 / b to nearest for
 * b from 1 to 2^126, except the largest b of each binade (all mantissas were tried, 2026-11-22).
 * With it, nib__lanes_divide_fast rounds a / b to nearest (Markstein 1990) for |a| from 2^-100 to
 * 87, where nothing underflows or overflows. nib__lanes_can_divide_fast checks a and excludes the
 * largest b of a binade; the caller ensures the range of b. */
NIB_INLINE bool nib__lanes_can_divide_fast(nib_lanes a, nib_lanes b)
{
    const __m512i mantissa = _mm512_set1_epi32(0x7fffff);
    const __m512i above =
        _mm512_sub_epi32(_mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x7fffffff)),
                         _mm512_set1_epi32((127 - 100) << 23));
    const __mmask16 fits = _mm512_cmplt_epu32_mask(
        above, _mm512_set1_epi32(0x42ae0000 - ((127 - 100) << 23)) /* 87 */);
    return _mm512_mask_test_epi32_mask(
               fits, _mm512_andnot_si512(_mm512_castps_si512(b.v), mantissa), mantissa) == 0xffff;
}
NIB_INLINE nib_lanes nib__lanes_invert(nib_lanes b)
{
    const __m512 one = _mm512_set1_ps(1.0f);
    __m512 r = _mm512_rcp14_ps(b.v);
    r = _mm512_fmadd_ps(r, _mm512_fnmadd_ps(b.v, r, one), r);
    return (nib_lanes){_mm512_fmadd_ps(r, _mm512_fnmadd_ps(b.v, r, one), r)};
}
NIB_INLINE nib_lanes nib__lanes_divide_fast(nib_lanes a, nib_lanes b, nib_lanes reciprocal)
{
    const __m512 q = _mm512_mul_ps(a.v, reciprocal.v);
    return (nib_lanes){_mm512_fmadd_ps(_mm512_fnmadd_ps(b.v, q, a.v), reciprocal.v, q)};
}
NIB_INLINE nib_lanes nib__lanes_load_f16(const uint16_t *p)
{
    return (nib_lanes){_mm512_cvtph_ps(_mm256_loadu_si256((const void *)p))};
}
NIB_INLINE nib_lanes nib__lanes_load_bf16(const uint16_t *p)
{
    const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const void *)p));
    return (nib_lanes){_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
NIB_INLINE nib_lanes nib__lanes_load_i8(const int8_t *p)
{
    const __m512i wide = _mm512_cvtepi8_epi32(_mm_loadu_si128((const void *)p));
    return (nib_lanes){_mm512_cvtepi32_ps(wide)};
}
NIB_INLINE nib_lanes nib__lanes_load_nibbles(const uint8_t *p, int shift)
{
    const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128((const void *)p));
    const __m512i codes = _mm512_srl_epi32(wide, _mm_cvtsi32_si128(shift));
    return (nib_lanes){_mm512_cvtepi32_ps(_mm512_and_si512(codes, _mm512_set1_epi32(15)))};
}
NIB_INLINE float nib__lanes_sum(nib_lanes a)
{
    const __m256 s8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
NIB_INLINE float nib__lanes_reduce_max(nib_lanes a)
{
    const __m256 s8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
    const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

typedef struct nib_wide {
    __m512d low, high;
} nib_wide;

NIB_INLINE nib_wide nib__wide_zero(void)
{
    return (nib_wide){_mm512_setzero_pd(), _mm512_setzero_pd()};
}
NIB_INLINE nib_wide nib__wide_add_squares(nib_lanes x, nib_wide sum)
{
    const __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(x.v)),
                  high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(x.v, 1));
    return (nib_wide){_mm512_fmadd_pd(low, low, sum.low), _mm512_fmadd_pd(high, high, sum.high)};
}
NIB_INLINE void nib__wide_store(double *p, nib_wide a)
{
    _mm512_storeu_pd(p, a.low);
    _mm512_storeu_pd(p + 8, a.high);
}

#elif defined(__AVX2__)
#include <immintrin.h>

typedef struct nib_lanes {
    __m256 low, high;
} nib_lanes;

#define NIB_LANES_OP(op, a, b) ((nib_lanes){op((a).low, (b).low), op((a).high, (b).high)})
#define NIB_LANES_PS(name) _mm256_##name##_ps

NIB_INLINE nib_lanes nib__lanes_set(float x)
{
    return (nib_lanes){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}
NIB_INLINE nib_lanes nib__lanes_load(const float *p)
{
    return (nib_lanes){_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
NIB_INLINE void nib__lanes_store(float *p, nib_lanes a)
{
    _mm256_storeu_ps(p, a.low);
    _mm256_storeu_ps(p + 8, a.high);
}
NIB_INLINE nib_lanes nib__lanes_fma(nib_lanes a, nib_lanes b, nib_lanes c)
{
    return (nib_lanes){_mm256_fmadd_ps(a.low, b.low, c.low),
                       _mm256_fmadd_ps(a.high, b.high, c.high)};
}
NIB_INLINE nib_lanes nib__lanes_sqrt(nib_lanes a)
{
    return (nib_lanes){_mm256_sqrt_ps(a.low), _mm256_sqrt_ps(a.high)};
}
NIB_INLINE __m256 nib__lanes_exp2_half(__m256 n)
{
    const __m256i bits = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(bits, 23));
}
NIB_INLINE nib_lanes nib__lanes_exp2(nib_lanes n)
{
    return (nib_lanes){nib__lanes_exp2_half(n.low), nib__lanes_exp2_half(n.high)};
}
NIB_INLINE nib_lanes nib__lanes_load_f16(const uint16_t *p)
{
    return (nib_lanes){_mm256_cvtph_ps(_mm_loadu_si128((const void *)p)),
                       _mm256_cvtph_ps(_mm_loadu_si128((const void *)(p + 8)))};
}
NIB_INLINE __m256 nib__lanes_bf16_half(const uint16_t *p)
{
    const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128((const void *)p));
    return _mm256_castsi256_ps(_mm256_slli_epi32(wide, 16));
}
NIB_INLINE nib_lanes nib__lanes_load_bf16(const uint16_t *p)
{
    return (nib_lanes){nib__lanes_bf16_half(p), nib__lanes_bf16_half(p + 8)};
}
NIB_INLINE __m256 nib__lanes_i8_half(const int8_t *p)
{
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const void *)p)));
}
NIB_INLINE nib_lanes nib__lanes_load_i8(const int8_t *p)
{
    return (nib_lanes){nib__lanes_i8_half(p), nib__lanes_i8_half(p + 8)};
}
NIB_INLINE __m256 nib__lanes_nibbles_half(const uint8_t *p, int shift)
{
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)p));
    const __m256i codes = _mm256_srl_epi32(wide, _mm_cvtsi32_si128(shift));
    return _mm256_cvtepi32_ps(_mm256_and_si256(codes, _mm256_set1_epi32(15)));
}
NIB_INLINE nib_lanes nib__lanes_load_nibbles(const uint8_t *p, int shift)
{
    return (nib_lanes){nib__lanes_nibbles_half(p, shift), nib__lanes_nibbles_half(p + 8, shift)};
}
NIB_INLINE float nib__lanes_sum(nib_lanes a)
{
    const __m256 s8 = _mm256_add_ps(a.low, a.high);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}
NIB_INLINE float nib__lanes_reduce_max(nib_lanes a)
{
    const __m256 s8 = _mm256_max_ps(a.low, a.high);
    const __m128 s4 = _mm_max_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_max_ps(s4, _mm_movehl_ps(s4, s4));
    return _mm_cvtss_f32(_mm_max_ss(s2, _mm_shuffle_ps(s2, s2, 1)));
}

typedef struct nib_wide {
    __m256d v[4];
} nib_wide;

NIB_INLINE nib_wide nib__wide_zero(void)
{
    const __m256d zero = _mm256_setzero_pd();
    return (nib_wide){{zero, zero, zero, zero}};
}
NIB_INLINE __m256d nib__wide_add_squares_quarter(__m128 x, __m256d sum)
{
    const __m256d wide = _mm256_cvtps_pd(x);
    return _mm256_fmadd_pd(wide, wide, sum);
}
NIB_INLINE nib_wide nib__wide_add_squares(nib_lanes x, nib_wide sum)
{
    return (nib_wide){{
        nib__wide_add_squares_quarter(_mm256_castps256_ps128(x.low), sum.v[0]),
        nib__wide_add_squares_quarter(_mm256_extractf128_ps(x.low, 1), sum.v[1]),
        nib__wide_add_squares_quarter(_mm256_castps256_ps128(x.high), sum.v[2]),
        nib__wide_add_squares_quarter(_mm256_extractf128_ps(x.high, 1), sum.v[3]),
    }};
}
NIB_INLINE void nib__wide_store(double *p, nib_wide a)
{
    for (int i = 0; i < 4; i++)
        _mm256_storeu_pd(p + 4 * i, a.v[i]);
}

#elif defined(NIB_LANES_NEON) /* the file defines it: all Armv8 has NEON, so no flag selects it */
#include <arm_neon.h>

typedef struct nib_lanes {
    float32x4_t q[4];
} nib_lanes;

#define NIB_LANES_EACH(expression)                                                                 \
    do {                                                                                           \
        nib_lanes r;                                                                               \
        _Pragma("GCC unroll 4") for (int i = 0; i < 4; i++) r.q[i] = (expression);                 \
        return r;                                                                                  \
    } while (0)
NIB_INLINE nib_lanes nib__lanes_set(float x) { NIB_LANES_EACH(vdupq_n_f32(x)); }
NIB_INLINE nib_lanes nib__lanes_load(const float *p) { NIB_LANES_EACH(vld1q_f32(p + 4 * i)); }
NIB_INLINE void nib__lanes_store(float *p, nib_lanes a)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, a.q[i]);
}
NIB_INLINE nib_lanes nib__lanes_add(nib_lanes a, nib_lanes b)
{
    NIB_LANES_EACH(vaddq_f32(a.q[i], b.q[i]));
}
NIB_INLINE nib_lanes nib__lanes_sub(nib_lanes a, nib_lanes b)
{
    NIB_LANES_EACH(vsubq_f32(a.q[i], b.q[i]));
}
NIB_INLINE nib_lanes nib__lanes_mul(nib_lanes a, nib_lanes b)
{
    NIB_LANES_EACH(vmulq_f32(a.q[i], b.q[i]));
}
NIB_INLINE nib_lanes nib__lanes_div(nib_lanes a, nib_lanes b)
{
    NIB_LANES_EACH(vdivq_f32(a.q[i], b.q[i]));
}
/* Not fmax, which differs for NaN: like x86, returns b if either is NaN. */
NIB_INLINE float32x4_t nib__quarter_max(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}
NIB_INLINE nib_lanes nib__lanes_max(nib_lanes a, nib_lanes b)
{
    NIB_LANES_EACH(nib__quarter_max(a.q[i], b.q[i]));
}
NIB_INLINE nib_lanes nib__lanes_min(nib_lanes a, nib_lanes b)
{
    NIB_LANES_EACH(vbslq_f32(vcltq_f32(a.q[i], b.q[i]), a.q[i], b.q[i]));
}
NIB_INLINE nib_lanes nib__lanes_sqrt(nib_lanes a) { NIB_LANES_EACH(vsqrtq_f32(a.q[i])); }
NIB_INLINE nib_lanes nib__lanes_fma(nib_lanes a, nib_lanes b, nib_lanes c)
{
    NIB_LANES_EACH(vfmaq_f32(c.q[i], a.q[i], b.q[i]));
}
NIB_INLINE nib_lanes nib__lanes_exp2(nib_lanes n)
{
    NIB_LANES_EACH(vreinterpretq_f32_s32(
        vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n.q[i]), vdupq_n_s32(127)), 23)));
}
NIB_INLINE nib_lanes nib__lanes_load_f16(const uint16_t *p)
{
    NIB_LANES_EACH(vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p + 4 * i))));
}
NIB_INLINE nib_lanes nib__lanes_load_bf16(const uint16_t *p)
{
    NIB_LANES_EACH(vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p + 4 * i), 16)));
}
NIB_INLINE nib_lanes nib__lanes_load_i8(const int8_t *p)
{
    const int8x16_t codes = vld1q_s8(p);
    const int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_high_s8(codes);
    return (nib_lanes){
        {vcvtq_f32_s32(vmovl_s16(vget_low_s16(low))), vcvtq_f32_s32(vmovl_high_s16(low)),
         vcvtq_f32_s32(vmovl_s16(vget_low_s16(high))), vcvtq_f32_s32(vmovl_high_s16(high))}};
}
NIB_INLINE nib_lanes nib__lanes_load_nibbles(const uint8_t *p, int shift)
{
    const uint8x16_t codes =
        vandq_u8(vshlq_u8(vld1q_u8(p), vdupq_n_s8((int8_t)-shift)), vdupq_n_u8(15));
    const uint16x8_t low = vmovl_u8(vget_low_u8(codes)), high = vmovl_high_u8(codes);
    return (nib_lanes){
        {vcvtq_f32_u32(vmovl_u16(vget_low_u16(low))), vcvtq_f32_u32(vmovl_high_u16(low)),
         vcvtq_f32_u32(vmovl_u16(vget_low_u16(high))), vcvtq_f32_u32(vmovl_high_u16(high))}};
}
NIB_INLINE float nib__lanes_sum(nib_lanes a)
{
    const float32x4_t s4 = vaddq_f32(vaddq_f32(a.q[0], a.q[2]), vaddq_f32(a.q[1], a.q[3]));
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}
NIB_INLINE float nib__lanes_reduce_max(nib_lanes a)
{
    const float32x4_t s4 =
        nib__quarter_max(nib__quarter_max(a.q[0], a.q[2]), nib__quarter_max(a.q[1], a.q[3]));
    const float32x4_t s2 = nib__quarter_max(s4, vextq_f32(s4, s4, 2));
    return vgetq_lane_f32(nib__quarter_max(s2, vextq_f32(s2, s2, 1)), 0);
}

typedef struct nib_wide {
    float64x2_t v[8];
} nib_wide;

NIB_INLINE nib_wide nib__wide_zero(void)
{
    nib_wide r;
    for (int i = 0; i < 8; i++)
        r.v[i] = vdupq_n_f64(0);
    return r;
}
NIB_INLINE nib_wide nib__wide_add_squares(nib_lanes x, nib_wide sum)
{
    for (int i = 0; i < 4; i++) {
        const float64x2_t low = vcvt_f64_f32(vget_low_f32(x.q[i])),
                          high = vcvt_high_f64_f32(x.q[i]);
        sum.v[2 * i] = vfmaq_f64(sum.v[2 * i], low, low);
        sum.v[2 * i + 1] = vfmaq_f64(sum.v[2 * i + 1], high, high);
    }
    return sum;
}
NIB_INLINE void nib__wide_store(double *p, nib_wide a)
{
    for (int i = 0; i < 8; i++)
        vst1q_f64(p + 2 * i, a.v[i]);
}

#else

/* Plain C. Long operations (16 calls of fmaf) are not forced inline: a call costs little next to
 * them, and inlining them into every form of every row doubled the compile time of these files. */
typedef struct nib_lanes {
    float v[16];
} nib_lanes;

#define NIB_LANES_EACH(expression)                                                                 \
    do {                                                                                           \
        nib_lanes r;                                                                               \
        for (int i = 0; i < 16; i++)                                                               \
            r.v[i] = (expression);                                                                 \
        return r;                                                                                  \
    } while (0)
NIB_INLINE nib_lanes nib__lanes_set(float x) { NIB_LANES_EACH(x); }
NIB_INLINE nib_lanes nib__lanes_load(const float *p) { NIB_LANES_EACH(p[i]); }
NIB_INLINE void nib__lanes_store(float *p, nib_lanes a) { memcpy(p, a.v, sizeof a.v); }
NIB_INLINE nib_lanes nib__lanes_add(nib_lanes a, nib_lanes b) { NIB_LANES_EACH(a.v[i] + b.v[i]); }
NIB_INLINE nib_lanes nib__lanes_sub(nib_lanes a, nib_lanes b) { NIB_LANES_EACH(a.v[i] - b.v[i]); }
NIB_INLINE nib_lanes nib__lanes_mul(nib_lanes a, nib_lanes b) { NIB_LANES_EACH(a.v[i] * b.v[i]); }
static inline nib_lanes nib__lanes_div(nib_lanes a, nib_lanes b)
{
    NIB_LANES_EACH(a.v[i] / b.v[i]);
}
static inline nib_lanes nib__lanes_max(nib_lanes a, nib_lanes b)
{
    NIB_LANES_EACH(a.v[i] > b.v[i] ? a.v[i] : b.v[i]);
}
static inline nib_lanes nib__lanes_min(nib_lanes a, nib_lanes b)
{
    NIB_LANES_EACH(a.v[i] < b.v[i] ? a.v[i] : b.v[i]);
}
static inline nib_lanes nib__lanes_sqrt(nib_lanes a) { NIB_LANES_EACH(sqrtf(a.v[i])); }
static inline nib_lanes nib__lanes_fma(nib_lanes a, nib_lanes b, nib_lanes c)
{
    NIB_LANES_EACH(fmaf(a.v[i], b.v[i], c.v[i]));
}
NIB_INLINE float nib__lanes_exp2_one(float n)
{
    if (n != n) /* converting NaN to an integer is undefined; the caller multiplies by NaN anyway */
        return n;
    const uint32_t bits = (uint32_t)((int32_t)n + 127) << 23;
    float r;
    memcpy(&r, &bits, sizeof r);
    return r;
}
static inline nib_lanes nib__lanes_exp2(nib_lanes n)
{
    NIB_LANES_EACH(nib__lanes_exp2_one(n.v[i]));
}
static inline nib_lanes nib__lanes_load_f16(const uint16_t *p)
{
    NIB_LANES_EACH(nib__f16_to_f32(p[i]));
}
static inline nib_lanes nib__lanes_load_bf16(const uint16_t *p)
{
    NIB_LANES_EACH(nib__bf16_to_f32(p[i]));
}
NIB_INLINE nib_lanes nib__lanes_load_i8(const int8_t *p) { NIB_LANES_EACH((float)p[i]); }
/* The low halves (shift 0) or the high ones (4) of sixteen bytes. */
NIB_INLINE nib_lanes nib__lanes_load_nibbles(const uint8_t *p, int shift)
{
    NIB_LANES_EACH((float)(p[i] >> shift & 15));
}
NIB_INLINE float nib__lanes_sum(nib_lanes a)
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.v[i] += a.v[i + half];
    return a.v[0];
}
/* The largest lane, by the same tree. If a lane is NaN, the result is another lane or NaN. */
NIB_INLINE float nib__lanes_reduce_max(nib_lanes a)
{
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            a.v[i] = a.v[i] > a.v[i + half] ? a.v[i] : a.v[i + half];
    return a.v[0];
}

typedef struct nib_wide {
    double v[16];
} nib_wide;

NIB_INLINE nib_wide nib__wide_zero(void) { return (nib_wide){{0}}; }
NIB_INLINE nib_wide nib__wide_add_squares(nib_lanes x, nib_wide sum)
{
    for (int i = 0; i < 16; i++)
        sum.v[i] += (double)x.v[i] * (double)x.v[i];
    return sum;
}
NIB_INLINE void nib__wide_store(double *p, nib_wide a) { memcpy(p, a.v, sizeof a.v); }

#endif

/* The tree of nib__lanes_sum. The square of an f32 is exact in f64, so it does not matter whether
 * it is added by a fused multiply-add. */
NIB_INLINE double nib__wide_sum(nib_wide a)
{
    double v[16];
    nib__wide_store(v, a);
    for (int half = 8; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            v[i] += v[i + half];
    return v[0];
}

#if defined(NIB_LANES_OP)
NIB_INLINE nib_lanes nib__lanes_add(nib_lanes a, nib_lanes b)
{
    return NIB_LANES_OP(NIB_LANES_PS(add), a, b);
}
NIB_INLINE nib_lanes nib__lanes_sub(nib_lanes a, nib_lanes b)
{
    return NIB_LANES_OP(NIB_LANES_PS(sub), a, b);
}
NIB_INLINE nib_lanes nib__lanes_mul(nib_lanes a, nib_lanes b)
{
    return NIB_LANES_OP(NIB_LANES_PS(mul), a, b);
}
NIB_INLINE nib_lanes nib__lanes_div(nib_lanes a, nib_lanes b)
{
    return NIB_LANES_OP(NIB_LANES_PS(div), a, b);
}
/* Like x86: returns b if either is NaN. */
NIB_INLINE nib_lanes nib__lanes_max(nib_lanes a, nib_lanes b)
{
    return NIB_LANES_OP(NIB_LANES_PS(max), a, b);
}
NIB_INLINE nib_lanes nib__lanes_min(nib_lanes a, nib_lanes b)
{
    return NIB_LANES_OP(NIB_LANES_PS(min), a, b);
}
#endif

/* Sixteen values of a type: f16, bf16 and int8 are widened; any other type is read as f32. */
NIB_INLINE nib_lanes nib__lanes_load_as(const void *p, nib_type type)
{
    switch (type) {
    case NIB_TYPE_F16: return nib__lanes_load_f16(p);
    case NIB_TYPE_BF16: return nib__lanes_load_bf16(p);
    case NIB_TYPE_I8: return nib__lanes_load_i8(p);
    default: return nib__lanes_load(p);
    }
}

/* Sixteen codes in eight bytes, the first in the low half of the first byte. */
NIB_INLINE nib_lanes nib__lanes_load_pairs(const uint8_t *p)
{
#if defined(__AVX2__)
    const __m128i wide = _mm_cvtepu8_epi16(_mm_loadl_epi64((const void *)p));
    uint8_t codes[16];
    _mm_storeu_si128((void *)codes, _mm_or_si128(wide, _mm_slli_epi16(wide, 4)));
#else
    uint8_t codes[16];
    for (int i = 0; i < 8; i++)
        codes[2 * i] = p[i] & 15, codes[2 * i + 1] = p[i] >> 4;
#endif
    return nib__lanes_load_nibbles(codes, 0);
}

/* The first `count` (1..15) values of p, then zeros. */
NIB_INLINE nib_lanes nib__lanes_load_part(const float *p, int64_t count)
{
#if defined(__AVX512F__)
    return (nib_lanes){_mm512_maskz_loadu_ps((__mmask16)((1u << count) - 1), p)};
#else
    float part[16] = {0};
    memcpy(part, p, (size_t)count * sizeof *p);
    return nib__lanes_load(part);
#endif
}

NIB_INLINE void nib__lanes_store_part(float *p, nib_lanes a, int64_t count)
{
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << count) - 1), a.v);
#else
    float part[16];
    nib__lanes_store(part, a);
    memcpy(p, part, (size_t)count * sizeof *p);
#endif
}

/* The first `count` (1..15) lanes, then zeros. */
NIB_INLINE nib_lanes nib__lanes_keep_first(nib_lanes a, int64_t count)
{
#if defined(__AVX512F__)
    return (nib_lanes){_mm512_maskz_mov_ps((__mmask16)((1u << count) - 1), a.v)};
#else
    float all[16];
    nib__lanes_store(all, a);
    return nib__lanes_load_part(all, count);
#endif
}

/* Zeros in the first `count` (1..15) lanes; the other lanes stay. */
NIB_INLINE nib_lanes nib__lanes_clear_first(nib_lanes a, int64_t count)
{
#if defined(__AVX512F__)
    return (nib_lanes){_mm512_maskz_mov_ps((__mmask16)(0xffffu << count), a.v)};
#else
    float all[16];
    nib__lanes_store(all, a);
    memset(all, 0, (size_t)count * sizeof *all);
    return nib__lanes_load(all);
#endif
}

/* x as lanes from column i on, zeros past width. */
NIB_INLINE nib_lanes nib__lanes_load_at(const float *x, int64_t i, int64_t width)
{
    return i + 16 <= width ? nib__lanes_load(x + i) : nib__lanes_load_part(x + i, width - i);
}

NIB_INLINE void nib__lanes_store_at(float *x, int64_t i, int64_t width, nib_lanes value)
{
    if (i + 16 <= width)
        nib__lanes_store(x + i, value);
    else
        nib__lanes_store_part(x + i, value, width - i);
}

/* The even-indexed values of a followed by b, and the odd-indexed ones. */
NIB_INLINE void nib__lanes_unzip(nib_lanes a, nib_lanes b, nib_lanes *even, nib_lanes *odd)
{
#if defined(__AVX512F__)
    const __m512i first =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(1));
    even->v = _mm512_permutex2var_ps(a.v, first, b.v);
    odd->v = _mm512_permutex2var_ps(a.v, second, b.v);
#elif defined(__AVX2__)
    const __m256d e0 = _mm256_castps_pd(_mm256_shuffle_ps(a.low, a.high, 0x88)),
                  e1 = _mm256_castps_pd(_mm256_shuffle_ps(b.low, b.high, 0x88)),
                  o0 = _mm256_castps_pd(_mm256_shuffle_ps(a.low, a.high, 0xdd)),
                  o1 = _mm256_castps_pd(_mm256_shuffle_ps(b.low, b.high, 0xdd));
    even->low = _mm256_castpd_ps(_mm256_permute4x64_pd(e0, 0xd8));
    even->high = _mm256_castpd_ps(_mm256_permute4x64_pd(e1, 0xd8));
    odd->low = _mm256_castpd_ps(_mm256_permute4x64_pd(o0, 0xd8));
    odd->high = _mm256_castpd_ps(_mm256_permute4x64_pd(o1, 0xd8));
#elif defined(NIB_LANES_NEON)
    for (int i = 0; i < 2; i++) {
        even->q[i] = vuzp1q_f32(a.q[2 * i], a.q[2 * i + 1]);
        even->q[2 + i] = vuzp1q_f32(b.q[2 * i], b.q[2 * i + 1]);
        odd->q[i] = vuzp2q_f32(a.q[2 * i], a.q[2 * i + 1]);
        odd->q[2 + i] = vuzp2q_f32(b.q[2 * i], b.q[2 * i + 1]);
    }
#else
    float all[32], e[16], o[16];
    nib__lanes_store(all, a), nib__lanes_store(all + 16, b);
    for (int i = 0; i < 16; i++)
        e[i] = all[2 * i], o[i] = all[2 * i + 1];
    *even = nib__lanes_load(e), *odd = nib__lanes_load(o);
#endif
}

/* The inverse of nib__lanes_unzip. */
NIB_INLINE void nib__lanes_zip(nib_lanes even, nib_lanes odd, nib_lanes *a, nib_lanes *b)
{
#if defined(__AVX512F__)
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    a->v = _mm512_permutex2var_ps(even.v, first, odd.v);
    b->v = _mm512_permutex2var_ps(even.v, second, odd.v);
#elif defined(__AVX2__)
    const __m256 l0 = _mm256_unpacklo_ps(even.low, odd.low),
                 h0 = _mm256_unpackhi_ps(even.low, odd.low),
                 l1 = _mm256_unpacklo_ps(even.high, odd.high),
                 h1 = _mm256_unpackhi_ps(even.high, odd.high);
    a->low = _mm256_permute2f128_ps(l0, h0, 0x20), a->high = _mm256_permute2f128_ps(l0, h0, 0x31);
    b->low = _mm256_permute2f128_ps(l1, h1, 0x20), b->high = _mm256_permute2f128_ps(l1, h1, 0x31);
#elif defined(NIB_LANES_NEON)
    for (int i = 0; i < 2; i++) {
        a->q[2 * i] = vzip1q_f32(even.q[i], odd.q[i]);
        a->q[2 * i + 1] = vzip2q_f32(even.q[i], odd.q[i]);
        b->q[2 * i] = vzip1q_f32(even.q[2 + i], odd.q[2 + i]);
        b->q[2 * i + 1] = vzip2q_f32(even.q[2 + i], odd.q[2 + i]);
    }
#else
    float all[32], e[16], o[16];
    nib__lanes_store(e, even), nib__lanes_store(o, odd);
    for (int i = 0; i < 16; i++)
        all[2 * i] = e[i], all[2 * i + 1] = o[i];
    *a = nib__lanes_load(all), *b = nib__lanes_load(all + 16);
#endif
}

#if !defined(__AVX512F__)
/* p * 2^n for integral n, if the result is normal. */
NIB_INLINE nib_lanes nib__lanes_scale(nib_lanes p, nib_lanes n)
{
    return nib__lanes_mul(p, nib__lanes_exp2(n));
}
#endif

/* The common part of e^x and tanh: x = n ln 2 + r with |r| <= ln 2 / 2. Returns (e^r - 1 - r) / r^2
 * as a polynomial in r (Chebyshev interpolation, degree 4). */
NIB_INLINE nib_lanes nib__lanes_exp_parts(nib_lanes x, nib_lanes *n, nib_lanes *r)
{
    const nib_lanes round =
        nib__lanes_set(12582912.0f); /* 1.5 * 2^23: adding it rounds to integer */
    *n = nib__lanes_sub(nib__lanes_fma(x, nib__lanes_set(1.44269504f), round), round);
    *r = nib__lanes_fma(*n, nib__lanes_set(-0.693359375f), x);
    *r = nib__lanes_fma(*n, nib__lanes_set(2.12194442e-4f), *r);
    nib_lanes p = nib__lanes_set(1.3926184e-3f);
    p = nib__lanes_fma(p, *r, nib__lanes_set(8.36317893e-3f));
    p = nib__lanes_fma(p, *r, nib__lanes_set(4.16665561e-2f));
    p = nib__lanes_fma(p, *r, nib__lanes_set(1.66665763e-1f));
    return nib__lanes_fma(p, *r, nib__lanes_set(0.5f));
}

/* e^x per lane: 2^n e^r, within 0.55 ulp for all r. Arguments are clamped to [-87.33, 88.37], so
 * the result is always normal. NaN stays NaN, due to the order of operands. */
NIB_INLINE nib_lanes nib__lanes_exp(nib_lanes x)
{
    nib_lanes n, r;
    x = nib__lanes_min(nib__lanes_set(88.37f), nib__lanes_max(nib__lanes_set(-87.33f), x));
    nib_lanes p = nib__lanes_exp_parts(x, &n, &r);
    p = nib__lanes_fma(p, r, nib__lanes_set(1.0f));
    p = nib__lanes_fma(p, r, nib__lanes_set(1.0f));
    return nib__lanes_scale(p, n);
}

/* tanh x = t / (t + 2) with t = e^2x - 1 = 2^n (e^r - 1) + (2^n - 1), so that small results keep
 * their digits: within 2e-7 relative. 2x is clamped to [-20, 20], where tanh rounds to 1. NaN stays
 * NaN. */
NIB_INLINE nib_lanes nib__lanes_tanh(nib_lanes x)
{
    const nib_lanes one = nib__lanes_set(1.0f);
    nib_lanes n, r;
    x = nib__lanes_min(nib__lanes_set(20.0f),
                       nib__lanes_max(nib__lanes_set(-20.0f), nib__lanes_add(x, x)));
    const nib_lanes p = nib__lanes_exp_parts(x, &n, &r);
    const nib_lanes part = nib__lanes_fma(nib__lanes_mul(r, r), p, r);
    const nib_lanes power = nib__lanes_scale(one, n);
    const nib_lanes t = nib__lanes_fma(power, part, nib__lanes_sub(power, one));
    return nib__lanes_div(t, nib__lanes_add(t, nib__lanes_set(2.0f)));
}

/* cap * tanh(x / cap): about x for small x, never beyond the cap. */
NIB_INLINE nib_lanes nib__lanes_softcap(nib_lanes x, nib_lanes cap)
{
    return nib__lanes_mul(cap, nib__lanes_tanh(nib__lanes_div(x, cap)));
}

/* g / (1 + e^x), and *sigmoid = 1 / (1 + e^x); each is one rounded division. Callers must ensure:
 * x > 87 only where |g| > 87, which vdivps divides; x > 2 only where |g| > 1, so that the fast
 * quotient cannot underflow. */
NIB_INLINE nib_lanes nib__lanes_logistic(nib_lanes g, nib_lanes x, nib_lanes *sigmoid)
{
    const nib_lanes one = nib__lanes_set(1.0f);
    const nib_lanes denominator = nib__lanes_add(one, nib__lanes_exp(x));
#if defined(__AVX512F__)
    if (nib__lanes_can_divide_fast(g, denominator)) {
        *sigmoid = nib__lanes_invert(denominator);
        return nib__lanes_divide_fast(g, denominator, *sigmoid);
    }
#endif
    *sigmoid = nib__lanes_div(one, denominator);
    return nib__lanes_div(g, denominator);
}

/* 1 / (1 + e^-g), one rounded division. */
NIB_INLINE nib_lanes nib__lanes_sigmoid(nib_lanes g)
{
    const nib_lanes one = nib__lanes_set(1.0f);
    return nib__lanes_div(
        one, nib__lanes_add(one, nib__lanes_exp(nib__lanes_sub(nib__lanes_set(0.0f), g))));
}

/* silu(g) = g / (1 + e^-g), and *sigmoid = 1 / (1 + e^-g). */
NIB_INLINE nib_lanes nib__lanes_silu(nib_lanes g, nib_lanes *sigmoid)
{
    return nib__lanes_logistic(g, nib__lanes_sub(nib__lanes_set(0.0f), g), sigmoid);
}

/* gelu(g) = g / (1 + e^-2u) with 2u = 2 sqrt(2 / pi) (g + 0.044715 g^3), and *sigmoid = 1 / (1 +
 * e^-2u). -2u = g * (-0.0713548163 * g^2 - 1.59576912) (the parenthesis is one fma), clamped to at
 * most 87. */
NIB_INLINE nib_lanes nib__lanes_gelu(nib_lanes g, nib_lanes *sigmoid)
{
    const nib_lanes slope = nib__lanes_fma(nib__lanes_mul(g, g), nib__lanes_set(-0.0713548163f),
                                           nib__lanes_set(-1.59576912f));
    const nib_lanes x = nib__lanes_min(nib__lanes_set(87.0f), nib__lanes_mul(g, slope));
    return nib__lanes_logistic(g, x, sigmoid);
}
/* d(2u)/dg = 0.214064449 * g^2 + 1.59576912, fused. */
NIB_INLINE nib_lanes nib__lanes_gelu_slope(nib_lanes g)
{
    return nib__lanes_fma(nib__lanes_mul(g, g), nib__lanes_set(0.214064449f),
                          nib__lanes_set(1.59576912f));
}

/* Like nib__f32_to_bf16, in a form that compilers vectorize. */
NIB_INLINE void nib__convert_to_bf16(uint16_t *NIB_RESTRICT out, const float *NIB_RESTRICT x,
                                     int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        uint32_t bits;
        memcpy(&bits, &x[i], sizeof bits);
        const uint32_t near = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
        const uint32_t nan = 0x7fc0U | (bits >> 16 & 0x8000U);
        out[i] = (uint16_t)((bits & 0x7fffffffU) > 0x7f800000U ? nan : near);
    }
}

#endif
