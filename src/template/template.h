/* SPDX-License-Identifier: Apache-2.0
 *
 * Chat templates: the part of Jinja that models' templates use, with the semantics of transformers'
 * apply_chat_template (blocks trimmed, sandboxed, no autoescape). A template is parsed once and
 * rendered any number of times, within limits on steps, depth and bytes. The output records for
 * every byte whether it came from a user.
 *
 * An open template never changes, so any number of threads may render one at the same time.
 */
#ifndef NIB_TEMPLATE_H
#define NIB_TEMPLATE_H

#include "tokenizer.h"

typedef struct nib_template nib_template;

enum {
    NIB_TEMPLATE_SOURCE = 4 * 1024 * 1024, /* bytes of a template */
    NIB_TEMPLATE_TOKENS = 1000 * 1000,     /* words, operators, literals, texts between tags */
    NIB_TEMPLATE_NESTING = 150,            /* depth of nested statements and brackets */
    NIB_TEMPLATE_PARAMETERS = 255,         /* of a macro */
    NIB_TEMPLATE_STEPS = 20 * 1000 * 1000, /* a few seconds at most */
    NIB_TEMPLATE_DEPTH = 500,              /* of nested expressions, loops and macros */
    NIB_TEMPLATE_BYTES = 256 * 1024 * 1024,
    NIB_TEMPLATE_RANGE = 100000, /* of range(), as in Jinja's sandbox */
    NIB_TEMPLATE_JSON = 128,     /* depth of the variables */
};

/* Copies what it needs of `source`. NIB_BAD_INPUT: a syntax error. NIB_UNSUPPORTED: an unknown
 * statement, filter or test. Both name the line. An unknown filter or test inside an if is an error
 * only when it is rendered. */
nib_status nib__template_open(nib_template **out, const nib_named_text *source,
                              const nib_allocator *a, nib_err *err);
void nib__template_close(nib_template *t);
/* Does the template contain this variable name anywhere? */
bool nib__template_reads(const nib_template *t, const char *name, size_t size);

/* A value from a user, as JSON. The "role" of a message does not count as user text if it is one of
 * the usual words, because templates build special tokens from it: <|user|>. */
typedef struct nib_template_value {
    const char *name; /* of the variable; NULL: each member of the object is a variable */
    const char *json;
    size_t size;
} nib_template_value;

/* A token of the model, such as bos_token. */
typedef struct nib_template_token {
    const char *name, *text;
    size_t size;
} nib_template_token;

typedef struct nib_template_limits {
    uint64_t steps; /* 0: NIB_TEMPLATE_STEPS; the others likewise */
    int depth;
    size_t bytes;
} nib_template_limits;

typedef struct nib_template_input {
    const nib_template_token *tokens;
    size_t token_count;
    const nib_template_value *values; /* the last one of a name counts */
    size_t value_count;
    bool add_generation_prompt;
    int64_t now; /* seconds since 1970, for strftime_now */
    nib_template_limits limits;
} nib_template_input;

typedef struct nib_template_output {
    nib_text text;
    nib_byte_range *user; /* [user_count] user text, in order, not touching */
    size_t user_count, user_capacity;
} nib_template_output;

void nib__template_output_init(nib_template_output *out, const nib_allocator *a);
void nib__template_output_free(nib_template_output *out);

/* Fills an empty output. NIB_BAD_INPUT: an error with the template's line, or just the text of
 * raise_exception. NIB_NO_MEMORY: a limit was reached. */
nib_status nib__template_render(const nib_template *t, const nib_template_input *input,
                                nib_template_output *out, nib_err *err);

#endif
