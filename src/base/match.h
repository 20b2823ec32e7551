/* SPDX-License-Identifier: Apache-2.0
 *
 * Patterns over module and tensor names: an exact name, a glob with `*` (crosses dots) and `?`, or
 * `re:` and a regular expression that must match the whole name (Oniguruma, with limits on steps).
 */
#ifndef NIB_MATCH_H
#define NIB_MATCH_H

#include "text.h"

typedef struct nib_pattern nib_pattern;

/* Processor time shared by all expressions of one file, which limits their sum. */
typedef struct nib_pattern_budget {
    uint64_t spent_ns; /* compiling and matching */
} nib_pattern_budget;

/* budget must outlive the pattern; NULL: no limit, for a pattern that the user typed. */
nib_status nib__pattern_make(nib_pattern **out, const char *text, nib_pattern_budget *budget,
                             const nib_allocator *a, nib_err *err);
/* The same for the value of an option: NIB_USAGE with the option's name if the value is wrong. */
nib_status nib__pattern_of_option(nib_pattern **out, const char *option, const char *text,
                                  const nib_allocator *a, nib_err *err);
void nib__pattern_free(nib_pattern *pattern);
const char *nib__pattern_text(const nib_pattern *pattern);
/* A pattern that is too costly on this name counts as no match and sets *err. err NULL: repeats a
 * match that was within the budget, so the budget is not charged. */
bool nib__pattern_matches(const nib_pattern *pattern, const char *name, nib_err *err);

#endif
