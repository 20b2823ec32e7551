/* SPDX-License-Identifier: Apache-2.0
 *
 * An fp8 product for many tokens on the matrix units of sm_90a, which read shared memory: a block
 * of eight warps computes 128 outputs of 128 tokens, every four warps 64 tokens. Weights are e4m3;
 * activations are e4m3 or e5m2 in bf16, narrowed to f8 again while the unit multiplies the previous
 * step. One scale for all of k per output and per token, or one for the whole weight.
 *
 * The unit's sums keep few bits, so every step of 128 codes starts a new sum, and the sums of the
 * steps are added in f32.
 *
 * Shared memory, from a multiple of 1,024 bytes on: STAGES times w [128][128 bytes] and x before
 * narrowing; narrowed x [128][128] of two steps; scales and biases of the outputs.
 */
#define THREADS 256
#define TILE 128
#define ROW 128 /* bytes, and codes of a step */
#define STEP 128
#define STAGES 3
#define SLICES 4
#define SUMS 64 /* of a thread: four warps have 64 tokens of 128 outputs */

#include "cuda_async.cuh"
#include "cuda_tiles.cuh"

#define TILE_BYTES (TILE * ROW)
#define STAGE (TILE_BYTES + RAW_PAIRS)

/* A tile: rows of 128 bytes, groups of eight 1,024 bytes apart, parts swizzled as in TURNED. */
static inline ulong tile_at(const uchar *tile)
{
    const ulong swizzle_128 = 1, eights = 1024 >> 4;
    return swizzle_128 << 62 | eights << 32 | (ulong)1 << 16 |
           (shared_address(tile) & 0x3ffffu) >> 4;
}

static inline void multiply(float d[SUMS], ulong x, ulong w, bool adds)
{
#if X == INPUT_WIDE_E4M3
    group_mma_e4m3(d, x, w, adds);
#else
    group_mma_e5m2(d, x, w, adds);
#endif
}

__kernel void __launch_bounds__(THREADS) tile_wgmma(PRODUCT_ARGS)
{
    PRODUCT_HERE;
    DYNAMIC_SHARED(unaligned);
    uchar *const room = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
    uchar *const narrow = room + STAGES * STAGE;
    float *const of_outputs = (float *)(narrow + 2 * TILE_BYTES); /* scales, then biases */
    const int id = (int)threadIdx.x;
    const int2 first = tile_here(m, n);
    const int token0 = first.x, row0 = first.y;
    const int steps = (k + STEP - 1) / STEP;
    const copies copies_w = copies_of<ROW>(codes, (size_t)ldk, row0, n);
    const copies copies_x = pairs_of(x, (size_t)ldx * 2, token0, m);
    float total[SUMS], part[SUMS];
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        total[i] = 0;
    if (id < TILE) {
        const int row = min(row0 + id, n - 1);
        of_outputs[id] = factor * load_value(scales, (size_t)row * (size_t)groups, scale_type);
        of_outputs[TILE + id] = bias != NULL ? bias[row] : 0.0f;
    }

#define FETCH(step)                                                                                \
    do {                                                                                           \
        if ((step) < steps) {                                                                      \
            uchar *const to = room + (step) % STAGES * STAGE;                                      \
            fetch<ROW>(to, &copies_w, (step)*ROW, ldk);                                            \
            fetch_pairs(to + TILE_BYTES, &copies_x, (step)*2 * ROW, 2 * ldx);                      \
        }                                                                                          \
        copy_commit();                                                                             \
    } while (0)
#define NARROW(step)                                                                               \
    narrow_pairs(narrow + (step) % 2 * TILE_BYTES, room + (step) % STAGES * STAGE + TILE_BYTES,    \
                 &copies_x)

#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        FETCH(i);
    copy_wait<STAGES - 2>();
    NARROW(0);
    for (int step = 0; step < steps; step++) {
        fence_async();
        __syncthreads(); /* the step has arrived, and nothing reads the previous one */
        const ulong x_at = tile_at(narrow + step % 2 * TILE_BYTES + id / 128 * (TILE_BYTES / 2));
        const ulong w_at = tile_at(room + step % STAGES * STAGE);
        group_mma_begin();
#pragma unroll
        for (int s = 0; s < SLICES; s++)
            multiply(part, x_at + (ulong)s * (32 >> 4), w_at + (ulong)s * (32 >> 4), s > 0);
        group_mma_commit();
        FETCH(step + STAGES - 1);
        copy_wait<STAGES - 2>();
        if (step + 1 < steps)
            NARROW(step + 1);
        group_mma_wait(part);
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            total[i] += part[i];
    }

#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int token = token0 + id / 32 * 16 + id % 32 / 4 + 8 * i;
        const float of_token = token < m && token_scale ? x_scale[token] : 1.0f;
#pragma unroll
        for (int j = 0; j < SUMS / 2; j++) {
            const int output = j / 2 * 8 + id % 4 * 2 + j % 2;
            if (token < m && row0 + output < n)
                y[(size_t)token * (size_t)ldy + (size_t)(row0 + output)] =
                    total[j / 2 * 4 + 2 * i + j % 2] * of_outputs[output] * of_token +
                    of_outputs[TILE + output];
        }
    }
}
