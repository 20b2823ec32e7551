/* SPDX-License-Identifier: Apache-2.0
 *
 * model.safetensors.index.json or pytorch_model.bin.index.json: which shard holds which tensor.
 * Does not open shards; checkpoint_open.c compares the index with them.
 */
#ifndef NIB_SHARDS_H
#define NIB_SHARDS_H

#include "name_index.h"

enum { NIB_SHARD_MAX = 4096 };

typedef struct nib_shard {
    const char *name; /* a file in the index's directory; never a path */
    int64_t tensors;  /* tensors that the index assigns to this shard */
} nib_shard;

typedef struct nib_shard_entry {
    const char *tensor;
    const nib_shard *shard;
    bool found; /* set by checkpoint_open.c */
} nib_shard_entry;

typedef struct nib_shards {
    const char *name;   /* index file name for messages; set by the caller that opened it */
    nib_shard **shards; /* [shard_count] sorted by name */
    size_t shard_count;
    nib_shard_entry **entries; /* [count] */
    size_t count;
    nib_name_index by_tensor;
    bool has_total;
    double total_size; /* from the metadata */
} nib_shards;

nib_status nib__shards_parse(nib_shards *out, const char *text, size_t size, const char *name,
                             nib_arena *arena, nib_err *err);

#endif
