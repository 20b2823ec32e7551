/* SPDX-License-Identifier: Apache-2.0
 *
 * Compiled before every source: how functions declare arguments, number formats as bits, and
 * reductions over a work-group. OpenCL C 1.2 without fp16 arithmetic, which many devices lack.
 */

/* A pointer argument is a base and an offset in bytes: GLOBAL_ARG declares them in the argument
 * list, and GLOBAL_PTR at the top of the body defines `name` as the pointer. LOCAL qualifies a
 * parameter that points to local memory. CUDA has its own definitions (cuda_prelude.cuh). */
#ifndef NIB_CUDA
#define LOCAL __local
#define GLOBAL_ARG(type, name) __global type *name##_base, ulong name##_offset
#define GLOBAL_PTR(type, name)                                                                     \
    __global type *name = (__global type *)((__global uchar *)name##_base + name##_offset)
#define GLOBAL_CONST_PTR(type, name)                                                               \
    const __global type *name =                                                                    \
        (const __global type *)((const __global uchar *)name##_base + name##_offset)
#endif

/* For functions with a parameter in local memory: if PoCL 3.1 inlines one too late, all work-groups
 * that run at the same time share that memory. */
#ifdef NIB_CUDA
#define INLINED static
#else
#define INLINED static inline __attribute__((always_inline))
#endif

/* ---- number formats: as nib__to_f32 and nib__from_f32 (src/base/float_formats.c), except that
 * to_bf16 and to_f16 give other NaN bits ---- */

#define TYPE_F32 0
#define TYPE_F16 1
#define TYPE_BF16 2

static float from_bf16(ushort bits) { return as_float((uint)bits << 16); }

/* Rounds to nearest, ties to even; NaN keeps its sign and upper payload bits. */
static ushort to_bf16(float value)
{
    const uint bits = as_uint(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (ushort)((bits >> 16) | 0x40u);
    return (ushort)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

static float from_f16(ushort bits)
{
    const uint sign = (uint)(bits & 0x8000u) << 16, rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) /* infinity, NaN */
        return as_float(sign | 0x7f800000u | ((rest & 0x3ffu) << 13));
    /* Subnormals are converted from integers, as a device may flush subnormal factors to 0. Normals
     * shift into f32's fields, plus the difference of the exponent biases. */
    if (rest < 0x400u) {
        const float value = (float)rest * 5.9604644775390625e-8f; /* 2^-24 */
        return sign != 0 ? -value : value;
    }
    return as_float(sign | ((rest << 13) + 0x38000000u));
}

static ushort to_f16(float value)
{
    const uint bits = as_uint(value), sign = (bits >> 16) & 0x8000u, rest = bits & 0x7fffffffu;
    if (rest > 0x7f800000u)
        return (ushort)(sign | 0x7e00u);
    if (rest >= 0x477ff000u) /* rounds to 65536 or more */
        return (ushort)(sign | 0x7c00u);
    if (rest < 0x38800000u) { /* a denormal of f16: a multiple of 2^-24 */
        const uint shift = 126u - (rest >> 23);
        if (shift > 24u)
            return (ushort)sign;
        const uint fraction = (rest & 0x7fffffu) | 0x800000u, tie = 1u << (shift - 1);
        const uint down = fraction >> shift, left = fraction & ((1u << shift) - 1u);
        return (ushort)(sign | (down + (left > tie || (left == tie && (down & 1u)) ? 1u : 0u)));
    }
    return (ushort)(sign | ((rest - 0x38000000u + 0xfffu + ((rest >> 13) & 1u)) >> 13));
}

/* e4m3 without infinities: 0x7f and 0xff are NaN. */
static float from_e4m3(uchar bits)
{
    const uint sign = (uint)(bits & 0x80u) << 24, rest = bits & 0x7fu;
    if (rest == 0x7fu)
        return as_float(sign | 0x7fc00000u);
    if (rest < 8u) {
        const float value = (float)rest * 0.001953125f; /* 2^-9 */
        return sign != 0 ? -value : value;
    }
    return as_float(sign | ((rest << 20) + 0x3c000000u));
}

static float from_e5m2(uchar bits) { return from_f16((ushort)((uint)bits << 8)); }

/* 2^(bits - 127); 0 is the denormal 2^-127, 255 is NaN. */
static float from_e8m0(uchar bits)
{
    return as_float(bits == 255u ? 0x7fc00000u : bits == 0u ? 0x00400000u : (uint)bits << 23);
}

static float from_e2m1(uint bits)
{
    const uint magnitude = bits & 7u;
    /* 0 0.5 1 1.5 2 3 4 6 as f32 */
    const float value =
        magnitude < 2u ? 0.5f * (float)magnitude : as_float((magnitude << 22) + 0x3f000000u);
    return (bits & 8u) != 0 ? -value : value;
}

/* ---- to formats of 16, 8 and 4 bits, for quantizers and casts ---- */

#define IS_FINITE(bits) (((bits) & 0x7fffffff) < 0x7f800000)
#define NOT_A_NUMBER as_float(0x7fc00000u)

/* Maps float bits to integers of the same order, with NaN beyond infinity on both sides. Its own
 * inverse. */
static int float_order_key(int bits) { return bits ^ ((bits >> 31) & 0x7fffffff); }

/* As nib__f32_to_bf16: every NaN becomes 0x7fc0 with its sign. */
static ushort to_bf16_canonical_nan(float value)
{
    const uint bits = as_uint(value);
    return (bits & 0x7fffffffu) <= 0x7f800000u ? to_bf16(value)
                                               : (ushort)(0x7fc0u | ((bits >> 16) & 0x8000u));
}

/* |x|, saturated at max_value and rounded to a format with `fraction_bits` bits of fraction and the
 * smallest normal 2^min_exponent. Below that, values are multiples of
 * 2^(min_exponent - fraction_bits), to which adding a large constant rounds. */
static float round_to_format(float x, int fraction_bits, int min_exponent, float max_value)
{
    const float v = fmin(as_float(as_uint(x) & 0x7fffffffu), max_value);
    const uint drop = 23u - (uint)fraction_bits, all = as_uint(v);
    if (all < (uint)(min_exponent + 127) << 23) {
        const float large = as_float((uint)(min_exponent - fraction_bits + 23 + 127) << 23);
        return (v + large) - large;
    }
    return as_float((all + (1u << (drop - 1)) - 1u + ((all >> drop) & 1u)) & ~((1u << drop) - 1u));
}

#define NEAREST_E4M3(x) round_to_format(x, 3, -6, 448.0f)
#define NEAREST_E5M2(x) round_to_format(x, 2, -14, 57344.0f)
#define NEAREST_E2M1(x) round_to_format(x, 1, 0, 6.0f)

/* The code of an e4m3 value without its sign. */
static uint e4m3_code(float value)
{
    const uint bits = as_uint(value);
    return bits < 0x3c800000u ? (uint)(value * 512.0f) : (bits >> 20) - (120u << 3);
}

/* Training: the factor that scales the largest magnitude to `code_max`. If `largest` is at most
 * 1e-12, factor_of_zero. two_power: rounded down to a power of two. */
static float choose_f8_factor(float largest, float code_max, float factor_of_zero, int two_power)
{
    const float factor = largest > 1e-12f ? code_max / largest : factor_of_zero;
    return two_power != 0 ? as_float(as_uint(factor) & 0xff800000u) : factor;
}

/* The smallest power of two that is not below `value`, as its exponent byte. */
static int e8m0_up(float value)
{
    const int bits = as_int(value), exponent = bits >> 23, fraction = bits & 0x7fffff;
    return exponent + (exponent == 0 ? fraction > 0x400000 : fraction != 0);
}

/* The scale byte of an MX block. largest: bits of the block's largest magnitude; quotient: that
 * magnitude / the largest code, whose exponent is exponent_most. is_floor: byte = exponent of the
 * magnitude - exponent_most; else the quotient rounded up to a power of two. */
static int mx_byte(int largest, float quotient, int exponent_most, int is_floor)
{
    return is_floor != 0 ? max((largest >> 23) - exponent_most, 0) : e8m0_up(quotient);
}

/* The factor on the values of the block. */
static float mx_factor(int byte, int is_floor)
{
    const float of_zero = is_floor != 0 ? as_float((126 + 127) << 23) : 1.0f;
    return byte > 0 ? as_float((254 - byte) << 23) : of_zero;
}

/* A value of an array of TYPE_*. */
static float load_typed(const __global uchar *p, size_t i, int type)
{
    if (type == TYPE_F32)
        return ((const __global float *)p)[i];
    const ushort bits = ((const __global ushort *)p)[i];
    return type == TYPE_F16 ? from_f16(bits) : from_bf16(bits);
}

static void store_typed(__global uchar *p, size_t i, int type, float value)
{
    if (type == TYPE_F32)
        ((__global float *)p)[i] = value;
    else
        ((__global ushort *)p)[i] = type == TYPE_F16 ? to_f16(value) : to_bf16(value);
}

/* ---- codes and types of linear and embedding kernels; as in nib_element and gpu_args.h ---- */

#define WEIGHT_F32 0
#define WEIGHT_F16 1
#define WEIGHT_BF16 2
#define WEIGHT_I8 3
#define WEIGHT_I4 4
#define WEIGHT_E4M3 5
#define WEIGHT_E5M2 6
#define WEIGHT_E2M1 7

#define INPUT_F32 0
#define INPUT_BF16 1
#define INPUT_I8 2
#define INPUT_E4M3 3
#define INPUT_F16 4       /* f32 whose values are exact in f16 */
#define INPUT_WIDE_E4M3 5 /* bf16 whose values are exact in e4m3 */
#define INPUT_WIDE_E5M2 6 /* bf16 whose values are exact in e5m2 */

/* Types of scales and zero points; f32, f16 and bf16 are TYPE_*. */
#define VALUE_NONE (-1)
#define VALUE_E8M0 3
#define VALUE_E4M3 4
#define VALUE_I8 5
#define VALUE_I32 6

static float load_value(const __global uchar *from, size_t i, int type)
{
    switch (type) {
    case VALUE_NONE: return 1.0f;
    case VALUE_E8M0: return from_e8m0(from[i]);
    case VALUE_E4M3: return from_e4m3(from[i]);
    case VALUE_I8: return (float)((const __global char *)from)[i];
    case VALUE_I32: return (float)((const __global int *)from)[i];
    default: return load_typed(from, i, type);
    }
}

/* ---- rows of several work-groups each. All work-groups are in dimension 0, because CUDA allows
 * only 65,535 in the others ---- */

#define ROW_OF_GROUP(parts) ((size_t)((uint)get_group_id(0) / (uint)(parts)))
#define PART_OF_GROUP(parts) ((int)((uint)get_group_id(0) % (uint)(parts)))
/* For rows of `width` elements, one per work-item. */
#define GROUPS_OF(width) (((width) + GROUP - 1) / GROUP)
#define COLUMN_OF(width) (PART_OF_GROUP(GROUPS_OF(width)) * GROUP + (int)get_local_id(0))

/* ---- rows sorted by expert (nib_expert_rows), in tiles of `tokens` rows of one expert each. A
 * tile's expert, or -1 if the tile has no rows; *token0: the first of its rows among the expert's
 * ---- */

/* For few rows: a tile for each row, empty unless one begins there. */
static int expert_of_few(const __global int *first, const __global int *expert, int tile,
                         int tokens, int *token0)
{
    const int e = expert[tile];
    *token0 = tile - first[e];
    return *token0 % tokens == 0 ? e : -1;
}

/* For many: an expert's tiles begin at first / tokens + its index, at most rows / tokens + experts
 * in all. */
static int expert_of_many(const __global int *first, int experts, int tile, int tokens,
                          int *token0)
{
    int low = 0, high = experts - 1; /* the last expert that begins at or before the tile */
    while (low < high) {
        const int middle = (low + high + 1) / 2;
        if (first[middle] / tokens + middle <= tile)
            low = middle;
        else
            high = middle - 1;
    }
    *token0 = (tile - first[low] / tokens - low) * tokens;
    return *token0 < first[low + 1] - first[low] ? low : -1;
}

/* Rows sorted by head, `rows` of each: a tile's head, and the first of its rows among the head's. */
static int head_of(int tile, int rows, int tokens, int *token0)
{
    const int tiles = (rows + tokens - 1) / tokens;
    *token0 = tile % tiles * tokens;
    return tile / tiles;
}

/* ---- reductions over a work-group: every work-item passes a value and gets the result ---- */

#ifdef SUBGROUPS

#ifdef NIB_EMULATE /* for the kernel checker: sub-groups of one work-item */
#define sub_group_reduce_add(value) (value)
#define sub_group_reduce_max(value) (value)
#define get_sub_group_local_id() 0u
#define get_sub_group_id() ((uint)get_local_id(0))
#define get_num_sub_groups() ((uint)get_local_size(0))
#elif defined(cl_intel_subgroups)
#pragma OPENCL EXTENSION cl_intel_subgroups : enable
#elif defined(cl_khr_subgroups)
#pragma OPENCL EXTENSION cl_khr_subgroups : enable
#endif

/* Each sub-group's result goes to `scratch`, which has a float for each work-item. */
INLINED float group_sum(float value, __local float *scratch)
{
    const float part = sub_group_reduce_add(value);
    if (get_sub_group_local_id() == 0)
        scratch[get_sub_group_id()] = part;
    barrier(CLK_LOCAL_MEM_FENCE);
    float sum = scratch[0];
    for (uint i = 1; i < get_num_sub_groups(); i++)
        sum += scratch[i];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}

INLINED float group_max(float value, __local float *scratch)
{
    const float part = sub_group_reduce_max(value);
    if (get_sub_group_local_id() == 0)
        scratch[get_sub_group_id()] = part;
    barrier(CLK_LOCAL_MEM_FENCE);
    float largest = scratch[0];
    for (uint i = 1; i < get_num_sub_groups(); i++)
        largest = fmax(largest, scratch[i]);
    barrier(CLK_LOCAL_MEM_FENCE);
    return largest;
}

#elif !defined(NIB_CUDA) /* CUDA uses warp shuffles */

/* `scratch` has a float for each work-item; their number is a power of two. */
INLINED float group_sum(float value, __local float *scratch)
{
    const int id = (int)get_local_id(0);
    scratch[id] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = (int)get_local_size(0) / 2; step > 0; step /= 2) {
        if (id < step)
            scratch[id] += scratch[id + step];
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float sum = scratch[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return sum;
}

INLINED float group_max(float value, __local float *scratch)
{
    const int id = (int)get_local_id(0);
    scratch[id] = value;
    barrier(CLK_LOCAL_MEM_FENCE);
    for (int step = (int)get_local_size(0) / 2; step > 0; step /= 2) {
        if (id < step)
            scratch[id] = fmax(scratch[id], scratch[id + step]);
        barrier(CLK_LOCAL_MEM_FENCE);
    }
    const float largest = scratch[0];
    barrier(CLK_LOCAL_MEM_FENCE);
    return largest;
}

#endif
