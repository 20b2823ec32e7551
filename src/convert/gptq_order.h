/* SPDX-License-Identifier: Apache-2.0
 *
 * The order in which the methods gptq and qronos code the inputs of a weight.
 */
#ifndef NIB_GPTQ_ORDER_H
#define NIB_GPTQ_ORDER_H

#include "pool.h"
#include "quant_w.h"

/* By squares: the mean squares of inputs on the text, the largest first, and of equal ones the
 * lower input first. */
typedef enum nib_order_kind {
    NIB_INPUTS_ASCENDING,  /* as stored */
    NIB_INPUTS_BY_GROUP,   /* groups by the mean of their inputs' squares, then inputs in each */
    NIB_INPUTS_ONE_BY_ONE, /* all inputs; scales are chosen before */
    NIB_INPUTS_ORDERS
} nib_order_kind;
extern const char *const nib__order_names[NIB_INPUTS_ORDERS];

typedef struct nib_order_rule {
    nib_order_kind kind;
    int64_t group; /* inputs that share a scale */
} nib_order_rule;

/* The rule of a scheme: what removed most of rounding's divergence on the models of
 * docs/quantization.md, which says how much. Powers of two are best chosen when a group's turn
 * comes, so its inputs stay together; integers gain more from an order that is free of groups, and
 * NVFP4 loses by any. Scales of super-blocks are chosen for all their groups at once, so before.
 * ascending: as programs did whose receipts name no order, which coded no super-blocks. */
nib_order_rule nib__order_of(const nib_scheme *scheme, int64_t k, bool ascending);
/* Whether scales are chosen before the first input is coded. */
bool nib__order_has_scales_first(nib_order_rule rule, int64_t k);

/* One input's rank: by the mean of its group's squares, its group, its own squares, itself. */
typedef struct nib_ranked {
    double squares, own;
    int64_t group, input;
} nib_ranked;
/* Sets order [k], the input that comes first, second, ... squares: [k]; room: [k]. */
void nib__order_inputs(int64_t *order, nib_order_rule rule, const double *squares, int64_t k,
                       nib_ranked *room);

/* Moves rows and columns of the symmetric h [k][k]: new row i is old row from[i]. room: k doubles,
 * and k for each thread; visited: [k]. */
void nib__order_moments(double *h, const int64_t *from, int64_t k, double *room, bool *visited,
                        nib_pool *pool);

#endif
