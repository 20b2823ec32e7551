/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows are shared among the workers in bands that share scales. Counts do not depend on who
 * measured what; sums of f64 are kept per row and added in order.
 */
#include "judge_rows.h"

#include "quantizer.h"

#include <math.h>

enum { SHARED_MOST = 512 /* elements of a group in the test for one common scale */ };
static const float FIRM = 0x1p-19f; /* relative noise of a few operations in f32 */

/* What one worker needs for a row, and what it counted. */
typedef struct worker {
    float *x, *other;                /* [k] the source's row, in the order of the stored columns */
    int8_t *codes, *replayed;        /* [k] */
    float *scales, *zeros;           /* [groups] as stored */
    float *low, *high;               /* [groups] range of the source */
    uint8_t *new_scales, *new_zeros; /* [groups] of a replay */
    int64_t *group_ruled, *group_exact; /* see nib_comparison */
    nib_row_counts m;
} worker;

typedef struct measuring {
    nib_comparison *c;
    worker *workers;    /* [threads] */
    double (*sums)[3];  /* [rows] dot, source_square, square */
    float (*ranges)[2]; /* [threads] of the whole source */
    int64_t *lowest;    /* [threads] codes of the whole weight that are the lowest integer */
} measuring;

/* ---- levels ---- */

/* Whether `code` occurs in an integer layout. IQ4_NL's levels are read from a block with every
 * code. */
static void list_integers(bool legal[256], const nib_weight *w)
{
    int highest = nib__code_most(w->scheme.code), lowest = -highest - 1;
    if (w->layout == NIB_LAYOUT_IQ4_NL) {
        uint8_t block[18] = {0};
        int8_t levels[32];
        nib_weight every;
        for (int i = 0; i < 16; i++)
            block[2 + i] = (uint8_t)i;
        (void)nib__block_weight(&every, NIB_TYPE_IQ4_NL, 1, 32, block);
        nib__weight_codes(&every, 0, 0, 16, levels);
        for (int i = 0; i < 16; i++)
            legal[(uint8_t)levels[i]] = true;
        return;
    }
    switch (w->layout) {
    case NIB_LAYOUT_Q5_0: lowest = -16, highest = 15; break;
    case NIB_LAYOUT_Q5_1: lowest = 0, highest = 31; break;
    case NIB_LAYOUT_Q8_0: lowest = -127; break;
    case NIB_LAYOUT_Q2_K:
    case NIB_LAYOUT_Q3_K:
    case NIB_LAYOUT_Q4_K:
    case NIB_LAYOUT_Q5_K:
    case NIB_LAYOUT_Q6_K: nib__super_codes(&w->scheme, &lowest, &highest); break;
    default:
        if (w->scheme.formula == NIB_FORMULA_SUPER)
            nib__super_codes(&w->scheme, &lowest, &highest);
        break;
    }
    for (int code = lowest; code <= highest; code++)
        legal[(uint8_t)(int8_t)code] = true;
}

static float level_of(nib_element element, uint8_t code)
{
    switch (element) {
    case NIB_ELEMENT_E4M3: return nib__e4m3_to_f32(code);
    case NIB_ELEMENT_E5M2: return nib__e5m2_to_f32(code);
    case NIB_ELEMENT_E2M1: return nib__e2m1_to_f32(code);
    default: return (float)(int8_t)code;
    }
}

static void set_bounds(nib_bounds *b, bool legal[256], bool clipped)
{
    b->top = -INFINITY;
    b->bottom = INFINITY;
    for (int code = 0; code < 256; code++)
        if (legal[code]) {
            b->top = fmaxf(b->top, b->level[code]);
            b->bottom = fminf(b->bottom, b->level[code]);
        }
    for (int code = 0; code < 256 && clipped; code++)
        legal[code] = legal[code] && b->level[code] > b->bottom;
    for (int code = 0; code < 256; code++) {
        float below = -INFINITY, above = INFINITY;
        for (int other = 0; other < 256; other++) {
            if (!legal[other])
                continue;
            if (b->level[other] < b->level[code])
                below = fmaxf(below, b->level[other]);
            if (b->level[other] > b->level[code])
                above = fminf(above, b->level[other]);
        }
        const float level = b->level[code];
        b->low[code] = legal[code] ? below / 2 + level / 2 : INFINITY;
        b->high[code] = legal[code] ? above / 2 + level / 2 : -INFINITY;
        b->spacing[code] = fminf(level - below, above - level);
    }
}

/* clipped: the lowest integer occurs nowhere in a symmetric weight */
static void list_bounds(nib_bounds *b, const nib_weight *w, bool clipped)
{
    const nib_element element = nib__codes[w->scheme.code].element;
    const bool integer = nib__code_is_int(w->scheme.code);
    bool legal[256] = {false};
    if (integer)
        list_integers(legal, w);
    for (int code = 0; code < 256; code++) {
        b->level[code] = level_of(element, (uint8_t)code);
        if (!integer)
            legal[code] = isfinite(b->level[code]) && (element != NIB_ELEMENT_E2M1 || code < 16);
    }
    b->has_even = w->layout != NIB_LAYOUT_IQ4_NL;
    set_bounds(b, legal, clipped);
}

/* ---- candidates ---- */

static nib_type source_type_of(const nib_weight *source)
{
    const nib_type type = nib__float_type(source->scheme.code);
    return type == NIB_TYPE_F16 || type == NIB_TYPE_BF16 ? type : NIB_TYPE_F32;
}

static void add_replay(nib_comparison *c, const nib_scheme *scheme, nib_type source)
{
    const nib_weight *w = c->pair->weight;
    nib_quantizer *q = &c->replays[c->replay_count];
    nib_err err;
    if (c->replay_count == NIB_REPLAYS_MAX ||
        nib__quantizer_init(q, scheme, source, w->k, &err) != NIB_OK)
        return;
    if (nib__quant_family(scheme) == NIB_QUANT_INTX &&
        nib__quantizer_scales(q, w->scale_type, &err) != NIB_OK)
        return;
    if (nib__quantizer_needs_scan(q) && !nib__quantizer_fix(q, c->range))
        return;
    c->replay_count++;
}

/* Schemes whose quantizer gives such codes, in the source's type and in f32. */
static void list_replays(nib_comparison *c)
{
    const nib_weight *w = c->pair->weight;
    const nib_formula formulas[] = {NIB_FORMULA_TORCHAO, NIB_FORMULA_AO017, NIB_FORMULA_TINYGEMM,
                                    NIB_FORMULA_GGML, NIB_FORMULA_SUPER};
    const bool integer = nib__code_is_int(w->scheme.code), mx = nib__code_is_mx(w->scheme.code),
               four = w->scheme.code == NIB_CODE_I4, floats = w->scheme.zero == NIB_ZERO_FLOAT,
               odd = nib__code_is_odd_int(w->scheme.code);
    if (w->scale_rows > 1 || w->layout == NIB_LAYOUT_Q5_0 || w->layout == NIB_LAYOUT_Q5_1 ||
        w->layout == NIB_LAYOUT_IQ4_NL)
        return; /* formulas of no scheme */
    for (size_t f = 0; f < COUNT(formulas) + 1; f++) {
        nib_scheme s = w->scheme;
        s.act = NIB_ACT_FLOAT;
        s.symmetric = s.zero == NIB_ZERO_NONE;
        s.formula = f < COUNT(formulas) ? formulas[f] : NIB_FORMULA_TORCHAO;
        s.mx_floor = f == COUNT(formulas);
        if (!integer && (mx ? f != 0 && f != COUNT(formulas) : f != 0))
            continue;
        if (integer &&
            (f == COUNT(formulas) || (s.formula == NIB_FORMULA_AO017 && floats) ||
             (odd && s.formula != NIB_FORMULA_TORCHAO && s.formula != NIB_FORMULA_AO017) ||
             (s.formula == NIB_FORMULA_TINYGEMM && !(four && floats)) ||
             (s.formula == NIB_FORMULA_GGML &&
              (s.group != 32 || s.zero == NIB_ZERO_INT || (!four && floats))) ||
             (s.formula == NIB_FORMULA_SUPER &&
              !(floats ? s.group == 32 || (four && s.group == 16)
                       : s.group == 16 && s.zero == NIB_ZERO_NONE))))
            continue;
        if (floats && !four && !odd && s.formula != NIB_FORMULA_SUPER)
            continue;
        add_replay(c, &s, c->source_type);
        if (c->source_type != NIB_TYPE_F32 && s.formula != NIB_FORMULA_GGML &&
            s.formula != NIB_FORMULA_SUPER)
            add_replay(c, &s, NIB_TYPE_F32);
    }
}

static void add_rounding(nib_comparison *c, nib_rounding r)
{
    if (c->rounding_count < NIB_ROUNDINGS_MAX)
        c->roundings[c->rounding_count++] = r;
}

static bool rule_applies(const nib_weight *w, nib_scale_rule rule)
{
    if (nib__code_is_mx(w->scheme.code))
        return rule == NIB_RULE_UP || rule == NIB_RULE_DOWN;
    if (w->scheme.zero != NIB_ZERO_NONE)
        return rule == NIB_RULE_RANGE || rule == NIB_RULE_RANGE0;
    if (nib__code_is_int(w->scheme.code))
        return rule == NIB_RULE_HALF || rule == NIB_RULE_TOP || rule == NIB_RULE_BOTTOM;
    return rule == NIB_RULE_TOP || (rule == NIB_RULE_UP && w->scheme.code == NIB_CODE_E4M3);
}

static void list_roundings(nib_comparison *c)
{
    const nib_weight *w = c->pair->weight;
    const nib_type t = c->source_type;
    const bool has_int = w->scheme.zero == NIB_ZERO_INT;
    add_rounding(c, (nib_rounding){NIB_TYPE_F32, false, false, -1});
    add_rounding(c, (nib_rounding){NIB_TYPE_F32, true, false, -1});
    if (t != NIB_TYPE_F32 && w->scheme.zero != NIB_ZERO_FLOAT) {
        add_rounding(c, (nib_rounding){t, false, false, -1});
        add_rounding(c, (nib_rounding){t, true, false, -1});
    }
    if (has_int)
        add_rounding(c, (nib_rounding){t, false, true, -1});
    for (int rule = 0; rule < NIB_RULES; rule++)
        if (rule_applies(w, (nib_scale_rule)rule) && !nib__code_is_mx(w->scheme.code))
            add_rounding(c, (nib_rounding){NIB_TYPE_F32, false, false, rule});
}

static float noise_of(nib_type type)
{
    return type == NIB_TYPE_BF16 ? 0x1.8p-7f : type == NIB_TYPE_F16 ? 0x1.8p-10f : 0x1p-19f;
}

/* The scale by a rule; 0: the range has none. */
static double rule_scale(const nib_bounds *b, nib_scale_rule rule, float low, float high)
{
    const double least = (double)low, most = (double)high, amax = fmax(-least, most);
    const double span = (double)b->top - (double)b->bottom;
    switch (rule) {
    case NIB_RULE_HALF: return amax / (span / 2);
    case NIB_RULE_TOP: return amax / (double)b->top;
    case NIB_RULE_BOTTOM: return (-least > most ? least : most) / (double)b->bottom;
    case NIB_RULE_RANGE: return (most - least) / span;
    case NIB_RULE_RANGE0: return (fmax(most, 0) - fmin(least, 0)) / span;
    case NIB_RULE_UP: return amax > 0 ? exp2(ceil(log2(amax / (double)b->top))) : 0;
    case NIB_RULE_DOWN: return amax > 0 ? exp2(floor(log2(amax)) - floor(log2((double)b->top))) : 0;
    case NIB_RULES: break;
    }
    return 0;
}

/* ---- a row ---- */

static float round_as(nib_type type, float x)
{
    return type == NIB_TYPE_BF16  ? nib__bf16_to_f32(nib__f32_to_bf16(x))
           : type == NIB_TYPE_F16 ? nib__f16_to_f32(nib__f32_to_f16(x))
                                  : x;
}

/* A group's scale and zero, and where its codes are. */
typedef struct span {
    int64_t k0, count, g;
    float scale, zero; /* as stored; zero: the integer, or the value of code 0 */
    float low, high;   /* range of the source */
} span;

/* A group's scale by a rule. Of two values of the largest magnitude either may decide the sign. */
static double scale_by(const nib_comparison *c, nib_scale_rule rule, const span *s)
{
    const double scale = rule_scale(&c->bounds, rule, s->low, s->high);
    return rule == NIB_RULE_BOTTOM && s->low == -s->high ? copysign(scale, (double)s->scale)
                                                         : scale;
}

/* x / scale as the rounding computes it, before the zero of ZERO_INT is added, or with it. */
static float scaled_value(const nib_comparison *c, const nib_rounding *r, const span *s, float x)
{
    const nib_zero zero = c->pair->weight->scheme.zero;
    if (r->rule >= 0) {
        const float scale = (float)scale_by(c, (nib_scale_rule)r->rule, s);
        return zero == NIB_ZERO_FLOAT ? (x - s->low) / scale + c->bounds.bottom : x / scale;
    }
    if (zero == NIB_ZERO_FLOAT)
        return r->reciprocal ? (x - s->zero) * (1 / s->scale) : (x - s->zero) / s->scale;
    const float v = r->reciprocal ? round_as(r->type, x * round_as(r->type, 1 / s->scale))
                                  : round_as(r->type, x / s->scale);
    return r->adds_zero ? round_as(r->type, v + s->zero) : v;
}

/* Whether a value rounds to the code. shift: added to the rounded value. */
static bool rounds_to(const nib_bounds *b, float v, int8_t code, float shift)
{
    const uint8_t at = (uint8_t)code;
    const float low = b->low[at] - shift, high = b->high[at] - shift;
    if (!(v >= low && v <= high))
        return false;
    if (!b->has_even || (v != low && v != high))
        return true;
    return ((at ^ (uint8_t)(int32_t)shift) & 1) == 0;
}

static float shift_of(const nib_comparison *c, const nib_rounding *r, const span *s)
{
    return c->pair->weight->scheme.zero == NIB_ZERO_INT && !r->adds_zero ? s->zero : 0;
}

/* How far a value is from those that round to the code, in levels; negative: inside them. */
static float outside(const nib_bounds *b, float v, int8_t code, float shift)
{
    const uint8_t at = (uint8_t)code;
    return isnan(v) ? INFINITY : fmaxf(b->low[at] - shift - v, v - (b->high[at] - shift));
}

/* What relative errors of `noise` in x, scale and a stored float zero add up to, in levels. */
static float slack_of(const nib_comparison *c, const nib_rounding *r, const span *s, float v,
                      float noise)
{
    const bool zero = c->pair->weight->scheme.zero == NIB_ZERO_FLOAT && r->rule < 0;
    return noise * (fabsf(v) + 0x1p-6f * c->bounds.top + (zero ? fabsf(s->zero / s->scale) : 0));
}

static void count_rounding(const nib_comparison *c, const nib_rounding *r, const span *s,
                           const worker *w, nib_tally *to)
{
    const float shift = shift_of(c, r, s);
    for (int64_t j = s->k0; j < s->k0 + s->count; j++) {
        const float v = scaled_value(c, r, s, w->x[j]);
        if (rounds_to(&c->bounds, v, w->codes[j], shift))
            continue;
        const float out = outside(&c->bounds, v, w->codes[j], shift);
        to->codes++;
        to->firm += out > slack_of(c, r, s, v, FIRM);
        to->hard += out > slack_of(c, r, s, v, c->noise);
    }
}

/* Narrows *from..*to to the factors t with which a * t is between low and high. */
static void narrow_to(double *from, double *to, double a, double low, double high)
{
    if (a == 0) {
        if (low > 0 || high < 0)
            *from = INFINITY;
        return;
    }
    const double x = (a > 0 ? low : high) / a, y = (a > 0 ? high : low) / a;
    *from = fmax(*from, x);
    *to = fmin(*to, y);
}

/* Whether all codes of a group are nearest under one scale, between half and twice the stored one,
 * with the stored integer zero, or with any float zero. */
static bool shares_scale(const nib_comparison *c, const span *s, const float *x,
                         const int8_t *codes)
{
    const nib_bounds *b = &c->bounds;
    const nib_zero zero = c->pair->weight->scheme.zero;
    const double shift = zero == NIB_ZERO_INT ? (double)s->zero : 0;
    double from = -INFINITY, to = INFINITY;
    if (s->count > SHARED_MOST)
        return false;
    for (int64_t j = s->k0; j < s->k0 + s->count; j++) {
        const uint8_t at = (uint8_t)codes[j];
        const double slack = 1e-5 * (fabs((double)b->level[at]) + 1);
        const double low = (double)b->low[at] - shift - slack,
                     high = (double)b->high[at] - shift + slack;
        if (!(low <= high))
            return false;
        if (zero != NIB_ZERO_FLOAT) {
            narrow_to(&from, &to, (double)x[j], low, high);
            continue;
        }
        for (int64_t i = s->k0; i < j; i++) {
            const uint8_t other = (uint8_t)codes[i];
            narrow_to(&from, &to, (double)x[j] - (double)x[i], low - (double)b->high[other] - slack,
                      high - (double)b->low[other] + slack);
        }
    }
    const double a = from * (double)s->scale, z = to * (double)s->scale;
    return from <= to && fmax(a, z) >= 0.5 && fmin(a, z) <= 2;
}

/* Measures a group under its stored scale. */
static void measure_stored(const nib_comparison *c, worker *w, const span *s)
{
    const nib_bounds *b = &c->bounds;
    const nib_rounding plain = {NIB_TYPE_F32, false, false, -1};
    const float shift = shift_of(c, &plain, s);
    int64_t off = 0;
    for (int64_t j = s->k0; j < s->k0 + s->count; j++) {
        const uint8_t at = (uint8_t)w->codes[j];
        const float v = scaled_value(c, &plain, s, w->x[j]);
        const float out = outside(b, v, w->codes[j], shift),
                    slack = slack_of(c, &plain, s, v, c->noise);
        w->m.border += fabsf(out) <= slack;
        if (out <= slack)
            continue;
        const float steps = fabsf(v + shift - b->level[at]) / b->spacing[at];
        off++;
        w->m.far += !(steps <= 1);
        w->m.farthest = fmax(w->m.farthest, (double)steps);
    }
    w->m.off += off;
    w->m.off_groups += off != 0;
    w->m.unshared += off != 0 && !shares_scale(c, s, w->x, w->codes);
}

/* Whether a group has a range and a scale to compare with it. */
static bool has_rule(const span *s)
{
    return (s->high > s->low || s->high != 0) && s->scale != 0 && isfinite(s->scale) &&
           isfinite(s->low) && isfinite(s->high);
}

double nib__scale_tolerance(const nib_comparison *c)
{
    return c->pair->weight->scale_type == NIB_TYPE_E4M3 ? 0x1p-4 : (double)c->noise;
}

static bool scale_follows(const nib_comparison *c, nib_scale_rule rule, const span *s)
{
    const double wanted = scale_by(c, rule, s);
    return wanted != 0 && fabs((double)s->scale / wanted - 1) <= nib__scale_tolerance(c);
}

/* Whether the zero follows from the range, with or without 0, and the scale. */
static bool zero_follows(const nib_comparison *c, const span *s)
{
    const nib_zero zero = c->pair->weight->scheme.zero;
    const double bottom = (double)c->bounds.bottom, top = (double)c->bounds.top,
                 scale = (double)s->scale, low = (double)s->low, z = (double)s->zero;
    const double with_0 = fmin(low, 0);
    if (zero == NIB_ZERO_INT) {
        const double slack = 0.5 + (double)c->noise * (top - bottom);
        return fabs(z - fmin(fmax(bottom - low / scale, bottom), top)) <= slack ||
               fabs(z - fmin(fmax(bottom - with_0 / scale, bottom), top)) <= slack;
    }
    const double slack = (double)c->noise * (fabs(low) + 16 * fabs(scale));
    return zero == NIB_ZERO_NONE || fabs(z + bottom * scale - low) <= slack ||
           fabs(z + bottom * scale - with_0) <= slack;
}

static void measure_scale(const nib_comparison *c, worker *w, const span *s)
{
    if (!has_rule(s))
        return;
    w->m.ruled++;
    w->group_ruled[s->g]++;
    w->m.zeros_off += !zero_follows(c, s);
    for (int i = 0; i < NIB_RULES; i++) {
        const nib_scale_rule rule = (nib_scale_rule)i;
        const double wanted = scale_by(c, rule, s);
        if (!rule_applies(c->pair->weight, rule) || wanted == 0)
            continue;
        w->m.near[i] += scale_follows(c, rule, s);
        /* noise_of is three quarters of a unit of the mantissa's last place; half is exact */
        w->group_exact[s->g * NIB_RULES + i] += fabs((double)s->scale / wanted - 1) <=
                                                0.7 * (double)noise_of(c->pair->weight->scale_type);
        w->m.ratio[i][0] = fminf(w->m.ratio[i][0], (float)((double)s->scale / wanted));
        w->m.ratio[i][1] = fmaxf(w->m.ratio[i][1], (float)((double)s->scale / wanted));
    }
}

static void merge_tally(nib_tally *to, const nib_tally *from)
{
    to->codes += from->codes;
    to->scales += from->scales;
    to->firm += from->firm;
    to->hard += from->hard;
    to->first_row = nib__min(to->first_row, from->first_row);
}

/* Adds what row i differs in. */
static void add_row(nib_tally *to, nib_tally row, int64_t i)
{
    row.first_row = row.codes + row.scales != 0 ? i : INT64_MAX;
    merge_tally(to, &row);
}

/* A stored value of a replay, as the checkpoint would store it. */
static float value_at(const void *values, nib_type type, int64_t at, nib_type stored)
{
    float x;
    nib__to_f32(&x, (const char *)values + at * (nib__type_bits(type) / 8), type, 1);
    return nib__type_is_float(stored) ? round_as(stored, x) : x;
}

/* Runs a replay on the worker's row. False: it has no codes. */
static bool replay_row(const nib_quantizer *q, worker *w)
{
    nib_err err;
    nib_quantized out = {.codes = w->replayed, .scales = w->new_scales, .zeros = w->new_zeros};
    if (nib__quantizer_quantize_rows(q, w->x, 0, 1, &out, &err) != NIB_OK)
        return false;
    if (nib__quantizer_is_one(q))
        nib__quantizer_store_tensor_scale(q, w->new_scales, w->new_zeros);
    return true;
}

static float replay_scale(const nib_comparison *c, const nib_quantizer *q, const worker *w,
                          int64_t g)
{
    return value_at(w->new_scales, q->scale_type, g, c->pair->weight->scale_type);
}

static float replay_zero(const nib_comparison *c, const nib_quantizer *q, const worker *w,
                         int64_t g)
{
    return q->zero_type == NIB_TYPE_NONE
               ? 0
               : value_at(w->new_zeros, q->zero_type, g, c->pair->weight->zero_type);
}

static float stored_zero(const nib_weight *w, int64_t i, int64_t g)
{
    return w->scheme.zero == NIB_ZERO_INT ? (float)nib__weight_int_zero(w, i, g)
                                          : nib__weight_zero(w, i, g);
}

static span span_of(const nib_comparison *c, const worker *w, int64_t i, int64_t g)
{
    const nib_weight *weight = c->pair->weight;
    const int64_t size = nib__scheme_group_size(&weight->scheme, weight->k);
    return (span){.k0 = g * size,
                  .count = nib__min(size, weight->k - g * size),
                  .g = g,
                  .scale = nib__weight_scale(weight, i, g),
                  .zero = stored_zero(weight, i, g),
                  .low = w->low[g],
                  .high = w->high[g]};
}

/* Whether two values differ by more than rounding to their type explains. */
static bool differ_by(float a, float b, float noise)
{
    return !(fabsf(a - b) <= noise * fmaxf(fabsf(a), fabsf(b)));
}

static void measure_replay(const nib_comparison *c, size_t r, worker *w, int64_t i)
{
    const nib_weight *weight = c->pair->weight;
    const nib_quantizer *q = &c->replays[r];
    const nib_rounding plain = {NIB_TYPE_F32, false, false, -1};
    const float noise = fmaxf(noise_of(weight->scale_type), FIRM);
    nib_tally t = {.codes = 0};
    if (!replay_row(q, w)) {
        t.codes = t.firm = t.hard = weight->k;
        add_row(&w->m.replays[r], t, i);
        return;
    }
    for (int64_t g = 0; g < q->groups; g++) {
        const span s = span_of(c, w, i, g);
        const float stored = nib__weight_group_scale(weight, i, g),
                    scale = replay_scale(c, q, w, g), zero = replay_zero(c, q, w, g);
        if (stored != scale || s.zero != zero) {
            t.scales++;
            t.firm++;
            t.hard += differ_by(stored, scale, c->noise) || differ_by(s.zero, zero, c->noise);
        }
        for (int64_t j = s.k0; j < s.k0 + s.count; j++) {
            if (w->replayed[j] == w->codes[j])
                continue;
            const float v = scaled_value(c, &plain, &s, w->x[j]);
            const float out = outside(&c->bounds, v, w->codes[j], shift_of(c, &plain, &s));
            t.codes++;
            t.firm += out > slack_of(c, &plain, &s, v, noise);
            t.hard += out > slack_of(c, &plain, &s, v, c->noise);
        }
    }
    add_row(&w->m.replays[r], t, i);
}

static void read_source(const nib_comparison *c, int64_t i, float *row)
{
    nib__weight_row(c->pair->source, i, row);
    if (c->pair->fold != NULL)
        nib__fold_row(c->pair->fold, i, row, c->pair->source->k, c->source_type);
}

static void read_row(const nib_comparison *c, worker *w, int64_t i)
{
    const nib_weight *weight = c->pair->weight;
    read_source(c, i, weight->order != NULL ? w->other : w->x);
    for (int64_t j = 0; weight->order != NULL && j < weight->k; j++)
        w->x[j] = w->other[weight->order[j]];
    nib__weight_codes(weight, i, 0, weight->k, w->codes);
}

/* Adds the dequantized row's products with the source. */
static void sum_row(const nib_comparison *c, worker *w, int64_t i, double sums[3])
{
    nib__weight_row(c->pair->weight, i, w->other);
    const int32_t *order = c->pair->weight->order;
    for (int64_t j = 0; j < c->pair->weight->k; j++) {
        const double a = (double)w->other[order != NULL ? order[j] : j], b = (double)w->x[j];
        sums[0] += a * b;
        sums[1] += b * b;
        sums[2] += a * a;
    }
}

static void measure_row(const measuring *m, worker *w, int64_t i)
{
    const nib_comparison *c = m->c;
    const nib_weight *weight = c->pair->weight;
    const int64_t groups = nib__scheme_groups(&weight->scheme, weight->k);
    for (size_t r = 0; r < c->replay_count; r++)
        measure_replay(c, r, w, i);
    nib_tally off[NIB_ROUNDINGS_MAX] = {{0}};
    for (int64_t g = 0; g < groups; g++) {
        const span s = span_of(c, w, i, g);
        w->m.groups++;
        for (size_t r = 0; r < c->rounding_count; r++)
            count_rounding(c, &c->roundings[r], &s, w, &off[r]);
        measure_stored(c, w, &s);
        measure_scale(c, w, &s);
    }
    for (size_t r = 0; r < c->rounding_count; r++)
        add_row(&w->m.roundings[r], off[r], i);
    w->m.codes += weight->k;
    sum_row(c, w, i, m->sums[i]);
}

/* ---- all rows ---- */

static int64_t band_rows(const nib_weight *w) { return nib__max(1, w->scale_rows); }

/* Sets the ranges of a band's groups. */
static void set_ranges(const nib_comparison *c, worker *w, int64_t first, int64_t count)
{
    const nib_weight *weight = c->pair->weight;
    const int64_t groups = nib__scheme_groups(&weight->scheme, weight->k),
                  size = nib__scheme_group_size(&weight->scheme, weight->k);
    const bool whole = weight->scheme.group == NIB_GROUP_TENSOR;
    for (int64_t g = 0; g < groups; g++) {
        w->low[g] = whole ? c->range[0] : INFINITY;
        w->high[g] = whole ? c->range[1] : -INFINITY;
    }
    for (int64_t i = first; i < first + count && !whole; i++) {
        read_row(c, w, i);
        for (int64_t g = 0; g < groups; g++) {
            float low, high;
            (void)nib__quant_range(w->x + g * size, nib__min(size, weight->k - g * size), &low,
                                   &high);
            w->low[g] = fminf(w->low[g], low);
            w->high[g] = fmaxf(w->high[g], high);
        }
    }
}

static void measure_bands(void *ctx, int number, int64_t begin, int64_t end)
{
    const measuring *m = ctx;
    const nib_comparison *c = m->c;
    worker *w = &m->workers[number];
    const int64_t band = band_rows(c->pair->weight);
    for (int64_t b = begin; b < end; b++) {
        const int64_t first = b * band, count = nib__min(band, c->rows - first);
        set_ranges(c, w, first, count);
        for (int64_t i = first; i < first + count; i++) {
            read_row(c, w, i);
            measure_row(m, w, i);
        }
    }
}

static void scan_rows(void *ctx, int number, int64_t begin, int64_t end)
{
    const measuring *m = ctx;
    worker *w = &m->workers[number];
    const nib_weight *weight = m->c->pair->weight;
    for (int64_t i = begin; i < end; i++) {
        float low, high;
        read_source(m->c, i, w->x);
        (void)nib__quant_range(w->x, m->c->pair->source->k, &low, &high);
        m->ranges[number][0] = fminf(m->ranges[number][0], low);
        m->ranges[number][1] = fmaxf(m->ranges[number][1], high);
        nib__weight_codes(weight, i, 0, weight->k, w->codes);
        for (int64_t j = 0; j < weight->k; j++)
            m->lowest[number] += (float)w->codes[j] == m->c->bounds.bottom;
    }
}

/* What the whole weight and its source say: a range, and whether codes were clipped. */
static void scan_all(nib_comparison *c, measuring *m)
{
    const nib_weight *w = c->pair->weight;
    int64_t lowest = 0;
    list_bounds(&c->bounds, w, false);
    nib__pool_run(c->pair->pool, w->n, 4, false, scan_rows, m);
    for (int t = 0; t < nib__pool_threads(c->pair->pool); t++) {
        c->range[0] = fminf(c->range[0], m->ranges[t][0]);
        c->range[1] = fmaxf(c->range[1], m->ranges[t][1]);
        lowest += m->lowest[t];
    }
    if (lowest == 0 && nib__code_is_int(w->scheme.code) && w->scheme.zero == NIB_ZERO_NONE)
        list_bounds(&c->bounds, w, true);
}

static void clear_measured(nib_row_counts *m)
{
    *m = (nib_row_counts){.codes = 0};
    for (size_t r = 0; r < NIB_REPLAYS_MAX; r++)
        m->replays[r].first_row = INT64_MAX;
    for (size_t r = 0; r < NIB_ROUNDINGS_MAX; r++)
        m->roundings[r].first_row = INT64_MAX;
    for (int rule = 0; rule < NIB_RULES; rule++)
        m->ratio[rule][0] = INFINITY, m->ratio[rule][1] = -INFINITY;
}

static void merge_measured(nib_row_counts *to, const nib_row_counts *from)
{
    for (size_t r = 0; r < NIB_REPLAYS_MAX; r++)
        merge_tally(&to->replays[r], &from->replays[r]);
    for (size_t r = 0; r < NIB_ROUNDINGS_MAX; r++)
        merge_tally(&to->roundings[r], &from->roundings[r]);
    to->codes += from->codes;
    to->groups += from->groups;
    to->border += from->border;
    to->off += from->off;
    to->far += from->far;
    to->off_groups += from->off_groups;
    to->farthest = fmax(to->farthest, from->farthest);
    to->unshared += from->unshared;
    to->ruled += from->ruled;
    to->zeros_off += from->zeros_off;
    for (int rule = 0; rule < NIB_RULES; rule++) {
        to->near[rule] += from->near[rule];
        to->ratio[rule][0] = fminf(to->ratio[rule][0], from->ratio[rule][0]);
        to->ratio[rule][1] = fmaxf(to->ratio[rule][1], from->ratio[rule][1]);
    }
}

static bool init_worker(worker *w, const nib_comparison *c, nib_arena *arena)
{
    const nib_weight *weight = c->pair->weight;
    const uint64_t k = (uint64_t)weight->k,
                   groups = (uint64_t)nib__scheme_groups(&weight->scheme, weight->k);
    *w = (worker){.x = nib__arena_take(arena, k, sizeof(float)),
                  .other = nib__arena_take(arena, k, sizeof(float)),
                  .codes = nib__arena_take(arena, k, 1),
                  .replayed = nib__arena_take(arena, k, 1),
                  .low = nib__arena_take(arena, groups, sizeof(float)),
                  .high = nib__arena_take(arena, groups, sizeof(float)),
                  .new_scales = nib__arena_take(arena, groups, sizeof(float)),
                  .new_zeros = nib__arena_take(arena, groups, sizeof(float)),
                  .group_ruled = nib__arena_take(arena, groups, sizeof(int64_t)),
                  .group_exact = nib__arena_take(arena, groups * NIB_RULES, sizeof(int64_t))};
    clear_measured(&w->m);
    return w->x && w->other && w->codes && w->replayed && w->low && w->high && w->new_scales &&
           w->new_zeros && w->group_ruled && w->group_exact;
}

static bool init_measuring(measuring *m, nib_comparison *c, nib_arena *arena)
{
    const size_t threads = (size_t)nib__pool_threads(c->pair->pool);
    *m = (measuring){.c = c,
                     .workers = nib__arena_take(arena, threads, sizeof *m->workers),
                     .sums = nib__arena_take(arena, (uint64_t)c->pair->weight->n, sizeof *m->sums),
                     .ranges = nib__arena_take(arena, threads, sizeof *m->ranges),
                     .lowest = nib__arena_take(arena, threads, sizeof *m->lowest)};
    bool ok = m->workers && m->sums && m->ranges && m->lowest;
    for (size_t i = 0; ok && i < threads; i++)
        ok = init_worker(&m->workers[i], c, arena);
    return ok;
}

static void collect(nib_comparison *c, const measuring *m)
{
    const int threads = nib__pool_threads(c->pair->pool);
    const int64_t groups = nib__scheme_groups(&c->pair->weight->scheme, c->pair->weight->k);
    clear_measured(&c->measured);
    for (int t = 0; t < threads; t++) {
        merge_measured(&c->measured, &m->workers[t].m);
        for (int64_t g = 0; g < groups; g++)
            c->group_ruled[g] += m->workers[t].group_ruled[g];
        for (int64_t g = 0; g < groups * NIB_RULES; g++)
            c->group_exact[g] += m->workers[t].group_exact[g];
    }
    for (int64_t i = 0; i < c->rows; i++) {
        c->measured.dot += m->sums[i][0];
        c->measured.source_square += m->sums[i][1];
        c->measured.square += m->sums[i][2];
    }
}

nib_status nib__compare_rows(nib_comparison *c, int64_t rows, nib_arena *arena, nib_err *err)
{
    const nib_weight *w = c->pair->weight;
    const uint64_t groups = (uint64_t)nib__scheme_groups(&w->scheme, w->k);
    measuring m;
    c->rows = rows;
    c->group_ruled = nib__arena_take(arena, groups, sizeof *c->group_ruled);
    c->group_exact = nib__arena_take(arena, groups * NIB_RULES, sizeof *c->group_exact);
    if (c->group_ruled == NULL || c->group_exact == NULL || !init_measuring(&m, c, arena))
        return nib__fail_memory(err, (uint64_t)w->n * sizeof *m.sums, "a comparison");
    if (c->rounding_count == 0) { /* the first call */
        c->source_type = source_type_of(c->pair->source);
        c->noise = fmaxf(noise_of(c->source_type), noise_of(w->scale_type)) + c->pair->noise;
        scan_all(c, &m);
        list_replays(c);
        list_roundings(c);
    }
    nib__pool_run(c->pair->pool, nib__ceil_div(rows, band_rows(w)), 1, false, measure_bands, &m);
    collect(c, &m);
    return NIB_OK;
}

/* ---- places ---- */

static void add_place(nib_judgement *out, nib_judge_place place)
{
    if (out->place_count < NIB_JUDGE_PLACES)
        out->places[out->place_count++] = place;
}

static void places_of_replay(const nib_comparison *c, const nib_quantizer *q, worker *w, int64_t i,
                             nib_judgement *out)
{
    const nib_weight *weight = c->pair->weight;
    const int64_t size = nib__scheme_group_size(&weight->scheme, weight->k);
    if (!replay_row(q, w))
        return;
    for (int64_t g = 0; g < q->groups; g++) {
        const float scale = replay_scale(c, q, w, g), zero = replay_zero(c, q, w, g);
        const float has = nib__weight_group_scale(weight, i, g), is = stored_zero(weight, i, g);
        if (scale != has || zero != is)
            add_place(out, (nib_judge_place){i, g * size, true, scale != has ? has : is,
                                             scale != has ? scale : zero});
    }
    for (int64_t j = 0; j < weight->k; j++)
        if (w->replayed[j] != w->codes[j])
            add_place(out, (nib_judge_place){i, weight->order != NULL ? weight->order[j] : j, false,
                                             c->bounds.level[(uint8_t)w->codes[j]],
                                             c->bounds.level[(uint8_t)w->replayed[j]]});
}

/* The level that a value rounds to. */
static float level_at(const nib_bounds *b, float v, float shift)
{
    for (int code = 0; code < 256; code++)
        if (b->low[code] <= b->high[code] && rounds_to(b, v, (int8_t)(uint8_t)code, shift))
            return b->level[code];
    return NAN;
}

static void places_of_rounding(const nib_comparison *c, const nib_rounding *r, const worker *w,
                               int64_t i, nib_judgement *out)
{
    const nib_weight *weight = c->pair->weight;
    const int64_t groups = nib__scheme_groups(&weight->scheme, weight->k);
    for (int64_t g = 0; g < groups; g++) {
        const span s = span_of(c, w, i, g);
        const float shift = shift_of(c, r, &s);
        for (int64_t j = s.k0; j < s.k0 + s.count; j++) {
            const float v = scaled_value(c, r, &s, w->x[j]);
            if (!rounds_to(&c->bounds, v, w->codes[j], shift))
                add_place(out, (nib_judge_place){i, weight->order != NULL ? weight->order[j] : j,
                                                 false, c->bounds.level[(uint8_t)w->codes[j]],
                                                 level_at(&c->bounds, v, shift)});
        }
    }
}

nib_status nib__compare_places(const nib_comparison *c, bool is_replay, size_t r,
                               nib_judgement *out, nib_arena *arena, nib_err *err)
{
    const nib_tally *tally = is_replay ? &c->measured.replays[r] : &c->measured.roundings[r];
    const int64_t wanted = nib__min(tally->codes + tally->scales, NIB_JUDGE_PLACES);
    const int64_t band = band_rows(c->pair->weight);
    worker w;
    if (!init_worker(&w, c, arena))
        return nib__fail_memory(err, (uint64_t)c->pair->weight->k, "a comparison");
    for (int64_t i = tally->first_row; i < c->rows && (int64_t)out->place_count < wanted; i++) {
        set_ranges(c, &w, i / band * band, nib__min(band, c->rows - i / band * band));
        read_row(c, &w, i);
        if (is_replay)
            places_of_replay(c, &c->replays[r], &w, i, out);
        else
            places_of_rounding(c, &c->roundings[r], &w, i, out);
    }
    return NIB_OK;
}

static void scale_places_of_row(const nib_comparison *c, nib_scale_rule rule, const worker *w,
                                int64_t i, nib_judgement *out)
{
    const int64_t groups = nib__scheme_groups(&c->pair->weight->scheme, c->pair->weight->k);
    for (int64_t g = 0; g < groups; g++) {
        const span s = span_of(c, w, i, g);
        if (!has_rule(&s) || (scale_follows(c, rule, &s) && zero_follows(c, &s)))
            continue;
        const float wanted = (float)scale_by(c, rule, &s);
        const bool is_zero = scale_follows(c, rule, &s);
        add_place(out, (nib_judge_place){i, s.k0, true, is_zero ? s.zero : s.scale,
                                         is_zero ? c->bounds.bottom - s.low / s.scale : wanted});
    }
}

nib_status nib__compare_scale_places(const nib_comparison *c, nib_scale_rule rule,
                                     nib_judgement *out, nib_arena *arena, nib_err *err)
{
    const int64_t band = band_rows(c->pair->weight);
    worker w;
    if (!init_worker(&w, c, arena))
        return nib__fail_memory(err, (uint64_t)c->pair->weight->k, "a comparison");
    for (int64_t i = 0; i < c->rows && out->place_count < NIB_JUDGE_PLACES; i += band) {
        set_ranges(c, &w, i, nib__min(band, c->rows - i));
        scale_places_of_row(c, rule, &w, i, out);
    }
    return NIB_OK;
}
