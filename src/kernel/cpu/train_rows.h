/* SPDX-License-Identifier: Apache-2.0
 *
 * Functions of the training rows that are compiled per instruction set.
 */
#ifndef NIB_TRAIN_ROWS_H
#define NIB_TRAIN_ROWS_H

#include "kernel.h"

#define NIB_TRAIN_FUNCTIONS(isa)                                                                   \
    void nib__train_norm_dx__##isa(const nib_norm_dx *a, int64_t row0, int64_t row1);              \
    void nib__train_norm_dw__##isa(const nib_norm_dw *a, int64_t column0, int64_t column1);        \
    void nib__train_swiglu_dx__##isa(const nib_swiglu_dx *a, int64_t m0, int64_t m1);              \
    void nib__train_scale_dx__##isa(const nib_scale_dx *a, int64_t m0, int64_t m1);                \
    void nib__train_sinks_dw__##isa(const nib_sinks_dw *a, int64_t head0, int64_t head1);          \
    void nib__train_embed_dw__##isa(const nib_embed_dw *a, int64_t column0, int64_t column1);      \
    void nib__train_bias_dw__##isa(const nib_bias_dw *a, int64_t column0, int64_t column1);        \
    void nib__train_xent__##isa(const nib_xent *a, int64_t m0, int64_t m1);                        \
    void nib__train_squares__##isa(const nib_squares *a, int64_t part0, int64_t part1);            \
    void nib__train_adamw__##isa(const nib_adamw *a, int64_t i0, int64_t i1)

NIB_TRAIN_FUNCTIONS(ref);
NIB_TRAIN_FUNCTIONS(avx2);
NIB_TRAIN_FUNCTIONS(neon);
NIB_TRAIN_FUNCTIONS(avx512);

#endif
