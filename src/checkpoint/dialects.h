/* SPDX-License-Identifier: Apache-2.0
 *
 * How a quantized weight is stored: the tensors a dialect needs for a scheme, and their
 * descriptions. Used by the streaming writer; reading is dialect_*.c behind nib__checkpoint_weight.
 */
#ifndef NIB_DIALECTS_H
#define NIB_DIALECTS_H

#include "checkpoint.h"

/* The JSON under M.weight in the nibble dialect. */
void nib__nibble_describe(nib_text *out, const nib_scheme *scheme, int64_t n, int64_t k);
nib_store nib__nibble_store(nib_code code);
/* The stored type of codes, one per byte; U8 where a byte holds two. */
nib_type nib__code_type(nib_code code);

#endif
