/* SPDX-License-Identifier: Apache-2.0
 *
 * The scales of a candidate, and the weights that its codes stand for.
 */
#include "plan_handle.h"
#include "portable_math.h"
#include "quantizer.h"
#include "scales_run.h"

#include <math.h>

/* ---- scales ---- */

/* The method of the group. */
static nib_ptq_method method_of(const nib_scales_run *w)
{
    return w->job->layers[w->group->sites[0]].choice.method;
}

/* The importance of input j of a group: the mean over the layers' inputs that take one row. */
static double importance_of(const nib_scales_run *w, int64_t j)
{
    const nib_fold_group *f = w->group;
    const float *of = w->job->layers[f->sites[0]].importance;
    const int64_t head = j / f->head_dim / f->heads_per_row * f->heads_per_row;
    double sum = 0;
    for (int64_t h = 0; h < f->heads_per_row; h++)
        sum += (double)of[(head + h) * f->head_dim + j % f->head_dim];
    return sum / (double)f->heads_per_row;
}

/* The largest of `of` over the inputs that take one row with input j. */
static double largest_of(const nib_fold_group *f, const float *of, int64_t j)
{
    const int64_t head = j / f->head_dim / f->heads_per_row * f->heads_per_row;
    double largest = 0;
    for (int64_t h = 0; h < f->heads_per_row; h++)
        largest = fmax(largest, fabs((double)of[(head + h) * f->head_dim + j % f->head_dim]));
    return largest;
}

/* Magnitudes below this share of the largest count as it. */
static const double floor_share = 0x1p-12;

static double whole_largest(const float *of, int64_t count)
{
    double largest = 0;
    for (int64_t j = 0; j < count; j++)
        largest = fmax(largest, fabs((double)of[j]));
    return largest;
}

/* max |x_j|^power / max |w_j|^(1 - power); most: the largest of all x, and of all w. */
static double smooth_scale(const nib_scales_run *w, int64_t j, double power, const double most[2])
{
    const nib_fold_group *f = w->group;
    const float *extremes = w->job->stats[f->sites[0]].extremes;
    const double x = fmax(largest_of(f, extremes, j), largest_of(f, extremes + f->k, j)),
                 weight = largest_of(f, w->largest, j);
    return nib__exp(power * nib__log(fmax(x, floor_share * most[0])) -
                    (1 - power) * nib__log(fmax(weight, floor_share * most[1])));
}

/* The scales of a power, over the geometric mean of the smallest and largest. */
static void fill_scales(const nib_scales_run *w, double power)
{
    double least = INFINITY, most = 0, whole[2] = {0, 0};
    const bool smooth = method_of(w) == NIB_PTQ_SMOOTH;
    if (smooth) {
        whole[0] = whole_largest(w->job->stats[w->group->sites[0]].extremes, 2 * w->group->k);
        whole[1] = whole_largest(w->largest, w->group->k);
    }
    for (int64_t j = 0; j < w->group->k; j++) {
        const double s = smooth ? smooth_scale(w, j, power, whole)
                                : nib__exp(power / 2 * nib__log(importance_of(w, j)));
        least = s < least ? s : least;
        most = s > most ? s : most;
        w->columns[j] = (float)s;
    }
    const double middle = sqrt(least) * sqrt(most);
    for (int64_t j = 0; j < w->group->k; j++)
        w->columns[j] = (float)((double)w->columns[j] / middle);
}

nib_status nib__scales_weigh(nib_scales_run *w, nib_err *err)
{
    const int64_t k = w->group->k;
    if (method_of(w) != NIB_PTQ_SMOOTH)
        return NIB_OK;
    memset(w->largest, 0, (size_t)k * sizeof *w->largest);
    for (int i = 0; i < w->group->count; i++) {
        const nib_site *at = &w->g.model->net.sites[w->group->sites[i]];
        for (int64_t r = 0; r < at->n; r++) {
            nib__weight_row(&at->weight, r, w->norm);
            for (int64_t j = 0; j < k; j++)
                w->largest[j] = fmaxf(w->largest[j], fabsf(w->norm[j]));
        }
    }
    return isfinite(whole_largest(w->largest, k)) && whole_largest(w->largest, k) > 0
               ? NIB_OK
               : nib__fail(err, NIB_CHECK_FAILED,
                           "%s: its weights are all 0, or not finite, so that they have no scales",
                           w->job->layers[w->group->sites[0]].name);
}

float nib__scales_round(nib_type type, double x)
{
    uint8_t stored[4];
    float value = (float)x;
    nib__from_f32(stored, type, &value, 1);
    nib__to_f32(&value, stored, type, 1);
    return value;
}

nib_type nib__scales_norm_type(const nib_scales_run *w, nib_norm_part part)
{
    char name[NIB_NORM_NAME];
    const nib_network *net = &w->g.model->net;
    nib__network_norm_name(name, net, (size_t)w->group->norm, part);
    return nib__checkpoint_find(net->checkpoint, name)->type;
}

nib_status nib__scales_read_norm(const nib_scales_run *w, nib_norm_part part, nib_err *err)
{
    return nib__network_norm(w->norm, &w->g.model->net, (size_t)w->group->norm, part, err);
}

/* Divides the norm in w->norm by the scales, as it can be stored, and makes the scales those that
 * it then has. */
static void fit_to_norm(const nib_scales_run *w)
{
    const nib_type type = nib__scales_norm_type(w, NIB_NORM_WEIGHT);
    const double offset =
        nib__graph_weight(&w->g.model->net.graph, NIB_WEIGHT_NORM, (size_t)w->group->norm)->offset;
    for (int64_t j = 0; j < w->group->k; j++) {
        const double before = (double)w->norm[j] + offset;
        const float after = nib__scales_round(type, before / (double)w->columns[j] - offset);
        const double scale = before / ((double)after + offset);
        if (isfinite(scale) && scale > 0) {
            w->norm[j] = after;
            w->columns[j] = (float)scale;
        } else {
            w->columns[j] = 1;
        }
    }
}

nib_status nib__scales_make(nib_scales_run *w, int candidate, nib_err *err)
{
    if (candidate < 2) {
        for (int64_t j = 0; j < w->group->k; j++)
            w->columns[j] = 1;
        return NIB_OK;
    }
    fill_scales(w, (double)(candidate - 1) / NIB_SCALES_POWERS);
    if (w->group->norm < 0)
        return NIB_OK;
    NIB_TRY(nib__scales_read_norm(w, NIB_NORM_STORED, err));
    fit_to_norm(w);
    return NIB_OK;
}

void nib__scales_static(const nib_scales_run *w, size_t site, const float *columns, float *scale,
                        int32_t *zero)
{
    const int64_t k = w->g.model->net.sites[site].k;
    const float *extremes = w->job->stats[site].extremes;
    float range[2] = {0, 0};
    for (int64_t j = 0; j < k; j++) {
        const float s = columns != NULL ? columns[j] : 1;
        range[0] = fminf(range[0], extremes[j] / s);
        range[1] = fmaxf(range[1], extremes[k + j] / s);
    }
    nib__compute_static_scale(scale, zero, &w->job->layers[site].choice.scheme, range);
}

nib_status nib__scales_importance(const float **out, const float *importance, const float *columns,
                                  int64_t k, nib_arena *arena, nib_err *err)
{
    float *to = nib__arena_take(arena, (uint64_t)k, sizeof *to);
    if (to == NULL)
        return nib__fail_memory(err, (uint64_t)k * sizeof *to, "the calibration");
    for (int64_t j = 0; j < k; j++)
        to[j] = (float)((double)importance[j] / ((double)columns[j] * (double)columns[j]));
    *out = to;
    return NIB_OK;
}
