/* SPDX-License-Identifier: Apache-2.0
 *
 * What a bench times: a prompt, tokens one by one, behind so many positions or not, and tokens of
 * several sequences together. Each is a run of the session's own steps.
 */
#include "bench.h"

/* Token ids that a vocabulary of any size has, spread so that embedding rows are not all in a
 * cache. */
static int32_t token_at(const nib_session *s, int64_t i)
{
    return (int32_t)((uint64_t)i * 2654435761u % (uint64_t)nib__network_embed(&s->model->net)->n);
}

nib_status nib__bench_fill(nib_session *s, int32_t sequence, int64_t from, int64_t to, nib_err *err)
{
    const float *logits;
    for (int64_t done = nib__kv_truncate(&s->runner.kv, sequence, from); done < to;
         done += NIB_CHUNK) {
        nib_slot slots[NIB_CHUNK];
        const int64_t part = nib__min(NIB_CHUNK, to - done);
        for (int64_t i = 0; i < part; i++)
            slots[i] = (nib_slot){.sequence = sequence,
                                  .position = (int32_t)(done + i),
                                  .token = token_at(s, done + i),
                                  .logits = done + i + 1 == to};
        NIB_TRY(nib__runner_step(&s->runner, slots, (size_t)part, &logits, err));
    }
    return NIB_OK;
}

nib_status nib__bench_prefill(nib_session *s, int64_t count, double *seconds, nib_err *err)
{
    const uint64_t start = nib__now_ns();
    NIB_TRY(nib__bench_fill(s, 0, 0, count, err));
    *seconds = (double)(nib__now_ns() - start) * 1e-9;
    return NIB_OK;
}

nib_status nib__bench_decode_at(nib_session *s, int32_t sequence, int64_t from, int64_t count,
                                double *seconds, nib_err *err)
{
    const float *logits;
    if (nib__kv_truncate(&s->runner.kv, sequence, from) < from)
        NIB_TRY(nib__bench_fill(s, sequence, 0, from, err));
    const uint64_t start = nib__now_ns();
    for (int64_t i = from; i < from + count; i++) {
        const nib_slot slot = {
            .sequence = sequence, .position = (int32_t)i, .token = token_at(s, i), .logits = true};
        NIB_TRY(nib__runner_step(&s->runner, &slot, 1, &logits, err));
    }
    *seconds = (double)(nib__now_ns() - start) * 1e-9;
    return NIB_OK;
}

/* From an empty cache, as llama-bench's tg does. */
nib_status nib__bench_decode(nib_session *s, int64_t count, double *seconds, nib_err *err)
{
    return nib__bench_decode_at(s, 0, 0, count, seconds, err);
}

int64_t nib__bench_batch_start(const nib_session *s, int64_t sequence, int64_t count)
{
    enum { APART = 5 /* positions, so that no two sequences are at the same one */ };
    return nib__min(APART * sequence, s->plan->context - count);
}

nib_status nib__bench_batch(nib_session *s, int64_t sequences, int64_t count, const float **logits,
                            double *seconds, nib_err *err)
{
    nib_slot slots[NIB_BENCH_BATCH];
    for (int64_t j = 0; j < sequences; j++)
        NIB_TRY(nib__bench_fill(s, (int32_t)j, 0, nib__bench_batch_start(s, j, count), err));
    const uint64_t start = nib__now_ns();
    for (int64_t i = 0; i < count; i++) {
        for (int64_t j = 0; j < sequences; j++) {
            const int64_t position = nib__bench_batch_start(s, j, count) + i;
            slots[j] = (nib_slot){.sequence = (int32_t)j,
                                  .position = (int32_t)position,
                                  .token = token_at(s, position),
                                  .logits = true};
        }
        NIB_TRY(nib__runner_step(&s->runner, slots, (size_t)sequences, logits, err));
    }
    *seconds = (double)(nib__now_ns() - start) * 1e-9;
    return NIB_OK;
}
