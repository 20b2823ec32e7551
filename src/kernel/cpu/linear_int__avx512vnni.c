/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many tokens with panels of int4, MXFP4, Q6_K and int8 (prefill), AVX-512 VNNI.
 *
 * Tiles of 6 tokens x 32 outputs: 12 float sums, 12 integer sums and 3 other registers. Chunks:
 * linear_int_chunks.h.
 *
 * On Zen 5, every multiplication competes with vpdpbusd for two of four vector ports; additions,
 * conversions and shifts use the other two. So with groups of 32 the upper bound is 8 of 9, or 8 of
 * 10 with zero points: next to 8 products of 4 there is one multiplication for the scale and one
 * for the zero points.
 */
#include "linear_int.h"

#if NIB_BUILT_X86
#include "linear_int_chunks.h"

/* ---- a tile ---- */

/* Cache lines of the packed bytes after a chunk, for a tile to prefetch. It prefetches some with
 * each unit, because too many at once would wait for each other. Past the last panel this is
 * harmless: a prefetch cannot fault. */
typedef struct int_ahead {
    const void *next;
    int64_t lines, units; /* in the whole tile */
    int64_t due;          /* grows by `lines` per unit; a line is due at `units` */
} int_ahead;

NIB_INLINE void prefetch_ahead(int_ahead *a)
{
    for (a->due += a->lines; a->due >= a->units;
         a->due -= a->units, a->next = nib__ahead(a->next, 64))
        _mm_prefetch(a->next, _MM_HINT_T1);
}

/* Dot products of `units` units with m tokens, whose codes begin at x + r * ld, added to dots. */
NIB_INLINE void tile_dots(const uint8_t *codes, int64_t units, const int8_t *x, int64_t ld,
                          int_ahead *ahead, __m512i dots[][2], int m, form f)
{
    for (int64_t unit = 0; unit < units;
         unit++, codes += unit_of(f) * NIB_INT_PANEL, x += unit_of(f)) {
        prefetch_ahead(ahead);
#pragma GCC unroll 8
        for (int q = 0; q < unit_of(f) / 4; q++) {
            const __m512i w0 = _mm512_loadu_si512(codes + q * 4 * NIB_INT_PANEL);
            const __m512i w1 = _mm512_loadu_si512(codes + q * 4 * NIB_INT_PANEL + 64);
#pragma GCC unroll 6
            for (int r = 0; r < m; r++) {
                const __m512i b = broadcast4(x + r * ld + 4 * q);
                dots[r][0] = _mm512_dpbusd_epi32(dots[r][0], w0, b);
                dots[r][1] = _mm512_dpbusd_epi32(dots[r][1], w1, b);
            }
        }
    }
}

/* What a tile of m tokens reads and writes. Rows of x are `ld` apart, rows of terms `terms_ld`. */
typedef struct int_tile {
    const int8_t *x; /* codes of the first token, at the chunk's first k */
    int64_t ld;
    const int32_t *terms; /* terms of the chunk's first group */
    int64_t terms_ld;
    const int32_t *zero;
    const float *token_scales, *token_sums; /* BLOCKS: laid out like terms, from nib_int_scaled */
    float *sums;                            /* [m][32] */
    int32_t *parts;                         /* [m][32] */
    bool is_first;                          /* of its block, PART: of its group: sums start at 0 */
    bool has_float_zeros;
    const nib_linear *a;
    int64_t n0;
    int_ahead ahead;
} int_tile;

/* Start values of the integer sums of a group. Corrections that must be computed are added at the
 * end, so that the products of the next group do not wait for them. */
NIB_INLINE void tile_start(const int_head *head, const int_tile *t, const int32_t *terms,
                           __m512i dots[][2], int m, form f)
{
#pragma GCC unroll 6
    for (int r = 0; r < m; r++) {
        const __m512i term = broadcast4(terms + r * t->terms_ld);
#pragma GCC unroll 2
        for (int c = 0; c < 2; c++) {
            const __m512i sum = _mm512_loadu_si512(head->fix[0] + 16 * c);
            const __m512i offset = _mm512_loadu_si512(head->fix[1] + 16 * c);
            if (f == FORM_PAIR)
                dots[r][c] = _mm512_setzero_si512();
            else if (f == FORM_WIDE || f == FORM_WIDE_BIAS)
                dots[r][c] =
                    _mm512_sub_epi32(_mm512_mullo_epi32(offset, term),
                                     _mm512_mullo_epi32(sum, _mm512_set1_epi32(t->zero[r])));
            else
                dots[r][c] = term;
        }
        if (f == FORM_PLAIN_BIAS || f == FORM_WIDE_BIAS)
            add_int_bias(t->a, t->n0, dots[r]);
    }
}

/* sums += scale * dot of group i of the chunk. */
NIB_INLINE void tile_end(const int_head *head, const int_tile *t, int64_t i, __m512i dots[][2],
                         __m512 sums[][2], int m, form f)
{
    const __m512i fix[2] = {_mm512_loadu_si512(head->fix[0]),
                            _mm512_loadu_si512(head->fix[0] + 16)};
    const __m512 scale[2] = {_mm512_loadu_ps(head->scale), _mm512_loadu_ps(head->scale + 16)};
#pragma GCC unroll 6
    for (int r = 0; r < m; r++) {
        const int64_t at = r * t->terms_ld + i;
#pragma GCC unroll 2
        for (int c = 0; c < 2; c++) {
            __m512 both = scale[c];
            if (f == FORM_PAIR)
                dots[r][c] = _mm512_dpwssd_epi32(dots[r][c], fix[c], broadcast4(t->terms + at));
            if (is_blocks(f))
                both = _mm512_mul_ps(both, _mm512_set1_ps(t->token_scales[at]));
            sums[r][c] = _mm512_fmadd_ps(both, _mm512_cvtepi32_ps(dots[r][c]), sums[r][c]);
            if (is_blocks(f) && t->has_float_zeros)
                sums[r][c] = _mm512_fmadd_ps(_mm512_castsi512_ps(fix[c]),
                                             _mm512_set1_ps(t->token_sums[at]), sums[r][c]);
        }
    }
}

/* All whole groups of a chunk. */
NIB_INLINE void tile_groups(const int_chunk *chunk, const int_tile *t, int m, int64_t units, form f)
{
    const int8_t *x = t->x;
    const uint8_t *codes = chunk->codes;
    int_ahead ahead = t->ahead;
    __m512 sums[TILE][2];
#pragma GCC unroll 6
    for (int r = 0; r < m; r++) {
        for (int c = 0; c < 2; c++)
            sums[r][c] = t->is_first ? _mm512_setzero_ps()
                                     : _mm512_loadu_ps(t->sums + r * NIB_INT_PANEL + 16 * c);
    }
    for (int64_t i = 0; i < chunk->groups; i++) {
        __m512i dots[TILE][2];
        tile_start(&chunk->heads[i], t, t->terms + i, dots, m, f);
        tile_dots(codes, units, x, t->ld, &ahead, dots, m, f);
        tile_end(&chunk->heads[i], t, i, dots, sums, m, f);
        x += units * unit_of(f);
        codes += chunk->stride;
    }
#pragma GCC unroll 6
    for (int r = 0; r < m; r++)
        for (int c = 0; c < 2; c++)
            _mm512_storeu_ps(t->sums + r * NIB_INT_PANEL + 16 * c, sums[r][c]);
}

/* Part of one group that is larger than a chunk: integer sums += dot. */
NIB_INLINE void tile_part(const int_chunk *chunk, const int_tile *t, int m)
{
    __m512i dots[TILE][2];
    int_ahead ahead = t->ahead;
#pragma GCC unroll 6
    for (int r = 0; r < m; r++)
        for (int c = 0; c < 2; c++)
            dots[r][c] = t->is_first ? _mm512_setzero_si512()
                                     : _mm512_loadu_si512(t->parts + r * NIB_INT_PANEL + 16 * c);
    if (t->is_first && t->a->int_bias != NULL)
#pragma GCC unroll 6
        for (int r = 0; r < m; r++)
            add_int_bias(t->a, t->n0, dots[r]);
    tile_dots(chunk->codes, chunk->units, t->x, t->ld, &ahead, dots, m, FORM_PART);
#pragma GCC unroll 6
    for (int r = 0; r < m; r++)
        for (int c = 0; c < 2; c++)
            _mm512_storeu_si512(t->parts + r * NIB_INT_PANEL + 16 * c, dots[r][c]);
}

NIB_INLINE void run_tile(const int_chunk *chunk, const int_tile *t, int m, form f)
{
    const bool may_be_one = f == FORM_PLAIN || f == FORM_PAIR || f == FORM_BLOCKS;
    if (f == FORM_PART)
        tile_part(chunk, t, m);
    else if (f == FORM_BLOCKS_HALF || (may_be_one && chunk->units == 1))
        tile_groups(chunk, t, m, 1, f);
    else
        tile_groups(chunk, t, m, chunk->units, f);
}

NIB_INLINE void run_tile_m(const int_chunk *chunk, const int_tile *t, int64_t m, form f)
{
    switch (m) {
    case 1: run_tile(chunk, t, 1, f); break;
    case 2: run_tile(chunk, t, 2, f); break;
    case 3: run_tile(chunk, t, 3, f); break;
    case 4: run_tile(chunk, t, 4, f); break;
    case 5: run_tile(chunk, t, 5, f); break;
    default: run_tile(chunk, t, TILE, f); break;
    }
}

/* A tile function, one per form. */
typedef void tile_run(const int_chunk *chunk, const int_tile *t, int64_t m);
static void tile_plain(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, FORM_PLAIN);
}
static void tile_pair(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, FORM_PAIR);
}
static void tile_wide(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, FORM_WIDE);
}
static void tile_plain_bias(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, FORM_PLAIN_BIAS);
}
static void tile_wide_bias(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, FORM_WIDE_BIAS);
}
static void tile_parts(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, FORM_PART);
}
static void tile_blocks(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, FORM_BLOCKS);
}
static void tile_blocks_half(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, FORM_BLOCKS_HALF);
}

/* A tile's share of the cache lines after its chunk. */
static int_ahead share_ahead(const int_chunk *chunk, int64_t tile, int64_t tiles)
{
    const int64_t lines = (int64_t)chunk->bytes / 64 + 1, first = lines * tile / tiles;
    return (int_ahead){nib__ahead(chunk->packed, chunk->bytes + 64 * (size_t)first),
                       lines * (tile + 1) / tiles - first, chunk->groups * chunk->units, 0};
}

/* All tokens of the block over one chunk. */
static void multiply(const int_block *b, const int_chunk *chunk, const int_place *at)
{
    static tile_run *const runs[] = {tile_plain,     tile_pair,  tile_wide,   tile_plain_bias,
                                     tile_wide_bias, tile_parts, tile_blocks, tile_blocks_half};
    const nib_input *in = &b->a->x;
    const int64_t tiles = nib__ceil_div(b->rows, TILE);
    for (int64_t tile = 0; tile < tiles; tile++) { /* of nearly equal size */
        const int64_t r = b->rows * tile / tiles, m = b->rows * (tile + 1) / tiles - r;
        const int64_t cell = r * b->l->groups + at->g;
        const bool in_blocks = is_blocks(b->f);
        const int_tile t = {in->codes + (b->r0 + r) * in->ld + at->k0,
                            in->ld,
                            (in_blocks ? b->scaled.terms : b->terms) + cell,
                            b->l->groups,
                            in_blocks ? NULL : in->zero + b->r0 + r,
                            in_blocks ? b->scaled.scales + cell : NULL,
                            in_blocks ? b->scaled.sums + cell : NULL,
                            b->sums + r * NIB_INT_PANEL,
                            b->parts + r * NIB_INT_PANEL,
                            at->opens,
                            b->l->has_float_zeros,
                            b->a,
                            b->n0,
                            share_ahead(chunk, tile, tiles)};
        if (at->last)
            prefetch_y(b, r, m);
        runs[b->f](chunk, &t, m);
        if (at->ends)
            finish_parts(b, chunk, at->g, r, m);
        if (at->closes)
            close_tile(b, at, r, m);
    }
}

static void prepare(int_block *b, void *room)
{
    (void)b;
    (void)room;
}

void nib__int_prefill_avx512vnni(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind,
                                 int64_t n0, int64_t n1, void *scratch)
{
    prefill(a, l, kind, n0, n1, 1, false, scratch);
}

size_t nib__linear_int_scratch_avx512vnni(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    const size_t terms = terms_bytes(a, &l);
    return is_direct(&l, a->x.m) ? terms : prefill_bytes(a, terms, 1, 0);
}

static size_t blocks_scratch(const nib_linear *a, const nib_int_layout *l)
{
    const size_t scaled = nib__int_scaled_bytes(a, l);
    return is_direct(l, a->x.m) ? scaled : prefill_bytes(a, scaled, 1, 0);
}

size_t nib__linear_blocks_scratch_avx512vnni(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    return blocks_scratch(a, &l);
}

size_t nib__linear_six_scratch_avx512vnni(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout_six(a->w);
    return blocks_scratch(a, &l);
}

#endif
