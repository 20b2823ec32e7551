/* SPDX-License-Identifier: Apache-2.0
 *
 * A dry run of training: one linear layer of each distinct shape and scheme runs forward and
 * backward on random values, with its time and error; and the memory of a real run.
 */
#ifndef NIB_DRY_RUN_H
#define NIB_DRY_RUN_H

#include "trainer.h"

/* Reports the memory needed, without allocating it; then tries the layers one by one. ranks NULL:
 * one process. *ran: see nib_train_options. */
nib_status nib__dry_run(nib_model *model, const nib_plan *plan, nib_ranks *ranks, nib_plan **ran,
                        const nib_sink *sink, nib_err *err);

#endif
