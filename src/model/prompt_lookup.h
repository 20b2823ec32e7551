/* SPDX-License-Identifier: Apache-2.0
 *
 * Prompt lookup decoding: if the last tokens of a text occurred before, what followed them then is
 * a draft of what follows now. This file has the index, and how often its predictions were right;
 * src/session/draft_length.c chooses how much of a draft to verify in one step.
 */
#ifndef NIB_LOOKUP_H
#define NIB_LOOKUP_H

#include "memory.h"

enum {
    NIB_LOOKUP_MOST = 64,  /* tokens that may be drafted at once, by any source */
    NIB_LOOKUP_USUAL = 15, /* default of a request, and most of a draft model: a step of 16 tokens
                              is the largest for which plans have rows for few tokens */
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

/* Probability that token i of a draft is right if those before it are; there must be a match. */
double nib__lookup_chance(const nib_lookup *lookup, size_t i);
/* Writes a draft of `count` tokens after the text. ids: [lookup->count + count]. */
void nib__lookup_copy(const nib_lookup *lookup, int32_t *ids, size_t count);

#endif
