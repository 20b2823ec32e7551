/* SPDX-License-Identifier: Apache-2.0
 *
 * The scratch of a row as several arrays of floats, one behind the other.
 */
#ifndef NIB_SCRATCH_PARTS_H
#define NIB_SCRATCH_PARTS_H

#include "base.h"

typedef struct nib_scratch_part {
    float **at;
    int64_t count; /* of floats */
} nib_scratch_part;

/* Splits `memory` into the parts and returns their bytes. memory NULL: only asks for the size. */
NIB_INLINE size_t nib__scratch_split(const nib_scratch_part *parts, size_t count, float *memory)
{
    int64_t used = 0;
    for (size_t i = 0; i < count; i++) {
        *parts[i].at = memory != NULL ? memory + used : NULL;
        used += parts[i].count;
    }
    return (size_t)used * sizeof *memory;
}

#endif
