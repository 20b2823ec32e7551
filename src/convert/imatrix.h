/* SPDX-License-Identifier: Apache-2.0
 *
 * llama.cpp's importance matrices: for each weight the sums of the squares of its inputs over a
 * text, as GGUF or in the older binary form (tools/imatrix of llama.cpp).
 */
#ifndef NIB_IMATRIX_H
#define NIB_IMATRIX_H

#include "convert.h"
#include "renames.h"

typedef struct nib_imatrix nib_imatrix;

/* Checks the whole file. NIB_BAD_INPUT: it is not an imatrix, is cut short, or has a value that is
 * negative or not finite. */
nib_status nib__imatrix_open(nib_imatrix **out, const char *path, const nib_allocator *a,
                             nib_err *err);
void nib__imatrix_close(nib_imatrix *m);

/* Reads the squares [k] of a layer's inputs; their common factor is unknown. layer: Hugging Face's
 * name of the module. arch: the model's GGUF architecture. *found false: the file has no entry for
 * it, or one that saw no tokens. NIB_BAD_INPUT: the entry has another width, or fewer experts. */
nib_status nib__imatrix_read(double *squares, bool *found, const nib_imatrix *m, const char *arch,
                             const char *layer, int64_t k, nib_err *err);
/* Number of entries. */
size_t nib__imatrix_count(const nib_imatrix *m);
/* The name of a layer's entry, such as "blk.0.ffn_up_exps.weight", and the layer's matrix in it: an
 * expert or a head; -1: the entry is of this layer alone. False: GGUF has no name for the layer in
 * this architecture. */
bool nib__imatrix_name(char out[NIB_RENAME_MAX], int64_t *matrix, const char *arch,
                       const char *layer);

/* One layer of an imatrix that is written. */
typedef struct nib_imatrix_layer {
    const char *name; /* Hugging Face's of the module */
    int64_t k;
    const nib_input_stats *stats; /* with squares [k] */
} nib_imatrix_layer;

typedef struct nib_imatrix_job {
    const char *arch; /* the model's GGUF architecture */
    unsigned fused;   /* weights that its files store fused (fused.h) */
    const nib_imatrix_layer *layers;
    size_t count;
    const char *text; /* its name, for the file */
    nib_calibration run;
} nib_imatrix_job;

/* Appends the GGUF file to `out`, and counts its entries. NIB_UNSUPPORTED: GGUF has no name for a
 * layer, or a sum exceeds f32. */
nib_status nib__imatrix_build(nib_text *out, size_t *entries, const nib_imatrix_job *job,
                              const nib_allocator *a, nib_err *err);

#endif
