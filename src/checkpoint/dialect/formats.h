/* SPDX-License-Identifier: Apache-2.0
 *
 * The formats of checkpoints, for people: what each holds, whether it is read and written, and
 * which tests show it. What is read and written here follows from the tables of
 * checkpoint_open.c, weight.c and file_layout.c; a test holds this list against them.
 */
#ifndef NIB_FORMATS_H
#define NIB_FORMATS_H

#include "text.h"

typedef struct nib_format {
    const char *name;  /* as info, --format and the ledger say it */
    const char *files; /* where its tensors lie */
    const char *holds; /* codes, groups, zeros, activations */
    const char *bias;
    const char *read,
        *written; /* the test that shows it, "test_zip.c:test_forms"; NULL: it is not */
} nib_format;

const nib_format *nib__format_at(size_t i); /* NULL past the last */
/* As text, JSON or Markdown (docs/checkpoints.md). */
void nib__formats_render(nib_form form, nib_text *out);

#endif
