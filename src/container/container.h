/* SPDX-License-Identifier: Apache-2.0
 *
 * What one file holds, whatever its format: named tensors and named strings. Every format has one
 * function that finds it out, of the type nib_parse; checkpoint_open.c lists them.
 */
#ifndef NIB_CONTENTS_H
#define NIB_CONTENTS_H

#include "memory.h"
#include "tensor.h"

typedef struct nib_container {
    nib_tensor **tensors; /* [count] in the order of their data */
    size_t count;
    nib_meta **metas; /* [meta_count] in the order of the file */
    size_t meta_count;
    nib_gguf *gguf;       /* the key/values of a GGUF file, or NULL */
    const char *notes[8]; /* [note_count] what parsing noticed and did not refuse */
    size_t note_count;
    const char *params; /* how the model was built, as JSON with the names of Meta's params.json */
} nib_container;

/* bytes: the whole file, which outlives the contents. name: of the file, for messages; `file` goes
 * into every tensor. Names lie in the arena, views point into bytes. */
typedef nib_status nib_parse(nib_container *out, const uint8_t *bytes, uint64_t size,
                             const char *name, int file, nib_arena *arena, nib_err *err);

/* `count` zeroed structs of `size` bytes: the pointers to them. NULL: no memory. */
void *nib__container_items(nib_arena *arena, size_t count, size_t size);
/* Stable merge sort by place; nearly always the header has that order already. False: no memory. */
bool nib__container_sort(nib_tensor **items, size_t count, nib_arena *arena);

#endif
