/* SPDX-License-Identifier: Apache-2.0
 *
 * Many generations at once on one session. Each step takes a token of every job that is making
 * text and, in the room left, pieces of prompts; jobs come and go between steps. What a job gets
 * does not depend on the others, to the bit (on the CPU): its logits do not, and its random numbers
 * are those of its own seed, choice and positions.
 *
 * A sequence keeps what it holds when its job ends: a later job that begins alike goes on from
 * there, or shares its blocks.
 */
#ifndef NIB_BATCH_H
#define NIB_BATCH_H

#include "constraint.h"
#include "library.h"

enum { NIB_TOP_MOST = 20 /* likeliest tokens that are told beside a token */ };

typedef struct nib_top_token {
    int32_t id;
    double logprob; /* natural logarithm, of the model's own distribution */
} nib_top_token;

typedef struct nib_new_token {
    int32_t id;
    bool of_prompt;
    bool end;                 /* it ends the text, and is none of it */
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
    int64_t sequence;      /* -1: none yet */
    int64_t done, cached;  /* tokens in the cache; those that were there before the job */
    int64_t made;          /* new tokens */
    int64_t row, rows;     /* its logits in this step */
    int64_t first;         /* position of the first of them */
    nib_new_token *tokens; /* [rows] drawn, or of the prompt */
    nib_top_token *tops;   /* [rows][NIB_TOP_MOST] */
    nib_err failed;        /* to draw */
};

typedef struct nib_batch nib_batch;

/* The sequences of the session are the batch's until it is closed. */
nib_status nib__batch_open(nib_batch **out, nib_session *session, nib_err *err);
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
    int64_t steps;
} nib_batch_counts;
nib_batch_counts nib__batch_counts(const nib_batch *batch);

/* ---- batch_draw.c ---- */

typedef struct nib_drawer {
    nib_session *session;
    nib_sampler *samplers; /* [threads] */
    int threads;
    int32_t ends[NIB_EOS_MAX];
    int end_count;
} nib_drawer;

nib_status nib__drawer_open(nib_drawer *out, nib_session *session, nib_err *err);
void nib__drawer_close(nib_drawer *drawer);
/* Fills the tokens of jobs [count] from their rows of logits, the jobs among the threads. made:
 * the tokens of each job's sequence. */
void nib__drawer_draw(nib_drawer *drawer, nib_job *const *jobs, int32_t *const *tokens,
                      size_t count, const float *logits);

#endif
