/* SPDX-License-Identifier: Apache-2.0
 *
 * The runner: holds packed weights, buffers and the cache, and loops over the lowered operations
 * for a ragged batch of (sequence, position, token).
 */
#ifndef NIB_RUNNER_H
#define NIB_RUNNER_H

#include "cache.h"
#include "lower.h"
#include "weights.h"

enum {
    NIB_CHUNK = NIB_CACHE_SPARE /* slots per pass; more are run in several, with the same bits */
};

/* Sees the f32 input of every linear layer before it runs: [m][ld], k wide. Calibration sets one.
 */
typedef struct nib_observer {
    void (*see)(void *ctx, size_t site, const float *x, int64_t ld, int64_t m, int64_t k);
    void *ctx;
} nib_observer;

/* What a device refuses of a plan, found while a runner is opened; the error has its words. */
typedef struct nib_refusal {
    enum {
        NIB_REFUSED_NOTHING,
        NIB_REFUSED_ROW,    /* its driver does not compile it, or there is no memory for what it
                               keeps */
        NIB_REFUSED_MEMORY, /* for all weights */
        NIB_REFUSED_DEVICE, /* it cannot be used at all */
    } what;
    const nib_kernel *row;
    uint64_t room;  /* MEMORY: bytes of weights that there was room for */
    int64_t device; /* DEVICE: its kind, NIB_DEVICE_* */
} nib_refusal;

/* What one side runs with. */
typedef struct nib_side {
    char *block; /* buffers of one pass; on the CPU then a scratch per worker */
    uint64_t block_bytes;
    char *at[NIB_BUFFERS_MAX];
    float *rope;                          /* [context][head_dim] */
    int32_t *ids, *sequences, *positions; /* [NIB_CHUNK] each, one after the other */
} nib_side;

typedef struct nib_runner {
    const nib_network *net;
    const nib_assignment *plan;
    nib_engine *engine;
    nib_arena arena;
    nib_lowered ops;
    nib_loaded *weights; /* [site_count] */
    nib_kv kv;
    nib_gpu *gpu; /* the plan's; NULL: it has none */
    nib_side sides[NIB_SIDE_COUNT];
    char *scratch;
    uint64_t scratch_bytes;         /* per worker */
    uint64_t rope_size, rope_bytes; /* elements of a table of rotations; bytes of all */
    int64_t rope_count;             /* positions that the CPU's table has; the GPU's has all */
    size_t gpu_logits;              /* rows that the GPU's buffer of logits holds */
    float *logits;                  /* [wanted][vocab] of the last step */
    size_t logits_capacity;         /* rows */
    uint64_t weight_bytes;          /* read per token */
    int64_t looked_up;              /* rows of the embedding since its pages were given back */
    nib_observer observer;          /* see NULL: none */
    bool keeps_logits;              /* those of the GPU stay there, for nib__runner_draw */
    int32_t *drawn;                 /* the GPU's; NULL: nothing was drawn there */
    uint64_t *node_ns; /* [ops.count]: each operation is waited for and timed; NULL: not */
    bool preparing;    /* operations of the GPU are compiled and not launched */
    nib_refusal refusal;
    nib_staging staging; /* while weights are loaded */
} nib_runner;

/* Takes all memory and compiles every kernel that the plan may launch before it loads a weight.
 * *refusal says what of it the device refused, if that is why it fails. */
nib_status nib__runner_open(nib_runner *out, const nib_network *net, const nib_assignment *plan,
                            int64_t sequences, int64_t context, nib_refusal *refusal, nib_err *err);
void nib__runner_close(nib_runner *runner);
/* Bytes that a runner takes on a GPU beside weights, keys and values, at most: all operations
 * there. */
nib_status nib__runner_gpu_bytes(uint64_t *out, const nib_network *net, const nib_layer *layers,
                                 nib_type dtype, int64_t context, nib_err *err);
/* One operation for m tokens; of the GPU: it is launched. */
nib_status nib__runner_node(nib_runner *runner, const nib_node *node, int64_t m, nib_err *err);
/* How many products, from this one on, of `left` nodes share one input and one round of the workers
 * for m tokens: q, k and v, gate and up. */
size_t nib__runner_joined(const nib_node *node, size_t left, int64_t m);
/* So many of them; of the GPU one. */
nib_status nib__runner_products(nib_runner *runner, const nib_node *nodes, size_t count, int64_t m,
                                nib_err *err);
/* The outputs of a product of m tokens, `count` times `step` of them, among the workers. */
void nib__share_outputs(nib_pool *pool, int64_t count, int64_t step, int64_t m, nib_pool_job job,
                        void *ctx);
nib_status nib__runner_step(nib_runner *runner, const nib_slot *slots, size_t count,
                            const float **logits, nib_err *err);

/* Whether logits come about on the GPU. */
bool nib__runner_logits_on_device(const nib_runner *runner);
/* The token that a row of the GPU draws from the logits there of a wanted slot of the last step,
 * which was of one pass; `draw` has all but the addresses. */
nib_status nib__runner_draw(nib_runner *runner, const nib_kernel *row, nib_draw draw,
                            int64_t wanted, int32_t *token, nib_err *err);

#endif
