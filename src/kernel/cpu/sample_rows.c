/* SPDX-License-Identifier: Apache-2.0
 *
 * Drawing a token from logits, in double and in one order on every machine: the reference for the
 * rows of devices, which draw the same token.
 */
#include "kernel.h"
#include "portable_math.h"

#include <string.h>

typedef struct pick {
    float logit;
    int32_t id;
    double weight;
} pick;

/* A key that rises as the logit falls; 0 and -0 have the same key. The logit is never NaN. */
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

/* Radix sort by logit, from the lowest digit up: equal logits keep their order, which is by id.
 * Returns the buffer that holds the result. */
static pick *sort_picks(pick *picks, pick *spare, int64_t count)
{
    uint32_t starts[DIGITS][DIGIT_VALUES] = {{0}};
    for (int64_t i = 0; i < count; i++)
        for (int digit = 0; digit < DIGITS; digit++)
            starts[digit][digit_of(picks[i].logit, digit)]++;
    for (int digit = 0; digit < DIGITS; digit++) {
        uint32_t start = 0;
        for (int value = 0; value < DIGIT_VALUES; value++) {
            const uint32_t in_bucket = starts[digit][value];
            starts[digit][value] = start;
            start += in_bucket;
        }
        for (int64_t i = 0; i < count; i++)
            spare[starts[digit][digit_of(picks[i].logit, digit)]++] = picks[i];
        pick *sorted = spare;
        spare = picks, picks = sorted;
    }
    return picks;
}

enum { FEW = 64 };

/* Insertion sort for up to FEW picks, too few for histograms. */
static void sort_few(pick *picks, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        const pick moved = picks[i];
        int64_t at = i;
        for (; at > 0 && picks[at - 1].logit < moved.logit; at--)
            picks[at] = picks[at - 1];
        picks[at] = moved;
    }
}

static int64_t best_of(const float *logits, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* Sifts heap[i] down so that the least of it and its descendants is at i. */
static void sift_down(float *heap, int64_t count, int64_t i)
{
    const float moved = heap[i];
    for (int64_t below = 2 * i + 1; below < count; below = 2 * i + 1) {
        below += below + 1 < count && heap[below + 1] < heap[below];
        if (!(heap[below] < moved))
            break;
        heap[i] = heap[below];
        i = below;
    }
    heap[i] = moved;
}

/* The logit of rank `keep`, which is less than count. `heap` has room for `keep` logits. */
static float floor_of(const float *logits, int64_t count, float *heap, int64_t keep)
{
    memcpy(heap, logits, (size_t)keep * sizeof *heap);
    for (int64_t i = keep / 2; i-- > 0;)
        sift_down(heap, keep, i);
    for (int64_t i = keep; i < count; i++)
        if (logits[i] > heap[0]) {
            heap[0] = logits[i];
            sift_down(heap, keep, 0);
        }
    return heap[0];
}

/* The picks to choose from, ascending in id. For small `keep`, only those of that rank and above:
 * most of a vocabulary of 100,000 need not be sorted. */
static int64_t pick_best(pick *picks, const nib_draw *a, int64_t keep)
{
    const float *logits = a->logits;
    int64_t count = 0;
    if (keep >= a->vocab / 4) {
        for (; count < a->vocab; count++)
            picks[count] = (pick){.logit = logits[count], .id = (int32_t)count};
        return count;
    }
    const float floor = floor_of(logits, a->vocab, (float *)(void *)(picks + a->vocab), keep);
    for (int64_t i = 0; i < a->vocab; i++)
        if (logits[i] >= floor)
            picks[count++] = (pick){.logit = logits[i], .id = (int32_t)i};
    return count;
}

/* Sets the weights of `count` picks at a temperature, relative to the best, and returns their sum,
 * added in ascending order. */
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

/* Returns how many of the sorted picks remain after top-p and min-p. */
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
    const int64_t nan = find_nan(a);
    if (nan >= 0 || a->top_k == 1) {
        *a->token = nan >= 0 ? (int32_t)(-1 - nan) : (int32_t)best_of(a->logits, a->vocab);
        return;
    }
    const int64_t keep = a->top_k > 0 ? nib__min(a->top_k, a->vocab) : a->vocab;
    int64_t count = pick_best(picks, a, keep);
    if (count <= FEW)
        sort_few(picks, count);
    else
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
     .arithmetic = NIB_ARITHMETIC_EXACT,
     .rank = 90,
     .unit = NIB_UNIT_SCALAR,
     .scratch = draw_scratch,
     .run = {.draw = draw_ref},
     .note = "plain C, in double"},
};

const nib_family nib__family_sample = {rows, COUNT(rows)};
