/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the time of a step goes: a line for the operations of one name and kind of layer, with the
 * rates that they reach and the shares of what the machine was measured to do.
 */
#ifndef NIB_OP_TABLE_H
#define NIB_OP_TABLE_H

#include "json.h"
#include "network.h"

enum { NIB_OP_LINES = 128 };

typedef struct nib_op_line {
    const char *name, *layers; /* layers: nib__layers_word */
    const char *device;
    double seconds, operations, bytes; /* 0: not counted */
    double peak, bandwidth; /* operations and bytes per second of that device; 0: not known */
} nib_op_line;

typedef struct nib_op_table {
    nib_op_line lines[NIB_OP_LINES];
    size_t count;
    double seconds;   /* of all of it */
    const char *each; /* what that is: "step", "token" */
} nib_op_table;

/* "attention", "mlp", "output"; "" for SIZE_MAX, which is no layer's. */
const char *nib__layers_word(const nib_network *net, size_t site);

/* To the line of the same name, layers and device, or a new one. */
void nib__op_table_add(nib_op_table *t, const nib_op_line *line);
/* The longest first. */
void nib__op_table_sort(nib_op_table *t);
void nib__op_table_text(const nib_op_table *t, bool markdown, nib_text *text);
/* An array of objects; shares are 0 to 1. */
void nib__op_table_json(const nib_op_table *t, nib_jsonw *w);

#endif
