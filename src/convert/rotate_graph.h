/* SPDX-License-Identifier: Apache-2.0
 *
 * Where rotations can go, by the graph alone: what writes a value, and everything that reads it.
 */
#ifndef NIB_ROTATE_GRAPH_H
#define NIB_ROTATE_GRAPH_H

#include "network.h"

/* What happens to a weight. Residual: its rows write, or its columns read, the residual stream.
 * Values: its rows write the values of attention, or its columns read what attention makes of
 * them. */
typedef struct nib_rotate_site {
    bool residual_rows, residual_columns, value_rows, value_columns;
    int64_t layer; /* of the values */
    int norm;      /* of the graph: multiplied into its columns; -1: none */
} nib_rotate_site;

typedef struct nib_rotate_graph {
    nib_rotate_site *sites; /* [site_count] */
    /* Why the residual stream keeps its basis, to end a sentence, and the module; NULL: it can
     * rotate. */
    const char *residual_why, *residual_at;
    bool *norms;             /* [norms of the graph] become 1 */
    const char **values_why; /* [layers] the same of values; "" if the layer stores none */
} nib_rotate_graph;

/* Finds both. Whether a weight may change is not asked. *out is in the arena. */
nib_status nib__rotate_graph(nib_rotate_graph *out, const nib_network *net, nib_arena *arena,
                             nib_err *err);

#endif
