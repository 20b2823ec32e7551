/* SPDX-License-Identifier: Apache-2.0
 *
 * A product for few tokens: every weight is read once per TOKENS of them. A block of 128 threads
 * computes ROWS outputs; its threads take turns along k, STEP codes of each row at a time: one load
 * of 16 bytes if codes have 4 or 8 bits. Sums are f32; those of integer activations are exact
 * within a step. Groups that are not a whole number of steps go to matvec_any.
 */
#include "cuda_linear.cuh"

#define THREADS 128
#define ROWS 4
#ifndef STEP
#define STEP (WEIGHT_BITS == 4 ? 32 : WEIGHT_BITS == 8 ? 16 : 8)
#endif
#define STEP_WORDS (STEP * WEIGHT_BITS / 32)

/* Blocks of rows, then of tokens, in the first dimension: CUDA allows only 65,535 blocks in the
 * others, and the gradient of a vocabulary has more "tokens". */
#define ROW_BLOCKS ((uint)(n + ROWS - 1) / ROWS)
#define BLOCK_OF_ROWS (blockIdx.x % ROW_BLOCKS)
#define BLOCK_OF_TOKENS (blockIdx.x / ROW_BLOCKS)

/* Blocks of a multiprocessor at once: as many as leave registers enough. With one more, floats with
 * f32 weights, and four tokens of floats with 16 codes of 4 bits, would spill 68 to 100 bytes;
 * experts, which need an address more, 52 to 84 with floats of these codes. */
#if defined(EXPERTS) && X <= INPUT_BF16
#define IS_TIGHT                                                                                   \
    ((W == WEIGHT_E2M1 && STEP == 32) || (TOKENS > 1 && (W == WEIGHT_F32 || W == WEIGHT_E5M2)))
#else
#define IS_TIGHT 0
#endif
#if TOKENS == 1
#define AT_ONCE (WEIGHT_BITS == 32 || IS_TIGHT ? 4 : 5)
#else
#define AT_ONCE (IS_TIGHT || (WEIGHT_BITS == 4 && STEP == 16 && X == 0) ? 2 : 3)
#endif

typedef struct sums {
    float of[ROWS][TOKENS];
} sums;

static inline void load_codes(const uchar *from, uint words[STEP_WORDS])
{
#pragma unroll
    for (int i = 0; i < STEP_WORDS; i += 4) {
#if STEP_WORDS >= 4
        const uint4 four = load_once(from + 4 * i);
        words[i] = four.x, words[i + 1] = four.y, words[i + 2] = four.z, words[i + 3] = four.w;
#else
        words[0] = ((const uint *)from)[0], words[1] = ((const uint *)from)[1];
#endif
    }
}

/* Codes of ROWS rows from k0 on, and the bits of their scales and zeros. */
typedef struct weights {
    uint words[ROWS][STEP_WORDS], scale[ROWS], zero[ROWS];
} weights;

/* Eight activations of a token from k0 on as floats, 0 past the end. */
static inline void eight_inputs(const uchar *x, size_t row, int ldx, int k0, int k, int is_aligned,
                                float out[8])
{
    const size_t at = row * (size_t)ldx + (size_t)k0;
#if X == INPUT_BF16
    const uint4 four = *(const uint4 *)(x + 2 * at);
    const uint words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int j = 0; j < 8; j++)
        out[j] = as_float(j % 2 == 0 ? words[j / 2] << 16 : words[j / 2] & 0xffff0000u);
#elif X == INPUT_F32
    const float *from = (const float *)x + at;
    if (is_aligned && k0 + 8 <= k) {
        const float4 low = *(const float4 *)from, high = *(const float4 *)(from + 4);
        out[0] = low.x, out[1] = low.y, out[2] = low.z, out[3] = low.w;
        out[4] = high.x, out[5] = high.y, out[6] = high.z, out[7] = high.w;
        return;
    }
#pragma unroll
    for (int j = 0; j < 8; j++)
        out[j] = k0 + j < k ? from[j] : 0.0f;
#else
    const uint2 two = *(const uint2 *)(x + at);
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint code = (j < 4 ? two.x : two.y) >> (8 * (j % 4));
#if X == INPUT_I8
        out[j] = (float)(signed char)(code & 0xffu);
#else
        out[j] = quick_e4m3(code);
#endif
    }
#endif
}

__kernel void __launch_bounds__(THREADS, AT_ONCE) matvec(PRODUCT_ARGS)
{
    PRODUCT_AHEAD;
    __shared__ float scratch[THREADS / 32][ROWS * TOKENS];
    const int id = (int)threadIdx.x;
    const int row0 = (int)BLOCK_OF_ROWS * ROWS;
    TOKENS_OF_FEW(BLOCK_OF_TOKENS, TOKENS);
    const int blocks = xblock > 0 ? (k + xblock - 1) / xblock : 0;
    const bool has_zero = zero_type != VALUE_NONE, int_zero = is_int_zero(zero_type);
    sums total;
#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            total.of[r][t] = 0;

#define LOAD(to, at)                                                                               \
    do {                                                                                           \
        for (int r = 0; r < ROWS && (at) < k; r++) {                                               \
            const size_t row = (size_t)min(row0 + r, n - 1);                                       \
            const size_t value = row * (size_t)groups + (size_t)(groups > 1 ? (at) / group : 0);   \
            load_codes(codes + (row * (size_t)ldk + (size_t)(at)) * WEIGHT_BITS / 8, to.words[r]); \
            to.scale[r] = load_bits(scales, value, scale_type);                                    \
            to.zero[r] = load_bits(zeros, value, zero_type);                                       \
        }                                                                                          \
    } while (0)

    weights now, next;
    LOAD(next, id * STEP);
    after_previous();
    for (int k0 = id * STEP; k0 < k; k0 += THREADS * STEP) {
        now = next;
        LOAD(next, k0 + THREADS * STEP);
        float block_scale[TOKENS];
#pragma unroll
        for (int t = 0; t < TOKENS; t++)
            block_scale[t] = xblock > 0 ? x_scale[(size_t)min(token0 + t, m - 1) * (size_t)blocks +
                                                  (size_t)(k0 / xblock)]
                                        : 1.0f;

        const int count = min(STEP, k - k0);
        sums part;
        float x_sum[TOKENS];
#if X == INPUT_I8
        int dots[ROWS][TOKENS], x_sums[TOKENS], code_sums[ROWS];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int t = 0; t < TOKENS; t++)
                dots[r][t] = x_sums[t] = code_sums[r] = 0;
#pragma unroll
        for (int j = 0; j < STEP; j += 8) {
            uint2 inputs[TOKENS];
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                const size_t token = (size_t)min(token0 + t, m - 1);
                inputs[t] = *(const uint2 *)(x + token * (size_t)ldx + (size_t)(k0 + j));
                x_sums[t] = dot_bytes(inputs[t].x, 0x01010101u, x_sums[t]);
                x_sums[t] = dot_bytes(inputs[t].y, 0x01010101u, x_sums[t]);
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                uint bytes[2];
                eight_bytes(now.words[r] + j / 8 * EIGHT_WORDS, bytes);
                code_sums[r] = dot_bytes(bytes[0], 0x01010101u, code_sums[r]);
                code_sums[r] = dot_bytes(bytes[1], 0x01010101u, code_sums[r]);
#pragma unroll
                for (int t = 0; t < TOKENS; t++) {
                    dots[r][t] = dot_bytes(bytes[0], inputs[t].x, dots[r][t]);
                    dots[r][t] = dot_bytes(bytes[1], inputs[t].y, dots[r][t]);
                }
            }
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const int z = x_zero != NULL ? x_zero[min(token0 + t, m - 1)] : 0;
            x_sum[t] = (float)(x_sums[t] - z * count);
#pragma unroll
            for (int r = 0; r < ROWS; r++) /* a shift would drop the half of an odd sum of e2m1 */
                part.of[r][t] =
                    (float)((dots[r][t] >> BYTE_SHIFT) - z * (code_sums[r] >> BYTE_SHIFT)) *
                    (W == WEIGHT_E2M1 ? BYTE_VALUE : 1.0f);
        }
#else
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            x_sum[t] = 0;
#pragma unroll
            for (int r = 0; r < ROWS; r++)
                part.of[r][t] = 0;
        }
        (void)count;
#pragma unroll
        for (int j = 0; j < STEP; j += 8) {
            float inputs[TOKENS][8];
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                eight_inputs(x, (size_t)min(token0 + t, m - 1), ldx, k0 + j, k, x_aligned,
                             inputs[t]);
                if (has_zero)
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        x_sum[t] += inputs[t][i];
            }
#pragma unroll
            for (int r = 0; r < ROWS; r++) {
                float eight[8];
                eight_codes(now.words[r] + j / 8 * EIGHT_WORDS, eight);
#pragma unroll
                for (int t = 0; t < TOKENS; t++)
#pragma unroll
                    for (int i = 0; i < 8; i++)
                        part.of[r][t] += inputs[t][i] * eight[i];
            }
        }
#endif
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
            const float scale = value_of(now.scale[r], scale_type);
            const float zero = has_zero ? value_of(now.zero[r], zero_type) : 0.0f;
#pragma unroll
            for (int t = 0; t < TOKENS; t++) {
                const float value = int_zero ? scale * (part.of[r][t] - zero * x_sum[t])
                                             : scale * part.of[r][t] + zero * x_sum[t];
                total.of[r][t] += block_scale[t] * value;
            }
        }
    }

#pragma unroll
    for (int r = 0; r < ROWS; r++)
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            float sum = total.of[r][t];
#pragma unroll
            for (int step = 16; step > 0; step /= 2)
                sum += shuffle_xor(sum, step);
            if (id % 32 == 0)
                scratch[id / 32][r * TOKENS + t] = sum;
        }
    __syncthreads();
    if (id >= ROWS * TOKENS)
        return;
    const int row = row0 + id / TOKENS, token = token0 + id % TOKENS;
    if (row >= n || token >= m)
        return;
    float sum = 0;
    for (int i = 0; i < THREADS / 32; i++)
        sum += scratch[i][id];
    sum *= factor;
    if (int_bias != NULL)
        sum += load_value(scales, (size_t)row * (size_t)groups, scale_type) * (float)int_bias[row];
    if (token_scale)
        sum *= x_scale[token];
    y[(size_t)token * (size_t)ldy + (size_t)row] = sum + (bias != NULL ? bias[row] : 0.0f);
}

/* For groups of any size: every code under the scale of its own group; one warp per output. */
__kernel void __launch_bounds__(THREADS) matvec_any(PRODUCT_ARGS)
{
    PRODUCT_HERE;
    const int lane = (int)threadIdx.x % 32, row = (int)(BLOCK_OF_ROWS * ROWS + threadIdx.x / 32);
    TOKENS_OF_FEW(BLOCK_OF_TOKENS, TOKENS);
    const int blocks = xblock > 0 ? (k + xblock - 1) / xblock : 0;
    const bool has_zero = zero_type != VALUE_NONE, int_zero = is_int_zero(zero_type);
    float total[TOKENS];
    if (row >= n)
        return;
#pragma unroll
    for (int t = 0; t < TOKENS; t++)
        total[t] = 0;
    for (int k0 = 8 * lane; k0 < k; k0 += 8 * 32) {
        const uint *from =
            (const uint *)(codes + ((size_t)row * (size_t)ldk + (size_t)k0) * WEIGHT_BITS / 8);
        uint words[EIGHT_WORDS];
        float values[8];
#pragma unroll
        for (int i = 0; i < EIGHT_WORDS; i++)
            words[i] = from[i];
        eight_codes(words, values);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            const size_t at = (size_t)row * (size_t)groups + (size_t)(min(k0 + i, k - 1) / group);
            const float scale = load_value(scales, at, scale_type);
            const float zero = has_zero ? load_value(zeros, at, zero_type) : 0.0f;
            values[i] = int_zero ? (values[i] - zero) * scale : values[i] * scale + zero;
        }
#pragma unroll
        for (int t = 0; t < TOKENS; t++) {
            const int token = min(token0 + t, m - 1);
            const float z = X == INPUT_I8 && x_zero != NULL ? (float)x_zero[token] : 0.0f;
            float inputs[8], sum = 0;
            eight_inputs(x, (size_t)token, ldx, k0, k, x_aligned, inputs);
#pragma unroll
            for (int i = 0; i < 8; i++)
                sum += k0 + i < k ? (inputs[i] - z) * values[i] : 0.0f;
            if (xblock > 0)
                sum *= x_scale[(size_t)token * (size_t)blocks + (size_t)(k0 / xblock)];
            total[t] += sum;
        }
    }
#pragma unroll
    for (int t = 0; t < TOKENS; t++) {
        float sum = total[t];
#pragma unroll
        for (int step = 16; step > 0; step /= 2)
            sum += shuffle_xor(sum, step);
        const int token = token0 + t;
        if (lane == 0 && token < m)
            y[(size_t)token * (size_t)ldy + (size_t)row] =
                sum * factor * (token_scale ? x_scale[token] : 1.0f) +
                (bias != NULL ? bias[row] : 0.0f);
    }
}
