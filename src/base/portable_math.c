/* SPDX-License-Identifier: Apache-2.0
 *
 * Argument reduction and Taylor series, long enough for an error below 2 ulp.
 */
#include "portable_math.h"

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* ln 2 and pi / 2 as sums: the first parts have 33 bits, so their product with a small integer is
 * exact. */
static const double ln2_high = 0x1.62e42feep-1, ln2_low = 0x1.a39ef35793c76p-33;
static const double half_pi_1 = 0x1.921fb544p+0, half_pi_2 = 0x1.0b4611a6p-34,
                    half_pi_3 = 0x1.3198a2e037073p-69;

/* Nearest whole number for |x| below 2^51. */
static double whole(double x)
{
    const double magic = 6755399441055744.0; /* 1.5 * 2^52 */
    return (x + magic) - magic;
}

static double power_of_two(int64_t n) /* -1022..1023 */
{
    const uint64_t bits = (uint64_t)(n + 1023) << 52;
    double d;
    memcpy(&d, &bits, sizeof d);
    return d;
}

enum { LANES = 8, EXP_TERMS = 14 };

static const double exp_least = -708.0, exp_most = 709.0;

/* exp of arguments within the bounds. Each lane has the operations of a single value; side by side,
 * their divisions, which depend on each other within a lane, overlap. */
static void exp_lanes(double values[LANES])
{
    double n[LANES], r[LANES], sum[LANES];
    for (int lane = 0; lane < LANES; lane++) {
        n[lane] = whole(values[lane] * 1.4426950408889634);
        r[lane] = (values[lane] - n[lane] * ln2_high) - n[lane] * ln2_low;
        sum[lane] = 1.0;
    }
    for (int i = EXP_TERMS; i > 0; i--)
        for (int lane = 0; lane < LANES; lane++)
            sum[lane] = 1.0 + sum[lane] * r[lane] / i;
    for (int lane = 0; lane < LANES; lane++)
        values[lane] = sum[lane] * power_of_two((int64_t)n[lane]);
}

void nib__exp_each(double *values, size_t count)
{
    for (size_t begin = 0; begin < count; begin += LANES) {
        const size_t lanes = count - begin < LANES ? count - begin : LANES;
        double block[LANES] = {0};
        for (size_t lane = 0; lane < lanes; lane++) {
            const double x = values[begin + lane];
            block[lane] = x >= exp_least && x <= exp_most ? x : 0;
        }
        exp_lanes(block);
        for (size_t lane = 0; lane < lanes; lane++) {
            const double x = values[begin + lane];
            if (x < exp_least || x > exp_most)
                block[lane] = x < 0 ? 0.0 : INFINITY;
            values[begin + lane] = x != x ? x : block[lane];
        }
    }
}

double nib__exp(double x)
{
    nib__exp_each(&x, 1);
    return x;
}

double nib__log(double x)
{
    if (!(x >= 0.0))
        return NAN;
    if (x == 0.0 || x == INFINITY)
        return x == 0.0 ? -INFINITY : x;
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int64_t exponent = (int64_t)(bits >> 52) - 1023;
    bits = (bits & 0xfffffffffffffu) | 0x3ff0000000000000u;
    double m;
    memcpy(&m, &bits, sizeof m);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        exponent++;
    }
    /* ln m = 2 artanh((m - 1) / (m + 1)) */
    const double s = (m - 1.0) / (m + 1.0), square = s * s;
    static const double inverses[] = {1.0 / 25, 1.0 / 23, 1.0 / 21, 1.0 / 19, 1.0 / 17, 1.0 / 15,
                                      1.0 / 13, 1.0 / 11, 1.0 / 9,  1.0 / 7,  1.0 / 5,  1.0 / 3};
    double sum = 0.0;
    for (size_t i = 0; i < sizeof inverses / sizeof *inverses; i++)
        sum = (sum + inverses[i]) * square;
    return (double)exponent * ln2_high + ((double)exponent * ln2_low + 2.0 * s * sum + 2.0 * s);
}

static double sine(double r)
{
    const double square = r * r;
    double sum = 1.0;
    for (int i = 18; i > 0; i -= 2)
        sum = 1.0 - sum * square / (i * (i + 1));
    return r * sum;
}

static double cosine(double r)
{
    const double square = r * r;
    double sum = 1.0;
    for (int i = 17; i > 0; i -= 2)
        sum = 1.0 - sum * square / (i * (i + 1));
    return sum;
}

/* sin(x + quarters * pi / 2) */
static double sin_quarters(double x, int64_t quarters)
{
    const double n = whole(x * 0.63661977236758134);
    const double r = ((x - n * half_pi_1) - n * half_pi_2) - n * half_pi_3;
    switch (((int64_t)n + quarters) & 3) {
    case 0: return sine(r);
    case 1: return cosine(r);
    case 2: return -sine(r);
    default: return -cosine(r);
    }
}

double nib__sin(double x) { return sin_quarters(x, 0); }
double nib__cos(double x) { return sin_quarters(x, 1); }

double nib__softplus_from(double x, double e)
{
    /* of a small x, 1 + e has few digits of e */
    return x < -15 ? e * (1 - e / 2) : (x > 0 ? x : 0) + nib__log(1 + e);
}

double nib__softplus(double x) { return nib__softplus_from(x, nib__exp(-fabs(x))); }
