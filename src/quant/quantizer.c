/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight quantizers. Owns the formulas; docs/quantization.md states them with their sources. Every
 * step that torchao computes in a bf16 or f16 tensor is rounded to that type here too (round_to),
 * so that codes and scales equal torchao's bit for bit.
 *
 * Rounding to integers adds and takes away 1.5 * 2^23, after clamping: the order does not matter,
 * as the bounds are integers, and it keeps the loops in vector registers. Denormals must not be
 * flushed.
 */
#include "quantizer.h"

#include "gguf_blocks.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

typedef enum family {
    FAMILY_INTX,     /* scale in the source's type; eps of that type */
    FAMILY_INT8,     /* torchao's Int8Tensor: scale kept in f32, eps of f32 */
    FAMILY_INT4,     /* torchao's Int4Tensor: all in f32, float zero */
    FAMILY_TINYGEMM, /* float zero, in the source's type */
    FAMILY_FP8,
    FAMILY_MX,
    FAMILY_NV,   /* torchao's NVFP4Tensor: all in f32 */
    FAMILY_GGML, /* blocks of gguf_blocks.h: scale in f16 */
} family;

/* The scale of one group. */
typedef struct params {
    float scale, zero; /* as stored */
    float factor;      /* what x is multiplied with, or divided by: see codes_of */
    float base;        /* taken from x first: float zeros */
} params;

static family family_of(const nib_scheme *s)
{
    if (s->code == NIB_CODE_E4M3)
        return FAMILY_FP8;
    if (s->code == NIB_CODE_MX8 || s->code == NIB_CODE_MX4)
        return FAMILY_MX;
    if (s->code == NIB_CODE_NV4)
        return FAMILY_NV;
    if (s->formula == NIB_FORMULA_GGML)
        return FAMILY_GGML;
    if (s->zero == NIB_ZERO_FLOAT)
        return s->formula == NIB_FORMULA_TINYGEMM ? FAMILY_TINYGEMM : FAMILY_INT4;
    return s->code == NIB_CODE_I8 && s->symmetric && s->group <= 0 ? FAMILY_INT8 : FAMILY_INTX;
}

NIB_INLINE float round_to(nib_type type, float x)
{
    if (type == NIB_TYPE_BF16) { /* finite x: no NaN to keep */
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits = (bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    return type == NIB_TYPE_F16 ? nib__f16_to_f32(nib__f32_to_f16(x)) : x;
}

NIB_INLINE float clamp(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

NIB_INLINE float round_even(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

/* The smallest scale, of a type. */
static float smallest_scale(nib_type type, nib_formula formula)
{
    const bool epsilon = formula == NIB_FORMULA_AO017;
    switch (type) {
    case NIB_TYPE_BF16: return epsilon ? 0x1p-7f : 0x1p-126f;
    case NIB_TYPE_F16: return epsilon ? 0x1p-10f : 0x1p-14f;
    default: return epsilon ? 0x1p-23f : 0x1p-126f;
    }
}

static float largest_of(float low, float high) { return fabsf(-low > high ? low : high); }

static float at_least(float scale, float smallest) { return scale < smallest ? smallest : scale; }

/* ---- scales ---- */

static params intx_params(const nib_quantizer *q, float low, float high)
{
    const nib_type t = q->source;
    const bool bits8 = q->scheme.code == NIB_CODE_I8;
    const float qmin = bits8 ? -128 : -8, qmax = bits8 ? 127 : 7;
    const float smallest = smallest_scale(t, q->scheme.formula);
    const float below = low < 0 ? low : 0, above = high > 0 ? high : 0;
    params p = {0};
    if (q->scheme.symmetric) {
        const float amax = -below > above ? -below : above;
        p.scale = at_least(round_to(t, amax / ((qmax - qmin) / 2)), smallest);
    } else {
        p.scale = at_least(round_to(t, round_to(t, above - below) / (qmax - qmin)), smallest);
        p.zero = clamp(qmin - round_even(round_to(t, below / p.scale)), qmin, qmax);
    }
    p.factor = round_to(t, 1.0f / p.scale);
    return p;
}

static params int8_params(const nib_quantizer *q, float low, float high)
{
    const float amax = largest_of(low, high);
    const float scale = at_least(round_to(q->source, amax / 127.5f), 0x1p-23f);
    return (params){.scale = scale, .factor = 1.0f / scale};
}

static params int4_params(const nib_quantizer *q, float low, float high)
{
    const float scale = at_least(high - low, 1e-6f) / 15;
    return (params){.scale = round_to(q->source, scale),
                    .zero = round_to(q->source, low + scale * 8),
                    .factor = scale,
                    .base = low};
}

static params tinygemm_params(const nib_quantizer *q, float low, float high)
{
    const nib_type t = q->source;
    const float smallest = smallest_scale(t, NIB_FORMULA_TORCHAO);
    const float scale = at_least(round_to(t, round_to(t, high - low) / 15), smallest);
    const float half = round_to(t, scale * 8), zero = round_to(t, low + half);
    return (params){
        .scale = scale, .zero = zero, .factor = scale, .base = round_to(t, zero - half)};
}

static params fp8_params(const nib_quantizer *q, float low, float high)
{
    const float amax = largest_of(low, high);
    const float scale = round_to(q->source, amax / 448);
    /* factor 0 makes every code a zero: torchao's are NaN. */
    return (params){.scale = scale > 0 ? scale : 1, .factor = scale};
}

/* Scales of blocks so small that their exponent is below e8m0's leave the codes unscaled (rceil) or
 * scaled by 2^-126 (floor), as torchao 0.18 has it. */
static params mx_params(const nib_quantizer *q, float low, float high)
{
    const float amax = largest_of(low, high);
    const bool e2m1 = q->scheme.code == NIB_CODE_MX4;
    uint32_t bits, code;
    params p;
    if (q->scheme.mx_floor) {
        const uint32_t power = e2m1 ? 2 : 8; /* of the largest code, 6 or 448 */
        memcpy(&bits, &amax, sizeof bits);
        code = bits >> 23 > power ? (bits >> 23) - power : 0;
        p.factor = nib__e8m0_to_f32((uint8_t)(code > 0 ? code : 1));
    } else {
        code = nib__f32_to_e8m0_up(amax / (e2m1 ? 6 : 448));
        p.factor = code > 0 ? nib__e8m0_to_f32((uint8_t)code) : 1;
    }
    p.scale = nib__e8m0_to_f32((uint8_t)code);
    p.zero = p.base = 0;
    return p;
}

static const float E2M1_MAX = 6, E4M3_MAX = 448;

/* The smallest block scale is the smallest normal number of e4m3, so that no block divides by 0. */
static params nv_params(const nib_quantizer *q, float low, float high)
{
    const float tensor = q->tensor_scale, block = largest_of(low, high) / E2M1_MAX;
    const float wanted = clamp(tensor != 0 ? block / tensor : block, 0x1p-6f, E4M3_MAX);
    const float scale = nib__e4m3_to_f32(nib__f32_to_e4m3(wanted));
    return (params){.scale = scale, .factor = (tensor != 0 ? 1 / tensor : 1) / scale};
}

static params params_of(const nib_quantizer *q, float low, float high)
{
    switch (family_of(&q->scheme)) {
    case FAMILY_INTX: return intx_params(q, low, high);
    case FAMILY_INT8: return int8_params(q, low, high);
    case FAMILY_INT4: return int4_params(q, low, high);
    case FAMILY_TINYGEMM: return tinygemm_params(q, low, high);
    case FAMILY_FP8: return fp8_params(q, low, high);
    case FAMILY_NV: return nv_params(q, low, high);
    case FAMILY_GGML: /* quantize_block */
    case FAMILY_MX: break;
    }
    return mx_params(q, low, high);
}

/* ---- codes ---- */

/* clamp(round(x * factor) + zero), the product rounded to `type`. */
NIB_INLINE void product_codes(int8_t *NIB_RESTRICT codes, const float *NIB_RESTRICT x,
                              int64_t count, params p, float qmin, float qmax, nib_type type)
{
    const float low = qmin - p.zero, high = qmax - p.zero;
    for (int64_t j = 0; j < count; j++) {
        const float q = round_even(clamp(round_to(type, x[j] * p.factor), low, high)) + p.zero;
        codes[j] = (int8_t)(int32_t)q;
    }
}

/* clamp(round((x - base) / factor), 0, 15) - 8, each step rounded to `type`. */
NIB_INLINE void quotient_codes(int8_t *NIB_RESTRICT codes, const float *NIB_RESTRICT x,
                               int64_t count, params p, nib_type type)
{
    for (int64_t j = 0; j < count; j++) {
        const float v = round_to(type, round_to(type, x[j] - p.base) / p.factor);
        codes[j] = (int8_t)((int32_t)round_even(clamp(v, 0, 15)) - 8);
    }
}

static void integer_codes(int8_t *codes, const float *x, int64_t count, params p, nib_code code,
                          nib_type type)
{
    const float qmin = code == NIB_CODE_I8 ? -128 : -8, qmax = code == NIB_CODE_I8 ? 127 : 7;
    if (type == NIB_TYPE_BF16)
        product_codes(codes, x, count, p, qmin, qmax, NIB_TYPE_BF16);
    else if (type == NIB_TYPE_F16)
        product_codes(codes, x, count, p, qmin, qmax, NIB_TYPE_F16);
    else
        product_codes(codes, x, count, p, qmin, qmax, NIB_TYPE_F32);
}

static void float_zero_codes(int8_t *codes, const float *x, int64_t count, params p, nib_type type)
{
    if (type == NIB_TYPE_BF16)
        quotient_codes(codes, x, count, p, NIB_TYPE_BF16);
    else if (type == NIB_TYPE_F16)
        quotient_codes(codes, x, count, p, NIB_TYPE_F16);
    else
        quotient_codes(codes, x, count, p, NIB_TYPE_F32);
}

/* x / factor as e4m3. For MX the factor is a power of two. */
static void e4m3_codes(int8_t *codes, const float *x, int64_t count, params p)
{
    if (!(p.factor > 0)) {
        memset(codes, 0, (size_t)count);
        return;
    }
    for (int64_t j = 0; j < count; j++)
        codes[j] = (int8_t)nib__f32_to_e4m3_saturated(x[j] / p.factor);
}

/* x / factor as e2m1, for MX: a power of two. */
static void mx4_codes(int8_t *codes, const float *x, int64_t count, params p)
{
    for (int64_t j = 0; j < count; j++)
        codes[j] = (int8_t)nib__f32_to_e2m1(x[j] / p.factor);
}

/* x * factor as e2m1: torchao multiplies with the reciprocal. */
static void nv4_codes(int8_t *codes, const float *x, int64_t count, params p)
{
    for (int64_t j = 0; j < count; j++)
        codes[j] = (int8_t)nib__f32_to_e2m1(x[j] * p.factor);
}

static void codes_of(const nib_quantizer *q, int8_t *codes, const float *x, int64_t count, params p)
{
    switch (family_of(&q->scheme)) {
    case FAMILY_INTX: integer_codes(codes, x, count, p, q->scheme.code, q->source); return;
    case FAMILY_INT8: integer_codes(codes, x, count, p, q->scheme.code, NIB_TYPE_F32); return;
    case FAMILY_INT4: float_zero_codes(codes, x, count, p, NIB_TYPE_F32); return;
    case FAMILY_TINYGEMM: float_zero_codes(codes, x, count, p, q->source); return;
    case FAMILY_NV: nv4_codes(codes, x, count, p); return;
    case FAMILY_MX:
        if (q->scheme.code == NIB_CODE_MX4) {
            mx4_codes(codes, x, count, p);
            return;
        }
        break;
    case FAMILY_GGML:
    case FAMILY_FP8: break;
    }
    e4m3_codes(codes, x, count, p);
}

NIB_INLINE float code_value(nib_code code, int8_t c)
{
    switch (code) {
    case NIB_CODE_E4M3:
    case NIB_CODE_MX8: return nib__e4m3_to_f32((uint8_t)c);
    case NIB_CODE_MX4:
    case NIB_CODE_NV4: return nib__e2m1_to_f32((uint8_t)c);
    default: return (float)c;
    }
}

/* Adds to the sums what the codes lose; the value of a code is scheme.h's. */
static void add_error(const nib_quantizer *q, nib_quantized *out, const int8_t *codes,
                      const float *x, int64_t count, params p)
{
    const float scale = q->tensor_scale != 0 ? p.scale * q->tensor_scale : p.scale;
    const float before = q->scheme.zero == NIB_ZERO_INT ? p.zero : 0;
    const float after = q->scheme.zero == NIB_ZERO_FLOAT ? p.zero : 0;
    double signal = 0, error = 0;
    for (int64_t j = 0; j < count; j++) {
        const float code = code_value(q->scheme.code, codes[j]);
        const double value = (double)x[j], lost = value - (double)((code - before) * scale + after);
        signal += value * value;
        error += lost * lost;
    }
    out->signal += signal;
    out->error += error;
}

/* ---- ranges ---- */

/* Smallest and largest of x; false if one of them is NaN or infinite. */
static bool range_of(const float *x, int64_t count, float *low, float *high)
{
    float least = x[0], most = x[0];
    int32_t largest =
        0; /* bits of a magnitude order as integers, NaN above infinity above the finite */
    for (int64_t j = 0; j < count; j++) {
        int32_t bits;
        memcpy(&bits, &x[j], sizeof bits);
        bits &= 0x7fffffff;
        largest = bits > largest ? bits : largest;
        least = x[j] < least ? x[j] : least;
        most = x[j] > most ? x[j] : most;
    }
    *low = least;
    *high = most;
    return largest < 0x7f800000;
}

static nib_status not_finite(nib_err *err, const float *x, int64_t row, int64_t column)
{
    while (isfinite(*x)) {
        x++;
        column++;
    }
    return nib__fail(err, NIB_BAD_INPUT,
                     "row %" PRId64 ", column %" PRId64
                     " is %s, which no scale can cover; repair the weight, or "
                     "leave the layer out with --skip",
                     row, column,
                     isnan(*x) ? "nan"
                     : *x < 0  ? "-inf"
                               : "inf");
}

/* row -1: the whole tensor. */
static nib_status too_wide(const nib_quantizer *q, nib_err *err, int64_t row, float low, float high)
{
    char where[32] = "the tensor";
    if (row >= 0)
        snprintf(where, sizeof where, "row %" PRId64, row);
    if (q->scheme.formula == NIB_FORMULA_GGML)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: weights from %.9g to %.9g need a scale beyond f16, which is what "
                         "ggml's blocks have; use the scheme without -ggml, or leave the layer out "
                         "with --skip",
                         where, (double)low, (double)high);
    return nib__fail(
        err, NIB_BAD_INPUT,
        "%s: weights from %.9g to %.9g span more than %s can hold, so they have no scale; use a "
        "symmetric scheme, or leave the layer out with --skip",
        where, (double)low, (double)high, nib__type_name(q->source));
}

/* ---- the interface ---- */

nib_status nib__quantizer_init(nib_quantizer *out, const nib_scheme *scheme, nib_type source,
                               int64_t k, nib_err *err)
{
    char name[64];
    const nib_code code = scheme->code;
    if (!nib__scheme_is_quantized(scheme) || code == NIB_CODE_E5M2)
        return nib__fail(err, NIB_UNSUPPORTED, "there is no quantizer for %s",
                         nib__scheme_name(name, scheme));
    if (source != NIB_TYPE_F32 && source != NIB_TYPE_BF16 && source != NIB_TYPE_F16)
        return nib__fail(err, NIB_UNSUPPORTED,
                         "weights of type %s are not quantized; only f32, bf16 and f16 are",
                         nib__type_name(source));
    const family f = family_of(scheme);
    *out = (nib_quantizer){.scheme = *scheme, .source = source, .k = k};
    out->groups = nib__scheme_groups(scheme, k);
    out->scale_type = f == FAMILY_MX                        ? NIB_TYPE_E8M0
                      : f == FAMILY_NV                      ? NIB_TYPE_E4M3
                      : f == FAMILY_GGML                    ? NIB_TYPE_F16
                      : f == FAMILY_INT8 || f == FAMILY_FP8 ? NIB_TYPE_F32
                                                            : source;
    out->zero_type = scheme->zero == NIB_ZERO_NONE  ? NIB_TYPE_NONE
                     : scheme->zero == NIB_ZERO_INT ? NIB_TYPE_I8
                     : f == FAMILY_GGML             ? NIB_TYPE_F32
                                                    : source;
    return NIB_OK;
}

bool nib__quantizer_is_one(const nib_quantizer *q) { return q->scheme.group == NIB_GROUP_TENSOR; }

bool nib__quantizer_needs_scan(const nib_quantizer *q)
{
    return nib__quantizer_is_one(q) || (q->scheme.code == NIB_CODE_NV4 && !q->scheme.block_only);
}

nib_status nib__quantizer_scan(const nib_quantizer *q, const float *rows, int64_t first,
                               int64_t count, float range[2], nib_err *err)
{
    for (int64_t i = 0; i < count; i++) {
        float low, high;
        if (!range_of(rows + i * q->k, q->k, &low, &high))
            return not_finite(err, rows + i * q->k, first + i, 0);
        range[0] = low < range[0] ? low : range[0];
        range[1] = high > range[1] ? high : range[1];
    }
    return NIB_OK;
}

nib_status nib__quantizer_range(nib_quantizer *q, const float range[2], nib_err *err)
{
    if (q->scheme.code == NIB_CODE_NV4) {
        /* Where torchao's scale would be 0, or so small that its reciprocal is infinite, its codes
         * are NaN: with 1 they are 0. */
        const float scale = largest_of(range[0], range[1]) / (E4M3_MAX * E2M1_MAX);
        q->tensor_scale = scale > 0 && isfinite(1 / scale) ? scale : 1;
        return NIB_OK;
    }
    const params p = params_of(q, range[0], range[1]);
    if (!isfinite(p.scale))
        return too_wide(q, err, -1, range[0], range[1]);
    q->scale = p.scale;
    q->zero = p.zero;
    q->factor = p.factor;
    return NIB_OK;
}

static void store(void *out, nib_type type, int64_t at, float value)
{
    char *to = (char *)out + at * (nib__type_bits(type) / 8);
    if (type == NIB_TYPE_I8)
        *(int8_t *)to = (int8_t)value;
    else if (type == NIB_TYPE_E8M0)
        *(uint8_t *)to = nib__f32_to_e8m0_up(value); /* a power of two: exact */
    else
        nib__from_f32(to, type, &value, 1);
}

void nib__quantizer_tensor(const nib_quantizer *q, void *scale, void *zero)
{
    store(scale, q->scale_type, 0, q->scale);
    if (q->zero_type != NIB_TYPE_NONE)
        store(zero, q->zero_type, 0, q->zero);
}

/* A group by ggml's reference: its block, taken apart. A short group ends as its last value does,
 * which changes neither range nor codes. False: the scale is beyond f16. */
static bool quantize_block(const nib_quantizer *q, int8_t *codes, const float *x, int64_t count,
                           params *p)
{
    const nib_type type = q->scheme.code == NIB_CODE_I8     ? NIB_TYPE_Q8_0
                          : q->scheme.zero == NIB_ZERO_NONE ? NIB_TYPE_Q4_0
                                                            : NIB_TYPE_Q4_1;
    float full[NIB_BLOCK_ELEMENTS], low = 0;
    uint8_t block[64];
    for (int64_t j = 0; j < NIB_BLOCK_ELEMENTS; j++)
        full[j] = x[nib__min(j, count - 1)];
    const bool holds = nib__blocks_quantize(block, type, full, NIB_BLOCK_ELEMENTS);
    const uint8_t *at = block + (type == NIB_TYPE_Q4_1 ? 4 : 2);
    for (int64_t j = 0; j < count; j++)
        codes[j] = type == NIB_TYPE_Q8_0        ? (int8_t)at[j]
                   : j < NIB_BLOCK_ELEMENTS / 2 ? (int8_t)((at[j] & 15) - 8)
                                                : (int8_t)((at[j - 16] >> 4) - 8);
    nib__to_f32(&p->scale, block, NIB_TYPE_F16, 1);
    if (type == NIB_TYPE_Q4_1)
        nib__to_f32(&low, block + 2, NIB_TYPE_F16, 1);
    p->zero = type == NIB_TYPE_Q4_1 ? low + 8 * p->scale : 0;
    return holds;
}

static nib_status quantize_row(const nib_quantizer *q, const float *x, int64_t row, int64_t at,
                               nib_quantized *out, nib_err *err)
{
    const bool whole = nib__quantizer_is_one(q);
    const int64_t size = nib__scheme_group_size(&q->scheme, q->k);
    for (int64_t g = 0; g < q->groups; g++) {
        const int64_t k0 = g * size, count = nib__min(size, q->k - k0);
        float low, high;
        if (!range_of(x + k0, count, &low, &high))
            return not_finite(err, x + k0, row, k0);
        int8_t *codes = out->codes + at * q->k + k0;
        params p = {.scale = q->scale, .zero = q->zero, .factor = q->factor};
        const bool ggml = q->scheme.formula == NIB_FORMULA_GGML;
        if (!whole && !ggml)
            p = params_of(q, low, high);
        if (ggml ? !quantize_block(q, codes, x + k0, count, &p) : !isfinite(p.scale))
            return too_wide(q, err, row, low, high);
        if (!ggml)
            codes_of(q, codes, x + k0, count, p);
        add_error(q, out, codes, x + k0, count, p);
        if (whole)
            continue;
        store(out->scales, q->scale_type, at * q->groups + g, p.scale);
        if (q->zero_type != NIB_TYPE_NONE)
            store(out->zeros, q->zero_type, at * q->groups + g, p.zero);
    }
    return NIB_OK;
}

nib_status nib__quantizer_rows(const nib_quantizer *q, const float *rows, int64_t first,
                               int64_t count, nib_quantized *out, nib_err *err)
{
    for (int64_t i = 0; i < count; i++)
        NIB_TRY(quantize_row(q, rows + i * q->k, first + i, i, out, err));
    return NIB_OK;
}

void nib__quantizer_weight(nib_weight *out, const nib_quantizer *q, int64_t n, const void *codes,
                           const void *scales, const void *zeros)
{
    const bool whole = nib__quantizer_is_one(q);
    *out = (nib_weight){.scheme = q->scheme,
                        .n = n,
                        .k = q->k,
                        .store = NIB_STORE_BYTE,
                        .codes = codes,
                        .scales = scales,
                        .scale_type = q->scale_type,
                        .scale_stride_n = whole ? 0 : q->groups,
                        .scale_stride_g = whole ? 0 : 1,
                        .tensor_scale = q->tensor_scale,
                        .zeros = zeros,
                        .zero_type = q->zero_type};
}

double nib__sqnr_db(double signal, double error)
{
    return error == 0 ? (double)INFINITY : 10 * log10(signal / error);
}

void nib__static_scale(float *scale, int32_t *zero, const nib_scheme *scheme, const float range[2])
{
    const float eps =
        scheme->code == NIB_CODE_I8 || scheme->formula == NIB_FORMULA_AO017 ? 0x1p-23f : 0x1p-126f;
    const float low = fminf(range[0], 0.0f), high = fmaxf(range[1], 0.0f);
    if (scheme->act_symmetric) {
        *scale = fmaxf(fmaxf(-low, high) / 127.5f, eps);
        *zero = 0;
        return;
    }
    *scale = fmaxf((high - low) / 255.0f, eps);
    *zero = (int32_t)fmaxf(-128.0f, fminf(127.0f, -128.0f - nearbyintf(low / *scale)));
}
