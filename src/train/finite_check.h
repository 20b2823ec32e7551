/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether a step may change the weights: not if its loss or the norm of its gradient is not finite
 * or spikes. What went wrong first is found by computing the step again with an eye on every
 * operation, so that a good step pays nothing for it.
 */
#ifndef NIB_JUDGE_H
#define NIB_JUDGE_H

#include "trainer.h"

/* What a step leaves behind. */
typedef struct nib_evidence {
    const float *gradient; /* [params.total], of all ranks */
    size_t bad;            /* the first parameter whose gradient is not finite, or params.count */
    nib_data_place place;  /* of the data before the step */
} nib_evidence;

/* Every rank calls it with the same report. A bad step is NIB_CHECK_FAILED, or, where the config
 * skips them, a line in the log and report->skipped; weights that were bad before the step are no
 * reason to go on. The sentence names the step and the first layer, and is the same on all ranks.
 */
nib_status nib__judge(nib_trainer *trainer, nib_step_report *report, const nib_evidence *evidence,
                      nib_err *err);

#endif
