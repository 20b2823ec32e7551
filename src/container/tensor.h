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
} nib_tensor;

/* A `__metadata__` entry, or an alias: key names a tensor that is not stored, value the stored
 * tensor with its bytes. */
typedef struct nib_meta {
    const char *key, *value;
} nib_meta;

typedef struct nib_gguf nib_gguf; /* gguf.h */

#endif
