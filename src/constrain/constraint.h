/* SPDX-License-Identifier: Apache-2.0
 *
 * Constrained decoding: computes which tokens may come next so that the text is JSON that matches a
 * schema. docs/schemas.md lists what is supported, and the limits.
 *
 * An open constraint never changes: any number of sequences and threads may share it. Each sequence
 * has a state, a plain value; each thread that makes masks has a nib_masks. Until a state is
 * complete, some token is allowed, and any allowed token can be completed to a whole value. The
 * caller handles end-of-text tokens: they are allowed if the state is complete, and nothing else is
 * allowed once it has ended.
 */
#ifndef NIB_CONSTRAINT_H
#define NIB_CONSTRAINT_H

#include "token_trie.h"

typedef struct nib_constraint nib_constraint;
typedef struct nib_masks nib_masks;

/* One interpretation of the text at one nesting level: a schema node, and the position in it. */
typedef struct nib_constraint_item {
    uint16_t node;
    uint16_t parents;   /* bit i: it may be a value of item i of the enclosing level */
    uint16_t low, high; /* range of the node's texts that match the bytes so far */
    uint32_t at;        /* next property, items so far, characters so far, place in a format */
    uint32_t size;      /* bytes of a text so far; for a date its year and month */
} nib_constraint_item;

enum {
    NIB_CONSTRAINT_DEPTH = 64,
    NIB_CONSTRAINT_LEVELS = NIB_CONSTRAINT_DEPTH + 2, /* plus the root array and a scalar */
    /* More than one per level, so that each level can hold another item. */
    NIB_CONSTRAINT_ITEMS = NIB_CONSTRAINT_LEVELS + 94,
};

typedef struct nib_constraint_state {
    const nib_constraint *constraint;
    uint64_t magnitude;                    /* of the number so far */
    uint16_t start[NIB_CONSTRAINT_LEVELS]; /* first item of each level; 0 past the last level */
    uint16_t unit;                         /* UTF-16 unit of a \u escape so far */
    uint16_t blanks;                       /* blanks of the indentation so far */
    uint8_t levels, used;                  /* levels and items in use */
    uint8_t mode, sub;                     /* state of the automaton, see constraint_parts.h */
    uint8_t digits, negative, spaces, key;
    uint8_t unused[4]; /* 0, as states are compared by bytes */
    nib_constraint_item items[NIB_CONSTRAINT_ITEMS];
} nib_constraint_state;

/* The trie and the allocator's context must outlive the constraint. schema->name prefixes each
 * error; schema->text NULL: any JSON object. NIB_BAD_INPUT: the text is not a schema or contradicts
 * itself; NIB_UNSUPPORTED: the schema cannot be enforced. */
nib_status nib__constraint_open(nib_constraint **out, const nib_token_trie *trie,
                                const nib_named_text *schema, const nib_allocator *a, nib_err *err);
void nib__constraint_close(nib_constraint *c); /* NULL allowed */

void nib__constraint_start(nib_constraint_state *state, const nib_constraint *c);
/* An assignment that skips unused items. */
void nib__constraint_copy(nib_constraint_state *to, const nib_constraint_state *from);
/* Advances by a token; false: the token is not allowed, and the state is unchanged. */
bool nib__constraint_accept(nib_constraint_state *state, int32_t id);
/* Advances by a byte; false: the byte is not allowed, and the state is invalid. */
bool nib__constraint_step(nib_constraint_state *state, uint8_t byte);
/* Is the text so far a whole value? */
bool nib__constraint_complete(const nib_constraint_state *state);
/* Is it complete, and nothing may follow? */
bool nib__constraint_ended(const nib_constraint_state *state);

/* ---- masks ---- */

/* Scratch memory for making masks, and a cache of the last few. */
nib_status nib__masks_open(nib_masks **out, const nib_constraint *c, const nib_allocator *a,
                           nib_err *err);
void nib__masks_close(nib_masks *masks); /* NULL allowed */
/* Fills allowed[(vocabulary + 31) / 32] with a bit per id; no bits if the state has ended. The
 * state must belong to the constraint that the masks were opened for. */
void nib__constraint_mask(nib_masks *masks, const nib_constraint_state *state, uint32_t *allowed);

#endif
