/* SPDX-License-Identifier: Apache-2.0
 *
 * Which values of a graph share a buffer: two that are never needed at the same time may.
 */
#ifndef NIB_BUFFERS_H
#define NIB_BUFFERS_H

#include "graph.h"

enum { NIB_GRAPH_BUFFERS = 48 };

typedef struct nib_graph_buffers {
    int *of;                            /* [value_count] the buffer of each value */
    int64_t columns[NIB_GRAPH_BUFFERS]; /* f32 per token */
    int count;
} nib_graph_buffers;

/* Values of one width share buffers; an operation that works in place writes over an input. The
 * result, the last value, has a buffer of its own, the last, with what is scaled into it.
 * NIB_FAILED: more buffers than NIB_GRAPH_BUFFERS, or an operation in place whose input is read
 * again later. */
nib_status nib__graph_buffers(nib_graph_buffers *out, const nib_graph *graph, nib_arena *arena,
                              nib_err *err);

#endif
