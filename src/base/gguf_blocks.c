/* SPDX-License-Identifier: Apache-2.0
 *
 * The formulas of ggml's reference quantizers (quantize_row_*_ref), in f32 and in ggml's order of
 * operations, so that the bytes are equal:
 *
 *   Q8_0    d = max |x| / 127,           q = round(x / d), halves away from zero
 *   Q4_0    d = (x of max |x|) / -8,     q = trunc(x / d + 8.5), at most 15
 *   Q4_1    d = (max - min) / 15, m = min, q = trunc((x - m) / d + 0.5), at most 15
 *   MXFP4   e = floor(log2(max |x|)) - 2, q = the nearest of e2m1, halves towards zero
 *
 * where x / d is x times the rounded 1 / d. The f32 scale decides the codes; the block stores it
 * rounded to f16.
 */
#include "gguf_blocks.h"

#include <math.h>

enum { HALF = NIB_BLOCK_ELEMENTS / 2 };

/* Stores the f16 nearest to a value; true if they are equal. */
static bool put_f16(uint8_t *out, float value)
{
    const uint16_t half = nib__f32_to_f16(value);
    out[0] = (uint8_t)(half & 0xff);
    out[1] = (uint8_t)(half >> 8);
    return nib__f16_to_f32(half) == value;
}

static bool f16_holds(float value) { return isfinite(nib__f16_to_f32(nib__f32_to_f16(value))); }

/* Byte j holds elements j (low nibble) and j + 16. */
static void put_nibbles(uint8_t *out, const uint8_t codes[NIB_BLOCK_ELEMENTS])
{
    for (int j = 0; j < HALF; j++)
        out[j] = (uint8_t)(codes[j] | codes[j + HALF] << 4);
}

/* ---- from floats ---- */

static float inverse(float d) { return d != 0 ? 1.0f / d : 0.0f; }

/* The first element of the largest magnitude. */
static float peak(const float *x)
{
    float most = 0;
    for (int j = 0; j < NIB_BLOCK_ELEMENTS; j++)
        most = fabsf(x[j]) > fabsf(most) ? x[j] : most;
    return most;
}

static bool quantize_q8_0(uint8_t *out, const float *x)
{
    const float d = fabsf(peak(x)) / 127, id = inverse(d);
    put_f16(out, d);
    for (int j = 0; j < NIB_BLOCK_ELEMENTS; j++)
        out[2 + j] = (uint8_t)(int8_t)roundf(x[j] * id);
    return f16_holds(d);
}

static uint8_t nibble_of(float value) { return (uint8_t)nib__min(15, (int64_t)value); }

static bool quantize_q4_0(uint8_t *out, const float *x)
{
    const float d = peak(x) / -8, id = inverse(d);
    uint8_t codes[NIB_BLOCK_ELEMENTS];
    for (int j = 0; j < NIB_BLOCK_ELEMENTS; j++)
        codes[j] = nibble_of(x[j] * id + 8.5f);
    put_f16(out, d);
    put_nibbles(out + 2, codes);
    return f16_holds(d);
}

static bool quantize_q4_1(uint8_t *out, const float *x)
{
    float least = x[0], most = x[0];
    uint8_t codes[NIB_BLOCK_ELEMENTS];
    for (int j = 1; j < NIB_BLOCK_ELEMENTS; j++) {
        least = x[j] < least ? x[j] : least;
        most = x[j] > most ? x[j] : most;
    }
    const float d = (most - least) / 15, id = inverse(d);
    for (int j = 0; j < NIB_BLOCK_ELEMENTS; j++)
        codes[j] = nibble_of((x[j] - least) * id + 0.5f);
    put_f16(out, d);
    put_f16(out + 2, least);
    put_nibbles(out + 4, codes);
    return f16_holds(d) && f16_holds(least);
}

static const uint8_t e2m1_doubled[8] = {0, 1, 2, 3, 4, 6, 8, 12};

/* half: half the block's scale, because the table is doubled. */
static uint8_t nearest_e2m1(float x, float half)
{
    const float size = fabsf(x);
    uint8_t best = 0;
    float least = size;
    for (uint8_t i = 1; i < 8; i++) {
        const float distance = fabsf((float)e2m1_doubled[i] * half - size);
        if (distance < least) {
            best = i;
            least = distance;
        }
    }
    return best != 0 && x < 0 ? (uint8_t)(best | 8) : best;
}

/* The floor of the f32 logarithm, as ggml computes it: the logarithm of a value just below a power
 * of two rounds up to the power. Where ggml's result would be negative (values below 2^-125), this
 * one is 0. */
static uint8_t exponent_of(float most)
{
    static const double log2_e = 1.4426950408889634;
    int power;
    const double part = frexp((double)most, &power); /* 0.5 <= part < 1 */
    const float rounded = (float)((double)power + (part - 1) * log2_e);
    const int floored = rounded == (float)power ? power : power - 1;
    return (uint8_t)(most == 0 ? 0 : nib__max(0, nib__min(254, floored - 2 + 127)));
}

static bool quantize_mxfp4(uint8_t *out, const float *x)
{
    const uint8_t e = exponent_of(fabsf(peak(x)));
    const float half = ldexpf(1, (int)e - 128);
    uint8_t codes[NIB_BLOCK_ELEMENTS];
    for (int j = 0; j < NIB_BLOCK_ELEMENTS; j++)
        codes[j] = nearest_e2m1(x[j], half);
    out[0] = e;
    put_nibbles(out + 1, codes);
    return true;
}

bool nib__blocks_quantize(uint8_t *out, nib_type type, const float *row, int64_t k)
{
    bool (*const block)(uint8_t *, const float *) = type == NIB_TYPE_Q8_0   ? quantize_q8_0
                                                    : type == NIB_TYPE_Q4_0 ? quantize_q4_0
                                                    : type == NIB_TYPE_Q4_1 ? quantize_q4_1
                                                                            : quantize_mxfp4;
    bool holds = true;
    for (int64_t i = 0; i < k; i += NIB_BLOCK_ELEMENTS, out += nib__type_block_bytes(type))
        holds = block(out, row + i) && holds;
    return holds;
}

/* ---- from codes ---- */

/* The e8m0 of a power of two. */
static bool put_e8m0(uint8_t *out, float scale)
{
    int power = 0;
    const float part = frexpf(scale, &power); /* 0.5 for a power of two */
    const int64_t e = nib__max(0, nib__min(254, (int64_t)power - 1 + 127));
    *out = (uint8_t)e;
    return part == 0.5f && e == power - 1 + 127;
}

/* The number of a level of IQ4_NL. */
static uint8_t level_number(int8_t level)
{
    static const int8_t levels[16] = {NIB_IQ4_NL_LEVELS};
    uint8_t i = 0;
    while (i < 15 && levels[i] < level)
        i++;
    return i;
}

bool nib__block_put(uint8_t *out, nib_type type, const int8_t *codes, float scale, float low)
{
    uint8_t nibbles[NIB_BLOCK_ELEMENTS];
    bool exact = type == NIB_TYPE_MXFP4 ? put_e8m0(out, scale) : put_f16(out, scale);
    if (type == NIB_TYPE_Q8_0) {
        memcpy(out + 2, codes, NIB_BLOCK_ELEMENTS);
        return exact;
    }
    if (type == NIB_TYPE_Q4_1)
        exact = put_f16(out + 2, low) && exact;
    for (int j = 0; j < NIB_BLOCK_ELEMENTS; j++)
        nibbles[j] = type == NIB_TYPE_IQ4_NL  ? level_number(codes[j])
                     : type == NIB_TYPE_MXFP4 ? (uint8_t)(codes[j] & 15)
                                              : (uint8_t)((codes[j] + 8) & 15);
    put_nibbles(out + nib__type_block_bytes(type) - HALF, nibbles);
    return exact;
}
