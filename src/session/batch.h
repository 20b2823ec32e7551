/* SPDX-License-Identifier: Apache-2.0
 *
 * Many generations at once on one session. Each step takes a token of every job that is making
 * text and, in the room left, pieces of prompts; jobs come and go between steps. What a job gets
 * does not depend on the others, to the bit (on the CPU): its logits do not, and its random numbers
 * are those of its own seed, choice and positions.
 *
 * A job may carry a draft by prompt lookup: a step then takes more tokens of it, and as many of the
 * draft stay as are what was drawn. The text is the same with a draft and without.
 *
 * A sequence keeps what it holds when its job ends: a later job that begins alike goes on from
 * there, or shares its blocks.
 */
#ifndef NIB_BATCH_H
#define NIB_BATCH_H

#include "constraint.h"
#include "session_handle.h"

typedef struct nib_top_token {
    int32_t id;
    double logprob; /* natural logarithm, of the model's own distribution */
} nib_top_token;

typedef struct nib_new_token {
    int32_t id;
    bool of_prompt;
    bool end;                 /* an end-of-text token, not part of the text */
    bool last;                /* it is of the text, and nothing may follow */
    double logprob;           /* NaN: not asked for */
    const nib_top_token *top; /* [top_count] the likeliest first */
    int top_count;
} nib_new_token;

/* Called within nib__batch_step, on its thread. */
typedef struct nib_job_calls {
    /* False: the job ends with this token, by NIB_FINISH_STOP. */
    bool (*token)(void *ctx, const nib_new_token *token);
    /* The job is out of the batch. err not NULL: it failed, and `finish` means nothing. */
    void (*end)(void *ctx, nib_finish finish, const nib_err *err);
} nib_job_calls;

typedef struct nib_job nib_job;
struct nib_job {
    /* what is asked; all of it stays until the job ends */
    const int32_t *prompt; /* [prompt_count], at least one, at most the context */
    int64_t prompt_count;
    int64_t max_tokens; /* 0: only the prompt runs */
    nib_sampling sampling;
    nib_adjust adjust;    /* but `made` and `allowed`, which are the batch's */
    int top;              /* likeliest tokens to tell; negative: no logprobs */
    bool prompt_logprobs; /* of each token of the prompt but the first, too */
    bool ignore_ends;     /* not with a constraint */
    int64_t lookup;       /* tokens of a draft at most; 0: nothing is drafted */
    /* What the text must be; NULL: anything. The state is the start's, and changed. */
    nib_constraint_state *state;
    nib_masks *masks;
    uint32_t *allowed; /* room for a mask */
    int64_t choice;    /* what is apart from others of the same seed */
    uint64_t tenant;   /* it goes on from what jobs of the same tenant left, and of no other */
    nib_job_calls calls;
    void *ctx;
    /* the batch's */
    nib_job *next;
    int64_t sequence;          /* -1: none yet */
    int64_t done, cached;      /* tokens in the cache; those that were there before the job */
    int64_t made;              /* new tokens */
    int64_t steps;             /* after the prompt */
    int64_t drafted, accepted; /* tokens of drafts, and those that came */
    int64_t draft;             /* tokens drafted for this step */
    const nib_kernel *there;   /* draws its tokens where the logits are; NULL: the CPU does */
    int64_t row, rows;     /* its logits in this step; once drawn, those that a token came from */
    int64_t first;         /* position of the first of them */
    nib_new_token *tokens; /* [rows] drawn, or of the prompt */
    nib_top_token *tops;   /* [rows][NIB_LOGPROBS_MOST] */
    nib_err failed;        /* to draw */
};

typedef struct nib_batch nib_batch;

/* The first `sequences` of the session are the batch's until it is closed. */
nib_status nib__batch_open(nib_batch **out, nib_session *session, int64_t sequences, nib_err *err);
void nib__batch_close(nib_batch *batch);
/* Jobs that it could take now. */
int64_t nib__batch_room(const nib_batch *batch);
/* There must be room. The job stays the caller's memory. */
void nib__batch_add(nib_batch *batch, nib_job *job);
/* Takes a job out without calling its end. Not from within a call of a job. */
void nib__batch_remove(nib_batch *batch, nib_job *job);
/* One forward step, if there are jobs. A failure ends every job that was in it, and is returned for
 * the log. */
nib_status nib__batch_step(nib_batch *batch, nib_err *err);

typedef struct nib_batch_counts {
    int64_t jobs, sequences;
    int64_t blocks, blocks_used;     /* of the cache */
    int64_t prefilled, reused, made; /* tokens so far */
    int64_t drafted, accepted;       /* of drafts, and those that came */
    int64_t steps;
} nib_batch_counts;
nib_batch_counts nib__batch_counts(const nib_batch *batch);

/* Allocates the state of a constrained job; nib__job_release frees it. */
nib_status nib__job_constrain(nib_job *job, const nib_session *session, const nib_constraint *c,
                              nib_err *err);
void nib__job_release(nib_job *job, const nib_session *session);

/* ---- batch_draft.c ---- */

/* What drafts of a step are worth. */
typedef struct nib_drafter {
    nib_session *session; /* with the times of its steps */
    nib_draft *drafts;    /* [sequences] */
} nib_drafter;

nib_status nib__drafter_open(nib_drafter *out, nib_session *session, int64_t sequences,
                             nib_err *err);
void nib__drafter_close(nib_drafter *drafter);
/* Chooses the first `count` of its drafts, for a step of `tokens` tokens without them; `most`
 * tokens at most. Nothing is drafted before a step of so many tokens was timed. */
void nib__drafter_choose(nib_drafter *drafter, size_t count, size_t tokens, size_t most);
/* A step of so many tokens, none of them of a prompt, took so long. */
void nib__drafter_time(nib_drafter *drafter, size_t tokens, double seconds);

/* ---- batch_draw.c ---- */

typedef struct nib_drawer {
    nib_session *session;
    nib_sampler *samplers; /* [threads] */
    int threads;
    int32_t ends[NIB_EOS_MAX];
    int end_count;
} nib_drawer;

/* For at most so many jobs. */
nib_status nib__drawer_open(nib_drawer *out, nib_session *session, int64_t jobs, nib_err *err);
void nib__drawer_close(nib_drawer *drawer);
/* What draws the tokens of a job by the plan; why (NULL allowed) gets what each row of a device
 * that has the logits lacks. */
nib_draw_plan nib__job_draw_plan(const nib_plan *plan, const nib_job *job, nib_text *why);
/* Fills the tokens of jobs [count] from their rows of logits, the jobs among the threads, and lets
 * job->rows be those that a token came from: of a draft, up to the first one that is not what was
 * drawn. made: the tokens of each job's sequence. logits NULL: they are on the device, and drawn
 * from there. */
void nib__drawer_draw(nib_drawer *drawer, nib_job *const *jobs, int32_t *const *tokens,
                      size_t count, const float *logits);

#endif
