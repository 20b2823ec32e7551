/* SPDX-License-Identifier: Apache-2.0
 *
 * Parts of an operation as jobs of the pool: one row on one set of arguments, or several that share
 * a round of the workers.
 */
#ifndef NIB_RUNNER_PARTS_H
#define NIB_RUNNER_PARTS_H

#include "runner.h"

typedef struct nib_part {
    const nib_kernel *row;
    const void *args;
    int64_t step, end; /* of its own range per index, and in all; step 0: indexes are the range */
    char *scratch;
    uint64_t scratch_bytes;
} nib_part;

/* Parts that share one range of indexes. */
typedef struct nib_parts {
    nib_part *parts; /* [count] */
    int64_t *first;  /* [count + 1] first index of each */
    size_t count;
} nib_parts;

/* Products of up to FEW_TOKENS tokens read the weights once; larger ones prepare their inputs for
 * each part. */
enum { NIB_FEW_TOKENS = 16 };

/* A row's arguments over a range of `count` parts of `step` units, `end` units in all. */
nib_part nib__part_of(const nib_runner *r, const nib_kernel *row, const void *args, int64_t step,
                      int64_t end);
/* nib_pool_job for one nib_part, and for nib_parts. */
void nib__job_part(void *ctx, int worker, int64_t begin, int64_t end);
void nib__job_parts(void *ctx, int worker, int64_t begin, int64_t end);
/* Indexes per part, so that no worker waits long for an interrupted one. */
int64_t nib__grain_for(const nib_runner *r, int64_t count);
nib_status nib__run_on_gpu(nib_runner *r, const nib_kernel *row, const void *args, nib_err *err);
/* Runs on the pool, or as one launch on the GPU. */
nib_status nib__run_rows(nib_runner *r, const nib_kernel *row, const void *args, int64_t count,
                         nib_err *err);
/* A float pointer or a GPU address; every buffer but INPUT holds f32. */
NIB_INLINE float *nib__node_values(const nib_runner *r, const nib_node *node, int buffer)
{
    return (float *)(void *)r->sides[node->side].at[buffer];
}
/* Whether the attention that follows reads the keys in `from`, which the operation has stored. */
NIB_INLINE bool nib__stores_keys(const nib_node *node)
{
    return node->op == NIB_OP_STORE_KV || node->op == NIB_OP_ROPE_COPY;
}
/* How the input of `w` is quantized from rows of f32, [m][ldx] at x, to the form at `at`. */
nib_quant nib__quant_of(const nib_runner *r, const nib_weight *w, int side, const float *x,
                        int64_t ldx, char *at, int64_t m);

/* runner_experts.c */
nib_status nib__run_route(nib_runner *r, const nib_node *node, int64_t m, nib_err *err);
nib_status nib__run_sort(nib_runner *r, const nib_node *node, int64_t m, nib_err *err);
nib_status nib__run_dispatch(nib_runner *r, const nib_node *node, int64_t m, nib_err *err);
nib_status nib__run_combine(nib_runner *r, const nib_node *node, int64_t m, nib_err *err);
/* count: 2 for gate and up of the same rows, in one round. */
nib_status nib__run_experts(nib_runner *r, const nib_node *nodes, size_t count, int64_t m,
                            nib_err *err);
nib_status nib__experts_open(nib_runner *r, nib_err *err);
/* Bytes of NIB_BUFFER_ROUTED for m tokens. */
uint64_t nib__routed_bytes(const nib_routing *rule, int64_t m);
/* The rows of m tokens in NIB_BUFFER_ROUTED of a side. */
nib_expert_rows nib__routed_rows(const nib_runner *r, const nib_routing *rule, int side, int64_t m);
/* failed: nib_sort_rows.failed, not 0. */
nib_status nib__fail_choice(const nib_runner *r, int64_t layer, int32_t failed, nib_err *err);

/* runner_grouped.c: experts on a GPU in one launch, and choices that failed there */
/* If the experts of `node` run in one launch: allocates its slab, with room for their weights. */
nib_status nib__experts_reserve(nib_runner *r, nib_node *node, nib_err *err);
/* Writes the tables of the slabs, after the weights were loaded. */
nib_status nib__experts_describe(nib_runner *r, nib_err *err);
void nib__experts_close(nib_runner *r);
nib_status nib__run_grouped(nib_runner *r, const nib_node *nodes, size_t count, int64_t m,
                            nib_err *err);
/* Allocates what a GPU says of choices that fail. */
nib_status nib__experts_watch(nib_runner *r, nib_err *err);
/* The error if a choice of this pass failed on the GPU. */
nib_status nib__experts_check(nib_runner *r, nib_err *err);
/* Upper bound of GPU bytes for the tables of slabs. */
uint64_t nib__experts_table_bytes(const nib_graph *g);

#endif
