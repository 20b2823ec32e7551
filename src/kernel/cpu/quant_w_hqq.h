/* SPDX-License-Identifier: Apache-2.0
 *
 * The method `hqq` (Badri and Shaji 2023, half-quadratic quantization): moves the float zero of a
 * group, under rounding's scale, to make small
 *
 *   E = sum over j of |d_j|^p,   d = x - value(code),   p = 11/16.
 *
 * A step takes the nearest codes, shrinks the errors, e_j = sign(d_j) max(0, |d_j| - t_j) with
 * t_j = s |d_j / s|^(p - 1) / beta, and gives the zero the mean of x - e - s code; beta grows by
 * 1 % a step. p < 1 lets few weights lose much, so that most lose little. The authors' p is 0.7 and
 * their t lacks s: 11/16 needs square roots only, which are the same everywhere, and with s codes
 * do not depend on the size of the weights. Rounding's codes are the first candidate, and the best
 * of all stays.
 *
 * Zeros are rounded to their stored type before codes are taken. Sums have the order of
 * quant_w_search.h. Included by quant_w_body.h.
 */

enum { HQQ_STEPS = 20 };

/* v^(11/16) = v^(1/2) v^(1/8) v^(1/16); v >= 0. */
NIB_INLINE nib_lanes power_11_16(nib_lanes v)
{
    const nib_lanes half = nib__lanes_sqrt(v);
    const nib_lanes eighth = nib__lanes_sqrt(nib__lanes_sqrt(half));
    return nib__lanes_mul(nib__lanes_mul(half, eighth), nib__lanes_sqrt(eighth));
}

NIB_INLINE nib_lanes magnitude(nib_lanes v)
{
    return nib__lanes_max(v, nib__lanes_sub(nib__lanes_set(0), v));
}

/* What a group loses under a scale and zero, and the zero that its codes ask for. */
typedef struct hqq_sums {
    float error, zero;
} hqq_sums;

/* codes: NULL: the nearest ones. */
NIB_INLINE hqq_sums hqq_step(const searched *s, affine a, const int8_t *codes, float beta)
{
    const nib_lanes none = nib__lanes_set(0), scale = nib__lanes_set(a.scale);
    nib_lanes error = none, zero = none;
    for (int64_t j = 0; j < s->count; j += NIB_LANES) {
        const int64_t some = nib__min(NIB_LANES, s->count - j);
        elements e = elements_at(s, GRID_INTEGERS, false, a, j);
        if (codes != NULL) {
            float values[NIB_LANES] = {0};
            code_values(values, codes + j, some, NIB_CODE_I8);
            e.code = nib__lanes_load(values);
        }
        const nib_lanes without = nib__lanes_fma(nib__lanes_sub(none, scale), e.code, e.x);
        nib_lanes lost = nib__lanes_sub(without, nib__lanes_set(a.after));
        if (some < NIB_LANES)
            lost = nib__lanes_keep_first(lost, some);
        error = nib__lanes_add(error, power_11_16(magnitude(lost)));
        const nib_lanes steps = nib__lanes_max(
            nib__lanes_mul(magnitude(lost), nib__lanes_set(a.inverse)), nib__lanes_set(0x1p-60f));
        const nib_lanes cut =
            nib__lanes_div(power_11_16(steps), nib__lanes_mul(steps, nib__lanes_set(beta)));
        const nib_lanes kept =
            nib__lanes_max(none, nib__lanes_fma(nib__lanes_sub(none, cut), scale, magnitude(lost)));
        /* lost less kept, with the sign of lost */
        const nib_lanes taken =
            nib__lanes_max(nib__lanes_min(lost, kept), nib__lanes_sub(none, kept));
        nib_lanes wanted = nib__lanes_sub(without, taken);
        if (some < NIB_LANES)
            wanted = nib__lanes_keep_first(wanted, some);
        zero = nib__lanes_add(zero, wanted);
    }
    return (hqq_sums){.error = nib__lanes_sum(error),
                      .zero = nib__lanes_sum(zero) / (float)s->count};
}

/* As search_group. */
static void move_zero(const nib_quantizer *q, nib_quant_family family, const float *x,
                      int64_t count, params *p, int8_t *codes, double objective[2])
{
    searched s = codes_of_scheme(q, family);
    s.x = x;
    s.count = count;
    candidate b = {.at = {.scale = p->scale, .inverse = 1 / p->scale, .after = p->zero},
                   .stored = p->scale};
    float beta = 10;
    hqq_sums sums = hqq_step(&s, b.at, codes, beta);
    objective[0] += (double)sums.error;
    b.error = sums.error;
    for (int i = 0; i < HQQ_STEPS; i++) {
        trials t = {.scale = {p->scale}, .after = {sums.zero}};
        round_trials(q, family, &t, 1);
        if (!t.fits[0])
            break;
        const affine a = {t.scale[0], t.inverse[0], 0, t.after[0]};
        beta *= 1.01F;
        sums = hqq_step(&s, a, NULL, beta);
        if (sums.error < b.error)
            b = (candidate){.at = a, .stored = t.stored[0], .error = sums.error, .found = true};
    }
    objective[1] += (double)b.error;
    if (!b.found)
        return;
    put_codes(&s, b.at, codes);
    p->zero = b.at.after;
}
