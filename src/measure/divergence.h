/* SPDX-License-Identifier: Apache-2.0
 *
 * How far a model's predictions of a text are from a reference's: sums over the predicted tokens,
 * the distribution of the KL divergence, and intervals of confidence. Knows no model.
 */
#ifndef NIB_DIVERGENCE_H
#define NIB_DIVERGENCE_H

#include "memory.h"

/* One predicted token under both models. */
typedef struct nib_token_divergence {
    double kl;                   /* nats, from the reference's distribution */
    double loss, reference_loss; /* nats: -log p of the token */
    bool same_top;               /* both find the same token the likeliest */
    int32_t token;               /* id */
    int64_t position;            /* in its window, of the id before it, whose logits these are */
    int64_t unit;                /* number of its window, or of its document's line; ascending */
} nib_token_divergence;

/* KL divergence in nats of a distribution from a reference, both as logits [count] with
 * nib__log_sum; f64, ascending ids. least: tokens up to this log-probability of the reference are
 * left out; -INFINITY: none. */
double nib__divergence_of(const float *logits, double all, const float *reference,
                          double reference_all, double least, int64_t count);

typedef struct nib_divergence nib_divergence;

/* About 1 MB, and 40 bytes more for every window or document that is added. */
nib_status nib__divergence_open(nib_divergence **out, const nib_allocator *a, nib_err *err);
void nib__divergence_close(nib_divergence *divergence); /* NULL: nothing */
nib_status nib__divergence_add(nib_divergence *divergence, const nib_token_divergence *token,
                               nib_err *err);
/* Fills in the members of *out that compare with a reference. At least one token was added. */
nib_status nib__divergence_report(const nib_divergence *divergence, nib_eval_result *out,
                                  nib_err *err);

#endif
