/* SPDX-License-Identifier: Apache-2.0
 *
 * The runner: holds packed weights, buffers and the KV cache, and loops over the lowered operations
 * for a ragged batch of (sequence, position, token).
 */
#ifndef NIB_RUNNER_H
#define NIB_RUNNER_H

#include "cache.h"
#include "key_check.h"
#include "lower.h"
#include "weights.h"

enum {
    NIB_CHUNK = NIB_CACHE_SPARE /* slots per pass; more slots run in several passes, with the same
                                   bits */
};

/* see: the f32 input of every linear layer before it runs: [m][ld], k wide. Calibration sets one.
 * replace: what a linear layer outside of experts reads instead of x: [m][k], until the next call
 * but two for m <= NIB_FEW_TOKENS, else until the next; NULL: x. On the CPU in plans of f32 only.
 * routes: a router's logits before each ROUTE, [m][ld] in host memory; what it changes is used.
 * NULL: none. */
typedef struct nib_observer {
    void (*see)(void *ctx, size_t site, const float *x, int64_t ld, int64_t m, int64_t k);
    const float *(*replace)(void *ctx, size_t site, const float *x, int64_t ld, int64_t m,
                            int64_t k);
    void (*routes)(void *ctx, float *logits, int64_t ld, int64_t m);
    void *ctx;
} nib_observer;

/* What a device refused of a plan while a runner was opened; the error has the text. */
typedef struct nib_refusal {
    enum {
        NIB_REFUSED_NOTHING,
        NIB_REFUSED_ROW,    /* the driver cannot compile the row, or the data it keeps does not
                               fit */
        NIB_REFUSED_MEMORY, /* not all weights fit */
        NIB_REFUSED_DEVICE, /* the device cannot be used at all */
    } what;
    const nib_kernel *row;
    uint64_t room;  /* MEMORY: bytes of weights that did fit */
    int64_t device; /* DEVICE: its kind, NIB_DEVICE_* */
} nib_refusal;

/* Buffers of one side. */
typedef struct nib_side {
    char *block; /* buffers of one pass; on the CPU followed by a scratch per worker */
    uint64_t block_bytes;
    char *at[NIB_BUFFERS_MAX];
    float *rope;                          /* [context][head_dim] */
    int32_t *ids, *sequences, *positions; /* [NIB_CHUNK] each, contiguous */
} nib_side;

typedef struct nib_routed nib_routed; /* runner_experts.c */

typedef struct nib_runner {
    const nib_network *net;
    const nib_assignment *plan;
    nib_engine *engine;
    nib_arena arena;
    nib_lowered ops;
    nib_loaded *weights; /* [site_count] */
    nib_slab slab;       /* holds small ones */
    nib_kv kv;
    nib_gpu *gpu; /* the plan's; NULL: none */
    nib_side sides[NIB_SIDE_COUNT];
    char *scratch;
    uint64_t scratch_bytes;         /* per worker */
    uint64_t rope_size, rope_bytes; /* elements per RoPE table; bytes of all tables */
    int64_t rope_count;             /* positions in the CPU's tables; the GPU's are complete */
    size_t gpu_logits;              /* capacity of the GPU's logits buffer, in rows */
    float *logits;                  /* [wanted][vocab] of the last step */
    size_t logits_capacity;         /* rows */
    float *hidden;                  /* [hidden_rows][width] of the last step */
    size_t hidden_rows, hidden_capacity;
    const float *given; /* of a draft head: the hidden states of this pass, [m][width] */
    const struct nib_runner *lender; /* NULL: none */
    uint64_t weight_bytes;           /* read per token */
    int64_t looked_up;               /* embedding rows looked up since its pages were released */
    nib_observer observer;
    bool unloaded;     /* nib__runner_open_unloaded opened it */
    bool keeps_logits; /* logits stay on the GPU, for nib__runner_draw */
    int32_t *drawn;    /* on the GPU; NULL: nothing was drawn there */
    uint64_t
        *node_ns;   /* [ops.count] time of each operation, finished one by one; NULL: not timed */
    bool preparing; /* compiles GPU operations instead of launching them */
    nib_routed *routed; /* NULL: the model has no experts */
    int32_t *failed;    /* on the GPU: [layers] what SORT says of its choice; NULL: none there */
    int32_t *failures;  /* [layers] the same on the host, after a pass */
    nib_key_check *key_check; /* until the first text has been seen; NULL: nothing to check */
    nib_ledger *ledger;       /* gets a note on what that text shows; NULL: only the log does */
    nib_refusal refusal;
    nib_staging staging; /* while weights are loaded */
} nib_runner;

/* Allocates all memory and compiles every kernel that the plan may launch before loading a weight.
 * *refusal says what the device refused, if that is why opening fails. lender: weights that it has
 * packed likewise are read there, so it must outlive this runner; NULL: none. */
nib_status nib__runner_open(nib_runner *out, const nib_network *net, const nib_assignment *plan,
                            int64_t sequences, int64_t context, const nib_runner *lender,
                            nib_refusal *refusal, nib_err *err);
/* The same for a plan that runs on the CPU, but without the weights of decoder layers and of the
 * output layer: nib__weight_load and nib__weight_unload bring and take them, for
 * nib__runner_part. */
nib_status nib__runner_open_unloaded(nib_runner *out, const nib_network *net,
                                     const nib_assignment *plan, int64_t context, nib_err *err);
void nib__runner_close(nib_runner *runner);
/* Upper bound of the bytes that a runner needs on a GPU besides weights and KV cache, with all
 * operations there. */
nib_status nib__runner_gpu_bytes(uint64_t *out, const nib_network *net, const nib_layer *layers,
                                 nib_type dtype, int64_t context, nib_err *err);
/* Runs one operation for m tokens; on a GPU this only enqueues it. */
nib_status nib__runner_node(nib_runner *runner, const nib_node *node, int64_t m, nib_err *err);
/* Writes the final norm's output for `count` tokens from token `first` on to `out` [count][width],
 * on the side of `norm`, which is NORM or NORM_QUANT. Its input remains. */
nib_status nib__runner_hidden(nib_runner *runner, const nib_node *norm, int64_t first,
                              int64_t count, float *out, nib_err *err);
/* Number of products, from `node` on and among the next `left` nodes, that share one input and one
 * round of the workers for m tokens: q, k and v, or gate and up. */
size_t nib__runner_joined(const nib_node *node, size_t left, int64_t m);
/* Runs `count` such products; on the GPU only one. */
nib_status nib__runner_products(nib_runner *runner, const nib_node *nodes, size_t count, int64_t m,
                                nib_err *err);
/* Shares the outputs of a product of m tokens, `count` times `step` of them, among the workers. */
void nib__share_outputs(nib_pool *pool, int64_t count, int64_t step, int64_t m, nib_pool_job job,
                        void *ctx);
/* As nib_session_step. *logits is set if a slot asks for logits. A draft head needs `given`: for
 * each slot the model's hidden state of the token before it, [count][width]. */
nib_status nib__runner_step(nib_runner *runner, const nib_slot *slots, size_t count,
                            const float **logits, nib_err *err);

/* A layer at a time, on the CPU. first: [layers + 1] the first operation of each decoder layer, and
 * of what follows them. */
void nib__runner_layers(size_t *first, const nib_runner *runner);
/* Floats per token that live when operation `at` begins. */
int64_t nib__runner_state_width(const nib_runner *runner, size_t at);
/* Runs operations [first, end) for up to NIB_CHUNK slots that continue their sequences. from, to:
 * what lives when `first` and `end` begin, nib__runner_state_width floats per slot; NULL: nothing
 * is read, or kept. They may be the same. */
nib_status nib__runner_part(nib_runner *runner, const nib_slot *slots, int64_t count, size_t first,
                            size_t end, const float *from, float *to, nib_err *err);
/* The final norm, operation `at`, of what lives before it: out [count][width]. */
nib_status nib__runner_final(nib_runner *runner, size_t at, int64_t count, const float *from,
                             float *out, nib_err *err);
/* What follows the decoder layers, from operation `at`: logits [count][vocab], count <= NIB_CHUNK.
 */
nib_status nib__runner_logits(nib_runner *runner, size_t at, int64_t count, const float *from,
                              float *logits, nib_err *err);

/* Whether the GPU computes the logits. */
bool nib__runner_logits_on_device(const nib_runner *runner);
/* Draws a token with a GPU row from the logits there. wanted: the row of logits, counted in wanted
 * slots of the last step, which must have been one pass. `draw` has everything but the
 * addresses. */
nib_status nib__runner_draw(nib_runner *runner, const nib_kernel *row, nib_draw draw,
                            int64_t wanted, int32_t *token, nib_err *err);

#endif
