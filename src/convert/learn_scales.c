/* SPDX-License-Identifier: Apache-2.0
 *
 * One step of a weight's scales. Rows are independent; sums over a group are f64, inputs ascending.
 */
#include "learn_scales.h"

#include "quantizer.h"

#include <math.h>

static float stored_value(const void *from, nib_type type, int64_t at)
{
    float value;
    nib__to_f32(&value, (const char *)from + at * (nib__type_bits(type) / 8), type, 1);
    return value;
}

bool nib__scales_move_in(const nib_quantizer *q) { return q->scale_type != NIB_TYPE_E8M0; }

nib_status nib__scales_open(nib_scales *out, const nib_quantizer *q, int64_t n,
                            const nib_codes *codes, nib_arena *arena, nib_err *err)
{
    const uint64_t groups = (uint64_t)n * (uint64_t)q->groups;
    const bool has_zeros = q->scheme.zero == NIB_ZERO_FLOAT;
    nib_scales *t = out;
    *t = (nib_scales){.q = *q,
                      .n = n,
                      .k = q->k,
                      .group = nib__scheme_group_size(&q->scheme, q->k),
                      .scale_bytes = groups * (uint64_t)(nib__type_bits(q->scale_type) / 8),
                      .codes = *codes,
                      .first = codes,
                      .scale = nib__arena_take(arena, groups, sizeof *t->scale)};
    if (q->zero_type != NIB_TYPE_NONE)
        t->zero_bytes = groups * (uint64_t)(nib__type_bits(q->zero_type) / 8);
    t->codes.scales = nib__arena_take(arena, t->scale_bytes, 1);
    bool ok = t->scale != NULL && t->codes.scales != NULL;
    if (has_zeros) {
        t->zero = nib__arena_take(arena, groups, sizeof *t->zero);
        t->codes.zeros = nib__arena_take(arena, t->zero_bytes, 1);
        ok = ok && t->zero != NULL && t->codes.zeros != NULL;
    }
    if (!ok)
        return nib__fail_memory(err, groups * 2 * sizeof(float), "the scales of a weight");
    memcpy(t->codes.scales, codes->scales, (size_t)t->scale_bytes);
    if (has_zeros)
        memcpy(t->codes.zeros, codes->zeros, (size_t)t->zero_bytes);
    for (uint64_t i = 0; i < groups; i++) {
        t->scale[i] = stored_value(codes->scales, q->scale_type, (int64_t)i);
        if (has_zeros)
            t->zero[i] = stored_value(codes->zeros, q->zero_type, (int64_t)i);
    }
    return NIB_OK;
}

/* The weight [n][k] that codes stand for. */
static nib_weight weight_of(const nib_scales *t)
{
    nib_weight w;
    nib__quantizer_describe_weight(&w, &t->q, t->n, t->codes.codes, t->codes.scales,
                                   t->codes.zeros);
    w.tensor_scale = t->codes.tensor_scale;
    return w;
}

void nib__scales_values(const nib_scales *t, float *out, int64_t begin, int64_t end)
{
    const nib_weight w = weight_of(t);
    for (int64_t i = begin; i < end; i++)
        nib__weight_row(&w, i, out + i * t->k);
}

static float sign_of(double x) { return x > 0 ? 1.0F : x < 0 ? -1.0F : 0.0F; }

/* Stores a number that moved; one that its type cannot hold, or would hold as 0, stays. */
static void store(void *to, nib_type type, int64_t at, float *value, float moved, bool may_be_0)
{
    const float before = stored_value(to, type, at);
    nib__quant_store(to, type, at, moved);
    const float after = stored_value(to, type, at);
    if (isfinite(after) && (after != 0 || may_be_0))
        *value = moved;
    else
        nib__quant_store(to, type, at, before);
}

void nib__scales_set(nib_scales *t, const float *scale, const float *zero)
{
    for (int64_t i = 0; i < t->n * t->q.groups; i++) {
        t->scale[i] = scale[i];
        nib__quant_store(t->codes.scales, t->q.scale_type, i, scale[i]);
        if (t->zero == NULL)
            continue;
        t->zero[i] = zero[i];
        nib__quant_store(t->codes.zeros, t->q.zero_type, i, zero[i]);
    }
}

/* Moves the scale of a group, and its zero, by the sums of their gradients. */
static void move_group(nib_scales *t, int64_t group, double by_scale, double by_zero, float rate)
{
    const float first = stored_value(t->first->scales, t->q.scale_type, group),
                step = rate * fabsf(first);
    store(t->codes.scales, t->q.scale_type, group, &t->scale[group],
          t->scale[group] - step * sign_of(by_scale), false);
    if (t->zero != NULL)
        store(t->codes.zeros, t->q.zero_type, group, &t->zero[group],
              t->zero[group] - step * sign_of(by_zero), true);
}

void nib__scales_move(nib_scales *t, const float *gradient, float rate, int64_t begin, int64_t end)
{
    const nib_weight w = weight_of(t);
    const bool has_int = t->q.scheme.zero == NIB_ZERO_INT;
    for (int64_t i = begin; i < end; i++)
        for (int64_t c = 0, group = i * t->q.groups; c < t->k; c += t->group, group++) {
            const int64_t last = i * t->k + nib__min(c + t->group, t->k);
            const float zero = has_int ? stored_value(t->codes.zeros, t->q.zero_type, group) : 0;
            double by_scale = 0, by_zero = 0;
            for (int64_t j = i * t->k + c; j < last; j++) {
                const float unit = nib__weight_value(&w, t->codes.codes[j], 1, has_int ? zero : 0);
                by_scale += (double)gradient[j] * (double)unit;
                by_zero += (double)gradient[j];
            }
            move_group(t, group, by_scale, by_zero, rate);
        }
}
