/* SPDX-License-Identifier: Apache-2.0
 *
 * For the kernel checker: rows that sample a token. The token must equal the reference's.
 */
#ifndef NIB_CHECK_SAMPLE_H
#define NIB_CHECK_SAMPLE_H

#include "check_gpu.h"

static int32_t draw(memory *m, const nib_kernel *row, nib_draw a)
{
    a.token = take(m, sizeof *a.token);
    if (!runs_on_gpu(m, row, &a))
        row->run.draw(&a, take(m, row->scratch(&a)));
    return *a.token;
}

/* Logits of a vocabulary, some equal, with requests that the row supports. */
static bool check_sample(verdict *v, const nib_kernel *row, const nib_kernel *ref, int64_t rows,
                         int64_t width, value_class class, rng *r)
{
    static const int64_t top_ks[] = {1, 2, 40, 255, 256, 0, 1000};
    memory m = {.count = 0};
    nib_draw a = {.vocab = rows % 2 != 0 ? width : width * 53 + below(r, 50)};
    float *logits = floats(&m, a.vocab, r, class);
    for (int64_t i = 0; i < a.vocab; i++)
        logits[i] = next(r) % 2 != 0 ? 8 * logits[i] : nearbyintf(8 * logits[i]);
    a.logits = logits;
    bool good = true;
    for (size_t i = 0; i < COUNT(top_ks) && good; i++) {
        nib_query q = device_facts();
        q.fact[NIB_FACT_TOP_K] = top_ks[i];
        if (!nib__kernel_holds(row, &q, false))
            continue;
        a.top_k = top_ks[i];
        a.temperature = 0.1 + 0.2 * (double)below(r, 9);
        a.top_p = next(r) % 2 != 0 ? 1 : 0.5 + 0.05 * (double)below(r, 10);
        a.min_p = next(r) % 2 != 0 ? 0 : 0.01 * (double)below(r, 20);
        a.random = (double)(next(r) >> 11) * 0x1p-53;
        const int32_t want = draw(&m, ref, a), got = draw(&m, row, a);
        good = gpu_held(v) &&
               (want == got ||
                broken(v, "the token is %d, not %d (vocabulary %" PRId64 ", top-k %" PRId64 ")",
                       got, want, a.vocab, a.top_k));
    }
    good = good && (guards_hold(&m) || broken(v, "wrote outside its memory"));
    release(&m);
    return good;
}

#endif
