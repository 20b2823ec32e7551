/* SPDX-License-Identifier: Apache-2.0
 *
 * Shared by the dialects of other tools: codes one per byte, a grid of scales, packed zero points,
 * act-order. Each function fills part of q->out; set n, k and the group first.
 */
#ifndef NIB_DIALECT_COMMON_H
#define NIB_DIALECT_COMMON_H

#include "checkpoint_inside.h"

/* Reads codes [n][k], one per byte of `type`: sets n, k, layout and codes. */
nib_status nib__weight_read_bytes(const nib_weight_query *q, const char *suffix, nib_type type);
/* Reads scales [ceil(n/scale_rows)][groups], [n] for one per row, or one value; scheme.group and
 * scale_rows must be set. A U8 tensor is read as `type`; NONE: any float. */
nib_status nib__weight_read_grid(const nib_weight_query *q, const char *suffix, nib_type type);
/* Reads transposed scales [groups][n] of any float type. */
nib_status nib__weight_read_columns(const nib_weight_query *q, const char *suffix);
/* Reads zeros, if stored, with the shape of the scales. If all are 0, the scheme gets none. */
nib_status nib__weight_read_zeros(const nib_weight_query *q, const char *suffix);
/* For layouts with packed zeros: sets the scheme's zero to int, or to none if all are 0. */
void nib__weight_drop_zeros(const nib_weight_query *q);
/* Reads I32 or I64 [k], the group of each input; sets `order` if groups are not consecutive. */
nib_status nib__weight_read_order(const nib_weight_query *q, const char *suffix);

/* Reads the per-tensor scale, one finite, positive F32. It multiplies the block scales, or divides
 * them if `divides`. */
nib_status nib__weight_read_tensor_scale(const nib_weight_query *q, const char *suffix,
                                         bool divides);

/* Reads tinygemm's interleaved int4 scales and zeros [groups][rows][2], from row `first` on; sets
 * scheme, scales and zeros. stored_k must be set. */
nib_status nib__weight_read_pairs(const nib_weight_query *q, const char *suffix, int64_t first);
/* Detects from the codes which of tinygemm's layouts they have. words: the tensor is I32, so GPU
 * layouts are possible. */
nib_status nib__weight_pick_layout(const nib_weight_query *q, const char *codes, const char *suffix,
                                   bool words);

/* Reads I32 [k], a permutation of the inputs, into `order`. */
nib_status nib__weight_read_permutation(const nib_weight_query *q, const char *suffix);

/* Sets the activations that a config group asks for, or reports that they stay floats. Call it
 * after the weight's scheme is set. in: given is false if they are floats. */
nib_status nib__weight_set_activations(const nib_weight_query *q, const nib_coding *in);

#endif
