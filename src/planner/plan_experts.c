/* SPDX-License-Identifier: Apache-2.0
 *
 * Matrices of experts and of heads that have one launch for all; of mixtures, what a step reads:
 * bytes of weights in a step of 1, 8 and 64 tokens, and how many experts of a layer they choose.
 * Expected: if each token chooses evenly and independently.
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

/* ---- launches ---- */

bool nib__variant_groups(const nib_variant *variant, const nib_layer *layer)
{
    bool groups = nib__layer_peers(layer) > 1 && variant->use_count > 0 &&
                  variant->scheme.act != NIB_ACT_I8_STATIC /* each has its own scale */ &&
                  !(layer->ordered && nib__scheme_same_weight(&variant->scheme, &layer->stored));
    for (int i = 0; i < variant->use_count; i++)
        groups = groups && variant->uses[i].kernel->grouped &&
                 (layer->heads <= 1 || variant->uses[i].quant != NULL /* it sorts their rows */) &&
                 variant->uses[i].kernel->packing == variant->uses[0].kernel->packing;
    return groups;
}

/* Whether two experts or heads have one shape, scheme, layout and kernel. */
static bool are_alike(const nib_layer_plan *a, const nib_layer_plan *b)
{
    if (a->use_count != b->use_count || a->machine != b->machine ||
        !nib__scheme_equal(&a->done, &b->done) || a->layer->n != b->layer->n ||
        a->layer->k != b->layer->k || a->layer->bias != b->layer->bias ||
        nib__layer_scale_type(a->layer, &a->done) != nib__layer_scale_type(b->layer, &b->done) ||
        nib__layer_zero_type(a->layer, &a->done) != nib__layer_zero_type(b->layer, &b->done))
        return false;
    for (int i = 0; i < a->use_count; i++)
        if (a->uses[i].kernel != b->uses[i].kernel || a->uses[i].quant != b->uses[i].quant ||
            a->uses[i].m_max != b->uses[i].m_max)
            return false;
    return true;
}

/* Plan of expert or head e of a node. */
static nib_layer_plan *expert_of(const nib_assignment *plan, const nib_graph_node *node, int64_t e)
{
    const size_t first = plan->graph->weights[node->weight].index;
    return &plan->layers[first + (size_t)(e * node->weight_step)];
}

void nib__plan_group_experts(nib_assignment *plan)
{
    const nib_graph *g = plan->graph;
    for (size_t i = 0; g != NULL && i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        if (node->op != NIB_OP_LINEAR_EXPERTS && node->op != NIB_OP_LINEAR_HEADS)
            continue;
        const nib_layer_plan *one = expert_of(plan, node, 0);
        const nib_variant variant = nib__variant_of(one);
        const int64_t count = nib__layer_peers(one->layer);
        bool groups = nib__variant_groups(&variant, one->layer);
        for (int64_t e = 1; e < count && groups; e++)
            groups = are_alike(one, expert_of(plan, node, e));
        for (int64_t e = 0; e < count; e++)
            expert_of(plan, node, e)->grouped = groups;
    }
}

/* The end of the note: how a device runs the experts; empty on the CPU. */
static const char *say_launches(nib_assignment *plan)
{
    const nib_graph *g = plan->graph;
    const nib_layer_plan *apart = NULL;
    size_t matrices = 0, alone = 0;
    for (size_t i = 0; g != NULL && i < g->node_count; i++) {
        if (g->nodes[i].op != NIB_OP_LINEAR_EXPERTS)
            continue;
        const nib_layer_plan *one = expert_of(plan, &g->nodes[i], 0);
        if (one->use_count == 0 || one->uses[0].kernel->device == NIB_DEVICE_CPU)
            continue;
        matrices++;
        alone += !one->grouped;
        apart = one->grouped ? apart : one;
    }
    if (matrices == 0)
        return "";
    if (alone == 0)
        return nib__ledger_text(&plan->ledger, "; one launch multiplies all experts of a matrix");
    const nib_variant variant = nib__variant_of(apart);
    return nib__ledger_text(
        &plan->ledger,
        "; in %zu of %zu matrices each expert that has rows takes a launch, after a copy of their "
        "numbers to the host: %s%s",
        alone, matrices, nib__variant_groups(&variant, apart->layer) ? "their experts differ" : "",
        nib__variant_groups(&variant, apart->layer)
            ? ""
            : nib__ledger_text(&plan->ledger, "%s takes one expert's weight",
                               apart->uses[apart->use_count - 1].kernel->name));
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
        "reads %s of weights%s%s",
        (double)expert->top_k, experts,
        nib__format_bytes(bytes, (uint64_t)step_bytes(plan, 1, false)), text, say_launches(plan));
}
