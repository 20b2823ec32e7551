/* SPDX-License-Identifier: Apache-2.0
 *
 * The code of the short convolution's rows, written once on lanes and compiled per instruction set.
 * Each including file names its functions through NIB_CONV(name). Lanes are channels, so nothing is
 * summed across them.
 */
#include "lanes.h"
#include "ops.h"

/* Channels of one slot. earlier: [taps - 1] the inputs of the tokens before it, the oldest first;
 * NULL: there is none. */
NIB_INLINE void conv_slot(const nib_short_conv *a, int64_t m, int64_t first, int64_t count,
                          const float *const *earlier, float *own)
{
    const int64_t at = m * a->ldx + first, newest = a->taps - 1;
    const float *weight = a->weight + first;
    float *out = a->out + m * a->ldo + first;
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        nib_lanes u = nib__lanes_load_at(a->x + at, i, count), sum = nib__lanes_set(0.0f), sigmoid;
        if (a->before != NULL)
            u = nib__lanes_mul(nib__lanes_load_at(a->before + at, i, count), u);
        nib__lanes_store_at(own, i, count, u);
        for (int64_t tap = 0; tap < newest; tap++)
            if (earlier[tap] != NULL)
                sum = nib__lanes_fma(nib__lanes_load_at(weight + tap * a->channels, i, count),
                                     nib__lanes_load_at(earlier[tap], i, count), sum);
        sum = nib__lanes_fma(nib__lanes_load_at(weight + newest * a->channels, i, count), u, sum);
        if (a->bias != NULL)
            sum = nib__lanes_add(sum, nib__lanes_load_at(a->bias + first, i, count));
        if (a->silu)
            sum = nib__lanes_silu(sum, &sigmoid);
        if (a->after != NULL)
            sum = nib__lanes_mul(nib__lanes_load_at(a->after + at, i, count), sum);
        nib__lanes_store_at(out, i, count, sum);
    }
}

void NIB_CONV(short_conv)(const nib_short_conv *a, int64_t channel0, int64_t channel1)
{
    const float *earlier[NIB_TAPS_MAX];
    for (int64_t m = 0; m < a->m; m++) {
        float *state = a->state + a->sequence[m] * a->room * a->channels + channel0;
        const int64_t position = a->position[m];
        for (int64_t tap = 0; tap < a->taps - 1; tap++) {
            const int64_t p = position - (a->taps - 1) + tap;
            earlier[tap] = p >= 0 ? state + p % a->room * a->channels : NULL;
        }
        conv_slot(a, m, channel0, channel1 - channel0, earlier,
                  state + position % a->room * a->channels);
    }
}
