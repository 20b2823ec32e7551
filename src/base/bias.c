/* SPDX-License-Identifier: Apache-2.0
 *
 * The values of a bias in each of its forms, and which weights can have an int32 bias.
 */
#include "scheme.h"

const char *const nib__bias_names[] = {"none", "float", "int8", "int32"};

nib_bias nib__weight_bias_form(const nib_weight *w)
{
    if (w->bias == NULL)
        return NIB_BIAS_NONE;
    return w->bias_type == NIB_TYPE_I8    ? NIB_BIAS_INT8
           : w->bias_type == NIB_TYPE_I32 ? NIB_BIAS_INT32
                                          : NIB_BIAS_FLOAT;
}

static void int8_values(const nib_weight *w, float *out)
{
    const int8_t *codes = w->bias;
    const int64_t scale_bytes = nib__type_bits(w->bias_scale_type) / 8;
    for (int64_t i = 0, g = 0; i < w->n; g++) {
        const int64_t end = nib__min(i + NIB_BIAS_GROUP, w->n);
        const int zero = w->bias_zeros != NULL ? w->bias_zeros[g] : 0;
        float scale;
        nib__to_f32(&scale, (const uint8_t *)w->bias_scales + g * scale_bytes, w->bias_scale_type,
                    1);
        for (; i < end; i++)
            out[i] = (float)(codes[i] - zero) * scale;
    }
}

static void int32_values(const nib_weight *w, float *out)
{
    for (int64_t i = 0; i < w->n; i++) {
        int32_t code;
        memcpy(&code, (const uint8_t *)w->bias + (size_t)i * sizeof code, sizeof code);
        const double step = (double)*w->act_scale * (double)nib__weight_scale(w, i, 0);
        out[i] = (float)((double)code * step);
    }
}

void nib__weight_bias(const nib_weight *w, float *out)
{
    switch (nib__weight_bias_form(w)) {
    case NIB_BIAS_INT8: int8_values(w, out); break;
    case NIB_BIAS_INT32: int32_values(w, out); break;
    default: nib__to_f32(out, w->bias, w->bias_type, w->n); break;
    }
}

/* ---- int32 ---- */

enum { INT32_K_MOST = 1 << 15 /* above it, fast rows correct zero points in double */ };

const char *nib__bias_int32_refuses(const nib_scheme *s, int64_t k)
{
    if (!nib__code_is_int(s->code))
        return "its sums are not integers";
    if (s->act != NIB_ACT_I8_STATIC)
        return s->act == NIB_ACT_FLOAT ? "its activations are floats, not integers"
                                       : "its activations have a scale per token, but an integer "
                                         "bias needs a fixed scale";
    if (s->group > 0)
        return "each of its groups has a scale, but an integer bias needs one scale per row";
    if (s->zero == NIB_ZERO_FLOAT)
        return "its zero points are floats, which are not part of the integer sums";
    return k > INT32_K_MOST ? "with more than 32,768 inputs its sums may need all 32 bits" : NULL;
}

int64_t nib__bias_int32_most(const nib_scheme *s, int64_t k)
{
    const int64_t lowest = (int64_t)nib__code_most(s->code) + 1,
                  code = s->zero != NIB_ZERO_NONE ? 2 * lowest - 1 : lowest;
    const int64_t act = s->act_symmetric ? 128 : 255;
    return INT32_MAX - k * code * act;
}
