/* SPDX-License-Identifier: Apache-2.0
 *
 * Mixed precision by budget: each unit of layers (q, k and v; gate and up; ...) gets one of a list
 * of schemes, so that the sum of what the units lose is the least under a budget of bytes or time.
 */
#ifndef NIB_MIXED_H
#define NIB_MIXED_H

#include "session_handle.h"

/* ---- the solver: numbers, no models ---- */

/* One scheme of a unit. */
typedef struct nib_mixed_option {
    uint64_t weight; /* bytes, or picoseconds; UINT64_MAX: the unit cannot have it */
    double cost;     /* what it loses; 0 or more */
} nib_mixed_option;

typedef struct nib_mixed_problem {
    const nib_mixed_option *table; /* [units][options]; each unit can have at least one */
    size_t units, options;
    uint64_t budget; /* of the sum of weights */
} nib_mixed_problem;

/* Sums of weights that a mixture can have. */
typedef struct nib_mixed_reach {
    uint64_t least, next, most; /* next: the smallest above `least`; `least` if all are equal */
} nib_mixed_reach;

nib_mixed_reach nib__mixed_reach(const nib_mixed_problem *problem);
/* chosen: [units] the option of each unit, so that the costs, added in order, are the least with
 * weights of at most the budget; of equal costs the least weight; of equal ones both, the mixture
 * whose first units weigh less. A multiple-choice knapsack, solved exactly: sums that are not
 * heavier and dearer than another are kept, unless a bound by Lagrange's multiplier shows that they
 * do not lead to the best. NIB_UNSUPPORTED: the least weight is over the budget. */
nib_status nib__mixed_solve(size_t *chosen, const nib_mixed_problem *problem,
                            const nib_allocator *a, nib_err *err);

/* ---- what units lose ---- */

/* A text, and the logits of the model as stored on it. */
typedef struct nib_mixed_text nib_mixed_text;

/* Runs the model as stored over windows that are spread evenly over the text at `path`: up to 8,192
 * tokens, or as many as have 1 GiB of logits. NIB_BAD_INPUT: the text has no two tokens. */
nib_status nib__mixed_text_open(nib_mixed_text **out, nib_model *model, const nib_request *request,
                                const char *path, nib_err *err);
void nib__mixed_text_close(nib_mixed_text *text); /* NULL: nothing */
int64_t nib__mixed_text_tokens(const nib_mixed_text *text);
/* Mean KL divergence in nats per token of another session from the model as stored. step of steps:
 * for progress. */
nib_status nib__mixed_text_kl(double *kl, const nib_mixed_text *text, nib_session *session,
                              uint64_t step, uint64_t steps, nib_err *err);

/* Squared error of a layer's weight in a scheme over its squared values, on up to 512 rows, evenly
 * spaced. */
nib_status nib__mixed_weight_error(double *error, const nib_site *site, const nib_scheme *scheme,
                                   const nib_allocator *a, nib_err *err);

/* ---- the whole ---- */

enum { NIB_MIXED_OPTIONS = 12 /* candidates at most */ };

/* Predicted and measured; NaN: not known. */
typedef struct nib_mixed_result {
    uint64_t bytes;  /* of the units' weights in the file */
    double bits;     /* per weight of the units */
    uint64_t memory; /* nib__plan_needs */
    double speed;    /* tokens per second */
    double loss;     /* KL divergence in nats per token */
} nib_mixed_result;

typedef struct nib_mixed nib_mixed;

/* Chooses a mixture for the budget of the options, whose request has the candidates for a recipe.
 * NIB_UNSUPPORTED: none keeps to it. `sizes` finds the bytes of each site's weight in the output
 * for a recipe: [site_count]. */
typedef nib_status (*nib_mixed_sizes)(uint64_t *bytes, nib_model *model,
                                      const nib_quantize_options *options, nib_err *err);
nib_status nib__mixed_open(nib_mixed **out, nib_model *model, const nib_quantize_options *options,
                           nib_mixed_sizes sizes, nib_err *err);
void nib__mixed_close(nib_mixed *mixed); /* NULL: nothing */
/* NIB_USAGE unless exactly one number of the budget is above 0. */
nib_status nib__mixed_check(const nib_budget *budget, nib_err *err);
/* The candidates if the request names none. */
extern const char nib__mixed_candidates[];
/* The chosen recipe, as JSON for a recipe file. */
const char *nib__mixed_recipe(const nib_mixed *mixed);
/* Measures the written model at `path` as predicted: bytes, loss on the text, speed if this machine
 * runs it. */
nib_status nib__mixed_measure(nib_mixed *mixed, const char *path, nib_err *err);
/* A table of predicted and measured values, as text or as the members of a JSON object. */
void nib__mixed_render(const nib_mixed *mixed, nib_text *out);
void nib__mixed_json(const nib_mixed *mixed, nib_jsonw *w);

/* ---- the rule file (mixed_rules.c) ---- */

/* Writes a recipe file: a rule for each site whose scheme[i] is not NULL, in order; experts of one
 * scheme share a rule. Other layers are kept. */
void nib__mixed_rules(nib_text *out, const nib_site *sites, const char *const *schemes,
                      size_t count);

#endif
