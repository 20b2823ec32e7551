/* SPDX-License-Identifier: Apache-2.0
 *
 * The same values as tools/golden's training generators make: functions of tensor and index, so
 * golden files need not store them.
 */
#ifndef NIB_TEST_GOLDEN_VALUES_H
#define NIB_TEST_GOLDEN_VALUES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { GOLDEN_SEED = 20261120 };

static inline uint64_t mix(uint64_t z)
{
    z += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

static inline float value(uint64_t tensor, uint64_t i, uint64_t row, const char *kind)
{
    const uint64_t z = mix(GOLDEN_SEED + (tensor << 32) + i), part = z >> 40 & 15;
    const float unit = (float)(int32_t)(uint32_t)z * 0x1p-31F;
    const int power = (int)((z >> 32) % 41) - 20;
    if (strcmp(kind, "wide") == 0)
        return ldexpf(unit, power);
    if (strcmp(kind, "whole") == 0)
        return ldexpf((float)((int)((z >> 8) % 121) - 60), (int)(row % 3) - 1);
    if (strcmp(kind, "hard") != 0)
        return unit;
    if (part < 2)
        return part == 0 ? 0.0F : -0.0F;
    return ldexpf(unit, row % 8 == 1 ? -130 : row % 8 == 2 ? 120 : power);
}

#endif
