/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the rows of route and combine that are compiled per instruction set.
 */
#ifndef NIB_EXPERTS_ROWS_H
#define NIB_EXPERTS_ROWS_H

#include "kernel.h"

#define NIB_EXPERTS_FUNCTIONS(isa)                                                                 \
    void nib__experts_route__##isa(const nib_route_tokens *a, int64_t m0, int64_t m1);             \
    void nib__experts_combine__##isa(const nib_combine *a, int64_t m0, int64_t m1)

NIB_EXPERTS_FUNCTIONS(ref);
NIB_EXPERTS_FUNCTIONS(avx2);
NIB_EXPERTS_FUNCTIONS(neon);
NIB_EXPERTS_FUNCTIONS(avx512);

#endif
