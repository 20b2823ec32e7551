/* SPDX-License-Identifier: Apache-2.0
 *
 * Fused weights: one stored tensor whose rows are those of several weights, one after the other.
 * Phi-3 has q, k and v in qkv_proj, and the gate and up in gate_up_proj; so has its GGUF. All other
 * code knows only the parts, under the names that other families store them by: a checkpoint is
 * opened with a view for each part, and the writer joins the parts again.
 */
#ifndef NIB_FUSED_H
#define NIB_FUSED_H

#include "checkpoint_inside.h"

/* What a family stores fused, or apart (head_norms.h); bits. */
enum { NIB_FUSED_QKV = 1, NIB_FUSED_GATE_UP = 2, NIB_APART_HEAD_NORMS = 4 };

enum { NIB_FUSED_NAME = 256 };

/* Which part of which tensor a name belongs to. */
typedef struct nib_fused_part {
    char whole[NIB_FUSED_NAME]; /* the fused tensor's name */
    int part, count;            /* this is part number `part` of `count` */
} nib_fused_part;

/* "model.layers.3.mlp.up_proj.weight" is part 1 of "model.layers.3.mlp.gate_up_proj.weight", if
 * `fused` says so; the same for names of GGUF. False: it is stored by itself. */
bool nib__fused_part(nib_fused_part *out, const char *name, unsigned fused);
/* The name of part number `part` of a fused tensor. False: the tensor is not fused. */
bool nib__fused_name(char out[NIB_FUSED_NAME], const char *whole, int part);

/* How many heads q, k and v have, from the text of config.json. name: of the text. */
nib_status nib__fused_heads(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                            nib_err *err);
/* Puts views of the parts in the place of fused tensors, and describes them alike. A weight that is
 * stored in a form without separate rows stays whole. */
nib_status nib__fused_split(nib_checkpoint *cp, nib_err *err);
/* True, with the status, if the module is a part of a fused weight that stayed whole. */
bool nib__fused_fail(const nib_weight_query *q, nib_status *status);

#endif
