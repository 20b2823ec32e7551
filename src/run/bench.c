/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens per second of a session: medians of alternating prefill and decode runs, with the
 * machine's bandwidth and arithmetic rate measured in the same run.
 */
#include "library.h"

#include <inttypes.h>

enum { REPEATS_MAX = 1000 };

/* Token ids that a vocabulary of any size has, spread so that embedding rows are not all in a
 * cache. */
static int32_t token_at(const nib_session *s, int64_t i)
{
    return (int32_t)((uint64_t)i * 2654435761u % (uint64_t)nib__network_embed(&s->model->net)->n);
}

static nib_status prefill(nib_session *s, int64_t count, double *seconds, nib_err *err)
{
    const float *logits;
    const uint64_t start = nib__now_ns();
    nib__kv_truncate(&s->runner.kv, 0, 0);
    for (int64_t done = 0; done < count; done += NIB_CHUNK) {
        nib_slot slots[NIB_CHUNK];
        const int64_t part = nib__min(NIB_CHUNK, count - done);
        for (int64_t i = 0; i < part; i++)
            slots[i] = (nib_slot){.position = (int32_t)(done + i),
                                  .token = token_at(s, done + i),
                                  .logits = done + i + 1 == count};
        NIB_TRY(nib__runner_step(&s->runner, slots, (size_t)part, &logits, err));
    }
    *seconds = (double)(nib__now_ns() - start) * 1e-9;
    return NIB_OK;
}

/* From an empty cache, as llama-bench's tg does. */
static nib_status decode(nib_session *s, int64_t count, double *seconds, nib_err *err)
{
    const float *logits;
    nib__kv_truncate(&s->runner.kv, 0, 0);
    const uint64_t start = nib__now_ns();
    for (int64_t i = 0; i < count; i++) {
        const nib_slot slot = {.position = (int32_t)i, .token = token_at(s, i), .logits = true};
        NIB_TRY(nib__runner_step(&s->runner, &slot, 1, &logits, err));
    }
    *seconds = (double)(nib__now_ns() - start) * 1e-9;
    return NIB_OK;
}

/* Multiply-adds of a prompt token, counted as two operations: all linear layers but the head, which
 * only the last token of a prompt goes through. */
static double operations(const nib_session *s)
{
    double sum = 0.0;
    for (size_t i = 1; i < s->model->net.site_count - 1; i++)
        sum += 2.0 * (double)s->model->net.sites[i].n * (double)s->model->net.sites[i].k;
    return sum;
}

nib_status nib_bench(nib_session *session, const nib_bench_options *options,
                     nib_bench_result *result, nib_err *err)
{
    const int64_t prompt = options->prompt_tokens > 0 ? options->prompt_tokens : 512;
    const int64_t fresh = options->new_tokens > 0 ? options->new_tokens : 64;
    const int repeats = options->repeats > 0 ? options->repeats : 5;
    const int64_t context = session->plan->context;
    if (prompt > context || fresh > context)
        return nib__fail(err, NIB_USAGE,
                         "%" PRId64 " prompt and %" PRId64
                         " new tokens do not each fit the context of %" PRId64
                         "; raise --context or lower them",
                         prompt, fresh, context);
    if (repeats > REPEATS_MAX)
        return nib__fail(err, NIB_USAGE, "%d repeats are over the limit of %d", repeats,
                         REPEATS_MAX);
    nib_engine *engine = session->model->engine;
    double prefills[REPEATS_MAX], decodes[REPEATS_MAX], unused;
    NIB_TRY(prefill(session, nib__min(prompt, 16), &unused, err)); /* warm up */
    for (int i = 0; i < repeats; i++) {
        if (!nib__engine_progress(engine, "bench", (uint64_t)i, (uint64_t)repeats))
            return nib__fail(err, NIB_CANCELLED, "the bench was cancelled");
        NIB_TRY(prefill(session, prompt, &prefills[i], err));
        NIB_TRY(decode(session, fresh, &decodes[i], err));
    }
    const uint64_t peak = nib__peak_bytes(); /* before the measurement takes its own buffers */
    nib_machine now = engine->here;
    NIB_TRY(nib__machine_measure(&now, engine->pool, NULL, &engine->allocator, err));
    const nib_use *use = nib__use_at(&session->plan->plan.layers[1], prompt);
    const double rate = now.rate[use->kernel->unit];
    *result = (nib_bench_result){
        .prefill_tokens_per_s = (double)prompt / nib__median(prefills, repeats),
        .decode_tokens_per_s = (double)fresh / nib__median(decodes, repeats),
        .weight_bytes = session->runner.weight_bytes,
        .peak_bytes = peak,
        .copy_gb_per_s = now.bytes_per_s * 1e-9,
        .peak_gop_per_s = rate * 1e-9,
    };
    result->bandwidth_share =
        result->decode_tokens_per_s * (double)result->weight_bytes / now.bytes_per_s;
    result->arithmetic_share =
        rate > 0 ? result->prefill_tokens_per_s * operations(session) / rate : 0;
    return NIB_OK;
}
