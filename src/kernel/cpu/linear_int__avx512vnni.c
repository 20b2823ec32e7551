/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many tokens with int4 and int8 panels (prefill), AVX-512 VNNI.
 *
 * A chunk of up to 1,024 k of one panel becomes bytes, f32 scales and corrections, 44 KB that all
 * tokens of a row block pass in tiles of 6 tokens x 32 outputs: 12 float sums, 12 integer sums and
 * 3 other registers. A group larger than a chunk keeps integer sums between its chunks.
 */
#include "linear_int_vnni.h"

#if NIB_BUILT_X86

/* Of one group. fix: PAIR: code sum | offset << 16, unused; WIDE: code sum, offset. */
typedef struct int_head {
    float scale[NIB_INT_PANEL];
    int32_t fix[2][NIB_INT_PANEL];
} int_head;

/* A chunk of one panel, ready to multiply. */
typedef struct int_chunk {
    const uint8_t *packed; /* where it lies in the panel, `bytes` long */
    size_t bytes;
    const uint8_t *codes; /* [groups][units][8 quads][32][4], groups `stride` bytes apart */
    size_t stride;
    int64_t groups, units;
    const int_head *heads; /* [groups] */
} int_chunk;

/* Scratch of one worker. */
typedef struct int_scratch {
    uint8_t codes[CHUNK_UNITS * NIB_INT_UNIT * NIB_INT_PANEL];
    int_head heads[CHUNK_UNITS];
    /* then, for `rows` tokens: float sums [rows][32], float totals [rows][32], int32 terms
     * [rows][groups] */
} int_scratch;

/* Unpacks `groups` groups from g on, or `units` units from unit0 on of group g alone. Code sums add
 * to those of the same group's earlier units when unit0 > 0. */
NIB_INLINE int_chunk load_chunk(const nib_int_layout *l, const uint8_t *panel, int64_t g,
                                int64_t groups, int64_t unit0, int64_t units, nib_int_kind kind,
                                int bits, int_scratch *s)
{
    const __m512i ones = _mm512_set1_epi8(1);
    const size_t bytes = (size_t)units * NIB_INT_UNIT * NIB_INT_PANEL;
    for (int64_t i = 0; i < groups; i++) {
        const uint8_t *group = panel + (size_t)(g + i) * l->group_bytes;
        const uint8_t *codes = group + l->header + (size_t)unit0 * l->unit_bytes;
        uint8_t *out = s->codes + (size_t)i * bytes;
        for (int c = 0; c < 2; c++) {
            __m512i sum = _mm512_setzero_si512();
            for (int64_t q = 0; q < 4 * units; q++) {
                __m512i even, odd;
                load_quads(codes + (size_t)q * (size_t)bits * NIB_INT_PANEL + 64 * c, bits, &even,
                           &odd);
                if (kind != NIB_INT_PLAIN)
                    sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, ones), odd, ones);
                if (bits == 4) {
                    _mm512_storeu_si512(out + q * 8 * NIB_INT_PANEL + 64 * c, even);
                    _mm512_storeu_si512(out + q * 8 * NIB_INT_PANEL + 64 * c + 4 * NIB_INT_PANEL,
                                        odd);
                }
            }
            const __m512i offset = load_offsets(l, group, c);
            int_head *head = &s->heads[i];
            if (kind == NIB_INT_PAIR) {
                _mm512_storeu_si512(head->fix[0] + 16 * c, pair_fix(sum, offset));
            } else if (kind == NIB_INT_WIDE) {
                if (unit0 > 0)
                    sum = _mm512_add_epi32(sum, _mm512_loadu_si512(head->fix[0] + 16 * c));
                _mm512_storeu_si512(head->fix[0] + 16 * c, sum);
                _mm512_storeu_si512(head->fix[1] + 16 * c, offset);
            }
            _mm512_storeu_ps(head->scale + 16 * c,
                             load_scales(group + (size_t)c * 16 * l->scale_bytes, l->scale_type));
        }
    }
    const uint8_t *direct = panel + nib__int_unit(l, g, unit0);
    const size_t packed = (size_t)(groups - 1) * l->group_bytes + (size_t)units * l->unit_bytes;
    return bits == 8 ? (int_chunk){direct, packed, direct, l->group_bytes, groups, units, s->heads}
                     : (int_chunk){direct, packed, s->codes, bytes, groups, units, s->heads};
}

/* `units` units of m tokens, x + r * ld on, into dots. */
NIB_INLINE void tile_dots(const uint8_t *codes, int64_t units, const int8_t *x, int64_t ld,
                          __m512i dots[][2], int m)
{
    for (int64_t unit = 0; unit < units;
         unit++, codes += NIB_INT_UNIT * NIB_INT_PANEL, x += NIB_INT_UNIT) {
#pragma GCC unroll 8
        for (int q = 0; q < 8; q++) {
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

/* What a tile of m tokens reads and writes; rows are `sums_ld` and `terms_ld` apart. */
typedef struct int_tile {
    const int8_t *x; /* codes of the first token, at the chunk's first k */
    int64_t ld;
    const int32_t *terms; /* of the chunk's first group */
    int64_t terms_ld;
    const int32_t *zero;
    float *sums;   /* [m][32] */
    bool is_first; /* of a block: sums start at 0 */
    const nib_linear *a;
    int64_t n0;
} int_tile;

/* All whole groups of a chunk: sums += scale * dot. */
NIB_INLINE void tile_groups(const int_chunk *chunk, const int_tile *t, int m, nib_int_kind kind,
                            int64_t units, bool is_biased)
{
    const int8_t *x = t->x;
    const int32_t *terms = t->terms;
    const uint8_t *codes = chunk->codes;
    const int_head *end = chunk->heads + chunk->groups;
    __m512 f[TILE][2];
#pragma GCC unroll 6
    for (int r = 0; r < m; r++)
        for (int c = 0; c < 2; c++)
            f[r][c] = t->is_first ? _mm512_setzero_ps()
                                  : _mm512_loadu_ps(t->sums + r * NIB_INT_PANEL + 16 * c);
    for (const int_head *head = chunk->heads; head < end; head++) {
        __m512i dots[TILE][2];
        for (int c = 0; c < 2; c++) {
            const __m512i sum = kind == NIB_INT_PLAIN ? _mm512_setzero_si512()
                                                      : _mm512_loadu_si512(head->fix[0] + 16 * c);
            const __m512i offset = kind == NIB_INT_WIDE ? _mm512_loadu_si512(head->fix[1] + 16 * c)
                                                        : _mm512_setzero_si512();
#pragma GCC unroll 6
            for (int r = 0; r < m; r++) {
                const __m512i term = broadcast4(terms + r * t->terms_ld);
                if (kind == NIB_INT_PLAIN)
                    dots[r][c] = term;
                else if (kind == NIB_INT_PAIR)
                    dots[r][c] = _mm512_madd_epi16(sum, term);
                else
                    dots[r][c] =
                        _mm512_sub_epi32(_mm512_mullo_epi32(offset, term),
                                         _mm512_mullo_epi32(sum, _mm512_set1_epi32(t->zero[r])));
            }
        }
        if (is_biased)
#pragma GCC unroll 6
            for (int r = 0; r < m; r++)
                add_int_bias(t->a, t->n0, dots[r]);
        tile_dots(codes, units, x, t->ld, dots, m);
        const __m512 s0 = _mm512_loadu_ps(head->scale), s1 = _mm512_loadu_ps(head->scale + 16);
#pragma GCC unroll 6
        for (int r = 0; r < m; r++) {
            f[r][0] = _mm512_fmadd_ps(s0, _mm512_cvtepi32_ps(dots[r][0]), f[r][0]);
            f[r][1] = _mm512_fmadd_ps(s1, _mm512_cvtepi32_ps(dots[r][1]), f[r][1]);
        }
        x += units * NIB_INT_UNIT;
        terms++;
        codes += chunk->stride;
    }
#pragma GCC unroll 6
    for (int r = 0; r < m; r++)
        for (int c = 0; c < 2; c++)
            _mm512_storeu_ps(t->sums + r * NIB_INT_PANEL + 16 * c, f[r][c]);
}

/* A part of one group that is larger than a chunk: integer sums += dot, kept in the place of the
 * float sums. */
NIB_INLINE void tile_part(const int_chunk *chunk, const int_tile *t, int m)
{
    __m512i dots[TILE][2];
#pragma GCC unroll 6
    for (int r = 0; r < m; r++)
        for (int c = 0; c < 2; c++)
            dots[r][c] = t->is_first ? _mm512_setzero_si512()
                                     : _mm512_loadu_si512(t->sums + r * NIB_INT_PANEL + 16 * c);
    if (t->is_first && t->a->int_bias != NULL)
#pragma GCC unroll 6
        for (int r = 0; r < m; r++)
            add_int_bias(t->a, t->n0, dots[r]);
    tile_dots(chunk->codes, chunk->units, t->x, t->ld, dots, m);
#pragma GCC unroll 6
    for (int r = 0; r < m; r++)
        for (int c = 0; c < 2; c++)
            _mm512_storeu_si512(t->sums + r * NIB_INT_PANEL + 16 * c, dots[r][c]);
}

NIB_INLINE void run_tile(const int_chunk *chunk, const int_tile *t, int m, nib_int_kind kind,
                         bool is_part, bool is_biased)
{
    if (is_part)
        tile_part(chunk, t, m);
    else if (chunk->units == 1 && kind != NIB_INT_WIDE && !is_biased)
        tile_groups(chunk, t, m, kind, 1, false);
    else
        tile_groups(chunk, t, m, kind, chunk->units, is_biased);
}

NIB_INLINE void run_tile_m(const int_chunk *chunk, const int_tile *t, int64_t m, nib_int_kind kind,
                           bool is_part, bool is_biased)
{
    switch (m) {
    case 1: run_tile(chunk, t, 1, kind, is_part, is_biased); break;
    case 2: run_tile(chunk, t, 2, kind, is_part, is_biased); break;
    case 3: run_tile(chunk, t, 3, kind, is_part, is_biased); break;
    case 4: run_tile(chunk, t, 4, kind, is_part, is_biased); break;
    case 5: run_tile(chunk, t, 5, kind, is_part, is_biased); break;
    default: run_tile(chunk, t, TILE, kind, is_part, is_biased); break;
    }
}

static void tile_plain(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, NIB_INT_PLAIN, false, false);
}
static void tile_pair(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, NIB_INT_PAIR, false, false);
}
static void tile_wide(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, NIB_INT_WIDE, false, false);
}
static void tile_plain_biased(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, NIB_INT_PLAIN, false, true);
}
static void tile_wide_biased(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, NIB_INT_WIDE, false, true);
}
static void tile_parts(const int_chunk *c, const int_tile *t, int64_t m)
{
    run_tile_m(c, t, m, NIB_INT_PLAIN, true, false);
}

/* ---- a panel ---- */

/* One row block on one panel. */
typedef struct int_block {
    const nib_linear *a;
    const nib_int_layout *l;
    nib_int_kind kind;
    int64_t r0, rows, n0;
    float *sums, *totals; /* [rows][32] */
    const int32_t *terms; /* [rows][groups] */
    int_scratch *scratch;
} int_block;

static int_chunk load(const int_block *b, const uint8_t *panel, int64_t g, int64_t groups,
                      int64_t unit0, int64_t units)
{
    return b->l->offset == 8
               ? load_chunk(b->l, panel, g, groups, unit0, units, b->kind, 4, b->scratch)
               : load_chunk(b->l, panel, g, groups, unit0, units, b->kind, 8, b->scratch);
}

/* Lines of the packed bytes that follow a chunk: its share of them is fetched during each tile.
 * Behind the last panel this touches nothing: a prefetch cannot fault. */
static void fetch_next(const int_chunk *chunk, int64_t tile, int64_t tiles)
{
    const char *next = (const char *)chunk->packed + chunk->bytes;
    const int64_t lines = (int64_t)chunk->bytes / 64 + 1;
    for (int64_t i = lines * tile / tiles; i < lines * (tile + 1) / tiles; i++)
        _mm_prefetch(next + 64 * i, _MM_HINT_T1);
}

/* The lines of y that the tile's tokens will be stored to. */
static void fetch_y(const int_block *b, int64_t r, int64_t m)
{
    for (int64_t i = r; i < r + m; i++) {
        const float *y = b->a->y + (b->r0 + i) * b->a->ldy + b->n0;
        __builtin_prefetch(y, 1, 2);
        __builtin_prefetch(y + 16, 1, 2);
    }
}

/* All tokens of the block over one chunk that begins with group g, at k0. */
static void multiply(const int_block *b, const int_chunk *chunk, int64_t g, int64_t k0,
                     bool is_first, bool is_part)
{
    const nib_input *in = &b->a->x;
    const int64_t tiles = nib__ceil_div(b->rows, TILE);
    for (int64_t r = 0; r < b->rows; r += TILE) {
        const int_tile t = {in->codes + (b->r0 + r) * in->ld + k0,
                            in->ld,
                            b->terms + r * b->l->groups + g,
                            b->l->groups,
                            in->zero + b->r0 + r,
                            b->sums + r * NIB_INT_PANEL,
                            is_first,
                            b->a,
                            b->n0};
        const int64_t m = nib__min(TILE, b->rows - r);
        fetch_next(chunk, r / TILE, tiles);
        if (k0 == 0)
            fetch_y(b, r, m);
        if (is_part)
            tile_parts(chunk, &t, m);
        else if (b->a->int_bias != NULL && b->kind == NIB_INT_PLAIN)
            tile_plain_biased(chunk, &t, m);
        else if (b->a->int_bias != NULL)
            tile_wide_biased(chunk, &t, m);
        else if (b->kind == NIB_INT_PLAIN)
            tile_plain(chunk, &t, m);
        else if (b->kind == NIB_INT_PAIR)
            tile_pair(chunk, &t, m);
        else
            tile_wide(chunk, &t, m);
    }
}

static void add_block(const int_block *b, bool is_first)
{
    for (int64_t i = 0; i < b->rows * NIB_INT_PANEL; i += 16) {
        const __m512 sum = _mm512_loadu_ps(b->sums + i);
        const __m512 total = is_first ? sum : _mm512_add_ps(_mm512_loadu_ps(b->totals + i), sum);
        _mm512_storeu_ps(b->totals + i, total);
    }
}

/* The integer sums of group g become its float sum, in place. */
static void finish_parts(const int_block *b, const int_chunk *chunk, int64_t g)
{
    for (int64_t r = 0; r < b->rows; r++) {
        const int32_t term = b->terms[r * b->l->groups + g], zero = b->a->x.zero[b->r0 + r];
        for (int c = 0; c < 2; c++) {
            float *at = b->sums + r * NIB_INT_PANEL + 16 * c;
            const __m512i part = _mm512_loadu_si512(at);
            __m512 dot;
            if (b->kind == NIB_INT_PLAIN) {
                dot = _mm512_cvtepi32_ps(_mm512_add_epi32(part, _mm512_set1_epi32(term)));
            } else {
                const __m512i sum = _mm512_loadu_si512(chunk->heads[0].fix[0] + 16 * c);
                const __m512i offset = _mm512_loadu_si512(chunk->heads[0].fix[1] + 16 * c);
                dot = wide_dot(b->l, part, sum, offset, term, zero);
            }
            const __m512 scale = _mm512_loadu_ps(chunk->heads[0].scale + 16 * c);
            _mm512_storeu_ps(at, _mm512_fmadd_ps(scale, dot, _mm512_setzero_ps()));
        }
    }
}

/* Groups that fit a chunk, several at a time; a chunk ends where a block of the float sum does, and
 * a last group with fewer units is a chunk of its own. */
static void panel_of_groups(const int_block *b, const uint8_t *panel)
{
    const nib_int_layout *l = b->l;
    const int64_t whole = l->groups - (l->last_units < l->units), fit = CHUNK_UNITS / l->units;
    for (int64_t g = 0; g < l->groups;) {
        const int64_t in_block = g % l->per_block, block_left = l->per_block - in_block;
        const bool is_last = g >= whole;
        const int64_t groups = is_last ? 1 : nib__min(nib__min(fit, block_left), whole - g);
        const int_chunk chunk = load(b, panel, g, groups, 0, is_last ? l->last_units : l->units);
        multiply(b, &chunk, g, g * l->group, in_block == 0, false);
        g += groups;
        if (groups == block_left || g == l->groups)
            add_block(b, g <= l->per_block);
    }
}

/* A group of several chunks is a block of the float sum by itself. */
static void panel_of_parts(const int_block *b, const uint8_t *panel)
{
    const nib_int_layout *l = b->l;
    for (int64_t g = 0; g < l->groups; g++) {
        const int64_t units = g + 1 == l->groups ? l->last_units : l->units;
        int_chunk chunk;
        for (int64_t unit = 0; unit < units; unit += CHUNK_UNITS) {
            chunk = load(b, panel, g, 1, unit, nib__min(CHUNK_UNITS, units - unit));
            multiply(b, &chunk, g, g * l->group + unit * NIB_INT_UNIT, unit == 0, true);
        }
        finish_parts(b, &chunk, g);
        add_block(b, g == 0);
    }
}

static void prefill_block(int_block *b, int64_t n0, int64_t n1)
{
    for (int64_t i = n0; i < n1; i += NIB_INT_PANEL) {
        b->n0 = i;
        const uint8_t *panel =
            (const uint8_t *)b->a->packed + (size_t)(i / NIB_INT_PANEL) * b->l->panel_bytes;
        if (b->l->units <= CHUNK_UNITS)
            panel_of_groups(b, panel);
        else
            panel_of_parts(b, panel);
        for (int64_t r = 0; r < b->rows; r++)
            store_row(b->a, b->r0 + r, i, _mm512_loadu_ps(b->totals + r * NIB_INT_PANEL),
                      _mm512_loadu_ps(b->totals + r * NIB_INT_PANEL + 16), false);
    }
}

void nib__int_prefill_avx512vnni(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind,
                                 int64_t n0, int64_t n1, void *scratch)
{
    int_scratch *s = scratch;
    const int64_t rows = nib__int_row_block(a->x.m, a->w->k);
    float *sums = (float *)(s + 1), *totals = sums + rows * NIB_INT_PANEL;
    int32_t *terms = (int32_t *)(totals + rows * NIB_INT_PANEL);
    for (int64_t r0 = 0; r0 < a->x.m; r0 += rows) {
        int_block b = {a, l, kind, r0, nib__min(rows, a->x.m - r0), n0, sums, totals, terms, s};
        nib__int_terms(a, l, kind, r0, b.rows, terms);
        prefill_block(&b, n0, n1);
    }
}

size_t nib__linear_int_scratch_avx512vnni(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    const size_t rows = (size_t)nib__int_row_block_most(a->x.m, a->w->k);
    const size_t terms = rows * (size_t)l.groups * sizeof(int32_t);
    return is_direct(&l, a->x.m)
               ? terms
               : sizeof(int_scratch) + rows * 2 * NIB_INT_PANEL * sizeof(float) + terms;
}

size_t nib__linear_blocks_scratch_avx512vnni(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    return nib__int_scaled_bytes(a, &l);
}

#endif
