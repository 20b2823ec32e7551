/* SPDX-License-Identifier: Apache-2.0
 *
 * Samplers of the public interface: the tokens that nib_generate draws, for loops over steps.
 */
#include "public_struct.h"
#include "session_handle.h"

struct nib_sampler {
    nib_engine *engine;
    nib_sampling sampling;
    nib_sample_work work;
};

/* The name of an option that only a whole generation can follow, if it is set; else NULL. */
static const char *find_foreign(const nib_generate_options *o)
{
    return o->prompt != NULL            ? "prompt"
           : o->chat != NULL            ? "chat"
           : o->max_tokens != 0         ? "max_tokens"
           : o->stop.count != 0         ? "stop"
           : o->ignore_eos              ? "ignore_eos"
           : o->schema != NULL          ? "schema"
           : o->logprobs != 0           ? "logprobs"
           : o->on_logprobs != NULL     ? "on_logprobs"
           : o->on_logprobs_ctx != NULL ? "on_logprobs_ctx"
                                        : NULL;
}

nib_status nib_sampler_open(nib_sampler **out, nib_session *session,
                            const nib_generate_options *options, nib_err *err)
{
    NIB_NEED(err, "out, session", out, session);
    NIB_OPTIONS(nib_generate_options, o, options, err);
    const nib_sampling asked = nib__asked_sampling(&o),
                       sampling = nib__model_sampling(session->model, &asked);
    nib_engine *engine = session->model->engine;
    const nib_allocator *a = &engine->allocator;
    const char *foreign = find_foreign(&o);
    if (foreign != NULL)
        return nib__fail(err, NIB_USAGE,
                         "%s is set, but a sampler only draws tokens; leave it out, or call "
                         "nib_generate",
                         foreign);
    NIB_TRY(nib__sampling_check(&sampling, err));
    nib_sampler *s = nib__calloc(a, 1, sizeof *s);
    if (s == NULL)
        return nib__fail_memory(err, sizeof *s, "a sampler");
    s->engine = engine;
    nib__engine_hold(engine);
    s->sampling = sampling;
    const nib_status status = nib__sample_work_open(&s->work, nib_session_vocab(session), a, err);
    if (status == NIB_OK)
        *out = s;
    else
        nib_sampler_close(s);
    return status;
}

void nib_sampler_close(nib_sampler *sampler)
{
    if (sampler == NULL)
        return;
    nib_engine *engine = sampler->engine;
    nib__sample_work_close(&sampler->work);
    nib__release(&engine->allocator, sampler);
    nib_engine_close(engine);
}

nib_status nib_sampler_draw(nib_sampler *sampler, const float *logits, const int32_t *tokens,
                            size_t count, int32_t *token, nib_err *err)
{
    NIB_NEED(err, "sampler, logits, tokens, token", sampler, logits,
             count > 0 ? (const void *)tokens : "", token);
    return nib__sample(token, &sampler->work, logits, &sampler->sampling, tokens, count, 0,
                       (int64_t)count, err);
}
