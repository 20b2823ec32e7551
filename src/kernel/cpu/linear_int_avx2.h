/* SPDX-License-Identifier: Apache-2.0
 *
 * AVX2 code of the int4, MXFP4, Q6_K and int8 linear rows, inlined with bits = 4, 6 or 8 by
 * linear_a8t_w4g__avx2.c and linear_a8t_w8__avx2.c. Layout: linear_int.h. Arithmetic: linear_int.c.
 *
 * Without VNNI: int4 codes are unsigned in vpmaddubsw; its pairs of at most 15 * 128 add up exactly
 * over the 8 quads of a unit (30,720 < 2^15) before they are widened. int8 codes would saturate
 * there, so their even and odd bytes are multiplied as 16-bit values (vpmaddwd) by activations that
 * the scratch holds as (x0, x2), (x1, x3). For 6-bit codes, two pairs, 63 * 128 * 4, fit 16 bits;
 * for MXFP4's, at most 24, the 4 quads of half a unit (24 * 128 * 8 = 24,576).
 *
 * The tiles here are for one to three tokens and read packed codes; those that unpack them, for
 * many tokens, are in linear_int_avx2_many.h, and linear_int_avx2_run.h chooses.
 */
#ifndef NIB_LINEAR_INT_AVX2_H
#define NIB_LINEAR_INT_AVX2_H

#include "e8m0_lanes.h"
#include "linear_int.h"

#include <immintrin.h>

enum {
    FEW = 3, /* most tokens of a tile here */
    LANES = 8,
    VECTORS = NIB_INT_PANEL / LANES,
    AHEAD = 4096 /* bytes from loads to prefetches */
};

/* A row block on one panel. */
typedef struct int_block {
    const nib_linear *a;
    const nib_int_layout *l;
    nib_int_kind kind;
    int64_t r0, rows;
    const int32_t *terms;       /* [rows][groups] */
    const int16_t *wide;        /* int8: [rows][ld], every 4 codes in the order 0, 2, 1, 3 */
    const float *scales, *sums; /* activations in blocks: like terms, from nib_int_scaled */
    nib_int_many *many;         /* scratch of many tokens; NULL: tiles read the packed codes */
} int_block;

NIB_INLINE __m256i load8(const void *p) { return _mm256_loadu_si256((const __m256i *)p); }

NIB_INLINE __m256i broadcast4(const void *p)
{
    int32_t value;
    memcpy(&value, p, sizeof value);
    return _mm256_set1_epi32(value);
}

/* Ends the additions to a sum here: gcc delays them, and runs out of registers. */
NIB_INLINE void settle(__m256i *sum) { __asm__("" : "+x"(*sum)); }

NIB_INLINE int64_t group_units(const nib_int_layout *l, int64_t g)
{
    return g + 1 == l->groups ? l->last_units : l->units;
}

/* Scales of 8 outputs, starting at output `first` of the panel. */
NIB_INLINE __m256 load_scales(const nib_int_layout *l, const uint8_t *group, int first)
{
    const uint8_t *p = group + (size_t)first * l->scale_bytes;
    if (l->scale_type == NIB_TYPE_F32)
        return _mm256_loadu_ps((const float *)p);
    const __m128i half = _mm_loadu_si128((const __m128i *)p);
    if (l->scale_type == NIB_TYPE_F16)
        return _mm256_cvtph_ps(half);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

/* The same for group g; the scales of Q6_K are in the head of the panel. */
NIB_INLINE __m256 group_scales(const nib_int_layout *l, const uint8_t *panel, const uint8_t *group,
                               int64_t g, int first, int bits, bool e2m1)
{
    if (e2m1)
        return nib__e8m0_8(group + first);
    if (bits != 6)
        return load_scales(l, group, first);
    const __m128i half = _mm_loadu_si128((const __m128i *)(panel + nib__six_f16(g) + 2 * first)),
                  s = _mm_loadl_epi64((const __m128i *)(panel + nib__six_int8(g) + first));
    return _mm256_mul_ps(_mm256_cvtph_ps(half), _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(s)));
}

NIB_INLINE __m256i load_offsets(const nib_int_layout *l, const uint8_t *group, int first)
{
    if (!l->has_zeros)
        return _mm256_set1_epi32(l->offset);
    const uint8_t *p = group + NIB_INT_PANEL * l->scale_bytes + (size_t)first * sizeof(int16_t);
    return _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)p));
}

/* Splits bytes of two codes of 4 bits; those of e2m1 become 2 * value + 12. */
NIB_INLINE void split4(const uint8_t *codes, bool e2m1, __m256i *even, __m256i *odd)
{
    const __m256i low = _mm256_set1_epi8(15), v = load8(codes);
    *even = _mm256_and_si256(v, low);
    *odd = _mm256_and_si256(_mm256_srli_epi16(v, 4), low);
    if (e2m1) {
        const __m256i values = _mm256_broadcastsi128_si256(_mm_setr_epi8(NIB_INT_E2M1));
        *even = _mm256_shuffle_epi8(values, *even);
        *odd = _mm256_shuffle_epi8(values, *odd);
    }
}

/* One unit of int4 or e2m1, `eights` times 8 k: codes from vector c0 of the panel on, activations
 * from x[r] + k on. */
NIB_INLINE void unit4(const uint8_t *codes, const int8_t *const *x, int64_t k, __m256i dots[][4],
                      __m256i *sums, int m, int columns, int eights, bool plain, bool e2m1)
{
    const __m256i ones = _mm256_set1_epi16(1), zero = _mm256_setzero_si256();
    __m256i pairs[FEW][4], bytes[4];
#pragma GCC unroll 4
    for (int c = 0; c < columns; c++) {
        bytes[c] = zero;
#pragma GCC unroll 4
        for (int r = 0; r < m; r++)
            pairs[r][c] = zero;
    }
#pragma GCC unroll 4
    for (int q = 0; q < eights; q++)
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            __m256i even, odd;
            split4(codes + q * 4 * NIB_INT_PANEL + 32 * c, e2m1, &even, &odd);
            if (!plain)
                bytes[c] = _mm256_add_epi8(_mm256_add_epi8(bytes[c], even), odd);
#pragma GCC unroll 4
            for (int r = 0; r < m; r++) {
                const __m256i p0 = _mm256_maddubs_epi16(even, broadcast4(x[r] + k + 8 * q));
                const __m256i p1 = _mm256_maddubs_epi16(odd, broadcast4(x[r] + k + 8 * q + 4));
                pairs[r][c] = _mm256_add_epi16(pairs[r][c], _mm256_add_epi16(p0, p1));
                settle(&pairs[r][c]);
                if (e2m1 && q == 1) { /* the first half of the unit */
                    dots[r][c] = _mm256_add_epi32(dots[r][c], _mm256_madd_epi16(pairs[r][c], ones));
                    pairs[r][c] = zero;
                }
            }
        }
#pragma GCC unroll 4
    for (int c = 0; c < columns; c++) {
        if (!plain)
            sums[c] = _mm256_add_epi32(
                sums[c],
                _mm256_madd_epi16(_mm256_maddubs_epi16(bytes[c], _mm256_set1_epi8(1)), ones));
#pragma GCC unroll 4
        for (int r = 0; r < m; r++)
            dots[r][c] = _mm256_add_epi32(dots[r][c], _mm256_madd_epi16(pairs[r][c], ones));
    }
}

NIB_INLINE void unit8(const uint8_t *codes, const int16_t *const *x, int64_t k, __m256i dots[][4],
                      __m256i *sums, int m, int columns, bool plain, int quads)
{
    const __m256i low = _mm256_set1_epi16(255), ones = _mm256_set1_epi16(1);
#pragma GCC unroll 1
    for (int q = 0; q < quads; q++)
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            const __m256i v = load8(codes + q * 4 * NIB_INT_PANEL + 32 * c);
            const __m256i even = _mm256_and_si256(v, low), odd = _mm256_srli_epi16(v, 8);
            if (!plain)
                sums[c] =
                    _mm256_add_epi32(sums[c], _mm256_madd_epi16(_mm256_add_epi16(even, odd), ones));
#pragma GCC unroll 4
            for (int r = 0; r < m; r++) {
                const __m256i p0 = _mm256_madd_epi16(even, broadcast4(x[r] + k + 4 * q));
                const __m256i p1 = _mm256_madd_epi16(odd, broadcast4(x[r] + k + 4 * q + 2));
                dots[r][c] = _mm256_add_epi32(dots[r][c], _mm256_add_epi32(p0, p1));
            }
        }
}

/* The codes of 8 outputs in a unit of 6 bits, one vector per quad. */
NIB_INLINE void six_quads(const uint8_t *codes, __m256i quads[4])
{
    const __m256i low = _mm256_set1_epi8(15), pair = _mm256_set1_epi8(0x30), v0 = load8(codes),
                  v1 = load8(codes + 4 * NIB_INT_PANEL), high = load8(codes + NIB_SIX_HIGH);
    quads[0] = _mm256_or_si256(_mm256_and_si256(v0, low),
                               _mm256_and_si256(_mm256_slli_epi16(high, 4), pair));
    quads[1] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v0, 4), low),
                               _mm256_and_si256(_mm256_slli_epi16(high, 2), pair));
    quads[2] = _mm256_or_si256(_mm256_and_si256(v1, low), _mm256_and_si256(high, pair));
    quads[3] = _mm256_or_si256(_mm256_and_si256(_mm256_srli_epi16(v1, 4), low),
                               _mm256_and_si256(_mm256_srli_epi16(high, 2), pair));
}

/* One unit of 16 k in 6 bits. */
NIB_INLINE void unit6(const uint8_t *codes, const int8_t *const *x, int64_t k, __m256i dots[][4],
                      int m, int columns)
{
    const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 4
    for (int c = 0; c < columns; c++) {
        __m256i quads[4];
        six_quads(codes + 32 * c, quads);
#pragma GCC unroll 4
        for (int r = 0; r < m; r++)
#pragma GCC unroll 2
            for (int q = 0; q < 4; q += 2) {
                const __m256i p0 = _mm256_maddubs_epi16(quads[q], broadcast4(x[r] + k + 4 * q));
                const __m256i p1 =
                    _mm256_maddubs_epi16(quads[q + 1], broadcast4(x[r] + k + 4 * q + 4));
                dots[r][c] =
                    _mm256_add_epi32(dots[r][c], _mm256_madd_epi16(_mm256_add_epi16(p0, p1), ones));
            }
    }
}

/* dot + offset * term - sum * zero if it may not fit 32 bits: exact in double, rounded once. */
NIB_INLINE __m128 half_dot(__m128i dot, __m128i sum, __m128i offset, int32_t term, int32_t zero)
{
    const __m256d added = _mm256_mul_pd(_mm256_cvtepi32_pd(offset), _mm256_set1_pd(term));
    const __m256d taken = _mm256_mul_pd(_mm256_cvtepi32_pd(sum), _mm256_set1_pd(zero));
    return _mm256_cvtpd_ps(_mm256_sub_pd(_mm256_add_pd(_mm256_cvtepi32_pd(dot), added), taken));
}

NIB_INLINE __m256 wide_dot(__m256i dot, __m256i sum, __m256i offset, int32_t term, int32_t zero)
{
    const __m128 low = half_dot(_mm256_castsi256_si128(dot), _mm256_castsi256_si128(sum),
                                _mm256_castsi256_si128(offset), term, zero);
    const __m128 high = half_dot(_mm256_extracti128_si256(dot, 1), _mm256_extracti128_si256(sum, 1),
                                 _mm256_extracti128_si256(offset, 1), term, zero);
    return _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
}

/* The dot of a group as a float, after removing the offset and the zero points. `fix` is the code
 * sum, for PAIR with the offset in its high half. */
NIB_INLINE __m256 float_dot(const int_block *b, __m256i dot, __m256i fix, __m256i offset,
                            int64_t row, int64_t g, nib_int_kind kind)
{
    const int32_t *at = b->terms + row * b->l->groups + g;
    const int32_t zero = b->a->x.zero[b->r0 + row];
    const __m256i term = broadcast4(at);
    if (kind == NIB_INT_PLAIN)
        return _mm256_cvtepi32_ps(_mm256_add_epi32(dot, term));
    if (kind == NIB_INT_PAIR)
        return _mm256_cvtepi32_ps(_mm256_add_epi32(dot, _mm256_madd_epi16(fix, term)));
    if (b->l->group > NIB_INT_WIDE_GROUP)
        return wide_dot(dot, fix, offset, *at, zero);
    dot = _mm256_add_epi32(dot, _mm256_mullo_epi32(offset, term));
    return _mm256_cvtepi32_ps(
        _mm256_sub_epi32(dot, _mm256_mullo_epi32(fix, _mm256_set1_epi32(zero))));
}

/* Adds a group to the sum of a token whose activations are in blocks. dot still includes the
 * offset. */
NIB_INLINE __m256 add_scaled(const int_block *b, const uint8_t *zeros, __m256 scale, __m256i dot,
                             int64_t row, int64_t g, __m256 sum)
{
    const int64_t at = row * b->l->groups + g;
    const __m256 both = _mm256_mul_ps(scale, _mm256_set1_ps(b->scales[at]));
    dot = _mm256_add_epi32(dot, _mm256_set1_epi32(b->terms[at]));
    sum = _mm256_fmadd_ps(both, _mm256_cvtepi32_ps(dot), sum);
    if (zeros != NULL)
        sum = _mm256_fmadd_ps(_mm256_loadu_ps((const float *)zeros), _mm256_set1_ps(b->sums[at]),
                              sum);
    return sum;
}

/* Adds a group to the float sum of a token: either form. */
NIB_INLINE __m256 add_group(const int_block *b, const uint8_t *zeros, __m256 scale, __m256i dot,
                            __m256i fix, __m256i offset, int64_t row, int64_t g, __m256 sum,
                            nib_int_kind kind, bool is_scaled)
{
    if (is_scaled)
        return add_scaled(b, zeros, scale, dot, row, g, sum);
    return _mm256_fmadd_ps(scale, float_dot(b, dot, fix, offset, row, g, kind), sum);
}

/* Stores 8 outputs from n on. If activations are in blocks, the totals are scaled already. */
NIB_INLINE void store8(const nib_linear *a, int64_t r, int64_t n, __m256 total, bool is_scaled)
{
    const float s = is_scaled ? 1 : a->x.scale[r];
    float *y = a->y + r * a->ldy + n;
    if (n + LANES <= a->w->n) {
        if (!is_scaled)
            total = _mm256_mul_ps(_mm256_set1_ps(s), total);
        if (a->bias != NULL)
            total = _mm256_add_ps(_mm256_loadu_ps(a->bias + n), total);
        _mm256_storeu_ps(y, total);
        return;
    }
    float last[LANES];
    _mm256_storeu_ps(last, total);
    for (int64_t i = 0; n + i < a->w->n; i++) {
        const float scaled = is_scaled ? last[i] : s * last[i];
        y[i] = a->bias != NULL ? a->bias[n + i] + scaled : scaled;
    }
}

/* The form of a tile; a compile-time constant. */
typedef enum tile_form {
    TILE_PLAIN, /* as in nib_int_kind */
    TILE_PAIR,
    TILE_WIDE,
    TILE_BLOCKS,      /* activations in blocks */
    TILE_BLOCKS_E2M1, /* the same, of MXFP4 */
    TILE_BLOCKS_HALF, /* the same with half units */
} tile_form;

NIB_INLINE nib_int_kind form_kind(tile_form form)
{
    return form == TILE_PAIR ? NIB_INT_PAIR : form == TILE_WIDE ? NIB_INT_WIDE : NIB_INT_PLAIN;
}

NIB_INLINE bool form_is_scaled(tile_form form)
{
    return form == TILE_BLOCKS || form == TILE_BLOCKS_E2M1 || form == TILE_BLOCKS_HALF;
}

NIB_INLINE int form_unit(tile_form form)
{
    return form == TILE_BLOCKS_HALF ? NIB_INT_HALF_UNIT : NIB_INT_UNIT;
}

/* Tokens row..row+m of the block by `columns` vectors from c0 on, over a whole panel whose outputs
 * begin at n. `single`, a compile-time constant: every group is one unit. */
NIB_INLINE void tile(const int_block *b, const uint8_t *panel, int64_t n, int64_t row, int c0,
                     int m, int columns, bool single, tile_form form, int bits)
{
    const nib_int_kind kind = form_kind(form);
    const bool plain = kind == NIB_INT_PLAIN, is_scaled = form_is_scaled(form);
    const bool has_zeros = form != TILE_BLOCKS_E2M1 && b->l->has_float_zeros;
    const int unit_k = form_unit(form), passes = VECTORS / columns;
    const int lines = (unit_k * bits / 16 + passes - 1) / passes;
    const nib_int_layout *l = b->l;
    const nib_input *in = &b->a->x;
    /* The only pass fetches AHEAD of itself, each of several its share of the next panel: memory
     * never waits for a pass that reads the cache. */
    const uint8_t *share =
        nib__ahead(panel, l->panel_bytes + l->panel_bytes * (size_t)c0 / VECTORS);
    const int8_t *x[FEW];
    const int16_t *wide[FEW];
    __m256 sum[FEW][4], total[FEW][4];
    int64_t k = 0, left = l->per_block;
#pragma GCC unroll 4
    for (int r = 0; r < m; r++) {
        x[r] = in->codes + (b->r0 + row + r) * in->ld;
        wide[r] = bits == 8 ? b->wide + (row + r) * in->ld : NULL;
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++)
            sum[r][c] = total[r][c] = _mm256_setzero_ps();
    }
    for (int64_t g = 0; g < l->groups; g++) {
        const int64_t units = single ? 1 : group_units(l, g);
        const uint8_t *group = panel + nib__int_group(l, g);
        __m256i dots[FEW][4], sums[4];
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            sums[c] = _mm256_setzero_si256();
#pragma GCC unroll 4
            for (int r = 0; r < m; r++)
                dots[r][c] = _mm256_setzero_si256();
        }
        if (!is_scaled && b->a->int_bias != NULL) /* there is only one group */
#pragma GCC unroll 4
            for (int c = 0; c < columns; c++)
#pragma GCC unroll 4
                for (int r = 0; r < m; r++)
                    dots[r][c] = load8(b->a->int_bias + n + LANES * (c0 + c));
        for (int64_t unit = 0; unit < units; unit++, k += unit_k) {
            const uint8_t *codes = panel + nib__int_unit(l, g, unit) + 32 * c0;
            if (passes == 1)
                share = nib__ahead(codes, AHEAD);
#pragma GCC unroll 16
            for (int line = 0; line < lines; line++)
                _mm_prefetch(nib__ahead(share, 64 * (size_t)line), _MM_HINT_T0);
            share = nib__ahead(share, 64 * (size_t)lines);
            if (bits == 4)
                unit4(codes, x, k, dots, sums, m, columns, unit_k / 8, plain,
                      form == TILE_BLOCKS_E2M1);
            else if (bits == 6)
                unit6(codes, x, k, dots, m, columns);
            else
                unit8(codes, wide, k, dots, sums, m, columns, plain, unit_k / 4);
        }
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++) {
            const __m256 scale =
                group_scales(l, panel, group, g, LANES * (c0 + c), bits, form == TILE_BLOCKS_E2M1);
            const __m256i offset = load_offsets(l, group, LANES * (c0 + c));
            const __m256i fix = kind == NIB_INT_PAIR
                                    ? _mm256_or_si256(sums[c], _mm256_slli_epi32(offset, 16))
                                    : sums[c];
#pragma GCC unroll 4
            for (int r = 0; r < m; r++) {
                const uint8_t *zeros = has_zeros ? group + l->zeros + 4 * LANES * (c0 + c) : NULL;
                sum[r][c] = add_group(b, zeros, scale, dots[r][c], fix, offset, row + r, g,
                                      sum[r][c], kind, is_scaled);
            }
        }
        if (--left == 0 || g + 1 == l->groups) { /* the end of a block */
#pragma GCC unroll 4
            for (int r = 0; r < m; r++)
#pragma GCC unroll 4
                for (int c = 0; c < columns; c++) {
                    total[r][c] =
                        g < l->per_block ? sum[r][c] : _mm256_add_ps(total[r][c], sum[r][c]);
                    sum[r][c] = _mm256_setzero_ps();
                }
            left = l->per_block;
        }
    }
#pragma GCC unroll 4
    for (int r = 0; r < m; r++)
#pragma GCC unroll 4
        for (int c = 0; c < columns; c++)
            if (n + LANES * (c0 + c) < b->a->w->n)
                store8(b->a, b->r0 + row + r, n + LANES * (c0 + c), total[r][c], is_scaled);
}

/* Tokens row..row+m of the block over one panel: tiles of 1 x 32, 2 x 16 or 3 x 8. */
NIB_INLINE void few_tiles(const int_block *b, const uint8_t *panel, int64_t n, int64_t row, int m,
                          tile_form form, int bits)
{
    const int columns = m == 1 ? 4 : m == 2 ? 2 : 1;
    const bool single = b->l->units == 1 && b->l->last_units == 1;
    for (int c0 = 0; c0 < VECTORS; c0 += columns)
        if (form == TILE_BLOCKS_E2M1 || (bits == 4 && single))
            tile(b, panel, n, row, c0, m, columns, true, form, bits);
        else
            tile(b, panel, n, row, c0, m, columns, false, form, bits);
}

#endif
