/* SPDX-License-Identifier: Apache-2.0
 *
 * The content of one file, whatever its format: named tensors and named strings. Each format has
 * one parser of type nib_parse; checkpoint_open.c lists them.
 */
#ifndef NIB_CONTAINER_H
#define NIB_CONTAINER_H

#include "memory.h"
#include "tensor.h"

typedef struct nib_container {
    nib_tensor **tensors; /* [count] sorted by data address */
    size_t count;
    nib_meta **metas; /* [meta_count] in file order */
    size_t meta_count;
    nib_gguf *gguf;       /* key/values of a GGUF file, or NULL */
    const char *notes[8]; /* [note_count] oddities that the parser accepted */
    size_t note_count;
    const char *params; /* model hyperparameters as JSON, named as in Meta's params.json; or NULL */
} nib_container;

/* bytes: the whole file, which must outlive the container. name: file name for messages. `file` is
 * copied into every tensor. Names are allocated in the arena; tensors are views into bytes. */
typedef nib_status nib_parse(nib_container *out, const uint8_t *bytes, uint64_t size,
                             const char *name, int file, nib_arena *arena, nib_err *err);

/* Allocates `count` zeroed structs of `size` bytes; returns an array of pointers to them, or NULL
 * if memory runs out. */
void *nib__container_items(nib_arena *arena, size_t count, size_t size);
/* Stable merge sort by data address, then size; free if already sorted, as headers nearly always
 * are. False: out of memory. */
bool nib__container_sort(nib_tensor **items, size_t count, nib_arena *arena);

#endif
