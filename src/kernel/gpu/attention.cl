/* SPDX-License-Identifier: Apache-2.0
 *
 * Causal attention of a slot over the positions of its sequence, from the cache. A work-group of
 * BLOCK items is one head of one slot: for each block of positions every item scores one position,
 * then sums values of its own dimensions; the softmax is merged block by block.
 */
__kernel void attention(MEMORY(float, q), MEMORY(float, out), MEMORY(uchar, keys),
                        MEMORY(uchar, values), MEMORY(int, sequence), MEMORY(int, position),
                        MEMORY(int, tables), MEMORY(float, lse), int ldq, int ldo, int heads,
                        int kv_heads, int head_dim, int table_ld, int with_lse, float scale)
{
    __local float query[DIMS * BLOCK], weight[BLOCK], room[BLOCK];
    HERE_CONST(float, q);
    HERE(float, out);
    HERE_CONST(uchar, keys);
    HERE_CONST(uchar, values);
    HERE_CONST(int, sequence);
    HERE_CONST(int, position);
    HERE_CONST(int, tables);
    const int id = (int)get_local_id(0), head = (int)get_group_id(0);
    const size_t row = get_group_id(1);
    const int last = position[row], kv_head = head / (heads / kv_heads);
    float sums[DIMS], total = 0, largest = -INFINITY;
    for (int i = 0; i < DIMS; i++)
        sums[i] = 0;
    for (int d = id; d < head_dim; d += BLOCK)
        query[d] = q[row * (size_t)ldq + (size_t)(head * head_dim + d)] * scale;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int begin = 0; begin <= last; begin += BLOCK) {
        const size_t entry = (size_t)sequence[row] * (size_t)table_ld + (size_t)(begin / BLOCK);
        const int block = tables[entry];
        const size_t side =
            ((size_t)block * (size_t)kv_heads + (size_t)kv_head) * (size_t)(BLOCK * head_dim);
        float score = -INFINITY;
        if (begin + id <= last) {
            score = 0;
            for (int d = 0; d < head_dim; d++)
                score += query[d] * load_typed(keys, side + (size_t)(d * BLOCK + id), CACHE);
        }
        const float most = fmax(largest, group_max(score, room));
        const float old = largest == -INFINITY ? 0.0f : exp(largest - most);
        const float mine = begin + id <= last ? exp(score - most) : 0.0f;
        weight[id] = mine;
        total = total * old + group_sum(mine, room); /* its barriers also show `weight` to all */
        largest = most;
        const int count = min(BLOCK, last + 1 - begin);
        for (int i = 0; i < DIMS; i++) {
            const int d = i * BLOCK + id;
            float sum = sums[i] * old;
            for (int j = 0; d < head_dim && j < count; j++)
                sum += weight[j] * load_typed(values, side + (size_t)(j * head_dim + d), CACHE);
            sums[i] = sum;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < DIMS; i++)
        if (i * BLOCK + id < head_dim)
            out[row * (size_t)ldo + (size_t)(head * head_dim + i * BLOCK + id)] = sums[i] / total;
    if (with_lse != 0 && id == 0) {
        HERE(float, lse);
        lse[row * (size_t)heads + (size_t)head] = largest + log(total);
    }
}
