/* SPDX-License-Identifier: Apache-2.0
 *
 * Tensor names of GGUF <-> Hugging Face's, which the rest of the program uses.
 */
#ifndef NIB_RENAMES_H
#define NIB_RENAMES_H

#include "base.h"

enum { NIB_RENAME_MAX = 128 };
/* The name of a row for writing granitehybrid without experts, whose MLP has the usual names. */
#define NIB_RENAME_DENSE_HYBRID "granitehybrid without experts"

/* What becomes of a tensor's shape in a GGUF. */
typedef enum nib_rename_form {
    NIB_RENAME_SAME,
    NIB_RENAME_TAPS,   /* [channels][1][taps] of a short convolution: [channels][taps], in f32 */
    NIB_RENAME_COLUMN, /* [n]: [n][1] */
    NIB_RENAME_GROUPS, /* [n], of several groups: [groups][n / groups] */
    NIB_RENAME_ROW     /* [1][n]: [n] */
} nib_rename_form;

/* Whether the GGUF architecture is in the table. NULL (no architecture): false. */
bool nib__rename_knows(const char *arch);
/* Whether it stores the rows of q and k in pairs (see rotary.h). */
bool nib__rename_pairs(const char *arch);
/* What it adds to stored norm weights: 1 for Gemma, whose weights are off by one, otherwise 0. */
double nib__rename_norm_offset(const char *arch);
/* Whether it does so to a tensor with this Hugging Face name: a norm, but not gated DeltaNet's. */
bool nib__rename_is_offset(const char *name);
/* The form of a tensor with this Hugging Face name. */
nib_rename_form nib__rename_form(const char *name);
/* Whether it is a recurrence's A_log, in whose place GGUF has -e^A_log. */
bool nib__rename_is_rates(const char *name);
/* "blk.3.attn_q.weight" <-> "model.layers.3.self_attn.q_proj.weight" in a known architecture. An
 * expert's "mlp.experts.5.up_proj.weight" is the share "ffn_up_exps.5.weight" of a stack, which the
 * writer joins; likewise a head's "self_attn.k_b_proj.5.weight" and "attn_k_b.5.weight".
 * False: no rule; out is untouched and the name stays. */
bool nib__rename_from_gguf(char out[NIB_RENAME_MAX], const char *arch, const char *name);
bool nib__rename_to_gguf(char out[NIB_RENAME_MAX], const char *arch, const char *name);

#endif
