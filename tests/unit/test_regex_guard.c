/* SPDX-License-Identifier: Apache-2.0
 *
 * Untrusted regular expressions: those that need unbounded time or stack never reach the compiler,
 * and those that tokenizers and configs need do.
 */
#include "failing.h"
#include "regex_guard.h"
#include "skipping.h"
#include "wrapped.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

#include "refused.h"

WRAPPED(void *, nib__calloc, (const nib_allocator *a, uint64_t count, uint64_t size),
        (a, count, size), NULL)
WRAPPED(int, onig_new,
        (OnigRegex * out, const OnigUChar *text, const OnigUChar *end, OnigOptionType option,
         OnigEncoding encoding, OnigSyntaxType *syntax, OnigErrorInfo *info),
        (out, text, end, option, encoding, syntax, info), ONIGERR_MEMORY)
WRAPPED(OnigMatchParam *, onig_new_match_param, (void), (), NULL)

static nib_status compile(const char *text, nib_regex_dialect dialect, nib_err *err)
{
    OnigRegex regex;
    const nib_status status = nib__regex_compile(&regex, text, strlen(text), dialect, err);
    if (status == NIB_OK)
        onig_free(regex);
    else
        assert_null(regex);
    return status;
}

static void expect_refused(const char *text)
{
    for (int dialect = NIB_REGEX_PYTHON; dialect <= NIB_REGEX_ONIGURUMA; dialect++) {
        nib_err err = {NIB_OK, ""};
        refused(NIB_UNSUPPORTED, compile(text, (nib_regex_dialect)dialect, &err), &err);
    }
}

static void expect_accepted(const char *text)
{
    nib_err err;
    for (int dialect = NIB_REGEX_PYTHON; dialect <= NIB_REGEX_ONIGURUMA; dialect++)
        if (compile(text, (nib_regex_dialect)dialect, &err) != NIB_OK)
            fail_msg("%.80s: %s", text, err.text);
}

/* Every syntax of a group call, in every position. */
static void test_group_calls(void **state)
{
    (void)state;
    static const char *const calls[] = {
        "(?<a>x)\\g<a>",  "(?<a>x)\\g'a'",      "\\g<0>",        "(?<x>a\\g<x>?)",
        "(?P<a>x)(?P>a)", "(?<a>x)(?&a)",       "a(?R)?",        "(x)(?1)",
        "(x)(?-1)",       "(?+1)(x)",           "(?0)?",         "(x)(?:a|[b](?1))",
        "(x)\\\\(?1)",    "(?x) # \\\n(x)(?1)", "\\Q\\E(x)(?1)", "[]](?<a>x)\\g<a>",
        "(?#\\))(x)(?1)", "[(](x)(?1)",
    };
    for (size_t i = 0; i < COUNT(calls); i++)
        expect_refused(calls[i]);
    expect_accepted("\\(?1\\)");
    expect_accepted("(?-i:a)(?i)b");
    nib_err err;
    assert_int_equal(compile("(?P<a>x)(?P=a)", NIB_REGEX_PYTHON, &err), NIB_OK);
    assert_int_equal(compile("(?<a>x)\\k<a>", NIB_REGEX_ONIGURUMA, &err), NIB_OK);
}

/* What begins a callout is a letter or an underscore: each character after the parenthesis. */
static void test_callout_names(void **state)
{
    (void)state;
    for (int c = ' '; c < 0x7f; c++) {
        const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
        char text[16];
        nib_err err = {NIB_OK, ""};
        snprintf(text, sizeof text, "x(*%c)", c);
        if (letter)
            expect_refused(text);
        else /* the compiler's own error, if any */
            assert_true(compile(text, NIB_REGEX_PYTHON, &err) != NIB_UNSUPPORTED);
    }
}

/* Groups that each call the next one twice: the cost doubles with each group. */
static void test_doubling_group_calls(void **state)
{
    (void)state;
    char text[1024];
    size_t used = 0;
    for (int i = 0; i < 12; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "(?P<g%d>(?:(?P>g%d))?(?:(?P>g%d))?)", i, i + 1, i + 1);
    snprintf(text + used, sizeof text - used, "(?P<g12>a)");
    expect_refused(text);
}

static void test_callouts(void **state)
{
    (void)state;
    expect_refused("(*FAIL)");
    expect_refused("(*ERROR{-2})");
    expect_refused("a(*MAX[x]{3})*");
    expect_refused("(?{print})");
    expect_refused("(?{{x}}[y])");
    expect_accepted("[(*]");
    expect_accepted("(a)*");
    expect_accepted("\\(*b");
}

/* The largest accepted count, and one more. */
static void test_sizes(void **state)
{
    (void)state;
    char text[NIB_REGEX_BYTES + 2];
    static const char *const pairs[] = {"()", "[(]", "([)])"};
    for (size_t p = 0; p < COUNT(pairs); p++) {
        const size_t size = strlen(pairs[p]), brackets = p == 0 ? 1 : 2;
        size_t used = 0;
        for (size_t count = 0; count + brackets <= NIB_REGEX_BRACKETS; count += brackets) {
            memcpy(text + used, pairs[p], size + 1);
            used += size;
        }
        expect_accepted(text);
        memcpy(text + used, pairs[p], size + 1);
        expect_refused(text);
    }
    expect_accepted("a*+?+?+?+");
    expect_refused("a{2}{2}{2}{2}{2}{2}{2}{2}{2}");
    expect_refused("a?????????");
    memset(text, 'a', sizeof text);
    text[NIB_REGEX_BYTES] = '\0';
    expect_accepted(text);
    text[NIB_REGEX_BYTES] = 'a';
    text[NIB_REGEX_BYTES + 1] = '\0';
    expect_refused(text);
}

/* ---- stack ---- */

static void *compile_deepest(void *ctx)
{
    char text[2 * NIB_REGEX_BRACKETS + 2];
    nib_status *status = ctx;
    nib_err err;
    memset(text, '(', NIB_REGEX_BRACKETS);
    memset(text + NIB_REGEX_BRACKETS, ')', NIB_REGEX_BRACKETS);
    text[2 * NIB_REGEX_BRACKETS] = '\0';
    status[0] = compile(text, NIB_REGEX_ONIGURUMA, &err);
    memset(text, '[', NIB_REGEX_BRACKETS);
    memset(text + NIB_REGEX_BRACKETS, ']', NIB_REGEX_BRACKETS);
    text[NIB_REGEX_BRACKETS - 1] = 'a';
    text[2 * NIB_REGEX_BRACKETS - 1] = '\0';
    status[1] = compile(text, NIB_REGEX_ONIGURUMA, &err);
    return NULL;
}

/* Programs run the library in threads with 256 KB of stack, a quarter of it already used. */
static void test_small_stack(void **state)
{
    (void)state;
    enum { STACK = 192 * 1024 };
    nib_status status[2] = {NIB_FAILED, NIB_FAILED};
    pthread_attr_t attributes;
    pthread_t thread;
    assert_int_equal(pthread_attr_init(&attributes), 0);
    assert_int_equal(pthread_attr_setstacksize(&attributes, STACK), 0);
    assert_int_equal(pthread_create(&thread, &attributes, compile_deepest, status), 0);
    assert_int_equal(pthread_join(thread, NULL), 0);
    pthread_attr_destroy(&attributes);
    assert_int_equal(status[0], NIB_OK);
    assert_int_equal(status[1], NIB_OK);
}

/* ---- memory ---- */

/* Runs in a child process with half a megabyte of fragmented memory left; it exits with the status
 * of the compilation. */
static int compile_with_little(void)
{
    enum { PIECE = 1 << 16, LEFT = 8 };
    void *left[LEFT] = {NULL}, *next;
    struct rlimit limit = {0, 0};
    unsigned long pages = 0;
    nib_err err;
    FILE *file = fopen("/proc/self/statm", "r");
    const bool known = file != NULL && fscanf(file, "%lu", &pages) == 1;
    if (file != NULL)
        fclose(file);
    limit.rlim_cur = limit.rlim_max = pages * (rlim_t)sysconf(_SC_PAGESIZE) + LEFT * PIECE;
    if (!known || setrlimit(RLIMIT_AS, &limit) != 0)
        return 100;
    for (size_t i = 0; (next = malloc(PIECE)) != NULL; i++)
        left[i % LEFT] = next;
    for (size_t i = 0; i < LEFT; i++)
        free(left[i]);
    return compile("a|b", NIB_REGEX_ONIGURUMA, &err);
}

static void test_little_memory(void **state)
{
    (void)state;
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    skip_test("test_regex_guard: test_little_memory", SKIP_SANITIZED);
#endif
    int status = 0;
    const pid_t child = fork();
    if (child == 0)
        _exit(compile_with_little());
    assert_true(child > 0 && waitpid(child, &status, 0) == child);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), NIB_NO_MEMORY);
}

/* The reserve, the compiler and the limits fail. */
static void test_failing_calls(void **state)
{
    (void)state;
    nib_err err;
    for (int n = 1; n <= 2; n++) {
        atomic_store(&countdown, n);
        refused(NIB_NO_MEMORY, compile("a|b", NIB_REGEX_PYTHON, &err), &err);
    }
    atomic_store(&countdown, 1);
    assert_null(nib__regex_limits(64, 64));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_group_calls),   cmocka_unit_test(test_doubling_group_calls),
        cmocka_unit_test(test_callouts),      cmocka_unit_test(test_callout_names),
        cmocka_unit_test(test_sizes),         cmocka_unit_test(test_small_stack),
        cmocka_unit_test(test_little_memory), cmocka_unit_test(test_failing_calls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
