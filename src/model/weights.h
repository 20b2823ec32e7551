/* SPDX-License-Identifier: Apache-2.0
 *
 * Weights as the plan wants them: quantized or dequantized at load where that was asked, packed for
 * the rows that run, the pages they came from released.
 */
#ifndef NIB_WEIGHTS_H
#define NIB_WEIGHTS_H

#include "network.h"
#include "plan.h"

typedef struct nib_pack {
    const nib_packing *packing;
    void *at; /* on the GPU, if the weight is */
    uint64_t bytes;
    bool mapped; /* of a file of packed weights, which it stays in */
} nib_pack;

typedef struct nib_loaded {
    nib_gpu *gpu; /* where packs and bias lie; NULL: here */
    nib_weight w; /* shape and scheme; codes only while a row reads them plain */
    char *owned;  /* what w points into, when it was made here */
    uint64_t owned_bytes;
    nib_pack packs[NIB_USES_MAX];
    int pack_count;
    float *bias;       /* [n] or NULL */
    int32_t *int_bias; /* of the form INT32 instead: see nib_linear */
    uint64_t bytes;    /* read for one token */
} nib_loaded;

/* Takes what the weight will need of the GPU's memory, if it runs there, by its planned shape and
 * types: so that memory which runs out is known before anything is loaded. w then has no data. */
nib_status nib__weight_reserve(nib_loaded *out, const nib_layer_plan *plan, nib_gpu *gpu,
                               nib_err *err);
/* Memory of the GPU that stored weights pass through where it packs them. */
typedef struct nib_staging {
    nib_gpu *gpu;
    void *at;
    uint64_t bytes;
    const nib_kernel *refused; /* a row that packs, and that the driver does not compile; NULL */
} nib_staging;
/* At least so many bytes of it. */
nib_status nib__staging_reserve(nib_staging *staging, uint64_t bytes, nib_err *err);
void nib__staging_give(nib_staging *staging);

/* Loads the weight of one site for its planned uses; onto the GPU, where it was reserved, if they
 * run there: packed there, or here. */
nib_status nib__weight_load(nib_loaded *out, const nib_network *net, const nib_layer_plan *plan,
                            size_t site, nib_staging *staging, nib_err *err);
void nib__weight_unload(nib_loaded *loaded, const nib_allocator *a);
/* The block in the row's layout; NULL for a row that reads the plain weight. */
const void *nib__weight_packed(const nib_loaded *loaded, const nib_kernel *row);

#endif
