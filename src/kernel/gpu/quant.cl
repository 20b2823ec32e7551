/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes activations to the form that a product reads, by the formulas of cpu/quant_body.h;
 * codes and scales are the same too if the device rounds quotients to nearest. A work-group of
 * GROUP items takes a token, or a block of one.
 */
#ifndef NIB_CUDA /* CUDA: a compiler option does this */
#pragma OPENCL FP_CONTRACT OFF
#endif

/* Rows have k values and ld codes. They begin at multiples of ldx, or if they are sorted by head,
 * per_head of each, also head_step further for each head. */
#define SHAPE_ARGS int k, int ldx, int ld, int per_head, int head_step
#define START_OF(row)                                                                              \
    ((size_t)((uint)(row) % (uint)per_head) * (size_t)ldx +                                        \
     (size_t)((uint)(row) / (uint)per_head) * (size_t)head_step)

/* ---- over a work-group ---- */

static int group_most(int value, LOCAL int *scratch)
{
    const int id = (int)get_local_id(0);
    scratch[id] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = GROUP / 2; step > 0; step /= 2) {
        if (id < step)
            scratch[id] = max(scratch[id], scratch[id + step]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const int most = scratch[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return most;
}

/* The range of the values, extended to include 0. */
typedef struct range {
    float low, high;
    int is_finite;
} range;

static range range_of(const __global float *x, int count, LOCAL int *scratch)
{
    int least = 0, most = 0;
    for (int i = (int)get_local_id(0); i < count; i += GROUP) {
        const int key = float_order_key(as_int(x[i]));
        least = min(least, key);
        most = max(most, key);
    }
    const int low = float_order_key(-group_most(-least, scratch)), high = group_most(most, scratch);
    range r;
    r.low = as_float(low);
    r.high = as_float(high);
    r.is_finite = IS_FINITE(low) && IS_FINITE(high);
    return r;
}

static float largest_of(range r) { return fmax(-r.low, r.high); }

/* ---- integers, one scale per token ---- */

__kernel void integers(GLOBAL_ARG(float, x), GLOBAL_ARG(char, codes), GLOBAL_ARG(float, scale),
                       GLOBAL_ARG(int, zero), SHAPE_ARGS, int qmin, int qmax, int is_symmetric,
                       int is_static, int static_zero, float eps, float static_scale)
{
    __local int scratch[GROUP];
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(char, codes);
    GLOBAL_PTR(float, scale);
    GLOBAL_PTR(int, zero);
    const size_t token = get_group_id(0);
    x += START_OF(token);
    codes += token * (size_t)ld;
    const range of = range_of(x, k, scratch);
    const float steps = (float)(qmax - qmin);
    float s = static_scale;
    int z = static_zero;
    if (of.is_finite && is_static == 0) {
        s = fmax(is_symmetric != 0 ? largest_of(of) / (steps / 2) : (of.high - of.low) / steps,
                 eps);
        z = is_symmetric != 0 ? 0 : clamp(qmin - (int)rint(of.low / s), qmin, qmax);
    }
    const float factor = 1.0f / s, low = (float)(qmin - z), high = (float)(qmax - z);
    for (int i = (int)get_local_id(0); i < ld; i += GROUP) {
        int code = 0;
        if (i < k && of.is_finite) {
            float v = x[i] * factor;
            v = v > low ? v : low; /* NaN, from a static scale of 0, becomes low */
            v = v < high ? v : high;
            code = (int)rint(v) + z;
        }
        codes[i] = (char)code;
    }
    if (get_local_id(0) == 0) {
        scale[token] = of.is_finite ? s : NOT_A_NUMBER;
        zero[token] = of.is_finite ? z : 0;
    }
}

/* ---- integers, one scale and one work-group per block ---- */

#ifdef BLOCK

/* The first value of the largest magnitude. */
static float first_largest(const __global float *x, int count, range of, LOCAL int *scratch)
{
    int first = count;
    for (int i = (int)get_local_id(0); i < count; i += GROUP)
        if (fabs(x[i]) == largest_of(of))
            first = min(first, i);
    return x[min(-group_most(-first, scratch), count - 1)];
}

__kernel void blocks(GLOBAL_ARG(float, x), GLOBAL_ARG(char, codes), GLOBAL_ARG(float, scale),
                     SHAPE_ARGS)
{
    __local int scratch[GROUP];
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(char, codes);
    GLOBAL_PTR(float, scale);
    const int last = (k - 1) / BLOCK, block = PART_OF_GROUP(last + 1);
    const int count = min(BLOCK, k - block * BLOCK);
    const size_t token = ROW_OF_GROUP(last + 1);
    x += START_OF(token) + (size_t)block * BLOCK;
    codes += token * (size_t)ld + (size_t)block * BLOCK;
    const range of = range_of(x, count, scratch);
#if BLOCK == 32 /* ggml's Q8_0: codes use the f32 factor; the stored scale is rounded to f16 */
    const float d = largest_of(of) / 127.0f, kept = from_f16(to_f16(d)), factor = 1.0f / d;
    const int is_coded = of.is_finite && kept != 0;
#else /* ggml's Q8_K: the first value of the largest magnitude gets code -127 */
    const float factor = -127.0f / first_largest(x, count, of, scratch), kept = 1.0f / factor;
    const int is_coded = of.is_finite && largest_of(of) != 0 && IS_FINITE(as_int(factor));
#endif
    for (int i = (int)get_local_id(0); i < count; i += GROUP) {
        const float v = x[i] * factor;
#if BLOCK == 32
        codes[i] = is_coded ? (char)(int)round(v) : (char)0; /* halves away from zero */
#else
        codes[i] = is_coded ? (char)(int)fmin(rint(v), 127.0f) : (char)0;
#endif
    }
    if (block == last)
        for (int i = count + (int)get_local_id(0); i < ld - last * BLOCK; i += GROUP)
            codes[i] = 0;
    if (get_local_id(0) == 0)
        scale[token * (size_t)(last + 1) + (size_t)block] = !of.is_finite ? NOT_A_NUMBER
                                                            : is_coded    ? kept
                                                                          : 0.0f;
}

#endif

/* ---- floats of 8 and 4 bits ---- */

/* e4m3 or e5m2, widened to bf16, one scale per token: by torchao's formula, or by training's, where
 * `amax` is of all tokens or absent (has_amax 0). */
__kernel void f8_tokens(GLOBAL_ARG(float, x), GLOBAL_ARG(ushort, out), GLOBAL_ARG(float, scale),
                        GLOBAL_ARG(float, amax), SHAPE_ARGS, int is_training, int has_amax,
                        int is_e5m2, int two_power, float code_max, float factor_of_zero)
{
    __local int scratch[GROUP];
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(ushort, out);
    GLOBAL_PTR(float, scale);
    GLOBAL_CONST_PTR(float, amax);
    const size_t token = get_group_id(0);
    x += START_OF(token);
    out += token * (size_t)ld;
    const range of = range_of(x, k, scratch);
    float largest = of.is_finite ? largest_of(of) : NOT_A_NUMBER, factor, kept;
    int coded;
    if (is_training == 0) {
        factor = largest / code_max;
        coded = factor > 0;
        kept = factor == 0 ? 1.0f : factor;
    } else {
        if (has_amax != 0)
            largest = amax[0];
        factor = choose_f8_factor(largest, code_max, factor_of_zero, two_power);
        coded = IS_FINITE(as_int(largest));
        kept = coded ? 1.0f / factor : NOT_A_NUMBER;
    }
    for (int i = (int)get_local_id(0); i < ld; i += GROUP) {
        uint bits = 0;
        if (i < k && coded) {
            const float v = is_training != 0 ? x[i] * factor : x[i] / factor;
            const float near = is_e5m2 != 0 ? NEAREST_E5M2(v) : NEAREST_E4M3(v);
            bits = as_uint(near) | (as_uint(v) & 0x80000000u);
        }
        out[i] = (ushort)(bits >> 16);
    }
    if (get_local_id(0) == 0)
        scale[token] = kept;
}

/* ---- MX: one work-group per block of 32 ---- */

__kernel void mx_blocks(GLOBAL_ARG(float, x), GLOBAL_ARG(uchar, codes), GLOBAL_ARG(float, scale),
                        SHAPE_ARGS, int is_e2m1, int is_floor)
{
    __local int scratch[GROUP];
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(uchar, codes);
    GLOBAL_PTR(float, scale);
    const int last = (k - 1) / 32, block = PART_OF_GROUP(last + 1);
    const int count = min(32, k - block * 32);
    const size_t token = ROW_OF_GROUP(last + 1);
    x += START_OF(token) + (size_t)block * 32;
    codes += token * (size_t)ld + (size_t)block * 32;
    int largest = 0;
    for (int i = (int)get_local_id(0); i < count; i += GROUP)
        largest = max(largest, as_int(x[i]) & 0x7fffffff);
    largest = group_most(largest, scratch);
    const int byte = is_e2m1 != 0 ? mx_byte(largest, as_float(largest) / 6.0f, 2, is_floor)
                                  : mx_byte(largest, as_float(largest) / 448.0f, 8, is_floor);
    const float factor = mx_factor(byte, is_floor);
    const int is_coded = IS_FINITE(largest);
    for (int i = (int)get_local_id(0); i < count; i += GROUP) {
        const float v = x[i] * factor, near = is_e2m1 != 0 ? NEAREST_E2M1(v) : NEAREST_E4M3(v);
        const uint code = e4m3_code(near) | ((as_uint(v) >> 24) & 0x80u);
        codes[i] = is_coded ? (uchar)code : (uchar)0;
    }
    if (block == last)
        for (int i = count + (int)get_local_id(0); i < ld - last * 32; i += GROUP)
            codes[i] = 0;
    if (get_local_id(0) == 0)
        scale[token * (size_t)(last + 1) + (size_t)block] =
            is_coded ? from_e8m0((uchar)byte) : NOT_A_NUMBER;
}

/* ---- NVFP4: one work-group per token; each work-item takes a block of 16 at a time ---- */

__kernel void nv_tokens(GLOBAL_ARG(float, x), GLOBAL_ARG(uchar, codes), GLOBAL_ARG(float, scale),
                        SHAPE_ARGS, int block_only)
{
    __local int scratch[GROUP];
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(uchar, codes);
    GLOBAL_PTR(float, scale);
    const int blocks = (k + 15) / 16;
    const size_t token = get_group_id(0);
    x += START_OF(token);
    codes += token * (size_t)ld;
    scale += token * (size_t)blocks;
    const range of = range_of(x, k, scratch);
    const float whole = block_only != 0 ? 1.0f : largest_of(of) / 2688.0f, inverse = 1.0f / whole;
    const int is_token = block_only != 0 || of.is_finite;
    const int is_coded = is_token && inverse < 5.316911983e36f; /* 2^122 */
    for (int b = (int)get_local_id(0); b < ld / 16; b += GROUP) {
        int largest = 0;
        for (int i = b * 16; i < min(k, b * 16 + 16); i++)
            largest = max(largest, as_int(x[i]) & 0x7fffffff);
        const float block = as_float(largest) / 6.0f / whole;
        const float s = NEAREST_E4M3(clamp(block, 0.015625f, 448.0f)), factor = inverse / s;
        const int is_kept = is_coded && IS_FINITE(largest);
        for (int i = b * 16; i < b * 16 + 16; i++) {
            const float v = is_kept && i < k ? x[i] * factor : 0.0f;
            codes[i] = (uchar)(e4m3_code(NEAREST_E2M1(v)) | ((as_uint(v) >> 24) & 0x80u));
        }
        if (b < blocks)
            scale[b] = !is_token || !IS_FINITE(largest) ? NOT_A_NUMBER
                       : is_coded                       ? s * whole
                                                        : 1.0f;
    }
}

/* ---- floats: one work-item per column of a token ---- */

__kernel void to_bf16_rows(GLOBAL_ARG(float, x), GLOBAL_ARG(ushort, out), SHAPE_ARGS)
{
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(ushort, out);
    const size_t token = ROW_OF_GROUP(GROUPS_OF(ld));
    const int i = COLUMN_OF(ld);
    if (i >= ld)
        return;
    out[token * (size_t)ld + (size_t)i] =
        i < k ? to_bf16_canonical_nan(x[START_OF(token) + (size_t)i]) : (ushort)0;
}

/* Copies values, rounded to f16 if is_rounded. */
__kernel void to_f32_rows(GLOBAL_ARG(float, x), GLOBAL_ARG(float, out), SHAPE_ARGS, int is_rounded)
{
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(float, out);
    const size_t token = ROW_OF_GROUP(GROUPS_OF(k));
    const int i = COLUMN_OF(k);
    if (i >= k)
        return;
    const float v = x[START_OF(token) + (size_t)i];
    out[token * (size_t)ld + (size_t)i] = is_rounded != 0 ? from_f16(to_f16(v)) : v;
}

/* ---- sums over the weight's groups, one work-group per group and token ---- */

__kernel void code_sums(GLOBAL_ARG(char, codes), GLOBAL_ARG(int, sums), int k, int ld, int group)
{
    __local int scratch[GROUP];
    GLOBAL_CONST_PTR(char, codes);
    GLOBAL_PTR(int, sums);
    const int groups = (k + group - 1) / group, id = (int)get_local_id(0);
    const int begin = PART_OF_GROUP(groups) * group;
    const size_t token = ROW_OF_GROUP(groups);
    const int end = min(k - begin, group) + begin;
    int sum = 0;
    for (int i = begin + id; i < end; i += GROUP)
        sum += codes[token * (size_t)ld + (size_t)i];
    scratch[id] = sum;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = GROUP / 2; step > 0; step /= 2) {
        if (id < step)
            scratch[id] += scratch[id + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (id == 0)
        sums[get_group_id(0)] = scratch[0];
}

__kernel void float_sums(GLOBAL_ARG(uchar, values), GLOBAL_ARG(float, sums), int k, int ld,
                         int group, int type)
{
    __local float scratch[GROUP];
    GLOBAL_CONST_PTR(uchar, values);
    GLOBAL_PTR(float, sums);
    const int groups = (k + group - 1) / group, begin = PART_OF_GROUP(groups) * group;
    const size_t token = ROW_OF_GROUP(groups);
    const int end = min(k - begin, group) + begin;
    float sum = 0;
    for (int i = begin + (int)get_local_id(0); i < end; i += GROUP)
        sum += load_typed(values, token * (size_t)ld + (size_t)i, type);
    sum = group_sum(sum, scratch);
    if (get_local_id(0) == 0)
        sums[get_group_id(0)] = sum;
}
