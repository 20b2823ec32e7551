/* SPDX-License-Identifier: Apache-2.0
 *
 * Chooses a token from logits. The same logits, options, seed, sequence and position give the same
 * token, whatever ran before: the random number is a function of these alone.
 */
#ifndef NIB_SAMPLE_H
#define NIB_SAMPLE_H

#include "kernel.h"
#include "memory.h"

typedef struct nib_sampling {
    double temperature, top_p, min_p,
        repeat_penalty; /* temperature 0: greedy; top_p 1, min_p 0, penalty 1: off */
    int64_t top_k;      /* 0: off */
    uint64_t seed;
} nib_sampling;

typedef struct nib_sample_work {
    const nib_allocator *allocator;
    const nib_kernel *row; /* on the CPU */
    float *logits;         /* [vocab] adjusted logits */
    void *scratch;
    int64_t vocab;
} nib_sample_work;

/* An error names the value that is out of range. */
nib_status nib__sampling_check(const nib_sampling *s, nib_err *err);
nib_status nib__sample_work_open(nib_sample_work *out, int64_t vocab, const nib_allocator *a,
                                 nib_err *err);
void nib__sample_work_close(nib_sample_work *sampler);

/* Draws the token for `position` of `sequence`. Filters run in llama.cpp's order: repetition
 * penalty over `seen`, top-k, top-p, min-p, then temperature. Ties go to the smaller id. NaN among
 * the logits is an error that names the token. */
nib_status nib__sample(int32_t *out, nib_sample_work *sampler, const float *logits,
                       const nib_sampling *s, const int32_t *seen, size_t seen_count,
                       int64_t sequence, int64_t position, nib_err *err);

/* Adjustments of logits before filtering. */
typedef struct nib_logit_bias {
    int32_t id;
    float bias;
} nib_logit_bias;

typedef struct nib_adjust {
    const nib_logit_bias *bias; /* [bias_count] added */
    size_t bias_count;
    /* subtracted from tokens among `made`: presence once, frequency per occurrence (OpenAI's
     * formula) */
    double presence_penalty, frequency_penalty;
    const int32_t *made; /* [made_count] */
    size_t made_count;
    const uint32_t *allowed; /* bit per token; others are excluded; NULL: all allowed */
} nib_adjust;

/* Returns the logits, or an adjusted copy that the sampler keeps until its next call. */
const float *nib__sample_adjust(nib_sample_work *sampler, const float *logits,
                                const nib_adjust *adjust);

/* Log of the sum of all exponentials, in double, in ascending order of ids; *best: the
 * likeliest. */
double nib__log_sum(const float *logits, int64_t count, int64_t *best);

/* The arguments for a row that draws on a device: everything but the addresses of logits and token.
 * They do not include a repetition penalty. */
nib_draw nib__sampling_draw(const nib_sampling *s, int64_t vocab, int64_t sequence,
                            int64_t position);
/* The request's fact `top_k`: 1 is greedy. */
int64_t nib__sampling_top_k(const nib_sampling *s);
/* Checks the token that a row drew; NaN among the logits is an error that names the token. */
nib_status nib__sampling_token(int32_t *out, int32_t drawn, int64_t position, nib_err *err);

/* Uniform in [0, 1), 53 bits: Philox 4x32-10 (Salmon, Moraes, Dror, Shaw: "Parallel random numbers:
 * as easy as 1, 2, 3", 2011) with the seed as key and (sequence, position) as counter. */
double nib__random(uint64_t seed, int64_t sequence, int64_t position);
/* Standard normal, by the Box-Muller transform of uniform values 2i and 2i + 1. */
double nib__random_normal(uint64_t seed, int64_t sequence, int64_t i);

#endif
