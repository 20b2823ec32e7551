/* SPDX-License-Identifier: Apache-2.0
 *
 * The token rows' code, written once on lanes and compiled per instruction set: each including file
 * names its functions through NIB_TOKEN(name). norm, rope, swiglu, add; embed and cache stores are
 * plain C and need no copy.
 */
#include "lanes.h"
#include "ops.h"

/* x as lanes from column i on, zeros past width. */
NIB_INLINE nib_lanes lanes_at(const float *x, int64_t i, int64_t width)
{
    return i + NIB_LANES <= width ? nib__lanes_load(x + i) : nib__lanes_load_part(x + i, width - i);
}

NIB_INLINE void lanes_put(float *x, int64_t i, int64_t width, nib_lanes value)
{
    if (i + NIB_LANES <= width)
        nib__lanes_store(x + i, value);
    else
        nib__lanes_store_part(x + i, value, width - i);
}

void NIB_TOKEN(norm)(const nib_norm *a, int64_t row0, int64_t row1)
{
    for (int64_t row = row0; row < row1; row++) {
        const float *x = a->x + row * a->ldx;
        float *out = a->out + row * a->ldo;
        nib_lanes squares = nib__lanes_set(0.0f);
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes v = lanes_at(x, i, a->width);
            squares = nib__lanes_fma(v, v, squares);
        }
        const float mean = nib__lanes_sum(squares) / (float)a->width;
        const nib_lanes scale = nib__lanes_set(1.0f / sqrtf(mean + a->eps));
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes v = nib__lanes_mul(lanes_at(x, i, a->width), scale);
            lanes_put(out, i, a->width, nib__lanes_mul(v, lanes_at(a->weight, i, a->width)));
        }
    }
}

void NIB_TOKEN(rope)(const nib_rope *a, int64_t m0, int64_t m1)
{
    const int64_t half = a->dims / 2;
    for (int64_t m = m0; m < m1; m++) {
        const float *cosine = a->cos_sin + (int64_t)a->position[m] * a->dims;
        const float *sine = cosine + half;
        for (int64_t h = 0; h < a->heads; h++) {
            float *x = a->x + m * a->ldx + h * a->head_dim;
            for (int64_t i = 0; i < half; i += NIB_LANES) {
                const nib_lanes c = lanes_at(cosine, i, half), s = lanes_at(sine, i, half);
                const nib_lanes u = lanes_at(x, i, half), v = lanes_at(x + half, i, half);
                const nib_lanes us = nib__lanes_mul(u, s), vs = nib__lanes_mul(v, s);
                lanes_put(x, i, half, nib__lanes_sub(nib__lanes_mul(u, c), vs));
                lanes_put(x + half, i, half, nib__lanes_add(nib__lanes_mul(v, c), us));
            }
        }
    }
}

void NIB_TOKEN(swiglu)(const nib_swiglu *a, int64_t m0, int64_t m1)
{
    const nib_lanes one = nib__lanes_set(1.0f), zero = nib__lanes_set(0.0f);
    for (int64_t m = m0; m < m1; m++) {
        const float *gate = a->gate + m * a->ld, *up = a->up + m * a->ld;
        float *out = a->out + m * a->ldo;
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes g = lanes_at(gate, i, a->width);
            const nib_lanes e = nib__lanes_exp(nib__lanes_sub(zero, g));
            const nib_lanes silu = nib__lanes_div(g, nib__lanes_add(one, e));
            lanes_put(out, i, a->width, nib__lanes_mul(silu, lanes_at(up, i, a->width)));
        }
    }
}

void NIB_TOKEN(add)(const nib_add *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++) {
        const float *x = a->x + m * a->ldx;
        float *y = a->y + m * a->ldy;
        for (int64_t i = 0; i < a->width; i += NIB_LANES)
            lanes_put(y, i, a->width,
                      nib__lanes_add(lanes_at(y, i, a->width), lanes_at(x, i, a->width)));
    }
}
