/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention over a block-table cache, written once on lanes and compiled per instruction
 * set.
 *
 * Order, the same everywhere: q.k sums 16 lanes over the head's dimensions and adds them by the
 * tree; softmax runs over blocks of NIB_SOFTMAX_BLOCK absolute positions, each with its own
 * maximum, merged ascending; p.v ascends positions. So the result does not depend on threads, batch
 * or chunking of the prompt. An item is one slot and one head; scratch holds the scores of a
 * softmax block and one head's partial sums.
 */
#include "lanes.h"
#include "ops.h"

#define NIB_LANE_COUNT 16

/* Lanes d..d+15 of a cached row, zeros past its end. */
NIB_INLINE nib_lanes cached(const void *row, int64_t d, int64_t dim, nib_type type)
{
    if (d + NIB_LANE_COUNT <= dim) {
        switch (type) {
        case NIB_TYPE_F16: return nib_lanes_load_f16((const uint16_t *)row + d);
        case NIB_TYPE_BF16: return nib_lanes_load_bf16((const uint16_t *)row + d);
        default: return nib_lanes_load((const float *)row + d);
        }
    }
    if (type == NIB_TYPE_F32)
        return nib_lanes_load_part((const float *)row + d, dim - d);
    uint16_t part[NIB_LANE_COUNT] = {0};
    memcpy(part, (const uint16_t *)row + d, (size_t)(dim - d) * sizeof *part);
    return type == NIB_TYPE_F16 ? nib_lanes_load_f16(part) : nib_lanes_load_bf16(part);
}

/* scores[i] = scale * q . key[i] for `count` positions of one cache block. */
NIB_INLINE void score_block(float *scores, const float *q, const char *keys, int64_t count,
                            int64_t dim, int64_t row_bytes, nib_type type, float scale)
{
    for (int64_t i = 0; i < count; i++) {
        nib_lanes sum = nib_lanes_set(0.0f);
        for (int64_t d = 0; d < dim; d += NIB_LANE_COUNT)
            sum = nib_lanes_fma(nib_lanes_load(q + d), cached(keys + i * row_bytes, d, dim, type),
                                sum);
        scores[i] = nib_lanes_sum(sum) * scale;
    }
}

/* Sixteen lanes of p . v from dimension d on: ascending positions over the cache blocks of a
 * softmax block. */
NIB_INLINE nib_lanes weigh(const float *p, const nib_attn *a, const int32_t *table, int64_t first,
                           int64_t count, int64_t kv_head, int64_t d, int64_t row_bytes,
                           nib_type type)
{
    const nib_cache *c = &a->cache;
    nib_lanes sum = nib_lanes_set(0.0f);
    for (int64_t i = 0; i < count; i += NIB_CACHE_BLOCK) {
        const int64_t block = table[(first + i) / NIB_CACHE_BLOCK];
        const char *values =
            (const char *)c->values + (block * c->kv_heads + kv_head) * NIB_CACHE_BLOCK * row_bytes;
        const int64_t end = nib__min(NIB_CACHE_BLOCK, count - i);
        for (int64_t j = 0; j < end; j++)
            sum = nib_lanes_fma(nib_lanes_set(p[i + j]),
                                cached(values + j * row_bytes, d, c->head_dim, type), sum);
    }
    return sum;
}

/* p = e^(score - max) in place; their sum. Scores past count are padding. */
NIB_INLINE float soften(float *scores, int64_t count, float *max)
{
    float m = scores[0];
    for (int64_t i = 1; i < count; i++)
        m = scores[i] > m || scores[i] != scores[i] ? scores[i] : m; /* NaN wins, and so is seen */
    nib_lanes sum = nib_lanes_set(0.0f);
    for (int64_t i = 0; i < count; i += NIB_LANE_COUNT) {
        nib_lanes p = nib_lanes_exp(nib_lanes_sub(nib_lanes_load(scores + i), nib_lanes_set(m)));
        nib_lanes_store(scores + i, p);
        if (i + NIB_LANE_COUNT > count)
            p = nib_lanes_load_part(scores + i, count - i);
        sum = nib_lanes_add(sum, p);
    }
    *max = m;
    return nib_lanes_sum(sum);
}

NIB_INLINE void attend(const nib_attn *a, int64_t slot, int64_t head, float *scratch, nib_type type)
{
    const nib_cache *c = &a->cache;
    const int64_t dim = c->head_dim, padded = nib__round_up(dim, NIB_LANE_COUNT);
    const int64_t kv_head = head / (a->heads / c->kv_heads);
    const int64_t row_bytes = dim * (type == NIB_TYPE_F32 ? 4 : 2);
    const int32_t *table = c->tables + a->sequence[slot] * c->table_ld;
    float *scores = scratch, *q = scores + NIB_SOFTMAX_BLOCK, *total = q + padded;
    memset(q, 0, (size_t)padded * sizeof *q);
    memcpy(q, a->q + slot * a->ldq + head * dim, (size_t)dim * sizeof *q);

    const int64_t positions = (int64_t)a->position[slot] + 1;
    float max = 0.0f, weight = 0.0f;
    for (int64_t first = 0; first < positions; first += NIB_SOFTMAX_BLOCK) {
        const int64_t count = nib__min(NIB_SOFTMAX_BLOCK, positions - first);
        for (int64_t i = 0; i < count; i += NIB_CACHE_BLOCK) {
            const int64_t block = table[(first + i) / NIB_CACHE_BLOCK];
            const char *keys = (const char *)c->keys +
                               (block * c->kv_heads + kv_head) * NIB_CACHE_BLOCK * row_bytes;
            score_block(scores + i, q, keys, nib__min(NIB_CACHE_BLOCK, count - i), dim, row_bytes,
                        type, a->scale);
        }
        float block_max;
        const float block_weight = soften(scores, count, &block_max);
        /* the first block is taken as it is: there is nothing to merge with */
        const float new_max = first == 0 || block_max > max ? block_max : max;
        float factors[NIB_LANE_COUNT] = {max - new_max, block_max - new_max};
        nib_lanes_store(factors, nib_lanes_exp(nib_lanes_load(factors)));
        const nib_lanes old_factor = nib_lanes_set(first == 0 ? 0.0f : factors[0]);
        const nib_lanes new_factor = nib_lanes_set(factors[1]);
        for (int64_t d = 0; d < dim; d += NIB_LANE_COUNT) {
            const nib_lanes part =
                weigh(scores, a, table, first, count, kv_head, d, row_bytes, type);
            const nib_lanes old = first == 0 ? nib_lanes_set(0.0f) : nib_lanes_load(total + d);
            nib_lanes_store(total + d,
                            nib_lanes_fma(part, new_factor, nib_lanes_mul(old, old_factor)));
        }
        weight = fmaf(block_weight, factors[1], first == 0 ? 0.0f : weight * factors[0]);
        max = new_max;
    }
    float *out = a->out + slot * a->ldo + head * dim;
    for (int64_t d = 0; d < dim; d++)
        out[d] = total[d] / weight;
}

void NIB_ATTN(const nib_attn *a, int64_t item0, int64_t item1, void *scratch)
{
    for (int64_t item = item0; item < item1; item++) {
        const int64_t slot = item / a->heads, head = item % a->heads;
        switch (a->cache.type) {
        case NIB_TYPE_F16: attend(a, slot, head, scratch, NIB_TYPE_F16); break;
        case NIB_TYPE_BF16: attend(a, slot, head, scratch, NIB_TYPE_BF16); break;
        default: attend(a, slot, head, scratch, NIB_TYPE_F32); break;
        }
    }
}
