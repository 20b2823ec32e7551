/* SPDX-License-Identifier: Apache-2.0
 *
 * A micro-batch of training as a list: the forward pass of a graph, then the gradients of its
 * values and weights, in the order in which they are computed. Every operation has its rule in
 * training.c; docs/architecture.md has the order of sums.
 *
 * Each result is a value of its own and is written once: the executor decides which of
 * them share memory.
 */
#ifndef NIB_TRAINING_H
#define NIB_TRAINING_H

#include "graph.h"

/* What the forward pass keeps for the gradients. The rest is computed again, to the same bits. */
typedef enum nib_ac {
    NIB_AC_NONE,      /* all that they read */
    NIB_AC_SELECTIVE, /* all but what norms and activations make */
    NIB_AC_FULL       /* what a decoder layer reads of the layers before it */
} nib_ac;

enum { NIB_TRAINING_INPUTS = 5, NIB_TRAINING_OUTPUTS = 3 };

typedef enum nib_training_kind {
    NIB_TRAINING_ROWS,  /* f32 [m][columns] */
    NIB_TRAINING_STATE, /* keys and values of a layer */
    NIB_TRAINING_PACKED /* an input of a linear layer [m][columns], in the form that the gradient of
                           its weight takes */
} nib_training_kind;

typedef struct nib_training_value {
    nib_training_kind kind;
    int64_t columns;
} nib_training_value;

/* Operations of the graph have its inputs and output. Besides:
 *
 *   COPY        k, v                    -> state
 *   ATTN        q, state                -> out, log-sum [m][heads]
 *   CAST_T      x                       -> packed
 *   XENT        logits                  -> their gradient, loss [m]
 *   LINEAR_DX   dy                      -> dx
 *   LINEAR_DW   dy, packed                 the gradients of weight and bias
 *   NORM_DX     x, dy, what is added    -> dx, 1 / deviation [m][heads], mean [m][heads]
 *   NORM_DW     x, dy, 1 / deviation, mean    the gradients of weight and bias
 *   SWIGLU_DX   dy, gate, up            -> dgate, dup
 *   SCALE_DX    dy, x                   -> dx
 *   ATTN_DX     dy, q, out, log-sum, state -> dq, dk, dv
 *   EMBED_DW    dy                         the gradient of the table
 *   ADD         a contribution, the sum so far -> the sum */
typedef struct nib_training_node {
    nib_op op;
    int in[NIB_TRAINING_INPUTS];   /* values; NIB_NO_ID: none */
    int out[NIB_TRAINING_OUTPUTS]; /* the same */
    int weight;                    /* of the graph; NIB_NO_ID: none */
    int64_t layer, heads;          /* as the graph's nodes have them */
    const nib_graph_node *of;      /* whose operation or gradient it is; NULL: ADD, XENT */
    bool inverse;                  /* ROPE: it rotates back */
} nib_training_node;

typedef struct nib_training {
    nib_training_node *nodes;
    nib_training_value *values;
    size_t count, value_count;
    size_t forward_end; /* of the list */
} nib_training;

/* The list lies in the arena. */
nib_status nib__graph_training(nib_training *out, const nib_graph *graph, nib_ac checkpointing,
                               nib_arena *arena, nib_err *err);

#endif
