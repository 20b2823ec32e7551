/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the gated delta rule's rows that are compiled per instruction set.
 */
#ifndef NIB_DELTA_ROWS_H
#define NIB_DELTA_ROWS_H

#include "kernel.h"

#define NIB_DELTA_FUNCTIONS(isa)                                                                   \
    void nib__delta_gated_delta__##isa(const nib_recurrence *a, int64_t part0, int64_t part1)

NIB_DELTA_FUNCTIONS(ref);
NIB_DELTA_FUNCTIONS(avx2);
NIB_DELTA_FUNCTIONS(neon);
NIB_DELTA_FUNCTIONS(avx512);

#endif
