/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: short convolutions of several sequences, whose slots are mixed and whose
 * states already hold earlier inputs. One call must give the same bits as one call for each part of
 * the channels, and as one call for each slot.
 */
#ifndef NIB_CHECK_CONV_H
#define NIB_CHECK_CONV_H

#include "check_token.h"

/* A call's output and, behind it, the state. part: channels per call; slots: per call. */
static result run_conv(const nib_kernel *row, memory *m, nib_short_conv a, const float *start,
                       int64_t part, int64_t slots)
{
    const int64_t out = a.m * a.ldo, state = SEQUENCES * a.room * a.channels;
    const result r = {take(m, (size_t)(out + state) * sizeof(float)), out + state};
    memset(r.values, 0, (size_t)out * sizeof *r.values);
    memcpy(r.values + out, start, (size_t)state * sizeof *r.values);
    a.state = r.values + out;
    for (int64_t i = 0; i < a.m; i += slots) {
        nib_short_conv some = a;
        some.m = nib__min(slots, a.m - i);
        some.x += i * a.ldx, some.out = r.values + i * a.ldo;
        some.before += a.before != NULL ? i * a.ldx : 0;
        some.after += a.after != NULL ? i * a.ldx : 0;
        some.sequence += i, some.position += i;
        for (int64_t c = 0; c < a.channels; c += part)
            row->run.short_conv(&some, c, nib__min(c + part, a.channels));
    }
    return r;
}

static bool check_short_conv(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                             int64_t width, value_class class, rng *r)
{
    memory m = {.count = 0};
    nib_short_conv a = {.m = rows,
                        .channels = width,
                        .taps = 1 + below(r, 5),
                        .ldx = width + below(r, 3),
                        .ldo = width + below(r, 3)};
    int32_t *sequence = take(&m, (size_t)rows * sizeof *sequence),
            *position = take(&m, (size_t)rows * sizeof *position), next[SEQUENCES];
    /* the first inputs of a sequence have few before them */
    for (int64_t s = 0; s < SEQUENCES; s++)
        next[s] = (int32_t)(below(r, 2) != 0 ? below(r, a.taps) : below(r, 1000));
    for (int64_t i = 0; i < rows; i++) {
        sequence[i] = (int32_t)below(r, SEQUENCES);
        position[i] = next[sequence[i]]++;
    }
    a.sequence = sequence, a.position = position;
    a.room = a.taps + below(r, 9);
    a.x = floats(&m, rows * a.ldx, r, class);
    a.before = floats_or_none(&m, rows * a.ldx, r), a.after = floats_or_none(&m, rows * a.ldx, r);
    a.weight = floats(&m, a.taps * width, r, VALUES_RANDOM);
    a.bias = floats_or_none(&m, width, r), a.silu = below(r, 2) != 0;
    const float *start = floats(&m, SEQUENCES * a.room * width, r, class);
    const result want = run_conv(ref, &m, a, start, width, rows),
                 got = run_conv(row, &m, a, start, width, rows),
                 parts = run_conv(row, &m, a, start, 7, rows),
                 slots = run_conv(row, &m, a, start, width, 1);
    const bool same = same_floats(v, "slot by slot", slots.values, got.values, got.count);
    return check_results(v, &m, row, want, got, parts, "by 7 channels") && same;
}

#endif
