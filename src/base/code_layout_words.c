/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts with codes in words of 32 bits, as compressed-tensors, GPTQ and AWQ pack them. A code u
 * of b bits and its zero point z are read as u - 2^(b-1) and z - 2^(b-1), which keeps u - z.
 *
 *   words  codes [n][ceil(k/c)], c = 32/b along k         zeros [ceil(n/c)][groups]
 *   GPTQ   codes [ceil(k/c)][n]                           zeros [groups][ceil(n/c)]
 *   AWQ    codes [k][n/8], b = 4, columns interleaved     zeros [groups][n/8], interleaved alike
 */
#include "code_layout.h"

static int bits_of(const nib_weight *w) { return nib__code_bits(w->scheme.code); }

/* log2 of the codes per word: dividing for every code would cost more than all other work. */
static int word_shift(int bits) { return bits == 4 ? 3 : 2; }

static int64_t words_for(int64_t count, int bits) { return nib__ceil_div(count, 32 / bits); }

static uint32_t load_word(const void *words, int64_t at)
{
    uint32_t value;
    memcpy(&value, (const uint8_t *)words + 4 * at, sizeof value);
    return value;
}

/* The unsigned code of element i, in the word that holds it. */
NIB_INLINE unsigned extract_code(uint32_t value, int64_t i, int bits)
{
    return bits == 4 ? value >> (i & 7) * 4 & 15 : value >> (i & 3) * 8 & 255;
}

NIB_INLINE int subtract_offset(unsigned code, int bits)
{
    return (int)code - (bits == 4 ? 8 : 128);
}

/* Reads the codes of columns k0 to k0 + count - 1. Along k, words are `stride` words apart. order:
 * the input of each stored column (act-order), or NULL if columns are inputs. */
NIB_INLINE void read_words(const uint8_t *words, int64_t stride, const int32_t *order, int64_t k0,
                           int64_t count, int bits, int8_t *out)
{
    const int shift = word_shift(bits);
    int64_t j = 0;
    if (order != NULL) {
        for (; j < count; j++) {
            const int64_t column = order[k0 + j];
            const uint32_t value = load_word(words, (column >> shift) * stride);
            out[j] = (int8_t)subtract_offset(extract_code(value, column, bits), bits);
        }
        return;
    }
    while (j < count) {
        const uint32_t value = load_word(words, ((k0 + j) >> shift) * stride);
        do {
            out[j] = (int8_t)subtract_offset(extract_code(value, k0 + j, bits), bits);
            j++;
        } while (j < count && ((k0 + j) & ((1 << shift) - 1)) != 0);
    }
}

/* Passes constant bits, so that the inlined read_words is specialized. */
static void read_codes(const nib_weight *w, const uint8_t *words, int64_t stride, int64_t k0,
                       int64_t count, int8_t *out)
{
    if (bits_of(w) == 4)
        read_words(words, stride, w->order, k0, count, 4, out);
    else
        read_words(words, stride, w->order, k0, count, 8, out);
}

/* ---- words along a row ---- */

void nib__words_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out)
{
    const int bits = bits_of(w);
    const uint8_t *words = (const uint8_t *)w->codes + 4 * row * words_for(w->k, bits);
    if (w->order != NULL) {
        read_codes(w, words, 1, k0, count, out);
    } else if (bits == 4) { /* a little-endian word is a run of nibbles, low one first */
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
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    const uint32_t value = load_word(w->zeros, (row >> word_shift(bits)) * groups + g);
    return (float)subtract_offset(extract_code(value, row, bits), bits);
}

uint64_t nib__words_row_bytes(const nib_weight *w)
{
    return 4 * (uint64_t)words_for(w->k, bits_of(w));
}

/* ---- GPTQ ---- */

void nib__gptq_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out)
{
    read_codes(w, (const uint8_t *)w->codes + 4 * row, w->n, k0, count, out);
}

static unsigned gptq_stored_zero(const nib_weight *w, int64_t row, int64_t g, int bits)
{
    return extract_code(load_word(w->zeros, g * words_for(w->n, bits) + (row >> word_shift(bits))),
                        row, bits);
}

float nib__gptq_zero(const nib_weight *w, int64_t row, int64_t g)
{
    const int bits = bits_of(w);
    return (float)subtract_offset(gptq_stored_zero(w, row, g, bits), bits);
}

float nib__gptq_zero_less_one(const nib_weight *w, int64_t row, int64_t g)
{
    const int bits = bits_of(w);
    const unsigned stored = gptq_stored_zero(w, row, g, bits);
    return (float)subtract_offset((stored + 1) & (bits == 4 ? 15U : 255U), bits);
}

uint64_t nib__gptq_bytes(const nib_weight *w)
{
    return 4 * (uint64_t)words_for(w->k, bits_of(w)) * (uint64_t)w->n;
}

/* ---- AWQ ---- */

/* AWQ interleaves outputs: nibbles 0 to 7 of a word hold outputs 0 2 4 6 1 3 5 7. Inverse: */
static const uint8_t awq_nibbles[8] = {0, 4, 1, 5, 2, 6, 3, 7};

void nib__awq_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out)
{
    const int64_t width = w->n / 8;
    const uint8_t *words = (const uint8_t *)w->codes + 4 * (k0 * width + row / 8);
    const int shift = awq_nibbles[row % 8] * 4;
    for (int64_t j = 0; j < count; j++)
        out[j] = (int8_t)subtract_offset(load_word(words, j * width) >> shift & 15, 4);
}

float nib__awq_zero(const nib_weight *w, int64_t row, int64_t g)
{
    const uint32_t value = load_word(w->zeros, g * (w->n / 8) + row / 8);
    return (float)subtract_offset(extract_code(value, awq_nibbles[row % 8], 4), 4);
}

uint64_t nib__awq_bytes(const nib_weight *w) { return 4 * (uint64_t)w->k * (uint64_t)(w->n / 8); }

/* ---- nonzero zero points ---- */

/* In most files every zero point is the middle code, so whole words are compared first. Zero points
 * are compared singly only if some word differs and the last word of a row has unused bits. */
bool nib__words_has_nonzero_zero_point(const nib_weight *w)
{
    const int bits = bits_of(w);
    const bool less_one = w->layout == NIB_LAYOUT_GPTQ_LESS_ONE;
    const uint32_t middle =
        bits == 4 ? (less_one ? 0x77777777U : 0x88888888U) : (less_one ? 0x7f7f7f7fU : 0x80808080U);
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    const int64_t count = words_for(w->n, bits) * groups;
    uint32_t other = 0;
    for (int64_t i = 0; i < count; i++)
        other |= load_word(w->zeros, i) ^ middle;
    if (other == 0 || w->n % (32 / bits) == 0)
        return other != 0;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < w->n; i++)
            if (nib__weight_int_zero(w, i, g) != 0)
                return true;
    return false;
}
