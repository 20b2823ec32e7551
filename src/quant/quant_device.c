/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizes weights on a device: see quant_device.h.
 */
#include "quant_device.h"

#include "stream.h"

#include <stdio.h>

/* ---- sizes and predictions ---- */

/* Bytes of each part of a block, on host and device alike. */
typedef struct parts {
    uint64_t rows, codes, scales, zeros, sums, ranges, failed, room;
} parts;

static parts parts_of(const nib_quantizer *q, nib_type type, int64_t count)
{
    const uint64_t n = (uint64_t)count, k = (uint64_t)q->k, groups = n * (uint64_t)q->groups;
    const bool one = nib__quantizer_is_one(q);
    return (parts){.rows = n * k * (uint64_t)nib__type_bits(type) / 8,
                   .codes = n * k,
                   .scales = one ? 0 : groups * (uint64_t)nib__type_bits(q->scale_type) / 8,
                   .zeros = one ? 0 : groups * (uint64_t)nib__type_bits(q->zero_type) / 8,
                   .sums = n * 2 * sizeof(double),
                   .ranges = n * 2 * sizeof(float),
                   .failed = n * sizeof(int32_t),
                   .room = groups * 2 * sizeof(double)};
}

static uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

static void widen(parts *most, const parts *p)
{
    most->rows = max_u64(most->rows, p->rows);
    most->codes = max_u64(most->codes, p->codes);
    most->scales = max_u64(most->scales, p->scales);
    most->zeros = max_u64(most->zeros, p->zeros);
    most->sums = max_u64(most->sums, p->sums);
    most->ranges = max_u64(most->ranges, p->ranges);
    most->failed = max_u64(most->failed, p->failed);
    most->room = max_u64(most->room, p->room);
}

/* Time of copies, launches, and of reading the rows twice; a scan of a tensor's range reads them
 * once. */
static void predict(nib_quant_moves *m, const nib_machine *machine, const parts *p, bool scans)
{
    enum { LAUNCHES = 2, READS = 4 };
    const uint64_t back =
        p->failed + (scans ? p->ranges : p->codes + p->scales + p->zeros + p->sums);
    const double moved = (double)(p->rows + back), copies = scans ? 3 : 2 + READS;
    const double touched = scans ? (double)p->rows : (double)(2 * p->rows + p->room + back);
    m->bytes_to += p->rows;
    m->bytes_back += back;
    m->seconds += copies * machine->copy_s + LAUNCHES * machine->launch_s;
    m->seconds += machine->copy_bytes_per_s > 0 ? moved / machine->copy_bytes_per_s : 0;
    m->seconds += machine->bytes_per_s > 0 ? touched / machine->bytes_per_s : 0;
}

static void predict_weight(nib_quant_moves *m, parts *most, const nib_machine *machine,
                           const nib_rewrite *r)
{
    const int64_t n = r->from->shape[0], rows = nib__stream_block_rows(r);
    for (int64_t i = 0; i < n; i += rows) {
        const parts p = parts_of(&r->quantizer, nib__stream_sends(r), nib__min(rows, n - i));
        widen(most, &p);
        if (nib__quantizer_needs_scan(&r->quantizer))
            predict(m, machine, &p, true);
        predict(m, machine, &p, false);
    }
    m->weights++;
}

/* ---- device memory ---- */

static nib_status allocate(nib_quant_device *d, void *address, uint64_t bytes, nib_err *err)
{
    void *piece = NULL;
    if (bytes != 0)
        NIB_TRY(nib__gpu_alloc(d->gpu, bytes, "a block of weights to quantize", &piece, err));
    memcpy(address, &piece, sizeof piece); /* a pointer of any type */
    return NIB_OK;
}

static nib_status allocate_parts(nib_quant_device *d, const parts *p, nib_err *err)
{
    nib_quant_w *at = &d->at;
    d->held = true;
    NIB_TRY(allocate(d, &at->rows, p->rows, err));
    NIB_TRY(allocate(d, &at->codes, p->codes, err));
    NIB_TRY(allocate(d, &at->scales, p->scales, err));
    NIB_TRY(allocate(d, &at->zeros, p->zeros, err));
    NIB_TRY(allocate(d, &at->sums, p->sums, err));
    NIB_TRY(allocate(d, &at->ranges, p->ranges, err));
    NIB_TRY(allocate(d, &at->failed, p->failed, err));
    return allocate(d, &at->room, p->room, err);
}

void nib__quant_device_release(nib_quant_device *d)
{
    const nib_quant_w *at = &d->at;
    void *const pieces[] = {(void *)(uintptr_t)at->rows,
                            at->codes,
                            at->scales,
                            at->zeros,
                            at->sums,
                            at->ranges,
                            at->failed,
                            at->room};
    for (size_t i = 0; i < COUNT(pieces) && d->gpu != NULL && d->held; i++)
        nib__gpu_free(d->gpu, pieces[i]);
    d->held = false;
    d->gpu = NULL;
}

/* ---- a block ---- */

/* The device arguments for a block of this form. */
static nib_quant_w on_device(const nib_quant_device *d, const nib_quantizer *q, nib_type type,
                             int64_t count, bool scans)
{
    nib_quant_w a = d->at;
    a.q = q;
    a.type = type;
    a.count = count;
    if (scans)
        a.codes = NULL;
    return a;
}

nib_status nib__quant_device_start(nib_quant_device *d, const nib_quant_w *block, nib_err *err)
{
    const parts p = parts_of(block->q, block->type, block->count);
    const nib_quant_w a = on_device(d, block->q, block->type, block->count, block->codes == NULL);
    NIB_TRY(nib__gpu_write(d->gpu, (void *)(uintptr_t)a.rows, block->rows, p.rows, err));
    d->done.bytes_to += p.rows;
    return nib__gpu_run(d->gpu, d->row, &a, err);
}

static nib_status read_back(nib_quant_device *d, void *to, const void *from, uint64_t bytes,
                            nib_err *err)
{
    d->done.bytes_back += bytes;
    return bytes == 0 ? NIB_OK : nib__gpu_read(d->gpu, to, from, bytes, err);
}

nib_status nib__quant_device_finish(nib_quant_device *d, const nib_quant_w *to, nib_err *err)
{
    const parts p = parts_of(to->q, to->type, to->count);
    NIB_TRY(read_back(d, to->failed, d->at.failed, p.failed, err));
    if (to->codes == NULL)
        return read_back(d, to->ranges, d->at.ranges, p.ranges, err);
    NIB_TRY(read_back(d, to->sums, d->at.sums, p.sums, err));
    NIB_TRY(read_back(d, to->codes, d->at.codes, p.codes, err));
    NIB_TRY(read_back(d, to->scales, d->at.scales, p.scales, err));
    return read_back(d, to->zeros, d->at.zeros, p.zeros, err);
}

void nib__quant_device_count(nib_quant_device *d) { d->done.weights++; }

/* ---- failures ---- */

nib_status nib__quant_device_lost(nib_quant_device *d, const char *tensor, const nib_err *why,
                                  nib_ledger *ledger, nib_err *err)
{
    const char *there = d->machine->name, *here = d->here->name;
    char shown[NIB_SHOWN], at[NIB_SHOWN + 2] = "";
    nib__quant_device_release(d);
    if (tensor != NULL)
        snprintf(at, sizeof at, "%s: ", nib__escape_string(shown, tensor));
    if (d->strict || d->allowed == NULL)
        return nib__fail(err, tensor == NULL ? NIB_NOT_AS_ASKED : why->status,
                         "quantize: %s%sasked codes@%s: %s; %s: done codes@%s, the same bits as "
                         "without --device",
                         at, d->strict ? "--strict: " : "", there, why->text,
                         d->strict ? "--allow device without --strict" : "--allow device", here);
    nib_ledger_layer *line = &ledger->layers[d->line];
    line->rung = NIB_RUNG_DEVICE;
    line->allowed = d->allowed;
    line->done = tensor == NULL ? nib__ledger_text(ledger, "codes@%s", here)
                                : nib__ledger_text(ledger, "codes@%s, then codes@%s", there, here);
    nib__ledger_add_reason(ledger, line, "refused",
                           nib__ledger_text(ledger, "%s%s", at, why->text));
    return NIB_OK;
}

static nib_status prepare(nib_quant_device *d, const nib_rewrite *r, nib_err *err)
{
    const nib_quantizer *q = &r->quantizer;
    const nib_quant_w codes = on_device(d, q, nib__stream_sends(r), 1, false),
                      ranges = on_device(d, q, nib__stream_sends(r), 1, true);
    if (nib__quantizer_needs_scan(q))
        NIB_TRY(nib__gpu_prepare(d->gpu, d->row, &ranges, err));
    return nib__gpu_prepare(d->gpu, d->row, &codes, err);
}

nib_status nib__quant_device_ready(nib_quant_device *d, const nib_rewrite *rewrites, size_t count,
                                   bool dry_run, nib_ledger *ledger, nib_err *err)
{
    parts most = {0};
    nib_err why = {NIB_OK, ""};
    for (size_t i = 0; i < count; i++)
        if (rewrites[i].kind == NIB_REWRITE_QUANTIZE)
            predict_weight(&d->planned, &most, d->machine, &rewrites[i]);
    if (dry_run || d->gpu == NULL)
        return NIB_OK;
    nib_status status = allocate_parts(d, &most, &why);
    for (size_t i = 0; i < count && status == NIB_OK; i++)
        if (rewrites[i].kind == NIB_REWRITE_QUANTIZE)
            status = prepare(d, &rewrites[i], &why);
    return status == NIB_OK ? NIB_OK : nib__quant_device_lost(d, NULL, &why, ledger, err);
}

/* ---- the note ---- */

void nib__quant_device_end(nib_quant_device *d, nib_ledger *ledger)
{
    const bool lost = ledger->layers[d->line].rung != NIB_RUNG_NONE;
    const nib_quant_moves *planned = &d->planned;
    const nib_quant_moves *done = lost || d->gpu != NULL ? &d->done : planned; /* a dry run */
    const char *here = d->here->name;
    char to[32], back[32], time[32];
    nib__quant_device_release(d);
    if (lost && done->bytes_to == 0)
        return; /* the ledger line suffices */
    nib__format_bytes(to, done->bytes_to);
    nib__format_bytes(back, done->bytes_back);
    nib__format_seconds(time, planned->seconds);
    nib__ledger_add_note(
        ledger, "device",
        "codes@%s: %zu of %zu weights by %s, %s to it and %s back, %s predicted for all; %s does "
        "biases, packing, hashes, files and tensors that stay as stored",
        d->machine->name, done->weights, planned->weights, d->row->name, to, back, time, here);
}
