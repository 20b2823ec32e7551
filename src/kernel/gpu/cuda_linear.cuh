/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by CUDA products: the arguments, and decoding of codes in the layout "rows" (gpu_pack.h).
 * Options: W, the weight's codes, X, the activations, and EXPERTS. cuda_linear.c sets all of these.
 *
 *   codes   [n][ldk], zeros past k       scales, zeros   [n][groups]
 *   x       [m][ldx] f32, or bf16 or bytes of codes with zeros past k
 *   x_scale [m], or [m][ceil(k / xblock)] where xblock > 0        x_zero [m], or NULL
 *   y       [m][ldy]
 */
#ifndef NIB_CUDA_LINEAR_CUH
#define NIB_CUDA_LINEAR_CUH

#include "cuda_ptx.cuh"

/* EXPERTS: the rows are those of several experts (nib_linear.experts), a block's of one. The first
 * token of a block's tile, one of those that chose its expert, whose rows and weight the arguments
 * then are. FEW and MANY count tiles as expert_of_few and expert_of_many of prelude.cl. */
#ifndef EXPERTS
#define EXPERT_ARGS
#define TOKENS_OF_FEW(tile, tokens) const int token0 = (int)(tile) * (tokens)
#else
#define EXPERT_ARGS                                                                                \
    , GLOBAL_ARG(int, firsts), GLOBAL_ARG(int, owners), GLOBAL_ARG(long, places),                  \
        GLOBAL_ARG(float, factors), int experts, int head_step
#define INPUT_BYTES (X == INPUT_F32 ? 4 : X == INPUT_BF16 ? 2 : 1)
#define TAKE_EXPERT(which, tile, tokens)                                                           \
    int token0;                                                                                    \
    after_previous();                                                                              \
    const int of_head = m / experts; /* rows */                                                    \
    const int chosen = head_step > 0 ? head_of((int)(tile), of_head, tokens, &token0) : which;     \
    if (chosen < 0)                                                                                \
        return;                                                                                    \
    const size_t first_row = (size_t)(head_step > 0 ? chosen * of_head : firsts_base[chosen]);     \
    const size_t place = (size_t)places_base[2 * chosen];                                          \
    m = head_step > 0 ? of_head : firsts_base[chosen + 1] - firsts_base[chosen];                   \
    factor = factors_base[chosen];                                                                 \
    codes += place, scales += place, zeros += place;                                               \
    bias =                                                                                         \
        bias != NULL ? (const float *)((const uchar *)bias + places_base[2 * chosen + 1]) : NULL;  \
    x += first_row * (size_t)ldx * INPUT_BYTES;                                                    \
    x_scale += first_row * (size_t)(xblock > 0 ? (k + xblock - 1) / xblock : 1);                   \
    x_zero = x_zero != NULL ? x_zero + first_row : NULL;                                           \
    y += head_step > 0 ? (size_t)chosen * (size_t)head_step : first_row * (size_t)ldy
#define TOKENS_OF_FEW(tile, tokens)                                                                \
    TAKE_EXPERT(expert_of_few(firsts_base, owners_base, (int)(tile), tokens, &token0), tile, tokens)
#define TOKENS_OF_MANY(tile, tokens)                                                               \
    TAKE_EXPERT(expert_of_many(firsts_base, experts, (int)(tile), tokens, &token0), tile, tokens)
#endif

#define PRODUCT_ARGS                                                                               \
    GLOBAL_ARG(uchar, codes), GLOBAL_ARG(uchar, scales), GLOBAL_ARG(uchar, zeros),                 \
        GLOBAL_ARG(uchar, x), GLOBAL_ARG(float, x_scale), GLOBAL_ARG(int, x_zero),                 \
        GLOBAL_ARG(float, bias), GLOBAL_ARG(int, int_bias), GLOBAL_ARG(float, y), int m, int n,    \
        int k, int ldk, int group, int groups, int scale_type, int zero_type, int ldx, int xblock, \
        int ldy, int x_aligned, int token_scale, float factor EXPERT_ARGS

/* Before after_previous(), a kernel may read weights: the launch before it does not write them. */
#define PRODUCT_AHEAD                                                                              \
    const uchar *codes = codes_base, *scales = scales_base, *zeros = zeros_base, *x = x_base;      \
    const float *x_scale = x_scale_base, *bias = bias_base;                                        \
    const int *x_zero = x_zero_base, *const int_bias = int_bias_base;                              \
    float *y = y_base
#define PRODUCT_HERE                                                                               \
    PRODUCT_AHEAD;                                                                                 \
    after_previous()

/* load_value() in two parts, so that the load need not be waited for: the bits, and their value. */
static inline uint load_bits(const uchar *from, size_t i, int type)
{
    uint bits = 0;
    if (type == VALUE_I32 || type == TYPE_F32)
        bits = ((const uint *)from)[i];
    else if (type == TYPE_F16 || type == TYPE_BF16)
        bits = ((const ushort *)from)[i];
    else if (type != VALUE_NONE)
        bits = from[i];
    return bits;
}

static inline float value_of(uint bits, int type)
{
    switch (type) {
    case VALUE_NONE: return 1.0f;
    case VALUE_E8M0: return from_e8m0((uchar)bits);
    case VALUE_E4M3: return from_e4m3((uchar)bits);
    case VALUE_I8: return (float)(signed char)bits;
    case VALUE_I32: return (float)(int)bits;
    case TYPE_F16: return from_f16((ushort)bits);
    case TYPE_BF16: return from_bf16((ushort)bits);
    default: return as_float(bits);
    }
}

static inline bool is_int_zero(int type) { return type == VALUE_I8 || type == VALUE_I32; }

/* e4m3 from its bits in the place of an f32's, whose exponent is then 120 too small. */
static inline float quick_e4m3(uint bits)
{
    const float small = as_float((bits & 0x7fu) << 20 | (bits & 0x80u) << 24);
    const float value = small * as_float(0x7b800000u);
    return (bits & 0x7fu) == 0x7fu ? as_float(0x7fc00000u) : value;
}

#if W == WEIGHT_F32
#define WEIGHT_BITS 32
#elif W == WEIGHT_F16 || W == WEIGHT_BF16
#define WEIGHT_BITS 16
#elif W == WEIGHT_I4 || W == WEIGHT_E2M1
#define WEIGHT_BITS 4
#else
#define WEIGHT_BITS 8
#endif

#define EIGHT_WORDS (WEIGHT_BITS / 4) /* words per eight codes */

/* Decodes eight codes to floats, k ascending. */
static inline void eight_codes(const uint *words, float out[8])
{
#pragma unroll
    for (int j = 0; j < 8; j++) {
        const uint word = words[j * WEIGHT_BITS / 32];
        const uint code = word >> (j * WEIGHT_BITS % 32);
#if W == WEIGHT_F32
        out[j] = as_float(code);
#elif W == WEIGHT_F16
        out[j] = from_f16((ushort)(code & 0xffffu));
#elif W == WEIGHT_BF16
        out[j] = as_float(j % 2 == 0 ? word << 16 : word & 0xffff0000u);
#elif W == WEIGHT_I8 /* 2^23 + 128 + code, minus 2^23 + 128 */
        out[j] = as_float(((code & 0xffu) ^ 0x80u) | 0x4b000000u) - 8388736.0f;
#elif W == WEIGHT_I4
        out[j] = as_float(((code & 0xfu) ^ 0x8u) | 0x4b000000u) - 8388616.0f;
#elif W == WEIGHT_E4M3
        out[j] = quick_e4m3(code);
#elif W == WEIGHT_E5M2
        out[j] = from_e5m2((uchar)(code & 0xffu));
#else
        out[j] = from_e2m1(code);
#endif
    }
}

#if W == WEIGHT_I8 || W == WEIGHT_I4 || W == WEIGHT_E2M1
/* Eight codes as bytes. Codes of int4 go to the high half of a byte, where their sign bit is the
 * byte's, so they are 16 times as large; those of e2m1 are twice as large. */
#define BYTE_SHIFT (W == WEIGHT_I4 ? 4 : 0)
#define BYTE_VALUE (W == WEIGHT_I4 ? 0.0625f : W == WEIGHT_E2M1 ? 0.5f : 1.0f) /* of 1 */
static inline void eight_bytes(const uint *words, uint out[2])
{
#if W == WEIGHT_I8
    out[0] = words[0], out[1] = words[1];
#elif W == WEIGHT_E2M1
    const uint sizes = words[0] & 0x77777777u;
    const uint signs = words[0] & (sizes + 0x77777777u) & 0x88888888u; /* not of -0 */
    const uint even = signs << 4, odd = signs;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint size = choose_bytes(0x03020100u, 0x0c080604u, sizes >> (16 * i) & 0xffffu);
        const uint sign = choose_bytes(even, odd, i == 0 ? 0x5140u : 0x7362u) >> 7 & 0x01010101u;
        out[i] = (size ^ sign * 255u) + sign; /* two's complement: no byte carries */
    }
#else
    const uint even = (words[0] << 4) & 0xf0f0f0f0u, odd = words[0] & 0xf0f0f0f0u;
    out[0] = choose_bytes(even, odd, 0x5140u);
    out[1] = choose_bytes(even, odd, 0x7362u);
#endif
}
#endif

#endif
