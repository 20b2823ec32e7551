/* SPDX-License-Identifier: Apache-2.0
 *
 * One torchao config as JSON, {"_type", "_version", "_data"}: its fields as a flat list, and the
 * scheme that it means.
 */
#ifndef NIB_TORCHAO_CONFIG_H
#define NIB_TORCHAO_CONFIG_H

#include "recipe_rules.h"

enum { NIB_AO_FIELDS_MAX = 24 };

/* One member of "_data". An object {"_type", "_data"} gives its type, and its text or number. A
 * list of one or two items gives its last item (the weight's granularity) and the type of its first
 * (the activation's). */
typedef struct nib_ao_field {
    const char *key, *type, *text, *first_type;
    const char *inner[2]; /* first keys of an object's own "_data"; NULL: fewer */
    int64_t number;
    bool has_number, is_null, is_true;
    bool has_other_flag; /* an object with a flag other than Float8MMConfig's default */
} nib_ao_field;

typedef struct nib_ao_config {
    const char *type; /* NULL: the config is null */
    int64_t version;
    nib_ao_field fields[NIB_AO_FIELDS_MAX];
    size_t count;
    nib_json at; /* position in the file */
} nib_ao_config;

/* Reads a config whose first event, an object or null, was just read. *data: position of
 * "_data". */
nib_status nib__ao_read(nib_ao_config *out, nib_recipe *r, nib_json *json, nib_json *data,
                        nib_err *err);
/* Reads the fields at *data. */
nib_status nib__ao_read_data(nib_ao_config *c, nib_recipe *r, nib_json *data, nib_err *err);
/* Refuses an unknown version. */
nib_status nib__ao_check_version(nib_ao_config *c, nib_err *err);
/* Fills a rule: keep for null, else the config's scheme and layout hint. */
nib_status nib__ao_fill_rule(nib_recipe *r, nib_ao_config *c, nib_json *data, nib_rule *rule,
                             nib_err *err);

#endif
