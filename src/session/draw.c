/* SPDX-License-Identifier: Apache-2.0
 *
 * Draws the tokens of a step on the threads of the pool, or on the device that has the logits.
 */
#include "draw.h"

#include <math.h>

void nib__drawer_close(nib_drawer *d)
{
    for (int i = 0; i < d->threads; i++)
        nib__sample_work_close(&d->samplers[i]);
    if (d->session != NULL)
        nib__release(&d->session->model->engine->allocator, d->samplers);
    *d = (nib_drawer){0};
}

nib_status nib__drawer_open(nib_drawer *out, nib_session *session, int64_t vocab, int64_t jobs,
                            nib_err *err)
{
    const nib_engine *engine = session->model->engine;
    /* a single job is drawn on the calling thread */
    const int threads = jobs > 1 ? nib__pool_threads(engine->pool) : 1;
    nib_drawer d = {.session = session};
    d.samplers = nib__calloc(&engine->allocator, (uint64_t)threads, sizeof *d.samplers);
    if (d.samplers == NULL)
        return nib__fail_memory(err, (uint64_t)threads * sizeof *d.samplers, "samplers");
    nib_status status = NIB_OK;
    for (; d.threads < threads && status == NIB_OK; d.threads += status == NIB_OK)
        status = nib__sample_work_open(&d.samplers[d.threads], vocab, &engine->allocator, err);
    if (status != NIB_OK) {
        nib__drawer_close(&d);
        return status;
    }
    d.end_count = nib__model_ends(session->model, d.ends);
    *out = d;
    return NIB_OK;
}

/* Why the CPU must draw the tokens of a job; NULL: the device may. */
static const char *why_cpu(const nib_job *job)
{
    const nib_adjust *a = &job->adjust;
    if (job->state != NULL)
        return "the tokens that a schema allows are chosen on the CPU";
    if (job->top >= 0)
        return "log-probabilities are computed on the CPU";
    if (a->bias_count > 0 || a->presence_penalty != 0 || a->frequency_penalty != 0)
        return "biases and penalties are added on the CPU";
    return NULL;
}

nib_draw_plan nib__job_draw_plan(const nib_plan *plan, const nib_job *job, nib_text *why)
{
    return nib__plan_draw(&plan->assignment, &plan->policy, nib__sampling_top_k(&job->sampling),
                          job->sampling.repeat_penalty != 1.0, why_cpu(job), why);
}

/* The likeliest tokens; ties go to the smaller id. */
static int find_tops(nib_top_token *tops, int most, const float *logits, int64_t vocab, double all)
{
    int count = 0;
    for (int64_t i = 0; i < vocab && most > 0; i++) {
        const double logprob = (double)logits[i] - all;
        if (count == most && !(logprob > tops[count - 1].logprob))
            continue;
        int at = count < most ? count++ : count - 1;
        for (; at > 0 && logprob > tops[at - 1].logprob; at--)
            tops[at] = tops[at - 1];
        tops[at] = (nib_top_token){.id = (int32_t)i, .logprob = logprob};
    }
    return count;
}

/* Fills in the log-probabilities of token t, in the model's own distribution, before any
 * adjustment. */
static void fill_logprobs(const nib_job *job, nib_new_token *t, nib_top_token *tops,
                          const float *logits, int64_t vocab)
{
    int64_t best;
    t->logprob = NAN;
    if (job->top < 0)
        return;
    const double all = nib__log_sum(logits, vocab, &best);
    t->logprob = (double)logits[t->id] - all;
    t->top = tops;
    t->top_count = find_tops(tops, job->top, logits, vocab, all);
}

static bool is_end(const nib_drawer *d, const nib_job *job, int32_t id)
{
    for (int i = 0; i < d->end_count && !(job->ignore_ends && job->state == NULL); i++)
        if (d->ends[i] == id)
            return true;
    return false;
}

/* The tokens that a constraint allows; end tokens only if the text is complete. */
static const uint32_t *make_mask(const nib_drawer *d, const nib_job *job,
                                 const nib_constraint_state *state)
{
    const int64_t vocab = nib_session_vocab(d->session);
    if (state == NULL)
        return NULL;
    nib__constraint_mask(job->masks, state, job->allowed);
    for (int i = 0; i < d->end_count; i++) {
        const uint32_t bit = UINT32_C(1) << d->ends[i] % 32;
        uint32_t *word = &job->allowed[d->ends[i] / 32];
        if (d->ends[i] < vocab)
            *word = nib__constraint_complete(state) ? *word | bit : *word & ~bit;
    }
    return job->allowed;
}

/* Advances the constraint by a drawn token. */
static void advance_constraint(nib_job *job, nib_new_token *t)
{
    if (job->state == NULL || t->end)
        return;
    if (nib__constraint_accept(job->state, t->id))
        t->last = nib__constraint_ended(job->state);
    else
        nib__fail(&job->failed, NIB_FAILED,
                  "no token can continue the text in the response format");
}

/* Draws the token after `count` tokens of the job, from a row of logits in host memory; state: of
 * its constraint there. */
static nib_status draw_on_cpu(const nib_drawer *d, nib_sample_work *sampler, const nib_job *job,
                              const nib_constraint_state *state, const int32_t *tokens,
                              int64_t count, const float *logits, int32_t *out, nib_err *err)
{
    nib_adjust adjust = job->adjust;
    adjust.made = tokens + job->prompt_count;
    adjust.made_count = (size_t)(count - job->prompt_count);
    adjust.allowed = make_mask(d, job, state);
    return nib__sample(out, sampler, nib__sample_adjust(sampler, logits, &adjust), &job->sampling,
                       tokens, (size_t)count, job->choice, count, err);
}

/* The same on the device. */
static nib_status draw_on_device(const nib_drawer *d, nib_job *job, int64_t count, int64_t row,
                                 nib_new_token *t)
{
    int32_t drawn;
    const nib_draw draw =
        nib__sampling_draw(&job->sampling, nib_session_vocab(d->session), job->choice, count);
    NIB_TRY(nib__runner_draw(&d->session->runner, job->device_sampler, draw, row, &drawn,
                             &job->failed));
    return nib__sampling_token(&t->id, drawn, count, &job->failed);
}

/* Draws the tokens of a job, each from logits preceded only by accepted tokens: continues as long
 * as the drawn token equals the drafted one. */
static void draw_job(const nib_drawer *d, nib_sample_work *sampler, nib_job *job,
                     const int32_t *tokens, const float *logits)
{
    const int64_t vocab = nib_session_vocab(d->session);
    job->failed.status = NIB_OK;
    for (int64_t i = 0; i < job->rows; i++) {
        const int64_t next = job->first + i + 1; /* position of the drawn token */
        const float *row = logits != NULL ? logits + (job->row + i) * vocab : NULL;
        nib_new_token *t = &job->tokens[i];
        *t = (nib_new_token){.of_prompt = next < job->prompt_count, .logprob = NAN};
        if (t->of_prompt) {
            t->id = tokens[next];
        } else {
            const nib_status status = row != NULL ? draw_on_cpu(d, sampler, job, job->state, tokens,
                                                                next, row, &t->id, &job->failed)
                                                  : draw_on_device(d, job, next, job->row + i, t);
            if (status == NIB_OK) {
                t->end = is_end(d, job, t->id);
                advance_constraint(job, t);
            }
            const bool continues = job->failed.status == NIB_OK && !t->end && !t->last;
            if (i + 1 < job->rows && (!continues || tokens[next] != t->id))
                job->rows = i + 1; /* the rest of the draft is wrong */
        }
        if (job->failed.status == NIB_OK && row != NULL)
            fill_logprobs(job, t, job->tops + i * NIB_LOGPROBS_MOST, row, vocab);
    }
}

typedef struct drawing {
    const nib_drawer *drawer;
    nib_job *const *jobs;
    int32_t *const *tokens;
    const float *logits;
} drawing;

static void draw_jobs(void *ctx, int worker, int64_t begin, int64_t end)
{
    const drawing *a = ctx;
    for (int64_t j = begin; j < end; j++)
        draw_job(a->drawer, &a->drawer->samplers[worker], a->jobs[j], a->tokens[j], a->logits);
}

void nib__drawer_draw(const nib_drawer *d, nib_job *const *jobs, int32_t *const *tokens,
                      size_t count, const float *logits)
{
    drawing a = {d, jobs, tokens, logits};
    if (logits == NULL) /* only one thread may use a device */
        draw_jobs(&a, 0, 0, (int64_t)count);
    else
        nib__pool_run(d->session->model->engine->pool, (int64_t)count, 1, false, draw_jobs, &a);
}

nib_status nib__drawer_guess(const nib_drawer *d, int worker, const nib_job *job,
                             nib_constraint_state *state, const int32_t *tokens, int64_t count,
                             const float *logits, int32_t *out, nib_err *err)
{
    NIB_TRY(draw_on_cpu(d, &d->samplers[worker], job, state, tokens, count, logits, out, err));
    if (is_end(d, job, *out) || (state != NULL && !nib__constraint_accept(state, *out)))
        *out = -1;
    return NIB_OK;
}
