/* SPDX-License-Identifier: Apache-2.0
 *
 * What the linear rows with float accumulators share: the packed layout "n16" and the functions of
 * the rows. Activations are float, e4m3 per token, MX or NVFP4; the sums are those of
 * linear_float_ref.c.
 *
 * The layout: outputs are cut into panels of 16, the last one padded with zeros; k is padded with
 * zero codes to a multiple of 8. All panels have the same size and start at a multiple of 64 bytes:
 *
 *   scales [groups][16]   f32, or bf16 / f16 / e8m0 as stored (f64 becomes f32, e4m3 bf16)
 *   zeros  [groups][16]   as the scales for float zeros, int8 for integer zeros
 *   codes, in steps of 8 k:
 *     f32, f16   [8][16]
 *     bf16       [4][16][2]           a pair of k in one 32-bit lane, as vdpbf16ps takes it
 *     int8       [8][16]
 *     f8         [4][16][2]           bytes recoded, see nib__e4m3_small
 *     int4, fp4  [16] 32-bit words    k = 2i in bits 4i.., k = 2i + 1 in bits 16 + 4i..
 *   int1, 2, 3, 5, 6, 7: code + 2^(b-1) cut into parts of 4, 2 and 1 bits, those that add up to b,
 *                the lowest bits first: [16] words as int4, then [16] of 16 bits with k in bits
 *                2k.., then [16] bytes with k in bit k
 *
 * A row or tensor scale is one group. So a panel is read in ascending order, and all instruction
 * sets share the same packed bytes.
 */
#ifndef NIB_LINEAR_FLOAT_H
#define NIB_LINEAR_FLOAT_H

#include "arm.h"
#include "kernel.h"
#include "x86.h"

enum {
    NIB_FLOAT_PANEL = 16, /* outputs */
    NIB_FLOAT_STEP = 8,   /* k */
};

typedef struct nib_float_layout {
    int64_t count; /* panels */
    int64_t group; /* elements of k per scale, multiple of NIB_FLOAT_STEP; 0: one scale or none */
    int64_t groups;
    int64_t k_steps;
    size_t zero_at, code_at; /* offsets in a panel; scales are at 0 */
    size_t bytes;            /* of a panel */
    size_t step_bytes;       /* codes of NIB_FLOAT_STEP k */
    nib_type scale_type;     /* as packed: F32, BF16, F16, E8M0; NONE: no scales */
    nib_type zero_type;      /* F32, BF16, F16 or I8; NONE: no zeros */
} nib_float_layout;

nib_float_layout nib__float_layout(const nib_weight *w);

/* Bytes of a packed scale or zero. */
NIB_INLINE size_t nib__value_size(nib_type type)
{
    return type == NIB_TYPE_F32 ? 4 : type == NIB_TYPE_I8 || type == NIB_TYPE_E8M0 ? 1 : 2;
}

/* ---- the reference and the functions of the rows ---- */

/* Elements of k after which float sums restart. */
int64_t nib__sum_block(const nib_weight *w);

extern const nib_packing nib__packing_n16;

/* Bytes of f8 weights are recoded when they are packed: the sign moves to bit 0, and the codes that
 * are not normal numbers become 0..15, so that decoding is a shift, an addition and a table of 16
 * entries.
 *   e4m3: the exponent in bits 4..7; 0 is zero, 1 is NaN, 2m + sign a subnormal; no minus zero
 *   e5m2: (exponent + 1) mod 32 in bits 3..7; 0..7 infinity and NaN, 8..15 zero and subnormals
 * These tables hold the bf16 of the recoded bytes 0..15, twice (32 entries). */
extern const uint16_t nib__e4m3_small[32], nib__e5m2_small[32];

size_t nib__linear_float_ref_scratch(const void *args);
/* With F32 sums and with BF16 sums. */
void nib__linear_f32_ref(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);
void nib__linear_bf16_ref(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);

/* Scratch of the packed rows, for any instruction set. */
size_t nib__linear_float_scratch(const void *args);

/* The functions of linear_float__<isa>.c, by the type of their sums. */
void nib__linear_f32_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);
void nib__linear_f32_avx512(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);
void nib__linear_f32_neon(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);
void nib__linear_bf16_avx2(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);
void nib__linear_bf16_avx512(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);
void nib__linear_bf16_avx512bf16(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);
void nib__linear_bf16_neon(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);

/* ---- for linear_float_body.h and the files that include it ---- */

NIB_INLINE bool is_nibble(nib_element f) { return f == NIB_ELEMENT_I4 || f == NIB_ELEMENT_E2M1; }

/* Integers of 1, 2, 3, 5, 6 or 7 bits. A row's code expands a step to int4's words (up to 3 bits)
 * or to bytes, both in two's complement, and goes on as for int4 or int8. The bytes of a lane, in
 * two words: k = 0, 4, 1, 5 and k = 2, 6, 3, 7. So pair i is in word i % 2, its even k in byte
 * i / 2 and its odd k in byte i / 2 + 2. */
NIB_INLINE bool is_odd(nib_element f) { return f >= NIB_ELEMENT_I1; }
NIB_INLINE int odd_bits(nib_element f)
{
    return f <= NIB_ELEMENT_I3 ? f - NIB_ELEMENT_I1 + 1 : f - NIB_ELEMENT_I5 + 5;
}

/* Adding this to code + 2^(b-1) in each nibble or byte, and inverting the top bits, gives two's
 * complement. */
NIB_INLINE uint32_t odd_offset(nib_element f)
{
    const uint32_t half = 1U << (odd_bits(f) - 1);
    return odd_bits(f) < 4 ? (8 - half) * 0x11111111U : (128 - half) * 0x01010101U;
}

/* bf16 of 0..31, -32..-1. */
extern const uint16_t nib__bf16_ints[64];

NIB_INLINE size_t form_step(nib_element f)
{
    switch (f) {
    case NIB_ELEMENT_F32: return NIB_FLOAT_PANEL * NIB_FLOAT_STEP * 4;
    case NIB_ELEMENT_F16:
    case NIB_ELEMENT_BF16: return NIB_FLOAT_PANEL * NIB_FLOAT_STEP * 2;
    case NIB_ELEMENT_I4:
    case NIB_ELEMENT_E2M1: return NIB_FLOAT_PANEL * NIB_FLOAT_STEP / 2;
    default: return (size_t)(NIB_FLOAT_PANEL * (is_odd(f) ? odd_bits(f) : NIB_FLOAT_STEP));
    }
}

/* Elements with code of their own for few tokens; others are converted to the native form first. */
NIB_INLINE bool is_direct(nib_element f)
{
    return f == NIB_ELEMENT_BF16 || f == NIB_ELEMENT_I8 || is_nibble(f) || f == NIB_ELEMENT_E4M3 ||
           is_odd(f);
}

enum {
    NIB_FLOAT_SPAN = 256, /* k per piece, of any instruction set */
    NIB_FLOAT_ROWS = 264, /* most tokens per piece */
    NIB_FLOAT_CHUNK = 32, /* most panels per piece; sums and staged tokens fit the L2 cache */
};

/* Elements of k per piece: whole groups, about `span`. */
NIB_INLINE int64_t nib__float_span(const nib_float_layout *l, int64_t span)
{
    return l->group == 0 ? span : l->group > span ? l->group : span / l->group * l->group;
}

/* Bytes of scratch: sums, staged tokens, weights in native form. */
typedef struct nib_float_room {
    size_t acc, x, weights;
} nib_float_room;

nib_float_room nib__float_room(const nib_linear *a);

#endif
