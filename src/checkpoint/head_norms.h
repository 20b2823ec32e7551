/* SPDX-License-Identifier: Apache-2.0
 *
 * Norms of heads: StableLM 2 12B stores the norm of each head of q and k as a tensor of its own,
 * self_attn.q_layernorm.norms.3.weight. All other code knows one weight [heads][head_dim],
 * self_attn.q_norm.weight, as Cohere and GGUF store it: a checkpoint is opened with the heads'
 * tensors joined in memory, and the writer writes them apart again.
 */
#ifndef NIB_HEAD_NORMS_H
#define NIB_HEAD_NORMS_H

#include "fused.h"

/* The stored name of one head's norm: "model.layers.0.self_attn.q_layernorm.norms.3.weight" for
 * "model.layers.0.self_attn.q_norm.weight" and 3. False: the name is not of such a norm. */
bool nib__head_norm_name(char out[NIB_FUSED_NAME], const char *joined, int64_t head);

/* Puts one tensor [heads][head_dim], or [head_dim] of one head, in the place of the heads' tensors:
 * of those from 0 on that have the type and length of the first. */
nib_status nib__head_norms_join(nib_checkpoint *cp, nib_err *err);

#endif
