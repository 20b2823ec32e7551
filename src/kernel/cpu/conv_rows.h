/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the short convolution's rows that are compiled per instruction set.
 */
#ifndef NIB_CONV_ROWS_H
#define NIB_CONV_ROWS_H

#include "kernel.h"

#define NIB_CONV_FUNCTIONS(isa)                                                                    \
    void nib__conv_short_conv__##isa(const nib_short_conv *a, int64_t channel0, int64_t channel1); \
    void nib__conv_short_conv_dx__##isa(const nib_short_conv_dx *a, int64_t channel0,              \
                                        int64_t channel1);                                         \
    void nib__conv_short_conv_dw__##isa(const nib_short_conv_dw *a, int64_t channel0,              \
                                        int64_t channel1)

NIB_CONV_FUNCTIONS(ref);
NIB_CONV_FUNCTIONS(avx2);
NIB_CONV_FUNCTIONS(neon);
NIB_CONV_FUNCTIONS(avx512);

#endif
