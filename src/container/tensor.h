/* SPDX-License-Identifier: Apache-2.0
 *
 * Named tensors, as views into a mapped file, and named strings.
 */
#ifndef NIB_TENSOR_H
#define NIB_TENSOR_H

#include "type.h"

enum { NIB_RANK_MAX = 8 };

typedef struct nib_tensor {
    const char *name;
    nib_type type;
    int rank;
    int64_t shape[NIB_RANK_MAX];
    const uint8_t *data; /* may be unaligned */
    uint64_t bytes;
    int file; /* index of the shard */
    /* For a view of parts of another tensor (fused.h): [shape[0]] where each row is stored, counted
     * from data; NULL: in order. */
    const int32_t *rows;
    /* > 0: a view of a transposed tensor, [shape[1]][stored_n] from data on; 0: rows as usual. */
    int64_t stored_n;
} nib_tensor;

/* Bytes from the first to the last of a tensor: t->bytes, or more if a view has gaps. */
NIB_INLINE uint64_t nib__tensor_span(const nib_tensor *t)
{
    if ((t->rows == NULL && t->stored_n == 0) || t->bytes == 0)
        return t->bytes;
    const uint64_t n = (uint64_t)t->shape[0], row = t->bytes / n;
    uint64_t last = t->rows != NULL ? 0 : n - 1;
    for (uint64_t i = 0; t->rows != NULL && i < n; i++)
        last = (uint64_t)t->rows[i] > last ? (uint64_t)t->rows[i] : last;
    if (t->stored_n == 0)
        return row * (last + 1);
    const uint64_t k = (uint64_t)t->shape[1];
    return row / k * ((k - 1) * (uint64_t)t->stored_n + last + 1);
}

enum { NIB_SHAPE_SHOWN = 200 }; /* bytes that any shape needs */
/* Writes "[8, 64]". */
const char *nib__format_shape(char out[NIB_SHAPE_SHOWN], const int64_t *shape, int rank);

/* A `__metadata__` entry, or an alias: key names a tensor that is not stored, value the stored
 * tensor with its bytes. */
typedef struct nib_meta {
    const char *key, *value;
} nib_meta;

typedef struct nib_gguf nib_gguf; /* gguf.h */

#endif
