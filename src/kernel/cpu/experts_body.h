/* SPDX-License-Identifier: Apache-2.0
 *
 * The code of route and combine, written once on lanes and compiled per instruction set. Each
 * including file names its functions through NIB_EXPERTS(name).
 */
#include "lanes.h"
#include "ops.h"

#include <math.h>

/* ---- route ---- */

/* The first logit of a row that is not finite; -1: none. */
static int64_t find_not_finite(const float *x, int64_t count)
{
    nib_lanes wrong = nib__lanes_set(0.0f); /* NaN if some logit is not finite */
    for (int64_t i = 0; i < count; i += NIB_LANES)
        wrong = nib__lanes_fma(nib__lanes_load_at(x, i, count), nib__lanes_set(0.0f), wrong);
    if (nib__lanes_sum(wrong) == 0.0f)
        return -1;
    int64_t first = 0;
    while (isfinite(x[first]))
        first++;
    return first;
}

/* scores = softmax(x), summed in lanes */
static void softmax_row(float *scores, const float *x, int64_t count)
{
    nib_lanes sum = nib__lanes_set(0.0f);
    float most = x[0];
    for (int64_t i = 1; i < count; i++)
        most = x[i] > most ? x[i] : most;
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        nib_lanes e =
            nib__lanes_exp(nib__lanes_sub(nib__lanes_load_at(x, i, count), nib__lanes_set(most)));
        if (i + NIB_LANES > count)
            e = nib__lanes_keep_first(e, count - i);
        sum = nib__lanes_add(sum, e);
        nib__lanes_store_at(scores, i, count, e);
    }
    const nib_lanes all = nib__lanes_set(nib__lanes_sum(sum));
    for (int64_t i = 0; i < count; i += NIB_LANES)
        nib__lanes_store_at(scores, i, count,
                            nib__lanes_div(nib__lanes_load_at(scores, i, count), all));
}

/* scores, which may be x, = sigmoid(x) */
static void sigmoid_row(float *scores, const float *x, int64_t count)
{
    const nib_lanes one = nib__lanes_set(1.0f), zero = nib__lanes_set(0.0f);
    for (int64_t i = 0; i < count; i += NIB_LANES) {
        const nib_lanes e = nib__lanes_exp(nib__lanes_sub(zero, nib__lanes_load_at(x, i, count)));
        nib__lanes_store_at(scores, i, count, nib__lanes_div(one, nib__lanes_add(one, e)));
    }
}

/* Index of the largest of choice[begin..end). Taken entries are -INFINITY. */
static int64_t find_largest(const float *choice, int64_t begin, int64_t end)
{
    int64_t best = begin;
    for (int64_t i = begin + 1; i < end; i++)
        if (choice[i] > choice[best])
            best = i;
    return best;
}

/* Takes every expert outside of the best groups out of the choice. */
static void keep_groups(float *choice, const nib_routing *rule)
{
    const int64_t size = rule->experts / rule->groups;
    float score[NIB_EXPERTS_MAX];
    bool keeps[NIB_EXPERTS_MAX] = {false};
    for (int64_t g = 0; g < rule->groups; g++) {
        float *own = choice + g * size;
        const int64_t best = find_largest(own, 0, size);
        score[g] = own[best];
        if (rule->group_pairs && size > 1) {
            own[best] = -INFINITY;
            const float next = own[find_largest(own, 0, size)];
            own[best] = score[g];
            score[g] += next;
        }
    }
    for (int64_t i = 0; i < rule->top_groups; i++) {
        const int64_t best = find_largest(score, 0, rule->groups);
        keeps[best] = true;
        score[best] = -INFINITY;
    }
    for (int64_t g = 0; g < rule->groups; g++)
        for (int64_t i = 0; i < size && !keeps[g]; i++)
            choice[g * size + i] = -INFINITY;
}

/* Lists the top_k experts by choice, ascending by index. Uses up `choice`. */
static void choose_experts(int64_t *chosen, float *choice, const nib_routing *rule)
{
    bool taken[NIB_EXPERTS_MAX] = {false};
    if (rule->groups > 1)
        keep_groups(choice, rule);
    for (int64_t i = 0; i < rule->top_k; i++) {
        const int64_t best = find_largest(choice, 0, rule->experts);
        taken[best] = true;
        choice[best] = -INFINITY;
    }
    for (int64_t i = 0, count = 0; count < rule->top_k; i++)
        if (taken[i])
            chosen[count++] = i;
}

/* The weights of the chosen experts, in their order. */
static void weigh_experts(float *weights, const int64_t *chosen, const float *scores,
                          const float *weight_scales, const nib_routing *rule)
{
    const int64_t top_k = rule->top_k;
    float sum = 0.0f;
    for (int64_t i = 0; i < top_k; i++)
        weights[i] = scores[chosen[i]];
    if (rule->score == NIB_SCORE_CHOSEN)
        softmax_row(weights, weights, top_k);
    else if (rule->score == NIB_SCORE_CHOSEN_SIGMOID)
        sigmoid_row(weights, weights, top_k);
    for (int64_t i = 0; i < top_k; i++)
        sum += weights[i];
    sum += rule->floor;
    for (int64_t i = 0; i < top_k; i++)
        weights[i] = (rule->normalize ? weights[i] / sum : weights[i]) * rule->scale;
    for (int64_t i = 0; i < top_k && weight_scales != NULL; i++)
        weights[i] *= weight_scales[chosen[i]];
}

/* What experts are chosen by, without a bias. */
static void score_experts(float *scores, const float *logits, const nib_routing *rule)
{
    if (rule->score == NIB_SCORE_SOFTMAX)
        softmax_row(scores, logits, rule->experts);
    else if (rule->score == NIB_SCORE_SIGMOID)
        sigmoid_row(scores, logits, rule->experts);
    else
        memcpy(scores, logits, (size_t)rule->experts * sizeof *scores);
}

void NIB_EXPERTS(route)(const nib_route_tokens *a, int64_t m0, int64_t m1)
{
    const nib_routing *rule = a->rule;
    const int64_t experts = rule->experts, top_k = rule->top_k;
    for (int64_t m = m0; m < m1; m++) {
        const float *logits = a->logits + m * a->ldx;
        float *out = a->out + m * a->ldo;
        float scores[NIB_EXPERTS_MAX], choice[NIB_EXPERTS_MAX];
        int64_t chosen[NIB_TOP_K_MAX];
        const int64_t wrong = find_not_finite(logits, experts);
        if (wrong >= 0) {
            out[0] = (float)(-1 - wrong);
            continue;
        }
        score_experts(scores, logits, rule);
        for (int64_t i = 0; i < experts; i++)
            choice[i] = a->bias != NULL ? scores[i] + a->bias[i] : scores[i];
        choose_experts(chosen, choice, rule);
        for (int64_t i = 0; i < top_k; i++)
            out[i] = (float)chosen[i];
        weigh_experts(out + top_k, chosen, scores, a->weight_scales, rule);
    }
}

/* ---- combine ---- */

void NIB_EXPERTS(combine)(const nib_combine *a, int64_t m0, int64_t m1)
{
    for (int64_t m = m0; m < m1; m++) {
        const int32_t *row = a->row + m * a->top_k;
        const float *weight = a->weight != NULL ? a->weight + m * a->ldw : NULL;
        float *out = a->out + m * a->ldo;
        for (int64_t i = 0; i < a->width; i += NIB_LANES) {
            nib_lanes sum = nib__lanes_set(0.0f);
            for (int64_t j = 0; j < a->top_k; j++)
                sum =
                    nib__lanes_fma(nib__lanes_set(weight != NULL ? weight[j] : 1.0f),
                                   nib__lanes_load_at(a->y + row[j] * a->width, i, a->width), sum);
            nib__lanes_store_at(out, i, a->width, sum);
        }
    }
}
