/* SPDX-License-Identifier: Apache-2.0
 *
 * Where the time of a step goes: a line per operation name and kind of layer, with the rates
 * reached and their shares of the measured rates of the machine.
 */
#ifndef NIB_OP_TABLE_H
#define NIB_OP_TABLE_H

#include "json.h"
#include "network.h"

enum { NIB_OP_LINES = 128 };

typedef struct nib_op_line {
    const char *name, *layers; /* layers: from nib__layer_kind */
    const char *device;
    double seconds, operations, bytes; /* 0: not counted */
    double peak, bandwidth; /* operations and bytes per second of that device; 0: unknown */
} nib_op_line;

typedef struct nib_op_table {
    nib_op_line lines[NIB_OP_LINES];
    size_t count;
    double seconds;   /* total time */
    const char *each; /* the unit: "step", "token" */
} nib_op_table;

/* "attention", "mlp", "inputs" (of layers) or "output"; "" for SIZE_MAX, no layer. */
const char *nib__layer_kind(const nib_network *net, size_t site);

/* Adds to the line of the same name, layers and device, or appends it. */
void nib__op_table_add(nib_op_table *t, const nib_op_line *line);
/* Sorts by time, longest first. */
void nib__op_table_sort(nib_op_table *t);
void nib__op_table_text(const nib_op_table *t, bool markdown, nib_text *text);
/* Writes an array of objects; shares are 0 to 1. */
void nib__op_table_json(const nib_op_table *t, nib_jsonw *w);

#endif
