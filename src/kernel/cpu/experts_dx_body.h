/* SPDX-License-Identifier: Apache-2.0
 *
 * The code of the gradients of a mixture of experts, and of the sums for its balance, written once
 * on lanes and compiled per instruction set, after experts_body.h in the same file. train_ops.h
 * defines the order of operations and where values are rounded.
 */
#include "train_ops.h"

/* ---- route ---- */

/* The sum over the chosen experts, ascending, of weight * gradient. */
static float sum_chosen(const float *weights, const float *dweight, int64_t top_k)
{
    float sum = 0.0f;
    for (int64_t j = 0; j < top_k; j++)
        sum = fmaf(weights[j], dweight[j], sum);
    return sum;
}

/* Weights that are a softmax over the chosen experts, times the rule's scale. */
static void chosen_dx(float *dx, const nib_routing *rule, const float *routing,
                      const float *dweight)
{
    const float *weights = routing + rule->top_k;
    const float along = sum_chosen(weights, dweight, rule->top_k) / rule->scale;
    for (int64_t j = 0; j < rule->top_k; j++)
        dx[(int64_t)routing[j]] = weights[j] * (dweight[j] - along);
}

/* Weights that are the scores of a softmax over all experts. */
static void softmax_dx(float *dx, const nib_routing *rule, const float *scores,
                       const float *routing, const float *dweight)
{
    const float *weights = routing + rule->top_k;
    const nib_lanes minus = nib__lanes_set(-sum_chosen(weights, dweight, rule->top_k));
    for (int64_t e = 0; e < rule->experts; e += NIB_LANES)
        nib__lanes_store_at(dx, e, rule->experts,
                            nib__lanes_mul(nib__lanes_load_at(scores, e, rule->experts), minus));
    for (int64_t j = 0; j < rule->top_k; j++) {
        float *own = &dx[(int64_t)routing[j]];
        *own = fmaf(weights[j], dweight[j], *own);
    }
}

static void sigmoid_dx(float *dx, const nib_routing *rule, const float *scores,
                       const float *routing, const float *dweight)
{
    const float along = sum_chosen(routing + rule->top_k, dweight, rule->top_k) / rule->scale;
    float sum = 0.0f;
    for (int64_t j = 0; j < rule->top_k; j++)
        sum += scores[(int64_t)routing[j]];
    const float share = rule->scale / (sum + rule->floor);
    for (int64_t j = 0; j < rule->top_k; j++) {
        const float s = scores[(int64_t)routing[j]];
        const float ds = rule->normalize ? share * (dweight[j] - along) : rule->scale * dweight[j];
        dx[(int64_t)routing[j]] = ds * (s * (1.0f - s));
    }
}

static bool is_sigmoid(const nib_routing *rule)
{
    return rule->score == NIB_SCORE_SIGMOID || rule->score == NIB_SCORE_CHOSEN_SIGMOID;
}

/* What the load-balancing loss weighs, from the scores of all experts: a softmax as it is; sigmoids
 * divided by their sum, which are written to `shares`. */
static const float *share_scores(float *shares, const float *scores, const nib_routing *rule)
{
    nib_lanes sum = nib__lanes_set(0.0f);
    if (!is_sigmoid(rule))
        return scores;
    for (int64_t e = 0; e < rule->experts; e += NIB_LANES)
        sum = nib__lanes_add(sum, nib__lanes_load_at(scores, e, rule->experts));
    const nib_lanes all = nib__lanes_set(nib__lanes_sum(sum));
    for (int64_t e = 0; e < rule->experts; e += NIB_LANES)
        nib__lanes_store_at(shares, e, rule->experts,
                            nib__lanes_div(nib__lanes_load_at(scores, e, rule->experts), all));
    return shares;
}

/* Adds the gradient of the load-balancing loss, from the scores of all experts. */
static void balance_dx(float *dx, const float *scores, const float *load, float balance,
                       const nib_routing *rule)
{
    const int64_t experts = rule->experts;
    const nib_lanes one = nib__lanes_set(1.0f);
    float own[NIB_EXPERTS_MAX];
    const float *shares = share_scores(own, scores, rule);
    nib_lanes sum = nib__lanes_set(0.0f);
    for (int64_t e = 0; e < experts; e += NIB_LANES)
        sum = nib__lanes_fma(nib__lanes_load_at(load, e, experts),
                             nib__lanes_load_at(shares, e, experts), sum);
    const nib_lanes along = nib__lanes_set(nib__lanes_sum(sum)), factor = nib__lanes_set(balance);
    for (int64_t e = 0; e < experts; e += NIB_LANES) {
        const nib_lanes off = nib__lanes_sub(nib__lanes_load_at(load, e, experts), along);
        nib_lanes p = nib__lanes_mul(factor, nib__lanes_load_at(shares, e, experts));
        if (is_sigmoid(rule))
            p = nib__lanes_mul(p, nib__lanes_sub(one, nib__lanes_load_at(scores, e, experts)));
        nib__lanes_store_at(dx, e, experts,
                            nib__lanes_fma(p, off, nib__lanes_load_at(dx, e, experts)));
    }
}

/* Routing [2 top_k] with the weights before their factors, which are also written to `weights`, and
 * the gradients of these weights. */
static void without_factors(float *routing, float *dweight, float *weights, const nib_route_dx *a,
                            int64_t m)
{
    const nib_routing *rule = a->rule;
    const float *given = a->dweight + m * rule->top_k;
    float scores[NIB_EXPERTS_MAX];
    int64_t chosen[NIB_TOP_K_MAX];
    score_experts(scores, a->logits + m * a->ldx, rule);
    for (int64_t j = 0; j < rule->top_k; j++) {
        routing[j] = a->routing[m * a->ldr + j];
        chosen[j] = (int64_t)routing[j];
        dweight[j] = given[j] * a->weight_scales[chosen[j]];
    }
    weigh_experts(weights, chosen, scores, NULL, rule);
    memcpy(routing + rule->top_k, weights, (size_t)rule->top_k * sizeof *weights);
}

void NIB_EXPERTS(route_dx)(const nib_route_dx *a, int64_t m0, int64_t m1)
{
    const nib_routing *rule = a->rule;
    for (int64_t m = m0; m < m1; m++) {
        const float *logits = a->logits + m * a->ldx, *routing = a->routing + m * a->ldr,
                    *dweight = a->dweight + m * rule->top_k;
        float *dx = a->dx + m * a->lddx;
        float scores[NIB_EXPERTS_MAX], own[2 * NIB_TOP_K_MAX], down[NIB_TOP_K_MAX];
        const bool plain = rule->score == NIB_SCORE_SOFTMAX && !rule->normalize,
                   sigmoid = is_sigmoid(rule);
        memset(dx, 0, (size_t)rule->experts * sizeof *dx);
        if (a->weight_scales != NULL) {
            without_factors(own, down, a->weights + m * rule->top_k, a, m);
            routing = own, dweight = down;
        }
        if (sigmoid)
            sigmoid_row(scores, logits, rule->experts);
        else if (plain || a->load != NULL)
            softmax_row(scores, logits, rule->experts);
        if (sigmoid)
            sigmoid_dx(dx, rule, scores, routing, dweight);
        else if (plain)
            softmax_dx(dx, rule, scores, routing, dweight);
        else
            chosen_dx(dx, rule, routing, dweight);
        if (a->load != NULL)
            balance_dx(dx, scores, a->load + m / a->sequence * rule->experts, a->balance, rule);
    }
}

/* Counts the experts of a token for the load-balancing loss. */
static void count_experts(float *counts, const nib_route_sums *a, const float *scores, int64_t m)
{
    const nib_routing *rule = a->rule;
    float choice[NIB_EXPERTS_MAX];
    int64_t chosen[NIB_TOP_K_MAX];
    for (int64_t j = 0; j < rule->top_k; j++)
        chosen[j] = (int64_t)a->routing[m * a->ldr + j];
    if (is_sigmoid(rule) && find_not_finite(a->logits + m * a->ldx, rule->experts) < 0) {
        nib_routing largest = *rule;
        largest.groups = 1;
        memcpy(choice, scores, (size_t)rule->experts * sizeof *choice);
        choose_experts(chosen, choice, &largest);
    }
    for (int64_t j = 0; j < rule->top_k; j++)
        counts[chosen[j]] += 1.0f;
}

void NIB_EXPERTS(route_sums)(const nib_route_sums *a, int64_t block0, int64_t block1)
{
    const int64_t experts = a->rule->experts, each = nib__ceil_div(a->sequence, NIB_TRAIN_ROWS);
    float scores[NIB_EXPERTS_MAX], own[NIB_EXPERTS_MAX];
    for (int64_t block = block0; block < block1; block++) {
        float *out = a->out + block * experts,
              *counts = a->counts != NULL ? a->counts + block * experts : NULL;
        const int64_t first = block / each * a->sequence + block % each * NIB_TRAIN_ROWS,
                      end = nib__min((block / each + 1) * a->sequence, first + NIB_TRAIN_ROWS);
        memset(out, 0, (size_t)experts * sizeof *out);
        if (counts != NULL)
            memset(counts, 0, (size_t)experts * sizeof *counts);
        for (int64_t m = first; m < end; m++) {
            if (is_sigmoid(a->rule))
                sigmoid_row(scores, a->logits + m * a->ldx, experts);
            else
                softmax_row(scores, a->logits + m * a->ldx, experts);
            if (counts != NULL)
                count_experts(counts, a, scores, m);
            const float *shares = share_scores(own, scores, a->rule);
            for (int64_t e = 0; e < experts; e += NIB_LANES)
                nib__lanes_store_at(out, e, experts,
                                    nib__lanes_add(nib__lanes_load_at(out, e, experts),
                                                   nib__lanes_load_at(shares, e, experts)));
        }
    }
}

/* ---- combine ---- */

void NIB_EXPERTS(combine_dw)(const nib_combine_dw *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++)
        for (int64_t j = 0; j < a->top_k; j++) {
            const float *dy = a->dy + m * a->ldy, *y = a->y + a->row[m * a->top_k + j] * a->width;
            nib_lanes sum = nib__lanes_set(0.0f);
            for (int64_t i = 0; i < a->width; i += NIB_LANES)
                sum = nib__lanes_fma(nib__lanes_load_at(dy, i, a->width),
                                     nib__lanes_load_at(y, i, a->width), sum);
            a->dweight[m * a->top_k + j] = nib__lanes_sum(sum);
        }
}
