/* SPDX-License-Identifier: Apache-2.0
 *
 * The code of the training rows, written once on lanes and compiled per instruction set: each
 * including file names its functions through NIB_TRAIN(name). train_ops.h defines the order of
 * operations and where values are rounded. Sums over tokens run down the rows for NIB_TRAIN_STRIP
 * columns at a time; their sums stay in registers.
 */
#include "norm_lanes.h"
#include "ops.h"
#include "portable_math.h"
#include "train_ops.h"

enum { NIB_TRAIN_STRIP = 4 * NIB_LANES };

/* Gradient of one row. `mean` is subtracted from x; it is 0 if the norm is not centered. */
NIB_INLINE void norm_dx_row(const nib_norm_dx *a, int64_t row, float mean, bool centered)
{
    const float *x = a->x + row * a->ldx, *dy = a->dy + row * a->ldy;
    const float *sum = a->sum != NULL ? a->sum + row * a->lddx : NULL;
    const float *weight = nib__norm_weights(a->weight, row, a->width, a->weights);
    const nib_lanes middle = nib__lanes_set(mean);
    float *dx = a->dx + row * a->lddx;
    nib_lanes squares = nib__lanes_set(0.0f), dot = squares, level = squares;
    for (int64_t i = 0; i < a->width; i += NIB_LANES) {
        const nib_lanes v = centered ? nib__norm_centered(x, i, a->width, middle)
                                     : nib__lanes_load_at(x, i, a->width);
        const nib_lanes d = nib__lanes_mul(nib__lanes_load_at(weight, i, a->width),
                                           nib__lanes_load_at(dy, i, a->width));
        squares = nib__lanes_fma(v, v, squares);
        dot = nib__lanes_fma(v, d, dot);
        if (centered)
            level = nib__lanes_add(level, d);
    }
    const float r = 1.0f / sqrtf(nib__lanes_sum(squares) / (float)a->width + a->eps);
    const float along = r * r * (nib__lanes_sum(dot) / (float)a->width);
    const nib_lanes scale = nib__lanes_set(r), minus = nib__lanes_set(-along);
    const nib_lanes off = nib__lanes_set(centered ? nib__lanes_sum(level) / (float)a->width : 0.0f);
    for (int64_t i = 0; i < a->width; i += NIB_LANES) {
        nib_lanes d = nib__lanes_mul(nib__lanes_load_at(weight, i, a->width),
                                     nib__lanes_load_at(dy, i, a->width));
        nib_lanes v = nib__lanes_load_at(x, i, a->width);
        if (centered)
            d = nib__lanes_sub(d, off), v = nib__lanes_sub(v, middle);
        const nib_lanes across = nib__lanes_fma(v, minus, d);
        const nib_lanes before =
            sum != NULL ? nib__lanes_load_at(sum, i, a->width) : nib__lanes_set(0.0f);
        nib__lanes_store_at(dx, i, a->width, nib__lanes_fma(across, scale, before));
    }
    a->inverse[row] = r;
}

void NIB_TRAIN(norm_dx)(const nib_norm_dx *a, int64_t row0, int64_t row1)
{
    for (int64_t row = row0; row < row1; row++) {
        if (a->centered) {
            a->mean[row] = nib__norm_mean(a->x + row * a->ldx, a->width);
            norm_dx_row(a, row, a->mean[row], true);
        } else {
            norm_dx_row(a, row, 0.0f, false);
        }
    }
}

/* ---- sums over tokens ---- */

/* Writes (`first`) or adds the sums of one block of rows, for up to NIB_TRAIN_STRIP columns.
 * Columns are independent, so it does not matter where strips begin. */
NIB_INLINE void put_strip(float *out, const nib_lanes sums[4], int64_t count, bool first)
{
    for (int l = 0; l < 4; l++) {
        const int64_t i = l * NIB_LANES;
        if (i < count)
            nib__lanes_store_at(out, i, count,
                                first ? sums[l]
                                      : nib__lanes_add(nib__lanes_load_at(out, i, count), sums[l]));
    }
}

NIB_INLINE void norm_dw_strip(const nib_norm_dw *a, int64_t row0, int64_t row1, int64_t column,
                              int64_t count, bool centered)
{
    const int64_t step =
        a->weights > 1 ? a->weights : 1; /* rows with the same weights are this far apart */
    nib_lanes sums[4];
    for (int l = 0; l < 4; l++)
        sums[l] = nib__lanes_set(0.0f);
    for (int64_t row = row0; row < row1; row++) {
        const float *x = a->x + row * a->ldx + column, *dy = a->dy + row * a->ldy + column;
        const nib_lanes r = nib__lanes_set(a->inverse[row * step]);
        const nib_lanes mean = nib__lanes_set(centered ? a->mean[row * step] : 0.0f);
        for (int l = 0; l < 4; l++) {
            const int64_t i = l * NIB_LANES;
            if (i < count) {
                nib_lanes v = nib__lanes_load_at(x, i, count);
                if (centered)
                    v = nib__lanes_sub(v, mean);
                sums[l] =
                    nib__lanes_fma(nib__lanes_load_at(dy, i, count), nib__lanes_mul(v, r), sums[l]);
            }
        }
    }
    put_strip(a->dw + column, sums, count, row0 == 0);
}

NIB_INLINE void norm_dw_as(const nib_norm_dw *a, int64_t column0, int64_t column1, bool centered)
{
    for (int64_t row = 0; row == 0 || row < a->rows; row += NIB_TRAIN_ROWS) {
        const int64_t end = nib__min(a->rows, row + NIB_TRAIN_ROWS);
        int64_t j = column0;
        for (; j + NIB_TRAIN_STRIP <= column1; j += NIB_TRAIN_STRIP)
            norm_dw_strip(a, row, end, j, NIB_TRAIN_STRIP, centered);
        if (j < column1)
            norm_dw_strip(a, row, end, j, column1 - j, centered);
    }
}

NIB_INLINE void norm_dw_of(const nib_norm_dw *a, int64_t column0, int64_t column1)
{
    if (a->mean != NULL)
        norm_dw_as(a, column0, column1, true);
    else
        norm_dw_as(a, column0, column1, false);
}

void NIB_TRAIN(norm_dw)(const nib_norm_dw *a, int64_t column0, int64_t column1)
{
    if (a->weights <= 1) {
        norm_dw_of(a, column0, column1);
        return;
    }
    for (int64_t w = column0 / a->width; w * a->width < column1; w++) {
        const int64_t before = w * a->width;
        nib_norm_dw one = *a; /* every weights-th row, from row w on */
        one.x += w * a->ldx, one.dy += w * a->ldy, one.dw += before;
        one.inverse += w, one.mean += a->mean != NULL ? w : 0;
        one.ldx *= a->weights, one.ldy *= a->weights, one.rows /= a->weights;
        norm_dw_of(&one, nib__max(column0 - before, 0), nib__min(column1 - before, a->width));
    }
}

NIB_INLINE void bias_dw_strip(const nib_bias_dw *a, int64_t m0, int64_t m1, int64_t column,
                              int64_t count)
{
    nib_lanes sums[4];
    for (int l = 0; l < 4; l++)
        sums[l] = nib__lanes_set(0.0f);
    for (int64_t m = m0; m < m1; m++) {
        const float *dy = a->dy + m * a->ldy + column;
        for (int l = 0; l < 4; l++) {
            const int64_t i = l * NIB_LANES;
            if (i < count)
                sums[l] = nib__lanes_add(sums[l], nib__lanes_load_at(dy, i, count));
        }
    }
    put_strip(a->db + column, sums, count, m0 == 0);
}

void NIB_TRAIN(bias_dw)(const nib_bias_dw *a, int64_t column0, int64_t column1)
{
    for (int64_t m = 0; m == 0 || m < a->m; m += NIB_TRAIN_ROWS) {
        const int64_t end = nib__min(a->m, m + NIB_TRAIN_ROWS);
        int64_t j = column0;
        for (; j + NIB_TRAIN_STRIP <= column1; j += NIB_TRAIN_STRIP)
            bias_dw_strip(a, m, end, j, NIB_TRAIN_STRIP);
        if (j < column1)
            bias_dw_strip(a, m, end, j, column1 - j);
    }
}

void NIB_TRAIN(embed_dw)(const nib_embed_dw *a, int64_t column0, int64_t column1)
{
    const int64_t count = column1 - column0;
    for (int64_t m = 0; m < a->m; m++) {
        const float *dx = a->dx + m * a->width + column0;
        float *d = a->d + a->ids[m] * a->width + column0;
        for (int64_t i = 0; i < count; i += NIB_LANES)
            nib__lanes_store_at(
                d, i, count,
                nib__lanes_add(nib__lanes_load_at(d, i, count), nib__lanes_load_at(dx, i, count)));
    }
}

/* ---- swiglu and scale ---- */

/* An activation, *slope its derivative. */
NIB_INLINE nib_lanes swiglu_slope(nib_lanes g, const nib_activation as, nib_lanes *slope)
{
    const nib_lanes one = nib__lanes_set(1.0f);
    nib_lanes s;
    if (as == NIB_SIGMOID) {
        s = nib__lanes_sigmoid(g);
        *slope = nib__lanes_mul(s, nib__lanes_sigmoid(nib__lanes_sub(nib__lanes_set(0.0f), g)));
        return s;
    }
    const bool gelu = as == NIB_GELU_TANH;
    const nib_lanes y = gelu ? nib__lanes_gelu(g, &s) : nib__lanes_silu(g, &s);
    const nib_lanes along = gelu ? nib__lanes_mul(g, nib__lanes_gelu_slope(g)) : g;
    *slope = nib__lanes_mul(s, nib__lanes_fma(along, nib__lanes_sub(one, s), one));
    return y;
}

NIB_INLINE void swiglu_dx_as(const nib_swiglu_dx *a, int64_t m0, int64_t m1,
                             const nib_activation as, bool gated)
{
    for (int64_t m = m0; m < m1; m++) {
        const float *gate = a->gate + m * a->ld, *dy = a->dy + m * a->ldy;
        const float *up = gated ? a->up + m * a->ldu : NULL;
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes d = nib__lanes_load_at(dy, i, a->width);
            nib_lanes slope;
            const nib_lanes y = swiglu_slope(nib__lanes_load_at(gate, i, a->width), as, &slope);
            const nib_lanes both =
                gated ? nib__lanes_mul(d, nib__lanes_load_at(up, i, a->width)) : d;
            nib__lanes_store_at(a->dgate + m * a->ld, i, a->width, nib__lanes_mul(both, slope));
            if (gated)
                nib__lanes_store_at(a->dup + m * a->ldu, i, a->width, nib__lanes_mul(d, y));
        }
    }
}

static void one_gate_dx(const nib_swiglu_dx *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++) {
        const float *up = a->up + m * a->ldu, *dy = a->dy + m * a->ldy;
        nib_lanes sum = nib__lanes_set(0.0f), slope;
        const nib_lanes y = swiglu_slope(nib__lanes_set(a->gate[m * a->ld]), a->activation, &slope);
        float slopes[NIB_LANES];
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes d = nib__lanes_load_at(dy, i, a->width);
            sum = nib__lanes_fma(d, nib__lanes_load_at(up, i, a->width), sum);
            nib__lanes_store_at(a->dup + m * a->ldu, i, a->width, nib__lanes_mul(d, y));
        }
        nib__lanes_store(slopes, slope);
        a->dgate[m * a->ld] = nib__lanes_sum(sum) * slopes[0];
    }
}

/* NIB_SWIGLU_CLAMPED: as the forward pass, with its division. */
static void clamped_dx(const nib_swiglu_dx *a, int64_t m0, int64_t m1)
{
    const nib_lanes most = nib__lanes_set(a->limit), least = nib__lanes_set(-a->limit),
                    one = nib__lanes_set(1.0f), slope = nib__lanes_set(-a->alpha);
    for (int64_t m = m0; m < m1; m++)
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            const nib_lanes d = nib__lanes_load_at(a->dy + m * a->ldy, i, a->width),
                            gate = nib__lanes_load_at(a->gate + m * a->ld, i, a->width),
                            up = nib__lanes_load_at(a->up + m * a->ldu, i, a->width);
            const nib_lanes g = nib__lanes_min(most, gate),
                            u = nib__lanes_max(least, nib__lanes_min(most, up)),
                            x = nib__lanes_mul(g, slope),
                            under = nib__lanes_add(one, nib__lanes_exp(x)),
                            s = nib__lanes_div(one, under);
            /* s * (1 + alpha g * (1 - s)): x is -alpha g */
            const nib_lanes along =
                nib__lanes_mul(s, nib__lanes_fma(x, nib__lanes_sub(s, one), one));
            float dgate[NIB_LANES], dup[NIB_LANES], gates[NIB_LANES], ups[NIB_LANES];
            nib__lanes_store(dgate,
                             nib__lanes_mul(nib__lanes_mul(d, nib__lanes_add(u, one)), along));
            nib__lanes_store(dup, nib__lanes_mul(d, nib__lanes_div(g, under)));
            nib__lanes_store(gates, gate);
            nib__lanes_store(ups, up);
            for (int l = 0; l < NIB_LANES; l++) {
                dgate[l] = gates[l] > a->limit ? 0.0f : dgate[l];
                dup[l] = ups[l] > a->limit || ups[l] < -a->limit ? 0.0f : dup[l];
            }
            nib__lanes_store_at(a->dgate + m * a->ld, i, a->width, nib__lanes_load(dgate));
            nib__lanes_store_at(a->dup + m * a->ldu, i, a->width, nib__lanes_load(dup));
        }
}

void NIB_TRAIN(swiglu_dx)(const nib_swiglu_dx *a, int64_t m0, int64_t m1)
{
    const bool gelu = a->activation == NIB_GELU_TANH, sigmoid = a->activation == NIB_SIGMOID;
    if (a->activation == NIB_SWIGLU_CLAMPED)
        clamped_dx(a, m0, m1);
    else if (a->one_gate)
        one_gate_dx(a, m0, m1);
    else if (gelu && a->up != NULL)
        swiglu_dx_as(a, m0, m1, NIB_GELU_TANH, true);
    else if (gelu)
        swiglu_dx_as(a, m0, m1, NIB_GELU_TANH, false);
    else if (sigmoid && a->up != NULL)
        swiglu_dx_as(a, m0, m1, NIB_SIGMOID, true);
    else if (sigmoid)
        swiglu_dx_as(a, m0, m1, NIB_SIGMOID, false);
    else if (a->up != NULL)
        swiglu_dx_as(a, m0, m1, NIB_SILU, true);
    else
        swiglu_dx_as(a, m0, m1, NIB_SILU, false);
}

NIB_INLINE void scale_dx_as(const nib_scale_dx *a, int64_t m0, int64_t m1, bool capped)
{
    const nib_lanes scale = nib__lanes_set(a->scale), cap = nib__lanes_set(a->cap);
    const nib_lanes zero = nib__lanes_set(0.0f), one = nib__lanes_set(1.0f);
    for (int64_t m = m0; m < m1; m++) {
        const float *x = capped ? a->x + m * a->ldx : NULL, *dy = a->dy + m * a->ldy;
        float *dx = a->dx + m * a->lddx;
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            nib_lanes d = nib__lanes_mul(nib__lanes_load_at(dy, i, a->width), scale);
            if (capped) {
                const nib_lanes v = nib__lanes_mul(nib__lanes_load_at(x, i, a->width), scale);
                const nib_lanes t = nib__lanes_tanh(nib__lanes_div(v, cap));
                d = nib__lanes_mul(d, nib__lanes_fma(nib__lanes_sub(zero, t), t, one));
            }
            nib__lanes_store_at(dx, i, a->width, d);
        }
    }
}

void NIB_TRAIN(scale_dx)(const nib_scale_dx *a, int64_t m0, int64_t m1)
{
    if (a->x != NULL && a->cap != 0.0f)
        scale_dx_as(a, m0, m1, true);
    else
        scale_dx_as(a, m0, m1, false);
}

/* ---- sinks of attention ---- */

void NIB_TRAIN(sinks_dw)(const nib_sinks_dw *a, int64_t head0, int64_t head1)
{
    for (int64_t h = head0; h < head1; h++) {
        const nib_lanes sink = nib__lanes_set(a->sinks[h]);
        float total = 0.0f;
        for (int64_t first = 0; first < a->m; first += NIB_TRAIN_ROWS) {
            float sum = 0.0f;
            for (int64_t m = first; m < nib__min(a->m, first + NIB_TRAIN_ROWS); m++) {
                const float *out = a->out + m * a->ldo + h * a->dim,
                            *dout = a->dout + m * a->ldd + h * a->dim;
                nib_lanes dot = nib__lanes_set(0.0f);
                float share[NIB_LANES];
                for (int64_t i = 0; i < a->dim; i += NIB_LANES)
                    dot = nib__lanes_fma(nib__lanes_load_at(out, i, a->dim),
                                         nib__lanes_load_at(dout, i, a->dim), dot);
                nib__lanes_store(share, nib__lanes_exp(nib__lanes_sub(
                                            sink, nib__lanes_set(a->lse[m * a->heads + h]))));
                sum = fmaf(-share[0], nib__lanes_sum(dot), sum);
            }
            total = first == 0 ? sum : total + sum;
        }
        a->dw[h] = total;
    }
}

/* ---- cross-entropy ---- */

/* The largest of `count` values. It skips a NaN, which the sum will contain. Four sets of lanes, so
 * that one maximum does not wait for the previous one. */
NIB_INLINE float largest_of(const float *x, int64_t count)
{
    nib_lanes most[4];
    float best[NIB_LANES];
    int64_t i = 0;
    for (int l = 0; l < 4; l++)
        most[l] = nib__lanes_set(-INFINITY);
    for (; i + NIB_TRAIN_STRIP <= count; i += NIB_TRAIN_STRIP)
        for (int l = 0; l < 4; l++)
            most[l] = nib__lanes_max(nib__lanes_load(x + i + l * NIB_LANES), most[l]);
    for (int l = 1; l < 4; l++)
        most[0] = nib__lanes_max(most[l], most[0]);
    nib__lanes_store(best, most[0]);
    for (; i < count; i++)
        best[0] = x[i] > best[0] ? x[i] : best[0];
    for (int l = 1; l < NIB_LANES; l++)
        best[0] = best[l] > best[0] ? best[l] : best[0];
    return best[0];
}

/* The sum of e^(x - most) over `count` values; with `keep`, stores them in x. */
NIB_INLINE float sum_of_exp(float *x, int64_t count, nib_lanes most, bool keep)
{
    nib_lanes sum = nib__lanes_set(0.0f);
    int64_t i = 0;
    for (; i + NIB_LANES <= count; i += NIB_LANES) {
        const nib_lanes e = nib__lanes_exp(nib__lanes_sub(nib__lanes_load(x + i), most));
        sum = nib__lanes_add(sum, e);
        if (keep)
            nib__lanes_store(x + i, e);
    }
    if (i < count) { /* lanes past the end add 0 */
        float part[NIB_LANES] = {0};
        nib__lanes_store_part(
            part, nib__lanes_exp(nib__lanes_sub(nib__lanes_load_part(x + i, count - i), most)),
            count - i);
        sum = nib__lanes_add(sum, nib__lanes_load(part));
        if (keep)
            memcpy(x + i, part, (size_t)(count - i) * sizeof *x);
    }
    return nib__lanes_sum(sum);
}

void NIB_TRAIN(xent)(const nib_xent *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++) {
        float *x = a->x + m * a->ldx;
        const int32_t target = a->target[m];
        if (target < 0) {
            a->loss[m] = 0.0f;
            if (a->gradient)
                memset(x, 0, (size_t)a->vocab * sizeof *x);
            continue;
        }
        const float most = largest_of(x, a->vocab), chosen = x[target];
        const nib_lanes all = nib__lanes_set(most);
        double sum = 0.0;
        for (int64_t i = 0; i < a->vocab; i += NIB_SUM_BLOCK)
            sum +=
                (double)sum_of_exp(x + i, nib__min(NIB_SUM_BLOCK, a->vocab - i), all, a->gradient);
        a->loss[m] = (float)(nib__log(sum) + ((double)most - (double)chosen));
        if (!a->gradient)
            continue;
        const double likely = (double)x[target] / sum;
        const nib_lanes factor = nib__lanes_set((float)((double)a->scale / sum));
        for (int64_t i = 0; i < a->vocab; i += NIB_LANES)
            nib__lanes_store_at(x, i, a->vocab,
                                nib__lanes_mul(nib__lanes_load_at(x, i, a->vocab), factor));
        x[target] = (float)((likely - 1.0) * (double)a->scale);
    }
}

/* ---- the optimizer ---- */

void NIB_TRAIN(squares)(const nib_squares *a, int64_t part0, int64_t part1)
{
    for (int64_t part = part0; part < part1; part++) {
        const float *x = a->x + part * NIB_TRAIN_PART;
        const int64_t count = nib__min(NIB_TRAIN_PART, a->count - part * NIB_TRAIN_PART);
        nib_wide sum = nib__wide_zero();
        for (int64_t i = 0; i < count; i += NIB_LANES)
            sum = nib__wide_add_squares(nib__lanes_load_at(x, i, count), sum);
        a->out[part] = nib__wide_sum(sum);
    }
}

void NIB_TRAIN(adamw)(const nib_adamw *a, int64_t i0, int64_t i1)
{
    const nib_lanes clip = nib__lanes_set(a->clip), shrink = nib__lanes_set(a->shrink);
    const nib_lanes rest1 = nib__lanes_set(a->rest1), rest2 = nib__lanes_set(a->rest2);
    const nib_lanes beta2 = nib__lanes_set(a->beta2), step = nib__lanes_set(-a->step);
    const nib_lanes root = nib__lanes_set(a->root), eps = nib__lanes_set(a->eps);
    for (int64_t i = i0; i < i1; i += NIB_LANES) {
        const nib_lanes g = nib__lanes_mul(nib__lanes_load_at(a->g, i, i1), clip);
        nib_lanes m = nib__lanes_load_at(a->m, i, i1), v = nib__lanes_load_at(a->v, i, i1);
        m = nib__lanes_fma(nib__lanes_sub(g, m), rest1, m);
        v = nib__lanes_fma(nib__lanes_mul(rest2, g), g, nib__lanes_mul(v, beta2));
        const nib_lanes p = nib__lanes_mul(nib__lanes_load_at(a->p, i, i1), shrink);
        const nib_lanes size = nib__lanes_add(nib__lanes_div(nib__lanes_sqrt(v), root), eps);
        nib__lanes_store_at(a->p, i, i1, nib__lanes_fma(nib__lanes_div(m, size), step, p));
        nib__lanes_store_at(a->m, i, i1, m);
        nib__lanes_store_at(a->v, i, i1, v);
    }
}
