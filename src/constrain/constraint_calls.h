/* SPDX-License-Identifier: Apache-2.0
 *
 * Constraints for tool calls: the text that the model's template writes around the name and the
 * arguments of each call, the name of an allowed tool, and arguments that match its schema. Free
 * text may come first, until a call begins.
 */
#ifndef NIB_CONSTRAINT_CALLS_H
#define NIB_CONSTRAINT_CALLS_H

#include "constraint.h"

/* A text around calls, with special tokens written as text. At id_at is the place of an id that the
 * model makes up. */
typedef struct nib_call_text {
    const char *at;              /* NULL: none */
    size_t size, id_at, id_size; /* id_size 0: no id */
} nib_call_text;

typedef struct nib_call_format {
    nib_call_text before, /* the first call's name */
        middle,           /* between name and arguments */
        next,             /* between arguments and the next call's name; none: at most one call */
        last;             /* after the last call's arguments */
    const char *gap;      /* [gap_size] between free text and `before` */
    size_t gap_size;
} nib_call_format;

typedef struct nib_callable {
    const char *name;      /* letters, digits, _ and - */
    nib_named_text schema; /* of its arguments, which must be an object; text NULL: {} */
} nib_callable;

typedef struct nib_calls_options {
    const nib_call_format *format;
    const nib_callable *tools; /* [count] with unique names */
    size_t count;
    bool free;    /* free text may come before the calls, and calls are optional */
    bool several; /* allow several calls, if the format does */
} nib_calls_options;

/* Like nib__constraint_open; t: the tokenizer of the trie. Copies the options. Also NIB_UNSUPPORTED
 * if, with `free`, the format does not mark where a call begins. */
nib_status nib__calls_open(nib_constraint **out, const nib_token_trie *trie, const nib_tokenizer *t,
                           const nib_calls_options *options, const nib_allocator *a, nib_err *err);

typedef enum nib_call_part {
    NIB_CALL_FREE,
    NIB_CALL_AROUND,
    NIB_CALL_NAME,
    NIB_CALL_ARGUMENTS,
} nib_call_part;

/* The part that the next byte belongs to; NIB_CALL_NAME: within a name that has begun. */
nib_call_part nib__calls_part(const nib_constraint_state *state);
/* In NIB_CALL_FREE: the number of bytes at the end of the text that may begin a call. */
size_t nib__calls_held(const nib_constraint_state *state);
/* The number of bytes that mark the beginning of a call; 0: a special token does. */
size_t nib__calls_opening(const nib_constraint *c);

#endif
