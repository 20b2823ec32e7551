/* SPDX-License-Identifier: Apache-2.0
 *
 * llama.cpp's importance matrices: for each weight the sums of the squares of its inputs over a
 * text, as GGUF or in the older binary form (tools/imatrix of llama.cpp).
 */
#ifndef NIB_IMATRIX_H
#define NIB_IMATRIX_H

#include "memory.h"

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

#endif
