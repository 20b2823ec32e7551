/* SPDX-License-Identifier: Apache-2.0
 *
 * Rotating vectors of keys, values and queries by a normalized Walsh-Hadamard matrix, which is its
 * own inverse.
 */
#ifndef NIB_HADAMARD_H
#define NIB_HADAMARD_H

#include "base.h"

#include <math.h>

/* to[dim] = from, rotated in blocks of `block` channels, a power of two that divides dim. to may be
 * from. Butterflies go from near channels to far ones; then comes the factor. Returns to. */
NIB_INLINE float *nib__hadamard(float *to, const float *from, int64_t dim, int64_t block)
{
    const float factor = 1.0f / sqrtf((float)block);
    if (to != from)
        memcpy(to, from, (size_t)dim * sizeof *to);
    for (int64_t step = 1; step < block; step *= 2)
        for (int64_t i = 0; i < dim; i += 2 * step)
            for (int64_t j = i; j < i + step; j++) {
                const float a = to[j], b = to[j + step];
                to[j] = a + b;
                to[j + step] = a - b;
            }
    for (int64_t i = 0; i < dim; i++)
        to[i] *= factor;
    return to;
}

#endif
