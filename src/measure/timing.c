/* SPDX-License-Identifier: Apache-2.0
 *
 * Runs single products repeatedly and times them.
 */
#include "timing.h"

#include "runner.h"
#include "variant.h"

enum {
    /* Fill bytes of weights and inputs: in every type of code and scale they give a number whose
     * products are not denormals. Denormals take a CPU ten times as long. */
    PATTERN = 0x3c,
    INPUT = 0x3f,
    MINUS_ONE = 0xff, /* an int32 of -1: a zero point other than 0 */
    FILL_BYTES = 16 << 20,
    ALIGN = 4096, /* alignment of weights */
    BATCHES = 3,
    SLOW = 10, /* runs longer than so many batches are timed once */
    RUNS_MOST = 100000,
    PARTS_PER_WORKER = 4 /* as in the runner */
};

/* ---- memory ---- */

static uint64_t aligned(uint64_t bytes) { return (bytes + ALIGN - 1) / ALIGN * ALIGN; }

static nib_status fill(const nib_timed *t, char *at, uint64_t bytes, int pattern, nib_err *err)
{
    const uint64_t piece = bytes < FILL_BYTES ? bytes : FILL_BYTES;
    if (t->gpu == NULL) {
        memset(at, pattern, (size_t)bytes);
        return NIB_OK;
    }
    char *from = nib__block_take(piece);
    if (from == NULL)
        return nib__fail_memory(err, piece, "the timed product");
    memset(from, pattern, (size_t)piece);
    nib_status status = NIB_OK;
    for (uint64_t done = 0; done < bytes && status == NIB_OK; done += piece)
        status = nib__gpu_write(t->gpu, at + done, from,
                                bytes - done < piece ? bytes - done : piece, err);
    nib__block_free(from, piece);
    return status;
}

static nib_status reserve(const nib_timed *t, char **at, uint64_t *held, uint64_t bytes,
                          int pattern, nib_err *err)
{
    void *address = NULL;
    if (bytes <= *held)
        return NIB_OK;
    if (t->gpu == NULL) {
        nib__block_free(*at, *held);
        *held = 0;
        *at = nib__block_take(bytes);
        if (*at == NULL)
            return nib__fail_memory(err, bytes, "the timed product");
    } else {
        nib__gpu_free(t->gpu, *at);
        *at = NULL, *held = 0;
        NIB_TRY(nib__gpu_alloc(t->gpu, bytes, "the timed product", &address, err));
        *at = address;
    }
    *held = bytes;
    return fill(t, *at, bytes, pattern, err);
}

static void release(nib_timed *t, char *at, uint64_t bytes)
{
    if (t->gpu != NULL)
        nib__gpu_free(t->gpu, at);
    else
        nib__block_free(at, bytes);
}

nib_status nib__timed_open(nib_timed *t, nib_engine *engine, nib_gpu *gpu, uint64_t weight_bytes,
                           nib_err *err)
{
    *t = (nib_timed){.engine = engine, .gpu = gpu};
    return reserve(t, &t->weights, &t->weight_bytes, weight_bytes, PATTERN, err);
}

uint64_t nib__timed_weights(const nib_machine *machine)
{
    enum { LEAST = 64 << 20, MOST = 512 << 20, SHARE = 16 /* of the memory */ };
    const double there = (double)machine->memory / SHARE,
                 wanted = NIB_CACHE_REACH * machine->cache_bytes;
    const double most = there < MOST ? there : MOST;
    return (uint64_t)(wanted < LEAST ? LEAST : wanted < most ? wanted : most);
}

void nib__timed_close(nib_timed *t)
{
    const uint64_t threads = (uint64_t)nib__pool_threads(t->engine->pool);
    release(t, t->weights, t->weight_bytes);
    release(t, t->x, t->x_bytes);
    release(t, t->input, t->input_bytes);
    release(t, t->y, t->y_bytes);
    nib__block_free(t->scratch, (uint64_t)(t->scratch_bytes * threads));
    *t = (nib_timed){.engine = t->engine};
}

/* Refills the input, since another scheme may have left something there. Sums need not match the
 * codes: 0 is in range for all. */
static nib_status fill_input(const nib_timed *t, nib_err *err)
{
    nib_input input;
    const uint64_t tokens = (uint64_t)t->m_most;
    nib__input_place(&input, &t->scheme, t->dtype, t->m_most, t->layer.k, t->input, NULL);
    NIB_TRY(fill(t, t->input, t->input_bytes, INPUT, err));
    if (input.sums != NULL)
        NIB_TRY(fill(t, (char *)input.sums, tokens * (uint64_t)input.groups * sizeof *input.sums, 0,
                     err));
    return input.zero == NULL ? NIB_OK
                              : fill(t, (char *)input.zero, tokens * sizeof *input.zero,
                                     t->scheme.act_symmetric ? 0 : MINUS_ONE, err);
}

nib_status nib__timed_set(nib_timed *t, const nib_layer *layer, const nib_scheme *scheme,
                          nib_type dtype, int64_t n_most, int64_t m_most, nib_err *err)
{
    nib_input input;
    uint64_t bytes = 0;
    t->layer = *layer, t->scheme = *scheme, t->dtype = dtype;
    t->n_most = n_most, t->m_most = m_most;
    nib__input_place(&input, scheme, dtype, m_most, layer->k, NULL, &bytes);
    NIB_TRY(reserve(t, &t->input, &t->input_bytes, bytes, INPUT, err));
    NIB_TRY(fill_input(t, err));
    NIB_TRY(
        reserve(t, &t->x, &t->x_bytes, (uint64_t)(m_most * layer->k) * sizeof(float), INPUT, err));
    return reserve(t, &t->y, &t->y_bytes, (uint64_t)(m_most * n_most) * sizeof(float), 0, err);
}

/* ---- the operations ---- */

/* A weight as a quantizer writes it. A row that reads codes in place finds scales among its codes,
 * which do no harm. */
static nib_weight weight_of(const nib_timed *t, int64_t n)
{
    nib_layer layer = t->layer;
    layer.n = n;
    nib_weight w = nib__layer_weight(&layer, &t->scheme);
    w.codes = t->weights;
    w.scales = w.scales != NULL ? t->weights : NULL;
    w.zeros = w.zeros != NULL ? t->weights : NULL;
    return w;
}

uint64_t nib__timed_bytes(const nib_timed *t, const nib_kernel *row, int64_t n)
{
    const nib_weight w = weight_of(t, n);
    return row->packing != NULL && row->packing->bytes != NULL ? row->packing->bytes(&w)
                                                               : nib__weight_bytes(&w);
}

typedef struct run {
    nib_timed *t;
    const nib_kernel *row;
    nib_weight w;
    nib_linear linear;
    nib_quant quant;
    int64_t step, end; /* of outputs */
    int64_t places;    /* weights used in turn, `apart` bytes from one to the next */
    uint64_t apart;
} run;

static void job_linear(void *ctx, int worker, int64_t begin, int64_t end)
{
    const run *r = ctx;
    r->row->run.linear(&r->linear, begin * r->step, nib__min(end * r->step, r->end),
                       r->t->scratch + (uint64_t)worker * r->t->scratch_bytes);
}

static void job_quant(void *ctx, int worker, int64_t begin, int64_t end)
{
    (void)worker;
    ((const run *)ctx)->row->run.quant(&((const run *)ctx)->quant, begin, end);
}

static nib_status run_once(run *r, nib_err *err)
{
    const bool is_linear = r->row->op == NIB_OP_LINEAR;
    nib_pool *pool = r->t->engine->pool;
    if (r->row->gpu != NULL)
        return nib__gpu_run(r->t->gpu, r->row,
                            is_linear ? (const void *)&r->linear : (const void *)&r->quant, err);
    if (is_linear) {
        nib__share_outputs(pool, nib__ceil_div(r->end, r->step), r->step, r->linear.x.m, job_linear,
                           r);
        return NIB_OK;
    }
    const int64_t parts = (int64_t)nib__pool_threads(pool) * PARTS_PER_WORKER;
    nib__pool_run(pool, r->quant.out.m, nib__ceil_div(r->quant.out.m, parts), false, job_quant, r);
    return NIB_OK;
}

/* Waits for the device, by reading a little of its last output. */
static nib_status wait_device(const run *r, nib_err *err)
{
    float value;
    return r->row->gpu != NULL ? nib__gpu_read(r->t->gpu, &value, r->t->y, sizeof value, err)
                               : NIB_OK;
}

static nib_status time_batch(run *r, int64_t runs, double *seconds, nib_err *err)
{
    const char *from = r->t->weights;
    const uint64_t start = nib__now_ns();
    for (int64_t i = 0; i < runs; i++) {
        r->linear.packed = from + (uint64_t)(i % r->places) * r->apart;
        NIB_TRY(run_once(r, err));
    }
    NIB_TRY(wait_device(r, err));
    *seconds = (double)(nib__now_ns() - start + 1) * 1e-9 / (double)runs;
    return NIB_OK;
}

/* The best of a few batches, each long enough to hide the wait for a device, and through all
 * weights. */
static nib_status best_seconds(run *r, double *seconds, nib_err *err)
{
    const double wanted_s = r->row->gpu == NULL ? 4e-3 : r->t->in_turns ? 10e-3 : 20e-3;
    const int batches = r->t->in_turns ? 1 : BATCHES;
    double first;
    NIB_TRY(time_batch(r, 1, &first, err));
    if (!r->t->compiled)
        NIB_TRY(time_batch(r, 1, &first, err)); /* the first one compiled the kernel */
    *seconds = first;
    if (r->places == 1 && first > (batches == 1 ? 1 : SLOW) * wanted_s)
        return NIB_OK; /* another run would not change the result */
    const int64_t runs = first > wanted_s ? 1 : (int64_t)(wanted_s / first) + 1;
    for (int i = 0; i < batches; i++) {
        double s;
        NIB_TRY(time_batch(r, nib__max(nib__min(runs, RUNS_MOST), r->places), &s, err));
        *seconds = i == 0 || s < *seconds ? s : *seconds;
    }
    return NIB_OK;
}

static nib_status reserve_scratch(nib_timed *t, const nib_kernel *row, const nib_linear *args,
                                  nib_err *err)
{
    const uint64_t threads = (uint64_t)nib__pool_threads(t->engine->pool);
    const uint64_t bytes =
        row->gpu == NULL && row->scratch != NULL ? (row->scratch(args) + 63) / 64 * 64 : 0;
    if (bytes <= t->scratch_bytes)
        return NIB_OK;
    nib__block_free(t->scratch, (uint64_t)(t->scratch_bytes * threads));
    t->scratch_bytes = 0;
    t->scratch = nib__block_take((uint64_t)(bytes * threads));
    if (t->scratch == NULL)
        return nib__fail_memory(err, (uint64_t)(bytes * threads), "the timed product");
    t->scratch_bytes = bytes;
    return NIB_OK;
}

/* The first m of m_most tokens; parts of the input keep the addresses at which they were filled. */
static nib_input input_of(const nib_timed *t, int64_t m)
{
    nib_input input;
    nib__input_place(&input, &t->scheme, t->dtype, t->m_most, t->layer.k, t->input, NULL);
    input.m = m;
    if (t->gpu != NULL) /* as in the runner */
        input.sums = NULL, input.fsums = NULL;
    return input;
}

nib_status nib__timed_linear(nib_timed *t, const nib_kernel *row, int64_t n, int64_t m, bool far,
                             double *seconds, nib_err *err)
{
    const uint64_t bytes = nib__timed_bytes(t, row, n);
    NIB_TRY(reserve(t, &t->weights, &t->weight_bytes, bytes, PATTERN, err));
    run r = {.t = t,
             .row = row,
             .w = weight_of(t, n),
             .step = nib__max(1, row->n_step),
             .end = n,
             .places = 1};
    r.linear = (nib_linear){.w = &r.w,
                            .packed = t->weights,
                            .x = input_of(t, t->m_most),
                            .y = (float *)(void *)t->y,
                            .ldy = n};
    NIB_TRY(reserve_scratch(t, row, &r.linear, err));
    r.linear.x = input_of(t, m);
    if (far)
        r.apart = aligned(bytes), r.places = nib__max(1, (int64_t)(t->weight_bytes / r.apart));
    return best_seconds(&r, seconds, err);
}

nib_status nib__timed_quant(nib_timed *t, const nib_kernel *row, int64_t m, double *seconds,
                            nib_err *err)
{
    run r = {.t = t, .row = row, .places = 1};
    r.quant = (nib_quant){.x = (const float *)(void *)t->x,
                          .ldx = t->layer.k,
                          .out = input_of(t, m),
                          .symmetric = t->scheme.act_symmetric,
                          .mx_floor = t->scheme.mx_floor,
                          .block_only = t->scheme.block_only,
                          .formula = t->scheme.formula};
    return best_seconds(&r, seconds, err);
}

double nib__seconds_without_launch(double seconds, double launch_s)
{
    const double least = seconds / 16;
    return seconds - launch_s > least ? seconds - launch_s : least;
}
