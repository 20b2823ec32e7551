/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with integer activations by sdot: 4 outputs by 4 k, activations by element. One to
 * three tokens (decode) run directly over the panels, which are read from memory once; for more
 * tokens see linear_int_neon_many.h.
 */
#include "linear_int.h"

#if NIB_BUILT_ARM

#include <arm_neon.h>

enum { CELL_TOKENS = 1, CELL_OUTPUTS = 4, STEP = 64 /* bytes of 8 outputs by 8 k */ };

/* Quads in the order in which they arrive: [2][2 times 4 outputs][4 k]. */
NIB_INLINE void put_step(int8_t *out, const int8x16_t even[2], const int8x16_t odd[2])
{
    for (int h = 0; h < 2; h++) {
        vst1q_s8(out + 16 * h, even[h]);
        vst1q_s8(out + 32 + 16 * h, odd[h]);
    }
}

NIB_INLINE const int8_t *stage_x(const nib_linear *a, int64_t r0, int64_t rows, int8_t *room)
{
    (void)rows, (void)room;
    return a->x.codes + r0 * a->x.ld;
}

/* One quad of k for all rows; the lane is part of the instruction. */
#define TILE_QUAD(q)                                                                               \
    do {                                                                                           \
        const int8x16_t w0 = vld1q_s8(codes + 32 * (q)), w1 = vld1q_s8(codes + 32 * (q) + 16);     \
        _Pragma("GCC unroll 8") for (int r = 0; r < rows; r++)                                     \
        {                                                                                          \
            dots[r][0] = vdotq_laneq_s32(dots[r][0], w0, v[r], q);                                 \
            dots[r][1] = vdotq_laneq_s32(dots[r][1], w1, v[r], q);                                 \
        }                                                                                          \
    } while (0)

/* Units are 16 k or more, so steps come in pairs. */
NIB_INLINE void tile_dots(int32x4_t dots[][8 / CELL_OUTPUTS], const int8_t *codes, const int8_t *x,
                          int64_t ld, int64_t steps, int rows)
{
    for (; steps > 0; steps -= 2, codes += 2 * STEP, x += 16) {
        int8x16_t v[8];
#pragma GCC unroll 8
        for (int r = 0; r < rows; r++)
            v[r] = vld1q_s8(x + r * ld);
        TILE_QUAD(0);
        TILE_QUAD(1);
        TILE_QUAD(2);
        TILE_QUAD(3);
    }
}

NIB_INLINE int32x4_t outputs_i32(const int32_t *p) { return vld1q_s32(p); }
NIB_INLINE float32x4_t outputs_f32(const float *p) { return vld1q_f32(p); }

NIB_INLINE int32x4_t tokens_i32(const int32_t *p, int64_t next)
{
    (void)next;
    return vdupq_n_s32(*p);
}

NIB_INLINE float32x4_t tokens_f32(const float *p, int64_t next)
{
    (void)next;
    return vdupq_n_f32(*p);
}

NIB_INLINE float32x4_t outputs_of_token(const float *cells, int first, int64_t which)
{
    (void)which;
    return vld1q_f32(cells + first);
}

#include "linear_int_neon_many.h"

/* ---- few tokens ---- */

enum { FEW_CELLS = 8 /* cells of a tile: 1 token x 32 outputs, 2 x 16 */ };

/* How a group's sum is formed; a compile-time constant. */
typedef enum few_form {
    FEW_PLAIN,      /* all zero points are 0 */
    FEW_ZEROS,      /* integer zero points of weights or activations */
    FEW_BLOCKS,     /* activations in blocks */
    FEW_BLOCKS_E2M1 /* the same, of MXFP4 */
} few_form;

NIB_INLINE bool few_is_scaled(few_form form)
{
    return form == FEW_BLOCKS || form == FEW_BLOCKS_E2M1;
}

/* Up to 3 tokens on one panel. */
typedef struct int_few {
    const nib_linear *a;
    const nib_int_layout *l;
    const uint8_t *panel;
    int64_t n0;
    const int32_t *terms;       /* [m][groups] */
    const float *scales, *sums; /* activations in blocks: like terms, from nib_int_scaled */
} int_few;

typedef int32x4_t few_dots[2][FEW_CELLS];

/* Adds the products of 16 k of a token's `x` with one vector of outputs. */
NIB_INLINE int32x4_t few_quads(int32x4_t dot, const int8x16_t w[4], int8x16_t x)
{
    dot = vdotq_laneq_s32(dot, w[0], x, 0);
    dot = vdotq_laneq_s32(dot, w[1], x, 1);
    dot = vdotq_laneq_s32(dot, w[2], x, 2);
    return vdotq_laneq_s32(dot, w[3], x, 3);
}

/* The dots of a group whose codes begin at `at` and, for FEW_ZEROS, its code sums. */
NIB_INLINE void few_group(few_dots dots, int32x4_t sums[FEW_CELLS], const uint8_t *at,
                          const int8_t *const x[2], int64_t steps, int m, few_form form, int bits)
{
    const bool with_sums = form == FEW_ZEROS, e2m1 = form == FEW_BLOCKS_E2M1;
    const int8x16_t ones = vdupq_n_s8(1);
    for (int64_t s = 0; s < steps; s += 2, at += 2 * step_bytes(bits)) {
        int8x16_t v[2];
#pragma GCC unroll 2
        for (int r = 0; r < m; r++)
            v[r] = vld1q_s8(x[r] + 8 * s);
#pragma GCC unroll 8
        for (int c = 0; c < FEW_CELLS / m; c++) {
            int8x16_t w[4];
            load_quads(at + 16 * c, bits, e2m1, &w[0], &w[1]);
            load_quads(at + step_bytes(bits) + 16 * c, bits, e2m1, &w[2], &w[3]);
            if (with_sums)
#pragma GCC unroll 4
                for (int q = 0; q < 4; q++)
                    sums[c] = vdotq_s32(sums[c], w[q], ones);
#pragma GCC unroll 2
            for (int r = 0; r < m; r++)
                dots[r][c] = few_quads(dots[r][c], w, v[r]);
        }
    }
}

/* Adds group g, whose head is at `group`, to the sum of token `row`, for the outputs from `first`
 * on. */
NIB_INLINE float32x4_t few_add(const int_few *b, const uint8_t *group, int64_t g, int64_t row,
                               int first, int32x4_t dot, int32x4_t code_sum, float32x4_t sum,
                               few_form form, int bits)
{
    const nib_int_layout *l = b->l;
    const int64_t at = row * l->groups + g;
    const float32x4_t scale = load_scales(l, group, first);
    const int32_t term = b->terms[at];
    if (form != FEW_ZEROS)
        dot = vaddq_s32(dot, vdupq_n_s32(term));
    if (form == FEW_PLAIN)
        return vfmaq_f32(sum, scale, vcvtq_f32_s32(dot));
    if (few_is_scaled(form)) {
        sum = vfmaq_f32(sum, vmulq_n_f32(scale, b->scales[at]), vcvtq_f32_s32(dot));
        return l->has_float_zeros
                   ? vfmaq_f32(sum, load_zeros(l, group, first), vdupq_n_f32(b->sums[at]))
                   : sum;
    }
    const int32_t zero = b->a->x.zero[row];
    const int32x4_t offset = load_offsets(l, group, first, bits);
    if (l->group > NIB_INT_WIDE_GROUP)
        return vfmaq_f32(sum, scale, wide_dot(dot, code_sum, offset, term, zero));
    dot = vmlsq_n_s32(vmlaq_n_s32(dot, offset, term), code_sum, zero);
    return vfmaq_f32(sum, scale, vcvtq_f32_s32(dot));
}

/* Tokens row..row+m by 32 / m outputs from c0 on. */
NIB_INLINE void few_tile(const int_few *b, int64_t row, int c0, int m, few_form form, int bits)
{
    const nib_int_layout *l = b->l;
    const int cells = FEW_CELLS / m;
    float32x4_t sum[2][FEW_CELLS], total[2][FEW_CELLS];
    const int8_t *x[2];
    int64_t left = l->per_block;
#pragma GCC unroll 2
    for (int r = 0; r < m; r++) {
        x[r] = b->a->x.codes + (row + r) * b->a->x.ld;
#pragma GCC unroll 8
        for (int c = 0; c < cells; c++)
            sum[r][c] = total[r][c] = vdupq_n_f32(0);
    }
    for (int64_t g = 0; g < l->groups; g++) {
        const uint8_t *group = b->panel + (size_t)g * l->group_bytes;
        const int64_t steps = (g + 1 == l->groups ? l->last_units : l->units) * l->unit / 8;
        few_dots dots;
        int32x4_t code_sums[FEW_CELLS];
#pragma GCC unroll 8
        for (int c = 0; c < cells; c++) {
            code_sums[c] = padding_sum(b->a, l, g, steps, bits);
#pragma GCC unroll 2
            for (int r = 0; r < m; r++)
                dots[r][c] = b->a->int_bias != NULL
                                 ? vld1q_s32(b->a->int_bias + b->n0 + c0 + LANES * c)
                                 : vdupq_n_s32(0);
        }
        few_group(dots, code_sums, group + l->header + 4 * c0, x, steps, m, form, bits);
#pragma GCC unroll 2
        for (int r = 0; r < m; r++) {
            x[r] += 8 * steps;
#pragma GCC unroll 8
            for (int c = 0; c < cells; c++)
                sum[r][c] = few_add(b, group, g, row + r, c0 + LANES * c, dots[r][c], code_sums[c],
                                    sum[r][c], form, bits);
        }
        if (--left > 0 && g + 1 < l->groups)
            continue;
        left = l->per_block;
#pragma GCC unroll 2
        for (int r = 0; r < m; r++)
#pragma GCC unroll 8
            for (int c = 0; c < cells; c++) { /* end of a block */
                total[r][c] = g < l->per_block ? sum[r][c] : vaddq_f32(total[r][c], sum[r][c]);
                sum[r][c] = vdupq_n_f32(0);
            }
    }
#pragma GCC unroll 2
    for (int r = 0; r < m; r++)
#pragma GCC unroll 8
        for (int c = 0; c < cells; c++)
            if (b->n0 + c0 + LANES * c < b->a->w->n)
                store4(b->a, row + r, b->n0 + c0 + LANES * c, total[r][c], few_is_scaled(form));
}

NIB_INLINE void few_panel(const int_few *b, few_form form, int bits)
{
    int64_t row = 0;
    for (; row + 2 <= b->a->x.m; row += 2)
        for (int c0 = 0; c0 < NIB_INT_PANEL; c0 += 16)
            few_tile(b, row, c0, 2, form, bits);
    if (row < b->a->x.m)
        few_tile(b, row, 0, 1, form, bits);
}

/* Scratch: terms [m][groups], or nib_int_scaled. */
NIB_INLINE void run_few(const nib_linear *a, int64_t n0, int64_t n1, void *scratch, bool in_blocks,
                        int bits)
{
    const nib_int_layout l = signed_layout(a->w);
    int_few b = {.a = a, .l = &l, .terms = scratch};
    const bool plain = in_blocks || nib__int_kind(a, &l) == NIB_INT_PLAIN;
    if (in_blocks) {
        const nib_int_scaled s = nib__int_scaled(a, &l, 0, a->x.m, scratch);
        b.scales = s.scales;
        b.sums = s.sums;
    } else {
        row_terms(a, &l, plain, 0, a->x.m, scratch);
    }
    for (b.n0 = n0; b.n0 < n1; b.n0 += NIB_INT_PANEL) {
        b.panel = (const uint8_t *)a->packed + (size_t)(b.n0 / NIB_INT_PANEL) * l.panel_bytes;
        if (in_blocks && bits == 4 && l.doubled)
            few_panel(&b, FEW_BLOCKS_E2M1, bits);
        else if (in_blocks)
            few_panel(&b, FEW_BLOCKS, bits);
        else if (plain)
            few_panel(&b, FEW_PLAIN, bits);
        else
            few_panel(&b, FEW_ZEROS, bits);
    }
}

void nib__linear_w4_neon(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    if (a->x.m < FEW)
        run_few(a, n0, n1, scratch, false, 4);
    else
        run_many(a, n0, n1, scratch, false);
}

void nib__linear_w8_neon(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    if (a->x.m < FEW)
        run_few(a, n0, n1, scratch, false, 8);
    else
        run_many(a, n0, n1, scratch, false);
}

void nib__linear_w4_blocks_neon(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    if (a->x.m < FEW)
        run_few(a, n0, n1, scratch, true, 4);
    else
        run_many(a, n0, n1, scratch, true);
}

/* The layout says which codes of 4 bits a panel has. */
void nib__linear_mx4_blocks_neon(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    nib__linear_w4_blocks_neon(a, n0, n1, scratch);
}

void nib__linear_w8_blocks_neon(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    if (a->x.m < FEW)
        run_few(a, n0, n1, scratch, true, 8);
    else
        run_many(a, n0, n1, scratch, true);
}

size_t nib__linear_int_scratch_neon(const void *args) { return many_scratch(args); }
size_t nib__linear_blocks_scratch_neon(const void *args) { return many_scratch(args); }

#endif
