/* SPDX-License-Identifier: Apache-2.0
 *
 * Writers of the dialects without per-weight metadata (no describe function): what each can hold,
 * and the tensors that it writes under the module name.
 *
 * 8da4w        weight I8 [n][k], scales and zeros float [n][groups]; for int8 rows only scales [n]
 * compressed-  weight_packed I32 [n][ceil(k*bits/32)], weight_scale float [n][groups],
 * tensors      weight_zero_point I32 [ceil(n*bits/32)][groups], weight_shape I64 [2]; quantized
 *              activations or e4m3: weight I8 or F8_E4M3 [n][k], weight_scale,
 *              weight_zero_point I8; e4m3 in blocks: weight_scale [ceil(n/rows)][groups];
 *              act-order: weight_g_idx I32 [k]
 * gguf         weight of a block type [n][k]
 * float        weight F32, F16 or BF16 [n][k]
 */
#include "dialects.h"

#include <inttypes.h>
#include <stdio.h>

static const char *refuse_groups(char out[160], const nib_output_weight *w)
{
    if (w->scheme.group <= 0 || w->k % w->scheme.group == 0)
        return NULL;
    snprintf(out, 160, "k = %" PRId64 " is not a multiple of the group size %" PRId64, w->k,
             w->scheme.group);
    return out;
}

static nib_output_part part(const char *suffix, nib_type type, int64_t rows, int64_t columns)
{
    return (nib_output_part){suffix, type, 2, {rows, columns}};
}

/* ---- 8da4w ---- */

static const char *fit_8da4w(char out[160], nib_output_weight *w)
{
    const nib_scheme *s = &w->scheme;
    const bool rows = s->code == NIB_CODE_I8 && s->group == NIB_GROUP_ROW && s->symmetric;
    if (s->code != NIB_CODE_I4 && !rows)
        return "it holds only int4 in groups and symmetric int8 rows";
    if (s->code == NIB_CODE_I4 && (s->act != NIB_ACT_I8_TOKEN || s->act_symmetric))
        return "its int4 layers have asymmetric int8 activations per token";
    if (rows && !w->embedding && (s->act != NIB_ACT_I8_TOKEN || s->act_symmetric))
        return "its int8 layers have asymmetric int8 activations per token";
    if (s->zero == NIB_ZERO_FLOAT)
        return "its zero points are integers";
    if (s->code == NIB_CODE_I4 && s->group <= 0)
        return "its int4 must have groups";
    if (refuse_groups(out, w) != NULL)
        return out;
    if (w->scale_type == NIB_TYPE_F64)
        w->scale_type = NIB_TYPE_F32;
    /* zero points are integers in the scales' type; an int4 scheme without them stores zeros */
    w->zero_type = s->zero == NIB_ZERO_NONE ? NIB_TYPE_NONE : w->scale_type;
    return NULL;
}

static void layout_8da4w(nib_file_layout *out, const nib_output_weight *w)
{
    const bool rows = w->scheme.code == NIB_CODE_I8;
    *out = (nib_file_layout){.codes = part(".weight", NIB_TYPE_I8, w->n, w->k)};
    out->scales = part(".scales", w->scale_type, w->n, nib__scheme_groups(&w->scheme, w->k));
    out->scales.rank = rows ? 1 : 2;
    if (rows)
        return;
    out->zero_filled = w->zero_type == NIB_TYPE_NONE;
    out->zeros = out->scales;
    out->zeros.suffix = ".zeros";
}

const nib_dialect_writer nib__write_8da4w = {.fit = fit_8da4w, .layout = layout_8da4w};

/* ---- compressed-tensors ---- */

static const char *fit_compressed(char out[160], nib_output_weight *w)
{
    const nib_scheme *s = &w->scheme;
    const bool fp8 = s->code == NIB_CODE_E4M3;
    if (!nib__code_is_int(s->code) && !fp8)
        return "nibble writes only integers and e4m3 in this format";
    if (s->zero == NIB_ZERO_FLOAT)
        return "its zero points are integers";
    if (w->ordered && (fp8 || s->act != NIB_ACT_FLOAT))
        return "act-order requires packed integers and float activations in this format";
    if (!fp8 || s->group <= 0)
        w->scale_rows = 0; /* integers: each row of a block repeats its scales */
    if (w->scale_rows <= 1 && refuse_groups(out, w) != NULL) /* the last block may be partial */
        return out;
    if (w->scale_type == NIB_TYPE_F64)
        w->scale_type = NIB_TYPE_F32;
    w->zero_type = s->zero == NIB_ZERO_NONE ? NIB_TYPE_NONE : NIB_TYPE_I8;
    return NULL;
}

static void layout_compressed(nib_file_layout *out, const nib_output_weight *w)
{
    const nib_scheme *s = &w->scheme;
    const int64_t groups = nib__scheme_groups(s, w->k),
                  rows = s->group == NIB_GROUP_TENSOR
                             ? 1
                             : nib__ceil_div(w->n, nib__max(1, w->scale_rows));
    const int bits = nib__code_bits(s->code);
    const bool packed = nib__code_is_int(s->code) && s->act == NIB_ACT_FLOAT;
    *out = (nib_file_layout){.codes = part(".weight", NIB_TYPE_I8, w->n, w->k)};
    if (!nib__code_is_int(s->code))
        out->codes.type = nib__code_type(s->code);
    out->scales = part(".weight_scale", w->scale_type, rows, groups);
    if (s->group == NIB_GROUP_TENSOR)
        out->scales.rank = 1;
    out->zeros = out->scales;
    out->zeros.suffix = w->zero_type == NIB_TYPE_NONE ? NULL : ".weight_zero_point";
    out->zeros.type = NIB_TYPE_I8;
    if (!packed)
        return;
    out->codes = part(".weight_packed", NIB_TYPE_I32, w->n, nib__ceil_div(w->k * bits, 32));
    out->pieces = NIB_PIECES_WORDS;
    out->bits = bits;
    out->zeros.type = NIB_TYPE_I32;
    out->zeros.shape[0] = nib__ceil_div(rows * bits, 32);
    out->zero_order = NIB_ORDER_WORDS;
    out->size = (nib_output_part){".weight_shape", NIB_TYPE_I64, 1, {2}};
    out->input_groups = w->ordered;
    if (w->ordered && s->group > 0) /* the order is irrelevant for one group */
        out->inputs = (nib_output_part){".weight_g_idx", NIB_TYPE_I32, 1, {w->k}};
}

const nib_dialect_writer nib__write_compressed = {
    .orders = true, .blocks = true, .fit = fit_compressed, .layout = layout_compressed};

/* ---- GGUF ---- */

/* The block type for such codes; NONE: no such type. */
static nib_type find_block_type(const nib_output_weight *w)
{
    const nib_scheme *s = &w->scheme;
    if (w->blocks != NIB_TYPE_NONE)
        return w->blocks;
    if (s->formula == NIB_FORMULA_SUPER)
        return s->code == NIB_CODE_I8      ? s->group == 16 ? NIB_TYPE_Q6_K : NIB_TYPE_Q5_K
               : s->group == 32            ? NIB_TYPE_Q4_K
               : s->zero == NIB_ZERO_FLOAT ? NIB_TYPE_Q2_K
                                           : NIB_TYPE_Q3_K;
    if (s->formula == NIB_FORMULA_LEVELS)
        return NIB_TYPE_IQ4_NL;
    if (s->group != 32)
        return NIB_TYPE_NONE;
    switch (s->code) {
    case NIB_CODE_I8: return s->zero == NIB_ZERO_NONE ? NIB_TYPE_Q8_0 : NIB_TYPE_NONE;
    case NIB_CODE_I4:
        return s->zero == NIB_ZERO_NONE    ? NIB_TYPE_Q4_0
               : s->zero == NIB_ZERO_FLOAT ? NIB_TYPE_Q4_1
                                           : NIB_TYPE_NONE;
    case NIB_CODE_MX4: return NIB_TYPE_MXFP4;
    default: return NIB_TYPE_NONE;
    }
}

static const char *fit_gguf(char out[160], nib_output_weight *w)
{
    if (find_block_type(w) == NIB_TYPE_NONE)
        return "its blocks have 32 codes: symmetric int8 (Q8_0), int4 symmetric or with a float "
               "zero (Q4_0, Q4_1), mxfp4, or those of q2_k to q6_k and iq4_nl";
    if (refuse_groups(out, w) != NULL)
        return out;
    w->scheme.act = NIB_ACT_FLOAT; /* it cannot describe activations */
    w->scheme.act_symmetric = false;
    if (w->scheme.formula == NIB_FORMULA_SUPER || w->blocks != NIB_TYPE_NONE)
        return NULL; /* products of f16 and an integer, in f32; or the source's bytes */
    w->scale_type = nib__code_is_mx(w->scheme.code) ? NIB_TYPE_E8M0 : NIB_TYPE_F16;
    w->zero_type = w->scheme.zero == NIB_ZERO_FLOAT ? NIB_TYPE_F16 : NIB_TYPE_NONE;
    return NULL;
}

static void layout_gguf(nib_file_layout *out, const nib_output_weight *w)
{
    *out = (nib_file_layout){.codes = part(".weight", find_block_type(w), w->n, w->k),
                             .pieces = NIB_PIECES_BLOCKS};
}

const nib_dialect_writer nib__write_gguf = {.ties = true, .fit = fit_gguf, .layout = layout_gguf};

/* ---- floats ---- */

static const char *fit_float(char out[160], nib_output_weight *w)
{
    (void)out;
    w->scheme = (nib_scheme){.code = nib__float_code(w->source), .symmetric = true};
    w->scale_type = w->zero_type = NIB_TYPE_NONE;
    return NULL;
}

static void layout_float(nib_file_layout *out, const nib_output_weight *w)
{
    *out = (nib_file_layout){.codes = part(".weight", w->source, w->n, w->k),
                             .pieces = NIB_PIECES_FLOATS};
}

const nib_dialect_writer nib__write_float = {.fit = fit_float, .layout = layout_float};
