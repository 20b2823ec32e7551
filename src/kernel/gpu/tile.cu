/* SPDX-License-Identifier: Apache-2.0
 *
 * A product for many tokens on the matrix units of sm_80: a block of four warps computes 128
 * outputs of 128 tokens, each warp 64 of 64. Weights and activations pass through shared memory, a
 * step of k at a time, copied asynchronously while earlier steps are multiplied; formats that the
 * unit cannot multiply first become 16-bit floats or bytes there. Codes stay exact: scales apply to
 * sums.
 *
 *   GROUPED 0    weights have one scale for all of k, or none, and so have activations
 *   GROUPED 32   sums of 32 codes are scaled and added in f32; 16 and 64 likewise. Then
 *     ZERO 1     weights have zero points
 *     BLOCKS 1   activations have scales of blocks, and no zero points
 *
 * With a the scale of a group, b what its zero point adds, and z the zero point of a token:
 *   sum of (code - zero) * (x - z) = a * (dot - z * sum of codes) + b * (sum of x - count * z)
 *
 * Shared memory: STAGES times x [128][RAW_X bytes] and w [128][RAW_W]; then x and w converted to
 * rows of ROW bytes, if they need it; at the end, the totals, which threads of one output each
 * read. As many stages as every architecture has room for: tile_shared() of cuda_linear.c counts
 * the same.
 */
#include "cuda_wide.cuh"

#define THREADS 128
#define TILE 128

#if X == INPUT_I8
typedef int sum;
#define STEP 128
#define ROW 128 /* bytes that the unit multiplies */
#define X_BITS 8
#elif X == INPUT_WIDE_E4M3 || X == INPUT_WIDE_E5M2
typedef float sum;
#define STEP 64
#define ROW 64
#define X_BITS 16
#elif X == INPUT_F16
typedef float sum;
#define STEP 32
#define ROW 64
#define X_BITS 32
#else
typedef float sum;
#define STEP 64
#define ROW 128
#define X_BITS (X == INPUT_E4M3 ? 8 : 16)
#endif
#define RAW_X (STEP * X_BITS / 8)
#define RAW_W (STEP * WEIGHT_BITS / 8)
#define STAGE (TILE * (RAW_X + RAW_W))
#define WIDE (TILE * ROW * ((RAW_X != ROW) + (RAW_W != ROW)))
#define SLICES (ROW / 32) /* of 32 bytes of a row, which the unit multiplies at a time */

#if GROUPED
typedef float kept;               /* totals over all steps */
#define SEGMENTS (STEP / GROUPED) /* of a step, each under one scale */
#else
typedef sum kept;
#define SEGMENTS 1
#endif
#define IN_SEGMENT (SLICES / SEGMENTS)

/* sm_86, sm_89 and sm_120 allow a block 99 KiB, including `numbers` below. */
#define SHARED_MOST (99 << 10)
#define STAGES (3 * STAGE + WIDE + (8 * SEGMENTS + 1) * TILE * 4 > SHARED_MOST ? 2 : 3)

#include "cuda_tiles.cuh"

/* Start value of an integer sum: its bits are then those of OF_MAGIC plus the sum. */
#define MAGIC 0x4b400000
#define OF_MAGIC 12582912.0f

static inline void multiply(sum d[4], const uint a[4], const uint b[2])
{
#if X == INPUT_I8
    mma_s8(d, a, b);
#elif X == INPUT_F16
    mma_f16(d, a, b);
#elif X == INPUT_WIDE_E4M3
    mma_e4m3(d, a, b);
#elif X == INPUT_WIDE_E5M2
    mma_e5m2(d, a, b);
#else
    mma_bf16(d, a, b);
#endif
}

#if RAW_W != ROW

static inline void widen_w(uchar *to, const uchar *from)
{
    for (int one = (int)threadIdx.x; one < TILE * RAW_W / 16; one += THREADS) {
        const int row = one / (RAW_W / 16), part = one % (RAW_W / 16);
        uint words[4], out[4];
        get_words(from + one * 16, words);
#if X == INPUT_I8 /* 4-bit codes */
#pragma unroll
        for (int i = 0; i < 2; i++) {
            eight_bytes(words + 2 * i, out);
            eight_bytes(words + 2 * i + 1, out + 2);
            put_words(to, row, 2 * part + i, out);
        }
#elif W == WEIGHT_I4 || W == WEIGHT_E2M1
#pragma unroll
        for (int i = 0; i < 4; i++) {
#if W == WEIGHT_I4
            wide_i4(words + i, out);
#else
            wide_e2m1(words + i, out);
#endif
            put_words(to, row, 4 * part + i, out);
        }
#else
#pragma unroll
        for (int i = 0; i < 2; i++) {
#if W == WEIGHT_I8
            wide_i8(words + 2 * i, out);
#else
            wide_e4m3(words + 2 * i, out);
#endif
            put_words(to, row, 2 * part + i, out);
        }
#endif
    }
}

#endif

#if RAW_X != ROW

/* left: elements of k from the start of the step on. */
static inline void widen_x(uchar *to, const uchar *from, int left)
{
    for (int one = (int)threadIdx.x; one < TILE * ROW / 16; one += THREADS) {
        const int row = one / (ROW / 16), part = one % (ROW / 16);
        uint out[4];
#if X == INPUT_F16
        const float *eight = (const float *)(from + one * 32);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int k = 8 * part + 2 * i;
            out[i] =
                pack_f16(k < left ? eight[2 * i] : 0.0f, k + 1 < left ? eight[2 * i + 1] : 0.0f);
        }
#elif X == INPUT_WIDE_E4M3 || X == INPUT_WIDE_E5M2
        (void)left;
        narrow_f8(from + one * 32, from + one * 32 + 16, out);
#else
        (void)left;
        wide_e4m3((const uint *)(from + one * 8), out);
#endif
        put_words(to, row, part, out);
    }
}

#endif

/* ---- scales and sums ---- */

/* Scales and sums of each output and token. Two turns: the next step's are written while these are
 * read. */
typedef struct numbers {
    float a[2][SEGMENTS][TILE], b[2][SEGMENTS][TILE], x[2][SEGMENTS][TILE];
    kept sums_w[SEGMENTS][TILE], zeros_x[TILE];
    float sums_x[SEGMENTS][TILE];
} numbers;
static_assert(STAGES * STAGE + WIDE + sizeof(numbers) <= SHARED_MOST, "more than every sm has");

/* A thread's own output and token, and what all threads share. */
typedef struct product {
    const uchar *scales, *zeros;
    const float *x_scale;
    int row, token, k, group, groups, scale_type, zero_type, xblock;
    bool has_zero, x_has_zero;
} product;

#if !GROUPED
#define ZERO 1 /* maybe */
#define BLOCKS 0
#endif

typedef struct scaling {
    float a[SEGMENTS], b[SEGMENTS], x[SEGMENTS];
} scaling;

static __forceinline__ void load_scaling(scaling *out, const product *p, int step)
{
#pragma unroll
    for (int s = 0; s < SEGMENTS; s++) {
        const int k = min(step * STEP + s * (STEP / SEGMENTS), p->k - 1);
        const size_t group = (size_t)(p->groups > 1 ? k / p->group : 0);
        const size_t at = (size_t)p->row * (size_t)p->groups + group;
        const float scale = load_value(p->scales, at, p->scale_type);
#if X == INPUT_I8
        out->a[s] = scale * BYTE_VALUE;
#else
        out->a[s] = scale;
#endif
        out->b[s] = out->x[s] = 0;
        if (ZERO && p->has_zero)
            out->b[s] = load_value(p->zeros, at, p->zero_type) *
                        (is_int_zero(p->zero_type) ? -scale : 1.0f);
        if (BLOCKS) {
            const size_t blocks = (size_t)((p->k + p->xblock - 1) / p->xblock);
            out->x[s] = p->x_scale[(size_t)p->token * blocks + (size_t)(k / p->xblock)];
        }
    }
}

static __forceinline__ void put_scaling(numbers *to, const scaling *from, int turn)
{
    const int id = (int)threadIdx.x;
#pragma unroll
    for (int s = 0; s < SEGMENTS; s++) {
        to->a[turn][s][id] = from->a[s];
        if (ZERO)
            to->b[turn][s][id] = from->b[s];
        if (BLOCKS)
            to->x[turn][s][id] = from->x[s];
    }
}

/* The sum of the codes of a segment. */
static __forceinline__ sum sum_of(const uchar *tile, int row, int segment)
{
    const int parts = ROW / 16 / SEGMENTS;
    sum total = 0;
#pragma unroll
    for (int i = 0; i < parts; i++) {
        uint words[4];
        get_words(part_of(tile, row, segment * parts + i), words);
#pragma unroll
        for (int j = 0; j < 4; j++) {
#if X == INPUT_I8
            total = dot_bytes(words[j], 0x01010101u, total);
#elif X == INPUT_F16
            total += from_f16((ushort)(words[j] & 0xffffu)) + from_f16((ushort)(words[j] >> 16));
#else
            total += as_float(words[j] << 16) + as_float(words[j] & 0xffff0000u);
#endif
        }
    }
    return total;
}

/* ---- a step of a warp ---- */

/* Rows and parts of x and w in shared memory whose addresses a lane passes to load_matrix_x4, and
 * the first token and output of its sums. */
typedef struct lanes {
    int row_x, part_x, row_w, part_w, token, output;
} lanes;

static __forceinline__ lanes lanes_of(int id)
{
    const int lane = id % 32, across = id / 64 * 64, along = id / 32 % 2 * 64;
    lanes l;
    l.row_x = across + lane % 16, l.part_x = lane / 16;
    l.row_w = along + lane % 8 + lane / 16 * 8, l.part_w = lane / 8 % 2;
    l.token = across + lane / 4, l.output = along + lane % 4 * 2;
    return l;
}

#if !GROUPED

static __forceinline__ void multiply_step(kept total[4][8][4], const uchar *of_x, const uchar *of_w,
                                          const lanes *l)
{
#pragma unroll
    for (int s = 0; s < SLICES; s++) {
        uint a[4][4], b[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_matrix_x4(a[i], part_of(of_x, l->row_x + 16 * i, 2 * s + l->part_x));
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
            load_matrix_x4(b, part_of(of_w, l->row_w + 8 * j, 2 * s + l->part_w));
#pragma unroll
            for (int i = 0; i < 4; i++) {
                multiply(total[i][j], a[i], b);
                multiply(total[i][j + 1], a[i], b + 2);
            }
        }
    }
}

#else

/* A segment under one scale, and the lane's first token and output in a product of the unit. */
typedef struct segment_at {
    const numbers *at;
    int turn, segment, token, output;
} segment_at;

static __forceinline__ float2 pair_at(const float *from) { return *(const float2 *)from; }

/* Values of the lane's tokens. */
typedef struct of_tokens {
    float sum[4][2], zero[4][2];
    const float *scale; /* [64] */
} of_tokens;

/* Adds the scaled sums of a segment: sum q of a lane has token q / 2 and output q % 2. */
static __forceinline__ void add_scaled(float total[4], const sum part[4], const of_tokens *x, int i,
                                       float2 a, float2 b, float2 sums)
{
#pragma unroll
    for (int q = 0; q < 4; q++) {
#if X == INPUT_I8
        float value = as_float((uint)part[q]) - OF_MAGIC;
        if (!BLOCKS)
            value -= x->zero[i][q / 2] * (q % 2 == 0 ? sums.x : sums.y);
#else
        float value = part[q];
        (void)sums;
#endif
        if (BLOCKS) {
            value *= q % 2 == 0 ? a.x : a.y;
            if (ZERO)
                value += x->sum[i][q / 2] * (q % 2 == 0 ? b.x : b.y);
            total[q] += value * x->scale[16 * i + q / 2 * 8];
        } else {
            if (ZERO)
                total[q] += x->sum[i][q / 2] * (q % 2 == 0 ? b.x : b.y);
            total[q] += value * (q % 2 == 0 ? a.x : a.y);
        }
    }
}

/* Tiles of 16 tokens at a time. With 2 instead of 4, w is read twice, but registers suffice. */
#define AT_A_TIME (BLOCKS || X == INPUT_F16 ? 2 : 4)

static __forceinline__ void multiply_segment(float total[4][8][4], const uchar *of_x,
                                             const uchar *of_w, const lanes *l, const numbers *at,
                                             int turn, int segment)
{
    const int first = 2 * segment * IN_SEGMENT; /* part of a row */
    uint a[IN_SEGMENT][AT_A_TIME][4], b[IN_SEGMENT][4];
    of_tokens x;
    x.scale = &at->x[turn][segment][l->token];
#pragma unroll
    for (int i = 0; i < 8; i++) {
        x.sum[i / 2][i % 2] = at->sums_x[segment][l->token + 8 * i];
        x.zero[i / 2][i % 2] = at->zeros_x[l->token + 8 * i];
    }
#pragma unroll
    for (int j = 0; j < 8 * 4 / AT_A_TIME; j++) {
        const int i0 = j / 8 * AT_A_TIME, output = l->output + j % 8 * 8;
        const float2 of_a = pair_at(&at->a[turn][segment][output]);
        const float2 of_b = pair_at(&at->b[turn][segment][output]);
        const float2 sums = pair_at(&at->sums_w[segment][output]);
        if (j % 8 == 0)
#pragma unroll
            for (int i = 0; i < AT_A_TIME * IN_SEGMENT; i++)
                load_matrix_x4(a[i % IN_SEGMENT][i / IN_SEGMENT],
                               part_of(of_x, l->row_x + 16 * (i0 + i / IN_SEGMENT),
                                       first + 2 * (i % IN_SEGMENT) + l->part_x));
        if (j % 2 == 0)
#pragma unroll
            for (int s = 0; s < IN_SEGMENT; s++)
                load_matrix_x4(b[s],
                               part_of(of_w, l->row_w + j % 8 * 8, first + 2 * s + l->part_w));
#pragma unroll
        for (int i = 0; i < AT_A_TIME; i++) {
            sum part[4];
#pragma unroll
            for (int q = 0; q < 4; q++)
                part[q] = X == INPUT_I8 ? (sum)MAGIC : (sum)0;
#pragma unroll
            for (int s = 0; s < IN_SEGMENT; s++)
                multiply(part, a[s][i], b[s] + j % 2 * 2);
            add_scaled(total[i0 + i][j % 8], part, &x, i0 + i, of_a, of_b, sums);
        }
    }
}

#endif

/* ---- the product ---- */

#define TOTALS (TILE + 8) /* stride of a token's totals in shared memory */

static __forceinline__ void put_totals(kept *to, const kept total[4][8][4], const lanes *l)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++)
                to[(l->token + 16 * i + q / 2 * 8) * TOTALS + l->output + 8 * j + q % 2] =
                    total[i][j][q];
}

__kernel void __launch_bounds__(THREADS, 2) tile(PRODUCT_ARGS)
{
    PRODUCT_HERE;
    DYNAMIC_SHARED(room);
    __shared__ numbers at;
    const int id = (int)threadIdx.x;
    TILE_HERE;
    const product p = {scales,
                       zeros,
                       x_scale,
                       min(row0 + id, n - 1),
                       min(token0 + id, m - 1),
                       k,
                       group,
                       groups,
                       scale_type,
                       zero_type,
                       xblock,
                       zero_type != VALUE_NONE,
                       x_zero != NULL};
    const lanes l = lanes_of(id);
    const int steps = (k + STEP - 1) / STEP;
    const int x_end = (X == INPUT_F16 ? k : ldx) * X_BITS / 8, w_end = ldk * WEIGHT_BITS / 8;
    const copies copies_x = copies_of<RAW_X>(x, (size_t)ldx * X_BITS / 8, token0, m);
    const copies copies_w = copies_of<RAW_W>(codes, (size_t)w_end, row0, n);
    uchar *const wide_x = room + STAGES * STAGE;
    uchar *const wide_w = wide_x + (RAW_X != ROW ? TILE * ROW : 0);
    const int z = p.x_has_zero ? x_zero[p.token] : 0;
    kept total[4][8][4];
    scaling mine;
#pragma unroll
    for (int i = 0; i < 4; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int q = 0; q < 4; q++)
                total[i][j][q] = 0;

#define FETCH(step)                                                                                \
    do {                                                                                           \
        if ((step) < steps) {                                                                      \
            uchar *const to = room + (step) % STAGES * STAGE;                                      \
            if (X == INPUT_F16 && !x_aligned)                                                      \
                fetch_words<RAW_X>(to, &copies_x, (step)*RAW_X, x_end);                            \
            else                                                                                   \
                fetch<RAW_X>(to, &copies_x, (step)*RAW_X, x_end);                                  \
            fetch<RAW_W>(to + TILE * RAW_X, &copies_w, (step)*RAW_W, w_end);                       \
        }                                                                                          \
        copy_commit();                                                                             \
    } while (0)

    at.zeros_x[id] = (kept)z;
    load_scaling(&mine, &p, 0);
    put_scaling(&at, &mine, 0);
#if GROUPED
    load_scaling(&mine, &p, 1);
#else
    sum sum_w = 0, sum_x = 0;
#endif
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        FETCH(i);
    for (int step = 0; step < steps; step++) {
        copy_wait<STAGES - 2>();
        __syncthreads(); /* the step has arrived, and nothing reads the previous one */
        FETCH(step + STAGES - 1);
        uchar *const stage = room + step % STAGES * STAGE;
        uchar *const of_x = RAW_X != ROW ? wide_x : stage;
        uchar *const of_w = RAW_W != ROW ? wide_w : stage + TILE * RAW_X;
#if GROUPED
        put_scaling(&at, &mine, (step + 1) % 2);
        load_scaling(&mine, &p, step + 2);
#endif
#if RAW_X != ROW
        widen_x(wide_x, stage, k - step * STEP);
#endif
#if RAW_W != ROW
        widen_w(wide_w, stage + TILE * RAW_X);
#endif
#if RAW_X != ROW || RAW_W != ROW
        __syncthreads();
#endif
#if GROUPED && (ZERO || (X == INPUT_I8 && !BLOCKS))
#pragma unroll 1
        for (int s = 0; s < SEGMENTS; s++) {
            const int count = max(min(k - step * STEP - s * GROUPED, GROUPED), 0);
            at.sums_x[s][id] = (float)(sum_of(of_x, id, s) - (sum)(z * count));
            at.sums_w[s][id] = (float)sum_of(of_w, id, s);
        }
        __syncthreads();
#elif !GROUPED && (W == WEIGHT_I8 || W == WEIGHT_I4)
        if (p.has_zero || p.x_has_zero) {
            sum_x += sum_of(of_x, id, 0);
            sum_w += sum_of(of_w, id, 0);
        }
#endif
#if GROUPED
#pragma unroll 1
        for (int s = 0; s < SEGMENTS; s++)
            multiply_segment(total, of_x, of_w, &l, &at, step % 2, s);
#else
        multiply_step(total, of_x, of_w, &l);
#endif
    }
#if !GROUPED
    at.sums_x[0][id] = (float)(sum_x - (sum)(z * k));
    at.sums_w[0][id] = sum_w;
#endif
    __syncthreads();
    put_totals((kept *)room, total, &l);
    __syncthreads();
    if (row0 + id >= n)
        return;
    const float plus = bias != NULL ? bias[p.row] : 0.0f;
    const float of_int = int_bias != NULL
                             ? (float)int_bias[p.row] *
                                   load_value(scales, (size_t)p.row * (size_t)groups, scale_type)
                             : 0.0f;
#pragma unroll 4
    for (int i = 0; i < min(m - token0, TILE); i++) {
        const size_t token = (size_t)(token0 + i);
        kept got = ((const kept *)room)[i * TOTALS + id];
#if GROUPED
        float value = got;
#else
        if (p.x_has_zero)
            got -= at.zeros_x[i] * at.sums_w[0][id];
        float value = (float)got * at.a[0][0][id];
        if (p.has_zero)
            value += at.b[0][0][id] * at.sums_x[0][i];
#endif
        value = (value + of_int) * factor;
        if (token_scale)
            value *= x_scale[token];
        y[token * (size_t)ldy + (size_t)p.row] = value + plus;
    }
}
