/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: the gradients of short convolutions and of recurrences over matrices,
 * over documents, of gates and of copied columns. One call must give the same bits as one call for
 * each item or token.
 */
#ifndef NIB_CHECK_STATES_DX_H
#define NIB_CHECK_STATES_DX_H

#include "check_train.h"

/* Documents of a few tokens each, the first of a run of any length. */
static int32_t *document_positions(memory *m, int64_t rows, rng *r)
{
    int32_t *position = take(m, (size_t)rows * sizeof *position);
    for (int64_t i = 0; i < rows; i++)
        position[i] = i == 0 || below(r, 6) == 0 ? 0 : position[i - 1] + 1;
    return position;
}

/* dsum, dx, dbefore, then dafter. */
static result run_conv_dx(const nib_kernel *row, memory *m, nib_short_conv_dx a, int64_t part)
{
    const int64_t sums = a.m * a.ldd, each = a.m * a.lddx;
    float *values = take(m, (size_t)(sums + 3 * each) * sizeof *values);
    memset(values, 0, (size_t)(sums + 3 * each) * sizeof *values);
    a.dsum = values, a.dx = values + sums;
    a.dbefore = a.before != NULL ? a.dx + each : NULL;
    a.dafter = a.after != NULL ? a.dx + 2 * each : NULL;
    for (int64_t c = 0; c < a.channels; c += part)
        row->run.short_conv_dx(&a, c, nib__min(c + part, a.channels));
    return (result){values, sums + 3 * each};
}

static bool check_short_conv_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                                int64_t rows, int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_short_conv_dx a = {.m = rows,
                           .channels = width,
                           .taps = 1 + below(r, 5),
                           .ldx = width + below(r, 3),
                           .ldy = width + below(r, 3),
                           .lddx = width + below(r, 3),
                           .ldd = width + below(r, 3),
                           .silu = below(r, 2) != 0};
    a.position = document_positions(&m, rows, r);
    a.x = floats(&m, rows * a.ldx, r, class);
    a.before = floats_or_none(&m, rows * a.ldx, r), a.after = floats_or_none(&m, rows * a.ldx, r);
    a.dy = floats(&m, rows * a.ldy, r, VALUES_RANDOM);
    a.weight = floats(&m, a.taps * width, r, VALUES_RANDOM);
    a.bias = floats_or_none(&m, width, r);
    const result want = run_conv_dx(ref, &m, a, width), got = run_conv_dx(row, &m, a, width),
                 parts = run_conv_dx(row, &m, a, 7);
    return check_results(v, &m, row, want, got, parts, "by 7 channels");
}

static result run_conv_dw(const nib_kernel *row, memory *m, nib_short_conv_dw a, int64_t part)
{
    const int64_t count = a.channels * a.taps;
    a.dw = take(m, (size_t)count * sizeof *a.dw);
    for (int64_t c = 0; c < a.channels; c += part)
        row->run.short_conv_dw(&a, c, nib__min(c + part, a.channels));
    return (result){a.dw, count};
}

static bool check_short_conv_dw(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                                int64_t rows, int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_short_conv_dw a = {.m = many_tokens(rows, r),
                           .channels = width,
                           .taps = 1 + below(r, 5),
                           .ldx = width + below(r, 3),
                           .ldd = width + below(r, 3)};
    a.position = document_positions(&m, a.m, r);
    a.x = floats(&m, a.m * a.ldx, r, class);
    a.before = floats_or_none(&m, a.m * a.ldx, r);
    a.dsum = floats(&m, a.m * a.ldd, r, VALUES_RANDOM);
    const result want = run_conv_dw(ref, &m, a, width), got = run_conv_dw(row, &m, a, width),
                 parts = run_conv_dw(row, &m, a, odd_part(r));
    return check_results(v, &m, row, want, got, parts, "in parts of channels");
}

/* dx, dgates, then dskip. */
static result run_recurrence_dx(const nib_kernel *row, memory *m, nib_recurrence_dx a, int64_t rows,
                                int64_t part)
{
    const int64_t x = rows * a.lddx, gates = rows * a.lddg, skip = rows * a.size.heads,
                  items = a.documents * a.size.key_heads;
    float *values = take(m, (size_t)(x + gates + skip) * sizeof *values);
    void *scratch = take(m, row->scratch(&a));
    memset(values, 0, (size_t)(x + gates + skip) * sizeof *values);
    a.dx = values, a.dgates = values + x, a.dskip = values + x + gates;
    for (int64_t i = 0; i < items; i += part)
        row->run.recurrence_dx(&a, i, nib__min(items, i + part), scratch);
    return (result){values, x + gates + skip};
}

static bool check_recurrence_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                                int64_t rows, int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_matrix_size s = {.key_heads = 1 + below(r, 2),
                         .key_dim = below(r, 9) != 0 ? 1 + below(r, 40) : NIB_MATRIX_KEYS_MAX,
                         .value_dim = nib__min(width, 70),
                         .by_turns = row->op == NIB_OP_GATED_DELTA_DX && below(r, 2) != 0};
    s.heads = s.key_heads * (1 + below(r, 3));
    const int64_t columns = nib__matrix_columns(&s);
    int32_t *start = take(&m, (size_t)(rows + 1) * sizeof *start);
    nib_recurrence_dx a = {.size = s,
                           .ldx = columns + below(r, 3),
                           .ldg = 2 * s.heads + below(r, 3),
                           .ldy = s.heads * s.value_dim + below(r, 3),
                           .lddx = columns + below(r, 3),
                           .lddg = 2 * s.heads + below(r, 3),
                           .longest = rows,
                           .start = start};
    for (int64_t i = 0; i < rows; i++)
        if (i == 0 || below(r, 6) == 0)
            start[a.documents++] = (int32_t)i;
    start[a.documents] = (int32_t)rows;
    a.x = floats(&m, rows * a.ldx, r, class);
    a.gates = floats(&m, rows * a.ldg, r, VALUES_RANDOM);
    a.skip = floats(&m, s.heads, r, VALUES_RANDOM);
    a.dy = floats(&m, rows * a.ldy, r, VALUES_RANDOM);
    const int64_t all = a.documents * s.key_heads;
    const result want = run_recurrence_dx(ref, &m, a, rows, all),
                 got = run_recurrence_dx(row, &m, a, rows, all),
                 parts = run_recurrence_dx(row, &m, a, rows, 1);
    return check_results(v, &m, row, want, got, parts, "item by item");
}

/* db, da, then dlog. */
static result run_delta_gates_dx(const nib_kernel *row, memory *m, nib_delta_gates_dx a,
                                 int64_t part)
{
    const int64_t b = a.m * a.ldb, count = b + a.m * (a.lda + a.heads);
    a.db = take(m, (size_t)count * sizeof *a.db);
    memset(a.db, 0, (size_t)count * sizeof *a.db);
    a.da = a.db + b, a.dlog = a.da + a.m * a.lda;
    for (int64_t i = 0; i < a.m; i += part)
        row->run.delta_gates_dx(&a, i, nib__min(a.m, i + part));
    return (result){a.db, count};
}

static bool check_delta_gates_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                                 int64_t rows, int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_delta_gates_dx a = {.m = rows,
                            .heads = width,
                            .rates = below(r, 2) != 0,
                            .ldg = 2 * width + below(r, 3),
                            .ldb = width + below(r, 3),
                            .lda = width + below(r, 3)};
    a.dgates = floats(&m, rows * a.ldg, r, VALUES_RANDOM);
    a.b = floats(&m, rows * a.ldb, r, class), a.a = floats(&m, rows * a.lda, r, class);
    a.a_log = floats(&m, width, r, VALUES_RANDOM), a.dt_bias = floats(&m, width, r, VALUES_RANDOM);
    const result want = run_delta_gates_dx(ref, &m, a, rows),
                 got = run_delta_gates_dx(row, &m, a, rows),
                 parts = run_delta_gates_dx(row, &m, a, 1);
    return check_results(v, &m, row, want, got, parts, "token by token");
}

/* dz, then dlog. */
static result run_ssm_gates_dx(const nib_kernel *row, memory *m, nib_ssm_gates_dx a, int64_t part)
{
    const int64_t z = a.m * a.ldz, count = z + a.m * a.heads;
    a.dz = take(m, (size_t)count * sizeof *a.dz);
    memset(a.dz, 0, (size_t)count * sizeof *a.dz);
    a.dlog = a.dz + z;
    for (int64_t i = 0; i < a.m; i += part)
        row->run.ssm_gates_dx(&a, i, nib__min(a.m, i + part));
    return (result){a.dz, count};
}

static bool check_ssm_gates_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                               int64_t rows, int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_ssm_gates_dx a = {.m = rows,
                          .heads = width,
                          .least = 0.1,
                          .most = below(r, 2) != 0 ? 2 : (double)INFINITY,
                          .ldg = 2 * width + below(r, 3),
                          .ldx = width + below(r, 3),
                          .ldz = width + below(r, 3)};
    a.dgates = floats(&m, rows * a.ldg, r, VALUES_RANDOM);
    a.x = floats(&m, rows * a.ldx, r, class);
    a.rate = floats(&m, width, r, VALUES_RANDOM), a.dt_bias = floats(&m, width, r, VALUES_RANDOM);
    const result want = run_ssm_gates_dx(ref, &m, a, rows),
                 got = run_ssm_gates_dx(row, &m, a, rows), parts = run_ssm_gates_dx(row, &m, a, 1);
    return check_results(v, &m, row, want, got, parts, "token by token");
}

static result run_gather_dx(const nib_kernel *row, memory *m, nib_gather_dx a, bool in_place,
                            int64_t part)
{
    const int64_t count = a.m * a.lddx;
    a.dx = take(m, (size_t)count * sizeof *a.dx);
    if (in_place) {
        memcpy(a.dx, a.sum, (size_t)count * sizeof *a.dx);
        a.sum = a.dx;
    }
    for (int64_t i = 0; i < a.m; i += part)
        row->run.gather_dx(&a, i, nib__min(a.m, i + part));
    return (result){a.dx, count};
}

static bool check_gather_dx(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                            int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_gather_dx a = {.m = rows, .width = width, .ldy = width + below(r, 3), .lddx = 2 * width};
    int32_t *order = take(&m, (size_t)width * sizeof *order);
    for (int64_t i = 0; i < width; i++)
        order[i] = (int32_t)(2 * (width - 1 - i) + below(r, 2));
    a.order = order;
    a.dy = floats(&m, rows * a.ldy, r, class);
    a.sum = floats_or_none(&m, rows * a.lddx, r);
    const result want = run_gather_dx(ref, &m, a, false, rows),
                 got = run_gather_dx(row, &m, a, a.sum != NULL, rows),
                 parts = run_gather_dx(row, &m, a, false, 1);
    return check_results(v, &m, row, want, got, parts, "row by row");
}

static token_check states_check_of(nib_op op)
{
    switch (op) {
    case NIB_OP_SHORT_CONV_DX: return check_short_conv_dx;
    case NIB_OP_SHORT_CONV_DW: return check_short_conv_dw;
    case NIB_OP_GATED_DELTA_DX:
    case NIB_OP_SSM_DX: return check_recurrence_dx;
    case NIB_OP_DELTA_GATES_DX: return check_delta_gates_dx;
    case NIB_OP_SSM_GATES_DX: return check_ssm_gates_dx;
    case NIB_OP_GATHER_DX: return check_gather_dx;
    default: return NULL;
    }
}

#endif
