/* SPDX-License-Identifier: Apache-2.0
 *
 * A norm on lanes, root mean square or centered (LayerNorm). Rows that keep its values, rows that
 * quantize them and rows of its gradients share this definition, so all have the same bits. The
 * mean of x is computed first, then the mean of the squares of x less its mean, each in lanes and
 * with the tree of nib__lanes_sum.
 */
#ifndef NIB_NORM_LANES_H
#define NIB_NORM_LANES_H

#include "lanes.h"
#include "ops.h"

/* Sixteen values less their mean, zeros past width. */
NIB_INLINE nib_lanes nib__norm_centered(const float *x, int64_t i, int64_t width, nib_lanes mean)
{
    const nib_lanes v = nib__lanes_sub(nib__lanes_load_at(x, i, width), mean);
    return i + NIB_LANES <= width ? v : nib__lanes_keep_first(v, width - i);
}

NIB_INLINE float nib__norm_mean(const float *x, int64_t width)
{
    nib_lanes sum = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < width; i += NIB_LANES)
        sum = nib__lanes_add(sum, nib__lanes_load_at(x, i, width));
    return nib__lanes_sum(sum) / (float)width;
}

/* What is subtracted from a row's values (`mean`, 0 unless the norm is centered) and the factor
 * applied before the weights: 1 / sqrt(mean(x^2) + eps). */
typedef struct nib_norm_row {
    nib_lanes mean, factor;
} nib_norm_row;

NIB_INLINE nib_norm_row nib__norm_row_as(const float *x, int64_t width, float eps, bool centered)
{
    nib_norm_row row = {.mean = nib__lanes_set(centered ? nib__norm_mean(x, width) : 0.0f)};
    nib_lanes squares = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < width; i += NIB_LANES) {
        const nib_lanes v =
            centered ? nib__norm_centered(x, i, width, row.mean) : nib__lanes_load_at(x, i, width);
        squares = nib__lanes_fma(v, v, squares);
    }
    const float mean = nib__lanes_sum(squares) / (float)width;
    row.factor = nib__lanes_set(1.0f / sqrtf(mean + eps));
    return row;
}

NIB_INLINE nib_norm_row nib__norm_row(const nib_norm *a, int64_t row)
{
    const float *x = a->x + row * a->ldx;
    return a->centered ? nib__norm_row_as(x, a->width, a->eps, true)
                       : nib__norm_row_as(x, a->width, a->eps, false);
}

NIB_INLINE void nib__norm_values_as(float *out, const float *x, const float *weight,
                                    const float *bias, nib_norm_row of, int64_t count,
                                    bool centered, bool biased)
{
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        nib_lanes v = nib__lanes_load_at(x, i, count);
        if (centered)
            v = nib__lanes_sub(v, of.mean);
        v = nib__lanes_mul(nib__lanes_mul(v, of.factor), nib__lanes_load_at(weight, i, count));
        if (biased)
            v = nib__lanes_add(v, nib__lanes_load_at(bias, i, count));
        nib__lanes_store_at(out, i, count, v);
    }
}

/* The weights for a row; rows cycle through `weights` sets of them. */
NIB_INLINE const float *nib__norm_weights(const float *weight, int64_t row, int64_t width,
                                          int64_t weights)
{
    return weights > 1 ? weight + row % weights * width : weight;
}

/* `count` values of a row from column k0 on, a multiple of the lanes. `out` may be the input
 * itself. */
NIB_INLINE void nib__norm_values(float *out, const nib_norm *a, int64_t row, nib_norm_row of,
                                 int64_t k0, int64_t count)
{
    const float *x = a->x + row * a->ldx + k0;
    const float *weight = nib__norm_weights(a->weight, row, a->width, a->weights) + k0;
    const float *bias = a->bias != NULL ? a->bias + k0 : NULL;
    if (a->centered && bias != NULL)
        nib__norm_values_as(out, x, weight, bias, of, count, true, true);
    else if (a->centered)
        nib__norm_values_as(out, x, weight, bias, of, count, true, false);
    else if (bias != NULL)
        nib__norm_values_as(out, x, weight, bias, of, count, false, true);
    else
        nib__norm_values_as(out, x, weight, bias, of, count, false, false);
}

#endif
