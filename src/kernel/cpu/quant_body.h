/* SPDX-License-Identifier: Apache-2.0
 *
 * Activation quantizers in plain C that compilers vectorize. Include this with NIB_QUANT(name)
 * naming the functions of one instruction set. Every step works on one element or does not depend
 * on order, so all instruction sets give the same bits. The formulas, for a token x[k]; rne rounds
 * to nearest, ties to even:
 *
 *   int8, int4 asymmetric   low = min(x, 0), high = max(x, 0); s = max((high - low) / steps, eps)
 *                           z = clamp(qmin - rne(low / s), qmin, qmax)
 *   symmetric               s = max(max |x| / (steps / 2), 2^-23), z = 0
 *   static                  s and z as given
 *   then                    q = clamp(rne(x * (1 / s)) + z, qmin, qmax)
 *   steps is 255 or 15; eps is the smallest normal f32, or 2^-23 with -ao017
 *   e4m3 per token          s = max |x| / 448; q = e4m3(x / s), saturated. Training (e5m2,
 *                           two_power or amax) uses the formulas of cast_ref.c
 *   MX                      per 32 elements (the last block may be shorter): see mx_scale
 *   NVFP4                   t = max |x| / 2688 of the token; per 16 elements (the last block may be
 *                           shorter), s = e4m3(clamp(max |x| / 6 / t, 2^-6, 448)); q = e2m1(x *
 *                           ((1 / t) / s)), saturated; the scale is s * t. With block_only, t is 1
 *   int8 per 32 elements    d = max |x| / 127; q = round(x * (1 / d)), halves away from zero; the
 *                           scale is d rounded to f16 (ggml's Q8_0)
 *   int8 per 256 elements   f = -127 / v, v the first x with the largest |x|; q = min(rne(f * x),
 *                           127); the scale is 1 / f, so q of v is -127 (ggml's Q8_K)
 *
 * A scale of 0 becomes 1 with codes 0; so do scales under a t so small that f32 cannot hold 64 / t.
 * In int8 blocks it stays 0, which also replaces values that f16 or 1 / f cannot hold. A token (or,
 * with blocks, a block) that holds NaN or infinity gets codes 0 and a scale of NaN, which makes all
 * its products NaN. The casts to f16 and bf16 keep NaN and infinity.
 */
#include "cast.h"
#include "lanes.h"
#include "quant_rows.h"

#include <math.h>

NIB_INLINE int32_t bits_of(float f)
{
    int32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

NIB_INLINE float float_of(int32_t bits)
{
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* For |x| < 2^22. */
NIB_INLINE float round_even(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

/* ---- ranges ---- */

typedef struct range {
    float low, high; /* least and greatest of the values and 0 */
    bool is_finite;
} range;

/* Extremes as integers that order like floats, so that minimum and maximum do not depend on the
 * order of comparison: negative values count down from -1, NaN is beyond infinity on both sides. */
typedef struct extent {
    int32_t least, most;
} extent;

NIB_INLINE extent extend(extent e, const float *x, int64_t count)
{
    int32_t least = e.least, most = e.most;
    for (int64_t j = 0; j < count; j++) {
        const int32_t bits = bits_of(x[j]);
        const int32_t key = bits ^ (bits >> 31 & 0x7fffffff);
        least = key < least ? key : least;
        most = key > most ? key : most;
    }
    return (extent){least, most};
}

NIB_INLINE range range_from(extent e)
{
    const int32_t low = e.least ^ (e.least >> 31 & 0x7fffffff);
    return (range){.low = float_of(low),
                   .high = float_of(e.most),
                   .is_finite = e.most < 0x7f800000 && (low & 0x7fffffff) < 0x7f800000};
}

NIB_INLINE range range_of(const float *x, int64_t count)
{
    return range_from(extend((extent){0, 0}, x, count));
}

NIB_INLINE float largest_of(range r) { return -r.low > r.high ? -r.low : r.high; }

/* ---- int8 and int4 ---- */

NIB_INLINE void integer_codes(int8_t *NIB_RESTRICT codes, const float *NIB_RESTRICT x,
                              int64_t count, float factor, int32_t zero, int32_t qmin, int32_t qmax)
{
    const float low = (float)(qmin - zero), high = (float)(qmax - zero);
    for (int64_t j = 0; j < count; j++) {
        float v = x[j] * factor;
        v = v > low ? v : low; /* NaN, from a static scale of 0, becomes low */
        v = v < high ? v : high;
        codes[j] = (int8_t)((int32_t)round_even(v) + zero);
    }
}

/* Sums of the codes of each group. */
NIB_INLINE void group_sums(int32_t *sums, const int8_t *codes, const nib_input *out)
{
    for (int64_t g = 0, k0 = 0; k0 < out->k; g++, k0 += out->group) {
        const int64_t end = nib__min(k0 + out->group, out->k);
        int32_t sum = 0;
        for (int64_t j = k0; j < end; j++)
            sum += codes[j];
        sums[g] = sum;
    }
}

/* The scale and zero point of one token. */
typedef struct mapping {
    float scale;
    int32_t zero;
    bool is_finite;
} mapping;

/* Writes a token's padding, sums, scale and zero. Its codes are already written if it is finite. */
NIB_INLINE void close_token(const nib_input *out, int64_t r, mapping map)
{
    int8_t *codes = out->codes + r * out->ld;
    if (map.is_finite) {
        memset(codes + out->k, 0, (size_t)(out->ld - out->k));
        group_sums(out->sums + r * out->groups, codes, out);
    } else {
        memset(codes, 0, (size_t)out->ld);
        memset(out->sums + r * out->groups, 0, (size_t)out->groups * sizeof *out->sums);
    }
    out->scale[r] = map.is_finite ? map.scale : NAN;
    out->zero[r] = map.is_finite ? map.zero : 0;
}

NIB_INLINE void integer_token(const nib_quant *a, int64_t r, mapping map, int32_t qmin,
                              int32_t qmax)
{
    const nib_input *out = &a->out;
    if (map.is_finite)
        integer_codes(out->codes + r * out->ld, a->x + r * a->ldx, out->k, 1 / map.scale, map.zero,
                      qmin, qmax);
    close_token(out, r, map);
}

NIB_INLINE mapping dynamic_mapping(const nib_quant *a, range x, int32_t qmin, int32_t qmax)
{
    const float steps = (float)(qmax - qmin);
    const float eps = a->symmetric || a->formula == NIB_FORMULA_AO017 ? 0x1p-23f : 0x1p-126f;
    float scale = 1;
    int32_t zero = 0;
    if (x.is_finite) {
        scale = a->symmetric ? largest_of(x) / (steps / 2) : (x.high - x.low) / steps;
        scale = scale > eps ? scale : eps;
    }
    if (x.is_finite && !a->symmetric)
        zero = (int32_t)nib__max(qmin, nib__min(qmax, qmin - (int32_t)round_even(x.low / scale)));
    return (mapping){scale, zero, x.is_finite};
}

NIB_INLINE void dynamic_tokens(const nib_quant *a, int64_t m0, int64_t m1, int32_t qmin,
                               int32_t qmax)
{
    for (int64_t r = m0; r < m1; r++) {
        const range x = range_of(a->x + r * a->ldx, a->out.k);
        integer_token(a, r, dynamic_mapping(a, x, qmin, qmax), qmin, qmax);
    }
}

void NIB_QUANT(a8t)(const nib_quant *a, int64_t m0, int64_t m1)
{
    dynamic_tokens(a, m0, m1, -128, 127);
}
void NIB_QUANT(a4t)(const nib_quant *a, int64_t m0, int64_t m1)
{
    dynamic_tokens(a, m0, m1, -8, 7);
}

void NIB_QUANT(a8s)(const nib_quant *a, int64_t m0, int64_t m1)
{
    const int32_t zero = a->static_zero != NULL ? *a->static_zero : 0;
    for (int64_t r = m0; r < m1; r++) {
        const range x = range_of(a->x + r * a->ldx, a->out.k);
        integer_token(a, r, (mapping){*a->static_scale, zero, x.is_finite}, -128, 127);
    }
}

/* ---- int8 in blocks ---- */

/* Rounds halves away from zero; |v| < 2^23. */
NIB_INLINE int32_t round_half_away(float v)
{
    const int32_t whole = (int32_t)v;
    const float rest = v - (float)whole;
    return whole + (rest >= 0.5f) - (rest <= -0.5f);
}

/* Writes the codes of a block of up to 32 and returns its scale. */
NIB_INLINE float block32_codes(int8_t *NIB_RESTRICT codes, const float *NIB_RESTRICT x,
                               int64_t count)
{
    const range of = range_of(x, count);
    const float d = largest_of(of) / 127;
    const float scale = nib__f16_to_f32(nib__f32_to_f16(d));
    if (!of.is_finite || scale == 0) {
        memset(codes, 0, (size_t)count);
        return of.is_finite ? 0 : NAN;
    }
    const float factor = 1 / d;
    for (int64_t j = 0; j < count; j++)
        codes[j] = (int8_t)round_half_away(x[j] * factor);
    return scale;
}

/* The value with the largest magnitude; if both signs occur, the first one. */
NIB_INLINE float first_largest(const float *x, int64_t count, range of)
{
    if (-of.low != of.high)
        return -of.low > of.high ? of.low : of.high;
    for (int64_t j = 0; j < count; j++)
        if (x[j] == of.low || x[j] == of.high)
            return x[j];
    return 0; /* not reached: both ends of the range are among these values */
}

NIB_INLINE float block256_codes(int8_t *NIB_RESTRICT codes, const float *NIB_RESTRICT x,
                                int64_t count)
{
    const range of = range_of(x, count);
    const float factor = of.is_finite ? -127 / first_largest(x, count, of) : 0;
    if (!of.is_finite || largest_of(of) == 0 || factor - factor != 0) {
        memset(codes, 0, (size_t)count);
        return of.is_finite ? 0 : NAN;
    }
    for (int64_t j = 0; j < count; j++) {
        const float v = round_even(x[j] * factor);
        codes[j] = (int8_t)(v < 127 ? v : 127);
    }
    return 1 / factor;
}

/* Codes and scales of `count` values of token r, x[k0..], which begin a block. */
NIB_INLINE void block_codes(const nib_input *out, int64_t r, int64_t k0, const float *x,
                            int64_t count, int64_t block)
{
    int8_t *codes = out->codes + r * out->ld + k0;
    float *scale = out->scale + r * nib__ceil_div(out->k, block) + k0 / block;
    for (int64_t j = 0; j < count; j += block) {
        const int64_t some = nib__min(block, count - j);
        *scale++ = block == 32 ? block32_codes(codes + j, x + j, some)
                               : block256_codes(codes + j, x + j, some);
    }
}

NIB_INLINE void close_blocks(const nib_input *out, int64_t r)
{
    int8_t *codes = out->codes + r * out->ld;
    memset(codes + out->k, 0, (size_t)(out->ld - out->k));
    group_sums(out->sums + r * out->groups, codes, out);
}

NIB_INLINE void int8_blocks(const nib_quant *a, int64_t m0, int64_t m1, int64_t block)
{
    for (int64_t r = m0; r < m1; r++) {
        block_codes(&a->out, r, 0, a->x + r * a->ldx, a->out.k, block);
        close_blocks(&a->out, r);
    }
}

void NIB_QUANT(a8b32)(const nib_quant *a, int64_t m0, int64_t m1) { int8_blocks(a, m0, m1, 32); }
void NIB_QUANT(a8b256)(const nib_quant *a, int64_t m0, int64_t m1) { int8_blocks(a, m0, m1, 256); }

/* ---- float activations: casts, and the sums that float zeros need ---- */

/* Sum over x[k0..k1) in the order of a product with codes of 1: k ascending, or by pairs from k0,
 * odd then even. Uses the fused multiply-adds of the product; gcc 12 would vectorize a plain sum of
 * swapped pairs in another order than written. */
NIB_INLINE float segment_sum(const float *x, int64_t k0, int64_t k1, bool by_pairs)
{
    float sum = 0;
    int64_t j = k0;
    if (by_pairs)
        for (; j + 2 <= k1; j += 2)
            sum = fmaf(x[j], 1, fmaf(x[j + 1], 1, sum));
    for (; j < k1; j++)
        sum += x[j];
    return sum;
}

/* Sums of eight groups of `size` at a time, so that their chains of additions overlap. */
NIB_INLINE void eight_sums(float *sums, const float *x, int64_t size, bool by_pairs)
{
    float sum[8] = {0};
    const int64_t pairs = by_pairs ? size / 2 : 0;
    for (int64_t j = 0; j < pairs; j++)
        for (int g = 0; g < 8; g++)
            sum[g] = fmaf(x[g * size + 2 * j], 1, fmaf(x[g * size + 2 * j + 1], 1, sum[g]));
    for (int64_t j = 2 * pairs; j < size; j++)
        for (int g = 0; g < 8; g++)
            sum[g] += x[g * size + j];
    for (int g = 0; g < 8; g++)
        sums[g] = sum[g];
}

/* Where the sum that begins at k0 restarts, in a group that ends at `end`: groups larger than a
 * block of the product are cut at its blocks. */
NIB_INLINE int64_t segment_end(const nib_input *out, int64_t k0, int64_t end)
{
    return out->group <= NIB_SUM_BLOCK ? end
                                       : nib__min(end, (k0 / NIB_SUM_BLOCK + 1) * NIB_SUM_BLOCK);
}

/* fsums of one token; x are its values as the product reads them. */
NIB_INLINE void float_sums(const nib_input *out, int64_t r, const float *x)
{
    float *sums = out->fsums + r * out->groups;
    int64_t g = 0;
    if (out->group <= NIB_SUM_BLOCK)
        for (; (g + 8) * out->group <= out->k; g += 8)
            eight_sums(sums + g, x + g * out->group, out->group, false);
    for (; g < out->groups; g++) {
        const int64_t end = nib__min((g + 1) * out->group, out->k);
        float total = 0;
        for (int64_t k0 = g * out->group; k0 < end;) {
            const int64_t k1 = segment_end(out, k0, end);
            total += segment_sum(x, k0, k1, false);
            k0 = k1;
        }
        sums[g] = total;
    }
}

/* Copies x unless out.f32 is x itself. */
void NIB_QUANT(f32)(const nib_quant *a, int64_t m0, int64_t m1)
{
    const nib_input *out = &a->out;
    for (int64_t r = m0; r < m1; r++) {
        const float *x = a->x + r * a->ldx;
        float *to = out->f32 + r * out->ld;
        if (to != x)
            memcpy(to, x, (size_t)out->k * sizeof *to);
        if (out->fsums != NULL)
            float_sums(out, r, to);
    }
}

void NIB_QUANT(f16)(const nib_quant *a, int64_t m0, int64_t m1)
{
    enum { PIECE = 256 };
    uint16_t halves[PIECE];
    const nib_input *out = &a->out;
    for (int64_t r = m0; r < m1; r++) {
        float *to = out->f32 + r * out->ld;
        for (int64_t j = 0; j < out->k; j += PIECE) {
            const int64_t count = nib__min(PIECE, out->k - j);
            nib__from_f32(halves, NIB_TYPE_F16, a->x + r * a->ldx + j, count);
            nib__to_f32(to + j, halves, NIB_TYPE_F16, count);
        }
        if (out->fsums != NULL)
            float_sums(out, r, to);
    }
}

/* fsums of bf16 values, widened 8 groups or one block at a time. */
static void bf16_sums(const nib_input *out, int64_t r)
{
    enum { PIECE = 8 * 256 };
    float x[PIECE];
    const uint16_t *from = out->bf16 + r * out->ld;
    float *sums = out->fsums + r * out->groups;
    int64_t g = 0;
    if (out->group <= PIECE / 8)
        for (; (g + 8) * out->group <= out->k; g += 8) {
            for (int64_t j = 0; j < 8 * out->group; j++)
                x[j] = float_of((int32_t)((uint32_t)from[g * out->group + j] << 16));
            eight_sums(sums + g, x, out->group, true);
        }
    for (; g < out->groups; g++) {
        const int64_t end = nib__min((g + 1) * out->group, out->k);
        float total = 0;
        for (int64_t k0 = g * out->group; k0 < end;) {
            const int64_t k1 = segment_end(out, k0, end);
            for (int64_t j = k0; j < k1; j++)
                x[j - k0] = float_of((int32_t)((uint32_t)from[j] << 16));
            total += segment_sum(x, 0, k1 - k0, true);
            k0 = k1;
        }
        sums[g] = total;
    }
}

void NIB_QUANT(bf16)(const nib_quant *a, int64_t m0, int64_t m1)
{
    const nib_input *out = &a->out;
    for (int64_t r = m0; r < m1; r++) {
        uint16_t *to = out->bf16 + r * out->ld;
        nib__convert_to_bf16(to, a->x + r * a->ldx, out->k);
        memset(to + out->k, 0, (size_t)(out->ld - out->k) * sizeof *to);
        if (out->fsums != NULL)
            bf16_sums(out, r);
    }
}

/* ---- e4m3 ---- */

/* The nearest e4m3 value, saturated, as f32 bits without the sign. Below the smallest normal, 2^-6,
 * adding 2^14 rounds to multiples of 2^-9. */
NIB_INLINE int32_t e4m3_magnitude(float x)
{
    const int32_t magnitude = bits_of(x) & 0x7fffffff;
    const float v = float_of(magnitude < 0x43e00000 ? magnitude : 0x43e00000); /* 448 */
    const int32_t bits = bits_of(v);
    const int32_t normal = (bits + 0x7ffff + (bits >> 20 & 1)) & ~0xfffff;
    const int32_t small = bits_of((v + 0x1p14f) - 0x1p14f);
    return bits < 0x3c800000 ? small : normal;
}

NIB_INLINE void e4m3_as_bf16(uint16_t *NIB_RESTRICT out, const float *NIB_RESTRICT x, int64_t count,
                             float scale)
{
    for (int64_t j = 0; j < count; j++) {
        const float v = x[j] / scale;
        out[j] = (uint16_t)((uint32_t)(e4m3_magnitude(v) | (bits_of(v) & INT32_MIN)) >> 16);
    }
}

/* x * factor as bytes. Adding 2^14 to a value below the smallest normal leaves its code in the last
 * places of the mantissa. */
NIB_INLINE void e4m3_codes(uint8_t *NIB_RESTRICT out, const float *NIB_RESTRICT x, int64_t count,
                           float factor)
{
    for (int64_t j = 0; j < count; j++) {
        const int32_t product = bits_of(x[j] * factor), magnitude = product & 0x7fffffff;
        const int32_t bits = magnitude < 0x43e00000 ? magnitude : 0x43e00000; /* 448 */
        const int32_t normal = ((bits + 0x7ffff + (bits >> 20 & 1)) >> 20) - (120 << 3),
                      small = bits_of(float_of(bits) + 0x1p14f) - bits_of(0x1p14f);
        out[j] = (uint8_t)((bits < 0x3c800000 ? small : normal) | (product >> 24 & 0x80));
    }
}

/* Like e4m3_magnitude: largest 57344, smallest normal 2^-14, multiples of 2^-16 below it. */
NIB_INLINE int32_t e5m2_magnitude(float x)
{
    const int32_t magnitude = bits_of(x) & 0x7fffffff;
    const float v = float_of(magnitude < 0x47600000 ? magnitude : 0x47600000);
    const int32_t bits = bits_of(v);
    const int32_t normal = (bits + 0xfffff + (bits >> 21 & 1)) & ~0x1fffff;
    const int32_t small = bits_of((v + 0x1p7f) - 0x1p7f);
    return bits < 0x38800000 ? small : normal;
}

/* x * factor as e4m3 or e5m2, in bf16. */
NIB_INLINE void f8_as_bf16(uint16_t *NIB_RESTRICT out, const float *NIB_RESTRICT x, int64_t count,
                           float factor, const bool is_e5m2)
{
    for (int64_t j = 0; j < count; j++) {
        const float v = x[j] * factor;
        const int32_t magnitude = is_e5m2 ? e5m2_magnitude(v) : e4m3_magnitude(v);
        out[j] = (uint16_t)((uint32_t)(magnitude | (bits_of(v) & INT32_MIN)) >> 16);
    }
}

NIB_INLINE void train_tokens(const nib_quant *a, int64_t m0, int64_t m1, const bool is_e5m2)
{
    const nib_input *out = &a->out;
    for (int64_t r = m0; r < m1; r++) {
        const float *x = a->x + r * a->ldx;
        uint16_t *to = out->bf16 + r * out->ld;
        float largest = a->amax != NULL ? *a->amax : 0;
        if (a->amax == NULL) {
            const range of = range_of(x, out->k);
            largest = of.is_finite ? largest_of(of) : NAN;
        }
        const float factor = nib__cast_factor(largest, is_e5m2 ? 57344 : 448, a->two_power);
        const int64_t coded = factor == factor ? out->k : 0;
        f8_as_bf16(to, x, coded, factor, is_e5m2);
        memset(to + coded, 0, (size_t)(out->ld - coded) * sizeof *to);
        out->scale[r] = 1 / factor;
    }
}

void NIB_QUANT(e4m3t)(const nib_quant *a, int64_t m0, int64_t m1)
{
    const nib_input *out = &a->out;
    if (a->e5m2) {
        train_tokens(a, m0, m1, true);
        return;
    }
    if (a->two_power || a->amax != NULL) {
        train_tokens(a, m0, m1, false);
        return;
    }
    for (int64_t r = m0; r < m1; r++) {
        const float *x = a->x + r * a->ldx;
        uint16_t *to = out->bf16 + r * out->ld;
        const range of = range_of(x, out->k);
        const float scale = of.is_finite ? largest_of(of) / 448 : NAN;
        const int64_t coded = scale > 0 ? out->k : 0;
        e4m3_as_bf16(to, x, coded, scale);
        memset(to + coded, 0, (size_t)(out->ld - coded) * sizeof *to);
        out->scale[r] = scale == 0 ? 1 : scale;
    }
}

/* ---- MX ---- */

enum { MX_BLOCK = 32 };

typedef struct mx_block {
    float scale;  /* 2^(byte - 127); byte 0 is a denormal */
    float factor; /* for x: 1 / scale, exact, except for byte 0: f32 could hold the inverse, but
                     torchao does not use it */
} mx_block;

/* Compares bits, so NaN is the largest. */
NIB_INLINE int32_t largest_bits(const float *x, int64_t count)
{
    int32_t most = 0;
    for (int64_t j = 0; j < count; j++) {
        const int32_t magnitude = bits_of(x[j]) & 0x7fffffff;
        most = magnitude > most ? magnitude : most;
    }
    return most;
}

/* Scale of a block: the exponent of max |x| less the exponent of `most`, the largest code (floor),
 * or the least power of two not below max |x| / most. */
NIB_INLINE mx_block mx_scale(int32_t largest, bool is_floor, const float most)
{
    int32_t byte;
    if (is_floor) {
        const int32_t power = (bits_of(most) >> 23) - 127, exponent = largest >> 23;
        byte = exponent > power ? exponent - power : 0;
    } else {
        const int32_t bits = bits_of(float_of(largest) / most);
        const int32_t exponent = bits >> 23, mantissa = bits & 0x7fffff;
        byte = exponent + (exponent == 0 ? mantissa > 0x400000 : mantissa != 0);
    }
    const float of_zero = is_floor ? 0x1p126f : 1;
    return (mx_block){float_of(byte > 0 ? byte << 23 : 0x400000),
                      byte > 0 ? float_of((254 - byte) << 23) : of_zero};
}

/* The nearest e2m1 values, encoded as e4m3: +-0, 0.5, 1, 1.5, 2, 3, 4, 6. */
NIB_INLINE void e2m1_codes(uint8_t *NIB_RESTRICT out, const float *NIB_RESTRICT x, int64_t count,
                           float factor)
{
    static const uint8_t values[16] = {0,    0x30, 0x38, 0x3c, 0x40, 0x44, 0x48, 0x4c,
                                       0x80, 0xb0, 0xb8, 0xbc, 0xc0, 0xc4, 0xc8, 0xcc};
    for (int64_t j = 0; j < count; j++)
        out[j] = values[nib__f32_to_e2m1(x[j] * factor)];
}

/* Writes the codes of one block and returns its scale. */
NIB_INLINE float mx_codes(uint8_t *to, const float *x, int64_t count, bool is_floor,
                          const bool is_e2m1)
{
    const int32_t largest = largest_bits(x, count);
    if (largest >= 0x7f800000) {
        memset(to, 0, (size_t)count);
        return NAN;
    }
    const mx_block block = mx_scale(largest, is_floor, is_e2m1 ? 6 : 448);
    if (is_e2m1)
        e2m1_codes(to, x, count, block.factor);
    else
        e4m3_codes(to, x, count, block.factor);
    return block.scale;
}

NIB_INLINE void mx_tokens(const nib_quant *a, int64_t m0, int64_t m1, const bool is_e2m1)
{
    const nib_input *out = &a->out;
    for (int64_t r = m0; r < m1; r++) {
        const float *x = a->x + r * a->ldx;
        uint8_t *to = (uint8_t *)out->codes + r * out->ld;
        float *scale = out->scale + r * out->groups;
        int64_t k0 = 0;
        for (; k0 + MX_BLOCK <= out->k; k0 += MX_BLOCK) /* of a constant size */
            *scale++ = mx_codes(to + k0, x + k0, MX_BLOCK, a->mx_floor, is_e2m1);
        if (k0 < out->k)
            *scale = mx_codes(to + k0, x + k0, out->k - k0, a->mx_floor, is_e2m1);
        memset(to + out->k, 0, (size_t)(out->ld - out->k));
    }
}

void NIB_QUANT(mx4)(const nib_quant *a, int64_t m0, int64_t m1) { mx_tokens(a, m0, m1, true); }

/* ---- NVFP4 ---- */

enum { NV_BLOCK = 16 };

/* Writes the codes of one block under the token's scale; returns the factor of the codes. */
NIB_INLINE float nv_codes(uint8_t *to, const float *x, int64_t count, float token, float inverse)
{
    const int32_t largest = largest_bits(x, count);
    if (largest >= 0x7f800000) {
        memset(to, 0, (size_t)count);
        return NAN;
    }
    const float wanted = float_of(largest) / 6 / token;
    const float scale = float_of(e4m3_magnitude(wanted > 0x1p-6f ? wanted : 0x1p-6f));
    e2m1_codes(to, x, count, inverse / scale);
    return scale * token;
}

void NIB_QUANT(nv4)(const nib_quant *a, int64_t m0, int64_t m1)
{
    const nib_input *out = &a->out;
    for (int64_t r = m0; r < m1; r++) {
        const float *x = a->x + r * a->ldx;
        uint8_t *to = (uint8_t *)out->codes + r * out->ld;
        float *scale = out->scale + r * out->groups;
        const range of = range_of(x, out->k);
        float token = 1, inverse = 1;
        bool is_coded = true;
        if (!a->block_only) {
            token = largest_of(of) / 2688; /* 448 * 6, the largest scale and the largest code */
            inverse = 1 / token;
            is_coded = of.is_finite && inverse < 0x1p122f;
        }
        int64_t k0 = 0;
        for (; is_coded && k0 + NV_BLOCK <= out->k; k0 += NV_BLOCK)
            *scale++ = nv_codes(to + k0, x + k0, NV_BLOCK, token, inverse);
        if (is_coded && k0 < out->k)
            *scale = nv_codes(to + k0, x + k0, out->k - k0, token, inverse);
        for (int64_t g = 0; g < out->groups && !is_coded; g++)
            scale[g] = of.is_finite ? 1 : NAN;
        const int64_t coded = is_coded ? out->k : 0;
        memset(to + coded, 0, (size_t)(out->ld - coded));
    }
}
