/* SPDX-License-Identifier: Apache-2.0
 *
 * The list of a micro-batch while it is made: operations on values, which get their places once all
 * of them are known.
 */
#ifndef NIB_STEP_LIST_H
#define NIB_STEP_LIST_H

#include "step.h"

typedef struct nib_step_value {
    nib_training_kind kind;
    int64_t columns; /* f32 [m][columns]; 0: it has another form */
    uint64_t bytes;  /* of other forms */
    uint8_t held;    /* bits: the sides that have it, so far */
} nib_step_value;

typedef struct nib_step_list {
    nib_step *step;
    const nib_allocator *allocator;
    nib_train_node *nodes;
    nib_step_value *values;
    size_t count, capacity, value_count, value_capacity;
    size_t forward_end; /* of the list */
    int loss;           /* value */
} nib_step_list;

/* Returns its number. */
nib_status nib__step_add_value(nib_step_list *list, nib_step_value value, int *out, nib_err *err);
/* The operation, and before it what brings its inputs to its side. */
nib_status nib__step_add(nib_step_list *list, const nib_train_node *node, nib_err *err);
/* Whether the device has the value and, so far, nothing else. */
bool nib__step_check_device(const nib_step_list *list, int value);
/* Gives values their places, and moves the list to the step. */
nib_status nib__step_place(nib_step_list *list, nib_err *err);
void nib__step_list_free(nib_step_list *list);

#endif
