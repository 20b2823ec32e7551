/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the state-space recurrence of Mamba-2, and of its gates. The plain C of the recurrence is
 * ssm_body.h, as for every instruction set; the gates are a few values per token, in f64 on every
 * machine.
 */
#include "ssm_rows.h"

#include "arm.h"
#include "portable_math.h"
#include "x86.h"

#define NIB_SSM(name) nib__ssm_##name##__ref
#include "ssm_body.h"

enum { HEADS_TOGETHER = 64 };

/* `count` heads of a token from head h on, together because that makes exp faster. */
static void gate_heads(const nib_ssm_gates *a, int64_t m, int64_t h, int64_t count)
{
    double sum[HEADS_TOGETHER], e[HEADS_TOGETHER];
    float *out = a->out + m * a->ldo + h;
    for (int64_t i = 0; i < count; i++) {
        sum[i] = (double)a->x[m * a->ldx + h + i] + (double)a->dt_bias[h + i];
        e[i] = -fabs(sum[i]);
    }
    nib__exp_each(e, (size_t)count);
    for (int64_t i = 0; i < count; i++) {
        const double dt = nib__softplus_from(sum[i], e[i]), step = dt < a->least  ? a->least
                                                                   : dt > a->most ? a->most
                                                                                  : dt;
        out[i] = (float)step;
        e[i] = -(double)a->rate[h + i] * step;
    }
    nib__exp_each(e, (size_t)count);
    for (int64_t i = 0; i < count; i++)
        out[a->heads + i] = (float)e[i];
}

static void ssm_gates(const nib_ssm_gates *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++)
        for (int64_t h = 0; h < a->heads; h += HEADS_TOGETHER)
            gate_heads(a, m, h, nib__min(HEADS_TOGETHER, a->heads - h));
}

#define ROW(target, rank_, conditions, ref, function, words)                                       \
    {                                                                                              \
        .name = "ssm_f32__" #target, .op = NIB_OP_SSM, .code = NIB_ANY, .act = NIB_ANY,            \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,                           \
        .arithmetic = NIB_ARITHMETIC_F32, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32,   \
        .run = {.recurrence = function}, .note = words                                             \
    }

static const nib_kernel rows[] = {
    ROW(avx512, 10, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL)), "ssm_f32__ref",
        NIB_X86(nib__ssm_ssm__avx512),
        "a matrix per head, 64 columns at a time through all tokens of the pass"),
    ROW(avx2, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL)), "ssm_f32__ref",
        NIB_X86(nib__ssm_ssm__avx2), "the same, eight vectors of 8 columns"),
    ROW(neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)), "ssm_f32__ref",
        NIB_ARM(nib__ssm_ssm__neon), "the same, sixteen vectors of 4 columns"),
    ROW(ref, 90, NIB_NO_CONDS, NULL, nib__ssm_ssm__ref, "the same in plain C"),
    {.name = "ssm_gates_f32__ref",
     .op = NIB_OP_SSM_GATES,
     .code = NIB_ANY,
     .act = NIB_ANY,
     .input = NIB_ANY,
     .device = NIB_DEVICE_CPU,
     .conds = NIB_NO_CONDS,
     .arithmetic = NIB_ARITHMETIC_EXACT,
     .rank = 90,
     .unit = NIB_UNIT_F32,
     .run = {.ssm_gates = ssm_gates},
     .note = "step and decay of each head, in f64 with the library's own exp and log"},
};

const nib_family nib__family_ssm = {rows, COUNT(rows)};
