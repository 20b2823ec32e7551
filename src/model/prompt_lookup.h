/* SPDX-License-Identifier: Apache-2.0
 *
 * Prompt lookup decoding: if the last tokens of a text occurred before, what followed them then is
 * a draft of what follows now. How much of a draft to verify in one step depends on how often such
 * drafts were accepted and on how long steps take. This file has the index and that choice; batch.c
 * runs the steps.
 */
#ifndef NIB_LOOKUP_H
#define NIB_LOOKUP_H

#include "memory.h"

enum {
    NIB_LOOKUP_MOST = 64,  /* tokens that may be drafted at once */
    NIB_LOOKUP_USUAL = 15, /* default of a request: a step of 16 tokens is the largest for which
                              plans have rows for few tokens */
    NIB_LOOKUP_CLASSES = 8
};

typedef struct nib_lookup {
    const nib_allocator *allocator;
    int32_t *places; /* [size] hash table: the position after the last occurrence of 2 to 4 tokens;
                        0: empty */
    size_t size;     /* a power of two */
    size_t count;    /* tokens added */
    size_t next;     /* position of the expected next token; 0: no match */
    size_t length;   /* length of the match before it */
    double right[NIB_LOOKUP_CLASSES]; /* share of such predictions that were right, by class of
                                         match length */
} nib_lookup;

void nib__lookup_open(nib_lookup *out, const nib_allocator *a);
void nib__lookup_close(nib_lookup *lookup);
/* Adds the tokens of ids [count] that it has not seen yet, and compares each with the expected
 * one. */
nib_status nib__lookup_put(nib_lookup *lookup, const int32_t *ids, size_t count, nib_err *err);

/* Seconds per step by its tokens: [1..NIB_LOOKUP_MOST + 1]. */
typedef struct nib_step_times {
    double predicted[NIB_LOOKUP_MOST + 2]; /* by the plan */
    double measured[NIB_LOOKUP_MOST + 2];  /* 0: not yet */
} nib_step_times;

/* Records a step of m tokens. The shortest recent time counts, as other load on the machine only
 * adds to it; old measurements fade. */
void nib__step_times_add(nib_step_times *times, size_t m, double seconds);
/* Estimates steps of `from` to `to` tokens: the measured time, or somewhat more than the plan and
 * the measured neighbours suggest. A step of `from` tokens must have been measured. */
void nib__step_times_fill(const nib_step_times *times, size_t from, size_t to, double *seconds);

/* A draft of what follows a text; the lookup must have all its tokens. */
typedef struct nib_draft {
    const nib_lookup *lookup;
    int32_t *ids;  /* [lookup->count + most] */
    size_t most;   /* room in tokens */
    size_t count;  /* tokens chosen */
    double chance; /* probability that the next one and all before it are right */
} nib_draft;

/* Chooses and writes the drafts of a step that has `tokens` tokens without drafts and takes
 * seconds[m] for m tokens: at most `most` in all, the likeliest first, as many as maximize tokens
 * per second. */
void nib__lookup_choose(nib_draft *drafts, size_t count, size_t tokens, const double *seconds,
                        size_t most);

#endif
