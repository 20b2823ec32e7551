/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: `--bench` times every linear row that runs here on one real shape, at one
 * token and at 64 or at --tokens, with the pool, as the runner calls it. Prints CSV: row, m, n, k,
 * median and spread in microseconds, GB/s of weights, operations per second, and both as shares of
 * the rates measured in the same run.
 */
#ifndef NIB_CHECK_BENCH_H
#define NIB_CHECK_BENCH_H

#include "check_linear.h"
#include "machine.h"

enum { BENCH_RUNS = 15 };

typedef struct bench_job {
    const nib_kernel *row;
    nib_linear a;
    uint8_t *scratch; /* [threads][scratch_bytes] */
    size_t scratch_bytes;
} bench_job;

static void bench_part(void *ctx, int worker, int64_t begin, int64_t end)
{
    bench_job *job = ctx;
    job->row->run.linear(&job->a, begin, end, job->scratch + (size_t)worker * job->scratch_bytes);
}

static int by_size(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* An output grain in whole steps that gives each thread several parts. */
static int64_t grain_of(const nib_kernel *row, int64_t n, int threads)
{
    return nib__round_up(nib__max(n / (8 * threads), 1), row->n_step);
}

static void bench_one(const nib_kernel *row, const linear_case *c, nib_pool *pool,
                      const nib_machine *machine)
{
    memory m = {.count = 0};
    rng r = {1};
    nib_weight w;
    bench_job job = {.row = row};
    uint64_t ns[BENCH_RUNS];
    const nib_kernel *quantizer = row_for(c, NIB_OP_QUANT);
    make_weight(&w, &m, c, &r);
    nib_quant quant = make_quant(&m, c, floats(&m, c->m * c->k, &r, VALUES_RANDOM), c->k);
    w.act_scale = quant.static_scale, w.act_zero = quant.static_zero;
    quantizer->run.quant(&quant, 0, c->m);
    job.a = (nib_linear){.w = &w, .x = quant.out, .ldy = c->n};
    job.a.y = take(&m, (size_t)(c->m * c->n) * sizeof(float));
    job.a.packed = pack_weight(&m, row, &w);
    const uint64_t bytes = row->packing != NULL ? row->packing->bytes(&w) : nib__weight_bytes(&w);
    const int threads = nib__pool_threads(pool);
    if (row->scratch != NULL)
        job.scratch_bytes = (size_t)nib__round_up((int64_t)row->scratch(&job.a), 64);
    job.scratch = take(&m, (size_t)threads * job.scratch_bytes);
    for (int i = -2; i < BENCH_RUNS; i++) {
        const uint64_t start = nib__now_ns();
        nib__pool_run(pool, c->n, grain_of(row, c->n, threads), true, bench_part, &job);
        if (i >= 0)
            ns[i] = nib__now_ns() - start;
    }
    qsort(ns, BENCH_RUNS, sizeof ns[0], by_size);
    const double seconds = (double)ns[BENCH_RUNS / 2] * 1e-9, rate = (double)bytes / seconds;
    const double operations = 2 * (double)c->m * (double)c->n * (double)c->k / seconds;
    printf("%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%.1f,%.1f,%.1f,%.2f,%.1f,%.0f,%.1f\n", row->name,
           c->m, c->n, c->k, seconds * 1e6, (double)ns[1] * 1e-3, (double)ns[BENCH_RUNS - 2] * 1e-3,
           rate * 1e-9, 100 * rate / machine->bytes_per_s, operations * 1e-9,
           100 * operations / machine->rate[row->unit]);
    release(&m);
}

/* The usual scheme of a row, as its recipe makes it. A `group` other than 0 sets the group size of
 * int4 and of rows with activations in blocks. */
static linear_case bench_case(const nib_kernel *row, int64_t m, int64_t group)
{
    linear_case c = {.m = m, .n = 8192, .k = 2048, .scheme = {.symmetric = true}};
    c.scheme.code = (nib_code)row->code;
    c.scheme.act = (nib_act)row->act;
    c.input = row->input == NIB_ANY ? NIB_TYPE_F32 : (nib_type)row->input;
    const bool is_mx = c.scheme.code == NIB_CODE_MX8 || c.scheme.code == NIB_CODE_MX4;
    const bool has_groups = (nib__code_is_int(c.scheme.code) && c.scheme.code != NIB_CODE_I8) ||
                            nib__act_block(c.scheme.act) > 0;
    c.scheme.group = has_groups || is_mx ? 32 : c.scheme.code == NIB_CODE_NV4 ? 16 : NIB_GROUP_ROW;
    if (group != 0 && has_groups)
        c.scheme.group = group;
    if (nib__scheme_is_quantized(&c.scheme))
        c.scale_type = is_mx                           ? NIB_TYPE_E8M0
                       : c.scheme.code == NIB_CODE_NV4 ? NIB_TYPE_E4M3
                                                       : NIB_TYPE_F32;
    if (nib__kernel_asks(row, NIB_FACT_Q6_K))
        be_q6_k(&c);
    return c;
}

/* tokens 0: 1 and 64. */
static int bench_rows(const char *wanted, int64_t isa, int threads, int64_t tokens, int64_t group)
{
    const int64_t ms[] = {tokens > 0 ? tokens : 1, 64};
    const size_t count = tokens > 0 ? 1 : COUNT(ms);
    const nib_allocator a = nib__allocator_default();
    nib_err err = {NIB_OK, ""};
    nib_pool *pool;
    nib_machine machine;
    if (nib__pool_open(&pool, threads, &a, &err) != NIB_OK) {
        fprintf(stderr, "%s\n", err.text);
        return nib_status_exit(err.status);
    }
    nib__machine_here(&machine, isa, nib__pool_threads(pool));
    if (nib__machine_measure(&machine, pool, NULL, &a, &err) != NIB_OK) {
        fprintf(stderr, "%s\n", err.text);
        nib__pool_close(pool);
        return nib_status_exit(err.status);
    }
    printf("# %s, %s, %d threads, %s: %.1f GB/s, %.0f G int8 operations/s\n", machine.cpu,
           nib__cpu_isa_name(isa), machine.threads, machine.measured_on, machine.bytes_per_s * 1e-9,
           machine.rate[NIB_UNIT_I8] * 1e-9);
    printf("row,m,n,k,median_us,low_us,high_us,weight_gb_per_s,percent_of_bandwidth,gop_per_s,"
           "percent_of_rate\n");
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        const bool is_wanted =
            wanted == NULL ? !nib__kernel_is_ref(row) : strstr(row->name, wanted) != NULL;
        for (size_t j = 0; j < count && is_wanted && row->op == NIB_OP_LINEAR; j++) {
            const linear_case c = bench_case(row, ms[j], group);
            nib_query q = cpu_query(isa);
            case_query(&q, &c, NIB_OP_LINEAR);
            if (nib__kernel_built(row) && nib__kernel_keyed(row, &q) &&
                nib__kernel_holds(row, &q, true))
                bench_one(row, &c, pool, &machine);
        }
    }
    nib__pool_close(pool);
    return 0;
}

/* ---- the cost of a bias ---- */

/* One thread runs the three forms in turn. Prints medians, and the median of the ratios of
 * neighbouring runs, so that other load on the machine affects all forms alike. */
static void bench_bias(const nib_kernel *row, int64_t m, int64_t n, int64_t k)
{
    memory mem = {.count = 0};
    rng r = {1};
    nib_weight w;
    linear_case c = bench_case(row, m, 0);
    c.n = n, c.k = k, c.scheme.group = NIB_GROUP_ROW;
    const int calls = (int)nib__max(1, 8000000 / (m * n * k)); /* a round takes about 0.1 ms */
    make_weight(&w, &mem, &c, &r);
    nib_quant quant = make_quant(&mem, &c, floats(&mem, m * k, &r, VALUES_RANDOM), k);
    w.act_scale = quant.static_scale, w.act_zero = quant.static_zero;
    row_for(&c, NIB_OP_QUANT)->run.quant(&quant, 0, m);
    nib_linear a = {.w = &w, .x = quant.out, .ldy = n};
    a.y = take(&mem, (size_t)(m * n) * sizeof *a.y);
    a.packed = pack_weight(&mem, row, &w);
    void *scratch = take(&mem, row->scratch != NULL ? row->scratch(&a) : 0);
    const float *as_float = floats(&mem, n, &r, VALUES_RANDOM);
    const int32_t *as_int = int_bias(&mem, &c, &r);
    enum { ROUNDS = 2001 };
    static double none[ROUNDS], as_floats[ROUNDS], as_ints[ROUNDS], ratio[ROUNDS];
    double *const times[] = {none, as_floats, as_ints};
    for (int round = 0; round < ROUNDS; round++) {
        for (int i = 0; i < 3; i++) {
            const int form = (round + i) % 3;
            a.bias = form == 1 ? as_float : NULL;
            a.int_bias = form == 2 ? as_int : NULL;
            const uint64_t start = nib__now_ns();
            for (int j = 0; j < calls; j++)
                row->run.linear(&a, 0, n, scratch);
            times[form][round] = (double)(nib__now_ns() - start) * 1e-3 / calls;
        }
        ratio[round] = as_ints[round] / as_floats[round];
    }
    printf("%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%.2f,%.2f,%.2f,%+.1f\n", row->name, m, n, k,
           nib__median(none, ROUNDS), nib__median(as_floats, ROUNDS), nib__median(as_ints, ROUNDS),
           100 * (nib__median(ratio, ROUNDS) - 1));
    release(&mem);
}

/* Benches rows whose sums can start at an int32 bias. */
static int bench_biases(const char *wanted, int64_t isa)
{
    static const int64_t shapes[][3] = {
        {1, 224, 224}, {128, 224, 224}, {1, 2048, 2048}, {32, 2048, 2048}};
    printf("row,m,n,k,none_us,float_us,int32_us,int32_percent_over_float\n");
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        nib_query q = cpu_query(isa);
        linear_case c = bench_case(row, 1, 0);
        c.scheme.group = NIB_GROUP_ROW;
        case_query(&q, &c, NIB_OP_LINEAR);
        if (row->act != NIB_ACT_I8_STATIC || !nib__kernel_built(row) || nib__kernel_is_ref(row) ||
            !nib__kernel_keyed(row, &q) || !nib__kernel_holds(row, &q, true) ||
            (wanted != NULL && strstr(row->name, wanted) == NULL))
            continue;
        for (size_t j = 0; j < COUNT(shapes); j++)
            bench_bias(row, shapes[j][0], shapes[j][1], shapes[j][2]);
    }
    return 0;
}

#endif
