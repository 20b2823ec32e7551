/* SPDX-License-Identifier: Apache-2.0
 *
 * What the files beside a tokenizer say about chats: chat_template.jinja; and tokenizer_config.json
 * with its templates and the text of special tokens.
 */
#ifndef NIB_CHAT_FILES_H
#define NIB_CHAT_FILES_H

#include "template.h"

enum { NIB_CHAT_TOKENS = 7 }; /* special tokens that a template may name */

/* The templates of one file. */
typedef struct nib_chat_source {
    nib_named_text text;  /* text.text NULL: none */
    nib_named_text tools; /* for conversations with tools, if the file has several */
} nib_chat_source;

typedef struct nib_chat_files {
    nib_chat_source own, config; /* chat_template.jinja, tokenizer_config.json */
    nib_template_token tokens[NIB_CHAT_TOKENS];
    size_t token_count;
} nib_chat_files;

/* Allocates in the arena. A missing file is no error. */
nib_status nib__chat_files_read(nib_chat_files *out, const char *directory, nib_arena *arena,
                                nib_err *err);
void nib__chat_files_add(nib_chat_files *files, const char *name, const char *text, size_t size);

#endif
