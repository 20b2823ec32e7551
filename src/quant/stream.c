/* SPDX-License-Identifier: Apache-2.0
 *
 * Streams blocks of rows through the pool. Memory is two blocks of codes, the scales of one tensor
 * and a row per worker. Results do not depend on the number of threads: rows are independent, and
 * sums over rows are taken in row order.
 */
#include "rotation.h"
#include "stream.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

enum {
    BLOCK = 8 << 20, /* bytes of codes per block on a device, or of a copied tensor */
    BLOCK_HERE =
        1 << 20, /* smaller on this CPU: one worker alone writes the last block of a tensor */
    GRAIN = 4,   /* rows per task of a worker */
    COPY_GRAIN = 1 << 16, /* elements per task */
};

/* The hashes of the source bytes added so far. */
typedef struct hashing {
    nib_hasher *quick;
    nib_sha256 digest;
} hashing;

static nib_status begin_hashing(hashing *h, nib_err *err)
{
    h->quick = nib__hasher_open();
    nib__sha256_init(&h->digest);
    return h->quick != NULL ? NIB_OK : nib__fail_memory(err, 1024, "a hash");
}

static void add_hashed(hashing *h, const uint8_t *bytes, size_t size)
{
    nib__hasher_add(h->quick, bytes, size);
    nib__sha256_add(&h->digest, bytes, size);
}

static nib_source_hash finish_hashing(hashing *h)
{
    return (nib_source_hash){nib__hasher_finish(h->quick), nib__sha256_finish(&h->digest)};
}

/* A finished block, which one worker hashes and writes while the others continue. */
typedef struct put {
    const nib_checkpoint *checkpoint;
    nib_writer *writer;
    hashing *source_hash;
    size_t place; /* in the writer */
    const uint8_t *bytes, *source;
    size_t size, source_size; /* size 0: nothing to write */
    nib_status status;
    nib_err err;
} put;

static void write_put(put *p)
{
    if (p->size == 0)
        return;
    add_hashed(p->source_hash, p->source, p->source_size);
    p->status = nib__writer_put(p->writer, p->place, p->bytes, p->size, &p->err);
    nib__checkpoint_release(p->checkpoint, p->source, p->source_size);
    p->size = 0;
}

static nib_status check_put(const put *p, nib_err *err)
{
    if (p->status != NIB_OK && err != NULL)
        *err = p->err;
    return p->status;
}

/* A block of rows in work: its position and its buffers. */
typedef struct block {
    const nib_rewrite *rewrite;
    int64_t first;            /* tensor row of rows[0] */
    int64_t row_bytes;        /* of the source */
    float *rows;              /* [threads][2][k] */
    int8_t *codes;            /* [block][k] */
    uint8_t *packed;          /* [block] rows in file layout; NULL: same as codes */
    uint8_t *scales, *zeros;  /* of the whole tensor, [n][groups] */
    float *group_values;      /* [threads][2][groups]: of a row, for layouts in blocks */
    double *signal, *error;   /* [n] */
    double (*objective)[2];   /* [n]: nib_quantized.objective */
    float (*ranges)[2];       /* [threads], for one scale per tensor */
    nib_quant_device *device; /* NULL: this CPU makes the codes */
    float *sent;              /* [block][k] rows sent to a device as f32; NULL: sent as stored */
    double *sums;             /* [block][2] and */
    float *row_ranges;        /* [block][2] and */
    int32_t *failed;          /* [block] from a device: see nib_quant_w */
    bool is_coded;            /* a device made the codes, or ranges, of the block */
    int64_t sending;          /* tensor row of sent[0] */
    nib_err *errs;            /* [threads] */
    int64_t *bad;             /* [threads]: row of errs; INT64_MAX: none */
    put previous;             /* the previous block */
    bool second;              /* codes and packed point to the second of two buffers */
} block;

static const void *source_row(const block *b, int64_t i)
{
    return b->rewrite->from->data + (b->first + i) * b->row_bytes;
}

void nib__fold_row(const nib_fold *fold, int64_t i, float *row, int64_t k, nib_type type)
{
    uint8_t stored[4];
    if (fold->rows == NULL && fold->columns == NULL)
        return;
    const float whole = fold->rows != NULL ? fold->rows[i] : 1;
    for (int64_t j = 0; j < k; j++) {
        row[j] *= fold->columns != NULL ? whole * fold->columns[j] : whole;
        nib__from_f32(stored, type, &row[j], 1);
        nib__to_f32(&row[j], stored, type, 1);
    }
}

/* Reads written row j. */
static void read_row_into(const block *b, int64_t j, float *row)
{
    const nib_rewrite *r = b->rewrite;
    const int64_t from = r->written_rows != NULL ? r->written_rows[j] : j;
    if (r->weight.codes != NULL) /* its rows may be in another order */
        nib__weight_row(&r->weight, from, row);
    else
        nib__to_f32(row, r->from->data + from * b->row_bytes, r->from->type, r->quantizer.k);
    nib__fold_row(&r->layer->fold, from, row, r->quantizer.k, r->quantizer.source);
}

static float *read_row(const block *b, int worker, int64_t i)
{
    float *row = b->rows + 2 * worker * b->rewrite->quantizer.k;
    read_row_into(b, b->first + i, row);
    return row;
}

/* Each worker's first failure has the lowest row that it sees, because rows are handed out in
 * ascending order. */
static void note_failure(block *b, int worker, int64_t i) { b->bad[worker] = b->first + i; }

/* Packs a quantized row into file layout; blocks include their scales. */
static void pack_row(const block *b, int worker, const nib_quantized *row, uint8_t *out)
{
    const nib_rewrite *r = b->rewrite;
    const nib_quantizer *q = &r->quantizer;
    if (r->storage.pieces != NIB_PIECES_BLOCKS) {
        nib__file_layout_row(&r->storage, row->codes, q->k, out);
        return;
    }
    float *scales = b->group_values + 2 * worker * q->groups, *zeros = scales + q->groups;
    nib__to_f32(scales, row->scales, q->scale_type, q->groups);
    if (row->zeros != NULL)
        nib__to_f32(zeros, row->zeros, q->zero_type, q->groups);
    (void)nib__file_layout_blocks(&r->storage, row->codes, scales, zeros, q->k, out);
}

/* Result pointers from row i of the block on. */
static nib_quant_w point_at_results(const block *b, int64_t i)
{
    const nib_quantizer *q = &b->rewrite->quantizer;
    const int64_t at = b->first + i, groups = nib__quantizer_is_one(q) ? 0 : q->groups;
    return (nib_quant_w){
        .q = q,
        .codes = b->codes + i * q->k,
        .scales = b->scales + at * groups * (nib__type_bits(q->scale_type) / 8),
        .zeros =
            b->zeros == NULL ? NULL : b->zeros + at * groups * (nib__type_bits(q->zero_type) / 8)};
}

/* Copies written row j from the codes that a method chose before, and measures them. */
static void take_row(const block *b, int worker, int64_t j, nib_quantized *out)
{
    const nib_rewrite *r = b->rewrite;
    const nib_quantizer *q = &r->quantizer;
    const nib_codes *from = r->layer->codes;
    const int64_t i = r->written_rows != NULL ? r->written_rows[j] : j, k = q->k;
    const int64_t scale_bytes = q->groups * (nib__type_bits(q->scale_type) / 8),
                  zero_bytes = q->groups * (nib__type_bits(q->zero_type) / 8);
    nib_weight w;
    float *row = b->rows + 2 * worker * k, *decoded = row + k;
    memcpy(out->codes, from->codes + i * k, (size_t)k);
    memcpy(out->scales, (const char *)from->scales + i * scale_bytes, (size_t)scale_bytes);
    if (out->zeros != NULL)
        memcpy(out->zeros, (const char *)from->zeros + i * zero_bytes, (size_t)zero_bytes);
    nib__quantizer_describe_weight(&w, q, 1, out->codes, out->scales, out->zeros);
    nib__weight_row(&w, 0, decoded);
    read_row_into(b, j, row);
    for (int64_t c = 0; c < k; c++) {
        const double lost = (double)row[c] - (double)decoded[c];
        out->signal += (double)row[c] * (double)row[c];
        out->error += lost * lost;
    }
}

/* Codes row i, or takes over a device's codes. */
static void code_row(block *b, int worker, int64_t i, nib_quantized *out)
{
    const nib_quantizer *q = &b->rewrite->quantizer;
    nib_status status = NIB_OK;
    if (b->rewrite->layer->codes != NULL) {
        take_row(b, worker, b->first + i, out);
    } else if (!b->is_coded) {
        status = nib__quantizer_quantize_rows(q, read_row(b, worker, i), b->first + i, 1, out,
                                              &b->errs[worker]);
    } else if (b->failed[i] != 0) {
        status = nib__quantizer_fail_row(q, read_row(b, worker, i), b->first + i, b->failed[i],
                                         &b->errs[worker]);
    } else {
        out->signal = b->sums[2 * i];
        out->error = b->sums[2 * i + 1];
    }
    if (status != NIB_OK)
        note_failure(b, worker, i);
}

/* Index GRAIN + i is row i of the block; the first GRAIN indices stand for writing the previous
 * block. */
static void quantize_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    block *b = ctx;
    const nib_rewrite *r = b->rewrite;
    if (begin == 0)
        write_put(&b->previous);
    for (int64_t i = nib__max(begin - GRAIN, 0); i < end - GRAIN && b->bad[worker] == INT64_MAX;
         i++) {
        const nib_quant_w to = point_at_results(b, i);
        nib_quantized out = {.codes = to.codes, .scales = to.scales, .zeros = to.zeros};
        code_row(b, worker, i, &out);
        b->signal[b->first + i] = out.signal;
        b->error[b->first + i] = out.error;
        b->objective[b->first + i][0] = out.objective[0];
        b->objective[b->first + i][1] = out.objective[1];
        if (b->packed != NULL)
            pack_row(b, worker, &out,
                     b->packed + i * nib__file_layout_row_bytes(&r->storage, r->quantizer.k));
    }
}

static void scan_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    block *b = ctx;
    const nib_quantizer *q = &b->rewrite->quantizer;
    for (int64_t i = begin; i < end && b->bad[worker] == INT64_MAX; i++) {
        if (b->is_coded && b->failed[i] == 0) {
            b->ranges[worker][0] = fminf(b->ranges[worker][0], b->row_ranges[2 * i]);
            b->ranges[worker][1] = fmaxf(b->ranges[worker][1], b->row_ranges[2 * i + 1]);
        } else if (nib__quantizer_scan(q, read_row(b, worker, i), b->first + i, 1,
                                       b->ranges[worker], &b->errs[worker]) != NIB_OK) {
            note_failure(b, worker, i);
        }
    }
}

/* Fails with the error of the lowest row, prefixed with the tensor's name. */
static nib_status check_failures(const block *b, int threads, nib_err *err)
{
    char shown[160];
    int worst = 0;
    for (int t = 1; t < threads; t++)
        if (b->bad[t] < b->bad[worst])
            worst = t;
    if (b->bad[worst] == INT64_MAX)
        return NIB_OK;
    const char *name = b->rewrite->from->name;
    if (err != NULL)
        *err = b->errs[worst];
    return nib__fail_in(err, b->errs[worst].status,
                        nib__escape_name(shown, sizeof shown, name, strlen(name)));
}

nib_status nib__stream_progress(nib_stream *s, uint64_t bytes, nib_err *err)
{
    const nib_callbacks *c = s->job->callbacks;
    s->done += bytes;
    if (c == NULL || c->progress == NULL ||
        c->progress(c->ctx, s->job->convert ? "convert" : "quantize", s->done, s->total))
        return NIB_OK;
    return nib__fail(err, NIB_CANCELLED, "cancelled; no output is left");
}

/* ---- copies ---- */

typedef struct copy {
    const uint8_t *from;
    nib_type type;
    int64_t *bad; /* [threads]: lowest element that is not finite */
    put put;      /* the same block; a bad value discards the whole output anyway */
} copy;

/* Index COPY_GRAIN + i is element i; the first COPY_GRAIN indices stand for writing the block. */
static void find_not_finite(void *ctx, int worker, int64_t begin, int64_t end)
{
    copy *c = ctx;
    float values[256];
    const int64_t bytes = nib__type_bits(c->type) / 8, last = end - COPY_GRAIN;
    if (begin == 0)
        write_put(&c->put);
    for (int64_t at = nib__max(begin - COPY_GRAIN, 0); at < last && c->bad[worker] == INT64_MAX;
         at += (int64_t)COUNT(values)) {
        const int64_t some = nib__min((int64_t)COUNT(values), last - at);
        nib__to_f32(values, c->from + at * bytes, c->type, some);
        if (nib__all_finite(values, some))
            continue;
        for (int64_t i = some; i-- > 0;)
            if (!isfinite(values[i]))
                c->bad[worker] = at + i;
    }
}

/* Kept weights are checked too: report a NaN now, not when text is generated. */
static nib_status check_finite(nib_stream *s, const nib_tensor *from, uint64_t at, int64_t count,
                               copy *c, nib_err *err)
{
    char shown[160];
    const int threads = nib__pool_threads(s->job->pool);
    const int64_t width = nib__type_bits(from->type) / 8;
    int64_t first = INT64_MAX;
    c->from = from->data + at;
    c->type = from->type;
    for (int t = 0; t < threads; t++)
        c->bad[t] = INT64_MAX;
    nib__pool_run(s->job->pool, COPY_GRAIN + count, COPY_GRAIN, false, find_not_finite, c);
    for (int t = 0; t < threads; t++)
        first = nib__min(first, c->bad[t]);
    if (first == INT64_MAX)
        return NIB_OK;
    return nib__fail(err, NIB_BAD_INPUT,
                     "%s: the value at index %" PRId64
                     " is not finite, so no result would be finite",
                     nib__escape_name(shown, sizeof shown, from->name, strlen(from->name)),
                     (int64_t)(at / (uint64_t)width) + first);
}

/* Buffers for casting one block to another float type. */
typedef struct cast {
    float *from, *to; /* [CAST] */
    void *out;        /* [CAST] of the new type */
    double signal, error;
} cast;

enum { CAST = 1 << 18 }; /* elements at a time */

static bool allocate_cast(cast *c, nib_arena *arena)
{
    c->from = nib__arena_take(arena, CAST, sizeof *c->from);
    c->to = nib__arena_take(arena, CAST, sizeof *c->to);
    c->out = nib__arena_take(arena, CAST, sizeof(float));
    return c->from != NULL && c->to != NULL && c->out != NULL;
}

static nib_status fail_too_large(const nib_stream *s, const nib_rewrite *r, double value,
                                 uint64_t index, nib_err *err)
{
    char shown[160];
    const char *name = r->from->name;
    return nib__fail(
        err, NIB_BAD_INPUT,
        "%s: the value %.9g at index %" PRIu64 " is too large for %s; give bf16 or f32%s",
        nib__escape_name(shown, sizeof shown, name, strlen(name)), value, index,
        nib__type_name(r->cast), s->job->convert ? "" : ", or keep the layer with --skip");
}

static nib_status put_cast(nib_stream *s, const nib_rewrite *r, cast *c, uint64_t at, size_t bytes,
                           nib_err *err)
{
    const size_t width = (size_t)nib__type_bits(r->from->type) / 8;
    const size_t to_width = (size_t)nib__type_bits(r->cast) / 8;
    for (size_t done = 0; done < bytes; done += CAST * width) {
        const size_t left = (bytes - done) / width, some = left < CAST ? left : CAST;
        nib__to_f32(c->from, r->from->data + at + done, r->from->type, (int64_t)some);
        nib__from_f32(c->out, r->cast, c->from, (int64_t)some);
        nib__to_f32(c->to, c->out, r->cast, (int64_t)some);
        for (size_t i = 0; i < some; i++) {
            const double x = (double)c->from[i], e = x - (double)c->to[i];
            if (!isfinite(c->to[i]))
                return fail_too_large(s, r, x, (at + done) / width + i, err);
            c->signal += x * x;
            c->error += e * e;
        }
        NIB_TRY(nib__writer_put(s->writer, r->copy, c->out, some * to_width, err));
    }
    return NIB_OK;
}

/* change: largest relative change of a value. */
static void report_f64(nib_stream *s, const nib_rewrite *r, double change, const char *reason)
{
    nib_ledger_tensor *line =
        nib__ledger_add_tensor(s->ledger, nib__ledger_text(s->ledger, "%s", r->from->name));
    if (line == NULL)
        return;
    line->asked = "f64";
    line->done = "f32";
    line->max_rel_change = change;
    line->reason = reason;
}

/* Reports the effect of a cast on a layer's weight, or on a vector for which the format has no
 * f64. */
static void report_cast(nib_stream *s, const nib_rewrite *r, const cast *c)
{
    const nib_tensor *from = r->from;
    const double rounded = from->type == NIB_TYPE_F64
                               ? nib__checkpoint_f64_change(s->job->checkpoint, from->data,
                                                            (int64_t)(from->bytes / sizeof(double)))
                               : 0;
    if (r->line == SIZE_MAX) {
        if (from->type == NIB_TYPE_F64)
            report_f64(s, r, rounded, "the format's vectors are f32");
        return;
    }
    nib_ledger_layer *line = &s->ledger->layers[r->line];
    line->sqnr_db = nib__sqnr_db(c->signal, c->error);
    if (!s->job->convert)
        return;
    line->kept = c->error > 0 || rounded > 0 ? "lossy" : "exact after a change of layout";
    line->sqnr_db = c->error > 0 ? line->sqnr_db : (double)NAN;
}

static nib_status copy_blocks(nib_stream *s, const nib_rewrite *r, cast *to, copy *c, nib_err *err)
{
    const nib_tensor *from = r->from;
    for (uint64_t at = 0; at < from->bytes; at += BLOCK) {
        const uint64_t left = from->bytes - at;
        const size_t some = left < BLOCK ? (size_t)left : BLOCK;
        c->put.bytes = c->put.source = from->data + at;
        c->put.source_size = some;
        c->put.size = r->cast == NIB_TYPE_NONE ? some : 0;
        if (nib__type_is_float(from->type))
            NIB_TRY(check_finite(s, from, at, (int64_t)some / (nib__type_bits(from->type) / 8), c,
                                 err));
        write_put(&c->put); /* unless a worker has written it */
        NIB_TRY(check_put(&c->put, err));
        if (r->cast != NIB_TYPE_NONE) {
            add_hashed(c->put.source_hash, from->data + at, some);
            NIB_TRY(put_cast(s, r, to, at, some, err));
        }
        /* again: other workers may have read pages after the writing worker released them */
        nib__checkpoint_release(s->job->checkpoint, from->data + at, some);
        NIB_TRY(nib__stream_progress(s, some, err));
    }
    if (r->cast != NIB_TYPE_NONE)
        report_cast(s, r, to);
    return NIB_OK;
}

static nib_status run_copy(nib_stream *s, const nib_rewrite *r, nib_source_hash *hash, nib_err *err)
{
    nib_arena arena;
    hashing source;
    cast to = {0};
    copy c = {.put = {.checkpoint = s->job->checkpoint,
                      .writer = s->writer,
                      .source_hash = &source,
                      .place = r->copy}};
    NIB_TRY(begin_hashing(&source, err));
    nib__arena_init(&arena, s->job->allocator, 0);
    c.bad = nib__arena_take(&arena, (uint64_t)nib__pool_threads(s->job->pool), sizeof *c.bad);
    nib_status status = NIB_OK;
    if (c.bad == NULL || (r->cast != NIB_TYPE_NONE && !allocate_cast(&to, &arena)))
        status = nib__fail_memory(err, BLOCK, r->from->name);
    if (status == NIB_OK)
        status = copy_blocks(s, r, &to, &c, err);
    *hash = finish_hashing(&source);
    nib__arena_free(&arena);
    return status;
}

/* ---- scales and zeros, once the whole tensor is done ---- */

nib_status nib__stream_put_values(nib_stream *s, const nib_rewrite *r, const nib_output_part *part,
                                  nib_order order, size_t place, const void *values, nib_err *err)
{
    const bool one = r->stored.scheme.group == NIB_GROUP_TENSOR;
    const int64_t n = one ? 1 : r->stored.n,
                  groups = nib__scheme_groups(&r->stored.scheme, r->stored.k);
    const size_t bytes = (size_t)nib__output_part_bytes(part);
    if (values != NULL && order == NIB_ORDER_ROWS)
        return nib__writer_put(s->writer, place, values, bytes, err);
    uint8_t *ordered = nib__calloc(s->job->allocator, bytes, 1);
    if (ordered == NULL)
        return nib__fail_memory(err, bytes, r->from->name);
    if (values != NULL)
        nib__file_layout_values(order, r->storage.bits, part, ordered, values, n, groups);
    const nib_status status = nib__writer_put(s->writer, place, ordered, bytes, err);
    nib__release(s->job->allocator, ordered);
    return status;
}

float nib__rewrite_tensor_scale(const nib_rewrite *r)
{
    const nib_weight *w = &r->weight;
    if (r->kind == NIB_REWRITE_QUANTIZE)
        return r->quantizer.tensor_scale;
    if (w->tensor_scale == 0 || w->tensor_divides == r->stored.tensor_divides)
        return w->tensor_scale;
    return 1 / w->tensor_scale;
}

/* Writes act-order as the input of each column, or the group of each input. */
static nib_status put_inputs(nib_stream *s, const nib_rewrite *r, nib_err *err)
{
    const int32_t *order = r->weight.order;
    const size_t k = (size_t)r->stored.k, bytes = k * sizeof *order;
    if (!r->storage.input_groups)
        return nib__writer_put(s->writer, r->inputs, order, bytes, err);
    int32_t *groups = nib__calloc(s->job->allocator, k, sizeof *groups);
    if (groups == NULL)
        return nib__fail_memory(err, bytes, r->from->name);
    for (size_t j = 0; j < k; j++)
        groups[order[j]] = (int32_t)((int64_t)j / r->stored.scheme.group);
    const nib_status status = nib__writer_put(s->writer, r->inputs, groups, bytes, err);
    nib__release(s->job->allocator, groups);
    return status;
}

nib_status nib__stream_put_extras(nib_stream *s, const nib_rewrite *r, nib_err *err)
{
    const int64_t size[2] = {r->stored.n, r->stored.k};
    const float tensor = nib__rewrite_tensor_scale(r);
    const float *scale = r->kind == NIB_REWRITE_RECODE ? r->weight.act_scale : &r->layer->act_scale;
    const int32_t *zero = r->kind == NIB_REWRITE_RECODE ? r->weight.act_zero : &r->layer->act_zero;
    if (r->tensor != SIZE_MAX)
        NIB_TRY(nib__writer_put(s->writer, r->tensor, &tensor, sizeof tensor, err));
    if (r->size != SIZE_MAX)
        NIB_TRY(nib__writer_put(s->writer, r->size, size, sizeof size, err));
    if (r->inputs != SIZE_MAX)
        NIB_TRY(put_inputs(s, r, err));
    if (r->act_scale != SIZE_MAX)
        NIB_TRY(nib__writer_put(s->writer, r->act_scale, scale, sizeof *scale, err));
    if (r->act_zero != SIZE_MAX)
        NIB_TRY(nib__writer_put(s->writer, r->act_zero, zero, sizeof *zero, err));
    return NIB_OK;
}

static nib_status put_scales(nib_stream *s, const nib_rewrite *r, const block *b, nib_err *err)
{
    uint8_t scale[8] = {0}, zero[8] = {0};
    const uint8_t *scales = b->scales, *zeros = b->zeros;
    if (nib__quantizer_is_one(&r->quantizer)) {
        nib__quantizer_store_tensor_scale(&r->quantizer, scale, zero);
        scales = scale;
        zeros = zeros == NULL ? NULL : zero;
    }
    if (r->scales != SIZE_MAX)
        NIB_TRY(nib__stream_put_values(s, r, &r->storage.scales, r->storage.order, r->scales,
                                       scales, err));
    if (r->zeros != SIZE_MAX)
        NIB_TRY(nib__stream_put_values(s, r, &r->storage.zeros, r->storage.zero_order, r->zeros,
                                       zeros, err));
    if (r->bias != SIZE_MAX)
        NIB_TRY(nib__bias_run_with(s, r, scales, err));
    return nib__stream_put_extras(s, r, err);
}

/* ---- a quantized tensor ---- */

static bool allocate_buffers(nib_arena *arena, block *b, int64_t rows, int threads)
{
    const nib_rewrite *r = b->rewrite;
    const nib_quantizer *q = &r->quantizer;
    const size_t n = (size_t)r->from->shape[0], k = (size_t)q->k, t = (size_t)threads;
    const size_t count = nib__quantizer_is_one(q) ? 1 : n * (size_t)q->groups;
    b->rows = nib__arena_take(arena, 2 * t * k, sizeof *b->rows);
    b->codes = nib__arena_take(arena, 2 * (uint64_t)rows * k, 1);
    const bool packed = r->storage.pieces != NIB_PIECES_BYTES;
    const size_t row = (size_t)nib__file_layout_row_bytes(&r->storage, q->k);
    b->packed = packed ? nib__arena_take(arena, 2 * (uint64_t)rows * row, 1) : NULL;
    b->scales = nib__arena_take(arena, count, (uint64_t)nib__type_bits(q->scale_type) / 8);
    b->zeros = q->zero_type == NIB_TYPE_NONE
                   ? NULL
                   : nib__arena_take(arena, count, (uint64_t)nib__type_bits(q->zero_type) / 8);
    b->group_values = nib__arena_take(arena, 2 * t * (uint64_t)q->groups, sizeof *b->group_values);
    b->signal = nib__arena_take(arena, n, sizeof *b->signal);
    b->error = nib__arena_take(arena, n, sizeof *b->error);
    b->objective = nib__arena_take(arena, n, sizeof *b->objective);
    b->ranges = nib__arena_take(arena, t, sizeof *b->ranges);
    b->errs = nib__arena_take(arena, t, sizeof *b->errs);
    b->bad = nib__arena_take(arena, t, sizeof *b->bad);
    for (int i = 0; i < threads && b->bad != NULL; i++)
        b->bad[i] = INT64_MAX;
    return b->rows && b->codes && (b->packed || !packed) && b->scales && b->group_values &&
           b->signal && b->error && b->objective && b->ranges && b->errs && b->bad &&
           (b->zeros || q->zero_type == NIB_TYPE_NONE);
}

/* ---- a device ---- */

int64_t nib__stream_block_rows(const nib_rewrite *r)
{
    return nib__max(1, nib__min(r->from->shape[0], BLOCK / r->quantizer.k));
}

/* True if rows go to the device without being read one by one first. */
static bool is_sent_as_stored(const nib_rewrite *r)
{
    const nib_type type = r->from->type;
    return r->weight.codes == NULL && r->written_rows == NULL &&
           (type == NIB_TYPE_F32 || type == NIB_TYPE_BF16 || type == NIB_TYPE_F16);
}

nib_type nib__stream_sends(const nib_rewrite *r)
{
    return is_sent_as_stored(r) ? r->from->type : NIB_TYPE_F32;
}

static bool allocate_device_buffers(nib_arena *arena, block *b, int64_t rows)
{
    const size_t n = (size_t)rows, k = (size_t)b->rewrite->quantizer.k;
    const bool reads = !is_sent_as_stored(b->rewrite);
    b->sent = reads ? nib__arena_take(arena, n * k, sizeof *b->sent) : NULL;
    b->sums = nib__arena_take(arena, 2 * n, sizeof *b->sums);
    b->row_ranges = nib__arena_take(arena, 2 * n, sizeof *b->row_ranges);
    b->failed = nib__arena_take(arena, n, sizeof *b->failed);
    return (b->sent != NULL || !reads) && b->sums && b->row_ranges && b->failed;
}

/* Reads rows of the block at b->sending for the device. */
static void read_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    const block *b = ctx;
    (void)worker;
    for (int64_t i = begin; i < end; i++)
        read_row_into(b, b->sending + i, b->sent + i * b->rewrite->quantizer.k);
}

/* The device failed: the CPU takes over if allowed, else the run ends. */
static nib_status handle_lost_device(nib_stream *s, block *b, const nib_err *why, nib_err *err)
{
    b->device = NULL;
    return nib__quant_device_lost(s->job->device, b->rewrite->from->name, why, s->ledger, err);
}

/* Starts the rows from `first` on the device and returns at once. */
static nib_status start_block(nib_stream *s, block *b, int64_t first, int64_t count, bool scans,
                              nib_err *err)
{
    nib_err why = {NIB_OK, ""};
    nib_quant_w a = {.q = &b->rewrite->quantizer,
                     .type = nib__stream_sends(b->rewrite),
                     .count = count,
                     .codes = scans ? NULL : b->codes};
    if (b->device == NULL || count <= 0)
        return NIB_OK;
    b->sending = first;
    if (b->sent != NULL)
        nib__pool_run(s->job->pool, count, GRAIN, false, read_rows, b);
    a.rows = b->sent != NULL ? (const void *)b->sent
                             : (const void *)(b->rewrite->from->data + first * b->row_bytes);
    return nib__quant_device_start(b->device, &a, &why) == NIB_OK
               ? NIB_OK
               : handle_lost_device(s, b, &why, err);
}

/* Fetches the device's results for the block at b->first. */
static nib_status finish_block(nib_stream *s, block *b, int64_t count, bool scans, nib_err *err)
{
    nib_err why = {NIB_OK, ""};
    nib_quant_w to = point_at_results(b, 0);
    b->is_coded = false;
    if (b->device == NULL)
        return NIB_OK;
    to.type = nib__stream_sends(b->rewrite);
    to.count = count;
    to.sums = b->sums, to.ranges = b->row_ranges, to.failed = b->failed;
    if (scans)
        to.codes = NULL;
    if (nib__quant_device_finish(b->device, &to, &why) != NIB_OK)
        return handle_lost_device(s, b, &why, err);
    b->is_coded = true;
    return NIB_OK;
}

/* Finds the range of the whole tensor, for one scale per tensor. */
static nib_status scan(nib_stream *s, nib_rewrite *r, block *b, int64_t rows, nib_err *err)
{
    const int threads = nib__pool_threads(s->job->pool);
    const int64_t n = r->from->shape[0];
    float range[2] = {0, 0};
    for (b->first = 0; b->first < n; b->first += rows) {
        const int64_t some = nib__min(rows, n - b->first);
        NIB_TRY(start_block(s, b, b->first, some, true, err));
        NIB_TRY(finish_block(s, b, some, true, err));
        nib__pool_run(s->job->pool, some, GRAIN, false, scan_rows, b);
        NIB_TRY(check_failures(b, threads, err));
        nib__checkpoint_release(s->job->checkpoint, source_row(b, 0),
                                (uint64_t)(some * b->row_bytes));
        NIB_TRY(nib__stream_progress(s, (uint64_t)(some * b->row_bytes), err));
    }
    for (int t = 0; t < threads; t++) {
        range[0] = fminf(range[0], b->ranges[t][0]);
        range[1] = fmaxf(range[1], b->ranges[t][1]);
    }
    return nib__quantizer_set_range(&r->quantizer, range, err);
}

/* Queues the block to be written while the next one is quantized, and switches to the other
 * buffers. */
static void queue_block(const nib_rewrite *r, block *b, int64_t rows, int64_t capacity)
{
    const int64_t k = r->quantizer.k, packed = nib__file_layout_row_bytes(&r->storage, k);
    b->previous.bytes = b->packed != NULL ? b->packed : (const uint8_t *)b->codes;
    b->previous.size = (size_t)(rows * packed);
    b->previous.source = source_row(b, 0);
    b->previous.source_size = (size_t)(rows * b->row_bytes);
    b->codes += b->second ? -capacity * k : capacity * k;
    if (b->packed != NULL)
        b->packed += b->second ? -capacity * packed : capacity * packed;
    b->second = !b->second;
}

static nib_status quantize_blocks(nib_stream *s, const nib_rewrite *r, block *b, int64_t rows,
                                  double *change, nib_err *err)
{
    const int64_t n = r->from->shape[0];
    NIB_TRY(start_block(s, b, 0, nib__min(rows, n), false, err));
    for (b->first = 0; b->first < n; b->first += rows) {
        const int64_t some = nib__min(rows, n - b->first), next = b->first + rows;
        NIB_TRY(finish_block(s, b, some, false, err));
        NIB_TRY(start_block(s, b, next, nib__min(rows, n - next), false, err));
        nib__pool_run(s->job->pool, GRAIN + some, GRAIN, false, quantize_rows, b);
        NIB_TRY(check_put(&b->previous, err));
        NIB_TRY(check_failures(b, nib__pool_threads(s->job->pool), err));
        if (r->from->type == NIB_TYPE_F64)
            *change = fmax(*change,
                           nib__measure_f64_to_f32_error(source_row(b, 0), some * r->quantizer.k));
        queue_block(r, b, some, rows);
        NIB_TRY(nib__stream_progress(s, (uint64_t)(some * b->row_bytes), err));
    }
    if (b->device != NULL)
        nib__quant_device_count(b->device);
    write_put(&b->previous);
    return check_put(&b->previous, err);
}

static nib_status run_quantize(nib_stream *s, nib_rewrite *r, block *b, nib_arena *arena,
                               nib_err *err)
{
    const int64_t n = r->from->shape[0], k = r->quantizer.k;
    int64_t rows = nib__stream_block_rows(r);
    double signal = 0, error = 0, change = 0, objective[2] = {0, 0};
    const nib_quant_device *device = s->job->device;
    b->device = device != NULL && device->gpu != NULL ? s->job->device : NULL;
    if (b->device == NULL)
        rows = nib__max(1, nib__min(n, BLOCK_HERE / k));
    if (!allocate_buffers(arena, b, rows, nib__pool_threads(s->job->pool)) ||
        (b->device != NULL && !allocate_device_buffers(arena, b, rows)))
        return nib__fail_memory(err, (uint64_t)(rows * k), r->from->name);
    if (r->layer->codes != NULL)
        r->quantizer.tensor_scale = r->layer->codes->tensor_scale;
    else if (nib__quantizer_needs_scan(&r->quantizer))
        NIB_TRY(scan(s, r, b, rows, err));
    NIB_TRY(quantize_blocks(s, r, b, rows, &change, err));
    for (int64_t i = 0; i < n; i++) {
        signal += b->signal[i];
        error += b->error[i];
        objective[0] += b->objective[i][0];
        objective[1] += b->objective[i][1];
    }
    NIB_TRY(put_scales(s, r, b, err));
    if (r->layer->codes != NULL)
        memcpy(objective, r->layer->codes->objective, sizeof objective);
    if (r->layer->objective != NULL)
        memcpy(objective, r->layer->objective, sizeof objective);
    if (r->line != SIZE_MAX) {
        nib_ledger_layer *line = &s->ledger->layers[r->line];
        line->sqnr_db = nib__sqnr_db(signal, error);
        memcpy(line->objective, objective, sizeof objective);
    }
    if (r->from->type == NIB_TYPE_F64)
        report_f64(s, r, change, "quantized from its f32 values");
    return NIB_OK;
}

/* Hashes a tensor that is not read in blocks. Releases its pages even if a weight is read from it
 * next, because an embedding can exceed the memory that a conversion may hold. */
static nib_status run_hash(const nib_stream *s, const nib_rewrite *r, nib_source_hash *hash,
                           nib_err *err)
{
    const nib_tensor *from = r->from;
    hashing source;
    NIB_TRY(begin_hashing(&source, err));
    const uint64_t span = nib__tensor_span(from);
    for (uint64_t at = 0; at < span; at += BLOCK) {
        const uint64_t left = span - at, some = left < BLOCK ? left : BLOCK;
        add_hashed(&source, from->data + at, (size_t)some);
        nib__checkpoint_release(s->job->checkpoint, from->data + at, some);
    }
    *hash = finish_hashing(&source);
    return NIB_OK;
}

/* Quantizes and hashes a tensor. Rows of a view with gaps are hashed with what is between them. */
static nib_status quantize_hashed(nib_stream *s, const nib_rewrite *rewrite, nib_source_hash *hash,
                                  nib_err *err)
{
    nib_rewrite r = *rewrite; /* a copy: the quantizer gets the tensor's range */
    hashing source;
    block b = {.rewrite = &r,
               .row_bytes = r.quantizer.k * (nib__type_bits(r.from->type) / 8),
               .previous = {.checkpoint = s->job->checkpoint,
                            .writer = s->writer,
                            .source_hash = &source,
                            .place = r.codes}};
    nib_arena arena;
    NIB_TRY(begin_hashing(&source, err));
    nib__arena_init(&arena, s->job->allocator, 0);
    const nib_status status = run_quantize(s, &r, &b, &arena, err);
    *hash = finish_hashing(&source);
    nib__arena_free(&arena);
    if (status == NIB_OK && nib__tensor_span(r.from) != r.from->bytes)
        return run_hash(s, &r, hash, err);
    return status;
}

static nib_status run_rewrite(nib_stream *s, const nib_rewrite *rewrite, nib_source_hash *hash,
                              nib_err *err)
{
    if (rewrite->kind == NIB_REWRITE_COPY)
        return run_copy(s, rewrite, hash, err);
    if (rewrite->kind != NIB_REWRITE_QUANTIZE)
        NIB_TRY(run_hash(s, rewrite, hash, err));
    if (rewrite->kind == NIB_REWRITE_HASH)
        return nib__stream_progress(s, rewrite->from->bytes, err);
    if (rewrite->kind == NIB_REWRITE_RECODE)
        return nib__recode_run(s, rewrite, err);
    if (rewrite->kind == NIB_REWRITE_BIAS)
        return nib__bias_run(s, rewrite, err);
    return quantize_hashed(s, rewrite, hash, err);
}

/* Runs a rewrite on what a method makes of its weight. */
static nib_status run_turned(nib_stream *s, const nib_rewrite *rewrite, nib_source_hash *hash,
                             nib_err *err)
{
    const nib_turn *turn = rewrite->layer->turn;
    const uint64_t bytes = (uint64_t)turn->from->n * (uint64_t)turn->from->k * sizeof(float);
    nib_rewrite r = *rewrite;
    float *values = nib__block_take(bytes);
    if (values == NULL)
        return nib__fail_memory(err, bytes, r.from->name);
    nib_status status = nib__turn_weight(values, turn, s->job->pool, s->job->allocator, err);
    nib__turn_describe(&r.weight, turn, values);
    if (status == NIB_OK)
        status = run_rewrite(s, &r, hash, err);
    nib__block_free(values, bytes);
    return status;
}

nib_status nib__stream_run(nib_stream *s, const nib_rewrite *rewrite, nib_source_hash *hash,
                           nib_err *err)
{
    const bool is_weight =
        rewrite->kind == NIB_REWRITE_QUANTIZE || rewrite->kind == NIB_REWRITE_RECODE;
    const bool turns = is_weight && rewrite->layer->turn != NULL;
    return turns ? run_turned(s, rewrite, hash, err) : run_rewrite(s, rewrite, hash, err);
}

uint64_t nib__stream_cost(const nib_rewrite *r)
{
    const bool twice = r->kind == NIB_REWRITE_QUANTIZE && nib__quantizer_needs_scan(&r->quantizer);
    return r->from->bytes * (twice ? 2 : 1);
}
