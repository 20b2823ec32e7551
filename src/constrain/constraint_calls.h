/* SPDX-License-Identifier: Apache-2.0
 *
 * Constraints whose texts are calls of tools: what a model's template writes around the name and
 * the arguments of each call, a name among those that may be called, and arguments of its schema.
 * Optionally free text comes first, until a call begins.
 */
#ifndef NIB_CONSTRAINT_CALLS_H
#define NIB_CONSTRAINT_CALLS_H

#include "constraint.h"

/* A text around calls. Special tokens are spelled in it; an id that the model makes up stands at
 * id_at. */
typedef struct nib_call_text {
    const char *at;              /* NULL: there is none */
    size_t size, id_at, id_size; /* id_size 0: no id */
} nib_call_text;

typedef struct nib_call_format {
    nib_call_text before, /* the first call's name */
        middle,           /* between name and arguments */
        next,             /* between arguments and the next call's name; none: one call at most */
        last;             /* behind the last call's arguments */
    const char *gap;      /* [gap_size] between free text and `before` */
    size_t gap_size;
} nib_call_format;

typedef struct nib_callable {
    const char *name;      /* letters, digits, _ and - */
    nib_named_text schema; /* of its arguments, which must be an object; text NULL: {} */
} nib_callable;

typedef struct nib_calls_options {
    const nib_call_format *format;
    const nib_callable *tools; /* [count], of which each name is there once */
    size_t count;
    bool free;    /* text may come before them, and need not end in one */
    bool several; /* as far as the format has several */
} nib_calls_options;

/* As nib__constraint_open, with the tokenizer of the trie; nothing of the options need stay.
 * NIB_UNSUPPORTED, too: with `free`, nothing tells the beginning of a call from text. */
nib_status nib__calls_open(nib_constraint **out, const nib_token_trie *trie, const nib_tokenizer *t,
                           const nib_calls_options *options, const nib_allocator *a, nib_err *err);

typedef enum nib_call_part {
    NIB_CALL_FREE,
    NIB_CALL_AROUND,
    NIB_CALL_NAME,
    NIB_CALL_ARGUMENTS,
} nib_call_part;

/* What comes next is part of this; NIB_CALL_NAME: some of the name was already there. */
nib_call_part nib__calls_part(const nib_constraint_state *state);
/* Of NIB_CALL_FREE: bytes at the end of the text that may begin a call. */
size_t nib__calls_held(const nib_constraint_state *state);
/* Bytes of text that begin a call; 0: a special token does. */
size_t nib__calls_opening(const nib_constraint *c);

#endif
