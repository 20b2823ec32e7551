/* SPDX-License-Identifier: Apache-2.0
 *
 * A training run: model, data, optimizer and ranks, and the loop over steps. A step reads its
 * micro-batches from one stream, adds their gradients in a tree, clips, and takes a step of AdamW.
 */
#ifndef NIB_TRAINER_H
#define NIB_TRAINER_H

#include "data.h"
#include "gradient.h"
#include "hash.h"
#include "session_handle.h"
#include "optimizer.h"
#include "step.h"

/* What a step came to. */
typedef struct nib_step_report {
    int64_t step; /* from 1 */
    double loss;  /* nats per predicted token */
    double norm;  /* of the gradient, before it is clipped */
    double rate;
    double seconds;
    int64_t tokens; /* of all ranks */
    bool skipped;   /* weights did not change */
} nib_step_report;

/* What a step's time goes to. */
typedef enum nib_spent {
    NIB_SPENT_CAST,          /* weights into the layouts of their rows */
    NIB_SPENT_DATA,          /* texts into ids */
    NIB_SPENT_MICRO_BATCHES, /* forward and backward, and adding what is here */
    NIB_SPENT_SUM,           /* adding what other ranks have */
    NIB_SPENT_NORM,
    NIB_SPENT_UPDATE,
    NIB_SPENT_COUNT
} nib_spent;

typedef struct nib_trainer {
    nib_model *model;
    const nib_plan *plan;
    nib_plan *own; /* `plan`, where the device refused a part of the one that was given; NULL */
    const nib_train_config *config;
    nib_engine *engine;
    nib_arena arena;
    nib_params params;
    float *weights; /* [params.total] */
    nib_step step;
    nib_optimizer optimizer;
    nib_tree tree;
    nib_ranks *ranks; /* NULL: one process; the caller's */
    nib_data data;
    nib_hash tokenizer;    /* its file, and the ids that it puts around a document */
    int64_t micro_batches; /* of a step, over all ranks */
    /* of one micro-batch, in one block */
    int32_t *ids, *targets, *start, *row_ids; /* [m], [m], [m + 1], [length + 1] */
    bool *row_first;                          /* [length + 1] */
    double mean_loss, mean_norm;              /* running, for spikes; 0: no step yet */
    uint64_t spent_ns[NIB_SPENT_COUNT];       /* time so far */
} nib_trainer;

/* NIB_NOT_AS_ASKED: the plan is for a machine that is not this one. */
nib_status nib__train_is_here(const nib_plan *plan, nib_err *err);
/* plan and config belong to the model. ranks NULL: one process. What a device refuses of the plan
 * is planned again without it before anything runs, and the log says so. */
nib_status nib__trainer_open(nib_trainer *out, nib_model *model, const nib_plan *plan,
                             nib_ranks *ranks, nib_err *err);
/* The same without its memory: for nib__trainer_bytes and nib__trainer_flops, of any model. */
nib_status nib__trainer_measure(nib_trainer *out, nib_model *model, const nib_plan *plan,
                                nib_ranks *ranks, nib_err *err);
void nib__trainer_close(nib_trainer *trainer);
/* The plan that it made itself, if any, to whoever reads it after the trainer: see
 * nib_train_options.ran. What still runs goes on by it. */
void nib__trainer_give_plan(nib_trainer *trainer, nib_plan **ran);

/* One step: NIB_CHECK_FAILED if its loss or gradient is not finite or spikes, before any weight
 * changes, unless the config skips such steps (finite_check.h). */
nib_status nib__trainer_step(nib_trainer *trainer, nib_step_report *report, nib_err *err);

/* The next micro-batch of a stream, in the trainer's buffers: until the next call. */
nib_status nib__trainer_batch(nib_trainer *trainer, nib_data *data, nib_batch *out, nib_err *err);

/* Sums of gradients that are held at once, of the rank that holds the most. */
int nib__trainer_sums(const nib_trainer *trainer);
/* Bytes of everything that training holds, of the rank that holds the most. Of documents that are
 * much shorter than those of the first micro-batch it takes more. */
uint64_t nib__trainer_bytes(const nib_trainer *trainer);
/* torchtitan's count of operations per token: 6 for each parameter but the embedding's, and the
 * products of attention. */
double nib__trainer_flops(const nib_trainer *trainer);

#endif
