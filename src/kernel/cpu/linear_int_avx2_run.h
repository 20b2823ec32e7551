/* SPDX-License-Identifier: Apache-2.0
 *
 * The row blocks and panels of the AVX2 integer products, with tiles of few tokens
 * (linear_int_avx2.h) or of many (linear_int_avx2_many.h).
 */
#ifndef NIB_LINEAR_INT_AVX2_RUN_H
#define NIB_LINEAR_INT_AVX2_RUN_H

#include "linear_int_avx2_many.h"

/* Widens the block's codes to 16 bits, every 4 in the order 0, 2, 1, 3. */
NIB_INLINE void widen(const int_block *b, int16_t *out)
{
    const nib_input *in = &b->a->x;
    const __m128i order = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t j = 0; j < in->ld; j += 16) {
            const __m128i v =
                _mm_loadu_si128((const __m128i *)(in->codes + (b->r0 + r) * in->ld + j));
            _mm256_storeu_si256((__m256i *)(out + r * in->ld + j),
                                _mm256_cvtepi8_epi16(_mm_shuffle_epi8(v, order)));
        }
}

/* All tokens of the block over one panel. Each form is a function of its own, which is not inlined:
 * with all of them in one, gcc runs out of registers. */
typedef void panel_run(const int_block *b, const uint8_t *panel, int64_t n);

NIB_INLINE void run_panel(const int_block *b, const uint8_t *panel, int64_t n, bool whole,
                          tile_form form, int bits)
{
    if (b->many != NULL) {
        many_panel(b, panel, n, whole, form, bits);
        return;
    }
    for (int64_t row = 0, m; row < b->rows; row += m) {
        const int64_t left = b->rows - row;
        m = left == FEW + 1 ? 2 : nib__min(left, FEW); /* 2 and 2 rather than 3 and 1 */
        if (m == 1)
            few_tiles(b, panel, n, row, 1, form, bits);
        else if (m == 2)
            few_tiles(b, panel, n, row, 2, form, bits);
        else
            few_tiles(b, panel, n, row, FEW, form, bits);
    }
}

/* The forms of a code. */
typedef struct code_runs {
    panel_run *plain, *part; /* no zero points; part: large groups or an int32 bias */
    panel_run *pair, *wide;  /* as in nib_int_kind */
    panel_run *blocks;       /* activations in blocks */
    panel_run *half;         /* the same with half units */
} code_runs;

/* All panels of outputs n0..n1 for the tokens of the block. */
NIB_INLINE void run_block(const int_block *b, int64_t n0, int64_t n1, panel_run *run)
{
    for (int64_t n = n0; n < n1; n += NIB_INT_PANEL) {
        const uint8_t *panel =
            (const uint8_t *)b->a->packed + (size_t)(n / NIB_INT_PANEL) * b->l->panel_bytes;
        run(b, panel, n);
    }
}

/* Scratch: nib__int_many_bytes, terms [rows][groups], for int8 codes [rows][ld]. */
NIB_INLINE void run_linear(const nib_linear *a, int64_t n0, int64_t n1, void *scratch, int bits,
                           const code_runs *runs)
{
    const nib_int_layout l = nib__int_layout(a->w);
    const nib_int_kind kind = nib__int_kind(a, &l);
    const bool is_whole = l.units * l.unit <= NIB_INT_CHUNK_K && a->int_bias == NULL;
    const int64_t rows = nib__int_row_block(a->x.m, a->w->k);
    const size_t many = nib__int_many_bytes(a, &l);
    int32_t *terms = (int32_t *)((char *)scratch + many);
    int16_t *wide =
        (int16_t *)((char *)terms + nib__round_up(rows * l.groups * (int64_t)sizeof *terms, 64));
    for (int64_t r0 = 0; r0 < a->x.m; r0 += rows) {
        const int_block b = {.a = a,
                             .l = &l,
                             .kind = kind,
                             .r0 = r0,
                             .rows = nib__min(rows, a->x.m - r0),
                             .terms = terms,
                             .wide = wide,
                             .many = many > 0 ? scratch : NULL};
        nib__int_terms(a, &l, kind, r0, b.rows, terms);
        if (bits == 8)
            widen(&b, wide);
        if (kind == NIB_INT_PLAIN)
            run_block(&b, n0, n1, is_whole ? runs->plain : runs->part);
        else if (kind == NIB_INT_PAIR)
            run_block(&b, n0, n1, runs->pair);
        else
            run_block(&b, n0, n1, runs->wide);
    }
}

/* Activations in blocks. Scratch: nib__int_many_bytes, nib_int_scaled, for int8 codes
 * [rows][ld]. */
NIB_INLINE void run_blocks(const nib_linear *a, int64_t n0, int64_t n1, void *scratch, int bits,
                           const code_runs *runs)
{
    const nib_int_layout l = bits == 6 ? nib__int_layout_six(a->w) : nib__int_layout(a->w);
    const int64_t rows = nib__int_row_block(a->x.m, a->w->k);
    const size_t many = nib__int_many_bytes(a, &l);
    char *scaled = (char *)scratch + many;
    int16_t *wide = (int16_t *)(scaled + nib__round_up((int64_t)nib__int_scaled_bytes(a, &l), 64));
    for (int64_t r0 = 0; r0 < a->x.m; r0 += rows) {
        const int64_t count = nib__min(rows, a->x.m - r0);
        const nib_int_scaled s = nib__int_scaled(a, &l, r0, count, scaled);
        const int_block b = {.a = a,
                             .l = &l,
                             .kind = NIB_INT_PLAIN,
                             .r0 = r0,
                             .rows = count,
                             .terms = s.terms,
                             .wide = wide,
                             .scales = s.scales,
                             .sums = s.sums,
                             .many = many > 0 ? scratch : NULL};
        if (bits == 8)
            widen(&b, wide);
        if (l.unit == NIB_INT_HALF_UNIT)
            run_block(&b, n0, n1, runs->half);
        else
            run_block(&b, n0, n1, runs->blocks);
    }
}

#endif
