/* SPDX-License-Identifier: Apache-2.0
 *
 * Gives the layers of a group their scales, and what makes their inputs the inverse.
 */
#include "portable_math.h"
#include "scales_run.h"

#include <stdio.h>

/* Lists new values of a vector. They are in the arena of the job. */
static nib_status add_vector(nib_scales_run *w, const char *name, const float *values,
                             int64_t count, nib_err *err)
{
    nib_scaling *job = w->job;
    return nib__vector_add(job->vectors, &job->vector_count, name, values, count, job->arena, err);
}

static nib_status take_floats(float **out, const nib_scales_run *w, int64_t count, nib_err *err)
{
    *out = nib__arena_take(w->job->arena, (uint64_t)count, sizeof **out);
    return *out != NULL
               ? NIB_OK
               : nib__fail_memory(err, (uint64_t)count * sizeof **out, "the scales of a layer");
}

/* Lists a part of the norm before the group with the values of w->norm. */
static nib_status add_norm(nib_scales_run *w, nib_norm_part part, nib_err *err)
{
    char name[NIB_NORM_NAME];
    float *values;
    NIB_TRY(take_floats(&values, w, w->group->k, err));
    memcpy(values, w->norm, (size_t)w->group->k * sizeof *values);
    nib__network_norm_name(name, &w->g.model->net, (size_t)w->group->norm, part);
    return add_vector(w, name, values, w->group->k, err);
}

/* Gives the norm the inverse of the scales. */
static nib_status fold_into_norm(nib_scales_run *w, nib_err *err)
{
    const nib_graph *graph = &w->g.model->net.graph;
    NIB_TRY(add_norm(w, NIB_NORM_WEIGHT, err));
    if (!nib__graph_weight(graph, NIB_WEIGHT_NORM, (size_t)w->group->norm)->bias)
        return NIB_OK;
    const nib_type type = nib__scales_norm_type(w, NIB_NORM_BIAS);
    NIB_TRY(nib__scales_read_norm(w, NIB_NORM_BIAS, err));
    for (int64_t j = 0; j < w->group->k; j++)
        w->norm[j] = nib__scales_round(type, (double)w->norm[j] / (double)w->columns[j]);
    return add_norm(w, NIB_NORM_BIAS, err);
}

/* Gives the rows of the layer before, and its bias, the inverse of the scales. */
static nib_status fold_into_rows(nib_scales_run *w, nib_err *err)
{
    const nib_fold_group *f = w->group;
    const nib_site *at = &w->g.model->net.sites[f->before];
    char name[512];
    float *rows;
    NIB_TRY(take_floats(&rows, w, at->n, err));
    for (int64_t j = 0; j < f->k; j++)
        rows[nib__fold_row_of(f, j)] = 1 / w->columns[j];
    w->job->layers[f->before].fold.rows = rows;
    if (at->weight.bias == NULL)
        return NIB_OK;
    float *bias;
    NIB_TRY(take_floats(&bias, w, at->n, err));
    nib__weight_bias(&at->weight, bias);
    for (int64_t i = 0; i < at->n; i++)
        bias[i] = nib__scales_round(at->weight.bias_type, (double)bias[i] * (double)rows[i]);
    snprintf(name, sizeof name, "%s.bias", at->name);
    return add_vector(w, name, bias, at->n, err);
}

nib_status nib__scales_keep(nib_scales_run *w, int candidate, const double lost[2], nib_err *err)
{
    const nib_fold_group *f = w->group;
    double *objective = nib__arena_take(w->job->arena, 2, sizeof *objective);
    float *columns = NULL;
    if (objective == NULL)
        return nib__fail_memory(err, 2 * sizeof *objective, "the scales of a layer");
    if (candidate >= 2)
        NIB_TRY(take_floats(&columns, w, f->k, err));
    memcpy(objective, lost, 2 * sizeof *objective);
    NIB_TRY(nib__scales_make(w, candidate, err));
    if (candidate >= 2)
        memcpy(columns, w->columns, (size_t)f->k * sizeof *columns);
    for (int i = 0; i < f->count; i++) {
        nib_quantize_layer *l = &w->job->layers[f->sites[i]];
        if (candidate == 0)
            l->choice.method = NIB_PTQ_RTN;
        if (l->choice.scheme.act == NIB_ACT_I8_STATIC)
            nib__scales_static(w, f->sites[i], w->columns, &l->act_scale, &l->act_zero);
        l->objective = objective;
        l->fold.columns = columns;
        NIB_TRY(nib__scales_importance(&l->importance, l->importance, w->columns, f->k,
                                       w->job->arena, err));
    }
    w->kept[candidate < 2 ? candidate : 2]++;
    if (candidate < 2)
        return NIB_OK;
    return f->norm >= 0 ? fold_into_norm(w, err) : fold_into_rows(w, err);
}
