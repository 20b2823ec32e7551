/* SPDX-License-Identifier: Apache-2.0
 *
 * What constraint.c, which takes bytes, shares with constraint_mask.c and string_format.c.
 */
#ifndef NIB_CONSTRAINT_PARTS_H
#define NIB_CONSTRAINT_PARTS_H

#include "constraint.h"
#include "schema.h"

typedef struct nib_calls nib_calls;

struct nib_constraint {
    nib_allocator allocator;
    const nib_token_trie *trie;
    nib_schema schema;
    nib_calls *calls; /* what is around values of the schema; NULL: nothing */
};

/* What may come. Inside a string `sub` is a nib_content or a part of an escape. */
typedef enum nib_constraint_mode {
    NIB_AT_VALUE,
    NIB_AT_MEMBER,      /* the value after a colon */
    NIB_AT_ITEM_OR_END, /* after [ */
    NIB_AT_KEY,
    NIB_AT_KEY_OR_END, /* after { */
    NIB_AT_COLON,
    NIB_AFTER,
    NIB_IN_STRING,
    NIB_IN_NUMBER,
    NIB_IN_WORD,
    NIB_AT_END,
    NIB_IN_CALLS, /* around values: constraint_calls.c */
} nib_constraint_mode;

/* How many characters of plain content an item of an open string takes whatever they are; -1: it
 * depends on them. UINT32_MAX: any number. */
int64_t nib__constraint_room(const nib_constraint_state *s, const nib_constraint_item *item);

/* True while no character of content changes what the item may take. */
bool nib__constraint_settled(const nib_constraint_state *s, const nib_constraint_item *item);

/* Keeps of the item's texts those with the byte at place `size`. */
void nib__texts_narrow(const nib_schema_text *texts, nib_constraint_item *item, uint8_t byte);

/* ---- constraint_calls.c: of constraints with calls ---- */

void nib__calls_start(nib_constraint_state *s);
/* One byte around a value; false: it may not come, and the state is spoilt. */
bool nib__calls_step(nib_constraint_state *s, uint8_t byte);
/* A token that is not in the trie; false: the state is as before. */
bool nib__calls_take_special(nib_constraint_state *s, int32_t id);
bool nib__calls_complete(const nib_constraint_state *s);
bool nib__calls_ended(const nib_constraint_state *s);
/* Adds tokens to a mask that are not in the trie; false: that is all of the mask. */
bool nib__calls_mask(const nib_constraint_state *s, uint32_t *allowed);
/* What nib__constraint_close frees of them. */
void nib__calls_close(nib_constraint *c);

/* ---- number_bounds.c ---- */

/* Where a number is (state.sub). */
enum {
    NIB_NUMBER_MINUS,
    NIB_NUMBER_ZERO, /* a digit 0 that no digit follows */
    NIB_NUMBER_WHOLE,
    NIB_NUMBER_POINT,
    NIB_NUMBER_FRACTION,
    NIB_NUMBER_EXPONENT, /* the letter */
    NIB_NUMBER_SIGN,
    NIB_NUMBER_POWER,
};

/* What of JSON's grammar the byte leads to; -1: it is no part of the number. */
int nib__number_next(const nib_constraint_state *s, uint8_t byte);
/* It may end here. */
bool nib__number_is_whole(const nib_constraint_state *s);
/* Counts the digit that leads to `sub`; more than any limit allows need not be counted. */
void nib__number_count(nib_constraint_state *s, int sub, uint8_t byte);
/* True if the digits so far, or with more of them unless `whole`, make a number within bounds. */
bool nib__number_within(const nib_constraint_state *s, const nib_schema_node *node, bool whole);
/* Some number of the schema begins with the text so far. */
bool nib__number_goes_on(const nib_constraint_state *s, const nib_schema_node *node);

/* ---- string_format.c ---- */

/* Takes one byte of a string of a format. */
bool nib__format_step(nib_schema_format format, nib_constraint_item *item, uint8_t byte);
bool nib__format_complete(nib_schema_format format, const nib_constraint_item *item);

#endif
