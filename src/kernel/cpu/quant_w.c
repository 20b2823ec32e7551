/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights into codes: the arithmetic, which gpu/quant_w.cl has a second time, step by step.
 * docs/quantization.md states the formulas with their sources. Every step that torchao computes in
 * a bf16 or f16 tensor is rounded to that type here too (round_to), so that codes and scales equal
 * torchao's bit for bit.
 *
 * Rounding to integers adds and takes away 1.5 * 2^23, after clamping: the order does not matter,
 * as the bounds are integers, and it keeps the loops in vector registers. Denormals must not be
 * flushed.
 */
#include "quant_w.h"

#include "gguf_blocks.h"
#include "kernel.h"

#include <math.h>

/* The scale of one group. */
typedef struct params {
    float scale, zero; /* as stored */
    float factor;      /* what x is multiplied with, or divided by: see codes_of */
    float base;        /* taken from x first: float zeros */
} params;

nib_quant_family nib__quant_family(const nib_scheme *s)
{
    if (s->code == NIB_CODE_E4M3)
        return NIB_QUANT_FP8;
    if (s->code == NIB_CODE_MX8 || s->code == NIB_CODE_MX4)
        return NIB_QUANT_MX;
    if (s->code == NIB_CODE_NV4)
        return NIB_QUANT_NV;
    if (s->formula == NIB_FORMULA_GGML)
        return NIB_QUANT_GGML;
    if (s->zero == NIB_ZERO_FLOAT)
        return s->formula == NIB_FORMULA_TINYGEMM ? NIB_QUANT_TINYGEMM : NIB_QUANT_INT4;
    return s->code == NIB_CODE_I8 && s->symmetric && s->group <= 0 ? NIB_QUANT_INT8
                                                                   : NIB_QUANT_INTX;
}

bool nib__quantizer_is_one(const nib_quantizer *q) { return q->scheme.group == NIB_GROUP_TENSOR; }

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
    const nib_quant_family f = nib__quant_family(scheme);
    *out = (nib_quantizer){.scheme = *scheme, .source = source, .k = k};
    out->groups = nib__scheme_groups(scheme, k);
    out->scale_type = f == NIB_QUANT_MX                           ? NIB_TYPE_E8M0
                      : f == NIB_QUANT_NV                         ? NIB_TYPE_E4M3
                      : f == NIB_QUANT_GGML                       ? NIB_TYPE_F16
                      : f == NIB_QUANT_INT8 || f == NIB_QUANT_FP8 ? NIB_TYPE_F32
                                                                  : source;
    out->zero_type = scheme->zero == NIB_ZERO_NONE  ? NIB_TYPE_NONE
                     : scheme->zero == NIB_ZERO_INT ? NIB_TYPE_I8
                     : f == NIB_QUANT_GGML          ? NIB_TYPE_F32
                                                    : source;
    return NIB_OK;
}

bool nib__quantizer_needs_scan(const nib_quantizer *q)
{
    return nib__quantizer_is_one(q) || (q->scheme.code == NIB_CODE_NV4 && !q->scheme.block_only);
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

float nib__quant_smallest(const nib_quantizer *q)
{
    const bool epsilon = q->scheme.formula == NIB_FORMULA_AO017;
    switch (q->source) {
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
    const float smallest = nib__quant_smallest(q);
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
    const float smallest = nib__quant_smallest(q);
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

float nib__quant_inverse(const nib_quantizer *q)
{
    return q->tensor_scale != 0 ? 1 / q->tensor_scale : 1;
}

/* The smallest block scale is the smallest normal number of e4m3, so that no block divides by 0. */
static params nv_params(const nib_quantizer *q, float low, float high)
{
    const float tensor = q->tensor_scale, block = largest_of(low, high) / E2M1_MAX;
    const float wanted = clamp(tensor != 0 ? block / tensor : block, 0x1p-6f, E4M3_MAX);
    const float scale = nib__e4m3_to_f32(nib__f32_to_e4m3(wanted));
    return (params){.scale = scale, .factor = nib__quant_inverse(q) / scale};
}

static params params_of(const nib_quantizer *q, float low, float high)
{
    switch (nib__quant_family(&q->scheme)) {
    case NIB_QUANT_INTX: return intx_params(q, low, high);
    case NIB_QUANT_INT8: return int8_params(q, low, high);
    case NIB_QUANT_INT4: return int4_params(q, low, high);
    case NIB_QUANT_TINYGEMM: return tinygemm_params(q, low, high);
    case NIB_QUANT_FP8: return fp8_params(q, low, high);
    case NIB_QUANT_NV: return nv_params(q, low, high);
    case NIB_QUANT_GGML: /* quantize_block */
    case NIB_QUANT_MX: break;
    }
    return mx_params(q, low, high);
}

bool nib__quantizer_fix(nib_quantizer *q, const float range[2])
{
    if (q->scheme.code == NIB_CODE_NV4) {
        /* Where torchao's scale would be 0, or so small that its reciprocal is infinite, its codes
         * are NaN: with 1 they are 0. */
        const float scale = largest_of(range[0], range[1]) / (E4M3_MAX * E2M1_MAX);
        q->tensor_scale = scale > 0 && isfinite(1 / scale) ? scale : 1;
        return true;
    }
    const params p = params_of(q, range[0], range[1]);
    q->scale = p.scale;
    q->zero = p.zero;
    q->factor = p.factor;
    return isfinite(p.scale);
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
    switch (nib__quant_family(&q->scheme)) {
    case NIB_QUANT_INTX: integer_codes(codes, x, count, p, q->scheme.code, q->source); return;
    case NIB_QUANT_INT8: integer_codes(codes, x, count, p, q->scheme.code, NIB_TYPE_F32); return;
    case NIB_QUANT_INT4: float_zero_codes(codes, x, count, p, NIB_TYPE_F32); return;
    case NIB_QUANT_TINYGEMM: float_zero_codes(codes, x, count, p, q->source); return;
    case NIB_QUANT_NV: nv4_codes(codes, x, count, p); return;
    case NIB_QUANT_MX:
        if (q->scheme.code == NIB_CODE_MX4) {
            mx4_codes(codes, x, count, p);
            return;
        }
        break;
    case NIB_QUANT_GGML:
    case NIB_QUANT_FP8: break;
    }
    e4m3_codes(codes, x, count, p);
}

/* ---- what is lost ---- */

/* Values of at most NIB_QUANT_LANES codes, without their scale. */
static void code_values(float *NIB_RESTRICT out, const int8_t *NIB_RESTRICT codes, int64_t count,
                        nib_code code)
{
    switch (code) {
    case NIB_CODE_E4M3:
    case NIB_CODE_MX8: nib__to_f32(out, codes, NIB_TYPE_E4M3, count); return;
    case NIB_CODE_MX4:
    case NIB_CODE_NV4:
        for (int64_t j = 0; j < count; j++)
            out[j] = nib__e2m1_to_f32((uint8_t)codes[j]);
        return;
    default: nib__to_f32(out, codes, NIB_TYPE_I8, count);
    }
}

/* Adds to the sums of a row what a group has and what its codes lose of it, in lanes: see ops.h. */
static void add_error(const nib_quantizer *q, double sums[2], const int8_t *codes, const float *x,
                      int64_t count, params p)
{
    const float scale = q->tensor_scale != 0 ? p.scale * q->tensor_scale : p.scale;
    const float before = q->scheme.zero == NIB_ZERO_INT ? p.zero : 0;
    const float after = q->scheme.zero == NIB_ZERO_FLOAT ? p.zero : 0;
    double signal[NIB_QUANT_LANES], error[NIB_QUANT_LANES];
    float values[NIB_QUANT_LANES];
    int64_t lanes = NIB_QUANT_LANES;
    while (lanes / 2 >= count) /* the others would add 0 */
        lanes /= 2;
    for (int64_t l = 0; l < lanes; l++)
        signal[l] = error[l] = 0;
    for (int64_t j = 0; j < count; j += lanes) {
        const int64_t some = nib__min(lanes, count - j);
        code_values(values, codes + j, some, q->scheme.code);
        for (int64_t l = 0; l < some; l++) {
            const double value = (double)x[j + l];
            const double lost = value - (double)((values[l] - before) * scale + after);
            signal[l] += value * value;
            error[l] += lost * lost;
        }
    }
    for (int64_t step = lanes / 2; step > 0; step /= 2)
        for (int64_t l = 0; l < step; l++) {
            signal[l] += signal[l + step];
            error[l] += error[l + step];
        }
    sums[0] += signal[0];
    sums[1] += error[0];
}

/* ---- rows ---- */

bool nib__quant_range(const float *x, int64_t count, float *low, float *high)
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

void nib__quant_store(void *out, nib_type type, int64_t at, float value)
{
    char *to = (char *)out + at * (nib__type_bits(type) / 8);
    if (type == NIB_TYPE_I8)
        *(int8_t *)to = (int8_t)value;
    else if (type == NIB_TYPE_E8M0)
        *(uint8_t *)to = nib__f32_to_e8m0_up(value); /* a power of two: exact */
    else
        nib__from_f32(to, type, &value, 1);
}

/* 0, or what ops.h says of `failed`. */
static int32_t quantize_row(const nib_quant_w *a, const float *x, int64_t row)
{
    const nib_quantizer *q = a->q;
    const bool whole = nib__quantizer_is_one(q), ggml = q->scheme.formula == NIB_FORMULA_GGML;
    const int64_t size = nib__scheme_group_size(&q->scheme, q->k);
    double *sums = a->sums + 2 * row;
    sums[0] = sums[1] = 0;
    for (int64_t g = 0; g < q->groups; g++) {
        const int64_t k0 = g * size, count = nib__min(size, q->k - k0), at = row * q->groups + g;
        int8_t *codes = a->codes + row * q->k + k0;
        params p = {.scale = q->scale, .zero = q->zero, .factor = q->factor};
        float low, high;
        if (!nib__quant_range(x + k0, count, &low, &high))
            return (int32_t)(1 + 2 * g);
        if (!whole && !ggml)
            p = params_of(q, low, high);
        if (ggml ? !quantize_block(q, codes, x + k0, count, &p) : !isfinite(p.scale))
            return (int32_t)(2 + 2 * g);
        if (!ggml)
            codes_of(q, codes, x + k0, count, p);
        add_error(q, sums, codes, x + k0, count, p);
        if (whole)
            continue;
        nib__quant_store(a->scales, q->scale_type, at, p.scale);
        if (q->zero_type != NIB_TYPE_NONE)
            nib__quant_store(a->zeros, q->zero_type, at, p.zero);
    }
    return 0;
}

void nib__quant_w(const nib_quant_w *a, int64_t row0, int64_t row1, void *scratch)
{
    const int64_t k = a->q->k;
    for (int64_t i = row0; i < row1; i++) {
        const float *x = (const float *)a->rows + i * k;
        if (a->type != NIB_TYPE_F32) {
            nib__to_f32(scratch, (const char *)a->rows + 2 * i * k, a->type, k);
            x = scratch;
        }
        a->failed[i] = a->codes != NULL
                           ? quantize_row(a, x, i)
                           : !nib__quant_range(x, k, &a->ranges[2 * i], &a->ranges[2 * i + 1]);
    }
}

static size_t quant_w_scratch(const void *args)
{
    const nib_quant_w *a = args;
    return a->type != NIB_TYPE_F32 ? (size_t)a->q->k * sizeof(float) : 0;
}

static const nib_kernel rows[] = {
    {.name = "quant_w__ref",
     .op = NIB_OP_QUANT_W,
     .code = NIB_ANY,
     .act = NIB_ANY,
     .input = NIB_ANY,
     .device = NIB_DEVICE_CPU,
     .conds = NIB_NO_CONDS,
     .numbers = NIB_NUMBERS_EXACT,
     .rank = 90,
     .unit = NIB_UNIT_F32,
     .scratch = quant_w_scratch,
     .run = {.quant_w = nib__quant_w},
     .note = "plain C, a row at a time"},
};

const nib_family nib__family_quant_w = {rows, COUNT(rows)};
