/* SPDX-License-Identifier: Apache-2.0
 *
 * What every container holds: named tensors, as views into a mapped file, and named strings.
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
    int file; /* which shard */
} nib_tensor;

/* A `__metadata__` entry, or an alias: key names a missing tensor, value a stored one. */
typedef struct nib_meta {
    const char *key, *value;
} nib_meta;

typedef struct nib_gguf nib_gguf; /* gguf.h */

#endif
