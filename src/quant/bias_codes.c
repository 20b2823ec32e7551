/* SPDX-License-Identifier: Apache-2.0
 *
 * The formulas of quantized biases. int8 is a row of n weights in groups of 32, quantized in f32 by
 * torchao's affine formula (that of its integers with groups), symmetric if the weight is. int32 is
 * round(b / (s_x * s_i)), in double, ties to even.
 */
#include "bias_codes.h"

#include "quantizer.h"

#include <inttypes.h>
#include <math.h>

nib_status nib__bias_parse(nib_bias *out, const char *form, nib_err *err)
{
    *out = NIB_BIAS_NONE;
    if (form == NULL)
        return NIB_OK;
    for (int i = NIB_BIAS_FLOAT; i < NIB_BIAS_COUNT; i++)
        if (strcmp(form, nib__bias_names[i]) == 0) {
            *out = (nib_bias)i;
            return NIB_OK;
        }
    char shown[80];
    return nib__fail(err, NIB_USAGE, "bias \"%s\" is not one of float, int8, int32",
                     nib__escape_name(shown, sizeof shown, form, strlen(form)));
}

nib_status nib__bias_allowed(nib_bias *form, const char *name, const nib_scheme *s, int64_t k,
                             nib_err *err)
{
    char shown[160], scheme[64];
    if (*form == NIB_BIAS_INT8 || *form == NIB_BIAS_INT32)
        *form = nib__scheme_is_quantized(s) ? *form : NIB_BIAS_FLOAT;
    const char *why = *form == NIB_BIAS_INT32 ? nib__bias_int32_refuses(s, k) : NULL;
    if (why == NULL)
        return NIB_OK;
    return nib__fail(err, NIB_NOT_AS_ASKED,
                     "%s: %s takes no int32 bias: %s; use --bias int8, or a recipe such as "
                     "int8dq-static",
                     nib__escape_name(shown, sizeof shown, name, strlen(name)),
                     nib__scheme_name(scheme, s), why);
}

/* ---- int8 ---- */

static nib_status code_int8(nib_weight *w, const float *values, nib_arena *arena, nib_err *err)
{
    const bool symmetric = w->scheme.symmetric;
    const nib_scheme scheme = {.code = NIB_CODE_I8,
                               .group = NIB_BIAS_GROUP,
                               .symmetric = symmetric,
                               .zero = symmetric ? NIB_ZERO_NONE : NIB_ZERO_INT};
    const size_t n = (size_t)w->n, groups = (size_t)nib__ceil_div(w->n, NIB_BIAS_GROUP);
    nib_quantizer q;
    nib_quantized to = {.codes = nib__arena_take(arena, n, 1),
                        .scales = nib__arena_take(arena, groups, sizeof(float)),
                        .zeros = symmetric ? NULL : nib__arena_take(arena, groups, 1)};
    if (to.codes == NULL || to.scales == NULL || (to.zeros == NULL && !symmetric))
        return nib__fail_memory(err, n, "a bias");
    NIB_TRY(nib__quantizer_init(&q, &scheme, NIB_TYPE_F32, w->n, err));
    NIB_TRY(nib__quantizer_quantize_rows(&q, values, 0, 1, &to, err));
    w->bias = to.codes;
    w->bias_type = NIB_TYPE_I8;
    w->bias_scales = to.scales;
    w->bias_scale_type = NIB_TYPE_F32;
    w->bias_zeros = to.zeros;
    return NIB_OK;
}

/* ---- int32 ---- */

static nib_status code_int32(nib_weight *w, const float *values, nib_arena *arena, nib_err *err)
{
    const double most = (double)nib__bias_int32_most(&w->scheme, w->k);
    if (w->act_scale == NULL)
        return nib__fail(err, NIB_NOT_AS_ASKED,
                         "an int32 bias needs a static activation scale, which is missing; run "
                         "nibble quantize --calibrate TEXT first");
    int32_t *codes = nib__arena_take(arena, (uint64_t)w->n, sizeof *codes);
    if (codes == NULL)
        return nib__fail_memory(err, (uint64_t)w->n * sizeof *codes, "a bias");
    for (int64_t i = 0; i < w->n; i++) {
        const double step = (double)*w->act_scale * (double)nib__weight_scale(w, i, 0);
        const double code = values[i] == 0 ? 0 : nearbyint((double)values[i] / step);
        if (step == 0 && values[i] != 0)
            return nib__fail(err, NIB_NOT_AS_ASKED,
                             "the bias of output %" PRId64 ", %.9g, cannot be an int32 code: the "
                             "scale of this row is 0; use --bias int8 or float",
                             i, (double)values[i]);
        if (!(fabs(code) <= most))
            return nib__fail(err, NIB_NOT_AS_ASKED,
                             "the bias of output %" PRId64 ", %.9g, is %.0f steps of %.3g "
                             "(activation scale times row scale), more "
                             "than the %.0f that an int32 sum can "
                             "start at; use --bias int8 or float",
                             i, (double)values[i], code, step, most);
        codes[i] = (int32_t)code;
    }
    w->bias = codes;
    w->bias_type = NIB_TYPE_I32;
    return NIB_OK;
}

/* ---- the interface ---- */

static nib_status convert(nib_weight *w, nib_bias form, const float *values, nib_arena *arena,
                          nib_err *err)
{
    if (form == NIB_BIAS_INT8)
        return code_int8(w, values, arena, err);
    if (form == NIB_BIAS_INT32)
        return code_int32(w, values, arena, err);
    w->bias = values;
    w->bias_type = NIB_TYPE_F32;
    return NIB_OK;
}

nib_status nib__bias_code(nib_weight *w, nib_bias form, double *change, nib_arena *arena,
                          nib_err *err)
{
    const size_t n = (size_t)w->n;
    *change = 0;
    if (nib__weight_bias_form(w) == form)
        return NIB_OK;
    float *values = nib__arena_take(arena, n, sizeof *values);
    float *after = nib__arena_take(arena, n, sizeof *after);
    if (values == NULL || after == NULL)
        return nib__fail_memory(err, n * sizeof *values, "a bias");
    nib__weight_bias(w, values);
    NIB_TRY(convert(w, form, values, arena, err));
    nib__weight_bias(w, after);
    double largest = 0, lost = 0;
    for (size_t i = 0; i < n; i++) {
        largest = fmax(largest, fabs((double)values[i]));
        lost = fmax(lost, fabs((double)values[i] - (double)after[i]));
    }
    *change = lost > 0 ? lost / largest : 0;
    return NIB_OK;
}
