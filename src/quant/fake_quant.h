/* SPDX-License-Identifier: Apache-2.0
 *
 * Fake quantization for quantization-aware training: values become codes and values again, so that
 * a float product sees what the quantized model will see; gradients skip the rounding. The
 * quantizers and the activation rows make the codes. Gradients are those of torchao 0.18's fake
 * quantizers with a clamp that passes gradients at its bounds, as PyTorch's did for years. The
 * clamp of PyTorch 2.15 passes none there, which freezes the largest weights of every group;
 * docs/training.md has the cost of that.
 *
 *   integers (scale not learned)   g where the clamp changed nothing, else 0; torchao multiplies by
 *       s and 1 / s on the way, two roundings that are left out here
 *   int4 with float zeros          scale s = (max - min) / 15 and min have gradients: with e = code
 *       - (w - min) / s and ds = sum of g e, g - ds / 15 for the smallest, g + ds / 15 for the
 *       largest, g for the others; equal extremes share theirs. Only g where the range is 1e-6 or
 *       less.
 *
 * For weights that will be stored as bf16 or f16, codes and scales are those of the stored weight,
 * as its quantizer makes them. torchao's fake quantizers keep f32 scales and its conversion does
 * not, so some of its codes change at the end.
 *
 * Rows are independent: sharing them among threads changes no bit.
 */
#ifndef NIB_FAKE_QUANT_H
#define NIB_FAKE_QUANT_H

#include "ops.h"
#include "quantizer.h"

/* True if a layer can be trained for the scheme: symmetric int8 and int4 in rows or groups, or int4
 * with float zeros; inputs are floats, or int8 with a scale per token. */
bool nib__fake_has(const nib_scheme *scheme);

/* The codes of a weight [n][k]. With the weight itself, all that gradients need. */
typedef struct nib_fake_weight {
    nib_quantizer quantizer; /* its source is the type to store the trained weight in */
    int8_t *codes;           /* [n][k] */
    void *scales;            /* [n][groups] of quantizer.scale_type */
    void *zeros;             /* [n][groups] of quantizer.zero_type; NULL: the scheme has none */
} nib_fake_weight;

/* Rounds rows n0..n1 of w [n][k] to the source type and quantizes them into codes, and writes the
 * dequantized values to out [n][k]. A row that no scale can cover becomes NaN, so the loss shows
 * it. */
void nib__fake_weight_rows(const nib_fake_weight *f, const float *w, float *out, int64_t n0,
                           int64_t n1);
/* Turns rows n0..n1 of the gradient of out into that of w, in place. */
void nib__fake_weight_gradient(const nib_fake_weight *f, const float *w, float *gradient,
                               int64_t n0, int64_t n1);

/* Bytes per row of a mask with a bit per input, which is set where gradients pass. */
NIB_INLINE int64_t nib__fake_mask_ld(int64_t k) { return nib__ceil_div(k, 8); }

/* Dequantizes tokens m0..m1 of int8 codes that a row made into out [m][ldo], and writes mask
 * [m][mask_ld]. */
void nib__fake_input_rows(const nib_quant *made, float *out, int64_t ldo, uint8_t *mask, int64_t m0,
                          int64_t m1);
/* Turns tokens m0..m1 of the gradient of out into that of the input, `k` wide, in place. */
void nib__fake_input_gradient(const uint8_t *mask, float *gradient, int64_t ld, int64_t k,
                              int64_t m0, int64_t m1);

#endif
