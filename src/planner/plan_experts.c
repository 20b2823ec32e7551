/* SPDX-License-Identifier: Apache-2.0
 *
 * What a mixture of experts reads: bytes of weights in a step of 1, 8 and 64 tokens, and how many
 * experts of a layer they choose. Expected: if each token chooses evenly and independently.
 */
#include "variant.h"

#include <math.h>
#include <stdio.h>

/* Bytes of linear layers that a step of m tokens reads; worst: if no two tokens choose one expert
 * as long as there are others. */
static double step_bytes(const nib_assignment *plan, double m, bool worst)
{
    double sum = 0;
    for (size_t i = 0; i < plan->count; i++) {
        const nib_layer_plan *p = &plan->layers[i];
        const double share = nib__layer_share(p->layer);
        if (p->layer->role != NIB_ROLE_EMBED && p->use_count > 0)
            sum += (double)p->uses[0].bytes * (worst ? fmin(1, m * share) : 1 - pow(1 - share, m));
    }
    return sum;
}

void nib__plan_note_experts(nib_assignment *plan, const nib_policy *policy)
{
    static const double steps[] = {8, 64};
    char text[256], bytes[32], worst[32];
    const nib_layer *expert = NULL;
    size_t used = 0;
    for (size_t i = 0; i < plan->count && expert == NULL; i++)
        expert = plan->layers[i].layer->experts > 1 ? plan->layers[i].layer : NULL;
    if (expert == NULL || policy->training)
        return;
    const double share = nib__layer_share(expert), experts = (double)expert->experts;
    for (size_t i = 0; i < COUNT(steps) && used < sizeof text; i++)
        used += (size_t)snprintf(
            text + used, sizeof text - used, "; of %.0f, %s expected (%.0f experts), at most %s",
            steps[i], nib__format_bytes(bytes, (uint64_t)step_bytes(plan, steps[i], false)),
            experts * (1 - pow(1 - share, steps[i])),
            nib__format_bytes(worst, (uint64_t)step_bytes(plan, steps[i], true)));
    nib__ledger_add_note(
        &plan->ledger, "experts",
        "a token chooses %.0f of %.0f experts in each such layer: a step of 1 token "
        "reads %s of weights%s",
        (double)expert->top_k, experts,
        nib__format_bytes(bytes, (uint64_t)step_bytes(plan, 1, false)), text);
}
