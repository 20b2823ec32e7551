/* SPDX-License-Identifier: Apache-2.0
 *
 * Iterates over the matches of a regular expression (by Oniguruma, whose dialect tokenizer.json
 * files use), a string or a class of characters.
 *
 * Neither the pattern nor the text is trusted. Oniguruma can limit backtracking, but a pattern such
 * as `a*[bc]|a` reads to the end of the text from every position without backtracking. So both are
 * bounded: a search starts with a low limit on backtracking and is retried with higher ones, and
 * the CPU time of a call is limited to some hundred times what the patterns of real tokenizers
 * need.
 */
#include "tokenizer_parts.h"

#include "pool.h"
#include "regex_guard.h"

#include <utf8proc.h>

enum {
    FIRST_STEPS = 512, /* limit on backtracking of the first try */
    STEPS_FACTOR = 16, /* each retry multiplies the limit by this */
    SEARCHES_PER_TIME_CHECK = 16,
    STACK_ENTRIES = 8 * 1024 * 1024, /* one per position to backtrack to */
    BUDGET_NS = 500 * 1000000,       /* plus BUDGET_NS_PER_BYTE per byte of text */
    BUDGET_NS_PER_BYTE = 10000,
};

/* ---- regular expressions ---- */

nib_status nib__text_regex_open(nib_text_regex *out, const char *pattern, size_t size,
                                nib_arena *arena, nib_err *err)
{
    char name[200];
    nib_err why = {NIB_OK, ""};
    nib_text_regex regex = {NULL, nib__arena_copy(arena, pattern, size)};
    if (regex.pattern == NULL)
        return nib__fail_memory(err, size, "a regular expression");
    const nib_status status =
        nib__regex_compile(&regex.compiled, regex.pattern, size, NIB_REGEX_ONIGURUMA, &why);
    if (status != NIB_OK)
        return nib__fail(err, status, "the regular expression \"%s\": %s",
                         nib__escape_name(name, sizeof name, pattern, size), why.text);
    *out = regex;
    return NIB_OK;
}

void nib__text_regex_close(nib_text_regex *regex)
{
    if (regex->compiled != NULL)
        onig_free(regex->compiled);
    regex->compiled = NULL;
}

nib_status nib__regex_run_open(nib_regex_run *run, size_t text_size, size_t max_word, nib_err *err)
{
    const bool bounded = max_word != 0 && max_word < STACK_ENTRIES;
    run->deadline = nib__worked_ns() + BUDGET_NS + (uint64_t)text_size * BUDGET_NS_PER_BYTE;
    run->searches = 0;
    run->region = onig_region_new();
    run->max_word = max_word;
    run->param = nib__regex_limits(bounded ? (unsigned)max_word : STACK_ENTRIES, FIRST_STEPS);
    if (run->region == NULL || run->param == NULL) {
        nib__regex_run_close(run);
        return nib__fail_memory(err, sizeof(OnigRegion), "a regular expression");
    }
    return NIB_OK;
}

void nib__regex_run_close(nib_regex_run *run)
{
    if (run->region != NULL)
        onig_region_free(run->region, 1);
    if (run->param != NULL)
        onig_free_match_param(run->param);
    *run = (nib_regex_run){0};
}

static nib_status fail_slow(const nib_finder *finder, nib_err *err)
{
    char name[200];
    return nib__fail(
        err, NIB_BAD_INPUT,
        "the tokenizer's regular expression \"%s\" takes too long on this text; it is "
        "made to be slow, so use another tokenizer.json",
        nib__escape_name(name, sizeof name, finder->regex.pattern, strlen(finder->regex.pattern)));
}

static nib_status fail_search(const nib_finder *finder, const nib_regex_run *run, int result,
                              nib_err *err)
{
    char name[200];
    OnigUChar words[ONIG_MAX_ERROR_MESSAGE_LEN];
    const char *pattern =
        nib__escape_name(name, sizeof name, finder->regex.pattern, strlen(finder->regex.pattern));
    if (result == ONIGERR_MATCH_STACK_LIMIT_OVER && run->max_word != 0)
        return nib__fail_word(run->max_word, err);
    if (result == ONIGERR_MATCH_STACK_LIMIT_OVER)
        return nib__fail(
            err, NIB_NO_MEMORY,
            "the tokenizer's regular expression \"%s\" needs to backtrack over more than %d "
            "positions of this text; split the text",
            pattern, STACK_ENTRIES);
    if (result == ONIGERR_MEMORY)
        return nib__fail(err, NIB_NO_MEMORY,
                         "out of memory while searching with the tokenizer's regular expression "
                         "\"%s\"",
                         pattern);
    onig_error_code_to_str(words, result);
    return nib__fail(err, NIB_FAILED, "the tokenizer's regular expression \"%s\" failed: %s",
                     pattern, (const char *)words);
}

/* Searches with a limit on backtracking. Returns ONIG_MISMATCH, an error, or the match position. */
static int search(const nib_finder *finder, nib_regex_run *run, const char *text, size_t size,
                  size_t from, unsigned long steps, nib_text_range *match)
{
    const OnigUChar *bytes = (const OnigUChar *)text, *end = bytes + size;
    nib__regex_set_steps(run->param, steps);
    const int result = onig_search_with_param(finder->regex.compiled, bytes, end, bytes + from, end,
                                              run->region, ONIG_OPTION_NONE, run->param);
    if (result >= 0)
        *match = (nib_text_range){(size_t)run->region->beg[0], (size_t)run->region->end[0]};
    return result;
}

static bool out_of_steps(int result)
{
    return result == ONIGERR_RETRY_LIMIT_IN_MATCH_OVER ||
           result == ONIGERR_RETRY_LIMIT_IN_SEARCH_OVER;
}

/* Retries a search that ran out of steps, with higher limits. Times each try and gives up if the
 * next one is not expected to end before the deadline. */
static nib_status search_longer(const nib_finder *finder, nib_regex_run *run, const char *text,
                                size_t size, size_t from, nib_text_range *match, int *result,
                                nib_err *err)
{
    for (unsigned long steps = FIRST_STEPS; out_of_steps(*result); steps *= STEPS_FACTOR) {
        const uint64_t start = nib__worked_ns();
        *result = search(finder, run, text, size, from, steps, match);
        const uint64_t now = nib__worked_ns();
        if (out_of_steps(*result) && now + STEPS_FACTOR * (now - start) > run->deadline)
            return fail_slow(finder, err);
    }
    return NIB_OK;
}

static nib_status find_regex(const nib_finder *finder, nib_regex_run *run, const char *text,
                             size_t size, size_t from, nib_text_range *match, bool *found,
                             nib_err *err)
{
    if (++run->searches % SEARCHES_PER_TIME_CHECK == 0 && nib__worked_ns() > run->deadline)
        return fail_slow(finder, err);
    int result = search(finder, run, text, size, from, FIRST_STEPS, match);
    if (out_of_steps(result))
        NIB_TRY(search_longer(finder, run, text, size, from, match, &result, err));
    *found = result >= 0;
    return *found || result == ONIG_MISMATCH ? NIB_OK : fail_search(finder, run, result, err);
}

/* ---- classes of characters ---- */

bool nib__is_space(uint32_t point)
{
    if (point < 0x80)
        return point == ' ' || (point >= 9 && point <= 13);
    return point == 0x85 || point == 0xa0 || point == 0x1680 ||
           (point >= 0x2000 && point <= 0x200a) || point == 0x2028 || point == 0x2029 ||
           point == 0x202f || point == 0x205f || point == 0x3000;
}

bool nib__is_word_char(uint32_t point)
{
    if (point < 0x80)
        return (point >= '0' && point <= '9') || ((point | 32) >= 'a' && (point | 32) <= 'z') ||
               point == '_';
    /* Oniguruma's class lacks the two joiners. */
    return point == 0x200c || point == 0x200d || ONIGENC_IS_CODE_WORD(ONIG_ENCODING_UTF8, point);
}

static bool is_punctuation(uint32_t point)
{
    if (point < 0x80)
        return (point >= '!' && point <= '/') || (point >= ':' && point <= '@') ||
               (point >= '[' && point <= '`') || (point >= '{' && point <= '~');
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)point);
    return category >= UTF8PROC_CATEGORY_PC && category <= UTF8PROC_CATEGORY_PO;
}

static bool is_numeric(uint32_t point)
{
    if (point < 0x80)
        return point >= '0' && point <= '9';
    const utf8proc_category_t category = utf8proc_category((utf8proc_int32_t)point);
    return category >= UTF8PROC_CATEGORY_ND && category <= UTF8PROC_CATEGORY_NO;
}

static bool in_class(nib_finder_kind kind, uint32_t point)
{
    switch (kind) {
    case NIB_FIND_NUMERIC: return is_numeric(point);
    case NIB_FIND_PUNCTUATION: return is_punctuation(point);
    case NIB_FIND_SPACE: return nib__is_space(point);
    default: return !nib__is_space(point); /* WORDS: where a run begins */
    }
}

static bool find_class(nib_finder_kind kind, const char *text, size_t size, size_t from,
                       nib_text_range *match)
{
    const char *at = text + from, *const end = text + size;
    while (at < end) {
        const char *const start = at;
        const uint32_t point = nib__utf8_next(&at);
        if (!in_class(kind, point))
            continue;
        const bool word = nib__is_word_char(point);
        while (kind == NIB_FIND_WORDS && at < end) {
            const char *next = at;
            const uint32_t other = nib__utf8_next(&next);
            if (nib__is_word_char(other) != word || (!word && nib__is_space(other)))
                break;
            at = next;
        }
        *match = (nib_text_range){(size_t)(start - text), (size_t)(at - text)};
        return true;
    }
    return false;
}

static bool find_string(const char *string, size_t string_size, const char *text, size_t size,
                        size_t from, nib_text_range *match)
{
    const char *found =
        from >= size ? NULL : nib__find_bytes(text + from, size - from, string, string_size);
    if (found == NULL)
        return false;
    *match = (nib_text_range){(size_t)(found - text), (size_t)(found - text) + string_size};
    return true;
}

/* ---- iterating over matches ---- */

nib_status nib__find_next(const nib_finder *finder, nib_regex_run *run, const char *text,
                          size_t size, size_t *from, size_t *last, nib_text_range *match,
                          bool *found, nib_err *err)
{
    *found = false;
    while (*from <= size) {
        if (finder->kind == NIB_FIND_REGEX)
            NIB_TRY(find_regex(finder, run, text, size, *from, match, found, err));
        else if (finder->kind == NIB_FIND_STRING)
            *found = find_string(finder->string, finder->size, text, size, *from, match);
        else
            *found = find_class(finder->kind, text, size, *from, match);
        if (!*found)
            return NIB_OK;
        if (match->end > match->start || match->end != *last) {
            *from = *last = match->end;
            return NIB_OK;
        }
        /* An empty match at the end of the previous one: advance by one character. */
        *from += *from < size ? (size_t)nib__utf8_length(text + *from, size - *from) : 1;
        *found = false;
    }
    return NIB_OK;
}
