/* SPDX-License-Identifier: Apache-2.0
 *
 * Names of tensors in other containers and ours, which are Hugging Face's; both directions.
 */
#ifndef NIB_RENAMES_H
#define NIB_RENAMES_H

#include "base.h"

enum { NIB_RENAME_MAX = 128 };

/* Does GGUF's architecture (NULL: none is named) have the names that are known here? */
bool nib__rename_knows(const char *arch);
/* Does it store the rows of q and k in pairs, as its rotation turns neighbours? */
bool nib__rename_pairs(const char *arch);
/* What it stores weights of norms with added: 1 for Gemma, whose own are off by one; 0. */
double nib__rename_norm_offset(const char *arch);
/* "blk.3.attn_q.weight" <-> "model.layers.3.self_attn.q_proj.weight" in an architecture that is
 * known. False: no rule, out is untouched and the name stays. */
bool nib__rename_from_gguf(char out[NIB_RENAME_MAX], const char *arch, const char *name);
bool nib__rename_to_gguf(char out[NIB_RENAME_MAX], const char *arch, const char *name);

#endif
