/* SPDX-License-Identifier: Apache-2.0
 *
 * Planning again after a device refused part of a plan: a kernel that its driver cannot compile,
 * memory that it does not have, or the whole device. The policy then decides as for any missing
 * row: another row, the next allowed rung, or the error with all reasons.
 */
#include "plan_handle.h"

static nib_status copy_message(nib_plan *p, const char **message, nib_err *err)
{
    if (*message == NULL)
        return NIB_OK;
    const char *from = *message;
    *message = nib__arena_copy(&p->arena, from, strlen(from));
    return *message != NULL ? NIB_OK : nib__fail_memory(err, strlen(from), "a driver's message");
}

nib_status nib__plan_exclude_refused(nib_plan *p, const nib_retry *retry, nib_err *err)
{
    nib_policy *policy = &p->policy;
    const size_t before = policy->without.count, count = retry->refused_count;
    nib_refused *copies = nib__arena_take(&p->arena, count + 1, sizeof *copies);
    const char **names = nib__arena_take(&p->arena, before + count + 1, sizeof *names);
    if (copies == NULL || names == NULL)
        return nib__fail_memory(err,
                                (count + 1) * sizeof *copies + (before + count + 1) * sizeof *names,
                                "the refused kernels");
    for (size_t i = 0; i < before; i++)
        names[i] = policy->without.items[i];
    for (size_t i = 0; i < count; i++) {
        copies[i] = retry->refused[i]; /* the name points into the kernel table: no copy needed */
        names[before + i] = copies[i].kernel;
        NIB_TRY(copy_message(p, &copies[i].message, err));
    }
    policy->refused = copies;
    policy->refused_count = count;
    policy->without = (nib_strings){names, before + count};
    policy->weight_bytes_limit = retry->weight_bytes_limit;
    policy->limit_message = retry->limit_message;
    return copy_message(p, &policy->limit_message, err);
}

/* One note per refused row, but only one for all rows refused together with their device. */
void nib__plan_note_refused(nib_plan *p)
{
    const nib_policy *policy = &p->policy;
    nib_ledger *to = &p->assignment.ledger;
    char limit[32];
    for (size_t i = 0, next; i < policy->refused_count; i = next) {
        const nib_refused *refused = &policy->refused[i];
        next = i + 1;
        while (refused->with_device && next < policy->refused_count &&
               policy->refused[next].with_device)
            next++;
        nib__ledger_add_note(to, NIB_NOTE_REFUSED, "planned again without %s: %s",
                             refused->with_device ? "the device" : refused->kernel,
                             refused->message);
    }
    if (policy->limit_message != NULL)
        nib__ledger_add_note(to, NIB_NOTE_REFUSED, "planned again with %s for weights: %s",
                             nib__format_bytes(limit, policy->weight_bytes_limit),
                             policy->limit_message);
}

/* The refused row, or every row of a device that cannot be used at all. */
static size_t list_refused(nib_refused *out, const nib_refusal *refusal, const char *message)
{
    size_t count = 0;
    if (refusal->what == NIB_REFUSED_ROW)
        out[count++] = (nib_refused){refusal->row->name, message, false};
    for (size_t i = 0; refusal->what == NIB_REFUSED_DEVICE && i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (nib__kernel_built(row) && row->device == refusal->device)
            out[count++] = (nib_refused){row->name, message, true};
    }
    return count;
}

static nib_status replan(nib_plan **out, const nib_plan *plan, const nib_refusal *refusal,
                         const char *message, nib_err *err)
{
    const nib_allocator *a = &plan->model->engine->allocator;
    const nib_policy *policy = &plan->policy;
    const size_t before = policy->refused_count, capacity = before + nib__kernel_count();
    nib_refused *refused = nib__calloc(a, capacity, sizeof *refused);
    if (refused == NULL)
        return nib__fail_memory(err, capacity * sizeof *refused, "the refused kernels");
    for (size_t i = 0; i < before; i++)
        refused[i] = policy->refused[i];
    nib_retry retry = {.refused = refused,
                       .refused_count = before + list_refused(refused + before, refusal, message),
                       .weight_bytes_limit = policy->weight_bytes_limit,
                       .limit_message = policy->limit_message};
    if (refusal->what == NIB_REFUSED_MEMORY)
        retry.weight_bytes_limit = refusal->room, retry.limit_message = message;
    const nib_status status = nib__plan_make(out, plan->model, &plan->request, &retry, err);
    nib__release(a, refused);
    return status;
}

/* Each round has fewer rows or less memory, so the device soon has nothing left to refuse. */
nib_status nib__plan_open(nib_plan_opener open, void *ctx, const nib_plan **plan, nib_plan **owned,
                          nib_err *err)
{
    enum { ROUNDS = 64 };
    for (int round = 0;; round++) {
        nib_refusal refusal = {.what = NIB_REFUSED_NOTHING};
        nib_err open_err;
        nib_plan *replanned;
        const nib_status status = open(ctx, *plan, &refusal, &open_err);
        if (status == NIB_OK || refusal.what == NIB_REFUSED_NOTHING || round == ROUNDS)
            return status == NIB_OK ? NIB_OK : nib__fail(err, status, "%s", open_err.text);
        NIB_TRY(replan(&replanned, *plan, &refusal, open_err.text, err));
        nib_plan_close(*owned);
        *plan = *owned = replanned;
        NIB_TRY(nib_plan_status(replanned, err));
    }
}
