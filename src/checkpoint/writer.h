/* SPDX-License-Identifier: Apache-2.0
 *
 * Streaming writer for safetensors and GGUF: first names, types and shapes of all tensors, then the
 * bytes of each tensor in ascending pieces, tensors in any order. Writes one file, or, in a
 * directory, safetensors shards with an index if one file would exceed the limit. Owns its open
 * outputs; the caller owns the directory and publishes it (nib__publish).
 */
#ifndef NIB_WRITER_H
#define NIB_WRITER_H

#include "checkpoint.h"
#include "gguf_write.h"
#include "hash.h"

typedef struct nib_writer nib_writer;

nib_status nib__writer_make(nib_writer **out, const nib_allocator *a, nib_err *err);
/* Abandons open outputs and frees the writer. */
void nib__writer_free(nib_writer *writer);

/* Add all entries and tensors before nib__writer_layout. Tensors of one unit (a module's codes and
 * scales) stay in one shard. Strings are copied. Layout reports if out of memory here. */
void nib__writer_add_meta(nib_writer *writer, const char *key, const char *value);
size_t nib__writer_add_tensor(nib_writer *writer, const char *name, nib_type type,
                              const int64_t *shape, int rank, size_t unit);

/* Call before layout. Joins the parts of weights that `fused` (fused.h) marks into one tensor, if
 * all parts were added with the same type and width; parts are still put, counted and hashed
 * separately. In a GGUF, which requires the fused tensor, parts that differ are an error. The keys'
 * halves of heads (latent.h) are put like any tensor, and are stored and hashed transposed. Splits
 * per-head norms (head_norms.h) into a tensor for each head. */
void nib__writer_fuse(nib_writer *writer, unsigned fused);
/* Call before layout. A safetensors file gets the names that a family (model_type) publishes, and
 * its stacks of experts if all experts of a matrix are floats of one type (experts.h). Interleaved
 * matrices are held in memory until all are complete, and each is hashed from its first byte to its
 * last. prefixed: as nib__checkpoint_prefixed. */
void nib__writer_family(nib_writer *writer, const char *family, bool prefixed);
/* After layout: stacks of experts that are written expert by expert instead, and kv_b_proj that are
 * written head by head. */
size_t nib__writer_unjoined(const nib_writer *writer);
size_t nib__writer_unjoined_heads(const nib_writer *writer);
/* Call before layout. Writes one GGUF file (model.gguf in a directory) with these key/values, which
 * must stay valid until layout. Names and types of tensors must be GGUF's; experts added one by one
 * (ffn_up_exps.5.weight), become one tensor. Metadata added with nib__writer_add_meta is not
 * written. */
void nib__writer_use_gguf(nib_writer *writer, const nib_gguf_head *head);

/* Computes offsets and headers; sizes are known afterwards. shard_limit: most bytes of tensors in a
 * file; 0: one file. */
nib_status nib__writer_layout(nib_writer *writer, uint64_t shard_limit, nib_err *err);
size_t nib__writer_file_count(const nib_writer *writer);
uint64_t nib__writer_bytes(const nib_writer *writer);      /* of all files, headers included */
double nib__writer_sync_seconds(const nib_writer *writer); /* spent in nib__writer_finish */

/* Creates the files: `file`, or in `directory` model.safetensors or its shards and index. */
nib_status nib__writer_begin(nib_writer *writer, const char *directory, const char *file,
                             nib_err *err);
/* Writes the next `size` bytes of a tensor. */
nib_status nib__writer_put(nib_writer *writer, size_t tensor, const void *bytes, size_t size,
                           nib_err *err);
/* Fails unless every tensor is complete. */
nib_status nib__writer_finish(nib_writer *writer, nib_err *err);

size_t nib__writer_count(const nib_writer *writer);
const char *nib__writer_name(const nib_writer *writer, size_t tensor);
nib_hash nib__writer_hash(const nib_writer *writer, size_t tensor); /* valid once complete */

#endif
