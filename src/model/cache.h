/* SPDX-License-Identifier: Apache-2.0
 *
 * The block-table cache of keys and values: blocks of NIB_CACHE_BLOCK positions, taken as sequences
 * grow and given back when they are cut. All layers share one table. Pages are not touched before
 * they are used. Sequences that begin alike may share blocks, whole ones only, which nobody writes.
 */
#ifndef NIB_CACHE_H
#define NIB_CACHE_H

#include "gpu.h"

typedef struct nib_kv {
    const nib_allocator *allocator;
    nib_gpu *gpu; /* where keys, values and a copy of the tables lie; NULL: here */
    int64_t layers, kv_heads, head_dim, sequences, context;
    nib_type type;
    void *gpu_tables; /* the GPU's copy; stale: not yet written there */
    bool stale;
    /* Here [blocks][layers][keys, values][kv_heads] of nib__cache_bytes, so that few positions
     * touch few pages; there [layers][keys, values][blocks][kv_heads]. */
    char *block;
    uint64_t block_bytes; /* of all of it */
    uint64_t side_bytes;  /* from a layer's keys to its values, and on to the next layer's keys */
    int64_t block_heads;  /* of nib_cache */
    int32_t *tables;      /* [sequences][table_ld]; -1: no block */
    int64_t table_ld;
    int32_t *free; /* [blocks] stack */
    int32_t *uses; /* [blocks] entries that name it */
    int64_t free_count, blocks;
    int32_t *lengths; /* [sequences] positions held */
} nib_kv;

nib_status nib__kv_open(nib_kv *out, int64_t layers, int64_t kv_heads, int64_t head_dim,
                        int64_t sequences, int64_t context, nib_type type, nib_gpu *gpu,
                        const nib_allocator *a, nib_err *err);
void nib__kv_close(nib_kv *kv);
/* Writes the tables to the GPU, if they changed; nothing without one. */
nib_status nib__kv_sync(nib_kv *kv, nib_err *err);
/* Makes room for position `position` of a sequence, which must be its next. */
nib_status nib__kv_extend(nib_kv *kv, int64_t sequence, int64_t position, nib_err *err);
void nib__kv_truncate(nib_kv *kv, int64_t sequence, int64_t position);
/* The same, but down to a whole block where the last one would be cut and is shared, as the next
 * position would be written to it. Returns what the sequence holds. */
int64_t nib__kv_keep(nib_kv *kv, int64_t sequence, int64_t position);
/* An empty sequence gets the first `positions` of another one, a whole number of blocks. */
void nib__kv_share(nib_kv *kv, int64_t from, int64_t to, int64_t positions);
nib_cache nib__kv_layer(const nib_kv *kv, int64_t layer);
/* Bytes that the held positions occupy. */
uint64_t nib__kv_used_bytes(const nib_kv *kv);

#endif
