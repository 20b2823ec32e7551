/* SPDX-License-Identifier: Apache-2.0
 *
 * Checks an expression before Oniguruma sees it. Oniguruma's parser recurses on brackets and
 * consecutive quantifiers, and expands group calls, \g<name> or (?P>name): fifteen groups that each
 * call the next one twice take minutes. Callouts, (*NAME) and (?{...}), call code of the program.
 * No known tokenizer or config needs any of these.
 *
 * The scan understands escapes only. It may refuse harmless text in a class or a comment, but it
 * misses nothing: every group begins with an unescaped parenthesis.
 */
#include "regex_guard.h"

#include <pthread.h>
#include <stdio.h>

enum {
    MOST_QUANTIFIERS = 8, /* in a row: a{2}{3} and a*+ are two */
};

/* ---- Oniguruma ---- */

#if !defined(ONIG_SYNTAX_PYTHON)
#define ONIG_SYNTAX_PYTHON ONIG_SYNTAX_PERL_NT
#endif

/* Syntaxes without callouts and calls, as a second line of defence after the scan. A compiled
 * expression keeps a pointer to its syntax. */
static OnigSyntaxType syntaxes[2];

static void init_syntaxes(void)
{
    static const unsigned refused =
        ONIG_SYN_OP2_QMARK_BRACE_CALLOUT_CONTENTS | ONIG_SYN_OP2_ASTERISK_CALLOUT_NAME |
        ONIG_SYN_OP2_ESC_G_SUBEXP_CALL | ONIG_SYN_OP2_QMARK_PERL_SUBEXP_CALL;
    OnigEncoding encodings[] = {ONIG_ENCODING_UTF8};
    (void)onig_initialize(encodings, 1); /* a failure shows at the first onig_new */
    syntaxes[NIB_REGEX_PYTHON] = *ONIG_SYNTAX_PYTHON;
    syntaxes[NIB_REGEX_ONIGURUMA] = *ONIG_SYNTAX_ONIGURUMA;
    for (size_t i = 0; i < COUNT(syntaxes); i++)
        syntaxes[i].op2 &= ~refused;
}

/* ---- the guard ---- */

static nib_status refuse(nib_err *err, const char *what, const char *instead)
{
    return nib__fail(err, NIB_UNSUPPORTED, "it %s, which is not supported%s", what, instead);
}

static bool begins(const char *at, const char *end, const char *word)
{
    const size_t size = strlen(word);
    return (size_t)(end - at) >= size && memcmp(at, word, size) == 0;
}

static bool is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

static bool is_digit(char c) { return c >= '0' && c <= '9'; }

/* Checks the group whose parenthesis is at `at`. */
static nib_status check_group(const char *at, const char *end, nib_err *err)
{
    static const char *const calls[] = {"(?P>", "(?&", "(?R", "(?+", "(?0", "(?1", "(?2",
                                        "(?3",  "(?4", "(?5", "(?6", "(?7", "(?8", "(?9"};
    for (size_t i = 0; i < COUNT(calls); i++)
        if (begins(at, end, calls[i]))
            return refuse(err, "calls a group", "; repeat the group instead");
    if (begins(at, end, "(?-") && end - at > 3 && is_digit(at[3]))
        return refuse(err, "calls a group", "; repeat the group instead");
    if (begins(at, end, "(?{") || (begins(at, end, "(*") && end - at > 2 && is_letter(at[2])))
        return refuse(err, "has a callout", "");
    return NIB_OK;
}

/* The size of the quantifier at `at`; 0: there is none. */
static size_t quantifier_at(const char *at, const char *end)
{
    if (*at == '*' || *at == '+' || *at == '?')
        return 1;
    if (*at != '{')
        return 0;
    const char *to = at + 1;
    while (to < end && (is_digit(*to) || *to == ','))
        to++;
    return to < end && *to == '}' && to > at + 1 ? (size_t)(to - at) + 1 : 0;
}

static nib_status check_expression(const char *text, size_t size, nib_err *err)
{
    const char *const end = text + size;
    int brackets = 0, quantifiers = 0;
    if (size > NIB_REGEX_BYTES)
        return nib__fail(err, NIB_UNSUPPORTED, "it has %zu bytes, over the limit of %d", size,
                         NIB_REGEX_BYTES);
    for (const char *at = text; at < end; at++) {
        const size_t quantifier = quantifier_at(at, end);
        quantifiers = quantifier > 0 ? quantifiers + 1 : 0;
        if (quantifiers > MOST_QUANTIFIERS)
            return nib__fail(err, NIB_UNSUPPORTED, "it has more than %d quantifiers in a row",
                             MOST_QUANTIFIERS);
        if (quantifier > 0) {
            at += quantifier - 1;
            continue;
        }
        if (*at == '\\') {
            if (++at < end && *at == 'g')
                return refuse(err, "calls a group with \\g", "; repeat the group instead");
            continue;
        }
        if (*at != '(' && *at != '[')
            continue;
        if (++brackets > NIB_REGEX_BRACKETS)
            return nib__fail(err, NIB_UNSUPPORTED, "it has more than %d brackets",
                             NIB_REGEX_BRACKETS);
        if (*at == '(')
            NIB_TRY(check_group(at, end, err));
    }
    return NIB_OK;
}

/* Bytes that compiling a pattern of this size never needs. */
static size_t reserve_of(size_t size) { return (1 << 20) + 1024 * size; }

/* Oniguruma 6.9.8 frees some nodes twice if memory runs out while it compiles. So compile only if
 * several times what it needs, a few hundred bytes per byte of the pattern, can be allocated
 * first. */
static nib_status check_memory(size_t size, nib_err *err)
{
    const nib_allocator a = nib__allocator_default();
    const size_t wanted = reserve_of(size);
    void *reserve = nib__calloc(&a, wanted, 1);
    if (reserve == NULL)
        return nib__fail_memory(err, wanted, "a regular expression");
    nib__release(&a, reserve);
    return NIB_OK;
}

nib_status nib__regex_compile(OnigRegex *out, const char *text, size_t size,
                              nib_regex_dialect dialect, nib_err *err)
{
    /* For Oniguruma's global tables. */
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const OnigUChar *bytes = (const OnigUChar *)text;
    OnigUChar reason[ONIG_MAX_ERROR_MESSAGE_LEN + 1] = {0};
    OnigErrorInfo info;
    *out = NULL;
    NIB_TRY(check_expression(text, size, err));
    NIB_TRY(check_memory(size, err));
    (void)pthread_once(&once, init_syntaxes);
    const int code = onig_new(out, bytes, bytes + size, ONIG_OPTION_NONE, ONIG_ENCODING_UTF8,
                              &syntaxes[dialect], &info);
    if (code == ONIG_NORMAL)
        return NIB_OK;
    *out = NULL;
    if (code == ONIGERR_MEMORY)
        return nib__fail_memory(err, reserve_of(size), "a regular expression");
    onig_error_code_to_str(reason, code, &info);
    return nib__fail(err, NIB_BAD_INPUT, "%s", (const char *)reason);
}

/* ---- limits ---- */

void nib__regex_set_steps(OnigMatchParam *limits, unsigned long steps)
{
    onig_set_retry_limit_in_match_of_match_param(limits, steps);
    onig_set_retry_limit_in_search_of_match_param(limits, steps);
}

OnigMatchParam *nib__regex_limits(unsigned stack, unsigned long steps)
{
    OnigMatchParam *limits = onig_new_match_param();
    if (limits == NULL)
        return NULL;
    onig_initialize_match_param(limits);
    onig_set_match_stack_limit_size_of_match_param(limits, stack);
    nib__regex_set_steps(limits, steps);
    return limits;
}
