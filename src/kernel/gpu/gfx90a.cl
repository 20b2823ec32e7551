/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled after linear.cl, for AMD CDNA2 and later: products for many tokens on the matrix unit. A
 * work-group of 256 work-items, four waves of 64, computes 64 outputs of 64 tokens; a wave computes
 * 32 of each, as 2 x 2 blocks of 16 x 16, and multiplies 16 of k at a time.
 *
 *   bf16 (v_mfma_f32_16x16x16bf16_1k)  bf16 holds the codes exactly: int8, int4, fp8, fp4, and
 *        those of MX and nvfp4 even times their scales. Other scales and zero points apply to the
 *        sum of a step. The unit treats denormals as 0. Activation scales of nvfp4 need all bits of
 *        f32, so they apply to the sum of a block, 16 of k.
 *   int8 (v_mfma_i32_16x16x16i8)       like SUM_INTEGERS of linear.cl; CDNA3 has 16x16x32 instead
 *
 * A step lies in one group: groups are a multiple of 32, or there is one.
 */
#ifdef MATRIX_AMD

#define WAVE 64
#define SQUARE 16 /* outputs and tokens of a block */
#define BLOCKS 2  /* of a wave, in each direction */
#define PIECES (STEP / 4)

/* four_k: four values along k. four_sums: a work-item's share of a 16 x 16 block of sums. */
#if IS_INTEGER
typedef uint four_k;
typedef int one_sum;
typedef int4 four_sums;
#else
typedef ushort4 four_k;
typedef float one_sum;
typedef float4 four_sums;
#endif

#if IS_INTEGER &&                                                                                  \
    (defined(__gfx940__) || defined(__gfx941__) || defined(__gfx942__) || defined(__gfx950__))
#define WIDE 2 /* pieces per operand; both sides use the same order of k */
#define LOAD_OPERAND(row, at) as_long((uint2)((row)[at], (row)[(at) + 1]))
typedef long operand;
#else
#define WIDE 1
#define LOAD_OPERAND(row, at) (row)[at]
typedef four_k operand;
#endif

/* Whether bf16 holds code * scale exactly: the scale is a power of two, or both have few bits. */
#define IN_CODES (SCALE == VALUE_E8M0 || (W == WEIGHT_E2M1 && SCALE == VALUE_E4M3))
#define PER_STEP (SCALE != VALUE_NONE && !IN_CODES)
#define PER_BLOCK (X == INPUT_E4M3 && XBLOCK == SQUARE)

#ifdef NIB_EMULATE

static one_sum product_of(four_k a, four_k b)
{
#if IS_INTEGER
    const int4 p = convert_int4(as_char4(a)) * convert_int4(as_char4(b));
    return (p.x + p.y) + (p.z + p.w);
#else
    const float4 p =
        as_float4(convert_uint4(a) << (uint4)16) * as_float4(convert_uint4(b) << (uint4)16);
    return (p.x + p.y) + (p.z + p.w);
#endif
}

/* For the kernel checker: emulates the instruction; work-items share operands through `scratch`. */
static four_sums multiply(four_k a, four_k b, four_sums c, __local four_k *scratch)
{
    const int id = (int)get_local_id(0), lane = id % WAVE, wave = id - lane, all = 4 * WAVE;
    one_sum sums[4];
    vstore4(c, 0, sums);
    scratch[id] = a;
    scratch[all + id] = b;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int r = 0; r < 4; r++)
        for (int q = 0; q < 4; q++)
            sums[r] += product_of(scratch[wave + q * SQUARE + 4 * (lane / SQUARE) + r],
                                  scratch[all + wave + q * SQUARE + lane % SQUARE]);
    barrier(CLK_LOCAL_MEM_FENCE);
    return vload4(0, sums);
}

#elif WIDE == 2
#define multiply(a, b, c, scratch) __builtin_amdgcn_mfma_i32_16x16x32_i8(a, b, c, 0, 0, 0)
#elif IS_INTEGER
#define multiply(a, b, c, scratch)                                                                 \
    __builtin_amdgcn_mfma_i32_16x16x16i8((int)(a), (int)(b), c, 0, 0, 0)
#else
#define multiply(a, b, c, scratch)                                                                 \
    __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(as_short4(a), as_short4(b), c, 0, 0, 0)
#endif

#if !IS_INTEGER
/* Stores f32 values that bf16 represents exactly, by keeping their upper 16 bits. */
static void put_eight(__local four_k *to, float8 eight)
{
    const ushort8 halves = convert_ushort8(as_uint8(eight) >> (uint8)16);
    to[0] = halves.lo;
    to[1] = halves.hi;
}
#endif

/* Work-item `lane` of a wave passes row lane % 16 of both operands, k from 4 * WIDE * (lane / 16)
 * on, and gets column lane % 16 of the sums, rows from 4 * (lane / 16) on. Tokens are rows, outputs
 * are columns. */
__kernel void tile_matrix(PRODUCT_ARGUMENTS)
{
    __local four_k of_w[TILE][PIECES + 1], of_x[TILE][PIECES + 1];
    __local one_sum sums_x[TILE][STEP / 8];
#if IS_INTEGER
    __local one_sum sums_w[TILE][STEP / 8];
#endif
    __local float scales_w[TILE], zeros_w[TILE], scales_x[TILE];
#if PER_BLOCK
    __local float block_scales[STEP / SQUARE][TILE];
#endif
#ifdef NIB_EMULATE
    __local four_k scratch[2 * 4 * WAVE];
#endif
    PRODUCT_HERE(TILE);
    const int id = (int)get_local_id(0), wave = id / WAVE;
    const int column = id % SQUARE, line = id % WAVE / SQUARE;
    const int left = wave % 2 * SQUARE * BLOCKS, top = wave / 2 * SQUARE * BLOCKS;
    const int row0 = (int)get_group_id(0) * TILE;
    const int mine = id / (STEP / 8), part = id % (STEP / 8); /* what this item loads */
    const int row = min(row0 + mine, n - 1), token = min(token0 + mine, m - 1);
    four_sums exact[BLOCKS][BLOCKS];
    float sums[BLOCKS][BLOCKS][4];
    for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < BLOCKS; j++) {
            exact[i][j] = 0;
            vstore4((float4)0, 0, sums[i][j]);
        }
    for (int k0 = 0; k0 < k; k0 += STEP) {
        const int k1 = k0 + 8 * part;
#if IS_INTEGER
        const eight_codes codes_w = weight_eight(weight_row(&w, row), k1);
        const eight_codes codes_x = input_eight(&x, token, k1);
        of_w[mine][2 * part] = codes_w.x;
        of_w[mine][2 * part + 1] = codes_w.y;
        of_x[mine][2 * part] = codes_x.x;
        of_x[mine][2 * part + 1] = codes_x.y;
        sums_w[mine][part] = sum_codes(codes_w, 0);
        sums_x[mine][part] = sum_codes(codes_x, 0);
#else
#if PER_BLOCK
        const float8 eight = input_codes(&x, token, k1);
        if (part % (SQUARE / 8) == 0)
            block_scales[part / (SQUARE / 8)][mine] = scale_of_block(&x, token, k1);
#else
        const float8 eight = input_values(&x, token, k1);
#endif
        put_eight(&of_w[mine][2 * part],
                  IN_CODES ? weight_values(&w, row, k1) : weight_codes(weight_row(&w, row), k1));
        put_eight(&of_x[mine][2 * part], eight);
        sums_x[mine][part] = ZERO != VALUE_NONE ? sum_eight(eight) : 0.0f;
#endif
        if (part == 0) {
            scales_w[mine] = scale_of(&w, row, group_of(&w, k0));
            zeros_w[mine] = zero_of(&w, row, group_of(&w, k0));
            scales_x[mine] = IS_INTEGER ? scale_of_block(&x, token, k0) : 1.0f;
        }
        barrier(CLK_LOCAL_MEM_FENCE);
        for (int s = 0; s < PIECES; s += 4 * WIDE) {
            operand a[BLOCKS], b[BLOCKS];
            for (int i = 0; i < BLOCKS; i++) {
                a[i] = LOAD_OPERAND(of_x[top + i * SQUARE + column], s + WIDE * line);
                b[i] = LOAD_OPERAND(of_w[left + i * SQUARE + column], s + WIDE * line);
            }
            for (int i = 0; i < BLOCKS; i++)
                for (int j = 0; j < BLOCKS; j++) {
                    exact[i][j] = multiply(a[i], b[j], exact[i][j], scratch);
#if PER_BLOCK
                    one_sum of_block[4];
                    vstore4(exact[i][j], 0, of_block);
                    exact[i][j] = 0;
                    for (int r = 0; r < 4; r++)
                        sums[i][j][r] +=
                            block_scales[s / 4][top + i * SQUARE + 4 * line + r] * of_block[r];
#endif
                }
        }
#if PER_STEP
        for (int j = 0; j < BLOCKS; j++) {
            const int to = left + j * SQUARE + column;
            const float scale = scales_w[to], zero = zeros_w[to];
            for (int i = 0; i < BLOCKS; i++) {
                one_sum of_step[4];
                vstore4(exact[i][j], 0, of_step);
                exact[i][j] = 0;
                for (int r = 0; r < 4; r++) {
                    const int from = top + i * SQUARE + 4 * line + r;
                    one_sum sum = of_step[r], of_inputs = 0;
                    for (int p = 0; p < STEP / 8; p++)
                        of_inputs += sums_x[from][p];
#if IS_INTEGER
                    const int z = zero_of_token(&x, min(token0 + from, m - 1));
                    for (int p = 0; p < STEP / 8; p++)
                        sum -= z * sums_w[to][p];
                    of_inputs -= min(STEP, k - k0) * z;
#endif
                    if (HAS_INT_ZERO)
                        sum -= (one_sum)zero * of_inputs;
                    sums[i][j][r] += scale * scales_x[from] * (float)sum;
                    if (HAS_FLOAT_ZERO)
                        sums[i][j][r] += zero * (scales_x[from] * (float)of_inputs);
                }
            }
        }
#endif
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < BLOCKS; j++) {
#if !PER_STEP && !PER_BLOCK
            vstore4(convert_float4(exact[i][j]), 0, sums[i][j]);
#endif
            for (int r = 0; r < 4; r++) {
                const int to_token = token0 + top + i * SQUARE + 4 * line + r;
                const int to_row = row0 + left + j * SQUARE + column;
                if (to_token < m && to_row < n)
                    PUT_Y(to_token, to_row, sums[i][j][r]);
            }
        }
}

#endif
