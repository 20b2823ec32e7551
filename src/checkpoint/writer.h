/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes safetensors, or GGUF, as a stream: names, types and shapes first, then the bytes of each
 * tensor in ascending pieces, tensors in any order. One file, or shards of safetensors with an
 * index where a directory would get a file over the limit. Owns its open outputs; the caller owns
 * the directory and makes it appear (nib__publish).
 */
#ifndef NIB_WRITER_H
#define NIB_WRITER_H

#include "checkpoint.h"
#include "gguf_write.h"
#include "hash.h"

typedef struct nib_writer nib_writer;

nib_status nib__writer_make(nib_writer **out, const nib_allocator *a, nib_err *err);
/* Abandons what is open; frees. */
void nib__writer_free(nib_writer *writer);

/* All entries and tensors are added before nib__writer_layout. Tensors of one unit (a module's
 * codes and scales) stay in one shard. Strings are copied. A failure of memory is kept and told by
 * the layout. */
void nib__writer_add_meta(nib_writer *writer, const char *key, const char *value);
size_t nib__writer_add_tensor(nib_writer *writer, const char *name, nib_type type,
                              const int64_t *shape, int rank, size_t unit);

/* Before the layout: weights that are stored fused (fused.h) become one tensor each, where all its
 * parts are added, of one type and width. They are put, counted and hashed part by part as ever. A
 * GGUF cannot say it otherwise: parts that do not fit each other are an error there. Norms of heads
 * that are stored apart (head_norms.h) become a tensor for each head. */
void nib__writer_fuse(nib_writer *writer, unsigned fused);
/* Before the layout: the file is a GGUF with these key/values, which must stay until then, and
 * holds tensors under the names and types that were added, which must be GGUF's. Metadata is not
 * written, and there is one file, model.gguf in a directory. */
void nib__writer_use_gguf(nib_writer *writer, const nib_gguf_head *head);

/* Fixes places and headers. shard_limit: bytes of a file; 0: one file. Afterwards sizes are known.
 */
nib_status nib__writer_layout(nib_writer *writer, uint64_t shard_limit, nib_err *err);
size_t nib__writer_file_count(const nib_writer *writer);
uint64_t nib__writer_bytes(const nib_writer *writer);      /* of all files, headers included */
double nib__writer_sync_seconds(const nib_writer *writer); /* that nib__writer_finish took */

/* Creates the files: `file` itself, or in `directory` model.safetensors, or its shards and index.
 */
nib_status nib__writer_begin(nib_writer *writer, const char *directory, const char *file,
                             nib_err *err);
/* The next `size` bytes of a tensor. */
nib_status nib__writer_put(nib_writer *writer, size_t tensor, const void *bytes, size_t size,
                           nib_err *err);
/* Every tensor must be whole by now. */
nib_status nib__writer_finish(nib_writer *writer, nib_err *err);

size_t nib__writer_count(const nib_writer *writer);
const char *nib__writer_name(const nib_writer *writer, size_t tensor);
nib_hash nib__writer_hash(const nib_writer *writer, size_t tensor); /* of a whole tensor */

#endif
