/* SPDX-License-Identifier: Apache-2.0
 *
 * The parameters of a model in training: f32 master weights in one block, gradients and moments in
 * blocks of the same shape, so that an optimizer, a checkpoint or a sum over ranks sees one array.
 */
#ifndef NIB_PARAMS_H
#define NIB_PARAMS_H

#include "network.h"

typedef enum nib_param_role {
    NIB_PARAM_TABLE,  /* embedding, or head: [rows][columns] */
    NIB_PARAM_WEIGHT, /* of a linear layer: [rows][columns] */
    NIB_PARAM_BIAS,   /* [columns], rows 1 */
    NIB_PARAM_NORM    /* [columns], rows 1 */
} nib_param_role;

typedef struct nib_param {
    const char *name; /* as stored: "model.layers.0.self_attn.q_proj.weight" */
    nib_param_role role;
    int64_t layer; /* decoder layer; -1: none */
    int64_t rows, columns;
    size_t at; /* element where it begins, a multiple of NIB_LANES; zeros fill the gaps */
    const nib_graph_weight *entry; /* whose weight or bias it is */
} nib_param;

typedef struct nib_params {
    nib_param *items; /* [count], in the order of the model */
    size_t count;
    size_t total;    /* elements of a block, gaps included */
    uint64_t values; /* parameters, without the gaps */
    size_t *weight;  /* [site_count] item of each site's weight; a tied head has the embedding's */
    size_t *bias;    /* [site_count]; SIZE_MAX: none */
    size_t *norm, *norm_bias; /* of each of the graph's norms; SIZE_MAX: it has no bias */
} nib_params;

/* The list for a network; everything lies in the arena. */
nib_status nib__params_list(nib_params *out, const nib_network *net, nib_arena *arena,
                            nib_err *err);

NIB_INLINE size_t nib__param_size(const nib_param *p) { return (size_t)(p->rows * p->columns); }

/* torchtitan's initial values: the embedding normal; the head normal with deviation width^-1/2, cut
 * at 3 deviations, and so a tied embedding, which is the head; gate, q, k, v 0.02 and up, down, o
 * 0.02 / sqrt(2 (layer + 1)), cut at +-2; norms 1, biases 0. Each value is a function of the seed,
 * its parameter and its place alone. */
void nib__params_init(float *block, const nib_params *params, bool tied, uint64_t seed,
                      nib_pool *pool);
/* From the network's checkpoint, whatever it is stored as. */
nib_status nib__params_load(float *block, const nib_params *params, const nib_network *net,
                            nib_err *err);

#endif
