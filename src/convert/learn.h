/* SPDX-License-Identifier: Apache-2.0
 *
 * The method learn: starts at the codes of qronos, and moves their scales, and float zeros, so that
 * the logits of the whole model come closer to those of the model as stored (KL divergence), along
 * gradients, on the calibration text. Codes stay.
 */
#ifndef NIB_LEARN_H
#define NIB_LEARN_H

#include "gptq_run.h"

enum { NIB_LEARN_STEPS = 50, NIB_LEARN_TOKENS = 4096 /* of a step */ };

/* Whether a layer is coded by learn. */
bool nib__learn_has(const nib_gptq_run *run);
/* Whether a site is coded by learn, but has scales that cannot move. */
bool nib__learn_fixes(const nib_gptq_run *run, size_t site);
/* Whether the result in the store is what it began with: the steps did not help. */
bool nib__learn_stays(const nib_gptq_run *run);
/* NIB_UNSUPPORTED: a layer of the model reads or leaves more than the hidden state. */
nib_status nib__learn_check(const nib_gptq_run *run, nib_err *err);
/* Multiply-adds that are left, without attention; 0: no layer is coded by learn. */
double nib__learn_cost(const nib_gptq_run *run);
/* The part of the store with its result, and the number of all parts. */
size_t nib__learn_part(const nib_gptq_run *run);
size_t nib__learn_parts(const nib_gptq_run *run);
/* Adds to a note what the store has of its steps: nothing, or "; ...". */
void nib__learn_note(nib_text *out, const nib_gptq_run *run);
/* When all layers have codes, and run->stored has the whole text behind the last one: gives layers
 * that learn codes new scales, in a part of the store. Goes on after the last steps that the store
 * has, to the same bytes. NIB_BAD_INPUT: those are of another model. */
nib_status nib__learn(nib_gptq_run *run, nib_err *err);

#endif
