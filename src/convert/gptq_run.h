/* SPDX-License-Identifier: Apache-2.0
 *
 * A run of the method gptq: what its parts share. gptq.c runs the text, gptq_codes.c makes codes.
 */
#ifndef NIB_GPTQ_RUN_H
#define NIB_GPTQ_RUN_H

#include "gptq.h"
#include "moments.h"
#include "quant_w.h"

/* The second moments of one input, which several layers may share. */
typedef struct nib_gptq_input {
    double *h; /* [k][k]; NULL: nothing was seen yet */
    int64_t k, tokens;
} nib_gptq_input;

typedef struct nib_gptq_run {
    nib_gptq *job;
    nib_model *model;
    nib_runner runner;
    nib_gptq_store *store;
    const nib_moments_rows *rows;
    size_t *first;          /* [layers + 1] first operation of each layer */
    nib_gptq_input *inputs; /* [site_count]; of sites that share one, the first's */
    int64_t window;         /* tokens */
    const int32_t *ids;
    int64_t count;
    float *state;      /* [windows][chunks] what lives between layers */
    int64_t width;     /* floats per token of `state` */
    float *scratch;    /* [threads] */
    nib_status status; /* of the observer */
    nib_err err;
} nib_gptq_run;

bool nib__gptq_is_coded(const nib_gptq_run *run, size_t site);
/* The first of the sites with the same input. */
size_t nib__gptq_owner(const nib_gptq_run *run, size_t site);
nib_status nib__gptq_quantizer(nib_quantizer *out, const nib_gptq_run *run, size_t site,
                               nib_err *err);

/* Adds m inputs of a site, [m][ld], k wide, to the moments that its codes need; run: ctx. Sets
 * run->status. */
void nib__gptq_observe(void *run, size_t site, const float *x, int64_t ld, int64_t m, int64_t k);

/* Share of the mean of H's diagonal that is added to it; if H is not positive definite then, 10
 * times as much, up to 1,000 times. */
#define NIB_GPTQ_DAMPING 0.01

/* What coding a row needs of an input. */
typedef struct nib_gptq_factor {
    float *factor;     /* [k][k] of nib_quant_sweep; NULL: all inputs are 0 */
    double *diagonal;  /* [k] */
    float *importance; /* [k] */
    double damping;    /* share of the mean diagonal that was added */
} nib_gptq_factor;
/* Factors the moments h [k][k], of which i <= j are read, and which are lost. name: of the layer,
 * for messages. NIB_CHECK_FAILED: they are not finite, or not positive definite even with 10 times
 * their mean on the diagonal. */
nib_status nib__gptq_factor(nib_gptq_factor *out, double *h, int64_t k, const char *name,
                            const nib_moments_rows *rows, nib_pool *pool, nib_arena *arena,
                            nib_err *err);

/* Codes the sites [begin, end) from the moments of their inputs, which are released, into the part
 * of the store that was begun. */
nib_status nib__gptq_code(nib_gptq_run *run, size_t begin, size_t end, nib_err *err);

#endif
