/* SPDX-License-Identifier: Apache-2.0
 *
 * Drawing a token from logits, in double and in one order on every machine: the reference of rows
 * of devices, which draw the same token.
 */
#include "kernel.h"
#include "precise.h"

#include <string.h>

typedef struct pick {
    float logit;
    int32_t id;
    double weight;
} pick;

/* Rises as the logit falls; 0 and -0 are alike. No NaN comes here. */
static uint32_t key_of(float logit)
{
    const uint32_t sign = UINT32_C(1) << 31;
    const float plain = logit + 0.0f; /* -0 becomes 0 */
    uint32_t bits;
    memcpy(&bits, &plain, sizeof bits);
    return (bits & sign) != 0 ? bits : ~(bits | sign);
}

enum { DIGIT_BITS = 11, DIGITS = 3, DIGIT_VALUES = 1 << DIGIT_BITS };

static unsigned digit_of(float logit, int digit)
{
    return key_of(logit) >> (digit * DIGIT_BITS) & (DIGIT_VALUES - 1);
}

/* By logit, digit after digit from the lowest: what is alike keeps its order, which is by id.
 * Returns which of the two has the result. */
static pick *sort_picks(pick *picks, pick *other, int64_t count)
{
    uint32_t starts[DIGITS][DIGIT_VALUES] = {{0}};
    for (int64_t i = 0; i < count; i++)
        for (int digit = 0; digit < DIGITS; digit++)
            starts[digit][digit_of(picks[i].logit, digit)]++;
    for (int digit = 0; digit < DIGITS; digit++) {
        uint32_t start = 0;
        for (int value = 0; value < DIGIT_VALUES; value++) {
            const uint32_t here = starts[digit][value];
            starts[digit][value] = start;
            start += here;
        }
        for (int64_t i = 0; i < count; i++)
            other[starts[digit][digit_of(picks[i].logit, digit)]++] = picks[i];
        pick *sorted = other;
        other = picks, picks = sorted;
    }
    return picks;
}

static int64_t best_of(const pick *picks, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (picks[i].logit > picks[best].logit)
            best = i;
    return best;
}

/* Leaves out picks that are not among the `keep` best, by thresholds: most of a vocabulary of
 * 100,000 need not be sorted. */
static int64_t leave_out(pick *picks, int64_t count, int64_t keep)
{
    enum { SORT_ALL = 4096, SAMPLE = 256 };
    while (count > SORT_ALL && keep < count / 4) {
        /* a pivot from a spread sample: its (keep * 2 / count) quantile leaves enough */
        pick sample[SAMPLE], other[SAMPLE];
        for (int i = 0; i < SAMPLE; i++)
            sample[i] = picks[count / SAMPLE * i];
        const int64_t rank = nib__min(SAMPLE - 1, SAMPLE * 2 * keep / count + 8);
        const float floor = sort_picks(sample, other, SAMPLE)[rank].logit;
        int64_t above = 0;
        for (int64_t i = 0; i < count; i++)
            above += picks[i].logit >= floor;
        if (above < keep || above == count)
            break;
        int64_t kept = 0;
        for (int64_t i = 0; i < count; i++)
            if (picks[i].logit >= floor)
                picks[kept++] = picks[i];
        count = kept;
    }
    return count;
}

/* Weights of `count` picks at a temperature, relative to the best; returns their sum, ascending. */
static double weigh(pick *picks, int64_t count, double temperature)
{
    enum { BLOCK = 64 };
    double sum = 0.0, block[BLOCK];
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        const int64_t end = nib__min(begin + BLOCK, count);
        for (int64_t i = begin; i < end; i++)
            block[i - begin] = ((double)picks[i].logit - (double)picks[0].logit) / temperature;
        nib__exp_each(block, (size_t)(end - begin));
        for (int64_t i = begin; i < end; i++)
            sum += picks[i].weight = block[i - begin];
    }
    return sum;
}

/* Sorted candidates -> how many remain after top-p and min-p. */
static int64_t cut_tail(pick *picks, int64_t count, const nib_draw *a)
{
    const double sum = weigh(picks, count, 1);
    double so_far = 0.0;
    int64_t kept = 0;
    while (kept < count && (kept == 0 || so_far < a->top_p * sum) && picks[kept].weight >= a->min_p)
        so_far += picks[kept++].weight;
    return nib__max(kept, 1);
}

static int64_t find_nan(const nib_draw *a)
{
    for (int64_t i = 0; i < a->vocab; i++)
        if (a->logits[i] != a->logits[i])
            return i;
    return -1;
}

static void draw_ref(const nib_draw *a, void *scratch)
{
    pick *picks = scratch;
    int64_t count = a->vocab;
    const int64_t nan = find_nan(a);
    for (int64_t i = 0; i < count; i++)
        picks[i] = (pick){.logit = a->logits[i], .id = (int32_t)i};
    if (nan >= 0 || a->top_k == 1) {
        *a->token = nan >= 0 ? (int32_t)(-1 - nan) : picks[best_of(picks, count)].id;
        return;
    }
    const int64_t keep = a->top_k > 0 ? nib__min(a->top_k, count) : count;
    count = leave_out(picks, count, keep);
    picks = sort_picks(picks, picks + a->vocab, count);
    count = cut_tail(picks, nib__min(count, keep), a);
    const double sum = weigh(picks, count, a->temperature);
    double left = a->random * sum;
    int64_t chosen = 0;
    while (chosen < count - 1 && left >= picks[chosen].weight)
        left -= picks[chosen++].weight;
    *a->token = picks[chosen].id;
}

static size_t draw_scratch(const void *args)
{
    return (size_t)((const nib_draw *)args)->vocab * 2 * sizeof(pick);
}

static const nib_kernel rows[] = {
    {.name = "sample_f32__ref",
     .op = NIB_OP_SAMPLE,
     .code = NIB_ANY,
     .act = NIB_ANY,
     .input = NIB_ANY,
     .device = NIB_DEVICE_CPU,
     .conds = NIB_NO_CONDS,
     .numbers = NIB_NUMBERS_EXACT,
     .rank = 90,
     .unit = NIB_UNIT_SCALAR,
     .scratch = draw_scratch,
     .run = {.draw = draw_ref},
     .note = "plain C, in double"},
};

const nib_family nib__family_sample = {rows, COUNT(rows)};
