/* SPDX-License-Identifier: Apache-2.0
 *
 * nibble.json beside a checkpoint: what its tensors and files hashed to when it was written.
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
    const char *path; /* NULL: there is none */
    const char *recipe, *format, *tool;
    nib_manifest_hash *tensors, *files; /* [tensor_count], [file_count], in the arena */
    size_t tensor_count, file_count;
} nib_manifest;

/* Looks for DIRECTORY/nibble.json or FILE.nibble.json; none is no error. */
nib_status nib__manifest_read(nib_manifest *out, const nib_checkpoint *cp, nib_arena *arena,
                              const nib_allocator *a, nib_err *err);

#endif
