/* SPDX-License-Identifier: Apache-2.0
 *
 * Latent attention: kv_b_proj makes the keys and values of all heads, [heads][nope + value][rank].
 * All other code sees two weights of each head, under names of Nibble's own:
 *
 *   P.k_b_proj.H   [rank][nope], the rows of its keys, transposed: they multiply queries instead
 *   P.v_b_proj.H   [value][rank], the rows of its values
 *
 * Opening a checkpoint makes views of both where the stored form can be read in both directions:
 * floats, and codes in square blocks of which halves have whole ones.
 */
#ifndef NIB_LATENT_H
#define NIB_LATENT_H

#include "checkpoint_inside.h"

/* Reads the sizes of heads from the text of config.json. name: its file name. */
nib_status nib__latent_sizes(nib_checkpoint *cp, const char *name, const char *text, size_t size,
                             nib_err *err);
/* Replaces kv_b_proj, or GGUF's stacks k_b_proj and v_b_proj, by views of the halves of each head.
 * A weight in another form stays whole. */
nib_status nib__latent_split(nib_checkpoint *cp, nib_err *err);
/* If the module is a half of a kv_b_proj whose rows are not those of whole heads: true, and *status
 * is the error. */
bool nib__latent_fail(const nib_weight_query *q, nib_status *status);

#endif
