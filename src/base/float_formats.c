/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts number formats, single values and arrays, to f32 (exact) and from f32 (to nearest, ties
 * to even). Owns no data.
 */
#include "float_formats.h"

#include <math.h>

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
uint8_t nib__f32_to_e8m0_up(float f) { return e8m0_up(f); }
float nib__e2m1_to_f32(uint8_t code) { return e2m1_value(code); }
uint8_t nib__f32_to_e2m1(float f) { return e2m1_code(f); }

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

/* Wider integers and f64, rounded to nearest. */
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
    default: /* no caller passes these; a NaN would show at once */
        for (int64_t i = 0; i < count; i++)
            out[i] = NAN;
    }
}

bool nib__all_finite(const float *x, int64_t count)
{
    uint32_t largest =
        0; /* magnitudes compare as integers; infinity and NaN exceed finite values */
    for (int64_t i = 0; i < count; i++) {
        const uint32_t magnitude = bits_of(x[i]) & ~F32_SIGN;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest < F32_INFINITY;
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
    default: /* no caller passes these; all ones are NaN in every float type and would show */
        memset(out, 0xff, (size_t)(count * nib__type_bits(type) / 8));
    }
}
