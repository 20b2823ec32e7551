/* SPDX-License-Identifier: Apache-2.0
 *
 * Embedding look-up: a thread block per token dequantizes its row of the table. A thread takes
 * eight codes at a time, each under the scale of its own group.
 */
#include "cuda_linear.cuh"

__kernel void embed(GLOBAL_ARG(uchar, codes), GLOBAL_ARG(uchar, scales), GLOBAL_ARG(uchar, zeros),
                    GLOBAL_ARG(int, ids), GLOBAL_ARG(float, out), int k, int ldk, int group,
                    int groups, int scale_type, int zero_type, float factor)
{
    GLOBAL_CONST_PTR(uchar, codes);
    GLOBAL_CONST_PTR(uchar, scales);
    GLOBAL_CONST_PTR(uchar, zeros);
    GLOBAL_CONST_PTR(int, ids);
    GLOBAL_PTR(float, out);
    const size_t token = blockIdx.x, row = (size_t)ids[token];
    const bool has_zero = zero_type != VALUE_NONE, int_zero = is_int_zero(zero_type);
    out += token * (size_t)k;
    for (int k0 = 8 * (int)threadIdx.x; k0 < k; k0 += 8 * (int)blockDim.x) {
        const uint *words =
            (const uint *)(codes + (row * (size_t)ldk + (size_t)k0) * WEIGHT_BITS / 8);
        float eight[8];
        eight_codes(words, eight);
        for (int j = 0; j < 8 && k0 + j < k; j++) {
            const size_t at = row * (size_t)groups + (size_t)(groups > 1 ? (k0 + j) / group : 0);
            const float scale = load_value(scales, at, scale_type);
            const float zero = has_zero ? load_value(zeros, at, zero_type) : 0.0f;
            const float value = int_zero ? (eight[j] - zero) * scale : eight[j] * scale + zero;
            out[k0 + j] = value * factor;
        }
    }
}
