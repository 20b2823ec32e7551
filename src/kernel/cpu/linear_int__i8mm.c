/* SPDX-License-Identifier: Apache-2.0
 *
 * Linear rows with integer activations by smmla: 2 tokens by 2 outputs by 8 k. If there are too few
 * tokens to pay for unpacking, they use sdot instead.
 */
#include "linear_int.h"

#if NIB_BUILT_ARM

#include <arm_neon.h>

enum { CELL_TOKENS = 2, CELL_OUTPUTS = 2, STEP = 64 /* bytes of 8 outputs by 8 k */ };

NIB_INLINE int8x16_t zip_low(int8x16_t a, int8x16_t b)
{
    return vreinterpretq_s8_s32(vzip1q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}

NIB_INLINE int8x16_t zip_high(int8x16_t a, int8x16_t b)
{
    return vreinterpretq_s8_s32(vzip2q_s32(vreinterpretq_s32_s8(a), vreinterpretq_s32_s8(b)));
}

/* Writes four times 2 outputs by 8 k, from quads [4 outputs][4 k]. */
NIB_INLINE void put_step(int8_t *out, const int8x16_t even[2], const int8x16_t odd[2])
{
    for (int h = 0; h < 2; h++) {
        vst1q_s8(out + 32 * h, zip_low(even[h], odd[h]));
        vst1q_s8(out + 32 * h + 16, zip_high(even[h], odd[h]));
    }
}

/* [pairs of tokens][k / 8][2][8]; a last token without a partner is stored twice. */
NIB_INLINE const int8_t *stage_x(const nib_linear *a, int64_t r0, int64_t rows, int8_t *room)
{
    int8_t *out = room;
    for (int64_t r = 0; r < rows; r += 2) {
        const int8_t *first = a->x.codes + (r0 + r) * a->x.ld;
        const int8_t *second = r + 1 < rows ? first + a->x.ld : first;
        for (int64_t k = 0; k < a->x.ld; k += 8, out += 16)
            vst1q_s8(out, vcombine_s8(vld1_s8(first + k), vld1_s8(second + k)));
    }
    return room;
}

NIB_INLINE void tile_dots(int32x4_t dots[][8 / CELL_OUTPUTS], const int8_t *codes, const int8_t *x,
                          int64_t ld, int64_t steps, int rows)
{
    for (; steps > 0; steps--, codes += STEP, x += 16) {
        int8x16_t v[4];
#pragma GCC unroll 4
        for (int r = 0; r < rows; r++)
            v[r] = vld1q_s8(x + r * ld);
#pragma GCC unroll 4
        for (int c = 0; c < 4; c++) {
            const int8x16_t w = vld1q_s8(codes + 16 * c);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++)
                dots[r][c] = vmmlaq_s32(dots[r][c], v[r], w);
        }
    }
}

NIB_INLINE int32x4_t outputs_i32(const int32_t *p)
{
    const int32x2_t two = vld1_s32(p);
    return vcombine_s32(two, two);
}

NIB_INLINE float32x4_t outputs_f32(const float *p)
{
    const float32x2_t two = vld1_f32(p);
    return vcombine_f32(two, two);
}

NIB_INLINE int32x4_t tokens_i32(const int32_t *p, int64_t next)
{
    return vcombine_s32(vdup_n_s32(p[0]), vdup_n_s32(p[next]));
}

NIB_INLINE float32x4_t tokens_f32(const float *p, int64_t next)
{
    return vcombine_f32(vdup_n_f32(p[0]), vdup_n_f32(p[next]));
}

NIB_INLINE float32x4_t outputs_of_token(const float *cells, int first, int64_t which)
{
    const float *at = cells + 2 * first + 2 * which;
    return vcombine_f32(vld1_f32(at), vld1_f32(at + 4));
}

#include "linear_int_neon_many.h"

/* Few tokens do not fill the tiles of smmla, so they use sdot. */
void nib__linear_w4_i8mm(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    if (a->x.m < FEW)
        nib__linear_w4_neon(a, n0, n1, scratch);
    else
        run_many(a, n0, n1, scratch, false);
}

void nib__linear_w8_i8mm(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    if (a->x.m < FEW)
        nib__linear_w8_neon(a, n0, n1, scratch);
    else
        run_many(a, n0, n1, scratch, false);
}

void nib__linear_w4_blocks_i8mm(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    if (a->x.m < FEW)
        nib__linear_w4_blocks_neon(a, n0, n1, scratch);
    else
        run_many(a, n0, n1, scratch, true);
}

/* The layout says which codes of 4 bits a panel has. */
void nib__linear_mx4_blocks_i8mm(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    nib__linear_w4_blocks_i8mm(a, n0, n1, scratch);
}

void nib__linear_w8_blocks_i8mm(const nib_linear *a, int64_t n0, int64_t n1, void *scratch)
{
    if (a->x.m < FEW)
        nib__linear_w8_blocks_neon(a, n0, n1, scratch);
    else
        run_many(a, n0, n1, scratch, true);
}

size_t nib__linear_int_scratch_i8mm(const void *args) { return many_scratch(args); }
size_t nib__linear_blocks_scratch_i8mm(const void *args) { return many_scratch(args); }

#endif
