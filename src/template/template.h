/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat templates: the part of Jinja that models' templates use, with the meaning that it has in
 * transformers' apply_chat_template (blocks trimmed, sandboxed, no autoescape). A template is read
 * once and rendered as often as wanted; what it may spend is limited in steps, depth and bytes.
 * Every byte of the output says whether it came from a user.
 *
 * An open template never changes, so any number of threads may render one at the same time.
 */
#ifndef NIB_TEMPLATE_H
#define NIB_TEMPLATE_H

#include "tokenizer.h"

typedef struct nib_template nib_template;

enum {
    NIB_TEMPLATE_SOURCE = 4 * 1024 * 1024, /* bytes of a template */
    NIB_TEMPLATE_TOKENS = 1000 * 1000,     /* words, signs, literals and texts between tags */
    NIB_TEMPLATE_NESTING = 150,            /* statements and brackets inside each other */
    NIB_TEMPLATE_PARAMETERS = 255,         /* of a macro */
    NIB_TEMPLATE_STEPS = 20 * 1000 * 1000, /* some seconds at most */
    NIB_TEMPLATE_DEPTH = 500,              /* expressions, loops and macros inside each other */
    NIB_TEMPLATE_BYTES = 256 * 1024 * 1024,
    NIB_TEMPLATE_RANGE = 100000, /* of range(), as in Jinja's sandbox */
    NIB_TEMPLATE_JSON = 128,     /* depth of the variables */
};

/* source need not stay. An unknown statement is NIB_UNSUPPORTED, what is no template NIB_BAD_INPUT;
 * both with the line. So is a filter or test that is not known, unless it stands inside an if: then
 * rendering says it, should it come there. */
nib_status nib__template_open(nib_template **out, const nib_named_text *source,
                              const nib_allocator *a, nib_err *err);
void nib__template_close(nib_template *t);
/* Does it name such a variable anywhere? */
bool nib__template_reads(const nib_template *t, const char *name, size_t size);

/* A value from a user, as JSON. Of a message's members "role" is the program's if it is one of the
 * usual words, because templates make special tokens of it: <|user|>. */
typedef struct nib_template_value {
    const char *name; /* of the variable; NULL: each member of the object is one */
    const char *json;
    size_t size;
} nib_template_value;

/* One of the model's own: bos_token and such. */
typedef struct nib_template_token {
    const char *name, *text;
    size_t size;
} nib_template_token;

typedef struct nib_template_limits {
    uint64_t steps; /* 0: NIB_TEMPLATE_STEPS, and so on */
    int depth;
    size_t bytes;
} nib_template_limits;

typedef struct nib_template_input {
    const nib_template_token *tokens;
    size_t token_count;
    const nib_template_value *values; /* a later one replaces an earlier one of the name */
    size_t value_count;
    bool add_generation_prompt;
    int64_t now; /* seconds since 1970, for strftime_now */
    nib_template_limits limits;
} nib_template_input;

typedef struct nib_template_output {
    nib_text text;
    nib_byte_range *user; /* [user_count] in order, apart: bytes that came from a user */
    size_t user_count, user_capacity;
} nib_template_output;

void nib__template_output_init(nib_template_output *out, const nib_allocator *a);
void nib__template_output_free(nib_template_output *out);

/* Fills an output that is empty. NIB_BAD_INPUT: raise_exception's text alone, or what went wrong
 * with the template's line; NIB_NO_MEMORY: a limit. */
nib_status nib__template_render(const nib_template *t, const nib_template_input *input,
                                nib_template_output *out, nib_err *err);

#endif
