/* SPDX-License-Identifier: Apache-2.0
 *
 * A list of modules in quantization_config: names, names of classes, and regular expressions behind
 * "re:", which may end before a module's name does.
 */
#ifndef NIB_TARGETS_H
#define NIB_TARGETS_H

#include "json.h"
#include "match.h"
#include "name_index.h"

/* Of the expressions in all lists of a config. */
typedef struct nib_target_limits {
    size_t count;
    nib_pattern_budget budget;
} nib_target_limits;

typedef struct nib_targets {
    const void **names; /* [name_count] pointers to names, as nib_name_index wants them */
    nib_name_index by_name;
    size_t name_count;
    nib_pattern **patterns; /* [pattern_count] */
    size_t pattern_count;
} nib_targets;

/* The list whose first event was just read; null is an empty one. What is wrong is json's error.
 * limits are those of all lists of a config. Memory but for patterns is the arena's. */
void nib__targets_read(nib_targets *out, nib_json *json, nib_target_limits *limits,
                       nib_arena *arena, const nib_allocator *a);
void nib__targets_free(nib_targets *targets); /* its patterns */

/* This very name is in the list. */
bool nib__targets_name(const nib_targets *targets, const char *name);
/* *out: a name or an expression is the module's. NIB_BAD_INPUT if an expression takes too long. */
nib_status nib__targets_match(bool *out, const nib_targets *targets, const char *module,
                              nib_err *err);

#endif
