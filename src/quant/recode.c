/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes one weight in another dialect, by blocks of rows. Codes stay as they are, and scales and
 * zeros too unless their new type cannot hold them; or all becomes floats. Changes are measured
 * while writing: signal and error of the dequantized groups that differ.
 */
#include "stream.h"

#include <inttypes.h>
#include <math.h>

enum {
    BLOCK = 4 << 20, /* bytes of written rows per block */
    GRAIN = 16,      /* rows per task of a worker */
};

typedef struct recode {
    const nib_rewrite *rewrite;
    int64_t first;           /* first row of the block */
    int64_t groups;          /* written scales per row; 0: one for the tensor, or none */
    int64_t scale_rows;      /* written rows that share scales */
    int64_t row_bytes;       /* of the written codes */
    uint8_t *rows;           /* [block][row_bytes] */
    int8_t *codes;           /* [threads][2][k]: a row, and the row in input order */
    float *values;           /* [threads][2][k]: a row before and after */
    uint8_t *scales, *zeros; /* [ceil(n/scale_rows)][groups], written types, plain order */
    double *signal, *error;  /* [n] */
    nib_err *errs;           /* [threads] */
    int64_t *bad;            /* [threads]: the first row that failed; INT64_MAX: none */
} recode;

/* The row of the weight that is written as row j. */
static int64_t source_row(const nib_rewrite *r, int64_t j)
{
    return r->written_rows != NULL ? r->written_rows[j] : j;
}

/* ---- scales and zeros ---- */

/* Writes a zero in its stored type, an integer or a float of the same value. */
static void write_zero(const nib_rewrite *r, int64_t i, int64_t g, uint8_t *to)
{
    const nib_type type = r->stored.zero_type;
    if (type == NIB_TYPE_I8) {
        const int8_t zero = (int8_t)nib__weight_int_zero(&r->weight, i, g);
        memcpy(to, &zero, 1);
    } else {
        const float zero = nib__weight_zero(&r->weight, i, g);
        nib__from_f32(to, type, &zero, 1);
    }
}

/* Writes scale and zero of group g of row i; true if both are unchanged. */
static bool write_group(const nib_rewrite *r, int64_t i, int64_t g, uint8_t *scale, uint8_t *zero,
                        float after[2])
{
    const nib_weight *w = &r->weight;
    const float before = nib__weight_scale(w, i, g), group = nib__weight_group_scale(w, i, g);
    const float tensor = r->tensor == SIZE_MAX ? 0 : nib__rewrite_tensor_scale(r);
    nib__from_f32(scale, r->stored.scale_type, r->tensor == SIZE_MAX ? &before : &group, 1);
    nib__to_f32(&after[0], scale, r->stored.scale_type, 1);
    if (tensor != 0)
        after[0] = r->stored.tensor_divides ? after[0] / tensor : after[0] * tensor;
    after[1] = 0;
    if (w->scheme.zero == NIB_ZERO_NONE)
        return after[0] == before;
    write_zero(r, i, g, zero);
    nib__to_f32(&after[1], zero, r->stored.zero_type, 1);
    return after[0] == before && after[1] == nib__weight_zero(w, i, g);
}

/* Fails if the new type cannot hold a scale or zero, which would turn the whole group into
 * infinities. */
static void check_group(recode *c, int worker, int64_t i, int64_t g, const float after[2])
{
    const nib_rewrite *r = c->rewrite;
    if ((isfinite(after[0]) && isfinite(after[1])) || c->bad[worker] != INT64_MAX)
        return;
    c->bad[worker] = i;
    nib__fail(&c->errs[worker], NIB_NOT_AS_ASKED,
              "row %" PRId64 ", group %" PRId64
              " has scale %.9g and zero point %.9g, beyond what %s holds; --format nibble holds "
              "them",
              i, g, (double)nib__weight_scale(&r->weight, i, g),
              (double)nib__weight_zero(&r->weight, i, g), nib__type_name(r->stored.scale_type));
}

/* Adds signal and error of a group with a changed scale or zero. */
static void measure_group(recode *c, int64_t j, int64_t g, const float after[2])
{
    const nib_weight *w = &c->rewrite->weight;
    const int64_t i = source_row(c->rewrite, j);
    const int64_t size = nib__scheme_group_size(&w->scheme, w->k), k0 = g * size;
    const float scale = nib__weight_scale(w, i, g), zero = nib__weight_zero(w, i, g);
    int8_t codes[256];
    for (int64_t at = k0; at < nib__min(k0 + size, w->k); at += (int64_t)sizeof codes) {
        const int64_t some = nib__min((int64_t)sizeof codes, nib__min(k0 + size, w->k) - at);
        nib__weight_codes(w, i, at, some, codes);
        for (int64_t e = 0; e < some; e++) {
            const double x = (double)nib__weight_value(w, codes[e], scale, zero);
            const double y = (double)nib__weight_value(w, codes[e], after[0], after[1]);
            c->signal[j] += x * x;
            c->error[j] += (x - y) * (x - y);
        }
    }
}

/* ---- rows ---- */

/* Whether the source's blocks are written as they are. */
static bool keeps_blocks(const nib_rewrite *r)
{
    return r->storage.pieces == NIB_PIECES_BLOCKS &&
           nib__weight_block_type(&r->weight) == r->storage.codes.type;
}

/* Writes a row in blocks, which include their scales. */
static void write_block_row(recode *c, int worker, int64_t j)
{
    const nib_rewrite *r = c->rewrite;
    const nib_weight *w = &r->weight;
    const int64_t k = r->stored.k, i = source_row(r, j), groups = nib__scheme_groups(&w->scheme, k);
    int8_t *codes = c->codes + 2 * worker * k;
    float *scales = c->values + 2 * worker * k, *zeros = scales + k;
    uint8_t *to = c->rows + (j - c->first) * c->row_bytes;
    if (keeps_blocks(r)) {
        memcpy(to, nib__weight_block_row(w, i), (size_t)c->row_bytes);
        return;
    }
    nib__weight_codes(w, i, 0, k, codes);
    for (int64_t g = 0; g < groups; g++) {
        scales[g] = nib__weight_scale(w, i, g);
        zeros[g] = nib__weight_zero(w, i, g);
    }
    if (nib__file_layout_blocks(&r->storage, codes, scales, zeros, k, to))
        return;
    for (int64_t g = 0; g < groups; g++) {
        const float after[2] = {scales[g], zeros[g]};
        check_group(c, worker, i, g, after);
        measure_group(c, j, g, after);
    }
}

/* Reorders codes for a format that stores the group of each input. codes has room for another k at
 * its end. */
static const int8_t *order_by_input(const nib_rewrite *r, int8_t *codes)
{
    const int64_t k = r->stored.k;
    if (!r->storage.input_groups)
        return codes;
    for (int64_t at = 0; at < k; at++)
        codes[k + r->weight.order[at]] = codes[at];
    return codes + k;
}

static void write_code_row(recode *c, int worker, int64_t j)
{
    const nib_rewrite *r = c->rewrite;
    const int64_t k = r->stored.k, i = source_row(r, j);
    int8_t *codes = c->codes + 2 * worker * k;
    uint8_t again[16]; /* scratch: the first of the rows that share them writes the scales */
    const bool first = j % c->scale_rows == 0;
    const size_t scale_bytes = (size_t)nib__type_bits(r->stored.scale_type) / 8,
                 zero_bytes = (size_t)nib__type_bits(r->stored.zero_type) / 8;
    nib__weight_codes(&r->weight, i, 0, k, codes);
    nib__file_layout_row(&r->storage, order_by_input(r, codes), k,
                         c->rows + (j - c->first) * c->row_bytes);
    for (int64_t g = 0; g < c->groups; g++) {
        const size_t at = (size_t)(j / c->scale_rows * c->groups + g);
        float after[2];
        if (write_group(r, i, g, first ? c->scales + at * scale_bytes : again,
                        first ? c->zeros + at * zero_bytes : again + 8, after))
            continue;
        check_group(c, worker, i, g, after);
        measure_group(c, j, g, after);
    }
}

/* Writes a row as floats, bit for bit if its type stays. */
static void write_float_row(recode *c, int worker, int64_t row)
{
    const nib_rewrite *r = c->rewrite;
    const int64_t k = r->stored.k, i = source_row(r, row);
    const nib_type type = r->storage.codes.type;
    uint8_t *to = c->rows + (row - c->first) * c->row_bytes;
    float *before = c->values + 2 * worker * k, *after = before + k;
    if (nib__float_type(r->weight.scheme.code) == type) {
        nib__weight_floats(&r->weight, i, 0, k, to);
        return;
    }
    nib__weight_row(&r->weight, i, before);
    nib__from_f32(to, type, before, k);
    nib__to_f32(after, to, type, k);
    for (int64_t j = 0; j < k; j++) {
        const double x = (double)before[j], e = x - (double)after[j];
        c->signal[row] += x * x;
        c->error[row] += e * e;
        if (!isfinite(after[j]) && c->bad[worker] == INT64_MAX) {
            c->bad[worker] = i;
            nib__fail(&c->errs[worker], NIB_BAD_INPUT,
                      "row %" PRId64 ", column %" PRId64
                      " is %.9g, too large for %s; ask for bf16 or f32",
                      i, j, x, nib__type_name(type));
        }
    }
}

static void recode_rows(void *ctx, int worker, int64_t begin, int64_t end)
{
    recode *c = ctx;
    const nib_rewrite *r = c->rewrite;
    for (int64_t j = c->first + begin; j < c->first + end && c->bad[worker] == INT64_MAX; j++) {
        if (nib__weight_check_rows(&r->weight, source_row(r, j), 1, &c->errs[worker]) != NIB_OK)
            c->bad[worker] = source_row(r, j);
        else if (r->storage.pieces == NIB_PIECES_FLOATS)
            write_float_row(c, worker, j);
        else if (r->storage.pieces == NIB_PIECES_BLOCKS)
            write_block_row(c, worker, j);
        else
            write_code_row(c, worker, j);
    }
}

static nib_status check_failures(const recode *c, int threads, nib_err *err)
{
    char shown[160];
    int worst = 0;
    for (int t = 1; t < threads; t++)
        if (c->bad[t] < c->bad[worst])
            worst = t;
    if (c->bad[worst] == INT64_MAX)
        return NIB_OK;
    const char *name = c->rewrite->from->name;
    if (err != NULL)
        *err = c->errs[worst];
    return nib__fail_in(err, c->errs[worst].status,
                        nib__escape_name(shown, sizeof shown, name, strlen(name)));
}

/* ---- one weight ---- */

static bool allocate_buffers(recode *c, nib_arena *arena, int64_t block, int threads)
{
    const nib_rewrite *r = c->rewrite;
    const size_t n = (size_t)r->stored.n, k = (size_t)r->stored.k, t = (size_t)threads;
    const size_t sets = (size_t)nib__ceil_div(r->stored.n, c->scale_rows);
    const size_t values = sets * (size_t)c->groups + 1; /* at least the tensor's one */
    const bool floats =
        r->storage.pieces == NIB_PIECES_FLOATS || r->storage.pieces == NIB_PIECES_BLOCKS;
    c->rows = nib__arena_take(arena, (uint64_t)block, (uint64_t)c->row_bytes);
    c->codes = nib__arena_take(arena, 2 * t * k, 1);
    c->values = nib__arena_take(arena, floats ? 2 * t * k : 1, sizeof *c->values);
    c->scales = nib__arena_take(arena, values, (uint64_t)nib__type_bits(r->stored.scale_type) / 8);
    c->zeros = nib__arena_take(arena, values, (uint64_t)nib__type_bits(r->stored.zero_type) / 8);
    c->signal = nib__arena_take(arena, n, sizeof *c->signal);
    c->error = nib__arena_take(arena, n, sizeof *c->error);
    c->errs = nib__arena_take(arena, t, sizeof *c->errs);
    c->bad = nib__arena_take(arena, t, sizeof *c->bad);
    for (int i = 0; i < threads && c->bad != NULL; i++)
        c->bad[i] = INT64_MAX;
    return c->rows && c->codes && c->values && c->scales && c->zeros && c->signal && c->error &&
           c->errs && c->bad;
}

static nib_status write_rows(nib_stream *s, recode *c, int64_t block, nib_err *err)
{
    const nib_rewrite *r = c->rewrite;
    const int64_t n = r->stored.n;
    for (c->first = 0; c->first < n; c->first += block) {
        const int64_t some = nib__min(block, n - c->first);
        const uint64_t share = r->from->bytes / (uint64_t)n * (uint64_t)some;
        nib__pool_run(s->job->pool, some, GRAIN, false, recode_rows, c);
        NIB_TRY(check_failures(c, nib__pool_threads(s->job->pool), err));
        NIB_TRY(nib__writer_put(s->writer, r->codes, c->rows, (size_t)(some * c->row_bytes), err));
        if (r->written_rows == NULL)
            nib__checkpoint_release_rows(s->job->checkpoint, &r->weight, c->first, some);
        NIB_TRY(nib__stream_progress(s, share, err));
    }
    return nib__stream_progress(s, r->from->bytes % (uint64_t)n, err);
}

/* Writes a tensor's one scale and zero. */
static void write_tensor_scale(recode *c)
{
    float after[2];
    if (c->rewrite->scales == SIZE_MAX || c->groups != 0)
        return;
    if (write_group(c->rewrite, 0, 0, c->scales, c->zeros, after))
        return;
    check_group(c, 0, 0, 0, after);
    for (int64_t i = 0; i < c->rewrite->stored.n; i++)
        measure_group(c, i, 0, after);
}

/* True if f64 values lose bits. The comparison above uses their f32 values; the ledger has a line
 * for the rest. */
static bool rounds_f64(const nib_stream *s, const nib_rewrite *r)
{
    const nib_checkpoint *cp = s->job->checkpoint;
    const nib_weight *w = &r->weight;
    const int64_t rows = w->scale_rows > 1 ? nib__ceil_div(w->n, w->scale_rows) : w->n;
    const int64_t count =
        w->scheme.group == NIB_GROUP_TENSOR ? 1 : rows * nib__scheme_groups(&w->scheme, w->k);
    if (w->layout == NIB_LAYOUT_F64)
        return nib__checkpoint_f64_change(cp, w->codes, w->n * w->k) > 0;
    return (w->scale_type == NIB_TYPE_F64 &&
            nib__checkpoint_f64_change(cp, w->scales, count) > 0) ||
           (w->zero_type == NIB_TYPE_F64 && nib__checkpoint_f64_change(cp, w->zeros, count) > 0);
}

/* How well the weight was kept, for the ledger. */
static const char *describe_kept(const nib_stream *s, const nib_rewrite *r, double error)
{
    const nib_weight *w = &r->weight;
    if (error > 0 || rounds_f64(s, r))
        return "lossy";
    const bool types = keeps_blocks(r) || (r->stored.scale_type == w->scale_type &&
                                           r->stored.zero_type == w->zero_type);
    const bool shared = nib__max(1, r->stored.scale_rows) == nib__max(1, w->scale_rows);
    return types && nib__scheme_equal(&r->stored.scheme, &w->scheme) && shared && w->rows == NULL &&
                   r->written_rows == NULL && r->stored.tensor_divides == w->tensor_divides
               ? "lossless"
               : "exact after a change of layout";
}

static nib_status recode_weight(nib_stream *s, recode *c, nib_arena *arena, nib_err *err)
{
    const nib_rewrite *r = c->rewrite;
    const int64_t block = nib__max(1, nib__min(r->stored.n, BLOCK / nib__max(1, c->row_bytes)));
    double signal = 0, error = 0;
    if (!allocate_buffers(c, arena, block, nib__pool_threads(s->job->pool)))
        return nib__fail_memory(err, (uint64_t)(block * c->row_bytes), r->from->name);
    NIB_TRY(write_rows(s, c, block, err));
    write_tensor_scale(c);
    NIB_TRY(check_failures(c, nib__pool_threads(s->job->pool), err));
    if (r->scales != SIZE_MAX)
        NIB_TRY(nib__stream_put_values(s, r, &r->storage.scales, r->storage.order, r->scales,
                                       c->scales, err));
    if (r->zeros != SIZE_MAX)
        NIB_TRY(nib__stream_put_values(s, r, &r->storage.zeros, r->storage.zero_order, r->zeros,
                                       r->storage.zero_filled ? NULL : c->zeros, err));
    NIB_TRY(nib__stream_put_extras(s, r, err));
    for (int64_t i = 0; i < r->stored.n; i++) {
        signal += c->signal[i];
        error += c->error[i];
    }
    if (r->line == SIZE_MAX)
        return NIB_OK;
    s->ledger->layers[r->line].kept = describe_kept(s, r, error);
    s->ledger->layers[r->line].sqnr_db = error > 0 ? nib__sqnr_db(signal, error) : (double)NAN;
    return NIB_OK;
}

nib_status nib__recode_run(nib_stream *s, const nib_rewrite *r, nib_err *err)
{
    const bool one = r->stored.scheme.group == NIB_GROUP_TENSOR || r->scales == SIZE_MAX;
    nib_arena arena;
    recode c = {.rewrite = r,
                .groups = one ? 0 : nib__scheme_groups(&r->stored.scheme, r->stored.k),
                .scale_rows = nib__max(1, r->stored.scale_rows),
                .row_bytes = nib__file_layout_row_bytes(&r->storage, r->stored.k)};
    nib__arena_init(&arena, s->job->allocator, 0);
    const nib_status status = recode_weight(s, &c, &arena, err);
    nib__arena_free(&arena);
    /* reordered rows were not released block by block */
    nib__checkpoint_release(s->job->checkpoint, r->from->data, r->from->bytes);
    return status;
}
