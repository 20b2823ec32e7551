/* SPDX-License-Identifier: Apache-2.0
 *
 * What a GGUF says of a model besides its weights: architecture and tokenizer as key/values, under
 * llama.cpp's names. config_gguf.c and gguf_vocab.c read the same.
 */
#ifndef NIB_GGUF_DESCRIBE_H
#define NIB_GGUF_DESCRIBE_H

#include "config.h"
#include "gguf_write.h"
#include "tokenizer.h"

/* general.* and ARCH.*. name: general.name. type: of most weights, for general.file_type; NONE:
 * not said. */
void nib__gguf_describe_config(nib_gguf_head *head, const nib_config *config, const char *name,
                               nib_type type);
/* tokenizer.ggml.*. */
void nib__gguf_describe_vocab(nib_gguf_head *head, const nib_vocab_source *source);
/* A tokenizer.json, of whatever name, with the tokenizer_config.json in `directory` if there is
 * one, and its BOS and EOS or else the config's; chat_template: NULL for none. Errors are those of
 * opening it and of nib__tokenizer_to_vocab. */
nib_status nib__gguf_describe_tokenizer(nib_gguf_head *head, const char *file,
                                        const char *directory, const nib_config *config,
                                        const char *chat_template, const nib_allocator *a,
                                        nib_ledger *ledger, nib_err *err);

#endif
