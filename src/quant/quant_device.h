/* SPDX-License-Identifier: Apache-2.0
 *
 * The device that computes codes, if that is not this CPU: its memory for one block of rows, copies
 * to and from it, and its ledger line. Its bits are the CPU's, so the CPU can take over at any row
 * if the device fails. Private to quantize; the caller fills the first part of the struct.
 */
#ifndef NIB_QUANT_DEVICE_H
#define NIB_QUANT_DEVICE_H

#include "gpu.h"
#include "ledger.h"
#include "quant_w.h"

struct nib_rewrite;

/* Traffic to and from a device, and the time that its rates predict for copies and arithmetic. */
typedef struct nib_quant_moves {
    size_t weights;
    uint64_t bytes_to, bytes_back;
    double seconds;
} nib_quant_moves;

typedef struct nib_quant_device {
    nib_gpu *gpu; /* NULL: not opened (a dry run), or given up */
    const nib_kernel *row;
    const nib_machine *machine, *here;
    const char *allowed; /* what allows the CPU instead; NULL: nothing */
    bool strict;         /* nothing may allow it */
    size_t line;         /* index of its ledger line, done as asked until the device fails */
    /* ---- internal ---- */
    nib_quant_w at; /* device addresses of the current block */
    bool held;      /* memory is allocated */
    nib_quant_moves planned, done;
} nib_quant_device;

/* Allocates memory for the largest block, compiles all launches, and predicts the time. If the
 * device refuses: a ledger line if the CPU is allowed, else NIB_NOT_AS_ASKED. */
nib_status nib__quant_device_ready(nib_quant_device *d, const struct nib_rewrite *rewrites,
                                   size_t count, bool dry_run, nib_ledger *ledger, nib_err *err);
/* One block: start copies its rows to the device and launches the row without waiting; finish
 * copies the results into the host arrays of `to`, for the same block. to->codes NULL: the results
 * are ranges. */
nib_status nib__quant_device_start(nib_quant_device *d, const nib_quant_w *block, nib_err *err);
nib_status nib__quant_device_finish(nib_quant_device *d, const nib_quant_w *to, nib_err *err);
/* Handles a failure `why` of the device at `tensor`, or before the first one (NULL): NIB_OK if the
 * CPU may take over. */
nib_status nib__quant_device_lost(nib_quant_device *d, const char *tensor, const nib_err *why,
                                  nib_ledger *ledger, nib_err *err);
/* Counts a finished weight. */
void nib__quant_device_count(nib_quant_device *d);
/* Frees its memory and notes what it did. */
void nib__quant_device_end(nib_quant_device *d, nib_ledger *ledger);
/* Frees its memory after a failure, without a note. */
void nib__quant_device_release(nib_quant_device *d);

#endif
