/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the gradients of recurrences over matrices that are compiled per instruction
 * set, and the scratch memory of one worker.
 */
#ifndef NIB_RECURRENCE_DX_ROWS_H
#define NIB_RECURRENCE_DX_ROWS_H

#include "kernel.h"

enum { NIB_RECURRENCE_DX_CHUNK = 32 }; /* tokens whose states are kept at once */

/* All f32. A state of a block: [key_dim][NIB_MATRIX_COLUMNS].
 *
 *   starts  a state for each chunk of the longest document: before its first token
 *   states  NIB_RECURRENCE_DX_CHUNK + 1 states: before and after the tokens of a chunk
 *   ds      a state: its gradient
 *   tokens  [NIB_RECURRENCE_DX_CHUNK][2][NIB_MATRIX_KEYS_MAX] normalized q and k of a chunk */
typedef struct nib_recurrence_dx_scratch {
    float *starts, *states, *ds, *tokens;
} nib_recurrence_dx_scratch;

/* Splits the memory that the rows' `scratch` asks for into its arrays. */
void nib__recurrence_dx_split_scratch(nib_recurrence_dx_scratch *s, const nib_recurrence_dx *a,
                                      float *memory);

#define NIB_RECURRENCE_DX_FUNCTIONS(isa)                                                           \
    void nib__recurrence_dx_gated_delta__##isa(const nib_recurrence_dx *a, int64_t item0,          \
                                               int64_t item1, void *scratch);                      \
    void nib__recurrence_dx_ssm__##isa(const nib_recurrence_dx *a, int64_t item0, int64_t item1,   \
                                       void *scratch)

NIB_RECURRENCE_DX_FUNCTIONS(ref);
NIB_RECURRENCE_DX_FUNCTIONS(avx2);
NIB_RECURRENCE_DX_FUNCTIONS(neon);
NIB_RECURRENCE_DX_FUNCTIONS(avx512);

#endif
