/* SPDX-License-Identifier: Apache-2.0
 *
 * Gated DeltaNet in the order of another container. llama.cpp's converter lets heads of values take
 * turns among heads of keys, stores z apart from q, k and v, and gives a draft head the names of a
 * layer after the model's. A checkpoint of either kind can be seen in the order of the other: rows
 * by views, columns and short vectors in copies.
 */
#ifndef NIB_HEAD_ORDER_H
#define NIB_HEAD_ORDER_H

#include "checkpoint.h"

enum { NIB_HEAD_DRAFT_NAMES = 4 };

typedef struct nib_head_order {
    int64_t layers;           /* of the model, without a draft head's */
    int64_t key_heads, heads; /* of keys and queries; of values, a multiple */
    int64_t key_dim, value_dim;
    bool by_turns; /* in a GGUF heads of values take turns; else they keep their order */
    bool joined;   /* elsewhere in_proj_qkvz holds q, k, v and z by head of keys */
    bool drafts;   /* a GGUF has draft heads; else they are left out, which the ledger says */
    /* "mtp.layers.", and what a draft head has outside its layer: the name elsewhere, and the one
     * in the layer in a GGUF */
    const char *prefix;
    const char *names[NIB_HEAD_DRAFT_NAMES][2];
} nib_head_order;

/* The number in the other order of the head of values that is number h in a GGUF, or, unless
 * `in_gguf`, elsewhere. */
int64_t nib__head_order_other(const nib_head_order *order, int64_t h, bool in_gguf);
/* Puts values of the inputs of out_proj, [heads][value_dim] as in a GGUF, in Hugging Face's order;
 * those of another layer stay. room: as many. */
void nib__head_order_inputs(double *values, double *room, const nib_head_order *order,
                            const char *layer);
/* Replaces the tensors by those in the order of a GGUF if `to_gguf`, else in that of Hugging Face.
 * Call it before any weight is read. *draft_layers: of the model's draft heads. NIB_BAD_INPUT: a
 * tensor has another shape than the sizes imply; NIB_UNSUPPORTED: codes, or a tensor without a name
 * in the other order. */
nib_status nib__checkpoint_reorder(nib_checkpoint *cp, int64_t *draft_layers,
                                   const nib_head_order *order, bool to_gguf, nib_err *err);

#endif
