/* SPDX-License-Identifier: Apache-2.0
 *
 * Copies a JSON object with some members replaced, added or removed. Everything else stays byte for
 * byte: unknown keys, order, number forms, white space.
 */
#ifndef NIB_JSON_EDIT_H
#define NIB_JSON_EDIT_H

#include "json.h"

typedef struct nib_json_edit {
    const char *key;
    const char *value;    /* JSON text; NULL: remove the member */
    bool only_if_present; /* replace only if present, never add */
} nib_json_edit;

nib_status nib__json_edit(nib_text *out, const char *name, const char *text, size_t size,
                          const nib_json_edit *edits, size_t count, nib_err *err);

#endif
