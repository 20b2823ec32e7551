/* SPDX-License-Identifier: Apache-2.0
 *
 * Filters a distribution and draws from it.
 */
#include "sample.h"

#include "generation_config.h"
#include "kernel.h"
#include "portable_math.h"

#include <inttypes.h>
#include <math.h>

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

double nib__random_normal(uint64_t seed, int64_t sequence, int64_t i)
{
    const double two_pi = 6.283185307179586;
    const double u = 1 - nib__random(seed, sequence, 2 * i);
    const double turn = nib__random(seed, sequence, 2 * i + 1);
    return sqrt(-2 * nib__log(u)) * nib__cos(two_pi * turn);
}

/* ---- sampler ---- */

nib_status nib__sampling_check(const nib_sampling *s, nib_err *err)
{
    if (!(s->temperature >= 0 && s->temperature <= NIB_TEMPERATURE_MAX))
        return nib__fail(err, NIB_USAGE, "temperature %g is not between 0 and %d", s->temperature,
                         NIB_TEMPERATURE_MAX);
    if (!(s->top_p > 0 && s->top_p <= 1))
        return nib__fail(err, NIB_USAGE,
                         "top-p %g is out of range: it must be above 0 and at most 1", s->top_p);
    if (!(s->min_p >= 0 && s->min_p <= 1))
        return nib__fail(err, NIB_USAGE, "min-p %g is not between 0 and 1", s->min_p);
    if (!(s->repeat_penalty > 0 && s->repeat_penalty <= NIB_REPEAT_PENALTY_MAX))
        return nib__fail(
            err, NIB_USAGE,
            "the repetition penalty %g is out of range: it must be above 0 and at most %d",
            s->repeat_penalty, NIB_REPEAT_PENALTY_MAX);
    if (s->top_k < 0)
        return nib__fail(err, NIB_USAGE, "top-k %" PRId64 " is negative; 0 switches it off",
                         s->top_k);
    return NIB_OK;
}

nib_status nib__sample_work_open(nib_sample_work *out, int64_t vocab, const nib_allocator *a,
                                 nib_err *err)
{
    const nib_kernel *row = nib__kernel_find("sample_f32__ref");
    const nib_draw draw = {.vocab = vocab};
    const size_t bytes = row->scratch(&draw), own = (size_t)vocab * sizeof *out->logits;
    *out = (nib_sample_work){.allocator = a, .vocab = vocab, .row = row};
    out->logits = nib__calloc(a, (uint64_t)vocab, sizeof *out->logits);
    out->scratch = nib__calloc(a, bytes, 1);
    if (out->logits != NULL && out->scratch != NULL)
        return NIB_OK;
    nib__sample_work_close(out);
    return nib__fail_memory(err, bytes + own, "the sampler");
}

void nib__sample_work_close(nib_sample_work *sampler)
{
    if (sampler->allocator) {
        nib__release(sampler->allocator, sampler->logits);
        nib__release(sampler->allocator, sampler->scratch);
    }
    *sampler = (nib_sample_work){0};
}

/* Applies the repetition penalty to each token seen, once per token. */
static void penalize(nib_sample_work *sampler, const float *logits, const nib_sampling *s,
                     const int32_t *seen, size_t count)
{
    char *marks = sampler->scratch;
    memset(marks, 0, (size_t)sampler->vocab);
    if (logits != sampler->logits)
        memcpy(sampler->logits, logits, (size_t)sampler->vocab * sizeof *logits);
    for (size_t i = 0; i < count; i++) {
        /* an embedding may have more rows than the head */
        if (seen[i] < 0 || seen[i] >= sampler->vocab || marks[seen[i]] != 0)
            continue;
        float *logit = &sampler->logits[seen[i]];
        marks[seen[i]] = 1;
        *logit =
            *logit > 0 ? (float)(*logit / s->repeat_penalty) : (float)(*logit * s->repeat_penalty);
    }
}

const float *nib__sample_adjust(nib_sample_work *sampler, const float *logits, const nib_adjust *a)
{
    const bool penalized =
        a->made_count > 0 && (a->presence_penalty != 0 || a->frequency_penalty != 0);
    if (a->bias_count == 0 && a->allowed == NULL && !penalized)
        return logits;
    float *out = sampler->logits;
    memcpy(out, logits, (size_t)sampler->vocab * sizeof *logits);
    for (size_t i = 0; i < a->bias_count; i++)
        if (a->bias[i].id < sampler->vocab)
            out[a->bias[i].id] += a->bias[i].bias;
    if (penalized) {
        char *marks = sampler->scratch;
        memset(marks, 0, (size_t)sampler->vocab);
        for (size_t i = 0; i < a->made_count; i++) {
            char *mark = &marks[a->made[i]];
            const double presence = *mark == 0 ? a->presence_penalty : 0;
            out[a->made[i]] -= (float)(presence + a->frequency_penalty);
            *mark = 1;
        }
    }
    for (int64_t i = 0; a->allowed != NULL && i < sampler->vocab; i++)
        if ((a->allowed[i / 32] >> (i % 32) & 1) == 0)
            out[i] = -INFINITY;
    return out;
}

double nib__log_sum(const float *logits, int64_t count, int64_t *best)
{
    enum { EXPONENTS = 256 /* at once */ };
    *best = 0;
    for (int64_t i = 1; i < count; i++)
        if (logits[i] > logits[*best])
            *best = i;
    const double most = logits[*best];
    double sum = 0.0, block[EXPONENTS];
    for (int64_t begin = 0; begin < count; begin += EXPONENTS) {
        const int64_t end = nib__min(begin + EXPONENTS, count);
        for (int64_t i = begin; i < end; i++)
            block[i - begin] = (double)logits[i] - most;
        nib__exp_each(block, (size_t)(end - begin));
        for (int64_t i = begin; i < end; i++)
            sum += block[i - begin];
    }
    return most + nib__log(sum);
}

nib_draw nib__sampling_draw(const nib_sampling *s, int64_t vocab, int64_t sequence,
                            int64_t position)
{
    return (nib_draw){.vocab = vocab,
                      .top_k = nib__sampling_top_k(s),
                      .temperature = s->temperature,
                      .top_p = s->top_p,
                      .min_p = s->min_p,
                      .random = nib__random(s->seed, sequence, position)};
}

int64_t nib__sampling_top_k(const nib_sampling *s) { return s->temperature == 0 ? 1 : s->top_k; }

nib_status nib__sampling_token(int32_t *out, int32_t drawn, int64_t position, nib_err *err)
{
    if (drawn < 0)
        return nib__fail(err, NIB_CHECK_FAILED,
                         "the logit of token %d at position %" PRId64
                         " is NaN; `nibble verify` finds the tensor that holds NaN or Inf",
                         -1 - drawn, position);
    *out = drawn;
    return NIB_OK;
}

nib_status nib__sample(int32_t *out, nib_sample_work *sampler, const float *logits,
                       const nib_sampling *s, const int32_t *seen, size_t seen_count,
                       int64_t sequence, int64_t position, nib_err *err)
{
    nib_draw draw = nib__sampling_draw(s, sampler->vocab, sequence, position);
    int32_t token = 0;
    draw.logits = logits;
    draw.token = &token;
    if (s->repeat_penalty != 1.0) {
        penalize(sampler, logits, s, seen, seen_count);
        draw.logits = sampler->logits;
    }
    sampler->row->run.draw(&draw, sampler->scratch);
    return nib__sampling_token(out, token, position, err);
}
