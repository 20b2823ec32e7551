/* SPDX-License-Identifier: Apache-2.0
 *
 * Values through their codes and back, and gradients past it. The header says the formulas.
 */
#include "fake_quant.h"

#include <math.h>

bool nib__fake_has(const nib_scheme *s)
{
    const bool integers = (s->code == NIB_CODE_I8 || s->code == NIB_CODE_I4) && s->symmetric &&
                          s->zero == NIB_ZERO_NONE && s->formula != NIB_FORMULA_GGML;
    const bool floats =
        s->code == NIB_CODE_I4 && s->zero == NIB_ZERO_FLOAT && s->formula == NIB_FORMULA_TORCHAO;
    return (integers || floats) && s->group != NIB_GROUP_TENSOR &&
           (s->act == NIB_ACT_FLOAT || s->act == NIB_ACT_I8_TOKEN);
}

/* ---- weights ---- */

/* Value `at` of an array; 0 without one. */
static float one_of(const void *array, nib_type type, int64_t at)
{
    float value = 0;
    if (array != NULL)
        nib__to_f32(&value, (const char *)array + at * (nib__type_bits(type) / 8), type, 1);
    return value;
}

static void *at_row(void *array, nib_type type, int64_t at)
{
    return array != NULL ? (char *)array + at * (nib__type_bits(type) / 8) : NULL;
}

static void round_row(float *out, const float *w, int64_t count, nib_type type)
{
    enum { PIECE = 256 };
    float stored[PIECE]; /* room for any of the types */
    for (int64_t j = 0; j < count; j += PIECE) {
        const int64_t piece = nib__min(PIECE, count - j);
        nib__from_f32(stored, type, w + j, piece);
        nib__to_f32(out + j, stored, type, piece);
    }
}

static void row_values(const nib_fake_weight *f, float *out, int64_t row)
{
    const nib_quantizer *q = &f->quantizer;
    const int64_t size = nib__scheme_group_size(&q->scheme, q->k);
    const int8_t *codes = f->codes + row * q->k;
    for (int64_t g = 0; g < q->groups; g++) {
        const float scale = one_of(f->scales, q->scale_type, row * q->groups + g);
        const float zero = one_of(f->zeros, q->zero_type, row * q->groups + g);
        for (int64_t j = g * size; j < nib__min((g + 1) * size, q->k); j++)
            out[j] = (float)codes[j] * scale + zero;
    }
}

void nib__fake_weight_rows(const nib_fake_weight *f, const float *w, float *out, int64_t n0,
                           int64_t n1)
{
    const nib_quantizer *q = &f->quantizer;
    for (int64_t i = n0; i < n1; i++) {
        float *row = out + i * q->k;
        nib_quantized to = {.codes = f->codes + i * q->k,
                            .scales = at_row(f->scales, q->scale_type, i * q->groups),
                            .zeros = at_row(f->zeros, q->zero_type, i * q->groups)};
        nib_err err;
        round_row(row, w + i * q->k, q->k, q->source);
        if (nib__quantizer_rows(q, row, i, 1, &to, &err) == NIB_OK) {
            row_values(f, row, i);
            continue;
        }
        for (int64_t j = 0; j < q->k; j++)
            row[j] = NAN;
    }
}

static void stop_at_bounds(float *gradient, const int8_t *codes, int64_t count, int8_t least,
                           int8_t largest)
{
    for (int64_t j = 0; j < count; j++)
        gradient[j] = codes[j] > least && codes[j] < largest ? gradient[j] : 0;
}

/* A group of int4 with float zeros; codes are stored less 8. */
static void through_range(float *gradient, const int8_t *codes, const float *w, int64_t count)
{
    const float smallest = 1e-6f; /* range, of Int4Tensor */
    float low = w[0], high = w[0];
    for (int64_t j = 1; j < count; j++) {
        low = w[j] < low ? w[j] : low;
        high = w[j] > high ? w[j] : high;
    }
    const float range = high - low > smallest ? high - low : smallest, scale = range / 15;
    double of_scale = 0, of_low = 0;
    int64_t lows = 0, highs = 0;
    for (int64_t j = 0; j < count; j++) {
        const double g = (double)gradient[j], code = codes[j] + 8;
        const bool inside = code > 0 && code < 15;
        of_scale += g * (inside ? code - (double)((w[j] - low) / scale) : code);
        of_low += inside ? 0 : g;
        lows += w[j] == low;
        highs += w[j] == high;
        gradient[j] = inside ? gradient[j] : 0;
    }
    const double of_range = high - low > smallest ? of_scale / 15 : 0;
    for (int64_t j = 0; j < count; j++) {
        if (w[j] == low)
            gradient[j] += (float)((of_low - of_range) / (double)lows);
        if (w[j] == high)
            gradient[j] += (float)(of_range / (double)highs);
    }
}

void nib__fake_weight_gradient(const nib_fake_weight *f, const float *w, float *gradient,
                               int64_t n0, int64_t n1)
{
    const nib_quantizer *q = &f->quantizer;
    const int64_t size = nib__scheme_group_size(&q->scheme, q->k);
    const bool bits8 = q->scheme.code == NIB_CODE_I8;
    for (int64_t i = n0; i < n1; i++) {
        const int64_t row = i * q->k;
        if (q->scheme.zero == NIB_ZERO_NONE) {
            stop_at_bounds(gradient + row, f->codes + row, q->k, bits8 ? -128 : -8,
                           bits8 ? 127 : 7);
            continue;
        }
        for (int64_t k0 = 0; k0 < q->k; k0 += size)
            through_range(gradient + row + k0, f->codes + row + k0, w + row + k0,
                          nib__min(size, q->k - k0));
    }
}

/* ---- inputs ---- */

void nib__fake_input_rows(const nib_input *codes, float *out, int64_t ldo, uint8_t *mask,
                          int64_t m0, int64_t m1)
{
    const int64_t mask_ld = nib__fake_mask_ld(codes->k);
    for (int64_t i = m0; i < m1; i++) {
        const int8_t *c = codes->codes + i * codes->ld;
        const float scale = codes->scale[i];
        const int32_t zero = codes->zero[i];
        float *values = out + i * ldo;
        for (int64_t j = 0; j < codes->k; j++)
            values[j] = (float)(c[j] - zero) * scale;
        for (int64_t b = 0; b < mask_ld; b++) {
            const int64_t j0 = 8 * b, count = nib__min(8, codes->k - j0);
            unsigned bits = 0;
            for (int64_t j = 0; j < count; j++)
                bits |= (unsigned)(c[j0 + j] > INT8_MIN && c[j0 + j] < INT8_MAX) << j;
            mask[i * mask_ld + b] = (uint8_t)bits;
        }
    }
}

void nib__fake_input_gradient(const uint8_t *mask, float *gradient, int64_t ld, int64_t k,
                              int64_t m0, int64_t m1)
{
    const int64_t mask_ld = nib__fake_mask_ld(k);
    for (int64_t i = m0; i < m1; i++) {
        float *g = gradient + i * ld;
        for (int64_t b = 0; b < mask_ld; b++) {
            const unsigned bits = mask[i * mask_ld + b];
            if (bits == 0xff) /* almost always: a token has two extremes */
                continue;
            for (int64_t j = 8 * b; j < nib__min(8 * b + 8, k); j++)
                g[j] = bits >> (j - 8 * b) & 1 ? g[j] : 0;
        }
    }
}
