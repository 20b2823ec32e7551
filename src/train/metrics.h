/* SPDX-License-Identifier: Apache-2.0
 *
 * A run's metrics as JSON lines: the first says how the run was made, then one per logged step. A
 * run that goes on from a checkpoint goes on in its file: what was written past that step, and a
 * line that a killed process left torn, is cut off, and a line says from where.
 */
#ifndef NIB_METRICS_H
#define NIB_METRICS_H

#include "cast_losses.h"
#include "trainer.h"
#include "validate.h"

typedef struct nib_metrics {
    const nib_trainer *trainer; /* NULL: none are asked for, or this is not rank 0 */
    const char *path;
    nib_text line;
    int fd;
} nib_metrics;

/* How fast the steps since the last line were. */
typedef struct nib_speed {
    double tokens_per_s, flops, share; /* of the measured rate: 0 to 1 */
    uint64_t memory;                   /* bytes: the most so far */
} nib_speed;

/* Makes the folder of config->metrics. */
nib_status nib__metrics_open(nib_metrics *out, nib_trainer *trainer, nib_err *err);
void nib__metrics_close(nib_metrics *metrics);
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
