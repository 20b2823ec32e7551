/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes weights: the arithmetic, which gpu/quant_w.cl repeats step by step.
 * docs/quantization.md states the formulas with their sources. Every step that torchao computes in
 * a bf16 or f16 tensor is rounded to that type here too (round_to), so that codes and scales equal
 * torchao's bit for bit.
 *
 * Plain C that compilers vectorize. Include this with NIB_QUANT_W naming the row's function of one
 * instruction set. Every step works on one element, does not depend on order, or adds in the lanes
 * that ops.h fixes, so all instruction sets give the same bits. Groups of 32 and 16, the most
 * common ones, are compiled for their length.
 *
 * Rounding to integers adds and subtracts 1.5 * 2^23, after clamping: as the bounds are integers,
 * clamping first gives the same result, and it keeps the loops in vector registers. Denormals must
 * not be flushed.
 */
#include "gguf_blocks.h"
#include "kernel.h"
#include "float_formats.h"
#include "lanes.h"
#include "quant_w.h"

#include <math.h>

/* The scale of one group. */
typedef struct params {
    float scale, zero; /* as stored */
    float factor;      /* multiplies or divides x: see codes_of */
    float base;        /* subtracted from x first, with float zeros */
} params;

NIB_INLINE float round_to(nib_type type, float x)
{
    if (type == NIB_TYPE_BF16) { /* x is finite, so there is no NaN to keep */
        uint32_t bits;
        memcpy(&bits, &x, sizeof bits);
        bits = (bits + 0x7fffU + (bits >> 16 & 1U)) & 0xffff0000U;
        memcpy(&x, &bits, sizeof x);
        return x;
    }
    return type == NIB_TYPE_F16 ? f16_value(f16_code(x)) : x;
}

NIB_INLINE float clamp(float x, float low, float high)
{
    return x < low ? low : x > high ? high : x;
}

NIB_INLINE float round_even(float x) { return (x + 0x1.8p23f) - 0x1.8p23f; }

static float largest_of(float low, float high) { return fabsf(-low > high ? low : high); }

static float at_least(float scale, float smallest) { return scale < smallest ? smallest : scale; }

/* ---- scales ---- */

static params intx_params(const nib_quantizer *q, float low, float high)
{
    const nib_type t = q->source;
    const float qmax = (float)nib__code_most(q->scheme.code), qmin = -qmax - 1;
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
    p.scale = round_to(q->scale_type, p.scale);
    p.factor = round_to(q->scale_type, 1.0f / p.scale);
    if (!isfinite(p.factor)) { /* below the range of f16, where torchao's codes are arbitrary */
        p.scale = 1;
        p.factor = 0;
    }
    return p;
}

/* The type of a weight times a scale, as PyTorch promotes the two. */
static nib_type product_type(const nib_quantizer *q)
{
    return q->scale_type == q->source ? q->source : NIB_TYPE_F32;
}

static params int8_params(const nib_quantizer *q, float low, float high)
{
    const float amax = largest_of(low, high);
    const float scale = at_least(round_to(q->source, amax / 127.5f), 0x1p-23f);
    return (params){.scale = scale, .factor = 1.0f / scale};
}

static params int4_params(const nib_quantizer *q, float low, float high)
{
    const float most = (float)nib__code_most(q->scheme.code);
    const float scale = at_least(high - low, 1e-6f) / (2 * most + 1);
    return (params){.scale = round_to(q->source, scale),
                    .zero = round_to(q->source, low + scale * (most + 1)),
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
    /* A factor of 0 makes every code 0; torchao's are NaN. */
    return (params){.scale = scale > 0 ? scale : 1, .factor = scale};
}

/* Blocks so small that the exponent of their scale is below e8m0's range have codes that are not
 * scaled (rceil) or scaled by 2^-126 (floor), as in torchao 0.18. */
static params mx_params(const nib_quantizer *q, float low, float high)
{
    const float amax = largest_of(low, high);
    const bool e2m1 = nib__codes[q->scheme.code].element == NIB_ELEMENT_E2M1;
    uint32_t bits, code;
    params p;
    if (q->scheme.mx_floor) {
        const uint32_t power = e2m1 ? 2 : 8; /* exponent of the largest code, 6 or 448 */
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
    const float scale = e4m3_value(e4m3_code(wanted, 0x7f));
    return (params){.scale = scale, .factor = nib__quant_inverse(q) / scale};
}

/* The value of the largest magnitude gets the level -127; of a tie the negative one. */
static params levels_params(float low, float high)
{
    const float scale = f16_value(f16_code((-low >= high ? low : high) / -127));
    return (params){.scale = scale, .factor = scale != 0 ? 1 / scale : 0};
}

static params params_of(const nib_quantizer *q, nib_quant_family family, float low, float high)
{
    switch (family) {
    case NIB_QUANT_INTX: return intx_params(q, low, high);
    case NIB_QUANT_INT8: return int8_params(q, low, high);
    case NIB_QUANT_INT4: return int4_params(q, low, high);
    case NIB_QUANT_TINYGEMM: return tinygemm_params(q, low, high);
    case NIB_QUANT_FP8: return fp8_params(q, low, high);
    case NIB_QUANT_NV: return nv_params(q, low, high);
    case NIB_QUANT_LEVELS: return levels_params(low, high);
    case NIB_QUANT_GGML:  /* handled by quantize_block, */
    case NIB_QUANT_SUPER: /* and by quantize_super */
    case NIB_QUANT_MX: break;
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

/* clamp(round((x - base) / factor), 0, 2 most + 1) - most - 1, each step rounded to `type`. */
NIB_INLINE void quotient_codes(int8_t *NIB_RESTRICT codes, const float *NIB_RESTRICT x,
                               int64_t count, params p, int32_t most, nib_type type)
{
    for (int64_t j = 0; j < count; j++) {
        const float v = round_to(type, round_to(type, x[j] - p.base) / p.factor);
        codes[j] = (int8_t)((int32_t)round_even(clamp(v, 0, (float)(2 * most + 1))) - most - 1);
    }
}

NIB_INLINE void integer_codes(int8_t *codes, const float *x, int64_t count, params p, nib_code code,
                              nib_type type)
{
    const float qmax = (float)nib__code_most(code), qmin = -qmax - 1;
    if (type == NIB_TYPE_BF16)
        product_codes(codes, x, count, p, qmin, qmax, NIB_TYPE_BF16);
    else if (type == NIB_TYPE_F16)
        product_codes(codes, x, count, p, qmin, qmax, NIB_TYPE_F16);
    else
        product_codes(codes, x, count, p, qmin, qmax, NIB_TYPE_F32);
}

NIB_INLINE void float_zero_codes(int8_t *codes, const float *x, int64_t count, params p,
                                 nib_code code, nib_type type)
{
    const int32_t most = nib__code_most(code);
    if (type == NIB_TYPE_BF16)
        quotient_codes(codes, x, count, p, most, NIB_TYPE_BF16);
    else if (type == NIB_TYPE_F16)
        quotient_codes(codes, x, count, p, most, NIB_TYPE_F16);
    else
        quotient_codes(codes, x, count, p, most, NIB_TYPE_F32);
}

/* x / factor as e4m3. For MX, the factor is a power of two. */
NIB_INLINE void e4m3_codes(int8_t *codes, const float *x, int64_t count, params p)
{
    if (!(p.factor > 0)) {
        memset(codes, 0, (size_t)count);
        return;
    }
    for (int64_t j = 0; j < count; j++)
        codes[j] = (int8_t)e4m3_code(x[j] / p.factor, 0x7e);
}

/* x / factor as e2m1. For MX, the factor is a power of two. */
NIB_INLINE void mx4_codes(int8_t *codes, const float *x, int64_t count, params p)
{
    for (int64_t j = 0; j < count; j++)
        codes[j] = (int8_t)e2m1_code(x[j] / p.factor);
}

/* x * factor as e2m1: torchao multiplies by the reciprocal. */
NIB_INLINE void nv4_codes(int8_t *codes, const float *x, int64_t count, params p)
{
    for (int64_t j = 0; j < count; j++)
        codes[j] = (int8_t)e2m1_code(x[j] * p.factor);
}

/* The level of IQ4_NL nearest to v, the lower one of two. */
NIB_INLINE float nearest_level(float v)
{
    static const float levels[] = {NIB_IQ4_NL_LEVELS};
    float nearest = levels[0];
    for (int i = 1; i < (int)COUNT(levels); i++)
        nearest = v > 0.5F * (levels[i - 1] + levels[i]) ? levels[i] : nearest;
    return nearest;
}

NIB_INLINE void level_codes(int8_t *NIB_RESTRICT codes, const float *NIB_RESTRICT x, int64_t count,
                            params p)
{
    for (int64_t j = 0; j < count; j++)
        codes[j] = (int8_t)nearest_level(x[j] * p.factor);
}

NIB_INLINE void codes_of(const nib_quantizer *q, nib_quant_family family, int8_t *codes,
                         const float *x, int64_t count, params p)
{
    switch (family) {
    case NIB_QUANT_INTX: integer_codes(codes, x, count, p, q->scheme.code, product_type(q)); return;
    case NIB_QUANT_INT8: integer_codes(codes, x, count, p, q->scheme.code, NIB_TYPE_F32); return;
    case NIB_QUANT_INT4: float_zero_codes(codes, x, count, p, q->scheme.code, NIB_TYPE_F32); return;
    case NIB_QUANT_TINYGEMM:
        float_zero_codes(codes, x, count, p, q->scheme.code, q->source);
        return;
    case NIB_QUANT_NV: nv4_codes(codes, x, count, p); return;
    case NIB_QUANT_LEVELS: level_codes(codes, x, count, p); return;
    case NIB_QUANT_MX:
        if (nib__codes[q->scheme.code].element == NIB_ELEMENT_E2M1) {
            mx4_codes(codes, x, count, p);
            return;
        }
        break;
    case NIB_QUANT_GGML:
    case NIB_QUANT_SUPER:
    case NIB_QUANT_FP8: break;
    }
    e4m3_codes(codes, x, count, p);
}

/* ---- quantization error ---- */

/* Values of codes, without their scale. */
NIB_INLINE void code_values(float *NIB_RESTRICT out, const int8_t *NIB_RESTRICT codes,
                            int64_t count, nib_code code)
{
    const nib_element element = nib__codes[code].element;
    if (element == NIB_ELEMENT_E4M3)
        for (int64_t j = 0; j < count; j++)
            out[j] = e4m3_value((uint8_t)codes[j]);
    else if (element == NIB_ELEMENT_E2M1)
        for (int64_t j = 0; j < count; j++)
            out[j] = e2m1_value((uint8_t)codes[j]);
    else
        for (int64_t j = 0; j < count; j++)
            out[j] = (float)codes[j];
}

typedef struct losses {
    double signal[NIB_QUANT_LANES], error[NIB_QUANT_LANES];
    float scale, before, after; /* (code - before) * scale + after */
} losses;

/* Adds the next `count` elements, one per lane. */
NIB_INLINE void add_to_lanes(losses *s, const int8_t *codes, const float *x, int64_t count,
                             nib_code code)
{
    float values[NIB_QUANT_LANES];
    code_values(values, codes, count, code);
    for (int64_t l = 0; l < count; l++) {
        const double value = (double)x[l];
        const double lost = value - (double)((values[l] - s->before) * s->scale + s->after);
        s->signal[l] += value * value;
        s->error[l] += lost * lost;
    }
}

/* Adds a group's signal and the error of its codes to the sums of its row, in lanes: see ops.h. */
NIB_INLINE void add_error(const nib_quantizer *q, double sums[2], const int8_t *codes,
                          const float *x, int64_t count, params p)
{
    losses s = {.signal = {0}};
    int64_t lanes = NIB_QUANT_LANES, j = 0;
    s.scale = q->tensor_scale != 0 ? p.scale * q->tensor_scale : p.scale;
    s.before = q->scheme.zero == NIB_ZERO_INT ? p.zero : 0;
    s.after = q->scheme.zero == NIB_ZERO_FLOAT ? p.zero : 0;
    while (lanes / 2 >= count) /* the other lanes would add 0 */
        lanes /= 2;
    if (lanes == NIB_QUANT_LANES)
        for (; count - j >= NIB_QUANT_LANES; j += NIB_QUANT_LANES)
            add_to_lanes(&s, codes + j, x + j, NIB_QUANT_LANES, q->scheme.code);
    add_to_lanes(&s, codes + j, x + j, count - j, q->scheme.code);
    for (int64_t step = lanes / 2; step > 0; step /= 2)
        for (int64_t l = 0; l < step; l++) {
            s.signal[l] += s.signal[l + step];
            s.error[l] += s.error[l + step];
        }
    sums[0] += s.signal[0];
    sums[1] += s.error[0];
}

#include "quant_w_search.h"
#include "quant_w_hqq.h"

/* ---- rows ---- */

/* Smallest and largest value; false if one is NaN or infinite. Compares integers that order like
 * floats, so that the order of comparison does not matter: negative values count down from -1, NaN
 * is beyond infinity on both sides. */
NIB_INLINE bool range_of(const float *x, int64_t count, float *low, float *high)
{
    int32_t least = INT32_MAX, most = INT32_MIN;
    for (int64_t j = 0; j < count; j++) {
        const int32_t bits = (int32_t)bits_of(x[j]), key = bits ^ (bits >> 31 & 0x7fffffff);
        least = key < least ? key : least;
        most = key > most ? key : most;
    }
    *low = float_of((uint32_t)(least ^ (least >> 31 & 0x7fffffff)));
    *high = float_of((uint32_t)(most ^ (most >> 31 & 0x7fffffff)));
    return most < 0x7f800000 && least > (int32_t)(0xff800000U ^ 0x7fffffffU);
}

/* Quantizes a group with ggml's reference and takes its block apart. A short group is padded with
 * its last value, which changes neither range nor codes. Returns false if the scale is beyond f16.
 */
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

#include "quant_w_super.h"

/* Where the results of a group go. */
typedef struct group {
    const nib_quantizer *q;
    nib_quant_family family;
    int8_t *codes;
    double *sums;      /* sums of the row */
    const float *w;    /* importance of the group's inputs; NULL: all 1 */
    double *objective; /* of the row */
    params p;          /* the tensor's if it has one scale, else set to the group's */
} group;

/* Returns 0, or 1 if a value is not finite, or 2 if there is no finite scale. */
NIB_INLINE int quantize_group(group *g, const float *x, int64_t count)
{
    const nib_quantizer *q = g->q;
    float low, high;
    if (!range_of(x, count, &low, &high))
        return 1;
    if (g->family == NIB_QUANT_GGML) {
        if (!quantize_block(q, g->codes, x, count, &g->p))
            return 2;
    } else {
        if (!nib__quantizer_is_one(q))
            g->p = params_of(q, g->family, low, high);
        if (!isfinite(g->p.scale))
            return 2;
        codes_of(q, g->family, g->codes, x, count, g->p);
    }
    if (q->method == NIB_PTQ_SEARCH)
        search_group(q, g->family, x, g->w, count, low, high, &g->p, g->codes, g->objective);
    else if (q->method == NIB_PTQ_HQQ)
        move_zero(q, g->family, x, count, &g->p, g->codes, g->objective);
    add_error(q, g->sums, g->codes, x, count, g->p);
    return 0;
}

static int group_of_any(group *g, const float *x, int64_t count)
{
    return quantize_group(g, x, count);
}

static int group_of_32(group *g, const float *x) { return quantize_group(g, x, 32); }

static int group_of_16(group *g, const float *x) { return quantize_group(g, x, 16); }

/* Quantizes a row of super-blocks; see quantize_row. */
static int32_t quantize_supers(const nib_quant_w *a, const float *x, int64_t row, group *row_of)
{
    const nib_quantizer *q = a->q;
    super_block b = {.form = super_form_of(q)};
    super_result to = {.q = q,
                       .scales = a->scales,
                       .zeros = a->zeros,
                       .group = row * q->groups,
                       .sums = row_of->sums,
                       .objective = row_of->objective};
    for (int64_t k = 0; k < q->k; k += NIB_SUPER_ELEMENTS, to.group += b.form.groups) {
        b.x = x + k;
        b.w = q->importance != NULL ? q->importance + k : NULL;
        to.codes = a->codes + row * q->k + k;
        const int32_t failed = quantize_super(&b, &to);
        if (failed != 0)
            return failed + 2 * (int32_t)(to.group - row * q->groups);
    }
    return 0;
}

/* Returns 0, or a code for `failed`: see ops.h. */
static int32_t quantize_row(const nib_quant_w *a, const float *x, int64_t row)
{
    const nib_quantizer *q = a->q;
    const bool whole = nib__quantizer_is_one(q);
    const int64_t size = nib__scheme_group_size(&q->scheme, q->k);
    group to = {.q = q,
                .family = nib__quant_family(&q->scheme),
                .sums = a->sums + 2 * row,
                .p = {.scale = q->scale, .zero = q->zero, .factor = q->factor}};
    double objective[2] = {0, 0};
    to.objective = a->objective != NULL ? a->objective + 2 * row : objective;
    to.sums[0] = to.sums[1] = to.objective[0] = to.objective[1] = 0;
    if (to.family == NIB_QUANT_SUPER)
        return quantize_supers(a, x, row, &to);
    for (int64_t g = 0; g < q->groups; g++) {
        const int64_t k0 = g * size, count = nib__min(size, q->k - k0), at = row * q->groups + g;
        to.codes = a->codes + row * q->k + k0;
        to.w = q->importance != NULL ? q->importance + k0 : NULL;
        const int failed = count == 32   ? group_of_32(&to, x + k0)
                           : count == 16 ? group_of_16(&to, x + k0)
                                         : group_of_any(&to, x + k0, count);
        if (failed != 0)
            return (int32_t)(failed + 2 * g);
        if (whole)
            continue;
        nib__quant_store(a->scales, q->scale_type, at, to.p.scale);
        if (q->zero_type != NIB_TYPE_NONE)
            nib__quant_store(a->zeros, q->zero_type, at, to.p.zero);
    }
    return 0;
}

#include "quant_w_sweep.h"

void NIB_QUANT_W(const nib_quant_w *a, int64_t row0, int64_t row1, void *scratch)
{
    const int64_t k = a->q->k;
    for (int64_t i = row0; i < row1; i++) {
        const float *x = (const float *)a->rows + i * k;
        if (a->type != NIB_TYPE_F32) {
            nib__to_f32(scratch, (const char *)a->rows + 2 * i * k, a->type, k);
            x = scratch;
        }
        a->failed[i] = a->codes != NULL ? quantize_row(a, x, i)
                                        : !range_of(x, k, &a->ranges[2 * i], &a->ranges[2 * i + 1]);
    }
}
