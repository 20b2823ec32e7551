/* SPDX-License-Identifier: Apache-2.0
 *
 * The table of rotations: cosines and sines of positions, as far as a run has come.
 */
#include "config.h"
#include "precise.h"

/* Frequency of pair i before scaling. */
static double plain_frequency(const nib_config *c, int64_t pair)
{
    return nib__exp(nib__log(c->rope_theta) *
                    (-2.0 * (double)pair / (double)nib__config_rope_dims(c)));
}

/* llama3 keeps high frequencies, divides low ones by the factor and blends between (Llama 3.1's
 * published rule, in wavelengths). */
double nib__rope_frequency(const nib_config *c, int64_t pair)
{
    const double pi = 3.14159265358979323846;
    const double f = plain_frequency(c, pair);
    if (c->rope == NIB_ROPE_LINEAR)
        return f / c->rope_factor;
    if (c->rope == NIB_ROPE_PLAIN)
        return f;
    const double wavelength = 2.0 * pi / f, original = (double)c->rope_original;
    if (wavelength < original / c->rope_high)
        return f;
    if (wavelength > original / c->rope_low)
        return f / c->rope_factor;
    const double blend = (original / wavelength - c->rope_low) / (c->rope_high - c->rope_low);
    return (1.0 - blend) * f / c->rope_factor + blend * f;
}

double nib__rope_divisor(const nib_config *config, int64_t pair)
{
    nib_config plain = *config;
    plain.rope = NIB_ROPE_PLAIN;
    return nib__rope_frequency(&plain, pair) / nib__rope_frequency(config, pair);
}

uint64_t nib__rope_size(const nib_config *c, int64_t positions)
{
    return (uint64_t)positions * (uint64_t)nib__config_rope_dims(c);
}

void nib__rope_table(float *out, const nib_config *config, int table, int64_t first, int64_t end)
{
    nib_config c = *config;
    const int64_t dims = nib__config_rope_dims(&c), half = dims / 2;
    if (table == 1) {
        c.rope_theta = c.local_theta;
        c.rope = NIB_ROPE_PLAIN;
        c.rope_divisors = NULL;
    }
    for (int64_t i = 0; i < half; i++) {
        double exact = nib__rope_frequency(&c, i);
        if (c.rope_divisors != NULL)
            exact /= (double)c.rope_divisors[i];
        const float frequency = (float)exact;
        for (int64_t p = first; p < end; p++) {
            const double angle = (double)((float)p * frequency);
            out[p * dims + i] = (float)nib__cos(angle);
            out[p * dims + half + i] = (float)nib__sin(angle);
        }
    }
}
