/* SPDX-License-Identifier: Apache-2.0
 *
 * How many tokens to draft: as many as make tokens fastest, by the measured times of steps and the
 * measured share of drafted tokens that were accepted; and never so many that the run could lose
 * more time than the bound allows. Pure arithmetic: draft.c measures and runs.
 */
#ifndef NIB_DRAFT_LENGTH_H
#define NIB_DRAFT_LENGTH_H

#include "prompt_lookup.h"

/* Seconds per step by its tokens: [1..NIB_LOOKUP_MOST + 1]. */
typedef struct nib_step_times {
    double predicted[NIB_LOOKUP_MOST + 2]; /* by the plan */
    double measured[NIB_LOOKUP_MOST + 2];  /* 0: not yet */
    uint8_t steps[NIB_LOOKUP_MOST + 2];    /* measured, up to 255 */
} nib_step_times;

/* Records a step of m tokens. The shortest recent time counts, as other load on the machine only
 * adds to it; old measurements fade, and those of few steps faster, as they may be too long. */
void nib__step_times_add(nib_step_times *times, size_t m, double seconds);
/* Estimates steps of `from` to `to` tokens: the measured time, or somewhat more than the plan and
 * the measured neighbours suggest. */
void nib__step_times_fill(const nib_step_times *times, size_t from, size_t to, double *seconds);

/* What drafts cost and gained. A step with drafts gains if its tokens would have taken longer
 * without. What recent gains do not make up for was spent in vain: never more than a fixed share
 * of the time without drafts, as far as step times are known before a step. */
typedef struct nib_draft_budget {
    double without_s; /* the time of all steps, had nothing been drafted */
    double credit_s;  /* recent gains, for losses to come */
    double vain_s;    /* losses beyond recent gains */
} nib_draft_budget;

/* Adds steps that took `taken` seconds and would have taken `without`; `usual`: a step without
 * drafts. */
void nib__draft_budget_add(nib_draft_budget *budget, double taken, double without, double usual);
/* Seconds that a step may lose. A probe, whose draft is not expected to pay, may lose less. */
double nib__draft_budget_left(const nib_draft_budget *budget, bool probe);

/* The share of a draft model's tokens that were accepted, of one text. */
typedef struct nib_draft_rate {
    double accepted; /* 0: not known yet */
} nib_draft_rate;

/* Adds a draft: of `tested` tokens, which end with the first wrong one, `accepted` were right. */
void nib__draft_rate_add(nib_draft_rate *rate, int64_t accepted, int64_t tested, bool probe);

/* A draft of what follows a text, by prompt lookup or by a draft model. */
typedef struct nib_draft {
    const nib_lookup *lookup; /* the source, with all tokens of the text; NULL: a draft model */
    double rate;              /* of the draft model */
    int64_t unread;           /* tokens that the draft model must read first, at least 1 */
    size_t most;              /* room in tokens */
    size_t count;             /* tokens chosen */
    double chance;            /* probability that the next one and all before it are right */
} nib_draft;

/* What the drafts of a step cost. */
typedef struct nib_draft_costs {
    size_t tokens;         /* of the step without drafts: one per text */
    const double *seconds; /* of a step by its tokens, [tokens..tokens + most] */
    /* Seconds of a step of m tokens of the draft model; not called without drafts of one. */
    double (*model_step)(const void *ctx, int64_t m);
    const void *ctx;
    double left; /* most seconds that the step may lose */
} nib_draft_costs;

/* Chooses the lengths of the drafts: at most `most` in all, the likeliest tokens first, as many as
 * maximize tokens per second. Returns the seconds in the draft model. */
double nib__draft_lengths(nib_draft *drafts, size_t count, const nib_draft_costs *costs,
                          size_t most);
/* Expected tokens per second if only this draft were made, at its best length. */
double nib__draft_speed(const nib_draft *draft, const nib_draft_costs *costs, size_t most);

#endif
