/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes weights: the arithmetic of cpu/quant_w.c step by step, to the same bits. Options, set
 * by ocl_quant_w.c:
 *
 *   GROUP   items of a work-group, and lanes of the sums over a group of weights
 *   FAMILY  the formulas, FAMILY_*
 *
 * `span` items, a power of two, share a group of weights (a whole row if it has one scale), so a
 * work-group has GROUP / span groups, consecutive in the rows.
 */
#ifndef NIB_CUDA /* CUDA: a compiler option does this */
#pragma OPENCL FP_CONTRACT OFF
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

#define FAMILY_INTX 0
#define FAMILY_INT8 1
#define FAMILY_INT4 2
#define FAMILY_TINYGEMM 3
#define FAMILY_FP8 4
#define FAMILY_MX 5
#define FAMILY_NV 6
#define FAMILY_GGML 7

#define LEAST_SPAN 16 /* items of a group of weights */

/* Rounded to nearest. OpenCL guarantees that only for doubles, whose quotient has enough bits to be
 * rounded a second time. */
#ifdef NIB_CUDA
#define DIVIDE(a, b) ((a) / (b))
#else
#define DIVIDE(a, b) ((float)((double)(a) / (double)(b)))
#endif

/* ---- reductions over the items of a group of weights: each passes two values and gets both
 * results; two at once, because the barriers take the time ---- */

typedef struct keys {
    int first, second;
} keys;

INLINED keys span_least(keys value, LOCAL int *scratch, int span)
{
    const int id = (int)get_local_id(0), lane = id & (span - 1);
    LOCAL int *other = scratch + GROUP;
    scratch[id] = value.first;
    other[id] = value.second;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = span / 2; step > 0; step /= 2) {
        if (lane < step) {
            scratch[id] = min(scratch[id], scratch[id + step]);
            other[id] = min(other[id], other[id + step]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    value.first = scratch[id - lane];
    value.second = other[id - lane];
    barrier(CLK_LOCAL_MEM_FENCE);
    return value;
}

typedef struct sums {
    double signal, error;
} sums;

/* Only the first item gets the result. */
INLINED sums span_sum(sums value, LOCAL double *scratch, int span)
{
    const int id = (int)get_local_id(0), lane = id & (span - 1);
    LOCAL double *other = scratch + GROUP;
    scratch[id] = value.signal;
    other[id] = value.error;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = span / 2; step > 0; step /= 2) {
        if (lane < step) {
            scratch[id] += scratch[id + step];
            other[id] += other[id + step];
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    value.signal = scratch[id];
    value.error = other[id];
    return value;
}

typedef struct range {
    float low, high;
    int is_finite;
} range;

INLINED range range_of(const __global uchar *rows, size_t at, int count, int type,
                       LOCAL int *scratch, int span)
{
    keys k;
    k.first = k.second = 0x7fffffff; /* `second` has the complement, for the largest */
    for (int j = ((int)get_local_id(0) & (span - 1)); j < count; j += span) {
        const int key = float_order_key(as_int(load_typed(rows, at + (size_t)j, type)));
        k.first = min(k.first, key);
        k.second = min(k.second, ~key);
    }
    k = span_least(k, scratch, span);
    const int low = float_order_key(k.first), high = float_order_key(~k.second);
    range r;
    r.low = as_float(low);
    r.high = as_float(high);
    r.is_finite = IS_FINITE(low) && IS_FINITE(high);
    return r;
}

static float largest_of(range r) { return fabs(-r.low > r.high ? r.low : r.high); }

#ifndef FAMILY

/* The smallest and the largest of each row; one work-group per row. */
__kernel void row_ranges(GLOBAL_ARG(uchar, rows), GLOBAL_ARG(float, ranges),
                         GLOBAL_ARG(int, failed), int type, int k)
{
    __local int scratch[2 * GROUP];
    GLOBAL_CONST_PTR(uchar, rows);
    GLOBAL_PTR(float, ranges);
    GLOBAL_PTR(int, failed);
    const size_t row = get_group_id(0);
    const range of = range_of(rows, row * (size_t)k, k, type, scratch, GROUP);
    if (get_local_id(0) != 0)
        return;
    ranges[2 * row] = of.low;
    ranges[2 * row + 1] = of.high;
    failed[row] = !of.is_finite;
}

/* Sums each row from its groups, one work-item per row. An error below 0 is the reason why a group
 * failed, negated. */
__kernel void row_sums(GLOBAL_ARG(double, of_groups), GLOBAL_ARG(double, sums),
                       GLOBAL_ARG(int, failed), int rows, int groups)
{
    GLOBAL_CONST_PTR(double, of_groups);
    GLOBAL_PTR(double, sums);
    GLOBAL_PTR(int, failed);
    const size_t row = get_global_id(0);
    double signal = 0.0, error = 0.0;
    int why = 0;
    if (row >= (size_t)rows)
        return;
    of_groups += 2 * row * (size_t)groups;
    for (int g = 0; g < groups && why == 0; g++) {
        signal += of_groups[2 * g];
        error += of_groups[2 * g + 1];
        if (of_groups[2 * g + 1] < 0.0)
            why = 2 * g + (int)-of_groups[2 * g + 1];
    }
    sums[2 * row] = signal;
    sums[2 * row + 1] = error;
    failed[row] = why;
}

#else

/* The parameters of a group. */
typedef struct params {
    float scale, zero; /* as stored */
    float factor;      /* multiplies x, or divides it */
    float base;        /* subtracted from x first */
    int byte;          /* MX, NV: the scale as stored */
    int is_finite;     /* whether the scale is */
} params;

/* What all groups share. */
typedef struct common {
    int source, scale_type, bits, is_wide, is_symmetric, has_zero, is_floor;
    float smallest, tensor, inverse;
} common;

static float round_to(int type, float x)
{
    const uint bits = as_uint(x);
    if (type == TYPE_BF16)
        return as_float((bits + 0x7fffu + ((bits >> 16) & 1u)) & 0xffff0000u);
    return type == TYPE_F16 ? from_f16(to_f16(x)) : x;
}

static float at_least(float scale, float smallest) { return scale < smallest ? smallest : scale; }

#if FAMILY == FAMILY_GGML

/* Truncates; infinity and NaN become 0. */
static int whole_of(float v) { return IS_FINITE(as_int(v)) ? (int)v : 0; }

/* The first value of the largest magnitude. */
INLINED float peak_of(const __global uchar *rows, size_t at, int count, int type, float largest,
                      LOCAL int *scratch, int span)
{
    keys k;
    k.first = k.second = 0x7fffffff;
    for (int j = ((int)get_local_id(0) & (span - 1)); j < count; j += span)
        if (fabs(load_typed(rows, at + (size_t)j, type)) == largest)
            k.first = min(k.first, j);
    const int first = span_least(k, scratch, span).first;
    return largest == 0.0f || first >= count ? 0.0f : load_typed(rows, at + (size_t)first, type);
}

/* Q8_0 (is_wide), Q4_1 (has_zero) or Q4_0, which alone reads `peak`. */
static params params_of(range of, float peak, common c)
{
    params p;
    const float d = c.is_wide != 0    ? DIVIDE(largest_of(of), 127.0f)
                    : c.has_zero != 0 ? DIVIDE(of.high - of.low, 15.0f)
                                      : DIVIDE(peak, -8.0f);
    const float low = c.has_zero != 0 ? from_f16(to_f16(of.low)) : 0.0f;
    p.scale = from_f16(to_f16(d));
    p.zero = c.has_zero != 0 ? low + 8.0f * p.scale : 0.0f;
    p.factor = d != 0.0f ? DIVIDE(1.0f, d) : 0.0f;
    p.base = of.low;
    p.byte = 0;
    p.is_finite = IS_FINITE(as_int(p.scale)) && IS_FINITE(as_int(low));
    return p;
}

static int code_of(float x, params p, common c, float *value)
{
    int code;
    if (c.is_wide != 0)
        code = whole_of(round(x * p.factor));
    else if (c.has_zero != 0)
        code = min(whole_of((x - p.base) * p.factor + 0.5f), 15) - 8;
    else
        code = min(whole_of(x * p.factor + 8.5f), 15) - 8;
    *value = (float)code;
    return code;
}

#elif FAMILY == FAMILY_INTX || FAMILY == FAMILY_INT8

static params params_of(range of, float peak, common c)
{
    params p;
    const float qmin = -(float)(1 << (c.bits - 1)), qmax = -1.0f - qmin;
    p.zero = p.base = 0.0f;
    p.byte = 0;
#if FAMILY == FAMILY_INT8
    p.scale = at_least(round_to(c.source, DIVIDE(largest_of(of), 127.5f)), c.smallest);
    p.factor = DIVIDE(1.0f, p.scale);
#else
    const float below = of.low < 0.0f ? of.low : 0.0f, above = of.high > 0.0f ? of.high : 0.0f;
    if (c.is_symmetric != 0) {
        const float amax = -below > above ? -below : above;
        p.scale = at_least(round_to(c.source, DIVIDE(amax, (qmax - qmin) / 2.0f)), c.smallest);
    } else {
        const float span = DIVIDE(round_to(c.source, above - below), qmax - qmin);
        p.scale = at_least(round_to(c.source, span), c.smallest);
        p.zero = qmin - rint(round_to(c.source, DIVIDE(below, p.scale)));
        p.zero = clamp(p.zero, qmin, qmax);
    }
    p.scale = round_to(c.scale_type, p.scale);
    p.factor = round_to(c.scale_type, DIVIDE(1.0f, p.scale));
    if (!IS_FINITE(as_int(p.factor)))
        p.scale = 1.0f, p.factor = 0.0f;
#endif
    p.is_finite = IS_FINITE(as_int(p.scale));
    return p;
}

static int code_of(float x, params p, common c, float *value)
{
    const float qmin = -(float)(1 << (c.bits - 1)), qmax = -1.0f - qmin;
    const int type = c.scale_type == c.source ? c.source : TYPE_F32; /* that products round to */
    const float v = round_to(type, x * p.factor);
    *value = rint(clamp(v, qmin - p.zero, qmax - p.zero)) + p.zero;
    return (int)*value;
}

#elif FAMILY == FAMILY_INT4 || FAMILY == FAMILY_TINYGEMM

static params params_of(range of, float peak, common c)
{
    params p;
    p.byte = 0;
#if FAMILY == FAMILY_INT4
    const float scale = DIVIDE(at_least(of.high - of.low, 1e-6f), (float)((1 << c.bits) - 1));
    p.scale = round_to(c.source, scale);
    p.zero = round_to(c.source, of.low + scale * (float)(1 << (c.bits - 1)));
    p.factor = scale;
    p.base = of.low;
#else
    const float steps = DIVIDE(round_to(c.source, of.high - of.low), 15.0f);
    p.scale = p.factor = at_least(round_to(c.source, steps), c.smallest);
    const float half_range = round_to(c.source, p.scale * 8.0f);
    p.zero = round_to(c.source, of.low + half_range);
    p.base = round_to(c.source, p.zero - half_range);
#endif
    p.is_finite = IS_FINITE(as_int(p.scale));
    return p;
}

static int code_of(float x, params p, common c, float *value)
{
    const int type = FAMILY == FAMILY_INT4 ? TYPE_F32 : c.source;
    const float v = round_to(type, DIVIDE(round_to(type, x - p.base), p.factor));
    *value = rint(clamp(v, 0.0f, (float)((1 << c.bits) - 1))) - (float)(1 << (c.bits - 1));
    return (int)*value;
}

#else /* small floats */

static params params_of(range of, float peak, common c)
{
    params p;
    const float amax = largest_of(of);
    p.zero = p.base = 0.0f;
    p.byte = 0;
#if FAMILY == FAMILY_FP8
    p.factor = round_to(c.source, DIVIDE(amax, 448.0f));
    p.scale = p.factor > 0.0f ? p.factor : 1.0f;
#elif FAMILY == FAMILY_MX
    p.byte = mx_byte(as_int(amax), DIVIDE(amax, c.is_wide != 0 ? 448.0f : 6.0f),
                     c.is_wide != 0 ? 8 : 2, c.is_floor);
    p.scale = from_e8m0((uchar)p.byte);
    p.factor = mx_factor(p.byte, c.is_floor);
#else
    const float block = DIVIDE(amax, 6.0f);
    const float wanted = c.tensor != 0.0f ? DIVIDE(block, c.tensor) : block;
    p.byte = (int)e4m3_code(NEAREST_E4M3(clamp(wanted, 0.015625f, 448.0f)));
    p.scale = from_e4m3((uchar)p.byte);
    p.factor = DIVIDE(c.inverse, p.scale);
#endif
    p.is_finite = IS_FINITE(as_int(p.scale));
    return p;
}

/* The code of an e2m1 value without its sign. */
static int e2m1_code(float value)
{
    return value < 1.0f ? (int)(value * 2.0f) : (int)(as_uint(value) >> 22) - 252;
}

static int code_of(float x, params p, common c, float *value)
{
#if FAMILY == FAMILY_FP8
    if (!(p.factor > 0.0f)) {
        *value = 0.0f;
        return 0;
    }
    const float v = DIVIDE(x, p.factor);
#else
    const float v = x * p.factor; /* MX: a power of two, so this is the quotient */
#endif
    const uint sign = as_uint(v) & 0x80000000u;
#if FAMILY == FAMILY_NV
    if (isnan(v)) { /* 0 times infinity */
        *value = 0.0f;
        return 8;
    }
#endif
#if FAMILY == FAMILY_MX
    const int is_e4m3 = c.is_wide != 0;
#else
    const int is_e4m3 = FAMILY == FAMILY_FP8;
#endif
    const float near = is_e4m3 ? NEAREST_E4M3(v) : NEAREST_E2M1(v);
    *value = as_float(as_uint(near) | sign);
    return is_e4m3 ? (int)(e4m3_code(near) | (sign >> 24)) : e2m1_code(near) | (int)(sign >> 28);
}

#endif

static void store_value(__global uchar *to, size_t at, int type, float value, int byte)
{
    if (type == VALUE_I8)
        ((__global char *)to)[at] = (char)(int)value;
    else if (type == VALUE_E8M0 || type == VALUE_E4M3)
        to[at] = (uchar)byte;
    else
        store_typed(to, at, type, value);
}

/* total: groups of all rows. is_whole: scale, zero and factor are arguments and are not stored.
 * zero_kind: 1 is subtracted from codes, 2 is added to values. */
__kernel void weight_codes(GLOBAL_ARG(uchar, rows), GLOBAL_ARG(char, codes),
                           GLOBAL_ARG(uchar, scales), GLOBAL_ARG(uchar, zeros),
                           GLOBAL_ARG(double, of_groups), int type, int source, int k, int group,
                           int groups, int total, int span, int bits, int is_symmetric,
                           int scale_type, int zero_type, int zero_kind, int is_whole, int is_floor,
                           float smallest, float tensor, float inverse, float scale, float zero,
                           float factor)
{
    __local int scratch[2 * GROUP];
    __local double sum_scratch[2 * GROUP];
    __local params found[GROUP / LEAST_SPAN];
    GLOBAL_CONST_PTR(uchar, rows);
    GLOBAL_PTR(char, codes);
    GLOBAL_PTR(uchar, scales);
    GLOBAL_PTR(uchar, zeros);
    GLOBAL_PTR(double, of_groups);
    const int id = (int)get_local_id(0), lane = id & (span - 1);
    const uint of_all = (uint)(get_group_id(0) * (GROUP / span)) + (uint)id / (uint)span;
    const uint row = of_all / (uint)groups;
    const int begin = (int)(of_all - row * (uint)groups) * group;
    const int is_there = of_all < (uint)total, count = is_there ? min(group, k - begin) : 0;
    const size_t at = (size_t)row * (size_t)k + (size_t)begin;
    common c;
    c.source = source, c.bits = bits, c.is_wide = bits == 8;
    c.is_symmetric = is_symmetric, c.is_floor = is_floor;
    c.scale_type = scale_type, c.has_zero = zero_kind != 0;
    c.smallest = smallest, c.tensor = tensor, c.inverse = inverse;
    const range of = range_of(rows, at, count, type, scratch, span);
    float peak = 0.0f;
#if FAMILY == FAMILY_GGML
    peak = peak_of(rows, at, count, type, largest_of(of), scratch, span);
#endif
    if (lane == 0) { /* only one: without SIMD lanes every item would take the same time */
        params p = params_of(of, peak, c);
        if (is_whole != 0)
            p.scale = scale, p.zero = zero, p.factor = factor, p.base = 0.0f, p.is_finite = 1;
        found[id / span] = p;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const params p = found[id / span];
    const float by = tensor != 0.0f ? p.scale * tensor : p.scale;
    const float before = zero_kind == 1 ? p.zero : 0.0f, after = zero_kind == 2 ? p.zero : 0.0f;
    const int is_coded = of.is_finite && p.is_finite;
    sums lost;
    lost.signal = lost.error = 0.0;
    for (int j = lane; j < count && is_coded; j += span) {
        const float x = load_typed(rows, at + (size_t)j, type);
        float value;
        codes[at + (size_t)j] = (char)code_of(x, p, c, &value);
        const double off = (double)x - (double)((value - before) * by + after);
        lost.signal += (double)x * (double)x;
        lost.error += off * off;
    }
    lost = span_sum(lost, sum_scratch, span);
    if (lane != 0 || !is_there)
        return;
    of_groups[2 * (size_t)of_all] = lost.signal;
    of_groups[2 * (size_t)of_all + 1] = is_coded ? lost.error : of.is_finite ? -2.0 : -1.0;
    if (is_whole != 0)
        return;
    store_value(scales, of_all, scale_type, p.scale, p.byte);
    if (zero_kind != 0)
        store_value(zeros, of_all, zero_type, p.zero, 0);
}

#endif
