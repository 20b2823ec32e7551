/* SPDX-License-Identifier: Apache-2.0
 *
 * The operations around a mixture's experts: the choice, the order of the rows, the sums of rows,
 * their gradients, and the load-balancing loss.
 */
#include "step_experts.h"

#include <math.h>

static float *rows(const nib_step *s, int buffer) { return nib__step_rows(s, buffer); }
static int64_t ld(const nib_step *s, int buffer) { return nib__step_ld(s, buffer); }

/* ---- the order of the rows ---- */

static uint64_t aligned(uint64_t bytes) { return (bytes + 63) & ~UINT64_C(63); }

static uint64_t lay_out_order(nib_expert_rows *out, const nib_routing *rule, int64_t m, char *at)
{
    const uint64_t first = aligned((uint64_t)(rule->experts + 1) * sizeof *out->first),
                   each = aligned((uint64_t)(m * rule->top_k) * sizeof *out->token);
    if (at != NULL)
        *out = (nib_expert_rows){.first = (int32_t *)(void *)at,
                                 .token = (int32_t *)(void *)(at + first),
                                 .expert = (int32_t *)(void *)(at + first + each),
                                 .weight = (float *)(void *)(at + first + 2 * each),
                                 .row = (int32_t *)(void *)(at + first + 3 * each)};
    return first + 4 * each;
}

uint64_t nib__step_order_bytes(const nib_step *s, const nib_routing *rule)
{
    return lay_out_order(NULL, rule, s->m, NULL);
}

nib_expert_rows nib__step_order(const nib_step *s, int buffer, const nib_routing *rule)
{
    nib_expert_rows order;
    lay_out_order(&order, rule, s->m, nib__step_at(s, buffer));
    return order;
}

/* ---- forward ---- */

/* The vector of a router: a bias that only chooses, or factors of the weights; or NULL. */
static const float *router_vector(const nib_step *s, const nib_train_node *n, bool factors)
{
    const bool has = n->param != SIZE_MAX && n->of->routing->weight_scales == factors;
    return has ? s->weights + s->params->items[n->param].at : NULL;
}

void nib__step_route(nib_step *s, const nib_train_node *n)
{
    const nib_routing *rule = n->of->routing;
    const int64_t top_k = rule->top_k;
    const nib_route_tokens a = {.rule = rule,
                                .logits = rows(s, n->in[0]),
                                .bias = router_vector(s, n, false),
                                .weight_scales = router_vector(s, n, true),
                                .out = rows(s, n->out[0]),
                                .m = s->m,
                                .ldx = ld(s, n->in[0]),
                                .ldo = ld(s, n->out[0])};
    nib__step_run_tokens(s, n->row, &a, 1);
    for (int64_t i = s->rows.is_part ? s->rows.first : 0,
                 end = s->rows.is_part ? s->rows.end : s->m;
         i < end; i++) {
        float *out = a.out + i * a.ldo;
        for (int64_t j = 0; out[0] < 0.0f && j < top_k; j++)
            out[top_k - 1 - j] = (float)(top_k - 1 - j), out[top_k + j] = NAN;
    }
}

/* Forward: sorts the rows, and counts them. */
static void order_rows(nib_step *s, const nib_train_node *n)
{
    const nib_routing *rule = n->of->routing;
    const nib_expert_rows o = nib__step_order(s, n->out[1], rule);
    int32_t failed; /* never set: nib__step_route makes such choices NaN */
    const nib_sort_rows a = {.rule = rule,
                             .choice = rows(s, n->in[1]),
                             .m = s->m,
                             .ldc = ld(s, n->in[1]),
                             .to = o,
                             .failed = &failed};
    nib__plan_operation(s->plan, NIB_OP_SORT)->row->run.sort(&a);
    if (s->gradients == NULL)
        return;
    float *counts =
        nib__load_counts(&s->params->load, s->gradients, s->params->load.mixture[n->layer]);
    for (int64_t e = 0; e < rule->experts; e++)
        counts[e] = (float)(o.first[e + 1] - o.first[e]);
}

/* Also the gradient of COMBINE, which has another input and an order made before. */
void nib__step_dispatch(nib_step *s, const nib_train_node *n)
{
    const nib_routing *rule = n->of->routing;
    const bool is_forward = n->of->op == NIB_OP_DISPATCH;
    if (is_forward)
        order_rows(s, n);
    const nib_expert_rows o = nib__step_order(s, is_forward ? n->out[1] : n->in[2], rule);
    const nib_dispatch a = {.x = rows(s, n->in[0]),
                            .token = o.token,
                            .weight = rule->on_input == is_forward ? o.weight : NULL,
                            .out = rows(s, n->out[0]),
                            .rows = s->m * rule->top_k,
                            .width = ld(s, n->out[0]) / rule->top_k,
                            .ldx = ld(s, n->in[0])};
    nib__step_run_parts(s, n->row, &a, a.rows, 1);
}

/* Also the gradient of DISPATCH. */
void nib__step_combine(nib_step *s, const nib_train_node *n)
{
    const nib_routing *rule = n->of->routing;
    const bool weighs = rule->on_input != (n->of->op == NIB_OP_COMBINE);
    const nib_combine a = {.y = rows(s, n->in[0]),
                           .row = nib__step_order(s, n->in[2], rule).row,
                           .weight = weighs ? rows(s, n->in[1]) + rule->top_k : NULL,
                           .out = rows(s, n->out[0]),
                           .m = s->m,
                           .top_k = rule->top_k,
                           .width = ld(s, n->in[0]) / rule->top_k,
                           .ldw = weighs ? ld(s, n->in[1]) : 0,
                           .ldo = ld(s, n->out[0])};
    nib__step_run_tokens(s, n->row, &a, 1);
}

/* ---- gradients ---- */

/* The gradient of the mean of the micro-batches' losses, as of the cross-entropy: times `scale`
 * times the tokens of the micro-batch, of which the loss is a mean over layers and tokens. */
static float balance_factor(const nib_step *s, const nib_routing *rule)
{
    return (float)((double)rule->balance * (double)rule->experts / (double)s->params->load.layers *
                   (double)s->scale);
}

void nib__step_route_dx(nib_step *s, const nib_train_node *n)
{
    const nib_routing *rule = n->of->routing;
    const nib_route_dx a = {.rule = rule,
                            .dweight = rows(s, n->in[0]),
                            .logits = rows(s, n->in[1]),
                            .routing = rows(s, n->in[2]),
                            .dx = rows(s, n->out[0]),
                            .m = s->m,
                            .ldx = ld(s, n->in[1]),
                            .ldr = ld(s, n->in[2]),
                            .lddx = ld(s, n->out[0]),
                            .load = rule->balance > 0 ? s->experts.load : NULL,
                            .balance = balance_factor(s, rule),
                            .weight_scales = router_vector(s, n, true),
                            .weights = n->out[1] >= 0 ? rows(s, n->out[1]) : NULL};
    nib__step_run_tokens(s, n->row, &a, 1);
}

void nib__step_route_dw(nib_step *s, const nib_train_node *n)
{
    const nib_routing *rule = n->of->routing;
    const nib_route_dw a = {.dweight = rows(s, n->in[0]),
                            .routing = rows(s, n->in[1]),
                            .weights = rows(s, n->in[2]),
                            .dw = s->gradients + s->params->items[n->param].at,
                            .m = s->m,
                            .top_k = rule->top_k,
                            .ldr = ld(s, n->in[1])};
    nib__step_run_parts(s, n->row, &a, rule->experts, 1);
}

void nib__step_combine_dw(nib_step *s, const nib_train_node *n)
{
    const nib_routing *rule = n->of->routing;
    const nib_combine_dw a = {.dy = rows(s, n->in[0]),
                              .y = rows(s, n->in[1]),
                              .row = nib__step_order(s, n->in[2], rule).row,
                              .dweight = rows(s, n->out[0]),
                              .m = s->m,
                              .top_k = rule->top_k,
                              .width = ld(s, n->in[0]),
                              .ldy = ld(s, n->in[0])};
    nib__step_run_parts(s, n->row, &a, s->m, 1);
}

/* ---- the load-balancing loss ---- */

void nib__step_route_sums(nib_step *s, const nib_train_node *n)
{
    const nib_load *load = &s->params->load;
    const int64_t blocks = nib__ceil_div(s->m, NIB_TRAIN_ROWS);
    const nib_route_sums a = {.logits = rows(s, n->in[0]),
                              .m = s->m,
                              .ldx = ld(s, n->in[0]),
                              .experts = n->of->routing->experts,
                              .out = s->experts.sums};
    if (s->gradients == NULL)
        return;
    nib__step_run_parts(s, n->row, &a, blocks, 1);
    float *to = nib__load_sums(load, s->gradients, load->mixture[n->layer]);
    for (int64_t e = 0; e < a.experts; e++) {
        to[e] = a.out[e];
        for (int64_t b = 1; b < blocks; b++)
            to[e] += a.out[b * a.experts + e];
    }
}

void nib__step_balance(nib_step *s, const nib_train_node *n)
{
    const nib_load *load = &s->params->load;
    if (s->gradients == NULL)
        return;
    const nib_balance a = {.counts = nib__load_counts(load, s->gradients, 0),
                           .sums = nib__load_sums(load, s->gradients, 0),
                           .layers = load->layers,
                           .experts = load->experts,
                           .tokens = load->layers * s->m,
                           .load = s->experts.load,
                           .loss = nib__load_loss(load, s->gradients)};
    n->row->run.balance(&a);
}
