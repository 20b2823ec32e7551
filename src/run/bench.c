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

nib_status nib__bench_prefill(nib_session *s, int64_t count, double *seconds, nib_err *err)
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
nib_status nib__bench_decode(nib_session *s, int64_t count, double *seconds, nib_err *err)
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

/* What the options leave open, and whether the context holds it. */
nib_status nib__bench_complete(nib_bench_options *o, const nib_session *session, nib_err *err)
{
    const int64_t context = session->plan->context;
    o->prompt_tokens = o->prompt_tokens > 0 ? o->prompt_tokens : 512;
    o->new_tokens = o->new_tokens > 0 ? o->new_tokens : 64;
    o->repeats = o->repeats > 0 ? o->repeats : 5;
    if (o->prompt_tokens > context || o->new_tokens > context)
        return nib__fail(err, NIB_USAGE,
                         "%" PRId64 " prompt and %" PRId64
                         " new tokens do not each fit the context of %" PRId64
                         "; raise --context or lower them",
                         o->prompt_tokens, o->new_tokens, context);
    if (o->repeats > REPEATS_MAX)
        return nib__fail(err, NIB_USAGE, "%d repeats are over the limit of %d", o->repeats,
                         REPEATS_MAX);
    return NIB_OK;
}

nib_status nib__bench_speeds(nib_session *session, const nib_bench_options *options,
                             nib_bench_result *result, nib_err *err)
{
    double prefills[REPEATS_MAX], decodes[REPEATS_MAX], unused;
    nib_bench_options o = *options;
    NIB_TRY(nib__bench_complete(&o, session, err));
    NIB_TRY(nib__bench_prefill(session, nib__min(o.prompt_tokens, 16), &unused, err)); /* warm up */
    for (int i = 0; i < o.repeats; i++) {
        if (!nib__engine_progress(session->model->engine, "bench", (uint64_t)i,
                                  (uint64_t)o.repeats))
            return nib__fail(err, NIB_CANCELLED, "the bench was cancelled");
        NIB_TRY(nib__bench_prefill(session, o.prompt_tokens, &prefills[i], err));
        NIB_TRY(nib__bench_decode(session, o.new_tokens, &decodes[i], err));
    }
    *result = (nib_bench_result){
        .prefill_tokens_per_s = (double)o.prompt_tokens / nib__median(prefills, o.repeats),
        .decode_tokens_per_s = (double)o.new_tokens / nib__median(decodes, o.repeats),
        .weight_bytes = session->runner.weight_bytes};
    return NIB_OK;
}

/* The same runs, as planned: prompts go in chunks, and every token attends to those before it. */
static void predict(const nib_session *s, int64_t prompt, int64_t fresh, nib_bench_result *out)
{
    const nib_layers_plan *plan = &s->plan->plan;
    double prefill_s = 0;
    for (int64_t done = 0; done < prompt; done += NIB_CHUNK) {
        const int64_t part = nib__min(NIB_CHUNK, prompt - done);
        const double positions = (double)done + (double)part / 2;
        prefill_s += nib__plan_step_seconds(plan, &s->plan->policy, part, 1, positions);
    }
    const double token_s = nib__plan_step_seconds(plan, &s->plan->policy, 1, 1, (double)fresh / 2);
    out->predicted_prefill_tokens_per_s = prefill_s > 0 ? (double)prompt / prefill_s : 0;
    out->predicted_decode_tokens_per_s = token_s > 0 ? 1 / token_s : 0;
    out->predicted_bytes = (plan->gpu != NULL ? plan->gpu_bytes : s->plan->weight_bytes) +
                           s->plan->cache_bytes + s->plan->policy.step_bytes;
    out->device_bytes = s->runner.gpu != NULL ? nib__gpu_held(s->runner.gpu) : 0;
}

/* Of what the machine of the layers does, which of a device is known if it was measured. */
static nib_status find_shares(const nib_session *s, int64_t prompt, nib_bench_result *r,
                              nib_err *err)
{
    nib_engine *engine = s->model->engine;
    const nib_kernel *row = nib__use_at(&s->plan->plan.layers[1], prompt)->kernel;
    nib_machine now = *nib__plan_place(&s->plan->plan, row);
    if (row->device == NIB_DEVICE_CPU)
        NIB_TRY(nib__machine_measure(&now, engine->pool, NULL, &engine->allocator, err));
    if (!now.measured)
        return NIB_OK;
    const double rate = now.rate[row->unit];
    r->copy_gb_per_s = now.bytes_per_s * 1e-9;
    r->peak_gop_per_s = rate * 1e-9;
    r->bandwidth_share = r->decode_tokens_per_s * (double)r->weight_bytes / now.bytes_per_s;
    r->arithmetic_share = rate > 0 ? r->prefill_tokens_per_s * operations(s) / rate : 0;
    return NIB_OK;
}

nib_status nib_bench(nib_session *session, const nib_bench_options *options,
                     nib_bench_result *result, nib_err *err)
{
    nib_bench_options o = *options;
    nib_bench_result r;
    NIB_TRY(nib__bench_complete(&o, session, err));
    NIB_TRY(nib__bench_speeds(session, &o, &r, err));
    r.peak_bytes = nib__peak_bytes(); /* before the measurement takes its own buffers */
    NIB_TRY(find_shares(session, o.prompt_tokens, &r, err));
    predict(session, o.prompt_tokens, o.new_tokens, &r);
    *result = r;
    return NIB_OK;
}
