/* SPDX-License-Identifier: Apache-2.0
 *
 * The packed layouts of the int4, MXFP4, Q6_K and int8 linear rows, and what the files of these
 * rows share. The layouts are the same for every instruction set; linear_int.c defines the
 * arithmetic.
 *
 * A panel is 32 outputs. It holds its groups of k in ascending order, each as
 *   scales   [32] f32, f16, bf16 or e8m0, as stored; f64 as f32
 *   offsets  [32] i16, only with ZERO_INT: what was added to a code, plus its zero point
 *   zeros    [32] f32, only with ZERO_FLOAT
 *   codes    units of 32 k, or 16 if a group is not a multiple of 32; the last unit of a row is
 *            filled with zero bytes
 * A unit of int8 is [8 or 4 quads][32 outputs][4 k] bytes, code + 128.
 * A unit of int4 is [4 or 2][32 outputs][4] bytes of two unsigned nibbles, code + 8: the low ones
 * are quad 2q, the high ones quad 2q + 1.
 * A unit of MXFP4 is [4] of the same with the bits of e2m1, which a table of 16 bytes turns into
 * 2 * value + 12.
 * So 64 bytes are 16 outputs by 4 consecutive k, the operand of one vpdpbusd, and a part is one
 * contiguous stream.
 *
 * Q6_K weights keep their 6.6 bits. Such a panel begins with its heads, for each 16 groups
 *   scales   [32] f16, then [16][32] int8: a group's scale is the product, exact in f32
 * followed by groups of codes only, one unit of 16 k each, holding code + 32 as
 *   low      [2][32 outputs][4] bytes of two nibbles, as a unit of int4
 *   high     [32 outputs][4] bytes of four pairs of bits, those of quad q from bit 2q on
 */
#ifndef NIB_LINEAR_INT_H
#define NIB_LINEAR_INT_H

#include "arm.h"
#include "kernel.h"
#include "x86.h"

enum {
    NIB_INT_PANEL = 32,       /* outputs per panel */
    NIB_INT_UNIT = 32,        /* k per unit */
    NIB_INT_HALF_UNIT = 16,   /* k per unit if groups are not multiples of NIB_INT_UNIT */
    NIB_INT_PAIR_GROUP = 128, /* largest group whose sums fit 16 bits: 255 * 128 < 2^15 */
    NIB_INT_WIDE_GROUP =
        1 << 15, /* largest for 32 bits, with zero points: 255 * 255 * 2^15 < 2^31 */
};

typedef struct nib_int_layout {
    int64_t k;                 /* of a row */
    int64_t group, groups;     /* k per group (the last may have fewer); number of groups */
    int64_t unit;              /* k per unit */
    int64_t units, last_units; /* units of a group, of the last group */
    int64_t per_block;         /* groups per block of the float sum */
    size_t scale_bytes;        /* bytes of one scale */
    size_t heads;              /* bytes before the groups of a panel; only for Q6_K */
    size_t header;             /* bytes before the codes of a group */
    size_t unit_bytes;         /* 512 or 1024; half units 256 or 512, 6 bits 384 */
    size_t group_bytes, panel_bytes;
    int bits;     /* bits of a stored code: 4, 6 or 8 */
    int offset;   /* half of the code range: a stored code is code + offset */
    bool doubled; /* e2m1: codes are twice their values, so a block's scale is halved */
    bool has_zeros, has_float_zeros;
    size_t zeros; /* offset of the float zeros in a header */
    nib_type scale_type;
} nib_int_layout;

enum {
    NIB_SIX_GROUPS = 16,                                 /* Q6_K groups that share a head: 256 k */
    NIB_SIX_HEAD = NIB_INT_PANEL * (2 + NIB_SIX_GROUPS), /* bytes of a head */
    NIB_SIX_HIGH = 8 * NIB_INT_PANEL,                    /* offset of a unit's high bits */
};

nib_int_layout nib__int_layout(const nib_weight *w);
nib_int_layout nib__int_layout_six(const nib_weight *w); /* Q6_K's 6.6 bits */
extern const nib_packing nib__packing_w4, nib__packing_w6, nib__packing_w8, nib__packing_mx4;

/* Twice the value of each e2m1 code, plus 12. */
#define NIB_INT_E2M1 12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0

/* Offset of group g in a panel. */
NIB_INLINE size_t nib__int_group(const nib_int_layout *l, int64_t g)
{
    return l->heads + (size_t)g * l->group_bytes;
}

/* Offset of the codes of unit `unit` of group g in a panel. */
NIB_INLINE size_t nib__int_unit(const nib_int_layout *l, int64_t g, int64_t unit)
{
    return nib__int_group(l, g) + l->header + (size_t)unit * l->unit_bytes;
}

/* Offsets of the f16 and the int8 scales of group g in a panel of 6 bits. */
NIB_INLINE size_t nib__six_f16(int64_t g) { return (size_t)(g / NIB_SIX_GROUPS) * NIB_SIX_HEAD; }
NIB_INLINE size_t nib__six_int8(int64_t g)
{
    return nib__six_f16(g) + (size_t)(2 + g % NIB_SIX_GROUPS) * NIB_INT_PANEL;
}

/* Number of codes in group g of a row of k. */
NIB_INLINE int64_t nib__int_count(const nib_int_layout *l, int64_t g, int64_t k)
{
    return nib__min(l->group, k - g * l->group);
}

/* How the zero points of a call enter a group's sum: always the same value, computed the cheapest
 * way.
 *   PLAIN  all zero points are 0: the sum starts at -offset * (sum of the activation codes)
 *   PAIR   groups of at most NIB_INT_PAIR_GROUP: both corrections are one 16-bit pair product
 *   WIDE   32-bit products, in double for groups larger than NIB_INT_WIDE_GROUP; also for small
 *          groups if sums start at an int32 bias */
typedef enum nib_int_kind { NIB_INT_PLAIN, NIB_INT_PAIR, NIB_INT_WIDE } nib_int_kind;

nib_int_kind nib__int_kind(const nib_linear *a, const nib_int_layout *l);

/* What a kind needs from one token's group, whose (code - z) sum to t. For PAIR: -z in the low
 * half, -t in the high half. */
NIB_INLINE int32_t nib__int_term(int32_t t, int32_t z, nib_int_kind kind, int offset)
{
    switch (kind) {
    case NIB_INT_PLAIN: return -offset * t;
    case NIB_INT_PAIR: return (int32_t)((uint32_t)-t << 16 | ((uint32_t)-z & 0xffffU));
    case NIB_INT_WIDE: break;
    }
    return -t;
}

NIB_INLINE void nib__int_row_terms(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind,
                                   int offset, int64_t r, int32_t *NIB_RESTRICT to)
{
    const int64_t last = l->groups - 1;
    const int32_t *NIB_RESTRICT sums = a->x.sums + r * a->x.groups;
    const int32_t z = a->x.zero[r];
    const int32_t whole = z * (int32_t)nib__int_count(l, 0, a->w->k);
    const int32_t rest = z * (int32_t)nib__int_count(l, last, a->w->k);
    for (int64_t g = 0; g < last; g++)
        to[g] = nib__int_term(sums[g] - whole, z, kind, offset);
    to[last] = nib__int_term(sums[last] - rest, z, kind, offset);
}

/* Computes terms [rows][groups] of tokens r0..r0+rows. One loop per kind, so that compilers
 * vectorize each. */
NIB_INLINE void nib__int_terms(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind,
                               int64_t r0, int64_t rows, int32_t *terms)
{
    for (int64_t r = 0; r < rows; r++) {
        int32_t *to = terms + r * l->groups;
        if (kind == NIB_INT_PLAIN)
            nib__int_row_terms(a, l, NIB_INT_PLAIN, l->offset, r0 + r, to);
        else if (kind == NIB_INT_PAIR)
            nib__int_row_terms(a, l, NIB_INT_PAIR, l->offset, r0 + r, to);
        else
            nib__int_row_terms(a, l, NIB_INT_WIDE, l->offset, r0 + r, to);
    }
}

/* ---- activations in blocks ---- */

/* What a product with activations in blocks needs from the tokens of a row block: [rows][groups]
 * each. */
typedef struct nib_int_scaled {
    int32_t *terms; /* -offset * (sum of the codes) */
    float *scales; /* scale of the block that contains the group, half of it if codes are doubled */
    float *sums;   /* scale * (sum of the codes): the factor of a float zero */
} nib_int_scaled;

/* Fills the scratch, which is [3][nib__int_row_block_most rows][groups] of 4 bytes. */
nib_int_scaled nib__int_scaled(const nib_linear *a, const nib_int_layout *l, int64_t r0,
                               int64_t rows, void *scratch);
size_t nib__int_scaled_bytes(const nib_linear *a, const nib_int_layout *l);

enum { NIB_INT_ROWS_MOST = 240 }; /* most tokens of a row block */
/* Rows of activations that are processed together: their codes stay in the L2 cache. */
int64_t nib__int_row_block(int64_t m, int64_t k);
/* The largest row block for up to m tokens, for sizing the scratch. */
int64_t nib__int_row_block_most(int64_t m, int64_t k);

/* ---- AVX2, many tokens: linear_int_avx2_many.h ---- */

enum {
    NIB_INT_CHUNK_K = 256, /* k of a chunk, which stays in the L1 cache */
    NIB_INT_CHUNK_GROUPS = NIB_INT_CHUNK_K / NIB_INT_HALF_UNIT,
};

/* A chunk of a panel as tiles read it, and the float sums of a row block's tokens on the panel. */
typedef struct nib_int_many {
    uint8_t codes[2 * NIB_INT_CHUNK_K * NIB_INT_PANEL]; /* bytes, of int8 16-bit values */
    float scales[NIB_INT_CHUNK_GROUPS][NIB_INT_PANEL];
    int32_t fixes[NIB_INT_CHUNK_GROUPS][NIB_INT_PANEL]; /* as float_dot takes them */
    float sums[NIB_INT_ROWS_MOST][NIB_INT_PANEL], totals[NIB_INT_ROWS_MOST][NIB_INT_PANEL];
    int32_t dots[NIB_INT_ROWS_MOST][NIB_INT_PANEL]; /* of a group larger than a chunk */
} nib_int_many;

/* Bytes of scratch in front of the rest for m tokens: a nib_int_many, or 0 if their tiles read the
 * packed codes. */
size_t nib__int_many_bytes(const nib_linear *a, const nib_int_layout *l);

/* The functions of linear_int__<isa>.c. */
#define NIB_INT_RUNS(isa)                                                                          \
    void nib__linear_w4_##isa(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);         \
    void nib__linear_w8_##isa(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);         \
    void nib__linear_w4_blocks_##isa(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);  \
    void nib__linear_w8_blocks_##isa(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);  \
    void nib__linear_mx4_blocks_##isa(const nib_linear *a, int64_t n0, int64_t n1, void *scratch); \
    size_t nib__linear_int_scratch_##isa(const void *args);                                        \
    size_t nib__linear_blocks_scratch_##isa(const void *args);
#define NIB_SIX_RUNS(isa)                                                                          \
    void nib__linear_w6_blocks_##isa(const nib_linear *a, int64_t n0, int64_t n1, void *scratch);  \
    size_t nib__linear_six_scratch_##isa(const void *args);
NIB_INT_RUNS(avx2)
NIB_INT_RUNS(avx512vnni)
NIB_INT_RUNS(amx)
NIB_INT_RUNS(neon)
NIB_INT_RUNS(i8mm)
NIB_SIX_RUNS(avx2)
NIB_SIX_RUNS(avx512vnni)

#endif
