/* SPDX-License-Identifier: Apache-2.0
 *
 * Writes a mixture as a recipe file for people: a line per layer, and one for all experts of a
 * layer that have the same scheme.
 */
#include "mixed.h"

#include <string.h>

/* The part of an expert's name behind its number, with *size bytes before that; NULL: no expert. */
static const char *after_expert(const char *name, size_t *size)
{
    static const char word[] = ".experts.";
    const char *at = strstr(name, word);
    if (at == NULL)
        return NULL;
    at += sizeof word - 1;
    *size = (size_t)(at - name);
    const char *rest = at;
    while (*rest >= '0' && *rest <= '9')
        rest++;
    return rest > at && *rest == '.' ? rest : NULL;
}

/* Whether two names differ at most in the number of their expert. */
static bool is_alike(const char *a, const char *b)
{
    size_t size_a, size_b;
    const char *rest_a = after_expert(a, &size_a), *rest_b = after_expert(b, &size_b);
    if (rest_a == NULL || rest_b == NULL)
        return strcmp(a, b) == 0;
    return size_a == size_b && memcmp(a, b, size_a) == 0 && strcmp(rest_a, rest_b) == 0;
}

/* Whether all experts like this one have its scheme. */
static bool is_common(const nib_site *sites, const char *const *schemes, size_t count, size_t at)
{
    for (size_t i = 0; i < count; i++)
        if (is_alike(sites[i].name, sites[at].name) &&
            (schemes[i] == NULL || strcmp(schemes[i], schemes[at]) != 0))
            return false;
    return true;
}

static bool is_first(const nib_site *sites, size_t at)
{
    for (size_t i = 0; i < at; i++)
        if (is_alike(sites[i].name, sites[at].name))
            return false;
    return true;
}

static void write_rule(nib_text *out, const nib_site *sites, const char *const *schemes,
                       size_t count, size_t at, bool *any)
{
    const char *name = sites[at].name;
    size_t size;
    const char *rest = after_expert(name, &size);
    const bool shared = rest != NULL && is_common(sites, schemes, count, at);
    if (shared && !is_first(sites, at))
        return;
    nib__text_format(out, "%s   {\"match\": \"", *any ? ",\n" : "\n");
    *any = true;
    if (shared) {
        nib__text_put(out, name, size);
        nib__text_format(out, "*%s", rest);
    } else {
        nib__text_str(out, name);
    }
    nib__text_format(out, "\", \"scheme\": \"%s\"}", schemes[at]);
}

void nib__mixed_rules(nib_text *out, const nib_site *sites, const char *const *schemes,
                      size_t count)
{
    bool any = false;
    nib__text_str(out, "{\"schema\": 1,\n \"rules\": [");
    for (size_t i = 0; i < count; i++)
        if (schemes[i] != NULL)
            write_rule(out, sites, schemes, count, i, &any);
    nib__text_str(out, "],\n \"else\": \"keep\"}\n");
}
