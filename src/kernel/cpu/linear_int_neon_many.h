/* SPDX-License-Identifier: Apache-2.0
 *
 * Products of many tokens with int4, MXFP4 and int8 panels on Arm, written once for sdot and smmla.
 *
 * A chunk of about 512 k of one panel is unpacked to signed bytes, in the order that the
 * instruction needs, and f32 scales. All tokens of a row block multiply it, in tiles of 8 tokens x
 * 8 outputs: 16 vectors of integer sums in registers for one group, float sums in memory that stays
 * in the L1 cache. A group larger than a chunk keeps integer sums there between its chunks.
 *
 * A cell is one vector of sums: 4 outputs of a token (sdot), or 2 outputs of 2 tokens (smmla: first
 * token, second token). The including file defines:
 *   put_step      8 outputs by 8 k into 64 bytes
 *   stage_x       the activation codes in the order of tile_dots
 *   tile_dots     adds `steps` steps of 8 k to a tile's cells
 *   outputs_i32 outputs_f32    a value for each output of a cell, from an array of outputs
 *   tokens_i32 tokens_f32      a value for each token of a cell, `next` apart
 *   outputs_of_token           4 outputs of one token of a cell row
 */
#ifndef NIB_LINEAR_INT_NEON_MANY_H
#define NIB_LINEAR_INT_NEON_MANY_H

#include "linear_int_neon.h"

#include <math.h>

enum {
    CHUNK_K = NIB_SUM_BLOCK / 2, /* a larger group is a block of the float sum of its own */
    CHUNK_K_BEST = 512,          /* for chunks of several groups, to stay in the L1 cache */
    CHUNK_GROUPS = CHUNK_K_BEST / NIB_INT_HALF_UNIT,
    ROW_FLOATS = NIB_INT_PANEL * CELL_TOKENS, /* floats in one row of cells */
    TILE_ROWS = 8 / CELL_TOKENS,
};

/* A chunk of one panel, ready to multiply; also what else a worker needs per group. */
typedef struct int_chunk {
    int8_t codes[CHUNK_K * NIB_INT_PANEL]; /* [blocks of 8 outputs][steps of 8 k][64] */
    float scale[CHUNK_GROUPS][NIB_INT_PANEL], zero[CHUNK_GROUPS][NIB_INT_PANEL];
    int32_t sum[CHUNK_GROUPS][NIB_INT_PANEL]; /* sum of the weights over the group so far */
    int32_t offset[CHUNK_GROUPS][NIB_INT_PANEL];
    int64_t groups, steps; /* number of groups, and the steps of each */
} int_chunk;

/* How a group's sum is formed; a compile-time constant. */
typedef enum many_form {
    MANY_PLAIN,  /* all zero points are 0 */
    MANY_ZEROS,  /* integer zero points of weights or activations */
    MANY_BLOCKS, /* activations in blocks */
    MANY_PART    /* part of a group larger than a chunk: integer sums only */
} many_form;

/* A row block on one panel. */
typedef struct int_many {
    const nib_linear *a;
    const nib_int_layout *l;
    many_form form;
    int64_t r0, rows, n0;
    const int8_t *x;            /* staged codes of the row block */
    const int32_t *terms;       /* [rows][groups] */
    const float *scales, *sums; /* activations in blocks: like terms, from nib_int_scaled */
    float *f, *totals;          /* [cell rows][cells of a panel][4] */
    int_chunk *chunk;
} int_many;

/* ---- unpacking ---- */

/* Unpacks `steps` steps from `step0` on of group g into slot i of the chunk. */
NIB_INLINE void unpack_group(const int_many *b, const uint8_t *panel, int64_t g, int64_t step0,
                             int64_t steps, int64_t i, bool with_sums, int bits, bool e2m1)
{
    const nib_int_layout *l = b->l;
    int_chunk *chunk = b->chunk;
    const uint8_t *group = panel + (size_t)g * l->group_bytes;
    const int32x4_t padding = padding_sum(b->a, l, g, step0 + steps, bits);
    for (int c = 0; c < NIB_INT_PANEL; c += 8) {
        const uint8_t *at = group + l->header + (size_t)step0 * step_bytes(bits) + 4 * c;
        int8_t *out = chunk->codes + (c / 8 * chunk->groups + i) * chunk->steps * STEP;
        int32x4_t sums[2];
        for (int h = 0; h < 2; h++)
            sums[h] =
                step0 > 0 ? vaddq_s32(vld1q_s32(chunk->sum[i] + c + LANES * h), padding) : padding;
        for (int64_t s = 0; s < steps; s++, at += step_bytes(bits), out += STEP) {
            int8x16_t even[2], odd[2];
            for (int h = 0; h < 2; h++) {
                load_quads(at + 16 * h, bits, e2m1, &even[h], &odd[h]);
                if (with_sums) {
                    sums[h] = vdotq_s32(sums[h], even[h], vdupq_n_s8(1));
                    sums[h] = vdotq_s32(sums[h], odd[h], vdupq_n_s8(1));
                }
            }
            put_step(out, even, odd);
        }
        for (int h = 0; h < 2; h++) {
            const int first = c + LANES * h;
            vst1q_f32(chunk->scale[i] + first, load_scales(l, group, first));
            if (l->has_float_zeros)
                vst1q_f32(chunk->zero[i] + first, load_zeros(l, group, first));
            vst1q_s32(chunk->sum[i] + first, sums[h]);
            vst1q_s32(chunk->offset[i] + first, load_offsets(l, group, first, bits));
        }
    }
}

static void unpack(const int_many *b, const uint8_t *panel, int64_t g, int64_t groups,
                   int64_t step0, int64_t steps)
{
    const bool with_sums = b->form == MANY_ZEROS;
    b->chunk->groups = groups;
    b->chunk->steps = steps;
    for (int64_t i = 0; i < groups; i++)
        if (b->l->doubled)
            unpack_group(b, panel, g + i, step0, steps, i, false, 4, true);
        else if (b->l->bits == 4)
            unpack_group(b, panel, g + i, step0, steps, i, with_sums, 4, false);
        else
            unpack_group(b, panel, g + i, step0, steps, i, with_sums, 8, false);
}

/* ---- a tile ---- */

/* Up to 8 tokens by the 8 outputs from c on of the panel, over a chunk. */
typedef struct int_tile {
    const int8_t *x;
    int64_t groups; /* stride of terms from one token to the next */
    const int32_t *terms, *zero;
    const float *scales, *sums; /* laid out like terms */
    float *f;
    int c, tokens;
    bool is_first; /* first part of a group */
} int_tile;

/* Distance from the first token of a cell row to the second; 0 if there is no second. */
NIB_INLINE int64_t next_token(const int_tile *t, int row)
{
    return CELL_TOKENS * row + 1 < t->tokens;
}

NIB_INLINE float *cell_at(const int_tile *t, int row, int column)
{
    return t->f + row * ROW_FLOATS + (t->c / CELL_OUTPUTS + column) * LANES;
}

/* Start value of a sum: everything that follows from zero points and the int32 bias. */
NIB_INLINE int32x4_t start_sum(const int_many *b, const int_tile *t, int64_t g, int row, int column,
                               many_form form)
{
    const int first = t->c + CELL_OUTPUTS * column;
    const int64_t next = next_token(t, row);
    if (form == MANY_PART && !t->is_first)
        return vld1q_s32((const int32_t *)(const void *)cell_at(t, row, column));
    int32x4_t start =
        b->a->int_bias != NULL ? outputs_i32(b->a->int_bias + b->n0 + first) : vdupq_n_s32(0);
    if (form == MANY_PART)
        return start;
    const int32x4_t term =
        tokens_i32(t->terms + CELL_TOKENS * row * t->groups + g, next * t->groups);
    if (form != MANY_ZEROS)
        return vaddq_s32(start, term);
    start = vmlaq_s32(start, outputs_i32(b->chunk->offset[g] + first), term);
    return vmlsq_s32(start, outputs_i32(b->chunk->sum[g] + first),
                     tokens_i32(t->zero + CELL_TOKENS * row, next));
}

/* f += scale * dot. */
NIB_INLINE void finish_cell(const int_many *b, const int_tile *t, int64_t g, int row, int column,
                            int32x4_t dot, many_form form)
{
    const int first = t->c + CELL_OUTPUTS * column;
    float *f = cell_at(t, row, column);
    if (form == MANY_PART) {
        vst1q_s32((int32_t *)(void *)f, dot);
        return;
    }
    float32x4_t sum = vld1q_f32(f), scale = outputs_f32(b->chunk->scale[g] + first);
    const int64_t at = CELL_TOKENS * row * t->groups + g, next = next_token(t, row) * t->groups;
    if (form == MANY_BLOCKS)
        scale = vmulq_f32(scale, tokens_f32(t->scales + at, next));
    sum = vfmaq_f32(sum, scale, vcvtq_f32_s32(dot));
    if (form == MANY_BLOCKS && b->l->has_float_zeros)
        sum =
            vfmaq_f32(sum, outputs_f32(b->chunk->zero[g] + first), tokens_f32(t->sums + at, next));
    vst1q_f32(f, sum);
}

NIB_INLINE void tile(const int_many *b, const int_tile *t, int rows, many_form form)
{
    const int_chunk *chunk = b->chunk;
    const int64_t ld = CELL_TOKENS * b->a->x.ld;
    const int8_t *x = t->x, *codes = chunk->codes + t->c / 8 * chunk->groups * chunk->steps * STEP;
    for (int64_t g = 0; g < chunk->groups; g++) {
        int32x4_t dots[TILE_ROWS][8 / CELL_OUTPUTS];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (int c = 0; c < 8 / CELL_OUTPUTS; c++)
                dots[r][c] = start_sum(b, t, g, r, c, form);
        tile_dots(dots, codes, x, ld, chunk->steps, rows);
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 8
            for (int c = 0; c < 8 / CELL_OUTPUTS; c++)
                finish_cell(b, t, g, r, c, dots[r][c], form);
        codes += chunk->steps * STEP;
        x += chunk->steps * 8 * CELL_TOKENS;
    }
}

/* Rows past TILE_ROWS never occur. */
NIB_INLINE void tile_of(const int_many *b, const int_tile *t, const int rows, many_form form)
{
    if (rows <= TILE_ROWS)
        tile(b, t, rows <= TILE_ROWS ? rows : 1, form);
}

NIB_INLINE void tile_rows(const int_many *b, const int_tile *t, many_form form)
{
    switch (nib__ceil_div(t->tokens, CELL_TOKENS)) {
    case 1: tile_of(b, t, 1, form); break;
    case 2: tile_of(b, t, 2, form); break;
    case 3: tile_of(b, t, 3, form); break;
    case 4: tile_of(b, t, 4, form); break;
    case 5: tile_of(b, t, 5, form); break;
    case 6: tile_of(b, t, 6, form); break;
    case 7: tile_of(b, t, 7, form); break;
    default: tile_of(b, t, TILE_ROWS, form); break;
    }
}

static void tile_plain(const int_many *b, const int_tile *t) { tile_rows(b, t, MANY_PLAIN); }
static void tile_zeros(const int_many *b, const int_tile *t) { tile_rows(b, t, MANY_ZEROS); }
static void tile_blocks(const int_many *b, const int_tile *t) { tile_rows(b, t, MANY_BLOCKS); }
static void tile_part(const int_many *b, const int_tile *t) { tile_rows(b, t, MANY_PART); }

/* All tokens of the row block over the chunk, which begins at k0 in group g. */
static void multiply(const int_many *b, int64_t g, int64_t k0, bool is_part, bool is_first)
{
    const int64_t tiles = nib__ceil_div(b->rows, 8),
                  most = nib__round_up(nib__ceil_div(b->rows, tiles), CELL_TOKENS);
    for (int64_t r = 0; r < b->rows; r += most) {
        const int64_t at = r * b->l->groups + g;
        int_tile t = {b->x + r * b->a->x.ld + CELL_TOKENS * k0,
                      b->l->groups,
                      b->terms + at,
                      b->a->x.zero != NULL ? b->a->x.zero + b->r0 + r : NULL,
                      b->scales != NULL ? b->scales + at : NULL,
                      b->sums != NULL ? b->sums + at : NULL,
                      b->f + r * NIB_INT_PANEL,
                      0,
                      (int)nib__min(most, b->rows - r),
                      is_first};
        for (; t.c < NIB_INT_PANEL; t.c += 8)
            if (is_part)
                tile_part(b, &t);
            else if (b->form == MANY_PLAIN)
                tile_plain(b, &t);
            else if (b->form == MANY_ZEROS)
                tile_zeros(b, &t);
            else
                tile_blocks(b, &t);
    }
}

/* ---- a panel ---- */

static int64_t cells_of(const int_many *b)
{
    return nib__round_up(b->rows, CELL_TOKENS) * NIB_INT_PANEL;
}

static void add_block(const int_many *b, bool is_first)
{
    for (int64_t i = 0; i < cells_of(b); i += LANES) {
        const float32x4_t sum = vld1q_f32(b->f + i);
        vst1q_f32(b->totals + i, is_first ? sum : vaddq_f32(vld1q_f32(b->totals + i), sum));
        vst1q_f32(b->f + i, vdupq_n_f32(0));
    }
}

/* Turns the integer sums of group g, the only group of the chunk, into its float sums, in place. */
static void finish_parts(const int_many *b, int64_t g)
{
    const int_chunk *chunk = b->chunk;
    for (int64_t r = 0; r < b->rows; r++) {
        const int32_t term = b->terms[r * b->l->groups + g], zero = b->a->x.zero[b->r0 + r];
        int32_t *cells = (int32_t *)(void *)(b->f + r / CELL_TOKENS * ROW_FLOATS);
        for (int i = 0; i < NIB_INT_PANEL; i++) {
            int32_t *cell = cells + i / CELL_OUTPUTS * LANES + r % CELL_TOKENS * CELL_OUTPUTS +
                            i % CELL_OUTPUTS;
            const int64_t dot = b->form == MANY_PLAIN
                                    ? (int32_t)((uint32_t)*cell + (uint32_t)term)
                                    : *cell + (int64_t)chunk->offset[0][i] * term -
                                          (int64_t)chunk->sum[0][i] * zero;
            const float sum = fmaf(chunk->scale[0][i], (float)dot, 0.0F);
            memcpy(cell, &sum, sizeof sum);
        }
    }
}

/* Groups that fit in a chunk, several at a time. A chunk ends where a block of the float sum ends,
 * and a last group with fewer units is a chunk of its own. */
static void panel_of_groups(const int_many *b, const uint8_t *panel)
{
    const nib_int_layout *l = b->l;
    const int64_t whole = l->groups - (l->last_units < l->units), steps = l->units * l->unit / 8,
                  fit = nib__max(1, CHUNK_K_BEST / 8 / steps);
    for (int64_t g = 0; g < l->groups;) {
        const int64_t block_left = l->per_block - g % l->per_block;
        const bool is_last = g >= whole;
        const int64_t groups = is_last ? 1 : nib__min(nib__min(fit, block_left), whole - g);
        unpack(b, panel, g, groups, 0, is_last ? l->last_units * l->unit / 8 : steps);
        multiply(b, g, g * l->group, false, false);
        g += groups;
        if (groups == block_left || g == l->groups)
            add_block(b, g <= l->per_block);
    }
}

/* A group of several chunks is a block of the float sum by itself. */
static void panel_of_parts(const int_many *b, const uint8_t *panel)
{
    const nib_int_layout *l = b->l;
    for (int64_t g = 0; g < l->groups; g++) {
        const int64_t steps = (g + 1 == l->groups ? l->last_units : l->units) * l->unit / 8;
        for (int64_t step = 0; step < steps; step += CHUNK_K / 8) {
            unpack(b, panel, g, 1, step, nib__min(CHUNK_K / 8, steps - step));
            multiply(b, g, g * l->group + 8 * step, true, step == 0);
        }
        finish_parts(b, g);
        add_block(b, g == 0);
    }
}

static void run_panels(int_many *b, int64_t n0, int64_t n1)
{
    const nib_int_layout *l = b->l;
    memset(b->f, 0, (size_t)cells_of(b) * sizeof *b->f);
    for (b->n0 = n0; b->n0 < n1; b->n0 += NIB_INT_PANEL) {
        const uint8_t *panel =
            (const uint8_t *)b->a->packed + (size_t)(b->n0 / NIB_INT_PANEL) * l->panel_bytes;
        if (l->units * l->unit <= CHUNK_K)
            panel_of_groups(b, panel);
        else
            panel_of_parts(b, panel);
        for (int64_t r = 0; r < b->rows; r++)
            for (int q = 0; q < NIB_INT_PANEL && b->n0 + q < b->a->w->n; q += LANES)
                store4(
                    b->a, b->r0 + r, b->n0 + q,
                    outputs_of_token(b->totals + r / CELL_TOKENS * ROW_FLOATS, q, r % CELL_TOKENS),
                    b->form == MANY_BLOCKS);
    }
}

/* ---- scratch ---- */

/* Scratch bytes before the terms: a chunk, float sums and totals [rows][32], staged activations
 * [rows][ld]. Terms or nib_int_scaled follow. */
static size_t many_bytes(const nib_linear *a)
{
    const int64_t rows = nib__int_row_block_most(a->x.m, a->w->k);
    return sizeof(int_chunk) + (size_t)rows * 2 * NIB_INT_PANEL * sizeof(float) +
           (CELL_TOKENS > 1 ? (size_t)(rows * nib__round_up(a->w->k, NIB_CODES_PAD)) : 0);
}

static size_t many_scratch(const void *args)
{
    const nib_linear *a = args;
    const nib_int_layout l = nib__int_layout(a->w);
    return many_bytes(a) + nib__int_scaled_bytes(a, &l);
}

NIB_INLINE void run_many(const nib_linear *a, int64_t n0, int64_t n1, void *scratch, bool in_blocks)
{
    const nib_int_layout l = signed_layout(a->w);
    const int64_t most = nib__int_row_block(a->x.m, a->w->k);
    const bool plain = in_blocks || nib__int_kind(a, &l) == NIB_INT_PLAIN;
    int_many b = {.a = a, .l = &l, .chunk = scratch};
    b.form = in_blocks ? MANY_BLOCKS : plain ? MANY_PLAIN : MANY_ZEROS;
    b.f = (float *)(b.chunk + 1);
    b.totals = b.f + most * NIB_INT_PANEL;
    int8_t *staged = (int8_t *)(b.totals + most * NIB_INT_PANEL);
    int32_t *terms = (int32_t *)(void *)((char *)scratch + many_bytes(a));
    for (b.r0 = 0; b.r0 < a->x.m; b.r0 += most) {
        b.rows = nib__min(most, a->x.m - b.r0);
        b.x = stage_x(a, b.r0, b.rows, staged);
        b.terms = terms;
        if (in_blocks) {
            const nib_int_scaled s = nib__int_scaled(a, &l, b.r0, b.rows, terms);
            b.scales = s.scales;
            b.sums = s.sums;
        } else {
            row_terms(a, &l, plain, b.r0, b.rows, terms);
        }
        run_panels(&b, n0, n1);
    }
}

#endif
