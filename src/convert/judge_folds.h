/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights with factors that another tensor undoes, as AWQ and SmoothQuant leave a model: the norm
 * before them has the inverse, or the rows of the linear layer before them. Private to
 * verify_source.c.
 */
#ifndef NIB_JUDGE_FOLDS_H
#define NIB_JUDGE_FOLDS_H

#include "judge.h"
#include "network.h"

/* A tensor, weight or bias with its verdict. */
typedef struct nib_judged {
    const char *name;
    nib_judgement judgement;
} nib_judged;

/* Judges weights whose inputs have factors again, by the source times these factors: of a norm that
 * differs from the source's, or of the rows of a linear layer. What is accounted for so becomes
 * FOLDED, as do the norm and the biases that undo it. A SCALED that nothing undoes stays so, and
 * its text says that. net and source: both with weights; those without a graph are left as they
 * are. */
nib_status nib__judge_folds(nib_judged *judged, size_t count, const nib_network *net,
                            const nib_network *source, nib_pool *pool, nib_err *err);

#endif
