/* SPDX-License-Identifier: Apache-2.0
 *
 * Weight quantizers: the interface to kernel/cpu/quant_w.c, which has the formulas, and the errors
 * of weights that have no codes.
 */
#include "quantizer.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static nib_status fail_not_finite(nib_err *err, const float *x, int64_t row, int64_t column)
{
    while (isfinite(*x)) {
        x++;
        column++;
    }
    return nib__fail(err, NIB_BAD_INPUT,
                     "row %" PRId64 ", column %" PRId64
                     " is %s, so the row cannot be quantized; repair the weight, or keep the "
                     "layer with --skip",
                     row, column,
                     isnan(*x) ? "nan"
                     : *x < 0  ? "-inf"
                               : "inf");
}

/* row -1: whole tensor */
static nib_status fail_too_wide(const nib_quantizer *q, nib_err *err, int64_t row, float low,
                                float high)
{
    char where[32] = "the tensor";
    if (row >= 0)
        snprintf(where, sizeof where, "row %" PRId64, row);
    if (q->scheme.formula == NIB_FORMULA_GGML)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: weights from %.9g to %.9g need a scale beyond f16, the type of "
                         "ggml's scales; use the scheme without -ggml, or keep the layer with "
                         "--skip",
                         where, (double)low, (double)high);
    if (nib__scheme_is_gguf_block(&q->scheme))
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: weights from %.9g to %.9g need a scale beyond f16, the type of the "
                         "scales of GGUF's blocks; keep the layer with --skip",
                         where, (double)low, (double)high);
    if (q->scale_type == NIB_TYPE_F16 && q->source != NIB_TYPE_F16)
        return nib__fail(err, NIB_BAD_INPUT,
                         "%s: weights from %.9g to %.9g need a scale beyond f16, which the recipe "
                         "asks for; ask for float32 scales, or keep the layer with --skip",
                         where, (double)low, (double)high);
    return nib__fail(
        err, NIB_BAD_INPUT,
        "%s: weights from %.9g to %.9g span more than %s can hold, so they have no scale; use a "
        "symmetric scheme, or keep the layer with --skip",
        where, (double)low, (double)high, nib__type_name(q->source));
}

/* ---- the interface ---- */

nib_status nib__quantizer_scan(const nib_quantizer *q, const float *rows, int64_t first,
                               int64_t count, float range[2], nib_err *err)
{
    for (int64_t i = 0; i < count; i++) {
        const float *row = rows + i * q->k;
        float row_range[2];
        if (!nib__quant_range(row, q->k, &row_range[0], &row_range[1]))
            return nib__quantizer_fail_row(q, row, first + i, 1, err);
        range[0] = row_range[0] < range[0] ? row_range[0] : range[0];
        range[1] = row_range[1] > range[1] ? row_range[1] : range[1];
    }
    return NIB_OK;
}

nib_status nib__quantizer_set_range(nib_quantizer *q, const float range[2], nib_err *err)
{
    return nib__quantizer_fix(q, range) ? NIB_OK : fail_too_wide(q, err, -1, range[0], range[1]);
}

void nib__quantizer_store_tensor_scale(const nib_quantizer *q, void *scale, void *zero)
{
    nib__quant_store(scale, q->scale_type, 0, q->scale);
    if (q->zero_type != NIB_TYPE_NONE)
        nib__quant_store(zero, q->zero_type, 0, q->zero);
}

nib_status nib__quantizer_fail_row(const nib_quantizer *q, const float *row, int64_t index,
                                   int32_t failed, nib_err *err)
{
    const int64_t size = nib__scheme_group_size(&q->scheme, q->k), k0 = (failed - 1) / 2 * size;
    float low, high;
    if (failed % 2 != 0)
        return fail_not_finite(err, row + k0, index, k0);
    (void)nib__quant_range(row + k0, nib__min(size, q->k - k0), &low, &high);
    return fail_too_wide(q, err, index, low, high);
}

nib_status nib__quantizer_quantize_rows(const nib_quantizer *q, const float *rows, int64_t first,
                                        int64_t count, nib_quantized *out, nib_err *err)
{
    const int64_t scale_bytes = q->groups * (nib__type_bits(q->scale_type) / 8);
    const int64_t zero_bytes = q->groups * (nib__type_bits(q->zero_type) / 8);
    for (int64_t i = 0; i < count; i++) {
        double sums[2], objective[2] = {0, 0};
        int32_t failed;
        const float *row = rows + i * q->k;
        const nib_quant_w a = {
            .q = q,
            .rows = row,
            .type = NIB_TYPE_F32,
            .count = 1,
            .codes = out->codes + i * q->k,
            .scales = out->scales == NULL ? NULL : (char *)out->scales + i * scale_bytes,
            .zeros = out->zeros == NULL ? NULL : (char *)out->zeros + i * zero_bytes,
            .sums = sums,
            .objective = objective,
            .failed = &failed};
        (q->run != NULL ? q->run : nib__quant_w__ref)(&a, 0, 1, NULL);
        if (failed != 0)
            return nib__quantizer_fail_row(q, row, first + i, failed, err);
        out->signal += sums[0];
        out->error += sums[1];
        out->objective[0] += objective[0];
        out->objective[1] += objective[1];
    }
    return NIB_OK;
}

void nib__quantizer_describe_weight(nib_weight *out, const nib_quantizer *q, int64_t n,
                                    const void *codes, const void *scales, const void *zeros)
{
    const bool whole = nib__quantizer_is_one(q);
    *out = (nib_weight){.scheme = q->scheme,
                        .n = n,
                        .k = q->k,
                        .layout = NIB_LAYOUT_BYTE,
                        .codes = codes,
                        .scales = scales,
                        .scale_type = q->scale_type,
                        .scale_stride_n = whole ? 0 : q->groups,
                        .scale_stride_g = whole ? 0 : 1,
                        .tensor_scale = q->tensor_scale,
                        .zeros = zeros,
                        .zero_type = q->zero_type};
}

double nib__sqnr_db(double signal, double error)
{
    return error == 0 ? (double)INFINITY : 10 * log10(signal / error);
}

void nib__compute_static_scale(float *scale, int32_t *zero, const nib_scheme *scheme,
                               const float range[2])
{
    const float eps =
        scheme->code == NIB_CODE_I8 || scheme->formula == NIB_FORMULA_AO017 ? 0x1p-23f : 0x1p-126f;
    const float low = fminf(range[0], 0.0f), high = fmaxf(range[1], 0.0f);
    if (scheme->act_symmetric) {
        *scale = fmaxf(fmaxf(-low, high) / 127.5f, eps);
        *zero = 0;
        return;
    }
    *scale = fmaxf((high - low) / 255.0f, eps);
    *zero = (int32_t)fmaxf(-128.0f, fminf(127.0f, -128.0f - nearbyintf(low / *scale)));
}
