/* SPDX-License-Identifier: Apache-2.0
 *
 * One micro-batch: the list of graph/training.h with a row for each operation, what makes the
 * operands of products, and places in memory. It is made once from network and plan; the runner
 * loops over it and takes rows from nowhere else. A micro-batch owns its gradients, so how many
 * ranks or threads there are changes no bit.
 *
 * An operation runs on the side of its row. The CPU and the device have places of their own, and a
 * MOVE stands before an operation that reads what the other side wrote. Operands of products lie
 * where the product runs and never move.
 */
#ifndef NIB_STEP_H
#define NIB_STEP_H

#include "fake_quant.h"
#include "params.h"
#include "product.h"
#include "runner.h"
#include "training.h"

/* in and out are as in training.h: values while the list is made, then places. Besides:
 *
 *   MOVE       what the other side has    -> the same here
 *   FAKE       x                          -> codes and values again, mask
 *   FAKE_DX    dx, mask                   -> dx
 *   AMAX, QUANT, QUANT_T    x: what they make lies in a room of the side
 *   BIAS_DW    dy */
typedef struct nib_train_node {
    nib_op op;
    int side; /* NIB_SIDE_*; MOVE: to which */
    const nib_kernel *row;
    size_t site;              /* products, quantizers, casts; SIZE_MAX */
    int product;              /* which of the site's */
    int64_t layer;            /* decoder layer; -1: none */
    size_t param;             /* whose weight is read or gradient written; SIZE_MAX */
    int64_t columns;          /* of a token */
    int64_t rows;             /* of a token: heads, or 1 */
    bool inverse;             /* ROPE: back */
    const nib_graph_node *of; /* as in training.h */
    int in[NIB_TRAINING_INPUTS], out[NIB_TRAINING_OUTPUTS];
} nib_train_node;

/* Memory of one side that values have one after the other, each as wide as the one before. */
typedef struct nib_step_place {
    int side;
    int64_t columns;       /* f32 [m][columns]; 0: it has another form */
    uint64_t at;           /* in the side's block; of keys and values: which of the caches */
    size_t first, last[2]; /* that touch it: of the forward pass alone; of both */
    uint64_t room_at[2];   /* in a worker's room, for the rows of a chain; else NIB_CHAIN_NONE */
    char *apart;           /* of the device: beside its layer's weight; NULL */
} nib_step_place;

/* A layer in quantization-aware training; all 0: it is not. */
typedef struct nib_step_fake {
    bool rounds; /* it is, though no memory was taken for its codes */
    nib_fake_weight weight;
    const nib_kernel *act; /* makes the input's codes; NULL: inputs stay as they are */
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

/* What a side has one of, beside places. */
typedef enum nib_step_room {
    NIB_ROOM_INPUT,  /* the x side of a product, in its form */
    NIB_ROOM_AMAX,   /* parts of a maximum, then it */
    NIB_ROOM_WEIGHT, /* of the device: a weight or its gradient on its way, f32 [n][k] */
    NIB_ROOM_LOOK,   /* of the CPU: what someone looks at of the device, f32 [m][columns] */
    NIB_ROOMS
} nib_step_room;

/* What one side has. */
typedef struct nib_step_side {
    char *block;
    uint64_t block_bytes;
    uint64_t room_at[NIB_ROOMS], room_bytes[NIB_ROOMS];
    uint64_t places, places_at; /* bytes of all of them, and where they begin */
    char *packed;               /* of the device NULL: each layer has a piece */
    uint64_t packed_bytes;
} nib_step_side;

enum { NIB_PACKED_Y, NIB_PACKED_DX, NIB_PACKED_BIAS /* on the device alone */, NIB_PACKED_COUNT };

/* What operations run on. All rows: the pool shares them. In the copy of a step that a worker has
 * in a chain (step_chain.c): that worker runs them, on rows first..end alone. */
typedef struct nib_step_rows {
    bool some;
    int64_t first, end;
    int list;   /* of nib_step.chains */
    char *room; /* of places that lie in it */
} nib_step_rows;

/* Operations first..end of the list, which are run together; one alone is run as it is. */
typedef struct nib_chain {
    size_t first, end;
    uint64_t room_bytes; /* of a worker, for places that nothing reads after the chain */
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
    const nib_assignment *plan;
    const nib_params *params;
    nib_step_options options;
    int64_t m;
    nib_arena arena;
    nib_product (*products)[NIB_PRODUCTS]; /* [site_count] */
    nib_train_node *nodes;
    size_t count, forward_end; /* of the list: forward, then backward */
    nib_step_place *places;
    size_t place_count;
    int loss; /* place [m] */
    nib_step_side sides[NIB_SIDE_COUNT];
    nib_workers workers; /* and the device; NULL: the plan has none */
    /* [site_count], where a layer's products run: its weight in the layouts of their rows and its
     * bias, made by nib__step_cast */
    char *(*packed)[NIB_PACKED_COUNT];
    int *inputs; /* [site_count] place of the packed input, which layers of one form share */
    nib_refusal refusal;
    /* quantization-aware training */
    nib_step_fake *fake; /* [site_count]; NULL: no layer is */
    char *fake_block;    /* values of one weight, then codes and scales of all */
    uint64_t fake_bytes;
    float *rope; /* tables of rotations, as nib__rope_table has them */
    uint64_t rope_size, rope_bytes;
    float *shifted;       /* weights of norms that have an offset, made by nib__step_cast */
    uint64_t *shifted_at; /* [norms] where each begins there */
    /* of the batch that runs */
    int32_t *sequence, *position; /* [m] */
    uint64_t place_bytes;         /* of both */
    int32_t *tables;              /* [documents][table_ld] */
    int64_t documents, table_ld;  /* room for so many */
    uint64_t table_bytes;
    char *cache;     /* [caches][keys, values][cache_blocks] */
    uint64_t caches; /* layers whose keys and values are there at a time */
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
nib_status nib__step_open(nib_step *out, const nib_network *net, const nib_assignment *plan,
                          const nib_params *params, const nib_step_options *options,
                          nib_refusal *refusal, nib_err *err);
void nib__step_close(nib_step *step);

/* Casts and packs the weights [params.total]; once after each change of them. */
nib_status nib__step_cast(nib_step *step, const float *weights, nib_err *err);
/* Runs the batch: *loss is the sum over counted targets in nats. gradients [params.total] are those
 * of `scale` times that sum, and are overwritten; NULL: only the loss. */
nib_status nib__step_run(nib_step *step, const float *weights, const nib_batch *batch, float scale,
                         float *gradients, double *loss, nib_err *err);

/* f32 rows of a place that the node reads or wrote, brought here from where they are; they last
 * until the next look, or until an operation writes there again. */
nib_status nib__step_look(const nib_step *step, int place, const float **out, nib_err *err);

/* Room for batches like this one, before it is run; its documents are all that is looked at. */
nib_status nib__step_make_room(nib_step *step, const nib_batch *batch, nib_err *err);
/* Bytes of all that it holds here, and on the device. */
uint64_t nib__step_bytes(const nib_step *step);
uint64_t nib__step_device_bytes(const nib_step *step);

/* step_lower.c: fills nodes, places and products. */
nib_status nib__step_lower(nib_step *step, nib_err *err);
/* Two sites that read one value read it in the same form on the same side. */
bool nib__step_same_form(const nib_step *step, size_t a, size_t b, int product);
/* step_places.c: sizes of the rooms of each side. */
void nib__step_size(nib_step *step);
NIB_INLINE bool nib__step_keeps_all_inputs(const nib_step *step)
{
    return step->options.checkpointing == NIB_AC_NONE;
}
/* Where a site's products run. */
NIB_INLINE int nib__step_side(const nib_step *step, size_t site)
{
    const nib_kernel *row = step->products[site][NIB_PRODUCT_Y].row;
    return row->device == NIB_DEVICE_CPU ? NIB_SIDE_CPU : NIB_SIDE_GPU;
}
/* step_products.c: where places and rooms are, and what runs on either side; others are
 * step_run.c's. */
char *nib__step_at(const nib_step *step, int place);
char *nib__step_room(const nib_step *step, int side, nib_step_room room);
/* f32 rows of a place, and elements from one to the next. */
NIB_INLINE float *nib__step_rows(const nib_step *step, int place)
{
    return (float *)(void *)nib__step_at(step, place);
}
NIB_INLINE int64_t nib__step_ld(const nib_step *step, int place)
{
    return step->places[place].columns;
}
nib_status nib__step_product(nib_step *step, const nib_train_node *node, nib_err *err);
nib_status nib__step_move(nib_step *step, const nib_train_node *node, nib_err *err);
/* A site's weight at x, where its products run, into the layouts of their rows. */
nib_status nib__step_cast_site(nib_step *step, size_t site, const float *x, nib_err *err);
/* Bytes of a site's packed weights and bias, and where each of them begins. */
uint64_t nib__step_packed_bytes(const nib_step *step, size_t site, uint64_t at[NIB_PACKED_COUNT]);
/* step_device.c: takes the device's memory and compiles its kernels, if the plan has one. */
nib_status nib__step_ask_device(nib_step *step, nib_err *err);
void nib__step_leave_device(nib_step *step);
/* step_run.c: one operation, on all rows or those of a worker's copy. On the CPU it cannot fail. */
nib_status nib__step_node(nib_step *step, const nib_train_node *node, nib_err *err);
/* step_chain.c: cuts the list into chains. */
nib_status nib__step_make_chains(nib_step *step, nib_err *err);
uint64_t nib__step_room_bytes(const nib_step *step); /* the largest of a chain */
/* Chain i of list `list`. */
void nib__step_chain(nib_step *step, int list, size_t i);
/* The site reads the same input as the one before it: k, v, up. */
bool nib__step_shares_input(const nib_step *step, size_t site);
/* step_fake.c: what layers in quantization-aware training need. */
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
