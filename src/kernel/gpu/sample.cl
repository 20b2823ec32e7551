/* SPDX-License-Identifier: Apache-2.0
 *
 * Samples the next token from one row of logits, in one work-group of GROUP items: the same token
 * as the CPU. A radix select over 64-bit keys (the logit, then the lower id), eight bits at a time
 * from the top, finds the best `keep`. The rest is the CPU's arithmetic in double, in the CPU's
 * order (sample_rows.c). GREEDY: only the best token, without doubles.
 */
#ifndef NIB_CUDA /* CUDA: a compiler option does this */
#pragma OPENCL FP_CONTRACT OFF
#endif

#define DIGITS 256

/* Larger for larger logits, then for lower ids; -0 equals 0. */
static ulong key_of(float logit, int id)
{
    const uint bits = as_uint(logit == 0.0f ? 0.0f : logit);
    const uint order = (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
    return (ulong)order << 32 | (uint)~id;
}

static float logit_of(ulong key)
{
    const uint order = (uint)(key >> 32);
    return as_float((order & 0x80000000u) != 0 ? order & 0x7fffffffu : ~order);
}

static int id_of(ulong key) { return (int)~(uint)key; }

/* The lowest id whose logit is NaN; vocab if there is none. */
static int first_nan(const __global float *logits, int vocab, LOCAL int *first)
{
    const int id = (int)get_local_id(0);
    if (id == 0)
        *first = vocab;
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 8
    for (int i = id; i < vocab; i += GROUP)
        if (isnan(logits[i]))
            atomic_min(first, i);
    barrier(CLK_LOCAL_MEM_FENCE);
    return *first;
}

#ifdef GREEDY

__kernel void sample(GLOBAL_ARG(float, logits), GLOBAL_ARG(int, out), int vocab)
{
    __local ulong best[GROUP];
    __local int first;
    GLOBAL_CONST_PTR(float, logits);
    GLOBAL_PTR(int, out);
    const int id = (int)get_local_id(0), nan = first_nan(logits, vocab, &first);
    ulong mine = 0;
#pragma unroll 8
    for (int i = id; i < vocab; i += GROUP)
        mine = max(mine, key_of(logits[i], i));
    best[id] = mine;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = GROUP / 2; step > 0; step /= 2) {
        if (id < step)
            best[id] = max(best[id], best[id + step]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (id == 0)
        out[0] = nan < vocab ? -1 - nan : id_of(best[0]);
}

#else

#ifndef NIB_CUDA
#pragma OPENCL EXTENSION cl_khr_fp64 : enable
#endif

/* Like nib__exp (src/base/portable_math.c), operation by operation. */
static double exact_exp(double x)
{
    const double magic = 6755399441055744.0;
    if (x != x)
        return x;
    if (x < -708.0)
        return 0.0;
    if (x > 709.0)
        return INFINITY;
    const double n = (x * 1.4426950408889634 + magic) - magic;
    const double r = (x - n * 0x1.62e42feep-1) - n * 0x1.a39ef35793c76p-33;
    double sum = 1.0;
    for (int i = 14; i > 0; i--)
        sum = 1.0 + sum * r / i;
    return sum * as_double((ulong)((long)n + 1023) << 52);
}

/* Sets *least so that exactly the `keep` largest keys are at least that. */
static void find_least(const __global float *logits, int vocab, int keep, LOCAL uint *counts,
                       LOCAL ulong *least)
{
    const int id = (int)get_local_id(0);
    ulong high = 0; /* the digits found so far */
    int left = keep;
    for (int shift = 56; shift >= 0; shift -= 8) {
        for (int i = id; i < DIGITS; i += GROUP)
            counts[i] = 0;
        barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 8
        for (int i = id; i < vocab; i += GROUP) {
            const ulong key = key_of(logits[i], i);
            if (shift == 56 || key >> (shift + 8) == high)
                atomic_inc(&counts[key >> shift & 255]);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        int digit = DIGITS - 1;
        for (; digit > 0 && (int)counts[digit] < left; digit--)
            left -= (int)counts[digit];
        const bool is_whole = (int)counts[digit] == left; /* all keys with this prefix are kept */
        high = high << 8 | (ulong)digit;
        barrier(CLK_LOCAL_MEM_FENCE);
        if (is_whole || shift == 0) {
            if (id == 0)
                *least = high << shift;
            break;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

__kernel void sample(GLOBAL_ARG(float, logits), GLOBAL_ARG(int, out), int vocab, int keep,
                     int random_high, int random_low, int temperature_high, int temperature_low,
                     int top_p_high, int top_p_low, int min_p_high, int min_p_low)
{
    __local uint counts[DIGITS];
    __local ulong found[KEEP_MOST], sorted[KEEP_MOST], least;
    __local double weight[KEEP_MOST];
    __local int first;
    __local int used, kept; /* candidates found; left by top-p and min-p */
    GLOBAL_CONST_PTR(float, logits);
    GLOBAL_PTR(int, out);
    const int id = (int)get_local_id(0), nan = first_nan(logits, vocab, &first);
    const double temperature =
        as_double((ulong)(uint)temperature_high << 32 | (uint)temperature_low);
    const double top_p = as_double((ulong)(uint)top_p_high << 32 | (uint)top_p_low);
    const double min_p = as_double((ulong)(uint)min_p_high << 32 | (uint)min_p_low);
    keep = min(keep, vocab);
    find_least(logits, vocab, keep, counts, &least);
    if (id == 0)
        used = 0;
    barrier(CLK_LOCAL_MEM_FENCE);
#pragma unroll 8
    for (int i = id; i < vocab; i += GROUP) {
        const ulong key = key_of(logits[i], i);
        if (key >= least) {
            const int at = atomic_inc(&used);
            if (at < KEEP_MOST)
                found[at] = key;
        }
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < keep; i += GROUP) {
        int before = 0;
        for (int j = 0; j < keep; j++)
            before += found[j] > found[i];
        sorted[before] = found[i];
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    const double best = (double)logit_of(sorted[0]);
    for (int i = id; i < keep; i += GROUP)
        weight[i] = exact_exp((double)logit_of(sorted[i]) - best);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id == 0) {
        double sum = 0.0, so_far = 0.0;
        for (int i = 0; i < keep; i++)
            sum += weight[i];
        int count = 0;
        while (count < keep && (count == 0 || so_far < top_p * sum) && weight[count] >= min_p)
            so_far += weight[count++];
        kept = max(count, 1);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < kept; i += GROUP)
        weight[i] = exact_exp(((double)logit_of(sorted[i]) - best) / temperature);
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id == 0) {
        const double random = as_double((ulong)(uint)random_high << 32 | (uint)random_low);
        double sum = 0.0;
        for (int i = 0; i < kept; i++)
            sum += weight[i];
        double left = random * sum;
        int chosen = 0;
        while (chosen < kept - 1 && left >= weight[chosen])
            left -= weight[chosen++];
        out[0] = nan < vocab ? -1 - nan : id_of(sorted[chosen]);
    }
}

#endif
