/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads GGUF's block types. A row is a sequence of blocks; a block of 32 or 256 elements holds its
 * scales before or after its codes:
 *
 *   Q4_0    f16 d, 16 bytes: byte j holds elements j (low nibble) and j + 16      d * (q - 8)
 *   Q4_1    f16 d, f16 m, codes as Q4_0                                           d * q + m
 *   Q5_0    f16 d, 32 fifth bits, codes as Q4_0                                   d * (q - 16)
 *   Q5_1    f16 d, f16 m, 32 fifth bits, codes as Q4_0                            d * q + m
 *   Q8_0    f16 d, 32 int8                                                        d * q
 *   Q2_K    16 bytes: low nibble s, high nibble t; 64 bytes of pairs, f16 d, f16 dmin: in
 *           each 32 bytes bits 2p and 2p + 1 are part p of 128 elements      d * s * q - dmin * t
 *   Q3_K    32 bytes of third bits: bit p of byte j is of part p; 64 bytes of pairs as Q2_K, 16
 *           scales of 6 bits, f16 d                                   d * (s - 32) * (q - 4)
 *   Q4_K    f16 d, f16 dmin, 8 pairs of 6 bits s and t, 128 bytes: in each 32 the low
 *           nibbles are 32 elements, the high ones the next 32               d * s * q - dmin * t
 *   Q5_K    as Q4_K, with 32 bytes of fifth bits before the codes: bit g of byte j is of group g
 *   Q6_K    128 bytes of low nibbles, 64 of high pairs, 16 int8 s, f16 d          d * s * (q - 32)
 *   IQ4_NL  as Q4_0, but q is looked up                                           d * table[q]
 *   MXFP4   e8m0 d, codes (e2m1) as Q4_0                                          d * q
 *
 * They become codes, scales and zeros of a nib_weight: groups of 32 (Q2_K, Q3_K, Q6_K: 16), I4 for
 * Q4_0, Q4_1, Q2_K, Q3_K and Q4_K, MX4 for MXFP4, I8 for the others. Values equal the formulas bit
 * for bit, with one limit: the unsigned 4-bit codes of Q4_1 and Q4_K become -8..7, and 8 * scale is
 * added to the zero point. That sum is exact if it is below 1 (every part is a multiple of 2^-24),
 * as weights are; else it is rounded to f32.
 */
#include "code_layout.h"
#include "gguf_blocks.h"

enum { PART = 32, SUPER = 256 };

static uint16_t half_at(const uint8_t *at) { return (uint16_t)(at[0] | at[1] << 8); }

static float f16_at(const uint8_t *at) { return nib__f16_to_f32(half_at(at)); }

/* ---- blocks ---- */

/* Reads 32 codes: all of a small block, or a part of a large one. */
typedef void part_codes(const uint8_t *block, int64_t part, int8_t out[PART]);

typedef struct block_row {
    part_codes *codes;
    int parts; /* of a block */
    int bytes;
} block_row;

/* Byte j holds elements j and j + 16. */
static void split_nibbles(const uint8_t *from, int offset, int8_t out[PART])
{
    for (int j = 0; j < PART / 2; j++) {
        out[j] = (int8_t)((from[j] & 15) - offset);
        out[j + PART / 2] = (int8_t)((from[j] >> 4) - offset);
    }
}

static void q4_0_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    (void)part;
    split_nibbles(block + 2, 8, out);
}

static void q4_1_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    (void)part;
    split_nibbles(block + 4, 8, out);
}

static void add_fifth_bits(const uint8_t *bits, int8_t out[PART])
{
    for (int j = 0; j < PART; j++)
        out[j] = (int8_t)(out[j] + (bits[j / 8] >> j % 8 & 1) * 16);
}

static void q5_0_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    (void)part;
    split_nibbles(block + 6, 16, out);
    add_fifth_bits(block + 2, out);
}

static void q5_1_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    (void)part;
    split_nibbles(block + 8, 0, out);
    add_fifth_bits(block + 4, out);
}

static void q8_0_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    (void)part;
    memcpy(out, block + 2, PART);
}

static void iq4_nl_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    static const int8_t levels[16] = {NIB_IQ4_NL_LEVELS};
    (void)part;
    split_nibbles(block + 2, 0, out);
    for (int j = 0; j < PART; j++)
        out[j] = levels[out[j]];
}

static void mxfp4_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    (void)part;
    split_nibbles(block + 1, 0, out);
}

/* Bits 0 and 1 of element j of a part, in 64 bytes. */
static int k_pair(const uint8_t *codes, int64_t part, int j)
{
    return codes[part / 4 * PART + j] >> part % 4 * 2 & 3;
}

static void q2_k_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    for (int j = 0; j < PART; j++)
        out[j] = (int8_t)k_pair(block + 16, part, j);
}

static void q3_k_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    for (int j = 0; j < PART; j++)
        out[j] = (int8_t)(k_pair(block + 32, part, j) + (block[j] >> part & 1) * 4 - 4);
}

/* Nibble j of a part in 128 bytes. */
static int k_nibble(const uint8_t *codes, int64_t part, int j)
{
    return codes[part / 2 * PART + j] >> part % 2 * 4 & 15;
}

static void q4_k_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    for (int j = 0; j < PART; j++)
        out[j] = (int8_t)(k_nibble(block + 16, part, j) - 8);
}

static void q5_k_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    for (int j = 0; j < PART; j++)
        out[j] = (int8_t)(k_nibble(block + 48, part, j) + (block[16 + j] >> part & 1) * 16);
}

static void q6_k_part(const uint8_t *block, int64_t part, int8_t out[PART])
{
    const int64_t half = part / 4, quarter = part % 4;
    const uint8_t *low = block + half * 64 + quarter % 2 * PART, *high = block + 128 + half * PART;
    for (int j = 0; j < PART; j++)
        out[j] =
            (int8_t)((low[j] >> quarter / 2 * 4 & 15) | (high[j] >> quarter * 2 & 3) << 4) - 32;
}

static const block_row *block_of(const nib_weight *w)
{
    static const block_row rows[] = {
        [NIB_LAYOUT_Q4_0 - NIB_LAYOUT_Q4_0] = {q4_0_part, 1, 18},
        [NIB_LAYOUT_Q4_1 - NIB_LAYOUT_Q4_0] = {q4_1_part, 1, 20},
        [NIB_LAYOUT_Q5_0 - NIB_LAYOUT_Q4_0] = {q5_0_part, 1, 22},
        [NIB_LAYOUT_Q5_1 - NIB_LAYOUT_Q4_0] = {q5_1_part, 1, 24},
        [NIB_LAYOUT_Q8_0 - NIB_LAYOUT_Q4_0] = {q8_0_part, 1, 34},
        [NIB_LAYOUT_Q4_K - NIB_LAYOUT_Q4_0] = {q4_k_part, SUPER / PART, 144},
        [NIB_LAYOUT_Q5_K - NIB_LAYOUT_Q4_0] = {q5_k_part, SUPER / PART, 176},
        [NIB_LAYOUT_Q6_K - NIB_LAYOUT_Q4_0] = {q6_k_part, SUPER / PART, 210},
        [NIB_LAYOUT_IQ4_NL - NIB_LAYOUT_Q4_0] = {iq4_nl_part, 1, 18},
        [NIB_LAYOUT_MXFP4 - NIB_LAYOUT_Q4_0] = {mxfp4_part, 1, 17},
        [NIB_LAYOUT_Q2_K - NIB_LAYOUT_Q4_0] = {q2_k_part, SUPER / PART, 84},
        [NIB_LAYOUT_Q3_K - NIB_LAYOUT_Q4_0] = {q3_k_part, SUPER / PART, 110},
    };
    return &rows[w->layout - NIB_LAYOUT_Q4_0];
}

uint64_t nib__block_row_bytes(const nib_weight *w)
{
    const block_row *row = block_of(w);
    return (uint64_t)(w->k / (row->parts * PART)) * (uint64_t)row->bytes;
}

/* The block that holds element k of a row. */
static const uint8_t *block_at(const nib_weight *w, const block_row *b, int64_t row, int64_t k)
{
    return (const uint8_t *)w->codes + (uint64_t)row * nib__block_row_bytes(w) +
           (uint64_t)(k / (b->parts * PART)) * (uint64_t)b->bytes;
}

void nib__block_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out)
{
    const block_row *b = block_of(w);
    for (int64_t k = k0, end = k0 + count; k < end;) {
        const uint8_t *block = block_at(w, b, row, k);
        const int64_t part = k / PART % b->parts, skip = k % PART;
        const int64_t some = nib__min(PART - skip, end - k);
        int8_t codes[PART];
        if (some == PART) {
            b->codes(block, part, out);
        } else {
            b->codes(block, part, codes);
            memcpy(out, codes + skip, (size_t)some);
        }
        out += some;
        k += some;
    }
}

/* ---- scales and zeros ---- */

float nib__block_scale(const nib_weight *w, int64_t row, int64_t g)
{
    return f16_at(block_at(w, block_of(w), row, g * PART));
}

float nib__q4_1_zero(const nib_weight *w, int64_t row, int64_t g)
{
    const uint8_t *block = block_at(w, block_of(w), row, g * PART);
    return f16_at(block + 2) + 8 * f16_at(block);
}

float nib__q5_1_zero(const nib_weight *w, int64_t row, int64_t g)
{
    return f16_at(block_at(w, block_of(w), row, g * PART) + 2);
}

float nib__mxfp4_scale(const nib_weight *w, int64_t row, int64_t g)
{
    return nib__e8m0_to_f32(*block_at(w, block_of(w), row, g * PART));
}

/* The 6-bit scale g (least: minimum g) in the 12 bytes at `from`: 4 bytes of scales, then 4 of
 * minima, each with 6 bits of its own and the 2 high bits of one of the last 4; then 4 bytes with
 * the low nibbles of those. */
static int six_bits(const uint8_t *from, int64_t g, bool least)
{
    const int64_t side = least ? 4 : 0;
    if (g < 4)
        return from[side + g] & 63;
    const int low = least ? from[4 + g] >> 4 : from[4 + g] & 15;
    return low | from[side + g - 4] >> 6 << 4;
}

float nib__q4_k_scale(const nib_weight *w, int64_t row, int64_t g)
{
    const uint8_t *block = block_at(w, block_of(w), row, g * PART);
    return f16_at(block) * (float)six_bits(block + 4, g % 8, false);
}

float nib__q5_k_zero(const nib_weight *w, int64_t row, int64_t g)
{
    const uint8_t *block = block_at(w, block_of(w), row, g * PART);
    return -(f16_at(block + 2) * (float)six_bits(block + 4, g % 8, true));
}

float nib__q4_k_zero(const nib_weight *w, int64_t row, int64_t g)
{
    return 8 * nib__q4_k_scale(w, row, g) + nib__q5_k_zero(w, row, g);
}

/* From here on, groups of 16. */
float nib__q2_k_scale(const nib_weight *w, int64_t row, int64_t g)
{
    const uint8_t *block = block_at(w, block_of(w), row, g * 16);
    return f16_at(block + 80) * (float)(block[g % 16] & 15);
}

float nib__q2_k_zero(const nib_weight *w, int64_t row, int64_t g)
{
    const uint8_t *block = block_at(w, block_of(w), row, g * 16);
    return -(f16_at(block + 82) * (float)(block[g % 16] >> 4));
}

/* 12 bytes hold 16 scales: 8 bytes the low nibbles of scales j and j + 8, then byte j their high
 * pairs, of scales j, j + 4, j + 8 and j + 12. */
float nib__q3_k_scale(const nib_weight *w, int64_t row, int64_t g)
{
    const uint8_t *block = block_at(w, block_of(w), row, g * 16), *s = block + 96;
    const int64_t i = g % 16;
    const int scale = (s[i % 8] >> i / 8 * 4 & 15) | (s[8 + i % 4] >> i / 4 * 2 & 3) << 4;
    return f16_at(block + 108) * (float)(scale - 32);
}

float nib__q6_k_scale(const nib_weight *w, int64_t row, int64_t g)
{
    const uint8_t *block = block_at(w, block_of(w), row, g * 16);
    return f16_at(block + 208) * (float)(int8_t)block[192 + g % 16];
}

void nib__weight_q6_k(const nib_weight *w, int64_t i, int64_t g, uint16_t *f16, int8_t s[16])
{
    const uint8_t *block = block_at(w, block_of(w), nib__weight_place(w, i), g * 16);
    *f16 = half_at(block + 208);
    memcpy(s, block + 192, 16);
}

/* ---- block types as weights ---- */

static const struct {
    nib_type type;
    nib_code_layout layout;
    nib_code code;
    int64_t group;
    nib_zero zero;
    nib_type scale_type, zero_type;
} block_types[] = {
    {NIB_TYPE_Q4_0, NIB_LAYOUT_Q4_0, NIB_CODE_I4, 32, NIB_ZERO_NONE, NIB_TYPE_F16, NIB_TYPE_NONE},
    {NIB_TYPE_Q4_1, NIB_LAYOUT_Q4_1, NIB_CODE_I4, 32, NIB_ZERO_FLOAT, NIB_TYPE_F16, NIB_TYPE_F32},
    {NIB_TYPE_Q5_0, NIB_LAYOUT_Q5_0, NIB_CODE_I8, 32, NIB_ZERO_NONE, NIB_TYPE_F16, NIB_TYPE_NONE},
    {NIB_TYPE_Q5_1, NIB_LAYOUT_Q5_1, NIB_CODE_I8, 32, NIB_ZERO_FLOAT, NIB_TYPE_F16, NIB_TYPE_F16},
    {NIB_TYPE_Q8_0, NIB_LAYOUT_Q8_0, NIB_CODE_I8, 32, NIB_ZERO_NONE, NIB_TYPE_F16, NIB_TYPE_NONE},
    {NIB_TYPE_Q4_K, NIB_LAYOUT_Q4_K, NIB_CODE_I4, 32, NIB_ZERO_FLOAT, NIB_TYPE_F32, NIB_TYPE_F32},
    {NIB_TYPE_Q5_K, NIB_LAYOUT_Q5_K, NIB_CODE_I8, 32, NIB_ZERO_FLOAT, NIB_TYPE_F32, NIB_TYPE_F32},
    {NIB_TYPE_Q6_K, NIB_LAYOUT_Q6_K, NIB_CODE_I8, 16, NIB_ZERO_NONE, NIB_TYPE_F32, NIB_TYPE_NONE},
    {NIB_TYPE_IQ4_NL, NIB_LAYOUT_IQ4_NL, NIB_CODE_I8, 32, NIB_ZERO_NONE, NIB_TYPE_F16,
     NIB_TYPE_NONE},
    {NIB_TYPE_MXFP4, NIB_LAYOUT_MXFP4, NIB_CODE_MX4, 32, NIB_ZERO_NONE, NIB_TYPE_E8M0,
     NIB_TYPE_NONE},
    {NIB_TYPE_Q2_K, NIB_LAYOUT_Q2_K, NIB_CODE_I4, 16, NIB_ZERO_FLOAT, NIB_TYPE_F32, NIB_TYPE_F32},
    {NIB_TYPE_Q3_K, NIB_LAYOUT_Q3_K, NIB_CODE_I4, 16, NIB_ZERO_NONE, NIB_TYPE_F32, NIB_TYPE_NONE},
};

bool nib__block_weight(nib_weight *out, nib_type type, int64_t n, int64_t k, const void *blocks)
{
    for (size_t i = 0; i < COUNT(block_types); i++) {
        if (block_types[i].type != type)
            continue;
        *out = (nib_weight){.scheme = {.code = block_types[i].code,
                                       .group = block_types[i].group,
                                       .symmetric = block_types[i].zero == NIB_ZERO_NONE,
                                       .zero = block_types[i].zero},
                            .n = n,
                            .k = k,
                            .layout = block_types[i].layout,
                            .codes = blocks,
                            .scale_type = block_types[i].scale_type,
                            .zero_type = block_types[i].zero_type,
                            .bias_type = NIB_TYPE_NONE};
        return true;
    }
    return false;
}

nib_type nib__weight_block_type(const nib_weight *w)
{
    for (size_t i = 0; i < COUNT(block_types); i++)
        if (block_types[i].layout == w->layout)
            return block_types[i].type;
    return NIB_TYPE_NONE;
}

const void *nib__weight_block_row(const nib_weight *w, int64_t i)
{
    return block_at(w, block_of(w), nib__weight_place(w, i), 0);
}
