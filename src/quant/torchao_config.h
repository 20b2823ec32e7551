/* SPDX-License-Identifier: Apache-2.0
 *
 * One torchao config as JSON, {"_type", "_version", "_data"}: its fields as a flat list, and the
 * scheme it means.
 */
#ifndef NIB_TORCHAO_CONFIG_H
#define NIB_TORCHAO_CONFIG_H

#include "recipe_rules.h"

enum { NIB_AO_FIELDS_MAX = 24 };

/* One member of "_data". An object {"_type", "_data"} gives its type, and its text or its number; a
 * list is its last item (a granularity's is the weight's) and the type of its first (the
 * activation's), of two at most. */
typedef struct nib_ao_field {
    const char *key, *type, *text, *first_type;
    const char *inner[2]; /* the first keys of an object's own "_data"; NULL: it has fewer */
    int64_t number;
    bool has_number, is_null, is_true;
    bool has_other_flag; /* an object with a flag that is not as Float8MMConfig has it by default */
} nib_ao_field;

typedef struct nib_ao_config {
    const char *type; /* NULL: the config is null */
    int64_t version;
    nib_ao_field fields[NIB_AO_FIELDS_MAX];
    size_t count;
    nib_json at; /* where it stands, for messages */
} nib_ao_config;

/* Reads the config whose first event was just read: an object, or null. *data is where "_data"
 * begins. */
nib_status nib__ao_read(nib_ao_config *out, nib_recipe *r, nib_json *json, nib_json *data,
                        nib_err *err);
/* Its fields, from *data on. */
nib_status nib__ao_read_data(nib_ao_config *c, nib_recipe *r, nib_json *data, nib_err *err);
/* A version whose meaning is not known is refused. */
nib_status nib__ao_check_version(nib_ao_config *c, nib_err *err);
/* Fills what the rule gives: keep for null, else the config's scheme and wish. */
nib_status nib__ao_fill_rule(nib_recipe *r, nib_ao_config *c, nib_json *data, nib_rule *rule,
                             nib_err *err);

#endif
