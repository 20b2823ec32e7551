/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes the head of a GGUF file, version 3: key/values, then the list of tensors. Tensor data goes
 * through a nib_writer that was given this head (nib__writer_use_gguf).
 */
#ifndef NIB_GGUF_WRITE_H
#define NIB_GGUF_WRITE_H

#include "gguf.h"

/* Of the data and of every tensor: the format's default. */
enum { NIB_GGUF_ALIGNMENT = 32 };

typedef struct nib_gguf_head {
    nib_text pairs; /* as in the file; pairs.failed: out of memory */
    uint64_t count;
} nib_gguf_head;

void nib__gguf_head_init(nib_gguf_head *head, const nib_allocator *a);
void nib__gguf_head_free(nib_gguf_head *head);

/* Write each key only once: readers refuse duplicates. kind: an integer kind that holds the value;
 * F32 or F64 for put_double. */
void nib__gguf_put_int(nib_gguf_head *head, const char *key, nib_gguf_kind kind, int64_t value);
void nib__gguf_put_double(nib_gguf_head *head, const char *key, nib_gguf_kind kind, double value);
void nib__gguf_put_bool(nib_gguf_head *head, const char *key, bool value);
void nib__gguf_put_string(nib_gguf_head *head, const char *key, const char *text, size_t size);
/* Starts an array of `count` elements; append them with the item function for its kind. */
void nib__gguf_put_array(nib_gguf_head *head, const char *key, nib_gguf_kind kind, uint64_t count);
void nib__gguf_item_int(nib_gguf_head *head, nib_gguf_kind kind, int64_t value);
void nib__gguf_item_double(nib_gguf_head *head, nib_gguf_kind kind, double value);
void nib__gguf_item_string(nib_gguf_head *head, const char *text, size_t size);

/* Whether GGUF has the type. */
bool nib__gguf_holds(nib_type type);
/* begin: writes the file up to its list of tensors. entry: appends one tensor to that list; shape
 * in our order, slowest dimension first. */
void nib__gguf_begin(nib_text *out, const nib_gguf_head *head, uint64_t tensors);
void nib__gguf_entry(nib_text *out, const char *name, nib_type type, const int64_t *shape, int rank,
                     uint64_t offset);

#endif
