/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's metrics as JSON lines: the first line describes the run, then one line per logged step. A
 * run that resumes from a checkpoint continues the same file. It cuts off what was written past
 * that step, and a torn last line of a killed process, and adds a line that says where it resumed.
 */
#ifndef NIB_METRICS_H
#define NIB_METRICS_H

#include "cast_losses.h"
#include "trainer.h"
#include "validate.h"

typedef struct nib_metrics {
    const nib_trainer *trainer; /* NULL: no metrics wanted, or not rank 0 */
    const char *path;
    nib_text line;
    int fd;
} nib_metrics;

/* Speed of the steps since the last line. */
typedef struct nib_speed {
    double tokens_per_s, flops, share; /* share: of the measured rate, 0 to 1 */
    uint64_t memory;                   /* peak so far, in bytes */
} nib_speed;

/* Opens config->metrics, and makes its folder. */
nib_status nib__metrics_open(nib_metrics *out, nib_trainer *trainer, nib_err *err);
void nib__metrics_close(nib_metrics *metrics);
/* Syncs the lines written so far to the disk. */
nib_status nib__metrics_sync(const nib_metrics *metrics, nib_err *err);
nib_status nib__metrics_step(nib_metrics *metrics, const nib_step_report *report,
                             const nib_speed *speed, nib_err *err);

/* {"step": 5, "validation_loss": 3.1, ...}. */
nib_status nib__metrics_validation(nib_metrics *metrics, const nib_validation_report *report,
                                   nib_err *err);
/* {"step": 5, "casts": [{"layer": "lm_head", "operand": "dy", "product": "dw", ...}, ...]}: counts
 * of values. */
nib_status nib__metrics_casts(nib_metrics *metrics, const nib_cast_losses *losses, int64_t step,
                              nib_err *err);

#endif
