/* SPDX-License-Identifier: Apache-2.0
 *
 * Assigns buffers to the values of a graph. Values that are never live at the same time may share
 * one.
 */
#ifndef NIB_BUFFERS_H
#define NIB_BUFFERS_H

#include "graph.h"

enum { NIB_GRAPH_BUFFERS = 48 };

typedef struct nib_graph_buffers {
    int *of;                            /* [value_count] buffer of each value */
    int64_t columns[NIB_GRAPH_BUFFERS]; /* f32 per token */
    int count;
} nib_graph_buffers;

/* Only values of one width share a buffer; an operation in place overwrites an input. The result,
 * the last value, has the last buffer to itself, together with the values that are only scaled into
 * it. NIB_FAILED: more than NIB_GRAPH_BUFFERS buffers, or an operation in place whose input is read
 * again later. */
nib_status nib__graph_buffers(nib_graph_buffers *out, const nib_graph *graph, nib_arena *arena,
                              nib_err *err);

#endif
