/* SPDX-License-Identifier: Apache-2.0
 *
 * src/convert/mixed_solve.c against every mixture of small random problems, and the rule file of
 * mixed_rules.c.
 */
#include "mixed.h"
#include "sample.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>

#include <cmocka.h>

enum { UNITS = 6, OPTIONS = 4, PROBLEMS = 600 };

static nib_allocator allocator;

/* Few distinct numbers, so that mixtures tie; an option in eight cannot be had, never the first. */
static void fill(nib_mixed_option *table, int64_t seed, bool ties)
{
    for (int i = 0; i < UNITS * OPTIONS; i++) {
        const double a = nib__random(seed, 0, i), b = nib__random(seed, 1, i);
        table[i].weight = 1 + (uint64_t)(a * (ties ? 5 : 100000));
        table[i].cost = ties ? floor(b * 5) : b;
        if (i % OPTIONS != 0 && nib__random(seed, 2, i) < 0.125)
            table[i].weight = UINT64_MAX;
    }
}

typedef struct sums {
    uint64_t weight;
    double cost;
    bool ok;
} sums;

static sums add_up(const nib_mixed_option *table, const size_t *chosen)
{
    sums s = {.ok = true};
    for (size_t u = 0; u < UNITS; u++) {
        const nib_mixed_option *o = &table[u * OPTIONS + chosen[u]];
        if (o->weight == UINT64_MAX)
            return (sums){0};
        s.weight += o->weight;
        s.cost += o->cost;
    }
    return s;
}

static void unpack(size_t *chosen, int code)
{
    for (size_t u = 0; u < UNITS; u++, code /= OPTIONS)
        chosen[u] = (size_t)code % OPTIONS;
}

static int mixtures(void)
{
    int count = 1;
    for (int u = 0; u < UNITS; u++)
        count *= OPTIONS;
    return count;
}

/* The least cost within the budget, and its least weight. */
static sums search_all(const nib_mixed_option *table, uint64_t budget, nib_mixed_reach *reach)
{
    sums best = {0};
    *reach = (nib_mixed_reach){.least = UINT64_MAX, .next = UINT64_MAX};
    for (int i = 0; i < mixtures(); i++) {
        size_t chosen[UNITS];
        unpack(chosen, i);
        const sums s = add_up(table, chosen);
        if (!s.ok)
            continue;
        if (s.weight < reach->least)
            reach->next = reach->least, reach->least = s.weight;
        else if (s.weight > reach->least && s.weight < reach->next)
            reach->next = s.weight;
        reach->most = s.weight > reach->most ? s.weight : reach->most;
        if (s.weight <= budget &&
            (!best.ok || s.cost < best.cost || (s.cost == best.cost && s.weight < best.weight)))
            best = s;
    }
    if (reach->next == UINT64_MAX)
        reach->next = reach->least;
    return best;
}

static void check_problem(int64_t seed)
{
    nib_mixed_option table[UNITS * OPTIONS];
    size_t chosen[UNITS];
    nib_mixed_reach wanted_reach;
    nib_err err;
    const bool ties = seed % 2 == 0;
    fill(table, seed, ties);
    const nib_mixed_problem problem = {
        .table = table,
        .units = UNITS,
        .options = OPTIONS,
        .budget = (uint64_t)(nib__random(seed, 3, 0) * UNITS * (ties ? 6 : 100000))};
    const sums wanted = search_all(table, problem.budget, &wanted_reach);
    const nib_mixed_reach reach = nib__mixed_reach(&problem);
    assert_int_equal(reach.least, wanted_reach.least);
    assert_int_equal(reach.next, wanted_reach.next);
    assert_int_equal(reach.most, wanted_reach.most);
    const nib_status status = nib__mixed_solve(chosen, &problem, &allocator, &err);
    if (!wanted.ok) {
        assert_int_equal(status, NIB_UNSUPPORTED);
        return;
    }
    assert_int_equal(status, NIB_OK);
    const sums found = add_up(table, chosen);
    assert_true(found.ok);
    assert_true(found.weight <= problem.budget);
    if (found.cost != wanted.cost || found.weight != wanted.weight)
        fail_msg("problem %lld: cost %.17g and weight %llu, not %.17g and %llu", (long long)seed,
                 found.cost, (unsigned long long)found.weight, wanted.cost,
                 (unsigned long long)wanted.weight);
}

static void test_solve(void **state)
{
    (void)state;
    for (int64_t seed = 0; seed < PROBLEMS; seed++)
        check_problem(seed);
}

/* A budget that a mixture meets exactly is met; one byte less is not. */
static void test_exact_budget(void **state)
{
    (void)state;
    const nib_mixed_option table[] = {{10, 3}, {20, 0}, {10, 5}, {20, 0}};
    size_t chosen[2];
    nib_mixed_problem p = {.table = table, .units = 2, .options = 2, .budget = 30};
    assert_int_equal(nib__mixed_solve(chosen, &p, &allocator, NULL), NIB_OK);
    assert_int_equal(chosen[0], 0);
    assert_int_equal(chosen[1], 1);
    p.budget = 29;
    assert_int_equal(nib__mixed_solve(chosen, &p, &allocator, NULL), NIB_OK);
    assert_int_equal(chosen[1], 0);
    p.budget = 19;
    assert_int_equal(nib__mixed_solve(chosen, &p, &allocator, NULL), NIB_UNSUPPORTED);
}

/* Many layers of a few shapes, as models have: the sums stay few. */
static void test_many_units(void **state)
{
    (void)state;
    enum { MANY = 300 };
    static nib_mixed_option table[MANY * 3];
    static size_t chosen[MANY];
    uint64_t weight = 0;
    for (size_t u = 0; u < MANY; u++)
        for (size_t o = 0; o < 3; o++)
            table[u * 3 + o] = (nib_mixed_option){.weight = (1000 + 700 * (u % 4)) * (o + 1),
                                                  .cost = (2 - (double)o) *
                                                          nib__random(7, (int64_t)o, (int64_t)u)};
    const nib_mixed_problem p = {.table = table, .units = MANY, .options = 3, .budget = 1200000};
    assert_int_equal(nib__mixed_solve(chosen, &p, &allocator, NULL), NIB_OK);
    for (size_t u = 0; u < MANY; u++)
        weight += table[u * 3 + chosen[u]].weight;
    assert_true(weight <= p.budget);
    assert_true(weight > p.budget - 3100); /* less than a step of the largest is left */
}

static void test_rules(void **state)
{
    (void)state;
    static const nib_site sites[] = {{.name = "a.q_proj"},
                                     {.name = "a.experts.0.up_proj"},
                                     {.name = "a.experts.1.up_proj"},
                                     {.name = "a.experts.0.down_proj"},
                                     {.name = "a.experts.1.down_proj"},
                                     {.name = "norm"}};
    static const char *const schemes[] = {"int8wo", "int4wo", "int4wo", "int4wo", "keep", NULL};
    nib_text text;
    nib__text_init(&text, &allocator);
    nib__mixed_rules(&text, sites, schemes, COUNT(sites));
    assert_string_equal(text.at,
                        "{\"schema\": 1,\n \"rules\": [\n"
                        "   {\"match\": \"a.q_proj\", \"scheme\": \"int8wo\"},\n"
                        "   {\"match\": \"a.experts.*.up_proj\", \"scheme\": \"int4wo\"},\n"
                        "   {\"match\": \"a.experts.0.down_proj\", \"scheme\": \"int4wo\"},\n"
                        "   {\"match\": \"a.experts.1.down_proj\", \"scheme\": \"keep\"}],\n"
                        " \"else\": \"keep\"}\n");
    nib__text_free(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_solve), cmocka_unit_test(test_exact_budget),
        cmocka_unit_test(test_many_units), cmocka_unit_test(test_rules)};
    allocator = nib__allocator_default();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
