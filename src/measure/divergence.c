/* SPDX-License-Identifier: Apache-2.0
 *
 * Statistics of the divergence between two models. Percentiles come from a histogram of fixed size
 * with bins of equal ratio, so that memory does not grow with the text. Intervals are bootstrapped
 * over windows or documents, because the tokens of one depend on each other.
 */
#include "divergence.h"
#include "portable_math.h"
#include "sample.h"

#include <math.h>
#include <stdlib.h>

enum {
    STEP_BITS = 11, /* 2,048 bins from a power of 2 to the next */
    MANTISSA_BITS = 52,
    BIAS = 1023,          /* of a double */
    LEAST_EXPONENT = -40, /* bin 0 has what is below 2^-40 nats, also rounding below 0 */
    OCTAVES = 64,         /* the last bin has what is above 2^24 nats, too */
    BINS = 1 + (OCTAVES << STEP_BITS),
    SEED = 0x6b6c, /* of the resamples; any number would do */
};

/* Bounds of the positions reported apart: of 0 to 7, 8 to 31, ... */
static const int64_t position_begins[NIB_EVAL_POSITIONS] = {0, 8, 32, 128, 512, 2048};

/* Sums over a window or a document. */
typedef struct unit_sums {
    int64_t number;
    double kl, difference; /* nats */
    int64_t same_top, count;
} unit_sums;

struct nib_divergence {
    nib_allocator allocator;
    double kl, reference_loss, difference; /* sums */
    int64_t same_top, count;
    nib_token_divergence largest;
    double position_kl[NIB_EVAL_POSITIONS]; /* sums */
    int64_t position_count[NIB_EVAL_POSITIONS];
    unit_sums *units;
    size_t unit_count, unit_capacity;
    int64_t bins[BINS]; /* number of tokens */
};

double nib__divergence_of(const float *logits, double all, const float *reference,
                          double reference_all, double least, int64_t count)
{
    double kl = 0;
    for (int64_t v = 0; v < count; v++) {
        const double log_p = (double)reference[v] - reference_all;
        if (!(log_p <= least)) /* NaN counts */
            kl += nib__exp(log_p) * (log_p - ((double)logits[v] - all));
    }
    return kl;
}

nib_status nib__divergence_open(nib_divergence **out, const nib_allocator *a, nib_err *err)
{
    *out = nib__calloc(a, 1, sizeof **out);
    if (!*out)
        return nib__fail_memory(err, sizeof **out, "the distribution of KL divergences");
    (*out)->allocator = *a;
    return NIB_OK;
}

void nib__divergence_close(nib_divergence *divergence)
{
    if (!divergence)
        return;
    const nib_allocator a = divergence->allocator;
    nib__release(&a, divergence->units);
    nib__release(&a, divergence);
}

/* The exponent and the first bits of the mantissa count bins of equal width within an octave. */
static size_t bin_of(double kl)
{
    if (!(kl >= ldexp(1, LEAST_EXPONENT)))
        return 0;
    uint64_t bits;
    memcpy(&bits, &kl, sizeof bits);
    const uint64_t first = (uint64_t)(BIAS + LEAST_EXPONENT) << STEP_BITS;
    const uint64_t bin = 1 + (bits >> (MANTISSA_BITS - STEP_BITS)) - first;
    return bin < BINS ? (size_t)bin : BINS - 1;
}

/* The middle of a bin: within 2^-12 of every value in it. */
static double value_of(size_t bin)
{
    if (bin == 0)
        return 0;
    const size_t octave = (bin - 1) >> STEP_BITS, step = (bin - 1) & ((1 << STEP_BITS) - 1);
    return ldexp(1 + ((double)step + 0.5) / (1 << STEP_BITS), LEAST_EXPONENT + (int)octave);
}

/* The value of nearest rank: the least that `share` of a thousand values do not exceed. */
static double percentile(const nib_divergence *d, int64_t share)
{
    const int64_t rank = nib__ceil_div(d->count * share, 1000);
    size_t bin = 0;
    for (int64_t below = d->bins[0]; below < rank; below += d->bins[bin])
        bin++;
    return fmin(value_of(bin), fmax(d->largest.kl, 0));
}

static nib_status begin_unit(nib_divergence *d, int64_t number, nib_err *err)
{
    const size_t want = d->unit_count + 1;
    if (!nib__reserve(&d->allocator, (void **)&d->units, &d->unit_capacity, want, sizeof *d->units))
        return nib__fail_memory(err, want * sizeof *d->units, "the sums of windows");
    d->units[d->unit_count++] = (unit_sums){.number = number};
    return NIB_OK;
}

nib_status nib__divergence_add(nib_divergence *d, const nib_token_divergence *token, nib_err *err)
{
    if (d->unit_count == 0 || d->units[d->unit_count - 1].number != token->unit)
        NIB_TRY(begin_unit(d, token->unit, err));
    unit_sums *unit = &d->units[d->unit_count - 1];
    const double difference = token->loss - token->reference_loss;
    unit->kl += token->kl;
    unit->difference += difference;
    unit->same_top += token->same_top;
    unit->count++;
    if (d->count == 0 || token->kl > d->largest.kl)
        d->largest = *token;
    d->kl += token->kl;
    d->reference_loss += token->reference_loss;
    d->difference += difference;
    d->same_top += token->same_top;
    d->count++;
    d->bins[bin_of(token->kl)]++;
    size_t position = NIB_EVAL_POSITIONS - 1;
    while (token->position < position_begins[position])
        position--;
    d->position_kl[position] += token->kl;
    d->position_count[position]++;
    return NIB_OK;
}

/* ---- intervals ---- */

typedef struct resampled {
    double kl[NIB_EVAL_RESAMPLES], difference[NIB_EVAL_RESAMPLES], same_top[NIB_EVAL_RESAMPLES];
} resampled;

/* One draw of as many units as there are, with replacement: ratios of its sums. */
static void resample(const nib_divergence *d, resampled *to, int64_t which)
{
    unit_sums sum = {0};
    for (size_t i = 0; i < d->unit_count; i++) {
        const double random = nib__random(SEED, which, (int64_t)i);
        const unit_sums *unit = &d->units[(size_t)(random * (double)d->unit_count)];
        sum.kl += unit->kl;
        sum.difference += unit->difference;
        sum.same_top += unit->same_top;
        sum.count += unit->count;
    }
    const double count = (double)sum.count;
    to->kl[which] = sum.kl / count;
    to->difference[which] = sum.difference / count;
    to->same_top[which] = (double)sum.same_top / count;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* The middle 95 %: leaves out as many resamples at either end. */
static void middle(double interval[2], double values[NIB_EVAL_RESAMPLES])
{
    enum { OUTSIDE = NIB_EVAL_RESAMPLES / 40 };
    qsort(values, NIB_EVAL_RESAMPLES, sizeof *values, by_value);
    interval[0] = values[OUTSIDE];
    interval[1] = values[NIB_EVAL_RESAMPLES - 1 - OUTSIDE];
}

/* Percentile bootstrap (Efron, Tibshirani: "An Introduction to the Bootstrap", 1993, chapter 13) of
 * ratios of sums over units. */
static nib_status store_intervals(const nib_divergence *d, nib_eval_result *out, nib_err *err)
{
    out->units = (int64_t)d->unit_count;
    if (d->unit_count < NIB_EVAL_UNITS)
        return NIB_OK;
    resampled *values = nib__calloc(&d->allocator, 1, sizeof *values);
    if (!values)
        return nib__fail_memory(err, sizeof *values, "resamples");
    for (int64_t i = 0; i < NIB_EVAL_RESAMPLES; i++)
        resample(d, values, i);
    out->resamples = NIB_EVAL_RESAMPLES;
    middle(out->kl_interval, values->kl);
    middle(out->loss_difference_interval, values->difference);
    middle(out->top1_agreement_interval, values->same_top);
    for (size_t i = 0; i < 2; i++)
        out->perplexity_ratio_interval[i] = nib__exp(out->loss_difference_interval[i]);
    nib__release(&d->allocator, values);
    return NIB_OK;
}

nib_status nib__divergence_report(const nib_divergence *d, nib_eval_result *out, nib_err *err)
{
    const double count = (double)d->count;
    out->kl = d->kl / count;
    out->top1_agreement = (double)d->same_top / count;
    out->against_loss = d->reference_loss / count;
    out->loss_difference = d->difference / count;
    out->perplexity_ratio = nib__exp(out->loss_difference);
    out->kl_median = percentile(d, 500);
    out->kl_p99 = percentile(d, 990);
    out->kl_p999 = percentile(d, 999);
    out->kl_largest = d->largest.kl;
    out->kl_largest_unit = d->largest.unit;
    out->kl_largest_position = d->largest.position;
    out->kl_largest_token = d->largest.token;
    for (size_t i = 0; i < NIB_EVAL_POSITIONS; i++) {
        out->position_begin[i] = position_begins[i];
        out->position_predicted[i] = d->position_count[i];
        if (d->position_count[i] > 0)
            out->position_kl[i] = d->position_kl[i] / (double)d->position_count[i];
    }
    return store_intervals(d, out, err);
}
