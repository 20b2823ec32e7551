/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of slots over the cached positions of their sequences. For each block of
 * positions, each of BLOCK work-items scores one position, then sums the values of its own
 * dimensions; the softmax is merged block by block. Blocks below the window or chunk (0: none) are
 * not read. Positions below it or past the last are skipped, not multiplied by 0, as they may
 * hold NaN. The sink of a head, a score without a value, is merged last. Options:
 *
 *   BLOCK    positions of a block; CACHE: the type of the cache, TYPE_*
 *   DIMS     channels of a head, in BLOCKs
 *   QUERIES  slots of a work-group, for many
 *   HEADS    values are the first channels of the keys; a work-group takes HEADS heads of a slot
 */
#define ATTENTION_ARGS                                                                             \
    GLOBAL_ARG(float, q), GLOBAL_ARG(float, out), GLOBAL_ARG(uchar, keys),                         \
        GLOBAL_ARG(uchar, values), GLOBAL_ARG(int, sequence), GLOBAL_ARG(int, position),           \
        GLOBAL_ARG(int, tables), GLOBAL_ARG(float, lse), GLOBAL_ARG(float, sinks), int ldq,        \
        int ldo, int heads, int kv_heads, int head_dim, int table_ld, int with_lse,                \
        int with_sinks, float scale, int window, int chunked, float cap
#define ATTENTION_HERE                                                                             \
    GLOBAL_CONST_PTR(float, q);                                                                    \
    GLOBAL_PTR(float, out);                                                                        \
    GLOBAL_CONST_PTR(uchar, keys);                                                                 \
    GLOBAL_CONST_PTR(uchar, values);                                                               \
    GLOBAL_CONST_PTR(int, sequence);                                                               \
    GLOBAL_CONST_PTR(int, position);                                                               \
    GLOBAL_CONST_PTR(int, tables);                                                                 \
    GLOBAL_CONST_PTR(float, sinks)

/* The first position that a slot at `last` sees: nib__attn_first. */
static int first_seen(int last, int window, int chunked)
{
    const int slides = max(0, last + 1 - window);
    return window <= 0 ? 0 : chunked != 0 ? last - last % window : slides;
}

#ifdef HEADS

#ifdef NIB_CUDA
#define UNROLLED _Pragma("unroll") /* so that sums are registers */
#else
#define UNROLLED
#pragma OPENCL FP_CONTRACT OFF /* bits do not depend on HEADS */
#endif

#define PARTS (ITEMS / BLOCK)  /* each position has this many work-items */
#define SCORED (HEADS / PARTS) /* heads of which a work-item has scores */
#define SHARES 8               /* parts of the sum over a block's weights */
#define CHANNELS (DIMS * BLOCK)
#define EACH ((CHANNELS + ITEMS - 1) / ITEMS) /* channels whose sums a work-item has */

/* Eight values of the cache from i on, a multiple of 8. */
static void load_eight(const __global uchar *p, size_t i, float *out)
{
#if CACHE == TYPE_F32
    const uint4 a = *(const __global uint4 *)((const __global float *)p + i);
    const uint4 b = *(const __global uint4 *)((const __global float *)p + i + 4);
    out[0] = as_float(a.x), out[1] = as_float(a.y), out[2] = as_float(a.z), out[3] = as_float(a.w);
    out[4] = as_float(b.x), out[5] = as_float(b.y), out[6] = as_float(b.z), out[7] = as_float(b.w);
#else
    const uint4 a = *(const __global uint4 *)((const __global ushort *)p + i);
#define TWO(j, word)                                                                               \
    out[j] = CACHE == TYPE_F16 ? from_f16((ushort)(word)) : as_float((word) << 16);                \
    out[j + 1] = CACHE == TYPE_F16 ? from_f16((ushort)((word) >> 16)) : as_float((word)&0xffff0000u)
    TWO(0, a.x);
    TWO(2, a.y);
    TWO(4, a.z);
    TWO(6, a.w);
#undef TWO
#endif
}

/* The softmax of one block: scores in `weight` become weights, and `old` is the factor on what was
 * summed before. Published by a barrier. */
INLINED void merge_block(LOCAL float *weight, LOCAL float *mosts, LOCAL float *sums,
                         LOCAL float *largest, LOCAL float *total, LOCAL float *old)
{
    const int id = (int)get_local_id(0), of = id / SHARES, share = id % SHARES;
    if (id < HEADS * SHARES) {
        float most = -INFINITY;
        for (int j = share; j < BLOCK; j += SHARES)
            most = fmax(most, weight[of * BLOCK + j]);
        mosts[id] = most;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = id; i < HEADS * BLOCK; i += ITEMS) {
        float most = largest[i / BLOCK];
        for (int j = 0; j < SHARES; j++)
            most = fmax(most, mosts[i / BLOCK * SHARES + j]);
        weight[i] = weight[i] == -INFINITY ? 0.0f : exp(weight[i] - most);
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id < HEADS * SHARES) {
        float sum = 0;
        for (int j = share; j < BLOCK; j += SHARES)
            sum += weight[of * BLOCK + j];
        sums[id] = sum;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (id < HEADS) {
        const float before = largest[id];
        float most = before, sum = 0;
        for (int j = 0; j < SHARES; j++) {
            most = fmax(most, mosts[id * SHARES + j]);
            sum += sums[id * SHARES + j];
        }
        old[id] = before == -INFINITY ? 0.0f : exp(before - most);
        total[id] = fma(total[id], old[id], sum);
        largest[id] = most;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* One work-group per HEADS heads of a slot, which read the same keys. What a head sums, and in
 * which order, depends on its slot alone: a score over ascending channels; in each block, the
 * weights in SHARES parts; values over ascending positions. */
__kernel void attention_latent(ATTENTION_ARGS, int value_dim)
{
    __local float query[HEADS * CHANNELS], weight[HEADS * BLOCK];
    __local float mosts[HEADS * SHARES], parts[HEADS * SHARES];
    __local float largest[HEADS], total[HEADS], old[HEADS];
    ATTENTION_HERE;
    const int id = (int)get_local_id(0), at = id % BLOCK, part = id / BLOCK;
    const int share = heads / kv_heads, tiles = (share + HEADS - 1) / HEADS;
    const int kv_head = (int)get_group_id(0) / tiles, tile = (int)get_group_id(0) % tiles;
    const int head0 = kv_head * share + tile * HEADS, own = min(HEADS, share - tile * HEADS);
    const size_t row = get_group_id(1);
    const int last = position[row], first = first_seen(last, window, chunked);
    float sums[HEADS][EACH];
    for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < EACH; i++)
            sums[h][i] = 0;
    for (int i = id; i < HEADS * CHANNELS; i += ITEMS) {
        const int h = i / CHANNELS, d = i % CHANNELS;
        query[i] = h < own && d < head_dim
                       ? q[row * (size_t)ldq + (size_t)((head0 + h) * head_dim + d)] * scale
                       : 0.0f;
    }
    if (id < HEADS) {
        largest[id] = -INFINITY;
        total[id] = 0;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int begin = first / BLOCK * BLOCK; begin <= last; begin += BLOCK) {
        const size_t entry = (size_t)sequence[row] * (size_t)table_ld + (size_t)(begin / BLOCK);
        const size_t side = ((size_t)tables[entry] * (size_t)kv_heads + (size_t)kv_head) *
                            (size_t)(BLOCK * head_dim);
        const bool seen = begin + at >= first && begin + at <= last;
        float score[SCORED];
        for (int i = 0; i < SCORED; i++)
            score[i] = 0;
        for (int d = 0; seen && d < head_dim; d++) {
            const float key = load_typed(keys, side + (size_t)(d * BLOCK + at), CACHE);
            for (int i = 0; i < SCORED; i++)
                score[i] = fma(query[(part * SCORED + i) * CHANNELS + d], key, score[i]);
        }
        for (int i = 0; i < SCORED; i++) {
            const float capped = cap > 0 ? cap * tanh(score[i] / cap) : score[i];
            weight[(part * SCORED + i) * BLOCK + at] = seen ? capped : -INFINITY;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        merge_block(weight, mosts, parts, largest, total, old);
        const int skipped = max(0, first - begin), end = min(BLOCK, last + 1 - begin);
        UNROLLED for (int i = 0; i < EACH; i++) {
            const int d = i * ITEMS + id;
            UNROLLED for (int h = 0; h < HEADS; h++)
                sums[h][i] *= old[h];
            for (int j = skipped / 8 * 8; d < value_dim && j < end; j += 8) {
                float eight[8];
                load_eight(keys, side + (size_t)(d * BLOCK + j), eight);
                UNROLLED for (int t = 0; t < 8; t++) {
                    const float v = j + t >= skipped && j + t < end ? eight[t] : 0.0f;
                    for (int h = 0; h < HEADS; h++)
                        sums[h][i] = fma(weight[h * BLOCK + j + t], v, sums[h][i]);
                }
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    UNROLLED for (int h = 0; h < HEADS; h++) {
        if (h >= own)
            break;
        const float sink = with_sinks != 0 ? sinks[head0 + h] : -INFINITY;
        const float most = fmax(largest[h], sink), factor = exp(largest[h] - most);
        const float all = with_sinks != 0 ? fma(total[h], factor, exp(sink - most)) : total[h];
        for (int i = 0; i < EACH; i++)
            if (i * ITEMS + id < value_dim)
                out[row * (size_t)ldo + (size_t)((head0 + h) * value_dim + i * ITEMS + id)] =
                    (with_sinks != 0 ? sums[h][i] * factor : sums[h][i]) / all;
        if (with_lse != 0 && id == 0) {
            GLOBAL_PTR(float, lse);
            lse[row * (size_t)heads + (size_t)(head0 + h)] = most + log(all);
        }
    }
}

#elif !defined(QUERIES)

/* One work-group per head and slot. */
__kernel void attention(ATTENTION_ARGS)
{
    __local float query[DIMS * BLOCK], weight[BLOCK], scratch[BLOCK];
    ATTENTION_HERE;
    const int id = (int)get_local_id(0), head = (int)get_group_id(0);
    const size_t row = get_group_id(1);
    const int last = position[row], kv_head = head / (heads / kv_heads);
    const int first = first_seen(last, window, chunked);
    float sums[DIMS], total = 0, largest = -INFINITY;
    for (int i = 0; i < DIMS; i++)
        sums[i] = 0;
    for (int d = id; d < head_dim; d += BLOCK)
        query[d] = q[row * (size_t)ldq + (size_t)(head * head_dim + d)] * scale;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int begin = first / BLOCK * BLOCK; begin <= last; begin += BLOCK) {
        const size_t entry = (size_t)sequence[row] * (size_t)table_ld + (size_t)(begin / BLOCK);
        const bool seen = begin + id >= first && begin + id <= last;
        const int block = tables[entry];
        const size_t side =
            ((size_t)block * (size_t)kv_heads + (size_t)kv_head) * (size_t)(BLOCK * head_dim);
        float score = -INFINITY;
        if (seen) {
            score = 0;
            for (int d = 0; d < head_dim; d++)
                score += query[d] * load_typed(keys, side + (size_t)(d * BLOCK + id), CACHE);
            if (cap > 0)
                score = cap * tanh(score / cap);
        }
        const float most = fmax(largest, group_max(score, scratch));
        const float old = largest == -INFINITY ? 0.0f : exp(largest - most);
        const float mine = seen ? exp(score - most) : 0.0f;
        weight[id] = mine;
        total = total * old + group_sum(mine, scratch); /* its barriers also publish `weight` */
        largest = most;
        const int skipped = max(0, first - begin), count = min(BLOCK, last + 1 - begin);
        for (int i = 0; i < DIMS; i++) {
            const int d = i * BLOCK + id;
            float sum = sums[i] * old;
            for (int j = skipped; d < head_dim && j < count; j++)
                sum += weight[j] * load_typed(values, side + (size_t)(j * head_dim + d), CACHE);
            sums[i] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float sink = with_sinks != 0 ? sinks[head] : -INFINITY;
    const float most = fmax(largest, sink), old = exp(largest - most);
    total = with_sinks != 0 ? total * old + exp(sink - most) : total;
    for (int i = 0; i < DIMS; i++)
        if (i * BLOCK + id < head_dim)
            out[row * (size_t)ldo + (size_t)(head * head_dim + i * BLOCK + id)] =
                (with_sinks != 0 ? sums[i] * old : sums[i]) / total;
    if (with_lse != 0 && id == 0) {
        GLOBAL_PTR(float, lse);
        lse[row * (size_t)heads + (size_t)head] = most + log(total);
    }
}

#ifdef NIB_CUDA

/* For few slots, as when tokens are generated: one thread block per head and slot, whose warps take
 * turns at 32 cached positions each. A lane scores one position, then sums the values of its own
 * dimensions; the softmax is merged turn by turn, at the end warp by warp, in order. */
#include "cuda_ptx.cuh"

#define WARPS (DIMS > 2 ? 8 : 16) /* more dimensions need more registers */
#define LANES 32
#define DIMS_MOST (DIMS * BLOCK)
#define EACH (DIMS_MOST / LANES) /* dimensions of a lane */

static __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value += shuffle_xor(value, step);
    return value;
}

static __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, shuffle_xor(value, step));
    return value;
}

/* The factor on sums under the old largest score when `most` becomes the largest. */
static __forceinline__ float rescale(float old, float most)
{
    return old == -INFINITY ? 0.0f : exp(old - most);
}

__kernel void __launch_bounds__(WARPS *LANES, 1) attend(ATTENTION_ARGS)
{
    __shared__ float query[DIMS_MOST], of_warps[WARPS][DIMS_MOST], mosts[WARPS], totals[WARPS];
    ATTENTION_HERE;
    GLOBAL_PTR(float, lse);
    const int id = (int)threadIdx.x, lane = id % LANES, warp = id / LANES;
    const int head = (int)blockIdx.x, kv_head = head / (heads / kv_heads);
    const size_t row = blockIdx.y;
    const int last = position[row], first = first_seen(last, window, chunked);
    const int *const table = tables + (size_t)sequence[row] * (size_t)table_ld;
    float sums[EACH], total = 0, largest = -INFINITY;
#pragma unroll
    for (int i = 0; i < EACH; i++)
        sums[i] = 0;
    for (int d = id; d < head_dim; d += WARPS * LANES)
        query[d] = q[row * (size_t)ldq + (size_t)(head * head_dim + d)] * scale;
    __syncthreads();
    for (int begin = first / LANES * LANES + LANES * warp; begin <= last; begin += LANES * WARPS) {
        const size_t side = ((size_t)table[begin / BLOCK] * (size_t)kv_heads + (size_t)kv_head) *
                            (size_t)(BLOCK * head_dim);
        const int in_block = begin % BLOCK;
        const bool seen = begin + lane >= first && begin + lane <= last;
        float score = 0;
#pragma unroll 16
        for (int d = 0; d < head_dim; d++)
            score += query[d] *
                     load_typed(keys, side + (size_t)(d * BLOCK + in_block + lane), CACHE);
        if (cap > 0)
            score = cap * tanh(score / cap);
        score = seen ? score : -INFINITY;
        const float most = fmaxf(largest, warp_max(score)), old = rescale(largest, most);
        const float mine = seen ? exp(score - most) : 0.0f;
        total = total * old + warp_sum(mine);
        largest = most;
#pragma unroll
        for (int i = 0; i < EACH; i++)
            sums[i] *= old;
        const int end = min(LANES, last + 1 - begin);
#pragma unroll 8
        for (int j = max(0, first - begin); j < end; j++) {
            const float weight = shuffle_from(mine, j);
            const size_t at = side + (size_t)((in_block + j) * head_dim);
#pragma unroll
            for (int i = 0; i < EACH; i++)
                if (i * LANES + lane < head_dim)
                    sums[i] += weight * load_typed(values, at + (size_t)(i * LANES + lane), CACHE);
        }
    }
#pragma unroll
    for (int i = 0; i < EACH; i++)
        of_warps[warp][i * LANES + lane] = sums[i];
    if (lane == 0) {
        mosts[warp] = largest;
        totals[warp] = total;
    }
    __syncthreads();
    float most = with_sinks != 0 ? sinks[head] : -INFINITY, all = 0;
    for (int w = 0; w < WARPS; w++)
        most = fmaxf(most, mosts[w]);
    for (int w = 0; w < WARPS; w++)
        all += totals[w] * rescale(mosts[w], most);
    all += with_sinks != 0 ? exp(sinks[head] - most) : 0.0f;
    for (int d = id; d < head_dim; d += WARPS * LANES) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += of_warps[w][d] * rescale(mosts[w], most);
        out[row * (size_t)ldo + (size_t)(head * head_dim + d)] = sum / all;
    }
    if (with_lse != 0 && id == 0)
        lse[row * (size_t)heads + (size_t)head] = most + log(all);
}

#endif

#else

#define PARTS (BLOCK / QUERIES) /* work-items that share the softmax of one slot */

/* One work-group per head and QUERIES slots. Consecutive slots of one sequence, as in prefill,
 * share what is read from the cache; a slot of another sequence starts over. */
__kernel void attention_tile(ATTENTION_ARGS, int m)
{
    __local float query[QUERIES][DIMS * BLOCK], weight[QUERIES][BLOCK], scratch[QUERIES][PARTS];
    __local float largest[QUERIES], total[QUERIES], old[QUERIES];
    ATTENTION_HERE;
    const int id = (int)get_local_id(0), head = (int)get_group_id(0);
    const int mine = id / PARTS, part = id % PARTS, kv_head = head / (heads / kv_heads);
    const int end = min(m, ((int)get_group_id(1) + 1) * QUERIES);
    for (int row = (int)get_group_id(1) * QUERIES, next; row < end; row = next) {
        int last = position[row], at[QUERIES], from[QUERIES];
        int least = first_seen(last, window, chunked); /* the first that any slot sees */
        float sums[QUERIES][DIMS];
        for (next = row + 1; next < end && sequence[next] == sequence[row]; next++) {
            last = max(last, position[next]);
            least = min(least, first_seen(position[next], window, chunked));
        }
        for (int t = 0; t < QUERIES; t++) {
            at[t] = row + t < next ? position[row + t] : -1;
            from[t] = first_seen(max(0, at[t]), window, chunked);
            for (int i = 0; i < DIMS; i++)
                sums[t][i] = 0;
            for (int d = id; d < head_dim; d += BLOCK)
                query[t][d] =
                    row + t < next
                        ? q[(size_t)(row + t) * (size_t)ldq + (size_t)(head * head_dim + d)] * scale
                        : 0.0f;
        }
        if (id < QUERIES) {
            largest[id] = -INFINITY;
            total[id] = 0;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int begin = least / BLOCK * BLOCK; begin <= last; begin += BLOCK) {
            const size_t entry = (size_t)sequence[row] * (size_t)table_ld + (size_t)(begin / BLOCK);
            const size_t side = ((size_t)tables[entry] * (size_t)kv_heads + (size_t)kv_head) *
                                (size_t)(BLOCK * head_dim);
            float score[QUERIES];
            for (int t = 0; t < QUERIES; t++)
                score[t] = 0;
            for (int d = 0; begin + id <= last && d < head_dim; d++) {
                const float key = load_typed(keys, side + (size_t)(d * BLOCK + id), CACHE);
                for (int t = 0; t < QUERIES; t++)
                    score[t] += query[t][d] * key;
            }
            for (int t = 0; cap > 0 && t < QUERIES; t++)
                score[t] = cap * tanh(score[t] / cap);
            for (int t = 0; window > 0 && t < QUERIES; t++)
                if (begin + id < from[t])
                    score[t] = -INFINITY;
            for (int t = 0; t < QUERIES; t++)
                weight[t][id] = begin + id <= at[t] ? score[t] : -INFINITY;
            barrier(CLK_LOCAL_MEM_FENCE);
            float most = largest[mine];
            for (int j = part; j < BLOCK; j += PARTS)
                most = fmax(most, weight[mine][j]);
            scratch[mine][part] = most;
            barrier(CLK_LOCAL_MEM_FENCE);
            for (int j = 0; j < PARTS; j++)
                most = fmax(most, scratch[mine][j]);
            const float before = largest[mine];
            barrier(CLK_LOCAL_MEM_FENCE);
            float sum = 0;
            for (int j = part; j < BLOCK; j += PARTS) {
                /* most is -inf if nothing of the block counts, as for a missing slot */
                const float of_j =
                    weight[mine][j] == -INFINITY ? 0.0f : exp(weight[mine][j] - most);
                weight[mine][j] = of_j;
                sum += of_j;
            }
            scratch[mine][part] = sum;
            barrier(CLK_LOCAL_MEM_FENCE);
            if (part == 0) {
                const float factor = before == -INFINITY ? 0.0f : exp(before - most);
                float of_all = total[mine] * factor;
                for (int j = 0; j < PARTS; j++)
                    of_all += scratch[mine][j];
                total[mine] = of_all;
                largest[mine] = most;
                old[mine] = factor;
            }
            barrier(CLK_LOCAL_MEM_FENCE);
            const int skipped = max(0, least - begin), count = min(BLOCK, last + 1 - begin);
            for (int i = 0; i < DIMS; i++) {
                const int d = i * BLOCK + id;
                for (int t = 0; t < QUERIES; t++)
                    sums[t][i] *= old[t];
                for (int j = 0; window == 0 && d < head_dim && j < count; j++) {
                    const float v = load_typed(values, side + (size_t)(j * head_dim + d), CACHE);
                    for (int t = 0; t < QUERIES; t++)
                        sums[t][i] += weight[t][j] * v;
                }
                for (int j = skipped; window > 0 && d < head_dim && j < count; j++) {
                    const float v = load_typed(values, side + (size_t)(j * head_dim + d), CACHE);
                    for (int t = 0; t < QUERIES; t++) {
                        const bool seen = begin + j <= at[t] && begin + j >= from[t];
                        sums[t][i] = seen ? sums[t][i] + weight[t][j] * v : sums[t][i];
                    }
                }
            }
            barrier(CLK_LOCAL_MEM_FENCE);
        }
        for (int t = 0; row + t < next; t++) {
            __global float *to = out + (size_t)(row + t) * (size_t)ldo + (size_t)(head * head_dim);
            const float sink = with_sinks != 0 ? sinks[head] : -INFINITY;
            const float most = fmax(largest[t], sink), factor = exp(largest[t] - most);
            const float all = with_sinks != 0 ? total[t] * factor + exp(sink - most) : total[t];
            for (int i = 0; i < DIMS; i++)
                if (i * BLOCK + id < head_dim)
                    to[i * BLOCK + id] =
                        (with_sinks != 0 ? sums[t][i] * factor : sums[t][i]) / all;
            if (with_lse != 0 && id == 0) {
                GLOBAL_PTR(float, lse);
                lse[(size_t)(row + t) * (size_t)heads + (size_t)head] = most + log(all);
            }
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

#endif
