/* SPDX-License-Identifier: Apache-2.0
 *
 * The frontier of cost, time and memory, and what to take from it.
 */
#include "advise.h"

#include <math.h>

/* Positive: a is better; 0: they are equal. */
static int better(double a, double b, double equal)
{
    if (isnan(a) || isnan(b))
        return (isnan(b) != 0) - (isnan(a) != 0);
    if (a * (1 + equal) < b)
        return 1;
    return b * (1 + equal) < a ? -1 : 0;
}

/* a is no worse in anything and better in something. No circle comes of times that are nearly
 * equal: all in it would have the same cost and bytes, and each a clearly shorter time. */
static bool outdoes(const nib_merit *a, const nib_merit *b)
{
    const int cost = better(a->cost, b->cost, 0), bytes = better(a->bytes, b->bytes, 0),
              time = better(a->seconds, b->seconds, NIB_EQUAL_TIMES);
    return a->counts && cost >= 0 && bytes >= 0 && time >= 0 && (cost | bytes | time) != 0;
}

void nib__frontier(int *behind, const nib_merit *merits, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        behind[i] = NIB_BEHIND_NONE;
        for (size_t j = 0; merits[i].counts && j < count; j++)
            if (behind[i] == NIB_BEHIND_NONE && outdoes(&merits[j], &merits[i]))
                behind[i] = (int)j;
    }
    for (size_t i = 0; i < count; i++) /* rather one that is itself on the frontier */
        for (size_t j = 0; behind[i] != NIB_BEHIND_NONE && j < count; j++)
            if (behind[behind[i]] != NIB_BEHIND_NONE && behind[j] == NIB_BEHIND_NONE &&
                outdoes(&merits[j], &merits[i]))
                behind[i] = (int)j;
}

int nib__frontier_take(bool *within, const nib_merit *merits, size_t count, double most_cost)
{
    double fastest = NAN;
    int best = -1;
    *within = false;
    for (size_t i = 0; i < count; i++)
        if (merits[i].counts && merits[i].cost <= most_cost) {
            *within = true;
            fastest = fmin(fastest, merits[i].seconds);
        }
    for (size_t i = 0; i < count; i++) {
        const nib_merit *m = &merits[i];
        const bool among =
            !*within || (m->cost <= most_cost && better(fastest, m->seconds, NIB_EQUAL_TIMES) <= 0);
        if (!m->counts || !among)
            continue;
        const int cheaper = best < 0 ? 1 : better(m->cost, merits[best].cost, 0);
        if (cheaper > 0 || (cheaper == 0 && better(m->bytes, merits[best].bytes, 0) > 0))
            best = (int)i;
    }
    return best;
}
