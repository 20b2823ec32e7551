/* SPDX-License-Identifier: Apache-2.0
 *
 * A micro-batch of training as a list of operations: the forward pass of a graph, then the
 * gradients of its values and weights, in the order of computation. training.c has the rule of
 * every operation, docs/architecture.md the order of sums.
 *
 * Each result is a value of its own and is written once. The executor decides which values share
 * memory.
 */
#ifndef NIB_TRAINING_H
#define NIB_TRAINING_H

#include "graph.h"

/* What the forward pass keeps for the gradients. The rest is recomputed to the same bits. */
typedef enum nib_ac {
    NIB_AC_NONE,      /* everything that gradients read */
    NIB_AC_SELECTIVE, /* all but the outputs of norms and activations */
    NIB_AC_FULL       /* only what a decoder layer reads from earlier layers */
} nib_ac;

enum { NIB_TRAINING_INPUTS = 5, NIB_TRAINING_OUTPUTS = 3 };

typedef enum nib_training_kind {
    NIB_TRAINING_ROWS,   /* f32 [m][columns] */
    NIB_TRAINING_STATE,  /* keys and values of a layer */
    NIB_TRAINING_PACKED, /* [m][columns]: linear layer input, packed for LINEAR_DW */
    NIB_TRAINING_ORDER   /* which rows each expert has */
} nib_training_kind;

typedef struct nib_training_value {
    nib_training_kind kind;
    int64_t columns;
} nib_training_value;

/* Operations of the graph keep its inputs and output. These differ or are added:
 *
 *   STORE_KV    k, v                    -> state
 *   ATTN        q, state                -> out, log-sum [m][heads]
 *   CAST_T      x                       -> packed
 *   XENT        logits                  -> their gradient, loss [m]
 *   HIDDEN      x, a hidden state       -> the columns of both
 *   HIDDEN, inverse    dy               -> the gradients of both
 *   LINEAR_DX   dy                      -> dx
 *   LINEAR_DW   dy, packed                 the gradients of weight and bias
 *   NORM_DX     x, dy, sum so far       -> dx + sum, 1 / deviation [m][heads], mean [m][heads]
 *   NORM_DW     x, dy, 1 / deviation, mean    the gradients of weight and bias
 *   SWIGLU_DX   dy, gate, up            -> dgate, dup
 *   SCALE_DX    dy, x                   -> dx
 *   ATTN_DX     dy, q, out, log-sum, state -> dq, dk, dv; if the keys are also the values,
 *               dk is the sum of both gradients, without dv
 *   EMBED_DW    dy                         the gradient of the table
 *   SINKS_DW    dy, out, log-sum           the gradient of the sinks of ATTN
 *   SHORT_CONV_DX    dy, x              -> dx, the gradients of its sums
 *   SHORT_CONV_DW    gradients of sums, x  the gradient of the taps
 *   GATHER_DX   dy, sum so far          -> dx + sum
 *   DELTA_GATES_DX   dy, b, a           -> db, da, the gradients of A_log [m][heads]
 *   SSM_GATES_DX     dy, x              -> dx, those of dt_bias and A_log [m][heads]
 *   GATED_DELTA_DX   dy, x, gates       -> dx, dgates
 *   SSM_DX           dy, x, gates       -> dx, dgates, those of D [m][heads]
 *   BIAS_DW     dy                         the gradient of a vector that is added to each token
 *   DISPATCH    x, routing              -> rows, order
 *   LINEAR_HEADS, its CAST_T, LINEAR_DX and LINEAR_DW: as for a linear layer, but of each head;
 *               channels that pass a head unchanged pass their gradient unchanged
 *   LINEAR_EXPERTS, its CAST_T, LINEAR_DX and LINEAR_DW: as for a linear layer, and last the order;
 *               the products are those of each expert with its rows
 *   COMBINE     rows, routing, order    -> the sum of each token's rows
 *   ROUTE_SUMS  logits, routing            for the load-balancing loss, as BALANCE, which sums up
 *   ROUTE_DX    gradients of weights, logits, routing -> dx, weights before their factors
 *   ROUTE_DW    gradients of weights, routing, weights before their factors
 *                                          the gradients of these factors
 *   COMBINE_DW  dy, rows, order         -> the gradients of weights [m][top_k]
 *   The gradient of COMBINE is DISPATCH (dy, none, order) and that of DISPATCH is COMBINE.
 *   ADD         a contribution, the sum so far -> the sum */
typedef struct nib_training_node {
    nib_op op;
    int in[NIB_TRAINING_INPUTS];   /* values; NIB_NO_ID: none */
    int out[NIB_TRAINING_OUTPUTS]; /* the same */
    int weight;                    /* index in the graph; NIB_NO_ID: none */
    int64_t layer, heads;          /* as in nib_graph_node */
    const nib_graph_node *of;      /* node of this operation or gradient; NULL: ADD, XENT */
    bool inverse;                  /* ROPE: rotate back; HIDDEN: split */
    bool ahead;                    /* XENT: of a draft head, whose targets are one token later */
    /* LINEAR_DW, CAST_T of a weight that several linear layers have: their gradients are added from
     * the last layer to the first */
    bool adds;    /* to the gradient so far */
    bool partial; /* another one adds to this gradient */
} nib_training_node;

typedef struct nib_training {
    nib_training_node *nodes;
    nib_training_value *values;
    size_t count, value_count;
    size_t forward_end; /* number of nodes of the forward pass */
} nib_training;

/* Makes the list, in the arena. */
nib_status nib__graph_training(nib_training *out, const nib_graph *graph, nib_ac checkpointing,
                               nib_arena *arena, nib_err *err);

#endif
