/* SPDX-License-Identifier: Apache-2.0
 *
 * The functions of the rows that cast f32 into training's operands: plain C in cast_ref.c, and
 * cast_body.h compiled for each instruction set. Forms: f32, bf16, e4m3 with one scale per row or
 * tensor (e4m3c as a weight, e4m3t as an input), mx8.
 */
#ifndef NIB_CAST_ROWS_H
#define NIB_CAST_ROWS_H

#include "cast.h"
#include "linear_float.h"
#include "quant_rows.h"

#define NIB_CAST_RUNS(target)                                                                      \
    void nib__cast_f32__##target(const nib_cast *a, int64_t n0, int64_t n1);                       \
    void nib__cast_bf16__##target(const nib_cast *a, int64_t n0, int64_t n1);                      \
    void nib__cast_e4m3c__##target(const nib_cast *a, int64_t n0, int64_t n1);                     \
    void nib__cast_mx8__##target(const nib_cast *a, int64_t n0, int64_t n1);                       \
    void nib__cast_t_f32__##target(const nib_cast *a, int64_t n0, int64_t n1);                     \
    void nib__cast_t_bf16__##target(const nib_cast *a, int64_t n0, int64_t n1);                    \
    void nib__cast_t_e4m3c__##target(const nib_cast *a, int64_t n0, int64_t n1);                   \
    void nib__cast_t_mx8__##target(const nib_cast *a, int64_t n0, int64_t n1);                     \
    void nib__quant_t_f32__##target(const nib_quant *a, int64_t m0, int64_t m1);                   \
    void nib__quant_t_bf16__##target(const nib_quant *a, int64_t m0, int64_t m1);                  \
    void nib__quant_t_e4m3t__##target(const nib_quant *a, int64_t m0, int64_t m1);                 \
    void nib__quant_t_mx8__##target(const nib_quant *a, int64_t m0, int64_t m1);                   \
    void nib__amax_f32__##target(const nib_amax *a, int64_t part0, int64_t part1)

NIB_CAST_RUNS(ref);
NIB_CAST_RUNS(avx2);
NIB_CAST_RUNS(neon);
NIB_CAST_RUNS(avx512);

#endif
