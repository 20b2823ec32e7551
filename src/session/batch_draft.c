/* SPDX-License-Identifier: Apache-2.0
 *
 * How much of a batch's drafts pays. What a token of a draft costs is the step's: how long steps of
 * so many tokens take, whosever they are.
 */
#include "batch.h"

nib_status nib__drafter_open(nib_drafter *out, nib_session *session, int64_t sequences,
                             nib_err *err)
{
    const size_t count = (size_t)sequences;
    *out = (nib_drafter){.session = session};
    out->drafts = nib__calloc(&session->model->engine->allocator, count, sizeof *out->drafts);
    return out->drafts != NULL ? NIB_OK
                               : nib__fail_memory(err, count * sizeof *out->drafts, "drafts");
}

void nib__drafter_close(nib_drafter *d)
{
    if (d->session != NULL)
        nib__release(&d->session->model->engine->allocator, d->drafts);
    *d = (nib_drafter){0};
}

void nib__drafter_choose(nib_drafter *d, size_t count, size_t tokens, size_t most)
{
    nib_step_times *times = &d->session->times;
    const nib_plan *plan = d->session->plan;
    double seconds[COUNT(times->measured)];
    const size_t top = COUNT(seconds) - 1; /* the largest step that is timed */
    for (size_t i = 0; i < count; i++)
        d->drafts[i].count = 0;
    if (count == 0 || tokens >= top || times->measured[tokens] == 0)
        return;
    most = most < top - tokens ? most : top - tokens;
    for (size_t m = 1; m <= tokens + most; m++)
        if (times->predicted[m] == 0)
            times->predicted[m] =
                nib__plan_step_seconds(&plan->assignment, &plan->policy, (int64_t)m, (int64_t)m,
                                       (double)d->drafts[0].lookup->count);
    nib__step_times_fill(times, tokens, tokens + most, seconds);
    nib__lookup_choose(d->drafts, count, tokens, seconds, most);
}

void nib__drafter_time(nib_drafter *d, size_t tokens, double seconds)
{
    nib_step_times *times = &d->session->times;
    if (tokens < COUNT(times->measured))
        nib__step_times_add(times, tokens, seconds);
}
