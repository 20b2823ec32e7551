/* SPDX-License-Identifier: Apache-2.0
 *
 * The files beside the weights of an output: config.json with its quantization_config, copies of
 * the tokenizer's files, and the manifest, which is written last. Private to quantize.
 */
#ifndef NIB_OUTPUT_FILES_H
#define NIB_OUTPUT_FILES_H

#include "receipt.h"

/* A file listed in the manifest. */
typedef struct nib_side_file {
    const char *name;
    nib_hash hash;
} nib_side_file;

enum { NIB_SIDE_FILES_MAX = 24 };

typedef struct nib_side_files {
    nib_side_file files[NIB_SIDE_FILES_MAX];
    size_t count;
} nib_side_files;

/* Adds a note about files beside the source's weights that are not copied. */
nib_status nib__side_files_report(nib_output_layout *r);
/* Writes into directory: config.json of the source, with quantization_config if a layer is
 * quantized, tie_word_embeddings false if the head is untied, and the asked float type; then copies
 * every tokenizer and generation file of the source. */
nib_status nib__side_files_write(nib_side_files *out, const nib_output_layout *r,
                                 const char *directory);

/* Names of the files that are copied, in order; NULL: there are no more. */
const char *nib__side_file_name(size_t i);

/* The manifest: tool, source, recipe, format, ledger, a hash per tensor and file, and the receipt
 * if the job has one. */
nib_status nib__manifest_write(const char *path, const nib_quantize_job *job,
                               const nib_ledger *ledger, const char *format, nib_hash source,
                               const nib_writer *writer, const nib_side_files *files,
                               const nib_receipt *receipt, nib_err *err);

/* quantization_config.c: writes quantization_config as the dialect's own readers expect it; nothing
 * for a dialect without one, or if no layer is quantized. stored: [job->count], quantized layers as
 * written. */
void nib__quantization_config(nib_text *out, const nib_quantize_job *job,
                              const nib_output_weight *stored, nib_dialect dialect);

#endif
