/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of a model in training: f32 master weights in one block, and gradients and moments
 * in blocks of the same layout. So optimizers, checkpoints and sums over ranks work on one array.
 */
#ifndef NIB_PARAMS_H
#define NIB_PARAMS_H

#include "load.h"

typedef enum nib_param_role {
    NIB_PARAM_TABLE,    /* embedding or head: [rows][columns] */
    NIB_PARAM_WEIGHT,   /* of a linear layer: [rows][columns] */
    NIB_PARAM_BIAS,     /* [columns], rows 1 */
    NIB_PARAM_NORM,     /* [columns], rows 1: also factors of the experts' weights */
    NIB_PARAM_SINKS,    /* [columns], rows 1: of attention */
    NIB_PARAM_TAPS,     /* [columns], rows 1: of a short convolution, [channels][taps] */
    NIB_PARAM_SHIFT,    /* [columns], rows 1: its bias */
    NIB_PARAM_LOG_RATE, /* [columns], rows 1: A_log of a recurrence */
    NIB_PARAM_FIXED, /* [columns], rows 1: the number of a layer, a buffer in transformers. It has
                         no gradient, and does not change */
    NIB_PARAM_CHOICE /* [columns], rows 1: a bias that only chooses experts. It has no gradient,
                         and changes by the load of the experts instead */
} nib_param_role;

typedef struct nib_param {
    const char *name; /* as stored: "model.layers.0.self_attn.q_proj.weight" */
    nib_param_role role;
    int64_t layer; /* decoder layer; -1: none */
    int64_t rows, columns;
    uint64_t at;                   /* offset in elements, a multiple of NIB_LANES; gaps are zeros */
    const nib_graph_weight *entry; /* the weight in the graph */
} nib_param;

typedef struct nib_params {
    nib_param *items; /* [count], in the order of the model */
    size_t count;
    uint64_t total;  /* elements of a block, including gaps */
    uint64_t values; /* number of parameters, without gaps */
    size_t *weight;  /* [site_count] item of each site's weight; for a tied head, the embedding's */
    size_t *bias;    /* [site_count]; SIZE_MAX: none */
    size_t *norm, *norm_bias; /* per norm of the graph; SIZE_MAX: no bias */
    nib_load load;            /* of experts, behind the gradients of a block */
} nib_params;

/* Lists the parameters of a network; allocates in the arena. */
nib_status nib__params_list(nib_params *out, const nib_network *net, nib_arena *arena,
                            nib_err *err);

NIB_INLINE uint64_t nib__param_size(const nib_param *p) { return (uint64_t)(p->rows * p->columns); }

NIB_INLINE bool nib__param_has_gradient(const nib_param *p)
{
    return p->role != NIB_PARAM_CHOICE && p->role != NIB_PARAM_FIXED;
}

/* torchtitan's initial values: the embedding normal with deviation 1; the head (and a tied
 * embedding) normal with deviation width^-1/2, cut at 3 deviations; gate, q, k, v 0.02 and up,
 * down, o, routers and sinks 0.02 / sqrt(2 (layer + 1)), cut at +-2; norms, factors and numbers of
 * layers 1, biases 0. Beyond torchtitan: taps of short convolutions as PyTorch's Conv1d, uniform
 * within taps^-1/2; A_log the log of a uniform value from 0 to 16, dt_bias and D 1. Each value
 * depends only on the seed, its parameter and its position. */
void nib__params_init(float *block, const nib_params *params, bool tied, uint64_t seed,
                      nib_pool *pool);
/* Loads the values from the network's checkpoint, in any storage format. */
nib_status nib__params_load(float *block, const nib_params *params, const nib_network *net,
                            nib_err *err);

#endif
