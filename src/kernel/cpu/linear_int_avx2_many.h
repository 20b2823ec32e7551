/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many tokens with int4, MXFP4, Q6_K and int8 panels, AVX2, inlined like
 * linear_int_avx2.h.
 *
 * A chunk of one panel is unpacked once, into the L1 cache: codes as the multiplication reads them,
 * scales as f32 and what zero points need. All tokens of a row block multiply it, in tiles of 4
 * tokens x 16 outputs: a load of codes serves 4 tokens, a load of activations 16 outputs. Float
 * sums are in memory between chunks. The order of the sums is that of linear_int.c.
 */
#ifndef NIB_LINEAR_INT_AVX2_MANY_H
#define NIB_LINEAR_INT_AVX2_MANY_H

#include "linear_int_avx2.h"

enum { TILE = 4, COLUMNS = 2 }; /* tokens, and vectors of 8 outputs, of a tile */

/* What a chunk holds: groups g0..g1, or of the one group g0 the units u0..u1. */
typedef struct chunk_place {
    int64_t g0, g1, u0, u1;
    bool is_part;      /* the group goes on in the next chunk */
    bool starts, ends; /* the chunk starts or ends a block of the float sum */
    bool first, last;  /* in the first block; it ends the row */
} chunk_place;

/* ---- unpacking ---- */

/* A unit of int4 or e2m1: [2 * eights quads][4 vectors]; unless `plain`, adds the codes to sums, [4
 * vectors] of 8 int32. */
NIB_INLINE void unpack4(const uint8_t *codes, uint8_t *out, __m256i *sums, int eights, bool plain,
                        bool e2m1)
{
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int c = 0; c < VECTORS; c++) {
        __m256i bytes = _mm256_setzero_si256();
#pragma GCC unroll 4
        for (int q = 0; q < eights; q++) {
            __m256i even, odd;
            split4(codes + q * 4 * NIB_INT_PANEL + 32 * c, e2m1, &even, &odd);
            if (!plain)
                bytes = _mm256_add_epi8(_mm256_add_epi8(bytes, even), odd);
            _mm256_store_si256((__m256i *)(out + (2 * q * VECTORS + c) * 32), even);
            _mm256_store_si256((__m256i *)(out + ((2 * q + 1) * VECTORS + c) * 32), odd);
        }
        if (!plain)
            sums[c] = _mm256_add_epi32(
                sums[c], _mm256_madd_epi16(_mm256_maddubs_epi16(bytes, _mm256_set1_epi8(1)), ones));
    }
}

/* A unit of 16 k in 6 bits: [4 quads][4 vectors]. */
NIB_INLINE void unpack6(const uint8_t *codes, uint8_t *out)
{
#pragma GCC unroll 4
    for (int c = 0; c < VECTORS; c++) {
        __m256i quads[4];
        six_quads(codes + 32 * c, quads);
#pragma GCC unroll 4
        for (int q = 0; q < 4; q++)
            _mm256_store_si256((__m256i *)(out + (q * VECTORS + c) * 32), quads[q]);
    }
}

/* A unit of int8: [quads][2][4 vectors] of 16-bit codes, those of k 0 and 2, then of 1 and 3. */
NIB_INLINE void unpack8(const uint8_t *codes, uint8_t *out, __m256i *sums, bool plain, int quads)
{
    const __m256i low = _mm256_set1_epi16(255), ones = _mm256_set1_epi16(1);
    for (int q = 0; q < quads; q++)
#pragma GCC unroll 4
        for (int c = 0; c < VECTORS; c++) {
            const __m256i v = load8(codes + (q * VECTORS + c) * 32);
            const __m256i even = _mm256_and_si256(v, low), odd = _mm256_srli_epi16(v, 8);
            if (!plain)
                sums[c] =
                    _mm256_add_epi32(sums[c], _mm256_madd_epi16(_mm256_add_epi16(even, odd), ones));
            _mm256_store_si256((__m256i *)(out + (2 * q * VECTORS + c) * 32), even);
            _mm256_store_si256((__m256i *)(out + ((2 * q + 1) * VECTORS + c) * 32), odd);
        }
}

/* Bytes of an unpacked unit. */
NIB_INLINE int unpacked_bytes(int unit_k, int bits)
{
    return unit_k * NIB_INT_PANEL * (bits == 8 ? 2 : 1);
}

NIB_INLINE void unpack_chunk(const int_block *b, const uint8_t *panel, const chunk_place *at,
                             tile_form form, int bits)
{
    const int unit_k = form_unit(form);
    const bool plain = form_kind(form) == NIB_INT_PLAIN;
    const nib_int_layout *l = b->l;
    uint8_t *out = b->many->codes;
    for (int64_t g = at->g0; g < at->g1; g++) {
        const uint8_t *group = panel + nib__int_group(l, g);
        const int64_t end = nib__min(at->u1, group_units(l, g));
        __m256i sums[VECTORS];
#pragma GCC unroll 4
        for (int c = 0; c < VECTORS; c++)
            sums[c] = at->u0 > 0 ? load8(b->many->fixes[0] + LANES * c) : _mm256_setzero_si256();
        for (int64_t unit = at->u0; unit < end; unit++, out += unpacked_bytes(unit_k, bits)) {
            const uint8_t *codes = panel + nib__int_unit(l, g, unit);
#pragma GCC unroll 16
            for (int line = 0; line < unit_k * bits / 16; line++)
                _mm_prefetch(nib__ahead(codes, AHEAD + 64 * (size_t)line), _MM_HINT_T0);
            if (bits == 4)
                unpack4(codes, out, sums, unit_k / 8, plain, form == TILE_BLOCKS_E2M1);
            else if (bits == 6)
                unpack6(codes, out);
            else
                unpack8(codes, out, sums, plain, unit_k / 4);
        }
#pragma GCC unroll 4
        for (int c = 0; c < VECTORS; c++) {
            __m256i fix = sums[c];
            if (b->kind == NIB_INT_PAIR)
                fix =
                    _mm256_or_si256(fix, _mm256_slli_epi32(load_offsets(l, group, LANES * c), 16));
            _mm256_store_ps(
                b->many->scales[g - at->g0] + LANES * c,
                group_scales(l, panel, group, g, LANES * c, bits, form == TILE_BLOCKS_E2M1));
            _mm256_store_si256((__m256i *)(b->many->fixes[g - at->g0] + LANES * c), fix);
        }
    }
}

/* ---- products ---- */

/* Sets dots to `quads` quads of a unit of int4 or e2m1, or adds them. Pairs of products add up
 * exactly in 16 bits: linear_int_avx2.h. */
NIB_INLINE void many4(const uint8_t *codes, const int8_t *const *x, int64_t k,
                      __m256i dots[][COLUMNS], int m, bool adds, int quads)
{
    const __m256i ones = _mm256_set1_epi16(1);
    __m256i pairs[TILE][COLUMNS];
#pragma GCC unroll 8
    for (int q = 0; q < quads; q++) {
        const __m256i w0 = load8(codes + q * VECTORS * 32),
                      w1 = load8(codes + q * VECTORS * 32 + 32);
#pragma GCC unroll 4
        for (int r = 0; r < m; r++) {
            const __m256i v = broadcast4(x[r] + k + 4 * q), p0 = _mm256_maddubs_epi16(w0, v),
                          p1 = _mm256_maddubs_epi16(w1, v);
            pairs[r][0] = q == 0 ? p0 : _mm256_add_epi16(pairs[r][0], p0);
            pairs[r][1] = q == 0 ? p1 : _mm256_add_epi16(pairs[r][1], p1);
            settle(&pairs[r][0]);
            settle(&pairs[r][1]);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < m; r++)
#pragma GCC unroll 2
        for (int c = 0; c < COLUMNS; c++) {
            const __m256i dot = _mm256_madd_epi16(pairs[r][c], ones);
            dots[r][c] = adds ? _mm256_add_epi32(dots[r][c], dot) : dot;
        }
}

/* The same for a unit of 16 k in 6 bits. */
NIB_INLINE void many6(const uint8_t *codes, const int8_t *const *x, int64_t k,
                      __m256i dots[][COLUMNS], int m, bool adds)
{
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 2
    for (int q = 0; q < 4; q += 2)
#pragma GCC unroll 4
        for (int r = 0; r < m; r++) {
            const uint8_t *at = codes + q * VECTORS * 32, *next = at + VECTORS * 32;
            const __m256i v = broadcast4(x[r] + k + 4 * q), w = broadcast4(x[r] + k + 4 * q + 4);
#pragma GCC unroll 2
            for (int c = 0; c < COLUMNS; c++) {
                const __m256i pairs =
                    _mm256_add_epi16(_mm256_maddubs_epi16(load8(at + 32 * c), v),
                                     _mm256_maddubs_epi16(load8(next + 32 * c), w));
                const __m256i dot = _mm256_madd_epi16(pairs, ones);
                dots[r][c] = adds || q > 0 ? _mm256_add_epi32(dots[r][c], dot) : dot;
            }
            settle(&dots[r][0]);
            settle(&dots[r][1]);
        }
}

/* The same for a unit of int8, from activations of 16 bits. */
NIB_INLINE void many8(const uint8_t *codes, const int16_t *const *x, int64_t k,
                      __m256i dots[][COLUMNS], int m, bool adds, int quads)
{
#pragma GCC unroll 16
    for (int q = 0; q < 2 * quads; q++) {
        const __m256i w0 = load8(codes + q * VECTORS * 32),
                      w1 = load8(codes + q * VECTORS * 32 + 32);
#pragma GCC unroll 4
        for (int r = 0; r < m; r++) {
            const __m256i v = broadcast4(x[r] + k + 2 * q), p0 = _mm256_madd_epi16(w0, v),
                          p1 = _mm256_madd_epi16(w1, v);
            dots[r][0] = adds || q > 0 ? _mm256_add_epi32(dots[r][0], p0) : p0;
            dots[r][1] = adds || q > 0 ? _mm256_add_epi32(dots[r][1], p1) : p1;
            settle(&dots[r][0]);
            settle(&dots[r][1]);
        }
    }
}

NIB_INLINE void many_unit(const uint8_t *codes, const int8_t *const *x, const int16_t *const *wide,
                          int64_t k, __m256i dots[][COLUMNS], int m, bool adds, tile_form form,
                          int bits)
{
    if (form == TILE_BLOCKS_E2M1) {
        many4(codes, x, k, dots, m, adds, 4);
        many4(codes + 4 * VECTORS * 32, x, k + 16, dots, m, true, 4);
    } else if (bits == 4)
        many4(codes, x, k, dots, m, adds, form_unit(form) / 4);
    else if (bits == 6)
        many6(codes, x, k, dots, m, adds);
    else
        many8(codes, wide, k, dots, m, adds, form_unit(form) / 4);
}

/* Tokens row..row+m of the block by 16 outputs of a chunk, from vector c0 of the panel on. `whole`
 * is a compile-time constant: no group spans two chunks, and no int32 bias is added. */
NIB_INLINE void many_tile(const int_block *b, const uint8_t *panel, const chunk_place *at,
                          int64_t n, int64_t row, int c0, int m, bool whole, tile_form form,
                          int bits)
{
    const nib_int_kind kind = form_kind(form);
    const bool is_scaled = form_is_scaled(form);
    const bool has_zeros = form != TILE_BLOCKS_E2M1 && b->l->has_float_zeros;
    const int unit_k = form_unit(form);
    const nib_int_layout *l = b->l;
    const nib_input *in = &b->a->x;
    const uint8_t *codes = b->many->codes + 32 * c0;
    const int8_t *x[TILE];
    const int16_t *wide[TILE];
    __m256 sum[TILE][COLUMNS];
    int64_t k = (at->g0 * l->units + (whole ? 0 : at->u0)) * unit_k;
    const int32_t *int_bias = b->a->int_bias != NULL ? b->a->int_bias + n + LANES * c0 : NULL;
    float *sums = b->many->sums[row] + LANES * c0, *totals = b->many->totals[row] + LANES * c0;
#pragma GCC unroll 4
    for (int r = 0; r < m; r++) {
        x[r] = in->codes + (b->r0 + row + r) * in->ld;
        wide[r] = bits == 8 ? b->wide + (row + r) * in->ld : NULL;
#pragma GCC unroll 2
        for (int c = 0; c < COLUMNS; c++)
            sum[r][c] = at->starts ? _mm256_setzero_ps()
                                   : _mm256_loadu_ps(sums + r * NIB_INT_PANEL + LANES * c);
    }
    for (int64_t g = at->g0; g < at->g1; g++) {
        const uint8_t *group = panel + nib__int_group(l, g);
        const int64_t end = whole ? group_units(l, g) : nib__min(at->u1, group_units(l, g));
        const int32_t *begin = at->u0 > 0 ? b->many->dots[row] + LANES * c0 : int_bias;
        const int64_t next = at->u0 > 0 ? NIB_INT_PANEL : 0;
        int64_t unit = whole ? 0 : at->u0;
        __m256i dots[TILE][COLUMNS];
        if (whole || begin == NULL) {
            many_unit(codes, x, wide, k, dots, m, false, form, bits);
            codes += unpacked_bytes(unit_k, bits);
            k += unit_k;
            unit++;
        } else
#pragma GCC unroll 4
            for (int r = 0; r < m; r++)
#pragma GCC unroll 2
                for (int c = 0; c < COLUMNS; c++)
                    dots[r][c] = load8(begin + r * next + LANES * c);
        for (; unit < end; unit++) {
            many_unit(codes, x, wide, k, dots, m, true, form, bits);
            codes += unpacked_bytes(unit_k, bits);
            k += unit_k;
        }
        if (!whole && at->is_part) {
#pragma GCC unroll 4
            for (int r = 0; r < m; r++)
#pragma GCC unroll 2
                for (int c = 0; c < COLUMNS; c++)
                    _mm256_store_si256((__m256i *)(b->many->dots[row + r] + LANES * (c0 + c)),
                                       dots[r][c]);
            return;
        }
#pragma GCC unroll 2
        for (int c = 0; c < COLUMNS; c++) {
            const int first = LANES * (c0 + c);
            const __m256 scale = _mm256_load_ps(b->many->scales[g - at->g0] + first);
            const __m256i fix = load8(b->many->fixes[g - at->g0] + first);
            const __m256i offset = load_offsets(l, group, first);
            const uint8_t *zeros = has_zeros ? group + l->zeros + 4 * first : NULL;
#pragma GCC unroll 4
            for (int r = 0; r < m; r++)
                sum[r][c] = add_group(b, zeros, scale, dots[r][c], fix, offset, row + r, g,
                                      sum[r][c], kind, is_scaled);
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < m; r++)
#pragma GCC unroll 2
        for (int c = 0; c < COLUMNS; c++) {
            const int64_t cell = r * NIB_INT_PANEL + LANES * c, out = n + LANES * (c0 + c);
            if (!at->ends) {
                _mm256_storeu_ps(sums + cell, sum[r][c]);
                continue;
            }
            const __m256 total =
                at->first ? sum[r][c] : _mm256_add_ps(_mm256_loadu_ps(totals + cell), sum[r][c]);
            if (!at->last)
                _mm256_storeu_ps(totals + cell, total);
            else if (out < b->a->w->n)
                store8(b->a, b->r0 + row + r, out, total, is_scaled);
        }
}

/* The chunk that starts at unit u of group g: whole groups within a block of the float sum, or a
 * part of a group that is larger than a chunk. */
NIB_INLINE chunk_place place_chunk(const nib_int_layout *l, int64_t g, int64_t u, int unit_k)
{
    const int64_t most = NIB_INT_CHUNK_K / unit_k, block = g - g % l->per_block;
    const int64_t end = nib__min(block + l->per_block, l->groups);
    const int64_t g1 = nib__min(g + nib__max(1, most / l->units), end), u1 = u + most;
    const bool is_part = g1 == g + 1 && u1 < group_units(l, g), ends = g1 == end && !is_part;
    return (chunk_place){.g0 = g,
                         .g1 = g1,
                         .u0 = u,
                         .u1 = u1,
                         .is_part = is_part,
                         .starts = g == block,
                         .ends = ends,
                         .first = block == 0,
                         .last = ends && g1 == l->groups};
}

/* All tokens of the block on a chunk. */
NIB_INLINE void many_rows(const int_block *b, const uint8_t *panel, const chunk_place *at,
                          int64_t n, bool whole, tile_form form, int bits)
{
    int64_t row = 0;
    for (; row + 4 <= b->rows; row += 4)
        for (int c0 = 0; c0 < VECTORS; c0 += COLUMNS)
            many_tile(b, panel, at, n, row, c0, 4, whole, form, bits);
    for (; row + 2 <= b->rows; row += 2)
        for (int c0 = 0; c0 < VECTORS; c0 += COLUMNS)
            many_tile(b, panel, at, n, row, c0, 2, whole, form, bits);
    for (int c0 = 0; row < b->rows && c0 < VECTORS; c0 += COLUMNS)
        many_tile(b, panel, at, n, row, c0, 1, whole, form, bits);
}

/* All tokens of the block over one panel. */
NIB_INLINE void many_panel(const int_block *b, const uint8_t *panel, int64_t n, bool whole,
                           tile_form form, int bits)
{
    const int unit_k = form_unit(form);
    for (int64_t g = 0, u = 0; g < b->l->groups;) {
        const chunk_place at = place_chunk(b->l, g, u, unit_k);
        unpack_chunk(b, panel, &at, form, bits);
        many_rows(b, panel, &at, n, whole, form, bits);
        g = at.is_part ? g : at.g1;
        u = at.is_part ? at.u1 : 0;
    }
}

#endif
