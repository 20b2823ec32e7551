/* SPDX-License-Identifier: Apache-2.0
 *
 * Running the operations of layers that keep a state in place of keys and values: short
 * convolutions, the gated delta rule and Mamba-2. In training a state begins with each document and
 * nothing reads it after the pass, so all layers and documents use one state in turn.
 */
#ifndef NIB_STEP_STATES_H
#define NIB_STEP_STATES_H

#include "step.h"

/* Bytes of NIB_REGION_STATE. */
uint64_t nib__step_state_bytes(const nib_step *step);
/* Takes the lists that these operations read from the arena, if a layer has a state. */
nib_status nib__step_open_states(nib_step *step, nib_err *err);

void nib__step_short_conv(nib_step *step, const nib_train_node *node);
void nib__step_short_conv_dx(nib_step *step, const nib_train_node *node);
void nib__step_short_conv_dw(nib_step *step, const nib_train_node *node);
void nib__step_delta_gates(nib_step *step, const nib_train_node *node);
void nib__step_delta_gates_dx(nib_step *step, const nib_train_node *node);
void nib__step_ssm_gates(nib_step *step, const nib_train_node *node);
void nib__step_ssm_gates_dx(nib_step *step, const nib_train_node *node);
void nib__step_recurrence(nib_step *step, const nib_train_node *node);
void nib__step_recurrence_dx(nib_step *step, const nib_train_node *node);
/* Bytes that a worker needs for them. */
uint64_t nib__step_states_scratch(const nib_step *step);

#endif
