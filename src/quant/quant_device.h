/* SPDX-License-Identifier: Apache-2.0
 *
 * The device that weights become codes on, where that is not this CPU: its memory for one block of
 * rows, what goes there and comes back, and the line of the ledger that says so. The bits are the
 * CPU's, so it may go on with any row where the device does not. Inside of quantize; who calls that
 * fills in the first part.
 */
#ifndef NIB_QUANT_DEVICE_H
#define NIB_QUANT_DEVICE_H

#include "gpu.h"
#include "ledger.h"
#include "quant_w.h"

struct nib_rewrite;

/* What crosses to and from a device, and how long that and the arithmetic take by its rates. */
typedef struct nib_quant_moves {
    size_t weights;
    uint64_t bytes_to, bytes_back;
    double seconds;
} nib_quant_moves;

typedef struct nib_quant_device {
    nib_gpu *gpu; /* NULL: not opened (a dry run), or it does no more */
    const nib_kernel *row;
    const nib_machine *machine, *here;
    const char *allowed; /* what allows that the CPU does it; NULL: nothing */
    bool strict;         /* and nothing can */
    size_t line;         /* of the ledger: what is asked, and as done as long as it is */
    /* ---- its own ---- */
    nib_quant_w at; /* addresses of the device, of the block that is there */
    bool held;      /* memory */
    nib_quant_moves planned, done;
} nib_quant_device;

/* Takes memory for the largest block, compiles all that will be launched, and predicts. A refusal
 * is a line of the ledger where the CPU is allowed, else NIB_NOT_AS_ASKED. */
nib_status nib__quant_device_ready(nib_quant_device *d, const struct nib_rewrite *rewrites,
                                   size_t count, bool dry_run, nib_ledger *ledger, nib_err *err);
/* One block: its rows go there and the row is launched, which goes on while the host does something
 * else; then what came about goes into the host's arrays of `to`, of the same block. With to->codes
 * NULL that is ranges. */
nib_status nib__quant_device_start(nib_quant_device *d, const nib_quant_w *block, nib_err *err);
nib_status nib__quant_device_finish(nib_quant_device *d, const nib_quant_w *to, nib_err *err);
/* It failed of `why` while `tensor` was done, or before anything (NULL): NIB_OK where the CPU goes
 * on. */
nib_status nib__quant_device_lost(nib_quant_device *d, const char *tensor, const nib_err *why,
                                  nib_ledger *ledger, nib_err *err);
/* A weight is done there. */
void nib__quant_device_count(nib_quant_device *d);
/* Gives its memory back and notes what it did. */
void nib__quant_device_end(nib_quant_device *d, nib_ledger *ledger);
/* The same without a word, after a failure. */
void nib__quant_device_give(nib_quant_device *d);

#endif
