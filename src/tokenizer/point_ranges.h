/* SPDX-License-Identifier: Apache-2.0
 *
 * Sets of characters as ranges, for what utf8proc does not tell.
 */
#ifndef NIB_POINT_RANGES_H
#define NIB_POINT_RANGES_H

#include "base.h"

typedef struct nib_point_range {
    uint32_t first, last;
} nib_point_range;

/* The ranges ascend and do not meet. */
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
