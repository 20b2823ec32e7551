/* SPDX-License-Identifier: Apache-2.0
 *
 * One micro-batch: forward and backward as a flat list of operations on numbered buffers. The list
 * is made once from network and plan; the runner loops over it and takes rows from nowhere else. A
 * micro-batch owns its gradients, so how many ranks or threads there are changes no bit.
 *
 * With m tokens in packed documents, x1 is the residual before a layer and x2 the one before its
 * second half:
 *
 *   x2 = x1 + o(attention(q, k, v of norm(x1)));  the next x1 = x2 + down(silu(gate) * up of
 *   norm(x2))
 *
 * What the backward pass reads is kept per layer; with activation checkpointing less is kept and
 * computed again, to the same bits.
 *
 * An operation runs on the side of its row. The CPU and the device have buffers of their own, and a
 * MOVE stands before an operation that reads what the other side wrote. Operands of products lie
 * where the product runs and never move.
 */
#ifndef NIB_STEP_H
#define NIB_STEP_H

#include "fake_quant.h"
#include "params.h"
#include "product.h"
#include "runner.h"

/* f32 [m][columns] unless it says otherwise. */
typedef enum nib_train_buffer {
    /* kept for the backward pass, one per layer */
    NIB_KEPT_X1, /* [layers + 1] whatever is checkpointed */
    NIB_KEPT_X2,
    NIB_KEPT_Q,
    NIB_KEPT_ATTN,
    NIB_KEPT_LSE,   /* [m][heads] */
    NIB_KEPT_CACHE, /* in a block of its own */
    NIB_KEPT_GATE,
    NIB_KEPT_UP,
    NIB_KEPT_INPUTS, /* of linear layers, packed for their weights' gradients: see input_at */
    NIB_KEPT_MASKS,  /* of inputs that became codes and values again: see nib_step_fake */
    /* one of each */
    NIB_HELD_NORMED,
    NIB_HELD_K,
    NIB_HELD_V,
    NIB_HELD_H,      /* silu(gate) * up */
    NIB_HELD_FAKE,   /* an input that became codes and values again */
    NIB_HELD_INPUT,  /* the x side of a product, in its form; or these codes */
    NIB_HELD_LOGITS, /* [m][vocab], then their gradient */
    NIB_HELD_D,      /* gradient of the residual */
    NIB_HELD_DNORMED,
    NIB_HELD_TEMP,
    NIB_HELD_DQ,
    NIB_HELD_DK,
    NIB_HELD_DV,
    NIB_HELD_DATTN,
    NIB_HELD_DH,
    NIB_HELD_INVERSE, /* [m] */
    NIB_HELD_LOSS,    /* [m] */
    NIB_HELD_AMAX,    /* parts of a maximum, then it */
    NIB_HELD_WEIGHT,  /* of the device: a weight or its gradient on its way, f32 [n][k] */
    NIB_TRAIN_BUFFERS
} nib_train_buffer;

typedef struct nib_train_node {
    nib_op op;
    int side; /* NIB_SIDE_*; MOVE: to which */
    const nib_kernel *row;
    size_t site;   /* products, quantizers, casts; SIZE_MAX */
    int product;   /* which of the site's */
    int64_t layer; /* of kept buffers: all but x1 are layer 0's where layers are run again */
    int from, other, to;
    size_t param;    /* whose weight is read or gradient written; SIZE_MAX */
    int64_t columns; /* MOVE: of a row, all of which goes */
    bool backward;   /* ROPE: back */
    bool next;       /* x1 of the layer after this is written */
} nib_train_node;

/* A layer in quantization-aware training; all 0: it is not. */
typedef struct nib_step_fake {
    bool rounds; /* it is, though no memory was taken for its codes */
    nib_fake_weight weight;
    const nib_kernel *act; /* makes the input's codes; NULL: inputs stay as they are */
    uint64_t mask_at;      /* [m][nib__fake_mask_ld(k)] in NIB_KEPT_MASKS; one form has one */
} nib_step_fake;

typedef struct nib_step_options {
    int64_t batch, length; /* sequences of a micro-batch, tokens of each */
    nib_ac checkpointing;
    bool sizes_only; /* nothing runs: nib__step_bytes is all that is asked */
} nib_step_options;

/* A micro-batch: packed sequences cut into documents. */
typedef struct nib_batch {
    int64_t m, documents;
    const int32_t *ids, *targets; /* [m]; a target of -1 is not counted */
    const int32_t *start;         /* [documents + 1] first token of each; the last is m */
} nib_batch;

/* Looks on as operations run: before each of them and after it. */
typedef struct nib_step_watch {
    nib_status (*see)(void *ctx, const nib_train_node *node, bool done, nib_err *err);
    void *ctx;
} nib_step_watch;

/* What one side has. */
typedef struct nib_step_side {
    char *block;
    uint64_t block_bytes;
    uint64_t at[NIB_TRAIN_BUFFERS], each[NIB_TRAIN_BUFFERS]; /* offset, bytes per layer */
    char *packed; /* of the device NULL: each layer has a piece */
    uint64_t packed_bytes;
} nib_step_side;

enum { NIB_PACKED_Y, NIB_PACKED_DX, NIB_PACKED_BIAS /* on the device alone */, NIB_PACKED_COUNT };

/* What operations run on. All rows: the pool shares them. In the copy of a step that a worker has
 * in a chain (step_chain.c): that worker runs them, on rows first..end alone. */
typedef struct nib_step_rows {
    bool some;
    int64_t first, end;
} nib_step_rows;

/* Operations first..end of the list, which are run together; one alone is run as it is. */
typedef struct nib_chain {
    size_t first, end;
    /* where in a worker's room its rows of a buffer lie that nothing reads after the chain; else
     * NIB_CHAIN_NONE */
    uint64_t room_at[NIB_TRAIN_BUFFERS];
    uint64_t room_bytes;
} nib_chain;

#define NIB_CHAIN_NONE UINT64_MAX

typedef struct nib_chains {
    nib_chain *items;
    size_t count;
} nib_chains;

enum {
    NIB_CHAIN_NODES = 64, /* at most in a chain */
    NIB_CHAIN_TILE = 12,  /* rows that products take at a time: linear_float.h's, for speed alone */
    /* at most that a worker takes through a chain at a time: docs/speed.md */
    NIB_CHAIN_ROWS = 11 * NIB_CHAIN_TILE
};

typedef struct nib_step {
    nib_engine *engine;
    const nib_network *net;
    const nib_layers_plan *plan;
    const nib_params *params;
    nib_step_options options;
    int64_t m;
    nib_arena arena;
    nib_product (*products)[NIB_PRODUCTS]; /* [site_count] */
    nib_train_node *nodes;
    size_t count, capacity, forward_end; /* of the list: forward, then backward */
    /* bits: the sides that hold a buffer's values at the end of the list, [buffer][layers + 1] */
    uint8_t *held;
    nib_step_side sides[NIB_SIDE_COUNT];
    int64_t ld[NIB_TRAIN_BUFFERS];
    nib_workers workers; /* and the device; NULL: the plan has none */
    /* [site_count], where a layer's products run: its weight in the layouts of their rows and its
     * bias, made by nib__step_cast, and its kept input, which layers of one form share */
    char *(*packed)[NIB_PACKED_COUNT];
    char **inputs;
    uint64_t *input_at; /* [site_count] in NIB_KEPT_INPUTS */
    nib_refusal refusal;
    /* quantization-aware training */
    nib_step_fake *fake; /* [site_count]; NULL: no layer is */
    char *fake_block;    /* values of one weight, then codes and scales of all */
    uint64_t fake_bytes;
    float *rope; /* [length][head_dim] */
    uint64_t rope_bytes;
    /* of the batch that runs */
    int32_t *sequence, *position; /* [m] */
    uint64_t place_bytes;         /* of both */
    int32_t *tables;              /* [documents][table_ld] */
    int64_t documents, table_ld;  /* room for so many */
    uint64_t table_bytes;
    char *cache; /* [layers kept][keys, values][cache_blocks] */
    uint64_t cache_bytes, cache_side /* keys, or values, of a layer */;
    int64_t cache_blocks;
    const nib_batch *batch;
    const float *weights;
    float *gradients;
    float scale;
    const nib_step_watch *watch; /* NULL: nobody looks on */
    uint64_t *node_ns;           /* [count] time of each operation so far */
    uint64_t *spent_ns;          /* [threads][NIB_CHAIN_NODES] of the chain that runs */
    nib_step_rows rows;
    nib_chains chains[2]; /* of the forward pass alone; of both */
    /* of a worker's scratch: where the x side of a chain's rows begins, and its room */
    uint64_t rows_input, rows_room;
    bool timed; /* waits for the device after each operation, whose time is then its own */
} nib_step;

/* params, net and plan must outlive it. NIB_NOT_AS_ASKED: an operation has no row here. Of a device
 * all memory is taken and every kernel compiled; *refusal says what of the plan it refused, if that
 * is why this fails. */
nib_status nib__step_open(nib_step *out, const nib_network *net, const nib_layers_plan *plan,
                          const nib_params *params, const nib_step_options *options,
                          nib_refusal *refusal, nib_err *err);
void nib__step_close(nib_step *step);

/* Casts and packs the weights [params.total]; once after each change of them. */
nib_status nib__step_cast(nib_step *step, const float *weights, nib_err *err);
/* Runs the batch: *loss is the sum over counted targets in nats. gradients [params.total] are those
 * of `scale` times that sum, and are overwritten; NULL: only the loss. */
nib_status nib__step_run(nib_step *step, const float *weights, const nib_batch *batch, float scale,
                         float *gradients, double *loss, nib_err *err);

/* A buffer's values [m][ld] on the CPU: they last until an operation writes there again. */
float *nib__step_values(const nib_step *step, int buffer, int64_t layer);
/* The same of a buffer that the node reads or wrote, brought here from where that runs. */
nib_status nib__step_look(const nib_step *step, const nib_train_node *node, int buffer,
                          int64_t layer, const float **out, nib_err *err);

/* Room for batches like this one, before it is run; its documents are all that is looked at. */
nib_status nib__step_make_room(nib_step *step, const nib_batch *batch, nib_err *err);
/* Bytes of all that it holds here, and on the device. */
uint64_t nib__step_bytes(const nib_step *step);
uint64_t nib__step_device_bytes(const nib_step *step);

/* step_lower.c: fills nodes, products, ld and each. */
nib_status nib__step_lower(nib_step *step, nib_err *err);
/* Two sites that read one buffer read it in the same form on the same side. */
bool nib__step_same_form(const nib_step *step, size_t a, size_t b, int product);
/* step_places.c: appends the operation, and before it what brings its inputs to its side. */
nib_status nib__step_add(nib_step *step, const nib_train_node *node, nib_err *err);
/* Whether the buffer's values are the device's and, so far, nowhere else. */
bool nib__step_is_there(const nib_step *step, const nib_train_node *node, int buffer);
/* Whether the operation reads or writes a buffer of f32 rows. */
bool nib__step_reads(const nib_step *step, const nib_train_node *node, int buffer);
bool nib__step_writes(const nib_step *step, const nib_train_node *node, int buffer);
/* Sizes of f32 buffers and operands on each side; of the device only what products need at all. */
void nib__step_size(nib_step *step);
/* Where each site's kept input lies on its side: one place for neighbours of one form. On the
 * device inputs of layers that do not take turns lie beside their weights. */
void nib__step_place_inputs(nib_step *step);
NIB_INLINE bool nib__step_keeps_all_inputs(const nib_step *step)
{
    return step->options.checkpointing == NIB_AC_NONE;
}
/* Elements from one row to the next of a buffer that the node reads or writes: rounded inputs take
 * turns in a buffer, each as wide as it is. */
NIB_INLINE int64_t nib__step_ld(const nib_step *step, const nib_train_node *node, int buffer)
{
    const int64_t own = node->site != SIZE_MAX ? step->net->sites[node->site].k : node->columns;
    return buffer == NIB_HELD_FAKE ? own : step->ld[buffer];
}
/* Where a site's products run. */
NIB_INLINE int nib__step_side(const nib_step *step, size_t site)
{
    const nib_kernel *row = step->products[site][NIB_PRODUCT_Y].row;
    return row->device == NIB_DEVICE_CPU ? NIB_SIDE_CPU : NIB_SIDE_GPU;
}
/* Whether a buffer has a place for each layer. */
NIB_INLINE bool nib__step_is_kept(const nib_step *step, int buffer)
{
    return buffer == NIB_KEPT_X1 ||
           (buffer < NIB_KEPT_INPUTS && step->options.checkpointing != NIB_AC_FULL);
}
/* step_products.c: the places of buffers, and what runs on either side; others are step_run.c's. */
char *nib__step_place(const nib_step *step, int side, int buffer, int64_t layer);
nib_status nib__step_product(nib_step *step, const nib_train_node *node, nib_err *err);
nib_status nib__step_move(nib_step *step, const nib_train_node *node, nib_err *err);
/* A site's weight at x, where its products run, into the layouts of their rows. */
nib_status nib__step_cast_site(nib_step *step, size_t site, const float *x, nib_err *err);
/* Bytes of a site's packed weights and bias, and where each of them begins. */
uint64_t nib__step_packed_bytes(const nib_step *step, size_t site, uint64_t at[NIB_PACKED_COUNT]);
/* step_there.c: takes the device's memory and compiles its kernels, if the plan has one. */
nib_status nib__step_ask_device(nib_step *step, nib_err *err);
void nib__step_leave_device(nib_step *step);
/* step_run.c: one operation, on all rows or those of a worker's copy. On the CPU it cannot fail. */
nib_status nib__step_node(nib_step *step, const nib_train_node *node, nib_err *err);
/* step_chain.c: cuts the list into chains. */
nib_status nib__step_make_chains(nib_step *step, nib_err *err);
uint64_t nib__step_room_bytes(const nib_step *step); /* the largest of a chain */
void nib__step_chain(nib_step *step, const nib_chain *chain);
/* The site reads the same input as the one before it: k, v, up. */
bool nib__step_shares_input(const nib_step *step, size_t site);
/* step_fake.c: what layers in quantization-aware training need, and the size of its buffers. */
nib_status nib__step_fake_open(nib_step *step, nib_err *err);
NIB_INLINE const nib_step_fake *nib__step_fake_at(const nib_step *step, size_t site)
{
    return step->fake != NULL && step->fake[site].rounds ? &step->fake[site] : NULL;
}
/* Both read their input in the same way. */
bool nib__step_fake_same(const nib_step *step, size_t a, size_t b);
/* The weight that products see; valid until the next call. */
const float *nib__step_fake_weight(nib_step *step, size_t site, const float *w);
/* An input [m][ldx] through `codes`, room for them, into out [m][ldo] and mask. */
void nib__step_fake_input(const nib_step *step, size_t site, const float *x, int64_t ldx,
                          char *codes, float *out, int64_t ldo, uint8_t *mask);
void nib__step_fake_dx(const nib_step *step, size_t site, const uint8_t *mask, float *dx,
                       int64_t ld);
void nib__step_fake_dw(const nib_step *step, size_t site, const float *w, float *gradient);
/* step.c: room for the keys and values of so many documents in so many blocks; what it held is lost
 * where it grows. */
nib_status nib__step_reserve(nib_step *step, int64_t documents, int64_t blocks, nib_err *err);

#endif
