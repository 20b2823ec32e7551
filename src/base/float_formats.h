/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts one value of a number format to f32 and back. The functions are inlined into loops that
 * compilers vectorize for the instruction set of the including file: float_formats.c and the rows
 * that make codes. type.h documents the conversions.
 *
 * All small formats here are sign, exponent and mantissa with the exponent's bias in the middle of
 * its range, so one pair of functions, called with constants, serves them all. No instruction has
 * denormal f32 inputs or results that matter, so kernels that flush denormals decode the same
 * values. (Encoding denormal f32 values into bf16 is integer arithmetic; in the other formats they
 * round to zero.)
 */
#ifndef NIB_FLOAT_FORMATS_H
#define NIB_FLOAT_FORMATS_H

#include "type.h"

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

/* The value of a magnitude (no sign) with `mantissa` bits. `top`: the exponent field of infinity
 * and NaN, the largest; 0: the format has neither. */
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
 * Below the smallest normal, adding a power of two whose last place is the format's smallest step
 * does the rounding. */
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

/* ---- one value ---- */

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

NIB_INLINE uint8_t e8m0_up(float f)
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

NIB_INLINE float e2m1_value(uint8_t code)
{
    const uint32_t sign = (uint32_t)(code & 8U) << 28;
    return float_of(sign | bits_of(widen(code & 7U, 1, 1, 0)));
}

NIB_INLINE uint8_t e2m1_code(float f)
{
    const uint32_t bits = bits_of(f), magnitude = bits & ~F32_SIGN;
    if (magnitude > F32_INFINITY)
        return 8;
    return (uint8_t)((bits >> 28 & 8U) | (uint32_t)nib__min(narrow(magnitude, 1, 1), 7));
}

#endif
