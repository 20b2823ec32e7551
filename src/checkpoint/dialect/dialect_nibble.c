/* SPDX-License-Identifier: Apache-2.0
 *
 * Our own dialect, version 1: safetensors for every scheme. `__metadata__` has "nibble": "1" and
 * under M.weight a JSON description with every field of the scheme, so that later changes of names
 * or defaults cannot change the meaning of a file. Tensors are named as in torchao:
 *
 *   M._weight_qdata       I8, F8_E4M3 or F8_E5M2 [n][k]; U8 [n][ceil(k/2)] for 4 bits, low first;
 *                         I32 [n][ceil(k*b/32)] for integers of other widths b: NIB_LAYOUT_WORDS
 *   M._weight_scale       float, F8_E8M0 (mx8, mx4) or F8_E4M3 (nv4) [n][ceil(k/g)]; [1][1] for one
 *                         scale per tensor
 *   M._weight_per_tensor_scale   F32 [], for nv4 with a per-tensor scale on top of block scales
 *   M._weight_per_tensor_divisor F32 [], instead, if the block scales are divided by it
 *   M._weight_zero_point  shaped like the scales: I8, or a float type for float zeros; absent if
 *                         the scheme has no zeros
 *   M._weight_input_order I32 [k], the input of each column for act-order; groups are of columns
 *   M._bias_qdata ...     a quantized bias: see weight_bias.c
 *   M.input_scale         F32 [1], static activations only
 *   M.input_zero_point    I32 [1], likewise; absent if they are symmetric
 */
#include "checkpoint_inside.h"
#include "dialects.h"
#include "json_fields.h"
#include "dialect_common.h"

#include <inttypes.h>
#include <stdio.h>

#define X(id, key, name, element, group, scale) key,
static const char *const codes[] = {NIB_CODES(X)};
#undef X
#define X(id, short_name, key, name, code, block) key,
static const char *const acts[] = {NIB_ACTS(X)};
#undef X
static const char *const zeros[] = {"none", "int", "float"};
static const char *const formulas[] = {"torchao", "ao017", "tinygemm", "ggml", "super", "levels"};
static const char *const roundings[] = {"rceil", "floor"};
static const char qdata[] = "._weight_qdata", scale[] = "._weight_scale",
                  zero_point[] = "._weight_zero_point", per_tensor[] = "._weight_per_tensor_scale",
                  divisor[] = "._weight_per_tensor_divisor", input_order[] = "._weight_input_order";
static const char *const sizes[] = {"group", "row", "tensor"};

typedef struct description {
    char code[NIB_FIELD_TEXT], size[NIB_FIELD_TEXT], zero[NIB_FIELD_TEXT], act[NIB_FIELD_TEXT];
    char rounding[NIB_FIELD_TEXT], formula[NIB_FIELD_TEXT];
    int64_t group, shape[2];
    bool symmetric, act_symmetric, ordered;
} description;

#define AT(member) offsetof(description, member)

static const nib_field fields[] = {
    {"scheme", NIB_FIELD_ANY, 0}, /* the recipe name, for people */
    {"code", NIB_FIELD_STRING, AT(code)},
    {"granularity", NIB_FIELD_STRING, AT(size)},
    {"group", NIB_FIELD_INT, AT(group)},
    {"symmetric", NIB_FIELD_BOOL, AT(symmetric)},
    {"zero", NIB_FIELD_STRING, AT(zero)},
    {"act", NIB_FIELD_STRING, AT(act)},
    {"act_symmetric", NIB_FIELD_BOOL, AT(act_symmetric)},
    {"rounding", NIB_FIELD_STRING, AT(rounding)},
    {"formula", NIB_FIELD_STRING, AT(formula)},
    {"act_order", NIB_FIELD_BOOL, AT(ordered)}, /* absent: false */
    {"shape[0]", NIB_FIELD_INT, AT(shape[0])},
    {"shape[1]", NIB_FIELD_INT, AT(shape[1])},
};

static const char *fit_nibble(char out[160], nib_output_weight *weight)
{
    (void)out;
    if (weight->scale_type == NIB_TYPE_F64)
        weight->scale_type = NIB_TYPE_F32;
    if (weight->zero_type == NIB_TYPE_F64)
        weight->zero_type = NIB_TYPE_F32;
    if (weight->scheme.zero == NIB_ZERO_INT)
        weight->zero_type = NIB_TYPE_I8;
    return NULL;
}

static void layout_nibble(nib_file_layout *out, const nib_output_weight *w)
{
    const nib_scheme *s = &w->scheme;
    const nib_code_layout layout = nib__code_layout(s->code);
    const int64_t rows = s->group == NIB_GROUP_TENSOR ? 1 : w->n;
    *out = (nib_file_layout){.pieces = layout == NIB_LAYOUT_WORDS    ? NIB_PIECES_WORDS
                                       : layout == NIB_LAYOUT_NIBBLE ? NIB_PIECES_NIBBLES
                                                                     : NIB_PIECES_BYTES,
                             .bits = nib__code_bits(s->code)};
    out->codes = (nib_output_part){
        qdata, nib__code_type(s->code), 2, {w->n, nib__code_columns(s->code, w->k)}};
    out->scales = (nib_output_part){scale, w->scale_type, 2, {rows, nib__scheme_groups(s, w->k)}};
    out->zeros = out->scales;
    out->zeros.suffix = w->zero_type == NIB_TYPE_NONE ? NULL : zero_point;
    out->zeros.type = w->zero_type;
    if (w->ordered)
        out->inputs = (nib_output_part){input_order, NIB_TYPE_I32, 1, {w->k}};
    if (nib__scheme_has_tensor_scale(s))
        out->tensor =
            (nib_output_part){w->tensor_divides ? divisor : per_tensor, NIB_TYPE_F32, 0, {0}};
}

static void describe(nib_text *out, const nib_output_weight *weight)
{
    const nib_scheme *s = &weight->scheme;
    char name[64];
    nib_jsonw w;
    nib__jsonw_init(&w, out, 0);
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "scheme", nib__scheme_name(name, s));
    nib__jsonw_pair_string(&w, "code", codes[s->code]);
    nib__jsonw_pair_string(&w, "granularity",
                           sizes[s->group > 0                ? 0
                                 : s->group == NIB_GROUP_ROW ? 1
                                                             : 2]);
    if (s->group > 0)
        nib__jsonw_pair_int(&w, "group", s->group);
    nib__jsonw_pair_bool(&w, "symmetric", s->symmetric);
    nib__jsonw_pair_string(&w, "zero", zeros[s->zero]);
    nib__jsonw_pair_string(&w, "act", acts[s->act]);
    nib__jsonw_pair_bool(&w, "act_symmetric", s->act_symmetric);
    nib__jsonw_pair_string(&w, "rounding", roundings[s->mx_floor]);
    nib__jsonw_pair_string(&w, "formula", formulas[s->formula]);
    if (weight->ordered)
        nib__jsonw_pair_bool(&w, "act_order", true);
    nib__jsonw_key(&w, "shape");
    nib__jsonw_array(&w);
    nib__jsonw_int(&w, weight->n);
    nib__jsonw_int(&w, weight->k);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
}

const nib_dialect_writer nib__write_nibble = {
    .orders = true, .ties = true, .fit = fit_nibble, .layout = layout_nibble, .describe = describe};

/* ---- reading ---- */

/* Finds a word in a list; fails if it is unknown. */
static nib_status parse_choice(const nib_weight_query *q, int *out, const char *member,
                               const char *word, const char *const *list, size_t count)
{
    char shown[NIB_FIELD_TEXT + 20];
    for (size_t i = 0; i < count; i++)
        if (strcmp(list[i], word) == 0) {
            *out = (int)i;
            return NIB_OK;
        }
    return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                            "has %s \"%s\", which version 1 of the nibble dialect does not "
                            "define",
                            member, nib__escape_name(shown, sizeof shown, word, strlen(word)));
}

static nib_status read_scheme(const nib_weight_query *q, const description *d)
{
    nib_scheme *s = &q->out->scheme;
    int code = 0, size = 0, zero = 0, act = 0, rounding = 0, formula = 0;
    NIB_TRY(parse_choice(q, &code, "code", d->code, codes, COUNT(codes)));
    NIB_TRY(parse_choice(q, &size, "granularity", d->size, sizes, COUNT(sizes)));
    NIB_TRY(parse_choice(q, &zero, "zero", d->zero, zeros, COUNT(zeros)));
    NIB_TRY(parse_choice(q, &act, "act", d->act, acts, COUNT(acts)));
    NIB_TRY(parse_choice(q, &rounding, "rounding", d->rounding, roundings, COUNT(roundings)));
    NIB_TRY(parse_choice(q, &formula, "formula", d->formula, formulas, COUNT(formulas)));
    *s = (nib_scheme){.code = (nib_code)code,
                      .zero = (nib_zero)zero,
                      .act = (nib_act)act,
                      .mx_floor = rounding == 1,
                      .formula = (nib_formula)formula,
                      .symmetric = d->symmetric,
                      .act_symmetric = d->act_symmetric};
    s->group = size == 0 ? d->group : size == 1 ? NIB_GROUP_ROW : NIB_GROUP_TENSOR;
    const int64_t fixed = nib__codes[s->code].group;
    if (!nib__scheme_is_quantized(s))
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "has code \"%s\", which is not a quantized code", d->code);
    if ((size == 0 && d->group < 1) || (fixed != 0 && s->group != fixed) ||
        (!nib__code_is_int(s->code) && s->zero != NIB_ZERO_NONE))
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "has code \"%s\", zero \"%s\" and groups of %" PRId64
                                ", which cannot be combined",
                                d->code, d->zero, d->group);
    if (nib__code_is_odd_int(s->code) && s->act != NIB_ACT_FLOAT)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".weight",
                                "has code \"%s\" and act \"%s\"; integers of this width have "
                                "float activations only",
                                d->code, d->act);
    return NIB_OK;
}

/* Reads the per-tensor scale, under either of its names. */
static nib_status read_tensor_scale(const nib_weight_query *q)
{
    const bool times = nib__weight_part(q, per_tensor) != NULL,
               divides = nib__weight_part(q, divisor) != NULL;
    nib_scheme *s = &q->out->scheme;
    if (!times && !divides) {
        s->block_only = nib__scheme_has_tensor_scale(s);
        return NIB_OK;
    }
    if (!nib__scheme_has_tensor_scale(s) || (times && divides))
        return nib__weight_fail(q, NIB_BAD_INPUT, times ? per_tensor : divisor,
                                times && divides ? "is stored in addition to a divisor"
                                                 : "is stored, but the weight is not nv4");
    return nib__weight_read_tensor_scale(q, times ? per_tensor : divisor, divides);
}

static nib_status read_parts(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    const nib_tensor *c = nib__weight_part(q, qdata), *s = nib__weight_part(q, scale);
    const nib_tensor *z = nib__weight_part(q, zero_point);
    const bool one = w->scheme.group == NIB_GROUP_TENSOR;
    const int64_t groups = nib__scheme_groups(&w->scheme, w->k);
    w->layout = nib__code_layout(w->scheme.code);
    const int64_t code_shape[2] = {w->n, nib__code_columns(w->scheme.code, w->k)};
    const int64_t scale_shape[2] = {one ? 1 : w->n, groups};
    NIB_TRY(nib__weight_expect(q, qdata, c, nib__code_type(w->scheme.code), 2, code_shape));
    NIB_TRY(nib__weight_expect(q, scale, s, NIB_TYPE_NONE, 2, scale_shape));
    w->codes = c->data;
    w->scales = s->data;
    w->scale_type = s->type;
    w->scale_stride_n = one ? 0 : groups;
    w->scale_stride_g = one ? 0 : 1;
    NIB_TRY(nib__weight_check_scales(q, scale));
    NIB_TRY(read_tensor_scale(q));
    if ((w->scheme.zero == NIB_ZERO_NONE) != (z == NULL))
        return nib__weight_fail(q, NIB_BAD_INPUT, zero_point, "%s",
                                z == NULL
                                    ? "the tensor is missing"
                                    : "is stored, but the weight is described without zero points");
    if (z == NULL)
        return NIB_OK;
    NIB_TRY(nib__weight_expect(q, zero_point, z, NIB_TYPE_NONE, 2, scale_shape));
    w->zeros = z->data;
    w->zero_type = z->type;
    return nib__weight_check_zeros(q, zero_point);
}

bool nib__weight_is_nibble(const nib_weight_query *q, const nib_tensor *stored)
{
    (void)stored;
    return q->cp->nibble;
}

nib_status nib__weight_nibble(const nib_weight_query *q)
{
    description d = {.group = 0};
    char name[NIB_SHOWN + 40];
    nib_weight *w = q->out;
    const nib_meta *meta = nib__weight_meta(q, ".weight");
    snprintf(name, sizeof name, "__metadata__ of %s.weight", q->shown);
    if (meta == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, "._weight_qdata",
                                "no __metadata__ entry describes these codes");
    NIB_TRY(nib__fields_read(&d, fields, COUNT(fields), name, meta->value, q->err));
    NIB_TRY(read_scheme(q, &d));
    w->n = d.shape[0];
    w->k = d.shape[1];
    if (w->n < 1 || w->k < 1)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".weight",
                                "has shape [%" PRId64 ", %" PRId64 "]; both must be positive", w->n,
                                w->k);
    NIB_TRY(read_parts(q));
    if (d.ordered)
        NIB_TRY(nib__weight_read_permutation(q, input_order));
    else if (nib__weight_part(q, input_order) != NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, input_order,
                                "is stored, but the weight is described without act_order");
    if (w->scheme.act != NIB_ACT_I8_STATIC)
        return NIB_OK;
    NIB_TRY(nib__weight_read_static(q, ".input_scale",
                                    w->scheme.act_symmetric ? NULL : ".input_zero_point"));
    if (!w->scheme.act_symmetric && w->act_zero == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".input_zero_point", "the tensor is missing");
    return NIB_OK;
}
