/* SPDX-License-Identifier: Apache-2.0
 *
 * A training run without a run: one linear layer of each distinct shape and scheme forward and
 * backward on random values, with its time and its error, and the memory of the whole.
 */
#ifndef NIB_DRY_RUN_H
#define NIB_DRY_RUN_H

#include "trainer.h"

/* The memory first, for which none is taken; then the layers, one after the other. ranks NULL: one
 * process. *ran: see nib_train_options. */
nib_status nib__dry_run(nib_model *model, const nib_plan *plan, nib_ranks *ranks, nib_plan **ran,
                        const nib_sink *sink, nib_err *err);

#endif
