/* SPDX-License-Identifier: Apache-2.0
 *
 * The method `search`: chooses a group's scale, and zero, by the weighted squared error
 *
 *   E = sum over j of w_j * (x_j - value(code_j))^2,   code_j the nearest to x_j under that scale,
 *
 * where w_j is nib_quantizer.importance. Rounding's own codes are the first candidate, then scales
 * of FACTORS times rounding's; the best is refitted to its codes by least squares until E stops
 * falling. Every scale is rounded to its stored type before codes are taken, so each code is the
 * nearest under the scale in the file, and no group is worse than rounding. Of two equal
 * candidates the earlier one stays.
 *
 * Sums are f32 in SEARCH_LANES lanes, element j in lane j modulo SEARCH_LANES, ascending; lanes are
 * added as a tree, the upper half to the lower first. The least squares are solved in f64.
 * Included by quant_w_body.h.
 */

enum { SEARCH_LANES = 8, FACTORS = 13, REFITS = 4 };

/* Scales tried, relative to rounding's. 13 and a refit find 97 % of what 180 of them find. */
static const float factors[FACTORS] = {0.72F, 0.75F, 0.78F, 0.81F, 0.84F, 0.87F, 0.9F,
                                       0.93F, 0.96F, 0.99F, 1.02F, 1.05F, 1.08F};

/* A group, and the codes that it can have. */
typedef struct searched {
    const float *x, *w; /* [count]; w NULL: all 1 */
    int64_t count;
    nib_element element;
    float lowest, highest; /* of integer codes */
} searched;

/* value = (code - before) * scale + after. stored: the scale in the file; that of NVFP4 is
 * multiplied by the tensor's. */
typedef struct affine {
    float scale, before, after, stored;
} affine;

NIB_INLINE float nearest_code(const searched *s, nib_element element, float v)
{
    if (element == NIB_ELEMENT_E4M3)
        return e4m3_value(e4m3_code(v, 0x7e));
    if (element == NIB_ELEMENT_E2M1)
        return e2m1_value(e2m1_code(v));
    return round_even(clamp(v, s->lowest, s->highest));
}

NIB_INLINE float sum_of_lanes(float lanes[SEARCH_LANES])
{
    for (int step = SEARCH_LANES / 2; step > 0; step /= 2)
        for (int l = 0; l < step; l++)
            lanes[l] += lanes[l + step];
    return lanes[0];
}

/* E under a, for codes of one element. */
NIB_INLINE float error_of(const searched *s, nib_element element, affine a)
{
    float lanes[SEARCH_LANES] = {0};
    const float inverse = 1 / a.scale;
    int64_t j = 0;
    for (; j + SEARCH_LANES <= s->count; j += SEARCH_LANES)
        for (int l = 0; l < SEARCH_LANES; l++) {
            const float x = s->x[j + l], w = s->w != NULL ? s->w[j + l] : 1;
            const float code = nearest_code(s, element, (x - a.after) * inverse + a.before);
            const float lost = x - ((code - a.before) * a.scale + a.after);
            lanes[l] += w * (lost * lost);
        }
    for (int l = 0; j < s->count; j++, l++) {
        const float x = s->x[j], w = s->w != NULL ? s->w[j] : 1;
        const float code = nearest_code(s, element, (x - a.after) * inverse + a.before);
        const float lost = x - ((code - a.before) * a.scale + a.after);
        lanes[l] += w * (lost * lost);
    }
    return sum_of_lanes(lanes);
}

/* Weighted sums over a group of the codes c, less `before`, and of the weights x. */
typedef struct moments {
    float one, x, c, xc, cc;
} moments;

NIB_INLINE moments moments_of(const searched *s, nib_element element, affine a)
{
    float one[SEARCH_LANES] = {0}, sx[SEARCH_LANES] = {0}, sc[SEARCH_LANES] = {0},
          sxc[SEARCH_LANES] = {0}, scc[SEARCH_LANES] = {0};
    const float inverse = 1 / a.scale;
    for (int64_t j0 = 0; j0 < s->count; j0 += SEARCH_LANES)
        for (int l = 0; l < nib__min(SEARCH_LANES, s->count - j0); l++) {
            const float x = s->x[j0 + l], w = s->w != NULL ? s->w[j0 + l] : 1;
            const float c = nearest_code(s, element, (x - a.after) * inverse + a.before) - a.before;
            one[l] += w;
            sx[l] += w * x;
            sc[l] += w * c;
            sxc[l] += w * (x * c);
            scc[l] += w * (c * c);
        }
    return (moments){.one = sum_of_lanes(one),
                     .x = sum_of_lanes(sx),
                     .c = sum_of_lanes(sc),
                     .xc = sum_of_lanes(sxc),
                     .cc = sum_of_lanes(scc)};
}

NIB_INLINE float find_error(const searched *s, affine a)
{
    return s->element == NIB_ELEMENT_E4M3   ? error_of(s, NIB_ELEMENT_E4M3, a)
           : s->element == NIB_ELEMENT_E2M1 ? error_of(s, NIB_ELEMENT_E2M1, a)
                                            : error_of(s, NIB_ELEMENT_I4, a);
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

/* The nearest values that a file can hold; false: the scale is 0, not finite or of the wrong
 * sign. */
static bool round_stored(const nib_quantizer *q, nib_quant_family family, affine *a)
{
    const bool is_signed = family == NIB_QUANT_GGML && q->scheme.code == NIB_CODE_I4;
    const nib_type type = family == NIB_QUANT_GGML ? NIB_TYPE_F16 : q->scale_type;
    if (!isfinite(a->scale))
        return false;
    a->scale = a->stored = round_to(type, a->scale);
    if (family == NIB_QUANT_GGML && q->scheme.zero == NIB_ZERO_FLOAT) {
        const float least = round_to(NIB_TYPE_F16, a->after - 8 * a->scale); /* of code -8 */
        a->after = least + 8 * a->scale;
        if (!isfinite(least))
            return false;
    } else if (q->scheme.zero == NIB_ZERO_FLOAT) {
        a->after = round_to(q->zero_type, a->after);
    }
    return isfinite(a->scale) && isfinite(1 / a->scale) && isfinite(a->after) &&
           (a->scale > 0 || (is_signed && q->scheme.zero == NIB_ZERO_NONE));
}

/* ---- candidates ---- */

typedef struct candidate {
    affine at;
    float error;
    bool found; /* better than rounding */
} candidate;

static void consider(const searched *s, candidate *b, affine a)
{
    const float error = find_error(s, a);
    if (error < b->error)
        *b = (candidate){.at = a, .error = error, .found = true};
}

/* Scales are powers of two (MX), or e4m3 under a scale of the tensor (NVFP4). */
static void search_steps(const nib_quantizer *q, nib_quant_family family, const searched *s,
                         float scale, candidate *b)
{
    const int below = family == NIB_QUANT_MX ? -1 : -8, above = family == NIB_QUANT_MX ? 1 : 4;
    const float tensor = q->tensor_scale != 0 ? q->tensor_scale : 1;
    for (int i = below; i <= above; i++) {
        const float step = i == 0 ? 0 : scale_after(family, scale, i);
        if (step != 0)
            consider(s, b, (affine){.scale = step * tensor, .stored = step});
    }
}

/* Any float is a scale. `middle`: of the range of the group, for zeros. */
static void search_factors(const nib_quantizer *q, nib_quant_family family, const searched *s,
                           params p, float middle, candidate *b)
{
    const bool has_int = q->scheme.zero == NIB_ZERO_INT,
               has_float = q->scheme.zero == NIB_ZERO_FLOAT;
    const bool both_signs = family == NIB_QUANT_GGML && q->scheme.code == NIB_CODE_I4 && !has_float;
    for (int i = 0; i < (both_signs ? 2 * FACTORS : FACTORS); i++) {
        const float factor = i < FACTORS ? factors[i] : -factors[i - FACTORS];
        affine a = {.scale = factor * p.scale};
        a.after = has_float ? middle + 0.5F * a.scale : 0; /* codes -8 and 7 are equally far */
        if (!round_stored(q, family, &a))
            continue;
        if (!has_int) {
            consider(s, b, a);
            continue;
        }
        const float center = 0.5F * (s->lowest + s->highest) - middle / a.scale;
        for (int step = -1; step <= 1; step++) {
            a.before = clamp(round_even(center) + (float)step, s->lowest, s->highest);
            consider(s, b, a);
        }
    }
}

/* Fits scale and zero to the codes of the best candidate. */
static void refit(const nib_quantizer *q, nib_quant_family family, const searched *s, candidate *b)
{
    for (int i = 0; i < REFITS; i++) {
        const moments m = s->element == NIB_ELEMENT_E4M3 ? moments_of(s, NIB_ELEMENT_E4M3, b->at)
                                                         : moments_of(s, NIB_ELEMENT_I4, b->at);
        const float before = b->error;
        affine a = b->at;
        if (q->scheme.zero == NIB_ZERO_FLOAT) {
            const double det = (double)m.one * (double)m.cc - (double)m.c * (double)m.c;
            a.scale = (float)(((double)m.one * (double)m.xc - (double)m.x * (double)m.c) / det);
            a.after = (float)(((double)m.x * (double)m.cc - (double)m.c * (double)m.xc) / det);
        } else {
            a.scale = (float)((double)m.xc / (double)m.cc);
        }
        if (round_stored(q, family, &a))
            consider(s, b, a);
        if (!(b->error < before))
            return;
    }
}

static void put_codes(const searched *s, affine a, int8_t *codes)
{
    const float inverse = 1 / a.scale;
    for (int64_t j = 0; j < s->count; j++) {
        const float v = (s->x[j] - a.after) * inverse + a.before;
        codes[j] = s->element == NIB_ELEMENT_E4M3   ? (int8_t)e4m3_code(v, 0x7e)
                   : s->element == NIB_ELEMENT_E2M1 ? (int8_t)e2m1_code(v)
                                                    : (int8_t)nearest_code(s, s->element, v);
    }
}

/* E of codes that rounding chose. */
static float error_of_codes(const searched *s, const int8_t *codes, nib_code code, affine a)
{
    float lanes[SEARCH_LANES] = {0}, values[SEARCH_LANES];
    for (int64_t j = 0; j < s->count; j += SEARCH_LANES) {
        const int64_t some = nib__min(SEARCH_LANES, s->count - j);
        code_values(values, codes + j, some, code);
        for (int64_t l = 0; l < some; l++) {
            const float w = s->w != NULL ? s->w[j + l] : 1;
            const float lost = s->x[j + l] - ((values[l] - a.before) * a.scale + a.after);
            lanes[l] += w * (lost * lost);
        }
    }
    return sum_of_lanes(lanes);
}

/* Replaces rounding's codes and params of a group by better ones, if there are any. low, high: the
 * range of x. Adds E of rounding and of the result to objective. */
static void search_group(const nib_quantizer *q, nib_quant_family family, const float *x,
                         const float *w, int64_t count, float low, float high, params *p,
                         int8_t *codes, double objective[2])
{
    const bool is_8 = q->scheme.code == NIB_CODE_I8, has_int = q->scheme.zero == NIB_ZERO_INT;
    const float tensor = q->tensor_scale != 0 ? q->tensor_scale : 1;
    const searched s = {.x = x,
                        .w = w,
                        .count = count,
                        .element = nib__codes[q->scheme.code].element,
                        .lowest = !is_8                      ? -8
                                  : family == NIB_QUANT_GGML ? -127
                                                             : -128,
                        .highest = is_8 ? 127 : 7};
    candidate b = {.at = {.scale = p->scale * tensor,
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
    p->scale = b.at.stored;
    p->zero = has_int ? b.at.before : b.at.after;
}
