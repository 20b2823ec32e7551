/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of code points as ranges, for properties that utf8proc does not have.
 */
#ifndef NIB_POINT_RANGES_H
#define NIB_POINT_RANGES_H

#include "base.h"

typedef struct nib_point_range {
    uint32_t first, last;
} nib_point_range;

/* Is the point in one of the ranges, which are ascending and disjoint? */
NIB_INLINE bool nib__point_among(const nib_point_range *ranges, size_t count, uint32_t point)
{
    size_t low = 0, high = count;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (point > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < count && point >= ranges[low].first;
}

#endif
