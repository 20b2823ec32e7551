/* SPDX-License-Identifier: Apache-2.0
 *
 * The sums that every linear row with a float accumulator must reproduce bit for bit, in plain C,
 * for any shape, group, scale type and zero point. It reads plain weights, not a packed layout.
 *
 * One output of one token, k ascending. A segment is a group, cut at block ends (the whole block if
 * there is one scale or none); a block is nib__sum_block() elements.
 * where there is one scale or none); a block is nib__sum_block() elements.
 *
 *   F32 sums     g = fma(x[j], w[j], g) from 0 over the segment
 *   BF16 sums    per pair of the segment g = fma(x[j+1], w[j+1], g), then g = fma(x[j], w[j], g);
 *                an odd last element has a partner of zero. vdpbf16ps computes this.
 *   with groups  acc = fma(s, g, acc) from 0 per segment, s = s_g, or s_x,g * s_g if activations
 *                have groups; after the last segment of a group with a float zero,
 *                acc = fma(zero_g, xsum_g, acc)
 *   without      acc = g
 *   total        = acc of the first block + acc of the second + ...
 *   y            = (total * s_row [fma(zero_row, xsum, .)] * s_x) + bias, each factor only if it
 *                exists; s_row can also be a tensor's scale on top of its group scales
 *
 * w[j] is the code as f32, less its integer zero point. The rows run with denormals flushed, so a
 * sum can become minus zero. y never does: 0 is added to the bias, and a missing bias is 0. This
 * allows other rows to pad k with zeros.
 */
#include "linear_float.h"

#include <math.h>

int64_t nib__sum_block(const nib_weight *w)
{
    const int64_t group = w->scheme.group;
    const bool fits = nib__scheme_is_quantized(&w->scheme) && group > 0 && group <= NIB_SUM_BLOCK;
    return fits ? NIB_SUM_BLOCK / group * group : NIB_SUM_BLOCK;
}

static float sum_f32(const float *x, const float *w, int64_t count)
{
    float sum = 0;
    for (int64_t j = 0; j < count; j++)
        sum = fmaf(x[j], w[j], sum);
    return sum;
}

static float sum_bf16(const float *x, const float *w, int64_t count)
{
    float sum = 0;
    int64_t j = 0;
    for (; j + 2 <= count; j += 2) {
        sum = fmaf(x[j + 1], w[j + 1], sum);
        sum = fmaf(x[j], w[j], sum);
    }
    return j < count ? fmaf(x[j], w[j], sum) : sum;
}

/* One row of weights as f32 codes less their integer zeros, [k]. `codes` has room for k bytes. */
static void decode_row(const nib_weight *w, int64_t i, float *out, int8_t *codes)
{
    if (!nib__scheme_is_quantized(&w->scheme)) {
        nib__weight_row(w, i, out);
        return;
    }
    nib__weight_codes(w, i, 0, w->k, codes);
    switch (nib__codes[w->scheme.code].element) {
    case NIB_ELEMENT_E4M3: nib__to_f32(out, codes, NIB_TYPE_E4M3, w->k); return;
    case NIB_ELEMENT_E5M2: nib__to_f32(out, codes, NIB_TYPE_E5M2, w->k); return;
    case NIB_ELEMENT_E2M1:
        for (int64_t j = 0; j < w->k; j++)
            out[j] = nib__e2m1_to_f32((uint8_t)codes[j]);
        return;
    default: break;
    }
    const int64_t group = nib__scheme_group_size(&w->scheme, w->k);
    const bool has_zeros = w->scheme.zero == NIB_ZERO_INT;
    for (int64_t j0 = 0; j0 < w->k; j0 += group) {
        const float zero = has_zeros ? nib__weight_zero(w, i, j0 / group) : 0.0F;
        for (int64_t j = j0; j < nib__min(w->k, j0 + group); j++)
            out[j] = (float)codes[j] - zero;
    }
}

/* Row r of the activations as f32, [k]. */
static void decode_x(const nib_linear *a, int64_t r, float *out)
{
    const nib_input *x = &a->x;
    const int64_t k = a->w->k;
    if (nib__act_is_f8_blocks(a->w->scheme.act))
        nib__to_f32(out, x->codes + r * x->ld, NIB_TYPE_E4M3, k);
    else if (x->bf16 != NULL)
        nib__to_f32(out, x->bf16 + r * x->ld, NIB_TYPE_BF16, k);
    else
        nib__to_f32(out, x->f32 + r * x->ld, NIB_TYPE_F32, k);
}

/* Product of row r of x with output i over k0..k1, with the scales and zeros of its groups applied.
 */
static float block_sum(const nib_linear *a, int64_t r, int64_t i, int64_t k0, int64_t k1,
                       bool pairs, const float *x, const float *w)
{
    const nib_scheme *s = &a->w->scheme;
    if (!nib__scheme_is_quantized(s) || s->group <= 0)
        return pairs ? sum_bf16(x + k0, w + k0, k1 - k0) : sum_f32(x + k0, w + k0, k1 - k0);
    float acc = 0;
    for (int64_t j = k0; j < k1;) {
        const int64_t g = j / s->group;
        const int64_t group_end = nib__min(a->w->k, (g + 1) * s->group);
        const int64_t end = nib__min(k1, group_end);
        const float sum = pairs ? sum_bf16(x + j, w + j, end - j) : sum_f32(x + j, w + j, end - j);
        float scale = nib__weight_group_scale(a->w, i, g);
        if (nib__act_is_f8_blocks(s->act))
            scale = a->x.scale[r * a->x.groups + g] * scale;
        acc = fmaf(scale, sum, acc);
        if (s->zero == NIB_ZERO_FLOAT && end == group_end)
            acc = fmaf(nib__weight_zero(a->w, i, g), a->x.fsums[r * a->x.groups + g], acc);
        j = end;
    }
    return acc;
}

/* Writes one output of one token from the total of its sums. */
static void put_y(const nib_linear *a, int64_t r, int64_t i, float total)
{
    const nib_scheme *s = &a->w->scheme;
    const bool row_scale = nib__scheme_is_quantized(s) && s->group <= 0;
    if (row_scale)
        total *= nib__weight_scale(a->w, i, 0);
    else if (a->w->tensor_scale != 0)
        total *= nib__weight_factor(a->w);
    if (row_scale && s->zero == NIB_ZERO_FLOAT)
        total = fmaf(nib__weight_zero(a->w, i, 0), a->x.fsums[r * a->x.groups], total);
    if (s->act == NIB_ACT_E4M3_TOKEN)
        total *= a->x.scale[r];
    a->y[r * a->ldy + i] = total + ((a->bias != NULL ? a->bias[i] : 0.0F) + 0.0F);
}

enum { REF_ROWS = 8 /* tokens that share a decoded row of weights */ };

static void linear_ref(const nib_linear *a, int64_t n0, int64_t n1, void *scratch, bool pairs)
{
    const int64_t k = a->w->k, block = nib__sum_block(a->w);
    float *w = scratch;                           /* [k] */
    float *x = w + k;                             /* [REF_ROWS][k] */
    int8_t *codes = (int8_t *)(x + REF_ROWS * k); /* [k] */
    for (int64_t r0 = 0; r0 < a->x.m; r0 += REF_ROWS) {
        const int64_t rows = nib__min(REF_ROWS, a->x.m - r0);
        for (int64_t r = 0; r < rows; r++)
            decode_x(a, r0 + r, x + r * k);
        for (int64_t i = n0; i < n1; i++) {
            decode_row(a->w, i, w, codes);
            for (int64_t r = 0; r < rows; r++) {
                float total = 0;
                for (int64_t k0 = 0; k0 < k; k0 += block)
                    total +=
                        block_sum(a, r0 + r, i, k0, nib__min(k, k0 + block), pairs, x + r * k, w);
                put_y(a, r0 + r, i, total);
            }
        }
    }
}

size_t nib__linear_float_ref_scratch(const void *args)
{
    const nib_linear *a = args;
    return (size_t)a->w->k * ((1 + REF_ROWS) * sizeof(float) + 1);
}

void nib__linear_f32_ref(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    linear_ref(a, n0, n1, scratch, false);
}

void nib__linear_bf16_ref(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    linear_ref(a, n0, n1, scratch, true);
}
