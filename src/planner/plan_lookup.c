/* SPDX-License-Identifier: Apache-2.0
 *
 * Whether generation may draft tokens and check several in one step: only where a token's logits
 * have the same bits alone as among others, so that what is written is what is written without.
 */
#include "plan_handle.h"
#include "prompt_lookup.h"
#include "variant.h"

#include <inttypes.h>

/* A row whose bits are a device's own, and may be others with other tokens in a step; NULL: the
 * rows of each layer have one arithmetic contract whatever their number is. */
static const nib_kernel *own_numbers(const nib_assignment *plan)
{
    for (size_t i = plan->count; i-- > 0;) /* the output's is said rather than the embedding's */
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
    const double each =
        nib__plan_step_seconds(&p->assignment, &p->policy, 1, 1, NIB_PREFILL_TOKENS);
    const double all = nib__plan_step_seconds(&p->assignment, &p->policy, m, m, NIB_PREFILL_TOKENS);
    nib__ledger_add_note(&p->assignment.ledger, "lookup",
                         "--lookup %" PRId64 ": up to so many tokens that came before after the "
                         "last ones are checked in one step, and the text stays the same: a step "
                         "of %" PRId64 " tokens is predicted to take %s, of one %s",
                         p->lookup, m, nib__say_seconds(many, all), nib__say_seconds(one, each));
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
                         "--lookup %" PRId64 " is of text that is generated, and this is a "
                         "training config; leave it out",
                         asked);
    if (asked < 0 || p->policy.training)
        return NIB_OK;
    const nib_kernel *row = own_numbers(&p->assignment);
    if (row == NULL)
        p->lookup = asked > 0 ? asked : NIB_LOOKUP_USUAL;
    if (asked == 0)
        return NIB_OK;
    if (row == NULL) {
        note_drafts(p);
        return NIB_OK;
    }
    char number[32];
    nib__ledger_add_setting(&p->assignment.ledger,
                            &(nib_ledger_setting){.code = "lookup",
                                                  .name = "--lookup",
                                                  .asked = nib__say_count(number, (uint64_t)asked),
                                                  .done = "0",
                                                  .by = NIB_BY_OPTION,
                                                  .relation = NIB_SETTING_NONE},
                            "tokens are made one by one: %s may give a token other bits among "
                            "others than alone, and then another text; --lookup 0 asks for that",
                            row->name);
    return NIB_OK;
}
