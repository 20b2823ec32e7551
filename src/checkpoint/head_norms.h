/* SPDX-License-Identifier: Apache-2.0
 *
 * Per-head norms: StableLM 2 12B stores the norm of each head of q and k as a separate tensor,
 * self_attn.q_layernorm.norms.3.weight. All other code sees one weight [heads][head_dim],
 * self_attn.q_norm.weight, as Cohere and GGUF store it: opening a checkpoint joins the tensors of
 * the heads in memory, and the writer splits them again.
 */
#ifndef NIB_HEAD_NORMS_H
#define NIB_HEAD_NORMS_H

#include "fused.h"

/* The stored name of one head's norm: "model.layers.0.self_attn.q_layernorm.norms.3.weight" for
 * "model.layers.0.self_attn.q_norm.weight" and 3. False: not such a norm. */
bool nib__head_norm_name(char out[NIB_FUSED_NAME], const char *joined, int64_t head);

/* Replaces the tensors of the heads, from 0 on as long as type and length equal those of the first,
 * by one tensor [heads][head_dim], or [head_dim] for one head. */
nib_status nib__head_norms_join(nib_checkpoint *cp, nib_err *err);

#endif
