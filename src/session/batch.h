/* SPDX-License-Identifier: Apache-2.0
 *
 * Many generations at once on one session. Each step takes one token of every job that is
 * generating and, in the room left, pieces of prompts; jobs come and go between steps. On the CPU a
 * job's result does not depend on the other jobs, to the bit: its logits do not, and its random
 * numbers come from its own seed, choice and positions.
 *
 * A job may carry a draft, by prompt lookup or by a draft model: a step then takes more tokens of
 * it, and keeps the drafted tokens that equal the drawn ones. The text is the same with a draft and
 * without.
 *
 * A sequence keeps its cache when its job ends: a later job with the same prefix continues from it,
 * or shares its blocks.
 */
#ifndef NIB_BATCH_H
#define NIB_BATCH_H

#include "constraint.h"
#include "state_cache.h"

typedef struct nib_top_token {
    int32_t id;
    double logprob; /* natural logarithm, in the model's own distribution */
} nib_top_token;

typedef struct nib_new_token {
    int32_t id;
    bool of_prompt;
    bool end;                 /* an end-of-text token, not part of the text */
    bool last;                /* part of the text, and nothing may follow */
    double logprob;           /* NaN: not requested */
    const nib_top_token *top; /* [top_count], the likeliest first */
    int top_count;
} nib_new_token;

/* Called from nib__batch_step, on its thread. */
typedef struct nib_job_calls {
    /* False ends the job with this token, as NIB_FINISH_STOP. */
    bool (*token)(void *ctx, const nib_new_token *token);
    /* The job has left the batch. err not NULL: it failed, and `finish` is meaningless. */
    void (*end)(void *ctx, nib_finish finish, const nib_err *err);
} nib_job_calls;

/* Why a job does not continue from all of the prompt that the cache has. */
typedef enum nib_recompute {
    NIB_RECOMPUTE_NONE,
    NIB_RECOMPUTE_STATE,  /* layers with a state keep it at snapshots only */
    NIB_RECOMPUTE_WINDOW, /* layers with a window have moved past the end of what is alike */
    NIB_RECOMPUTE_BLOCK,  /* another job goes on writing the last block */
    NIB_RECOMPUTE_DISK,   /* a state on disk cannot be read */
    NIB_RECOMPUTE_COUNT
} nib_recompute;
/* "state", "window", "block", "disk". */
extern const char *const nib__recompute_names[NIB_RECOMPUTE_COUNT];

/* Adds a note to the ledger of a request if some of its prompt tokens were computed again. cached:
 * those that it continued from. */
void nib__note_recomputed(nib_ledger *ledger, int64_t prompt, int64_t cached, int64_t recomputed,
                          nib_recompute why);

typedef struct nib_job nib_job;
struct nib_job {
    /* the request; must stay valid until the job ends */
    const int32_t *prompt; /* [prompt_count], at least one, at most the context */
    int64_t prompt_count;
    int64_t max_tokens; /* 0: only the prompt runs */
    nib_sampling sampling;
    nib_adjust adjust;    /* except `made` and `allowed`, which the batch sets */
    int top;              /* likeliest tokens to report; negative: no logprobs */
    bool prompt_logprobs; /* of each prompt token but the first, too */
    bool ignore_ends;     /* not with a constraint */
    int64_t lookup;       /* most tokens of a draft by prompt lookup; 0: none */
    /* The constraint on the text; NULL: none. The state is at the start, and is advanced. */
    nib_constraint_state *state;
    nib_masks *masks;
    uint32_t *allowed; /* room for a mask */
    int64_t choice;    /* separates jobs with the same seed */
    uint64_t tenant;   /* shares cached prefixes only with jobs of the same tenant */
    nib_job_calls calls;
    void *ctx;
    /* set by the batch */
    nib_job *next;
    int64_t sequence;     /* -1: none yet */
    int64_t done, cached; /* tokens in the cache; those cached before the job */
    int64_t recomputed;   /* tokens of the prompt that the cache had, but could not go
                                         on from */
    nib_recompute why;
    int64_t lost;                     /* tokens of a state on disk that could not be read */
    int64_t made;                     /* new tokens */
    int64_t steps;                    /* after the prompt */
    int64_t drafted, accepted;        /* drafted tokens, and those accepted */
    int64_t guessed, guessed_right;   /* of these, by a draft model */
    int64_t draft;                    /* tokens drafted for this step */
    bool guesses;                     /* by the draft model */
    const nib_kernel *device_sampler; /* draws its tokens on the device; NULL: the CPU does */
    int64_t row, rows;     /* its logits in this step; once drawn, `rows` counts those whose token
                              is accepted */
    int64_t first;         /* position of the first row */
    nib_new_token *tokens; /* [rows], drawn or of the prompt */
    nib_top_token *tops;   /* [rows][NIB_LOGPROBS_MOST] */
    nib_err failed;        /* why drawing failed */
};

typedef struct nib_batch nib_batch;

/* The batch owns the first `sequences` of the session until it is closed. NIB_USAGE: another batch
 * has them. */
nib_status nib__batch_open(nib_batch **out, nib_session *session, int64_t sequences, nib_err *err);
void nib__batch_close(nib_batch *batch);
/* Keeps states on disk too, where a prompt ends, and starts jobs from them. The cache must live
 * until the batch is closed. */
void nib__batch_use_disk(nib_batch *batch, nib_state_cache *disk);
/* The number of jobs that can be added now. */
int64_t nib__batch_room(const nib_batch *batch);
/* The batch must have room. The caller keeps ownership of the job. */
void nib__batch_add(nib_batch *batch, nib_job *job);
/* Removes a job without calling its end. Not allowed from within a job's calls. */
void nib__batch_remove(nib_batch *batch, nib_job *job);
/* One forward step, if the batch has jobs. A failure ends every job of the step, and is returned
 * for logging. */
nib_status nib__batch_step(nib_batch *batch, nib_err *err);

typedef struct nib_batch_counts {
    int64_t jobs, sequences;
    int64_t blocks, blocks_used;     /* of the cache */
    int64_t prefilled, reused, made; /* tokens so far */
    int64_t recomputed[NIB_RECOMPUTE_COUNT];
    int64_t disk_saved, disk_tokens; /* states written to disk; tokens of those read from there */
    int64_t drafted, accepted;       /* drafted tokens, and those accepted */
    int64_t guessed, guessed_right;  /* of these, by a draft model */
    int64_t steps;
    double model_s;           /* in steps of the draft model */
    double vain_s, without_s; /* as nib_draft_budget */
} nib_batch_counts;
nib_batch_counts nib__batch_counts(const nib_batch *batch);

/* Allocates the state of a constrained job; nib__job_release frees it. */
nib_status nib__job_constrain(nib_job *job, const nib_session *session, const nib_constraint *c,
                              nib_err *err);
void nib__job_release(nib_job *job, const nib_session *session);

/* How the plan draws the tokens of a job. why (NULL allowed) gets the conditions that refuse each
 * row of the device that has the logits. */
nib_draw_plan nib__job_draw_plan(const nib_plan *plan, const nib_job *job, nib_text *why);

#endif
