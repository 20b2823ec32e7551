/* SPDX-License-Identifier: Apache-2.0
 *
 * One row per dialect: how a tool stores a quantized weight. Everything that depends on the dialect
 * asks its row: reading, writing, `info`, `--format` and the documentation.
 */
#ifndef NIB_DIALECT_TABLE_H
#define NIB_DIALECT_TABLE_H

#include "checkpoint_inside.h"
#include "dialects.h"

enum { NIB_CODES_MAX = 2 };

typedef struct nib_dialect_row {
    const char *name;  /* as in info, --format and the ledger */
    const char *files; /* file types */
    const char *holds; /* codes, groups, zeros, activations */
    const char *bias;
    const char
        *readers; /* other programs that read what is written here; NULL: none, or not said */
    /* The test in tests/unit that proves it, "test_zip.c:test_forms"; NULL: unsupported. */
    const char *read_test, *write_test;
    /* Suffixes of the tensor with the codes, "._weight_qdata"; none: a container whose tensors are
     * of other dialects. */
    const char *codes[NIB_CODES_MAX];
    /* Is the module's weight of this dialect, given its codes? NULL: always. */
    bool (*claims)(const nib_weight_query *q, const nib_tensor *codes);
    nib_status (*read)(const nib_weight_query *q); /* fills q->out except the bias */
    const nib_dialect_writer *writer;              /* NULL: it is not written */
} nib_dialect_row;

extern const nib_dialect_row nib__dialects[NIB_DIALECT_COUNT];

/* The row of a module's weight, and the suffix of its codes (NULL allowed). NULL: no dialect
 * stores it. */
const nib_dialect_row *nib__dialect_of(const nib_weight_query *q, const char **suffix);
/* Length of the module name if the tensor holds the codes of a weight in any dialect, else 0. */
size_t nib__module_size(const nib_tensor *tensor);

/* As text, JSON or Markdown (docs/checkpoints.md). */
void nib__dialects_render(nib_form form, nib_text *out);

#endif
