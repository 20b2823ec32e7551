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
 * times the tokens of the micro-batch, of which the loss is a mean over layers and tokens, or over
 * the tokens of its sequences. */
static float balance_factor(const nib_step *s, const nib_routing *rule)
{
    const int64_t parts =
        rule->balance_over == NIB_BALANCE_LAYERS ? s->params->load.layers : rule->top_k;
    return (float)((double)rule->balance * (double)rule->experts / (double)parts *
                   (double)s->scale);
}

/* [sequences][experts] of a layer, of an array [layers][sequences][experts]. */
static float *of_layer(const nib_step *s, float *groups, int64_t mixture)
{
    const bool apart = s->params->load.over != NIB_BALANCE_LAYERS;
    return groups + (apart ? mixture * s->experts.sequences * s->params->load.experts : 0);
}

void nib__step_route_dx(nib_step *s, const nib_train_node *n)
{
    const nib_routing *rule = n->of->routing;
    const nib_load *load = &s->params->load;
    const nib_route_dx a = {
        .rule = rule,
        .dweight = rows(s, n->in[0]),
        .logits = rows(s, n->in[1]),
        .routing = rows(s, n->in[2]),
        .dx = rows(s, n->out[0]),
        .m = s->m,
        .ldx = ld(s, n->in[1]),
        .ldr = ld(s, n->in[2]),
        .lddx = ld(s, n->out[0]),
        .load = rule->balance > 0 ? of_layer(s, s->experts.load, load->mixture[n->layer]) : NULL,
        .sequence = s->experts.sequence,
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

/* to[e] = the sum of `blocks` rows of `from`, ascending */
static void add_blocks(float *to, const float *from, int64_t blocks, int64_t experts)
{
    for (int64_t e = 0; e < experts; e++) {
        to[e] = from[e];
        for (int64_t b = 1; b < blocks; b++)
            to[e] += from[b * experts + e];
    }
}

void nib__step_route_sums(nib_step *s, const nib_train_node *n)
{
    const nib_load *load = &s->params->load;
    const nib_step_mixtures *x = &s->experts;
    const bool apart = load->over != NIB_BALANCE_LAYERS;
    const int64_t mixture = load->mixture[n->layer], experts = n->of->routing->experts,
                  blocks = nib__ceil_div(x->sequence, NIB_TRAIN_ROWS);
    const nib_route_sums a = {.rule = n->of->routing,
                              .logits = rows(s, n->in[0]),
                              .routing = rows(s, n->in[1]),
                              .m = s->m,
                              .ldx = ld(s, n->in[0]),
                              .ldr = ld(s, n->in[1]),
                              .sequence = x->sequence,
                              .out = x->sums,
                              .counts = apart ? x->counts : NULL};
    if (s->gradients == NULL)
        return;
    nib__step_run_parts(s, n->row, &a, x->sequences * blocks, 1);
    if (!apart)
        add_blocks(nib__load_sums(load, s->gradients, mixture), x->sums, blocks, experts);
    for (int64_t i = 0; apart && i < x->sequences; i++) {
        const int64_t to = i * load->experts, from = i * blocks * experts;
        add_blocks(of_layer(s, x->group_sums, mixture) + to, x->sums + from, blocks, experts);
        add_blocks(of_layer(s, x->group_counts, mixture) + to, x->counts + from, blocks, experts);
    }
}

/* The loss of each sequence in each layer: the mean over sequences, added over layers. */
static void balance_sequences(const nib_step *s, const nib_train_node *n)
{
    const nib_load *load = &s->params->load;
    const nib_step_mixtures *x = &s->experts;
    double sum = 0;
    for (int64_t i = 0; i < load->layers * x->sequences; i++) {
        const nib_routing *rule = load->route[i / x->sequences]->routing;
        float loss;
        const nib_balance a = {.counts = x->group_counts + i * load->experts,
                               .sums = x->group_sums + i * load->experts,
                               .layers = 1,
                               .experts = rule->experts,
                               .tokens = x->sequence,
                               .load = x->load + i * load->experts,
                               .loss = &loss};
        n->row->run.balance(&a);
        sum += (double)loss / (double)(rule->top_k * x->sequences);
    }
    *nib__load_loss(load, s->gradients) = (float)sum;
}

void nib__step_balance(nib_step *s, const nib_train_node *n)
{
    const nib_load *load = &s->params->load;
    if (s->gradients == NULL)
        return;
    if (load->over != NIB_BALANCE_LAYERS) {
        balance_sequences(s, n);
        return;
    }
    const nib_balance a = {.counts = nib__load_counts(load, s->gradients, 0),
                           .sums = nib__load_sums(load, s->gradients, 0),
                           .layers = load->layers,
                           .experts = load->experts,
                           .tokens = load->layers * s->m,
                           .load = s->experts.load,
                           .loss = nib__load_loss(load, s->gradients)};
    n->row->run.balance(&a);
}
