/* SPDX-License-Identifier: Apache-2.0
 *
 * Packed weights: weights in the layouts that this machine's rows read, in a file beside the
 * checkpoint or in a directory that the caller names. A run maps the file and packs nothing. The
 * checkpoint is authoritative: a file that is truncated, modified, or made from other weights or
 * layouts is ignored with a message, and the weights are packed as if it did not exist.
 * docs/formats.md has the layout.
 */
#ifndef NIB_PACKED_H
#define NIB_PACKED_H

#include "network.h"
#include "plan.h"

#define NIB_PACKED_NAME "nibble.pack"

typedef struct nib_packed nib_packed;

/* Path of the file beside a checkpoint; NULL: the checkpoint is a single file, not a directory, or
 * out of memory. */
const char *nib__packed_path(const nib_checkpoint *cp, nib_arena *arena);
/* Opens a file and checks all of it: header, source, checksums. NIB_OK and NULL: there is no file.
 * NIB_BAD_INPUT or NIB_IO: it cannot be used, and err says why. `path` must outlive the result. */
nib_status nib__packed_open(nib_packed **out, const char *path, const nib_checkpoint *cp,
                            nib_pool *pool, const nib_allocator *a, nib_err *err);
/* The same from memory, which must outlive the result; does not check the source. */
nib_status nib__packed_parse(nib_packed **out, const uint8_t *at, uint64_t size, const char *name,
                             nib_pool *pool, const nib_allocator *a, nib_err *err);
void nib__packed_close(nib_packed *packed); /* NULL allowed */
/* Returns `status`, or NIB_IO if the file changed since it was opened: compares size and time and,
 * once a second, the checksum of the next piece, so that every piece is checked in turn. */
nib_status nib__packed_check(nib_packed *packed, nib_status status, nib_err *err);

/* The weight of a site in this layout: `bytes` bytes, aligned to 64. Packs the first rows again and
 * compares them with the file; NULL: absent, or the layout or the weights have changed. */
const void *nib__packed_find(const nib_packed *packed, const char *site, const nib_weight *w,
                             const nib_packing *packing, uint64_t bytes);
/* Whether the file has a weight under these names, without comparing its layout. */
bool nib__packed_has(const nib_packed *packed, const char *site, const nib_packing *packing);

typedef struct nib_packed_report {
    size_t count;
    uint64_t bytes;
} nib_packed_report;

/* Packs the plan's weights one by one into a file that appears complete or not at all. NIB_EXISTS:
 * another process is writing it. */
nib_status nib__packed_write(nib_packed_report *report, const char *path, const nib_network *net,
                             const nib_assignment *plan, nib_err *err);

#endif
