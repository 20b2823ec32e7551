/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the rows of mixtures of experts that are compiled per instruction set.
 */
#ifndef NIB_EXPERTS_ROWS_H
#define NIB_EXPERTS_ROWS_H

#include "kernel.h"

#define NIB_EXPERTS_FUNCTIONS(isa)                                                                 \
    void nib__experts_route__##isa(const nib_route_tokens *a, int64_t m0, int64_t m1);             \
    void nib__experts_combine__##isa(const nib_combine *a, int64_t m0, int64_t m1);                \
    void nib__experts_route_dx__##isa(const nib_route_dx *a, int64_t m0, int64_t m1);              \
    void nib__experts_combine_dw__##isa(const nib_combine_dw *a, int64_t m0, int64_t m1);          \
    void nib__experts_route_sums__##isa(const nib_route_sums *a, int64_t block0, int64_t block1)

NIB_EXPERTS_FUNCTIONS(ref);
NIB_EXPERTS_FUNCTIONS(avx2);
NIB_EXPERTS_FUNCTIONS(neon);
NIB_EXPERTS_FUNCTIONS(avx512);

#endif
