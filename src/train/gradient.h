/* SPDX-License-Identifier: Apache-2.0
 *
 * The sum of the gradients of a step's micro-batches: a binary tree over their indices, independent
 * of which rank computed them. A leaf is a micro-batch; a node is the sum left + right, added as
 * soon as both are available. With `count` leaves, a power of two, any number of ranks up to
 * `count` gives the same bits.
 */
#ifndef NIB_GRADIENT_H
#define NIB_GRADIENT_H

#include "step.h"
#include "planner.h"
#include "ranks.h"

enum { NIB_TREE_LEVELS = 32 };

typedef struct nib_tree_node {
    int level;
    int64_t index; /* within its level */
    float *sum;    /* [total] */
    nib_losses losses;
} nib_tree_node;

typedef struct nib_tree {
    nib_pool *pool;
    nib_ranks *ranks; /* NULL: one process */
    const nib_kernel *add;
    uint64_t total; /* elements of a block */
    int64_t count;  /* leaves of a step, over all ranks */
    nib_tree_node held[2 * NIB_TREE_LEVELS];
    int held_count;
    float *spare[2 * NIB_TREE_LEVELS]; /* free blocks */
    int spare_count;
} nib_tree;

/* add: a row of NIB_OP_ADD. */
void nib__tree_init(nib_tree *out, nib_pool *pool, nib_ranks *ranks, const nib_kernel *add,
                    uint64_t total, int64_t count);
void nib__tree_free(nib_tree *tree);

/* The first leaf of a rank; the first of rank + 1 is the end. */
int64_t nib__tree_first(int64_t count, int rank, int ranks);

/* The most blocks that a rank holds at once, within its leaves or while ranks exchange. */
int nib__tree_blocks(int64_t count, int rank, int ranks);

/* A block [total] for the next leaf's gradient, owned by the tree. */
nib_status nib__tree_block(nib_tree *tree, float **out, nib_err *err);
/* Returns a block that was not put. */
void nib__tree_release_block(nib_tree *tree, float *block);
/* Adds a leaf whose gradient is in the block of the last call. */
void nib__tree_put(nib_tree *tree, int64_t leaf, float *block, nib_losses losses);
/* Call after all leaves of every rank were put: the sum, equal on every rank, in a block that is
 * valid until the next call. */
nib_status nib__tree_sum(nib_tree *tree, const float **sum, nib_losses *losses, const char *what,
                         nib_err *err);

#endif
