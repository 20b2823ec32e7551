/* SPDX-License-Identifier: Apache-2.0
 *
 * Tokens of a step: each job's is drawn on one thread, several jobs at once.
 */
#include "batch.h"

#include <math.h>

nib_status nib__drawer_open(nib_drawer *out, nib_session *session, int64_t jobs, nib_err *err)
{
    const nib_engine *engine = session->model->engine;
    /* one job is drawn by the thread that asks */
    const int threads = jobs > 1 ? nib__pool_threads(engine->pool) : 1;
    nib_drawer d = {.session = session};
    d.samplers = nib__calloc(&engine->allocator, (size_t)threads, sizeof *d.samplers);
    if (d.samplers == NULL)
        return nib__fail_memory(err, (size_t)threads * sizeof *d.samplers, "samplers");
    nib_status status = NIB_OK;
    for (; d.threads < threads && status == NIB_OK; d.threads += status == NIB_OK)
        status = nib__sampler_open(&d.samplers[d.threads], nib_session_vocab(session),
                                   &engine->allocator, err);
    if (status != NIB_OK) {
        nib__drawer_close(&d);
        return status;
    }
    d.end_count = nib__model_ends(session->model, d.ends);
    *out = d;
    return NIB_OK;
}

void nib__drawer_close(nib_drawer *d)
{
    for (int i = 0; i < d->threads; i++)
        nib__sampler_close(&d->samplers[i]);
    if (d->session != NULL)
        nib__release(&d->session->model->engine->allocator, d->samplers);
    *d = (nib_drawer){0};
}

/* Why the CPU must draw the tokens of a job; NULL: the device may. */
static const char *why_here(const nib_job *job)
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
                          job->sampling.repeat_penalty != 1.0, why_here(job), why);
}

/* The likeliest tokens, ties to the smaller id. */
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

/* What is told beside token t: of the model's own distribution, before anything changes it. */
static void tell(const nib_job *job, nib_new_token *t, nib_top_token *tops, const float *logits,
                 int64_t vocab)
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

/* The tokens that a constraint allows; those that end the text only where it is whole. */
static const uint32_t *make_mask(const nib_drawer *d, nib_job *job)
{
    const int64_t vocab = nib_session_vocab(d->session);
    if (job->state == NULL)
        return NULL;
    nib__constraint_mask(job->masks, job->state, job->allowed);
    for (int i = 0; i < d->end_count; i++) {
        const uint32_t bit = UINT32_C(1) << d->ends[i] % 32;
        uint32_t *word = &job->allowed[d->ends[i] / 32];
        if (d->ends[i] < vocab)
            *word = nib__constraint_complete(job->state) ? *word | bit : *word & ~bit;
    }
    return job->allowed;
}

/* The constraint goes on by a token that was drawn. */
static void follow(nib_job *job, nib_new_token *t)
{
    if (job->state == NULL || t->end)
        return;
    if (nib__constraint_take(job->state, t->id))
        t->last = nib__constraint_ended(job->state);
    else
        nib__fail(&job->failed, NIB_FAILED, "no token goes on as the response format asks");
}

/* The token behind `count` tokens of the job's, from the logits of its row i here. */
static nib_status sample(const nib_drawer *d, nib_sampler *sampler, nib_job *job,
                         const int32_t *tokens, int64_t count, const float *logits,
                         nib_new_token *t)
{
    nib_adjust adjust = job->adjust;
    adjust.made = tokens + job->prompt_count;
    adjust.made_count = (size_t)(count - job->prompt_count);
    adjust.allowed = make_mask(d, job);
    return nib__sample(&t->id, sampler, nib__sampler_adjust(sampler, logits, &adjust),
                       &job->sampling, tokens, (size_t)count, job->choice, count, &job->failed);
}

/* The same, on the device. */
static nib_status sample_there(const nib_drawer *d, nib_job *job, int64_t count, int64_t row,
                               nib_new_token *t)
{
    int32_t drawn;
    const nib_draw draw =
        nib__sampling_draw(&job->sampling, nib_session_vocab(d->session), job->choice, count);
    NIB_TRY(nib__runner_draw(&d->session->runner, job->there, draw, row, &drawn, &job->failed));
    return nib__sampling_token(&t->id, drawn, count, &job->failed);
}

/* Draws the tokens of a job, each from logits behind right tokens alone: the next one as long as
 * this one is what was drafted. */
static void draw_job(const nib_drawer *d, nib_sampler *sampler, nib_job *job, const int32_t *tokens,
                     const float *logits)
{
    const int64_t vocab = nib_session_vocab(d->session);
    job->failed.status = NIB_OK;
    for (int64_t i = 0; i < job->rows; i++) {
        const int64_t next = job->first + i + 1; /* position of the token that they are of */
        const float *row = logits != NULL ? logits + (job->row + i) * vocab : NULL;
        nib_new_token *t = &job->tokens[i];
        *t = (nib_new_token){.of_prompt = next < job->prompt_count, .logprob = NAN};
        if (t->of_prompt) {
            t->id = tokens[next];
        } else {
            const nib_status status = row != NULL ? sample(d, sampler, job, tokens, next, row, t)
                                                  : sample_there(d, job, next, job->row + i, t);
            if (status == NIB_OK) {
                t->end = is_end(d, job, t->id);
                follow(job, t);
            }
            const bool goes_on = job->failed.status == NIB_OK && !t->end && !t->last;
            if (i + 1 < job->rows && (!goes_on || tokens[next] != t->id))
                job->rows = i + 1; /* what was drafted behind it is wrong */
        }
        if (job->failed.status == NIB_OK && row != NULL)
            tell(job, t, job->tops + i * NIB_LOGPROBS_MOST, row, vocab);
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

void nib__drawer_draw(nib_drawer *drawer, nib_job *const *jobs, int32_t *const *tokens,
                      size_t count, const float *logits)
{
    drawing a = {drawer, jobs, tokens, logits};
    if (logits == NULL) /* a device is asked by one thread */
        draw_jobs(&a, 0, 0, (int64_t)count);
    else
        nib__pool_run(drawer->session->model->engine->pool, (int64_t)count, 1, false, draw_jobs,
                      &a);
}
