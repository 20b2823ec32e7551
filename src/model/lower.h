/* SPDX-License-Identifier: Apache-2.0
 *
 * Lowering: network + plan -> a flat list of operations on numbered buffers. The runner only loops
 * over this list, so what the plan explains is what runs.
 */
#ifndef NIB_LOWER_H
#define NIB_LOWER_H

#include "buffers.h"
#include "network.h"
#include "plan.h"

/* Buffers of one step, f32 [m][ld] unless noted: these, then one for each buffer of the graph's
 * values except the result, which is LOGITS. */
enum {
    NIB_BUFFER_GATHERED, /* input of a weight in act-order */
    NIB_BUFFER_INPUT,    /* activations in the form that the next linear rows read */
    NIB_BUFFER_ROUTED,   /* the rows of a mixture's experts: nib_expert_rows, without gaps */
    NIB_BUFFER_LOGITS,
    NIB_BUFFER_VALUES,
    NIB_BUFFERS_MAX = NIB_BUFFER_VALUES + NIB_GRAPH_BUFFERS
};

/* Where operations run; each side has its own buffers. */
enum { NIB_SIDE_CPU, NIB_SIDE_GPU, NIB_SIDE_COUNT };

typedef struct nib_node {
    nib_op op;
    int side;                   /* MOVE: the destination */
    const nib_kernel *row;      /* all but LINEAR and QUANT */
    const nib_layer_plan *uses; /* LINEAR, QUANT, NORM_QUANT: rows for each range of m */
    size_t site;                /* site of the weight: these, GATHER and EMBED */
    int64_t layer;              /* decoder layer: cache, norm */
    /* Buffers: inputs and output in the order of the graph's node; `to` is also an input if the
     * operation works in place. ROPE_COPY: keys, values, queries. NORM_QUANT: `other` has the
     * norm's rows, for an observer. */
    int from, other, to;
    int64_t width; /* NORM: of a row; ROPE, DELTA_GATES, SSM_GATES: heads; ADD, SWIGLU, GATHER:
                               columns; SHORT_CONV: channels */
    int64_t rows_per_token; /* NORM: heads for q and k norms, else 1; GATHER: likewise, or 0 */
    int64_t from_column, to_column; /* GATHER: the first of a row */
    /* NORM, NORM_QUANT: [width], followed by the bias, if any; SHORT_CONV: [taps][width], likewise;
     * DELTA_GATES: A_log, then dt_bias; SSM_GATES: e^A_log, then dt_bias; SSM: D; a GPU address
     * once the runner is open */
    const float *weight;
    const nib_graph_weight *entry; /* NORM, NORM_QUANT */
    const nib_graph_node *of;      /* the graph's node; SORT, MOVE of ROUTED: with the routing */
    const int32_t *order;          /* GATHER; a GPU address likewise */
    /* LINEAR_EXPERTS, LINEAR_HEADS: [weight_count], one for each expert or head; `site` is the
     * first one's, and the others are site_step apart */
    const nib_layer_plan **weights;
    int64_t weight_count;
    int site_step;
    char *slab;       /* LINEAR_EXPERTS in one launch: a GPU address, see nib__experts_reserve */
    bool joins;       /* LINEAR: reads the same input as the node before, so need not wait for it */
    bool wanted_only; /* from here on, only slots whose logits are wanted */
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

/* The use that runs m tokens. */
const nib_use *nib__use_at(const nib_layer_plan *plan, int64_t m);

/* All memory is from the arena. Norm weights are read from the checkpoint here, as f32. */
nib_status nib__lower(nib_lowered *out, const nib_network *net, const nib_assignment *plan,
                      nib_arena *arena, nib_err *err);

/* Elements and bytes per token of every buffer but INPUT; *buffers maps values to buffers. */
nib_status nib__lower_sizes(nib_lowered *out, nib_graph_buffers *buffers, const nib_network *net,
                            nib_arena *arena, nib_err *err);

/* Which buffers hold values when operation `at` begins that it or a later one reads. */
void nib__lowered_live(bool live[NIB_BUFFERS_MAX], const nib_lowered *ops, size_t at);

/* Sets the pointers of an input form inside `at`; *bytes (NULL allowed) is the size for m
 * tokens. */
void nib__input_place(nib_input *out, const nib_scheme *scheme, nib_type input, int64_t m,
                      int64_t k, char *at, uint64_t *bytes);

#endif
