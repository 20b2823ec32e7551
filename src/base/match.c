/* SPDX-License-Identifier: Apache-2.0
 *
 * Name patterns. Owns the compiled form of one pattern; Oniguruma matches regular expressions.
 *
 * Patterns may come from an untrusted recipe file, so length and steps are limited. The limits are
 * set per match, because Oniguruma's global ones belong to the program.
 */
#include "match.h"

#include "pool.h"
#include "regex_guard.h"

#include <stdio.h>

enum {
    MOST_BYTES = 4096,
    MOST_STACK = 100000, /* entries of Oniguruma's match stack */
    MOST_RETRIES = 100000,
    MOST_STEPS = 1 << 24, /* of a glob */
};

typedef enum kind { EXACT, GLOB, REGEX } kind;

struct nib_pattern {
    nib_allocator allocator;
    kind kind;
    OnigRegex regex;
    nib_pattern_budget *budget; /* NULL: none */
    char text[];                /* as given */
};

/* Compiles head + text + tail. */
static nib_status compile_between(OnigRegex *out, const char *head, const char *text,
                                  const char *tail, nib_err *err)
{
    char whole[MOST_BYTES + 32];
    const int size = snprintf(whole, sizeof whole, "%s%s%s", head, text, tail);
    return nib__regex_compile(out, whole, (size_t)size, NIB_REGEX_PYTHON, err);
}

/* A match must cover the whole name, so the expression ends with a check that nothing follows (not
 * every syntax has \z). It is compiled alone first, because `a)|(b` would close the group around
 * it. Under (?x) a comment at its end would hide the closing bracket: then a line break precedes
 * it, which (?x) ignores. */
static nib_status compile_whole(OnigRegex *out, const char *text, nib_err *err)
{
    NIB_TRY(compile_between(out, "", text, "", err));
    onig_free(*out);
    if (compile_between(out, "(?:", text, ")(?![\\s\\S])", err) == NIB_OK)
        return NIB_OK;
    return compile_between(out, "(?:", text, "\n)(?![\\s\\S])", err);
}

/* Adds the time since start; true if the budget is used up. */
static bool charge_budget(nib_pattern_budget *budget, uint64_t start)
{
    static const uint64_t most_ns = 5000000000;
    if (budget == NULL)
        return false;
    budget->spent_ns += nib__worked_ns() - start;
    return budget->spent_ns > most_ns;
}

static const char out_of_memory[] = "out of memory";
static const char too_long[] =
    "the regular expressions of this file take too long; use fewer or simpler ones";

static nib_status compile(nib_pattern *pattern, const char *text, nib_err *err)
{
    char safe[96];
    nib_err why = {NIB_OK, ""};
    const uint64_t start = pattern->budget != NULL ? nib__worked_ns() : 0;
    nib_status status = compile_whole(&pattern->regex, text, &why);
    if (charge_budget(pattern->budget, start) && status == NIB_OK)
        status = nib__fail(&why, NIB_UNSUPPORTED, "%s", too_long);
    if (status == NIB_OK)
        return NIB_OK;
    return nib__fail(err, status == NIB_UNSUPPORTED ? NIB_BAD_INPUT : status, "pattern `%s`: %s",
                     nib__escape_name(safe, sizeof safe, pattern->text, strlen(pattern->text)),
                     why.text);
}

nib_status nib__pattern_make(nib_pattern **out, const char *text, nib_pattern_budget *budget,
                             const nib_allocator *a, nib_err *err)
{
    const size_t size = strlen(text);
    char safe[96];
    if (size == 0)
        return nib__fail(err, NIB_BAD_INPUT, "a pattern may not be empty; `*` matches every name");
    if (size > MOST_BYTES)
        return nib__fail(err, NIB_BAD_INPUT, "pattern `%s` is %llu bytes, over the limit of %d",
                         nib__escape_name(safe, sizeof safe, text, size), (unsigned long long)size,
                         MOST_BYTES);
    if (nib__utf8_check(text, size) != size)
        return nib__fail(err, NIB_BAD_INPUT, "pattern `%s` is not valid UTF-8",
                         nib__escape_name(safe, sizeof safe, text, size));
    nib_pattern *pattern = nib__calloc(a, 1, sizeof *pattern + size + 1);
    if (pattern == NULL)
        return nib__fail_memory(err, sizeof *pattern + size + 1, "a pattern");
    pattern->allocator = *a;
    pattern->budget = budget;
    memcpy(pattern->text, text, size + 1);
    pattern->kind = strncmp(text, "re:", 3) == 0  ? REGEX
                    : strpbrk(text, "*?") != NULL ? GLOB
                                                  : EXACT;
    if (pattern->kind == REGEX) {
        const nib_status status = compile(pattern, pattern->text + 3, err);
        if (status != NIB_OK) {
            nib__pattern_free(pattern);
            return status;
        }
    }
    *out = pattern;
    return NIB_OK;
}

nib_status nib__pattern_of_option(nib_pattern **out, const char *option, const char *text,
                                  const nib_allocator *a, nib_err *err)
{
    const nib_status status = nib__pattern_make(out, text, NULL, a, err);
    return status == NIB_OK
               ? status
               : nib__fail_in(err, status == NIB_BAD_INPUT ? NIB_USAGE : status, option);
}

void nib__pattern_free(nib_pattern *pattern)
{
    if (pattern == NULL)
        return;
    if (pattern->regex != NULL)
        onig_free(pattern->regex);
    const nib_allocator a = pattern->allocator;
    nib__release(&a, pattern);
}

const char *nib__pattern_text(const nib_pattern *pattern) { return pattern->text; }

static bool fail_match(const nib_pattern *pattern, const char *name, nib_err *err,
                       nib_status status, const char *reason)
{
    char safe_name[96], safe_text[96];
    (void)nib__fail(
        err, status, "cannot match pattern `%s` against the name `%s`: %s",
        nib__escape_name(safe_text, sizeof safe_text, pattern->text, strlen(pattern->text)),
        nib__escape_name(safe_name, sizeof safe_name, name, strlen(name)), reason);
    return false;
}

/* Skips one character; an invalid byte counts as one. */
static const char *skip_character(const char *at, const char *end)
{
    const int length = nib__utf8_length(at, (size_t)(end - at));
    return at + (length == 0 ? 1 : length);
}

/* Backtracking to the latest star is enough: it can match whatever an earlier one could. A star
 * matches whole characters, or `?` would match the rest of one. */
static bool match_glob(const nib_pattern *pattern, const char *name, nib_err *err)
{
    const char *p = pattern->text, *n = name;
    const char *star = NULL, *star_name = NULL;
    const char *const end = name + strlen(name);
    for (int steps = 0; steps < MOST_STEPS; steps++) {
        if (*p == '*') {
            star = ++p;
            star_name = n;
        } else if (n < end && *p == '?') {
            n = skip_character(n, end);
            p++;
        } else if (n < end && *p == *n) {
            p++;
            n++;
        } else if (n == end && *p == 0) {
            return true;
        } else if (star != NULL && star_name < end) {
            p = star;
            n = star_name = skip_character(star_name, end);
        } else {
            return false;
        }
    }
    return fail_match(pattern, name, err, NIB_BAD_INPUT, "too many steps; use fewer `*`");
}

static bool match_regex(const nib_pattern *pattern, const char *name, nib_err *err)
{
    const size_t size = strlen(name);
    if (nib__utf8_check(name, size) != size)
        return fail_match(pattern, name, err, NIB_BAD_INPUT, "the name is not valid UTF-8");
    OnigMatchParam *limits = nib__regex_limits(MOST_STACK, MOST_RETRIES);
    if (limits == NULL)
        return fail_match(pattern, name, err, NIB_NO_MEMORY, out_of_memory);
    nib_pattern_budget *budget = err != NULL ? pattern->budget : NULL;
    const uint64_t start = budget != NULL ? nib__worked_ns() : 0;
    const OnigUChar *begin = (const OnigUChar *)name, *end = begin + size;
    const int length =
        onig_match_with_param(pattern->regex, begin, end, begin, NULL, ONIG_OPTION_NONE, limits);
    onig_free_match_param(limits);
    if (charge_budget(budget, start))
        return fail_match(pattern, name, err, NIB_BAD_INPUT, too_long);
    if (length >= 0)
        return (size_t)length == size;
    if (length == ONIG_MISMATCH)
        return false;
    OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN + 1] = {0};
    onig_error_code_to_str(reason, length);
    if (length == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER || length == ONIGERR_MATCH_STACK_LIMIT_OVER)
        return fail_match(pattern, name, err, NIB_BAD_INPUT, "too many steps; simplify it");
    if (length == ONIGERR_MEMORY)
        return fail_match(pattern, name, err, NIB_NO_MEMORY, out_of_memory);
    return fail_match(pattern, name, err, NIB_BAD_INPUT, (const char *)reason);
}

bool nib__pattern_matches(const nib_pattern *pattern, const char *name, nib_err *err)
{
    switch (pattern->kind) {
    case EXACT: return strcmp(pattern->text, name) == 0;
    case GLOB: return match_glob(pattern, name, err);
    default: return match_regex(pattern, name, err);
    }
}
