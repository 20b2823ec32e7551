/* SPDX-License-Identifier: Apache-2.0
 *
 * The arithmetic of the number formats: one value and whole arrays, to f32 (exact) and from f32 (to
 * nearest, ties to even). Owns no data.
 *
 * All small formats here are sign, exponent, mantissa with the exponent's bias at the middle, so
 * one pair of functions serves them, called with constants. Nothing depends on denormal f32 inputs
 * or results of an instruction: kernels that flush denormals decode the same values. (Encoding
 * denormal f32 values into bf16 is integer arithmetic; in the other formats they round to zero.)
 */
#include "type.h"

#include <math.h>

enum { F32_MANTISSA = 23, F32_BIAS = 127 };
static const uint32_t F32_SIGN = 0x80000000U, F32_INFINITY = 0x7f800000U;

NIB_INLINE uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

NIB_INLINE float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* 2^power as f32, for normal results. */
NIB_INLINE float power_of_two(int power)
{
    return float_of((uint32_t)(power + F32_BIAS) << F32_MANTISSA);
}

/* The value of a magnitude (no sign) with `mantissa` bits; `top` (the largest exponent field) means
 * infinity and NaN, or nothing special where top is 0. */
NIB_INLINE float widen(uint32_t magnitude, int mantissa, int bias, uint32_t top)
{
    const int shift = F32_MANTISSA - mantissa;
    const uint32_t rebias = (uint32_t)(F32_BIAS - bias) << F32_MANTISSA;
    const uint32_t exponent = magnitude >> mantissa;
    const uint32_t normal = (magnitude << shift) + rebias;
    const uint32_t special = F32_INFINITY | magnitude << shift;
    const float small = (float)(int32_t)magnitude * power_of_two(1 - bias - mantissa);
    const uint32_t value = exponent == 0 ? bits_of(small) : normal;
    return float_of(top != 0 && exponent == top ? special : value);
}

/* The magnitude code nearest to |f|, ties to even, with an unbounded exponent: the caller caps it.
 * Below the smallest normal the addition of a power of two whose last place is the format's
 * smallest step rounds. */
NIB_INLINE uint32_t narrow(uint32_t magnitude, int mantissa, int bias)
{
    const int shift = F32_MANTISSA - mantissa;
    const uint32_t rebias = (uint32_t)(F32_BIAS - bias) << mantissa;
    const uint32_t smallest_normal = (uint32_t)(F32_BIAS - bias + 1) << F32_MANTISSA;
    const float step = power_of_two(1 - bias - mantissa + F32_MANTISSA);
    const uint32_t half = (1U << (shift - 1)) - 1 + ((magnitude >> shift) & 1U);
    const uint32_t normal = ((magnitude + half) >> shift) - rebias;
    const uint32_t small = bits_of(float_of(magnitude) + step) - bits_of(step);
    return magnitude < smallest_normal ? small : normal;
}

/* ---- one value, inlined into the loops below ---- */

NIB_INLINE float f16_value(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000U) << 16;
    return float_of(sign | bits_of(widen(h & 0x7fffU, 10, 15, 31)));
}

NIB_INLINE uint16_t f16_code(float f)
{
    const uint32_t bits = bits_of(f), magnitude = bits & ~F32_SIGN, sign = bits >> 16 & 0x8000U;
    const uint32_t code = narrow(magnitude, 10, 15);
    const uint32_t finite = code < 0x7c00U ? code : 0x7c00U;
    const uint32_t nan = 0x7e00U | (magnitude >> 13 & 0x3ffU);
    return (uint16_t)(sign | (magnitude > F32_INFINITY ? nan : finite));
}

NIB_INLINE float bf16_value(uint16_t h) { return float_of((uint32_t)h << 16); }

NIB_INLINE uint16_t bf16_code(float f)
{
    const uint32_t bits = bits_of(f);
    const uint32_t rounded = (bits + 0x7fffU + (bits >> 16 & 1U)) >> 16;
    const uint32_t nan = 0x7fc0U | (bits >> 16 & 0x8000U);
    return (uint16_t)((bits & ~F32_SIGN) > F32_INFINITY ? nan : rounded);
}

NIB_INLINE float e4m3_value(uint8_t code)
{
    const uint32_t magnitude = code & 0x7fU, sign = (uint32_t)(code & 0x80U) << 24;
    const uint32_t value = bits_of(widen(magnitude, 3, 7, 0));
    return float_of(sign | (magnitude == 0x7fU ? 0x7fc00000U : value));
}

/* Codes at or over `cap` become cap: 0x7f is NaN, 0x7e is 448. */
NIB_INLINE uint8_t e4m3_code(float f, uint32_t cap)
{
    const uint32_t bits = bits_of(f), magnitude = bits & ~F32_SIGN, sign = bits >> 24 & 0x80U;
    const uint32_t code = narrow(magnitude, 3, 7);
    const uint32_t finite = code < cap ? code : cap;
    return (uint8_t)(sign | (magnitude > F32_INFINITY ? 0x7fU : finite));
}

NIB_INLINE float e5m2_value(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 0x80U) << 24;
    return float_of(sign | bits_of(widen(code & 0x7fU, 2, 15, 31)));
}

/* cap 0x7c is infinity, 0x7b is 57344. */
NIB_INLINE uint8_t e5m2_code(float f, uint32_t cap)
{
    const uint32_t bits = bits_of(f), magnitude = bits & ~F32_SIGN, sign = bits >> 24 & 0x80U;
    const uint32_t code = narrow(magnitude, 2, 15);
    const uint32_t finite = code < cap ? code : cap;
    return (uint8_t)(sign | (magnitude > F32_INFINITY ? 0x7fU : finite));
}

NIB_INLINE float e8m0_value(uint8_t code)
{
    const uint32_t normal = (uint32_t)code << F32_MANTISSA;
    return float_of(code == 255 ? 0x7fc00000U : code == 0 ? 0x00400000U : normal);
}

float nib__f16_to_f32(uint16_t h) { return f16_value(h); }
uint16_t nib__f32_to_f16(float f) { return f16_code(f); }
float nib__bf16_to_f32(uint16_t h) { return bf16_value(h); }
uint16_t nib__f32_to_bf16(float f) { return bf16_code(f); }
float nib__e4m3_to_f32(uint8_t code) { return e4m3_value(code); }
uint8_t nib__f32_to_e4m3(float f) { return e4m3_code(f, 0x7f); }
uint8_t nib__f32_to_e4m3_saturated(float f) { return e4m3_code(f, 0x7e); }
float nib__e5m2_to_f32(uint8_t code) { return e5m2_value(code); }
uint8_t nib__f32_to_e5m2(float f) { return e5m2_code(f, 0x7c); }
uint8_t nib__f32_to_e5m2_saturated(float f) { return e5m2_code(f, 0x7b); }
float nib__e8m0_to_f32(uint8_t code) { return e8m0_value(code); }

uint8_t nib__f32_to_e8m0_up(float f)
{
    const uint32_t bits = bits_of(f) & ~F32_SIGN;
    const uint32_t exponent = bits >> F32_MANTISSA, mantissa = bits & 0x7fffffU;
    if (exponent == 255)
        return mantissa != 0 ? 255 : 254;
    /* 2^-127 is the denormal with only the top mantissa bit: larger denormals round up to
     * 2^-126. */
    const uint32_t up = exponent == 0 ? mantissa > 0x400000U : mantissa != 0;
    return (uint8_t)nib__min(exponent + up, 254);
}

float nib__e2m1_to_f32(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 8U) << 28;
    return float_of(sign | bits_of(widen(code & 7U, 1, 1, 0)));
}

uint8_t nib__f32_to_e2m1(float f)
{
    const uint32_t bits = bits_of(f), magnitude = bits & ~F32_SIGN;
    if (magnitude > F32_INFINITY)
        return 8;
    return (uint8_t)((bits >> 28 & 8U) | (uint32_t)nib__min(narrow(magnitude, 1, 1), 7));
}

/* ---- arrays ---- */

NIB_INLINE uint16_t load_16(const uint8_t *from, int64_t i)
{
    uint16_t h;
    memcpy(&h, from + 2 * i, sizeof h);
    return h;
}

static void f16_to_f32(float *NIB_RESTRICT out, const uint8_t *NIB_RESTRICT from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = f16_value(load_16(from, i));
}

static void bf16_to_f32(float *NIB_RESTRICT out, const uint8_t *NIB_RESTRICT from, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        out[i] = bf16_value(load_16(from, i));
}

static void byte_to_f32(float *NIB_RESTRICT out, const uint8_t *NIB_RESTRICT from, nib_type type,
                        int64_t count)
{
    if (type == NIB_TYPE_E4M3)
        for (int64_t i = 0; i < count; i++)
            out[i] = e4m3_value(from[i]);
    else if (type == NIB_TYPE_E5M2)
        for (int64_t i = 0; i < count; i++)
            out[i] = e5m2_value(from[i]);
    else if (type == NIB_TYPE_E8M0)
        for (int64_t i = 0; i < count; i++)
            out[i] = e8m0_value(from[i]);
    else if (type == NIB_TYPE_I8)
        for (int64_t i = 0; i < count; i++)
            out[i] = (float)(int8_t)from[i];
    else
        for (int64_t i = 0; i < count; i++)
            out[i] = (float)from[i];
}

/* The wider integers, and f64: rounded to nearest. */
static float wide_value(const uint8_t *from, nib_type type)
{
    union {
        int16_t i16;
        int32_t i32;
        int64_t i64;
        uint16_t u16;
        uint32_t u32;
        uint64_t u64;
        double f64;
    } v;
    memcpy(&v, from, (size_t)nib__type_bits(type) / 8);
    switch (type) {
    case NIB_TYPE_U16: return (float)v.u16;
    case NIB_TYPE_I16: return (float)v.i16;
    case NIB_TYPE_U32: return (float)v.u32;
    case NIB_TYPE_I32: return (float)v.i32;
    case NIB_TYPE_U64: return (float)v.u64;
    case NIB_TYPE_I64: return (float)v.i64;
    case NIB_TYPE_F64: return (float)v.f64;
    default: return NAN;
    }
}

void nib__to_f32(float *out, const void *from, nib_type type, int64_t count)
{
    const uint8_t *at = from;
    switch (type) {
    case NIB_TYPE_F32: memcpy(out, from, (size_t)count * sizeof *out); return;
    case NIB_TYPE_F16: f16_to_f32(out, at, count); return;
    case NIB_TYPE_BF16: bf16_to_f32(out, at, count); return;
    case NIB_TYPE_BOOL:
    case NIB_TYPE_U8:
    case NIB_TYPE_I8:
    case NIB_TYPE_E4M3:
    case NIB_TYPE_E5M2:
    case NIB_TYPE_E8M0: byte_to_f32(out, at, type, count); return;
    case NIB_TYPE_U16:
    case NIB_TYPE_I16:
    case NIB_TYPE_U32:
    case NIB_TYPE_I32:
    case NIB_TYPE_U64:
    case NIB_TYPE_I64:
    case NIB_TYPE_F64: {
        const int64_t size = nib__type_bits(type) / 8;
        for (int64_t i = 0; i < count; i++)
            out[i] = wide_value(at + i * size, type);
        return;
    }
    default: /* no caller has these; a NaN shows at once if one does */
        for (int64_t i = 0; i < count; i++)
            out[i] = NAN;
    }
}

static void f32_to_16(uint8_t *NIB_RESTRICT out, nib_type type, const float *NIB_RESTRICT from,
                      int64_t count)
{
    if (type == NIB_TYPE_F16)
        for (int64_t i = 0; i < count; i++) {
            const uint16_t h = f16_code(from[i]);
            memcpy(out + 2 * i, &h, sizeof h);
        }
    else
        for (int64_t i = 0; i < count; i++) {
            const uint16_t h = bf16_code(from[i]);
            memcpy(out + 2 * i, &h, sizeof h);
        }
}

void nib__from_f32(void *out, nib_type type, const float *from, int64_t count)
{
    uint8_t *bytes = out;
    switch (type) {
    case NIB_TYPE_F32: memcpy(out, from, (size_t)count * sizeof *from); return;
    case NIB_TYPE_F16:
    case NIB_TYPE_BF16: f32_to_16(bytes, type, from, count); return;
    case NIB_TYPE_E4M3:
        for (int64_t i = 0; i < count; i++)
            bytes[i] = e4m3_code(from[i], 0x7f);
        return;
    case NIB_TYPE_E5M2:
        for (int64_t i = 0; i < count; i++)
            bytes[i] = e5m2_code(from[i], 0x7c);
        return;
    case NIB_TYPE_E8M0:
        for (int64_t i = 0; i < count; i++)
            bytes[i] = nib__f32_to_e8m0_up(from[i]);
        return;
    default: /* no caller has these; all ones are NaN in every float type, and so seen */
        memset(out, 0xff, (size_t)(count * nib__type_bits(type) / 8));
    }
}
