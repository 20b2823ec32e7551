/* SPDX-License-Identifier: Apache-2.0
 *
 * Drawing a token from logits, in double and in one order on every machine: the reference of rows
 * of devices, which draw the same token.
 */
#include "kernel.h"
#include "precise.h"

#include <stdlib.h>

typedef struct pick {
    float logit;
    int32_t id;
    double weight;
} pick;

static int by_logit(const void *a, const void *b)
{
    const pick *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int64_t best_of(const pick *picks, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (picks[i].logit > picks[best].logit)
            best = i;
    return best;
}

/* Keeps the `keep` best, in order. Selection by a threshold first, so that a vocabulary of 100,000
 * is not sorted. */
static int64_t keep_best(pick *picks, int64_t count, int64_t keep)
{
    enum { SORT_ALL = 4096 };
    while (count > SORT_ALL && keep < count / 4) {
        /* a pivot from a spread sample: its (keep * 2 / count) quantile leaves enough */
        pick sample[256];
        for (int i = 0; i < 256; i++)
            sample[i] = picks[count / 256 * i];
        qsort(sample, 256, sizeof *sample, by_logit);
        const int64_t rank = nib__min(255, 256 * 2 * keep / count + 8);
        const float floor = sample[rank].logit;
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
    qsort(picks, (size_t)count, sizeof *picks, by_logit);
    return nib__min(count, keep);
}

/* Sorted candidates -> how many remain after top-p and min-p. */
static int64_t cut_tail(pick *picks, int64_t count, const nib_draw *a)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += picks[i].weight = nib__exp((double)picks[i].logit - (double)picks[0].logit);
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
    count = keep_best(picks, count, a->top_k > 0 ? nib__min(a->top_k, count) : count);
    count = cut_tail(picks, count, a);
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += picks[i].weight =
            nib__exp(((double)picks[i].logit - (double)picks[0].logit) / a->temperature);
    double left = a->random * sum;
    int64_t chosen = 0;
    while (chosen < count - 1 && left >= picks[chosen].weight)
        left -= picks[chosen++].weight;
    *a->token = picks[chosen].id;
}

static size_t draw_scratch(const void *args)
{
    return (size_t)((const nib_draw *)args)->vocab * sizeof(pick);
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
