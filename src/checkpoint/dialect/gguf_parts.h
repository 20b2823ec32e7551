/* SPDX-License-Identifier: Apache-2.0
 *
 * A GGUF model in several files (NAME-00001-of-00003.gguf), and what is done to all of them
 * together: names become ours.
 */
#ifndef NIB_GGUF_PARTS_H
#define NIB_GGUF_PARTS_H

#include "gguf.h"

enum { NIB_GGUF_PART_MAX = 9999 };

/* split.count; 1 where it is not said. */
nib_status nib__gguf_part_count(size_t *out, const nib_gguf *gguf, nib_err *err);
/* The paths of all `count` parts in their order, from that of one; in the arena. */
nib_status nib__gguf_part_paths(const char ***out, const nib_gguf *part, const char *path,
                                size_t count, nib_arena *arena, nib_err *err);
/* Each is the part that it should be, and together they have the tensors that the first promises.
 */
nib_status nib__gguf_check_parts(const nib_container *parsed, size_t count, nib_err *err);
/* Gives the tensors our names where the architecture, which the first file says, is one whose names
 * we know. */
nib_status nib__gguf_translate(nib_container *parsed, size_t count, nib_arena *arena, nib_err *err);
/* Heads of queries, those of keys and values, and their width; 0 where they are not said. */
void nib__gguf_heads(const nib_gguf *gguf, int64_t *heads, int64_t *kv_heads, int64_t *head);

#endif
