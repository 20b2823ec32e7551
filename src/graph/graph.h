/* SPDX-License-Identifier: Apache-2.0
 *
 * A model as a graph: the operations of one forward pass in order, the values that they pass on,
 * and the weights that they read. A family builds it once from its config (src/model/arch);
 * weights, plans, costs, buffers and lowering are walks over it. A graph knows no kernel, device,
 * buffer or file.
 */
#ifndef NIB_GRAPH_H
#define NIB_GRAPH_H

#include "fact.h"
#include "memory.h"
#include "ops.h"
#include "recipe.h"

enum { NIB_NO_ID = -1, NIB_NODE_INPUTS = 2 };

typedef enum nib_graph_weight_kind {
    NIB_WEIGHT_MATRIX, /* of a linear layer, the embedding or the head */
    NIB_WEIGHT_NORM,   /* [n], read as f32; also the bias of a router's choice */
    NIB_WEIGHT_KINDS
} nib_graph_weight_kind;

/* A weight of the model. */
typedef struct nib_graph_weight {
    nib_graph_weight_kind kind;
    nib_role role;     /* of a matrix */
    const char *name;  /* module, without .weight: "model.layers.0.self_attn.q_proj" */
    int64_t layer;     /* decoder layer; -1: outside of them */
    int64_t experts;   /* of which this matrix belongs to one; 1: no experts */
    int64_t top_k;     /* of them, chosen per token */
    int64_t n, k;      /* [n][k]; a norm has k = 1 */
    bool bias;         /* the config implies one; a norm's bias is as long as the norm */
    bool centered;     /* a norm of x - mean(x): LayerNorm */
    double offset;     /* added to the stored weight of a norm */
    size_t index;      /* among the weights of its kind */
    int64_t heads;     /* of a norm: heads with their own weights, [heads][n / heads]; 1: shared. Of
                          a matrix: heads of which it belongs to one; 0: none */
    bool bare;         /* a norm: `name` is the whole name of its tensor */
    double eps;        /* of a norm; 0: the config's */
    int64_t taps;      /* above 0: of a short convolution, [n / taps][1][taps], the newest input's
                          last */
    bool flat;         /* a norm of several heads: stored as [n] */
    bool exponential;  /* a vector whose operation reads e^x: A_log of SSM_GATES */
    bool shares_input; /* a linear layer with the same input as the one before it */
} nib_graph_weight;

/* f32 [m][columns] */
typedef struct nib_graph_value {
    int64_t columns;
    int writer; /* node */
} nib_graph_value;

typedef struct nib_graph_node {
    nib_op op;
    int in[NIB_NODE_INPUTS];    /* values; NIB_NO_ID: none */
    int out;                    /* value; NIB_NO_ID: writes state */
    int weight;                 /* weight; ROUTE: the bias, or factors of the experts' weights;
                                   ATTN: the sinks; SCALE: a factor; SHORT_CONV: its taps, which a
                                   bias may follow; DELTA_GATES, SSM_GATES: A_log, which dt_bias
                                   follows; SSM: D; NIB_NO_ID: none, which for a NORM means 1 */
    int weight_step;            /* LINEAR_EXPERTS, LINEAR_HEADS: from one weight to the next one */
    int64_t layer;              /* decoder layer, whose state it reads or writes; -1: none */
    int64_t heads;              /* NORM, ROPE, ATTN, LINEAR_HEADS: rows per token */
    int64_t channel;            /* ROPE: the first channel of a head that rotates; the first column
                                   that is read, SWIGLU: of in[1], SHORT_CONV, SSM_GATES: of in[0];
                                   NORM of a part: its first */
    bool part;                  /* NORM: of some channels alone, in place */
    double scale, cap;          /* ATTN, SCALE: nib_attn's, nib_scale's; SWIGLU: alpha and limit;
                                   SSM_GATES: the least and the largest dt */
    int64_t window;             /* ATTN: nib_attn's */
    bool chunked;               /* ATTN: nib_attn's */
    bool ahead;                 /* EMBED: it looks up the token after each. The last operation of a
                                   draft head in training: its values are logits, of the token after
                                   the next */
    int table;                  /* ROPE: index of the rotation table */
    nib_activation activation;  /* SWIGLU; alone if in[1] is NIB_NO_ID */
    bool gated;                 /* SHORT_CONV: it has both gates; else silu follows */
    bool biased;                /* SHORT_CONV: its bias follows its taps in the weights */
    const int32_t *order;       /* GATHER: [columns of out] */
    bool rates;                 /* DELTA_GATES: nib_delta_gates'; SSM_GATES: likewise -e^A_log */
    nib_matrix_size matrix;     /* GATED_DELTA, SSM */
    const nib_routing *routing; /* ROUTE, DISPATCH, LINEAR_EXPERTS, COMBINE */
} nib_graph_node;

typedef struct nib_graph {
    nib_graph_node *nodes;
    nib_graph_value *values;
    nib_graph_weight *weights;
    size_t node_count, value_count, weight_count;
    size_t *of_kind[NIB_WEIGHT_KINDS]; /* [kind_count] indices of weights, in order */
    size_t kind_count[NIB_WEIGHT_KINDS];
} nib_graph;

/* i < kind_count[kind] */
NIB_INLINE const nib_graph_weight *nib__graph_weight(const nib_graph *g, nib_graph_weight_kind kind,
                                                     size_t i)
{
    return &g->weights[g->of_kind[kind][i]];
}

/* True if matrix i is the first of its decoder layer, or outside of the layers. i > 0 */
NIB_INLINE bool nib__graph_begins_layer(const nib_graph *g, size_t i)
{
    return nib__graph_weight(g, NIB_WEIGHT_MATRIX, i)->layer !=
           nib__graph_weight(g, NIB_WEIGHT_MATRIX, i - 1)->layer;
}

/* Writes the stored shape of a weight that is read as f32; returns its rank. */
enum { NIB_NORM_RANK = 3 };
int nib__graph_vector_shape(int64_t shape[NIB_NORM_RANK], const nib_graph_weight *weight);

/* ---- building one ---- */

/* Emits nodes. Out of memory, it adds nothing more and returns id 0. */
typedef struct nib_build {
    nib_graph graph;
    nib_arena *arena;
    const nib_allocator *allocator; /* for the lists while they grow */
    size_t node_capacity, value_capacity, weight_capacity;
    const char *prefix; /* of the names of layers: "model.layers." */
    int64_t first;      /* the number of layer 0 in these names */
    int64_t layer;      /* of the last weight, and of the nodes after it */
    bool failed;
} nib_build;

void nib__build_begin(nib_build *b, nib_arena *arena, const nib_allocator *a);
/* Moves the graph into the arena. */
nib_status nib__build_end(nib_graph *out, nib_build *b, nib_err *err);

/* The name is "model.layers.LAYER.PART", with b->prefix and b->first, or PART where layer is -1.
 * Returns the weight's id. */
int nib__build_matrix(nib_build *b, nib_role role, int64_t layer, const char *part, int64_t n,
                      int64_t k, bool bias);
/* A matrix that each expert has. */
typedef struct nib_expert_part {
    nib_role role;
    const char *part; /* "mlp.experts.%d.up_proj": %d is the expert */
    int64_t n, k;
    bool bias;
} nib_expert_part;
/* Adds the matrices of all experts, expert by expert. Returns the first id; part p of expert e is
 * id + e * count + p. */
int nib__build_experts(nib_build *b, int64_t layer, const nib_routing *routing,
                       const nib_expert_part *parts, int count);
/* Adds a matrix for each head; %d is the head. Returns the first id; they are one apart. */
int nib__build_heads(nib_build *b, int64_t layer, int64_t heads, const nib_expert_part *part);
/* A copy that lives as long as the graph. */
const nib_routing *nib__build_routing(nib_build *b, const nib_routing *routing);
/* The form of a family's norms. */
typedef struct nib_norm_form {
    bool centered, bias;
    bool flat; /* nib_graph_weight.flat */
    double offset;
    double eps; /* 0: the config's */
} nib_norm_form;
int nib__build_norm(nib_build *b, int64_t layer, const char *part, int64_t heads, int64_t n,
                    nib_norm_form form);

/* A vector that is stored under its own name, without .weight. */
int nib__build_vector(nib_build *b, int64_t layer, const char *name, int64_t n);

/* The weight of a short convolution: [channels][1][taps]. */
int nib__build_taps(nib_build *b, int64_t layer, const char *part, int64_t channels, int64_t taps);

/* Each returns the value that it writes. */
int nib__emit_embed(nib_build *b, int weight);
int nib__emit_linear(nib_build *b, int x, int weight);
/* Normalizes each of a token's `heads` rows; 1: the whole token. weight NIB_NO_ID: all ones. */
int nib__emit_norm(nib_build *b, int x, int weight, int64_t heads);
/* Normalizes the channels of each token from `channel` on, as many as the weight has, in place. */
int nib__emit_norm_part(nib_build *b, int x, int weight, int64_t channel);
/* The columns of x, then those of a hidden state of [columns of x]. hidden NIB_NO_ID: the caller
 * gives one for each token. */
int nib__emit_hidden(nib_build *b, int x, int hidden);
/* Marks the last operation: nib_graph_node.ahead. */
void nib__build_ahead(nib_build *b);
/* channel: the first of each head that rotates. */
int nib__emit_rope(nib_build *b, int x, int64_t heads, int table, int64_t channel);
/* Stores keys and values in the state of their layer. Attention reads that state. v NIB_NO_ID:
 * values are the keys' first dimensions. */
void nib__emit_store(nib_build *b, int k, int v);
typedef struct nib_attention {
    int64_t heads, window;
    bool chunked;
    int64_t value_dim; /* 0: that of the keys */
    double scale, cap;
    int sinks;           /* weight; NIB_NO_ID: none */
    int64_t layers_back; /* it reads the state of the layer this many before its own */
} nib_attention;
int nib__emit_attention(nib_build *b, int q, nib_attention attention);
/* How an MLP activates. */
typedef struct nib_gating {
    nib_activation activation;
    double alpha, limit; /* NIB_SWIGLU_CLAMPED */
    int64_t channel;     /* the first column of `up` that is read */
} nib_gating;
/* up NIB_NO_ID: only the activation. A gate of one column is that of all columns of `up`; of more
 * columns than `up` has, the first ones are read. */
int nib__emit_swiglu(nib_build *b, nib_gating gating, int gate, int up);
int nib__emit_add(nib_build *b, int x, int y);
/* Experts. A routing value has top_k experts, then their weights; a value of rows of experts has
 * top_k rows per token, [m * top_k][columns / top_k], sorted by expert. vector: the router's, as
 * in nib_graph_node.weight; NIB_NO_ID: none. */
int nib__emit_route(nib_build *b, int logits, int vector, const nib_routing *routing);
int nib__emit_dispatch(nib_build *b, int x, int routing_value, const nib_routing *routing);
/* weight: the first expert's; those of the others are `step` apart. */
int nib__emit_linear_experts(nib_build *b, int rows, int weight, int step,
                             const nib_routing *routing);
/* Multiplies each of a token's `heads` rows by the weight of its head, [n][k]: the first k channels
 * become n, and those after them stay. */
int nib__emit_linear_heads(nib_build *b, int x, int weight, int64_t heads);
int nib__emit_combine(nib_build *b, int rows, int routing_value, const nib_routing *routing);
/* Returns x itself if the factor is 0 or 1 and there is no cap. */
int nib__emit_scale(nib_build *b, int x, double scale, double cap);
/* Multiplies by a weight of one element. */
int nib__emit_scale_by(nib_build *b, int x, int weight);
/* How a short convolution reads its input. gated: between two gates; x has three columns for each
 * channel, all gates before it, all gates after it, then all inputs. Else x has the inputs from
 * `channel` on, and silu follows. */
typedef struct nib_conv_form {
    bool gated, biased; /* biased: the weight after that of the taps is the bias */
    int64_t channel;
} nib_conv_form;
/* A short convolution. It keeps the last inputs in the state of its layer. */
int nib__emit_short_conv(nib_build *b, int x, int weight, nib_conv_form form);
/* Gates of the gated delta rule: beta of all heads, then their decays. a_log: a weight, which that
 * of dt_bias follows. */
int nib__emit_delta_gates(nib_build *b, int beta, int a, int a_log, bool rates);
/* The gated delta rule over q, k and v. Its matrices are in the state of its layer. */
int nib__emit_gated_delta(nib_build *b, int qkv, int gates, nib_matrix_size size);
/* Gates of the state-space recurrence, from the columns of x from `channel` on: dt of all heads,
 * from `least` to `most`, then their decays. a_log: a weight, which that of dt_bias follows; rates:
 * it has -e^A_log. */
int nib__emit_ssm_gates(nib_build *b, int x, int64_t channel, int a_log, bool rates, double least,
                        double most);
/* The state-space recurrence over x, B and C. skip: a weight, D. Its matrices are in the state of
 * its layer. */
int nib__emit_ssm(nib_build *b, int xbc, int gates, int skip, nib_matrix_size size);
/* Columns first .. first + count - 1 of each of `heads` equal parts of a row. */
typedef struct nib_columns {
    int64_t heads, first, count;
} nib_columns;
/* Copies columns of x: those of parts[0], then those of parts[1], and so on. */
int nib__emit_gather(nib_build *b, int x, const nib_columns *parts, int count);

#endif
