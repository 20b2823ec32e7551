/* SPDX-License-Identifier: Apache-2.0
 *
 * Quantizing and converting a model: where it runs, for which machine, and the ranges of inputs.
 */
#ifndef NIB_CONVERT_H
#define NIB_CONVERT_H

#include "session_handle.h"

struct nib_quant_device;
/* Where the arithmetic of quantizing runs, if a device was asked: a line of the ledger, or the
 * error where that is not allowed. *out, which lies in the ledger's arena, stays NULL where the CPU
 * does it. */
nib_status nib__quantize_where(struct nib_quant_device **out, nib_ledger *ledger, nib_model *model,
                               const nib_quantize_options *options, nib_err *err);
/* The plan of the machine that will run the result, which must have an allowed way for each layer,
 * and its summary as a note; *out stays NULL where none was named. */
nib_status nib__quantize_for(nib_plan **out, nib_ledger *ledger, nib_model *model,
                             const nib_quantize_options *options, nib_err *err);

/* Runs the model as stored over a text and gives the least and the greatest input of every linear
 * layer: ranges[site][2], from {0, 0} on. */
nib_status nib__calibrate(float (*ranges)[2], nib_model *model, const nib_request *request,
                          const char *text_path, nib_err *err);

#endif
