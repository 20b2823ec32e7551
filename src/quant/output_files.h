/* SPDX-License-Identifier: Apache-2.0
 *
 * What lies beside the weights of a rewritten checkpoint: config.json with its quantization_config,
 * copies of the tokenizer's files, and the manifest, which is written last. Inside of quantize
 * only.
 */
#ifndef NIB_OUTPUT_FILES_H
#define NIB_OUTPUT_FILES_H

#include "rewriting.h"

/* A file beside the weights, for the manifest. */
typedef struct nib_side_file {
    const char *name;
    nib_hash hash;
} nib_side_file;

enum { NIB_SIDE_FILES_MAX = 24 };

typedef struct nib_side_files {
    nib_side_file files[NIB_SIDE_FILES_MAX];
    size_t count;
} nib_side_files;

/* A note of the files beside the source's weights that an output in a directory does not get. */
nib_status nib__side_files_tell(nib_rewriting *r);
/* config.json of the source with quantization_config if a layer is quantized, tie_word_embeddings
 * false where the head is untied, and the float type that was asked for, into directory; then every
 * tokenizer and generation file that the source has. */
nib_status nib__side_files_write(nib_side_files *out, const nib_rewriting *r,
                                 const char *directory);

/* The manifest: tool, source, recipe, format, ledger, a hash per tensor and file. */
nib_status nib__manifest_write(const char *path, const nib_quantize_job *job,
                               const nib_ledger *ledger, const char *format, nib_hash source,
                               const nib_writer *writer, const nib_side_files *files, nib_err *err);

/* config.json's quantization_config as the dialect's own readers want it; nothing is written for a
 * dialect without one, or where no layer is quantized. stored: [job->count], each quantized layer
 * as it is written. quantization_config.c */
void nib__quantization_config(nib_text *out, const nib_quantize_job *job,
                              const nib_output_weight *stored, nib_dialect dialect);

#endif
