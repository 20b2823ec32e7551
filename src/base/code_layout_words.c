/* SPDX-License-Identifier: Apache-2.0
 *
 * Layouts with codes in words of 32 bits, as compressed-tensors, GPTQ and AWQ pack them. A code u
 * of b bits and its zero point z are read as u - 2^(b-1) and z - 2^(b-1), which keeps u - z.
 *
 *   words  codes [n][ceil(k*b/32)] along k                zeros [ceil(n*b/32)][groups]
 *   GPTQ   codes [ceil(k*b/32)][n]                        zeros [groups][ceil(n*b/32)]
 *   AWQ    codes [k][n/8], b = 4, columns interleaved     zeros [groups][n/8], interleaved alike
 */
#include "code_layout.h"

static int bits_of(const nib_weight *w) { return nib__code_bits(w->scheme.code); }

static int64_t words_for(int64_t count, int bits) { return nib__ceil_div(count * bits, 32); }

static uint32_t load_word(const void *words, int64_t at)
{
    uint32_t value;
    memcpy(&value, (const uint8_t *)words + 4 * at, sizeof value);
    return value;
}

/* Whether no code of 1 to 8 bits begins in one word and ends in the next. */
NIB_INLINE bool divides_word(int bits) { return (bits & (bits - 1)) == 0; }

/* The unsigned code of element i of a line of words, which are `stride` words apart. */
NIB_INLINE unsigned load_code(const void *words, int64_t stride, int64_t i, int bits)
{
    const uint64_t bit = (uint64_t)i * (unsigned)bits;
    const int64_t at = (int64_t)(bit / 32) * stride;
    const unsigned first = bit % 32;
    uint32_t code = load_word(words, at) >> first;
    if (!divides_word(bits) && first + (unsigned)bits > 32)
        code |= load_word(words, at + stride) << (32 - first);
    return code & ((1U << bits) - 1);
}

NIB_INLINE int subtract_offset(unsigned code, int bits) { return (int)code - (1 << (bits - 1)); }

/* Reads the codes of columns k0 to k0 + count - 1. Along k, words are `stride` words apart. order:
 * the input of each stored column (act-order), or NULL if columns are inputs. */
NIB_INLINE void read_words(const uint8_t *words, int64_t stride, const int32_t *order, int64_t k0,
                           int64_t count, int bits, int8_t *out)
{
    int64_t j = 0;
    while (order == NULL && divides_word(bits) && j < count) { /* each word is loaded once */
        const int64_t bit = (k0 + j) * bits;
        uint32_t codes = load_word(words, bit / 32 * stride) >> bit % 32;
        for (int64_t left = nib__min(count - j, (32 - bit % 32) / bits); left > 0; left--, j++) {
            out[j] = (int8_t)subtract_offset(codes & ((1U << bits) - 1), bits);
            codes >>= bits;
        }
    }
    for (; j < count; j++) {
        const int64_t column = order != NULL ? order[k0 + j] : k0 + j;
        out[j] = (int8_t)subtract_offset(load_code(words, stride, column, bits), bits);
    }
}

/* Reads codes of a row whose words lie together, eight at a time: they are `bits` whole bytes. */
NIB_INLINE void read_row(const uint8_t *words, int64_t k0, int64_t count, int bits, int8_t *out)
{
    int64_t j = nib__min(count, (8 - k0 % 8) % 8);
    read_words(words, 1, NULL, k0, j, bits, out);
    for (; j + 8 <= count; j += 8) {
        uint64_t codes = 0;
        memcpy(&codes, words + (k0 + j) / 8 * bits, (size_t)bits);
        for (int i = 0; i < 8; i++)
            out[j + i] =
                (int8_t)subtract_offset((unsigned)(codes >> i * bits) & ((1U << bits) - 1), bits);
    }
    read_words(words, 1, NULL, k0 + j, count - j, bits, out + j);
}

/* Passes constant bits, so that the inlined read_words is specialized. */
static void read_codes(const nib_weight *w, const uint8_t *words, int64_t stride, int64_t k0,
                       int64_t count, int8_t *out)
{
    switch (bits_of(w)) {
    case 4: read_words(words, stride, w->order, k0, count, 4, out); break;
    case 8: read_words(words, stride, w->order, k0, count, 8, out); break;
    default: read_words(words, stride, w->order, k0, count, bits_of(w), out); break;
    }
}

/* ---- words along a row ---- */

static void read_odd(const uint8_t *words, int64_t k0, int64_t count, int bits, int8_t *out)
{
    switch (bits) {
    case 1: read_row(words, k0, count, 1, out); break;
    case 2: read_row(words, k0, count, 2, out); break;
    case 3: read_row(words, k0, count, 3, out); break;
    case 5: read_row(words, k0, count, 5, out); break;
    case 6: read_row(words, k0, count, 6, out); break;
    default: read_row(words, k0, count, 7, out); break;
    }
}

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
    } else if (bits == 8) {
        for (int64_t j = 0; j < count; j++)
            out[j] = (int8_t)(words[k0 + j] - 128);
    } else {
        read_odd(words, k0, count, bits, out);
    }
}

float nib__words_zero(const nib_weight *w, int64_t row, int64_t g)
{
    const int bits = bits_of(w);
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    return (float)subtract_offset(load_code((const uint8_t *)w->zeros + 4 * g, groups, row, bits),
                                  bits);
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
    return load_code((const uint8_t *)w->zeros + 4 * g * words_for(w->n, bits), 1, row, bits);
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
    return (float)subtract_offset((stored + 1) & ((1U << bits) - 1), bits);
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
    const int64_t at = g * (w->n / 8) + row / 8;
    return (float)subtract_offset(
        load_code((const uint8_t *)w->zeros + 4 * at, 1, awq_nibbles[row % 8], 4), 4);
}

uint64_t nib__awq_bytes(const nib_weight *w) { return 4 * (uint64_t)w->k * (uint64_t)(w->n / 8); }

/* ---- nonzero zero points ---- */

/* In most files every zero point is the middle code, so whole words are compared first. Zero points
 * are compared singly only if some word differs and the last word of a row has unused bits. */
bool nib__words_has_nonzero_zero_point(const nib_weight *w)
{
    const int bits = bits_of(w);
    const bool less_one = w->layout == NIB_LAYOUT_GPTQ_LESS_ONE;
    const uint32_t middle = ((1U << (bits - 1)) - less_one) * (UINT32_MAX / ((1U << bits) - 1));
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    const int64_t count = divides_word(bits) ? words_for(w->n, bits) * groups : 0;
    uint32_t other = 0;
    for (int64_t i = 0; i < count; i++)
        other |= load_word(w->zeros, i) ^ middle;
    if (divides_word(bits) && (other == 0 || w->n % (32 / bits) == 0))
        return other != 0;
    for (int64_t g = 0; g < groups; g++)
        for (int64_t i = 0; i < w->n; i++)
            if (nib__weight_int_zero(w, i, g) != 0)
                return true;
    return false;
}
