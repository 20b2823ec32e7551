/* SPDX-License-Identifier: Apache-2.0
 *
 * What types of the KV cache cost a model, as `nibble advise --cache` measured it: kept in a file
 * beside the machine's measurements, and printed by plans.
 */
#ifndef NIB_CACHE_COSTS_H
#define NIB_CACHE_COSTS_H

#include "kv_type.h"

enum { NIB_CACHE_COSTS = 16, NIB_CACHE_COST_TEXT = 96 };

typedef struct nib_cache_cost {
    char name[NIB_KV_NAME]; /* of the types */
    double kl;              /* nats per predicted token, from the cache in the plan's dtype */
} nib_cache_cost;

/* Of one model with one recipe and dtype. */
typedef struct nib_cache_costs {
    char text[NIB_CACHE_COST_TEXT]; /* name of the text */
    char measured_on[16];           /* date */
    int64_t predicted;              /* tokens */
    nib_cache_cost items[NIB_CACHE_COSTS];
    size_t count;
} nib_cache_costs;

/* Reads what was measured for the plan's model, recipe and dtype. count 0: nothing, or the engine
 * keeps no measurements. */
nib_status nib__cache_costs_find(nib_cache_costs *out, const nib_plan *plan, nib_err *err);
/* Keeps it, in place of what was measured before. Does nothing if the engine keeps none. */
nib_status nib__cache_costs_keep(const nib_cache_costs *costs, const nib_plan *plan, nib_err *err);
/* NULL: the types were not measured. */
const nib_cache_cost *nib__cache_costs_of(const nib_cache_costs *costs, const char *name);

#endif
