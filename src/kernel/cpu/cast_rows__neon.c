/* SPDX-License-Identifier: Apache-2.0
 *
 * Training's casts for NEON: see cast_body.h. Two registers make 8 lanes.
 */
#include "arm.h"

#if NIB_BUILT_ARM
#include "cast_rows.h"

#include <arm_neon.h>

#define LANES 8
#define NIB_CAST(name) nib__##name##__neon

typedef struct vec {
    int32x4_t low, high;
} vec;

NIB_INLINE float32x4_t as_f(int32x4_t a) { return vreinterpretq_f32_s32(a); }
NIB_INLINE int32x4_t as_i(float32x4_t a) { return vreinterpretq_s32_f32(a); }
NIB_INLINE uint32x4_t as_u(int32x4_t a) { return vreinterpretq_u32_s32(a); }
NIB_INLINE int32x4_t of_u(uint32x4_t a) { return vreinterpretq_s32_u32(a); }

/* The same operation on both halves. */
#define BOTH(operation, a, b) ((vec){operation((a).low, (b).low), operation((a).high, (b).high)})
#define BOTH_F(operation, a, b)                                                                    \
    ((vec){as_i(operation(as_f((a).low), as_f((b).low))),                                          \
           as_i(operation(as_f((a).high), as_f((b).high)))})

NIB_INLINE vec vec_load(const float *p)
{
    return (vec){as_i(vld1q_f32(p)), as_i(vld1q_f32(p + 4))};
}
NIB_INLINE void vec_store(float *p, vec a)
{
    vst1q_f32(p, as_f(a.low));
    vst1q_f32(p + 4, as_f(a.high));
}
NIB_INLINE vec vec_set(int32_t x) { return (vec){vdupq_n_s32(x), vdupq_n_s32(x)}; }
NIB_INLINE vec vec_add(vec a, vec b) { return BOTH(vaddq_s32, a, b); }
NIB_INLINE vec vec_sub(vec a, vec b) { return BOTH(vsubq_s32, a, b); }
NIB_INLINE vec vec_and(vec a, vec b) { return BOTH(vandq_s32, a, b); }
NIB_INLINE vec vec_or(vec a, vec b) { return BOTH(vorrq_s32, a, b); }
NIB_INLINE vec vec_min(vec a, vec b) { return BOTH(vminq_s32, a, b); }
NIB_INLINE vec vec_max(vec a, vec b) { return BOTH(vmaxq_s32, a, b); }
NIB_INLINE vec vec_left(vec a, int n)
{
    const int32x4_t by = vdupq_n_s32(n);
    return (vec){vshlq_s32(a.low, by), vshlq_s32(a.high, by)};
}
NIB_INLINE vec vec_right(vec a, int n)
{
    const int32x4_t by = vdupq_n_s32(-n);
    return (vec){of_u(vshlq_u32(as_u(a.low), by)), of_u(vshlq_u32(as_u(a.high), by))};
}
NIB_INLINE vec vec_less(vec a, vec b, vec yes, vec no)
{
    return (vec){vbslq_s32(vcltq_s32(a.low, b.low), yes.low, no.low),
                 vbslq_s32(vcltq_s32(a.high, b.high), yes.high, no.high)};
}
NIB_INLINE vec vec_equal(vec a, vec b, vec yes, vec no)
{
    return (vec){vbslq_s32(vceqq_s32(a.low, b.low), yes.low, no.low),
                 vbslq_s32(vceqq_s32(a.high, b.high), yes.high, no.high)};
}
NIB_INLINE bool vec_any_less(vec a, vec b)
{
    return vmaxvq_u32(vorrq_u32(vcltq_s32(a.low, b.low), vcltq_s32(a.high, b.high))) != 0;
}
NIB_INLINE int32_t vec_largest(vec a) { return vmaxvq_s32(vmaxq_s32(a.low, a.high)); }
NIB_INLINE vec vec_mul_f(vec a, vec b) { return BOTH_F(vmulq_f32, a, b); }
NIB_INLINE vec vec_add_f(vec a, vec b) { return BOTH_F(vaddq_f32, a, b); }
NIB_INLINE vec vec_sub_f(vec a, vec b) { return BOTH_F(vsubq_f32, a, b); }
NIB_INLINE vec vec_div_f(vec a, vec b) { return BOTH_F(vdivq_f32, a, b); }

NIB_INLINE int16x8_t low_halves(vec a) { return vcombine_s16(vmovn_s32(a.low), vmovn_s32(a.high)); }
NIB_INLINE void vec_store_16(void *p, vec a) { vst1q_s16(p, low_halves(a)); }
NIB_INLINE void vec_store_8(void *p, vec a) { vst1_s8(p, vmovn_s16(low_halves(a))); }

/* A 4 x 4 transpose. */
NIB_INLINE void transpose4(int32x4_t r[4])
{
    const int32x4_t a = vtrn1q_s32(r[0], r[1]), b = vtrn2q_s32(r[0], r[1]),
                    c = vtrn1q_s32(r[2], r[3]), d = vtrn2q_s32(r[2], r[3]);
    r[0] = vcombine_s32(vget_low_s32(a), vget_low_s32(c));
    r[1] = vcombine_s32(vget_low_s32(b), vget_low_s32(d));
    r[2] = vcombine_s32(vget_high_s32(a), vget_high_s32(c));
    r[3] = vcombine_s32(vget_high_s32(b), vget_high_s32(d));
}

NIB_INLINE void vec_transpose(vec r[LANES])
{
    int32x4_t quarter[4][4]; /* [2 row halves][2 column halves] */
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++) {
        quarter[i / 4 * 2][i % 4] = r[i].low;
        quarter[i / 4 * 2 + 1][i % 4] = r[i].high;
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        transpose4(quarter[i]);
#pragma GCC unroll 8
    for (int i = 0; i < LANES; i++) /* each row takes its columns from both halves of the rows */
        r[i] = (vec){quarter[i / 4][i % 4], quarter[i / 4 + 2][i % 4]};
}

#include "cast_body.h"

#endif
