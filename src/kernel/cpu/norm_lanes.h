/* SPDX-License-Identifier: Apache-2.0
 *
 * A root mean square norm on lanes, for the rows that keep its values and those that quantize them:
 * one definition, so that both have the same bits.
 */
#ifndef NIB_NORM_LANES_H
#define NIB_NORM_LANES_H

#include "lanes.h"
#include "ops.h"

/* What the row's values are multiplied by before their weights: 1 / sqrt(mean(x^2) + eps). */
NIB_INLINE nib_lanes nib__norm_factor(const float *x, int64_t width, float eps)
{
    nib_lanes squares = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < width; i += NIB_LANES) {
        const nib_lanes v = nib__lanes_at(x, i, width);
        squares = nib__lanes_fma(v, v, squares);
    }
    const float mean = nib__lanes_sum(squares) / (float)width;
    return nib__lanes_set(1.0f / sqrtf(mean + eps));
}

/* Of `count` values of a row; out may be x. */
NIB_INLINE void nib__norm_values(float *out, const float *x, const float *weight, nib_lanes factor,
                                 int64_t count)
{
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        const nib_lanes v = nib__lanes_mul(nib__lanes_at(x, i, count), factor);
        nib__lanes_put(out, i, count, nib__lanes_mul(v, nib__lanes_at(weight, i, count)));
    }
}

#endif
