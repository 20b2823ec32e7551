/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads one weight. Block of rows by block of rows: converts it if the plan says so, packs it for
 * every row that will run, and releases its pages, so loading needs little more memory than the
 * result.
 */
#include "weights.h"

#include "bias_codes.h"
#include "packed.h"
#include "quantizer.h"

#include <inttypes.h>
#include <stdatomic.h>

enum {
    BLOCK_ROWS = 4096, /* 4096 x 2048 bytes of codes are 8 MB */
    PART_ROWS = 32,    /* a multiple of every packing's step; few enough to fit in a cache */
};

typedef struct loading {
    nib_loaded *out;
    const nib_network *net;
    const nib_layer_plan *plan;
    nib_slab *slab;  /* of nib__weight_load */
    nib_weight from; /* as stored */
    bool convert;    /* converts from -> out->w through f32 rows */
    nib_quantizer quantizer;
    float *rows;        /* [threads][k] */
    _Atomic int failed; /* set by the first worker that fails, which then writes err */
    nib_err err;
    int64_t first;  /* first row of the current block */
    bool from_file; /* all layouts came from a file of packed weights, which was checked when it was
                      written */
} loading;

/* ---- allocation ---- */

static bool reads_unpacked(const nib_layer_plan *plan)
{
    for (int i = 0; i < plan->use_count; i++)
        if (plan->uses[i].kernel && !plan->uses[i].kernel->packing)
            return true;
    return plan->use_count == 0; /* the embedding, whose rows are looked up */
}

/* Allocates the converted weight. Pages are touched as rows are written. */
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
    const nib_ptq_method method = l->plan->layer->method;
    if (nib__ptq_needs_text(method) && quantize)
        return nib__fail(err, NIB_USAGE,
                         "the method %s needs a calibration text; run nibble quantize "
                         "--calibrate TEXT first",
                         nib__ptq_names[method]);
    if (method == NIB_PTQ_ROTATE && quantize)
        return nib__fail(err, NIB_USAGE,
                         "the method rotate changes the weights of the whole model; run nibble "
                         "quantize first");
    uint64_t scale_bytes = 0, zero_bytes = 0, code_bytes = (uint64_t)n * (uint64_t)k;
    if (quantize) {
        NIB_TRY(
            nib__quantizer_init(&l->quantizer, to, nib__float_type(l->from.scheme.code), k, err));
        NIB_TRY(nib__quantizer_scales(&l->quantizer, l->plan->layer->asked_scales, err));
        NIB_TRY(nib__quantizer_method(&l->quantizer, l->plan->layer->method, NULL, err));
        l->quantizer.run = nib__quant_w_best(l->net->engine->isa);
        const uint64_t scales = (uint64_t)n * (uint64_t)l->quantizer.groups;
        scale_bytes = scales * (uint64_t)nib__type_bits(l->quantizer.scale_type) / 8;
        zero_bytes = scales * (uint64_t)nib__type_bits(l->quantizer.zero_type) / 8;
    } else {
        code_bytes *= (uint64_t)nib__type_bits(nib__float_type(to->code)) / 8;
    }
    const uint64_t codes = (code_bytes + 63) & ~UINT64_C(63),
                   scales = (scale_bytes + 63) & ~UINT64_C(63);
    out->owned_bytes = codes + scales + zero_bytes + 64;
    out->owned = nib__block_take(out->owned_bytes);
    if (!out->owned)
        return nib__fail_memory(err, out->owned_bytes, "a weight");
    if (quantize) {
        nib__quantizer_describe_weight(&out->w, &l->quantizer, n, out->owned, out->owned + codes,
                                       zero_bytes ? out->owned + codes + scales : NULL);
    } else {
        out->w = (nib_weight){
            .scheme = *to, .n = n, .k = k, .layout = NIB_LAYOUT_FLOAT, .codes = out->owned};
    }
    l->convert = true;
    return NIB_OK;
}

/* Whether the weight has this layout already; true for rows that read the weight unpacked. */
static bool is_packed(const nib_loaded *l, const nib_packing *packing)
{
    bool known = packing == NULL;
    for (int i = 0; i < l->pack_count; i++)
        known = known || l->packs[i].packing == packing;
    return known;
}

/* Finds all layouts of the weight in a file of packed weights, or none. A weight that is converted
 * at load differs from the file's. */
static bool find_packs(loading *l)
{
    nib_loaded *out = l->out;
    const struct nib_packed *packed = l->net->packed;
    if (packed == NULL || l->convert)
        return false;
    for (int i = 0; i < l->plan->use_count; i++) {
        const nib_packing *packing =
            l->plan->uses[i].kernel ? l->plan->uses[i].kernel->packing : NULL;
        if (is_packed(out, packing))
            continue;
        nib_pack pack = {.packing = packing, .bytes = packing->bytes(&out->w), .mapped = true};
        const void *at =
            nib__packed_find(packed, l->plan->layer->name, &out->w, packing, pack.bytes);
        if (at == NULL) {
            out->pack_count = 0;
            return false;
        }
        pack.at = (void *)(uintptr_t)at; /* only read from here on */
        out->packs[out->pack_count++] = pack;
    }
    return true;
}

static nib_status open_packs(loading *l, nib_err *err)
{
    nib_loaded *out = l->out;
    l->from_file = l->plan->pack == NULL && find_packs(l);
    if (l->from_file)
        return NIB_OK;
    for (int i = 0; i < l->plan->use_count; i++) {
        const nib_packing *packing =
            l->plan->uses[i].kernel ? l->plan->uses[i].kernel->packing : NULL;
        if (is_packed(out, packing))
            continue;
        nib_pack *pack = &out->packs[out->pack_count++];
        *pack = (nib_pack){.packing = packing, .bytes = packing->bytes(&out->w)};
        if (l->plan->pack != NULL) /* the device packs it */
            continue;
        pack->in_slab = l->slab != NULL && pack->bytes <= NIB_SLAB_MOST;
        pack->at =
            pack->in_slab ? nib__slab_take(l->slab, pack->bytes) : nib__block_take(pack->bytes);
        if (!pack->at)
            return nib__fail_memory(err, pack->bytes, "a packed weight");
    }
    return NIB_OK;
}

/* Loads the bias in the plan's form: floats for any form but INT32, whose codes are the initial
 * integer sums. Only a weight stored with static scales uses INT32. */
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

/* ---- conversion and packing ---- */

static void record_failure(loading *l, const nib_err *err)
{
    int none = 0;
    if (atomic_compare_exchange_strong(&l->failed, &none, 1))
        l->err = *err;
}

static nib_status convert_rows(loading *l, int worker, int64_t begin, int64_t end, nib_err *err)
{
    const nib_weight *w = &l->out->w;
    float *row = l->rows + (int64_t)worker * w->k;
    const int scale_bytes = w->scales ? nib__type_bits(w->scale_type) / 8 : 0;
    const int zero_bytes = w->zeros ? nib__type_bits(w->zero_type) / 8 : 0;
    for (int64_t i = begin; i < end; i++) {
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
        NIB_TRY(nib__quantizer_quantize_rows(&l->quantizer, row, i, 1, &to, err));
    }
    return NIB_OK;
}

/* Finds a NaN or a code out of range before packing. */
static nib_status load_rows(loading *l, int worker, int64_t begin, int64_t end, nib_err *err)
{
    NIB_TRY(nib__weight_check_rows(&l->from, begin, end - begin, err));
    if (l->convert)
        NIB_TRY(convert_rows(l, worker, begin, end, err));
    for (int i = 0; i < l->out->pack_count && l->plan->pack == NULL; i++) {
        const nib_pack *pack = &l->out->packs[i];
        pack->packing->pack(&l->out->w, pack->at, begin, end);
    }
    return NIB_OK;
}

/* Faults in pages of rows, so that packing the previous rows can prefetch them. */
static void touch_rows(const nib_weight *w, int64_t begin, int64_t end)
{
    enum { AROUND = 64 << 10 }; /* what the system maps around a faulting page */
    const uint64_t row = w->rows == NULL ? nib__weight_row_bytes(w) : 0;
    const volatile uint8_t *from = (const uint8_t *)w->codes + (uint64_t)begin * row;
    const uint64_t bytes = begin < end ? (uint64_t)(end - begin) * row : 0;
    for (uint64_t at = 0; at < bytes; at += AROUND)
        (void)from[at];
    if (bytes != 0)
        (void)from[bytes - 1];
}

/* Does everything to a row while it is in a cache. */
static void job_load(void *ctx, int worker, int64_t begin, int64_t end)
{
    loading *l = ctx;
    const int64_t last = nib__min(l->first + end * PART_ROWS, l->out->w.n);
    nib_err err;
    for (int64_t i = l->first + begin * PART_ROWS; i < last; i += PART_ROWS) {
        touch_rows(&l->from, i + PART_ROWS, nib__min(i + 2 * PART_ROWS, last));
        if (load_rows(l, worker, i, nib__min(i + PART_ROWS, last), &err) != NIB_OK) {
            record_failure(l, &err);
            return;
        }
    }
}

/* Releases pages of the converted copy, whose rows are in the packed one. */
static void release_converted(const loading *l, int64_t first, int64_t count)
{
    const uint64_t row = nib__weight_row_bytes(&l->out->w);
    nib__map_release((const uint8_t *)l->out->w.codes + (uint64_t)first * row,
                     (uint64_t)count * row);
}

/* Releases source pages; those of an embedding come back when a row is looked up. */
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
    NIB_TRY(nib__quantizer_set_range(&l->quantizer, range, err));
    l->out->w.tensor_scale = l->quantizer.tensor_scale;
    if (nib__quantizer_is_one(&l->quantizer))
        nib__quantizer_store_tensor_scale(&l->quantizer, (void *)(uintptr_t)l->out->w.scales,
                                          (void *)(uintptr_t)l->out->w.zeros);
    return NIB_OK;
}

static nib_status run_blocks(loading *l, bool keep, nib_err *err)
{
    nib_pool *pool = l->net->engine->pool;
    const nib_weight *w = &l->out->w;
    for (l->first = 0; l->first < w->n; l->first += BLOCK_ROWS) {
        const int64_t rows = nib__min(BLOCK_ROWS, w->n - l->first);
        /* One range per worker: two workers that touch the same new page would both clear it. */
        nib__pool_share_out(pool, nib__ceil_div(rows, PART_ROWS), 1, false, job_load, l);
        if (l->failed)
            return nib__fail(err, l->err.status, "%s", l->err.text);
        if (l->plan->pack == NULL)
            release_rows(l, l->first, rows, keep);
    }
    return NIB_OK;
}

static nib_status load_weight(loading *l, size_t site, nib_err *err)
{
    const nib_network *net = l->net;
    const nib_allocator *a = &net->engine->allocator;
    l->from = net->sites[site].weight;
    l->out->w = l->from;
    if (nib__scheme_same_weight(&l->from.scheme, &l->plan->done))
        l->out->w.scheme = l->plan->done; /* the plan decides the activations */
    else
        NIB_TRY(open_converted(l, err));
    NIB_TRY(open_packs(l, err));
    NIB_TRY(open_bias(l, err));
    if (l->convert) {
        const size_t threads = (size_t)nib__pool_threads(net->engine->pool);
        l->rows = nib__calloc(a, threads * (uint64_t)l->from.k, sizeof *l->rows);
        if (!l->rows)
            return nib__fail_memory(err, threads * (uint64_t)l->from.k * sizeof *l->rows,
                                    "rows of a weight");
        if (nib__scheme_is_quantized(&l->plan->done) && nib__quantizer_needs_scan(&l->quantizer))
            NIB_TRY(scan_tensor(l, err));
    }
    const bool keep = reads_unpacked(l->plan);
    if (!l->from_file)
        NIB_TRY(run_blocks(l, keep, err));
    else
        release_rows(l, 0, l->from.n, keep); /* the pages that were read to compare layouts */
    if (l->plan->pack == NULL && !keep)
        nib__checkpoint_release_values(net->checkpoint, &l->from);
    return NIB_OK;
}

/* ---- GPU ---- */

static bool runs_on_gpu(const nib_layer_plan *plan)
{
    return plan->use_count > 0 && plan->uses[0].kernel->device != NIB_DEVICE_CPU;
}

/* Bytes of a bias: f32, or int32 padded to what integer rows read past the end. */
static uint64_t bias_bytes(int64_t n, bool is_int)
{
    return (uint64_t)(is_int ? nib__round_up(n, NIB_CODES_PAD) : n) * sizeof(float);
}

static uint64_t in_room(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }

uint64_t nib__weight_room(const nib_layer_plan *plan)
{
    const nib_weight w = nib__layer_weight(plan->layer, &plan->done);
    nib_loaded seen = {.pack_count = 0};
    const bool is_int = nib__layer_bias(plan->layer, &plan->done) == NIB_BIAS_INT32;
    uint64_t sum = plan->layer->bias ? in_room(bias_bytes(w.n, is_int)) : 0;
    for (int i = 0; i < plan->use_count; i++) {
        const nib_packing *packing = plan->uses[i].kernel->packing;
        if (is_packed(&seen, packing))
            continue;
        seen.packs[seen.pack_count++].packing = packing;
        sum += in_room(packing->bytes(&w));
    }
    return sum;
}

/* Memory of the weight's own, or the next `bytes` of a room. */
static nib_status take_room(nib_gpu *gpu, char **room, uint64_t bytes, const char *what, void **at,
                            nib_err *err)
{
    if (room == NULL)
        return nib__gpu_alloc(gpu, bytes, what, at, err);
    *at = *room;
    *room += in_room(bytes);
    return NIB_OK;
}

static nib_status reserve_bias(nib_loaded *out, const nib_layer_plan *plan, char **room,
                               nib_err *err)
{
    const bool is_int = nib__layer_bias(plan->layer, &plan->done) == NIB_BIAS_INT32;
    void *at = NULL;
    if (!plan->layer->bias)
        return NIB_OK;
    NIB_TRY(take_room(out->gpu, room, bias_bytes(out->w.n, is_int), "a bias", &at, err));
    if (is_int)
        out->int_bias = at;
    else
        out->bias = at;
    return NIB_OK;
}

nib_status nib__weight_reserve(nib_loaded *out, const nib_layer_plan *plan, nib_gpu *gpu,
                               char **room, nib_err *err)
{
    static const float no_scale = 1; /* of activations: preparing a launch needs some value */
    nib_status status = NIB_OK;
    if (!runs_on_gpu(plan))
        return NIB_OK;
    *out = (nib_loaded){
        .gpu = gpu, .w = nib__layer_weight(plan->layer, &plan->done), .in_room = room != NULL};
    out->w.act_scale = plan->done.act == NIB_ACT_I8_STATIC ? &no_scale : NULL;
    for (int i = 0; i < plan->use_count && status == NIB_OK; i++) {
        const nib_packing *packing = plan->uses[i].kernel->packing;
        nib_pack *pack = &out->packs[out->pack_count];
        void *at = NULL;
        if (is_packed(out, packing))
            continue;
        *pack = (nib_pack){.packing = packing, .bytes = packing->bytes(&out->w)};
        status = take_room(gpu, room, pack->bytes, "a weight", &at, err);
        pack->at = at;
        out->pack_count += status == NIB_OK;
    }
    if (status == NIB_OK)
        status = reserve_bias(out, plan, room, err);
    return status == NIB_OK ? NIB_OK : nib__fail_in(err, status, plan->layer->name);
}

/* Keeps the reserved memory, or replaces it if more is needed than planned. */
static nib_status ensure_room(nib_gpu *gpu, void **at, uint64_t bytes, nib_err *err)
{
    const nib_gpu_piece *piece = nib__gpu_piece(gpu, *at);
    if (piece != NULL && piece->bytes >= bytes)
        return NIB_OK;
    nib__gpu_free(gpu, *at);
    *at = NULL;
    return nib__gpu_alloc(gpu, bytes, "a weight", at, err);
}

static nib_status upload(nib_gpu *gpu, void **to, const void *from, uint64_t bytes, nib_err *err)
{
    NIB_TRY(ensure_room(gpu, to, bytes, err));
    return nib__gpu_write(gpu, *to, from, bytes, err);
}

nib_status nib__staging_reserve(nib_staging *s, uint64_t bytes, nib_err *err)
{
    if (bytes <= s->bytes)
        return NIB_OK;
    nib__staging_give(s);
    NIB_TRY(nib__gpu_alloc(s->gpu, bytes, "a stored weight that the GPU packs", &s->at, err));
    s->bytes = bytes;
    return NIB_OK;
}

void nib__staging_give(nib_staging *s)
{
    if (s->at != NULL)
        nib__gpu_free(s->gpu, s->at);
    s->at = NULL, s->bytes = 0;
}

/* Uploads the stored weight and packs it on the GPU. */
static nib_status pack_on_gpu(nib_staging *staging, const nib_kernel *row, const nib_weight *w,
                              void *out, nib_err *err)
{
    nib_gpu *gpu = staging->gpu;
    const void *const from[] = {w->codes, w->scales, w->zeros};
    const uint64_t bytes[] = {nib__weight_code_bytes(w),
                              nib__weight_value_bytes(w, w->scales, w->scale_type),
                              nib__weight_value_bytes(w, w->zeros, w->zero_type)};
    const void *to[COUNT(from)] = {NULL};
    uint64_t used = 0;
    for (size_t i = 0; i < COUNT(from); i++)
        used += (bytes[i] + 63) & ~UINT64_C(63);
    NIB_TRY(nib__staging_reserve(staging, used, err));
    used = 0;
    for (size_t i = 0; i < COUNT(from); i++) {
        char *at = (char *)staging->at + used;
        if (bytes[i] == 0)
            continue;
        NIB_TRY(nib__gpu_write(gpu, at, from[i], bytes[i], err));
        to[i] = at;
        used += (bytes[i] + 63) & ~UINT64_C(63);
    }
    nib_weight staged = *w;
    staged.codes = to[0], staged.scales = to[1], staged.zeros = to[2];
    const nib_pack_rows args = {.w = &staged, .out = out};
    const nib_status status = nib__gpu_prepare(gpu, row, &args, err);
    if (status != NIB_OK) {
        staging->refused = row;
        return status;
    }
    NIB_TRY(nib__gpu_run(gpu, row, &args, err));
    return nib__gpu_finish(gpu, err); /* the next weight reuses the memory */
}

/* Moves packed weights and bias of `cpu` to the GPU, and everything else into `out`. */
static nib_status move_to_gpu(nib_loaded *out, nib_loaded *cpu, nib_staging *staging,
                              const nib_kernel *packer, nib_err *err)
{
    nib_gpu *gpu = out->gpu;
    out->w = cpu->w;
    out->owned = cpu->owned, out->owned_bytes = cpu->owned_bytes;
    cpu->owned = NULL;
    for (int i = 0; i < cpu->pack_count; i++) {
        void *at = i < out->pack_count ? out->packs[i].at : NULL;
        if (out->in_room && (at == NULL || cpu->packs[i].bytes > out->packs[i].bytes))
            return nib__fail(err, NIB_FAILED,
                             "its packed weight takes %" PRIu64 " bytes, more than planned",
                             cpu->packs[i].bytes);
        nib_status status = ensure_room(gpu, &at, cpu->packs[i].bytes, err);
        if (status == NIB_OK)
            status = packer != NULL
                         ? pack_on_gpu(staging, packer, &out->w, at, err)
                         : nib__gpu_write(gpu, at, cpu->packs[i].at, cpu->packs[i].bytes, err);
        out->packs[i] =
            (nib_pack){.packing = cpu->packs[i].packing, .at = at, .bytes = cpu->packs[i].bytes};
        out->pack_count = i < out->pack_count ? out->pack_count : i + 1;
        NIB_TRY(status);
    }
    void *bias = out->bias, *int_bias = out->int_bias;
    nib_status status = NIB_OK;
    if (cpu->bias != NULL)
        status = upload(gpu, &bias, cpu->bias, bias_bytes(out->w.n, false), err);
    else if (cpu->int_bias != NULL)
        status = upload(gpu, &int_bias, cpu->int_bias, bias_bytes(out->w.n, true), err);
    out->bias = bias, out->int_bias = int_bias;
    return status;
}

nib_status nib__weight_load(nib_loaded *out, const nib_network *net, const nib_layer_plan *plan,
                            size_t site, nib_staging *staging, nib_slab *slab, nib_err *err)
{
    const nib_allocator *a = &net->engine->allocator;
    nib_loaded cpu = {0};
    loading l = {.out = &cpu, .net = net, .plan = plan, .slab = out->gpu == NULL ? slab : NULL};
    nib_status status = load_weight(&l, site, err);
    nib__release(a, l.rows);
    if (status == NIB_OK && out->gpu == NULL) {
        *out = cpu;
    } else {
        if (status == NIB_OK)
            status = move_to_gpu(out, &cpu, staging, plan->pack, err);
        nib__weight_unload(&cpu, a);
    }
    if (status == NIB_OK && plan->pack != NULL)
        release_rows(&l, 0, out->w.n, reads_unpacked(plan));
    if (status != NIB_OK) {
        nib__weight_unload(out, a);
        return nib__fail_in(err, status, net->sites[site].name);
    }
    out->bytes = out->pack_count > 0 ? out->packs[0].bytes : nib__weight_bytes(&out->w);
    return NIB_OK;
}

void nib__weight_unload(nib_loaded *loaded, const nib_allocator *a)
{
    if (loaded->borrowed) {
        *loaded = (nib_loaded){0};
        return;
    }
    for (int i = 0; i < loaded->pack_count; i++)
        if (loaded->gpu != NULL && !loaded->in_room)
            nib__gpu_free(loaded->gpu, loaded->packs[i].at);
        else if (loaded->gpu == NULL && !loaded->packs[i].mapped && !loaded->packs[i].in_slab)
            nib__block_free(loaded->packs[i].at, loaded->packs[i].bytes);
    nib__block_free(loaded->owned, loaded->owned_bytes);
    if (loaded->gpu != NULL && !loaded->in_room) {
        nib__gpu_free(loaded->gpu, loaded->bias);
        nib__gpu_free(loaded->gpu, loaded->int_bias);
    } else if (loaded->gpu == NULL) {
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
