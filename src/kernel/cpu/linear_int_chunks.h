/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many tokens with panels of int4, MXFP4, Q6_K and int8 (prefill) on AVX-512: what the
 * rows with vpdpbusd and with AMX share. A file defines prepare() and multiply(), and calls
 * prefill().
 *
 * A chunk of up to 512 k of one panel is unpacked to bytes, f32 scales and corrections, 22 KB in
 * all. All tokens of a row block multiply it, a tile of tokens at a time. A group larger than a
 * chunk keeps integer sums between its chunks, next to the float sums of its block. After the last
 * chunk, a tile is written to y while it is in the L1 cache.
 */
#ifndef NIB_LINEAR_INT_CHUNKS_H
#define NIB_LINEAR_INT_CHUNKS_H

#include "linear_int_vnni.h"

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

/* A chunk of one panel, ready to multiply. Codes are unsigned, or signed: without their offset. */
typedef struct int_chunk {
    const uint8_t *packed; /* the chunk in its panel, `bytes` long */
    size_t bytes;
    const uint8_t *codes; /* [groups][units][8 or 4 quads][32][4], groups `stride` bytes apart */
    size_t stride;
    int64_t groups, units;
    const int_head *heads; /* [groups] */
    const int32_t *quads;  /* signed codes: [groups][units][32] */
} int_chunk;

/* Scratch of one worker. */
typedef struct int_scratch {
    uint8_t codes[CHUNK_UNITS * NIB_INT_UNIT * NIB_INT_PANEL];
    int_head heads[CHUNK_UNITS];
    int32_t quads[CHUNK_UNITS][NIB_INT_PANEL];
    /* then, for `rows` tokens: float sums [rows][32], float totals [rows][32], int32 parts
     * [rows][32], int32 terms [rows][groups] or nib_int_scaled */
} int_scratch;

/* Four signed bytes whose products with (p, q, p, q) add up to sum * (p + q), for sums from -256 to
 * 254. */
NIB_INLINE __m512i quad_of(__m512i sum)
{
    const __m512i half = _mm512_srai_epi32(sum, 1), bytes = _mm512_set1_epi32(255);
    const __m512i low = _mm512_and_si512(half, bytes);
    const __m512i high = _mm512_and_si512(_mm512_sub_epi32(sum, half), bytes);
    const __m512i both = _mm512_or_si512(low, _mm512_slli_epi32(high, 16));
    return _mm512_or_si512(both, _mm512_slli_epi32(both, 8));
}

/* Unpacks a group's int4 codes of units from k0 on to signed bytes at `out`; if `has_sums`, each
 * unit's sum becomes its quad. */
NIB_INLINE void load_signed(const nib_int_layout *l, const uint8_t *codes, int64_t k0,
                            int64_t units, uint8_t *out, bool e2m1, bool has_sums,
                            int32_t (*quads)[NIB_INT_PANEL])
{
    const __m512i ones = _mm512_set1_epi8(1), offset = _mm512_set1_epi8((char)l->offset);
    for (int64_t unit = 0; unit < units; unit++) {
        const int64_t left = l->k - k0 - unit * NIB_INT_UNIT;
        const int some = (int)nib__min(left, NIB_INT_UNIT); /* codes past k are 0 */
        for (int c = 0; c < 2; c++) {
            __m512i sum = _mm512_set1_epi32(-l->offset * some);
            for (int64_t q = 4 * unit; q < 4 * unit + 4; q++) {
                uint8_t *to = out + q * 8 * NIB_INT_PANEL + 64 * c;
                __m512i even, odd;
                load_quads(codes, (int)q, c, 4, &even, &odd);
                if (e2m1)
                    even = e2m1_codes(even), odd = e2m1_codes(odd);
                if (has_sums)
                    sum = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(sum, even, ones), odd, ones);
                _mm512_storeu_si512(to, _mm512_sub_epi8(even, offset));
                _mm512_storeu_si512(to + 4 * NIB_INT_PANEL, _mm512_sub_epi8(odd, offset));
            }
            if (has_sums)
                _mm512_storeu_si512(quads[unit] + 16 * c, quad_of(sum));
        }
    }
}

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
                                bool e2m1, bool is_signed, int_scratch *s)
{
    const size_t bytes = (size_t)(units * unit_of(f) * NIB_INT_PANEL);
    const bool has_sums = f != FORM_PLAIN && f != FORM_PLAIN_BIAS && !is_blocks(f);
    for (int64_t i = 0; i < groups; i++) {
        const uint8_t *codes = panel + nib__int_unit(l, g + i, unit0);
        __m512i sums[2] = {_mm512_setzero_si512(), _mm512_setzero_si512()};
        if (is_signed)
            load_signed(l, codes, (g + i) * l->group + unit0 * NIB_INT_UNIT, units,
                        s->codes + (size_t)i * bytes, e2m1, has_sums, s->quads + i * units);
        else if (has_sums || bits != 8)
            load_codes(codes, units * unit_of(f) / 8, s->codes + (size_t)i * bytes, bits, e2m1,
                       has_sums, sums);
        load_head(l, panel, g + i, f, bits, unit0 > 0, sums, &s->heads[i]);
    }
    const uint8_t *direct = panel + nib__int_unit(l, g, unit0);
    const size_t packed = (size_t)(groups - 1) * l->group_bytes + (size_t)units * l->unit_bytes;
    return (int_chunk){.packed = direct,
                       .bytes = packed,
                       .codes = bits == 8 ? direct : s->codes,
                       .stride = bits == 8 ? l->group_bytes : bytes,
                       .groups = groups,
                       .units = units,
                       .heads = s->heads,
                       .quads = s->quads[0]};
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
    bool is_signed; /* unpacked codes are */
    bool streams;   /* y is stored past the caches */
    int64_t r0, rows, n0;
    float *sums, *totals;  /* [rows][32] */
    int32_t *parts;        /* [rows][32]: integer sums of a group with FORM_PART */
    const int32_t *terms;  /* [rows][groups] */
    nib_int_scaled scaled; /* for activations in blocks */
    const void *prepared;  /* what prepare() made */
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
        return load_chunk(b->l, panel, g, groups, unit0, units, f, 6, false, false, b->scratch);
    if (b->l->bits == 8)
        return load_chunk(b->l, panel, g, groups, unit0, units, f, 8, false, false, b->scratch);
    return b->is_signed
               ? load_chunk(b->l, panel, g, groups, unit0, units, f, 4, false, true, b->scratch)
               : load_chunk(b->l, panel, g, groups, unit0, units, f, 4, false, false, b->scratch);
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
                              b->is_signed, b->scratch);
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

/* Whether y is larger than a core's caches and in whole lines, so that it is stored past them: then
 * no line is read before it is written. */
static bool streams_y(const nib_linear *a)
{
    enum { CACHED = 2 << 20, LINE_FLOATS = 16 };
    return a->x.m * a->w->n * (int64_t)sizeof(float) > CACHED && a->ldy % LINE_FLOATS == 0 &&
           (uintptr_t)a->y % (LINE_FLOATS * sizeof(float)) == 0;
}

/* Prefetches the lines of y to which the tile's tokens will be stored. */
static void prefetch_y(const int_block *b, int64_t r, int64_t m)
{
    if (b->streams)
        return;
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
            store_row(b->a, b->r0 + r, b->n0, t[0], t[1], is_blocks(b->f), b->streams);
    }
}

/* What the including file defines: prepares the tokens of a block for its tiles, in `room`; and
 * multiplies them all with one chunk. */
static void prepare(int_block *b, void *room);
static void multiply(const int_block *b, const int_chunk *chunk, const int_place *at);

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

/* Bytes of the terms of a row block. */
NIB_INLINE size_t terms_bytes(const nib_linear *a, const nib_int_layout *l)
{
    return (size_t)nib__int_row_block_most(a->x.m, a->w->k) * (size_t)l->groups * sizeof(int32_t);
}

/* Outputs n0..n1 of all tokens. `tile`: tokens of every tile but the last; `is_signed`: codes are
 * unpacked to signed bytes where no other correction than the activations' zero points is due. */
static void prefill(const nib_linear *a, const nib_int_layout *l, nib_int_kind kind, int64_t n0,
                    int64_t n1, int64_t tile, bool is_signed, void *scratch)
{
    int_scratch *s = scratch;
    const int64_t rows = nib__int_row_block(a->x.m, a->w->k), most = nib__round_up(rows, tile);
    float *sums = (float *)(s + 1), *totals = sums + most * NIB_INT_PANEL;
    int32_t *parts = (int32_t *)(totals + most * NIB_INT_PANEL);
    int32_t *terms = parts + most * NIB_INT_PANEL;
    const form f = form_of(a, l, kind);
    const size_t bytes = is_blocks(f) ? nib__int_scaled_bytes(a, l) : terms_bytes(a, l);
    for (int64_t r0 = 0; r0 < a->x.m; r0 += rows) {
        int_block b = {.a = a, .l = l, .kind = kind, .f = f, .r0 = r0, .n0 = n0, .scratch = s};
        b.rows = nib__min(rows, a->x.m - r0);
        b.is_signed = is_signed && (f == FORM_PLAIN || f == FORM_PAIR || f == FORM_BLOCKS);
        b.sums = sums, b.totals = totals, b.parts = parts, b.terms = terms;
        if (is_blocks(f))
            b.scaled = nib__int_scaled(a, l, r0, b.rows, terms);
        else
            nib__int_terms(a, l, kind, r0, b.rows, terms);
        b.streams = streams_y(a);
        prepare(&b, (char *)terms + nib__round_up((int64_t)bytes, 64));
        prefill_block(&b, n0, n1);
    }
    _mm_sfence(); /* streamed stores are seen before what this thread does next */
}

/* Scratch bytes of prefill, of which `terms` bytes are for the terms, and `more` for prepare(). */
static size_t prefill_bytes(const nib_linear *a, size_t terms, int64_t tile, size_t more)
{
    const int64_t most = nib__round_up(nib__int_row_block_most(a->x.m, a->w->k), tile);
    return sizeof(int_scratch) + (size_t)most * 3 * NIB_INT_PANEL * sizeof(float) +
           (size_t)nib__round_up((int64_t)terms, 64) + more;
}

#endif
