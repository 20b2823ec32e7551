/* SPDX-License-Identifier: Apache-2.0
 *
 * A training run: model, data, optimizer and ranks, and the loop over steps. A step reads its
 * micro-batches from one stream, adds their gradients in a tree, clips, and applies AdamW.
 */
#ifndef NIB_TRAINER_H
#define NIB_TRAINER_H

#include "data.h"
#include "gradient.h"
#include "hash.h"
#include "session_handle.h"
#include "optimizer.h"
#include "step.h"

/* The result of a step. */
typedef struct nib_step_report {
    int64_t step;      /* from 1 */
    double loss;       /* nats per predicted token */
    double draft_loss; /* the same of the draft head, mean of the micro-batches */
    double norm;       /* of the gradient, before clipping */
    double rate;
    double seconds;
    int64_t tokens; /* of all ranks */
    bool skipped;   /* weights did not change */
    /* of a mixture of experts, in a block of gradients (load.h), valid until the next step; NULL:
     * none */
    const float *load;
    double balance; /* load-balancing loss, mean of the micro-batches, without its coefficient */
} nib_step_report;

/* The phases of a step, for timing. */
typedef enum nib_spent {
    NIB_SPENT_CAST,          /* weights into the layouts of their rows */
    NIB_SPENT_DATA,          /* tokenizing */
    NIB_SPENT_MICRO_BATCHES, /* forward, backward, and adding gradients of this rank */
    NIB_SPENT_SUM,           /* adding gradients of other ranks */
    NIB_SPENT_NORM,
    NIB_SPENT_UPDATE,
    NIB_SPENT_COUNT
} nib_spent;

typedef struct nib_trainer {
    nib_model *model;
    const nib_plan *plan;
    nib_plan *own; /* `plan`, if remade without what the device refused; NULL */
    const nib_train_config *config;
    nib_engine *engine;
    nib_arena arena;
    nib_params params;
    float *weights; /* [params.total] */
    nib_step step;
    nib_optimizer optimizer;
    nib_tree tree;
    nib_ranks *ranks; /* the caller's; NULL: one process */
    nib_data data;
    nib_hash tokenizer;    /* hash of its file and of BOS and EOS */
    int64_t micro_batches; /* per step, over all ranks */
    /* tokens of one micro-batch, in one block */
    int32_t *ids, *targets, *start, *row_ids; /* [m], [m], [m + 1], [length + 1] */
    bool *row_first;                          /* [length + 1] */
    double mean_loss, mean_norm;        /* running means, for detecting spikes; 0: no step yet */
    uint64_t spent_ns[NIB_SPENT_COUNT]; /* accumulated time */
} nib_trainer;

/* NIB_NOT_AS_ASKED: the plan is for another machine. */
nib_status nib__train_check_machine(const nib_plan *plan, nib_err *err);
/* plan and config belong to the model. ranks NULL: one process. If the device refuses a part of the
 * plan, opening plans again without it before anything runs, and logs that. */
nib_status nib__trainer_open(nib_trainer *out, nib_model *model, const nib_plan *plan,
                             nib_ranks *ranks, nib_err *err);
/* The same without allocating memory, for nib__trainer_bytes and nib__trainer_flops; works for any
 * model. */
nib_status nib__trainer_measure(nib_trainer *out, nib_model *model, const nib_plan *plan,
                                nib_ranks *ranks, nib_err *err);
void nib__trainer_close(nib_trainer *trainer);
/* Hands the trainer's own plan, if any, to the caller: see nib_train_options.ran. The trainer keeps
 * using it. */
void nib__trainer_give_plan(nib_trainer *trainer, nib_plan **ran);

/* Runs one step. NIB_CHECK_FAILED, before any weight changes: the loss or gradient is not finite or
 * spikes, and the config does not skip such steps (finite_check.h). */
nib_status nib__trainer_step(nib_trainer *trainer, nib_step_report *report, nib_err *err);

/* The next micro-batch of a stream, in the trainer's buffers; valid until the next call. */
nib_status nib__trainer_batch(nib_trainer *trainer, nib_data *data, nib_micro_batch *out,
                              nib_err *err);

/* The gradient sums held at once by the rank that holds the most. */
int nib__trainer_sums(const nib_trainer *trainer);
/* The memory of training, for the rank that holds the most. Documents much shorter than those of
 * the first micro-batch need more. */
uint64_t nib__trainer_bytes(const nib_trainer *trainer);
/* Operations per token as torchtitan counts them: 6 for each parameter except the embedding's, and
 * the products of attention. */
double nib__trainer_flops(const nib_trainer *trainer);

#endif
