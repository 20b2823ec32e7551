/* SPDX-License-Identifier: Apache-2.0
 *
 * A pattern (first line) against names (the other lines): it is refused with an error text, or
 * decides every name the same way twice. Exact names are compared with strcmp, globs with a table
 * over all prefixes and with the regular expression of the same meaning.
 */
#include "match.h"

#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { LONGEST = 300 /* bytes of a glob and of a name that the table takes */ };

static void require(bool holds)
{
    if (!holds)
        abort();
}

static size_t character_size(const char *at, size_t size)
{
    const int length = nib__utf8_length(at, size);
    return length == 0 ? 1 : (size_t)length;
}

/* fits[n]: the pattern read so far matches the first n bytes of the name. */
static bool fits_glob(const char *pattern, size_t pattern_size, const char *name, size_t size)
{
    bool fits[LONGEST + 1] = {true}, next[LONGEST + 1];
    for (size_t p = 0; p < pattern_size;) {
        const size_t step = character_size(pattern + p, pattern_size - p);
        memset(next, 0, sizeof next);
        bool before = false; /* a star: some earlier character's end fits */
        for (size_t n = 0; n <= size;) {
            const size_t width = n < size ? character_size(name + n, size - n) : 1;
            before = before || fits[n];
            if (pattern[p] == '*')
                next[n] = before;
            else if (fits[n] && n < size &&
                     (pattern[p] == '?' ||
                      (width == step && memcmp(name + n, pattern + p, step) == 0)))
                next[n + width] = true;
            n += width;
        }
        memcpy(fits, next, sizeof fits);
        p += step;
    }
    return fits[size];
}

/* The glob as a regular expression; NULL: refused, because it is too long. */
static nib_pattern *glob_as_regex(const char *glob, nib_pattern_budget *budget,
                                  const nib_allocator *a)
{
    nib_text text;
    nib_pattern *regex = NULL;
    nib__text_init(&text, a);
    nib__text_str(&text, "re:");
    for (; *glob != 0; glob++)
        if (*glob == '*' || *glob == '?')
            nib__text_str(&text, *glob == '*' ? "[\\s\\S]*" : "[\\s\\S]");
        else if (*glob > 0 && strchr("\\^$.|+()[]{}-&#", *glob) != NULL)
            nib__text_format(&text, "\\%c", *glob);
        else
            nib__text_put(&text, glob, 1);
    require(!text.failed);
    if (nib__pattern_make(&regex, text.at, budget, a, NULL) != NIB_OK)
        regex = NULL;
    nib__text_free(&text);
    return regex;
}

static bool matches(const nib_pattern *pattern, const char *name, nib_err *err)
{
    *err = (nib_err){NIB_OK, ""};
    const bool fits = nib__pattern_matches(pattern, name, err);
    require(err->status == NIB_OK || (!fits && err->text[0] != 0));
    return fits;
}

/* regex: of the same meaning; NULL: none. */
static void check_name(const nib_pattern *pattern, const nib_pattern *regex, const char *name)
{
    const char *text = nib__pattern_text(pattern);
    const size_t size = strlen(name);
    nib_err err;
    const bool fits = matches(pattern, name, &err);
    if (err.status != NIB_OK)
        return;
    require(nib__pattern_matches(pattern, name, NULL) == fits);
    if (strncmp(text, "re:", 3) == 0)
        return;
    if (strpbrk(text, "*?") == NULL)
        require(fits == (strcmp(text, name) == 0));
    if (strlen(text) <= LONGEST && size <= LONGEST)
        require(fits == fits_glob(text, strlen(text), name, size));
    if (regex == NULL || nib__utf8_check(name, size) != size)
        return;
    const bool same = matches(regex, name, &err) == fits;
    require(same || err.status != NIB_OK);
}

static char *cut_line(char **rest)
{
    char *line = *rest, *end = strchr(line, '\n');
    *rest = end == NULL ? NULL : end + 1;
    if (end != NULL)
        *end = 0;
    return line;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const nib_allocator a = nib__allocator_default();
    nib_pattern_budget budget = {0}, spare = {0};
    nib_pattern *pattern = NULL, *regex = NULL;
    nib_err err = {NIB_OK, ""};
    char *text = malloc(size + 1), *rest = text;
    require(text != NULL);
    for (size_t i = 0; i < size; i++) /* names are C strings */
        text[i] = data[i] == 0 ? '0' : (char)data[i];
    text[size] = 0;
    const char *line = cut_line(&rest);
    if (nib__pattern_make(&pattern, line, &budget, &a, &err) != NIB_OK) {
        require(err.status != NIB_OK && err.text[0] != 0 && pattern == NULL);
    } else {
        require(strcmp(nib__pattern_text(pattern), line) == 0);
        if (strncmp(line, "re:", 3) != 0)
            regex = glob_as_regex(line, &spare, &a);
        while (rest != NULL)
            check_name(pattern, regex, cut_line(&rest));
    }
    nib__pattern_free(regex);
    nib__pattern_free(pattern);
    free(text);
    return 0;
}
