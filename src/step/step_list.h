/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of a micro-batch while it is built: operations on values. Values get buffers once the
 * list is complete.
 */
#ifndef NIB_STEP_LIST_H
#define NIB_STEP_LIST_H

#include "step.h"

typedef struct nib_step_value {
    nib_training_kind kind;
    int64_t columns; /* f32 [m][columns]; 0: not f32 rows */
    uint64_t bytes;  /* of values that are not f32 rows */
    bool in_block; /* a packed input in the shared block of its side, though all inputs are kept */
    uint8_t held;  /* bit set: the sides that hold it so far */
} nib_step_value;

typedef struct nib_step_list {
    nib_step *step;
    const nib_allocator *allocator;
    nib_train_node *nodes;
    nib_step_value *values;
    size_t count, capacity, value_count, value_capacity;
    size_t forward_end; /* length of the forward pass */
    int loss;           /* the value of the loss */
    int draft_loss;     /* that of the draft head's; NIB_NO_ID: none */
} nib_step_list;

/* *out: the id of the value. */
nib_status nib__step_add_value(nib_step_list *list, nib_step_value value, int *out, nib_err *err);
/* Appends the operation, preceded by the moves that bring its inputs to its side. */
nib_status nib__step_add(nib_step_list *list, const nib_train_node *node, nib_err *err);
/* Whether so far only the device holds the value. */
bool nib__step_only_on_device(const nib_step_list *list, int value);
/* Assigns buffers to values, and moves the list into the step. */
nib_status nib__step_assign_buffers(nib_step_list *list, nib_err *err);
void nib__step_list_free(nib_step_list *list);

#endif
