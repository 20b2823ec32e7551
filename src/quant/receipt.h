/* SPDX-License-Identifier: Apache-2.0
 *
 * The receipt in a manifest: SHA-256 of what was read and of what was written, and what was asked,
 * so that anyone with the source gets the same bytes again. Nothing in it depends on the time, the
 * machine or the number of threads. Private to quantize.
 */
#ifndef NIB_RECEIPT_H
#define NIB_RECEIPT_H

#include "digests.h"
#include "output_layout.h"

/* Of the bytes that a tensor spans in its file. */
nib_digest nib__digest_tensor(const nib_checkpoint *cp, const nib_tensor *tensor);

/* Adds what decides the output besides the tensors: config.json and the other files that are read
 * or copied, in a fixed order; of a GGUF its key/values, as NIB_GGUF_KEYS. Names live in the arena.
 */
#define NIB_GGUF_KEYS "key/values"
nib_status nib__digest_source_files(nib_digests *out, const nib_checkpoint *cp, nib_arena *arena,
                                    const nib_allocator *a, nib_err *err);
/* Adds every file of an output except the manifest and what --pack adds, by name. path: a directory
 * or a file, which is listed as `name`. */
nib_status nib__digest_outputs(nib_digests *out, const char *path, const char *name,
                               nib_arena *arena, const nib_allocator *a, nib_err *err);

/* What a receipt lists. */
typedef struct nib_receipt {
    const nib_digest *tensors; /* of the stored tensors, in the source's order */
    nib_digests files, outputs;
} nib_receipt;

/* Writes the value of "receipt". */
void nib__receipt_json(const nib_receipt *receipt, const nib_quantize_job *job, nib_jsonw *w);

#endif
