/* SPDX-License-Identifier: Apache-2.0
 *
 * The block that a cast row writes, and the values that a cast loses: see cast.h.
 */
#include "cast.h"

#include <math.h>

/* ---- the plain block ---- */

static int64_t scales_of_row(const nib_weight *w)
{
    return w->scheme.code == NIB_CODE_MX8 ? nib__scheme_groups(&w->scheme, w->k) : 1;
}

/* The offset of the scales in the plain block; false: it overflows. */
static bool find_plain_scales(const nib_weight *w, uint64_t *bytes)
{
    return nib__mul(bytes, (uint64_t)w->n, (uint64_t)w->k) &&
           nib__mul(bytes, *bytes, (uint64_t)nib__code_bits(w->scheme.code) / 8) &&
           nib__add(bytes, *bytes, 63) && (*bytes &= ~UINT64_C(63), true);
}

uint64_t nib__cast_bytes(const nib_kernel *row, const nib_weight *shape)
{
    if (row->packing != NULL)
        return row->packing->bytes(shape);
    uint64_t bytes, scales;
    const uint64_t size = (uint64_t)nib__type_bits(shape->scale_type) / 8;
    if (!find_plain_scales(shape, &bytes))
        return UINT64_MAX;
    if (!nib__scheme_is_quantized(&shape->scheme))
        return bytes;
    const bool fits =
        nib__mul(&scales, (uint64_t)shape->n, (uint64_t)scales_of_row(shape) * size) &&
        nib__add(&bytes, bytes, scales);
    return fits ? bytes : UINT64_MAX;
}

void nib__cast_view(nib_weight *out, const nib_kernel *row, const nib_weight *shape,
                    const void *block)
{
    *out = *shape;
    out->codes = out->scales = NULL;
    if (row->packing != NULL)
        return;
    const bool quantized = nib__scheme_is_quantized(&shape->scheme);
    uint64_t scales_at = 0;
    out->layout = quantized ? NIB_LAYOUT_BYTE : NIB_LAYOUT_FLOAT;
    out->codes = block;
    if (!quantized || !find_plain_scales(shape, &scales_at))
        return;
    out->scales = (const uint8_t *)block + scales_at;
    out->scale_stride_n = scales_of_row(shape);
    out->scale_stride_g = 1;
}

float nib__cast_factor(float amax, float most, bool two_power)
{
    if (!(amax < INFINITY))
        return NAN;
    float factor = (float)((double)most / fmax((double)amax, 1e-12));
    if (two_power) {
        uint32_t bits;
        memcpy(&bits, &factor, sizeof bits);
        bits &= 0xff800000U;
        memcpy(&factor, &bits, sizeof factor);
    }
    return factor;
}

/* ---- values that a cast loses ---- */

/* Values that share a scale, `step` apart. */
typedef struct span {
    const float *x;
    int64_t count, step;
} span;

static float find_largest(span s)
{
    float largest = 0;
    for (int64_t i = 0; i < s.count; i++) {
        const float magnitude = fabsf(s.x[i * s.step]);
        if (!(magnitude <= largest))
            largest = magnitude; /* also true for NaN, which ends the search */
        if (largest != largest)
            break;
    }
    return largest;
}

/* x * factor rounded to the format, before saturation. */
static float round_to_code(float x, nib_code code)
{
    switch (code) {
    case NIB_CODE_F32: return x;
    case NIB_CODE_BF16: return nib__bf16_to_f32(nib__f32_to_bf16(x));
    case NIB_CODE_E5M2: return nib__e5m2_to_f32(nib__f32_to_e5m2(x));
    default: return nib__e4m3_to_f32(nib__f32_to_e4m3(x));
    }
}

static void count_span(nib_cast_counts *counts, span s, float factor, nib_code code)
{
    for (int64_t i = 0; i < s.count; i++) {
        const float x = s.x[i * s.step];
        if (x == 0 || !isfinite(x))
            continue;
        const float code_value = round_to_code(x * factor, code);
        counts->nonzero++;
        if (!isfinite(code_value)) /* above the largest code: infinity or NaN */
            counts->saturated++;
        if (code_value == 0)
            counts->underflowed++;
    }
}

static float find_factor(span s, const nib_cast_form *form)
{
    const bool is_e5m2 = form->code == NIB_CODE_E5M2;
    if (form->code == NIB_CODE_F32 || form->code == NIB_CODE_BF16)
        return 1;
    if (form->code != NIB_CODE_MX8)
        return nib__cast_factor(form->amax != NULL ? *form->amax : find_largest(s),
                                is_e5m2 ? 57344 : 448, form->two_power);
    const float largest = find_largest(s);
    if (!(largest < INFINITY))
        return NAN;
    int exponent = 0;
    if (!form->mx_floor) {
        const int byte = nib__f32_to_e8m0_up(largest / 448);
        return byte > 0 ? ldexpf(1, 127 - byte) : 1;
    }
    frexpf(largest, &exponent); /* largest = f * 2^exponent, f in 1/2..1 */
    return largest > 0 && exponent - 1 - 8 >= -126 ? ldexpf(1, 8 - (exponent - 1)) : 0x1p126F;
}

static void count_blocks(nib_cast_counts *counts, span s, const nib_cast_form *form)
{
    const int64_t block = form->code == NIB_CODE_MX8 ? 32 : s.count;
    for (int64_t at = 0; at < s.count; at += block) {
        const span part = {s.x + at * s.step, nib__min(block, s.count - at), s.step};
        const float factor = find_factor(part, form);
        if (factor == factor)
            count_span(counts, part, factor, form->code);
    }
}

void nib__cast_count(nib_cast_counts *counts, const float *x, int64_t rows, int64_t width,
                     int64_t ldx, bool across, const nib_cast_form *form)
{
    for (int64_t i = 0; i < (across ? width : rows); i++) {
        const span s = across ? (span){x + i, rows, ldx} : (span){x + i * ldx, width, 1};
        count_blocks(counts, s, form);
    }
}
