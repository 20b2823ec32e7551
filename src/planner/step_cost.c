/* SPDX-License-Identifier: Apache-2.0
 *
 * Predicted time of a whole inference step: linear layers by cost.c; operations without weights,
 * which read and write a few rows of f32 each; attention, which also multiplies; copies between
 * devices; and the start and end of a step on a device.
 */
#include "variant.h"

#include "operation.h"

#include <math.h>

typedef struct step {
    const nib_assignment *plan;
    double tokens, positions;
} step;

static const nib_machine *machine_of(const step *s, nib_op op)
{
    const nib_op_plan *plan = nib__plan_operation(s->plan, op);
    return plan != NULL ? plan->machine : s->plan->machine;
}

/* Bytes of a cached value, of keys and values on average, with heads of a usual width. */
static double cached_bytes(nib_kv_types t)
{
    enum { USUAL = 128 };
    return (double)(nib__cache_bytes(t.keys.type, USUAL, 1) +
                    nib__cache_bytes(t.values.type, USUAL, 1)) /
           (2 * USUAL);
}

/* Per query and position: a product with a key, one with a value, and an exponential. Past the
 * first chunk, a query sees half of its own on average. kv: values cached per position. */
static double attention_seconds(const step *s, double q, double kv, const nib_graph_node *node)
{
    const double window = node->window > 0 ? (double)node->window : s->positions;
    const double positions =
        s->positions <= window ? s->positions : window / (node->chunked ? 2 : 1);
    const double share = 0.25; /* of the f32 rate, as softmax leaves it */
    const double each = 4, cached = cached_bytes(s->plan->cache);
    const nib_machine *m = machine_of(s, NIB_OP_ATTN);
    const double operations = each * s->tokens * positions * q;
    const double bytes = positions * kv * cached;
    return fmax(operations / (share * m->rate[NIB_UNIT_F32]), bytes / m->bytes_per_s) + m->launch_s;
}

/* Copies the channels of heads that their weights do not read. */
static double rest_seconds(const step *s, const nib_graph_node *node)
{
    const nib_graph *g = s->plan->graph;
    const nib_machine *m = machine_of(s, NIB_OP_GATHER);
    const double rate = m->cache_bytes_per_s > 0 ? m->cache_bytes_per_s : m->bytes_per_s;
    const int64_t rest = g->values[node->in[0]].columns - node->heads * g->weights[node->weight].k;
    const double values = s->tokens * nib__ops[NIB_OP_GATHER].values * (double)rest;
    return rest > 0 ? values * sizeof(float) / rate + m->launch_s : 0;
}

/* Every pass reads and writes the matrices of a sequence; each token then takes five or six
 * operations per value of them. */
static double recurrence_seconds(const step *s, const nib_graph_node *node)
{
    enum { SUMS_DELTA = 6, SUMS_SSM = 5, COPIES = 2 };
    const double sums = node->op == NIB_OP_SSM ? SUMS_SSM : SUMS_DELTA;
    const nib_machine *m = machine_of(s, node->op);
    const double values = (double)nib__matrix_values(&node->matrix);
    return fmax(sums * s->tokens * values / m->rate[NIB_UNIT_F32],
                COPIES * values * sizeof(float) / m->bytes_per_s);
}

/* Values cached per position by the layer whose state the attention at `at` reads. */
static double cached_values(const nib_graph *g, size_t at)
{
    size_t i = at;
    while (g->nodes[i].op != NIB_OP_STORE_KV || g->nodes[i].layer != g->nodes[at].layer)
        i--;
    const double keys = (double)g->values[g->nodes[i].in[0]].columns;
    return keys * (g->nodes[i].in[1] >= 0 ? 2 : 1);
}

/* Everything in the graph except linear layers and lookups. The norm before the head is left out:
 * it takes less than the error of the rates. */
static double other_seconds(const step *s)
{
    const nib_graph *g = s->plan->graph;
    double sum = 0;
    for (size_t i = 0; g != NULL && i < g->node_count; i++) {
        const nib_graph_node *node = &g->nodes[i];
        const double columns = node->in[0] >= 0 ? (double)g->values[node->in[0]].columns : 0;
        const double widest =
            node->op == NIB_OP_DISPATCH ? (double)g->values[node->out].columns : columns;
        const double values = nib__ops[node->op].values * widest;
        const nib_machine *m = machine_of(s, node->op);
        const double rate = m->cache_bytes_per_s > 0 ? m->cache_bytes_per_s : m->bytes_per_s;
        if (values > 0 && (node->op != NIB_OP_NORM || node->layer >= 0))
            sum += s->tokens * values * sizeof(float) / rate + m->launch_s;
        if (node->op == NIB_OP_ROUTE) /* what it lists is a few bytes per expert and token */
            sum += machine_of(s, NIB_OP_SORT)->launch_s;
        if (node->op == NIB_OP_LINEAR_HEADS)
            sum += rest_seconds(s, node);
        if (node->op == NIB_OP_GATED_DELTA || node->op == NIB_OP_SSM)
            sum += recurrence_seconds(s, node);
        if (node->op == NIB_OP_ATTN)
            sum += attention_seconds(s, columns, cached_values(g, i), node);
    }
    return sum;
}

static double linear_seconds(const nib_layer_plan *layer, const nib_policy *policy, int64_t m)
{
    const nib_variant variant = nib__variant_of(layer);
    return nib__variant_seconds(&variant, layer->layer, policy, m);
}

double nib__plan_step_seconds(const nib_assignment *plan, const nib_policy *policy, int64_t m,
                              int64_t outputs, double positions)
{
    const step s = {.plan = plan, .tokens = (double)m, .positions = positions};
    nib_policy copy = *policy;
    double sum =
        nib__plan_moves_seconds(plan, policy, m) + (plan->gpu != NULL ? plan->gpu->copy_s : 0);
    if (plan->denied.status != NIB_OK)
        return NAN;
    copy.weights = plan->weights;
    for (size_t i = 0; i < plan->count; i++) {
        if (plan->layers[i].denied)
            return NAN;
        const bool is_head = plan->layers[i].layer->role == NIB_ROLE_HEAD;
        if (!is_head || outputs > 0)
            sum += linear_seconds(&plan->layers[i], &copy, is_head ? outputs : m);
    }
    sum += other_seconds(&s);
    return sum;
}

int nib__plan_positions(int64_t out[NIB_PLAN_POSITIONS], int64_t context)
{
    static const int64_t listed[] = {0, 4096, 16384, 65536};
    int count = 0;
    for (size_t i = 0; i < COUNT(listed); i++)
        if (listed[i] < context - 1)
            out[count++] = listed[i];
    out[count++] = context - 1;
    return count;
}

void nib__plan_whole_steps(nib_assignment *plan, const nib_policy *policy)
{
    const double token_s = nib__plan_step_seconds(plan, policy, 1, 1, NIB_PREFILL_TOKENS);
    const double prompt_s =
        nib__plan_step_seconds(plan, policy, NIB_PREFILL_TOKENS, 1, NIB_PREFILL_TOKENS / 2.0);
    plan->predicted_token_s = token_s + plan->draw.draw_s;
    plan->predicted_prefill_s = prompt_s;
    for (int i = 0; i < plan->op_count; i++)
        if (plan->ops[i].row == NULL)
            plan->predicted_token_s = plan->predicted_prefill_s = NAN;
    /* everything but linear layers takes the same time in bf16 */
    plan->predicted_bf16_token_s += plan->predicted_token_s - plan->linear_token_s;
    plan->predicted_bf16_prefill_s += plan->predicted_prefill_s - plan->linear_prefill_s;
}
