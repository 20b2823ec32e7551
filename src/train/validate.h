/* SPDX-License-Identifier: Apache-2.0
 *
 * The validation loss: the same micro-batches of another text each time, forward only, divided
 * among the ranks. Their losses are added in order, independent of which rank computed them.
 */
#ifndef NIB_VALIDATE_H
#define NIB_VALIDATE_H

#include "trainer.h"

typedef struct nib_validation {
    nib_trainer *trainer; /* NULL: no validation */
    nib_data data;
    int64_t count;      /* micro-batches per validation */
    nib_losses *losses; /* [count] of each */
} nib_validation;

typedef struct nib_validation_report {
    int64_t step;
    double loss;       /* nats per predicted token */
    double draft_loss; /* the same of the draft head, mean of the micro-batches */
    double seconds;
    int64_t tokens; /* of all ranks */
} nib_validation_report;

/* Opens config->validation: its first validation_steps micro-batches, or all if it has fewer, which
 * is logged. NIB_BAD_INPUT: it has not even one. */
nib_status nib__validation_open(nib_validation *out, nib_trainer *trainer, nib_err *err);
void nib__validation_close(nib_validation *validation);

/* True after the first step and every validation_every steps, as in torchtitan. */
bool nib__validation_due(const nib_validation *validation, int64_t step);
/* Call on every rank; the report is the same on all. */
nib_status nib__validation_run(nib_validation *validation, nib_validation_report *report,
                               nib_err *err);

#endif
