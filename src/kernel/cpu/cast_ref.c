/* SPDX-License-Identifier: Apache-2.0
 *
 * The casts of training, one value at a time: the reference for every other row. Element j of sum i
 * is x[i][j], or x[j][i] in the _T forms.
 *
 *   bf16   to nearest, ties to even; NaN and infinity stay
 *   e4m3   factor = nib__cast_factor(max |x| of the sum or tensor); code = e4m3(x * factor),
 *          saturated; scale = 1 / factor in f32
 *   mx8    per 32 elements of the sum (the last block may be shorter): byte = exponent of the least
 *          power of two not below max |x| / 448, or with mx_floor the exponent of max |x| less 8;
 *          code = e4m3(x / 2^(byte - 127)), saturated. Byte 0, for blocks below 2^-118, means
 *          2^-127 but divides by 1, or with mx_floor by 2^-126, as in torchao
 *
 * If a sum, tensor or block is not finite, its codes are 0 and its scale is NaN, so every product
 * with it is NaN.
 */
#include "cast_rows.h"

#include <math.h>

enum { BLOCK = 32 };

/* Elements of one sum. */
typedef struct line {
    const float *x;
    int64_t count, step;
} line;

static uint32_t bits_of(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Compares bits, so NaN is the largest of all. */
static float largest_of(line l)
{
    uint32_t most = 0;
    for (int64_t j = 0; j < l.count; j++) {
        const uint32_t magnitude = bits_of(l.x[j * l.step]) & 0x7fffffffU;
        most = magnitude > most ? magnitude : most;
    }
    float largest;
    memcpy(&largest, &most, sizeof largest);
    return largest;
}

static bool is_finite(float largest) { return bits_of(largest) < 0x7f800000U; }

/* ---- one scale for a sum ---- */

static float factor_of(line l, const float *amax, float most, bool two_power)
{
    return nib__cast_factor(amax != NULL ? *amax : largest_of(l), most, two_power);
}

static uint8_t e4m3_of(float x, float factor)
{
    return factor == factor ? nib__f32_to_e4m3_saturated(x * factor) : 0;
}

static uint8_t e5m2_of(float x, float factor)
{
    return factor == factor ? nib__f32_to_e5m2_saturated(x * factor) : 0;
}

/* ---- MX ---- */

/* The byte of the scale, and the factor for x; multiplying by it is exact, as both are powers of
 * two. */
static uint8_t mx_byte(float largest, bool is_floor, float *factor)
{
    *factor = NAN;
    if (!is_finite(largest))
        return 255;
    const int32_t exponent = (int32_t)(bits_of(largest) >> 23);
    const uint8_t byte =
        is_floor ? (uint8_t)(exponent > 8 ? exponent - 8 : 0) : nib__f32_to_e8m0_up(largest / 448);
    *factor = byte > 0 ? ldexpf(1, 127 - byte) : is_floor ? 0x1p126F : 1.0F;
    return byte;
}

static line block_of(line l, int64_t j)
{
    return (line){l.x + j * l.step, nib__min(BLOCK, l.count - j), l.step};
}

/* ---- weights ---- */

static line weight_line(const nib_cast *a, int64_t i, bool across)
{
    return across ? (line){a->x + i, a->w->k, a->ldx} : (line){a->x + i * a->ldx, a->w->k, 1};
}

/* Where the scales of a plain (unpacked) weight lie. */
static void *scales_of(const nib_cast *a)
{
    const nib_kernel plain = {.packing = NULL};
    nib_weight view;
    nib__cast_view(&view, &plain, a->w, a->packed);
    return (uint8_t *)a->packed + ((const uint8_t *)view.scales - (const uint8_t *)a->packed);
}

static void cast_f32(const nib_cast *a, int64_t n0, int64_t n1, bool across)
{
    for (int64_t i = n0; i < n1; i++) {
        const line l = weight_line(a, i, across);
        float *to = (float *)a->packed + i * l.count;
        for (int64_t j = 0; j < l.count; j++)
            to[j] = l.x[j * l.step];
    }
}

static void cast_bf16(const nib_cast *a, int64_t n0, int64_t n1, bool across)
{
    for (int64_t i = n0; i < n1; i++) {
        const line l = weight_line(a, i, across);
        uint16_t *to = (uint16_t *)a->packed + i * l.count;
        for (int64_t j = 0; j < l.count; j++)
            to[j] = nib__f32_to_bf16(l.x[j * l.step]);
    }
}

static void cast_e4m3(const nib_cast *a, int64_t n0, int64_t n1, bool across)
{
    float *scales = scales_of(a);
    for (int64_t i = n0; i < n1; i++) {
        const line l = weight_line(a, i, across);
        uint8_t *to = (uint8_t *)a->packed + i * l.count;
        const float factor = factor_of(l, a->amax, 448, a->two_power);
        for (int64_t j = 0; j < l.count; j++)
            to[j] = e4m3_of(l.x[j * l.step], factor);
        scales[i] = 1 / factor;
    }
}

static void cast_mx8(const nib_cast *a, int64_t n0, int64_t n1, bool across)
{
    uint8_t *scales = scales_of(a);
    for (int64_t i = n0; i < n1; i++) {
        const line l = weight_line(a, i, across);
        uint8_t *to = (uint8_t *)a->packed + i * l.count;
        for (int64_t j = 0; j < l.count; j += BLOCK) {
            const line b = block_of(l, j);
            float factor;
            scales[i * nib__ceil_div(l.count, BLOCK) + j / BLOCK] =
                mx_byte(largest_of(b), a->w->scheme.mx_floor, &factor);
            for (int64_t t = 0; t < b.count; t++)
                to[j + t] = e4m3_of(b.x[t * b.step], factor);
        }
    }
}

void nib__cast_f32__ref(const nib_cast *a, int64_t n0, int64_t n1) { cast_f32(a, n0, n1, false); }
void nib__cast_bf16__ref(const nib_cast *a, int64_t n0, int64_t n1) { cast_bf16(a, n0, n1, false); }
void nib__cast_e4m3c__ref(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_e4m3(a, n0, n1, false);
}
void nib__cast_mx8__ref(const nib_cast *a, int64_t n0, int64_t n1) { cast_mx8(a, n0, n1, false); }
void nib__cast_t_f32__ref(const nib_cast *a, int64_t n0, int64_t n1) { cast_f32(a, n0, n1, true); }
void nib__cast_t_bf16__ref(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_bf16(a, n0, n1, true);
}
void nib__cast_t_e4m3c__ref(const nib_cast *a, int64_t n0, int64_t n1)
{
    cast_e4m3(a, n0, n1, true);
}
void nib__cast_t_mx8__ref(const nib_cast *a, int64_t n0, int64_t n1) { cast_mx8(a, n0, n1, true); }

/* ---- inputs: sums are tokens, columns of x ---- */

static line token_line(const nib_quant *a, int64_t r) { return (line){a->x + r, a->out.k, a->ldx}; }

void nib__quant_t_f32__ref(const nib_quant *a, int64_t m0, int64_t m1)
{
    for (int64_t r = m0; r < m1; r++) {
        const line l = token_line(a, r);
        for (int64_t j = 0; j < l.count; j++)
            a->out.f32[r * a->out.ld + j] = l.x[j * l.step];
    }
}

void nib__quant_t_bf16__ref(const nib_quant *a, int64_t m0, int64_t m1)
{
    const nib_input *out = &a->out;
    for (int64_t r = m0; r < m1; r++) {
        const line l = token_line(a, r);
        for (int64_t j = 0; j < out->ld; j++)
            out->bf16[r * out->ld + j] = j < l.count ? nib__f32_to_bf16(l.x[j * l.step]) : 0;
    }
}

void nib__quant_t_e4m3t__ref(const nib_quant *a, int64_t m0, int64_t m1)
{
    const nib_input *out = &a->out;
    for (int64_t r = m0; r < m1; r++) {
        const line l = token_line(a, r);
        const float factor = factor_of(l, a->amax, a->e5m2 ? 57344 : 448, a->two_power);
        memset(out->bf16 + r * out->ld, 0, (size_t)out->ld * sizeof *out->bf16);
        for (int64_t j = 0; j < l.count; j++) {
            const float x = l.x[j * l.step];
            const float code = a->e5m2 ? nib__e5m2_to_f32(e5m2_of(x, factor))
                                       : nib__e4m3_to_f32(e4m3_of(x, factor));
            out->bf16[r * out->ld + j] = nib__f32_to_bf16(code);
        }
        out->scale[r] = 1 / factor;
    }
}

void nib__quant_t_mx8__ref(const nib_quant *a, int64_t m0, int64_t m1)
{
    const nib_input *out = &a->out;
    for (int64_t r = m0; r < m1; r++) {
        const line l = token_line(a, r);
        uint8_t *to = (uint8_t *)out->codes + r * out->ld;
        memset(to, 0, (size_t)out->ld);
        for (int64_t j = 0; j < l.count; j += BLOCK) {
            const line b = block_of(l, j);
            float factor;
            const uint8_t byte = mx_byte(largest_of(b), a->mx_floor, &factor);
            for (int64_t t = 0; t < b.count; t++)
                to[j + t] = e4m3_of(b.x[t * b.step], factor);
            out->scale[r * out->groups + j / BLOCK] = nib__e8m0_to_f32(byte);
        }
    }
}

/* ---- the largest magnitude ---- */

void nib__amax_f32__ref(const nib_amax *a, int64_t part0, int64_t part1)
{
    for (int64_t p = part0; p < part1; p++) {
        float most = 0;
        for (int64_t i = p * NIB_TRAIN_ROWS; i < nib__min(a->rows, (p + 1) * NIB_TRAIN_ROWS); i++) {
            const float largest = largest_of((line){a->x + i * a->ldx, a->width, 1});
            most = bits_of(largest) > bits_of(most) ? largest : most;
        }
        a->out[p] = most;
    }
}
