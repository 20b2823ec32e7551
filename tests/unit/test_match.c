/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns: exact names, globs, whole-name regular expressions, and the cost of hostile ones.
 */
#include "failing.h"
#include "match.h"
#include "wrapped.h"

#include <oniguruma.h>
#include <stdlib.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

static int match_error; /* what a match that fails returns */

WRAPPED(OnigMatchParam *, onig_new_match_param, (void), (), NULL)
WRAPPED(int, onig_match_with_param,
        (OnigRegex regex, const OnigUChar *text, const OnigUChar *end, const OnigUChar *at,
         OnigRegion *region, OnigOptionType option, OnigMatchParam *param),
        (regex, text, end, at, region, option, param), match_error)

static nib_pattern *make(const char *text)
{
    const nib_allocator a = nib__allocator_default();
    nib_pattern *pattern = NULL;
    nib_err err = {0};
    if (nib__pattern_make(&pattern, text, NULL, &a, &err) != NIB_OK)
        fail_msg("%s", err.text);
    assert_string_equal(nib__pattern_text(pattern), text);
    return pattern;
}

static bool matches(const char *text, const char *name)
{
    nib_pattern *pattern = make(text);
    nib_err err = {0};
    const bool result = nib__pattern_matches(pattern, name, &err);
    assert_int_equal(err.status, NIB_OK);
    nib__pattern_free(pattern);
    return result;
}

static void test_exact(void **state)
{
    (void)state;
    assert_true(matches("lm_head", "lm_head"));
    assert_false(matches("lm_head", "lm_head.weight"));
    assert_false(matches("lm_head", "xlm_head"));
    assert_false(matches("lm_head", ""));
    assert_true(matches("model.layers.0", "model.layers.0"));
    assert_false(matches("model.layers.0", "model_layers_0")); /* a dot matches only a dot */
}

static void test_glob(void **state)
{
    (void)state;
    assert_true(matches("*", ""));
    assert_true(matches("*", "a.b.c"));
    assert_true(matches("*.q_proj", "model.layers.3.self_attn.q_proj"));
    assert_false(matches("*.q_proj", "q_proj"));
    assert_true(matches("model.layers.?.*", "model.layers.3.mlp"));
    assert_false(matches("model.layers.?.*", "model.layers.13.mlp"));
    assert_true(matches("*a*b*c*", "xxaxxbxxcxx"));
    assert_false(matches("*a*b*c*", "xxaxxcxxbxx"));
    assert_true(matches("a**b", "ab"));
    assert_true(matches("*ab", "aab"));
    assert_true(matches("*.*.weight", "a.b.weight.weight"));
    assert_false(matches("?", ""));
    assert_false(matches("a?", "a"));
    assert_true(matches("?", "\xc3\xa9")); /* one character of two bytes */
    assert_true(matches("x?y", "x\xf0\x9f\x98\x80y"));
    assert_true(matches("?", "\xff")); /* an invalid byte counts as one character */
    assert_true(matches("*?", "\xe6\x97\xa5"));
    assert_false(matches("*??", "\xe6\x97\xa5")); /* a star does not split a character */
    assert_true(matches("*??", "\xe6\x97\xa5\xe6\x9c\xac"));
    assert_false(matches("(a|b)*", "ab"));
    assert_true(matches("(a|b)*", "(a|b) and more"));
}

static void test_regex(void **state)
{
    (void)state;
    assert_true(matches("re:lm_head", "lm_head"));
    assert_false(matches("re:lm_head", "lm_head.weight"));
    assert_false(matches("re:head", "lm_head"));
    assert_true(
        matches("re:a|ab", "ab")); /* matches the whole name, though `a` would match first */
    assert_true(matches("re:(a|ab)(c|bcd)(d*)", "abcd"));
    assert_true(matches("re:a*?", "aaaa"));
    assert_true(matches("re:model\\.layers\\.(0|1[0-9])\\..*", "model.layers.12.mlp.up_proj"));
    assert_false(matches("re:model\\.layers\\.(0|1[0-9])\\..*", "model.layers.2.mlp.up_proj"));
    assert_true(matches("re:.*(?<!lm)_proj", "a.q_proj"));
    assert_true(matches("re:(?i)LM_HEAD", "lm_head"));
    assert_true(matches("re:(?x) a b # comment", "ab"));
    assert_true(matches("re:caf.", "caf\xc3\xa9"));
    assert_true(matches("re:", ""));
    assert_false(matches("re:", "a"));
    assert_true(matches("re:\\d+", "123"));
    assert_true(matches("re:^a$", "a"));
    assert_false(matches("re:a$", "a\n"));
}

static void expect_refused(const char *text)
{
    const nib_allocator a = nib__allocator_default();
    nib_pattern *pattern = NULL;
    nib_err err = {0};
    refused(NIB_BAD_INPUT, nib__pattern_make(&pattern, text, NULL, &a, &err), &err);
    assert_null(pattern);
    assert_int_equal(nib__pattern_make(&pattern, text, NULL, &a, NULL), NIB_BAD_INPUT);
}

static void test_invalid_patterns(void **state)
{
    (void)state;
    expect_refused("");
    expect_refused("re:(a");
    expect_refused("re:a)|(b");
    expect_refused("re:[");
    expect_refused("re:*");
    expect_refused("a\xff*");
    expect_refused("re:\xc3");
    char text[6000];
    memset(text, 'a', sizeof text);
    text[4097] = 0;
    expect_refused(text);
    memset(text, '(', sizeof text);
    memcpy(text, "re:", 3);
    text[1003] = 0;
    expect_refused(text);
}

static void test_hostile_regex_is_bounded(void **state)
{
    (void)state;
    char name[2001];
    nib_err err = {0};
    memset(name, 'a', 2000);
    name[2000] = 0;
    static const char *const costly[] = {"re:(a*)*b", "re:(a|a)*b", "re:(a+)+b", "re:(a|aa)+b",
                                         "re:(.*)(.*)(.*)(.*)(.*)b"};
    for (size_t i = 0; i < COUNT(costly); i++) {
        nib_pattern *pattern = make(costly[i]);
        assert_false(
            nib__pattern_matches(pattern, name, &err)); /* in time, with an error or without */
        assert_false(nib__pattern_matches(pattern, name, NULL));
        nib__pattern_free(pattern);
    }
    refused(NIB_BAD_INPUT, err.status, &err);

    err = (nib_err){0};
    nib_pattern *pattern = make("re:a*");
    name[1999] = (char)0xff;
    assert_false(nib__pattern_matches(pattern, name, &err));
    refused(NIB_BAD_INPUT, err.status, &err);
    nib__pattern_free(pattern);
}

static void test_hostile_glob_is_bounded(void **state)
{
    (void)state;
    enum { SIZE = 100000 };
    char *name = malloc(SIZE + 1);
    assert_non_null(name);
    memset(name, 'a', SIZE);
    name[SIZE] = 0;
    char text[2003];
    memset(text, 'a', sizeof text);
    text[0] = '*';
    memcpy(text + 2000, "b*", 3);
    nib_pattern *pattern = make(text);
    nib_err err = {0};
    assert_false(nib__pattern_matches(pattern, name, &err));
    refused(NIB_BAD_INPUT, err.status, &err);
    nib__pattern_free(pattern);
    free(name);
}

/* Deep nesting without brackets, and sizes that multiply. */
static void test_hostile_compilation_is_bounded(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    char text[4097] = "re:a";
    size_t size = 4;
    while (size + 3 < sizeof text) {
        memcpy(text + size, "{2}", 4);
        size += 3;
    }
    static const char *const more[] = {
        "re:((a{1,1000}){1,1000}){1,1000}", "re:(((a{99999}){99999}){99999}){99999}",
        "re:(?:(?:a?){1000}){1000}", "re:\\g<0>a", "re:(?<x>a\\g<x>?)"};
    for (size_t i = 0; i <= COUNT(more); i++) {
        nib_pattern *pattern = NULL;
        nib_err err = {0};
        if (nib__pattern_make(&pattern, i == COUNT(more) ? text : more[i], NULL, &a, &err) ==
            NIB_OK) {
            (void)nib__pattern_matches(pattern, "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab", &err);
            nib__pattern_free(pattern);
        } else {
            assert_true(err.text[0] != 0);
        }
    }
}

/* A spent budget refuses new patterns and further matches, but not those without err, whose answer
 * is known. */
static void test_budget(void **state)
{
    (void)state;
    const nib_allocator a = nib__allocator_default();
    nib_pattern_budget budget = {0};
    nib_pattern *pattern = NULL, *other = NULL;
    nib_err err = {0};
    assert_int_equal(nib__pattern_make(&pattern, "re:a+", &budget, &a, &err), NIB_OK);
    assert_true(nib__pattern_matches(pattern, "aaa", &err));
    assert_int_equal(err.status, NIB_OK);
    assert_true(budget.spent_ns > 0);
    budget.spent_ns = 5000000000;
    assert_false(nib__pattern_matches(pattern, "aaa", &err));
    refused(NIB_BAD_INPUT, err.status, &err);
    assert_true(nib__pattern_matches(pattern, "aaa", NULL));
    refused(NIB_BAD_INPUT, nib__pattern_make(&other, "re:b+", &budget, &a, &err), &err);
    assert_null(other);
    /* a pattern that does not compile is refused for that */
    refused(NIB_BAD_INPUT, nib__pattern_make(&other, "re:(b", &budget, &a, &err), &err);
    nib__pattern_free(pattern);
}

/* Each character of the name is a position to backtrack to. */
static void test_long_name_is_bounded(void **state)
{
    (void)state;
    enum { SIZE = 200000 };
    const nib_allocator a = nib__allocator_default();
    nib_pattern *pattern = NULL;
    nib_err err = {0};
    char *name = malloc(SIZE + 1);
    assert_non_null(name);
    memset(name, 'a', SIZE);
    name[SIZE] = 0;
    assert_int_equal(nib__pattern_make(&pattern, "re:(?:a|b)*", NULL, &a, &err), NIB_OK);
    assert_false(nib__pattern_matches(pattern, name, &err));
    assert_int_equal(err.status, NIB_BAD_INPUT);
    assert_non_null(strstr(err.text, "too many steps"));
    nib__pattern_free(pattern);
    free(name);
}

static void test_failing_allocations(void **state)
{
    (void)state;
    failing f = {0};
    const nib_allocator a = failing_allocator(&f);
    nib_pattern *pattern = NULL;
    nib_err err = {0};
    assert_int_equal(nib__pattern_make(&pattern, "re:a", NULL, &a, &err), NIB_NO_MEMORY);
    assert_null(pattern);
    f.left = 1;
    refused(NIB_BAD_INPUT, nib__pattern_make(&pattern, "re:(a", NULL, &a, &err), &err);
    assert_int_equal(f.live, 0); /* a pattern that does not compile leaks nothing */
    nib__pattern_free(NULL);
}

/* Calls of Oniguruma that fail, without memory or for a reason of its own. */
static void test_failing_match(void **state)
{
    (void)state;
    static const struct {
        int call, error;
        nib_status status;
    } cases[] = {{1, 0, NIB_NO_MEMORY},
                 {2, ONIGERR_MEMORY, NIB_NO_MEMORY},
                 {2, ONIGERR_PARSER_BUG, NIB_BAD_INPUT}};
    nib_pattern *pattern = make("re:a+");
    for (size_t i = 0; i < COUNT(cases); i++) {
        nib_err err = {0};
        match_error = cases[i].error;
        atomic_store(&countdown, cases[i].call);
        assert_false(nib__pattern_matches(pattern, "aaa", &err));
        refused(cases[i].status, err.status, &err);
    }
    nib__pattern_free(pattern);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_exact),
        cmocka_unit_test(test_glob),
        cmocka_unit_test(test_regex),
        cmocka_unit_test(test_invalid_patterns),
        cmocka_unit_test(test_hostile_regex_is_bounded),
        cmocka_unit_test(test_hostile_glob_is_bounded),
        cmocka_unit_test(test_hostile_compilation_is_bounded),
        cmocka_unit_test(test_budget),
        cmocka_unit_test(test_long_name_is_bounded),
        cmocka_unit_test(test_failing_allocations),
        cmocka_unit_test(test_failing_match),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
