/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns over module and tensor names: an exact name, a glob with `*` (crosses dots) and `?`, or
 * `re:` and a regular expression that must match the whole name (Oniguruma, with limits on steps).
 */
#ifndef NIB_MATCH_H
#define NIB_MATCH_H

#include "text.h"

typedef struct nib_pattern nib_pattern;

/* Processor time shared by all expressions of one file, so that many are not slower than one. */
typedef struct nib_pattern_budget {
    uint64_t spent_ns; /* of processor time, compiling and matching */
} nib_pattern_budget;

/* budget outlives the pattern; NULL: it has none, as where the user wrote the pattern. */
nib_status nib__pattern_make(nib_pattern **out, const char *text, nib_pattern_budget *budget,
                             const nib_allocator *a, nib_err *err);
/* The same of an option's text: NIB_USAGE with its name, if the text is wrong. */
nib_status nib__pattern_of_option(nib_pattern **out, const char *option, const char *text,
                                  const nib_allocator *a, nib_err *err);
void nib__pattern_free(nib_pattern *pattern);
const char *nib__pattern_text(const nib_pattern *pattern);
/* A pattern too costly on this name counts as no match and sets *err. err NULL: what is asked was
 * asked before, so the budget does not end it. */
bool nib__pattern_matches(const nib_pattern *pattern, const char *name, nib_err *err);

#endif
