/* SPDX-License-Identifier: Apache-2.0
 *
 * The sum of the gradients of a step's micro-batches: a binary tree over their indices, whichever
 * rank computed them. A leaf is a micro-batch; a node is added, left + right, as soon as both are
 * there. With `count` leaves a power of two, any number of ranks up to it gives the same bits.
 */
#ifndef NIB_GRADIENT_H
#define NIB_GRADIENT_H

#include "params.h"
#include "planner.h"
#include "ranks.h"

enum { NIB_TREE_LEVELS = 32 };

typedef struct nib_tree_node {
    int level;
    int64_t index; /* in its level */
    float *sum;    /* [total] */
    double loss;
} nib_tree_node;

typedef struct nib_tree {
    nib_pool *pool;
    nib_ranks *ranks; /* NULL: one process */
    const nib_kernel *add;
    size_t total;  /* elements of a block */
    int64_t count; /* leaves of a step, over all ranks */
    nib_tree_node held[2 * NIB_TREE_LEVELS];
    int held_count;
    float *spare[2 * NIB_TREE_LEVELS]; /* blocks that wait for use */
    int spare_count;
} nib_tree;

/* add: a row of NIB_OP_ADD. */
void nib__tree_init(nib_tree *out, nib_pool *pool, nib_ranks *ranks, const nib_kernel *add,
                    size_t total, int64_t count);
void nib__tree_free(nib_tree *tree);

/* The leaves of a rank: first..last of `count`. */
int64_t nib__tree_first(int64_t count, int rank, int ranks);

/* The most blocks that a rank holds at once, between the leaves of a step or between ranks. */
int nib__tree_blocks(int64_t count, int rank, int ranks);

/* A block [total] for the next leaf's gradient, which the tree owns. */
nib_status nib__tree_block(nib_tree *tree, float **out, nib_err *err);
/* Gives back a block that is not put. */
void nib__tree_block_back(nib_tree *tree, float *block);
/* The leaf's gradient is in the block of the last call. */
void nib__tree_put(nib_tree *tree, int64_t leaf, float *block, double loss);
/* After all leaves of every rank were put: the sum, the same on every rank. The block is the
 * tree's until the next call. */
nib_status nib__tree_sum(nib_tree *tree, const float **sum, double *loss, const char *what,
                         nib_err *err);

#endif
