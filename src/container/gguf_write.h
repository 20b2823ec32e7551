/* SPDX-License-Identifier: Apache-2.0
 *
 * The head of a GGUF file, version 3: its key/values, gathered one after the other, then the list
 * of tensors. The bytes of tensors go through a nib_writer that has such a head
 * (nib__writer_use_gguf).
 */
#ifndef NIB_GGUF_WRITE_H
#define NIB_GGUF_WRITE_H

#include "gguf.h"

enum {
    NIB_GGUF_ALIGNMENT = 32
}; /* of the data and of every tensor: what a file has that does not
                                     say */

typedef struct nib_gguf_head {
    nib_text pairs; /* as in the file; a failure of memory is kept there */
    uint64_t count;
} nib_gguf_head;

void nib__gguf_head_init(nib_gguf_head *head, const nib_allocator *a);
void nib__gguf_head_free(nib_gguf_head *head);

/* Each key once; the readers refuse a second. kind: a whole number's that holds the value, F32 or
 * F64. */
void nib__gguf_put_int(nib_gguf_head *head, const char *key, nib_gguf_kind kind, int64_t value);
void nib__gguf_put_double(nib_gguf_head *head, const char *key, nib_gguf_kind kind, double value);
void nib__gguf_put_bool(nib_gguf_head *head, const char *key, bool value);
void nib__gguf_put_string(nib_gguf_head *head, const char *key, const char *text, size_t size);
/* An array of `count` elements, which the next calls of the item function for its kind give. */
void nib__gguf_put_array(nib_gguf_head *head, const char *key, nib_gguf_kind kind, uint64_t count);
void nib__gguf_item_int(nib_gguf_head *head, nib_gguf_kind kind, int64_t value);
void nib__gguf_item_double(nib_gguf_head *head, nib_gguf_kind kind, double value);
void nib__gguf_item_string(nib_gguf_head *head, const char *text, size_t size);

/* Does GGUF have the type? */
bool nib__gguf_holds(nib_type type);
/* The file up to its list of tensors, then an entry of that; shape as ours, slowest first. */
void nib__gguf_begin(nib_text *out, const nib_gguf_head *head, uint64_t tensors);
void nib__gguf_entry(nib_text *out, const char *name, nib_type type, const int64_t *shape, int rank,
                     uint64_t offset);

#endif
