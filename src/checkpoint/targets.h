/* SPDX-License-Identifier: Apache-2.0
 *
 * A list of modules in quantization_config: module names, class names, and patterns. Of
 * compressed-tensors, patterns are regular expressions after "re:", which need to match only a
 * prefix of a module name. Of ModelOpt, they are globs, and a name also stands for all modules
 * below it.
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

/* Which tool's rules the list follows. */
typedef enum nib_target_rules { NIB_TARGETS_COMPRESSED, NIB_TARGETS_MODELOPT } nib_target_rules;

typedef struct nib_targets {
    nib_target_rules rules;
    const void **names; /* [name_count] pointers to names, as nib_name_index requires */
    nib_name_index by_name;
    size_t name_count;
    nib_pattern **patterns; /* [pattern_count] */
    size_t pattern_count;
} nib_targets;

/* Names that are collected one by one. Start with zeros. */
typedef struct nib_target_names {
    void *texts; /* [count] const char * in the arena */
    size_t count, capacity;
} nib_target_names;

/* Reads the list whose first event was just read; null is an empty list. out->rules must be set.
 * Errors, which begin with `key`, are stored in json. limits: shared by all lists of a config.
 * Everything except patterns is allocated in the arena. */
void nib__targets_read(nib_targets *out, nib_json *json, const char *key, nib_target_limits *limits,
                       nib_arena *arena, const nib_allocator *a);
void nib__targets_free(nib_targets *targets); /* frees the patterns */

/* Adds a name, which is not copied. False: out of memory, or too many names. */
bool nib__target_names_add(nib_target_names *names, const char *name, nib_arena *arena);
/* Makes a list of the names; running out of memory is stored in json. */
void nib__targets_of_names(nib_targets *out, const nib_target_names *names, nib_json *json,
                           nib_arena *arena);

/* Whether exactly this name is in the list. */
bool nib__targets_name(const nib_targets *targets, const char *name);
/* Index of the name that matches the module, or SIZE_MAX: its own, or, by ModelOpt's rules, that of
 * the closest module above it that is listed. */
size_t nib__targets_find(const nib_targets *targets, const char *module);
/* The pattern as it is written in the list, in the arena; NULL: out of memory. */
const char *nib__targets_pattern(const nib_targets *targets, size_t i, nib_arena *arena);
/* *out: whether a name or expression matches. NIB_BAD_INPUT if an expression takes too long. */
nib_status nib__targets_match(bool *out, const nib_targets *targets, const char *module,
                              nib_err *err);

#endif
