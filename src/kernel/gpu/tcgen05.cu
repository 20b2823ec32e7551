/* SPDX-License-Identifier: Apache-2.0
 *
 * A product for many tokens on the matrix units of sm_100a, which read shared memory and accumulate
 * in tensor memory: a block of four warps computes 128 outputs of 128 tokens. Outputs are the
 * unit's rows, the 128 lanes of tensor memory, so each thread ends with one output; tokens are its
 * columns.
 *
 *   X INPUT_E4M3        codes of MX blocks; the unit itself applies the scale of each 32
 *   X INPUT_WIDE_...    f8 in bf16, narrowed to f8 again; one scale for all of k per output and per
 *                       token, or one for the whole weight
 *
 * A step is 128 codes of k, four products of the unit. Shared memory, from a multiple of 1,024
 * bytes on, ends with `shared`. Before it:
 *
 *   MX    STAGES times w [128][128 bytes] and x likewise, then the scales of two steps
 *   f8    STAGES times w and x before narrowing, then the narrowed x of two steps
 *
 * The MX scales of a step have the unit's layout: 32 lanes of four columns of four bytes; byte s of
 * column c in lane l is the scale of row 32 c + l for slice s of the step.
 */
#define THREADS 128
#define TILE 128
#define ROW 128 /* bytes, and codes of a step */
#define STEP 128
#define STAGES 3
#define SLICES 4

#include "cuda_async.cuh"
#include "cuda_tiles.cuh"

#define TILE_BYTES (TILE * ROW)
#if X == INPUT_E4M3
#define STAGE (2 * TILE_BYTES)
#define SCALES 512 /* bytes of a step, for w and x each */
#define COLUMNS 256
#else
#define STAGE (TILE_BYTES + RAW_PAIRS)
#define COLUMNS 128
#endif
#define SCALES_AT 128 /* column of tensor memory; the sums come before */

/* Shared memory beside the tiles. */
typedef struct shared {
    ulong done[STAGES]; /* completion of the products that read the stage */
    uint columns;       /* the address of the block's columns of tensor memory */
} shared;

/* ---- descriptors ---- */

/* A tile: rows of 128 bytes, groups of eight 1,024 bytes apart, parts swizzled as in TURNED. */
static inline ulong tile_at(const uchar *tile)
{
    const ulong swizzle_128 = 2, version = 1, eights = 1024 >> 4;
    return swizzle_128 << 61 | version << 46 | eights << 32 | (ulong)1 << 16 |
           (shared_address(tile) & 0x3ffffu) >> 4;
}

#if X == INPUT_E4M3

/* Scales: rows of 16 bytes, groups of eight 128 bytes apart. */
static inline ulong scales_at(const uchar *scales)
{
    const ulong version = 1, eights = 128 >> 4;
    return version << 46 | eights << 32 | (ulong)1 << 16 | (shared_address(scales) & 0x3ffffu) >> 4;
}

/* The instruction: 128 x 128 of e4m3, e8m0 scales in byte `slice` of their columns. */
static inline uint what_of(uint slice)
{
    const uint e8m0 = 1;
    return slice << 29 | (TILE >> 4) << 24 | e8m0 << 23 | (TILE >> 3) << 17 | slice << 4;
}

#else

/* The instruction: 128 x 128, e4m3 weights, e4m3 or e5m2 activations, f32 sums. */
static inline uint what_of()
{
    const uint e5m2 = X == INPUT_WIDE_E5M2, f32 = 1;
    return (TILE >> 4) << 24 | (TILE >> 3) << 17 | e5m2 << 10 | f32 << 4;
}

#endif

/* ---- scales ---- */

#if X == INPUT_E4M3

/* The scales of the thread's output and token, four blocks each. */
typedef struct scaling {
    uint w, x;
} scaling;

/* NULL: the output or token does not exist, and its scales are 1 (127). */
static __forceinline__ scaling scaling_of(const uchar *of_w, const float *of_x, int block,
                                          int blocks)
{
    scaling out = {0x7f7f7f7fu, 0x7f7f7f7fu};
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        const uint shift = 8u * (uint)s, mask = ~(0xffu << shift);
        if (block + s >= blocks)
            break;
        if (of_w != NULL)
            out.w = (out.w & mask) | (uint)of_w[block + s] << shift;
        if (of_x != NULL) /* a power of two: its exponent; 0 for a denormal, 255 for NaN */
            out.x = (out.x & mask) | (as_uint(of_x[block + s]) >> 23 & 0xffu) << shift;
    }
    return out;
}

static __forceinline__ void put_scaling(uchar *to, const scaling *from)
{
    const int id = (int)threadIdx.x, at = id % 32 * 16 + id / 32 * 4;
    *(uint *)(to + at) = from->w;
    *(uint *)(to + SCALES + at) = from->x;
}

#endif

/* ---- the product ---- */

/* Requests the products of a step; one thread calls it. */
static __forceinline__ void multiply_step(uint columns, const uchar *of_w, const uchar *of_x,
                                          const uchar *scales, int step)
{
    const ulong w = tile_at(of_w), x = tile_at(of_x);
#if X == INPUT_E4M3
    const uint scale_w = columns + SCALES_AT + (uint)(step % 2) * 8, scale_x = scale_w + 4;
    tensor_copy_scales(scale_w, scales_at(scales));
    tensor_copy_scales(scale_x, scales_at(scales + SCALES));
#endif
#pragma unroll
    for (uint s = 0; s < SLICES; s++) {
        const ulong further = s * (32 >> 4);
        const bool adds = step > 0 || s > 0;
#if X == INPUT_E4M3
        tensor_mma_mx8(columns, w + further, x + further, what_of(s), scale_w, scale_x, adds);
#else
        tensor_mma_f8(columns, w + further, x + further, what_of(), adds);
#endif
    }
#if X != INPUT_E4M3
    (void)scales;
#endif
}

__kernel void __launch_bounds__(THREADS) tile_tcgen05(PRODUCT_ARGS)
{
    PRODUCT_HERE;
    DYNAMIC_SHARED(unaligned);
    uchar *const room = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
    const int id = (int)threadIdx.x;
    const int2 first = tile_here(m, n);
    const int token0 = first.x, row0 = first.y, row = min(row0 + id, n - 1);
    const int steps = (k + STEP - 1) / STEP;
    const copies copies_w = copies_of<ROW>(codes, (size_t)ldk, row0, n);
#if X == INPUT_E4M3
    const copies copies_x = copies_of<ROW>(x, (size_t)ldx, token0, m);
    uchar *const scales_room = room + STAGES * STAGE;
    shared *const own = (shared *)(scales_room + 4 * SCALES);
    const uchar *const of_w = row0 + id < n ? scales + (size_t)row * (size_t)groups : NULL;
    const float *const of_x =
        token0 + id < m ? x_scale + (size_t)(token0 + id) * (size_t)groups : NULL;
#else
    const copies copies_x = pairs_of(x, (size_t)ldx * 2, token0, m);
    uchar *const narrow = room + STAGES * STAGE;
    shared *const own = (shared *)(narrow + 2 * TILE_BYTES);
#endif

    if (id < 32)
        tensor_take(&own->columns, COLUMNS);
    if (id == 0)
        for (int i = 0; i < STAGES; i++)
            arrivals_init(&own->done[i]);
    tensor_before_barrier();
    __syncthreads();
    tensor_after_barrier();
    const uint columns = own->columns;

#if X == INPUT_E4M3
#define FETCH_X(to, step) fetch<ROW>((to) + TILE_BYTES, &copies_x, (step)*ROW, ldx)
#define X_OF(step) (room + (step) % STAGES * STAGE + TILE_BYTES)
#define SCALES_OF(step) (scales_room + (step) % 2 * 2 * SCALES)
#define MAKE(step)                                                                                 \
    do {                                                                                           \
        put_scaling(SCALES_OF(step), &mine);                                                       \
        mine = scaling_of(of_w, of_x, ((step) + 1) * SLICES, groups);                              \
    } while (0)
    scaling mine = scaling_of(of_w, of_x, 0, groups);
#else
#define FETCH_X(to, step) fetch_pairs((to) + TILE_BYTES, &copies_x, (step)*2 * ROW, 2 * ldx)
#define X_OF(step) (narrow + (step) % 2 * TILE_BYTES)
#define SCALES_OF(step) NULL
#define MAKE(step) narrow_pairs(X_OF(step), room + (step) % STAGES * STAGE + TILE_BYTES, &copies_x)
#endif
#define FETCH(step)                                                                                \
    do {                                                                                           \
        if ((step) < steps) {                                                                      \
            uchar *const to = room + (step) % STAGES * STAGE;                                      \
            fetch<ROW>(to, &copies_w, (step)*ROW, ldk);                                            \
            FETCH_X(to, step);                                                                     \
        }                                                                                          \
        copy_commit();                                                                             \
    } while (0)

#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        FETCH(i);
    copy_wait<STAGES - 2>();
    MAKE(0);
    for (int step = 0; step < steps; step++) {
        fence_async();
        __syncthreads(); /* the step has arrived */
        if (id == 0) {
            multiply_step(columns, room + step % STAGES * STAGE, X_OF(step), SCALES_OF(step), step);
            tensor_commit(&own->done[step % STAGES]);
        }
        if (step > 0) /* the unit is done with the previous step, whose stage is fetched next */
            arrivals_wait(&own->done[(step - 1) % STAGES], (step - 1) / STAGES % 2);
        FETCH(step + STAGES - 1);
        copy_wait<STAGES - 2>();
        if (step + 1 < steps)
            MAKE(step + 1);
    }
    arrivals_wait(&own->done[(steps - 1) % STAGES], (steps - 1) / STAGES % 2);
    tensor_after_barrier();

    const float plus = bias != NULL ? bias[row] : 0.0f;
    const float scale = X == INPUT_E4M3
                            ? factor
                            : factor * load_value(scales, (size_t)row * (size_t)groups, scale_type);
    const uint lanes = (uint)(id / 32 * 32) << 16;
#pragma unroll 1
    for (int j = 0; j < TILE; j += 16) {
        float sums[16];
        tensor_load(sums, columns + lanes + (uint)j);
        if (row0 + id < n)
#pragma unroll
            for (int i = 0; i < 16; i++) {
                const int token = token0 + j + i;
                if (token >= m)
                    break;
                float value = sums[i] * scale;
                if (token_scale)
                    value *= x_scale[token];
                y[(size_t)token * (size_t)ldy + (size_t)row] = value + plus;
            }
    }
    tensor_before_barrier();
    __syncthreads();
    if (id < 32)
        tensor_give(columns, COLUMNS);
}
