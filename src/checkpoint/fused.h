/* SPDX-License-Identifier: Apache-2.0
 *
 * Fused weights: one stored tensor with the concatenated rows of several weights. Phi-3 stores q, k
 * and v as qkv_proj, and gate and up as gate_up_proj, also in GGUF. All other code sees only the
 * parts, under the names that other families use: opening a checkpoint makes a view for each part,
 * and the writer joins the parts again.
 */
#ifndef NIB_FUSED_H
#define NIB_FUSED_H

#include "checkpoint_inside.h"

/* Bits: which weights a family stores fused, or split by head (head_norms.h). EXPERTS: gate and up
 * of an expert, fused in the stacks of experts.h, which the writer joins only in those stacks.
 * SHARED: gate and up of the MLP that all tokens have beside experts.
 * HEADS: halves of heads, which latent.h splits and the writer joins; only their names are here. */
enum {
    NIB_FUSED_QKV = 1,
    NIB_FUSED_GATE_UP = 2,
    NIB_APART_HEAD_NORMS = 4,
    NIB_FUSED_EXPERTS = 8,
    NIB_FUSED_HEADS = 16,
    NIB_FUSED_SHARED = 32,
    NIB_FUSED_ANY =
        NIB_FUSED_QKV | NIB_FUSED_GATE_UP | NIB_FUSED_EXPERTS | NIB_FUSED_HEADS | NIB_FUSED_SHARED
};

enum { NIB_FUSED_NAME = 256 };

/* One part of a fused tensor. */
typedef struct nib_fused_part {
    char whole[NIB_FUSED_NAME]; /* the fused tensor's name */
    /* part number `part` of `count`; HEADS: of head h, h * count and those after */
    int part, count;
} nib_fused_part;

/* Offset of what follows "model.layers.N." in the name; 0: the name has another form. */
size_t nib__skip_layer(const char *name);
/* "model.layers.3.mlp.up_proj.weight" is part 1 of "model.layers.3.mlp.gate_up_proj.weight" if
 * `fused` has that bit; likewise for GGUF names. False: not part of a fused tensor. */
bool nib__fused_part(nib_fused_part *out, const char *name, unsigned fused);
/* The name of part number `part` of a fused tensor. False: the tensor is not fused. */
bool nib__fused_name(char out[NIB_FUSED_NAME], const char *whole, int part);

/* Reads the numbers of heads of q, k and v from the text of config.json. name: its file name. */
nib_status nib__fused_heads(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                            nib_err *err);
/* Replaces fused tensors and their metadata by views of the parts. A weight stored in a form
 * without separate rows stays whole. */
nib_status nib__fused_split(nib_checkpoint *cp, nib_err *err);
/* If the module is part of a fused weight that stayed whole: true, and *status is the error. */
bool nib__fused_fail(const nib_weight_query *q, nib_status *status);

#endif
