/* SPDX-License-Identifier: Apache-2.0
 *
 * Makes the operands of training products: casts an f32 matrix, read by rows or by columns, to a
 * weight in the layout "rows" (gpu_pack.h) or to activations. The formulas are those of
 * cpu/cast_ref.c. Options, set by ocl_train.c:
 *
 *   FORM    the output format, FORM_*
 *   ACROSS  1: sum i is column i of x, else its row i
 *
 * A work-group casts 32 sums, 32 elements at a time through a tile, so that reads run along the
 * rows of x and writes along the sums, whichever way the sums run.
 */
#ifndef NIB_CUDA /* CUDA: a compiler option does this */
#pragma OPENCL FP_CONTRACT OFF
#endif

#define FORM_F32 0
#define FORM_BF16 1
#define FORM_E4M3 2 /* codes */
#define FORM_WIDE 3 /* e4m3 or e5m2 as bf16 */
#define FORM_MX8 4

#define TILE 32 /* also the elements of an MX block */
#define LANES 8 /* items per sum */
#define ITEMS (TILE * LANES)

#define HAS_SUM_SCALE (FORM == FORM_E4M3 || FORM == FORM_WIDE)
#define MAGNITUDE(f) (as_int(f) & 0x7fffffff)

#ifdef FORM

typedef LOCAL float (*tile_rows)[TILE + 1];

/* Loads elements j0.. of the sums from s0 on as [sum][element], 0 past the end of either. */
static void load_tile(tile_rows tile, const __global float *x, int s0, int j0, int sums, int length,
                      int ldx)
{
    const int along = (int)get_local_id(0) % TILE;
    for (int other = (int)get_local_id(0) / TILE; other < TILE; other += LANES) {
        const int of_sum = ACROSS ? along : other, of_j = ACROSS ? other : along;
        const int s = s0 + of_sum, j = j0 + of_j;
        const size_t at =
            ACROSS ? (size_t)j * (size_t)ldx + (size_t)s : (size_t)s * (size_t)ldx + (size_t)j;
        tile[of_sum][of_j] = s < sums && j < length ? x[at] : 0.0f;
    }
    barrier(CLK_LOCAL_MEM_FENCE);
}

/* The largest magnitude, as bits, among the elements that item `id` has of its sum, and `most`. */
static int tile_most(tile_rows tile, int id, int most)
{
    for (int j = id % LANES; j < TILE; j += LANES)
        most = max(most, MAGNITUDE(tile[id / LANES][j]));
    return most;
}

/* The largest `most` of the items of a sum. All items of the work-group must call it. */
static int sum_most(int most, LOCAL int *scratch)
{
    const int id = (int)get_local_id(0), first = id / LANES * LANES;
    scratch[id] = most;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int i = 0; i < LANES; i++)
        most = max(most, scratch[first + i]);
    barrier(CLK_LOCAL_MEM_FENCE);
    return most;
}

static uint sign_of(float v) { return (as_uint(v) >> 24) & 0x80u; }

/* Writes element `at`. A NaN factor makes the code 0. */
static void put(__global uchar *to, size_t at, float v, float factor, int is_e5m2)
{
#if FORM == FORM_F32
    ((__global float *)to)[at] = v;
#elif FORM == FORM_BF16
    ((__global ushort *)to)[at] = to_bf16_canonical_nan(v);
#else
    const int is_coded = IS_FINITE(as_int(factor));
    const uint sign = sign_of(v); /* a device may change the sign of a NaN that it multiplies */
    v *= factor;
#if FORM == FORM_WIDE
    const float near = is_e5m2 != 0 ? NEAREST_E5M2(v) : NEAREST_E4M3(v);
    ((__global ushort *)to)[at] =
        is_coded ? (ushort)((as_uint(near) >> 16) | (sign << 8)) : (ushort)0;
#else
    to[at] = is_coded ? (uchar)(e4m3_code(NEAREST_E4M3(v)) | sign) : (uchar)0;
#endif
#endif
}

/* width: elements written per sum, zeros past its length. Work-groups have 32 sums each, and
 * several take turns at the tiles of the same sums, but only one if it must first find a scale per
 * sum. Block scales are bytes for a weight, else f32. */
__kernel void cast_tiles(GLOBAL_ARG(float, x), GLOBAL_ARG(uchar, to), GLOBAL_ARG(uchar, scales),
                         GLOBAL_ARG(float, amax), int sums, int length, int ldx, int ld, int width,
                         int blocks, int is_weight, int has_amax, int two_power, int is_e5m2,
                         int is_floor, float code_max, float factor_of_zero)
{
    __local float tile[TILE][TILE + 1], factors[TILE];
    __local int scratch[ITEMS];
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(uchar, to);
    GLOBAL_PTR(uchar, scales);
    GLOBAL_CONST_PTR(float, amax);
    const int id = (int)get_local_id(0), s0 = (int)get_group_id(0) * TILE;
    const int of_sum = id / LANES, is_first = id % LANES == 0 && s0 + of_sum < sums;
    const int j_first = (int)get_group_id(1) * TILE, j_step = (int)get_num_groups(1) * TILE;
#if HAS_SUM_SCALE
    int most = has_amax != 0 ? MAGNITUDE(amax[0]) : 0;
    for (int j0 = 0; j0 < length && has_amax == 0; j0 += TILE) {
        load_tile(tile, x, s0, j0, sums, length, ldx);
        most = tile_most(tile, id, most);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    most = sum_most(most, scratch);
    const float factor = IS_FINITE(most)
                             ? choose_f8_factor(as_float(most), code_max, factor_of_zero, two_power)
                             : NOT_A_NUMBER;
    if (id % LANES == 0)
        factors[of_sum] = factor;
    if (is_first && j_first == 0)
        ((__global float *)scales)[s0 + of_sum] = /* of NaNs, the same one on every device */
            IS_FINITE(as_int(factor)) ? 1.0f / factor : NOT_A_NUMBER;
#endif
    for (int j0 = j_first; j0 < width; j0 += j_step) {
        load_tile(tile, x, s0, j0, sums, length, ldx);
#if FORM == FORM_MX8
        const int largest = sum_most(tile_most(tile, id, 0), scratch);
        const float quotient = as_float(largest) / 448.0f;
        const int byte = IS_FINITE(largest) ? mx_byte(largest, quotient, 8, is_floor) : 255;
        if (id % LANES == 0)
            factors[of_sum] = byte < 255 ? mx_factor(byte, is_floor) : NOT_A_NUMBER;
        if (is_first && j0 < length) {
            const size_t at = (size_t)(s0 + of_sum) * (size_t)blocks + (size_t)(j0 / TILE);
            if (is_weight != 0)
                scales[at] = (uchar)byte;
            else
                ((__global float *)scales)[at] = from_e8m0((uchar)byte);
        }
        barrier(CLK_LOCAL_MEM_FENCE);
#endif
        const int j = j0 + id % TILE;
        for (int s = id / TILE; s < TILE; s += LANES)
            if (s0 + s < sums && j < width)
                put(to, (size_t)(s0 + s) * (size_t)ld + (size_t)j, tile[s][id % TILE], factors[s],
                    is_e5m2);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
}

#else

/* The largest magnitude of ROWS rows per work-group; NaN if there is one, as its bits are larger
 * than infinity's. */
__kernel void amax_rows(GLOBAL_ARG(float, x), GLOBAL_ARG(float, out), int rows, int width, int ldx)
{
    __local int scratch[ITEMS];
    GLOBAL_CONST_PTR(float, x);
    GLOBAL_PTR(float, out);
    const int id = (int)get_local_id(0), row0 = (int)get_group_id(0) * ROWS;
    int most = 0;
    for (int row = row0; row < min(rows, row0 + ROWS); row++)
        for (int i = id; i < width; i += ITEMS)
            most = max(most, MAGNITUDE(x[(size_t)row * (size_t)ldx + (size_t)i]));
    scratch[id] = most;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = ITEMS / 2; step > 0; step /= 2) {
        if (id < step)
            scratch[id] = max(scratch[id], scratch[id + step]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    if (id == 0)
        out[get_group_id(0)] = as_float(scratch[0]);
}

#endif
