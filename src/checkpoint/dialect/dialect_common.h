/* SPDX-License-Identifier: Apache-2.0
 *
 * What dialects of other tools have in common: codes one per byte, scales in a grid, zero points in
 * words, act-order. Each fills its part of q->out; n, k and the group come first.
 */
#ifndef NIB_PARTS_H
#define NIB_PARTS_H

#include "checkpoint_inside.h"

/* Codes [n][k], one per byte of `type`: n, k, store and codes. */
nib_status nib__weight_take_bytes(const nib_weight_query *q, const char *suffix, nib_type type);
/* scheme.group and scale_rows are set: scales [ceil(n/scale_rows)][groups], [n] for one per row, or
 * one value. A tensor of U8 counts as one of `type`; NONE: any float. */
nib_status nib__weight_take_grid(const nib_weight_query *q, const char *suffix, nib_type type);
/* Scales [groups][n], transposed, of any float type. */
nib_status nib__weight_take_columns(const nib_weight_query *q, const char *suffix);
/* Zeros as the grid of scales, where they are stored; a zero of 0 throughout is none. */
nib_status nib__weight_take_zeros(const nib_weight_query *q, const char *suffix);
/* The store has packed zeros: none of them may mean something, and then there are none. */
void nib__weight_drop_zeros(const nib_weight_query *q);
/* I32 or I64 [k], the group of each input: `order`, if the groups are not in the inputs' order. */
nib_status nib__weight_take_order(const nib_weight_query *q, const char *suffix);

/* The scale over those of the blocks, which are times it (`divides`: divided by it): one finite,
 * positive F32. */
nib_status nib__weight_take_tensor_scale(const nib_weight_query *q, const char *suffix,
                                         bool divides);

/* Scale and zero of tinygemm's int4 one behind the other, [groups][rows][2], of which the weight's
 * begin at row `first`; stored_k is set: scheme, scales, zeros. */
nib_status nib__weight_take_pairs(const nib_weight_query *q, const char *suffix, int64_t first);
/* Which of tinygemm's stores the codes are in, by what they show; `words`: not a CPU's. */
nib_status nib__weight_pick_layout(const nib_weight_query *q, const char *codes, const char *suffix,
                                   bool words);

/* I32 [k], every input once: `order`. */
nib_status nib__weight_take_permutation(const nib_weight_query *q, const char *suffix);

#endif
