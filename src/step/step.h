/* SPDX-License-Identifier: Apache-2.0
 *
 * One micro-batch as a list of operations: those of graph/training.h, each with its kernel row,
 * plus the operations that prepare the operands of products. The list and its buffers are made once
 * from network and plan. Running loops over the list and takes rows from nowhere else. Each
 * micro-batch has its own gradients, so the result does not depend on the number of ranks or
 * threads.
 *
 * An operation runs on the side (CPU or device) of its row. Each side has its own buffers. A MOVE
 * copies a value before an operation reads what the other side wrote. Operands of products stay on
 * the side where the product runs and never move.
 */
#ifndef NIB_STEP_H
#define NIB_STEP_H

#include "cache.h"
#include "fake_quant.h"
#include "params.h"
#include "product.h"
#include "runner.h"
#include "training.h"

/* in and out hold value ids, as in training.h, while the list is made; then buffer
 * indices. Operations that training.h does not have:
 *
 *   MOVE       a value of the other side  -> the same value on this side
 *   FAKE       x                          -> x quantized and dequantized, mask
 *   FAKE_DX    dx, mask                   -> dx
 *   AMAX, QUANT, QUANT_T    x: the result is in a region of the side
 *   BIAS_DW    dy */
typedef struct nib_train_node {
    nib_op op;
    int side; /* NIB_SIDE_*; MOVE: the destination */
    const nib_kernel *row;
    size_t site;              /* products, quantizers, casts; else SIZE_MAX */
    int product;              /* NIB_PRODUCT_*, of the site */
    int64_t layer;            /* decoder layer; -1: none */
    size_t param;             /* the parameter read, or whose gradient is written; SIZE_MAX: none */
    int64_t columns;          /* values per token */
    int64_t rows;             /* per token: heads, or 1 */
    bool inverse;             /* ROPE: rotate backwards; HIDDEN: split */
    bool ahead, adds;         /* as in nib_training_node */
    const nib_graph_node *of; /* the graph node, as in training.h */
    int in[NIB_TRAINING_INPUTS], out[NIB_TRAINING_OUTPUTS];
} nib_train_node;

/* Memory of one side that values of the same width use in turn. */
typedef struct nib_step_buffer {
    int side;
    int64_t columns;       /* f32 [m][columns]; 0: not f32 rows */
    uint64_t at;           /* offset in the side's block; keys and values: index of the cache */
    size_t first, last[2]; /* nodes that use it; last: of the forward pass, of both passes */
    uint64_t
        scratch_at[2];   /* offset in a worker's scratch, per list of chains; else NIB_CHAIN_NONE */
    char *beside_weight; /* device: allocated with its layer's weight; NULL */
} nib_step_buffer;

/* A layer in quantization-aware training; all 0 for other layers. */
typedef struct nib_step_fake {
    bool rounds; /* the layer is quantized, even where no memory was allocated */
    nib_fake_weight weight;
    const nib_kernel *act; /* quantizes the input; NULL: inputs stay float */
} nib_step_fake;

/* What a micro-batch makes small in place of the cross-entropy of its targets. */
typedef struct nib_step_loss {
    /* The loss of token t from the last values of the graph, out [columns]. If `gradient`, replaces
     * them by `scale` times its gradient. Called by any thread. NULL: the cross-entropy */
    float (*of_token)(void *ctx, int64_t t, float *out, int64_t columns, float scale,
                      bool gradient);
    void *ctx;
} nib_step_loss;

/* The losses of a micro-batch, in nats. */
typedef struct nib_losses {
    double text;  /* the sum over targets */
    double draft; /* of the draft head, the mean over its targets; 0: it has none */
} nib_losses;

typedef struct nib_step_options {
    int64_t batch, length; /* sequences of a micro-batch, tokens of each */
    nib_ac checkpointing;
    nib_step_loss loss;
    bool sizes_only; /* allocate nothing and run nothing: only nib__step_bytes */
} nib_step_options;

/* A micro-batch: packed sequences cut into documents. */
typedef struct nib_micro_batch {
    int64_t m, documents;
    const int32_t *ids, *targets; /* [m]; a target of -1 is ignored. A loss of its own reads none */
    const int32_t *start;         /* [documents + 1] first token of each; the last is m */
} nib_micro_batch;

/* Called before and after each operation. */
typedef struct nib_step_watch {
    nib_status (*observe)(void *ctx, const nib_train_node *node, bool done, nib_err *err);
    void *ctx;
} nib_step_watch;

/* Memory that a side has once, beside its buffers. */
typedef enum nib_step_region {
    NIB_REGION_INPUT,  /* the x side of a product, encoded */
    NIB_REGION_AMAX,   /* partial maxima, then the maximum */
    NIB_REGION_WEIGHT, /* f32 [n][k]. Device: a weight or its gradient in transfer. CPU: a gradient
                            that is added to another one of its weight */
    NIB_REGION_STATE,  /* CPU: of a layer that runs, as the rows of its operations have it */
    NIB_REGION_OBSERVED, /* CPU: a device buffer read by nib__step_read_buffer, f32 [m][columns] */
    NIB_REGIONS
} nib_step_region;

/* Memory of one side. */
typedef struct nib_step_side {
    char *block;
    uint64_t block_bytes;
    uint64_t region_at[NIB_REGIONS], region_bytes[NIB_REGIONS];
    uint64_t buffer_bytes, buffers_at; /* size and offset of all buffers */
    char *packed;                      /* NULL for the device: each layer has its own allocation */
    uint64_t packed_bytes;
} nib_step_side;

enum { NIB_PACKED_Y, NIB_PACKED_DX, NIB_PACKED_BIAS /* on a device only */, NIB_PACKED_COUNT };

/* The rows that operations run on. Usually all rows, shared by the pool. In the copy of a step that
 * a worker uses within a chain (step_chain.c), only rows first..end, and that worker runs them. */
typedef struct nib_step_rows {
    bool is_part;
    int64_t first, end;
    int list;      /* index in nib_step.chains */
    char *scratch; /* for buffers with scratch_at */
} nib_step_rows;

/* Operations first..end of the list, run together. A single one runs on all rows. */
typedef struct nib_chain {
    size_t first, end;
    uint64_t scratch_bytes; /* per worker, for buffers that nothing reads after the chain */
} nib_chain;

#define NIB_CHAIN_NONE UINT64_MAX

typedef struct nib_chains {
    nib_chain *items;
    size_t count;
} nib_chains;

enum {
    NIB_CHAIN_NODES = 64, /* most operations in a chain */
    NIB_CHAIN_TILE = 12,  /* rows of a tile in linear_float.h; affects speed only */
    /* most rows that a worker takes through a chain at once: docs/history/speed.md */
    NIB_CHAIN_ROWS = 11 * NIB_CHAIN_TILE
};

/* A row of the table on the rows of one expert, among those of others. */
typedef struct nib_step_args {
    union {
        nib_amax amax;
        nib_quant quant;
        nib_cast cast;
    };
    nib_weight shape; /* of a cast */
} nib_step_args;

typedef struct nib_step_part {
    const nib_kernel *row;
    const void *args;
    int64_t step, end; /* of its own range */
} nib_step_part;

/* What the mixtures of a model share; step_experts.c. */
typedef struct nib_step_mixtures {
    /* of the load-balancing loss of this micro-batch: the tokens of a sequence, which are all its
     * tokens unless the loss is over sequences, and how many sequences there are */
    int64_t sequence, sequences;
    float *load;                      /* f: [experts], or [layers][sequences][experts] */
    float *group_counts, *group_sums; /* [layers][sequences][experts]; unused over all layers */
    float *sums, *counts;             /* [blocks of tokens][experts] */
    int64_t amax_step;                /* from one expert's magnitudes to the next one's */
    uint64_t scratch_at;              /* offset of sums in a worker's scratch */
    size_t pieces, count;
    nib_step_args *args;  /* [pieces] */
    nib_step_part *parts; /* [pieces], `count` of them in use */
    int64_t *first;       /* [pieces + 1] first index of each part */
} nib_step_mixtures;

typedef struct nib_step {
    nib_engine *engine;
    const nib_network *net;
    const nib_assignment *plan;
    const nib_params *params;
    nib_step_options options;
    int64_t m;
    nib_arena arena;
    nib_product (*products)[NIB_PRODUCTS]; /* [site_count] */
    nib_train_node *nodes;
    size_t count, forward_end; /* forward, then backward operations */
    nib_step_buffer *buffers;
    size_t buffer_count;
    int loss, draft_loss; /* buffers [m]; NIB_NO_ID: the model has no draft head */
    nib_step_side sides[NIB_SIDE_COUNT];
    nib_workers workers; /* with the device; NULL: the plan has none */
    /* [site_count], on the side where the layer's products run: its weight in the layouts of their
     * rows, and its bias; filled by nib__step_cast */
    char *(*packed)[NIB_PACKED_COUNT];
    int *inputs; /* [site_count] buffer of the packed input; layers of one form share it. NIB_NO_ID:
                    the site's products run twice, and each has its own */
    nib_refusal refusal;
    /* quantization-aware training */
    nib_step_fake *fake; /* [site_count]; NULL: no layer is quantized */
    char *fake_block;    /* dequantized values of one weight, then codes and scales of all */
    uint64_t fake_bytes;
    float *rope; /* rotation tables as nib__rope_table writes them */
    uint64_t rope_size, rope_bytes;
    /* Vectors in the form that rows read, where it is not the stored one: norms plus their offset,
     * taps by tap, e^A_log of Mamba-2; filled by nib__step_cast. */
    float *formed;
    uint64_t *formed_at; /* [norms] index into formed */
    float *ones;         /* the weight of norms without one, as long as the widest of them */
    /* of the current batch */
    int32_t *sequence, *position; /* [m] */
    /* of the draft head: the token after each, and what it predicts there; NULL: none */
    int32_t *ids_ahead, *targets_ahead; /* [m] */
    int64_t drafts;                     /* targets of the draft head */
    /* of layers with a state, which documents use in turn; NULL: the model has none */
    int32_t *zeros, *slots;      /* [m] zeros, and the index of each row */
    nib_matrix_run *runs;        /* [m] the documents */
    uint64_t position_bytes;     /* bytes of sequence, position and those of the draft head */
    int32_t *tables;             /* [documents][table_ld] */
    int64_t documents, table_ld; /* capacity of tables */
    uint64_t table_bytes;
    char *cache;     /* [caches][keys, values][cache_blocks]; keys alone if they hold the values */
    uint64_t caches; /* layers whose keys and values are held at the same time */
    uint64_t cache_bytes, cache_side /* keys or values of the largest layer */;
    int64_t cache_blocks;
    const nib_micro_batch *batch;
    const float *weights;
    float *gradients;
    float scale;
    const nib_step_watch *watch; /* NULL: none */
    uint64_t *node_ns;           /* [count] time of each operation, accumulated */
    uint64_t *spent_ns;          /* [threads][NIB_CHAIN_NODES] for the current chain */
    nib_step_rows rows;
    nib_step_mixtures experts;
    nib_chains chains[2]; /* forward pass only; both passes */
    /* offsets in a worker's scratch: the encoded x side of a chain's rows, and buffers with
     * scratch_at */
    uint64_t rows_input, rows_scratch;
    bool timed; /* wait for the device after each operation, to time it */
} nib_step;

/* params, net and plan must outlive the step. NIB_NOT_AS_ASKED: no row here runs an operation. For
 * a device, allocates all memory and compiles every kernel. If the device refuses a part of the
 * plan, *refusal says which. */
nib_status nib__step_open(nib_step *out, const nib_network *net, const nib_assignment *plan,
                          const nib_params *params, const nib_step_options *options,
                          nib_refusal *refusal, nib_err *err);
void nib__step_close(nib_step *step);

/* Casts and packs the weights [params.total]. Call it after each change of the weights. */
nib_status nib__step_cast(nib_step *step, const float *weights, nib_err *err);
/* Runs the batch. gradients [nib__load_block]: overwritten with those of `scale` times the loss of
 * the text, and of the load-balancing loss and the draft head's loss of this micro-batch, each
 * times its coefficient, `scale` and the number of tokens; then the load of the experts. NULL
 * computes only the losses. */
nib_status nib__step_run(nib_step *step, const float *weights, const nib_micro_batch *batch,
                         float scale, float *gradients, nib_losses *losses, nib_err *err);

/* The f32 rows of a buffer, copied from the device if needed. Valid until the next call, or until
 * an operation overwrites the buffer. */
nib_status nib__step_read_buffer(const nib_step *step, int buffer, const float **out, nib_err *err);

/* Allocates the cache for a batch with these document lengths; reads nothing else of the batch. */
nib_status nib__step_reserve_batch(nib_step *step, const nib_micro_batch *batch, nib_err *err);
/* Bytes held on the host, and on the device. */
uint64_t nib__step_bytes(const nib_step *step);
uint64_t nib__step_device_bytes(const nib_step *step);

/* step_lower.c: fills nodes, buffers and products. */
nib_status nib__step_lower(nib_step *step, nib_err *err);
/* Whether two sites that read one value need it in the same form on the same side. */
bool nib__step_same_form(const nib_step *step, size_t a, size_t b, int product);
/* step_placement.c: the sizes of the regions of each side. */
void nib__step_size_regions(nib_step *step);
NIB_INLINE bool nib__step_keeps_all_inputs(const nib_step *step)
{
    return step->options.checkpointing == NIB_AC_NONE;
}
/* The side that runs a site's products. */
NIB_INLINE int nib__step_side(const nib_step *step, size_t site)
{
    const nib_kernel *row = step->products[site][NIB_PRODUCT_Y].row;
    return row->device == NIB_DEVICE_CPU ? NIB_SIDE_CPU : NIB_SIDE_GPU;
}
/* step_products.c: addresses of buffers and regions, and the operations that can run on either
 * side. The others are in step_run.c. */
char *nib__step_at(const nib_step *step, int buffer);
char *nib__step_region(const nib_step *step, int side, nib_step_region region);
/* A buffer as f32 rows, and the elements from one row to the next. */
NIB_INLINE float *nib__step_rows(const nib_step *step, int buffer)
{
    return (float *)(void *)nib__step_at(step, buffer);
}
NIB_INLINE int64_t nib__step_ld(const nib_step *step, int buffer)
{
    return step->buffers[buffer].columns;
}
/* Whether the rows of a vector's operation read another form than the stored one. */
NIB_INLINE bool nib__step_forms(const nib_graph_weight *vector)
{
    return vector->offset != 0 || vector->taps > 0 || vector->exponential;
}
/* A vector of the graph as rows read it. */
const float *nib__step_vector(const nib_step *step, int weight);
nib_status nib__step_product(nib_step *step, const nib_train_node *node, nib_err *err);
nib_status nib__step_move(nib_step *step, const nib_train_node *node, nib_err *err);
/* Converts a weight at x, on the side of its products, into the layouts of their rows. */
nib_status nib__step_cast_site(nib_step *step, size_t site, const float *x, nib_err *err);
/* Bytes of a site's packed weights and bias; at: the offset of each. */
uint64_t nib__step_packed_bytes(const nib_step *step, size_t site, uint64_t at[NIB_PACKED_COUNT]);
/* step_device.c: allocates the device's memory and compiles its kernels, if the plan uses a
 * device. */
nib_status nib__step_open_device(nib_step *step, nib_err *err);
void nib__step_close_device(nib_step *step);
/* step_run.c: runs parts of a row on the pool, in multiples of `step`; or all tokens, or those of a
 * worker's copy, with `each` rows per token. */
void nib__step_run_parts(const nib_step *step, const nib_kernel *row, const void *args,
                         int64_t count, int64_t multiple);
void nib__step_run_tokens(const nib_step *step, const nib_kernel *row, const void *args,
                          int64_t each);
/* step_run.c: runs items of different sizes, one at a time. */
void nib__step_run_items(const nib_step *step, const nib_kernel *row, const void *args,
                         int64_t count);
/* step_run.c: sets all columns of a buffer but `count` from `first` on to zero, in all rows or
 * those of a worker's copy. */
void nib__step_clear_others(const nib_step *step, int buffer, int64_t first, int64_t count);
/* step_run.c: runs one operation, on all rows or on those of a worker's copy. Cannot fail on the
 * CPU. */
nib_status nib__step_node(nib_step *step, const nib_train_node *node, nib_err *err);
/* step_chain.c: cuts the list into chains. */
nib_status nib__step_make_chains(nib_step *step, nib_err *err);
uint64_t nib__step_chain_scratch(const nib_step *step); /* the most of any chain */
/* Runs chain i of list `list`. */
void nib__step_chain(nib_step *step, int list, size_t i);
/* Whether the site reads the same input as the one before it, as k, v and up do. */
bool nib__step_shares_input(const nib_step *step, size_t site);
/* step_fake.c: quantization-aware training. */
nib_status nib__step_fake_open(nib_step *step, nib_err *err);
NIB_INLINE const nib_step_fake *nib__step_fake_at(const nib_step *step, size_t site)
{
    return step->fake != NULL && step->fake[site].rounds ? &step->fake[site] : NULL;
}
/* Whether both sites quantize their input in the same way. */
bool nib__step_fake_same(const nib_step *step, size_t a, size_t b);
/* The quantized and dequantized weight that products use; valid until the next call. */
const float *nib__step_fake_weight(nib_step *step, size_t site, const float *w);
/* Quantizes an input [count][ldx] into `codes` and back into out [count][ldo], and writes the
 * mask. */
void nib__step_fake_input(const nib_step *step, size_t site, int64_t count, const float *x,
                          int64_t ldx, char *codes, float *out, int64_t ldo, uint8_t *mask);
void nib__step_fake_dx(const nib_step *step, size_t site, int64_t count, const uint8_t *mask,
                       float *dx, int64_t ld);
void nib__step_fake_dw(const nib_step *step, size_t site, const float *w, float *gradient);
/* step.c: the shape and tables of a layer's cache, without its keys and values. */
nib_cache nib__step_cache(const nib_step *step, int64_t layer);
/* step.c: allocates keys and values for so many documents and blocks. Growing loses their
 * content. */
nib_status nib__step_reserve(nib_step *step, int64_t documents, int64_t blocks, nib_err *err);

#endif
