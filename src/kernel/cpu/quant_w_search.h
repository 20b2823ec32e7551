/* SPDX-License-Identifier: Apache-2.0
 *
 * The method `search`: chooses a group's scale, and zero, by the weighted squared error
 *
 *   E = sum over j of w_j * (x_j - value(code_j))^2,   code_j the nearest to x_j under that scale,
 *
 * where w_j is nib_quantizer.importance. Rounding's own codes are the first candidate, then scales
 * of FACTORS times rounding's; the best is refitted to its codes by least squares until E stops
 * falling. Every scale is rounded to its stored type before codes are taken, so each code that is
 * chosen here is the nearest under the scale in the file; no group is worse than rounding. Of two
 * equal candidates the earlier one stays.
 *
 * Sums are f32 in the lanes of lanes.h, element j in lane j modulo 16, ascending, each product
 * added by one fma; then nib__lanes_sum. The least squares are solved in f64. Included by
 * quant_w_body.h.
 */

enum { FACTORS = 8, TRIALS = 16, REFITS = 4 };

/* Scales tried, relative to rounding's. With a refit, these remove 17.5 % of the error of Gemma 3
 * 1B's shapes in int4wo-sym, twice as many 18.0 %. */
static const float factors[FACTORS] = {0.72F, 0.77F, 0.82F, 0.87F, 0.91F, 0.95F, 0.99F, 1.04F};
/* The same for up to three bits, whose few values gain by clipping more of the range. */
static const float few_factors[FACTORS] = {0.3F, 0.4F, 0.5F, 0.6F, 0.7F, 0.8F, 0.9F, 1.0F};

/* The values among which a code is the nearest. */
typedef enum code_grid {
    GRID_INTEGERS, /* from searched.lowest to highest */
    GRID_E4M3,
    GRID_E2M1,
    GRID_LEVELS, /* IQ4_NL */
} code_grid;

/* A group, and the codes that it can have. */
typedef struct searched {
    const float *x, *w; /* [count]; w NULL: all 1 */
    int64_t count;
    code_grid grid;
    float lowest, highest; /* of integer codes */
} searched;

NIB_INLINE searched codes_of_scheme(const nib_quantizer *q, nib_quant_family family)
{
    const int most = nib__code_is_int(q->scheme.code) ? nib__code_most(q->scheme.code) : 0;
    const nib_element element = nib__codes[q->scheme.code].element;
    return (searched){.grid = family == NIB_QUANT_LEVELS    ? GRID_LEVELS
                              : element == NIB_ELEMENT_E4M3 ? GRID_E4M3
                              : element == NIB_ELEMENT_E2M1 ? GRID_E2M1
                                                            : GRID_INTEGERS,
                      .lowest = (float)(family == NIB_QUANT_GGML && most == 127 ? -127 : -most - 1),
                      .highest = (float)most};
}

/* value = (code - before) * scale + after; inverse: 1 / scale. */
typedef struct affine {
    float scale, inverse, before, after;
} affine;

/* The best yet. */
typedef struct candidate {
    affine at;
    float stored; /* the scale in the file; NVFP4's is multiplied by the tensor's */
    float error;
    bool found; /* better than rounding */
} candidate;

/* The nearest values of a float format with `bits` bits of mantissa, whose smallest normal number
 * is 2^least: adding 1.5 * 2^23 units in the last place of v, and subtracting them, rounds v to a
 * unit, ties to even. */
NIB_INLINE nib_lanes nearest_floats(nib_lanes v, int bits, int least, float largest)
{
    float at[NIB_LANES];
    const nib_lanes most = nib__lanes_set(largest);
    nib__lanes_store(at, nib__lanes_max(nib__lanes_min(v, most), nib__lanes_set(-largest)));
    for (int l = 0; l < NIB_LANES; l++) {
        const uint32_t exponent = bits_of(at[l]) & F32_INFINITY;
        const uint32_t normal = (uint32_t)(127 + least) << 23;
        const uint32_t unit = (exponent > normal ? exponent : normal) - ((uint32_t)bits << 23);
        const float magic = float_of((unit + (23U << 23)) | 1U << 22);
        at[l] = (at[l] + magic) - magic;
    }
    return nib__lanes_load(at);
}

NIB_INLINE nib_lanes nearest_levels(nib_lanes v)
{
    float at[NIB_LANES];
    nib__lanes_store(at, v);
    for (int l = 0; l < NIB_LANES; l++)
        at[l] = nearest_level(at[l]);
    return nib__lanes_load(at);
}

/* The codes nearest to v, as numbers. */
NIB_INLINE nib_lanes nearest_codes(const searched *s, code_grid grid, nib_lanes v)
{
    const nib_lanes magic = nib__lanes_set(0x1.8p23f);
    if (grid == GRID_E4M3)
        return nearest_floats(v, 3, -6, E4M3_MAX);
    if (grid == GRID_E2M1)
        return nearest_floats(v, 1, 0, E2M1_MAX);
    if (grid == GRID_LEVELS)
        return nearest_levels(v);
    v = nib__lanes_min(nib__lanes_max(v, nib__lanes_set(s->lowest)), nib__lanes_set(s->highest));
    return nib__lanes_sub(nib__lanes_add(v, magic), magic);
}

/* Sixteen elements of a group; past its end x and w are 0. */
typedef struct elements {
    nib_lanes x, w, code; /* code less affine.before */
} elements;

NIB_INLINE elements elements_at(const searched *s, code_grid grid, bool has_w, affine a, int64_t j)
{
    const nib_lanes before = nib__lanes_set(a.before);
    elements e = {.x = nib__lanes_load_at(s->x, j, s->count)};
    if (has_w)
        e.w = nib__lanes_load_at(s->w, j, s->count);
    else
        e.w = s->count - j >= NIB_LANES ? nib__lanes_set(1)
                                        : nib__lanes_keep_first(nib__lanes_set(1), s->count - j);
    const nib_lanes v = nib__lanes_fma(nib__lanes_sub(e.x, nib__lanes_set(a.after)),
                                       nib__lanes_set(a.inverse), before);
    e.code = nib__lanes_sub(nearest_codes(s, grid, v), before);
    return e;
}

/* sum + w * (x - value)^2 */
NIB_INLINE nib_lanes add_lost(nib_lanes sum, elements e, affine a)
{
    const nib_lanes lost = nib__lanes_fma(nib__lanes_set(-a.scale), e.code,
                                          nib__lanes_sub(e.x, nib__lanes_set(a.after)));
    return nib__lanes_fma(nib__lanes_mul(e.w, lost), lost, sum);
}

/* What to try for a group. Where `fits` is 0, a file cannot hold the scale or the zero. */
typedef struct trials {
    int count;
    float scale[TRIALS], inverse[TRIALS], before[TRIALS], after[TRIALS], stored[TRIALS];
    int32_t fits[TRIALS];
} trials;

/* E of each of the trials; the first of the best ones stays. */
NIB_INLINE void consider_as(const searched *s, code_grid grid, bool has_w, candidate *b,
                            const trials *t)
{
    for (int i = 0; i < t->count; i++) {
        const affine a = {t->scale[i], t->inverse[i], t->before[i], t->after[i]};
        nib_lanes sum = nib__lanes_set(0);
        for (int64_t j = 0; j < s->count; j += NIB_LANES)
            sum = add_lost(sum, elements_at(s, grid, has_w, a, j), a);
        const float error = nib__lanes_sum(sum);
        if (t->fits[i] && error < b->error)
            *b = (candidate){.at = a, .stored = t->stored[i], .error = error, .found = true};
    }
}

static void consider(const searched *s, candidate *b, const trials *t)
{
    if (s->grid == GRID_E4M3)
        consider_as(s, GRID_E4M3, s->w != NULL, b, t);
    else if (s->grid == GRID_E2M1)
        consider_as(s, GRID_E2M1, s->w != NULL, b, t);
    else if (s->grid == GRID_LEVELS)
        consider_as(s, GRID_LEVELS, s->w != NULL, b, t);
    else if (s->w != NULL)
        consider_as(s, GRID_INTEGERS, true, b, t);
    else
        consider_as(s, GRID_INTEGERS, false, b, t);
}

/* Weighted sums over a group of the codes c, less `before`, and of the weights x. */
typedef struct moments {
    float one, x, c, xc, cc;
} moments;

NIB_INLINE moments moments_of(const searched *s, code_grid grid, affine a)
{
    nib_lanes one = nib__lanes_set(0), x = one, c = one, xc = one, cc = one;
    for (int64_t j = 0; j < s->count; j += NIB_LANES) {
        const elements e = elements_at(s, grid, s->w != NULL, a, j);
        const nib_lanes wc = nib__lanes_mul(e.w, e.code);
        one = nib__lanes_add(one, e.w);
        x = nib__lanes_fma(e.w, e.x, x);
        c = nib__lanes_add(c, wc);
        xc = nib__lanes_fma(wc, e.x, xc);
        cc = nib__lanes_fma(wc, e.code, cc);
    }
    return (moments){.one = nib__lanes_sum(one),
                     .x = nib__lanes_sum(x),
                     .c = nib__lanes_sum(c),
                     .xc = nib__lanes_sum(xc),
                     .cc = nib__lanes_sum(cc)};
}

/* ---- what the file can hold ---- */

/* The e4m3 or power of two `steps` after a stored scale; 0: there is none. */
static float scale_after(nib_quant_family family, float scale, int steps)
{
    if (family == NIB_QUANT_MX) {
        const int code = nib__f32_to_e8m0_up(scale) + steps;
        return code >= 1 && code <= 254 ? nib__e8m0_to_f32((uint8_t)code) : 0;
    }
    const int code = e4m3_code(scale, 0x7e) + steps;
    return code >= 8 && code <= 0x7e ? e4m3_value((uint8_t)code) : 0; /* 8 is 2^-6 */
}

NIB_INLINE void round_each(nib_type type, float *x, int count)
{
    if (type == NIB_TYPE_BF16)
        for (int i = 0; i < count; i++)
            x[i] = round_to(NIB_TYPE_BF16, x[i]);
    else if (type == NIB_TYPE_F16)
        for (int i = 0; i < count; i++)
            x[i] = f16_value(f16_code(x[i]));
}

/* Integers of 1 to 3 bits. */
NIB_INLINE bool has_few_bits(const nib_quantizer *q)
{
    return nib__code_is_odd_int(q->scheme.code) && nib__code_bits(q->scheme.code) < 4;
}

/* Whether the lowest code is farther from 0 than the highest and scales may be negative. */
static bool has_signed_scales(const nib_quantizer *q, nib_quant_family family)
{
    return family == NIB_QUANT_LEVELS || (has_few_bits(q) && q->scheme.zero == NIB_ZERO_NONE) ||
           (family == NIB_QUANT_GGML && q->scheme.code == NIB_CODE_I4 &&
            q->scheme.zero == NIB_ZERO_NONE);
}

/* Rounds scales and float zeros to what a file can hold. */
NIB_INLINE void round_trials(const nib_quantizer *q, nib_quant_family family, trials *t, int count)
{
    t->count = count;
    const bool is_ggml = family == NIB_QUANT_GGML, has_float = q->scheme.zero == NIB_ZERO_FLOAT;
    const bool is_signed = has_signed_scales(q, family);
    round_each(is_ggml ? NIB_TYPE_F16 : q->scale_type, t->scale, count);
    if (has_float && is_ggml) { /* its file has the value of code -8 */
        for (int i = 0; i < count; i++)
            t->after[i] -= 8 * t->scale[i];
        round_each(NIB_TYPE_F16, t->after, count);
        for (int i = 0; i < count; i++)
            t->after[i] += 8 * t->scale[i];
    } else if (has_float) {
        round_each(q->zero_type, t->after, count);
    }
    for (int i = 0; i < count; i++) {
        const float least = is_signed ? fabsf(t->scale[i]) : t->scale[i];
        t->stored[i] = t->scale[i];
        t->inverse[i] = 1 / t->scale[i];
        t->fits[i] = least > 0 && least < INFINITY && fabsf(t->inverse[i]) < INFINITY &&
                     fabsf(t->after[i]) < INFINITY;
    }
}

/* ---- trials ---- */

/* Scales are powers of two (MX), or e4m3 under a scale of the tensor (NVFP4). */
static void search_steps(const nib_quantizer *q, nib_quant_family family, const searched *s,
                         float scale, candidate *b)
{
    const int below = family == NIB_QUANT_MX ? -1 : -8, above = family == NIB_QUANT_MX ? 1 : 8;
    const float tensor = q->tensor_scale != 0 ? q->tensor_scale : 1;
    trials t = {0};
    for (int i = below; i <= above; i++) {
        const float step = i == 0 ? 0 : scale_after(family, scale, i);
        if (step == 0)
            continue;
        t.stored[t.count] = step;
        t.scale[t.count] = step * tensor;
        t.inverse[t.count] = 1 / t.scale[t.count];
        t.fits[t.count++] = 1;
    }
    consider(s, b, &t);
}

/* Any float is a scale. `middle`: of the range of the group, for zeros. */
static void search_factors(const nib_quantizer *q, nib_quant_family family, const searched *s,
                           params p, float middle, candidate *b)
{
    const bool has_int = q->scheme.zero == NIB_ZERO_INT,
               has_float = q->scheme.zero == NIB_ZERO_FLOAT;
    trials t;
    memset(t.before, 0, sizeof t.before);
    memset(t.after, 0, sizeof t.after);
    const float *tried = has_few_bits(q) ? few_factors : factors;
    for (int i = 0; i < FACTORS; i++)
        t.scale[i] = tried[i] * p.scale;
    for (int i = 0; has_float && i < FACTORS; i++)
        t.after[i] = middle + 0.5F * t.scale[i]; /* the lowest and highest are equally far */
    round_trials(q, family, &t, FACTORS);
    const float center = 0.5F * (s->lowest + s->highest);
    for (int i = 0; has_int && i < FACTORS; i++)
        t.before[i] = clamp(round_even(center - middle * t.inverse[i]), s->lowest, s->highest);
    consider(s, b, &t);
    if (has_int) {
        const float best = b->at.before;
        for (int i = 0; i < 2; i++) {
            t.scale[i] = t.stored[i] = b->at.scale;
            t.inverse[i] = b->at.inverse;
            t.before[i] = clamp(best + (i == 0 ? -1 : 1), s->lowest, s->highest);
            t.fits[i] = 1;
        }
        t.count = 2;
        consider(s, b, &t);
    }
    if (has_signed_scales(q, family)) {
        for (int i = 0; i < FACTORS; i++)
            t.scale[i] = -t.scale[i];
        round_trials(q, family, &t, FACTORS);
        consider(s, b, &t);
    }
}

/* Fits scale and zero to the codes of the best candidate. */
static void refit(const nib_quantizer *q, nib_quant_family family, const searched *s, candidate *b)
{
    for (int i = 0; i < REFITS; i++) {
        const moments m = s->grid == GRID_E4M3     ? moments_of(s, GRID_E4M3, b->at)
                          : s->grid == GRID_LEVELS ? moments_of(s, GRID_LEVELS, b->at)
                                                   : moments_of(s, GRID_INTEGERS, b->at);
        const float before = b->error;
        trials t;
        t.before[0] = b->at.before;
        t.after[0] = b->at.after;
        if (q->scheme.zero == NIB_ZERO_FLOAT) {
            const double det = (double)m.one * (double)m.cc - (double)m.c * (double)m.c;
            t.scale[0] = (float)(((double)m.one * (double)m.xc - (double)m.x * (double)m.c) / det);
            t.after[0] = (float)(((double)m.x * (double)m.cc - (double)m.c * (double)m.xc) / det);
        } else {
            t.scale[0] = (float)((double)m.xc / (double)m.cc);
        }
        round_trials(q, family, &t, 1);
        consider(s, b, &t);
        if (!(b->error < before))
            return;
    }
}

static void put_codes(const searched *s, affine a, int8_t *codes)
{
    for (int64_t j = 0; j < s->count; j += NIB_LANES) {
        float code[NIB_LANES];
        const int64_t some = nib__min(NIB_LANES, s->count - j);
        nib__lanes_store(code, nib__lanes_add(elements_at(s, s->grid, s->w != NULL, a, j).code,
                                              nib__lanes_set(a.before)));
        for (int64_t l = 0; l < some; l++)
            codes[j + l] = s->grid == GRID_E4M3   ? (int8_t)e4m3_code(code[l], 0x7e)
                           : s->grid == GRID_E2M1 ? (int8_t)e2m1_code(code[l])
                                                  : (int8_t)code[l];
    }
}

/* E of codes that rounding chose. */
static float error_of_codes(const searched *s, const int8_t *codes, nib_code code, affine a)
{
    nib_lanes sum = nib__lanes_set(0);
    for (int64_t j = 0; j < s->count; j += NIB_LANES) {
        float values[NIB_LANES] = {0};
        elements e = elements_at(s, GRID_INTEGERS, s->w != NULL, a, j);
        code_values(values, codes + j, nib__min(NIB_LANES, s->count - j), code);
        e.code = nib__lanes_sub(nib__lanes_load(values), nib__lanes_set(a.before));
        sum = add_lost(sum, e, a);
    }
    return nib__lanes_sum(sum);
}

/* Replaces rounding's codes and params of a group by better ones, if there are any. low, high: the
 * range of x. Adds E of rounding and of the result to objective. */
static void search_group(const nib_quantizer *q, nib_quant_family family, const float *x,
                         const float *w, int64_t count, float low, float high, params *p,
                         int8_t *codes, double objective[2])
{
    const bool has_int = q->scheme.zero == NIB_ZERO_INT;
    const float tensor = q->tensor_scale != 0 ? q->tensor_scale : 1;
    searched s = codes_of_scheme(q, family);
    s.x = x;
    s.w = w;
    s.count = count;
    candidate b = {.at = {.scale = p->scale * tensor,
                          .inverse = 1 / (p->scale * tensor),
                          .before = has_int ? p->zero : 0,
                          .after = q->scheme.zero == NIB_ZERO_FLOAT ? p->zero : 0}};
    b.error = error_of_codes(&s, codes, q->scheme.code, b.at);
    objective[0] += (double)b.error;
    if (family == NIB_QUANT_MX || family == NIB_QUANT_NV) {
        search_steps(q, family, &s, p->scale, &b);
    } else if (low < high || low != 0) {
        const float from = has_int && low > 0 ? 0 : low, to = has_int && high < 0 ? 0 : high;
        search_factors(q, family, &s, *p, 0.5F * from + 0.5F * to, &b);
        refit(q, family, &s, &b);
    }
    objective[1] += (double)b.error;
    if (!b.found)
        return;
    put_codes(&s, b.at, codes);
    p->scale = b.stored;
    p->zero = has_int ? b.at.before : b.at.after;
}
