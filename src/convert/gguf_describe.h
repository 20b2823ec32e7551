/* SPDX-License-Identifier: Apache-2.0
 *
 * Key/values that describe a model in a GGUF: architecture and tokenizer, under llama.cpp's names.
 * config_gguf.c and gguf_vocab.c read them.
 */
#ifndef NIB_GGUF_DESCRIBE_H
#define NIB_GGUF_DESCRIBE_H

#include "config.h"
#include "gguf_write.h"
#include "tokenizer.h"

/* general.file_type of a GGUF whose weights mostly have this type; -1 if it has none. */
int nib__gguf_file_type(nib_type type);
/* Writes general.* and ARCH.*. name: general.name. file_type: general.file_type; -1: omitted. */
void nib__gguf_describe_config(nib_gguf_head *head, const nib_config *config, const char *name,
                               int file_type);
/* Writes tokenizer.ggml.*. */
void nib__gguf_describe_vocab(nib_gguf_head *head, const nib_vocab_source *source);
/* Describes a tokenizer.json of any name, with the tokenizer_config.json in `directory` if it
 * exists. BOS and EOS come from there or else from the config; chat_template NULL: none. Errors are
 * those of opening it and of nib__tokenizer_to_vocab. */
nib_status nib__gguf_describe_tokenizer(nib_gguf_head *head, const char *file,
                                        const char *directory, const nib_config *config,
                                        const char *chat_template, const nib_allocator *a,
                                        nib_ledger *ledger, nib_err *err);

#endif
