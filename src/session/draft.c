/* SPDX-License-Identifier: Apache-2.0
 *
 * Which source drafts for which job, how much, and what it cost.
 */
#include "draft.h"

#include "variant.h"

_Static_assert((int)NIB_LOOKUP_MOST < (int)NIB_CACHE_SPARE, "any draft can be rolled back");

/* ---- opening ---- */

nib_status nib__drafter_open(nib_drafter *out, nib_session *session, int64_t sequences,
                             nib_err *err)
{
    const nib_allocator *a = &session->model->engine->allocator;
    const size_t count = (size_t)sequences;
    *out = (nib_drafter){.session = session, .sequences = sequences};
    out->lookups = nib__calloc(a, count, sizeof *out->lookups);
    out->drafting = nib__calloc(a, count, sizeof *out->drafting);
    out->drafts = nib__calloc(a, count, sizeof *out->drafts);
    if (out->lookups == NULL || out->drafting == NULL || out->drafts == NULL)
        return nib__fail_memory(err, count * sizeof *out->drafts, "drafts");
    return session->draft != NULL ? nib__draft_model_open(&out->model, session, sequences, err)
                                  : NIB_OK;
}

void nib__drafter_close(nib_drafter *d)
{
    if (d->session == NULL)
        return;
    const nib_allocator *a = &d->session->model->engine->allocator;
    for (int64_t i = 0; d->lookups != NULL && i < d->sequences; i++)
        nib__lookup_close(&d->lookups[i]);
    nib__draft_model_close(d->model);
    nib__release(a, d->lookups);
    nib__release(a, d->drafting);
    nib__release(a, d->drafts);
    *d = (nib_drafter){0};
}

void nib__drafter_begin(nib_drafter *d, int64_t sequence)
{
    nib__lookup_open(&d->lookups[sequence], &d->session->model->engine->allocator);
    if (d->model != NULL)
        nib__draft_model_begin(d->model, sequence);
}

void nib__drafter_end(nib_drafter *d, int64_t sequence)
{
    nib__lookup_close(&d->lookups[sequence]);
}

/* ---- choosing ---- */

nib_status nib__drafter_add(nib_drafter *d, nib_job *job, int32_t *ids, int64_t room, nib_err *err)
{
    const int64_t count = job->prompt_count + job->made;
    if (job->lookup == 0 && d->model == NULL)
        return NIB_OK;
    if (job->lookup > 0)
        NIB_TRY(nib__lookup_put(&d->lookups[job->sequence], ids, (size_t)count, err));
    d->drafting[d->count++] = (nib_drafting){job, ids, count, room};
    return NIB_OK;
}

/* Fills in the seconds of steps of up to `most` tokens; false: the step without drafts was never
 * timed. */
static bool fill_seconds(const nib_drafter *d, size_t tokens, size_t most, double *seconds)
{
    nib_step_times *times = &d->session->times;
    const nib_plan *plan = d->session->plan;
    if (tokens >= COUNT(times->measured) - 1 || times->measured[tokens] == 0)
        return false;
    for (size_t m = 1; m <= tokens + most; m++)
        if (times->predicted[m] == 0)
            times->predicted[m] =
                nib__plan_step_seconds(&plan->assignment, &plan->policy, (int64_t)m, (int64_t)m,
                                       (double)d->drafting[0].count);
    nib__step_times_fill(times, tokens, tokens + most, seconds);
    return true;
}

/* The draft of the source that alone would make the job's tokens fastest. */
static nib_draft choose_source(const nib_drafter *d, const nib_drafting *g,
                               const nib_draft_costs *costs, size_t most)
{
    const nib_lookup *lookup = &d->lookups[g->job->sequence];
    const nib_draft found = {
        .lookup = lookup, .most = lookup->next > 0 ? (size_t)nib__min(g->job->lookup, g->room) : 0};
    if (d->model == NULL)
        return found;
    /* what one guess adds to the step is not left for reading */
    const double left = costs->left - costs->seconds[costs->tokens + 1] +
                        costs->seconds[costs->tokens] - nib__draft_model_seconds(d->model, 1);
    const nib_draft guess =
        nib__draft_model_follow(d->model, g->job->sequence, g->ids, g->count, g->room, left);
    return nib__draft_speed(&guess, costs, most) > nib__draft_speed(&found, costs, most) ? guess
                                                                                         : found;
}

/* Nothing pays now, so the shares of right tokens are not measured any more: now and then, as the
 * bound allows, one text in turn gets a token of the draft model. */
static void choose_probe(nib_drafter *d, const nib_draft_costs *costs)
{
    nib_draft *draft = &d->drafts[d->turn % d->count];
    const nib_drafting *g = &d->drafting[d->turn % d->count];
    const double left = nib__draft_budget_left(&d->budget, true);
    if (d->model == NULL)
        return;
    const nib_draft guess =
        nib__draft_model_follow(d->model, g->job->sequence, g->ids, g->count, g->room, left);
    if (guess.most == 0)
        return;
    const double cost = costs->model_step(costs->ctx, guess.unread) +
                        costs->seconds[costs->tokens + 1] - costs->seconds[costs->tokens];
    if (cost > left)
        return;
    *draft = guess;
    draft->count = 1;
    d->probe = true;
    d->turn++;
}

/* Lets the model write its drafts; prompt lookup copies. */
static nib_status write_drafts(nib_drafter *d, nib_err *err)
{
    nib_guess guesses[NIB_LOOKUP_MOST];
    size_t count = 0;
    for (size_t i = 0; i < d->count; i++) {
        const nib_drafting *g = &d->drafting[i];
        nib_draft *draft = &d->drafts[i];
        if (draft->lookup != NULL)
            nib__lookup_copy(draft->lookup, g->ids, draft->count);
        else if (draft->count > 0)
            guesses[count++] = (nib_guess){draft, g->job, g->ids, g->count};
    }
    if (count > 0)
        NIB_TRY(nib__draft_model_guess(d->model, guesses, count, &d->step_s, err));
    d->model_s += d->step_s;
    return NIB_OK;
}

nib_status nib__drafter_draft(nib_drafter *d, size_t tokens, size_t most, nib_err *err)
{
    double seconds[NIB_LOOKUP_MOST + 2];
    const size_t top = COUNT(seconds) - 1; /* the largest timed step */
    const size_t count = d->count;
    nib_status status = NIB_OK;
    d->step_s = 0;
    d->probe = false;
    most = tokens >= top ? 0 : most < top - tokens ? most : top - tokens;
    if (count > 0 && most > 0 && fill_seconds(d, tokens, most, seconds)) {
        const nib_draft_costs costs = {.tokens = tokens,
                                       .seconds = seconds,
                                       .model_step = nib__draft_model_seconds,
                                       .ctx = d->model,
                                       .left = nib__draft_budget_left(&d->budget, false)};
        size_t drafted = 0;
        for (size_t i = 0; i < count; i++)
            d->drafts[i] = choose_source(d, &d->drafting[i], &costs, most);
        nib__draft_lengths(d->drafts, count, &costs, most);
        for (size_t i = 0; i < count; i++)
            drafted += d->drafts[i].count;
        if (drafted == 0)
            choose_probe(d, &costs);
        status = write_drafts(d, err);
        for (size_t i = 0; i < count; i++) {
            d->drafting[i].job->draft = (int64_t)d->drafts[i].count;
            d->drafting[i].job->guesses = d->drafts[i].lookup == NULL;
        }
    }
    d->count = 0;
    return status;
}

/* ---- after a step ---- */

void nib__drafter_learn(nib_drafter *d, int64_t sequence, int64_t drafted, int64_t accepted,
                        bool continues)
{
    const int64_t tested = accepted + (accepted < drafted && continues);
    nib__draft_model_learn(d->model, sequence, accepted, tested, d->probe);
}

void nib__drafter_count(nib_drafter *d, size_t jobs, size_t slots, int64_t made, double seconds)
{
    nib_step_times *times = &d->session->times;
    const bool timed = jobs > 0 && slots < COUNT(times->measured);
    double taken = seconds, without = seconds, usual = 0;
    if (timed)
        nib__step_times_add(times, slots, seconds);
    if (timed && (slots > jobs || d->step_s > 0)) {
        usual = times->measured[jobs];
        taken = d->step_s + times->measured[slots];
        without = (double)made / (double)jobs * usual;
    }
    nib__draft_budget_add(&d->budget, taken, without, usual);
    d->step_s = 0;
}
