/* SPDX-License-Identifier: Apache-2.0
 *
 * The method gptq over a model: layer by layer, on the activations that the layers before it give
 * with their new codes.
 */
#ifndef NIB_GPTQ_H
#define NIB_GPTQ_H

#include "quantize.h"
#include "session_handle.h"

enum { NIB_GPTQ_TOKENS = 65536 }; /* of the text at most */

/* What to do, and what came of it. */
typedef struct nib_gptq {
    nib_quantize_layer *layers; /* [site_count] those of the method get their codes */
    const nib_request *request; /* dtype and context of the calibration */
    const char *text;           /* path */
    nib_ledger *ledger;
    nib_arena *arena; /* holds the codes */
} nib_gptq;

/* NIB_UNSUPPORTED: the model has layers that read another layer's keys. NIB_BAD_INPUT: the text is
 * empty. */
nib_status nib__gptq(const nib_gptq *job, nib_model *model, nib_err *err);

#endif
