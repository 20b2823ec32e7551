/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by constraint.c, constraint_calls.c, number_bounds.c and string_format.c.
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
    nib_calls *calls; /* the calls around values of the schema; NULL: none */
};

/* What the automaton expects. Inside a string, `sub` is a nib_content or a part of an escape. */
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
    NIB_IN_CALLS, /* in the text around values: constraint_calls.c */
} nib_constraint_mode;

/* How many more characters of plain content an item of an open string accepts, whatever they are.
 * -1: that depends on the characters; UINT32_MAX: any number. */
int64_t nib__constraint_room(const nib_constraint_state *s, const nib_constraint_item *item);

/* Does no further character of content change what the item accepts? */
bool nib__constraint_settled(const nib_constraint_state *s, const nib_constraint_item *item);

/* Narrows the item's texts to those with the byte at offset `size`. */
void nib__texts_narrow(const nib_schema_text *texts, nib_constraint_item *item, uint8_t byte);

/* ---- constraint_calls.c: constraints with calls ---- */

void nib__calls_start(nib_constraint_state *s);
/* Advances by a byte around a value; false: the byte is not allowed, and the state is invalid. */
bool nib__calls_step(nib_constraint_state *s, uint8_t byte);
/* Advances by a token outside the trie; false: it is not allowed, and the state is unchanged. */
bool nib__calls_accept_special(nib_constraint_state *s, int32_t id);
bool nib__calls_complete(const nib_constraint_state *s);
bool nib__calls_ended(const nib_constraint_state *s);
/* Adds tokens outside the trie to a mask; false: the mask is complete, skip the trie. */
bool nib__calls_mask(const nib_constraint_state *s, uint32_t *allowed);
/* Frees the calls of a constraint, if it owns them. */
void nib__calls_close(nib_constraint *c);

/* ---- number_bounds.c ---- */

/* Position in a number (state.sub). */
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

/* The position after the byte, by JSON's grammar; -1: the byte is not part of the number. */
int nib__number_next(const nib_constraint_state *s, uint8_t byte);
/* May the number end here? */
bool nib__number_is_whole(const nib_constraint_state *s);
/* Counts the digit that leads to `sub`; saturates beyond all limits. */
void nib__number_count(nib_constraint_state *s, int sub, uint8_t byte);
/* Are the digits so far (whole), or some continuation of them (not whole), within the bounds? */
bool nib__number_within(const nib_constraint_state *s, const nib_schema_node *node, bool whole);
/* Does some number of the schema begin with the text so far? */
bool nib__number_can_continue(const nib_constraint_state *s, const nib_schema_node *node);

/* ---- string_format.c ---- */

/* Advances by a byte of a string with a format; false: it is not allowed. */
bool nib__format_step(nib_schema_format format, nib_constraint_item *item, uint8_t byte);
bool nib__format_complete(nib_schema_format format, const nib_constraint_item *item);

#endif
