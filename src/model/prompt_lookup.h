/* SPDX-License-Identifier: Apache-2.0
 *
 * Prompt lookup: what followed the last tokens of a text when they were there before is a draft of
 * what follows now. How many of it are worth checking in one step is a matter of how often such
 * drafts were right, and of what steps take. The index and that choice; batch.c runs the steps.
 */
#ifndef NIB_LOOKUP_H
#define NIB_LOOKUP_H

#include "memory.h"

enum {
    NIB_LOOKUP_MOST = 64,  /* tokens that may be drafted at once */
    NIB_LOOKUP_USUAL = 15, /* where a request says nothing: a step of 16 tokens is the largest that
                              plans have rows for few tokens for */
    NIB_LOOKUP_CLASSES = 8
};

typedef struct nib_lookup {
    const nib_allocator *allocator;
    int32_t *places; /* [size] by the hash of 2 to 4 tokens: what came after them last; 0: none */
    size_t size;     /* a power of two */
    size_t count;    /* tokens that were put */
    size_t next;     /* the token that may come again; 0: the text does not end as before */
    size_t length;   /* tokens before it that the text ends with */
    double right[NIB_LOOKUP_CLASSES]; /* share of such tokens that came, by class of length */
} nib_lookup;

void nib__lookup_open(nib_lookup *out, const nib_allocator *a);
void nib__lookup_close(nib_lookup *lookup);
/* Takes those of ids [count] that it has not seen yet; each is compared with what was to come. */
nib_status nib__lookup_put(nib_lookup *lookup, const int32_t *ids, size_t count, nib_err *err);

/* Seconds of a step by its tokens: [1..NIB_LOOKUP_MOST + 1]. */
typedef struct nib_step_times {
    double predicted[NIB_LOOKUP_MOST + 2]; /* by the plan */
    double measured[NIB_LOOKUP_MOST + 2];  /* 0: not yet */
} nib_step_times;

/* A step of m tokens took so long. The shortest of late counts, as whatever else runs on a machine
 * only adds to it; what was measured long ago counts for less and less. */
void nib__step_times_add(nib_step_times *times, size_t m, double seconds);
/* What steps of `from` to `to` tokens are taken to take: as measured, or somewhat more than the
 * plan and those that were measured let expect. A step of `from` has to be measured. */
void nib__step_times_fill(const nib_step_times *times, size_t from, size_t to, double *seconds);

/* What may follow a text of which the lookup has all tokens. */
typedef struct nib_draft {
    const nib_lookup *lookup;
    int32_t *ids;  /* [lookup->count + most] */
    size_t most;   /* tokens that there is room for */
    size_t count;  /* chosen */
    double chance; /* that the next one is right, and all before it */
} nib_draft;

/* Chooses and writes the drafts of a step that has `tokens` tokens without them and takes
 * seconds[m] with m: at most `most` in all, the likeliest first, as many as make tokens come
 * fastest. */
void nib__lookup_choose(nib_draft *drafts, size_t count, size_t tokens, const double *seconds,
                        size_t most);

#endif
