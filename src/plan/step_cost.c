/* SPDX-License-Identifier: Apache-2.0
 *
 * Predicted time of a whole step of inference: linear layers as cost.c has them, and beside them
 * operations without weights, which read and write a few rows of f32 each, attention, which also
 * multiplies, moves between devices, and what starts and ends a step on another one.
 */
#include "way.h"

#include <math.h>

typedef struct step {
    const nib_layers_plan *plan;
    double tokens, positions;
} step;

/* values: f32 that are read and written for a token */
static double simple_seconds(const step *s, nib_op op, double values)
{
    const nib_op_plan *plan = nib__plan_operation(s->plan, op);
    const nib_machine *m = plan != NULL ? plan->machine : s->plan->machine;
    const double rate = m->cache_bytes_per_s > 0 ? m->cache_bytes_per_s : m->bytes_per_s;
    return s->tokens * values * sizeof(float) / rate + m->launch_s;
}

/* Of a query and one position: a product with a key, one with a value, and an exponential. */
static double attention_seconds(const step *s, double q, double kv)
{
    const double share = 0.25; /* of the f32 rate: what softmax leaves of it */
    const double each = 4, cached = (double)nib__cache_value_bytes(s->plan->cache);
    const nib_op_plan *plan = nib__plan_operation(s->plan, NIB_OP_ATTN);
    const nib_machine *m = plan != NULL ? plan->machine : s->plan->machine;
    const double operations = each * s->tokens * s->positions * q;
    const double bytes = 2 * s->positions * kv * cached;
    return fmax(operations / (share * m->rate[NIB_UNIT_F32]), bytes / m->bytes_per_s) + m->launch_s;
}

static double layer_seconds(const step *s, const nib_layer_plan *sites)
{
    const double width = (double)sites[NIB_SITE_Q].layer->k, q = (double)sites[NIB_SITE_Q].layer->n;
    const double kv = (double)sites[NIB_SITE_K].layer->n,
                 ffn = (double)sites[NIB_SITE_GATE].layer->n;
    return 2 * simple_seconds(s, NIB_OP_NORM, 2 * width) + simple_seconds(s, NIB_OP_ROPE, 2 * q) +
           simple_seconds(s, NIB_OP_ROPE, 2 * kv) + simple_seconds(s, NIB_OP_COPY, 3 * kv) +
           attention_seconds(s, q, kv) + simple_seconds(s, NIB_OP_SWIGLU, 3 * ffn) +
           2 * simple_seconds(s, NIB_OP_ADD, 3 * width);
}

static double linear_seconds(const nib_layer_plan *layer, const nib_policy *policy, int64_t m)
{
    const nib_way way = nib__way_of(layer);
    return nib__way_seconds(&way, layer->layer, policy, m);
}

double nib__plan_step_seconds(const nib_layers_plan *plan, const nib_policy *policy, int64_t m,
                              int64_t outputs, double positions)
{
    const step s = {.plan = plan, .tokens = (double)m, .positions = positions};
    nib_policy own = *policy;
    double sum =
        nib__plan_moves_seconds(plan, policy, m) + (plan->gpu != NULL ? plan->gpu->copy_s : 0);
    if (plan->denied.status != NIB_OK)
        return NAN;
    own.weights = plan->weights;
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->layers[i].denied)
            return NAN;
        const bool is_head = plan->layers[i].layer->role == NIB_ROLE_HEAD;
        if (!is_head || outputs > 0)
            sum += linear_seconds(&plan->layers[i], &own, is_head ? outputs : m);
    }
    for (size_t i = 1; i + NIB_SITE_COUNT < plan->count; i += NIB_SITE_COUNT)
        sum += layer_seconds(&s, &plan->layers[i]);
    return sum;
}

void nib__plan_whole_steps(nib_layers_plan *plan, const nib_policy *policy)
{
    const double token_s = nib__plan_step_seconds(plan, policy, 1, 1, NIB_PREFILL_TOKENS);
    const double prompt_s =
        nib__plan_step_seconds(plan, policy, NIB_PREFILL_TOKENS, 1, NIB_PREFILL_TOKENS / 2.0);
    plan->predicted_token_s = token_s + plan->draw.draw_s;
    plan->predicted_prefill_s = prompt_s;
    for (int i = 0; i < plan->op_count; i++)
        if (plan->ops[i].row == NULL)
            plan->predicted_token_s = plan->predicted_prefill_s = NAN;
    /* all but linear layers is the same in bf16 */
    plan->predicted_bf16_token_s += plan->predicted_token_s - plan->linear_token_s;
    plan->predicted_bf16_prefill_s += plan->predicted_prefill_s - plan->linear_prefill_s;
}
