/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight quantizers, round to nearest: rows of f32 in, codes, scales and zeros out, a block of rows
 * at a time and in any order, so that a checkpoint streams through on all cores. The formulas are
 * torchao 0.18's (docs/quantization.md lists them), which computes in the weight's own type:
 * `source`.
 */
#ifndef NIB_QUANTIZER_H
#define NIB_QUANTIZER_H

#include "quant_w.h"

/* Where a block of rows goes. */
typedef struct nib_quantized {
    int8_t *codes;        /* [rows][k] one per byte: integers, or e4m3 or e2m1 bit patterns */
    void *scales;         /* [rows][groups] of scale_type; untouched with one scale per tensor */
    void *zeros;          /* likewise, of zero_type; NULL without zeros */
    double signal, error; /* added to: sums of x^2 and of (x - dequantized x)^2 */
} nib_quantized;

/* Where the tensor's range is needed first (nib__quantizer_needs_scan): scan every row (widening
 * range, which starts as {0, 0}), then fix it. Ranges of several threads are merged by the smaller
 * and the larger. */
nib_status nib__quantizer_scan(const nib_quantizer *q, const float *rows, int64_t first,
                               int64_t count, float range[2], nib_err *err);
nib_status nib__quantizer_range(nib_quantizer *q, const float range[2], nib_err *err);
/* The scale and zero of a tensor that has but one, for which rows() writes none: in scale_type and
 * zero_type. */
void nib__quantizer_tensor(const nib_quantizer *q, void *scale, void *zero);

/* rows: [count][k], each value exact in `source`; first: index of the first, for messages. A NaN or
 * infinity is NIB_BAD_INPUT, naming row and column. */
nib_status nib__quantizer_rows(const nib_quantizer *q, const float *rows, int64_t first,
                               int64_t count, nib_quantized *out, nib_err *err);

/* Why a row has no codes, in words: `failed` of nib_quant_w, the row's values and its index. */
nib_status nib__quantizer_refuse(const nib_quantizer *q, const float *row, int64_t index,
                                 int32_t failed, nib_err *err);

/* The result as a weight, over the buffers that rows() filled for all n rows. */
void nib__quantizer_weight(nib_weight *out, const nib_quantizer *q, int64_t n, const void *codes,
                           const void *scales, const void *zeros);

/* The one activation scale and zero of a layer with NIB_ACT_I8_STATIC, from the range of its
 * inputs, by the formula of the dynamic scales. */
void nib__static_scale(float *scale, int32_t *zero, const nib_scheme *scheme, const float range[2]);

/* 10 log10(signal / error); infinity without error. */
double nib__sqnr_db(double signal, double error);

#endif
