/* SPDX-License-Identifier: Apache-2.0
 *
 * A list of modules in quantization_config: module names, class names, and regular expressions
 * after "re:", which need to match only a prefix of a module name.
 */
#ifndef NIB_TARGETS_H
#define NIB_TARGETS_H

#include "json.h"
#include "match.h"
#include "name_index.h"

/* Shared by the expressions in all lists of a config. */
typedef struct nib_target_limits {
    size_t count;
    nib_pattern_budget budget;
} nib_target_limits;

typedef struct nib_targets {
    const void **names; /* [name_count] pointers to names, as nib_name_index requires */
    nib_name_index by_name;
    size_t name_count;
    nib_pattern **patterns; /* [pattern_count] */
    size_t pattern_count;
} nib_targets;

/* Reads the list whose first event was just read; null is an empty list. Errors, which begin with
 * `key`, are stored in json. limits: shared by all lists of a config. Everything except patterns is
 * allocated in the arena. */
void nib__targets_read(nib_targets *out, nib_json *json, const char *key, nib_target_limits *limits,
                       nib_arena *arena, const nib_allocator *a);
void nib__targets_free(nib_targets *targets); /* frees the patterns */

/* Whether exactly this name is in the list. */
bool nib__targets_name(const nib_targets *targets, const char *name);
/* *out: whether a name or expression matches. NIB_BAD_INPUT if an expression takes too long. */
nib_status nib__targets_match(bool *out, const nib_targets *targets, const char *module,
                              nib_err *err);

#endif
