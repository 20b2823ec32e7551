/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks every code of a weight for NaN, infinity and integer codes out of range. This reads the
 * whole weight, so opening a checkpoint does not do it.
 */
#include "checkpoint_inside.h"

#include <inttypes.h>
#include <math.h>

/* The bits that are all set in NaN and infinity only: those of the exponent, or in e4m3 all except
 * the sign. */
static bool find_bad_bits(const nib_weight *w, uint32_t *mask, int *bytes)
{
    static const uint32_t masks[] = {
        [NIB_ELEMENT_F32] = 0x7f800000, [NIB_ELEMENT_F16] = 0x7c00, [NIB_ELEMENT_BF16] = 0x7f80,
        [NIB_ELEMENT_E4M3] = 0x7f,      [NIB_ELEMENT_E5M2] = 0x7c,
    };
    const size_t element = nib__codes[w->scheme.code].element;
    *mask = element < COUNT(masks) ? masks[element] : 0;
    *bytes = nib__code_bits(w->scheme.code) / 8;
    return *mask != 0;
}

/* The first loops have no early exit, so that they vectorize; on good data only they run. */
int64_t nib__find_bits(const uint8_t *row, int64_t k, int bytes, uint32_t mask)
{
    uint32_t found = 0;
    if (bytes == 1) {
        for (int64_t j = 0; j < k; j++)
            found |= (row[j] & mask) == mask;
    } else if (bytes == 2) {
        for (int64_t j = 0; j < k; j++) {
            uint16_t bits;
            memcpy(&bits, row + 2 * j, sizeof bits);
            found |= (bits & mask) == mask;
        }
    } else {
        for (int64_t j = 0; j < k; j++) {
            uint32_t bits;
            memcpy(&bits, row + 4 * j, sizeof bits);
            found |= (bits & mask) == mask;
        }
    }
    if (found == 0)
        return k;
    for (int64_t j = 0; j < k; j++) {
        uint32_t bits = 0;
        for (int b = bytes; b-- > 0;)
            bits = bits << 8 | row[bytes * j + b]; /* little-endian, as in files */
        if ((bits & mask) == mask)
            return j;
    }
    return k;
}

/* Index of the first of k f64 values that is not finite in f32, the type it is read as; or k. */
static int64_t find_f64(const uint8_t *row, int64_t k)
{
    float piece[256];
    for (int64_t at = 0; at < k; at += (int64_t)COUNT(piece)) {
        const int64_t some = nib__min((int64_t)COUNT(piece), k - at);
        nib__to_f32(piece, row + at * 8, NIB_TYPE_F64, some);
        for (int64_t j = 0; j < some; j++)
            if (!isfinite(piece[j]))
                return at + j;
    }
    return k;
}

/* First column of integer codes, one per byte, that is outside -most - 1 to most; or k. */
static int64_t find_wide(const void *codes, int64_t k, int most)
{
    const int8_t *row = codes;
    uint8_t high = 0; /* bits of any code + most + 1 above 2 * most + 1 */
    for (int64_t j = 0; j < k; j++)
        high |= (uint8_t)((row[j] + most + 1) & ~(2 * most + 1));
    for (int64_t j = 0; high != 0 && j < k; j++)
        if (row[j] < -most - 1 || row[j] > most)
            return j;
    return k;
}

/* Checks that scales and zeros stored among the codes of a row are finite. */
static nib_status check_row_scales(const nib_weight *w, int64_t i, nib_err *err)
{
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    for (int64_t g = 0; g < groups; g++)
        if (!isfinite(nib__weight_scale(w, i, g)) || !isfinite(nib__weight_zero(w, i, g)))
            return nib__fail(err, NIB_BAD_INPUT,
                             "scale or zero point at row %" PRId64 ", group %" PRId64
                             " is not finite; results would not be finite",
                             i, g);
    return NIB_OK;
}

/* First column of row i of a transposed weight that has all bits of the mask; or k. */
static int64_t find_transposed(const nib_weight *w, int64_t i, int bytes, uint32_t mask)
{
    uint8_t piece[1024];
    const int64_t most = (int64_t)sizeof piece / bytes;
    for (int64_t at = 0; at < w->k; at += most) {
        const int64_t some = nib__min(most, w->k - at);
        if (w->layout == NIB_LAYOUT_BYTE_T)
            nib__weight_codes(w, i, at, some, (int8_t *)piece);
        else
            nib__weight_floats(w, i, at, some, piece);
        const int64_t found = nib__find_bits(piece, some, bytes, mask);
        if (found < some)
            return at + found;
    }
    return w->k;
}

nib_status nib__weight_check_rows(const nib_weight *w, int64_t first, int64_t count, nib_err *err)
{
    uint32_t mask = 0;
    int bytes = 0;
    const int most = nib__code_most(w->scheme.code);
    const bool wide = nib__code_is_int(w->scheme.code) && nib__code_bits(w->scheme.code) < 8 &&
                      w->layout == NIB_LAYOUT_BYTE;
    const bool numbers = !wide && find_bad_bits(w, &mask, &bytes);
    if (nib__weight_holds_scales(w))
        for (int64_t i = first; i < first + count; i++)
            NIB_TRY(check_row_scales(w, i, err));
    for (int64_t i = first; i < first + count && (wide || numbers); i++) {
        const uint8_t *row = (const uint8_t *)w->codes +
                             (uint64_t)nib__weight_place(w, i) * nib__weight_row_bytes(w);
        const int64_t at = wide                          ? find_wide(row, w->k, most)
                           : w->layout == NIB_LAYOUT_F64 ? find_f64(row, w->k)
                           : nib__weight_is_transposed(w)
                               ? find_transposed(w, i, bytes, mask)
                               : nib__find_bits(row, w->k, bytes, mask);
        if (at == w->k)
            continue;
        if (wide)
            return nib__fail(err, NIB_BAD_INPUT,
                             "code at row %" PRId64 ", column %" PRId64
                             " is %d, outside %d to %d for %s",
                             i, at, ((const int8_t *)row)[at], -most - 1, most,
                             nib__codes[w->scheme.code].name);
        return nib__fail(err, NIB_BAD_INPUT,
                         "value at row %" PRId64 ", column %" PRId64
                         " is not finite; results would not be finite",
                         i, at);
    }
    return NIB_OK;
}

nib_status nib__weight_check_codes(const nib_weight *w, const char *module, nib_err *err)
{
    char shown[NIB_SHOWN + 8];
    const nib_status status = nib__weight_check_rows(w, 0, w->n, err);
    if (status == NIB_OK)
        return NIB_OK;
    nib__escape_name(shown, NIB_SHOWN, module, strlen(module));
    memcpy(shown + strlen(shown), ".weight", sizeof ".weight");
    return nib__fail_in(err, status, shown);
}
