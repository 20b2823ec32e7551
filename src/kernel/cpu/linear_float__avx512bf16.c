/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with BF16 sums for AVX-512 BF16: one vdpbf16ps per two weights. The instruction
 * flushes denormals and rounds to nearest regardless of the control word, odd k first
 * (tests/unit/test_linear_float.c checks the processor).
 */
#include "linear_float.h"

#if NIB_BUILT_X86

#include "linear_float_x512.h"

#define NATIVE NIB_ELEMENT_BF16
enum { TILE_M = 12, GROUP_M = 8, TILE_P = 2, WIDE_M = 6, WIDE_P = 4, WIDE_MAX_M = 24 };
enum { SWAPS = false, HOLDS = true, SPAN = 256, WIDE_SPAN = 256 };

typedef __m512i pair;

typedef int32_t x_pair;

typedef __m512i x_value;

/* Pairs of f32 values that are exact in bf16. */
NIB_INLINE pair pair_of_values(vec even, vec odd)
{
    const __m512i low = _mm512_srli_epi32(_mm512_castps_si512(even), 16);
    return _mm512_or_si512(low, _mm512_castps_si512(odd));
}

NIB_INLINE pair i4_pair(const bool has_zeros, raw held, const int i, ivec zero)
{
    if (has_zeros)
        return pair_of_values(i4_shifted_values(held, i, 0, zero),
                              i4_shifted_values(held, i, 1, zero));
    /* bf16 of 0..7, -8..-1, twice: vpermw indexes with five bits, of which four are the code. */
    const __m512i table = _mm512_set_epi32(
        (int)0xbf80c000, (int)0xc040c080, (int)0xc0a0c0c0, (int)0xc0e0c100, 0x40e040c0, 0x40a04080,
        0x40404000, 0x3f800000, (int)0xbf80c000, (int)0xc040c080, (int)0xc0a0c0c0, (int)0xc0e0c100,
        0x40e040c0, 0x40a04080, 0x40404000, 0x3f800000);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(held.low, (unsigned)(4 * i)), table);
}

/* bf16 of the e2m1 values, in a table like that of int4. */
NIB_INLINE pair e2m1_pair(raw held, const int i)
{
    const __m512i table = _mm512_set_epi32(
        (int)0xc0c0c080, (int)0xc040c000, (int)0xbfc0bf80, (int)0xbf008000, 0x40c04080, 0x40404000,
        0x3fc03f80, 0x3f000000, (int)0xc0c0c080, (int)0xc040c000, (int)0xbfc0bf80, (int)0xbf008000,
        0x40c04080, 0x40404000, 0x3fc03f80, 0x3f000000);
    return _mm512_permutexvar_epi16(_mm512_srli_epi16(held.low, (unsigned)(4 * i)), table);
}

NIB_INLINE pair pair_get(const nib_element f, const bool has_zeros, const bool swap,
                         const uint8_t *p, raw held, const int i, ivec zero)
{
    (void)swap;
    switch (f) {
    case NIB_ELEMENT_BF16: return _mm512_loadu_si512(p + 64 * i);
    case NIB_ELEMENT_I8:
        return pair_of_values(load_i8(p + 32 * i, zero, has_zeros),
                              load_i8(p + 32 * i + 16, zero, has_zeros));
    case NIB_ELEMENT_I1:
    case NIB_ELEMENT_I2:
    case NIB_ELEMENT_I3:
    case NIB_ELEMENT_I4: return i4_pair(has_zeros, held, i, zero);
    case NIB_ELEMENT_I5:
    case NIB_ELEMENT_I6:
        if (!has_zeros)
            return odd_words(f, held, i);
        return pair_of_values(byte_values(held, i, 0, zero), byte_values(held, i, 1, zero));
    case NIB_ELEMENT_I7:
        return pair_of_values(byte_values(held, i, 0, zero), byte_values(held, i, 1, zero));
    case NIB_ELEMENT_E2M1: return e2m1_pair(held, i);
    default: return f8_words(f, p + 32 * i);
    }
}

NIB_INLINE void pair_store(uint8_t *p, pair w) { _mm512_storeu_si512(p, w); }

NIB_INLINE pair pair_native(const uint8_t *p) { return _mm512_loadu_si512(p); }

NIB_INLINE x_value x_get(const x_pair *x) { return _mm512_set1_epi32(*x); }

NIB_INLINE vec pair_fma(pair w, x_value x, vec sum)
{
    return _mm512_dpbf16_ps(sum, (__m512bh)w, (__m512bh)x);
}

/* vdpbf16ps has its own order, so nothing is ever swapped. */
NIB_INLINE void put_halves(x_pair *out, uint32_t even, uint32_t odd)
{
    const uint32_t both = even | odd << 16;
    memcpy(out, &both, sizeof both);
}

NIB_INLINE void x_put_bf16(x_pair *out, const uint16_t *x, int64_t count, bool swap)
{
    (void)swap;
    memcpy(out, x, (size_t)(count / 2) * sizeof *out);
    if (count % 2 != 0)
        put_halves(out + count / 2, x[count - 1], 0);
}

/* Never called: f32 activations have F32 sums. */
NIB_INLINE void x_put_f32(x_pair *out, const float *x, int64_t count, bool swap)
{
    (void)out, (void)x, (void)count, (void)swap;
}

#include "linear_float_body.h"

void nib__linear_bf16_avx512bf16(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, true);
}

#endif
