/* SPDX-License-Identifier: Apache-2.0
 *
 * The method learn: starts at the codes of qronos, and tunes how the weights of a decoder layer
 * round, so that the layer leaves what the stored one does; then it moves scales, and float zeros,
 * so that the logits of the whole model come closer to those of the model as stored (KL
 * divergence). Both along gradients, on the calibration text.
 */
#ifndef NIB_LEARN_H
#define NIB_LEARN_H

#include "gptq_run.h"

enum {
    NIB_LEARN_ROUNDING = 50, /* steps of a layer's codes */
    NIB_LEARN_STEPS = 50,    /* of the scales */
    NIB_LEARN_TOKENS = 4096  /* of a step of either */
};

/* Whether a layer is coded by learn, and whether one of them has scales that can move. */
bool nib__learn_any(const nib_gptq_run *run);
bool nib__learn_has(const nib_gptq_run *run);
/* NIB_UNSUPPORTED: a layer of the model reads or leaves more than the hidden state. */
nib_status nib__learn_check(const nib_gptq_run *run, nib_err *err);
/* Multiply-adds of the steps of scales that are left, without attention; 0: none can move. */
double nib__learn_cost(const nib_gptq_run *run);
/* The part of the store with its result, and the number of all parts. Behind the result are the
 * steps, and the tuned codes of each decoder layer. */
size_t nib__learn_part(const nib_gptq_run *run);
size_t nib__learn_parts(const nib_gptq_run *run);
/* Adds to a note what the store has of it: nothing, or "; ...". */
void nib__learn_found(nib_text *out, const nib_gptq_run *run);
/* When all layers have codes, and run->stored has the whole text behind the last one: gives layers
 * that learn codes new scales, in a part of the store. Goes on after the last steps that the store
 * has, to the same bytes. NIB_BAD_INPUT: those are of another model. */
nib_status nib__learn(nib_gptq_run *run, nib_err *err);
/* At the end: notes what it did, and what it left as it was. */
void nib__learn_note(const nib_gptq_run *run);

#endif
