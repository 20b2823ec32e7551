/* SPDX-License-Identifier: Apache-2.0
 *
 * The paged KV cache. Blocks of NIB_CACHE_BLOCK positions are allocated as sequences grow and freed
 * when they are rolled back. Layers that keep the same positions form a group with one block table:
 * layers that see all positions, and layers with a sliding window. Blocks before the window are
 * freed. Memory pages are not touched before they are used. Sequences with the same prefix may
 * share its whole blocks, which nobody writes.
 *
 * Layers without keys have a state per sequence, which only the last positions can be taken from.
 * Snapshots are copies of it at earlier positions, so that sequences can be rolled back to those.
 */
#ifndef NIB_CACHE_H
#define NIB_CACHE_H

#include "snapshots.h"
#include "config.h"
#include "gpu.h"
#include "states.h"

enum {
    NIB_KV_GROUPS = 2,
    /* Positions that a layer keeps beside its window: those of one pass, whose first slot sees the
     * window before it. Also how many positions a sequence without states can always be rolled
     * back. */
    NIB_CACHE_SPARE = 512
};

/* What the cache must hold. */
typedef struct nib_kv_shape {
    int64_t layers; /* that keep keys and values: the first ones */
    int64_t kv_heads, head_dim, sequences, context;
    /* of layers without the window; 0: the same */
    int64_t global_kv_heads, global_head_dim;
    nib_kv_types types;
    int64_t window;            /* positions a query sees, including its own; 0: all */
    const bool *window_layers; /* [layers] layers that have the window; NULL: all */
    int64_t value_dim;         /* > 0: no values are kept; they are the keys' first dimensions */
    nib_state_shape states;    /* of layers that keep no keys; without `sequences` */
    int64_t snapshots;         /* most copies of a sequence's states; without such layers: none */
} nib_kv_shape;

nib_kv_shape nib__kv_shape(const nib_config *config, int64_t sequences, int64_t context,
                           nib_kv_types types);
/* Bytes of a position in all layers. */
uint64_t nib__kv_shape_bytes(const nib_kv_shape *shape);
/* Bytes of all keys, values and states, and what a windowed layer holds per sequence. */
typedef struct nib_kv_size {
    uint64_t bytes;
    int64_t window_layers;    /* layers whose window is shorter than the context; 0: none */
    int64_t window_positions; /* capacity of each such layer per sequence */
    int64_t state_layers;     /* layers that keep a state instead of keys */
    uint64_t state_bytes;     /* of a sequence, and of a snapshot; all are counted in `bytes` */
    int64_t snapshots;
} nib_kv_size;
/* NIB_NO_MEMORY: the size is over a limit; the error says what to ask for instead. */
nib_status nib__kv_measure(nib_kv_size *out, const nib_kv_shape *shape, nib_err *err);

/* Layers that keep the same positions. */
typedef struct nib_kv_group {
    int64_t window; /* 0: all positions */
    int64_t layers, kv_heads, head_dim;
    /* On the CPU [blocks][layers][keys, values][kv_heads] of nib__cache_bytes, so that few
     * positions touch few pages; on the GPU [layers][keys, values][blocks][kv_heads]. */
    char *block;
    uint64_t block_bytes; /* of the whole allocation */
    uint64_t layer_bytes; /* from a layer's keys to the next layer's */
    uint64_t key_bytes;   /* from a layer's keys to its values */
    int64_t stride;       /* nib_cache.block_bytes */
    int32_t *tables;      /* [sequences][table_ld]; -1: no block */
    void *gpu_tables;     /* copy on the GPU; stale: not up to date */
    bool stale;
    int32_t *firsts; /* [sequences] first entry that has a block */
    int32_t *free;   /* [blocks] stack */
    int32_t *uses;   /* [blocks] table entries that refer to the block */
    int64_t free_count, blocks;
} nib_kv_group;

typedef struct nib_kv {
    const nib_allocator *allocator;
    nib_gpu *gpu; /* holds keys, values and a copy of the tables; NULL: the CPU does */
    int64_t layers, value_dim, sequences, context;
    nib_kv_types types;
    int64_t sides; /* 2: keys and values; 1: keys alone */
    int64_t table_ld;
    nib_kv_group groups[NIB_KV_GROUPS];
    int64_t group_count;
    int32_t *group_of, *place; /* [layers] the layer's group, and its index there; -1: no keys */
    nib_states states;         /* of layers without keys; on the CPU; first those of sequences, then
                                  those of snapshots */
    nib_snapshots snapshots;
    int32_t *lengths; /* [sequences] positions held, plus those freed before the window */
} nib_kv;

nib_status nib__kv_open(nib_kv *out, const nib_kv_shape *shape, nib_gpu *gpu,
                        const nib_allocator *a, nib_err *err);
void nib__kv_close(nib_kv *kv);
/* Writes changed tables to the GPU; does nothing without one. */
nib_status nib__kv_sync(nib_kv *kv, nib_err *err);
/* Appends `position` to a sequence; it must be the sequence's next one. */
nib_status nib__kv_extend(nib_kv *kv, int64_t sequence, int64_t position, nib_err *err);
/* Allocates the blocks of a position and frees those before the windows. Positions come in order,
 * at most NIB_CACHE_SPARE of a sequence per pass. */
void nib__kv_place(nib_kv *kv, int64_t sequence, int64_t position);
/* The length a sequence can be rolled back to: the smaller of `position` and its length; if states
 * have already moved past that point, their last snapshot before it; 0 if there is none, or a
 * window has moved past it. */
int64_t nib__kv_cut(const nib_kv *kv, int64_t sequence, int64_t position);
/* Rolls a sequence back to nib__kv_cut's length, and returns it. */
int64_t nib__kv_truncate(nib_kv *kv, int64_t sequence, int64_t position);
/* The same, but rolls back to whole blocks if the last one would be partial and is shared, because
 * the next position would be written into it. */
int64_t nib__kv_keep(nib_kv *kv, int64_t sequence, int64_t position);
/* How many of the first `positions` of a sequence another can share: whole blocks, and a length
 * that it can be rolled back to. */
int64_t nib__kv_shareable(const nib_kv *kv, int64_t sequence, int64_t positions);
/* Makes the empty sequence `to` share the first `positions` of `from`, as nib__kv_shareable says.
 */
void nib__kv_share(nib_kv *kv, int64_t from, int64_t to, int64_t positions);
/* Keeps the states of a sequence as they are now, if layers have states. */
void nib__kv_snapshot(nib_kv *kv, int64_t sequence, nib_snapshot_kind kind);
nib_cache nib__kv_layer(const nib_kv *kv, int64_t layer);

/* ---- the content of a sequence, in the same order on every device ----
 *
 * A position has the key of each head, then the value of each head, if the cache has values; int8:
 * each followed by its scale; int4: by its scales, then its minima. */

/* Whether a layer keeps keys; if not, nib__states_read and nib__states_write have its content. */
bool nib__kv_keeps_keys(const nib_kv *kv, int64_t layer);
/* Bytes of a position in a layer; and in the layer with most. */
uint64_t nib__kv_position_bytes(const nib_kv *kv, int64_t layer);
uint64_t nib__kv_widest_bytes(const nib_kv *kv);
/* Whether a layer may hold only the last positions of a sequence; and the first that such layers
 * hold, in whole blocks. */
bool nib__kv_has_window(const nib_kv *kv, int64_t layer);
int64_t nib__kv_first(const nib_kv *kv, int64_t sequence);
/* Copies the first `count` positions of block number `block` of the sequence, in one layer, out of
 * the cache or into it. scratch: nib__kv_scratch_bytes. */
nib_status nib__kv_read(const nib_kv *kv, int64_t sequence, int64_t layer, int64_t block,
                        int64_t count, void *out, void *scratch, nib_err *err);
nib_status nib__kv_write(nib_kv *kv, int64_t sequence, int64_t layer, int64_t block, int64_t count,
                         const void *from, void *scratch, nib_err *err);
uint64_t nib__kv_scratch_bytes(const nib_kv *kv);
/* Whether a sequence can have this length, with nothing before `first` in layers with a window. */
bool nib__kv_can_hold(const nib_kv *kv, int64_t first, int64_t length);
/* Gives the sequence new blocks for such a length; nib__kv_write fills them. */
void nib__kv_replace(nib_kv *kv, int64_t sequence, int64_t first, int64_t length);

/* Bytes allocated, and bytes of the positions held. */
uint64_t nib__kv_bytes(const nib_kv *kv);
uint64_t nib__kv_used_bytes(const nib_kv *kv);
/* The same in blocks. */
int64_t nib__kv_blocks(const nib_kv *kv);
int64_t nib__kv_used_blocks(const nib_kv *kv);

#endif
