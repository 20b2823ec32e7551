/* SPDX-License-Identifier: Apache-2.0
 *
 * Reads one weight in any layout: the table of layouts, and the functions of scheme.h through which
 * everything else reads weights.
 */
#include "code_layout.h"

/* ---- the layouts of safetensors dialects ---- */

/* The type that float codes are stored in. */
static nib_type stored_float(const nib_weight *w)
{
    return w->layout == NIB_LAYOUT_F64 ? NIB_TYPE_F64 : nib__float_type(w->scheme.code);
}

static uint64_t float_row_bytes(const nib_weight *w)
{
    return (uint64_t)w->k * (uint64_t)nib__type_bits(stored_float(w)) / 8;
}

/* Of a transposed weight, whose rows have gaps. */
static uint64_t float_bytes(const nib_weight *w) { return (uint64_t)w->n * float_row_bytes(w); }

static void byte_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out)
{
    memcpy(out, (const uint8_t *)w->codes + row * w->k + k0, (size_t)count);
}

static void transposed_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count,
                             int8_t *out)
{
    const uint8_t *from = (const uint8_t *)w->codes + k0 * w->stored_n + row;
    for (int64_t j = 0; j < count; j++)
        out[j] = (int8_t)from[j * w->stored_n];
}

/* Rows have gaps. */
static uint64_t transposed_bytes(const nib_weight *w) { return (uint64_t)(w->n * w->k); }

static uint64_t byte_row_bytes(const nib_weight *w) { return (uint64_t)w->k; }

static void nibble_codes(const nib_weight *w, int64_t row, int64_t k0, int64_t count, int8_t *out)
{
    nib__unpack_i4(out, (const uint8_t *)w->codes + row * nib__ceil_div(w->k, 2), k0, count);
    if (nib__codes[w->scheme.code].element == NIB_ELEMENT_E2M1)
        for (int64_t j = 0; j < count; j++)
            out[j] = (int8_t)(out[j] & 15);
}

static uint64_t nibble_row_bytes(const nib_weight *w) { return (uint64_t)nib__ceil_div(w->k, 2); }

/* ggml multiplies its blocks of 32 with activations in Q8_0, those of 256 with Q8_K. Q2_K and Q3_K
 * become int4 in groups of 16, which only the reference row multiplies with Q8_K: floats. */
#define BLOCKS(act_, scale_, zero_)                                                                \
    {                                                                                              \
        .codes = nib__block_codes, .scale = scale_, .zero = zero_, .act = NIB_ACT_##act_,          \
        .row_bytes = nib__block_row_bytes                                                          \
    }
static const nib_layout_ops layouts[NIB_LAYOUT_COUNT] = {
    [NIB_LAYOUT_FLOAT] = {.row_bytes = float_row_bytes},
    [NIB_LAYOUT_F64] = {.row_bytes = float_row_bytes},
    [NIB_LAYOUT_FLOAT_T] = {.bytes = float_bytes},
    [NIB_LAYOUT_BYTE_T] = {.codes = transposed_codes, .bytes = transposed_bytes},
    [NIB_LAYOUT_BYTE] = {.codes = byte_codes, .row_bytes = byte_row_bytes},
    [NIB_LAYOUT_NIBBLE] = {.codes = nibble_codes, .row_bytes = nibble_row_bytes},
    [NIB_LAYOUT_WORDS] = {.codes = nib__words_codes, .row_bytes = nib__words_row_bytes},
    [NIB_LAYOUT_WORDS_ZEROS] = {.codes = nib__words_codes,
                                .zero = nib__words_zero,
                                .row_bytes = nib__words_row_bytes},
    [NIB_LAYOUT_GPTQ] = {.codes = nib__gptq_codes,
                         .zero = nib__gptq_zero,
                         .bytes = nib__gptq_bytes},
    [NIB_LAYOUT_GPTQ_LESS_ONE] = {.codes = nib__gptq_codes,
                                  .zero = nib__gptq_zero_less_one,
                                  .bytes = nib__gptq_bytes},
    [NIB_LAYOUT_AWQ] = {.codes = nib__awq_codes, .zero = nib__awq_zero, .bytes = nib__awq_bytes},
    [NIB_LAYOUT_Q4_0] = BLOCKS(I8_BLOCK32, nib__block_scale, NULL),
    [NIB_LAYOUT_Q4_1] = BLOCKS(I8_BLOCK32, nib__block_scale, nib__q4_1_zero),
    [NIB_LAYOUT_Q5_0] = BLOCKS(I8_BLOCK32, nib__block_scale, NULL),
    [NIB_LAYOUT_Q5_1] = BLOCKS(I8_BLOCK32, nib__block_scale, nib__q5_1_zero),
    [NIB_LAYOUT_Q8_0] = BLOCKS(I8_BLOCK32, nib__block_scale, NULL),
    [NIB_LAYOUT_Q4_K] = BLOCKS(I8_BLOCK256, nib__q4_k_scale, nib__q4_k_zero),
    [NIB_LAYOUT_Q5_K] = BLOCKS(I8_BLOCK256, nib__q4_k_scale, nib__q5_k_zero),
    [NIB_LAYOUT_Q6_K] = BLOCKS(I8_BLOCK256, nib__q6_k_scale, NULL),
    [NIB_LAYOUT_IQ4_NL] = BLOCKS(I8_BLOCK32, nib__block_scale, NULL),
    [NIB_LAYOUT_MXFP4] = BLOCKS(I8_BLOCK32, nib__mxfp4_scale, NULL),
    [NIB_LAYOUT_Q2_K] = BLOCKS(I8_BLOCK256, nib__q2_k_scale, nib__q2_k_zero),
    [NIB_LAYOUT_Q3_K] = BLOCKS(I8_BLOCK256, nib__q3_k_scale, NULL),
    [NIB_LAYOUT_TINYGEMM_CUDA] = {.codes = nib__tinygemm_cuda_codes, .bytes = nib__tinygemm_bytes},
    [NIB_LAYOUT_TINYGEMM_ROCM] = {.codes = nib__tinygemm_rocm_codes, .bytes = nib__tinygemm_bytes},
    [NIB_LAYOUT_TINYGEMM_AVX512] = {.codes = nib__tinygemm_cpu_codes, .bytes = nib__tinygemm_bytes},
    [NIB_LAYOUT_TINYGEMM_AVX2] = {.codes = nib__tinygemm_cpu_codes, .bytes = nib__tinygemm_bytes},
    [NIB_LAYOUT_TINYGEMM_SCALAR] = {.codes = nib__tinygemm_cpu_codes, .bytes = nib__tinygemm_bytes},
};

nib_code_layout nib__code_layout(nib_code code)
{
    return nib__code_is_odd_int(code)  ? NIB_LAYOUT_WORDS
           : nib__code_bits(code) == 4 ? NIB_LAYOUT_NIBBLE
                                       : NIB_LAYOUT_BYTE;
}

int64_t nib__code_columns(nib_code code, int64_t k)
{
    switch (nib__code_layout(code)) {
    case NIB_LAYOUT_WORDS: return nib__ceil_div(k * nib__code_bits(code), 32);
    case NIB_LAYOUT_NIBBLE: return nib__ceil_div(k, 2);
    default: return k;
    }
}

nib_act nib__weight_act(const nib_weight *w)
{
    return w->scheme.act != NIB_ACT_FLOAT ? w->scheme.act : layouts[w->layout].act;
}

/* ---- codes ---- */

/* The address of column k0 of row i. */
static const uint8_t *float_place(const nib_weight *w, int64_t i, int64_t k0)
{
    return (const uint8_t *)w->codes + (uint64_t)nib__weight_place(w, i) * float_row_bytes(w) +
           (size_t)k0 * (size_t)nib__type_bits(stored_float(w)) / 8;
}

/* Copies values that are `stride` bytes apart to places `step` bytes apart. The sizes are
 * constants, so memcpy is inlined. */
static void copy_values(uint8_t *to, size_t step, const uint8_t *from, int64_t stride, size_t size,
                        int64_t count)
{
    if (size == 1)
        for (int64_t j = 0; j < count; j++)
            to[(size_t)j * step] = from[j * stride];
    else if (size == 2)
        for (int64_t j = 0; j < count; j++)
            memcpy(to + (size_t)j * step, from + j * stride, 2);
    else
        for (int64_t j = 0; j < count; j++)
            memcpy(to + (size_t)j * step, from + j * stride, 4);
}

/* Reads columns k0..k0+count of row i of a transposed weight. */
static void transposed_floats(const nib_weight *w, int64_t i, int64_t k0, int64_t count, void *out)
{
    const int64_t size = nib__type_bits(stored_float(w)) / 8;
    copy_values(out, (size_t)size,
                (const uint8_t *)w->codes + (k0 * w->stored_n + nib__weight_place(w, i)) * size,
                w->stored_n * size, (size_t)size, count);
}

void nib__weight_floats(const nib_weight *w, int64_t i, int64_t k0, int64_t count, void *out)
{
    const nib_type type = stored_float(w);
    if (w->layout == NIB_LAYOUT_FLOAT_T) {
        transposed_floats(w, i, k0, count, out);
        return;
    }
    const uint8_t *from = float_place(w, i, k0);
    if (type == NIB_TYPE_F64)
        nib__to_f32(out, from, type, count);
    else
        memcpy(out, from, (size_t)count * (size_t)nib__type_bits(type) / 8);
}

void nib__weight_codes(const nib_weight *w, int64_t i, int64_t k0, int64_t count, int8_t *out)
{
    layouts[w->layout].codes(w, nib__weight_place(w, i), k0, count, out);
}

/* ---- scales and zeros ---- */

static float element(const void *from, nib_type type, int64_t at)
{
    float value;
    nib__to_f32(&value, (const char *)from + at * (nib__type_bits(type) / 8), type, 1);
    return value;
}

/* The index of the scale or zero of row i and group g in its array. */
static int64_t scale_place(const nib_weight *w, int64_t i, int64_t g)
{
    const int64_t row = nib__weight_place(w, i);
    if (w->scale_tiles)
        return nib__scale_tile(row, g, nib__scheme_groups(&w->scheme, w->k));
    return (w->scale_rows > 1 ? row / w->scale_rows : row) * w->scale_stride_n +
           g * w->scale_stride_g;
}

float nib__weight_group_scale(const nib_weight *w, int64_t i, int64_t g)
{
    const nib_layout_ops *ops = &layouts[w->layout];
    if (ops->scale != NULL)
        return ops->scale(w, nib__weight_place(w, i), g);
    return element(w->scales, w->scale_type, scale_place(w, i, g));
}

float nib__weight_scale(const nib_weight *w, int64_t i, int64_t g)
{
    const float scale = nib__weight_group_scale(w, i, g);
    if (w->tensor_scale == 0)
        return scale;
    return w->tensor_divides ? scale / w->tensor_scale : scale * w->tensor_scale;
}

bool nib__weight_holds_scales(const nib_weight *w) { return layouts[w->layout].scale != NULL; }

float nib__weight_zero(const nib_weight *w, int64_t i, int64_t g)
{
    const nib_layout_ops *ops = &layouts[w->layout];
    if (w->scheme.zero == NIB_ZERO_NONE)
        return 0;
    if (ops->zero != NULL)
        return ops->zero(w, nib__weight_place(w, i), g);
    return element(w->zeros, w->float_zeros != NIB_TYPE_NONE ? w->float_zeros : w->zero_type,
                   scale_place(w, i, g));
}

int64_t nib__weight_int_zero(const nib_weight *w, int64_t i, int64_t g)
{
    int32_t zero;
    if (w->scheme.zero != NIB_ZERO_INT)
        return 0;
    if (layouts[w->layout].zero != NULL || w->float_zeros != NIB_TYPE_NONE)
        return (int64_t)nib__weight_zero(w, i, g);
    const int64_t at = scale_place(w, i, g);
    if (w->zero_type == NIB_TYPE_I8)
        return ((const int8_t *)w->zeros)[at];
    memcpy(&zero, (const uint8_t *)w->zeros + (size_t)at * sizeof zero, sizeof zero);
    return zero;
}

/* Copies from an array strided as scales; F64 is rounded to F32. */
static void put_values(const nib_weight *w, const void *values, nib_type type, int64_t i, int64_t g,
                       int64_t count, uint8_t *to, size_t step)
{
    const int64_t size = nib__type_bits(type) / 8;
    if (type == NIB_TYPE_F64) {
        for (int64_t j = 0; j < count; j++) {
            const float rounded = element(values, type, scale_place(w, i, g + j));
            memcpy(to + (size_t)j * step, &rounded, sizeof rounded);
        }
        return;
    }
    const int64_t some = w->scale_tiles ? 1 : count; /* values at one stride */
    for (int64_t j = 0; j < count; j += some)
        copy_values(to + (size_t)j * step, step,
                    (const uint8_t *)values + scale_place(w, i, g + j) * size,
                    w->scale_stride_g * size, (size_t)size, some);
}

void nib__weight_put_scales(const nib_weight *w, int64_t i, int64_t g, int64_t count, void *to,
                            size_t step)
{
    if (layouts[w->layout].scale == NULL) {
        put_values(w, w->scales, w->scale_type, i, g, count, to, step);
        return;
    }
    const nib_type type = w->scale_type == NIB_TYPE_F64 ? NIB_TYPE_F32 : w->scale_type;
    for (int64_t j = 0; j < count; j++) {
        const float scale = nib__weight_group_scale(w, i, g + j);
        nib__from_f32((uint8_t *)to + (size_t)j * step, type, &scale, 1);
    }
}

void nib__weight_put_zeros(const nib_weight *w, int64_t i, int64_t g, int64_t count, void *to,
                           size_t step)
{
    if (layouts[w->layout].zero == NULL && w->float_zeros == NIB_TYPE_NONE) {
        put_values(w, w->zeros, w->zero_type, i, g, count, to, step);
        return;
    }
    const nib_type type = w->zero_type == NIB_TYPE_F64 ? NIB_TYPE_F32 : w->zero_type;
    for (int64_t j = 0; j < count; j++) {
        uint8_t *at = (uint8_t *)to + (size_t)j * step;
        const float zero = nib__weight_zero(w, i, g + j);
        if (type == NIB_TYPE_I8)
            *(int8_t *)at = (int8_t)zero;
        else
            nib__from_f32(at, type, &zero, 1);
    }
}

/* ---- whole rows ---- */

static float code_value(nib_code code, int8_t c)
{
    switch (nib__codes[code].element) {
    case NIB_ELEMENT_E4M3: return nib__e4m3_to_f32((uint8_t)c);
    case NIB_ELEMENT_E5M2: return nib__e5m2_to_f32((uint8_t)c);
    case NIB_ELEMENT_E2M1: return nib__e2m1_to_f32((uint8_t)c);
    default: return (float)c;
    }
}

float nib__weight_value(const nib_weight *w, int8_t code, float scale, float zero)
{
    const float c = code_value(w->scheme.code, code);
    return w->scheme.zero == NIB_ZERO_INT     ? (c - zero) * scale
           : w->scheme.zero == NIB_ZERO_FLOAT ? c * scale + zero
                                              : c * scale;
}

void nib__weight_row(const nib_weight *w, int64_t i, float *out)
{
    enum { PIECE = 256 };
    if (w->layout == NIB_LAYOUT_FLOAT_T) {
        uint8_t piece[4 * PIECE];
        for (int64_t at = 0; at < w->k; at += PIECE) {
            const int64_t count = nib__min(PIECE, w->k - at);
            transposed_floats(w, i, at, count, piece);
            nib__to_f32(out + at, piece, stored_float(w), count);
        }
        return;
    }
    if (!nib__scheme_is_quantized(&w->scheme)) {
        nib__to_f32(out, float_place(w, i, 0), stored_float(w), w->k);
        return;
    }
    int8_t codes[PIECE];
    const int64_t size = nib__scheme_group_size(&w->scheme, w->k);
    for (int64_t k0 = 0, g = 0; k0 < w->k; k0 += size, g++) {
        const float scale = nib__weight_scale(w, i, g), zero = nib__weight_zero(w, i, g);
        const int64_t end = nib__min(k0 + size, w->k);
        for (int64_t at = k0; at < end; at += PIECE) {
            const int64_t count = nib__min(PIECE, end - at);
            nib__weight_codes(w, i, at, count, codes);
            for (int64_t j = 0; j < count; j++) {
                const int64_t column = w->order != NULL ? w->order[at + j] : at + j;
                out[column] = nib__weight_value(w, codes[j], scale, zero);
            }
        }
    }
}

/* ---- sizes ---- */

uint64_t nib__weight_row_bytes(const nib_weight *w)
{
    const nib_layout_ops *ops = &layouts[w->layout];
    return ops->row_bytes != NULL ? ops->row_bytes(w) : 0;
}

bool nib__weight_is_plain(const nib_weight *w)
{
    const bool by_rows = w->layout == NIB_LAYOUT_FLOAT || w->layout == NIB_LAYOUT_BYTE ||
                         w->layout == NIB_LAYOUT_NIBBLE;
    return by_rows && !nib__code_is_odd_int(w->scheme.code) && w->rows == NULL && !w->scale_tiles &&
           w->float_zeros == NIB_TYPE_NONE && w->scale_type != NIB_TYPE_F64 &&
           w->zero_type != NIB_TYPE_F64;
}

uint64_t nib__weight_code_bytes(const nib_weight *w)
{
    const nib_layout_ops *ops = &layouts[w->layout];
    return ops->bytes != NULL ? ops->bytes(w) : (uint64_t)w->n * nib__weight_row_bytes(w);
}

uint64_t nib__weight_value_bytes(const nib_weight *w, const void *values, nib_type type)
{
    const int64_t rows = nib__ceil_div(w->n, nib__max(w->scale_rows, 1)),
                  groups = nib__scheme_groups(&w->scheme, w->k);
    const int64_t last = (rows - 1) * w->scale_stride_n + (groups - 1) * w->scale_stride_g;
    return values != NULL ? (uint64_t)(last + 1) * (uint64_t)nib__type_bits(type) / 8 : 0;
}

uint64_t nib__weight_bytes(const nib_weight *w)
{
    const nib_layout_ops *ops = &layouts[w->layout];
    const uint64_t n = (uint64_t)w->n, codes = nib__weight_code_bytes(w);
    if (!nib__scheme_is_quantized(&w->scheme) || ops->scale != NULL)
        return codes;
    const bool one = w->scheme.group == NIB_GROUP_TENSOR;
    const uint64_t rows = w->scale_rows > 1 ? (uint64_t)nib__ceil_div(w->n, w->scale_rows) : n;
    const uint64_t scales = one ? 1 : rows * (uint64_t)nib__scheme_groups(&w->scheme, w->k);
    const uint64_t scale_bits = (uint64_t)nib__type_bits(w->scale_type);
    const uint64_t zero_bits =
        w->scheme.zero == NIB_ZERO_NONE ? 0 : (uint64_t)nib__type_bits(w->zero_type);
    return codes + scales * (scale_bits + zero_bits) / 8;
}
