/* SPDX-License-Identifier: Apache-2.0
 *
 * Decides whether a step may change the weights. A step is bad if its loss or gradient norm is NaN,
 * infinite or spikes. A step that is not finite is computed again with a callback that checks every
 * operation's output, to find the first bad one; good steps pay nothing.
 */
#ifndef NIB_FINITE_CHECK_H
#define NIB_FINITE_CHECK_H

#include "trainer.h"

/* What a step left to check. */
typedef struct nib_evidence {
    const float *gradient; /* [params.total], summed over all ranks */
    size_t bad;            /* the first parameter whose gradient is not finite, or params.count */
    nib_data_position position; /* in the data, before the step */
} nib_evidence;

/* Call on every rank with the same report. A bad step fails with NIB_CHECK_FAILED; if the config
 * skips bad steps, it is logged instead and report->skipped is set. Weights that were bad before
 * the step always fail. The message names the step and the first bad layer, and is the same on all
 * ranks. */
nib_status nib__check_step(nib_trainer *trainer, nib_step_report *report,
                           const nib_evidence *evidence, nib_err *err);

#endif
