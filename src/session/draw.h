/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws the tokens of jobs from logits: a step's, and those that a draft model guesses.
 */
#ifndef NIB_DRAW_H
#define NIB_DRAW_H

#include "batch.h"

typedef struct nib_drawer {
    nib_session *session;
    nib_sample_work *samplers; /* [threads] */
    int threads;
    int32_t ends[NIB_EOS_MAX];
    int end_count;
} nib_drawer;

/* vocab: logits per row, at most the session's. */
nib_status nib__drawer_open(nib_drawer *out, nib_session *session, int64_t vocab, int64_t jobs,
                            nib_err *err);
void nib__drawer_close(nib_drawer *drawer);
/* Draws the tokens of `count` jobs, each from logits preceded only by accepted tokens. tokens: of
 * their sequences; logits NULL: they are on the device. */
void nib__drawer_draw(const nib_drawer *drawer, nib_job *const *jobs, int32_t *const *tokens,
                      size_t count, const float *logits);
/* The token that the job's seed draws after `count` tokens from a draft model's logits; -1: the
 * draft ends here. state: the job's constraint there, advanced; NULL: none. `worker`: of the
 * pool. */
nib_status nib__drawer_guess(const nib_drawer *drawer, int worker, const nib_job *job,
                             nib_constraint_state *state, const int32_t *tokens, int64_t count,
                             const float *logits, int32_t *out, nib_err *err);

#endif
