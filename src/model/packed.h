/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights as this machine's rows read them, in a file beside the checkpoint that they were packed
 * from, or where a caller keeps such files: a run maps it and packs nothing. The checkpoint is what
 * counts: a file that is for another source, of other layouts, cut short or changed is left aside
 * with a sentence, and the weights are packed as without it. docs/formats.md has the layout.
 */
#ifndef NIB_PACKED_H
#define NIB_PACKED_H

#include "network.h"
#include "plan.h"

#define NIB_PACKED_NAME "nibble.pack"

typedef struct nib_packed nib_packed;

/* Beside a checkpoint; NULL: it is a lone file, which has no such place, or memory ran out. */
const char *nib__packed_place(const nib_checkpoint *cp, nib_arena *arena);
/* All of it is looked at: header, source, checksums. NIB_OK and NULL: there is none. Else, where it
 * cannot serve, NIB_BAD_INPUT or NIB_IO with why. path stays as long as what is opened. */
nib_status nib__packed_open(nib_packed **out, const char *path, const nib_checkpoint *cp,
                            nib_pool *pool, const nib_allocator *a, nib_err *err);
/* The same from memory, which must stay, whatever it was made from. */
nib_status nib__packed_parse(nib_packed **out, const uint8_t *at, uint64_t size, const char *name,
                             nib_pool *pool, const nib_allocator *a, nib_err *err);
void nib__packed_close(nib_packed *packed); /* NULL allowed */
/* Returns `status`, or NIB_IO if the file changed since it was opened: compares size and time, and
 * once a second the checksum of the next piece, so that every piece is checked in turn. */
nib_status nib__packed_read(nib_packed *packed, nib_status status, nib_err *err);

/* The weight of a site in this layout, `bytes` of it, aligned to 64; NULL: not there, or the layout
 * is no longer what it was: the first rows are packed again and compared. */
const void *nib__packed_find(const nib_packed *packed, const char *site, const nib_weight *w,
                             const nib_packing *packing, uint64_t bytes);
/* Whether it has one by these names. */
bool nib__packed_has(const nib_packed *packed, const char *site, const nib_packing *packing);

typedef struct nib_packed_report {
    size_t count;
    uint64_t bytes;
} nib_packed_report;

/* Packs what the plan's rows read, weight by weight, into a file that appears whole or not at
 * all. NIB_EXISTS: another process is writing it. */
nib_status nib__packed_write(nib_packed_report *report, const char *path, const nib_network *net,
                             const nib_assignment *plan, nib_err *err);

#endif
