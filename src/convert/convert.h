/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizing and converting a model: the device that does it, the machine that it is for, and
 * calibration.
 */
#ifndef NIB_CONVERT_H
#define NIB_CONVERT_H

#include "session_handle.h"

struct nib_quant_device;
/* Chooses where the arithmetic of quantizing runs, if a device was asked for: adds a ledger line,
 * or fails if the substitution is not allowed. *out is in the ledger's arena, and NULL if the CPU
 * does it. */
nib_status nib__quantize_where(struct nib_quant_device **out, nib_ledger *ledger, nib_model *model,
                               const nib_quantize_options *options, nib_err *err);
/* Makes the plan of the machine that will run the result, which must have an allowed kernel for
 * each layer, and adds its summary as a note. *out is NULL if no machine was named. */
nib_status nib__quantize_for(nib_plan **out, nib_ledger *ledger, nib_model *model,
                             const nib_quantize_options *options, nib_err *err);

/* Runs the model as stored over a text and finds the smallest and largest input of every linear
 * layer: widens ranges[site][2] from {0, 0}. */
nib_status nib__calibrate(float (*ranges)[2], nib_model *model, const nib_request *request,
                          const char *text_path, nib_err *err);

#endif
