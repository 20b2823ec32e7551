/* SPDX-License-Identifier: Apache-2.0
 *
 * Rows of the gradients of recurrences over matrices, of their gates and of copied columns. The
 * plain C of the recurrences is recurrence_dx_body.h, as for every instruction set; gates are a few
 * values per token, in f64 on every machine.
 */
#include "recurrence_dx_rows.h"

#include "arm.h"
#include "portable_math.h"
#include "scratch_parts.h"
#include "x86.h"

#define NIB_RECURRENCE_DX(name) nib__recurrence_dx_##name##__ref
#include "recurrence_dx_body.h"

static size_t split_scratch(nib_recurrence_dx_scratch *s, const nib_recurrence_dx *a, float *memory)
{
    const int64_t state = a->size.key_dim * COLUMNS;
    const nib_scratch_part parts[] = {{&s->starts, nib__ceil_div(a->longest, CHUNK) * state},
                                      {&s->states, (CHUNK + 1) * state},
                                      {&s->ds, state},
                                      {&s->tokens, (int64_t)CHUNK * 2 * KEYS}};
    return nib__scratch_split(parts, COUNT(parts), memory);
}

static size_t recurrence_dx_scratch(const void *args)
{
    nib_recurrence_dx_scratch s;
    return split_scratch(&s, args, NULL);
}

void nib__recurrence_dx_split_scratch(nib_recurrence_dx_scratch *s, const nib_recurrence_dx *a,
                                      float *memory)
{
    split_scratch(s, a, memory);
}

/* ---- gates and columns ---- */

static double logistic(double x) { return 1 / (1 + nib__exp(-x)); }

static void delta_gates_dx(const nib_delta_gates_dx *a, int64_t m0, int64_t m1)
{
    for (int64_t h = 0; h < a->heads; h++) {
        const double log = (double)a->a_log[h],
                     rate = a->rates ? -log : (double)(float)nib__exp(log),
                     bias = (double)a->dt_bias[h];
        for (int64_t m = m0; m < m1; m++) {
            const float *dgates = a->dgates + m * a->ldg;
            const double b = (double)a->b[m * a->ldb + h], z = (double)a->a[m * a->lda + h] + bias,
                         soft = nib__softplus(z),
                         e = (double)dgates[a->heads + h] * nib__exp(-rate * soft);
            a->db[m * a->ldb + h] = (float)((double)dgates[h] * logistic(b) * logistic(-b));
            a->da[m * a->lda + h] = (float)(-e * rate * logistic(z));
            a->dlog[m * a->heads + h] = (float)(a->rates ? e * soft : -e * rate * soft);
        }
    }
}

static void ssm_gates_dx(const nib_ssm_gates_dx *a, int64_t m0, int64_t m1)
{
    for (int64_t h = 0; h < a->heads; h++) {
        const double rate = (double)a->rate[h], bias = (double)a->dt_bias[h];
        for (int64_t m = m0; m < m1; m++) {
            const float *dgates = a->dgates + m * a->ldg;
            const double z = (double)a->x[m * a->ldx + h] + bias, dt = nib__softplus(z),
                         step = dt < a->least  ? a->least
                                : dt > a->most ? a->most
                                               : dt,
                         e = (double)dgates[a->heads + h] * nib__exp(-rate * step);
            const bool limited = dt < a->least || dt > a->most;
            a->dz[m * a->ldz + h] =
                limited ? 0.0f : (float)(((double)dgates[h] - e * rate) * logistic(z));
            a->dlog[m * a->heads + h] = (float)(-e * rate * step);
        }
    }
}

static void gather_dx(const nib_gather_dx *a, int64_t m0, int64_t m1)
{
    const size_t bytes = (size_t)a->lddx * sizeof *a->dx;
    for (int64_t m = m0; m < m1; m++) {
        float *dx = a->dx + m * a->lddx;
        if (a->sum == NULL)
            memset(dx, 0, bytes);
        else if (a->sum != a->dx)
            memcpy(dx, a->sum + m * a->lddx, bytes);
        for (int64_t i = 0; i < a->width; i++)
            dx[a->order[i]] += a->dy[m * a->ldy + i];
    }
}

/* ---- rows ---- */

#define ROW(kernel, operation, target, rank_, conditions, ref, function, words)                    \
    {                                                                                              \
        .name = #kernel "_f32__" #target, .op = NIB_OP_##operation, .code = NIB_ANY,               \
        .act = NIB_ANY, .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = conditions,           \
        .arithmetic = NIB_ARITHMETIC_LANES, .reference = ref, .rank = rank_, .unit = NIB_UNIT_F32, \
        .scratch = recurrence_dx_scratch, .run = {.recurrence_dx = function}, .note = words        \
    }

#define NEEDS_AVX2 NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX2, NULL))
#define NEEDS_AVX512 NIB_CONDS(NIB_HAS(ISA, NIB_ISA_AVX512, NULL))
/* The rows of one recurrence, one per instruction set. */
#define ROWS(kernel, operation, recurrence, words)                                                 \
    ROW(kernel, operation, avx512, 10, NEEDS_AVX512, #kernel "_f32__ref",                          \
        NIB_X86(nib__recurrence_dx_##recurrence##__avx512), words),                                \
        ROW(kernel, operation, avx2, 20, NEEDS_AVX2, #kernel "_f32__ref",                          \
            NIB_X86(nib__recurrence_dx_##recurrence##__avx2),                                      \
            "the same, four vectors of 8 columns"),                                                \
        ROW(kernel, operation, neon, 20, NIB_CONDS(NIB_HAS(ISA, NIB_ISA_NEON, NULL)),              \
            #kernel "_f32__ref", NIB_ARM(nib__recurrence_dx_##recurrence##__neon),                 \
            "the same, eight vectors of 4 columns"),                                               \
        ROW(kernel, operation, ref, 90, NIB_NO_CONDS, NULL,                                        \
            nib__recurrence_dx_##recurrence##__ref, "the same in plain C")

/* Rows without other instruction sets. */
#define PLAIN(kernel, operation, numbers, words)                                                   \
    {                                                                                              \
        .name = #kernel "_f32__ref", .op = NIB_OP_##operation, .code = NIB_ANY, .act = NIB_ANY,    \
        .input = NIB_ANY, .device = NIB_DEVICE_CPU, .conds = NIB_NO_CONDS,                         \
        .arithmetic = NIB_ARITHMETIC_##numbers, .rank = 90, .unit = NIB_UNIT_F32,                  \
        .run = {.kernel = kernel}, .note = words                                                   \
    }

static const nib_kernel rows[] = {
    ROWS(gated_delta_dx, GATED_DELTA_DX, gated_delta,
         "gradients of q, k, v and gates; the states of 32 tokens at a time are computed again"),
    ROWS(ssm_dx, SSM_DX, ssm,
         "gradients of x, B, C, gates and D; the states of 32 tokens at a time are computed again"),
    PLAIN(delta_gates_dx, DELTA_GATES_DX, EXACT,
          "gradients of the gates' inputs, in f64 with the library's own exp and log"),
    PLAIN(ssm_gates_dx, SSM_GATES_DX, EXACT, "likewise"),
    PLAIN(gather_dx, GATHER_DX, EXACT, "adds a gradient to the columns that were copied"),
};

const nib_family nib__family_recurrence_dx = {rows, COUNT(rows)};
