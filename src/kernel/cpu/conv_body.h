/* SPDX-License-Identifier: Apache-2.0
 *
 * The code of the rows of the short convolution and of its gradients, written once on lanes and
 * compiled per instruction set. Each including file names its functions through NIB_CONV(name).
 * Lanes are channels, so nothing is summed across them.
 */
#include "lanes.h"
#include "ops.h"
#include "train_ops.h"

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

/* ---- gradients ---- */

/* u of a token, from column i on. */
NIB_INLINE nib_lanes conv_input(const float *x, const float *before, int64_t at, int64_t i,
                                int64_t count)
{
    const nib_lanes u = nib__lanes_load_at(x + at, i, count);
    return before != NULL ? nib__lanes_mul(nib__lanes_load_at(before + at, i, count), u) : u;
}

/* The first tap that reads a token of the document. */
NIB_INLINE int64_t conv_first_tap(int64_t taps, int64_t position)
{
    return nib__max(taps - 1 - position, 0);
}

/* The gradients of a token's gate after the sum, and of the sum. */
NIB_INLINE void conv_dsum(const nib_short_conv_dx *a, int64_t m, int64_t first, int64_t count)
{
    const int64_t at = m * a->ldx + first;
    const nib_lanes one = nib__lanes_set(1.0f);
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        nib_lanes sum = nib__lanes_set(0.0f), s;
        nib_lanes d = nib__lanes_load_at(a->dy + m * a->ldy + first, i, count);
        for (int64_t tap = conv_first_tap(a->taps, a->position[m]); tap < a->taps; tap++) {
            const int64_t back = (a->taps - 1 - tap) * a->ldx;
            sum =
                nib__lanes_fma(nib__lanes_load_at(a->weight + tap * a->channels + first, i, count),
                               conv_input(a->x, a->before, at - back, i, count), sum);
        }
        if (a->bias != NULL)
            sum = nib__lanes_add(sum, nib__lanes_load_at(a->bias + first, i, count));
        if (a->silu) {
            const nib_lanes y = nib__lanes_silu(sum, &s);
            const nib_lanes along = nib__lanes_fma(sum, nib__lanes_sub(one, s), one);
            if (a->after != NULL)
                nib__lanes_store_at(a->dafter + m * a->lddx + first, i, count,
                                    nib__lanes_mul(d, y));
            if (a->after != NULL)
                d = nib__lanes_mul(d, nib__lanes_load_at(a->after + at, i, count));
            d = nib__lanes_mul(d, nib__lanes_mul(s, along));
        } else if (a->after != NULL) {
            nib__lanes_store_at(a->dafter + m * a->lddx + first, i, count, nib__lanes_mul(d, sum));
            d = nib__lanes_mul(d, nib__lanes_load_at(a->after + at, i, count));
        }
        nib__lanes_store_at(a->dsum + m * a->ldd + first, i, count, d);
    }
}

/* The gradients of a token's input, and of the gate before the sum, from those of sums. */
NIB_INLINE void conv_du(const nib_short_conv_dx *a, int64_t m, int64_t first, int64_t count)
{
    const int64_t at = m * a->ldx + first, to = m * a->lddx + first;
    int64_t readers = 1; /* tokens of the document whose taps read this one */
    while (readers < a->taps && m + readers < a->m &&
           a->position[m + readers] == a->position[m] + readers)
        readers++;
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        nib_lanes du = nib__lanes_set(0.0f);
        for (int64_t r = 0; r < readers; r++)
            du = nib__lanes_fma(
                nib__lanes_load_at(a->weight + (a->taps - 1 - r) * a->channels + first, i, count),
                nib__lanes_load_at(a->dsum + (m + r) * a->ldd + first, i, count), du);
        if (a->before != NULL) {
            nib__lanes_store_at(a->dbefore + to, i, count,
                                nib__lanes_mul(du, nib__lanes_load_at(a->x + at, i, count)));
            du = nib__lanes_mul(du, nib__lanes_load_at(a->before + at, i, count));
        }
        nib__lanes_store_at(a->dx + to, i, count, du);
    }
}

void NIB_CONV(short_conv_dx)(const nib_short_conv_dx *a, int64_t channel0, int64_t channel1)
{
    for (int64_t m = 0; m < a->m; m++)
        conv_dsum(a, m, channel0, channel1 - channel0);
    for (int64_t m = 0; m < a->m; m++)
        conv_du(a, m, channel0, channel1 - channel0);
}

/* Up to NIB_LANES channels. */
NIB_INLINE void conv_dw_lanes(const nib_short_conv_dw *a, int64_t first, int64_t count)
{
    nib_lanes total[NIB_TAPS_MAX], sum[NIB_TAPS_MAX];
    for (int64_t tap = 0; tap < a->taps; tap++)
        total[tap] = nib__lanes_set(0.0f);
    for (int64_t block = 0; block < a->m; block += NIB_TRAIN_ROWS) {
        for (int64_t tap = 0; tap < a->taps; tap++)
            sum[tap] = nib__lanes_set(0.0f);
        for (int64_t m = block; m < nib__min(a->m, block + NIB_TRAIN_ROWS); m++) {
            const nib_lanes d = nib__lanes_load_at(a->dsum + m * a->ldd + first, 0, count);
            for (int64_t tap = conv_first_tap(a->taps, a->position[m]); tap < a->taps; tap++) {
                const int64_t at = (m - (a->taps - 1 - tap)) * a->ldx + first;
                sum[tap] = nib__lanes_fma(d, conv_input(a->x, a->before, at, 0, count), sum[tap]);
            }
        }
        for (int64_t tap = 0; tap < a->taps; tap++)
            total[tap] = block == 0 ? sum[tap] : nib__lanes_add(total[tap], sum[tap]);
    }
    for (int64_t tap = 0; tap < a->taps; tap++) {
        float values[NIB_LANES];
        nib__lanes_store(values, total[tap]);
        for (int64_t c = 0; c < count; c++)
            a->dw[(first + c) * a->taps + tap] = values[c];
    }
}

void NIB_CONV(short_conv_dw)(const nib_short_conv_dw *a, int64_t channel0, int64_t channel1)
{
    for (int64_t c = channel0; c < channel1; c += NIB_LANES)
        conv_dw_lanes(a, c, nib__min(NIB_LANES, channel1 - c));
}
