/* SPDX-License-Identifier: Apache-2.0
 *
 * Lists of modules in a config: names by hash, expressions anchored at the beginning of a name, and
 * errors.
 */
#include "failing.h"
#include "targets.h"

#include <stdarg.h>
#include <stdio.h>
#include <setjmp.h>
#include <cmocka.h>

#include "refused.h"

typedef struct list {
    nib_arena arena;
    nib_targets targets;
    nib_target_limits limits;
    nib_err err;
} list;

static nib_status read_list(list *l, const char *text, const nib_allocator *a)
{
    nib_json json;
    *l = (list){.err = {NIB_OK, ""}};
    nib__arena_init(&l->arena, a, 0);
    nib__json_init(&json, "x", text, strlen(text), NULL);
    nib__json_next(&json);
    nib__targets_read(&l->targets, &json, "ignore", &l->limits, &l->arena, a);
    return nib__json_status(&json, &l->err);
}

static void drop(list *l)
{
    nib__targets_free(&l->targets);
    nib__arena_free(&l->arena);
}

static void test_matches(void **state)
{
    (void)state;
    static const char text[] =
        "[\"Linear\", \"lm_head\", \"re:.*mlp[.]gate$\", \"lm_head\", \"re:visual\"]";
    static const struct {
        const char *module;
        bool matches;
    } cases[] = {
        {"lm_head", true},
        {"lm_head2", false},
        {"lm_hea", false},
        {"", false},
        {"model.layers.3.mlp.gate", true},
        {"model.layers.3.mlp.gate_proj", false},
        {"visual.blocks.0", true}, /* an expression need not match to the end */
        {"model.visual", false},   /* but must match from the beginning */
    };
    const nib_allocator a = nib__allocator_default();
    list l;
    assert_int_equal(read_list(&l, text, &a), NIB_OK);
    assert_int_equal(l.limits.count, 2);
    for (size_t i = 0; i < COUNT(cases); i++) {
        bool found = !cases[i].matches;
        assert_int_equal(nib__targets_match(&found, &l.targets, cases[i].module, &l.err), NIB_OK);
        assert_int_equal(found, cases[i].matches);
    }
    assert_true(nib__targets_name(&l.targets, "Linear"));
    assert_false(nib__targets_name(&l.targets, "visual.blocks.0"));
    drop(&l);
    static const char *const empty[] = {"null", "[]"};
    for (size_t i = 0; i < COUNT(empty); i++) {
        bool found = true;
        assert_int_equal(read_list(&l, empty[i], &a), NIB_OK);
        assert_int_equal(nib__targets_match(&found, &l.targets, "x", &l.err), NIB_OK);
        assert_false(found);
        drop(&l);
    }
}

static void test_rejects_bad_lists(void **state)
{
    (void)state;
    char over[640];
    snprintf(over, sizeof over, "[\"re:%0600d\"]", 0);
    const char *const lists[] = {"3", "[\"a\", 3]", "[\"re:(\"]", "[\"a\"", over};
    const nib_allocator a = nib__allocator_default();
    list l;
    for (size_t i = 0; i < COUNT(lists); i++) {
        refused(NIB_BAD_INPUT, read_list(&l, lists[i], &a), &l.err);
        drop(&l);
    }
}

/* An expression that would backtrack for hours is an error, not a mismatch. */
static void test_slow_expression(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    list l;
    bool found;
    assert_int_equal(read_list(&l, "[\"re:(a*)*(a*)*(a*)*b\"]", &a), NIB_OK);
    refused(
        NIB_BAD_INPUT,
        nib__targets_match(&found, &l.targets, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", &l.err),
        &l.err);
    drop(&l);
}

/* A hundred thousand lookups in as many names: no linear search. */
static void test_many_names(void **state)
{
    (void)state;
    enum { NAMES = 100000 };
    const nib_allocator a = nib__allocator_default();
    nib_text text;
    char name[32];
    list l;
    nib__text_init(&text, &a);
    for (int i = 0; i < NAMES; i++)
        nib__text_format(&text, "%s\"m.%d\"", i == 0 ? "[" : ",", i);
    nib__text_str(&text, "]");
    assert_int_equal(read_list(&l, text.at, &a), NIB_OK);
    nib__text_free(&text);
    assert_int_equal(l.targets.name_count, NAMES);
    for (int i = 0; i < 2 * NAMES; i++) {
        snprintf(name, sizeof name, "m.%d", i);
        assert_int_equal(nib__targets_name(&l.targets, name), i < NAMES);
    }
    drop(&l);
}

static void test_no_memory(void **state)
{
    (void)state;
    nib_status status = NIB_NO_MEMORY;
    for (int allocations = 0; status != NIB_OK; allocations++) {
        failing f = {.left = allocations};
        const nib_allocator a = failing_allocator(&f);
        list l;
        status = read_list(&l, "[\"a\", \"re:b\", \"c\", \"d\", \"e\", \"f\"]", &a);
        assert_true(status == NIB_OK || status == NIB_NO_MEMORY);
        drop(&l);
        assert_int_equal(f.live, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matches),         cmocka_unit_test(test_rejects_bad_lists),
        cmocka_unit_test(test_slow_expression), cmocka_unit_test(test_many_names),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
