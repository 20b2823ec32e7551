/* SPDX-License-Identifier: Apache-2.0
 *
 * The bias of a module, next to a weight of any dialect. A float bias is M.bias; quantized biases
 * are stored only in nibble's own dialect, described in __metadata__ under M.bias:
 *
 *   M._bias_qdata       I8 or I32 [n]
 *   M._bias_scale       for I8: float [ceil(n/32)]
 *   M._bias_zero_point  for I8: I8 [ceil(n/32)]; absent if the mapping is symmetric
 *
 * A bias is either read or an error, never ignored.
 */
#include "checkpoint_inside.h"
#include "dialects.h"
#include "json_fields.h"
#include "rotary.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

static const char qdata[] = "._bias_qdata", scale[] = "._bias_scale",
                  zero_point[] = "._bias_zero_point";

typedef struct description {
    char form[NIB_FIELD_TEXT];
    int64_t group, shape;
    bool symmetric;
} description;

#define AT(member) offsetof(description, member)

static const nib_field fields[] = {
    {"form", NIB_FIELD_STRING, AT(form)},
    {"group", NIB_FIELD_INT, AT(group)},
    {"symmetric", NIB_FIELD_BOOL, AT(symmetric)},
    {"shape[0]", NIB_FIELD_INT, AT(shape)},
};

void nib__describe_bias(nib_text *out, nib_bias form, bool symmetric, int64_t n)
{
    nib_jsonw w;
    nib__jsonw_init(&w, out, 0);
    nib__jsonw_object(&w);
    nib__jsonw_pair_string(&w, "form", nib__bias_names[form]);
    if (form == NIB_BIAS_INT8) {
        nib__jsonw_pair_int(&w, "group", NIB_BIAS_GROUP);
        nib__jsonw_pair_bool(&w, "symmetric", symmetric);
    }
    nib__jsonw_key(&w, "shape");
    nib__jsonw_array(&w);
    nib__jsonw_int(&w, n);
    nib__jsonw_array_end(&w);
    nib__jsonw_object_end(&w);
}

bool nib__is_bias_part(const char *suffix)
{
    return strcmp(suffix, ".bias") == 0 || strcmp(suffix, qdata) == 0 ||
           strcmp(suffix, scale) == 0 || strcmp(suffix, zero_point) == 0;
}

/* ---- codes ---- */

/* Codes times scales may overflow f32 even if the scales are finite. */
static nib_status check_values(const nib_weight_query *q, const char *suffix)
{
    float *values = nib__calloc(&q->cp->allocator, (uint64_t)q->out->n, sizeof *values);
    int64_t i = 0;
    if (values == NULL)
        return nib__fail_memory(q->err, (uint64_t)q->out->n * sizeof *values, "a bias");
    nib__weight_bias(q->out, values);
    while (i < q->out->n && isfinite(values[i]))
        i++;
    nib__release(&q->cp->allocator, values);
    return i == q->out->n ? NIB_OK
                          : nib__weight_fail(q, NIB_BAD_INPUT, suffix,
                                             "the value at index %" PRId64
                                             " overflows f32; results would not be finite",
                                             i);
}

static nib_status read_int8(const nib_weight_query *q, const description *d)
{
    nib_weight *w = q->out;
    const nib_tensor *codes = nib__weight_part(q, qdata), *s = nib__weight_part(q, scale),
                     *z = nib__weight_part(q, zero_point);
    const int64_t groups = nib__ceil_div(w->n, NIB_BIAS_GROUP);
    if (d->group != NIB_BIAS_GROUP)
        return nib__weight_fail(q, NIB_UNSUPPORTED, ".bias",
                                "has groups of %" PRId64 "; int8 biases have groups of %d",
                                d->group, NIB_BIAS_GROUP);
    NIB_TRY(nib__weight_expect(q, qdata, codes, NIB_TYPE_I8, 1, &w->n));
    NIB_TRY(nib__weight_expect(q, scale, s, NIB_TYPE_NONE, 1, &groups));
    if (!nib__type_is_float(s->type))
        return nib__weight_fail(q, NIB_BAD_INPUT, scale, "is %s; scales are F32, F16, BF16 or F64",
                                nib__type_stored_name(s->type));
    NIB_TRY(nib__weight_check_finite(q, scale, s->data, s->type, groups, "bias scale"));
    if (s->type == NIB_TYPE_F64)
        nib__weight_report_f64(q, scale, s->data, groups);
    if (d->symmetric != (z == NULL))
        return nib__weight_fail(q, NIB_BAD_INPUT, zero_point, "%s",
                                z == NULL ? "the tensor is missing"
                                          : "is stored, but the bias is described as symmetric");
    if (z != NULL)
        NIB_TRY(nib__weight_expect(q, zero_point, z, NIB_TYPE_I8, 1, &groups));
    w->bias = codes->data;
    w->bias_type = NIB_TYPE_I8;
    w->bias_scales = s->data;
    w->bias_scale_type = s->type;
    w->bias_zeros = z == NULL ? NULL : (const int8_t *)z->data;
    return check_values(q, scale);
}

static nib_status read_int32(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    char name[64];
    const nib_tensor *codes = nib__weight_part(q, qdata);
    const char *why = nib__bias_int32_refuses(&w->scheme, w->k);
    if (why != NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".bias", "is int32, but the weight is %s: %s",
                                nib__scheme_name(name, &w->scheme), why);
    const int64_t most = nib__bias_int32_most(&w->scheme, w->k);
    NIB_TRY(nib__weight_expect(q, qdata, codes, NIB_TYPE_I32, 1, &w->n));
    for (int64_t i = 0; i < w->n; i++) {
        int32_t code;
        memcpy(&code, codes->data + i * (int64_t)sizeof code, sizeof code);
        if (code < -most || code > most)
            return nib__weight_fail(q, NIB_BAD_INPUT, qdata,
                                    "code at index %" PRId64 " is %" PRId32 ", outside -%" PRId64
                                    " to %" PRId64 ", the range in which sums of %" PRId64
                                    " products fit in 32 bits",
                                    i, code, most, most, w->k);
    }
    w->bias = codes->data;
    w->bias_type = NIB_TYPE_I32;
    return check_values(q, qdata);
}

static nib_status read_codes(const nib_weight_query *q)
{
    description d = {.group = 0};
    char name[NIB_SHOWN + 40], shown[NIB_FIELD_TEXT + 20];
    const nib_meta *meta = nib__weight_meta(q, ".bias");
    if (!q->cp->nibble)
        return nib__weight_fail(q, NIB_UNSUPPORTED, qdata,
                                "quantized biases are supported only in files of the nibble "
                                "dialect; store the bias as floats, as %s.bias",
                                q->shown);
    if (meta == NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, qdata,
                                "no __metadata__ entry describes these codes");
    snprintf(name, sizeof name, "__metadata__ of %s.bias", q->shown);
    NIB_TRY(nib__fields_read(&d, fields, COUNT(fields), name, meta->value, q->err));
    if (d.shape != q->out->n)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".bias",
                                "is described with %" PRId64 " values, but the weight has %" PRId64
                                " rows",
                                d.shape, q->out->n);
    if (strcmp(d.form, nib__bias_names[NIB_BIAS_INT8]) == 0)
        return read_int8(q, &d);
    if (strcmp(d.form, nib__bias_names[NIB_BIAS_INT32]) == 0)
        return read_int32(q);
    return nib__weight_fail(q, NIB_UNSUPPORTED, ".bias",
                            "has the form \"%s\"; int8 and int32 are supported",
                            nib__escape_name(shown, sizeof shown, d.form, strlen(d.form)));
}

/* ---- floats ---- */

/* Fails if codes are missing but their description or their scales are stored. */
static nib_status check_absent(const nib_weight_query *q, const nib_tensor *bias)
{
    const char *part = nib__weight_part(q, scale) != NULL           ? scale
                       : nib__weight_part(q, zero_point) != NULL    ? zero_point
                       : nib__weight_part(q, ".bias_scale") != NULL ? ".bias_scale"
                                                                    : NULL;
    if (part != NULL)
        return nib__weight_fail(q, NIB_UNSUPPORTED, part,
                                "belongs to a quantized bias whose codes (_bias_qdata) are "
                                "missing; store the bias as floats");
    if (bias == NULL && q->cp->nibble && nib__weight_meta(q, ".bias") != NULL)
        return nib__weight_fail(q, NIB_BAD_INPUT, ".bias",
                                "is described in __metadata__, but neither it nor its codes "
                                "(_bias_qdata) are stored");
    return NIB_OK;
}

nib_status nib__weight_order_bias(const nib_weight_query *q, const nib_tensor *bias,
                                  const int32_t *rows)
{
    const size_t size = (size_t)nib__type_bits(bias->type) / 8;
    bool fresh;
    uint8_t *values = nib__checkpoint_copy(q->cp, bias, (size_t)bias->bytes, &fresh);
    if (values == NULL)
        return nib__fail_memory(q->err, bias->bytes, bias->name);
    for (int64_t i = 0; fresh && i < q->out->n; i++)
        memcpy(values + (size_t)i * size, bias->data + (size_t)rows[i] * size, size);
    q->out->bias = values;
    return NIB_OK;
}

nib_status nib__weight_read_bias(const nib_weight_query *q)
{
    nib_weight *w = q->out;
    const nib_tensor *bias = nib__weight_part(q, ".bias");
    if (nib__weight_part(q, qdata) != NULL)
        return bias == NULL ? read_codes(q)
                            : nib__weight_fail(q, NIB_BAD_INPUT, ".bias",
                                               "is stored twice, plain and as _bias_qdata");
    NIB_TRY(check_absent(q, bias));
    if (bias == NULL)
        return NIB_OK;
    if (!nib__type_is_float(bias->type))
        return nib__weight_fail(q, NIB_BAD_INPUT, ".bias", "is %s; a bias is F32, F16, BF16 or F64",
                                nib__type_stored_name(bias->type));
    NIB_TRY(nib__weight_expect(q, ".bias", bias, NIB_TYPE_NONE, 1, &w->n));
    w->bias = bias->data;
    if (bias->rows != NULL)
        NIB_TRY(nib__weight_order_bias(q, bias, bias->rows));
    NIB_TRY(nib__weight_check_finite(q, ".bias", w->bias, bias->type, w->n, "bias"));
    if (bias->type == NIB_TYPE_F64)
        nib__weight_report_f64(q, ".bias", w->bias, w->n);
    w->bias_type = bias->type;
    return nib__rotary_bias(q, bias);
}
