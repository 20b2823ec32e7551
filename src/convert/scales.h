/* SPDX-License-Identifier: Apache-2.0
 *
 * The methods awq and smooth over a model: layer by layer, scales of the inputs of linear layers,
 * folded into what makes those inputs, with which the codes of `search` lose least of the layer's
 * output on a text. The end of the text then decides between the whole model and rounding. awq
 * scales by the inputs alone, smooth by inputs and weights, for activations that become codes.
 */
#ifndef NIB_SCALES_H
#define NIB_SCALES_H

#include "convert.h"
#include "gptq_store.h"
#include "quantize.h"

enum { NIB_SCALES_TOKENS = 4096 }; /* on which candidates are compared, at most */

/* What to do, and what came of it. */
typedef struct nib_scaling {
    /* [site_count] those of the methods have an importance, if they have inputs on the text; they
     * get their scales. Those that lose least by rounding get the method rtn. */
    nib_quantize_layer *layers;
    const nib_input_stats *stats; /* [site_count] layers of smooth, and with static scales, have
                                     extremes */
    const nib_quantize_options *options; /* its text, and context of its request */
    const char *out; /* beside it the choices of finished layers are stored; NULL: they are not */
    /* Asked: of nib__text_parts; 0: the first tokens choose, and none check the whole model, as
     * programs did whose receipts name none. Result: tokens that checked it. */
    int64_t held_out;
    nib_ledger *ledger;
    nib_arena *arena;    /* of the scales */
    nib_vector *vectors; /* result: norms and biases with new values */
    size_t vector_count;
    const char *name; /* result: of the methods; NULL: nib__scales did not run */
    /* result: the model was worse than by rounding, and all layers of the methods are rounded */
    bool keeps_rounding;
    double multiply_adds, predicted_s, seconds; /* result: as nib_gptq */
    nib_gptq_store *store; /* result, also of a failure: of `out`; NULL: none */
    nib_text resumed;      /* initialized; result: what an earlier run left there */
} nib_scaling;

/* Whether the methods can do their layers, if there are any. text: to calibrate with; NULL: none,
 * which is NIB_USAGE. NIB_UNSUPPORTED: some layers are by gptq or qronos, or smooth finds no layer
 * that codes its activations. */
nib_status nib__scales_check(const nib_quantize_layer *layers, size_t count, const char *text,
                             nib_err *err);
/* NIB_UNSUPPORTED: the model has layers that read another layer's keys, or is a GGUF.
 * NIB_BAD_INPUT: as nib__text_parts. */
nib_status nib__scales(nib_scaling *job, nib_model *model, nib_err *err);
/* Sets only job->multiply_adds and predicted_s, as nib__scales will on the text; its errors are
 * among those. The layers need no importance. */
nib_status nib__scales_forecast(nib_scaling *job, nib_model *model, nib_err *err);
/* When the output is complete: notes the times, which are not about it, if nib__scales ran. */
void nib__scales_note(const nib_scaling *job);

#endif
