/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of operations: what is true of every row of one, whoever runs or counts it.
 */
#ifndef NIB_OPERATION_H
#define NIB_OPERATION_H

#include "kernel.h"

typedef struct nib_op_row {
    /* Parts [begin, end) of the operation by a row of the CPU; scratch: of one worker, as large as
     * the row asks. NULL: it has no parts. */
    void (*run)(const nib_kernel *row, const void *args, int64_t begin, int64_t end, void *scratch);
    /* f32 values that it reads and writes for a token, per column of its first input; 0: something
     * else decides (weights, positions). */
    int values;
    bool by_tokens; /* its parts are tokens, each computed by itself */
} nib_op_row;

extern const nib_op_row nib__ops[NIB_OP_COUNT];

#endif
