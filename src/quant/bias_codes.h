/* SPDX-License-Identifier: Apache-2.0
 *
 * Converts biases to another form: int8 by torchao's affine formulas, int32 in the steps of the
 * integer sums that it initializes. The caller's arena owns the buffers.
 */
#ifndef NIB_BIAS_CODES_H
#define NIB_BIAS_CODES_H

#include "scheme.h"

/* Adjusts `form` to a weight of this scheme: FLOAT for a weight of plain floats, else unchanged.
 * NIB_NOT_AS_ASKED, with `name` and the way out, for an int32 bias that nib__bias_int32_refuses. */
nib_status nib__bias_allowed(nib_bias *form, const char *name, const nib_scheme *s, int64_t k,
                             nib_err *err);
/* Parses "float", "int8" or "int32"; NULL gives NONE, as stored. Others are NIB_USAGE. */
nib_status nib__bias_parse(nib_bias *out, const char *form, nib_err *err);

/* Converts the bias of *w to `form`, which is allowed; INT32 needs scales and act_scale. *change:
 * largest change of a value, relative to the largest value. */
nib_status nib__bias_code(nib_weight *w, nib_bias form, double *change, nib_arena *arena,
                          nib_err *err);

#endif
