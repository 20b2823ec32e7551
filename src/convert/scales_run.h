/* SPDX-License-Identifier: Apache-2.0
 *
 * A run of the methods that scale inputs: what its parts share. scales.c runs the text,
 * scales_weights.c makes the scales and weights of a candidate, scales_fold.c folds the best,
 * scales_check.c compares the whole model with rounding on the tokens that were held out.
 */
#ifndef NIB_SCALES_RUN_H
#define NIB_SCALES_RUN_H

#include "coded_check.h"
#include "fold.h"
#include "scales.h"

/* Rounding, no scales, and powers 0.1 .. 1. */
enum { NIB_SCALES_POWERS = 10, NIB_SCALES_CANDIDATES = 2 + NIB_SCALES_POWERS };

typedef struct nib_scales_run {
    nib_scaling *job;
    nib_gptq_run g;
    nib_gptq_stream chosen; /* tokens on which candidates are compared, with stored weights */
    float *target, *trial;  /* its states after the layer: of stored weights, of a candidate */
    nib_fold_group *group;  /* in work */
    float *columns, *norm;  /* [k] scales of a candidate, and the norm before them */
    float *largest;         /* [k] of smooth: of the weights that read each input of the group */
    nib_coded_check coded;  /* holds the weights of a candidate, too */
    bool is_forecast;       /* no text has run, and all inputs count as if they were not 0 */
    size_t kept[3];         /* groups that rounding, no scales, and scales serve best */
} nib_scales_run;

/* The choice for a group, as the store has it. */
typedef struct nib_scales_choice {
    size_t site; /* the group's first */
    int candidate;
    double lost[2]; /* of rounding, and of the candidate */
} nib_scales_choice;
/* Opens the store of run->job->out, if there is one. */
nib_status nib__scales_open_store(nib_scales_run *run, const nib_plan *plan, nib_err *err);
/* Reads the choices of a layer, [*count] in the arena; NULL: none are stored. */
nib_status nib__scales_stored(nib_scales_choice **out, size_t *count, const nib_scales_run *run,
                              size_t layer, nib_arena *arena, nib_err *err);
/* Stores those of a finished layer, if there is a store. */
nib_status nib__scales_store(nib_scales_run *run, size_t layer, const nib_scales_choice *choices,
                             size_t count, nib_err *err);

/* Multiply-adds of the sites [begin, end) of a layer, with attention; of choosing the codes of a
 * group once; and of what the run does. */
void nib__scales_cost_of(nib_gptq_cost *out, const nib_scales_run *run, int64_t layer, size_t begin,
                         size_t end);
double nib__scales_code_cost(const nib_scales_run *run, const size_t *sites, size_t count);
nib_status nib__scales_cost(double *out, nib_scales_run *run, nib_err *err);
/* Why a group keeps its inputs, beyond what the graph says; NULL: it need not. */
const char *nib__scales_refuse(const nib_scales_run *run, const nib_fold_group *group);

/* Sets run->largest for the group. */
nib_status nib__scales_weigh(nib_scales_run *run, nib_err *err);
/* Fills the scales of a candidate, run->columns, and the norm that goes with them; 0 and 1 have
 * none. */
nib_status nib__scales_make(nib_scales_run *run, int candidate, nib_err *err);
/* The activation scale of a site whose inputs have scales: columns [k]; NULL: all 1. */
void nib__scales_static(const nib_scales_run *run, size_t site, const float *columns, float *scale,
                        int32_t *zero);
/* The importance of scaled inputs: what an input counts is divided by the square of its scale. */
nib_status nib__scales_importance(const float **out, const float *importance, const float *columns,
                                  int64_t k, nib_arena *arena, nib_err *err);

/* A norm before the group, into run->norm. */
nib_status nib__scales_read_norm(const nib_scales_run *run, nib_norm_part part, nib_err *err);
/* The stored type of a norm's part, and a value as a type can store it. */
nib_type nib__scales_norm_type(const nib_scales_run *run, nib_norm_part part);
float nib__scales_round(nib_type type, double value);

/* Divides the text into run->chosen and the tokens of the check, run->job->held_out. */
nib_status nib__scales_divide(nib_scales_run *run, nib_err *err);
/* Does that, and opens the check if it has tokens. */
nib_status nib__scales_check_open(nib_scales_run *run, nib_arena *arena, nib_err *err);
/* Behind the last layer: compares, and gives all layers of the methods rounding if it is better. */
nib_status nib__scales_check_end(nib_scales_run *run, nib_err *err);

/* Gives the layers of the group the best candidate; lost: of rounding, and of it. */
nib_status nib__scales_keep(nib_scales_run *run, int candidate, const double lost[2], nib_err *err);

#endif
