/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of operations: properties shared by all rows of an operation.
 */
#ifndef NIB_OPERATION_H
#define NIB_OPERATION_H

#include "kernel.h"

typedef enum nib_inplace {
    NIB_INPLACE_NONE,
    NIB_INPLACE_FIRST,
    NIB_INPLACE_SECOND,
    NIB_INPLACE_THIRD
} nib_inplace;
enum { NIB_INPLACE_OUTPUTS = 2 };

typedef struct nib_op_row {
    /* Runs parts [begin, end) with a CPU row; scratch: one worker's, as large as the row needs.
     * NULL: it has no parts. */
    void (*run)(const nib_kernel *row, const void *args, int64_t begin, int64_t end, void *scratch);
    /* f32 values read and written per token and column of the first input; 0: other things dominate
     * (weights, positions). */
    int values;
    bool by_tokens; /* its parts are tokens, computed independently */
    bool gathers;   /* a token reads rows of the first input that other tokens' parts may write */
    /* The input that each output may overwrite (in place): an output element depends only on the
     * same element of the inputs, or an output row only on the same row. */
    nib_inplace inplace[NIB_INPLACE_OUTPUTS];
    bool always_inplace; /* its rows always work in place */
    bool commutes;       /* its first two inputs may be swapped */
} nib_op_row;

extern const nib_op_row nib__ops[NIB_OP_COUNT];

/* Index of the input that output `out` may overwrite; -1: none. heads: rows per token. */
int nib__op_inplace_input(nib_op op, int out, int64_t heads);

#endif
