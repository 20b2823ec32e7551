/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of Meta's checkpoints and of the programs that keep them (gpt-fast, llama2.c, ExecuTorch,
 * torchtune), and ours, which are Hugging Face's.
 */
#ifndef NIB_RENAMES_META_H
#define NIB_RENAMES_META_H

#include "container.h"

enum { NIB_META_NAME_MAX = 160 };

/* "layers.3.attention.wq.scales" -> "model.layers.3.self_attn.q_proj.scales", whatever stands
 * behind the module; torchtune's "layers.3.attn.q_proj.weight", too. False: no rule. */
bool nib__rename_from_meta(char out[NIB_META_NAME_MAX], const char *name);
/* The other direction, to Meta's own names. */
bool nib__rename_to_meta(char out[NIB_META_NAME_MAX], const char *name);

/* Renames the tensors and aliases of a file that has Meta's token embedding, without what
 * torch.compile and its kin put before every name, and parts gpt-fast's fused wqkv into three by
 * rows; and says so in a note. *renamed: Meta's names were there. Other files stay as they are. */
nib_status nib__meta_translate(bool *renamed, nib_container *contents, const char *file,
                               nib_arena *arena, nib_err *err);

#endif
