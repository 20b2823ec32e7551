/* SPDX-License-Identifier: Apache-2.0
 *
 * The rows of short convolutions (conv_rows.c) against their definition in f64: the first tokens of
 * a sequence, its state in any chunks, sequences that share a pass, and a pass that is repeated
 * after a rollback.
 */
#include "kernel.h"
#include "machine.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

enum { CHANNELS = 37, TOKENS = 40, TAPS_MOST = 4, ROOM = 12, SEQUENCES = 2 };

static uint64_t seed = 20261130;

static void fill(float *x, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        seed = seed * 6364136223846793005U + 1442695040888963407U;
        x[i] = (float)(int32_t)(seed >> 32) * 0x1p-31F;
    }
}

/* The columns of a token: before, after, x. */
static float rows[SEQUENCES][TOKENS][3 * CHANNELS], weight[TAPS_MOST * CHANNELS], bias[CHANNELS];
static bool gated; /* else with a bias and silu */
static float state[SEQUENCES * ROOM * CHANNELS];

/* Runs the tokens [from, to) of a sequence; out: [TOKENS][CHANNELS]. */
static void run(const nib_kernel *row, int64_t taps, int32_t sequence, int64_t from, int64_t to,
                float *out)
{
    int32_t sequences[TOKENS], positions[TOKENS];
    const float *first = rows[sequence][from];
    for (int64_t i = 0; i < to - from; i++)
        sequences[i] = sequence, positions[i] = (int32_t)(from + i);
    const nib_short_conv a = {.x = first + 2 * CHANNELS,
                              .before = gated ? first : NULL,
                              .after = gated ? first + CHANNELS : NULL,
                              .weight = weight,
                              .bias = gated ? NULL : bias,
                              .silu = !gated,
                              .out = out + from * CHANNELS,
                              .m = to - from,
                              .channels = CHANNELS,
                              .taps = taps,
                              .ldx = 3 * CHANNELS,
                              .ldo = CHANNELS,
                              .sequence = sequences,
                              .position = positions,
                              .state = state,
                              .room = ROOM};
    row->run.short_conv(&a, 0, CHANNELS);
}

static double wanted_at(int64_t taps, int32_t sequence, int64_t token, int64_t channel)
{
    double sum = 0;
    for (int64_t tap = 0; tap < taps; tap++) {
        const int64_t t = token - (taps - 1) + tap;
        if (t < 0)
            continue;
        const float *x = rows[sequence][t];
        sum += (double)weight[tap * CHANNELS + channel] *
               ((gated ? (double)x[channel] : 1) * (double)x[2 * CHANNELS + channel]);
    }
    if (gated)
        return sum * (double)rows[sequence][token][CHANNELS + channel];
    sum += (double)bias[channel];
    return sum / (1 + exp(-sum));
}

static void check_row(const nib_kernel *row, int64_t taps)
{
    static float whole[TOKENS * CHANNELS], parts[TOKENS * CHANNELS], other[TOKENS * CHANNELS];
    fill(state, SEQUENCES * ROOM * CHANNELS); /* of an earlier text; no tap may reach it */
    run(row, taps, 1, 0, TOKENS, whole);
    for (int64_t t = 0; t < TOKENS; t++)
        for (int64_t c = 0; c < CHANNELS; c++)
            assert_true(fabs((double)whole[t * CHANNELS + c] - wanted_at(taps, 1, t, c)) <= 1e-6);
    static const int64_t chunks[] = {1, 2, 3, 7, 20};
    for (size_t i = 0; i < COUNT(chunks); i++) {
        const bool repeats = chunks[i] <= ROOM - (taps - 1);
        for (int64_t t = 0; t < TOKENS; t += chunks[i]) {
            const int64_t end = nib__min(t + chunks[i], TOKENS);
            run(row, taps, 1, t, end, parts);
            run(row, taps, 0, 0, 5, other); /* another sequence between */
            if (repeats)
                run(row, taps, 1, t, end, parts);
        }
        assert_memory_equal(parts, whole, sizeof whole);
    }
}

static void test_rows(void **unused)
{
    (void)unused;
    const nib_query here = {
        .fact = {[NIB_FACT_OP] = NIB_OP_SHORT_CONV, [NIB_FACT_ISA] = nib__cpu_isa()}};
    size_t count = 0;
    fill(&rows[0][0][0], SEQUENCES * TOKENS * 3 * CHANNELS);
    fill(weight, TAPS_MOST * CHANNELS);
    fill(bias, CHANNELS);
    for (size_t i = 0; i < nib__family_conv.count; i++) {
        const nib_kernel *row = &nib__family_conv.rows[i];
        if (row->op != NIB_OP_SHORT_CONV || row->run.any == NULL ||
            !nib__kernel_holds(row, &here, true))
            continue;
        for (int64_t taps = 1; taps <= 2 * TAPS_MOST; taps++) {
            gated = taps > TAPS_MOST;
            check_row(row, gated ? taps - TAPS_MOST : taps);
        }
        count++;
    }
    assert_true(count > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
