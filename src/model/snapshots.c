/* SPDX-License-Identifier: Apache-2.0
 *
 * Finds, replaces and forgets snapshots of states.
 */
#include "snapshots.h"

nib_status nib__snapshots_open(nib_snapshots *out, int64_t count, int64_t sequences,
                               const nib_allocator *a, nib_err *err)
{
    nib_snapshots c = {.allocator = a, .count = count, .sequences = sequences};
    *out = (nib_snapshots){0};
    if (count == 0)
        return NIB_OK;
    c.list = nib__calloc(a, (uint64_t)count, sizeof *c.list);
    c.held = nib__calloc(a, (uint64_t)count * (uint64_t)sequences, sizeof *c.held);
    if (c.list == NULL || c.held == NULL) {
        nib__snapshots_close(&c);
        return nib__fail_memory(err, (uint64_t)count * (sizeof *c.list + (uint64_t)sequences),
                                "the snapshots of states; ask for less state memory");
    }
    *out = c;
    return NIB_OK;
}

void nib__snapshots_close(nib_snapshots *c)
{
    nib__release(c->allocator, c->list);
    nib__release(c->allocator, c->held);
    *c = (nib_snapshots){0};
}

static bool *held_by(const nib_snapshots *c, int64_t slot, int64_t sequence)
{
    return &c->held[slot * c->sequences + sequence];
}

int64_t nib__snapshots_find(const nib_snapshots *c, int64_t sequence, int64_t position)
{
    int64_t best = -1;
    for (int64_t i = 0; i < c->count; i++)
        if (*held_by(c, i, sequence) && c->list[i].position <= position &&
            (best < 0 || c->list[i].position > c->list[best].position))
            best = i;
    return best;
}

/* Whether slot `a` is replaced before slot `b`: free ones first, then passing ones. */
static bool goes_first(const nib_snapshot *a, const nib_snapshot *b)
{
    if ((a->used == 0) != (b->used == 0))
        return a->used == 0;
    return a->kind != b->kind ? a->kind < b->kind : a->used < b->used;
}

int64_t nib__snapshots_take(nib_snapshots *c, int64_t sequence, int64_t position,
                            nib_snapshot_kind kind)
{
    const int64_t there = nib__snapshots_find(c, sequence, position);
    int64_t slot = 0;
    if (there >= 0 && c->list[there].position == position) {
        if (kind > c->list[there].kind)
            c->list[there].kind = kind;
        nib__snapshots_use(c, there);
        return -1;
    }
    for (int64_t i = 1; i < c->count; i++)
        if (goes_first(&c->list[i], &c->list[slot]))
            slot = i;
    if (c->count == 0 || (c->list[slot].used > 0 && c->list[slot].kind > kind))
        return -1;
    for (int64_t s = 0; s < c->sequences; s++)
        *held_by(c, slot, s) = s == sequence;
    c->list[slot] = (nib_snapshot){.position = position, .kind = kind};
    nib__snapshots_use(c, slot);
    return slot;
}

void nib__snapshots_use(nib_snapshots *c, int64_t slot) { c->list[slot].used = ++c->clock; }

/* The slot is free if no sequence holds it. */
static void check_held(nib_snapshots *c, int64_t slot)
{
    for (int64_t s = 0; s < c->sequences; s++)
        if (*held_by(c, slot, s))
            return;
    c->list[slot].used = 0;
}

void nib__snapshots_cut(nib_snapshots *c, int64_t sequence, int64_t position)
{
    for (int64_t i = 0; i < c->count; i++)
        if (*held_by(c, i, sequence) && c->list[i].position > position) {
            *held_by(c, i, sequence) = false;
            check_held(c, i);
        }
}

void nib__snapshots_share(nib_snapshots *c, int64_t from, int64_t to, int64_t position)
{
    for (int64_t i = 0; i < c->count; i++)
        if (*held_by(c, i, from) && c->list[i].position <= position)
            *held_by(c, i, to) = true;
}

int64_t nib__snapshots_used(const nib_snapshots *c)
{
    int64_t used = 0;
    for (int64_t i = 0; i < c->count; i++)
        used += c->list[i].used > 0;
    return used;
}
