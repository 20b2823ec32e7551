/* SPDX-License-Identifier: Apache-2.0
 *
 * Packs weights of any code into the panels of linear_float.h.
 */
#include "linear_float.h"

/* Codes of one output that are read at a time: small enough that a panel's span stays in the cache.
 */
enum { SPAN = 512 };

static nib_type packed_type(nib_type stored)
{
    return stored == NIB_TYPE_F64 ? NIB_TYPE_F32 : stored == NIB_TYPE_E4M3 ? NIB_TYPE_BF16 : stored;
}

nib_float_layout nib__float_layout(const nib_weight *w)
{
    const bool scaled = nib__scheme_is_quantized(&w->scheme);
    nib_float_layout l = {0};
    l.count = nib__ceil_div(w->n, NIB_FLOAT_PANEL);
    l.group = scaled && w->scheme.group > 0 ? w->scheme.group : 0;
    l.groups = l.group > 0 ? nib__ceil_div(w->k, l.group) : scaled;
    l.k_steps = nib__ceil_div(w->k, NIB_FLOAT_STEP);
    l.scale_type = scaled ? packed_type(w->scale_type) : NIB_TYPE_NONE;
    l.zero_type =
        scaled && w->scheme.zero != NIB_ZERO_NONE ? packed_type(w->zero_type) : NIB_TYPE_NONE;
    const size_t values = (size_t)l.groups * NIB_FLOAT_PANEL;
    l.zero_at = values * (size_t)nib__type_bits(l.scale_type) / 8;
    l.code_at = l.zero_at + values * (size_t)nib__type_bits(l.zero_type) / 8;
    l.code_at = (size_t)nib__round_up((int64_t)l.code_at, 64);
    l.step_bytes = (size_t)(NIB_FLOAT_PANEL * NIB_FLOAT_STEP * nib__code_bits(w->scheme.code) / 8);
    l.bytes = l.code_at + (size_t)l.k_steps * l.step_bytes;
    return l;
}

static uint64_t packed_bytes(const nib_weight *w)
{
    const nib_float_layout l = nib__float_layout(w);
    uint64_t bytes;
    return nib__mul(&bytes, (uint64_t)l.count, l.bytes) ? bytes : UINT64_MAX;
}

/* ---- codes ---- */

static uint8_t recode_f8(nib_element element, uint8_t byte)
{
    const unsigned magnitude = byte & 0x7fU, sign = byte >> 7;
    if (element == NIB_ELEMENT_E5M2) {
        const unsigned exponent = ((magnitude >> 2) + 1) & 31U;
        return (uint8_t)(exponent << 3 | (magnitude & 3U) << 1 | sign);
    }
    if (magnitude == 0x7f)
        return 1;
    return magnitude == 0 ? 0 : (uint8_t)(magnitude << 1 | sign);
}

#define TWICE(...)                                                                                 \
    {                                                                                              \
        __VA_ARGS__, __VA_ARGS__                                                                   \
    }
const uint16_t nib__e4m3_small[32] =
    TWICE(0, 0x7fc0, 0x3b00, 0xbb00, 0x3b80, 0xbb80, 0x3bc0, 0xbbc0, /* 1/512, 2/512, 3/512 */
          0x3c00, 0xbc00, 0x3c20, 0xbc20, 0x3c40, 0xbc40, 0x3c60, 0xbc60);
const uint16_t nib__e5m2_small[32] =
    TWICE(0x7f80, 0xff80, 0x7fc0, 0xffc0, 0x7fc0, 0xffc0, 0x7fc0, 0xffc0, /* infinity, NaN */
          0, 0x8000, 0x3780, 0xb780, 0x3800, 0xb800, 0x3840, 0xb840);     /* 0, 1, 2, 3 * 2^-16 */

#define EIGHT(a, b, c, d, e, f, g, h) a, b, c, d, e, f, g, h
const uint16_t nib__bf16_ints[64] = {
    EIGHT(0, 0x3f80, 0x4000, 0x4040, 0x4080, 0x40a0, 0x40c0, 0x40e0),
    EIGHT(0x4100, 0x4110, 0x4120, 0x4130, 0x4140, 0x4150, 0x4160, 0x4170),
    EIGHT(0x4180, 0x4188, 0x4190, 0x4198, 0x41a0, 0x41a8, 0x41b0, 0x41b8),
    EIGHT(0x41c0, 0x41c8, 0x41d0, 0x41d8, 0x41e0, 0x41e8, 0x41f0, 0x41f8),
    EIGHT(0xc200, 0xc1f8, 0xc1f0, 0xc1e8, 0xc1e0, 0xc1d8, 0xc1d0, 0xc1c8),
    EIGHT(0xc1c0, 0xc1b8, 0xc1b0, 0xc1a8, 0xc1a0, 0xc198, 0xc190, 0xc188),
    EIGHT(0xc180, 0xc170, 0xc160, 0xc150, 0xc140, 0xc130, 0xc120, 0xc110),
    EIGHT(0xc100, 0xc0e0, 0xc0c0, 0xc0a0, 0xc080, 0xc040, 0xc000, 0xbf80),
};

/* Codes of up to SPAN consecutive k of one output, zeros up to a whole step. */
typedef union span {
    uint8_t bytes[SPAN];
    uint16_t halves[SPAN];
    uint32_t words[SPAN];
} span;

static void read_span(const nib_weight *w, int64_t i, int64_t k0, int64_t count,
                      const uint8_t *recode, span *out)
{
    const bool is_float = !nib__scheme_is_quantized(&w->scheme);
    const size_t size = !is_float ? 1 : (size_t)nib__code_bits(w->scheme.code) / 8;
    if (is_float)
        nib__weight_floats(w, i, k0, count, out);
    else
        nib__weight_codes(w, i, k0, count, (int8_t *)out->bytes);
    const int64_t padded = nib__round_up(count, NIB_FLOAT_STEP);
    memset(out->bytes + (size_t)count * size, 0, (size_t)(padded - count) * size);
    if (recode != NULL)
        for (int64_t j = 0; j < padded; j++)
            out->bytes[j] = recode[out->bytes[j]];
}

/* Packs eight 4-bit codes, one per byte, into a word with the even k in the low half. */
static uint32_t nibble_word(const uint8_t *codes)
{
    uint64_t all = 0;
    for (int j = 0; j < 8; j++)
        all |= (uint64_t)codes[j] << (8 * j);
    uint32_t halves[2];
    for (int odd = 0; odd < 2; odd++) {
        uint64_t x = all >> (8 * odd) & UINT64_C(0x000f000f000f000f);
        x = (x | x >> 12) & UINT64_C(0x000000ff000000ff);
        halves[odd] = (uint32_t)((x | x >> 24) & 0xffff);
    }
    return halves[0] | halves[1] << 16;
}

/* Writes eight codes of an integer of 1, 2, 3, 5, 6 or 7 bits into a step, a part at a time. */
static void put_odd(nib_element element, const uint8_t *codes, int64_t column, uint8_t *step)
{
    const int bits = odd_bits(element);
    uint8_t left[NIB_FLOAT_STEP];
    uint32_t two = 0, one = 0;
    for (int j = 0; j < NIB_FLOAT_STEP; j++)
        left[j] = (uint8_t)((codes[j] + (1U << (bits - 1))) & ((1U << bits) - 1));
    if (bits > 4) {
        uint8_t low[NIB_FLOAT_STEP];
        for (int j = 0; j < NIB_FLOAT_STEP; j++) {
            low[j] = left[j] & 15;
            left[j] >>= 4;
        }
        ((uint32_t *)step)[column] = nibble_word(low);
        step += NIB_FLOAT_PANEL * 4;
    }
    for (int j = 0; j < NIB_FLOAT_STEP; j++)
        two |= (left[j] & 3U) << (2 * j);
    if ((bits & 2) != 0) {
        ((uint16_t *)step)[column] = (uint16_t)two;
        step += NIB_FLOAT_PANEL * 2;
        for (int j = 0; j < NIB_FLOAT_STEP; j++)
            left[j] >>= 2;
    }
    for (int j = 0; j < NIB_FLOAT_STEP; j++)
        one |= (left[j] & 1U) << j;
    if ((bits & 1) != 0)
        step[column] = (uint8_t)one;
}

/* Writes a span of one output into its column of the panel's steps. */
static void put_span(nib_element element, const span *from, int64_t padded, int64_t column,
                     uint8_t *steps)
{
    uint16_t *halves = (uint16_t *)steps;
    uint32_t *words = (uint32_t *)steps;
    switch (element) {
    case NIB_ELEMENT_F32:
        for (int64_t j = 0; j < padded; j++)
            words[j * NIB_FLOAT_PANEL + column] = from->words[j];
        break;
    case NIB_ELEMENT_F16:
        for (int64_t j = 0; j < padded; j++)
            halves[j * NIB_FLOAT_PANEL + column] = from->halves[j];
        break;
    case NIB_ELEMENT_BF16:
        for (int64_t j = 0; j < padded / 2; j++)
            memcpy(&words[j * NIB_FLOAT_PANEL + column], &from->halves[2 * j], 4);
        break;
    case NIB_ELEMENT_I4:
    case NIB_ELEMENT_E2M1:
        for (int64_t j = 0; j < padded / NIB_FLOAT_STEP; j++)
            words[j * NIB_FLOAT_PANEL + column] = nibble_word(from->bytes + j * NIB_FLOAT_STEP);
        break;
    case NIB_ELEMENT_I8:
        for (int64_t j = 0; j < padded; j++)
            steps[j * NIB_FLOAT_PANEL + column] = from->bytes[j];
        break;
    default:
        for (int64_t j = 0; j < padded / NIB_FLOAT_STEP && is_odd(element); j++)
            put_odd(element, from->bytes + j * NIB_FLOAT_STEP, column,
                    steps + (size_t)j * form_step(element));
        for (int64_t j = 0; j < padded / 2 && !is_odd(element); j++)
            memcpy(&halves[j * NIB_FLOAT_PANEL + column], &from->bytes[2 * j], 2);
        break;
    }
}

/* ---- scales and zeros ---- */

/* Writes the scales of output i, as packed_type, `step` bytes apart. */
static void put_scales(const nib_weight *w, int64_t i, int64_t groups, uint8_t *to, size_t step)
{
    if (w->scale_type != NIB_TYPE_E4M3) {
        nib__weight_put_scales(w, i, 0, groups, to, step);
        return;
    }
    for (int64_t g = 0; g < groups; g++) {
        const uint16_t scale = nib__f32_to_bf16(nib__weight_group_scale(w, i, g)); /* exact */
        memcpy(to + (size_t)g * step, &scale, sizeof scale);
    }
}

static void put_header(const nib_weight *w, const nib_float_layout *l, int64_t i, int64_t column,
                       uint8_t *panel)
{
    const size_t scale_bytes = (size_t)nib__type_bits(l->scale_type) / 8,
                 zero_bytes = (size_t)nib__type_bits(l->zero_type) / 8;
    put_scales(w, i, l->groups, panel + (size_t)column * scale_bytes,
               NIB_FLOAT_PANEL * scale_bytes);
    if (l->zero_type != NIB_TYPE_NONE)
        nib__weight_put_zeros(w, i, 0, l->groups, panel + l->zero_at + (size_t)column * zero_bytes,
                              NIB_FLOAT_PANEL * zero_bytes);
}

static void pack(const nib_weight *w, void *out, int64_t n0, int64_t n1)
{
    const nib_float_layout l = nib__float_layout(w);
    const nib_element element = nib__codes[w->scheme.code].element;
    const bool is_f8 = nib__code_is_f8(w->scheme.code);
    uint8_t recode[256];
    for (int b = 0; b < 256; b++)
        recode[b] = recode_f8(element, (uint8_t)b);
    for (int64_t i0 = n0; i0 < n1; i0 += NIB_FLOAT_PANEL) {
        uint8_t *panel = (uint8_t *)out + (size_t)(i0 / NIB_FLOAT_PANEL) * l.bytes;
        const int64_t columns = nib__min(NIB_FLOAT_PANEL, n1 - i0);
        if (columns < NIB_FLOAT_PANEL)
            memset(panel, 0, l.bytes);
        for (int64_t column = 0; column < columns; column++)
            put_header(w, &l, i0 + column, column, panel);
        for (int64_t k0 = 0; k0 < w->k; k0 += SPAN) {
            const int64_t count = nib__min(SPAN, w->k - k0);
            uint8_t *steps = panel + l.code_at + (size_t)(k0 / NIB_FLOAT_STEP) * l.step_bytes;
            for (int64_t column = 0; column < columns; column++) {
                span codes;
                read_span(w, i0 + column, k0, count, is_f8 ? recode : NULL, &codes);
                put_span(element, &codes, nib__round_up(count, NIB_FLOAT_STEP), column, steps);
            }
        }
    }
}

const nib_packing nib__packing_n16 = {"n16", NIB_FLOAT_PANEL, packed_bytes, pack};
