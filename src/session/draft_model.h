/* SPDX-License-Identifier: Apache-2.0
 *
 * A draft model: a smaller model of the same vocabulary, with a cache of its own, that follows the
 * texts of a batch and guesses how they continue. It draws with the seed, choice and position of
 * the job, so a guess is what the job draws wherever the two distributions agree.
 *
 * It need not see the whole text: if reading all that it has not seen costs too much, it starts
 * again with the last tokens.
 *
 * A draft head reads a token beside the model's hidden state of the token before it, so it sees no
 * more of a text than the tokens whose hidden states were kept. Behind these it reads its own, and
 * forgets that again once the text has gone on.
 */
#ifndef NIB_DRAFT_MODEL_H
#define NIB_DRAFT_MODEL_H

#include "draw.h"

typedef struct nib_draft_model nib_draft_model;

/* Follows the sequences of session, whose plan has a draft model. */
nib_status nib__draft_model_open(nib_draft_model **out, nib_session *session, int64_t sequences,
                                 nib_err *err);
void nib__draft_model_close(nib_draft_model *model);
/* What a slot of the model's step must give besides: a draft head reads the hidden states of the
 * last tokens of a prompt, with `left` tokens after this one, and of every later token. For both
 * calls, model NULL is one that reads none. */
uint32_t nib__draft_model_outputs(const nib_draft_model *model, int64_t left);
/* After a step of the model: keeps the hidden states that its slots gave. */
void nib__draft_model_see(nib_draft_model *model, const nib_slot *slots, size_t count);
/* A new job begins on the sequence. */
void nib__draft_model_begin(nib_draft_model *model, int64_t sequence);
/* Rolls the sequence's cache back to the text, ids [count], and describes the draft that could
 * follow: at most `room` tokens, whose reading may take `left` seconds. */
nib_draft nib__draft_model_follow(nib_draft_model *model, int64_t sequence, const int32_t *ids,
                                  int64_t count, int64_t room, double left);
/* Estimated seconds of a step of m tokens: the `model_step` of nib_draft_costs. */
double nib__draft_model_seconds(const void *model, int64_t m);

/* A text to continue: *draft is by nib__draft_model_follow, with its count chosen; less if the text
 * is expected to end. */
typedef struct nib_guess {
    nib_draft *draft;
    const nib_job *job;
    int32_t *ids; /* guesses are written after `count` */
    int64_t count;
} nib_guess;

/* Writes the drafts. *seconds: what it took, without the load of other programs. */
nib_status nib__draft_model_guess(nib_draft_model *model, const nib_guess *guesses, size_t count,
                                  double *seconds, nib_err *err);
void nib__draft_model_learn(nib_draft_model *model, int64_t sequence, int64_t accepted,
                            int64_t tested, bool probe);

#endif
