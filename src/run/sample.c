/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters a distribution and draws from it.
 */
#include "sample.h"

#include "precise.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

typedef struct nib_pick {
    float logit;
    int32_t id;
    double weight;
} nib_pick;

/* ---- random numbers ---- */

static void philox_round(uint32_t c[4], const uint32_t k[2])
{
    const uint64_t a = (uint64_t)c[0] * 0xD2511F53u, b = (uint64_t)c[2] * 0xCD9E8D57u;
    const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b,
                              (uint32_t)(a >> 32) ^ c[3] ^ k[1], (uint32_t)a};
    memcpy(c, next, sizeof next);
}

double nib__random(uint64_t seed, int64_t sequence, int64_t position)
{
    uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    uint32_t counter[4] = {(uint32_t)position, (uint32_t)((uint64_t)position >> 32),
                           (uint32_t)sequence, (uint32_t)((uint64_t)sequence >> 32)};
    for (int round = 0; round < 10; round++) {
        philox_round(counter, key);
        key[0] += 0x9E3779B9u;
        key[1] += 0xBB67AE85u;
    }
    const uint64_t bits = ((uint64_t)counter[0] << 32 | counter[1]) >> 11;
    return (double)bits * 0x1p-53;
}

/* ---- sampler ---- */

nib_status nib__sampling_check(const nib_sampling *s, nib_err *err)
{
    if (!(s->temperature >= 0 && s->temperature <= 100))
        return nib__fail(err, NIB_USAGE, "temperature %g is not between 0 and 100", s->temperature);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return nib__fail(err, NIB_USAGE, "top-p %g is not above 0 and at most 1", s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return nib__fail(err, NIB_USAGE, "min-p %g is not between 0 and 1", s->min_p);
    if (!(s->repeat_penalty > 0 && s->repeat_penalty <= 100))
        return nib__fail(err, NIB_USAGE, "the repetition penalty %g is not above 0 and at most 100",
                         s->repeat_penalty);
    if (s->top_k < 0)
        return nib__fail(err, NIB_USAGE, "top-k %" PRId64 " is negative; 0 switches it off",
                         s->top_k);
    return NIB_OK;
}

nib_status nib__sampler_open(nib_sampler *out, int64_t vocab, const nib_allocator *a, nib_err *err)
{
    *out = (nib_sampler){
        .allocator = a, .vocab = vocab, .picks = nib__calloc(a, (size_t)vocab, sizeof *out->picks)};
    return out->picks ? NIB_OK
                      : nib__fail_memory(err, (size_t)vocab * sizeof *out->picks, "the sampler");
}

void nib__sampler_close(nib_sampler *sampler)
{
    if (sampler->allocator)
        nib__release(sampler->allocator, sampler->picks);
    *sampler = (nib_sampler){0};
}

static int by_logit(const void *a, const void *b)
{
    const nib_pick *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit < y->logit ? 1 : -1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* Logits of tokens already there move away from being chosen, each token once. */
static void penalize(nib_pick *picks, int64_t vocab, const nib_sampling *s, const int32_t *seen,
                     size_t count)
{
    for (int64_t i = 0; i < vocab; i++)
        picks[i].weight = 0.0; /* marks */
    for (size_t i = 0; i < count; i++) {
        if (seen[i] < 0 || seen[i] >= vocab) /* an embedding may have more rows than the head */
            continue;
        nib_pick *p = &picks[seen[i]];
        if (p->weight != 0.0)
            continue;
        p->weight = 1.0;
        p->logit = p->logit > 0 ? (float)(p->logit / s->repeat_penalty)
                                : (float)(p->logit * s->repeat_penalty);
    }
}

static int64_t best_of(const nib_pick *picks, int64_t count)
{
    int64_t best = 0;
    for (int64_t i = 1; i < count; i++)
        if (picks[i].logit > picks[best].logit)
            best = i;
    return best;
}

/* Keeps the `keep` best, in order. Selection by a threshold first, so that a vocabulary of 100,000
 * is not sorted. */
static int64_t keep_best(nib_pick *picks, int64_t count, int64_t keep)
{
    enum { SORT_ALL = 4096 };
    while (count > SORT_ALL && keep < count / 4) {
        /* a pivot from a spread sample: its (keep * 2 / count) quantile leaves enough */
        nib_pick sample[256];
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
static int64_t cut_tail(nib_pick *picks, int64_t count, const nib_sampling *s)
{
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += picks[i].weight = nib__exp((double)picks[i].logit - (double)picks[0].logit);
    double so_far = 0.0;
    int64_t kept = 0;
    while (kept < count && (kept == 0 || so_far < s->top_p * sum) && picks[kept].weight >= s->min_p)
        so_far += picks[kept++].weight;
    return nib__max(kept, 1);
}

nib_status nib__sample(int32_t *out, nib_sampler *sampler, const float *logits,
                       const nib_sampling *s, const int32_t *seen, size_t seen_count,
                       int64_t sequence, int64_t position, nib_err *err)
{
    nib_pick *picks = sampler->picks;
    int64_t count = sampler->vocab;
    for (int64_t i = 0; i < count; i++) {
        if (logits[i] != logits[i])
            return nib__fail(err, NIB_CHECK_FAILED,
                             "the logit of token %" PRId64 " at position %" PRId64
                             " is NaN; `nibble verify` finds the tensor that holds NaN or Inf",
                             i, position);
        picks[i] = (nib_pick){.logit = logits[i], .id = (int32_t)i};
    }
    if (s->repeat_penalty != 1.0)
        penalize(picks, count, s, seen, seen_count);
    if (s->temperature == 0.0) {
        *out = picks[best_of(picks, count)].id;
        return NIB_OK;
    }
    count = keep_best(picks, count, s->top_k > 0 ? nib__min(s->top_k, count) : count);
    count = cut_tail(picks, count, s);
    double sum = 0.0;
    for (int64_t i = 0; i < count; i++)
        sum += picks[i].weight =
            nib__exp(((double)picks[i].logit - (double)picks[0].logit) / s->temperature);
    double left = nib__random(s->seed, sequence, position) * sum;
    int64_t chosen = 0;
    while (chosen < count - 1 && left >= picks[chosen].weight)
        left -= picks[chosen++].weight;
    *out = picks[chosen].id;
    return NIB_OK;
}
