/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble.json next to a checkpoint: the hashes of its tensors and files when it was written.
 */
#ifndef NIB_MANIFEST_H
#define NIB_MANIFEST_H

#include "checkpoint.h"
#include "hash.h"

typedef struct nib_manifest_hash {
    const char *name;
    nib_hash hash;
} nib_manifest_hash;

typedef struct nib_manifest {
    const char *path; /* NULL: no manifest */
    const char *recipe, *format, *tool;
    nib_manifest_hash *tensors, *files; /* [tensor_count], [file_count], in the arena */
    size_t tensor_count, file_count;
} nib_manifest;

enum { NIB_MANIFEST_MAX = 256 << 20 /* bytes of the file */ };

/* The path of a checkpoint's manifest, DIRECTORY/nibble.json or FILE.nibble.json; NULL: there is
 * none. */
nib_status nib__manifest_find(const char **out, const nib_checkpoint *cp, nib_arena *arena,
                              nib_err *err);
/* Reads DIRECTORY/nibble.json or FILE.nibble.json; a missing file is not an error. */
nib_status nib__manifest_read(nib_manifest *out, const nib_checkpoint *cp, nib_arena *arena,
                              const nib_allocator *a, nib_err *err);

#endif
