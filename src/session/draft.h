/* SPDX-License-Identifier: Apache-2.0
 *
 * The drafts of a batch. There are two sources: prompt lookup, and a draft model. Each step takes
 * for every job the source that promises more tokens per second, and the lengths that promise most
 * for all jobs together: a drafted token costs what it adds to the step, and the time of a step
 * depends on its number of tokens, whichever job they belong to.
 */
#ifndef NIB_DRAFT_H
#define NIB_DRAFT_H

#include "draft_model.h"

/* A job that may draft in this step. */
typedef struct nib_drafting {
    nib_job *job;
    int32_t *ids;  /* of its sequence; drafts are written after `count` */
    int64_t count; /* its tokens */
    int64_t room;  /* for drafts */
} nib_drafting;

typedef struct nib_drafter {
    nib_session *session;   /* with the times of its steps */
    nib_draft_model *model; /* NULL: none */
    int64_t sequences;
    nib_lookup *lookups; /* [sequences] index of the job's tokens, once the job drafts */
    nib_draft_budget budget;
    double model_s; /* in steps of the draft model, so far */
    /* the current step */
    nib_drafting *drafting; /* [sequences] */
    nib_draft *drafts;      /* [sequences] */
    size_t count;
    double step_s; /* in the draft model */
    bool probe;
    uint64_t turn; /* of probes */
} nib_drafter;

nib_status nib__drafter_open(nib_drafter *out, nib_session *session, int64_t sequences,
                             nib_err *err);
void nib__drafter_close(nib_drafter *drafter);
/* A job begins, or ends, on a sequence. */
void nib__drafter_begin(nib_drafter *drafter, int64_t sequence);
void nib__drafter_end(nib_drafter *drafter, int64_t sequence);

/* Adds a job to those that may draft in the next step: ids has its tokens, and room for more. */
nib_status nib__drafter_add(nib_drafter *drafter, nib_job *job, int32_t *ids, int64_t room,
                            nib_err *err);
/* Writes the drafts of a step with `tokens` tokens without them, at most `most` in all, and sets
 * `draft` and `guesses` of the added jobs. Fails if the draft model does. */
nib_status nib__drafter_draft(nib_drafter *drafter, size_t tokens, size_t most, nib_err *err);
/* What became of a draft by the model: `accepted` of its tokens, then a wrong one unless the text
 * ended. */
void nib__drafter_learn(nib_drafter *drafter, int64_t sequence, int64_t drafted, int64_t accepted,
                        bool continues);
/* Counts a step of `slots` tokens that made `made`. jobs 0: it read prompts and drafted nothing. */
void nib__drafter_count(nib_drafter *drafter, size_t jobs, size_t slots, int64_t made,
                        double seconds);

#endif
