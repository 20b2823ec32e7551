/* SPDX-License-Identifier: Apache-2.0
 *
 * The loss of another text in between: the same micro-batches of it each time, shared among the
 * ranks, forward only. Whichever rank computed them, their losses are added in their order.
 */
#ifndef NIB_VALIDATE_H
#define NIB_VALIDATE_H

#include "trainer.h"

typedef struct nib_validation {
    nib_trainer *trainer; /* NULL: the config names no text */
    nib_data data;
    int64_t count;  /* micro-batches of a measurement */
    double *losses; /* [count] of each, summed over its tokens */
} nib_validation;

typedef struct nib_validation_report {
    int64_t step;
    double loss; /* nats per predicted token */
    double seconds;
    int64_t tokens; /* of all ranks */
} nib_validation_report;

/* What config->validation names: the first validation_steps micro-batches of it, or all that it
 * has, which is logged. NIB_BAD_INPUT: not even one. */
nib_status nib__validation_open(nib_validation *out, nib_trainer *trainer, nib_err *err);
void nib__validation_close(nib_validation *validation);

/* After the first step and every validation_every steps, as torchtitan does. */
bool nib__validation_due(const nib_validation *validation, int64_t step);
/* Every rank calls it; the report is the same on all. */
nib_status nib__validation_run(nib_validation *validation, nib_validation_report *report,
                               nib_err *err);

#endif
