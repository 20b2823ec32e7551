/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many tokens with panels of int4, MXFP4, Q6_K and int8 (prefill), AVX-512 VNNI.
 *
 * A chunk of up to 512 k of one panel is unpacked to bytes, f32 scales and corrections, 22 KB in
 * all. All tokens of a row block multiply it, in tiles of 6 tokens x 32 outputs: 12 float sums, 12
 * integer sums and 3 other registers. A group larger than a chunk keeps integer sums between its
 * chunks, next to the float sums of its block. After the last chunk, a tile is written to y while
 * it is in the L1 cache.
 *
 * On Zen 5, every multiplication competes with vpdpbusd for two of four vector ports; additions,
 * conversions and shifts use the other two. So with groups of 32 the upper bound is 8 of 9, or 8 of
 * 10 with zero points: next to 8 products of 4 there is one multiplication for the scale and one
 * for the zero points.
 */
#include "linear_int_vnni.h"

#if NIB_BUILT_X86

/* How a group's integer sum starts and ends. */
typedef enum form {
    FORM_PLAIN,      /* NIB_INT_PLAIN: the sum starts at the term */
    FORM_PAIR,       /* NIB_INT_PAIR */
    FORM_WIDE,       /* NIB_INT_WIDE */
    FORM_PLAIN_BIAS, /* the same with an int32 bias */
    FORM_WIDE_BIAS,
    FORM_PART,        /* part of a group larger than a chunk: terms come at its end */
    FORM_BLOCKS,      /* activations in blocks */
    FORM_BLOCKS_HALF, /* the same with groups of a half unit */
} form;

NIB_INLINE bool is_blocks(form f) { return f == FORM_BLOCKS || f == FORM_BLOCKS_HALF; }

/* k per unit. */
NIB_INLINE int unit_of(form f) { return f == FORM_BLOCKS_HALF ? NIB_INT_HALF_UNIT : NIB_INT_UNIT; }

/* Of one group. `fix` holds for PAIR: code sum | offset << 16; for WIDE and PART: code sums, then
 * offsets; for BLOCKS: float zeros. */
typedef struct int_head {
    float scale[NIB_INT_PANEL];
    int32_t fix[2][NIB_INT_PANEL];
} int_head;

/* A chunk of one panel, ready to multiply. */
typedef struct int_chunk {
    const uint8_t *packed; /* the chunk in its panel, `bytes` long */
    size_t bytes;
    const uint8_t *codes; /* [groups][units][8 or 4 quads][32][4], groups `stride` bytes apart */
    size_t stride;
    int64_t groups, units;
    const int_head *heads; /* [groups] */
} int_chunk;

/* Scratch of one worker. */
typedef struct int_scratch {
    uint8_t codes[CHUNK_UNITS * NIB_INT_UNIT * NIB_INT_PANEL];
    int_head heads[CHUNK_UNITS];
    /* then, for `rows` tokens: float sums [rows][32], float totals [rows][32], int32 parts
     * [rows][32], int32 terms [rows][groups] or nib_int_scaled */
} int_scratch;

/* Unpacks one group's units to bytes at `out`, unless they are bytes already, and adds up their
 * codes if `has_sums`. With 6 bits, one unit. */
NIB_INLINE void load_codes(const uint8_t *codes, int64_t eights, uint8_t *out, int bits, bool e2m1,
                           bool has_sums, __m512i sums[2])
{
    const __m512i ones = _mm512_set1_epi8(1);
    for (int64_t q = 0; q < eights; q++) {
#pragma GCC unroll 2
        for (int c = 0; c < 2; c++) {
            __m512i even, odd;
            load_quads(codes, (int)q, c, bits, &even, &odd);
            if (e2m1)
                even = e2m1_codes(even), odd = e2m1_codes(odd);
            if (has_sums)
                sums[c] = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sums[c], even, ones), odd, ones);
            if (bits != 8) {
                _mm512_storeu_si512(out + q * 8 * NIB_INT_PANEL + 64 * c, even);
                _mm512_storeu_si512(out + q * 8 * NIB_INT_PANEL + 64 * c + 4 * NIB_INT_PANEL, odd);
            }
        }
    }
}

/* Fills the head of group g. If the group is `continued`, adds the code sums of its earlier units.
 */
NIB_INLINE void load_head(const nib_int_layout *l, const uint8_t *panel, int64_t g, form f,
                          int bits, bool continued, __m512i sums[2], int_head *head)
{
    const uint8_t *group = panel + nib__int_group(l, g);
    for (int c = 0; c < 2; c++) {
        const __m512i offset = load_offsets(l, group, c);
        if (f == FORM_PAIR) {
            _mm512_storeu_si512(head->fix[0] + 16 * c, pair_fix(sums[c], offset));
        } else if (f == FORM_WIDE || f == FORM_WIDE_BIAS || f == FORM_PART) {
            if (continued)
                sums[c] = _mm512_add_epi32(sums[c], _mm512_loadu_si512(head->fix[0] + 16 * c));
            _mm512_storeu_si512(head->fix[0] + 16 * c, sums[c]);
            _mm512_storeu_si512(head->fix[1] + 16 * c, offset);
        } else if (is_blocks(f) && l->has_float_zeros) {
            _mm512_storeu_si512(head->fix[0] + 16 * c,
                                _mm512_loadu_si512(group + l->zeros + 64 * c));
        }
        _mm512_storeu_ps(head->scale + 16 * c, group_scales(l, panel, group, g, c, bits));
    }
}

/* Unpacks `groups` groups from g on, or `units` units from unit0 on of group g alone. */
NIB_INLINE int_chunk load_chunk(const nib_int_layout *l, const uint8_t *panel, int64_t g,
                                int64_t groups, int64_t unit0, int64_t units, form f, int bits,
                                bool e2m1, int_scratch *s)
{
    const size_t bytes = (size_t)(units * unit_of(f) * NIB_INT_PANEL);
    const bool has_sums = f != FORM_PLAIN && f != FORM_PLAIN_BIAS && !is_blocks(f);
    for (int64_t i = 0; i < groups; i++) {
        const uint8_t *codes = panel + nib__int_unit(l, g + i, unit0);
        __m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        if (has_sums || bits != 8)
            load_codes(codes, units * unit_of(f) / 8, s->codes + (size_t)i * bytes, bits, e2m1,
                       has_sums, sums);
        load_head(l, panel, g + i, f, bits, unit0 > 0, sums, &s->heads[i]);
    }
    const uint8_t *direct = panel + nib__int_unit(l, g, unit0);
    const size_t packed = (size_t)(groups - 1) * l->group_bytes + (size_t)units * l->unit_bytes;
    return bits == 8 ? (int_chunk){direct, packed, direct, l->group_bytes, groups, units, s->heads}
                     : (int_chunk){direct, packed, s->codes, bytes, groups, units, s->heads};
}

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

static form form_of(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind)
{
    if (nib__act_block(a->w->scheme.act) > 0)
        return l->unit == NIB_INT_HALF_UNIT ? FORM_BLOCKS_HALF : FORM_BLOCKS;
    if (l->units > CHUNK_UNITS)
        return FORM_PART;
    switch (kind) {
    case NIB_INT_PLAIN: return a->int_bias != NULL ? FORM_PLAIN_BIAS : FORM_PLAIN;
    case NIB_INT_WIDE: return a->int_bias != NULL ? FORM_WIDE_BIAS : FORM_WIDE;
    case NIB_INT_PAIR: break;
    }
    return FORM_PAIR;
}

/* ---- a panel ---- */

/* One row block by one panel. */
typedef struct int_block {
    const nib_linear *a;
    const nib_int_layout *l;
    nib_int_kind kind;
    form f;
    int64_t r0, rows, n0;
    float *sums, *totals;  /* [rows][32] */
    int32_t *parts;        /* [rows][32]: integer sums of a group with FORM_PART */
    const int32_t *terms;  /* [rows][groups] */
    nib_int_scaled scaled; /* for activations in blocks */
    int_scratch *scratch;
} int_block;

/* The position of a chunk in its panel. */
typedef struct int_place {
    int64_t g, k0; /* its first group and k */
    bool opens;    /* the chunk begins a block of the float sum, with FORM_PART a group */
    bool ends;     /* with FORM_PART, the chunk ends a group */
    bool closes;   /* the chunk ends a block of the float sum */
    bool first;    /* the chunk is in the panel's first block */
    bool last;     /* the chunk is the panel's last */
} int_place;

NIB_INLINE int_chunk load_form(const int_block *b, const uint8_t *panel, int64_t g, int64_t groups,
                               int64_t unit0, int64_t units, form f)
{
    if (b->l->bits == 6 && f == FORM_BLOCKS_HALF)
        return load_chunk(b->l, panel, g, groups, unit0, units, f, 6, false, b->scratch);
    return b->l->bits == 4
               ? load_chunk(b->l, panel, g, groups, unit0, units, f, 4, false, b->scratch)
               : load_chunk(b->l, panel, g, groups, unit0, units, f, 8, false, b->scratch);
}

static int_chunk load_panel_chunk(const int_block *b, const uint8_t *panel, int64_t g,
                                  int64_t groups, int64_t unit0, int64_t units)
{
    switch (b->f) {
    case FORM_PLAIN:
    case FORM_PLAIN_BIAS: return load_form(b, panel, g, groups, unit0, units, FORM_PLAIN);
    case FORM_PAIR: return load_form(b, panel, g, groups, unit0, units, FORM_PAIR);
    case FORM_BLOCKS:
        if (b->l->doubled)
            return load_chunk(b->l, panel, g, groups, unit0, units, FORM_BLOCKS, 4, true,
                              b->scratch);
        return load_form(b, panel, g, groups, unit0, units, FORM_BLOCKS);
    case FORM_BLOCKS_HALF: return load_form(b, panel, g, groups, unit0, units, FORM_BLOCKS_HALF);
    case FORM_PART:
        if (b->kind == NIB_INT_PLAIN)
            return load_form(b, panel, g, groups, unit0, units, FORM_PLAIN);
        break;
    case FORM_WIDE:
    case FORM_WIDE_BIAS: break;
    }
    return load_form(b, panel, g, groups, unit0, units, FORM_WIDE);
}

/* A tile's share of the cache lines after its chunk. */
static int_ahead share_ahead(const int_chunk *chunk, int64_t tile, int64_t tiles)
{
    const int64_t lines = (int64_t)chunk->bytes / 64 + 1, first = lines * tile / tiles;
    return (int_ahead){nib__ahead(chunk->packed, chunk->bytes + 64 * (size_t)first),
                       lines * (tile + 1) / tiles - first, chunk->groups * chunk->units, 0};
}

/* Prefetches the lines of y to which the tile's tokens will be stored. */
static void prefetch_y(const int_block *b, int64_t r, int64_t m)
{
    for (int64_t i = r; i < r + m; i++) {
        const float *y = b->a->y + (b->r0 + i) * b->a->ldy + b->n0;
        __builtin_prefetch(y, 1, 3);
        __builtin_prefetch(nib__ahead(y, 64), 1, 3);
    }
}

/* Adds the integer sums of group g to the float sums of its block. */
static void finish_parts(const int_block *b, const int_chunk *chunk, int64_t g, int64_t r0,
                         int64_t m)
{
    const bool is_first = g % b->l->per_block == 0;
    for (int64_t r = r0; r < r0 + m; r++) {
        const int32_t term = b->terms[r * b->l->groups + g], zero = b->a->x.zero[b->r0 + r];
        for (int c = 0; c < 2; c++) {
            float *at = b->sums + r * NIB_INT_PANEL + 16 * c;
            const __m512 before = is_first ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
            const __m512i part = _mm512_loadu_si512(b->parts + r * NIB_INT_PANEL + 16 * c);
            __m512 dot;
            if (b->kind == NIB_INT_PLAIN) {
                dot = _mm512_cvtepi32_ps(_mm512_add_epi32(part, _mm512_set1_epi32(term)));
            } else {
                const __m512i sum = _mm512_loadu_si512(chunk->heads[0].fix[0] + 16 * c);
                const __m512i offset = _mm512_loadu_si512(chunk->heads[0].fix[1] + 16 * c);
                dot = wide_dot(b->l, part, sum, offset, term, zero);
            }
            const __m512 scale = _mm512_loadu_ps(chunk->heads[0].scale + 16 * c);
            _mm512_storeu_ps(at, _mm512_fmadd_ps(scale, dot, before));
        }
    }
}

/* After a tile's last chunk of a block: adds its sums to the totals, or stores them to y. */
static void close_tile(const int_block *b, const int_place *at, int64_t r0, int64_t m)
{
    for (int64_t r = r0; r < r0 + m; r++) {
        const float *sums = b->sums + r * NIB_INT_PANEL;
        float *totals = b->totals + r * NIB_INT_PANEL;
        __m512 t[2];
        for (int c = 0; c < 2; c++) {
            t[c] = _mm512_loadu_ps(sums + 16 * c);
            if (!at->first)
                t[c] = _mm512_add_ps(_mm512_loadu_ps(totals + 16 * c), t[c]);
            if (!at->last)
                _mm512_storeu_ps(totals + 16 * c, t[c]);
        }
        if (at->last)
            store_row(b->a, b->r0 + r, b->n0, t[0], t[1], is_blocks(b->f));
    }
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

/* Groups that fit in a chunk, several at a time. A chunk ends where a block of the float sum ends,
 * and a last group with fewer units is a chunk of its own. */
static void panel_of_groups(const int_block *b, const uint8_t *panel)
{
    const nib_int_layout *l = b->l;
    const int64_t whole = l->groups - (l->last_units < l->units), fit = CHUNK_UNITS / l->units;
    for (int64_t g = 0; g < l->groups;) {
        const int64_t in_block = g % l->per_block, block_left = l->per_block - in_block;
        const bool is_last = g >= whole;
        const int64_t groups = is_last ? 1 : nib__min(nib__min(fit, block_left), whole - g);
        const bool ends = g + groups == l->groups;
        const int_place at = {.g = g,
                              .k0 = g * l->group,
                              .opens = in_block == 0,
                              .closes = groups == block_left || ends,
                              .first = g < l->per_block,
                              .last = ends};
        const int_chunk chunk =
            load_panel_chunk(b, panel, g, groups, 0, is_last ? l->last_units : l->units);
        multiply(b, &chunk, &at);
        g += groups;
    }
}

/* Groups of several chunks each. */
static void panel_of_parts(const int_block *b, const uint8_t *panel)
{
    const nib_int_layout *l = b->l;
    for (int64_t g = 0; g < l->groups; g++) {
        const int64_t units = g + 1 == l->groups ? l->last_units : l->units;
        for (int64_t unit = 0; unit < units; unit += CHUNK_UNITS) {
            const bool ends = unit + CHUNK_UNITS >= units, last = ends && g + 1 == l->groups;
            const int_place at = {.g = g,
                                  .k0 = g * l->group + unit * NIB_INT_UNIT,
                                  .opens = unit == 0,
                                  .ends = ends,
                                  .closes = last || (ends && (g + 1) % l->per_block == 0),
                                  .first = g < l->per_block,
                                  .last = last};
            const int_chunk chunk =
                load_panel_chunk(b, panel, g, 1, unit, nib__min(CHUNK_UNITS, units - unit));
            multiply(b, &chunk, &at);
        }
    }
}

static void prefill_block(int_block *b, int64_t n0, int64_t n1)
{
    for (int64_t i = n0; i < n1; i += NIB_INT_PANEL) {
        b->n0 = i;
        const uint8_t *panel =
            (const uint8_t *)b->a->packed + (size_t)(i / NIB_INT_PANEL) * b->l->panel_bytes;
        if (b->f == FORM_PART)
            panel_of_parts(b, panel);
        else
            panel_of_groups(b, panel);
    }
}

void nib__int_prefill_avx512vnni(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind,
                                 int64_t n0, int64_t n1, void *scratch)
{
    int_scratch *s = scratch;
    const int64_t rows = nib__int_row_block(a->x.m, a->w->k);
    float *sums = (float *)(s + 1), *totals = sums + rows * NIB_INT_PANEL;
    int32_t *parts = (int32_t *)(totals + rows * NIB_INT_PANEL);
    int32_t *terms = parts + rows * NIB_INT_PANEL;
    for (int64_t r0 = 0; r0 < a->x.m; r0 += rows) {
        int_block b = {.a = a, .l = l, .kind = kind, .f = form_of(a, l, kind), .r0 = r0, .n0 = n0};
        b.rows = nib__min(rows, a->x.m - r0);
        b.sums = sums, b.totals = totals, b.parts = parts, b.terms = terms;
        b.scratch = s;
        if (is_blocks(b.f))
            b.scaled = nib__int_scaled(a, l, r0, b.rows, terms);
        else
            nib__int_terms(a, l, kind, r0, b.rows, terms);
        prefill_block(&b, n0, n1);
    }
}

/* Scratch bytes of prefill, of which `terms` bytes are for the terms. */
static size_t prefill_bytes(const nib_linear *a, size_t terms)
{
    const size_t rows = (size_t)nib__int_row_block_most(a->x.m, a->w->k);
    return sizeof(int_scratch) + rows * 3 * NIB_INT_PANEL * sizeof(float) + terms;
}

size_t nib__linear_int_scratch_avx512vnni(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    const size_t rows = (size_t)nib__int_row_block_most(a->x.m, a->w->k);
    const size_t terms = rows * (size_t)l.groups * sizeof(int32_t);
    return is_direct(&l, a->x.m) ? terms : prefill_bytes(a, terms);
}

static size_t blocks_scratch(const nib_linear *a, const nib_int_layout *l)
{
    const size_t scaled = nib__int_scaled_bytes(a, l);
    return is_direct(l, a->x.m) ? scaled : prefill_bytes(a, scaled);
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
