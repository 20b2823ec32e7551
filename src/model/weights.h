/* SPDX-License-Identifier: Apache-2.0
 *
 * Loads weights as the plan needs them: quantized or dequantized at load if asked, packed for the
 * rows that run, and with their source pages released.
 */
#ifndef NIB_WEIGHTS_H
#define NIB_WEIGHTS_H

#include "network.h"
#include "plan.h"

typedef struct nib_pack {
    const nib_packing *packing;
    void *at; /* on the GPU if the weight is */
    uint64_t bytes;
    bool mapped; /* points into a file of packed weights */
    bool in_slab;
} nib_pack;

typedef struct nib_loaded {
    nib_gpu *gpu; /* holds packs and bias; NULL: the CPU does */
    nib_weight w; /* shape and scheme; codes only if a row reads them unpacked */
    char *owned;  /* data of w if it was converted */
    uint64_t owned_bytes;
    nib_pack packs[NIB_USES_MAX];
    int pack_count;
    float *bias;       /* [n] or NULL */
    int32_t *int_bias; /* set instead of bias for the form INT32, see nib_linear */
    uint64_t bytes;    /* read per token */
    bool in_room;      /* packs and bias lie in GPU memory that belongs to several weights */
    bool borrowed;     /* all of it belongs to another runner */
} nib_loaded;

/* Allocates the GPU memory that the weight will need, if it runs there, from its planned shape and
 * types, so that a lack of memory shows before anything is loaded. w has no data yet. room: takes
 * nib__weight_room bytes from there on instead, and advances it; NULL: allocates. */
nib_status nib__weight_reserve(nib_loaded *out, const nib_layer_plan *plan, nib_gpu *gpu,
                               char **room, nib_err *err);
uint64_t nib__weight_room(const nib_layer_plan *plan);
/* GPU memory for stored weights that the GPU packs itself. */
typedef struct nib_staging {
    nib_gpu *gpu;
    void *at;
    uint64_t bytes;
    const nib_kernel *refused; /* packing row that the driver cannot compile; NULL: none */
} nib_staging;
/* Grows it to at least `bytes`. */
nib_status nib__staging_reserve(nib_staging *staging, uint64_t bytes, nib_err *err);
void nib__staging_give(nib_staging *staging);

/* Loads the weight of one site for its planned uses. If they run on the GPU, it goes into the
 * memory reserved there, packed by the GPU or by the CPU. Small packed weights come from the slab,
 * which must outlive them; NULL: none do. */
nib_status nib__weight_load(nib_loaded *out, const nib_network *net, const nib_layer_plan *plan,
                            size_t site, nib_staging *staging, nib_slab *slab, nib_err *err);
void nib__weight_unload(nib_loaded *loaded, const nib_allocator *a);
/* The weight in the row's layout; NULL if the row reads the unpacked weight. */
const void *nib__weight_packed(const nib_loaded *loaded, const nib_kernel *row);

#endif
