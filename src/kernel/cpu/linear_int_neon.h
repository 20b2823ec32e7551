/* SPDX-License-Identifier: Apache-2.0
 *
 * What the int4, MXFP4 and int8 linear rows of Arm share: reading panels and storing outputs.
 * Layout: linear_int.h. Arithmetic: linear_int.c.
 *
 * Products are of signed bytes. An int4 code stays the unsigned nibble, code + 8; e2m1's bits
 * become 2 * value + 12. For int8, an exclusive or takes the 128 off the code again, so the
 * layout's offset is 0 here. A group's dot is
 *   sum of w * x  -  z * (sum of w)  -  (offset + zero_g) * (sum of x - z)        w = code + offset
 * A panel's bytes past the end of a row are stored as 0 and so become -128: their activations are
 * 0, and their share is removed from the sum of w.
 */
#ifndef NIB_LINEAR_INT_NEON_H
#define NIB_LINEAR_INT_NEON_H

#include "e8m0_lanes.h"
#include "linear_int.h"

#include <arm_neon.h>

enum {
    FEW = 4,   /* from this many tokens on, a panel is unpacked once for all */
    LANES = 4, /* outputs per vector */
    SIGN = 128 /* added to int8 codes when they are packed */
};

NIB_INLINE nib_int_layout signed_layout(const nib_weight *w)
{
    nib_int_layout l = nib__int_layout(w);
    l.offset = l.bits == 4 ? l.offset : 0;
    return l;
}

/* The terms of each token and group: see nib__int_term. */
NIB_INLINE void row_terms(const nib_linear *a, const nib_int_layout *l, bool plain, int64_t r0,
                          int64_t rows, int32_t *terms)
{
    nib__int_terms(a, l, plain ? NIB_INT_PLAIN : NIB_INT_WIDE, r0, rows, terms);
}

/* ---- heads of groups: four outputs from `first` of the panel ---- */

NIB_INLINE float32x4_t load_scales(const nib_int_layout *l, const uint8_t *group, int first)
{
    const uint8_t *p = group + (size_t)first * l->scale_bytes;
    if (l->scale_type == NIB_TYPE_F32)
        return vld1q_f32((const float *)(const void *)p);
    if (l->scale_type == NIB_TYPE_E8M0) {
        uint32_t four;
        memcpy(&four, p, sizeof four);
        const uint16x8_t codes = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(four)));
        return nib__e8m0_4(vmovl_u16(vget_low_u16(codes)));
    }
    const uint16x4_t half = vld1_u16((const uint16_t *)(const void *)p);
    if (l->scale_type == NIB_TYPE_F16)
        return vcvt_f32_f16(vreinterpret_f16_u16(half));
    return vreinterpretq_f32_u32(vshll_n_u16(half, 16));
}

NIB_INLINE int32x4_t load_offsets(const nib_int_layout *l, const uint8_t *group, int first,
                                  int bits)
{
    if (!l->has_zeros)
        return vdupq_n_s32(l->offset);
    const uint8_t *p = group + NIB_INT_PANEL * l->scale_bytes + (size_t)first * sizeof(int16_t);
    const int32x4_t stored = vmovl_s16(vld1_s16((const int16_t *)(const void *)p));
    return bits == 8 ? vsubq_s32(stored, vdupq_n_s32(SIGN)) : stored;
}

NIB_INLINE float32x4_t load_zeros(const nib_int_layout *l, const uint8_t *group, int first)
{
    return vld1q_f32((const float *)(const void *)(group + l->zeros) + first);
}

/* ---- codes ---- */

/* Bytes of 8 k of a panel. */
NIB_INLINE size_t step_bytes(int bits) { return (size_t)bits * NIB_INT_PANEL; }

/* 8 k of four outputs: an even and an odd quad, each 4 outputs by 4 k. */
NIB_INLINE void load_quads(const uint8_t *at, int bits, bool e2m1, int8x16_t *even, int8x16_t *odd)
{
    static const int8_t values[16] = {NIB_INT_E2M1};
    const uint8x16_t v = vld1q_u8(at);
    if (bits == 4) {
        const uint8x16_t low = vandq_u8(v, vdupq_n_u8(15)), high = vshrq_n_u8(v, 4);
        *even = e2m1 ? vqtbl1q_s8(vld1q_s8(values), low) : vreinterpretq_s8_u8(low);
        *odd = e2m1 ? vqtbl1q_s8(vld1q_s8(values), high) : vreinterpretq_s8_u8(high);
        return;
    }
    const uint8x16_t sign = vdupq_n_u8(SIGN);
    *even = vreinterpretq_s8_u8(veorq_u8(v, sign));
    *odd = vreinterpretq_s8_u8(veorq_u8(vld1q_u8(at + 4 * NIB_INT_PANEL), sign));
}

/* Correction for sums of w over the first `steps` steps of group g: padding counts as -128. */
NIB_INLINE int32x4_t padding_sum(const nib_linear *a, const nib_int_layout *l, int64_t g,
                                 int64_t steps, int bits)
{
    const int64_t count = nib__max(0, 8 * steps - nib__int_count(l, g, a->w->k));
    return vdupq_n_s32(bits == 8 ? SIGN * (int32_t)count : 0);
}

/* dot + offset * term - sum * zero as a float, if it may not fit 32 bits: rounded once, since f64
 * holds it exactly. */
NIB_INLINE float32x2_t half_dot(int32x2_t dot, int32x2_t sum, int32x2_t offset, int32_t term,
                                int32_t zero)
{
    int64x2_t all = vmlal_n_s32(vmovl_s32(dot), offset, term);
    all = vmlsl_n_s32(all, sum, zero);
    return vcvt_f32_f64(vcvtq_f64_s64(all));
}

NIB_INLINE float32x4_t wide_dot(int32x4_t dot, int32x4_t sum, int32x4_t offset, int32_t term,
                                int32_t zero)
{
    return vcombine_f32(
        half_dot(vget_low_s32(dot), vget_low_s32(sum), vget_low_s32(offset), term, zero),
        half_dot(vget_high_s32(dot), vget_high_s32(sum), vget_high_s32(offset), term, zero));
}

/* ---- outputs ---- */

/* Stores four outputs from n on. If activations are in blocks, the totals are scaled already. */
NIB_INLINE void store4(const nib_linear *a, int64_t r, int64_t n, float32x4_t total, bool is_scaled)
{
    float *y = a->y + r * a->ldy + n;
    if (!is_scaled)
        total = vmulq_f32(vdupq_n_f32(a->x.scale[r]), total);
    if (n + LANES <= a->w->n) {
        vst1q_f32(y, a->bias != NULL ? vaddq_f32(vld1q_f32(a->bias + n), total) : total);
        return;
    }
    float last[LANES];
    vst1q_f32(last, total);
    for (int64_t i = 0; n + i < a->w->n; i++)
        y[i] = a->bias != NULL ? a->bias[n + i] + last[i] : last[i];
}

#endif
