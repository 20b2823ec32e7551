/* SPDX-License-Identifier: Apache-2.0
 *
 * RoPE tables: cosines and sines, for the positions that a run has reached.
 */
#include "config.h"
#include "portable_math.h"

#include <math.h>

static const double pi = 3.14159265358979323846;

/* Frequency of pair i before scaling. */
static double plain_frequency(const nib_config *c, int64_t pair)
{
    return nib__exp(nib__log(c->rope_theta) *
                    (-2.0 * (double)pair / (double)nib__config_rope_dims(c)));
}

/* llama3 keeps high frequencies, divides low ones by the factor and blends between (Llama 3.1's
 * published rule, in wavelengths). */
static double llama3_frequency(const nib_config *c, double f)
{
    const double wavelength = 2.0 * pi / f, original = (double)c->rope_original;
    if (wavelength < original / c->rope_high)
        return f;
    if (wavelength > original / c->rope_low)
        return f / c->rope_factor;
    if (c->rope_high == c->rope_low) /* nothing lies between */
        return f;
    const double blend = (original / wavelength - c->rope_low) / (c->rope_high - c->rope_low);
    return (1.0 - blend) * f / c->rope_factor + blend * f;
}

/* The pair, as a real number, that makes this many turns within the original context. */
static double pair_of_turns(const nib_config *c, double turns)
{
    return (double)nib__config_rope_dims(c) *
           nib__log((double)c->rope_original / (turns * 2.0 * pi)) /
           (2.0 * nib__log(c->rope_theta));
}

/* YaRN blends like llama3, but linearly in the pair's index. As in transformers, the bounds are
 * clamped to the number of channels, not of pairs. */
static double yarn_frequency(const nib_config *c, int64_t pair, double f)
{
    double low = pair_of_turns(c, c->rope_fast), high = pair_of_turns(c, c->rope_slow);
    if (!c->rope_unrounded)
        low = floor(low), high = ceil(high);
    low = fmax(low, 0);
    high = fmin(high, (double)(nib__config_rope_dims(c) - 1));
    if (low == high)
        high += 0.001;
    const double divided = fmin(fmax(((double)pair - low) / (high - low), 0), 1);
    return (1.0 - divided) * f + divided * f / c->rope_factor;
}

double nib__rope_frequency(const nib_config *c, int64_t pair, int64_t context)
{
    const double f = plain_frequency(c, pair);
    switch (c->rope) {
    case NIB_ROPE_LINEAR: return f / c->rope_factor;
    case NIB_ROPE_LLAMA3: return llama3_frequency(c, f);
    case NIB_ROPE_YARN: return yarn_frequency(c, pair, f);
    case NIB_ROPE_PROPORTIONAL: return pair < c->rope_pairs ? f / c->rope_factor : 0;
    case NIB_ROPE_LONGROPE:
        return f / (double)(context > c->rope_original ? c->rope_long : c->rope_short)[pair];
    default: return f;
    }
}

double nib__rope_divisor(const nib_config *config, int64_t pair)
{
    const int64_t context = config->context;
    nib_config plain = *config;
    plain.rope = NIB_ROPE_PLAIN;
    return nib__rope_frequency(&plain, pair, context) / nib__rope_frequency(config, pair, context);
}

uint64_t nib__rope_size(const nib_config *c, int64_t positions)
{
    return (uint64_t)positions *
           (uint64_t)nib__max(nib__config_table_dims(c, 0), nib__config_table_dims(c, 1));
}

/* The factor of the cosines and sines of a position. Rotation is linear, so queries that are scaled
 * after it can use a scaled table instead; unrotated ones have an angle of 0. */
static double gain_of(const nib_config *c, int64_t position)
{
    const double gain = c->rope_gain > 0 ? c->rope_gain : 1;
    if (!(c->query_beta > 0))
        return gain;
    const int64_t steps = (position + c->query_first) / c->query_step;
    return gain * (1.0 + c->query_beta * nib__log(1.0 + (double)steps));
}

void nib__rope_table(float *out, const nib_config *config, int table, int64_t context,
                     int64_t first, int64_t end)
{
    nib_config c = *config;
    const int64_t dims = nib__config_table_dims(&c, table), half = dims / 2;
    if (table == 0)
        c.query_beta = 0;
    if (table == 1 && c.local_theta > 0) {
        c.rope_theta = c.local_theta;
        c.rope_dims = dims;
        c.rope = NIB_ROPE_PLAIN;
        c.rope_gain = 0;
        c.rope_divisors = NULL;
    }
    const bool still = table == 1 && c.query_unrotated;
    if (still)
        c.rope_gain = 0;
    for (int64_t i = 0; i < half; i++) {
        double exact = still ? 0 : nib__rope_frequency(&c, i, context);
        if (c.rope_divisors != NULL)
            exact /= (double)c.rope_divisors[i];
        const float frequency = (float)exact;
        for (int64_t p = first; p < end; p++) {
            const double angle = (double)((float)p * frequency), gain = gain_of(&c, p);
            out[p * dims + i] = (float)(gain * nib__cos(angle));
            out[p * dims + half + i] = (float)(gain * nib__sin(angle));
        }
    }
}
