/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of operations: properties shared by all rows of an operation.
 */
#ifndef NIB_OPERATION_H
#define NIB_OPERATION_H

#include "kernel.h"

typedef enum nib_over { NIB_OVER_NONE, NIB_OVER_FIRST, NIB_OVER_SECOND, NIB_OVER_THIRD } nib_over;
enum { NIB_OVER_OUTPUTS = 2 };

typedef struct nib_op_row {
    /* Runs parts [begin, end) with a CPU row; scratch: one worker's, as large as the row needs.
     * NULL: it has no parts. */
    void (*run)(const nib_kernel *row, const void *args, int64_t begin, int64_t end, void *scratch);
    /* f32 values read and written per token and column of the first input; 0: other things dominate
     * (weights, positions). */
    int values;
    bool by_tokens; /* its parts are tokens, computed independently */
    /* The input that each output may overwrite: every output element depends on the inputs at the
     * same place only, or every row on the same row. */
    nib_over over[NIB_OVER_OUTPUTS];
    bool only_over; /* its rows always work in place */
    bool commutes;  /* its first two inputs may be swapped */
} nib_op_row;

extern const nib_op_row nib__ops[NIB_OP_COUNT];

/* The index of the input that output `out` may overwrite; -1: none. heads: rows that a token's
 * columns are split into. */
int nib__op_over(nib_op op, int out, int64_t heads);

#endif
