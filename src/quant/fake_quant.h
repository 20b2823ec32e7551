/* SPDX-License-Identifier: Apache-2.0
 *
 * Fake quantization, for quantization-aware training: values become codes and values again, so that
 * a product of floats sees what the quantized model will see; gradients go past the rounding. Codes
 * are the quantizers' and the activation rows' own. Gradients are those of torchao 0.18's fake
 * quantizers where a clamp passes gradients at its bounds, as PyTorch's did for years. The clamp of
 * PyTorch 2.15 passes none there, which holds the largest weights of every group still; what that
 * costs is in docs/training.md.
 *
 *   integers (scale not learned)   g where the clamp changed nothing, else 0; torchao rounds twice
 *       on the way, g times s times 1 / s, which is left out
 *   int4 with float zeros          scale s = (max - min) / 15 and min have gradients: with e = code
 *       - (w - min) / s and ds = sum of g e, g - ds / 15 for the least, g + ds / 15 for the
 *       largest, g for the others; equal extremes share theirs. Only g where the range is 1e-6 or
 *       less.
 *
 * Where weights are to be stored as bf16 or f16, codes and scales are those of the stored weight,
 * as its quantizer makes them; torchao's fake quantizers keep scales in f32 then, which its own
 * conversion does not, so that some of its codes change at the end.
 *
 * Rows are independent: how they are shared changes no bit.
 */
#ifndef NIB_FAKE_QUANT_H
#define NIB_FAKE_QUANT_H

#include "ops.h"
#include "quantizer.h"

/* Whether a layer can be trained for the scheme: symmetric int8 and int4 in rows or groups, int4
 * with float zeros; inputs floats, or int8 with a scale per token. */
bool nib__fake_has(const nib_scheme *scheme);

/* A weight [n][k] as its codes: all that gradients need, beside the weight. */
typedef struct nib_fake_weight {
    nib_quantizer quantizer; /* its source is what the trained weight will be stored as */
    int8_t *codes;           /* [n][k] */
    void *scales;            /* [n][groups] of quantizer.scale_type */
    void *zeros;             /* [n][groups] of quantizer.zero_type; NULL: the scheme has none */
} nib_fake_weight;

/* Rows n0..n1 of w [n][k], rounded to the source, into codes, and into out [n][k] what these mean.
 * A row that no scale can cover becomes NaN, so that the loss shows it. */
void nib__fake_weight_rows(const nib_fake_weight *f, const float *w, float *out, int64_t n0,
                           int64_t n1);
/* Rows n0..n1 of the gradient of out, in place into that of w. */
void nib__fake_weight_gradient(const nib_fake_weight *f, const float *w, float *gradient,
                               int64_t n0, int64_t n1);

/* A bit per input, in rows of this many bytes: set where gradients pass. */
NIB_INLINE int64_t nib__fake_mask_ld(int64_t k) { return nib__ceil_div(k, 8); }

/* Tokens m0..m1 of int8 codes, as a row made them, into out [m][ldo], what they mean, and into mask
 * [m][mask_ld]. */
void nib__fake_input_rows(const nib_quant *made, float *out, int64_t ldo, uint8_t *mask, int64_t m0,
                          int64_t m1);
/* Tokens m0..m1 of the gradient of out, in place into that of the input; `k` wide. */
void nib__fake_input_gradient(const uint8_t *mask, float *gradient, int64_t ld, int64_t k,
                              int64_t m0, int64_t m1);

#endif
