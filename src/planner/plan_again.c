/* SPDX-License-Identifier: Apache-2.0
 *
 * Planning again after a device refused part of a plan: a kernel that its driver cannot compile,
 * memory that it does not have, or the whole device. The policy then decides as for any missing
 * row: another row, the next allowed rung, or the error with all reasons.
 */
#include "plan_handle.h"

static nib_status copy_words(nib_plan *p, const char **words, nib_err *err)
{
    if (*words == NULL)
        return NIB_OK;
    const char *from = *words;
    *words = nib__arena_copy(&p->arena, from, strlen(from));
    return *words != NULL ? NIB_OK : nib__fail_memory(err, strlen(from), "a driver's message");
}

nib_status nib__plan_exclude_refused(nib_plan *p, const nib_retry *again, nib_err *err)
{
    nib_policy *policy = &p->policy;
    const size_t before = policy->without.count, count = again->refused_count;
    nib_refused *copies = nib__arena_take(&p->arena, count + 1, sizeof *copies);
    const char **names = nib__arena_take(&p->arena, before + count + 1, sizeof *names);
    if (copies == NULL || names == NULL)
        return nib__fail_memory(err, count * sizeof *copies, "the refused kernels");
    for (size_t i = 0; i < before; i++)
        names[i] = policy->without.items[i];
    for (size_t i = 0; i < count; i++) {
        copies[i] = again->refused[i]; /* its name belongs to the table */
        names[before + i] = copies[i].kernel;
        NIB_TRY(copy_words(p, &copies[i].words, err));
    }
    policy->refused = copies;
    policy->refused_count = count;
    policy->without = (nib_strings){names, before + count};
    policy->room = again->room;
    policy->room_words = again->room_words;
    return copy_words(p, &policy->room_words, err);
}

/* One note per refusal; one for all rows of a device refused together. */
void nib__plan_note_refused(nib_plan *p)
{
    const nib_policy *policy = &p->policy;
    nib_ledger *to = &p->assignment.ledger;
    char room[32];
    for (size_t i = 0, next; i < policy->refused_count; i = next) {
        const nib_refused *refused = &policy->refused[i];
        next = i + 1;
        while (refused->with_device && next < policy->refused_count &&
               policy->refused[next].with_device)
            next++;
        nib__ledger_add_note(to, NIB_NOTE_REFUSED, "planned again without %s: %s",
                             refused->with_device ? "the device" : refused->kernel, refused->words);
    }
    if (policy->room_words != NULL)
        nib__ledger_add_note(to, NIB_NOTE_REFUSED, "planned again with %s for weights: %s",
                             nib__say_bytes(room, policy->room), policy->room_words);
}

/* The refused row, or every row of a device that cannot be used at all. */
static size_t list_refused(nib_refused *out, const nib_refusal *refusal, const char *words)
{
    size_t count = 0;
    if (refusal->what == NIB_REFUSED_ROW)
        out[count++] = (nib_refused){refusal->row->name, words, false};
    for (size_t i = 0; refusal->what == NIB_REFUSED_DEVICE && i < nib__kernel_count(); i++) {
        const nib_kernel *row = nib__kernel_at(i);
        if (nib__kernel_built(row) && row->device == refusal->device)
            out[count++] = (nib_refused){row->name, words, true};
    }
    return count;
}

static nib_status plan_again(nib_plan **out, const nib_plan *plan, const nib_refusal *refusal,
                             const char *words, nib_err *err)
{
    const nib_allocator *a = &plan->model->engine->allocator;
    const nib_policy *policy = &plan->policy;
    const size_t before = policy->refused_count, most = before + nib__kernel_count();
    nib_refused *refused = nib__calloc(a, most, sizeof *refused);
    if (refused == NULL)
        return nib__fail_memory(err, most * sizeof *refused, "the refused kernels");
    for (size_t i = 0; i < before; i++)
        refused[i] = policy->refused[i];
    nib_retry again = {.refused = refused,
                       .refused_count = before + list_refused(refused + before, refusal, words),
                       .room = policy->room,
                       .room_words = policy->room_words};
    if (refusal->what == NIB_REFUSED_MEMORY)
        again.room = refusal->room, again.room_words = words;
    const nib_status status = nib__plan_make(out, plan->model, &plan->request, &again, err);
    nib__release(a, refused);
    return status;
}

/* Each round has fewer rows or less memory, so the device soon has nothing left to refuse. */
nib_status nib__plan_open(nib_plan_opener open, void *ctx, const nib_plan **plan, nib_plan **own,
                          nib_err *err)
{
    enum { ROUNDS = 64 };
    for (int round = 0;; round++) {
        nib_refusal refusal = {.what = NIB_REFUSED_NOTHING};
        nib_err words;
        nib_plan *again;
        const nib_status status = open(ctx, *plan, &refusal, &words);
        if (status == NIB_OK || refusal.what == NIB_REFUSED_NOTHING || round == ROUNDS)
            return status == NIB_OK ? NIB_OK : nib__fail(err, status, "%s", words.text);
        NIB_TRY(plan_again(&again, *plan, &refusal, words.text, err));
        nib_plan_free(*own);
        *plan = *own = again;
        NIB_TRY(nib_plan_status(again, err));
    }
}
