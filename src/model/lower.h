/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering: network + plan -> a flat list of operations on numbered buffers. The runner loops over
 * the list and takes rows only from it, so that what the plan explains is what runs.
 */
#ifndef NIB_LOWER_H
#define NIB_LOWER_H

#include "buffers.h"
#include "network.h"
#include "plan.h"

/* Buffers of one step, f32 [m][ld] unless said otherwise: these, then those of the graph's values
 * but for the result, which is LOGITS. */
enum {
    NIB_BUFFER_GATHERED, /* the inputs of a weight in act-order */
    NIB_BUFFER_INPUT,    /* activations in the form of the next linear rows */
    NIB_BUFFER_LOGITS,
    NIB_BUFFER_VALUES,
    NIB_BUFFERS_MAX = NIB_BUFFER_VALUES + NIB_GRAPH_BUFFERS
};

/* Where operations run: each side has its own buffers. */
enum { NIB_SIDE_CPU, NIB_SIDE_GPU, NIB_SIDE_COUNT };

typedef struct nib_node {
    nib_op op;
    int side;                   /* MOVE: to which */
    const nib_kernel *row;      /* all but LINEAR and QUANT */
    const nib_layer_plan *uses; /* LINEAR, QUANT, NORM_QUANT: rows by m */
    size_t site;                /* those and GATHER: whose weight; also EMBED */
    int64_t layer;              /* decoder layer: cache, norm */
    /* Buffers: inputs and output in the order of the graph's node. In place `to` is an input.
     * ROPE_COPY: keys, values, queries. NORM_QUANT: `other` has the norm's rows for an observer. */
    int from, other, to;
    int64_t width;          /* of a row of a norm; ROPE: heads; ADD, SWIGLU, GATHER: columns */
    int64_t rows_per_token; /* NORM: heads for q and k norms, else 1 */
    /* NORM, NORM_QUANT: [width], and behind it the bias, if it has one; an address of the GPU's
     * once the runner is open */
    const float *weight;
    const nib_graph_weight *entry; /* of a norm */
    const nib_graph_node *of;      /* whose operation it is; NULL: of none */
    const int32_t *order;          /* GATHER; likewise */
    bool joins;       /* LINEAR: takes the input of the one before, and need not wait for it */
    bool wanted_only; /* only slots whose logits are wanted, from here on */
} nib_node;

typedef struct nib_lowered {
    nib_node *nodes;
    size_t count;
    bool uses_gpu;
    int cache_side;
    int buffer_count;
    int64_t ld[NIB_BUFFERS_MAX]; /* elements per token */
    uint64_t token_bytes[NIB_BUFFERS_MAX];
} nib_lowered;

/* Which use runs m tokens. */
const nib_use *nib__use_at(const nib_layer_plan *plan, int64_t m);

/* Everything lies in the arena. norms: f32, read from the checkpoint here. */
nib_status nib__lower(nib_lowered *out, const nib_network *net, const nib_assignment *plan,
                      nib_arena *arena, nib_err *err);

/* Elements and bytes per token of every buffer but INPUT; *buffers: which values they hold. */
nib_status nib__lower_sizes(nib_lowered *out, nib_graph_buffers *buffers, const nib_network *net,
                            nib_arena *arena, nib_err *err);

/* Sets the pointers of an input form inside `at`; *bytes (NULL allowed) says how many m tokens
 * need. */
void nib__input_place(nib_input *out, const nib_scheme *scheme, nib_type input, int64_t m,
                      int64_t k, char *at, uint64_t *bytes);

#endif
