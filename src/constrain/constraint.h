/* SPDX-License-Identifier: Apache-2.0
 *
 * Constrained decoding: which tokens may come next so that the text is JSON, and of a schema. What
 * is supported, and the limits, are docs/schemas.md.
 *
 * A constraint never changes once it is open: any number of sequences and threads share it. Each
 * sequence has a state, which is a plain value; each thread that makes masks has a nib_masks. As
 * long as a state is not complete some token is allowed, and whatever is allowed can be completed.
 * End-of-text tokens are the caller's: they may come where the state is complete, and nothing else
 * may where it has ended.
 */
#ifndef NIB_CONSTRAINT_H
#define NIB_CONSTRAINT_H

#include "token_trie.h"

typedef struct nib_constraint nib_constraint;
typedef struct nib_masks nib_masks;

/* What may be meant at one nesting: a schema, and where in it. */
typedef struct nib_constraint_item {
    uint16_t node;
    uint16_t parents;   /* a bit for each item of the nesting outside that this is a value of */
    uint16_t low, high; /* of the texts that begin with what was written */
    uint32_t at;        /* next property, items so far, characters so far, place in a format */
    uint32_t size;      /* bytes so far of one of the texts; of a date its year and month */
} nib_constraint_item;

enum {
    NIB_CONSTRAINT_DEPTH = 64,
    NIB_CONSTRAINT_LEVELS = NIB_CONSTRAINT_DEPTH + 2, /* the whole before, a scalar after */
    /* Over what every level needs, so that one more item fits on each. */
    NIB_CONSTRAINT_ITEMS = NIB_CONSTRAINT_LEVELS + 94,
};

typedef struct nib_constraint_state {
    const nib_constraint *constraint;
    uint64_t magnitude;                    /* of the number so far */
    uint16_t start[NIB_CONSTRAINT_LEVELS]; /* in items, of each level; 0 past the last */
    uint16_t unit;                         /* of a \u escape */
    uint16_t blanks;                       /* of the indentation */
    uint8_t levels, used;                  /* levels, and items */
    uint8_t mode, sub;                     /* what may come; private to constraint.c */
    uint8_t digits, negative, spaces, key;
    uint8_t unused[4]; /* 0: states are compared by bytes */
    nib_constraint_item items[NIB_CONSTRAINT_ITEMS];
} nib_constraint_state;

/* The trie and the allocator's context must stay. schema->name begins each sentence about the
 * schema; schema->text NULL: any JSON object. NIB_BAD_INPUT: the text is no schema or contradicts
 * itself; NIB_UNSUPPORTED: it asks for what cannot be enforced. */
nib_status nib__constraint_open(nib_constraint **out, const nib_token_trie *trie,
                                const nib_named_text *schema, const nib_allocator *a, nib_err *err);
void nib__constraint_close(nib_constraint *c); /* NULL allowed */

void nib__constraint_start(nib_constraint_state *state, const nib_constraint *c);
/* The same as an assignment, without the items that are not in use. */
void nib__constraint_copy(nib_constraint_state *to, const nib_constraint_state *from);
/* False: the token may not come, and the state is as before. */
bool nib__constraint_take(nib_constraint_state *state, int32_t id);
/* One byte; false: it may not come, and the state is spoilt. */
bool nib__constraint_step(nib_constraint_state *state, uint8_t byte);
/* The text so far is a whole value. */
bool nib__constraint_complete(const nib_constraint_state *state);
/* It is, and nothing may follow. */
bool nib__constraint_ended(const nib_constraint_state *state);

/* ---- masks ---- */

/* Room for making masks, and the last few of them. */
nib_status nib__masks_open(nib_masks **out, const nib_constraint *c, const nib_allocator *a,
                           nib_err *err);
void nib__masks_close(nib_masks *masks); /* NULL allowed */
/* allowed[(vocabulary + 31) / 32], a bit per id; none where the state has ended. The state is of
 * the constraint that the masks were opened for. */
void nib__constraint_mask(nib_masks *masks, const nib_constraint_state *state, uint32_t *allowed);

#endif
