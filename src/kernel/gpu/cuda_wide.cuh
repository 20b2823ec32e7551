/* SPDX-License-Identifier: Apache-2.0
 *
 * Widens codes to what the matrix units multiply: eight codes to four words of two 16-bit floats,
 * f16 if X is INPUT_F16, else bf16, exactly. Small integers become the low bits of a large float,
 * which is then subtracted; the bits of small floats move to their place in the wider format, which
 * a factor corrects for the difference of the biases.
 */
#ifndef NIB_CUDA_WIDE_CUH
#define NIB_CUDA_WIDE_CUH

#include "cuda_linear.cuh"

#define BOTH(half) ((uint)(half)*0x10001u)

#if X == INPUT_F16
#define PAIR_FMA fma_f16
#define PAIR_ONE BOTH(0x3c00)
#define NIBBLE_BASE BOTH(0x6408) /* 1024 + 8 */
#else
#define PAIR_FMA fma_bf16
#define PAIR_ONE BOTH(0x3f80)
#define NIBBLE_BASE BOTH(0x4308) /* 128 + 8 */
#endif

/* 4-bit codes are extracted in pairs of codes j and j + 4; puts them in order. */
static inline void in_order(const uint pair[4], uint out[4])
{
    out[0] = choose_bytes(pair[0], pair[1], 0x5410u);
    out[1] = choose_bytes(pair[2], pair[3], 0x5410u);
    out[2] = choose_bytes(pair[0], pair[1], 0x7632u);
    out[3] = choose_bytes(pair[2], pair[3], 0x7632u);
}

/* Pairs of codes j and j + 4. */
static inline void pairs_i4(uint word, uint out[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++)
        out[j] = PAIR_FMA(((word >> (4 * j)) & BOTH(0xf)) ^ NIBBLE_BASE, PAIR_ONE,
                          NIBBLE_BASE ^ BOTH(0x8000));
}

static inline void wide_i4(const uint *words, uint out[4])
{
    uint pair[4];
    pairs_i4(words[0], pair);
    in_order(pair, out);
}

static inline void wide_i8(const uint *words, uint out[4])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint codes = words[i] ^ 0x80808080u; /* + 128 */
#if X == INPUT_F16
        out[2 * i] = fma_f16(choose_bytes(codes, 0x64646464u, 0x4140u), PAIR_ONE, BOTH(0xe480));
        out[2 * i + 1] = fma_f16(choose_bytes(codes, 0x64646464u, 0x4342u), PAIR_ONE, BOTH(0xe480));
#else
        float value[4];
#pragma unroll
        for (int j = 0; j < 4; j++)
            value[j] = as_float(choose_bytes(codes, 0x4b000000u, 0x7440u + (uint)j)) - 8388736.0f;
        out[2 * i] = pack_bf16(value[0], value[1]);
        out[2 * i + 1] = pack_bf16(value[2], value[3]);
#endif
    }
}

#if X == INPUT_WIDE_E4M3 || X == INPUT_WIDE_E5M2

/* The reverse: twice eight bf16 values that f8 holds to four words of f8. */
static inline void narrow_f8(const uchar *eight, const uchar *next, uint out[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint2 four = ((const uint2 *)(i < 2 ? eight : next))[i % 2];
        const float a = as_float(four.x << 16), b = as_float(four.x & 0xffff0000u);
        const float c = as_float(four.y << 16), d = as_float(four.y & 0xffff0000u);
#if X == INPUT_WIDE_E4M3
        out[i] = pack_e4m3(a, b) | pack_e4m3(c, d) << 16;
#else
        out[i] = pack_e5m2(a, b) | pack_e5m2(c, d) << 16;
#endif
    }
}

#elif X != INPUT_F16

static inline void wide_e4m3(const uint *words, uint out[4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint high = choose_bytes(words[i / 2], 0u, i % 2 == 0 ? 0x1404u : 0x3424u);
        const uint size = (high >> 4) & BOTH(0x7f0), nan = (size + BOTH(0x10)) & BOTH(0x800);
        out[i] = fma_bf16(size | (high & BOTH(0x8000)), BOTH(0x7b80) /* 2^120 */, 0u);
        if (nan != 0)
            out[i] |= (nan >> 11) * 0x7fc0u;
    }
}

/* Pairs of codes j and j + 4. */
static inline void pairs_e2m1(uint word, uint out[4])
{
#pragma unroll
    for (int j = 0; j < 4; j++) {
        const uint code = word >> (4 * j);
        const uint bits = (code & BOTH(7)) << 6 | (code & BOTH(8)) << 12;
        out[j] = fma_bf16(bits, BOTH(0x7e80) /* 2^126 */, 0u);
    }
}

static inline void wide_e2m1(const uint *words, uint out[4])
{
    uint pair[4];
    pairs_e2m1(words[0], pair);
    in_order(pair, out);
}

#endif

#endif
