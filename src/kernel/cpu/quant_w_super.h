/* SPDX-License-Identifier: Apache-2.0
 *
 * Super-blocks of ggml's K-quants: 256 inputs in groups of 32 or 16, whose scales are integer
 * multiples of one f16 d, and whose lowest values of one f16 dmin (Q2_K, Q4_K, Q5_K):
 *
 *   value = d * s_g * (q - lowest) - dmin * m_g        Q4_K, Q5_K: s_g and m_g 0..63, Q2_K: 0..15
 *   value = d * s_g * q                                Q6_K: s_g -127..127, Q3_K: -32..31
 *
 * Rounding takes each group's range, and d and dmin from the largest of the groups. The method
 * `search` first chooses every group's scale and lowest value alone, as quant_w_search.h does, then
 * d and dmin from the largest; then, in turn, the best neighboring s_g and m_g of each group, and d
 * and dmin by least squares over all groups, until E of the super-block stops falling. If rounding
 * is better, it stays. Codes are always the nearest under what is stored.
 *
 * E of a group is summed as in quant_w_search.h, and over groups in f64, ascending. Included by
 * quant_w_body.h.
 */

enum { SUPER_GROUPS = 16, SUPER_REFITS = 6 };

/* What distinguishes the types. */
typedef struct super_form {
    int64_t size;          /* elements of a group */
    int groups;            /* of a super-block */
    float lowest, highest; /* codes */
    float least, most;     /* multiples of d */
    bool has_low;          /* dmin and m_g */
} super_form;

/* A group's scale, and the value of its lowest code, at most 0; unused without has_low. */
typedef struct linear {
    float scale, low;
} linear;

/* What is stored of a super-block. */
typedef struct super_scales {
    float d, dmin;
    float scale[SUPER_GROUPS], low[SUPER_GROUPS]; /* multiples of d, and of dmin */
    double error;
} super_scales;

/* A super-block and its importance. */
typedef struct super_block {
    super_form form;
    const float *x, *w; /* [256]; w NULL: all 1 */
} super_block;

static super_form super_form_of(const nib_quantizer *q)
{
    int lowest, highest;
    const bool has_low = q->scheme.zero != NIB_ZERO_NONE, is_4 = q->scheme.code == NIB_CODE_I4;
    const int size = (int)q->scheme.group;
    nib__super_codes(&q->scheme, &lowest, &highest);
    return (super_form){.size = size,
                        .groups = NIB_SUPER_ELEMENTS / size,
                        .lowest = (float)lowest,
                        .highest = (float)highest,
                        .least = has_low ? 0 : is_4 ? -32 : -127,
                        .most = !has_low ? (is_4 ? 31 : 127) : size == 16 ? 15 : 63,
                        .has_low = has_low};
}

static searched super_group(const super_block *b, int g)
{
    const int64_t k0 = g * b->form.size;
    return (searched){.x = b->x + k0,
                      .w = b->w == NULL ? NULL : b->w + k0,
                      .count = b->form.size,
                      .grid = GRID_INTEGERS,
                      .lowest = b->form.lowest,
                      .highest = b->form.highest};
}

/* 1 / scale; 0: it is infinite, so that all codes are that of 0. */
static float finite_inverse(float scale)
{
    const float inverse = 1 / scale;
    return fabsf(inverse) < INFINITY ? inverse : 0;
}

/* Values as readers compute them: 8 * scale is exact for Q4_K. */
static affine affine_of(const super_form *f, linear l)
{
    return (affine){.scale = l.scale,
                    .inverse = finite_inverse(l.scale),
                    .after = f->has_low ? l.low - f->lowest * l.scale : 0};
}

NIB_INLINE float error_with(const searched *s, bool has_w, affine a)
{
    nib_lanes sum = nib__lanes_set(0);
    for (int64_t j = 0; j < s->count; j += NIB_LANES)
        sum = add_lost(sum, elements_at(s, GRID_INTEGERS, has_w, a, j), a);
    return nib__lanes_sum(sum);
}

/* E of several candidates. None decides what is computed of another, so that the processor works on
 * several at once. */
NIB_INLINE void errors_with(searched s, int64_t count, bool has_w, const affine *a, int some,
                            float *out)
{
    s.count = count;
    for (int i = 0; i < some; i++)
        out[i] = error_with(&s, has_w, a[i]);
}

static void errors_at(const searched *s, const affine *a, int some, float *out)
{
    if (s->count == 32 && s->w != NULL)
        errors_with(*s, 32, true, a, some, out);
    else if (s->count == 32)
        errors_with(*s, 32, false, a, some, out);
    else if (s->w != NULL)
        errors_with(*s, 16, true, a, some, out);
    else
        errors_with(*s, 16, false, a, some, out);
}

static float error_at(const searched *s, affine a)
{
    float error;
    errors_at(s, &a, 1, &error);
    return error;
}

/* ---- a group alone ---- */

static linear rounded_linear(const super_form *f, float low, float high)
{
    const float least = low < 0 ? low : 0;
    if (f->has_low)
        return (linear){((high > least ? high : least) - least) / (f->highest - f->lowest), least};
    return (linear){(-low > high ? low : high) / f->lowest, 0};
}

static void try_linear(const super_form *f, const searched *s, linear l, linear *best, float *error)
{
    const float here = error_at(s, affine_of(f, l));
    if (!(here < *error))
        return;
    *error = here;
    *best = l;
}

/* Least squares of scale and lowest value for the codes of the best one. */
static linear fit_linear(const super_form *f, const searched *s, linear best)
{
    const moments m = moments_of(s, GRID_INTEGERS, affine_of(f, best));
    const double one = (double)m.one, low = (double)f->lowest, c = (double)m.c - low * one,
                 cc = (double)m.cc - low * (2 * (double)m.c - low * one),
                 xc = (double)m.xc - low * (double)m.x, det = one * cc - c * c;
    if (!f->has_low)
        return (linear){(float)((double)m.xc / (double)m.cc), 0};
    const double at = ((double)m.x * cc - c * xc) / det;
    if (at < 0)
        return (linear){(float)((one * xc - (double)m.x * c) / det), (float)at};
    return (linear){(float)(xc / cc), 0};
}

/* Scales of FACTORS times the start's, with the same middle of the range; without has_low also the
 * negative ones. *error: E of the best. */
static linear best_factor(const super_form *f, const searched *s, linear start, float *error)
{
    enum { TRIED = 1 + 2 * FACTORS };
    const float steps = f->highest - f->lowest, middle = start.low + 0.5F * steps * start.scale;
    linear tried[TRIED] = {start};
    affine at[TRIED];
    float errors[TRIED];
    int count = 1, best = 0;
    for (int i = 0; i < FACTORS; i++) {
        const float scale = factors[i] * start.scale, low = middle - 0.5F * steps * scale;
        tried[count++] = (linear){scale, low < 0 ? low : 0};
        if (!f->has_low)
            tried[count++] = (linear){-scale, 0};
    }
    for (int i = 0; i < count; i++)
        at[i] = affine_of(f, tried[i]);
    errors_at(s, at, count, errors);
    for (int i = 1; i < count; i++)
        best = errors[i] < errors[best] ? i : best;
    *error = errors[best];
    return tried[best];
}

static linear search_linear(const super_form *f, const searched *s, linear start)
{
    float error;
    linear best = best_factor(f, s, start, &error);
    for (int i = 0; i < REFITS; i++) {
        const float before = error;
        const linear fit = fit_linear(f, s, best);
        if (!(fabsf(fit.scale) < INFINITY) || !(fabsf(fit.low) < INFINITY))
            break;
        try_linear(f, s, fit, &best, &error);
        if (!(error < before))
            break;
    }
    return best;
}

/* ---- all groups ---- */

static linear linear_at(const super_scales *s, int g)
{
    return (linear){s->d * s->scale[g], -(s->dmin * s->low[g])};
}

/* The multiple of `unit` that is nearest to a value. */
static float multiple(float value, float unit, float least, float most)
{
    return unit > 0 ? clamp(round_even(clamp(value / unit, least, most)), least, most) : 0;
}

/* d and dmin so that the largest scale and lowest value are their largest multiples. False: they
 * are beyond f16. */
static bool start_scales(super_scales *out, const super_form *f, const linear *wanted)
{
    float scale = 0, low = 0;
    for (int g = 0; g < f->groups; g++) {
        scale = fabsf(wanted[g].scale) > scale ? fabsf(wanted[g].scale) : scale;
        low = -wanted[g].low > low ? -wanted[g].low : low;
    }
    out->d = f16_value(f16_code(scale / f->most));
    out->dmin = f->has_low ? f16_value(f16_code(low / f->most)) : 0;
    for (int g = 0; g < f->groups; g++) {
        out->scale[g] = multiple(wanted[g].scale, out->d, f->least, f->most);
        out->low[g] = multiple(-wanted[g].low, out->dmin, 0, f->most);
    }
    return out->d < INFINITY && out->dmin < INFINITY;
}

static double total_error(const super_block *b, const super_scales *s)
{
    double total = 0;
    for (int g = 0; g < b->form.groups; g++) {
        const searched group = super_group(b, g);
        total += (double)error_at(&group, affine_of(&b->form, linear_at(s, g)));
    }
    return total;
}

/* Moves the multiples of a group to the best of their neighbors; its E. */
static float move_multiples(const super_block *b, super_scales *s, int g)
{
    enum { NEAR = 9 };
    const super_form *f = &b->form;
    const searched group = super_group(b, g);
    const int lows = f->has_low ? 3 : 1, count = 3 * lows;
    const float scale = s->scale[g], low = s->low[g];
    float scales[NEAR], multiples[NEAR], errors[NEAR];
    affine at[NEAR];
    int best = count / 2; /* where they are */
    for (int i = 0; i < count; i++) {
        scales[i] = clamp(scale + (float)(i / lows - 1), f->least, f->most);
        multiples[i] = clamp(low + (float)(f->has_low ? i % lows - 1 : 0), 0, f->most);
        at[i] = affine_of(f, (linear){s->d * scales[i], -(s->dmin * multiples[i])});
    }
    errors_at(&group, at, count, errors);
    for (int i = 0; i < count; i++)
        best = errors[i] < errors[best] ? i : best;
    s->scale[g] = scales[best];
    s->low[g] = multiples[best];
    return errors[best];
}

static void move_all(const super_block *b, super_scales *s)
{
    s->error = 0;
    for (int g = 0; g < b->form.groups; g++)
        s->error += (double)move_multiples(b, s, g);
}

/* Least squares of d and dmin for the codes and multiples of s. False: they have none. */
static bool fit_scales(const super_block *b, super_scales *s)
{
    const super_form *f = &b->form;
    const double lowest = f->has_low ? (double)f->lowest : 0;
    double uu = 0, uv = 0, vv = 0, xu = 0, xv = 0; /* u = s_g (q - lowest), v = m_g */
    for (int g = 0; g < f->groups; g++) {
        const searched group = super_group(b, g);
        const moments m = moments_of(&group, GRID_INTEGERS, affine_of(f, linear_at(s, g)));
        const double scale = (double)s->scale[g], low = (double)s->low[g], one = (double)m.one;
        uu += scale * scale * ((double)m.cc - lowest * (2 * (double)m.c - lowest * one));
        uv += scale * low * ((double)m.c - lowest * one);
        vv += low * low * one;
        xu += scale * ((double)m.xc - lowest * (double)m.x);
        xv += low * (double)m.x;
    }
    const double det = uu * vv - uv * uv;
    const double d = vv > 0 ? (xu * vv - xv * uv) / det : xu / uu,
                 dmin = vv > 0 ? (xu * uv - xv * uu) / det : 0;
    if (!(d > 0 && dmin >= 0))
        return false;
    s->d = f16_value(f16_code((float)d));
    s->dmin = f16_value(f16_code((float)dmin));
    return s->d > 0 && s->d < INFINITY && s->dmin < INFINITY;
}

/* Replaces rounding's scales by better ones, if there are any. */
static void search_super(const super_block *b, const linear *rounded, super_scales *best)
{
    linear wanted[SUPER_GROUPS] = {{0}};
    super_scales s;
    for (int g = 0; g < b->form.groups; g++) {
        const searched group = super_group(b, g);
        wanted[g] = search_linear(&b->form, &group, rounded[g]);
    }
    if (!start_scales(&s, &b->form, wanted))
        return;
    move_all(b, &s);
    for (int i = 0; i < SUPER_REFITS; i++) {
        if (s.error < best->error)
            *best = s;
        const double before = s.error;
        if (!fit_scales(b, &s))
            return;
        move_all(b, &s);
        if (!(s.error < before))
            return;
    }
    if (s.error < best->error)
        *best = s;
}

/* Where the results of a super-block go; scales and zeros begin at element `group`. */
typedef struct super_result {
    const nib_quantizer *q;
    int8_t *codes;
    void *scales, *zeros;
    int64_t group;
    double *sums, *objective; /* of the row */
} super_result;

static void put_super(const super_block *b, const super_scales *s, const super_result *to)
{
    for (int g = 0; g < b->form.groups; g++) {
        const searched group = super_group(b, g);
        const affine a = affine_of(&b->form, linear_at(s, g));
        int8_t *codes = to->codes + g * b->form.size;
        put_codes(&group, a, codes);
        nib__quant_store(to->scales, NIB_TYPE_F32, to->group + g, a.scale);
        if (b->form.has_low)
            nib__quant_store(to->zeros, NIB_TYPE_F32, to->group + g, a.after);
        add_error(to->q, to->sums, codes, group.x, group.count,
                  (params){.scale = a.scale, .zero = a.after});
    }
}

/* The group with the largest value. */
static int largest_group(const super_block *b)
{
    const int count = b->form.groups * (int)b->form.size;
    int most = 0;
    for (int j = 1; j < count; j++)
        most = fabsf(b->x[j]) > fabsf(b->x[most]) ? j : most;
    return most / (int)b->form.size;
}

/* Chooses the scales of a super-block. objective: E of rounding's, and of these. Returns 0, or
 * 1 + 2 * g if a value of group g is not finite, or 2 + 2 * g if it needs a scale beyond f16. */
static int32_t choose_scales(const super_block *b, bool searches, super_scales *best,
                             double objective[2])
{
    linear rounded[SUPER_GROUPS] = {{0}};
    for (int g = 0; g < b->form.groups; g++) {
        float low, high;
        if (!range_of(b->x + g * b->form.size, b->form.size, &low, &high))
            return 1 + 2 * g;
        rounded[g] = rounded_linear(&b->form, low, high);
    }
    if (!start_scales(best, &b->form, rounded))
        return 2 + 2 * largest_group(b);
    best->error = total_error(b, best);
    objective[0] += best->error;
    if (searches)
        search_super(b, rounded, best);
    objective[1] += best->error;
    return 0;
}

/* Returns as choose_scales. */
static int32_t quantize_super(const super_block *b, const super_result *to)
{
    super_scales best;
    const int32_t failed = choose_scales(b, to->q->method == NIB_PTQ_SEARCH, &best, to->objective);
    if (failed == 0)
        put_super(b, &best, to);
    return failed;
}
