/* SPDX-License-Identifier: Apache-2.0
 *
 * A mixture of experts in a micro-batch: which rows each expert has (step_mixture.c), and the
 * products of the experts with their rows (step_experts.c). An expert's product is that of a linear
 * layer with as many tokens as chose the expert. Heads with weights of their own are like experts
 * that every token chooses, whose rows lie in columns.
 */
#ifndef NIB_STEP_EXPERTS_H
#define NIB_STEP_EXPERTS_H

#include "step.h"

/* Bytes of the sorted list of a layer's rows, and where its parts lie. Tokens count from the start
 * of the micro-batch. */
uint64_t nib__step_order_bytes(const nib_step *step, const nib_routing *rule);
nib_expert_rows nib__step_order(const nib_step *step, int buffer, const nib_routing *rule);

/* Whether the operation runs on the rows of experts or heads, with the weights of all of them. */
NIB_INLINE bool nib__step_of_experts(const nib_graph_node *of)
{
    return of != NULL && (of->op == NIB_OP_LINEAR_EXPERTS || of->op == NIB_OP_LINEAR_HEADS);
}
/* How many experts or heads such an operation has, and how many rows a token has there. */
NIB_INLINE int64_t nib__step_expert_count(const nib_graph_node *of)
{
    return of->routing != NULL ? of->routing->experts : of->heads;
}
NIB_INLINE int64_t nib__step_expert_share(const nib_graph_node *of)
{
    return of->routing != NULL ? of->routing->top_k : of->heads;
}
/* The site of expert e of such an operation, given that of the first. */
size_t nib__step_expert_site(const nib_network *net, const nib_graph_node *of, int64_t e);

/* Allocates what all mixtures and heads of the step share, and enlarges the regions of the CPU. */
nib_status nib__step_experts_open(nib_step *step, nib_err *err);
/* Bytes of the packed inputs of the experts' layers with this first site. */
uint64_t nib__step_experts_packed_bytes(const nib_step *step, const nib_graph_node *of);
/* Bytes of a worker's scratch for sums. */
uint64_t nib__step_experts_scratch(const nib_step *step);

/* Runs an operation for which nib__step_of_experts holds. */
void nib__step_experts(nib_step *step, const nib_train_node *n);

/* Operations of step_mixture.c. A token whose logits are not finite gets experts 0 to top_k - 1
 * with weights of NaN, so that the loss shows it. */
void nib__step_route(nib_step *step, const nib_train_node *n);
void nib__step_dispatch(nib_step *step, const nib_train_node *n);
void nib__step_combine(nib_step *step, const nib_train_node *n);
void nib__step_route_dx(nib_step *step, const nib_train_node *n);
void nib__step_route_dw(nib_step *step, const nib_train_node *n);
void nib__step_combine_dw(nib_step *step, const nib_train_node *n);
void nib__step_route_sums(nib_step *step, const nib_train_node *n);
void nib__step_balance(nib_step *step, const nib_train_node *n);

#endif
