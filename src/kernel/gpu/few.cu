/* SPDX-License-Identifier: Apache-2.0
 *
 * A product for few tokens on the matrix units of sm_80, whose rows are 16 outputs and whose
 * columns are eight tokens: weights are read once per eight tokens and decoded in pairs. A block of
 * eight warps computes 16 outputs. Its warps take turns along k, STEP codes at a time, each with
 * its own asynchronous copies; their sums are added in the order of the warps. So a token's sums
 * are the same whichever tokens it is computed with.
 *
 *   GROUPED 0    weights have one scale for all of k, or none
 *   GROUPED 32   sums of 32 codes are scaled and added in f32
 *     ZERO 1     weights have zero points
 *
 * With a the scale of a group, b what its zero point adds, and z the zero point of a token:
 *   sum of (code - zero) * (x - z) = a * (dot - z * sum of codes) + b * (sum of x - count * z)
 * where the unit also adds up codes and x, as products with ones.
 */
#include "cuda_wide.cuh"

#define THREADS 256
#define WARPS (THREADS / 32)
#define ROWS 16
#define TOKENS 8
#define PART (128 / WEIGHT_BITS) /* codes of 16 bytes */
#define PARTS 4                  /* of a row in a step */
#define STEP (PARTS * PART)
#define STAGES 4
#define STAGE (ROWS * PARTS * 16) /* bytes */

#if X == INPUT_I8
typedef int sum;
#define X_BITS 8
#define ONES 0x01010101u
#else
typedef float sum;
#define X_BITS 16
#define ONES BOTH(0x3f80)
#endif
#define X_WORDS (PART / 4 * X_BITS / 32) /* of a lane, per part */

#if GROUPED
typedef float kept; /* totals over all steps */
#define SEGMENTS (STEP / GROUPED)
#else
typedef sum kept;
#define SEGMENTS 1
#define ZERO 1 /* maybe */
#endif

/* What the unit sums of the lane's outputs, rows lane / 4 and 8 further, and tokens, columns
 * 2 * (lane % 4) and the next: entry i has output i / 2 and token i % 2. */
typedef struct parts {
    sum dot[4], codes[4], inputs[4];
} parts;

static __forceinline__ void multiply(sum d[4], const uint a[4], const uint b[2])
{
#if X == INPUT_I8
    mma_s8(d, a, b);
#else
    mma_bf16(d, a, b);
#endif
}

static __forceinline__ void add_products(parts *to, uint a0, uint a1, uint a2, uint a3, uint b0,
                                         uint b1, bool of_codes, bool of_inputs)
{
    const uint a[4] = {a0, a1, a2, a3}, b[2] = {b0, b1}, ones[4] = {ONES, ONES, ONES, ONES};
    multiply(to->dot, a, b);
    if (of_codes)
        multiply(to->codes, a, ones);
    if (of_inputs)
        multiply(to->inputs, ones, b);
}

/* Adds the products of part p, or of parts p and p + 1 if codes have 8 or 16 bits. w: words of the
 * lane's two outputs of part p, then of p + 1. */
static __forceinline__ void add_part(parts *to, const uint *w, const uint *x, bool of_codes,
                                     bool of_inputs)
{
#if WEIGHT_BITS == 16
    add_products(to, w[0], w[1], w[2], w[3], x[0], x[1], of_codes, of_inputs);
#elif X == INPUT_I8 && W == WEIGHT_I8
    add_products(to, w[0], w[1], w[2], w[3], x[0], x[1], of_codes, of_inputs);
#elif X == INPUT_I8
    uint low[2], high[2];
    eight_bytes(w, low);
    eight_bytes(w + 1, high);
    add_products(to, low[0], high[0], low[1], high[1], x[0], x[1], of_codes, of_inputs);
#elif WEIGHT_BITS == 8
    const uint low_words[2] = {w[0], w[2]}, high_words[2] = {w[1], w[3]};
    uint low[4], high[4];
#if W == WEIGHT_I8
    wide_i8(low_words, low);
    wide_i8(high_words, high);
#else
    wide_e4m3(low_words, low);
    wide_e4m3(high_words, high);
#endif
    add_products(to, low[0], high[0], low[1], high[1], x[0], x[1], of_codes, of_inputs);
    add_products(to, low[2], high[2], low[3], high[3], x[2], x[3], of_codes, of_inputs);
#else
    uint low[4], high[4];
#if W == WEIGHT_I4
    pairs_i4(w[0], low);
    pairs_i4(w[1], high);
#else
    pairs_e2m1(w[0], low);
    pairs_e2m1(w[1], high);
#endif
    add_products(to, low[0], high[0], low[1], high[1], choose_bytes(x[0], x[2], 0x5410u),
                 choose_bytes(x[0], x[2], 0x7632u), of_codes, of_inputs);
    add_products(to, low[2], high[2], low[3], high[3], choose_bytes(x[1], x[3], 0x5410u),
                 choose_bytes(x[1], x[3], 0x7632u), of_codes, of_inputs);
#endif
}

/* A lane's own token and k, and what every lane needs to load x and scales. */
typedef struct product {
    const uchar *x; /* the lane's token; NULL: it is past the last */
    const uchar *scales, *zeros;
    int row, n, k, group, groups, scale_type, zero_type, ldx;
    bool has_zero;
} product;

/* What a lane loads ahead of a step: its share of x, and scales and zeros, as bits, of one segment
 * for its outputs. */
typedef struct ahead {
    uint x[PARTS * X_WORDS], scale[2], zero[2];
} ahead;

static __forceinline__ void load_inputs(ahead *to, const product *p, int step)
{
    const int k0 = step * STEP + (int)threadIdx.x % 4 * (PART / 4);
#pragma unroll
    for (int part = 0; part < PARTS; part++) {
        uint *words = to->x + part * X_WORDS;
        const int at = k0 + part * PART;
        const bool is_there = p->x != NULL && at < p->ldx;
        const uchar *from = p->x + (size_t)at * (X_BITS / 8);
#if X_WORDS == 4
        const uint4 four = is_there ? *(const uint4 *)from : make_uint4(0, 0, 0, 0);
        words[0] = four.x, words[1] = four.y, words[2] = four.z, words[3] = four.w;
#else
#pragma unroll
        for (int i = 0; i < X_WORDS; i++)
            words[i] = is_there ? ((const uint *)from)[i] : 0u;
#endif
    }
}

/* Scale and zero of output `row` for all codes, or for the group of code k. */
static __forceinline__ void load_scaling(uint *scale, uint *zero, const product *p, int row, int k)
{
    const int group = p->groups > 1 ? min(k, p->k - 1) / p->group : 0;
    const size_t at = (size_t)min(row, p->n - 1) * (size_t)p->groups + (size_t)group;
    *scale = load_bits(p->scales, at, p->scale_type);
    *zero = ZERO ? load_bits(p->zeros, at, p->zero_type) : 0u;
}

/* The factors on sums of products and on sums of x. */
static __forceinline__ float2 scaling_of(uint scale, uint zero, const product *p)
{
    const float a = value_of(scale, p->scale_type);
    float2 of;
#if X == INPUT_I8
    of.x = a * BYTE_VALUE;
#else
    of.x = a;
#endif
    of.y = ZERO && p->has_zero
               ? value_of(zero, p->zero_type) * (is_int_zero(p->zero_type) ? -a : 1.0f)
               : 0.0f;
    return of;
}

static __forceinline__ void load_scalings(ahead *to, const product *p, int step)
{
#if GROUPED
    const int k = step * STEP + (int)threadIdx.x % 4 % SEGMENTS * GROUPED;
#pragma unroll
    for (int i = 0; i < 2; i++)
        load_scaling(&to->scale[i], &to->zero[i], p, p->row + 8 * i, k);
#endif
}

#if GROUPED

/* Scales the sums of a segment, of which `count` codes exist, and adds them. */
static __forceinline__ void add_scaled(kept total[4], const parts *from, const float2 of[2],
                                       int segment, const int z[2], int count)
{
    const int lane = (int)threadIdx.x % 32 / 4 * 4 + segment;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float a = shuffle_from(of[i].x, lane);
        const float b = ZERO ? shuffle_from(of[i].y, lane) : 0.0f;
#pragma unroll
        for (int j = 0; j < 2; j++) {
            const int q = 2 * i + j;
#if X == INPUT_I8
            total[q] += a * (float)(from->dot[q] - z[j] * from->codes[q]);
            if (ZERO)
                total[q] += b * (float)(from->inputs[q] - z[j] * count);
#else
            (void)z, (void)count;
            total[q] += a * from->dot[q];
            if (ZERO)
                total[q] += b * from->inputs[q];
#endif
        }
    }
}

#endif

static __forceinline__ void set_zero(parts *p)
{
#pragma unroll
    for (int q = 0; q < 4; q++)
        p->dot[q] = p->codes[q] = p->inputs[q] = 0;
}

#define PLACE(row, part) ((row) * (PARTS * 16) + (((part) ^ (row) / 2) & 3) * 16) /* swizzled */

__kernel void __launch_bounds__(THREADS, 2) few(PRODUCT_ARGS)
{
    PRODUCT_AHEAD;
    __shared__ __align__(128) uchar room[WARPS * STAGES * STAGE];
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x / 32;
    const uint row_blocks = (uint)(n + ROWS - 1) / ROWS;
    const int row0 = (int)(blockIdx.x % row_blocks) * ROWS;
    TOKENS_OF_FEW(blockIdx.x / row_blocks, TOKENS);
    const int w_end = ldk * WEIGHT_BITS / 8, steps = (ldk + STEP - 1) / STEP;
    const int turns = (steps - warp + WARPS - 1) / WARPS;
    const int token = token0 + lane / 4, column = token0 + lane % 4 * 2;
    const product p = {token < m ? x + (size_t)token * (size_t)ldx * (X_BITS / 8) : NULL,
                       scales,
                       zeros,
                       row0 + lane / 4,
                       n,
                       k,
                       group,
                       groups,
                       scale_type,
                       zero_type,
                       ldx,
                       zero_type != VALUE_NONE};
    const bool of_codes = X == INPUT_I8 && x_zero != NULL, of_inputs = ZERO && p.has_zero;
    uchar *const own = room + warp * (STAGES * STAGE);
    const uchar *from[2];
#pragma unroll
    for (int i = 0; i < 2; i++)
        from[i] = codes + (size_t)min(row0 + lane / 4 + 8 * i, n - 1) * (size_t)w_end +
                  (size_t)(lane % 4 * 16);

#define FETCH(turn)                                                                                \
    do {                                                                                           \
        const int at = (warp + (turn)*WARPS) * (PARTS * 16);                                       \
        for (int eight = 0; eight < 2 && (turn) < turns; eight++)                                  \
            copy_async(own + (turn) % STAGES * STAGE + PLACE(lane / 4 + 8 * eight, lane % 4),      \
                       from[eight] + at, at + lane % 4 * 16 < w_end);                              \
        copy_commit();                                                                             \
    } while (0)

#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        FETCH(i);
    ahead now, next;
    parts part;
    kept total[4] = {0, 0, 0, 0};
    set_zero(&part);
    load_scalings(&next, &p, warp);
    after_previous();
    load_inputs(&next, &p, warp);
    const int z[2] = {of_codes ? x_zero[min(column, m - 1)] : 0,
                      of_codes ? x_zero[min(column + 1, m - 1)] : 0};
    for (int turn = 0; turn < turns; turn++) {
        const int step = warp + turn * WARPS;
        const uchar *stage = own + turn % STAGES * STAGE;
        now = next;
        load_scalings(&next, &p, step + WARPS);
        load_inputs(&next, &p, step + WARPS);
        copy_wait<STAGES - 2>();
        __syncwarp(); /* the step has arrived, and no lane reads the previous one */
        FETCH(turn + STAGES - 1);
#if GROUPED
        float2 scaling[2];
#pragma unroll
        for (int i = 0; i < 2; i++)
            scaling[i] = scaling_of(now.scale[i], now.zero[i], &p);
#endif
#pragma unroll
        for (int two = 0; two < PARTS; two += 2) {
            uint w[4];
            load_matrix_x4(w, stage + PLACE(lane % 16, two + lane / 16));
#if WEIGHT_BITS == 4
#pragma unroll
            for (int i = 0; i < 2; i++) {
                add_part(&part, w + 2 * i, now.x + (two + i) * X_WORDS, of_codes, of_inputs);
#if GROUPED
                add_scaled(total, &part, scaling, two + i, z,
                           max(min(k - step * STEP - (two + i) * PART, GROUPED), 0));
                set_zero(&part);
#endif
            }
#else
            add_part(&part, w, now.x + two * X_WORDS, of_codes, of_inputs);
#if GROUPED
            add_scaled(total, &part, scaling, two / 2, z,
                       max(min(k - step * STEP - two * PART, GROUPED), 0));
            set_zero(&part);
#endif
#endif
        }
    }
    copy_wait<0>();
    __syncthreads(); /* the steps' memory is reused */

    kept *const of_dots = (kept *)room, *const of_inputs_ = of_dots + WARPS * ROWS * TOKENS;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        const int at = (warp * ROWS + lane / 4 + q / 2 * 8) * TOKENS + lane % 4 * 2 + q % 2;
#if GROUPED
        of_dots[at] = total[q];
#else
        of_dots[at] = part.dot[q] - (sum)z[q % 2] * part.codes[q];
        of_inputs_[at] = part.inputs[q];
#endif
    }
    __syncthreads();
    const int id = (int)threadIdx.x, output = row0 + id / TOKENS;
    const int own_token = token0 + id % TOKENS;
    if (id >= ROWS * TOKENS || output >= n || own_token >= m)
        return;
    kept dots = 0;
    for (int i = 0; i < WARPS; i++)
        dots += of_dots[i * ROWS * TOKENS + id];
    float value = (float)dots;
#if !GROUPED
    uint scale, zero;
    load_scaling(&scale, &zero, &p, output, 0);
    const float2 scaling = scaling_of(scale, zero, &p);
    value *= scaling.x;
    if (of_inputs) {
        kept inputs = 0;
        for (int i = 0; i < WARPS; i++)
            inputs += of_inputs_[i * ROWS * TOKENS + id];
        if (of_codes)
            inputs -= (kept)(x_zero[own_token] * k);
        value += scaling.y * (float)inputs;
    }
#else
    (void)of_inputs_;
#endif
    if (int_bias != NULL)
        value += (float)int_bias[output] *
                 load_value(scales, (size_t)output * (size_t)groups, scale_type);
    value *= factor;
    if (token_scale)
        value *= x_scale[own_token];
    y[(size_t)own_token * (size_t)ldy + (size_t)output] =
        value + (bias != NULL ? bias[output] : 0.0f);
}
