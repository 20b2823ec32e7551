/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the state-space recurrence's rows that are compiled per instruction set.
 */
#ifndef NIB_SSM_ROWS_H
#define NIB_SSM_ROWS_H

#include "kernel.h"

#define NIB_SSM_FUNCTIONS(isa)                                                                     \
    void nib__ssm_ssm__##isa(const nib_recurrence *a, int64_t part0, int64_t part1)

NIB_SSM_FUNCTIONS(ref);
NIB_SSM_FUNCTIONS(avx2);
NIB_SSM_FUNCTIONS(neon);
NIB_SSM_FUNCTIONS(avx512);

#endif
