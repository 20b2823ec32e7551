/* SPDX-License-Identifier: Apache-2.0
 *
 * A GGUF model split into several files (NAME-00001-of-00003.gguf), and the translation of its
 * tensor names.
 */
#ifndef NIB_GGUF_PARTS_H
#define NIB_GGUF_PARTS_H

#include "gguf.h"

enum { NIB_GGUF_PART_MAX = 9999 };

/* split.count; 1 if it is missing. */
nib_status nib__gguf_part_count(size_t *out, const nib_gguf *gguf, nib_err *err);
/* The paths of all `count` parts in order, from the path of any part; allocated in the arena. */
nib_status nib__gguf_part_paths(const char ***out, const nib_gguf *part, const char *path,
                                size_t count, nib_arena *arena, nib_err *err);
/* Checks that each file is the right part, and that they have as many tensors as the first says. */
nib_status nib__gguf_check_parts(const nib_container *parsed, size_t count, nib_err *err);
/* Renames the tensors to our names if the architecture, given in the first file, is known. */
nib_status nib__gguf_translate(nib_container *parsed, size_t count, nib_arena *arena, nib_err *err);
/* Numbers of query heads and of key/value heads, and the head width; 0: not given. */
void nib__gguf_heads(const nib_gguf *gguf, int64_t *heads, int64_t *kv_heads, int64_t *head);
/* Latent attention: channels of a head's keys that do not rotate, and of its values; 0 without. */
void nib__gguf_latent(const nib_gguf *gguf, int64_t *nope, int64_t *value);

#endif
