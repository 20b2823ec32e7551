/* SPDX-License-Identifier: Apache-2.0
 *
 * Stores of codes in words of 32 bits, as compressed-tensors, GPTQ and AWQ pack them. A code u of b
 * bits and its zero point z are kept as u - 2^(b-1) and z - 2^(b-1), which leaves u - z as it was.
 *
 *   words  codes [n][ceil(k/c)], c = 32/b along k         zeros [ceil(n/c)][groups]
 *   GPTQ   codes [ceil(k/c)][n]                           zeros [groups][ceil(n/c)]
 *   AWQ    codes [k][n/8], b = 4, columns interleaved     zeros [groups][n/8], interleaved alike
 */
#include "store.h"

static int bits_of(const nib_weight *w) { return w->scheme.code == NIB_CODE_I4 ? 4 : 8; }

static uint32_t word(const void *words, int64_t at)
{
    uint32_t value;
    memcpy(&value, (const uint8_t *)words + 4 * at, sizeof value);
    return value;
}

/* Part i of a word as a number of b bits. */
static unsigned part(uint32_t value, int64_t i, int bits)
{
    return value >> ((int)i * bits) & (bits == 4 ? 15U : 255U);
}

static int centered(unsigned code, int bits) { return (int)code - (bits == 4 ? 8 : 128); }

/* Where stored column j lies. */
static int64_t place(const nib_weight *w, int64_t j) { return w->order != NULL ? w->order[j] : j; }

/* ---- words along a row ---- */

void nib__words_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out)
{
    const int bits = bits_of(w);
    const int64_t per = 32 / bits, width = nib__ceil_div(w->k, per);
    const uint8_t *words = (const uint8_t *)w->codes + 4 * row * width;
    if (w->order != NULL) {
        for (int64_t j = 0; j < count; j++) {
            const int64_t at = w->order[k0 + j];
            out[j] = (int8_t)centered(part(word(words, at / per), at % per, bits), bits);
        }
    } else if (bits == 4) { /* little-endian words are nibbles, the low one first */
        nib__unpack_i4(out, words, k0, count);
        for (int64_t j = 0; j < count; j++)
            out[j] = (int8_t)((out[j] & 15) - 8);
    } else {
        for (int64_t j = 0; j < count; j++)
            out[j] = (int8_t)(words[k0 + j] - 128);
    }
}

float nib__words_zero(const nib_weight *w, int64_t row, int64_t g)
{
    const int bits = bits_of(w);
    const int64_t per = 32 / bits, groups = nib__scheme_groups(&w->scheme, w->k);
    return (float)centered(part(word(w->zeros, row / per * groups + g), row % per, bits), bits);
}

uint64_t nib__words_row_bytes(const nib_weight *w)
{
    return 4 * (uint64_t)nib__ceil_div(w->k, 32 / bits_of(w));
}

/* ---- GPTQ ---- */

void nib__gptq_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out)
{
    const int bits = bits_of(w);
    const int64_t per = 32 / bits;
    for (int64_t j = 0; j < count; j++) {
        const int64_t at = place(w, k0 + j);
        out[j] =
            (int8_t)centered(part(word(w->codes, at / per * w->n + row), at % per, bits), bits);
    }
}

static unsigned gptq_stored_zero(const nib_weight *w, int64_t row, int64_t g, int bits)
{
    const int64_t per = 32 / bits;
    return part(word(w->zeros, g * nib__ceil_div(w->n, per) + row / per), row % per, bits);
}

float nib__gptq_zero(const nib_weight *w, int64_t row, int64_t g)
{
    const int bits = bits_of(w);
    return (float)centered(gptq_stored_zero(w, row, g, bits), bits);
}

float nib__gptq_zero_less_one(const nib_weight *w, int64_t row, int64_t g)
{
    const int bits = bits_of(w);
    const unsigned stored = gptq_stored_zero(w, row, g, bits);
    return (float)centered((stored + 1) & (bits == 4 ? 15U : 255U), bits);
}

uint64_t nib__gptq_bytes(const nib_weight *w)
{
    return 4 * (uint64_t)nib__ceil_div(w->k, 32 / bits_of(w)) * (uint64_t)w->n;
}

/* ---- AWQ ---- */

/* Which part of a word holds output 0, 1, ... 7 of it: parts 0 to 7 are outputs 0 2 4 6 1 3 5 7. */
static const uint8_t awq_parts[8] = {0, 4, 1, 5, 2, 6, 3, 7};

static int awq_value(const void *words, int64_t line, const nib_weight *w, int64_t row)
{
    return centered(part(word(words, line * (w->n / 8) + row / 8), awq_parts[row % 8], 4), 4);
}

void nib__awq_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out)
{
    for (int64_t j = 0; j < count; j++)
        out[j] = (int8_t)awq_value(w->codes, place(w, k0 + j), w, row);
}

float nib__awq_zero(const nib_weight *w, int64_t row, int64_t g)
{
    return (float)awq_value(w->zeros, g, w, row);
}

uint64_t nib__awq_bytes(const nib_weight *w) { return 4 * (uint64_t)w->k * (uint64_t)(w->n / 8); }
