/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with float accumulators for NEON: four registers make 16 lanes. Activations are
 * multiplied by element, so one register holds a staged pair for a whole tile.
 */
#include "e8m0_lanes.h"
#include "linear_float.h"

#if NIB_BUILT_ARM

#include <arm_neon.h>

#define NATIVE NIB_ELEMENT_F32
enum { TILE_M = 4, GROUP_M = 4, TILE_P = 1, WIDE_M = 2, WIDE_P = 2, WIDE_MAX_M = 2, QUARTERS = 4 };
enum { SWAPS = true, HOLDS = false, SPAN = 128, WIDE_SPAN = 128 };

typedef struct vec {
    float32x4_t q[QUARTERS];
} vec;

typedef struct ivec {
    int32x4_t q[QUARTERS];
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

typedef float32x2_t x_value;

#define EACH(type, expression)                                                                     \
    do {                                                                                           \
        type r;                                                                                    \
        _Pragma("GCC unroll 4") for (int i = 0; i < QUARTERS; i++) r.q[i] = (expression);          \
        return r;                                                                                  \
    } while (0)

NIB_INLINE vec vec_set(float x) { EACH(vec, vdupq_n_f32(x)); }
NIB_INLINE vec vec_zero(void) { return vec_set(0); }
NIB_INLINE vec vec_load(const float *p) { EACH(vec, vld1q_f32(p + 4 * i)); }
NIB_INLINE vec vec_add(vec a, vec b) { EACH(vec, vaddq_f32(a.q[i], b.q[i])); }
NIB_INLINE vec vec_mul(vec a, vec b) { EACH(vec, vmulq_f32(a.q[i], b.q[i])); }
NIB_INLINE vec vec_fma(vec a, vec b, vec c) { EACH(vec, vfmaq_f32(c.q[i], a.q[i], b.q[i])); }

NIB_INLINE void vec_store(float *p, vec a)
{
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++)
        vst1q_f32(p + 4 * i, a.q[i]);
}

/* The first `count` of 16 values, then zeros. */
NIB_INLINE vec vec_load_part(const float *p, int count)
{
    if (count == NIB_FLOAT_PANEL)
        return vec_load(p);
    float part[NIB_FLOAT_PANEL] = {0};
    memcpy(part, p, (size_t)count * sizeof *p);
    return vec_load(part);
}

NIB_INLINE void vec_store_part(float *p, vec a, int count)
{
    if (count == NIB_FLOAT_PANEL) {
        vec_store(p, a);
        return;
    }
    float part[NIB_FLOAT_PANEL];
    vec_store(part, a);
    memcpy(p, part, (size_t)count * sizeof *p);
}

/* ---- numbers as packed ---- */

NIB_INLINE float32x4_t load_f16(const uint8_t *p)
{
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16((const void *)p)));
}

NIB_INLINE vec load_f16_vec(const uint8_t *p) { EACH(vec, load_f16(p + 8 * i)); }

NIB_INLINE float32x4_t load_bf16(const uint8_t *p)
{
    return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16((const void *)p), 16));
}

NIB_INLINE vec load_e8m0(const uint8_t *p)
{
    const uint8x16_t codes = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(codes)), high = vmovl_high_u8(codes);
    return (vec){{nib__e8m0_4(vmovl_u16(vget_low_u16(low))), nib__e8m0_4(vmovl_high_u16(low)),
                  nib__e8m0_4(vmovl_u16(vget_low_u16(high))), nib__e8m0_4(vmovl_high_u16(high))}};
}

NIB_INLINE vec vec_values(const uint8_t *p, nib_type type)
{
    switch (type) {
    case NIB_TYPE_F32: return vec_load((const float *)(const void *)p);
    case NIB_TYPE_E8M0: return load_e8m0(p);
    case NIB_TYPE_F16: return load_f16_vec(p);
    default: EACH(vec, load_bf16(p + 8 * i));
    }
}

/* ---- codes ---- */

/* 16 int8 values; zeros for NULL. */
NIB_INLINE ivec ivec_load_i8(const uint8_t *p)
{
    if (p == NULL)
        EACH(ivec, vdupq_n_s32(0 * i));
    const int8x16_t codes = vld1q_s8((const void *)p);
    const int16x8_t low = vmovl_s8(vget_low_s8(codes)), high = vmovl_high_s8(codes);
    return (ivec){{vmovl_s16(vget_low_s16(low)), vmovl_high_s16(low), vmovl_s16(vget_low_s16(high)),
                   vmovl_high_s16(high)}};
}

NIB_INLINE ivec ivec_load(const uint8_t *p)
{
    EACH(ivec, vld1q_s32((const int32_t *)(const void *)p + 4 * i));
}

NIB_INLINE ivec ivec_load_u16(const uint8_t *p)
{
    EACH(ivec,
         vreinterpretq_s32_u32(vmovl_u16(vld1_u16((const uint16_t *)(const void *)p + 4 * i))));
}

NIB_INLINE ivec ivec_load_u8(const uint8_t *p)
{
    const uint8x16_t bytes = vld1q_u8(p);
    const uint16x8_t low = vmovl_u8(vget_low_u8(bytes)), high = vmovl_high_u8(bytes);
    return (ivec){{vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(low))),
                   vreinterpretq_s32_u32(vmovl_high_u16(low)),
                   vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(high))),
                   vreinterpretq_s32_u32(vmovl_high_u16(high))}};
}

/* (v | v << shift) & mask */
NIB_INLINE ivec spread(ivec v, const int shift, const uint32_t mask)
{
    const int32x4_t left = vdupq_n_s32(shift), kept = vdupq_n_s32((int32_t)mask);
    EACH(ivec, vandq_s32(vorrq_s32(v.q[i], vshlq_s32(v.q[i], left)), kept));
}

/* The bits above the fourth, or all of up to three, in int4's places. */
NIB_INLINE ivec odd_tops(const int bits, const uint8_t *p)
{
    ivec tops = ivec_load_i8(NULL);
    if ((bits & 2) != 0) {
        tops = spread(ivec_load_u16(p), 14, 0x33333333);
        p += 32;
    }
    if ((bits & 1) != 0) {
        const ivec one =
            spread(spread(spread(ivec_load_u8(p), 15, 0x00550055), 4, 0x05050505), 2, 0x11111111);
        const int32x4_t left = vdupq_n_s32((bits & 2) != 0 ? 2 : 0);
        EACH(ivec, vorrq_s32(tops.q[i], vshlq_s32(one.q[i], left)));
    }
    return tops;
}

/* Adds the offset of unsigned codes, and inverts the top bits. */
NIB_INLINE ivec odd_signed(const nib_element f, ivec codes)
{
    const uint32_t signs = odd_bits(f) < 4 ? 0x88888888 : 0x80808080;
    const int32x4_t top = vdupq_n_s32((int32_t)signs), offset = vdupq_n_s32((int32_t)odd_offset(f));
    EACH(ivec, veorq_s32(vaddq_s32(codes.q[i], offset), top));
}

NIB_INLINE raw odd_load(const nib_element f, const uint8_t *p)
{
    const int bits = odd_bits(f);
    const int32x4_t low = vdupq_n_s32(0x0f0f0f0f);
    const ivec tops = odd_tops(bits, bits > 4 ? p + 64 : p);
    if (bits < 4)
        return (raw){odd_signed(f, tops), tops};
    const ivec codes = ivec_load(p);
    ivec even, odd;
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++) {
        even.q[i] =
            vorrq_s32(vandq_s32(codes.q[i], low), vshlq_n_s32(vandq_s32(tops.q[i], low), 4));
        odd.q[i] = vorrq_s32(vandq_s32(vshrq_n_s32(codes.q[i], 4), low), vbicq_s32(tops.q[i], low));
    }
    return (raw){odd_signed(f, even), odd_signed(f, odd)};
}

NIB_INLINE raw raw_load(const nib_element f, const uint8_t *p)
{
    if (is_odd(f))
        return odd_load(f, p);
    const ivec none = ivec_load_i8(NULL);
    return (raw){is_nibble(f) ? ivec_load(p) : none, none};
}

NIB_INLINE float32x4_t even_values(uint32x4_t words)
{
    return vreinterpretq_f32_u32(vshlq_n_u32(words, 16));
}

NIB_INLINE float32x4_t odd_values(uint32x4_t words)
{
    return vreinterpretq_f32_u32(vandq_u32(words, vdupq_n_u32(0xffff0000)));
}

/* Words of two bf16, even k in the low half. */
NIB_INLINE pair pair_of_bf16(const uint32x4_t words[QUARTERS])
{
    pair w;
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++) {
        w.first.q[i] = even_values(words[i]);
        w.second.q[i] = odd_values(words[i]);
    }
    return w;
}

/* bf16 of one half of 16 recoded f8 codes; right only for normal numbers. */
NIB_INLINE uint16x8_t f8_normal(const nib_element f, uint16x8_t code)
{
    const uint16x8_t shifted = f == NIB_ELEMENT_E4M3 ? vshlq_n_u16(code, 3) : vshlq_n_u16(code, 4);
    const uint16x8_t biased =
        vaddq_u16(shifted, vdupq_n_u16(f == NIB_ELEMENT_E4M3 ? 120 << 7 : 111 << 7));
    const uint16x8_t stray = vdupq_n_u16(f == NIB_ELEMENT_E4M3 ? 1 << 3 : 1 << 4);
    return vorrq_u16(vbicq_u16(biased, stray), vshlq_n_u16(code, 15));
}

/* 16 recoded f8 codes (see nib__e4m3_small) as bf16: 8 outputs by 2 k. */
NIB_INLINE void f8_words(const nib_element f, const uint8_t *p, uint32x4_t words[2])
{
    const uint8x16_t code = vld1q_u8(p);
    /* The table's words as 16 low and 16 high bytes; codes past it give 0. */
    const uint8x16x2_t table =
        vld2q_u8((const void *)(f == NIB_ELEMENT_E4M3 ? nib__e4m3_small : nib__e5m2_small));
    const uint8x16_t low = vqtbl1q_u8(table.val[0], code), high = vqtbl1q_u8(table.val[1], code);
    const uint8x16_t large = vcgeq_u8(code, vdupq_n_u8(16));
    const uint8x16_t first = vandq_u8(
        vreinterpretq_u8_u16(f8_normal(f, vmovl_u8(vget_low_u8(code)))), vzip1q_u8(large, large));
    const uint8x16_t second =
        vandq_u8(vreinterpretq_u8_u16(f8_normal(f, vmovl_high_u8(code))), vzip2q_u8(large, large));
    words[0] = vreinterpretq_u32_u8(vorrq_u8(first, vzip1q_u8(low, high)));
    words[1] = vreinterpretq_u32_u8(vorrq_u8(second, vzip2q_u8(low, high)));
}

NIB_INLINE pair f8_pair(const nib_element f, const uint8_t *p)
{
    uint32x4_t words[QUARTERS];
    f8_words(f, p, words);
    f8_words(f, p + 16, words + 2);
    return pair_of_bf16(words);
}

NIB_INLINE pair bf16_pair(const uint8_t *p)
{
    uint32x4_t words[QUARTERS];
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++)
        words[i] = vld1q_u32((const uint32_t *)(const void *)p + 4 * i);
    return pair_of_bf16(words);
}

NIB_INLINE vec load_i8(const uint8_t *p, ivec zero, const bool has_zeros)
{
    const ivec code = ivec_load_i8(p);
    EACH(vec, vcvtq_f32_s32(has_zeros ? vsubq_s32(code.q[i], zero.q[i]) : code.q[i]));
}

/* The `bits` (4 or 8) of each lane from bit `at` on, as a signed number. */
NIB_INLINE vec field_values(ivec held, const int at, const int bits, ivec zero,
                            const bool has_zeros)
{
    const int32x4_t left = vdupq_n_s32(32 - bits - at), right = vdupq_n_s32(bits - 32);
    ivec code;
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++) {
        code.q[i] = vshlq_s32(vshlq_s32(held.q[i], left), right);
        if (has_zeros)
            code.q[i] = vsubq_s32(code.q[i], zero.q[i]);
    }
    EACH(vec, vcvtq_f32_s32(code.q[i]));
}

/* Pair i of 8 k: nibbles i and i + 4 of each lane. Two tables give the bytes of a code's bf16. Even
 * i are in low nibbles, i < 2 in even bytes. */
NIB_INLINE pair e2m1_pair(raw held, const int i)
{
    static const uint8_t highs[16] = {0x00, 0x3f, 0x3f, 0x3f, 0x40, 0x40, 0x40, 0x40,
                                      0x80, 0xbf, 0xbf, 0xbf, 0xc0, 0xc0, 0xc0, 0xc0},
                         lows[16] = {0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0,
                                     0x00, 0x00, 0x80, 0xc0, 0x00, 0x40, 0x80, 0xc0};
    const uint8x16_t high = vld1q_u8(highs), low = vld1q_u8(lows);
    uint32x4_t words[QUARTERS];
#pragma GCC unroll 4
    for (int q = 0; q < QUARTERS; q++) {
        const uint8x16_t bytes = vreinterpretq_u8_s32(held.codes.q[q]);
        const uint8x16_t code = i % 2 == 0 ? vandq_u8(bytes, vdupq_n_u8(15)) : vshrq_n_u8(bytes, 4);
        const uint8x16_t l = vqtbl1q_u8(low, code), h = vqtbl1q_u8(high, code);
        words[q] = vreinterpretq_u32_u8(i < 2 ? vtrn1q_u8(l, h) : vtrn2q_u8(l, h));
    }
    return pair_of_bf16(words);
}

/* Even k, then odd k. */
NIB_INLINE pair pair_decode(const nib_element f, const bool has_zeros, const uint8_t *p, raw held,
                            const int i, ivec zero)
{
    const float *floats = (const float *)(const void *)p + 32 * i;
    switch (f) {
    case NIB_ELEMENT_F32: return (pair){vec_load(floats), vec_load(floats + 16)};
    case NIB_ELEMENT_F16: return (pair){load_f16_vec(p + 64 * i), load_f16_vec(p + 64 * i + 32)};
    case NIB_ELEMENT_BF16: return bf16_pair(p + 64 * i);
    case NIB_ELEMENT_I8:
        return (pair){load_i8(p + 32 * i, zero, has_zeros),
                      load_i8(p + 32 * i + 16, zero, has_zeros)};
    case NIB_ELEMENT_I1:
    case NIB_ELEMENT_I2:
    case NIB_ELEMENT_I3:
    case NIB_ELEMENT_I4:
        return (pair){field_values(held.codes, 4 * i, 4, zero, has_zeros),
                      field_values(held.codes, 16 + 4 * i, 4, zero, has_zeros)};
    case NIB_ELEMENT_I5:
    case NIB_ELEMENT_I6:
    case NIB_ELEMENT_I7: {
        const ivec bytes = i % 2 == 0 ? held.codes : held.more;
        return (pair){field_values(bytes, i / 2 * 8, 8, zero, has_zeros),
                      field_values(bytes, 16 + i / 2 * 8, 8, zero, has_zeros)};
    }
    case NIB_ELEMENT_E2M1: return e2m1_pair(held, i);
    default: return f8_pair(f, p + 32 * i);
    }
}

/* ---- products ---- */

NIB_INLINE x_value x_get(const x_pair *x) { return vld1_f32(&x->first); }

NIB_INLINE vec pair_fma(pair w, x_value x, vec sum)
{
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++)
        sum.q[i] = vfmaq_lane_f32(sum.q[i], w.first.q[i], x, 0);
#pragma GCC unroll 4
    for (int i = 0; i < QUARTERS; i++)
        sum.q[i] = vfmaq_lane_f32(sum.q[i], w.second.q[i], x, 1);
    return sum;
}

#include "linear_float_stage.h"
#include "linear_float_body.h"

void nib__linear_f32_neon(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, false);
}

void nib__linear_bf16_neon(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    run_linear(a, n0, n1, scratch, true);
}

#endif
