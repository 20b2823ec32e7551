/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the gated delta rule, and of its gates. The plain C of the rule is delta_body.h, as for
 * every instruction set; the gates are a few values per token, in f64 on every machine.
 */
#include "delta_rows.h"

#include "arm.h"
#include "portable_math.h"
#include "x86.h"

#define NIB_DELTA(name) nib__delta_##name##__ref
#include "delta_body.h"

static void delta_gates(const nib_delta_gates *a, int64_t m0, int64_t m1)
{
    for (int64_t h = 0; h < a->heads; h++) {
        const double log = (double)a->a_log[h],
                     rate = a->rates ? -log : (double)(float)nib__exp(log),
                     bias = (double)a->dt_bias[h];
        for (int64_t m = m0; m < m1; m++) {
            const double b = (double)a->b[m * a->ldb + h], dt = (double)a->a[m * a->lda + h] + bias;
            a->out[m * a->ldo + h] = (float)(1 / (1 + nib__exp(-b)));
            a->out[m * a->ldo + a->heads + h] = (float)nib__exp(-rate * nib__softplus(dt));
        }
    }
}

#define ROW(target, rank_, conditions, ref, function, words)                                       \
    {                                                                                              \
        .name = "gated_delta_f32__" #target, .op = NIB_OP_GATED_DELTA, .code = NIB_ANY,            \
        .act = NIB_ANY, .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,           \
        .arithmetic = NIB_ARITHMETIC_F32, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32,   \
        .run = {.recurrence = function}, .note = words                                             \
    }

static const nib_kernel rows[] = {
    ROW(avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)), "gated_delta_f32__ref",
        NIB_X86(nib__delta_gated_delta__avx512),
        "a matrix per value head, 32 columns at a time through all tokens of the pass"),
    ROW(avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)), "gated_delta_f32__ref",
        NIB_X86(nib__delta_gated_delta__avx2), "the same, four vectors of 8 columns"),
    ROW(neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)), "gated_delta_f32__ref",
        NIB_ARM(nib__delta_gated_delta__neon), "the same, eight vectors of 4 columns"),
    ROW(ref, 90, NIB_NO_CONDS, NULL, nib__delta_gated_delta__ref, "the same in plain C"),
    {.name = "delta_gates_f32__ref",
     .op = NIB_OP_DELTA_GATES,
     .code = NIB_ANY,
     .act = NIB_ANY,
     .input = NIB_ANY,
     .device = NIB_DEVICE_CPU,
     .conds = NIB_NO_CONDS,
     .arithmetic = NIB_ARITHMETIC_EXACT,
     .rank = 90,
     .unit = NIB_UNIT_F32,
     .run = {.delta_gates = delta_gates},
     .note = "beta and decay of each head, in f64 with the library's own exp and log"},
};

const nib_family nib__family_delta = {rows, COUNT(rows)};
