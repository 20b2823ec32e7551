/* SPDX-License-Identifier: Apache-2.0
 *
 * Opens the tokenizer inside a GGUF.
 */
#ifndef NIB_GGUF_VOCAB_H
#define NIB_GGUF_VOCAB_H

#include "gguf.h"
#include "tokenizer.h"

/* Reads the keys tokenizer.ggml.*; *out points into the file and the arena. NIB_BAD_INPUT names a
 * key whose value has the wrong type. */
nib_status nib__gguf_vocab(nib_vocab_source *out, const nib_gguf *gguf, nib_arena *arena,
                           nib_err *err);
nib_status nib__gguf_tokenizer(nib_tokenizer **out, const nib_gguf *gguf, const nib_allocator *a,
                               nib_err *err);
/* The same from a file, which may hold a vocabulary and no tensors. */
nib_status nib__gguf_tokenizer_open(nib_tokenizer **out, const char *path, const nib_allocator *a,
                                    nib_err *err);
/* Does the file begin with "GGUF"? */
bool nib__gguf_begins(const char *path);
/* *out: tokenizer.chat_template, not NUL-terminated; NULL if the file has none. */
nib_status nib__gguf_chat_template(const char **out, size_t *size, const nib_gguf *gguf,
                                   nib_err *err);

#endif
