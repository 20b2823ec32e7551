/* SPDX-License-Identifier: Apache-2.0
 *
 * What a linear layer with quantized activations sees of its inputs: rows become codes by the
 * layer's own kernel, and values again.
 */
#ifndef NIB_ACT_CODES_H
#define NIB_ACT_CODES_H

#include "ops.h"
#include "plan.h"
#include "pool.h"

/* How the inputs of a layer become codes. */
typedef struct nib_act_codes {
    const nib_scheme *scheme; /* its activations are not floats */
    const nib_kernel *row;    /* of NIB_OP_QUANT */
    float static_scale;       /* I8_STATIC */
    int32_t static_zero;
} nib_act_codes;

/* Finds the kernel of this machine. NIB_NOT_AS_ASKED: there is none; name: of the layer. */
nib_status nib__act_codes_find(nib_act_codes *out, const nib_scheme *scheme,
                               const nib_assignment *plan, const char *name, nib_err *err);
/* Bytes of room for nib__act_codes_rows with m rows of k. */
uint64_t nib__act_codes_room(const nib_scheme *scheme, int64_t m, int64_t k);
/* out [m][k] = columns * what the codes of x / columns stand for; x [m][ld]. columns [k] NULL: all
 * 1. Rows are shared among the workers, which changes no bit. room: aligned to 64. */
void nib__act_codes_rows(const nib_act_codes *codes, const float *columns, const float *x,
                         int64_t ld, int64_t m, int64_t k, float *out, void *room, nib_pool *pool);

#endif
