/* SPDX-License-Identifier: Apache-2.0
 *
 * Sampling: the random generator against its published vectors, frequencies against probabilities
 * computed naively here, filters, ties, penalties, NaN, and a large vocabulary.
 */
#include "sample.h"

#include "failing.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

#include "refused.h"

static nib_sample_work open_sampler(int64_t vocab)
{
    static nib_allocator a;
    nib_sample_work s;
    a = nib__allocator_default();
    assert_int_equal(nib__sample_work_open(&s, vocab, &a, NULL), NIB_OK);
    return s;
}

static const nib_sampling plain = {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 7};

static int32_t pick(nib_sample_work *s, const float *logits, const nib_sampling *how,
                    int64_t position)
{
    int32_t id = -1;
    nib_err err;
    if (nib__sample(&id, s, logits, how, NULL, 0, 0, position, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_in_range(id, 0, s->vocab - 1);
    return id;
}

/* ---- the generator ---- */

/* The test vectors of Random123 for Philox 4x32-10; 53 bits of the first two words. */
static void test_philox(void **state)
{
    (void)state;
    assert_true(nib__random(0, 0, 0) == (double)(0x6627e8d5e169c58dull >> 11) * 0x1p-53);
    assert_true(nib__random(UINT64_MAX, -1, -1) == (double)(0x408f276d41c83b0eull >> 11) * 0x1p-53);
    assert_true(
        nib__random(0x299f31d0a4093822ull, 0x0370734413198a2ell, (int64_t)0x85a308d3243f6a88ull) ==
        (double)(0xd16cfe0994fdccebull >> 11) * 0x1p-53);
}

static void test_random_is_uniform(void **state)
{
    (void)state;
    enum { DRAWS = 100000, BINS = 64 };
    int bins[BINS] = {0};
    double sum = 0;
    for (int i = 0; i < DRAWS; i++) {
        const double u = nib__random(1, i / 1000, i % 1000);
        assert_true(u >= 0 && u < 1);
        bins[(int)(u * BINS)]++;
        sum += u;
    }
    assert_true(fabs(sum / DRAWS - 0.5) < 0.005);
    double chi = 0;
    for (int i = 0; i < BINS; i++) {
        const double off = bins[i] - (double)DRAWS / BINS;
        chi += off * off / ((double)DRAWS / BINS);
    }
    assert_true(chi < 110); /* 63 degrees of freedom: p = 1 in 4,000 */
}

/* ---- probabilities, computed independently of the library ---- */

enum { SMALL = 8 };

/* The expected probabilities by id after the filters. */
static void expected(double out[SMALL], const float *logits, const nib_sampling *s)
{
    int order[SMALL];
    for (int i = 0; i < SMALL; i++)
        order[i] = i;
    for (int i = 0; i < SMALL; i++)
        for (int j = i + 1; j < SMALL; j++)
            if (logits[order[j]] > logits[order[i]]) {
                const int t = order[i];
                order[i] = order[j];
                order[j] = t;
            }
    int count = s->top_k > 0 && s->top_k < SMALL ? (int)s->top_k : SMALL;
    double sum = 0, so_far = 0;
    for (int i = 0; i < count; i++)
        sum += exp((double)logits[order[i]]);
    int kept = 0;
    while (kept < count && so_far < s->top_p * sum) {
        if (exp((double)logits[order[kept]]) < s->min_p * exp((double)logits[order[0]]))
            break;
        so_far += exp((double)logits[order[kept++]]);
    }
    sum = 0;
    memset(out, 0, SMALL * sizeof *out);
    for (int i = 0; i < kept; i++)
        sum += out[order[i]] = exp((double)logits[order[i]] / s->temperature);
    for (int i = 0; i < SMALL; i++)
        out[i] /= sum;
}

static void test_frequencies(void **state)
{
    (void)state;
    static const float logits[SMALL] = {0.1f, 2.0f, -1.0f, 1.5f, 1.49f, -4.0f, 0.7f, 0.0f};
    static const nib_sampling ways[] = {
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .seed = 1},
        {.temperature = 0.5, .top_p = 1, .repeat_penalty = 1, .seed = 2},
        {.temperature = 3, .top_p = 1, .repeat_penalty = 1, .seed = 3},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .top_k = 3, .seed = 4},
        {.temperature = 1, .top_p = 0.7, .repeat_penalty = 1, .seed = 5},
        {.temperature = 1, .top_p = 1, .min_p = 0.2, .repeat_penalty = 1, .seed = 6},
        {.temperature = 0.8,
         .top_p = 0.95,
         .min_p = 0.05,
         .top_k = 6,
         .repeat_penalty = 1,
         .seed = 7},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .top_k = 1, .seed = 8},
        {.temperature = 1, .top_p = 1e-9, .repeat_penalty = 1, .seed = 9},
        {.temperature = 1, .top_p = 1, .min_p = 1, .repeat_penalty = 1, .seed = 10},
    };
    enum { DRAWS = 20000 };
    nib_sample_work s = open_sampler(SMALL);
    for (size_t w = 0; w < COUNT(ways); w++) {
        double p[SMALL];
        int seen[SMALL] = {0};
        expected(p, logits, &ways[w]);
        for (int i = 0; i < DRAWS; i++)
            seen[pick(&s, logits, &ways[w], i)]++;
        for (int i = 0; i < SMALL; i++) {
            const double sigma = sqrt(p[i] * (1 - p[i]) * DRAWS);
            if (fabs(seen[i] - p[i] * DRAWS) > 4 * sigma + 1e-9)
                fail_msg("way %zu: token %d came %d times, %.1f are expected", w, i, seen[i],
                         p[i] * DRAWS);
        }
    }
    nib__sample_work_close(&s);
}

static void test_greedy_and_ties(void **state)
{
    (void)state;
    static const float logits[SMALL] = {0, 3, 1, 3, 2, 3, -INFINITY, 0};
    nib_sample_work s = open_sampler(SMALL);
    nib_sampling how = plain;
    how.temperature = 0;
    assert_int_equal(pick(&s, logits, &how, 0), 1);
    how.temperature = 1;
    how.top_k = 1;
    assert_int_equal(pick(&s, logits, &how, 0), 1);
    how.top_k = 2; /* of three equal logits the two with the smaller ids stay */
    for (int i = 0; i < 100; i++) {
        const int32_t id = pick(&s, logits, &how, i);
        assert_true(id == 1 || id == 3);
    }
    nib__sample_work_close(&s);
}

/* The token depends only on logits, options, seed, sequence and position. */
static void test_reproducible(void **state)
{
    (void)state;
    static const float logits[SMALL] = {0.1f, 2.0f, -1.0f, 1.5f, 1.49f, -4.0f, 0.7f, 0.0f};
    nib_sample_work s = open_sampler(SMALL), other = open_sampler(SMALL);
    int differ_by_seed = 0, differ_by_sequence = 0;
    for (int64_t i = 0; i < 200; i++) {
        const int32_t id = pick(&s, logits, &plain, i);
        assert_int_equal(pick(&other, logits, &plain, i), id);
        nib_sampling seeded = plain;
        seeded.seed++;
        differ_by_seed += pick(&s, logits, &seeded, i) != id;
        int32_t second;
        assert_int_equal(nib__sample(&second, &s, logits, &plain, NULL, 0, 1, i, NULL), NIB_OK);
        differ_by_sequence += second != id;
    }
    assert_true(differ_by_seed > 50 && differ_by_sequence > 50);
    nib__sample_work_close(&s);
    nib__sample_work_close(&other);
}

static void test_repetition_penalty(void **state)
{
    (void)state;
    static const float logits[SMALL] = {4, 3, 2.5f, -1, -2, -3, -4, -5};
    nib_sample_work s = open_sampler(SMALL);
    nib_sampling how = plain;
    how.temperature = 0;
    how.repeat_penalty = 1.5;
    int32_t id;
    /* 4 becomes 2.67, once, however often the token occurred */
    assert_int_equal(nib__sample(&id, &s, logits, &how, (const int32_t[]){0, 0, 0}, 3, 0, 0, NULL),
                     NIB_OK);
    assert_int_equal(id, 1);
    assert_int_equal(nib__sample(&id, &s, logits, &how, (const int32_t[]){0, 1}, 2, 0, 0, NULL),
                     NIB_OK);
    assert_int_equal(id, 0);
    assert_int_equal(
        nib__sample(&id, &s, logits, &how, (const int32_t[]){0, 1, 7, -3, 99}, 5, 0, 0, NULL),
        NIB_OK);
    assert_int_equal(id, 0); /* ids outside the vocabulary are ignored */
    how.repeat_penalty = 3;
    assert_int_equal(nib__sample(&id, &s, logits, &how, (const int32_t[]){0, 1}, 2, 0, 0, NULL),
                     NIB_OK);
    assert_int_equal(id, 2);
    /* a negative logit becomes more negative */
    static const float low[SMALL] = {-1, -1.4f, -9, -9, -9, -9, -9, -9};
    how.repeat_penalty = 1.5;
    assert_int_equal(nib__sample(&id, &s, low, &how, (const int32_t[]){0}, 1, 0, 0, NULL), NIB_OK);
    assert_int_equal(id, 1);
    nib__sample_work_close(&s);
}

static void test_not_finite(void **state)
{
    (void)state;
    float logits[SMALL] = {0, 1, 2, 3, 4, NAN, 6, 7};
    nib_sample_work s = open_sampler(SMALL);
    nib_err err;
    int32_t id = 42;
    refused(NIB_CHECK_FAILED, nib__sample(&id, &s, logits, &plain, NULL, 0, 0, 11, &err), &err);
    assert_int_equal(id, 42);
    logits[5] = INFINITY;
    for (int64_t i = 0; i < 20; i++)
        assert_int_equal(pick(&s, logits, &plain, i), 5);
    for (int i = 0; i < SMALL; i++)
        logits[i] = -INFINITY;
    pick(&s, logits, &plain, 0);
    nib__sample_work_close(&s);
}

/* ---- the fast path of a large vocabulary must not change results ---- */

typedef struct candidate {
    float logit;
    int32_t id;
} candidate;

static int compare_candidates(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->id - y->id;
}

/* Samples by a full sort, with temperature 1 and the given top-p and min-p. */
static int32_t naive_sample(const candidate *sorted, int64_t vocab, const nib_sampling *s,
                            int64_t position)
{
    const int64_t count = s->top_k > 0 ? nib__min(s->top_k, vocab) : vocab;
    double sum = 0, so_far = 0, total = 0;
    for (int64_t i = 0; i < count; i++)
        sum += exp((double)sorted[i].logit - (double)sorted[0].logit);
    int64_t kept = 0;
    while (kept < count && so_far < s->top_p * sum) {
        const double p = exp((double)sorted[kept].logit - (double)sorted[0].logit);
        if (p < s->min_p)
            break;
        so_far += p, kept++;
    }
    for (int64_t i = 0; i < kept; i++)
        total += exp((double)sorted[i].logit - (double)sorted[0].logit);
    double left = nib__random(s->seed, 0, position) * total;
    int64_t i = 0;
    while (i < kept - 1 && left >= exp((double)sorted[i].logit - (double)sorted[0].logit))
        left -= exp((double)sorted[i].logit - (double)sorted[0].logit), i++;
    return sorted[i].id;
}

static void test_large_vocabulary(void **state)
{
    (void)state;
    enum { VOCAB = 60000 };
    float *logits = malloc(VOCAB * sizeof *logits);
    candidate *sorted = malloc(VOCAB * sizeof *sorted);
    nib_sample_work s = open_sampler(VOCAB);
    static const int64_t top_k[] = {1, 2, 40, 1000, 14999, 15001, 59999, 60000, 70000, 0};
    for (int shape = 0; shape < 4; shape++) {
        for (int i = 0; i < VOCAB; i++) {
            const double u = nib__random(99, shape, i);
            logits[i] = shape == 0   ? (float)(12 * u - 7)           /* spread */
                        : shape == 1 ? (float)((int)(5 * u) - 2) / 2 /* many ties */
                        : shape == 2 ? 1.0f                          /* all the same */
                                     : (i % 1000 == 7 ? 20.0f : -5); /* few stand out */
            if (logits[i] == 0 && i % 3 == 0)
                logits[i] = -0.0f; /* ties with 0 */
            sorted[i] = (candidate){logits[i], i};
        }
        qsort(sorted, VOCAB, sizeof *sorted, compare_candidates);
        for (size_t k = 0; k < COUNT(top_k); k++) {
            nib_sampling how = plain;
            how.top_k = top_k[k];
            how.top_p = k % 2 ? 0.9 : 1;
            for (int64_t position = 0; position < 6; position++) {
                const int32_t got = pick(&s, logits, &how, position);
                const int32_t want = naive_sample(sorted, VOCAB, &how, position);
                /* libm's exp and ours may differ in the last bit, so a neighbour in the order is
                 * accepted if nearly equal */
                if (got != want && fabsf(logits[got] - logits[want]) > 1e-3f)
                    fail_msg("shape %d, top-k %d: token %d, not %d", shape, (int)top_k[k], got,
                             want);
            }
        }
    }
    nib__sample_work_close(&s);
    free(sorted);
    free(logits);
}

static void test_invalid_options(void **state)
{
    (void)state;
    static const nib_sampling fine[] = {
        {.temperature = 0, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 100, .top_p = 1e-6, .min_p = 1, .repeat_penalty = 100, .top_k = INT64_MAX},
    };
    static const nib_sampling invalid[] = {
        {.temperature = -1, .top_p = 1, .repeat_penalty = 1},
        {.temperature = NAN, .top_p = 1, .repeat_penalty = 1},
        {.temperature = INFINITY, .top_p = 1, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 0, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1.5, .repeat_penalty = 1},
        {.temperature = 1, .top_p = NAN, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1, .min_p = 2, .repeat_penalty = 1},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 0},
        {.temperature = 1, .top_p = 1, .repeat_penalty = 1, .top_k = -3},
    };
    nib_err err;
    for (size_t i = 0; i < COUNT(fine); i++)
        assert_int_equal(nib__sampling_check(&fine[i], &err), NIB_OK);
    for (size_t i = 0; i < COUNT(invalid); i++)
        refused(NIB_USAGE, nib__sampling_check(&invalid[i], &err), &err);
}

static void test_memory(void **state)
{
    (void)state;
    failing f = {.left = 0};
    const nib_allocator a = failing_allocator(&f);
    nib_sample_work s;
    nib_err err;
    refused(NIB_NO_MEMORY, nib__sample_work_open(&s, 100, &a, &err), &err);
    nib__sample_work_close(&s);
    assert_int_equal(f.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_philox),          cmocka_unit_test(test_random_is_uniform),
        cmocka_unit_test(test_frequencies),     cmocka_unit_test(test_greedy_and_ties),
        cmocka_unit_test(test_reproducible),    cmocka_unit_test(test_repetition_penalty),
        cmocka_unit_test(test_not_finite),      cmocka_unit_test(test_large_vocabulary),
        cmocka_unit_test(test_invalid_options), cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
