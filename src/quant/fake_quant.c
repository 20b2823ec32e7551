/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes and dequantizes values, and computes gradients. The header has the formulas.
 */
#include "fake_quant.h"

#include <math.h>

bool nib__fake_has(const nib_scheme *s)
{
    const bool integers = nib__code_is_int(s->code) && s->symmetric && s->zero == NIB_ZERO_NONE &&
                          s->formula != NIB_FORMULA_GGML && !nib__scheme_is_gguf_block(s);
    const bool floats = nib__code_is_int(s->code) && s->code != NIB_CODE_I8 &&
                        s->zero == NIB_ZERO_FLOAT && s->formula == NIB_FORMULA_TORCHAO;
    return (integers || floats) && s->group != NIB_GROUP_TENSOR &&
           (s->act == NIB_ACT_FLOAT || s->act == NIB_ACT_I8_TOKEN);
}

/* For |x| < 2^22. */
NIB_INLINE float round_even(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

/* ---- weights ---- */

/* Element `at` of an array; 0 without an array. */
static float read_value(const void *array, nib_type type, int64_t at)
{
    float value = 0;
    if (array != NULL)
        nib__to_f32(&value, (const char *)array + at * (nib__type_bits(type) / 8), type, 1);
    return value;
}

static void *pointer_at(void *array, nib_type type, int64_t at)
{
    return array != NULL ? (char *)array + at * (nib__type_bits(type) / 8) : NULL;
}

static void round_row(float *out, const float *w, int64_t count, nib_type type)
{
    enum { PIECE = 256 };
    float stored[PIECE]; /* large enough for any type */
    for (int64_t j = 0; j < count; j += PIECE) {
        const int64_t piece = nib__min(PIECE, count - j);
        nib__from_f32(stored, type, w + j, piece);
        nib__to_f32(out + j, stored, type, piece);
    }
}

static void dequantize_row(const nib_fake_weight *f, float *out, int64_t row)
{
    const nib_quantizer *q = &f->quantizer;
    const int64_t size = nib__scheme_group_size(&q->scheme, q->k);
    const int8_t *codes = f->codes + row * q->k;
    for (int64_t g = 0; g < q->groups; g++) {
        const float scale = read_value(f->scales, q->scale_type, row * q->groups + g);
        const float zero = read_value(f->zeros, q->zero_type, row * q->groups + g);
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
                            .scales = pointer_at(f->scales, q->scale_type, i * q->groups),
                            .zeros = pointer_at(f->zeros, q->zero_type, i * q->groups)};
        nib_err err;
        round_row(row, w + i * q->k, q->k, q->source);
        if (nib__quantizer_quantize_rows(q, row, i, 1, &to, &err) == NIB_OK) {
            dequantize_row(f, row, i);
            continue;
        }
        for (int64_t j = 0; j < q->k; j++)
            row[j] = NAN;
    }
}

/* Gradient of a group of integers: zero where the clamp changed a code. */
static void mask_clamped(float *gradient, const float *w, int64_t count, float scale, float qmin,
                         float qmax)
{
    const float factor = 1 / scale;
    for (int64_t j = 0; j < count; j++) {
        const float code = round_even(w[j] * factor);
        gradient[j] = code >= qmin && code <= qmax ? gradient[j] : 0;
    }
}

/* Gradient of a group of integers up to `most` with float zeros, whose codes are stored minus
 * most + 1. No code is clamped, because the range is the group's own, so the minimum by itself has
 * no gradient. */
static void add_range_gradient(float *gradient, const int8_t *codes, const float *w, int64_t count,
                               int most)
{
    const float smallest = 1e-6f; /* range, of Int4Tensor */
    float low = w[0], high = w[0];
    for (int64_t j = 1; j < count; j++) {
        low = w[j] < low ? w[j] : low;
        high = w[j] > high ? w[j] : high;
    }
    if (!(high - low > smallest))
        return;
    const int steps = 2 * most + 1;
    const float scale = (high - low) / (float)steps;
    double of_scale = 0;
    int64_t lows = 0, highs = 0;
    for (int64_t j = 0; j < count; j++) {
        of_scale += (double)gradient[j] * (codes[j] + most + 1 - (double)((w[j] - low) / scale));
        lows += w[j] == low;
        highs += w[j] == high;
    }
    for (int64_t j = 0; j < count; j++) {
        if (w[j] == low)
            gradient[j] -= (float)(of_scale / steps / (double)lows);
        if (w[j] == high)
            gradient[j] += (float)(of_scale / steps / (double)highs);
    }
}

void nib__fake_weight_gradient(const nib_fake_weight *f, const float *w, float *gradient,
                               int64_t n0, int64_t n1)
{
    const nib_quantizer *q = &f->quantizer;
    const int64_t size = nib__scheme_group_size(&q->scheme, q->k);
    const int most = nib__code_most(q->scheme.code);
    for (int64_t i = n0; i < n1; i++)
        for (int64_t g = 0; g < q->groups; g++) {
            const int64_t at = i * q->k + g * size, count = nib__min(size, q->k - g * size);
            if (q->scheme.zero == NIB_ZERO_NONE)
                mask_clamped(gradient + at, w + at, count,
                             read_value(f->scales, q->scale_type, i * q->groups + g),
                             (float)(-most - 1), (float)most);
            else
                add_range_gradient(gradient + at, f->codes + at, w + at, count, most);
        }
}

/* ---- inputs ---- */

void nib__fake_input_rows(const nib_quant *made, float *out, int64_t ldo, uint8_t *mask, int64_t m0,
                          int64_t m1)
{
    const nib_input *codes = &made->out;
    const int64_t mask_ld = nib__fake_mask_ld(codes->k);
    for (int64_t i = m0; i < m1; i++) {
        const int8_t *c = codes->codes + i * codes->ld;
        const float *x = made->x + i * made->ldx;
        const float scale = codes->scale[i], factor = 1 / scale;
        const int32_t zero = codes->zero[i];
        const float least = (float)(INT8_MIN - zero), most = (float)(INT8_MAX - zero);
        float *values = out + i * ldo;
        for (int64_t j = 0; j < codes->k; j++)
            values[j] = (float)(c[j] - zero) * scale;
        for (int64_t b = 0; b < mask_ld; b++) {
            const int64_t j0 = 8 * b, count = nib__min(8, codes->k - j0);
            unsigned bits = 0;
            for (int64_t j = 0; j < count; j++) {
                const float code = round_even(x[j0 + j] * factor);
                bits |= (unsigned)(code >= least && code <= most) << j;
            }
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
            if (bits == 0xff) /* almost always */
                continue;
            for (int64_t j = 8 * b; j < nib__min(8 * b + 8, k); j++)
                g[j] = bits >> (j - 8 * b) & 1 ? g[j] : 0;
        }
    }
}
