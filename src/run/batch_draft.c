/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of a batch's drafts pays. What a token of a draft costs is the step's: how long steps of
 * so many tokens take, whosever they are.
 */
#include "batch.h"

nib_status nib__drafter_open(nib_drafter *out, const nib_session *session, int64_t sequences,
                             nib_err *err)
{
    *out = (nib_drafter){.plan = session->plan};
    out->drafts =
        nib__calloc(&session->model->engine->allocator, (size_t)sequences, sizeof *out->drafts);
    return out->drafts != NULL
               ? NIB_OK
               : nib__fail_memory(err, (size_t)sequences * sizeof *out->drafts, "drafts");
}

void nib__drafter_close(nib_drafter *d)
{
    if (d->plan != NULL)
        nib__release(&d->plan->model->engine->allocator, d->drafts);
    *d = (nib_drafter){0};
}

void nib__drafter_choose(nib_drafter *d, size_t count, size_t tokens, size_t most)
{
    double seconds[NIB_LOOKUP_MOST + 2];
    const size_t top = COUNT(seconds) - 1; /* the largest step that is timed */
    for (size_t i = 0; i < count; i++)
        d->drafts[i].count = 0;
    if (count == 0 || tokens >= top || d->times.measured[tokens] == 0)
        return;
    most = most < top - tokens ? most : top - tokens;
    for (size_t m = 1; m <= tokens + most; m++)
        if (d->times.predicted[m] == 0)
            d->times.predicted[m] =
                nib__plan_step_seconds(&d->plan->plan, &d->plan->policy, (int64_t)m, (int64_t)m,
                                       (double)d->drafts[0].lookup->count);
    nib__step_times_fill(&d->times, tokens, tokens + most, seconds);
    nib__lookup_choose(d->drafts, count, tokens, seconds, most);
}

void nib__drafter_time(nib_drafter *d, size_t tokens, double seconds)
{
    if (tokens < COUNT(d->times.measured))
        nib__step_times_add(&d->times, tokens, seconds);
}
