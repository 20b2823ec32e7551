/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: `--bench-gpu` times products of an 8B model's shapes on the CUDA device,
 * each beside its yardstick: for one token with int4 weights in groups of 32, the bandwidth of a
 * copy on the device in the same run; for 2,048 tokens in bf16 and fp8, cuBLAS; for 2,048 tokens
 * with int4 weights, the bf16 row. `--divide N` makes the shapes N times smaller.
 */
#ifndef NIB_CHECK_BENCH_GPU_H
#define NIB_CHECK_BENCH_GPU_H

#include "check_cublas.h"
#include "check_linear.h"

enum { GPU_ROUNDS = 7, GPU_CALLS = 24 /* in flight at a time; 2 for small shapes */ };
enum { PAST_CACHES = 256 << 20 /* bytes of weights read before one is read again */ };

typedef struct gpu_shape {
    const char *name;
    int64_t n, k;
} gpu_shape;

/* Llama 3.1 8B */
static const gpu_shape gpu_shapes[] = {
    {"qkv", 6144, 4096}, {"o", 4096, 4096}, {"gate+up", 28672, 4096}, {"down", 4096, 14336}};

typedef struct gpu_bench {
    nib_gpu *gpu;
    nib_query facts;
    cublas blas;
    bool has_blas;
    double copy_bytes_per_s;
    int64_t divide;
} gpu_bench;

/* One timed call; false: it failed. */
typedef bool (*gpu_call)(void *what, int turn);

static bool wait_for(gpu_bench *b, bool is_blas)
{
    if (is_blas)
        return b->blas.wait() == 0;
    return nib__gpu_finish(b->gpu, &under_test.err) == NIB_OK;
}

/* Median seconds of a call, with many in flight at a time; 0: it failed. */
static double gpu_seconds(gpu_bench *b, gpu_call call, void *what, bool is_blas)
{
    const int calls = b->divide > 1 ? 2 : GPU_CALLS;
    double seconds[GPU_ROUNDS];
    for (int round = -1; round < GPU_ROUNDS; round++) {
        const uint64_t start = nib__now_ns();
        for (int i = 0; i < calls; i++)
            if (!call(what, i))
                return 0;
        if (!wait_for(b, is_blas))
            return 0;
        if (round >= 0)
            seconds[round] = (double)(nib__now_ns() - start) * 1e-9 / calls;
    }
    return nib__median(seconds, GPU_ROUNDS);
}

/* ---- a copy ---- */

typedef struct copy_job {
    nib_gpu *gpu;
    char *memory;
    uint64_t bytes;
} copy_job;

static bool call_copy(void *what, int turn)
{
    const copy_job *c = what;
    (void)turn;
    return nib__gpu_copy(c->gpu, c->memory + c->bytes, c->memory, c->bytes, &under_test.err) ==
           NIB_OK;
}

static double bandwidth_of_copies(gpu_bench *b)
{
    copy_job c = {b->gpu, NULL, (uint64_t)(PAST_CACHES / b->divide)};
    void *both;
    if (nib__gpu_alloc(b->gpu, 2 * c.bytes, "a copy", &both, &under_test.err) != NIB_OK)
        return 0;
    c.memory = both;
    const double seconds = gpu_seconds(b, call_copy, &c, false);
    nib__gpu_free(b->gpu, both);
    return seconds > 0 ? 2 * (double)c.bytes / seconds : 0;
}

/* ---- a row ---- */

typedef struct row_job {
    nib_gpu *gpu;
    const nib_kernel *row;
    nib_linear a;
    char *weights; /* `copies` of the packed weight */
    uint64_t bytes;
    int copies;
} row_job;

static bool call_row(void *what, int turn)
{
    row_job *job = what;
    job->a.packed = job->weights + (uint64_t)(turn % job->copies) * job->bytes;
    return nib__gpu_run(job->gpu, job->row, &job->a, &under_test.err) == NIB_OK;
}

/* Uploads the bytes and returns their device address. */
static void *upload(nib_gpu *gpu, const void *from, uint64_t bytes)
{
    void *to = NULL;
    if (from == NULL || nib__gpu_alloc(gpu, bytes, "a benchmark", &to, &under_test.err) != NIB_OK)
        return NULL;
    (void)nib__gpu_write(gpu, to, from, bytes, &under_test.err);
    return to;
}

static void upload_input(nib_gpu *gpu, nib_input *x)
{
    const uint64_t cells = (uint64_t)(x->m * x->ld), tokens = (uint64_t)x->m;
    x->f32 = upload(gpu, x->f32, 4 * cells);
    x->bf16 = upload(gpu, x->bf16, 2 * cells);
    x->codes = upload(gpu, x->codes, cells);
    x->scale = upload(gpu, x->scale, 4 * tokens);
    x->zero = upload(gpu, x->zero, 4 * tokens);
    x->sums = NULL, x->fsums = NULL;
}

static void free_job(row_job *job)
{
    void *const all[] = {job->weights,   job->a.x.f32,  job->a.x.bf16, job->a.x.codes,
                         job->a.x.scale, job->a.x.zero, job->a.y};
    for (size_t i = 0; i < COUNT(all); i++)
        nib__gpu_free(job->gpu, all[i]);
}

/* The caller owns `w`, as the arguments point to it. */
static bool make_job(gpu_bench *b, row_job *job, const linear_case *c, nib_weight *w)
{
    memory m = {.count = 0};
    rng r = {1};
    make_weight(w, &m, c, &r);
    w->tensor_scale = 0;
    nib_quant quant = make_quant(&m, c, floats(&m, c->m * c->k, &r, VALUES_RANDOM), c->k);
    row_for(c, NIB_OP_QUANT)->run.quant(&quant, 0, c->m);
    job->gpu = b->gpu;
    job->bytes = (job->row->packing->bytes(w) + 255) & ~UINT64_C(255);
    job->copies = (int)((uint64_t)PAST_CACHES / (uint64_t)b->divide / job->bytes + 1);
    uint8_t *packed = take(&m, job->bytes);
    job->row->packing->pack(w, packed, 0, w->n);
    w->codes = w->scales = w->zeros = NULL;
    job->a = (nib_linear){.w = w, .x = quant.out, .ldy = c->n};
    upload_input(b->gpu, &job->a.x);
    void *y = NULL, *weights = NULL;
    nib_err *err = &under_test.err;
    bool good =
        nib__gpu_alloc(b->gpu, (uint64_t)(4 * c->m * c->n), "y", &y, err) == NIB_OK &&
        nib__gpu_alloc(b->gpu, (uint64_t)job->copies * job->bytes, "w", &weights, err) == NIB_OK;
    job->a.y = y, job->weights = weights;
    for (int i = 0; good && i < job->copies; i++)
        good = nib__gpu_write(b->gpu, job->weights + (uint64_t)i * job->bytes, packed, job->bytes,
                              err) == NIB_OK;
    release(&m);
    return good;
}

/* The row that a plan would choose for the case on this device. */
static const nib_kernel *gpu_row_for(const gpu_bench *b, const linear_case *c)
{
    const nib_kernel *best = NULL;
    nib_query q = b->facts;
    case_query(&q, c, NIB_OP_LINEAR);
    q.fact[NIB_FACT_OFFERED] = 1;
    for (size_t i = 0; i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (row->gpu == NULL || !nib__kernel_keyed(row, &q) || !nib__kernel_holds(row, &q, true))
            continue;
        const bool pays = c->m >= row->m_best;
        if (pays && (best == NULL || row->rank < best->rank))
            best = row;
    }
    return best;
}

static linear_case gpu_case(const gpu_bench *b, const gpu_shape *s, int64_t m, nib_code code,
                            nib_act act)
{
    linear_case c = {.m = m, .n = s->n / b->divide, .k = s->k / b->divide};
    c.scheme = (nib_scheme){.symmetric = true, .act_symmetric = true, .code = code, .act = act};
    c.scheme.group = code == NIB_CODE_I4 ? 32 : NIB_GROUP_ROW;
    c.input = NIB_TYPE_BF16;
    c.scale_type = code == NIB_CODE_I4 ? NIB_TYPE_BF16 : NIB_TYPE_F32;
    if (code == NIB_CODE_BF16)
        c.scale_type = NIB_TYPE_NONE;
    return c;
}

typedef struct blas_job {
    const cublas *blas;
    cublas_product product;
} blas_job;

static bool call_blas(void *what, int turn)
{
    const blas_job *job = what;
    (void)turn;
    return run_cublas(job->blas, &job->product);
}

/* Seconds of cuBLAS on the memory of a job; 0: not available. */
static double time_blas(gpu_bench *b, const row_job *job, const linear_case *c)
{
    blas_job blas = {.blas = &b->blas};
    const int type = c->scheme.code == NIB_CODE_BF16   ? CUDA_BF16
                     : c->scheme.code == NIB_CODE_E4M3 ? CUDA_E4M3
                                                       : CUDA_F32;
    if (type == CUDA_F32 || !b->has_blas ||
        !make_cublas_product(&b->blas, &blas.product, type, c->m, c->n, c->k))
        return 0;
    blas.product.w = device_address(b->gpu, job->weights);
    blas.product.x = device_address(b->gpu, job->a.x.bf16);
    blas.product.y = device_address(b->gpu, job->a.y);
    return gpu_seconds(b, call_blas, &blas, true);
}

typedef struct gpu_times {
    const nib_kernel *row;
    double seconds, blas_seconds; /* 0: none, or it failed */
    uint64_t bytes;               /* of the weight */
} gpu_times;

static gpu_times time_case(gpu_bench *b, const linear_case *c)
{
    nib_weight w;
    row_job job = {.row = gpu_row_for(b, c)};
    gpu_times out = {.row = job.row};
    if (job.row == NULL)
        return out;
    if (make_job(b, &job, c, &w)) {
        out.bytes = job.bytes;
        out.seconds = gpu_seconds(b, call_row, &job, false);
        out.blas_seconds = time_blas(b, &job, c);
    }
    free_job(&job);
    return out;
}

/* ---- the table ---- */

static void print_line(const char *what, const gpu_shape *s, const linear_case *c,
                       const gpu_times *t, double rate, const char *unit, double share,
                       const char *of)
{
    printf("%-17s %-8s %5" PRId64 " %6" PRId64 " %6" PRId64 " %9.1f %8.2f %-8s ", what, s->name,
           c->m, c->n, c->k, t->seconds * 1e6, rate, unit);
    if (share > 0)
        printf("%4.0f %% of %s", 100 * share, of);
    else
        printf("   - of %s", of);
    printf("  %s\n", t->row != NULL ? t->row->name : "no row");
}

static void bench_decode(gpu_bench *b, const gpu_shape *s)
{
    const linear_case c = gpu_case(b, s, 1, NIB_CODE_I4, NIB_ACT_FLOAT);
    const gpu_times t = time_case(b, &c);
    const double rate = t.seconds > 0 ? (double)t.bytes / t.seconds : 0;
    print_line("decode int4-g32", s, &c, &t, rate * 1e-12, "TB/s", rate / b->copy_bytes_per_s,
               "the copy");
}

static void bench_prefill(gpu_bench *b, const gpu_shape *s)
{
    static const struct {
        const char *name;
        nib_code code;
        nib_act act;
    } types[] = {{"prefill bf16", NIB_CODE_BF16, NIB_ACT_FLOAT},
                 {"prefill fp8", NIB_CODE_E4M3, NIB_ACT_E4M3_TOKEN},
                 {"prefill int4-g32", NIB_CODE_I4, NIB_ACT_FLOAT}};
    double of_bf16 = 0;
    for (size_t i = 0; i < COUNT(types); i++) {
        const linear_case c =
            gpu_case(b, s, nib__max(2048 / b->divide, 17), types[i].code, types[i].act);
        const gpu_times t = time_case(b, &c);
        const double rate =
            t.seconds > 0 ? 2e-12 * (double)c.m * (double)c.n * (double)c.k / t.seconds : 0;
        const bool is_int4 = types[i].code == NIB_CODE_I4;
        const double other = is_int4 ? of_bf16 : t.blas_seconds;
        if (i == 0)
            of_bf16 = t.seconds;
        print_line(types[i].name, s, &c, &t, rate, "TFLOP/s", t.seconds > 0 ? other / t.seconds : 0,
                   is_int4 ? "bf16's row" : "cuBLAS");
    }
}

/* Benches the first CUDA device; 1: it failed. */
static int bench_gpu(int64_t divide)
{
    static gpu_bench b;
    static nib_allocator a;
    nib_gpu_found *found = under_test.found;
    const size_t count = find_gpus(found);
    size_t at = 0;
    while (at < count && found[at].machine.facts.fact[NIB_FACT_DEVICE] != NIB_DEVICE_CUDA)
        at++;
    if (at == count) {
        printf("skipped: GPU timings: no CUDA device\n");
        return 0;
    }
    a = nib__allocator_default();
    b = (gpu_bench){.facts = found[at].machine.facts, .divide = divide};
    if (nib__gpu_open(&b.gpu, &found[at], 60, &a, &under_test.err) == NIB_OK) {
        b.has_blas = open_cublas(&b.blas, b.gpu);
        b.copy_bytes_per_s = bandwidth_of_copies(&b);
        printf("%s: %s, %s; a copy on it %.2f TB/s; cuBLAS %s\n", found[at].name, found[at].title,
               found[at].driver_version, b.copy_bytes_per_s * 1e-12,
               b.has_blas ? "as loaded" : "not here");
        printf("%-17s %-8s %5s %6s %6s %9s %17s share\n", "what", "layer", "m", "n", "k", "us",
               "rate");
        for (size_t i = 0; i < COUNT(gpu_shapes); i++) {
            bench_decode(&b, &gpu_shapes[i]);
            bench_prefill(&b, &gpu_shapes[i]);
        }
    }
    nib__gpu_close(b.gpu);
    if (under_test.err.status != NIB_OK)
        fprintf(stderr, "%s\n", under_test.err.text);
    return under_test.err.status != NIB_OK;
}

#endif
