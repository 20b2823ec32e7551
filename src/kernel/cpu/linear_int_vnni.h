/* SPDX-License-Identifier: Apache-2.0
 *
 * AVX-512 VNNI code of the int4, MXFP4, Q6_K and int8 linear rows, for linear_a8t_w4g__avx512vnni.c
 * and linear_a8t_w8__avx512vnni.c. Layout: linear_int.h. Arithmetic: linear_int.c.
 *
 * Weights stay unsigned in vpdpbusd; activations are broadcasts of 4 codes from memory, without
 * shuffles. A group's sum starts at a value that removes the offset and the zero points (terms), so
 * they cost nothing, or one vpdpwssd per 16 outputs.
 *
 * Here: what is inlined with bits = 4, 6 or 8, and products of few tokens (decode), which run
 * directly over a panel and read it from memory once. More tokens (prefill):
 * linear_int__avx512vnni.c.
 */
#ifndef NIB_LINEAR_INT_VNNI_H
#define NIB_LINEAR_INT_VNNI_H

#include "e8m0_lanes.h"
#include "linear_int.h"

#include <immintrin.h>

enum {
    TILE = 6,         /* tokens per tile */
    COLUMNS = 4,      /* vectors of 16 outputs in a pass of decode: a panel's 2, or those of two */
    CHUNK_UNITS = 16, /* units of 32 k per chunk, in prefill */
    /* Up to this many tokens, unpacking a chunk costs more than unpacking for each tile. */
    DIRECT_INT4 = 12,
    DIRECT_INT8 = 24,
    AHEAD = 8192,    /* bytes between the loads and the prefetches of decode */
    AHEAD_NEAR = 576 /* the same where nib__fetches_near() */
};

/* Whether decode, rather than prefill, handles m tokens. */
NIB_INLINE bool is_direct(const nib_int_layout *l, int64_t m)
{
    return m <= (l->bits == 8 ? DIRECT_INT8 : DIRECT_INT4);
}

void nib__int_prefill_avx512vnni(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind,
                                 int64_t n0, int64_t n1, void *scratch);

NIB_INLINE __m512i broadcast4(const void *p)
{
    int32_t value;
    memcpy(&value, p, sizeof value);
    return _mm512_set1_epi32(value);
}

NIB_INLINE __m512 load_scales(const uint8_t *p, nib_type type)
{
    if (type == NIB_TYPE_F32)
        return _mm512_loadu_ps((const float *)p);
    if (type == NIB_TYPE_E8M0)
        return nib__e8m0_16(p);
    const __m256i half = _mm256_loadu_si256((const __m256i *)p);
    if (type == NIB_TYPE_F16)
        return _mm512_cvtph_ps(half);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* Scales of column vector c (0 or 1) of group g, which begins at `group` in its panel. */
NIB_INLINE __m512 group_scales(const nib_int_layout *l, const uint8_t *panel, const uint8_t *group,
                               int64_t g, int c, int bits)
{
    if (bits != 6)
        return load_scales(group + (size_t)c * 16 * l->scale_bytes, l->scale_type);
    const __m512 f16 = load_scales(panel + nib__six_f16(g) + 32 * c, NIB_TYPE_F16);
    const __m128i s = _mm_loadu_si128((const __m128i *)(panel + nib__six_int8(g) + 16 * c));
    return _mm512_mul_ps(f16, _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(s)));
}

/* Code sums and offsets as the 16-bit pairs of NIB_INT_PAIR. */
NIB_INLINE __m512i pair_fix(__m512i sum, __m512i offset)
{
    return _mm512_or_si512(sum, _mm512_slli_epi32(offset, 16));
}

/* Offsets of column vector c (0 or 1) of a group. */
NIB_INLINE __m512i load_offsets(const nib_int_layout *l, const uint8_t *group, int c)
{
    if (!l->has_zeros)
        return _mm512_set1_epi32(l->offset);
    const uint8_t *p = group + NIB_INT_PANEL * l->scale_bytes + 32 * c;
    return _mm512_cvtepi16_epi32(_mm256_loadu_si256((const __m256i *)p));
}

/* Adds the int32 bias of a panel that begins at output n0. */
NIB_INLINE void add_int_bias(const nib_linear *a, int64_t n0, __m512i dots[2])
{
    dots[0] = _mm512_add_epi32(dots[0], _mm512_loadu_si512(a->int_bias + n0));
    dots[1] = _mm512_add_epi32(dots[1], _mm512_loadu_si512(a->int_bias + n0 + 16));
}

/* Quads 2q and 2q + 1 of column vector c (0 or 1) of a unit, whose codes begin at `codes`. */
NIB_INLINE void load_quads(const uint8_t *codes, int q, int c, int bits, __m512i *even,
                           __m512i *odd)
{
    const __m512i low = _mm512_set1_epi8(15), pair = _mm512_set1_epi8(0x30);
    if (bits == 8) {
        *even = _mm512_loadu_si512(codes + q * 8 * NIB_INT_PANEL + 64 * c);
        *odd = _mm512_loadu_si512(codes + q * 8 * NIB_INT_PANEL + 64 * c + 4 * NIB_INT_PANEL);
        return;
    }
    const __m512i v = _mm512_loadu_si512(codes + q * 4 * NIB_INT_PANEL + 64 * c);
    *even = _mm512_and_si512(v, low);
    *odd = _mm512_and_si512(_mm512_srli_epi16(v, 4), low);
    if (bits == 4)
        return;
    const __m512i high = _mm512_loadu_si512(codes + NIB_SIX_HIGH + 64 * c);
    const __m512i first = q == 0 ? _mm512_slli_epi16(high, 4) : high;
    const __m512i second = q == 0 ? _mm512_slli_epi16(high, 2) : _mm512_srli_epi16(high, 2);
    enum { OR_AND = 0xf8 }; /* a | (b & c) */
    *even = _mm512_ternarylogic_epi32(*even, first, pair, OR_AND);
    *odd = _mm512_ternarylogic_epi32(*odd, second, pair, OR_AND);
}

/* The unsigned codes of e2m1's bits. */
NIB_INLINE __m512i e2m1_codes(__m512i bits)
{
    const __m128i values = _mm_setr_epi8(NIB_INT_E2M1);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), bits);
}

/* dot + offset * term - sum * zero if it may not fit 32 bits: exact in double, rounded once. */
NIB_INLINE __m256 half_dot(__m256i dot, __m256i sum, __m256i offset, int32_t term, int32_t zero)
{
    const __m512d added = _mm512_mul_pd(_mm512_cvtepi32_pd(offset), _mm512_set1_pd(term));
    const __m512d taken = _mm512_mul_pd(_mm512_cvtepi32_pd(sum), _mm512_set1_pd(zero));
    return _mm512_cvtpd_ps(_mm512_sub_pd(_mm512_add_pd(_mm512_cvtepi32_pd(dot), added), taken));
}

/* The dot of a NIB_INT_WIDE group as a float, after removing the offset and the zero points. */
NIB_INLINE __m512 wide_dot(const nib_int_layout *l, __m512i dot, __m512i sum, __m512i offset,
                           int32_t term, int32_t zero)
{
    if (l->group <= NIB_INT_WIDE_GROUP) {
        dot = _mm512_add_epi32(dot, _mm512_mullo_epi32(offset, _mm512_set1_epi32(term)));
        return _mm512_cvtepi32_ps(
            _mm512_sub_epi32(dot, _mm512_mullo_epi32(sum, _mm512_set1_epi32(zero))));
    }
    const __m256 low = half_dot(_mm512_castsi512_si256(dot), _mm512_castsi512_si256(sum),
                                _mm512_castsi512_si256(offset), term, zero);
    const __m256 high =
        half_dot(_mm512_extracti64x4_epi64(dot, 1), _mm512_extracti64x4_epi64(sum, 1),
                 _mm512_extracti64x4_epi64(offset, 1), term, zero);
    return _mm512_insertf32x8(_mm512_castps256_ps512(low), high, 1);
}

/* Stores y[r][n0..n0+32) from totals of the row. If activations are in blocks, the totals are
 * scaled already. `streams`: past the caches, which takes whole lines. */
NIB_INLINE void store_row(const nib_linear *a, int64_t r, int64_t n0, __m512 t0, __m512 t1,
                          bool is_scaled, bool streams)
{
    const int64_t columns = nib__min(NIB_INT_PANEL, a->w->n - n0);
    const uint32_t mask = columns == NIB_INT_PANEL ? UINT32_MAX : (1U << columns) - 1;
    const __mmask16 m0 = (__mmask16)mask, m1 = (__mmask16)(mask >> 16);
    float *y = a->y + r * a->ldy + n0;
    if (!is_scaled) {
        const __m512 s = _mm512_set1_ps(a->x.scale[r]);
        t0 = _mm512_mul_ps(s, t0);
        t1 = _mm512_mul_ps(s, t1);
    }
    if (a->bias != NULL) {
        t0 = _mm512_add_ps(_mm512_maskz_loadu_ps(m0, a->bias + n0), t0);
        t1 = _mm512_add_ps(_mm512_maskz_loadu_ps(m1, a->bias + n0 + 16), t1);
    }
    if (streams && columns == NIB_INT_PANEL) {
        _mm512_stream_ps(y, t0);
        _mm512_stream_ps(y + 16, t1);
        return;
    }
    _mm512_mask_storeu_ps(y, m0, t0);
    _mm512_mask_storeu_ps(y + 16, m1, t1);
}

/* ---- decode: tiles of up to TILE tokens over a whole panel, or of one token over two ---- */

typedef struct int_panel {
    const nib_linear *a;
    const nib_int_layout *l;
    const uint8_t *at;    /* the panel */
    const int32_t *terms; /* [tokens of the tile][groups] */
    int64_t n0;
    const float *scales, *sums; /* activations in blocks: like terms, from nib_int_scaled */
} int_panel;

/* The form of a decode; a compile-time constant. */
typedef enum decode_form {
    DECODE_ZEROS,      /* integer zero points of weights or activations, in large groups */
    DECODE_PAIR,       /* the same in groups of NIB_INT_PAIR */
    DECODE_PLAIN,      /* all zero points are 0 */
    DECODE_ZEROS_BIAS, /* the same two with an int32 bias, in one group */
    DECODE_PLAIN_BIAS,
    DECODE_BLOCKS,      /* activations in blocks */
    DECODE_BLOCKS_E2M1, /* the same, of MXFP4 */
    DECODE_BLOCKS_HALF, /* the same with half units */
} decode_form;

NIB_INLINE bool in_blocks(decode_form form)
{
    return form == DECODE_BLOCKS || form == DECODE_BLOCKS_E2M1 || form == DECODE_BLOCKS_HALF;
}

/* Adds a group whose dots are `dot` to the sum of a token whose activations are in blocks. `zeros`
 * are those of the same 16 outputs as the scales. */
NIB_INLINE __m512 add_scaled(const nib_int_layout *l, const uint8_t *zeros, __m512 scale,
                             __m512i dot, const float *token_scale, const float *token_sum,
                             __m512 f)
{
    const __m512 both = _mm512_mul_ps(scale, _mm512_set1_ps(*token_scale));
    f = _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(dot), f);
    if (l->has_float_zeros)
        f = _mm512_fmadd_ps(_mm512_loadu_ps(zeros), _mm512_set1_ps(*token_sum), f);
    return f;
}

/* Where column vector c of a pass has the bytes that its first panel has at `p`. */
NIB_INLINE const uint8_t *of_column(const nib_int_layout *l, const uint8_t *p, int c)
{
    return p + (size_t)(c / 2) * l->panel_bytes;
}

/* How far ahead of a group at `at` to prefetch. Past the end of its panel, the distance skips to
 * the panels of the next pass. */
NIB_INLINE size_t decode_distance(const int_panel *p, const uint8_t *at, int columns)
{
    const size_t ahead = nib__fetches_near() ? AHEAD_NEAR : nib__fetch_distance(AHEAD);
    const bool passes = at + ahead >= p->at + p->l->panel_bytes;
    return columns > 2 && passes ? ahead + p->l->panel_bytes : ahead;
}

/* One group of `units` units for `m` tokens and `columns` vectors of 16 outputs: sums f[m][columns]
 * += scale * dot. */
NIB_INLINE const uint8_t *decode_group(const int_panel *p, const uint8_t *group, int64_t g,
                                       int64_t units, int64_t r0, const int8_t **x,
                                       __m512 f[][COLUMNS], int m, int columns, decode_form form,
                                       int bits)
{
    const nib_int_layout *l = p->l;
    const bool plain = form != DECODE_ZEROS && form != DECODE_PAIR && form != DECODE_ZEROS_BIAS;
    const bool is_biased = form == DECODE_ZEROS_BIAS || form == DECODE_PLAIN_BIAS;
    const bool is_scaled = in_blocks(form);
    const int unit_k = form == DECODE_BLOCKS_HALF ? NIB_INT_HALF_UNIT : NIB_INT_UNIT;
    const __m512i ones = _mm512_set1_epi8(1);
    const uint8_t *codes = group + l->header;
    const int32_t *terms = p->terms + g;
    const size_t ahead = decode_distance(p, group, columns);
    __m512i dots[TILE][COLUMNS], sums[COLUMNS];
#pragma GCC unroll 4
    for (int c = 0; c < columns; c++) {
        sums[c] = _mm512_setzero_si512();
#pragma GCC unroll 6
        for (int r = 0; r < m; r++)
            dots[r][c] = plain ? broadcast4(terms + r * l->groups) : _mm512_setzero_si512();
    }
    if (is_biased)
#pragma GCC unroll 6
        for (int r = 0; r < m; r++)
            for (int c = 0; c < columns; c += 2)
                add_int_bias(p->a, p->n0 + 16 * c, dots[r] + c);
    if (ahead != 0)
        for (size_t line = 0; line < l->header; line += 64)
            for (int c = 0; c < columns; c += 2)
                _mm_prefetch(nib__ahead(of_column(l, group, c), ahead + line), _MM_HINT_T0);
    for (int64_t unit = 0; unit < units; unit++, codes += l->unit_bytes) {
        /* on Zen 4, prefetching what was just read costs int8 a fifth, and int4 nothing */
        if (bits != 8 || ahead != 0)
            for (int c = 0; c < columns; c += 2)
#pragma GCC unroll 16
                for (int line = 0; line < unit_k * bits / 16; line++)
                    _mm_prefetch(nib__ahead(of_column(l, codes, c), ahead + 64 * (size_t)line),
                                 _MM_HINT_T0);
#pragma GCC unroll 4
        for (int q = 0; q < unit_k / 8; q++) {
            __m512i even[COLUMNS], odd[COLUMNS];
#pragma GCC unroll 4
            for (int c = 0; c < columns; c++) {
                load_quads(of_column(l, codes, c), q, c % 2, bits, &even[c], &odd[c]);
                if (form == DECODE_BLOCKS_E2M1)
                    even[c] = e2m1_codes(even[c]), odd[c] = e2m1_codes(odd[c]);
                if (!plain)
                    sums[c] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums[c], even[c], ones),
                                                  odd[c], ones);
            }
#pragma GCC unroll 6
            for (int r = 0; r < m; r++) {
                const __m512i x0 = broadcast4(x[r] + 8 * q), x1 = broadcast4(x[r] + 8 * q + 4);
#pragma GCC unroll 4
                for (int c = 0; c < columns; c++)
                    dots[r][c] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(dots[r][c], even[c], x0),
                                                     odd[c], x1);
            }
        }
#pragma GCC unroll 6
        for (int r = 0; r < m; r++)
            x[r] += unit_k;
    }
#pragma GCC unroll 4
    for (int c = 0; c < columns; c++) {
        const uint8_t *head = of_column(l, group, c);
        const __m512 scale = group_scales(l, of_column(l, p->at, c), head, g, c % 2, bits);
        const __m512i offset = load_offsets(l, head, c % 2), pair = pair_fix(sums[c], offset);
#pragma GCC unroll 6
        for (int r = 0; r < m; r++) {
            const int32_t *term = terms + r * l->groups;
            __m512 dot;
            if (is_scaled) {
                const int64_t at = r * l->groups + g;
                f[r][c] = add_scaled(l, head + l->zeros + 64 * (c % 2), scale, dots[r][c],
                                     p->scales + at, p->sums + at, f[r][c]);
                continue;
            }
            if (plain)
                dot = _mm512_cvtepi32_ps(dots[r][c]);
            else if (form == DECODE_PAIR)
                dot = _mm512_cvtepi32_ps(_mm512_dpwssd_epi32(dots[r][c], pair, broadcast4(term)));
            else
                dot = wide_dot(l, dots[r][c], sums[c], offset, *term, p->a->x.zero[r0 + r]);
            f[r][c] = _mm512_fmadd_ps(scale, dot, f[r][c]);
        }
    }
    return codes;
}

NIB_INLINE void decode_panel(const int_panel *p, int64_t r0, int m, int columns, decode_form form,
                             int bits)
{
    const nib_int_layout *l = p->l;
    const uint8_t *at = p->at + l->heads;
    const int8_t *x[TILE];
    __m512 total[TILE][COLUMNS];
#pragma GCC unroll 6
    for (int r = 0; r < m; r++) {
        x[r] = p->a->x.codes + (r0 + r) * p->a->x.ld;
        for (int c = 0; c < columns; c++)
            total[r][c] = _mm512_setzero_ps();
    }
    for (int64_t g = 0; g < l->groups;) {
        __m512 f[TILE][COLUMNS];
        const int64_t begin = g, end = nib__min(g + l->per_block, l->groups);
#pragma GCC unroll 6
        for (int r = 0; r < m; r++)
            for (int c = 0; c < columns; c++)
                f[r][c] = _mm512_setzero_ps();
        for (; g < end; g++)
            at = decode_group(p, at, g, g + 1 == l->groups ? l->last_units : l->units, r0, x, f, m,
                              columns, form, bits);
#pragma GCC unroll 6
        for (int r = 0; r < m; r++)
            for (int c = 0; c < columns; c++)
                total[r][c] = begin == 0 ? f[r][c] : _mm512_add_ps(total[r][c], f[r][c]);
    }
    for (int r = 0; r < m; r++)
        for (int c = 0; c < columns; c += 2)
            store_row(p->a, r0 + r, p->n0 + 16 * c, total[r][c], total[r][c + 1], in_blocks(form),
                      false);
}

/* A tile of m tokens by one panel, of one token by `panels` panels. */
NIB_INLINE void decode_tile(const int_panel *p, int64_t r0, int64_t m, int64_t panels,
                            decode_form form, int bits)
{
    if (panels == 2) {
        decode_panel(p, r0, 1, COLUMNS, form, bits);
        return;
    }
    switch (m) {
    case 1: decode_panel(p, r0, 1, 2, form, bits); break;
    case 2: decode_panel(p, r0, 2, 2, form, bits); break;
    case 3: decode_panel(p, r0, 3, 2, form, bits); break;
    case 4: decode_panel(p, r0, 4, 2, form, bits); break;
    case 5: decode_panel(p, r0, 5, 2, form, bits); break;
    default: decode_panel(p, r0, TILE, 2, form, bits); break;
    }
}

/* Tokens r0..r0+rows. `first` has what they need: terms, and with activations in blocks scales and
 * sums. */
NIB_INLINE void decode_rows(const nib_linear *a, const nib_int_layout *l, int64_t r0, int64_t rows,
                            const nib_int_scaled *first, int64_t n0, int64_t n1, decode_form form,
                            int bits)
{
    const int64_t tile = nib__ceil_div(rows, nib__ceil_div(rows, TILE)), end = r0 + rows;
    const bool in_pairs = rows == 1 && nib__fetches_near();
    int64_t panels = 1;
    for (int64_t i = n0; i < n1; i += panels * NIB_INT_PANEL) {
        const uint8_t *panel =
            (const uint8_t *)a->packed + (size_t)(i / NIB_INT_PANEL) * l->panel_bytes;
        panels = in_pairs && n1 - i > NIB_INT_PANEL ? 2 : 1;
        for (int64_t r = r0; r < end; r += tile) {
            const int64_t at = (r - r0) * l->groups;
            int_panel p = {a, l, panel, first->terms + at, i, NULL, NULL};
            if (in_blocks(form))
                p.scales = first->scales + at, p.sums = first->sums + at;
            decode_tile(&p, r, nib__min(tile, end - r), panels, form, bits);
        }
    }
}

NIB_INLINE void decode(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind, int64_t r0,
                       int64_t rows, int32_t *terms, int64_t n0, int64_t n1, int bits)
{
    const nib_int_scaled first = {terms, NULL, NULL};
    if (kind == NIB_INT_PLAIN && a->int_bias == NULL)
        decode_rows(a, l, r0, rows, &first, n0, n1, DECODE_PLAIN, bits);
    else if (kind == NIB_INT_PLAIN)
        decode_rows(a, l, r0, rows, &first, n0, n1, DECODE_PLAIN_BIAS, bits);
    else if (kind == NIB_INT_PAIR)
        decode_rows(a, l, r0, rows, &first, n0, n1, DECODE_PAIR, bits);
    else if (a->int_bias == NULL)
        decode_rows(a, l, r0, rows, &first, n0, n1, DECODE_ZEROS, bits);
    else
        decode_rows(a, l, r0, rows, &first, n0, n1, DECODE_ZEROS_BIAS, bits);
}

/* Scratch: terms [rows][groups], or prefill's. */
NIB_INLINE void run_linear(const nib_linear *a, int64_t n0, int64_t n1, void *scratch, int bits)
{
    const nib_int_layout l = nib__int_layout(a->w);
    const nib_int_kind kind = nib__int_kind(a, &l);
    const int64_t block = nib__int_row_block(a->x.m, a->w->k);
    if (!is_direct(&l, a->x.m)) {
        nib__int_prefill_avx512vnni(a, &l, kind, n0, n1, scratch);
        return;
    }
    for (int64_t r0 = 0; r0 < a->x.m; r0 += block) {
        const int64_t rows = nib__min(block, a->x.m - r0);
        nib__int_terms(a, &l, kind, r0, rows, scratch);
        decode(a, &l, kind, r0, rows, scratch, n0, n1, bits);
    }
}

/* ---- activations in blocks ---- */

NIB_INLINE void run_blocks_form(const nib_linear *a, const nib_int_layout *l, int64_t n0,
                                int64_t n1, void *scratch, decode_form form, int bits)
{
    const int64_t block = nib__int_row_block(a->x.m, a->w->k);
    for (int64_t r0 = 0; r0 < a->x.m; r0 += block) {
        const int64_t rows = nib__min(block, a->x.m - r0);
        const nib_int_scaled s = nib__int_scaled(a, l, r0, rows, scratch);
        decode_rows(a, l, r0, rows, &s, n0, n1, form, bits);
    }
}

/* Scratch: nib_int_scaled, or prefill's. `form` is of whole units. */
NIB_INLINE void run_blocks(const nib_linear *a, int64_t n0, int64_t n1, void *scratch, int bits,
                           decode_form form)
{
    const nib_int_layout l = bits == 6 ? nib__int_layout_six(a->w) : nib__int_layout(a->w);
    if (!is_direct(&l, a->x.m))
        nib__int_prefill_avx512vnni(a, &l, NIB_INT_PLAIN, n0, n1, scratch);
    else if (bits == 6 || (form != DECODE_BLOCKS_E2M1 && l.unit == NIB_INT_HALF_UNIT))
        run_blocks_form(a, &l, n0, n1, scratch, DECODE_BLOCKS_HALF, bits);
    else
        run_blocks_form(a, &l, n0, n1, scratch, form, bits);
}

#endif
