/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: recurrences over matrices (the gated delta rule, Mamba-2) and their
 * gates. Slots of several sequences are mixed, some of whose states are empty, and tokens of
 * earlier passes run again first. One call must give the same bits as one call for each part, and
 * as one call for each slot.
 */
#ifndef NIB_CHECK_RECURRENCE_H
#define NIB_CHECK_RECURRENCE_H

#include "check_conv.h"

enum { AGAIN = 4 /* most tokens that run again */ };

static int64_t count_parts(const nib_kernel *row, const nib_matrix_size *size)
{
    return size->heads *
           nib__matrix_blocks(size, row->op == NIB_OP_SSM ? NIB_SSM_COLUMNS : NIB_DELTA_COLUMNS);
}

/* A call's output and, behind it, the states of all sequences. */
static result run_recurrence(const nib_kernel *row, memory *m, nib_recurrence a, int64_t slots,
                             const float *start, int64_t part)
{
    const int64_t out = slots * a.ldo, state = nib__matrix_values(&a.size),
                  parts = count_parts(row, &a.size);
    const result r = {take(m, (size_t)(out + SEQUENCES * state) * sizeof(float)),
                      out + SEQUENCES * state};
    nib_matrix_run runs[SEQUENCES];
    memset(r.values, 0, (size_t)out * sizeof *r.values);
    memcpy(r.values + out, start, (size_t)(SEQUENCES * state) * sizeof *r.values);
    for (int64_t i = 0; i < a.count; i++) {
        runs[i] = a.runs[i];
        runs[i].state = r.values + out + i * state;
    }
    a.runs = runs, a.out = r.values;
    for (int64_t p = 0; p < parts; p += part)
        row->run.recurrence(&a, p, nib__min(p + part, parts));
    return r;
}

/* The same with every token of the pass as a call of its own. */
static result run_recurrence_slots(const nib_kernel *row, memory *m, nib_recurrence a,
                                   int64_t slots, const float *start)
{
    const int64_t parts = count_parts(row, &a.size);
    nib_recurrence none = a;
    none.count = 0;
    const result r = run_recurrence(row, m, none, slots, start, parts);
    a.out = r.values;
    const nib_matrix_run *runs = a.runs;
    for (int64_t i = 0; i < a.count; i++)
        for (int64_t s = runs[i].first; s < runs[i].end; s++) {
            nib_matrix_run one = runs[i];
            one.state = r.values + slots * a.ldo + i * nib__matrix_values(&a.size);
            one.again = s == runs[i].first ? one.again : 0;
            one.empty = s == runs[i].first && one.empty;
            one.first = s, one.end = s + 1, one.kept = one.again + 1;
            nib_recurrence call = a;
            call.runs = &one, call.count = 1;
            row->run.recurrence(&call, 0, parts);
        }
    return r;
}

/* Shares the slots among the sequences. */
static void mix_slots(nib_recurrence *a, memory *m, nib_matrix_run *runs, int64_t slots, rng *r)
{
    int32_t *list = take(m, (size_t)slots * sizeof *list), *sequence = take(m, (size_t)slots * 4);
    int64_t count = 0;
    const int64_t width = nib__matrix_token_values(&a->size);
    for (int64_t i = 0; i < slots; i++)
        sequence[i] = (int32_t)below(r, SEQUENCES);
    for (int64_t s = 0; s < SEQUENCES; s++) {
        nib_matrix_run *run = &runs[s];
        *run = (nib_matrix_run){.empty = below(r, 2) != 0, .again = below(r, AGAIN + 1)};
        run->earlier = floats(m, nib__max(run->again, 1) * width, r, VALUES_RANDOM);
        run->first = count;
        for (int64_t i = 0; i < slots; i++)
            if (sequence[i] == s)
                list[count++] = (int32_t)i;
        run->end = count;
        run->kept = run->again + run->end - run->first;
    }
    a->slots = list, a->runs = runs, a->count = SEQUENCES;
}

static bool check_recurrence(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                             int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_matrix_run runs[SEQUENCES];
    nib_matrix_size s = {.key_heads = 1 + below(r, 2),
                         .key_dim = below(r, 9) != 0 ? 1 + below(r, 40) : NIB_MATRIX_KEYS_MAX,
                         .value_dim = nib__min(width, 200)};
    s.heads = s.key_heads * (1 + below(r, 3));
    const int64_t columns = 2 * s.key_heads * s.key_dim + s.heads * s.value_dim,
                  state = nib__matrix_values(&s), all = count_parts(row, &s);
    nib_recurrence a = {.size = s,
                        .ldx = columns + below(r, 3),
                        .ldg = 2 * s.heads + below(r, 3),
                        .ldo = s.heads * s.value_dim + below(r, 3)};
    a.x = floats(&m, rows * a.ldx, r, class);
    a.skip = floats(&m, s.heads, r, VALUES_RANDOM);
    a.gates = floats(&m, rows * a.ldg, r, VALUES_RANDOM);
    mix_slots(&a, &m, runs, rows, r);
    const float *start = floats(&m, SEQUENCES * state, r, VALUES_RANDOM);
    const result whole = run_recurrence(row, &m, a, rows, start, all),
                 slots = run_recurrence_slots(row, &m, a, rows, start);
    bool same = true;
    for (int64_t i = 0; i < SEQUENCES; i++) { /* without slots a sequence is not called alone */
        const int64_t at = rows * a.ldo + i * state;
        if (runs[i].first < runs[i].end)
            same = same && same_floats(v, "states slot by slot", slots.values + at,
                                       whole.values + at, state);
        runs[i].kept = below(r, runs[i].kept + 1);
    }
    same = same && same_floats(v, "slot by slot", slots.values, whole.values, rows * a.ldo);
    const result want = run_recurrence(ref, &m, a, rows, start, all),
                 got = run_recurrence(row, &m, a, rows, start, all),
                 parts = run_recurrence(row, &m, a, rows, start, 1);
    same = same && same_floats(v, "when less of the state is written", got.values, whole.values,
                               rows * a.ldo);
    return check_results(v, &m, row, want, got, parts, "part by part") && same;
}

static result run_gates(const nib_kernel *row, memory *m, nib_delta_gates a, int64_t part)
{
    const int64_t count = a.m * a.ldo;
    a.out = take(m, (size_t)count * sizeof *a.out);
    for (int64_t i = 0; i < a.m; i += part)
        row->run.delta_gates(&a, i, nib__min(a.m, i + part));
    return (result){a.out, count};
}

static bool check_delta_gates(verdict *v, const nib_kernel *row, const nib_kernel *ref,
                              int64_t rows, int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t ldb = width + below(r, 3), lda = width + below(r, 3);
    const nib_delta_gates a = {.b = floats(&m, rows * ldb, r, class),
                               .a = floats(&m, rows * lda, r, class),
                               .a_log = floats(&m, width, r, VALUES_RANDOM),
                               .dt_bias = floats(&m, width, r, VALUES_RANDOM),
                               .m = rows,
                               .heads = width,
                               .ldb = ldb,
                               .lda = lda,
                               .ldo = 2 * width + below(r, 3)};
    const result want = run_gates(ref, &m, a, rows), got = run_gates(row, &m, a, rows),
                 parts = run_gates(row, &m, a, 1);
    return check_results(v, &m, row, want, got, parts, "token by token");
}

static result run_ssm_gates(const nib_kernel *row, memory *m, nib_ssm_gates a, int64_t part)
{
    const int64_t count = a.m * a.ldo;
    a.out = take(m, (size_t)count * sizeof *a.out);
    for (int64_t i = 0; i < a.m; i += part)
        row->run.ssm_gates(&a, i, nib__min(a.m, i + part));
    return (result){a.out, count};
}

static bool check_ssm_gates(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                            int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    const int64_t ldx = width + below(r, 3);
    const nib_ssm_gates a = {.x = floats(&m, rows * ldx, r, class),
                             .rate = floats(&m, width, r, VALUES_RANDOM),
                             .dt_bias = floats(&m, width, r, VALUES_RANDOM),
                             .least = 0.1,
                             .most = below(r, 2) != 0 ? 2 : (double)INFINITY,
                             .m = rows,
                             .heads = width,
                             .ldx = ldx,
                             .ldo = 2 * width + below(r, 3)};
    const result want = run_ssm_gates(ref, &m, a, rows), got = run_ssm_gates(row, &m, a, rows),
                 parts = run_ssm_gates(row, &m, a, 1);
    return check_results(v, &m, row, want, got, parts, "token by token");
}

#endif
