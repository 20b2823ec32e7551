/* SPDX-License-Identifier: Apache-2.0
 *
 * Positions that sequences can be rolled back to although their states have moved on: a snapshot
 * is a slot with a copy of a sequence's states. This list says which slot holds which position, and
 * of which sequences; the bytes are in nib_states, behind those of the sequences.
 */
#ifndef NIB_SNAPSHOTS_H
#define NIB_SNAPSHOTS_H

#include "memory.h"

/* Why a snapshot is made. A passing one replaces only passing ones. */
typedef enum nib_snapshot_kind {
    NIB_SNAPSHOT_PASSING, /* a prompt or an answer reached the end of a chunk */
    NIB_SNAPSHOT_TURN     /* a turn starts, or its prompt ends soon */
} nib_snapshot_kind;

typedef struct nib_snapshot {
    int64_t position;
    nib_snapshot_kind kind;
    uint64_t used; /* time of last use; 0: the slot is free */
} nib_snapshot;

typedef struct nib_snapshots {
    const nib_allocator *allocator;
    int64_t count, sequences;
    nib_snapshot *list; /* [count] */
    bool *held;         /* [count][sequences] whose first tokens are those of the snapshot */
    uint64_t clock;
} nib_snapshots;

/* count 0: nothing is allocated, and the calls below find nothing. */
nib_status nib__snapshots_open(nib_snapshots *out, int64_t count, int64_t sequences,
                               const nib_allocator *a, nib_err *err);
void nib__snapshots_close(nib_snapshots *c);
/* The slot of the sequence's last snapshot at `position` or before it; -1: none. */
int64_t nib__snapshots_find(const nib_snapshots *c, int64_t sequence, int64_t position);
/* A slot for a snapshot of the sequence at `position`: a free one, or the least recently used.
 * -1: it has one there, or none may be replaced. */
int64_t nib__snapshots_take(nib_snapshots *c, int64_t sequence, int64_t position,
                            nib_snapshot_kind kind);
/* The sequence was rolled back to the snapshot in this slot, or shares it. */
void nib__snapshots_use(nib_snapshots *c, int64_t slot);
/* Forgets the sequence's snapshots after `position`. */
void nib__snapshots_cut(nib_snapshots *c, int64_t sequence, int64_t position);
/* The empty sequence `to` has now the first `position` tokens of `from`. */
void nib__snapshots_share(nib_snapshots *c, int64_t from, int64_t to, int64_t position);
/* Slots in use. */
int64_t nib__snapshots_used(const nib_snapshots *c);

#endif
