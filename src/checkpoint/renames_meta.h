/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor names of Meta's checkpoints and of the programs that use them (gpt-fast, llama2.c,
 * ExecuTorch, torchtune) <-> Hugging Face's, which the rest of the program uses.
 */
#ifndef NIB_RENAMES_META_H
#define NIB_RENAMES_META_H

#include "container.h"

enum { NIB_META_NAME_MAX = 160 };

/* "layers.3.attention.wq.scales" -> "model.layers.3.self_attn.q_proj.scales", with any suffix after
 * the module; also torchtune's "layers.3.attn.q_proj.weight". False: no rule. */
bool nib__rename_from_meta(char out[NIB_META_NAME_MAX], const char *name);
/* The other direction, to Meta's own names. */
bool nib__rename_to_meta(char out[NIB_META_NAME_MAX], const char *name);

/* If the file has Meta's token embedding, renames its tensors and aliases and splits gpt-fast's
 * fused wqkv into three by rows. Also strips the prefix that torch.compile and the like put before
 * every name. Adds notes. *renamed: the file had Meta's names. */
nib_status nib__meta_translate(bool *renamed, nib_container *contents, const char *file,
                               nib_arena *arena, nib_err *err);

#endif
