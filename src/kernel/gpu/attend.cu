/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of few slots, as when tokens are generated: one thread block per head and slot,
 * whose warps take turns at 32 cached positions each. A lane scores one position, then sums the
 * values of its own dimensions; the softmax is merged turn by turn, at the end warp by warp, in
 * order. Arguments and options are those of attention.cl.
 */
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

#define ATTENTION_ARGS                                                                             \
    GLOBAL_ARG(float, q), GLOBAL_ARG(float, out), GLOBAL_ARG(uchar, keys),                         \
        GLOBAL_ARG(uchar, values), GLOBAL_ARG(int, sequence), GLOBAL_ARG(int, position),           \
        GLOBAL_ARG(int, tables), GLOBAL_ARG(float, lse), int ldq, int ldo, int heads,              \
        int kv_heads, int head_dim, int table_ld, int with_lse, float scale, int window, float cap

__kernel void __launch_bounds__(WARPS *LANES, 1) attend(ATTENTION_ARGS)
{
    __shared__ float query[DIMS_MOST], of_warps[WARPS][DIMS_MOST], mosts[WARPS], totals[WARPS];
    GLOBAL_CONST_PTR(float, q);
    GLOBAL_PTR(float, out);
    GLOBAL_CONST_PTR(uchar, keys);
    GLOBAL_CONST_PTR(uchar, values);
    GLOBAL_CONST_PTR(int, sequence);
    GLOBAL_CONST_PTR(int, position);
    GLOBAL_CONST_PTR(int, tables);
    GLOBAL_PTR(float, lse);
    const int id = (int)threadIdx.x, lane = id % LANES, warp = id / LANES;
    const int head = (int)blockIdx.x, kv_head = head / (heads / kv_heads);
    const size_t row = blockIdx.y;
    const int last = position[row], first = window > 0 ? max(0, last + 1 - window) : 0;
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
    float most = -INFINITY, all = 0;
    for (int w = 0; w < WARPS; w++)
        most = fmaxf(most, mosts[w]);
    for (int w = 0; w < WARPS; w++)
        all += totals[w] * rescale(mosts[w], most);
    for (int d = id; d < head_dim; d += WARPS * LANES) {
        float sum = 0;
        for (int w = 0; w < WARPS; w++)
            sum += of_warps[w][d] * rescale(mosts[w], most);
        out[row * (size_t)ldo + (size_t)(head * head_dim + d)] = sum / all;
    }
    if (with_lse != 0 && id == 0)
        lse[row * (size_t)heads + (size_t)head] = most + log(all);
}
