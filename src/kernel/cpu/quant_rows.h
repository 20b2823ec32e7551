/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the activation quantizers: quant_body.h, compiled for each instruction set.
 */
#ifndef NIB_QUANT_ROWS_H
#define NIB_QUANT_ROWS_H

#include "kernel.h"

#define NIB_QUANT_RUNS(target)                                                                     \
    void nib__quant_a8t__##target(const nib_quant *a, int64_t m0, int64_t m1);                     \
    void nib__quant_a8s__##target(const nib_quant *a, int64_t m0, int64_t m1);                     \
    void nib__quant_a4t__##target(const nib_quant *a, int64_t m0, int64_t m1);                     \
    void nib__quant_f32__##target(const nib_quant *a, int64_t m0, int64_t m1);                     \
    void nib__quant_f16__##target(const nib_quant *a, int64_t m0, int64_t m1);                     \
    void nib__quant_bf16__##target(const nib_quant *a, int64_t m0, int64_t m1);                    \
    void nib__quant_e4m3t__##target(const nib_quant *a, int64_t m0, int64_t m1);                   \
    void nib__quant_mx8__##target(const nib_quant *a, int64_t m0, int64_t m1);                     \
    void nib__quant_mx4__##target(const nib_quant *a, int64_t m0, int64_t m1);                     \
    void nib__quant_nv4__##target(const nib_quant *a, int64_t m0, int64_t m1);                     \
    void nib__quant_a8b32__##target(const nib_quant *a, int64_t m0, int64_t m1);                   \
    void nib__quant_a8b256__##target(const nib_quant *a, int64_t m0, int64_t m1);                  \
    void nib__quant_normed_a8t__##target(const nib_norm_quant *a, int64_t m0, int64_t m1);         \
    void nib__quant_normed_a4t__##target(const nib_norm_quant *a, int64_t m0, int64_t m1);         \
    void nib__quant_normed_a8b32__##target(const nib_norm_quant *a, int64_t m0, int64_t m1);       \
    void nib__quant_normed_a8b256__##target(const nib_norm_quant *a, int64_t m0, int64_t m1)

NIB_QUANT_RUNS(ref);
NIB_QUANT_RUNS(avx2);
NIB_QUANT_RUNS(neon);
NIB_QUANT_RUNS(avx512);

#endif
