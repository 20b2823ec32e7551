/* SPDX-License-Identifier: Apache-2.0
 *
 * The token rows' code, written once on lanes and compiled per instruction set: each including file
 * names its functions through NIB_TOKEN(name). norm, rope, swiglu, add; embed and cache stores are
 * plain C and need no copy.
 */
#include "lanes.h"
#include "ops.h"

void NIB_TOKEN(norm)(const nib_norm *a, int64_t row0, int64_t row1)
{
    for (int64_t row = row0; row < row1; row++) {
        const float *x = a->x + row * a->ldx;
        float *out = a->out + row * a->ldo;
        nib_lanes squares = nib__lanes_set(0.0f);
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes v = nib__lanes_at(x, i, a->width);
            squares = nib__lanes_fma(v, v, squares);
        }
        const float mean = nib__lanes_sum(squares) / (float)a->width;
        const nib_lanes scale = nib__lanes_set(1.0f / sqrtf(mean + a->eps));
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes v = nib__lanes_mul(nib__lanes_at(x, i, a->width), scale);
            nib__lanes_put(out, i, a->width,
                           nib__lanes_mul(v, nib__lanes_at(a->weight, i, a->width)));
        }
    }
}

void NIB_TOKEN(rope)(const nib_rope *a, int64_t m0, int64_t m1)
{
    const int64_t half = a->dims / 2;
    const nib_lanes turn = nib__lanes_set(a->inverse ? -1.0f : 1.0f); /* exact */
    for (int64_t m = m0; m < m1; m++) {
        const float *cosine = a->cos_sin + (int64_t)a->position[m] * a->dims;
        const float *sine = cosine + half;
        for (int64_t h = 0; h < a->heads; h++) {
            float *x = a->x + m * a->ldx + h * a->head_dim;
            for (int64_t i = 0; i < half; i += NIB_LANES) {
                const nib_lanes c = nib__lanes_at(cosine, i, half),
                                s = nib__lanes_mul(nib__lanes_at(sine, i, half), turn);
                const nib_lanes u = nib__lanes_at(x, i, half), v = nib__lanes_at(x + half, i, half);
                const nib_lanes us = nib__lanes_mul(u, s), vs = nib__lanes_mul(v, s);
                nib__lanes_put(x, i, half, nib__lanes_sub(nib__lanes_mul(u, c), vs));
                nib__lanes_put(x + half, i, half, nib__lanes_add(nib__lanes_mul(v, c), us));
            }
        }
    }
}

void NIB_TOKEN(swiglu)(const nib_swiglu *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++) {
        const float *gate = a->gate + m * a->ld, *up = a->up + m * a->ld;
        float *out = a->out + m * a->ldo;
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            nib_lanes share;
            const nib_lanes silu = nib__lanes_silu(nib__lanes_at(gate, i, a->width), &share);
            nib__lanes_put(out, i, a->width, nib__lanes_mul(silu, nib__lanes_at(up, i, a->width)));
        }
    }
}

void NIB_TOKEN(add)(const nib_add *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++) {
        const float *x = a->x + m * a->ldx;
        float *y = a->y + m * a->ldy;
        for (int64_t i = 0; i < a->width; i += NIB_LANES)
            nib__lanes_put(
                y, i, a->width,
                nib__lanes_add(nib__lanes_at(y, i, a->width), nib__lanes_at(x, i, a->width)));
    }
}
