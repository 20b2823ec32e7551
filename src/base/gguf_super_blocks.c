/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes GGUF's super-blocks of 256 elements, whose layouts are those of code_layout_gguf.c, from
 * the scales and zeros of their groups.
 */
#include "gguf_blocks.h"

#include <math.h>

enum { SUPER = 256, PART = 32, GROUPS_MAX = 16 };

int64_t nib__super_block_groups(nib_type type)
{
    return type == NIB_TYPE_Q4_K || type == NIB_TYPE_Q5_K ? SUPER / 32 : SUPER / 16;
}

static float nearest_f16(float value) { return nib__f16_to_f32(nib__f32_to_f16(value)); }

static void put_f16(uint8_t *out, float value)
{
    const uint16_t half = nib__f32_to_f16(value);
    out[0] = (uint8_t)(half & 0xff);
    out[1] = (uint8_t)(half >> 8);
}

/* A unit and the multiples of it that give `count` values, each plus `base`. */
typedef struct factored {
    float unit;
    int multiples[GROUPS_MAX];
} factored;

/* value = base - unit * multiple, in f32; base NULL: value = unit * multiple. */
static bool gives(float unit, int multiple, const float *base, float value)
{
    const float product = unit * (float)multiple;
    return (base != NULL ? 8 * *base + -product : product) == value;
}

/* Values to be factored, and the limits of the integers. */
typedef struct products {
    float wanted[GROUPS_MAX]; /* the products alone */
    const float *values, *bases;
    int count, least, most;
} products;

/* Whether multiples of the unit give all values. */
static bool try_unit(factored *f, float unit, const products *p)
{
    f->unit = unit;
    for (int g = 0; g < p->count; g++) {
        const float multiple = unit > 0 ? roundf(p->wanted[g] / unit) : 0;
        f->multiples[g] = (int)fmaxf(fminf(multiple, (float)p->most), (float)p->least);
        if (!gives(unit, f->multiples[g], p->bases != NULL ? &p->bases[g] : NULL, p->values[g]))
            return false;
    }
    return true;
}

/* Finds the unit and the multiples; if there are none, those nearest to the values. */
static bool find_factors(factored *f, const products *p)
{
    float largest = 0;
    memset(f, 0, sizeof *f);
    for (int g = 0; g < p->count; g++)
        largest = fmaxf(largest, fabsf(p->wanted[g]));
    const int most = p->most > -p->least ? p->most : -p->least;
    for (int multiple = most; multiple >= 1; multiple--)
        if (try_unit(f, nearest_f16(largest / (float)multiple), p))
            return true;
    (void)try_unit(f, nearest_f16(largest / (float)most), p);
    return false;
}

static bool find_scales(factored *f, const float *scales, int count, int least, int most)
{
    products p = {.values = scales, .count = count, .least = least, .most = most};
    memcpy(p.wanted, scales, (size_t)count * sizeof *scales);
    return find_factors(f, &p);
}

/* The lowest values: what is left of the zeros of Q4_K after 8 * scale, else the zeros. */
static bool find_lows(factored *f, nib_type type, const float *scales, const float *zeros, int most)
{
    static const float none[GROUPS_MAX];
    products p = {.values = zeros,
                  .bases = type == NIB_TYPE_Q4_K ? scales : none,
                  .count = (int)nib__super_block_groups(type),
                  .most = most};
    for (int g = 0; g < p.count; g++)
        p.wanted[g] = (float)(8 * (double)p.bases[g] - (double)zeros[g]);
    return find_factors(f, &p);
}

/* Eight pairs of 6 bits in 12 bytes: see six_bits of code_layout_gguf.c. */
static void put_six_bits(uint8_t out[12], const int *scales, const int *lows)
{
    for (int g = 0; g < 4; g++) {
        out[g] = (uint8_t)(scales[g] | scales[g + 4] >> 4 << 6);
        out[4 + g] = (uint8_t)(lows[g] | lows[g + 4] >> 4 << 6);
        out[8 + g] = (uint8_t)((scales[g + 4] & 15) | (lows[g + 4] & 15) << 4);
    }
}

/* Bits 0 to 3 of 256 codes; each 32 bytes hold 32 low and the next 32 high nibbles. */
static void put_nibbles(uint8_t *out, const int8_t *codes, int offset)
{
    for (int part = 0; part < SUPER / PART; part += 2)
        for (int j = 0; j < PART; j++) {
            const int low = codes[part * PART + j] + offset,
                      high = codes[(part + 1) * PART + j] + offset;
            out[part / 2 * PART + j] = (uint8_t)((low & 15) | (high & 15) << 4);
        }
}

/* Bits 0 and 1 of 256 codes; each 32 bytes hold those of 4 parts. */
static void put_pairs(uint8_t *out, const int8_t *codes, int offset)
{
    memset(out, 0, SUPER / 4);
    for (int i = 0; i < SUPER; i++)
        out[i / 128 * PART + i % PART] |= (uint8_t)(((codes[i] + offset) & 3) << i / PART % 4 * 2);
}

static bool put_q2_k(uint8_t *out, const int8_t *codes, const float *scales, const float *zeros)
{
    factored s, m;
    bool exact = find_scales(&s, scales, 16, 0, 15);
    exact = find_lows(&m, NIB_TYPE_Q2_K, scales, zeros, 15) && exact;
    for (int g = 0; g < 16; g++)
        out[g] = (uint8_t)(s.multiples[g] | m.multiples[g] << 4);
    put_pairs(out + 16, codes, 0);
    put_f16(out + 80, s.unit);
    put_f16(out + 82, m.unit);
    return exact;
}

static bool put_q3_k(uint8_t *out, const int8_t *codes, const float *scales)
{
    factored f;
    const bool exact = find_scales(&f, scales, 16, -32, 31);
    memset(out, 0, PART);
    for (int i = 0; i < SUPER; i++)
        out[i % PART] |= (uint8_t)((codes[i] >= 0) << i / PART);
    put_pairs(out + 32, codes, 4);
    memset(out + 96, 0, 12);
    for (int g = 0; g < 16; g++) {
        const int scale = f.multiples[g] + 32;
        out[96 + g % 8] |= (uint8_t)((scale & 15) << g / 8 * 4);
        out[104 + g % 4] |= (uint8_t)(scale >> 4 << g / 4 * 2);
    }
    put_f16(out + 108, f.unit);
    return exact;
}

static void put_q6_codes(uint8_t *out, const int8_t *codes)
{
    memset(out, 0, 192);
    for (int i = 0; i < SUPER; i++) {
        const int code = codes[i] + 32, half = i / 128, quarter = i / PART % 4, j = i % PART;
        out[half * 64 + quarter % 2 * PART + j] |= (uint8_t)((code & 15) << quarter / 2 * 4);
        out[128 + half * PART + j] |= (uint8_t)(code >> 4 << quarter * 2);
    }
}

static bool put_q6_k(uint8_t *out, const int8_t *codes, const float *scales)
{
    factored f;
    const bool exact = find_scales(&f, scales, 16, -127, 127);
    put_q6_codes(out, codes);
    for (int g = 0; g < 16; g++)
        out[192 + g] = (uint8_t)(int8_t)f.multiples[g];
    put_f16(out + 208, f.unit);
    return exact;
}

bool nib__super_block_put(uint8_t *out, nib_type type, const int8_t *codes, const float *scales,
                          const float *zeros)
{
    factored s, m;
    if (type == NIB_TYPE_Q2_K)
        return put_q2_k(out, codes, scales, zeros);
    if (type == NIB_TYPE_Q3_K)
        return put_q3_k(out, codes, scales);
    if (type == NIB_TYPE_Q6_K)
        return put_q6_k(out, codes, scales);
    bool exact = find_scales(&s, scales, SUPER / PART, 0, 63);
    exact = find_lows(&m, type, scales, zeros, 63) && exact;
    put_f16(out, s.unit);
    put_f16(out + 2, m.unit);
    put_six_bits(out + 4, s.multiples, m.multiples);
    if (type == NIB_TYPE_Q4_K) {
        put_nibbles(out + 16, codes, 8);
        return exact;
    }
    memset(out + 16, 0, PART);
    for (int i = 0; i < SUPER; i++)
        out[16 + i % PART] |= (uint8_t)((codes[i] >> 4 & 1) << i / PART);
    put_nibbles(out + 48, codes, 0);
    return exact;
}
