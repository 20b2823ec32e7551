/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of operations: what is true of every row of one, whoever runs or counts it.
 */
#ifndef NIB_OPERATION_H
#define NIB_OPERATION_H

#include "kernel.h"

typedef enum nib_over { NIB_OVER_NONE, NIB_OVER_FIRST, NIB_OVER_SECOND, NIB_OVER_THIRD } nib_over;
enum { NIB_OVER_OUTPUTS = 2 };

typedef struct nib_op_row {
    /* Parts [begin, end) of the operation by a row of the CPU; scratch: of one worker, as large as
     * the row asks. NULL: it has no parts. */
    void (*run)(const nib_kernel *row, const void *args, int64_t begin, int64_t end, void *scratch);
    /* f32 values that it reads and writes for a token, per column of its first input; 0: something
     * else decides (weights, positions). */
    int values;
    bool by_tokens; /* its parts are tokens, each computed by itself */
    /* The input that each output may be written over: each element is computed from those at its
     * place, or each row from the row at its place. */
    nib_over over[NIB_OVER_OUTPUTS];
    bool only_over; /* its rows have no other place to write to */
    bool commutes;  /* its first two inputs may change places */
} nib_op_row;

extern const nib_op_row nib__ops[NIB_OP_COUNT];

/* The input that output `out` may be written over, from 0; -1: none. heads: rows that a token's
 * columns are cut into. */
int nib__op_over(nib_op op, int out, int64_t heads);

#endif
