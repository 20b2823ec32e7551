/* SPDX-License-Identifier: Apache-2.0
 *
 * The exact solver of mixed precision: a multiple-choice knapsack by dynamic programming over sums
 * of weights and costs. Layers of one shape have equal weights, so few sums differ.
 */
#include "mixed.h"

#include <math.h>
#include <stdlib.h>

/* What a mixture of the first units adds up to. */
typedef struct state {
    uint64_t weight;
    double cost;
    uint32_t parent, option; /* index in the list of the unit before; of the last unit */
} state;

typedef struct solver {
    const nib_mixed_problem *problem;
    const nib_allocator *allocator;
    double multiplier; /* cost per weight */
    double limit;      /* cost of a mixture that keeps to the budget */
    double *rest;      /* [units + 1] least cost + multiplier * weight of units from here on */
    uint64_t *least;   /* [units + 1] least weight of them */
    state **lists;     /* [units] states after each unit */
    size_t *counts;    /* [units] */
} solver;

static const nib_mixed_option *option_of(const nib_mixed_problem *p, size_t unit, size_t option)
{
    return &p->table[unit * p->options + option];
}

nib_mixed_reach nib__mixed_reach(const nib_mixed_problem *p)
{
    nib_mixed_reach r = {0};
    uint64_t step = UINT64_MAX;
    for (size_t u = 0; u < p->units; u++) {
        uint64_t least = UINT64_MAX, most = 0;
        for (size_t o = 0; o < p->options; o++) {
            const uint64_t w = option_of(p, u, o)->weight;
            if (w == UINT64_MAX)
                continue;
            least = w < least ? w : least;
            most = w > most ? w : most;
        }
        for (size_t o = 0; o < p->options; o++) {
            const uint64_t w = option_of(p, u, o)->weight;
            if (w != UINT64_MAX && w > least && w - least < step)
                step = w - least;
        }
        r.least += least;
        r.most += most;
    }
    r.next = step == UINT64_MAX ? r.least : r.least + step;
    return r;
}

/* The option of a unit with the least cost + multiplier * weight, and of equals the lightest. */
static size_t choose_option(const nib_mixed_problem *p, size_t unit, double multiplier)
{
    size_t best = SIZE_MAX;
    double best_sum = INFINITY;
    for (size_t o = 0; o < p->options; o++) {
        const nib_mixed_option *option = option_of(p, unit, o);
        if (option->weight == UINT64_MAX)
            continue;
        const double sum = option->cost + multiplier * (double)option->weight;
        if (best == SIZE_MAX || sum < best_sum ||
            (sum == best_sum && option->weight < option_of(p, unit, best)->weight)) {
            best = o;
            best_sum = sum;
        }
    }
    return best;
}

/* The weight and cost of the mixture that a multiplier chooses. */
static state mixture_of(const nib_mixed_problem *p, double multiplier)
{
    state s = {0};
    for (size_t u = 0; u < p->units; u++) {
        const nib_mixed_option *o = option_of(p, u, choose_option(p, u, multiplier));
        s.weight += o->weight;
        s.cost += o->cost;
    }
    return s;
}

/* The least multiplier, by halving, whose mixture keeps to the budget. False: none was found, and
 * nothing is bounded. */
static bool find_multiplier(solver *s)
{
    const nib_mixed_problem *p = s->problem;
    double low = 0, high = 1e-30;
    for (int i = 0; i < 400 && mixture_of(p, high).weight > p->budget; i++)
        low = high, high *= 2;
    state best = mixture_of(p, high);
    if (best.weight > p->budget)
        return false;
    for (int i = 0; i < 60; i++) {
        const double middle = low + (high - low) / 2;
        const state tried = mixture_of(p, middle);
        if (tried.weight > p->budget) {
            low = middle;
        } else {
            high = middle;
            best = tried;
        }
    }
    s->multiplier = high;
    s->limit = best.cost;
    return true;
}

static void fill_rest(solver *s)
{
    const nib_mixed_problem *p = s->problem;
    for (size_t u = p->units; u-- > 0;) {
        const nib_mixed_option *o = option_of(p, u, choose_option(p, u, s->multiplier));
        uint64_t least = UINT64_MAX;
        for (size_t i = 0; i < p->options; i++)
            if (option_of(p, u, i)->weight < least)
                least = option_of(p, u, i)->weight;
        s->least[u] = s->least[u + 1] + least;
        s->rest[u] = s->rest[u + 1] + o->cost + s->multiplier * (double)o->weight;
    }
}

/* Whether units from `unit` on can still complete a state to the best mixture. The slack covers
 * the rounding of sums. */
static bool may_win(const solver *s, const state *at, size_t unit)
{
    const uint64_t budget = s->problem->budget;
    if (at->weight > budget || budget - at->weight < s->least[unit])
        return false;
    const double left = s->multiplier * (double)(budget - at->weight);
    const double bound = at->cost + s->rest[unit] - left;
    return bound <= s->limit + 1e-9 * (s->limit + at->cost + s->rest[unit] + left);
}

static int by_weight(const void *a, const void *b)
{
    const state *x = a, *y = b;
    if (x->weight != y->weight)
        return x->weight < y->weight ? -1 : 1;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    if (x->parent != y->parent)
        return x->parent < y->parent ? -1 : 1;
    return x->option < y->option ? -1 : x->option > y->option;
}

/* Sorts, and keeps the states that cost less than every lighter one. */
static size_t keep_best(state *list, size_t count)
{
    size_t kept = 0;
    qsort(list, count, sizeof *list, by_weight);
    for (size_t i = 0; i < count; i++)
        if (kept == 0 || list[i].cost < list[kept - 1].cost)
            list[kept++] = list[i];
    return kept;
}

static nib_status add_unit(solver *s, size_t unit, nib_err *err)
{
    const nib_mixed_problem *p = s->problem;
    const state start = {0};
    const state *from = unit == 0 ? &start : s->lists[unit - 1];
    const size_t from_count = unit == 0 ? 1 : s->counts[unit - 1];
    const uint64_t most = (uint64_t)from_count * p->options;
    state *list = most <= UINT32_MAX ? nib__calloc(s->allocator, most, sizeof *list) : NULL;
    size_t count = 0;
    if (!list)
        return nib__fail_memory(err, most * sizeof *list, "mixtures");
    for (size_t i = 0; i < from_count; i++)
        for (size_t o = 0; o < p->options; o++) {
            const nib_mixed_option *option = option_of(p, unit, o);
            if (option->weight == UINT64_MAX)
                continue;
            list[count] = (state){.weight = from[i].weight + option->weight,
                                  .cost = from[i].cost + option->cost,
                                  .parent = (uint32_t)i,
                                  .option = (uint32_t)o};
            count += may_win(s, &list[count], unit + 1);
        }
    s->counts[unit] = keep_best(list, count);
    s->lists[unit] = list;
    return NIB_OK;
}

static nib_status solve(solver *s, size_t *chosen, nib_err *err)
{
    const nib_mixed_problem *p = s->problem;
    for (size_t u = 0; u < p->units; u++)
        NIB_TRY(add_unit(s, u, err));
    size_t at = p->units > 0 ? s->counts[p->units - 1] - 1 : 0; /* the heaviest costs least */
    for (size_t u = p->units; u-- > 0;) {
        chosen[u] = s->lists[u][at].option;
        at = s->lists[u][at].parent;
    }
    return NIB_OK;
}

nib_status nib__mixed_solve(size_t *chosen, const nib_mixed_problem *p, const nib_allocator *a,
                            nib_err *err)
{
    solver s = {.problem = p, .allocator = a, .limit = INFINITY};
    nib_arena arena;
    const uint64_t least = nib__mixed_reach(p).least;
    if (least > p->budget)
        return nib__fail(err, NIB_UNSUPPORTED, "the least weight, %llu, is over the budget, %llu",
                         (unsigned long long)least, (unsigned long long)p->budget);
    nib__arena_init(&arena, a, 0);
    s.rest = nib__arena_take(&arena, p->units + 1, sizeof *s.rest);
    s.least = nib__arena_take(&arena, p->units + 1, sizeof *s.least);
    s.lists = nib__arena_take(&arena, p->units + 1, sizeof *s.lists);
    s.counts = nib__arena_take(&arena, p->units + 1, sizeof *s.counts);
    nib_status status = NIB_OK;
    if (!s.rest || !s.least || !s.lists || !s.counts) {
        status = nib__fail_memory(err, (p->units + 1) * sizeof *s.lists, "mixtures");
    } else {
        if (!find_multiplier(&s))
            s.multiplier = 0;
        fill_rest(&s);
        status = solve(&s, chosen, err);
        for (size_t u = 0; u < p->units; u++)
            nib__release(a, s.lists[u]);
    }
    nib__arena_free(&arena);
    return status;
}
