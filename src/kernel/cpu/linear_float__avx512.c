/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with float accumulators for AVX-512: one f32 fused multiply-add per weight. Also the
 * BF16 sums for processors without vdpbf16ps, and for one token where decoding to f32 is cheaper.
 */
#include "linear_float.h"

#if NIB_BUILT_X86

#include "linear_float_x512.h"

#define NATIVE NIB_ELEMENT_F32
enum { TILE_M = 12, GROUP_M = 8, TILE_P = 2, WIDE_M = 4, WIDE_P = 4, WIDE_MAX_M = 8 };
enum { SWAPS = true, HOLDS = true, SPAN = 256, WIDE_SPAN = 128 };

/* In summing order: even k first for F32 sums, odd k first for BF16 sums. */
typedef struct pair {
    vec first, second;
} pair;

typedef struct x_pair {
    float first, second;
} x_pair;

typedef pair x_value;

NIB_INLINE pair pair_of_bf16(__m512i words)
{
    const __m512i high = _mm512_set1_epi32((int)0xffff0000);
    return (pair){_mm512_castsi512_ps(_mm512_slli_epi32(words, 16)),
                  _mm512_castsi512_ps(_mm512_and_si512(words, high))};
}

NIB_INLINE vec load_f16(const uint8_t *p)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const void *)p));
}

NIB_INLINE pair i4_pair(const bool has_zeros, raw held, const int i, ivec zero)
{
    if (has_zeros)
        return (pair){i4_shifted_values(held, i, 0, zero), i4_shifted_values(held, i, 1, zero)};
    const __m512 table = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, -8, -7, -6, -5, -4, -3, -2, -1);
    return (pair){
        _mm512_permutexvar_ps(_mm512_srli_epi32(held.low, (unsigned)(4 * i)), table),
        _mm512_permutexvar_ps(_mm512_srli_epi32(held.low, (unsigned)(4 * i + 16)), table)};
}

NIB_INLINE pair e2m1_pair(raw held, const int i)
{
    const __m512 table =
        _mm512_setr_ps(0, 0.5F, 1, 1.5F, 2, 3, 4, 6, -0.0F, -0.5F, -1, -1.5F, -2, -3, -4, -6);
    return (pair){
        _mm512_permutexvar_ps(_mm512_srli_epi32(held.low, (unsigned)(4 * i)), table),
        _mm512_permutexvar_ps(_mm512_srli_epi32(held.low, (unsigned)(4 * i + 16)), table)};
}

/* Even k, then odd k. */
NIB_INLINE pair pair_decode(const nib_element f, const bool has_zeros, const uint8_t *p, raw held,
                            const int i, ivec zero)
{
    switch (f) {
    case NIB_ELEMENT_F32:
        return (pair){_mm512_loadu_ps(p + 128 * i), _mm512_loadu_ps(p + 128 * i + 64)};
    case NIB_ELEMENT_F16: return (pair){load_f16(p + 64 * i), load_f16(p + 64 * i + 32)};
    case NIB_ELEMENT_BF16: return pair_of_bf16(_mm512_loadu_si512(p + 64 * i));
    case NIB_ELEMENT_I8:
        return (pair){load_i8(p + 32 * i, zero, has_zeros),
                      load_i8(p + 32 * i + 16, zero, has_zeros)};
    case NIB_ELEMENT_I1:
    case NIB_ELEMENT_I2:
    case NIB_ELEMENT_I3:
    case NIB_ELEMENT_I4: return i4_pair(has_zeros, held, i, zero);
    case NIB_ELEMENT_I5:
    case NIB_ELEMENT_I6:
        if (!has_zeros)
            return pair_of_bf16(odd_words(f, held, i));
        return (pair){byte_values(held, i, 0, zero), byte_values(held, i, 1, zero)};
    case NIB_ELEMENT_I7:
        return (pair){byte_values(held, i, 0, zero), byte_values(held, i, 1, zero)};
    case NIB_ELEMENT_E2M1: return e2m1_pair(held, i);
    default: return pair_of_bf16(f8_words(f, p + 32 * i));
    }
}

NIB_INLINE x_value x_get(const x_pair *x)
{
    return (x_value){vec_set(x->first), vec_set(x->second)};
}

NIB_INLINE vec pair_fma(pair w, x_value x, vec sum)
{
    return vec_fma(x.second, w.second, vec_fma(x.first, w.first, sum));
}

#include "linear_float_stage.h"
#include "linear_float_body.h"

void nib__linear_f32_avx512(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, false);
}

void nib__linear_bf16_avx512(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, true);
}

#endif
