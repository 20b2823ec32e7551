/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads one weight: block of rows by block of rows it is converted if the plan says so, packed for
 * every row that will run, and its pages are given back; so that loading needs little more than
 * what is kept.
 */
#include "weights.h"

#include "bias_codes.h"
#include "quantizer.h"

#include <inttypes.h>
#include <stdatomic.h>

enum {
    BLOCK_ROWS = 4096 /* a multiple of every packing's step; 4096 x 2048 bytes of codes are 8 MB */
};

typedef struct loading {
    nib_loaded *out;
    const nib_network *net;
    const nib_layer_plan *plan;
    nib_weight from; /* as stored */
    bool convert;    /* from -> out->w goes through f32 rows */
    nib_quantizer quantizer;
    float *rows;        /* [threads][k] */
    _Atomic int failed; /* the first worker that fails sets it and then writes err */
    nib_err err;
    int64_t first; /* row of the block at hand */
    nib_pack *pack;
} loading;

/* ---- what is needed ---- */

static bool reads_plain(const nib_layer_plan *plan)
{
    for (int i = 0; i < plan->use_count; i++)
        if (plan->uses[i].kernel && !plan->uses[i].kernel->packing)
            return true;
    return plan->use_count == 0; /* the embedding: rows are looked up */
}

/* Room for the converted weight. Pages are touched as rows are written. */
static nib_status open_converted(loading *l, nib_err *err)
{
    nib_loaded *out = l->out;
    const nib_scheme *to = &l->plan->done;
    const int64_t n = l->from.n, k = l->from.k;
    const bool quantize = nib__scheme_is_quantized(to);
    if (quantize && nib__scheme_is_quantized(&l->from.scheme))
        return nib__fail(err, NIB_UNSUPPORTED,
                         "the weight is already quantized; quantize from the float checkpoint "
                         "instead");
    if (to->act == NIB_ACT_I8_STATIC && quantize)
        return nib__fail(err, NIB_USAGE,
                         "static activation scales need a calibration text; run nibble quantize "
                         "--calibrate TEXT first");
    uint64_t scale_bytes = 0, zero_bytes = 0, code_bytes = (uint64_t)n * (uint64_t)k;
    if (quantize) {
        NIB_TRY(
            nib__quantizer_init(&l->quantizer, to, nib__float_type(l->from.scheme.code), k, err));
        const uint64_t scales = (uint64_t)n * (uint64_t)l->quantizer.groups;
        scale_bytes = scales * (uint64_t)nib__type_bits(l->quantizer.scale_type) / 8;
        zero_bytes = scales * (uint64_t)nib__type_bits(l->quantizer.zero_type) / 8;
    } else {
        code_bytes *= (uint64_t)nib__type_bits(nib__float_type(to->code)) / 8;
    }
    const uint64_t codes = (code_bytes + 63) & ~UINT64_C(63),
                   scales = (scale_bytes + 63) & ~UINT64_C(63);
    out->owned_bytes = codes + scales + zero_bytes + 64;
    out->owned = nib__block_take((size_t)out->owned_bytes);
    if (!out->owned)
        return nib__fail_memory(err, (size_t)out->owned_bytes, "a weight");
    if (quantize) {
        nib__quantizer_weight(&out->w, &l->quantizer, n, out->owned, out->owned + codes,
                              zero_bytes ? out->owned + codes + scales : NULL);
    } else {
        out->w = (nib_weight){
            .scheme = *to, .n = n, .k = k, .store = NIB_STORE_FLOAT, .codes = out->owned};
    }
    l->convert = true;
    return NIB_OK;
}

static nib_status open_packs(loading *l, nib_err *err)
{
    nib_loaded *out = l->out;
    for (int i = 0; i < l->plan->use_count; i++) {
        const nib_packing *packing =
            l->plan->uses[i].kernel ? l->plan->uses[i].kernel->packing : NULL;
        bool known = !packing;
        for (int j = 0; j < out->pack_count; j++)
            known |= out->packs[j].packing == packing;
        if (known)
            continue;
        nib_pack *pack = &out->packs[out->pack_count++];
        *pack = (nib_pack){.packing = packing, .bytes = packing->bytes(&out->w)};
        if (l->plan->pack != NULL) /* the device does it */
            continue;
        pack->at = nib__block_take((size_t)pack->bytes);
        if (!pack->at)
            return nib__fail_memory(err, (size_t)pack->bytes, "a packed weight");
    }
    return NIB_OK;
}

/* The bias in the form that the plan says: floats for any form but INT32, whose codes the integer
 * sums start at. Only a weight that is stored with static scales takes those. */
static nib_status open_bias(loading *l, nib_err *err)
{
    nib_loaded *out = l->out;
    const nib_allocator *a = &l->net->engine->allocator;
    const nib_bias form = nib__layer_bias(l->plan->layer, &l->plan->done);
    const size_t n = (size_t)out->w.n, padded = (size_t)nib__round_up(out->w.n, NIB_CODES_PAD);
    nib_weight w = l->from;
    nib_arena arena;
    double change;
    if (w.bias == NULL)
        return NIB_OK;
    w.scheme.symmetric = out->w.scheme.symmetric;
    nib__arena_init(&arena, a, 0);
    nib_status status = nib__bias_code(&w, form, &change, &arena, err);
    if (form == NIB_BIAS_INT32)
        out->int_bias = nib__calloc(a, padded, sizeof *out->int_bias);
    else
        out->bias = nib__calloc(a, n, sizeof *out->bias);
    if (status == NIB_OK && out->int_bias == NULL && out->bias == NULL)
        status = nib__fail_memory(err, n * sizeof *out->bias, "a bias");
    else if (status == NIB_OK && form == NIB_BIAS_INT32)
        memcpy(out->int_bias, w.bias, n * sizeof *out->int_bias);
    else if (status == NIB_OK)
        nib__weight_bias(&w, out->bias);
    nib__arena_free(&arena);
    return status;
}

/* ---- the work, in parts ---- */

static void job_failed(loading *l, const nib_err *err)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&l->failed, &none, 1))
        l->err = *err;
}

/* A value that is no number, or a code out of range, is found before it is packed. */
static void job_check(void *ctx, int worker, int64_t begin, int64_t end)
{
    loading *l = ctx;
    nib_err err;
    (void)worker;
    if (nib__weight_check_rows(&l->from, l->first + begin, end - begin, &err) != NIB_OK)
        job_failed(l, &err);
}

static void job_convert(void *ctx, int worker, int64_t begin, int64_t end)
{
    loading *l = ctx;
    const nib_weight *w = &l->out->w;
    float *row = l->rows + (int64_t)worker * w->k;
    const int scale_bytes = w->scales ? nib__type_bits(w->scale_type) / 8 : 0;
    const int zero_bytes = w->zeros ? nib__type_bits(w->zero_type) / 8 : 0;
    for (int64_t i = l->first + begin; i < l->first + end; i++) {
        nib__weight_row(&l->from, i, row);
        if (!nib__scheme_is_quantized(&w->scheme)) {
            const nib_type type = nib__float_type(w->scheme.code);
            nib__from_f32(l->out->owned + i * w->k * (nib__type_bits(type) / 8), type, row, w->k);
            continue;
        }
        nib_quantized to = {.codes = (int8_t *)l->out->owned + i * w->k};
        if (w->scales)
            to.scales = (char *)(uintptr_t)w->scales + i * w->scale_stride_n * scale_bytes;
        if (w->zeros)
            to.zeros = (char *)(uintptr_t)w->zeros + i * w->scale_stride_n * zero_bytes;
        nib_err err;
        if (nib__quantizer_rows(&l->quantizer, row, i, 1, &to, &err) != NIB_OK) {
            job_failed(l, &err);
            return;
        }
    }
}

static void job_pack(void *ctx, int worker, int64_t begin, int64_t end)
{
    loading *l = ctx;
    const int64_t step = l->pack->packing->step;
    (void)worker;
    l->pack->packing->pack(&l->out->w, l->pack->at, l->first + begin * step,
                           nib__min(l->first + end * step, l->out->w.n));
}

/* Pages of the converted copy, whose rows are in the packed one. */
static void release_converted(const loading *l, int64_t first, int64_t count)
{
    const uint64_t row = nib__weight_row_bytes(&l->out->w);
    nib__map_release((const uint8_t *)l->out->w.codes + (uint64_t)first * row,
                     (uint64_t)count * row);
}

/* Pages of the file come back when a row of an embedding is looked up. */
static void release_rows(const loading *l, int64_t first, int64_t count, bool keep)
{
    nib__checkpoint_release_rows(l->net->checkpoint, &l->from, first, count);
    if (l->convert && !keep)
        release_converted(l, first, count);
}

static nib_status scan_tensor(loading *l, nib_err *err)
{
    float range[2] = {0.0f, 0.0f};
    for (int64_t i = 0; i < l->from.n; i++) {
        nib__weight_row(&l->from, i, l->rows);
        NIB_TRY(nib__quantizer_scan(&l->quantizer, l->rows, i, 1, range, err));
    }
    NIB_TRY(nib__quantizer_range(&l->quantizer, range, err));
    l->out->w.tensor_scale = l->quantizer.tensor_scale;
    if (nib__quantizer_is_one(&l->quantizer))
        nib__quantizer_tensor(&l->quantizer, (void *)(uintptr_t)l->out->w.scales,
                              (void *)(uintptr_t)l->out->w.zeros);
    return NIB_OK;
}

static nib_status run_blocks(loading *l, bool keep, nib_err *err)
{
    nib_pool *pool = l->net->engine->pool;
    const nib_weight *w = &l->out->w;
    for (l->first = 0; l->first < w->n; l->first += BLOCK_ROWS) {
        const int64_t rows = nib__min(BLOCK_ROWS, w->n - l->first);
        nib__pool_run(pool, rows, 16, false, job_check, l);
        if (l->failed)
            return nib__fail(err, l->err.status, "%s", l->err.text);
        if (l->convert) {
            nib__pool_run(pool, rows, 16, false, job_convert, l);
            if (l->failed)
                return nib__fail(err, l->err.status, "%s", l->err.text);
        }
        for (int i = 0; i < l->out->pack_count && l->plan->pack == NULL; i++) {
            l->pack = &l->out->packs[i];
            nib__pool_run(pool, nib__ceil_div(rows, l->pack->packing->step), 1, false, job_pack, l);
        }
        if (l->plan->pack == NULL)
            release_rows(l, l->first, rows, keep);
    }
    return NIB_OK;
}

static nib_status load(loading *l, size_t site, nib_err *err)
{
    const nib_network *net = l->net;
    const nib_allocator *a = &net->engine->allocator;
    NIB_TRY(nib__network_weight(&l->from, net, &net->sites[site], NULL, err));
    l->out->w = l->from;
    if (nib__scheme_same_weight(&l->from.scheme, &l->plan->done))
        l->out->w.scheme = l->plan->done; /* the activations are the plan's */
    else
        NIB_TRY(open_converted(l, err));
    NIB_TRY(open_packs(l, err));
    NIB_TRY(open_bias(l, err));
    if (l->convert) {
        const size_t threads = (size_t)nib__pool_threads(net->engine->pool);
        l->rows = nib__calloc(a, threads * (size_t)l->from.k, sizeof *l->rows);
        if (!l->rows)
            return nib__fail_memory(err, threads * (size_t)l->from.k * sizeof *l->rows,
                                    "rows of a weight");
        if (nib__scheme_is_quantized(&l->plan->done) && nib__quantizer_needs_scan(&l->quantizer))
            NIB_TRY(scan_tensor(l, err));
    }
    return run_blocks(l, reads_plain(l->plan), err);
}

/* ---- onto the GPU ---- */

/* A copy of `bytes` at `from` on the GPU. */
static nib_status upload(nib_gpu *gpu, void **to, const void *from, uint64_t bytes, nib_err *err)
{
    void *address = NULL;
    NIB_TRY(nib__gpu_take(gpu, bytes, "a weight", &address, err));
    const nib_status status = nib__gpu_write(gpu, address, from, bytes, err);
    if (status != NIB_OK)
        nib__gpu_give(gpu, address);
    else
        *to = address;
    return status;
}

/* Bytes of an array of values that are strided as scales. */
static uint64_t strided_bytes(const nib_weight *w, nib_type type)
{
    const int64_t rows = nib__ceil_div(w->n, nib__max(w->scale_rows, 1)),
                  groups = nib__scheme_groups(&w->scheme, w->k);
    const int64_t last = (rows - 1) * w->scale_stride_n + (groups - 1) * w->scale_stride_g;
    return (uint64_t)(last + 1) * (uint64_t)nib__type_bits(type) / 8;
}

/* Uploads what is stored, and packs it there. */
static nib_status pack_there(nib_gpu *gpu, void **to, const nib_kernel *row, const nib_weight *w,
                             const nib_pack *pack, nib_err *err)
{
    void *codes = NULL, *scales = NULL, *zeros = NULL, *out = NULL;
    nib_weight there = *w;
    nib_status status = upload(gpu, &codes, w->codes, nib__weight_code_bytes(w), err);
    if (status == NIB_OK && w->scales != NULL)
        status = upload(gpu, &scales, w->scales, strided_bytes(w, w->scale_type), err);
    if (status == NIB_OK && w->zeros != NULL)
        status = upload(gpu, &zeros, w->zeros, strided_bytes(w, w->zero_type), err);
    if (status == NIB_OK)
        status = nib__gpu_take(gpu, pack->bytes, "a weight", &out, err);
    there.codes = codes, there.scales = scales, there.zeros = zeros;
    const nib_pack_rows args = {.w = &there, .out = out};
    if (status == NIB_OK)
        status = nib__gpu_run(gpu, row, &args, err);
    if (status == NIB_OK)
        status = nib__gpu_finish(gpu, err);
    nib__gpu_give(gpu, codes);
    nib__gpu_give(gpu, scales);
    nib__gpu_give(gpu, zeros);
    if (status != NIB_OK)
        nib__gpu_give(gpu, out);
    else
        *to = out;
    return status;
}

/* Packed blocks and the bias move; what fails leaves both kinds of memory to be told apart. */
static nib_status move_to_gpu(nib_loaded *l, nib_gpu *gpu, const nib_kernel *packer,
                              const nib_allocator *a, nib_err *err)
{
    void *at[NIB_USES_MAX] = {NULL}, *bias = NULL;
    nib_status status = NIB_OK;
    for (int i = 0; i < l->pack_count && status == NIB_OK; i++)
        status = packer != NULL ? pack_there(gpu, &at[i], packer, &l->w, &l->packs[i], err)
                                : upload(gpu, &at[i], l->packs[i].at, l->packs[i].bytes, err);
    void *from = l->bias != NULL ? (void *)l->bias : l->int_bias;
    const int64_t padded = l->int_bias != NULL ? nib__round_up(l->w.n, NIB_CODES_PAD) : l->w.n;
    if (status == NIB_OK && from != NULL)
        status = upload(gpu, &bias, from, (uint64_t)padded * sizeof(float), err);
    if (status != NIB_OK) {
        for (int i = 0; i < l->pack_count; i++)
            nib__gpu_give(gpu, at[i]);
        return status;
    }
    for (int i = 0; i < l->pack_count; i++) {
        nib__block_free(l->packs[i].at, (size_t)l->packs[i].bytes);
        l->packs[i].at = at[i];
    }
    nib__release(a, from);
    if (l->int_bias != NULL)
        l->int_bias = bias;
    else
        l->bias = bias;
    l->gpu = gpu;
    return NIB_OK;
}

static bool runs_on_gpu(const nib_layer_plan *plan)
{
    return plan->use_count > 0 && plan->uses[0].kernel->device != NIB_DEVICE_CPU;
}

nib_status nib__weight_load(nib_loaded *out, const nib_network *net, const nib_layer_plan *plan,
                            size_t site, nib_gpu *gpu, nib_err *err)
{
    loading l = {.out = out, .net = net, .plan = plan};
    *out = (nib_loaded){0};
    nib_status status = load(&l, site, err);
    nib__release(&net->engine->allocator, l.rows);
    if (status == NIB_OK && runs_on_gpu(plan))
        status = move_to_gpu(out, gpu, plan->pack, &net->engine->allocator, err);
    if (status == NIB_OK && plan->pack != NULL)
        release_rows(&l, 0, out->w.n, reads_plain(plan));
    if (status != NIB_OK) {
        nib__weight_unload(out, &net->engine->allocator);
        return nib__fail_in(err, status, net->sites[site].name);
    }
    out->bytes = out->pack_count > 0 ? out->packs[0].bytes : nib__weight_bytes(&out->w);
    return NIB_OK;
}

void nib__weight_unload(nib_loaded *loaded, const nib_allocator *a)
{
    for (int i = 0; i < loaded->pack_count; i++)
        if (loaded->gpu != NULL)
            nib__gpu_give(loaded->gpu, loaded->packs[i].at);
        else
            nib__block_free(loaded->packs[i].at, (size_t)loaded->packs[i].bytes);
    nib__block_free(loaded->owned, (size_t)loaded->owned_bytes);
    if (loaded->gpu != NULL) {
        nib__gpu_give(loaded->gpu, loaded->bias);
        nib__gpu_give(loaded->gpu, loaded->int_bias);
    } else {
        nib__release(a, loaded->bias);
        nib__release(a, loaded->int_bias);
    }
    *loaded = (nib_loaded){0};
}

const void *nib__weight_packed(const nib_loaded *loaded, const nib_kernel *row)
{
    for (int i = 0; row->packing && i < loaded->pack_count; i++)
        if (loaded->packs[i].packing == row->packing)
            return loaded->packs[i].at;
    return NULL;
}
