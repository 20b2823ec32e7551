/* SPDX-License-Identifier: Apache-2.0
 *
 * AdamW over the whole block of parameters, the learning rate's schedule, and the norm of a
 * gradient.
 */
#ifndef NIB_OPTIMIZER_H
#define NIB_OPTIMIZER_H

#include "params.h"
#include "planner.h"

typedef struct nib_optimizer {
    const nib_train_config *config;
    const nib_params *params;
    nib_pool *pool;
    const nib_kernel *adamw, *squares;
    float *m, *v; /* [params.total] */
    double *parts;
    int64_t steps;   /* of the run so far, for the schedule */
    int64_t skipped; /* skipped steps, which did not change the moments */
} nib_optimizer;

nib_status nib__optimizer_open(nib_optimizer *out, const nib_train_config *config,
                               const nib_params *params, const nib_assignment *plan,
                               nib_engine *engine, nib_err *err);
void nib__optimizer_close(nib_optimizer *optimizer);
/* Memory of an optimizer of these parameters. */
uint64_t nib__optimizer_bytes(const nib_params *params);

/* torchtitan's warm-up, stable and decay phases: the factor of the rate at a step, counted from 0.
 * The decay ends one step past the last, so no step has a rate of 0. */
double nib__rate_factor(const nib_train_config *config, int64_t step);

/* The sum of the squares of a parameter's gradient. */
double nib__gradient_squares(nib_optimizer *optimizer, const float *gradient, size_t param);
/* The Euclidean norm of a gradient. Squares are summed in double, per parameter and then over the
 * parameters in order. *bad (NULL allowed): the first parameter whose gradient is not finite, or
 * count. */
double nib__gradient_norm(nib_optimizer *optimizer, const float *gradient, size_t *bad);

/* Counts a step without changing anything. */
void nib__optimizer_skip(nib_optimizer *optimizer);
/* Runs one step with the gradient times `clip`; returns the learning rate used. */
double nib__optimizer_step(nib_optimizer *optimizer, float *weights, const float *gradient,
                           double clip);

#endif
