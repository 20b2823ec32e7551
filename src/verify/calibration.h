/* SPDX-License-Identifier: Apache-2.0
 *
 * Signs of a broken calibration in a quantized checkpoint: what its config says and its tensors do
 * not hold, default codes, and codes of codes.
 */
#ifndef NIB_CALIBRATION_CHECK_H
#define NIB_CALIBRATION_CHECK_H

#include "info.h"

typedef struct nib_sign {
    bool is_problem; /* else a note: it may be intended */
    const char *code, *name, *text;
} nib_sign;

typedef struct nib_signs {
    nib_sign *items;
    size_t count, capacity;
} nib_signs;

/* Lists signs in file order, their texts in the arena; free the list with nib__release(a,
 * out->items). Reads every code. */
nib_status nib__find_signs(nib_signs *out, const nib_checkpoint *cp, const nib_entry *entries,
                           size_t count, nib_arena *arena, const nib_allocator *a, nib_err *err);

#endif
