/* SPDX-License-Identifier: Apache-2.0
 *
 * The block-table cache of keys and values: blocks of NIB_CACHE_BLOCK positions, taken as sequences
 * grow and given back when they are cut. Layers that hold the same positions form a group with one
 * table: those that see all positions, and those that see a window of them. Blocks before a window
 * are given back. Pages are not touched before they are used. Sequences that begin alike may share
 * blocks, whole ones only, which nobody writes.
 */
#ifndef NIB_CACHE_H
#define NIB_CACHE_H

#include "config.h"
#include "gpu.h"

enum {
    NIB_KV_GROUPS = 2,
    /* Positions that a layer keeps beside its window: those of one pass, whose first slot sees the
     * window before it, and as many as a sequence can always be cut by. */
    NIB_CACHE_SPARE = 512
};

/* What has to be held. */
typedef struct nib_kv_shape {
    int64_t layers, kv_heads, head_dim, sequences, context;
    nib_type type;
    int64_t window;            /* positions that a query sees, its own included; 0: all */
    const bool *window_layers; /* [layers] which layers have it; NULL: all */
} nib_kv_shape;

nib_kv_shape nib__kv_shape(const nib_config *config, int64_t sequences, int64_t context,
                           nib_type type);
/* Bytes of all keys and values, and what layers with a window hold of a sequence. */
typedef struct nib_kv_size {
    uint64_t bytes;
    int64_t window_layers;    /* whose window is shorter than the context; 0: none is */
    int64_t window_positions; /* that each of them has room for */
} nib_kv_size;
/* NIB_NO_MEMORY: over the limits of sizes, with what to ask for instead. */
nib_status nib__kv_measure(nib_kv_size *out, const nib_kv_shape *shape, nib_err *err);

/* Layers that hold the same positions. */
typedef struct nib_kv_group {
    int64_t window; /* 0: all positions */
    int64_t layers;
    /* Here [blocks][layers][keys, values][kv_heads] of nib__cache_bytes, so that few positions
     * touch few pages; there [layers][keys, values][blocks][kv_heads]. */
    char *block;
    uint64_t block_bytes; /* of all of it */
    uint64_t side_bytes;  /* from a layer's keys to its values, and on to the next layer's keys */
    int64_t block_heads;  /* of nib_cache */
    int32_t *tables;      /* [sequences][table_ld]; -1: no block */
    void *gpu_tables;     /* the GPU's copy; stale: not yet written there */
    bool stale;
    int32_t *firsts; /* [sequences] the first entry that has a block */
    int32_t *free;   /* [blocks] stack */
    int32_t *uses;   /* [blocks] entries that name it */
    int64_t free_count, blocks;
} nib_kv_group;

typedef struct nib_kv {
    const nib_allocator *allocator;
    nib_gpu *gpu; /* where keys, values and a copy of the tables lie; NULL: here */
    int64_t layers, kv_heads, head_dim, sequences, context;
    nib_type type;
    int64_t table_ld;
    nib_kv_group groups[NIB_KV_GROUPS];
    int64_t group_count;
    int32_t *group_of, *place; /* [layers] the group, and which of its layers */
    int32_t *lengths;          /* [sequences] positions held, or given back behind a window */
} nib_kv;

nib_status nib__kv_open(nib_kv *out, const nib_kv_shape *shape, nib_gpu *gpu,
                        const nib_allocator *a, nib_err *err);
void nib__kv_close(nib_kv *kv);
/* Writes the tables to the GPU, if they changed; nothing without one. */
nib_status nib__kv_sync(nib_kv *kv, nib_err *err);
/* Makes a sequence longer by position `position`, which must be its next. */
nib_status nib__kv_extend(nib_kv *kv, int64_t sequence, int64_t position, nib_err *err);
/* Gives that position its blocks, and those before the windows back. Positions come in order, at
 * most NIB_CACHE_SPARE of a sequence from one pass to the next. */
void nib__kv_place(nib_kv *kv, int64_t sequence, int64_t position);
/* What a sequence can be cut to: `position` or its length, the smaller one; 0 where a window has
 * moved on from there. */
int64_t nib__kv_cut(const nib_kv *kv, int64_t sequence, int64_t position);
/* Cuts a sequence to what nib__kv_cut says, and returns it. */
int64_t nib__kv_truncate(nib_kv *kv, int64_t sequence, int64_t position);
/* The same, but down to a whole block where the last one would be cut and is shared, as the next
 * position would be written to it. */
int64_t nib__kv_keep(nib_kv *kv, int64_t sequence, int64_t position);
/* An empty sequence gets the first `positions` of another one, a whole number of blocks that it can
 * be cut to. */
void nib__kv_share(nib_kv *kv, int64_t from, int64_t to, int64_t positions);
nib_cache nib__kv_layer(const nib_kv *kv, int64_t layer);
/* Bytes that there is room for, and those that the held positions occupy. */
uint64_t nib__kv_bytes(const nib_kv *kv);
uint64_t nib__kv_used_bytes(const nib_kv *kv);
/* The same of blocks. */
int64_t nib__kv_blocks(const nib_kv *kv);
int64_t nib__kv_used_blocks(const nib_kv *kv);

#endif
