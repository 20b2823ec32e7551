/* SPDX-License-Identifier: Apache-2.0
 *
 * Launch arguments of linear products and embedding look-ups, the same for every driver: the
 * numbers that prelude.cl gives codes and types, and a weight in the layout of gpu_pack.h.
 */
#ifndef NIB_GPU_ARGS_H
#define NIB_GPU_ARGS_H

#include "gpu_pack.h"
#include "launch.h"

/* INPUT_* of prelude.cl */
enum {
    NIB_INPUT_F32,
    NIB_INPUT_BF16,
    NIB_INPUT_I8,
    NIB_INPUT_E4M3,
    NIB_INPUT_F16,
    NIB_INPUT_WIDE_E4M3,
    NIB_INPUT_WIDE_E5M2
};

int nib__gpu_value_number(nib_type type); /* VALUE_* */
int nib__gpu_input_number(const nib_input *x, nib_act act);
const void *nib__gpu_input_values(const nib_input *x);

/* Adds the addresses of codes, scales and zero points; NULL for those that the weight lacks. */
void nib__gpu_weight_memory(nib_launch *out, const nib_gpu_layout *l, const void *packed);
/* The factor on every value of the weight besides its scale. */
float nib__gpu_weight_factor(const nib_weight *w);

/* Tokens of one product, or rows of an expert, if no more experts than needed have rows. */
int64_t nib__gpu_tokens(const nib_linear *a);
/* Tiles of `tokens` rows, as expert_of_few, expert_of_many or head_of of prelude.cl count them;
 * without experts, of all tokens. */
int64_t nib__gpu_token_tiles(const nib_linear *a, int64_t tokens, bool is_few);
/* Adds the arguments of a product of experts, and its option; nothing without experts. */
void nib__gpu_expert_args(nib_launch *out, const nib_linear *a);

#endif
