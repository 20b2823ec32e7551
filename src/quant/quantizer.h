/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight quantizers: rows of f32 become codes, scales and zeros. Blocks of rows
 * may come in any order, so all cores work on a stream. The formulas are torchao 0.18's
 * (docs/quantization.md lists them), which computes in the weight's own type, `source`.
 */
#ifndef NIB_QUANTIZER_H
#define NIB_QUANTIZER_H

#include "quant_w.h"

/* Output buffers of a block of rows. */
typedef struct nib_quantized {
    int8_t *codes;        /* [rows][k], one per byte: integers, or e4m3 or e2m1 bit patterns */
    void *scales;         /* [rows][groups] of scale_type; unused with one scale per tensor */
    void *zeros;          /* the same, of zero_type; NULL without zeros */
    double signal, error; /* accumulated: sums of x^2 and of (x - dequantized x)^2 */
    /* Accumulated by methods: what the method makes small, of rounding's codes and of these. */
    double objective[2];
} nib_quantized;

/* If nib__quantizer_needs_scan is true: call nib__quantizer_scan on all rows, with a range that
 * starts as {0, 0}, then pass that range to nib__quantizer_set_range. Each thread scans into its
 * own range; merge them by minimum and maximum. */
nib_status nib__quantizer_scan(const nib_quantizer *q, const float *rows, int64_t first,
                               int64_t count, float range[2], nib_err *err);
nib_status nib__quantizer_set_range(nib_quantizer *q, const float range[2], nib_err *err);
/* Stores the one scale and zero of a tensor. nib__quantizer_quantize_rows does not write them. */
void nib__quantizer_store_tensor_scale(const nib_quantizer *q, void *scale, void *zero);

/* rows: [count][k], each value exact in `source`, or of a weight that a method computed; first:
 * index of the first row, for messages. A NaN or infinity is NIB_BAD_INPUT with its row and
 * column. */
nib_status nib__quantizer_quantize_rows(const nib_quantizer *q, const float *rows, int64_t first,
                                        int64_t count, nib_quantized *out, nib_err *err);

/* Fails and says why a row cannot be quantized. failed: nib_quant_w.failed of that row. */
nib_status nib__quantizer_fail_row(const nib_quantizer *q, const float *row, int64_t index,
                                   int32_t failed, nib_err *err);

/* Describes the result as a weight, over buffers that nib__quantizer_quantize_rows filled for n
 * rows. */
void nib__quantizer_describe_weight(nib_weight *out, const nib_quantizer *q, int64_t n,
                                    const void *codes, const void *scales, const void *zeros);

/* The activation scale and zero of a layer with NIB_ACT_I8_STATIC, from the range of its inputs, by
 * the formula of dynamic scales. */
void nib__compute_static_scale(float *scale, int32_t *zero, const nib_scheme *scheme,
                               const float range[2]);

/* 10 log10(signal / error); infinity without error. */
double nib__sqnr_db(double signal, double error);

#endif
