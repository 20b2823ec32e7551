/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether generation may draft tokens and check several in one step: only if a token's logits have
 * the same bits alone and among other tokens, so that drafts never change the text.
 */
#include "plan_handle.h"
#include "prompt_lookup.h"
#include "variant.h"

#include <inttypes.h>

const nib_kernel *nib__plan_device_arithmetic(const nib_plan *p)
{
    const nib_assignment *plan = &p->assignment;
    for (size_t i = plan->count; i-- > 0;) /* names the output's row rather than the embedding's */
        for (int u = 0; u < plan->layers[i].use_count; u++) {
            const nib_use *use = &plan->layers[i].uses[u];
            if (use->kernel->arithmetic == NIB_ARITHMETIC_OTHER)
                return use->kernel;
            if (use->quant != NULL && use->quant->arithmetic == NIB_ARITHMETIC_OTHER)
                return use->quant;
        }
    for (int i = 0; i < plan->op_count; i++)
        if (plan->ops[i].row != NULL && plan->ops[i].row->arithmetic == NIB_ARITHMETIC_OTHER)
            return plan->ops[i].row;
    return NULL;
}

static void note_drafts(nib_plan *p)
{
    char one[32], many[32];
    const int64_t m = p->lookup + 1;
    const double one_s =
        nib__plan_step_seconds(&p->assignment, &p->policy, 1, 1, NIB_PREFILL_TOKENS);
    const double many_s =
        nib__plan_step_seconds(&p->assignment, &p->policy, m, m, NIB_PREFILL_TOKENS);
    nib__ledger_add_note(
        &p->assignment.ledger, "lookup",
        "--lookup %" PRId64 ": a step checks at most that many tokens drafted from "
        "earlier text, and the text stays the same: a step of %" PRId64
        " tokens is predicted to take %s, of one %s",
        p->lookup, m, nib__format_seconds(many, many_s), nib__format_seconds(one, one_s));
}

nib_status nib__plan_lookup(nib_plan *p, nib_err *err)
{
    const int64_t asked = p->request.lookup;
    if (asked > NIB_LOOKUP_MOST)
        return nib__fail(err, NIB_USAGE,
                         "--lookup %" PRId64 " is over the limit of %d tokens at once", asked,
                         NIB_LOOKUP_MOST);
    if (asked > 0 && p->policy.training)
        return nib__fail(err, NIB_USAGE,
                         "--lookup %" PRId64
                         " has no effect in training, which generates no text; leave it out",
                         asked);
    if (asked < 0 || p->policy.training)
        return NIB_OK;
    const nib_kernel *row = nib__plan_device_arithmetic(p);
    if (row == NULL)
        p->lookup = asked > 0 ? asked : NIB_LOOKUP_USUAL;
    if (asked == 0)
        return NIB_OK;
    if (row == NULL) {
        note_drafts(p);
        return NIB_OK;
    }
    char number[32];
    nib__ledger_add_setting(
        &p->assignment.ledger,
        &(nib_ledger_setting){.code = "lookup",
                              .name = "--lookup",
                              .asked = nib__format_count(number, (uint64_t)asked),
                              .done = "0",
                              .by = NIB_BY_OPTION,
                              .relation = NIB_SETTING_NONE},
        "tokens are drawn one by one: %s may compute other bits for a token among others than "
        "alone, which could change the text; --lookup 0 asks for this",
        row->name);
    return NIB_OK;
}
