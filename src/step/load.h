/* SPDX-License-Identifier: Apache-2.0
 *
 * The load of a model's experts: how many tokens chose each, and the sums of their probabilities.
 * These numbers lie behind the gradients in the same block, so they are summed over micro-batches
 * and ranks like them. Owns the bias update of routers that are balanced by a bias.
 *
 * Behind the gradients: counts [layers][experts], sums [layers][experts], the loss [1].
 */
#ifndef NIB_LOAD_H
#define NIB_LOAD_H

#include "network.h"

typedef struct nib_load {
    int64_t layers, experts; /* decoder layers with a mixture; experts of the largest; 0: none */
    bool balances;           /* the model has a load-balancing loss */
    nib_balance_over over;   /* its tokens */
    uint64_t at;             /* elements before the counts */
    int64_t *mixture;        /* [decoder layers] index among those with a mixture; -1: none */
    const nib_graph_node **route; /* [layers] */
} nib_load;

/* Lists the mixtures of a network; allocates in the arena. `at`: elements of the gradients. */
nib_status nib__load_list(nib_load *out, const nib_network *net, uint64_t at, nib_arena *arena,
                          nib_err *err);

/* Elements of a block of gradients and, if the model has experts, their load. */
NIB_INLINE uint64_t nib__load_block(const nib_load *load)
{
    return load->layers == 0
               ? load->at
               : load->at +
                     (uint64_t)nib__round_up(2 * load->layers * load->experts + 1, NIB_LANES);
}
/* [experts] tokens that chose each expert of mixture i. */
NIB_INLINE float *nib__load_counts(const nib_load *load, const float *block, int64_t i)
{
    return (float *)(uintptr_t)block + load->at + (uint64_t)(i * load->experts);
}
/* [experts] sums of probabilities, for the loss. */
NIB_INLINE float *nib__load_sums(const nib_load *load, const float *block, int64_t i)
{
    return (float *)(uintptr_t)block + load->at + (uint64_t)((load->layers + i) * load->experts);
}
NIB_INLINE float *nib__load_loss(const nib_load *load, const float *block)
{
    return (float *)(uintptr_t)block + load->at + (uint64_t)(2 * load->layers * load->experts);
}

/* The most and least loaded experts of a step. */
typedef struct nib_load_extremes {
    double mean;        /* tokens per expert, of all layers */
    double most, least; /* tokens of the most and the least loaded expert, relative to the mean of
                            its layer */
    int64_t most_layer, least_layer; /* decoder layers */
} nib_load_extremes;
nib_load_extremes nib__load_extremes(const nib_load *load, const float *block);

/* Adds coefficient * sign(mean of counts - count), minus the mean of these over the experts, to a
 * bias [experts] that only chooses (DeepSeek-AI, 2024; minus the mean as in torchtitan). */
void nib__load_update_bias(float *bias, const float *counts, int64_t experts, double coefficient);

#endif
