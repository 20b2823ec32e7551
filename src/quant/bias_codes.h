/* SPDX-License-Identifier: Apache-2.0
 *
 * Biases into another form: int8 by torchao's affine formulas, int32 in the steps of the integer
 * sums that it starts. Buffers lie in the caller's arena.
 */
#ifndef NIB_BIAS_CODES_H
#define NIB_BIAS_CODES_H

#include "scheme.h"

/* What `form` is of a weight with this scheme: itself; FLOAT for a weight of plain floats, whose
 * bias no form asks for; NIB_NOT_AS_ASKED, with `name` and the way out, for an int32 bias that
 * nib__bias_int32_refuses. */
nib_status nib__bias_allowed(nib_bias *form, const char *name, const nib_scheme *s, int64_t k,
                             nib_err *err);
/* "float", "int8" or "int32"; NONE for NULL: as stored. NIB_USAGE: none of them. */
nib_status nib__bias_parse(nib_bias *out, const char *form, nib_err *err);

/* Turns the bias of *w into `form`, which is allowed; for INT32 its scales and act_scale are there.
 * *change: the largest change of a value, relative to the largest of them. */
nib_status nib__bias_code(nib_weight *w, nib_bias form, double *change, nib_arena *arena,
                          nib_err *err);

#endif
